# SPDX-License-Identifier: Apache-2.0
"""ATen ops that move elements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from importers.graph.arranging import viewed
from importers.graph.draft import CannotTakeError, elements
from importers.graph.node import Handler, Node
from importers.graph.views import View
from importers.graph.weights import Constant
from importers.place.moves import (
    along,
    chosen,
    concatenated,
    equal_parts,
    expanded,
    joined,
    padded,
    parts_of,
    repeated,
    scattered,
    selected,
    sliced,
    squeezed,
    surrounded,
    target_shape,
    to_depth,
    to_space,
    turned,
)
from importers.place.products import picked


def _view(node: Node) -> View:
    sizes = target_shape(node.x.shape, node.get("size", node.get("shape")), zero_is_zero=True)
    return viewed(node, node.x, sizes)


def _flatten(node: Node) -> View:
    shape, first, last = node.x.shape, node.dim("start_dim"), node.dim("end_dim")
    return viewed(node, node.x, (*shape[:first], elements(shape[first : last + 1]), *shape[last + 1 :]))


def _unflatten(node: Node) -> View:
    shape, dim = node.x.shape, node.dim()
    sizes = target_shape(shape[dim : dim + 1], node["sizes"], zero_is_zero=True)
    return viewed(node, node.x, (*shape[:dim], *sizes, *shape[dim + 1 :]))


def _movedim(node: Node) -> View:
    sources, targets = node.dims("source"), node.dims("destination")
    order = [dim for dim in range(node.rank) if dim not in sources]
    for target, source in sorted(zip(targets, sources, strict=True)):
        order.insert(target, source)
    return node.x.permuted(order)


def _same(node: Node) -> View:
    before, after = node.dtypes
    if before == "torch.bool" and after != before:
        raise CannotTakeError(
            "a comparison has no gradient (torch.export drops surrogate gradients)",
            "use sigmoid instead of the comparison",
        )
    if before != after:
        raise CannotTakeError(
            f"converting {before} to {after} is not supported", "use one floating-point type (--dtype)"
        )
    return node.x


def _detach(node: Node) -> Any:
    raise CannotTakeError(
        "stopping the gradient is not supported here", "use requires_grad=False for the parameters before"
    )


def _slice(node: Node) -> View:
    dim = node.dim()
    size, start, stop = node.x.shape[dim], node.get("start"), node.get("end")
    if "length" in node.arguments:
        stop = start % size + node["length"]
    return chosen(node, node.x, dim, range(size)[slice(start, stop, node.get("step", 1))])


def _parts(node: Node, sizes: Sequence[int]) -> list[Any]:
    return parts_of(node, node.x, node.dim(), sizes, node.used)


def _split(node: Node) -> list[Any]:
    size = node.x.shape[node.dim()]
    if "chunks" in node.arguments:
        return _parts(node, equal_parts(size, -(-size // node["chunks"])))
    asked = node.get("split_size", node.get("split_sizes"))
    return _parts(node, asked if isinstance(asked, list) else equal_parts(size, asked))


def _unbind(node: Node) -> list[Any]:
    dim = node.dim()
    return [part and part.without_dim(dim) for part in _parts(node, [1] * node.x.shape[dim])]


def _stack(node: Node) -> View:
    dim = node["dim"] % len(node.shape)
    return joined(node, [node.as_view(item).with_dim(dim) for item in node["tensors"]], dim)


def _roll(node: Node) -> View:
    view = node.x
    if not node["dims"]:
        raise CannotTakeError("rolling over the batch is not supported", "set dims to a later dimension")
    for shift, dim in zip(node["shifts"], node.dims("dims"), strict=True):
        size = view.shape[dim]
        start = -shift % size
        if start:
            parts = [sliced(node, view, dim, start, size), sliced(node, view, dim, 0, start)]
            view = joined(node, parts, dim)
    return view


def _counts(node: Node) -> list[int]:
    """How often each dimension is repeated; of those that are not named, once."""
    asked = list(node.get("repeats", node.get("dims")))
    return [1] * (node.rank - len(asked)) + asked


_AROUND = {"reflect": "reflect", "reflection": "reflect", "replicate": "edge", "replication": "edge"}
_AROUND |= {"circular": "wrap"}
"""Ways to pad with elements of the tensor itself, as `numpy.pad` calls them."""


def _pad(node: Node) -> View:
    widths = node.get("pad", node.get("padding"))
    pairs = [(0, 0)] * (node.rank - len(widths) // 2)
    pairs += list(zip(widths[::2], widths[1::2], strict=True))[::-1]
    mode = node.get("mode", node.op.partition("_pad")[0])
    if mode in _AROUND:
        return surrounded(node, node.x, pairs, _AROUND[mode])
    return padded(node, node.x, pairs, float(node.get("value", 0.0)))


def _index(node: Node) -> View:
    """Elements by constant numbers of one dimension, or of several side by side."""
    operand = node["self"]
    said = {dim: item for dim, item in enumerate(node["indices"]) if item is not None}
    if not all(isinstance(item, Constant) for item in said.values()):
        raise CannotTakeError("the indices must not depend on the network's input", "use constant indices")
    first, last = min(said), max(said) + 1
    numbers = [item.value for item in said.values()]
    if last - first != len(said) or (len(said) > 1 and any(item.dtype == bool for item in numbers)):
        raise CannotTakeError(
            "indices of non-adjacent dimensions, or a mask among them, are not supported",
            "index one dimension at a time",
        )
    if numbers[0].dtype == bool:
        last, numbers = first + numbers[0].ndim, list(np.nonzero(numbers[0]))
    sizes = operand.shape[first:last]
    whole = [np.where(item < 0, item + size, item) for item, size in zip(numbers, sizes, strict=True)]
    flat = np.ravel_multi_index(np.broadcast_arrays(*whole), sizes)
    shape = (*operand.shape[:first], elements(sizes), *operand.shape[last:])
    return viewed(node, picked(node, operand, shape, first, flat.ravel()), node.shape)


def _gather(node: Node) -> View:
    """`gather` and `take_along_dim`, whose index may be wider."""
    numbers, dim = node.needed("index" if node.op == "gather" else "indices").value, node.dim()
    if node.op != "gather":
        numbers = np.broadcast_to(numbers, node.shape)
    return along(node, node.x, numbers, dim)


def _scatter(node: Node) -> View:
    """Into a dimension: at an index for each element, at whole places, at one place, at a slice."""
    if node.get("reduce") or node.get("alpha", 1) != 1:  # PyTorch has no gradient of the first either
        raise CannotTakeError(
            "scattering with 'reduce' or 'alpha' is not supported",
            "multiply the source in a separate op before",
        )
    base = node["self"]
    shape, dim = base.shape, node["dim"] % len(base.shape)
    source = node.get("src", node.get("source", node.get("value")))
    if isinstance(source, Constant) and not source.shape and not source.trained:
        source = source.value.item()
    places = list(np.indices(shape))
    if node.op in ("scatter", "scatter_add"):
        index = node.needed("index").value
        places = list(np.indices(index.shape))
        places[dim] = index
    else:
        cut: Any = node.needed("index").value.ravel() if node.op.startswith("index") else node.get("index")
        if node.op == "slice_scatter":
            cut = range(shape[dim])[slice(node.get("start"), node.get("end"), node["step"])]
        taken = np.atleast_1d(np.array(cut))
        places = [np.take(item, taken, dim) for item in places]
    if isinstance(source, (View, Constant)):
        if node.op == "select_scatter":
            source = (
                source.with_dim(dim)
                if isinstance(source, View)
                else source.moved(lambda array: np.expand_dims(array, dim))
            )
    else:
        source = Constant(np.full(places[0].shape, source, np.float32))
    return scattered(node, base, source, places, adds=node.op in ("scatter_add", "index_add"))


def _windows(node: Node) -> View:
    """All windows of one dimension, which become the last one."""
    dim, size = node.dim("dimension"), node["size"]
    starts = range(0, node.x.shape[dim] - size + 1, node["step"])
    taken = chosen(node, node.x, dim, [place for start in starts for place in range(start, start + size)])
    cut = viewed(node, taken, (*taken.shape[:dim], len(starts), size, *taken.shape[dim + 1 :]))
    return cut.permuted([*(other for other in range(node.rank + 1) if other != dim + 1), dim + 1])


def _channel_shuffle(node: Node) -> View:
    samples, channels, *space = node.x.shape
    cut = viewed(node, node.x, (samples, node["groups"], channels // node["groups"], *space))
    return viewed(node, cut.swapped(1, 2), node.shape)


HANDLERS: Mapping[str, Handler] = {
    **dict.fromkeys(("view", "reshape", "_unsafe_view"), _view),
    "flatten": _flatten,
    "unflatten": _unflatten,
    "permute": lambda node: node.x.permuted(node.dims("dims")),
    **dict.fromkeys(
        ("transpose", "swapaxes", "swapdims"),
        lambda node: node.x.swapped(node.dim("dim0"), node.dim("dim1")),
    ),
    **dict.fromkeys(("t", "mT", "adjoint"), lambda node: node.x.swapped(-2, -1) if node.rank > 1 else node.x),
    "movedim": _movedim,
    "unsqueeze": lambda node: node.x.with_dim(node["dim"] % (node.rank + 1)),
    "squeeze": lambda node: squeezed(node.x, node.dims() if node.has("dim") else range(node.rank)),
    **dict.fromkeys(("clone", "contiguous", "alias", "lift_fresh_copy", "to", "_to_copy", "type_as"), _same),
    **dict.fromkeys(("detach", "detach_"), _detach),
    **dict.fromkeys(("expand", "expand_as", "broadcast_to"), lambda node: expanded(node, node.x, node.shape)),
    **dict.fromkeys(("slice", "narrow"), _slice),
    "select": lambda node: selected(node, node.x, node.dim(), node["index"] % node.x.shape[node.dim()]),
    **dict.fromkeys(("chunk", "split", "split_with_sizes"), _split),
    "unbind": _unbind,
    **dict.fromkeys(
        ("cat", "concat", "concatenate"),
        lambda node: concatenated(node, node["tensors"], node["dim"] % len(node.shape)),
    ),
    "stack": _stack,
    "roll": _roll,
    "flip": lambda node: turned(node, node.x, node.dims("dims")),
    "index_select": lambda node: picked(
        node, node["self"], node["self"].shape, node["dim"], node.needed("index").value.ravel()
    ),
    "index": _index,
    **dict.fromkeys(("gather", "take_along_dim"), _gather),
    **dict.fromkeys(("scatter", "scatter_add", "index_copy", "index_add", "index_fill"), _scatter),
    **dict.fromkeys(("select_scatter", "slice_scatter"), _scatter),
    "copy": lambda node: expanded(node, node.view("src"), node.shape),
    "sym_size": lambda node: node.x.shape[node["dim"]],
    **dict.fromkeys(("repeat", "tile"), lambda node: repeated(node, node.x, _counts(node))),
    **dict.fromkeys(("pad", "constant_pad_nd", "_pad_circular"), _pad),
    **dict.fromkeys(("reflection_pad1d", "reflection_pad2d"), _pad),
    **dict.fromkeys(("replication_pad1d", "replication_pad2d"), _pad),
    "unfold": _windows,
    "pixel_shuffle": lambda node: to_space(node, node.x, node["upscale_factor"]),
    "pixel_unshuffle": lambda node: to_depth(node, node.x, node["downscale_factor"]),
    **dict.fromkeys(("channel_shuffle", "native_channel_shuffle"), _channel_shuffle),
}
