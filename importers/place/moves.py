# SPDX-License-Identifier: Apache-2.0
"""What moves elements: views and transposes cost nothing here, what must be copied is a layer."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import prod
from typing import Any

import numpy as np

from configs.values import replace
from importers.graph.arranging import MOST_AXES, Site, in_order, places_of, sample_word, under, viewed
from importers.graph.draft import CannotTakeError, elements
from importers.graph.views import BATCH, View
from importers.graph.weights import Constant
from importers.place.pairs import as_view, common_shape, pair, wider
from trainlib.ir.steps import Array

MOST_PIECES = 64
"""Slices that one gather, or one slice with a step, may become."""


def sliced(site: Site, view: View, dim: int, start: int, stop: int, *, suffix: str = "") -> View:
    """Elements [start, stop) of a dimension: a slice layer on the tensor as it is stored."""
    if (start, stop) == (0, view.shape[dim]):
        return view
    if BATCH in view.dims[dim]:
        raise CannotTakeError("slicing the batch is not supported", "slice a dimension after the batch")
    if not start < stop:
        raise CannotTakeError("the slice of the node is empty", "use a slice of one element or more")
    view, piece, word, axis = _whole_piece(site, view, dim)
    made = site.layer("slice", (word,), {"axis": axis, "start": start, "stop": stop}, suffix=suffix)
    return _part(view, made, piece, stop - start)


def split(site: Site, view: View, dim: int, sizes: Sequence[int]) -> list[View]:
    """All parts of a dimension, of these sizes, by one layer."""
    view, piece, word, axis = _whole_piece(site, view, dim)
    options = {"axis": axis, "sizes": list(sizes)}
    made = site.draft.layer("split", site.name, (word,), options, where=site.where)
    return [_part(view, part, piece, size) for part, size in zip(made, sizes, strict=True)]


def _whole_piece(site: Site, view: View, dim: int) -> tuple[View, int, str, int]:
    """The view with one piece as this dimension, the piece, and a word stored piece by piece; its axis there.

    Of many pieces those on either side are stored as one.
    """
    if len(view.dims[dim]) != 1:
        view = in_order(site, view)
    (piece,) = view.dims[dim]
    groups = [range(item, item + 1) for item in range(1, len(view.pieces))]
    if len(groups) > MOST_AXES:
        sides = (range(1, piece), groups[piece - 1], range(piece + 1, len(view.pieces)))
        groups = [side for side in sides if side]
    return view, piece, site.stored(view, groups), groups.index(range(piece, piece + 1))


def _part(view: View, made: View, piece: int, size: int) -> View:
    """A tensor just made that has `size` elements of a piece."""
    pieces = (*view.pieces[:piece], size, *view.pieces[piece + 1 :])
    kept = replace(view, word=made.word, stored=made.stored, pieces=pieces)
    return kept.without_piece(piece) if size == 1 else kept


def target_shape(shape: Sequence[int], wanted: Sequence[int], *, zero_is_zero: bool) -> tuple[int, ...]:
    """What a reshape makes of a shape: 0 keeps a dimension (of ONNX), -1 is what is left."""
    sizes = list(wanted)
    for index, size in enumerate(sizes):
        if size == 0 and not zero_is_zero:
            if index >= len(shape):
                raise CannotTakeError(
                    f"cannot reshape {list(shape)} to {list(wanted)}: there is no dimension {index} to copy",
                    "write a size instead of 0",
                )
            sizes[index] = shape[index]
    if sizes.count(-1) == 1:
        rest = prod(size for size in sizes if size != -1)
        sizes[sizes.index(-1)] = prod(shape) // rest if rest else 0
    if prod(sizes) != prod(shape) or min(sizes, default=1) < 1:
        raise CannotTakeError(
            f"cannot reshape {list(shape)} to {list(wanted)}", "use equal numbers of elements"
        )
    return tuple(sizes)


def squeezed(view: View, dims: Collection[int]) -> View:
    """Without these dimensions, those of them that have one element."""
    for dim in sorted(set(dims), reverse=True):
        view = view.without_dim(dim) if view.shape[dim] == 1 else view
    return view


def turned(site: Site, view: View, dims: Collection[int], *, suffix: str = "") -> View:
    """Elements of some dimensions in reverse."""
    word, batch_dim = sample_word(site, view)
    moving = [dim for dim in dims if view.shape[dim] > 1]
    if batch_dim in moving:
        raise CannotTakeError("reversing the batch is not supported", "reverse a dimension after the batch")
    axes = [places_of(len(view.dims), batch_dim).index(dim) for dim in moving]
    made = site.layer("flip", (word,), {"axes": axes}, suffix=suffix) if axes else None
    return under(made, batch_dim, len(view.dims)) if made is not None else view


def _runs(taken: Sequence[int]) -> list[list[int]]:
    """Numbers in order, neighbours in one group, be it upwards or downwards."""
    runs: list[list[int]] = []
    for item in taken:
        last = runs[-1] if runs else []
        step = last[1] - last[0] if len(last) > 1 else item - last[0] if last else 0
        if abs(step) == 1 and item == last[-1] + step:
            last.append(item)
        else:
            runs.append([item])
    return runs


def chosen(site: Site, view: View, dim: int, taken: Sequence[int], suffix: str = "") -> View:
    """Elements of a dimension by their numbers: neighbours by one slice, others joined."""
    if not taken:
        raise CannotTakeError("the slice of the node is empty", "use a slice of one element or more")
    size, runs = view.shape[dim], _runs(taken)
    step = taken[1] - taken[0] if len(taken) > 1 else 1
    if step < -1 and list(taken) == list(range(taken[0], taken[-1] - 1, step)):
        return turned(site, chosen(site, view, dim, taken[::-1], suffix), (dim,), suffix=f"{suffix}_turned")
    every = len(runs) > 1 and step > taken[0] and size % step == 0
    if every and list(taken) == list(range(taken[0], size, step)):
        cut = viewed(site, view, (*view.shape[:dim], size // step, step, *view.shape[dim + 1 :]))
        return sliced(site, cut, dim + 1, taken[0], taken[0] + 1, suffix=suffix).without_dim(dim + 1)
    if len(runs) > MOST_PIECES:
        raise CannotTakeError(f"{len(runs)} separate slices are too many", f"use at most {MOST_PIECES}")
    parts = []
    for number, run in enumerate(runs):
        ending = f"{suffix}_{number}" if number else suffix
        part = sliced(site, view, dim, min(run), max(run) + 1, suffix=ending)
        parts.append(turned(site, part, (dim,), suffix=f"{ending}_turned") if run[0] > run[-1] else part)
    return parts[0] if len(parts) == 1 else joined(site, parts, dim)


def selected(site: Site, view: View, dim: int, index: int) -> View:
    """One element of a dimension, which is gone then."""
    one = sliced(site, view, dim, index, index + 1) if view.shape[dim] > 1 else view
    return one.without_dim(dim)


def equal_parts(size: int, part: int) -> tuple[int, ...]:
    """Sizes of parts of a dimension; the last may be smaller."""
    return tuple(min(part, size - start) for start in range(0, size, part))


def parts_of(site: Site, view: View, dim: int, sizes: Sequence[int], used: Collection[int]) -> list[Any]:
    """All parts of a dimension: one split if all are used, else slices of those that are."""
    if sum(sizes) != view.shape[dim] or min(sizes, default=0) < 1:
        raise CannotTakeError(
            f"the sizes {list(sizes)} add up to {sum(sizes)}", f"use sizes that add up to {view.shape[dim]}"
        )
    if len(sizes) == 1:
        return [view]
    *outer, last = view.dims[dim]
    if outer and last == BATCH and not any(size % view.batch for size in sizes):
        apart = replace(view, dims=(*view.dims[:dim], tuple(outer), (BATCH,), *view.dims[dim + 1 :]))
        parts = parts_of(site, apart, dim, [size // view.batch for size in sizes], used)
        return [part and _counted(part, dim) for part in parts]
    if all(index in used for index in range(len(sizes))) and BATCH not in view.dims[dim]:
        return [*split(site, view, dim, sizes)]
    starts = [sum(sizes[:index]) for index in range(len(sizes))]
    return [
        sliced(site, view, dim, start, start + size, suffix=f"_{index}") if index in used else None
        for index, (start, size) in enumerate(zip(starts, sizes, strict=True))
    ]


def _counted(view: View, dim: int) -> View:
    """A dimension and that of the samples behind it as one."""
    merged = tuple(piece for piece in (*view.dims[dim], *view.dims[dim + 1]) if view.pieces[piece] > 1)
    return replace(view, dims=(*view.dims[:dim], merged, *view.dims[dim + 2 :])).settled()


def joined(site: Site, items: Sequence[View], dim: int, *, suffix: str = "") -> View:
    """Activations side by side along a dimension."""
    if all(item.dims[dim] == (BATCH,) for item in items):  # as heads of attention: a dimension before samples
        return _counted(joined(site, [item.with_dim(dim) for item in items], dim, suffix=suffix), dim)
    batches = {item.batch_dim for item in items} - {None}
    batch_dim = batches.pop() if len(batches) == 1 else None
    if batches or (batch_dim == dim and items[0].batch > 1):
        raise CannotTakeError("joining along the batch is not supported", "join along a later dimension")
    if batch_dim == dim:
        raise CannotTakeError("joining along the batch is not supported", "join along a later dimension")
    rank = len(items[0].dims)
    words = []
    for item in items:
        if len(item.dims) != rank:
            raise CannotTakeError(
                "tensors of different rank cannot be joined", "make ranks equal (Unsqueeze)"
            )
        word, batch_place = sample_word(site, item)
        if batch_place != batch_dim:
            shape = site.draft.tensors[word].shape
            if batch_dim is not None:
                shape = (shape[0], *(size for index, size in enumerate(shape[1:]) if index != batch_dim))
            word = site.reshaped(word, shape)
        words.append(word)
    axis = places_of(rank, batch_dim).index(dim)
    return under(site.layer("concat", tuple(words), {"axis": axis}, suffix=suffix), batch_dim, rank)


def concatenated(site: Site, items: Sequence[Any], dim: int) -> View:
    """Activations and constants side by side; a weight before a sequence is a class token."""
    like = next(item for item in items if isinstance(item, View))
    token = _class_token(site, items, dim)
    if token is not None:
        return token
    views = [as_view(site, item, like) for item in items if elements(item.shape)]
    return views[0] if len(views) == 1 else joined(site, views, dim)


def _class_token(site: Site, items: Sequence[Any], dim: int) -> View | None:
    """A weight [1, 1, features] before a sequence [batch, length, features]."""
    if len(items) != 2 or dim != 1 or not isinstance(items[0], Constant):
        return None
    token, rest = items
    if len(rest.dims) != 3 or rest.batch_dim not in (0, None) or token.shape[1:2] != (1,):
        return None
    if (token.value != token.value[:1]).any():
        return None
    word = site.reshaped(in_order(site, rest).word, rest.shape)
    return site.layer("class_token", (word,), {}, {"w": token.moved(lambda array: array[0, 0])})


def surrounded(site: Site, view: View, pairs: Sequence[tuple[int, int]], mode: str) -> View:
    """(before, behind) for each dimension: elements of its own around, as `numpy.pad` does by this mode."""
    for dim, widths in enumerate(pairs):
        if min(widths) < 0 or (mode == "reflect" and max(widths) >= view.shape[dim]):
            raise CannotTakeError(
                f"pads {list(widths)} of a dimension of size {view.shape[dim]} are not supported",
                "use pads of 0 or more, in mode reflect also less than the size of the dimension",
            )
        if any(widths):
            taken = np.pad(np.arange(view.shape[dim]), widths, mode)  # type: ignore[call-overload]
            view = chosen(site, view, dim, [int(number) for number in taken], f"_{dim}")
    return view


def padded(site: Site, view: View, pairs: Sequence[tuple[int, int]], value: float) -> View:
    """(before, behind) for each dimension: a number around, or, below 0, elements cut off."""
    widths = []
    for dim, (before, behind) in enumerate(pairs):
        if min(before, behind) < 0:
            stop = view.shape[dim] - max(0, -behind)
            view = sliced(site, view, dim, max(0, -before), stop, suffix="_cut")
        widths.append([max(0, before), max(0, behind)])
    if not any(map(sum, widths)):
        return view
    if view.batch_dim is not None and any(widths[view.batch_dim]):
        raise CannotTakeError("padding the batch is not supported", "pad a dimension after the batch")
    word, batch_dim = sample_word(site, view)
    pads = [widths[index] for index in places_of(len(widths), batch_dim)]
    return under(site.layer("pad", (word,), {"pads": pads, "value": value}), batch_dim, len(widths))


def expanded(site: Site, view: View, shape: Sequence[int], suffix: str = "") -> View:
    """An activation repeated to a shape: only dimensions of size 1 are, and never that of the batch."""
    view = wider(view, len(shape))
    if view.shape == tuple(shape):
        return view
    word, batch_dim = sample_word(site, view)
    if batch_dim is not None and shape[batch_dim] != view.shape[batch_dim]:
        raise CannotTakeError("repeating the batch is not supported", "repeat a dimension after the batch")
    sizes = [int(shape[index]) for index in places_of(len(shape), batch_dim)]
    if elements(sizes) == elements(site.draft.tensors[word].shape[1:]):
        return viewed(site, view, shape)
    return under(site.layer("expand", (word,), {"shape": sizes}, suffix=suffix), batch_dim, len(shape))


def repeated(site: Site, view: View, counts: Sequence[int]) -> View:
    """All of a tensor so many times along each dimension."""
    view = wider(view, len(counts))
    for dim, count in enumerate(counts):
        if count < 1:
            raise CannotTakeError("the node repeats 0 times", "set repeats of 1 or more")
        if count > 1:
            shape = view.shape
            wide = expanded(site, view.with_dim(dim), (*shape[:dim], count, *shape[dim:]), f"_{dim}")
            view = viewed(site, wide, (*shape[:dim], count * shape[dim], *shape[dim + 1 :]))
    return view


def arranged(site: Site, views: Sequence[View], places: Array) -> View:
    """Elements of views under a shape, by their numbers, counted as seen through one view after the other.

    Every sample takes its own, and all the same ones. Raises `CannotTakeError` if they do not.
    """
    words, samples, numbers, before = [], [], [], 0
    for view in views:
        word, batch_dim = sample_word(site, view)
        whole = np.arange(elements(view.shape)).reshape(view.shape)
        flat = whole.reshape(1, -1) if batch_dim is None else np.moveaxis(whole, batch_dim, 0)
        lying = np.argsort(flat, axis=None)
        size = lying.size // view.batch
        samples.append(lying // size)
        numbers.append(before + lying % size)
        shape = (view.batch, size)
        words.append(View.of(site.reshaped(word, shape), shape))
        before += size
    batch = views[0].batch
    sample, number = (np.concatenate(items)[places] for items in (samples, numbers))
    source = words[0] if len(words) == 1 else joined(site, words, 1, suffix="_all")
    if batch == 1:
        return viewed(site, chosen(site, source, 1, number.ravel().tolist()), places.shape)
    for dim in range(places.ndim):
        owner, taken = (np.moveaxis(item, dim, 0).reshape(places.shape[dim], -1) for item in (sample, number))
        if len(owner) == batch and (np.arange(batch) == owner.T).all() and (taken == taken[0]).all():
            break
    else:
        raise CannotTakeError(
            "the indices are not the same for all samples, or change the order of samples",
            "use the same indices for all samples",
        )
    rest = [size for place, size in enumerate(places.shape) if place != dim]
    made = viewed(site, chosen(site, source, 1, taken[0].tolist()), (batch, *rest))
    order = list(range(1, places.ndim))
    order.insert(dim, 0)
    return made.permuted(order)


def misfit(index: Array, sizes: Sequence[int]) -> CannotTakeError:
    """Indices whose shape does not go with dimensions of these sizes."""
    shapes = f"indices of shape {list(index.shape)} do not fit dimensions of the sizes {list(sizes)}"
    return CannotTakeError(shapes, "use the shape of indices that the description of the ONNX op demands")


def inside(index: Array, sizes: Any) -> Array:
    """Numbers of elements counted from the front. Raises `CannotTakeError` where there are none."""
    if not index.size or (np.ndim(sizes) and index.shape[-1] != len(sizes)):
        raise misfit(index, np.atleast_1d(sizes).tolist())
    outside = (index < -np.array(sizes)) | (index >= np.array(sizes))
    if outside.any():
        wrong, size = index[outside][0], np.broadcast_to(sizes, index.shape)[outside][0]
        raise CannotTakeError(
            f"index {wrong} is outside the dimension, which has {size} elements",
            f"use indices from {-size} to {size - 1}",
        )
    return np.asarray(index % np.array(sizes))


def along(site: Site, view: View, index: Array, dim: int) -> View:
    """For each place of `index` the element of that number of a dimension (as `numpy.take_along_axis`)."""
    sides = zip(index.shape, view.shape, strict=False)
    if index.ndim != len(view.dims) or any(n > most for place, (n, most) in enumerate(sides) if place != dim):
        raise misfit(index, view.shape)
    index = inside(index, view.shape[dim])
    lines = np.moveaxis(index, dim, 0).reshape(index.shape[dim], -1)
    whole_others = index.size * view.shape[dim] == elements(view.shape) * index.shape[dim]
    if whole_others and (lines[:, 0] == lines.T).all():
        return chosen(site, view, dim, lines[:, 0].tolist())
    whole = np.arange(elements(view.shape)).reshape(view.shape)
    within = whole[tuple(slice(n) if place != dim else slice(None) for place, n in enumerate(index.shape))]
    return arranged(site, [view], np.take_along_axis(within, index, dim))


def scattered(site: Site, base: Any, source: Any, where: Sequence[Array], *, adds: bool = False) -> View:
    """A tensor with the elements of `source` at these indices, one array a dimension; or with them added."""
    like = base if isinstance(base, View) else source
    shape, count = tuple(base.shape), elements(base.shape)
    within = [inside(index, size) for index, size in zip(where, shape, strict=True)]
    flat = np.ravel_multi_index(np.broadcast_arrays(*within), shape)
    if np.unique(flat).size < flat.size:
        raise CannotTakeError("scattering twice to one place is not supported", "use each place once")
    if elements(source.shape) != flat.size:
        raise CannotTakeError(
            f"{elements(source.shape)} elements are scattered, but there are indices for {flat.size}",
            "use as many indices as elements",
        )
    source = as_view(site, source, like, "_source")
    if adds:
        zeros = Constant(np.zeros(shape, np.float32))
        return pair(site, "add", base, scattered(site, zeros, source, where), suffix="_sum")
    places = np.arange(count)
    places[flat.ravel()] = count + np.arange(flat.size)
    return arranged(site, [as_view(site, base, like, "_base"), source], places.reshape(shape))


def _once(item: Any) -> Any:
    """A constant that is one number throughout as that number, whatever its shape."""
    if not isinstance(item, Constant) or item.number is None:
        return item
    return item.moved(lambda array: array.ravel()[:1].reshape((1,) * array.ndim))


def where(site: Site, mask: Any, left: Any, right: Any) -> View:
    """Elements of `left` where a mask is not 0, else of `right`; one of the three is an activation."""
    items = [_once(item) for item in (mask, left, right)]
    like = next(item for item in items if isinstance(item, View))
    shape = common_shape(*(item.shape for item in (mask, left, right)))
    views = [
        expanded(site, as_view(site, item, like, f"_constant{number}"), shape, f"_expand{number}")
        for number, item in enumerate(items)
    ]
    if len({(view.pieces, view.dims) for view in views}) > 1:
        views = [in_order(site, view) for view in views]
    if len({(view.pieces, view.dims) for view in views}) > 1:
        raise CannotTakeError("the operands have the batch in different dimensions", "put the batch first")
    words = [site.reshaped(view.word, views[0].stored) for view in views]
    made = site.layer("where", words)
    return View(made.word, made.stored, views[0].pieces, views[0].dims)


def to_space(site: Site, view: View, size: int, *, depth_first: bool = False) -> View:
    """Channels as blocks of rows and columns; `depth_first`: the numbers of a block are the outer ones."""
    *lead, channels, high, wide = view.shape
    kept = channels // size**2 if size > 0 else 0
    if not kept or channels % size**2:
        raise CannotTakeError(
            f"block size {size} does not divide {channels} channels",
            "use a block size that divides the channels",
        )
    base = len(lead)
    cut = (size, size, kept) if depth_first else (kept, size, size)
    order = (2, 3, 0, 4, 1) if depth_first else (0, 3, 1, 4, 2)
    turned = viewed(site, view, (*lead, *cut, high, wide)).permuted(
        [*range(base), *(base + place for place in order)]
    )
    return viewed(site, turned, (*lead, kept, high * size, wide * size))


def to_depth(site: Site, view: View, size: int, *, depth_first: bool = False) -> View:
    """Blocks of rows and columns as channels."""
    *lead, channels, high, wide = view.shape
    if size < 1 or high % size or wide % size:
        raise CannotTakeError(
            f"block size {size} does not divide an image of {high}x{wide}",
            "use a block size that divides both",
        )
    base = len(lead)
    cut = viewed(site, view, (*lead, channels, high // size, size, wide // size, size))
    order = (2, 4, 0, 1, 3) if depth_first else (0, 2, 4, 1, 3)
    turned = cut.permuted([*range(base), *(base + place for place in order)])
    return viewed(site, turned, (*lead, channels * size**2, high // size, wide // size))
