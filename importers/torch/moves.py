# SPDX-License-Identifier: Apache-2.0
"""ATen ops that move elements: views and transposes cost nothing here, what must be copied is a layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from importers.graph.arranging import in_order, viewed
from importers.graph.draft import CannotTakeError, elements
from importers.graph.views import BATCH, View
from importers.place.cutting import sliced, split
from importers.torch.capture import NEAREST, Call, Constant, register

NEAREST.update(
    {
        "flip": "slice and cat of what is to be turned round",
        "gather": "slice, select",
        "index": "slice, select, chunk",
        "index_select": "slice, select, chunk",
        "repeat": "expand where it is added or multiplied",
        "grid_sampler": "interpolate",
        "topk": "max_pool2d",
        "sort": "max_pool2d",
    }
)


def axis_of(dim: int, rank: int) -> int:
    """A dimension counted from the front."""
    return dim % rank if rank else 0


@register("view", "reshape", "_unsafe_view")
def _view(call: Call) -> Any:
    view = call.view("self")
    sizes = list(call.get("size", call.get("shape")))
    if -1 in sizes:
        sizes[sizes.index(-1)] = elements(view.shape) // -elements(sizes)
    return viewed(call, view, sizes)


@register("flatten")
def _flatten(call: Call) -> Any:
    view = call.view("self")
    first, last = (axis_of(call[name], len(view.dims)) for name in ("start_dim", "end_dim"))
    shape = view.shape
    return viewed(call, view, (*shape[:first], elements(shape[first : last + 1]), *shape[last + 1 :]))


@register("unflatten")
def _unflatten(call: Call) -> Any:
    view = call.view("self")
    dim, sizes = axis_of(call["dim"], len(view.dims)), list(call["sizes"])
    if -1 in sizes:
        sizes[sizes.index(-1)] = view.shape[dim] // -elements(sizes)
    return viewed(call, view, (*view.shape[:dim], *sizes, *view.shape[dim + 1 :]))


@register("permute")
def _permute(call: Call) -> Any:
    view = call.view("self")
    return view.permuted([axis_of(dim, len(view.dims)) for dim in call["dims"]])


@register("transpose", "swapaxes", "swapdims")
def _transpose(call: Call) -> Any:
    view = call.view("self")
    first, second = (axis_of(call[name], len(view.dims)) for name in ("dim0", "dim1"))
    return view.swapped(first, second)


@register("t", "mT", "adjoint")
def _turned(call: Call) -> Any:
    view = call.view("self")
    return view.swapped(-2 % len(view.dims), -1 % len(view.dims)) if len(view.dims) > 1 else view


@register("movedim")
def _movedim(call: Call) -> Any:
    view = call.view("self")
    rank = len(view.dims)
    sources, targets = ([axis_of(dim, rank) for dim in call[name]] for name in ("source", "destination"))
    order = [dim for dim in range(rank) if dim not in sources]
    for target, source in sorted(zip(targets, sources, strict=True)):
        order.insert(target, source)
    return view.permuted(order)


@register("unsqueeze")
def _unsqueeze(call: Call) -> Any:
    view = call.view("self")
    return view.with_dim(axis_of(call["dim"], len(view.dims) + 1))


@register("squeeze")
def _squeeze(call: Call) -> Any:
    view = call.view("self")
    rank = len(view.dims)
    asked = call.get("dim", list(range(rank)))
    dims = [axis_of(dim, rank) for dim in (asked if isinstance(asked, list) else [asked])]
    for dim in sorted(dims, reverse=True):
        if view.shape[dim] == 1:
            view = view.without_dim(dim)
    return view


@register("clone", "contiguous", "alias", "lift_fresh_copy", "to", "_to_copy", "type_as", "dropout_none")
def _same(call: Call) -> Any:
    view = call.view("self")
    before = call.node.args[0].meta["val"].dtype
    if call.node.meta["val"].dtype != before:
        after = call.node.meta["val"].dtype
        raise CannotTakeError(f"changes {before} to {after}", "one floating-point type throughout (--dtype)")
    return view


@register("detach", "detach_")
def _detach(call: Call) -> Any:
    raise CannotTakeError("stops the gradient", "requires_grad=False of the parameters before it")


@register("expand", "expand_as", "broadcast_to")
def _expand(call: Call) -> Any:
    view = call.view("self")
    if call.shape == view.shape:
        return view
    if elements(call.shape) == elements(view.shape):
        while len(view.dims) < len(call.shape):
            view = view.with_dim(0)
        return view
    raise CannotTakeError(
        f"repeats {list(view.shape)} to {list(call.shape)}",
        "adding or multiplying, which repeat by themselves",
    )


def clipped(position: int | None, size: int, default: int) -> int:
    """A position as Python counts it in a slice."""
    if position is None:
        return default
    return min(max(position + size if position < 0 else position, 0), size)


@register("slice", "narrow")
def _slice(call: Call) -> Any:
    view = call.view("self")
    dim = axis_of(call["dim"], len(view.dims))
    size = view.shape[dim]
    start = clipped(call.get("start"), size, 0)
    stop = clipped(call.get("end"), size, size)
    if "length" in call.arguments:
        stop = start + call["length"]
    step = call.get("step", 1)
    if step == 1:
        return sliced(call, view, dim, start, stop)
    length = -(-(stop - start) // step)
    if size % step or start >= step or length != size // step:
        raise CannotTakeError(f"takes every {step}th element of {size}", f"a size that {step} divides")
    shape = view.shape
    cut = viewed(call, view, (*shape[:dim], length, step, *shape[dim + 1 :]))
    return sliced(call, cut, dim + 1, start, start + 1).without_dim(dim + 1)


@register("select")
def _select(call: Call) -> Any:
    view = call.view("self")
    dim = axis_of(call["dim"], len(view.dims))
    index = call["index"] % view.shape[dim]
    if view.shape[dim] > 1:
        view = sliced(call, view, dim, index, index + 1)
    return view.without_dim(dim)


def _parts(call: Call, dim: int, sizes: Sequence[int]) -> list[Any]:
    """All parts of a dimension: one split if all are used, else slices of those that are."""
    view = call.view("self")
    dim = axis_of(dim, len(view.dims))
    if sum(sizes) != view.shape[dim]:
        raise CannotTakeError(
            f"sizes {list(sizes)} of {view.shape[dim]} elements", "sizes that add up to the dimension"
        )
    if len(sizes) == 1:
        return [view]
    starts = [sum(sizes[:index]) for index in range(len(sizes))]
    if not all(call.used(index) for index in range(len(sizes))) or BATCH in view.dims[dim]:
        return [
            (lambda start=start, size=size: sliced(call, view, dim, start, start + size))
            for start, size in zip(starts, sizes, strict=True)
        ]
    return [*split(call, view, dim, sizes)]


@register("chunk")
def _chunk(call: Call) -> Any:
    size = call.view("self").shape[axis_of(call["dim"], len(call.view("self").dims))]
    return _parts(call, call["dim"], _equal(size, -(-size // call["chunks"])))


@register("split", "split_with_sizes")
def _split(call: Call) -> Any:
    size = call.view("self").shape[axis_of(call["dim"], len(call.view("self").dims))]
    asked = call.get("split_size", call.get("split_sizes"))
    return _parts(call, call["dim"], asked if isinstance(asked, list) else _equal(size, asked))


def _equal(size: int, part: int) -> list[int]:
    return [min(part, size - start) for start in range(0, size, part)]


@register("unbind")
def _unbind(call: Call) -> Any:
    view = call.view("self")
    dim = axis_of(call["dim"], len(view.dims))
    parts = _parts(call, dim, [1] * view.shape[dim])
    return [(lambda part=part: (part() if callable(part) else part).without_dim(dim)) for part in parts]


def joined(call: Call, items: Sequence[Any], dim: int) -> View:
    """Activations side by side along a dimension."""
    views = [in_order(call, call.as_view(item)) for item in items if elements(item.shape)]
    if len(views) == 1:
        return views[0]
    first = views[0]
    if dim == first.batch_dim and first.batch > 1:
        raise CannotTakeError("joins batches", "samples are never told apart")
    places = [index for index in range(len(first.dims)) if index != first.batch_dim]
    words = []
    for view in views:
        if view.batch_dim != first.batch_dim:
            raise CannotTakeError(
                "joins tensors with the batch in different places", "the batch in front of all"
            )
        # A dimension of size 1 is a dimension here, since others may be larger along it.
        shape = (view.batch, *(view.shape[index] for index in places))
        words.append(call.draft.reshaped(view.word, shape, call.name, call.where))
    made = call.layer("concat", tuple(words), {"axis": places.index(dim)})
    dims = list(made.dims[1:])
    if first.batch_dim is not None:
        dims.insert(first.batch_dim, (BATCH,))
    return View(made.word, made.stored, made.pieces, tuple(dims))


@register("cat", "concat", "concatenate")
def _cat(call: Call) -> Any:
    items = call["tensors"]
    dim = axis_of(call["dim"], len(call.shape))
    token = _class_token(call, items, dim)
    if token is not None:
        return token
    return joined(call, items, dim)


def _class_token(call: Call, items: Sequence[Any], dim: int) -> View | None:
    """A parameter [1, 1, features] before a sequence [batch, length, features]."""
    if len(items) != 2 or not isinstance(items[0], Constant) or dim != 1 or len(call.shape) != 3:
        return None
    token, rest = items[0], in_order(call, call.as_view(items[1]))
    if rest.batch_dim not in (0, None) or token.shape[1] != 1:
        return None
    first = token.given().moved(lambda array: array[0, 0])
    if bool((token.tensor != token.tensor[:1]).any()):
        return None
    word = call.draft.reshaped(rest.word, (rest.batch, *rest.shape[1:]), call.name, call.where)
    return call.layer("class_token", (word,), {}, {"w": first})


@register("stack")
def _stack(call: Call) -> Any:
    dim = axis_of(call["dim"], len(call.shape))
    return joined(call, [call.as_view(item).with_dim(dim) for item in call["tensors"]], dim)


@register("roll")
def _roll(call: Call) -> Any:
    view = call.view("self")
    shifts, dims = call["shifts"], call["dims"]
    if not dims:
        raise CannotTakeError("rolls over the batch", "the dimension to roll")
    for shift, asked in zip(shifts, dims, strict=True):
        dim = axis_of(asked, len(view.dims))
        size = view.shape[dim]
        start = -shift % size
        if start:
            parts = [sliced(call, view, dim, start, size), sliced(call, view, dim, 0, start)]
            view = joined(call, parts, dim)
    return view


@register("pad", "constant_pad_nd")
def _pad(call: Call) -> Any:
    mode = call.get("mode", "constant")
    if mode != "constant":
        raise CannotTakeError(f"pads by {mode}", "mode='constant'")
    view, widths = in_order(call, call.view("self")), list(call["pad"])
    rank = len(view.dims)
    pairs = [(0, 0)] * (rank - len(widths) // 2)
    pairs += [(widths[2 * index], widths[2 * index + 1]) for index in reversed(range(len(widths) // 2))]
    for dim, (before, after) in enumerate(pairs):
        if before < 0 or after < 0:
            view = sliced(call, view, dim, max(0, -before), view.shape[dim] - max(0, -after))
            pairs[dim] = (max(0, before), max(0, after))
    if not any(sum(pair) for pair in pairs):
        return view
    batch_dim = view.batch_dim
    if batch_dim is not None and any(pairs[batch_dim]):
        raise CannotTakeError("pads the batch", "samples are never told apart")
    view = in_order(call, view)
    places = [index for index in range(rank) if index != batch_dim]
    shape = (view.batch, *(view.shape[index] for index in places))
    word = call.draft.reshaped(view.word, shape, call.name, call.where)
    options = {"pads": [list(pairs[index]) for index in places], "value": float(call.get("value", 0.0))}
    made = call.layer("pad", (word,), options)
    dims = list(made.dims[1:])
    if batch_dim is not None:
        dims.insert(batch_dim, (BATCH,))
    return View(made.word, made.stored, made.pieces, tuple(dims))


@register("pixel_shuffle")
def _pixel_shuffle(call: Call) -> Any:
    view, factor = call.view("self"), call["upscale_factor"]
    *lead, channels, height, width = view.shape
    cut = viewed(call, view, (*lead, channels // factor**2, factor, factor, height, width))
    base = len(lead)
    order = [*range(base + 1), base + 3, base + 1, base + 4, base + 2]
    return viewed(call, cut.permuted(order), call.shape)


@register("pixel_unshuffle")
def _pixel_unshuffle(call: Call) -> Any:
    view, factor = call.view("self"), call["downscale_factor"]
    *lead, channels, height, width = view.shape
    cut = viewed(call, view, (*lead, channels, height // factor, factor, width // factor, factor))
    base = len(lead)
    order = [*range(base + 1), base + 2, base + 4, base + 1, base + 3]
    return viewed(call, cut.permuted(order), call.shape)


@register("channel_shuffle", "native_channel_shuffle")
def _channel_shuffle(call: Call) -> Any:
    view, groups = call.view("self"), call["groups"]
    samples, channels, *space = view.shape
    cut = viewed(call, view, (samples, groups, channels // groups, *space))
    return viewed(call, cut.swapped(1, 2), call.shape)
