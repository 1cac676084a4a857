# SPDX-License-Identifier: Apache-2.0
"""How far roundings to fp32 move what an iteration makes, and what it makes without any: by the references.

A gradient behind a batch norm over two values is 0 but for `eps`, and behind ten of those it is what fp32's
roundings make of it. No rule for one tensor says how much that is; training again, with all that ops read
moved by an ulp, does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from configs.errors import NotFiniteError
from configs.values import Struct
from trainlib.ir.graph import Op, TrainingGraph
from trainlib.ir.steps import Array
from trainlib.references.reference import evaluate

NUDGED = 8
"""Iterations by the references, each with other roundings."""

DOUBLE = np.finfo(np.float64).eps / np.finfo(np.float32).eps
"""How much smaller a rounding is in fp64 than in fp32."""

_SHARE = 1e-9
"""Of the largest element, what two ways to compute a tensor in fp64 may differ."""


class Conditioning(Struct, frozen=True):
    """Of every tensor its numbers in fp64, and how far the roundings of fp32 move an element at most."""

    double: Mapping[str, Array]
    spread: Mapping[str, float]

    def explains(self, name: str, error: float, times: float) -> bool:
        """Whether so many times the spread of a tensor is as much as its error."""
        return name in self.spread and error <= times * self.spread[name]

    def confirms(self, name: str, truth: Array) -> bool:
        """Whether fp64 makes `truth` of the tensor: its own roundings are what may lie between."""
        allowed = _SHARE * _largest(truth) + NUDGED * DOUBLE * self.spread[name]
        return bool(_largest(self.double[name].reshape(truth.shape) - truth) <= allowed)


def conditioning(graph: TrainingGraph, values: Mapping[str, Array]) -> Conditioning | None:
    """Of the gradients and losses of an iteration that begins with `values`; None if numbers overflow."""
    wide = {
        name: array.astype(np.float64) if array.dtype.kind == "f" else array for name, array in values.items()
    }
    try:
        double = _outcomes(graph, evaluate(graph, wide, rounds=False))
        draws = [
            _outcomes(graph, evaluate(graph, values, nudges(graph, np.random.default_rng(seed))))
            for seed in range(NUDGED)
        ]
    except NotFiniteError:
        return None
    spread = {name: max(_largest(draw[name] - exact) for draw in draws) for name, exact in double.items()}
    return Conditioning(double, spread)


def nudges(graph: TrainingGraph, generator: np.random.Generator) -> Callable[[Op, str, Array], Array]:
    """For `evaluate`: what ops read is moved by an ulp, up, down or not, but for what they update."""

    def nudged(op: Op, name: str, array: Array) -> Array:
        floats = array.dtype == np.float32 and op.step not in ("UPD", "ACCUMULATE")
        if not floats or graph.tensors[name].kind == "buffer":
            return array
        way = generator.integers(-1, 2, array.shape) * (array != 0)  # the 0 that a ReLU leaves is one
        moved: Array = array + (way * np.spacing(np.abs(array))).astype(np.float32)
        return moved

    return nudged


def _outcomes(graph: TrainingGraph, evaluated: Mapping[str, Array]) -> dict[str, Array]:
    outcomes = {name: evaluated[name].astype(np.float64) for name in graph.gradients.values()}
    outcomes["loss"] = np.asarray(sum(evaluated[name].astype(np.float64) for name in graph.losses))
    return outcomes


def _largest(array: Array) -> float:
    return float(np.abs(array).max(initial=0.0))
