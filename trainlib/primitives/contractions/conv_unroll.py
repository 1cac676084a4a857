# SPDX-License-Identifier: Apache-2.0
"""The im2row matrix of a tile: unrolled by the cores, or fetched patch by patch by the DMA.

By the cores: the tile fetches the image, an im2row per sample (and group) fills a scratch buffer. By the
DMA: an operand of the tile gathers every patch, a box of the tensor in its home memory, which the scheduler
turns into one 2D command per patch and channel, as PULP-TrainLib's DMA im2row does; a box has the order of a
row of the matrix, so no core touches it. Patches that are not one solid box (padding, dilation, the zeros
between strided output gradients) are fetched as the box that encloses them and completed by the cores into a
row of a scratch matrix, which has a row for every patch of the tile, used or not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from arch.spec.isa import TeamWork
from configs.values import Struct
from trainlib.ir.access import Taps
from trainlib.ir.steps import Array, Extent, KernelCall, Operand, Scratch, gathered, part
from trainlib.primitives.contractions import conv_nests
from trainlib.primitives.contractions.contraction import LoopTile
from trainlib.primitives.contractions.conv_calls import (
    COLUMNS,
    ROWS,
    TileImage,
    im2row_call,
    of_window,
    positions_of,
    tile_image,
)
from trainlib.primitives.contractions.conv_geometry import ConvGeometry
from trainlib.primitives.contractions.conv_nests import Reach, Site
from trainlib.primitives.lowering.calls import BATCH

BORDER = "im2row_border"
"""Name of the scratch buffer of the patches the cores complete."""


class Matrices(Struct, frozen=True):
    """The im2row matrices of a tile by sample: calls that make them, the buffers they (or rows) lie in."""

    operands: tuple[Operand, ...]
    scratch: tuple[Scratch, ...]
    calls: Callable[[], Sequence[list[KernelCall]]]
    names: tuple[tuple[str, ...], ...]


def unrolled(
    tile: LoopTile,
    image: str,
    channels: Extent,
    groups: Sequence[Extent],
    *,
    columns: bool = False,
) -> Matrices:
    """The matrices of `channels` of a tile's image (``x`` or ``dy``), in the way `im2col` of the layer says.

    `groups` are the channels of each group within `channels`. `columns` asks for the transposed matrix
    (im2col), which the cores only can make. The DMA knows one group only.
    """
    if tile.op.attributes["im2col"] == "dma" and not columns:
        return _by_dma(tile, image, tile_image(tile), channels)
    window = ConvGeometry.of(tile.op.attributes).window
    shape = (positions_of(tile), (groups[0][1] - groups[0][0]) * window)
    target, shape = (COLUMNS, shape[::-1]) if columns else (ROWS, shape)
    outer = (len(groups),) if len(groups) > 1 else ()
    samples = tile.count(BATCH)

    def calls() -> list[list[KernelCall]]:
        view = tile_image(tile)
        return [
            [im2row_call(tile, view, part(image, sample), groups, columns=columns)]
            for sample in range(samples)
        ]

    return Matrices(
        (tile.box(image),), (Scratch(target, (*outer, *shape), tile.dtype),), calls, ((target,),) * samples
    )


class _Lines(Struct, frozen=True):
    """What the rows (or columns) of output positions of a tile read of an axis.

    `taps` index into the interval [position, 2] in `fetched` that encloses what the position reads; an empty
    one is not fetched. `sizes` are the lengths of these intervals, `solid` says whether the interval is what
    is read, in order.
    """

    fetched: Taps
    sizes: Taps
    taps: Taps
    solid: NDArray[np.bool_]

    @property
    def pieces(self) -> list[Extent]:
        """The intervals that are not empty."""
        return [(start, stop) for start, stop in self.fetched.tolist() if start < stop]


def _lines(taps: Taps, start: int) -> _Lines:
    """`taps` of some positions, counted from position `start` of the axis."""
    read = taps >= 0
    first = np.where(read, taps, _NOWHERE).min(axis=1)
    last = taps.max(axis=1) + 1  # 0 where nothing is read
    first = np.minimum(first, last)
    inner = np.where(read, taps - first[:, None], -1)
    solid = (inner == np.arange(taps.shape[1])).all(axis=1)
    return _Lines(start + np.stack([first, last], axis=1), last - first, inner, solid)


_NOWHERE = np.iinfo(np.int64).max


@dataclass(frozen=True)
class _Fetched:
    """The patches of one image as the DMA brings them: boxes of `channels` one behind the other.

    A patch is (row, column) of the output positions, numbered row by row.
    """

    rows: _Lines
    columns: _Lines
    channels: int
    channels_last: bool

    @cached_property
    def elements(self) -> int:
        """Elements of all boxes."""
        return int(self.channels * self.rows.sizes.sum() * self.columns.sizes.sum())

    @cached_property
    def solid(self) -> NDArray[np.bool_]:
        """[row, column]: whether the box is the row of the matrix."""
        return np.logical_and.outer(self.rows.solid, self.columns.solid)

    @cached_property
    def starts(self) -> Taps:
        """[row, column]: where the box of a patch begins."""
        high, wide = self.rows.sizes, self.columns.sizes
        above, before = np.cumsum(high) - high, np.cumsum(wide) - wide
        starts: Taps = self.channels * (above[:, None] * wide.sum() + high[:, None] * before)
        return starts

    @cached_property
    def runs(self) -> list[tuple[int, int, bool]]:
        """Patches [first, last) one after another that are solid, or not."""
        solid = self.solid.reshape(-1)
        changes = np.flatnonzero(solid[1:] != solid[:-1]) + 1
        limits = [0, *changes.tolist(), solid.size]
        return [(first, last, bool(solid[first])) for first, last in pairwise(limits)]

    def names(self, buffer: str, image: int) -> tuple[str, ...]:
        """The rows of the matrix in order: runs of solid patches in `buffer`, of others in `BORDER`.

        `image` is the element of the buffer where the image begins.
        """
        starts = [image + start for start in (*self.starts.reshape(-1).tolist(), self.elements)]
        return tuple(
            part(buffer, starts[first], starts[last]) if solid else part(BORDER, first, last)
            for first, last, solid in self.runs
        )

    @property
    def border(self) -> list[tuple[int, int]]:
        """The rows of `BORDER` that are used, in runs."""
        return [(first, last) for first, last, solid in self.runs if not solid]

    def border_elements(self) -> int:
        """Elements read for the patches that are not solid."""
        high, wide = ((line.taps >= 0).sum(axis=1) for line in (self.rows, self.columns))
        return int((np.multiply.outer(high, wide) * ~self.solid).sum())

    def border_patches(self, fetched: Array) -> Array:
        """[patch, k]: the patches that are not solid, from the boxes of the image; 0 where none is read."""
        rows, columns = self.rows.taps[:, None, :, None], self.columns.taps[None, :, None, :]
        high, wide = self.rows.sizes[:, None, None, None], self.columns.sizes[None, :, None, None]
        places = (rows * wide + columns)[..., None, :, :]
        channel = np.arange(self.channels)[:, None, None]
        if self.channels_last:
            places = places * self.channels + channel
        else:
            places = places + channel * (high * wide)[..., None, :, :]
        read = np.broadcast_to(((rows >= 0) & (columns >= 0))[..., None, :, :], places.shape)
        places = np.where(read, places + self.starts[:, :, None, None, None], -1)[~self.solid]
        if self.channels_last:
            places = np.moveaxis(places, 1, -1)
        # Index -1 reads the zero behind the last element.
        patches: Array = np.append(fetched, fetched.dtype.type(0))[places.reshape(len(places), -1)]
        return patches


def _by_dma(tile: LoopTile, role: str, view: TileImage, channels: Extent) -> Matrices:
    op, samples, geometry = tile.op, tile.extents[BATCH], ConvGeometry.of(tile.op.attributes)
    rows = _lines(view.reach.rows, view.rows.start)
    columns = _lines(view.reach.columns, view.columns.start)
    depth = channels[1] - channels[0]
    fetched = _Fetched(rows, columns, depth, geometry.hwc)
    buffer = f"{role}.patches"
    operands: tuple[Operand, ...] = ()
    if fetched.elements:
        each = [(sample, sample + 1) for sample in range(*samples)]
        box_pieces = (rows.pieces, columns.pieces)
        along = (*box_pieces, [channels]) if geometry.hwc else ([channels], *box_pieces)
        operands = (gathered(op[role], (each, *along), buffer),)
    border = fetched.border
    window = of_window(geometry, view.reach, gathers=view.mode == "IG")
    calls: list[list[KernelCall]] = []
    names: list[tuple[str, ...]] = []
    for sample in range(samples[1] - samples[0]):
        first = sample * fetched.elements
        image = part(buffer, first, first + fetched.elements) if operands else ""
        calls.append([_border_call(tile, fetched, image, border, window)] if border else [])
        names.append(fetched.names(buffer, first))
    # The samples follow one another, so one buffer with a row for every patch serves them all.
    scratch = (Scratch(BORDER, (view.positions, depth * geometry.window), tile.dtype),) if border else ()
    return Matrices(operands, scratch, lambda: calls, tuple(names))


def _border_call(
    tile: LoopTile,
    fetched: _Fetched,
    image: str,
    border: Sequence[tuple[int, int]],
    window: Mapping[str, Any],
) -> KernelCall:
    """Complete patches that are not solid: from fetched boxes to rows of k, with zeros where none is read."""
    geometry, codegen, dtype = ConvGeometry.of(tile.op.attributes), tile.choice.codegen, tile.dtype
    reads, writes = (image,) if image else (), tuple(part(BORDER, run, end) for run, end in border)

    def work(cores: int, addresses: Mapping[str, int]) -> TeamWork:
        # One row of positions whose kernel is a line of all taps: it counts the elements of all patches.
        line = np.full((int(np.count_nonzero(~fetched.solid)), geometry.window), -1)
        line.reshape(-1)[: fetched.border_elements()] = 0
        reach = Reach(line, np.zeros((1, 1), np.int64), 1, geometry.window)

        places = {"X": addresses[image or writes[0]], "R": addresses[writes[0]]}
        return conv_nests.im2row(Site(codegen, cores, dtype, places), "FW", reach, fetched.channels)

    def function(arrays: Sequence[Array]) -> tuple[Array, ...]:
        patches = fetched.border_patches(arrays[0] if arrays else np.zeros(0, np.float32))
        return tuple(np.split(patches, np.cumsum([end - run for run, end in border])[:-1]))

    details = {
        "source": "im2row_border",
        **window,
        "channels": fetched.channels,
        "patch_rows": len(fetched.rows.taps),
        "patch_columns": len(fetched.columns.taps),
        "taps_h": geometry.hk,
        "taps_w": geometry.wk,
        "hwc": geometry.hwc,
        "first_row": border[0][0],
    }
    return KernelCall("im2row_border", reads, writes, work, function, details=details)
