# SPDX-License-Identifier: Apache-2.0
"""Random numbers of a capture: what dropout of channels, alpha dropout and drop path are taken apart into."""

from __future__ import annotations

from collections.abc import Mapping
from math import isclose
from typing import Any

import numpy as np

from configs.values import replace
from importers.graph.arranging import Site
from importers.graph.draft import CannotTakeError
from importers.graph.node import Handler, Node
from importers.graph.torch_capture import Noise
from importers.graph.views import View
from importers.graph.weights import Constant
from importers.place.pairs import applied, number_of, scaled, shifted

DRAWS = ("bernoulli", "rand", "rand_like")
SAME = ("_to_copy", "alias", "clone", "contiguous", "detach", "lift_fresh_copy", "to", "type_as")


def with_noise(handlers: Mapping[str, Handler]) -> dict[str, Handler]:
    """The same, of what is drawn too."""

    def around(op: str) -> Handler:
        def handler(node: Node) -> Any:
            held = (
                _followed(node) if any(isinstance(item, Noise) for item in node.arguments.values()) else node
            )
            if not isinstance(held, Node):
                return held
            return handlers[op](held)

        return handler

    return {**{op: around(op) for op in handlers}, **dict.fromkeys(DRAWS, _drawn)}


def _drawn(node: Node) -> Noise:
    """What an op of `DRAWS` makes. Raises `CannotTakeError` for probabilities that differ."""
    if node.op != "bernoulli":
        return Noise(object(), node.shape)
    keep = number_of(node["p"] if "p" in node.arguments else node["self"])
    if keep is None:
        raise CannotTakeError(
            "a dropout mask with several probabilities is not supported",
            "use one probability for all elements",
        )
    return Noise(object(), node.shape, keep)


def _followed(node: Node) -> Noise | View | Node:
    """What a node makes of noise, or the node with layers in place of it."""
    noises = {key: item for key, item in node.arguments.items() if isinstance(item, Noise)}
    first, other = node.get("self"), node.get("other", node.get("value"))
    if isinstance(first, View) and isinstance(other, Noise) and node.op == "mul":
        first, other = other, first
    if isinstance(first, Noise):
        number = number_of(other) if not isinstance(other, Noise) else None
        changed = _changed(node, first, number)
        if changed is not None:
            return changed
        is_mask = isinstance(other, View) and other.shape == first.shape and first.keep and not first.shift
        if node.op == "mul" and is_mask:
            made = applied(node, "dropout", other, {"p": round(1 - (first.keep or 0), 6)})
            return scaled(node, made, _factor(first), suffix="_scale")
    views = {key: _layers(node, item) for key, item in noises.items()}
    return replace(node, arguments={**node.arguments, **views})


def _changed(node: Node, noise: Noise, number: float | None) -> Noise | None:
    """Noise that an op makes of noise and a number."""
    op, alpha = node.op, node.get("alpha", 1)
    if op in SAME:
        return noise
    if op == "floor" and noise.keep is None and noise.scale == 1 and 0 < noise.shift < 1:
        return replace(noise, keep=noise.shift, shift=0.0)
    if number is None:
        return None
    factors = {"add": 1.0, "sub": 1.0, "mul": number, "div": 1 / number if number else None}
    if (factor := factors.get(op)) is not None:
        more = {"add": alpha * number, "sub": -alpha * number}.get(op, 0.0)
        return replace(noise, scale=factor * noise.scale, shift=factor * noise.shift + more)
    if op in ("ge", "gt", "le", "lt") and noise.keep is None and noise.scale == 1:
        below = number - noise.shift
        return Noise(noise.draw, noise.shape, below if op in ("le", "lt") else 1 - below)
    return None


def _factor(noise: Noise) -> float:
    """Times what a dropout layer makes of ones: it divides by what it keeps."""
    factor = (noise.keep or 0) * noise.scale
    return 1.0 if isclose(factor, 1) else factor


def _layers(site: Site, noise: Noise) -> View:
    """A dropout of ones, scaled and shifted."""
    if noise.keep is None or not 0 < noise.keep <= 1:
        raise CannotTakeError(
            "random numbers other than a dropout mask are not supported",
            "use Dropout, bernoulli, or rand() < p",
        )
    draft = site.draft
    batch = draft.tensors[draft.first_input].shape[0]
    if noise.shape[:1] != (batch,):
        what = f"the random numbers have shape {list(noise.shape)}, without the batch of {batch} in front"
        raise CannotTakeError(what, "use random numbers of shape [batch, ...]")
    if (noise.draw,) not in draft.made:
        sizes = noise.shape[1:] or (1,)
        ones = {"w": Constant(np.ones(sizes, np.float32))}
        held = site.layer("parameter", (draft.first_input,), {"shape": list(sizes)}, ones, suffix="_ones")
        mask = applied(site, "dropout", held, {"p": round(1 - noise.keep, 6)}, suffix="_mask")
        draft.made[noise.draw,] = mask if noise.shape[1:] else mask.without_dim(1)
    made = scaled(site, draft.made[noise.draw,], _factor(noise), suffix="_factor")
    return shifted(site, made, noise.shift, suffix="_offset")
