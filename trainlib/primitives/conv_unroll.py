"""The im2row matrix of a tile: unrolled by the cores, or fetched patch by patch by the DMA.

By the cores: the tile fetches the image, an im2row per sample (and group) fills a scratch buffer. By the
DMA: every patch is an operand of the tile, a box of the tensor in its home memory, which the scheduler turns
into one 2D transfer per patch and channel, as PULP-TrainLib's DMA im2row does; an operand has the order of a
row of the matrix, so no core touches it. Patches that are not one solid box (padding, dilation, the zeros
between strided output gradients) are fetched as the box that encloses them and completed by the cores into a
scratch row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from arch.isa import TeamWork
from trainlib.graph import Op
from trainlib.primitives import conv_nests, nests
from trainlib.primitives.calls import box
from trainlib.primitives.conv_calls import COLUMNS, ROWS, View, im2row_call
from trainlib.primitives.conv_geometry import ConvGeometry, Taps, enclosing, patches
from trainlib.primitives.conv_nests import Reach
from trainlib.steps import Array, Extent, KernelCall, KernelChoice, Operand, Scratch, part


@dataclass(frozen=True, slots=True)
class Matrices:
    """The im2row matrices of a tile by sample: calls that make them, the buffers they (or rows) lie in."""

    operands: tuple[Operand, ...]
    scratch: tuple[Scratch, ...]
    calls: tuple[list[KernelCall], ...]
    names: tuple[tuple[str, ...], ...]


def unrolled(
    op: Op,
    role: str,
    geometry: ConvGeometry,
    choice: KernelChoice,
    view: View,
    samples: Extent,
    channels: Extent,
    groups: Sequence[Extent],
    dtype: str,
    *,
    columns: bool = False,
) -> Matrices:
    """The matrices of `channels` of the images of a role, in the way `im2col` of the layer says.

    `groups` are the channels of each group within `channels`. `columns` asks for the transposed matrix
    (im2col), which the cores only can make. The DMA knows one group only.
    """
    if op.attributes["im2col"] == "dma" and not columns:
        return _by_dma(op, role, geometry, choice, view, samples, channels, dtype)
    operand = box(op, role, samples, *geometry.image(channels, view.rows.rows, view.columns))
    shape = (view.positions, (groups[0][1] - groups[0][0]) * geometry.window)
    target, shape = (COLUMNS, shape[::-1]) if columns else (ROWS, shape)
    outer = (len(groups),) if len(groups) > 1 else ()
    calls = tuple(
        [
            im2row_call(
                geometry,
                choice,
                view,
                source=part(role, sample),
                groups=groups,
                dtype=dtype,
                columns=columns,
            )
        ]
        for sample in range(samples[1] - samples[0])
    )
    return Matrices((operand,), (Scratch(target, (*outer, *shape), dtype),), calls, ((target,),) * len(calls))


@dataclass(frozen=True, slots=True)
class _Patch:
    """One row of the matrix: the box that encloses it (None: all zeros) and the taps into that box."""

    rows: Extent | None
    columns: Extent | None
    taps: tuple[Taps, Taps]

    @property
    def solid(self) -> bool:
        """Whether the box is the row."""
        return all(np.array_equal(taps[0], np.arange(taps.size)) for taps in self.taps)


def _patch(view: View, row: int, column: int) -> _Patch:
    rows, columns = view.reach.rows[row], view.reach.columns[column]
    high, wide = enclosing(rows), enclosing(columns)
    if high is None or wide is None:
        return _Patch(None, None, (rows[None], columns[None]))
    taps = (np.where(rows < 0, -1, rows - high[0]), np.where(columns < 0, -1, columns - wide[0]))
    start = view.rows.start
    return _Patch((start + high[0], start + high[1]), wide, (taps[0][None], taps[1][None]))


def _by_dma(
    op: Op,
    role: str,
    geometry: ConvGeometry,
    choice: KernelChoice,
    view: View,
    samples: Extent,
    channels: Extent,
    dtype: str,
) -> Matrices:
    found = [
        _patch(view, row, column)
        for row in range(len(view.reach.rows))
        for column in range(len(view.reach.columns))
    ]
    count = channels[1] - channels[0]
    operands: list[Operand] = []
    scratch: list[Scratch] = []
    calls: list[list[KernelCall]] = []
    names: list[tuple[str, ...]] = []
    for sample in range(samples[0], samples[1]):
        rows: list[str] = []
        border: list[tuple[_Patch, str, str]] = []
        for number, patch in enumerate(found):
            name = f"{role}.{sample - samples[0]}.patch{number}"
            fetched = ""
            if patch.rows is not None and patch.columns is not None:
                region = ((sample, sample + 1), *geometry.image(channels, patch.rows, patch.columns))
                operands.append(Operand(op[role], region, name))
                fetched = name
            if patch.rows is None or not patch.solid:
                name = f"{name}.row"
                scratch.append(Scratch(name, (count * geometry.window,), dtype))
                border.append((patch, fetched, name))
            rows.append(name)
        calls.append([_border_call(geometry, choice, border, count, dtype)] if border else [])
        names.append(tuple(rows))
    return Matrices(tuple(operands), tuple(scratch), tuple(calls), tuple(names))


def _border_call(
    geometry: ConvGeometry,
    choice: KernelChoice,
    border: Sequence[tuple[_Patch, str, str]],
    channels: int,
    dtype: str,
) -> KernelCall:
    """Complete patches that are not solid: from fetched boxes to rows, with zeros where nothing is read."""
    reads = tuple(fetched for _, fetched, _ in border if fetched)
    writes = tuple(name for _, _, name in border)
    inside = sum(
        int(np.count_nonzero(patch.taps[0] >= 0) * np.count_nonzero(patch.taps[1] >= 0))
        for patch, _, _ in border
    )
    # One row of positions whose kernel is a line of all taps: it counts the elements of all patches.
    line = np.full((len(border), geometry.window), -1)
    line.reshape(-1)[:inside] = 0
    reach = Reach(line, np.zeros((1, 1), np.int64), 1, geometry.window)

    def work(cores: int, addresses: Mapping[str, int]) -> TeamWork:
        def build(places: Sequence[int]) -> TeamWork:
            return conv_nests.im2row(choice.codegen, "FW", reach, channels, cores, places)

        source = addresses[reads[0] if reads else writes[0]]
        return nests.for_dtype(build, (source, addresses[writes[0]]), dtype)

    def function(arrays: Sequence[Array]) -> tuple[Array, ...]:
        boxes = iter(arrays)
        rows = []
        for patch, fetched, _ in border:
            if fetched:
                image = geometry.image_chw(next(boxes))
                row = patches(image, *patch.taps, channels_last=geometry.hwc).reshape(-1)
            else:
                row = np.zeros(channels * geometry.window, np.float32)
            rows.append(row)
        return tuple(rows)

    return KernelCall("im2row_border", reads, writes, work, function)
