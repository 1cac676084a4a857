# SPDX-License-Identifier: Apache-2.0
"""ATen ops that move elements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from importers.graph.arranging import viewed
from importers.graph.draft import CannotTakeError, elements
from importers.graph.node import Handler, Node
from importers.graph.views import View
from importers.place.cutting import sliced
from importers.place.moves import (
    chosen,
    concatenated,
    equal_parts,
    expanded,
    joined,
    padded,
    parts_of,
    repeated,
    selected,
    squeezed,
    surrounded,
    target_shape,
    to_depth,
    to_space,
    turned,
)


def _dim(node: Node, key: str, more: int = 0) -> int:
    """An argument that is a dimension of the input, or of one that has `more`."""
    return int(node[key]) % (len(node.view("self").dims) + more)


def _view(node: Node) -> View:
    view = node.view("self")
    sizes = target_shape(view.shape, node.get("size", node.get("shape")), zero_is_zero=True)
    return viewed(node, view, sizes)


def _flatten(node: Node) -> View:
    view = node.view("self")
    shape, first, last = view.shape, _dim(node, "start_dim"), _dim(node, "end_dim")
    return viewed(node, view, (*shape[:first], elements(shape[first : last + 1]), *shape[last + 1 :]))


def _unflatten(node: Node) -> View:
    view, dim = node.view("self"), _dim(node, "dim")
    sizes = target_shape(view.shape[dim : dim + 1], node["sizes"], zero_is_zero=True)
    return viewed(node, view, (*view.shape[:dim], *sizes, *view.shape[dim + 1 :]))


def _permute(node: Node) -> View:
    view = node.view("self")
    return view.permuted([dim % len(view.dims) for dim in node["dims"]])


def _transpose(node: Node) -> View:
    return node.view("self").swapped(_dim(node, "dim0"), _dim(node, "dim1"))


def _turned(node: Node) -> View:
    view = node.view("self")
    return view.swapped(-2 % len(view.dims), -1 % len(view.dims)) if len(view.dims) > 1 else view


def _movedim(node: Node) -> View:
    view = node.view("self")
    rank = len(view.dims)
    sources, targets = ([dim % rank for dim in node[name]] for name in ("source", "destination"))
    order = [dim for dim in range(rank) if dim not in sources]
    for target, source in sorted(zip(targets, sources, strict=True)):
        order.insert(target, source)
    return view.permuted(order)


def _squeeze(node: Node) -> View:
    view = node.view("self")
    asked = node.get("dim", list(range(len(view.dims))))
    return squeezed(view, [dim % len(view.dims) for dim in (asked if isinstance(asked, list) else [asked])])


def _same(node: Node) -> View:
    before, after = node.dtypes
    if before != after:
        raise CannotTakeError(f"changes {before} to {after}", "one floating-point type throughout (--dtype)")
    return node.view("self")


def _detach(node: Node) -> Any:
    raise CannotTakeError("stops the gradient", "requires_grad=False of the parameters before it")


def _slice(node: Node) -> View:
    view, dim = node.view("self"), _dim(node, "dim")
    start, stop = node.get("start"), node.get("end")
    if "length" in node.arguments:
        stop = start % view.shape[dim] + node["length"]
    return chosen(node, view, dim, range(view.shape[dim])[slice(start, stop, node.get("step", 1))])


def _select(node: Node) -> View:
    view, dim = node.view("self"), _dim(node, "dim")
    return selected(node, view, dim, node["index"] % view.shape[dim])


def _parts(node: Node, sizes: Sequence[int]) -> list[Any]:
    return parts_of(node, node.view("self"), _dim(node, "dim"), sizes, node.used)


def _split(node: Node) -> list[Any]:
    size = node.view("self").shape[_dim(node, "dim")]
    if "chunks" in node.arguments:
        return _parts(node, equal_parts(size, -(-size // node["chunks"])))
    asked = node.get("split_size", node.get("split_sizes"))
    return _parts(node, asked if isinstance(asked, list) else equal_parts(size, asked))


def _unbind(node: Node) -> list[Any]:
    dim = _dim(node, "dim")
    parts = _parts(node, [1] * node.view("self").shape[dim])
    return [part and part.without_dim(dim) for part in parts]


def _cat(node: Node) -> View:
    return concatenated(node, node["tensors"], node["dim"] % len(node.shape))


def _stack(node: Node) -> View:
    dim = node["dim"] % len(node.shape)
    return joined(node, [node.as_view(item).with_dim(dim) for item in node["tensors"]], dim)


def _roll(node: Node) -> View:
    view = node.view("self")
    if not node["dims"]:
        raise CannotTakeError("rolls over the batch", "the dimension to roll")
    for shift, asked in zip(node["shifts"], node["dims"], strict=True):
        dim = asked % len(view.dims)
        size = view.shape[dim]
        start = -shift % size
        if start:
            parts = [sliced(node, view, dim, start, size), sliced(node, view, dim, 0, start)]
            view = joined(node, parts, dim)
    return view


def _counts(node: Node) -> list[int]:
    """How often each dimension is repeated; of those that are not named, once."""
    asked = list(node.get("repeats", node.get("dims")))
    return [1] * (len(node.view("self").dims) - len(asked)) + asked


def _flip(node: Node) -> View:
    view = node.view("self")
    return turned(node, view, [dim % len(view.dims) for dim in node["dims"]])


def _index(node: Node) -> View:
    numbers = node.needed("index").value.ravel()
    return chosen(node, node.view("self"), _dim(node, "dim"), [int(number) for number in numbers])


_AROUND = {"reflect": "reflect", "reflection": "reflect", "replicate": "edge", "replication": "edge"}
_AROUND |= {"circular": "wrap"}
"""Ways to pad with elements of the tensor itself, as `numpy.pad` calls them."""


def _pad(node: Node) -> View:
    view, widths = node.view("self"), node.get("pad", node.get("padding"))
    pairs = [(0, 0)] * (len(view.dims) - len(widths) // 2)
    pairs += list(zip(widths[::2], widths[1::2], strict=True))[::-1]
    mode = node.get("mode", node.op.partition("_pad")[0])
    if mode in _AROUND:
        return surrounded(node, view, pairs, _AROUND[mode])
    return padded(node, view, pairs, float(node.get("value", 0.0)))


def _channel_shuffle(node: Node) -> View:
    view, groups = node.view("self"), node["groups"]
    samples, channels, *space = view.shape
    cut = viewed(node, view, (samples, groups, channels // groups, *space))
    return viewed(node, cut.swapped(1, 2), node.shape)


HANDLERS: Mapping[str, Handler] = {
    **dict.fromkeys(("view", "reshape", "_unsafe_view"), _view),
    "flatten": _flatten,
    "unflatten": _unflatten,
    "permute": _permute,
    **dict.fromkeys(("transpose", "swapaxes", "swapdims"), _transpose),
    **dict.fromkeys(("t", "mT", "adjoint"), _turned),
    "movedim": _movedim,
    "unsqueeze": lambda node: node.view("self").with_dim(_dim(node, "dim", 1)),
    "squeeze": _squeeze,
    **dict.fromkeys(("clone", "contiguous", "alias", "lift_fresh_copy", "to", "_to_copy", "type_as"), _same),
    **dict.fromkeys(("detach", "detach_"), _detach),
    **dict.fromkeys(
        ("expand", "expand_as", "broadcast_to"), lambda node: expanded(node, node.view("self"), node.shape)
    ),
    **dict.fromkeys(("slice", "narrow"), _slice),
    "select": _select,
    **dict.fromkeys(("chunk", "split", "split_with_sizes"), _split),
    "unbind": _unbind,
    **dict.fromkeys(("cat", "concat", "concatenate"), _cat),
    "stack": _stack,
    "roll": _roll,
    "flip": _flip,
    "index_select": _index,
    **dict.fromkeys(("repeat", "tile"), lambda node: repeated(node, node.view("self"), _counts(node))),
    **dict.fromkeys(("pad", "constant_pad_nd", "_pad_circular"), _pad),
    **dict.fromkeys(("reflection_pad1d", "reflection_pad2d"), _pad),
    **dict.fromkeys(("replication_pad1d", "replication_pad2d"), _pad),
    "pixel_shuffle": lambda node: to_space(node, node.view("self"), node["upscale_factor"]),
    "pixel_unshuffle": lambda node: to_depth(node, node.view("self"), node["downscale_factor"]),
    **dict.fromkeys(("channel_shuffle", "native_channel_shuffle"), _channel_shuffle),
}
