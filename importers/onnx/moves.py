# SPDX-License-Identifier: Apache-2.0
"""ONNX ops that move elements."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np

from configs.values import replace
from importers.graph.arranging import viewed
from importers.graph.draft import CHECKED, CannotTakeError
from importers.graph.node import Attributes, Handler, Node, axis_of
from importers.graph.views import Shape, View
from importers.graph.weights import Constant
from importers.place.moves import (
    along,
    arranged,
    chosen,
    concatenated,
    equal_parts,
    expanded,
    inside,
    misfit,
    padded,
    parts_of,
    repeated,
    scattered,
    selected,
    squeezed,
    surrounded,
    target_shape,
    to_depth,
    to_space,
)
from importers.place.pairs import applied, common_shape
from importers.place.products import looked_up, picked

FLOATS = (1, 10, 11, 16)
"""ONNX's numbers of float32, float16, float64, bfloat16: the model's dtype says which."""


def _cast(node: Node) -> Any:
    given = node.get(0)
    if node.op == "CastLike" and isinstance(given, Constant):
        return replace(given, value=given.value.astype(np.float32))
    if node.op == "Cast" and node.integer("to", 1) not in FLOATS:
        raise CannotTakeError("a cast of activations to integers is not supported", "use floating point")
    return node.x


def _dropout(node: Node) -> View:
    if 1 in node.used:
        raise CannotTakeError("the output of the dropout mask is not supported", "use the first output only")
    ratio, training = node.constant(1), node.constant(2)
    share = node.real("ratio", 0.5) if ratio is None else number_in(ratio, "ratio")
    if training is None or not training.value.any() or share == 0:
        return node.x
    return applied(node, "dropout", node.x, {"p": round(share, 6)})


def number_in(constant: Constant, what: str) -> float:
    """The number in a constant that may have one only."""
    if constant.value.size != 1:
        raise CannotTakeError(f"{what} of the node is not a number", CHECKED)
    return float(constant.value.ravel()[0])


def new_shape(node: Attributes, shape: Shape, op: str) -> Shape:
    """What a Reshape or a Flatten makes of a shape."""
    if op == "Flatten":
        axis = node.integer("axis", 1)
        axis = axis + len(shape) if axis < 0 else axis
        return (prod(shape[:axis]), prod(shape[axis:]))
    wanted = node.integers("shape", 1)
    if wanted is None:
        raise CannotTakeError("the shape input of the node is missing", CHECKED)
    return target_shape(shape, wanted, zero_is_zero=bool(node.integer("allowzero", 0)))


def _unsqueeze(node: Node) -> View:
    view = node.x
    for axis in new_axes(node, node.rank):
        view = view.with_dim(axis)
    return view


def new_axes(node: Attributes, rank: int) -> list[int]:
    """The dimensions that an Unsqueeze adds, as they are numbered in its result."""
    axes = node.integers("axes", 1) or ()
    return sorted(axis_of(axis, rank + len(axes)) for axis in axes)


def gone_axes(node: Attributes, shape: Shape) -> list[int]:
    """The dimensions that a Squeeze leaves out."""
    asked = node.integers("axes", 1)
    if asked is None:
        return [axis for axis, size in enumerate(shape) if size == 1]
    axes = [axis_of(axis, len(shape)) for axis in asked]
    for axis in axes:
        if shape[axis] != 1:
            raise CannotTakeError(
                f"squeezed dimension {axis} has {shape[axis]} elements, not 1", "use Reshape"
            )
    return axes


def order_of(node: Attributes, rank: int) -> Shape:
    """The dimensions in the order in which a Transpose puts them."""
    order = node.sizes("perm", tuple(reversed(range(rank))))
    if sorted(order) != list(range(rank)):
        raise CannotTakeError(f"perm {list(order)} does not fit {rank} dimensions", CHECKED)
    return order


def slices(node: Attributes, shape: Shape) -> list[tuple[int, range]]:
    """The dimensions that a Slice cuts, and which elements of each it takes."""
    starts, ends = node.integers("starts", 1), node.integers("ends", 2)
    if starts is None or ends is None:
        raise CannotTakeError("starts or ends of the node are missing", CHECKED)
    axes = node.integers("axes", 3) or tuple(range(len(starts)))
    steps = node.integers("steps", 4) or (1,) * len(starts)
    if not len(starts) == len(ends) == len(axes) == len(steps):
        raise CannotTakeError("starts, ends, axes and steps of the node differ in length", CHECKED)
    cuts = []
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        dim = axis_of(axis, len(shape))
        every = range(shape[dim] if shape else 0)
        until = None if end < -len(every) else end
        cuts.append((dim, every[slice(start, until, step)] if step else every[:0]))
    return cuts


def _slice(node: Node) -> View:
    view = node.x
    for number, (dim, taken) in enumerate(slices(node, view.shape)):
        view = chosen(node, view, dim, taken, f"_{number}" if number else "")
    return view


def _gather(node: Node) -> View:
    table, index = node.get(0), node.get(1)
    if isinstance(table, Constant) and isinstance(index, View):
        if len(table.shape) != 2 or node.axis(2) != 0:
            raise CannotTakeError(
                "only rows of a matrix can be looked up", "use a [words, features] table, axis 0"
            )
        return looked_up(node, index, table)
    places, shape = node.needed(1, "indices"), node[0].shape
    dim = node.axis(len(shape))
    numbers = [indexed(int(number), shape[dim]) for number in places.value.ravel()]
    if not places.shape and isinstance(table, View):
        return selected(node, table, dim, numbers[0])
    taken = picked(node, table, shape, dim, np.array(numbers))
    if len(places.shape) == 1:
        return taken
    return viewed(node, taken, (*shape[:dim], *places.shape, *shape[dim + 1 :]))


def _gather_elements(node: Node) -> View:
    return along(node, node.x, node.needed(1, "indices").value, node.axis(node.rank))


def _gather_nd(node: Node) -> View:
    shape, lead = node.x.shape, node.integer("batch_dims", 0)
    index = node.needed(1, "indices").value
    if not index.ndim > lead or index.shape[:lead] != shape[:lead]:
        raise misfit(index, shape)
    index = inside(index, shape[lead : lead + index.shape[-1]])
    outer, whole = prod(shape[:lead]), np.arange(prod(shape))
    cut, each = whole.reshape(outer, *shape[lead:]), index.reshape(outer, *index.shape[lead:])
    taken = [one[tuple(np.moveaxis(numbers, -1, 0))] for one, numbers in zip(cut, each, strict=True)]
    return arranged(node, [node.x], np.array(taken).reshape(*index.shape[:lead], *np.shape(taken)[1:]))


def _scatter(node: Node) -> View:
    base, source, how = node[0], node[2], node.text("reduction", "none")
    if how not in ("none", "add"):
        raise CannotTakeError(f"reduction {how} is not supported", "use none or add")
    index = node.needed(1, "indices").value
    if (not index.ndim) if node.op == "ScatterND" else index.ndim != len(base.shape):
        raise misfit(index, base.shape)
    if node.op == "ScatterND":
        count = index.shape[-1]
        inside(index, base.shape[:count])
        wide = (*index.shape[:-1], *(1 for _ in base.shape[count:]))
        rest = np.indices(base.shape[count:], sparse=True)
        places = [index[..., item].reshape(wide) for item in range(count)] + list(rest)
    else:
        places = list(np.indices(index.shape))
        places[node.axis(len(base.shape))] = index
    return scattered(node, base, source, places, adds=how == "add")


def indexed(number: int, size: int) -> int:
    """The number of an element counted from the front. Raises `CannotTakeError` if there is none."""
    return int(inside(np.array(number), size))


def part_sizes(node: Attributes, size: int, count: int) -> Shape:
    """Sizes of the parts that a Split of `count` outputs cuts a dimension into."""
    sizes = node.integers("split", 1)
    sizes = equal_parts(size, -(-size // count)) if sizes is None else sizes
    if len(sizes) != count:
        raise CannotTakeError(
            f"the node has {count} outputs, but {len(sizes)} sizes", "set one size per output"
        )
    return sizes


def _split(node: Node) -> Any:
    dim = node.axis(node.rank)
    return parts_of(node, node.x, dim, part_sizes(node, node.x.shape[dim], len(node.shapes)), node.used)


def _concat(node: Node) -> View:
    like = next(item for item in node.inputs if isinstance(item, View))
    return concatenated(node, node.inputs, node.axis(len(like.dims)))


def _pad(node: Node) -> View:
    widths, rank, value = node.integers("pads", 1), node.rank, node.constant(2)
    if widths is None:
        raise CannotTakeError("the pads of the node are missing", CHECKED)
    axes = [axis_of(axis, rank) for axis in node.integers("axes", 3) or range(rank)]
    if len(widths) != 2 * len(axes):
        raise CannotTakeError(f"pads {list(widths)} do not fit {len(axes)} dimensions", CHECKED)
    is_said = value is not None and value.value.size
    number = number_in(value, "value") if value is not None and is_said else node.real("value", 0.0)
    given = dict(zip(axes, zip(widths, widths[len(axes) :], strict=False), strict=True))
    pairs, mode = [given.get(dim, (0, 0)) for dim in range(rank)], node.text("mode", "constant")
    if mode == "constant":
        return padded(node, node.x, pairs, number)
    if mode not in ("reflect", "edge", "wrap"):
        raise CannotTakeError(f"pad mode {mode} is unknown", CHECKED)
    return surrounded(node, node.x, pairs, mode)


def _expand(node: Node) -> View:
    wanted = node.integers("shape", 1)
    if wanted is None:
        raise CannotTakeError("the shape input of the node is missing", CHECKED)
    return expanded(node, node.x, common_shape(node.x.shape, wanted))


def _tile(node: Node) -> View:
    counts = node.integers("repeats", 1)
    if counts is None or len(counts) != node.rank:
        raise CannotTakeError("the repeats of the node are missing", CHECKED)
    return repeated(node, node.x, counts)


def _blocks(node: Node) -> View:
    how = to_depth if node.op == "SpaceToDepth" else to_space
    mode = node.text("mode", "DCR")
    return how(node, images(node), node.integer("blocksize", 1), depth_first=mode == "DCR")


def images(node: Node) -> View:
    """What it works on, which must be a batch of images."""
    if node.rank != 4:
        raise CannotTakeError(
            f"the input of shape {list(node.x.shape)} is not a batch of images",
            "use shape [batch, channels, height, width]",
        )
    return node.x


HANDLERS: Mapping[str, Handler] = {
    "Identity": lambda node: node.x,
    **dict.fromkeys(("Cast", "CastLike"), _cast),
    "Dropout": _dropout,
    **dict.fromkeys(
        ("Reshape", "Flatten"), lambda node: viewed(node, node.x, new_shape(node, node.x.shape, node.op))
    ),
    "Unsqueeze": _unsqueeze,
    "Squeeze": lambda node: squeezed(node.x, gone_axes(node, node.x.shape)),
    "Transpose": lambda node: node.x.permuted(order_of(node, node.rank)),
    "Slice": _slice,
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "GatherND": _gather_nd,
    **dict.fromkeys(("Scatter", "ScatterElements", "ScatterND"), _scatter),
    "Split": _split,
    **dict.fromkeys(("Concat", "com.microsoft:ConcatTraining"), _concat),
    "Pad": _pad,
    "Expand": _expand,
    "Tile": _tile,
    **dict.fromkeys(("DepthToSpace", "SpaceToDepth"), _blocks),
}
