# SPDX-License-Identifier: Apache-2.0
"""ONNX ops that move elements: views and transposes cost nothing here, what must be copied is a layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from importers.graph.arranging import in_order, sample_word, under, viewed
from importers.graph.draft import CHECKED, CannotTakeError, elements
from importers.graph.views import BATCH, View
from importers.onnx.call import NEAREST, Call, Constant, axis_of, register
from importers.place.cutting import sliced, split

NEAREST.update(
    {
        "GatherND": "Gather, Slice",
        "GatherElements": "Gather, Slice",
        "ScatterND": "Concat of Slices",
        "ScatterElements": "Concat of Slices",
        "Tile": "Expand where it is added or multiplied",
        "TopK": "MaxPool",
        "NonZero": "Where",
        "OneHot": "Gather of a table",
        "Einsum": "MatMul and Transpose",
        "If": "the branch that is taken",
        "Loop": "its body, as often as it runs",
        "Scan": "GRU, LSTM, or its body as often as it runs",
        "Compress": "Slice",
        "ReverseSequence": "sequences the right way round",
    }
)

MOST_PIECES = 64
"""Slices that one Gather or one Slice with a step may become."""


@register("Identity", "Dropout", "Cast", "CastLike")
def _same(call: Call) -> Any:
    given = call.arguments[0]
    if call.node.op == "CastLike" and isinstance(given, Constant):
        return replace(given, value=given.value.astype(np.float32))
    view = call.view()
    if call.node.op == "Dropout":
        return _dropout(call, view)
    if call.node.op == "Cast":
        to = int(call.attribute("to", 1))
        if to not in (1, 10, 11, 16):  # float32, float16, float64, bfloat16: the model's dtype says which
            raise CannotTakeError("makes integers of activations", "floating-point types throughout")
    return view


def _dropout(call: Call, view: View) -> View:
    if 1 in call.used:
        raise CannotTakeError("its mask is used", "one output")
    training = call.constant(2) if call.has(2) else None
    ratio = call.constant(1) if call.has(1) else None
    share = float(call.attribute("ratio", 0.5)) if ratio is None else float(ratio.value.reshape(-1)[0])
    if training is None or not training.value.any() or share == 0:
        return view
    return call.like(view, "dropout", {"p": round(share, 6)})


@register("Reshape", "Flatten", "Squeeze", "Unsqueeze")
def _reshape(call: Call) -> Any:
    view, op = call.view(), call.node.op
    rank = len(view.dims)
    if op == "Flatten":
        axis = int(call.attribute("axis", 1))
        axis = axis + rank if axis < 0 else axis
        return viewed(call, view, (prod(view.shape[:axis]), prod(view.shape[axis:])))
    if op == "Unsqueeze":
        axes = call.integers("axes", 1) or ()
        for axis in sorted(axis_of(axis, rank + len(axes)) for axis in axes):
            view = view.with_dim(axis)
        return view
    if op == "Squeeze":
        asked = call.integers("axes", 1)
        axes = tuple(range(rank)) if asked is None else tuple(axis_of(axis, rank) for axis in asked)
        for axis in sorted(set(axes), reverse=True):
            if view.shape[axis] == 1:
                view = _without(view, axis)
            elif asked is not None:
                raise CannotTakeError(f"squeezes dimension {axis} of {view.shape[axis]} elements", "Reshape")
        return view
    wanted = call.integers("shape", 1)
    if wanted is None:
        raise CannotTakeError("its shape is missing", CHECKED)
    return viewed(
        call, view, target_shape(view.shape, wanted, zero_is_zero=bool(call.attribute("allowzero", 0)))
    )


def target_shape(shape: Sequence[int], wanted: Sequence[int], *, zero_is_zero: bool) -> tuple[int, ...]:
    """What ONNX's Reshape makes of a shape: 0 keeps a dimension, -1 is what is left."""
    sizes = list(wanted)
    for index, size in enumerate(sizes):
        if size == 0 and not zero_is_zero:
            if index >= len(shape):
                raise CannotTakeError(f"cannot reshape {list(shape)} to {list(wanted)}", "as many elements")
            sizes[index] = shape[index]
    if sizes.count(-1) == 1:
        known = prod(size for size in sizes if size != -1)
        sizes[sizes.index(-1)] = prod(shape) // known if known else 0
    if prod(sizes) != prod(shape) or min(sizes, default=1) < 1:
        raise CannotTakeError(f"cannot reshape {list(shape)} to {list(wanted)}", "as many elements")
    return tuple(sizes)


def _without(view: View, dim: int) -> View:
    """Without a dimension of size 1; a batch of 1 is then in none."""
    return view.without_dim(dim)


@register("Transpose")
def _transpose(call: Call) -> Any:
    view = call.view()
    order = call.attribute("perm", tuple(reversed(range(len(view.dims)))))
    if sorted(order) != list(range(len(view.dims))):
        raise CannotTakeError(f"perm {list(order)} of {len(view.dims)} dimensions", CHECKED)
    return view.permuted(order)


@register("Slice")
def _slice(call: Call) -> Any:
    view = call.view()
    rank = len(view.dims)
    starts, ends = call.integers("starts", 1), call.integers("ends", 2)
    if starts is None or ends is None:
        raise CannotTakeError("its starts or ends are missing", CHECKED)
    axes = call.integers("axes", 3) or tuple(range(len(starts)))
    steps = call.integers("steps", 4) or (1,) * len(starts)
    for number, (axis, start, end, step) in enumerate(zip(axes, starts, ends, steps, strict=True)):
        dim = axis_of(axis, rank)
        size = view.shape[dim]
        taken = range(size)[slice(start, None if end < -size else end, step)] if step else range(0)
        suffix = f"_{number}" if number else ""
        view = _chosen(call, view, dim, list(taken), suffix)
    return view


def _chosen(call: Call, view: View, dim: int, taken: list[int], suffix: str = "") -> View:
    """Elements of a dimension by their numbers: neighbours by one slice, others joined."""
    if not taken:
        raise CannotTakeError("takes nothing", "a slice of one element or more")
    runs: list[list[int]] = []
    for item in taken:
        if runs and item == runs[-1][1]:
            runs[-1][1] += 1
        else:
            runs.append([item, item + 1])
    size = view.shape[dim]
    step = taken[1] - taken[0] if len(taken) > 1 else 1
    if (
        len(runs) > 1
        and step > 1
        and size % step == 0
        and taken == list(range(taken[0], size, step))
        and (taken[0] < step)
    ):
        cut = viewed(call, view, (*view.shape[:dim], size // step, step, *view.shape[dim + 1 :]))
        return sliced(call, cut, dim + 1, taken[0], taken[0] + 1, suffix=suffix).without_dim(dim + 1)
    if len(runs) > MOST_PIECES:
        raise CannotTakeError(f"takes {len(runs)} separate pieces", f"at most {MOST_PIECES}")
    parts = [
        sliced(call, view, dim, start, stop, suffix=f"{suffix}_{number}" if number else suffix)
        for number, (start, stop) in enumerate(runs)
    ]
    return parts[0] if len(parts) == 1 else joined(call, parts, dim)


@register("Gather")
def _gather(call: Call) -> Any:
    table, index = call.arguments[0], call.arguments[1]
    if isinstance(table, Constant) and isinstance(index, View):
        return _looked_up(call, table, index)
    view = call.view()
    places = call.constant(1)
    if places is None:
        raise CannotTakeError("its indices are missing", CHECKED)
    dim = call.axis(len(view.dims))
    size = view.shape[dim]
    numbers = [int(number) + size if number < 0 else int(number) for number in places.value.ravel()]
    if any(not 0 <= number < size for number in numbers):
        raise CannotTakeError(f"an index outside of {size} elements", CHECKED)
    if places.value.ndim == 0:
        (number,) = numbers
        return (sliced(call, view, dim, number, number + 1) if size > 1 else view).without_dim(dim)
    chosen = _chosen(call, view, dim, numbers)
    if places.value.ndim == 1:
        return chosen
    return viewed(call, chosen, (*view.shape[:dim], *places.value.shape, *view.shape[dim + 1 :]))


def _looked_up(call: Call, table: Constant, index: View) -> View:
    """Rows of a table of weights by word numbers."""
    if call.axis(table.value.ndim) != 0 or table.value.ndim != 2:
        raise CannotTakeError(
            "looks up something else than rows of a matrix", "a table [words, features], axis 0"
        )
    words, features = table.value.shape
    options = {"vocabulary": words, "features": features}
    ordered = in_order(call, index)
    made = call.layer("embedding", (ordered.word,), options, {"w": call.places.given(table)})
    return viewed(call, made, (*index.shape, features))


def parts_of(call: Call, view: View, dim: int, sizes: Sequence[int]) -> list[Any]:
    """All parts of a dimension: one split if all are used, else slices of those that are."""
    if sum(sizes) != view.shape[dim] or min(sizes) < 1:
        raise CannotTakeError(
            f"sizes {list(sizes)} of {view.shape[dim]} elements",
            "sizes of 1 and more that add up to the dimension",
        )
    if len(sizes) == 1:
        return [view]
    starts = [sum(sizes[:index]) for index in range(len(sizes))]
    if not all(index in call.used for index in range(len(sizes))) or BATCH in view.dims[dim]:
        return [
            sliced(call, view, dim, start, start + size, suffix=f"_{index}") if index in call.used else None
            for index, (start, size) in enumerate(zip(starts, sizes, strict=True))
        ]
    return [*split(call, view, dim, sizes)]


@register("Split")
def _split(call: Call) -> Any:
    view = call.view()
    dim = call.axis(len(view.dims))
    sizes, count = call.integers("split", 1), len(call.node.outputs)
    if sizes is None:
        part = -(-view.shape[dim] // count)
        sizes = tuple(min(part, view.shape[dim] - start) for start in range(0, view.shape[dim], part))
    if len(sizes) != count:
        raise CannotTakeError(f"{len(sizes)} sizes for {count} outputs", "a size for each output")
    return parts_of(call, view, dim, sizes)


def joined(call: Call, items: Sequence[View], dim: int) -> View:
    """Activations side by side along a dimension."""
    words, batch_dims = [], set()
    batches = {item.batch_dim for item in items} - {None}
    batch_dim = batches.pop() if len(batches) == 1 else None
    if batches or (batch_dim == dim and items[0].batch > 1):
        raise CannotTakeError("joins batches", "samples are never told apart")
    if batch_dim == dim:  # a batch of 1 in the joined dimension: nowhere, from here on
        raise CannotTakeError("joins along the batch", "another dimension")
    rank = len(items[0].dims)
    for item in items:
        if len(item.dims) != rank:
            raise CannotTakeError("joins tensors of different rank", "Unsqueeze before it")
        word, own = sample_word(call, item)
        batch_dims.add(own)
        if own != batch_dim:
            shape = call.draft.tensors[word].shape
            if batch_dim is not None:
                shape = (shape[0], *(size for index, size in enumerate(shape[1:]) if index != batch_dim))
            word = call.draft.reshaped(word, shape, call.name, call.where)
        words.append(word)
    places = [index for index in range(rank) if index != batch_dim]
    made = call.layer("concat", tuple(words), {"axis": places.index(dim)})
    return under(made, batch_dim, rank)


@register("Concat", "com.microsoft:ConcatTraining")
def _concat(call: Call) -> Any:
    from importers.onnx.elements import as_view

    like = next(item for item in call.arguments if isinstance(item, View))
    dim = call.axis(len(like.dims))
    token = _class_token(call, dim)
    if token is not None:
        return token
    views = [
        item if isinstance(item, View) else as_view(call, item, like)
        for item in call.arguments
        if not (isinstance(item, Constant) and not item.value.size)
    ]
    return views[0] if len(views) == 1 else joined(call, views, dim)


def _class_token(call: Call, dim: int) -> View | None:
    """A weight [1, 1, features] before a sequence [batch, length, features]."""
    if len(call.arguments) != 2 or not isinstance(call.arguments[0], Constant) or dim != 1:
        return None
    token, rest = call.arguments[0], call.arguments[1]
    if (
        not isinstance(rest, View)
        or len(rest.dims) != 3
        or token.value.shape[1:2] != (1,)
        or rest.batch_dim != 0
    ):
        return None
    if (token.value != token.value[:1]).any():
        return None
    ordered = in_order(call, rest)
    word = call.draft.reshaped(ordered.word, rest.shape, call.name, call.where)
    given = call.places.given(token).moved(lambda array: array[0, 0])
    return call.layer("class_token", (word,), {}, {"w": given})


@register("Pad")
def _pad(call: Call) -> Any:
    view = call.view()
    if call.attribute("mode", "constant") != "constant":
        raise CannotTakeError(f"pads by {call.attribute('mode')}", "mode constant")
    widths, rank = call.integers("pads", 1), len(view.dims)
    if widths is None:
        raise CannotTakeError("its pads are missing", CHECKED)
    axes = [axis_of(axis, rank) for axis in call.integers("axes", 3) or range(rank)]
    value = call.constant(2) if call.has(2) else None
    number = (
        float(call.attribute("value", 0.0))
        if value is None or not value.value.size
        else float(value.value.ravel()[0])
    )
    pairs = [(0, 0)] * rank
    for index, axis in enumerate(axes):
        pairs[axis] = (widths[index], widths[index + len(axes)])
    for dim, (before, after) in enumerate(pairs):
        if before < 0 or after < 0:
            view = sliced(call, view, dim, max(0, -before), view.shape[dim] - max(0, -after), suffix="_cut")
            pairs[dim] = (max(0, before), max(0, after))
    if pairs == [(0, 0)] * rank:
        return view
    if view.batch_dim is not None and pairs[view.batch_dim] != (0, 0):
        raise CannotTakeError("pads the batch", "samples are never told apart")
    word, batch_dim = sample_word(call, view)
    options = {
        "pads": [list(pair) for index, pair in enumerate(pairs) if index != batch_dim],
        "value": number,
    }
    return under(call.layer("pad", (word,), options), batch_dim, rank)


@register("Expand")
def _expand(call: Call) -> Any:
    view, wanted = call.view(), call.integers("shape", 1)
    if wanted is None:
        raise CannotTakeError("its shape is missing", CHECKED)
    return expanded(call, view, np.broadcast_shapes(view.shape, wanted))


def expanded(call: Call, view: View, shape: Sequence[int], suffix: str = "") -> View:
    """An activation repeated to a shape: only dimensions of size 1 are, and never that of the batch."""
    while len(view.dims) < len(shape):
        view = view.with_dim(0)
    if view.shape == tuple(shape):
        return view
    word, batch_dim = sample_word(call, view)
    if batch_dim is not None and shape[batch_dim] != view.shape[batch_dim]:
        raise CannotTakeError("repeats the batch", "samples are never told apart")
    sizes = [size for index, size in enumerate(shape) if index != batch_dim]
    if elements(sizes) == elements(call.draft.tensors[word].shape[1:]):
        return viewed(call, view, shape)
    made = call.layer("expand", (word,), {"shape": [int(size) for size in sizes]}, suffix=suffix)
    return under(made, batch_dim, len(shape))


@register("DepthToSpace", "SpaceToDepth")
def _blocks(call: Call) -> Any:
    view, size = call.view(), int(call.attribute("blocksize", 1))
    if len(view.dims) != 4 or size < 1:
        raise CannotTakeError("an input that is no image", "[batch, channels, rows, columns]")
    batch, channels, high, wide = view.shape
    if call.node.op == "SpaceToDepth":
        if high % size or wide % size:
            raise CannotTakeError(
                f"blocks of {size} do not divide {high}x{wide}", "a blocksize that divides them"
            )
        cut = viewed(call, view, (batch, channels, high // size, size, wide // size, size))
        order = (0, 3, 5, 1, 2, 4) if call.attribute("mode", "DCR") == "DCR" else (0, 1, 3, 5, 2, 4)
        return viewed(call, cut.permuted(order), (batch, channels * size**2, high // size, wide // size))
    if channels % size**2:
        raise CannotTakeError(
            f"blocks of {size} do not divide {channels} channels", "a blocksize that divides them"
        )
    kept = channels // size**2
    if call.attribute("mode", "DCR") == "DCR":
        cut = viewed(call, view, (batch, size, size, kept, high, wide)).permuted((0, 3, 4, 1, 5, 2))
    else:
        cut = viewed(call, view, (batch, kept, size, size, high, wide)).permuted((0, 1, 4, 2, 5, 3))
    return viewed(call, cut, (batch, kept, high * size, wide * size))


def part_of(constant: Constant, axis: int, first: int, count: int) -> Constant:
    """Elements [first, first + count) of an axis of a constant."""
    index = (slice(None),) * axis + (slice(first, first + count),)
    places = None if constant.places is None else constant.places[index]
    return Constant(constant.value[index], places, constant.trained)
