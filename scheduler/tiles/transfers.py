# SPDX-License-Identifier: Apache-2.0
"""Boxes of tensors as DMA commands: 1D and 2D transfers to and from contiguous L1 buffers."""

from __future__ import annotations

from functools import lru_cache
from itertools import product
from math import prod

from arch.spec.program import Command
from arch.spec.timing import DmaTiming
from configs.values import Struct, replace
from trainlib.ir.steps import Region

COUNTS_KEPT = 4096
"""Boxes whose commands are not counted anew: those of a tile loop differ in little but where they lie."""


class BoxTransfer(Struct, frozen=True):
    """What one transfer moves: a box of a tensor, and the address of its buffer in L1 (C-contiguous).

    A `flat` box is of the tensor as one line of all its elements. With `l2_address` it lies there, not in the
    tensor.
    """

    tensor: str
    region: Region
    l1_address: int
    flat: bool = False
    l2_address: int | None = None


def commands_for(
    shape: tuple[int, ...],
    itemsize_bytes: int,
    region: Region,
    *,
    external_level: str,
    external_address: int,
    l1_address: int,
    to_l1: bool,
    dma: DmaTiming,
) -> tuple[Command, ...]:
    """Commands that move the box `region` of a C-contiguous tensor to or from a C-contiguous L1 buffer.

    Trailing dimensions that are whole make one contiguous line; the next dimension becomes the lines of a 2D
    command; every combination of the remaining outer indices is one command. What is longer than the `dma`
    takes in one is split; a range too long for a 1D command is the equal lines of a 2D one where it can be
    cut into as many as it would take 1D commands. Lengths and addresses are in bytes.
    """
    extents = tuple([stop - start for start, stop in region])
    limits = dma.max_command_1d_bytes, dma.max_command_2d_bytes
    strides, parts = _box(shape, itemsize_bytes, extents, *limits)
    corner = external_address + _offset(region, strides)
    return tuple(
        [
            Command(to_l1, l1_address + near, external_level, corner + far, line_bytes, lines, stride)
            for near, far, line_bytes, lines, stride in parts
        ]
    )


def _offset(region: Region, strides: tuple[int, ...]) -> int:
    """Where a box begins."""
    return sum([start * stride for (start, _), stride in zip(region, strides, strict=True)])


def _line_dim(shape: tuple[int, ...], extents: tuple[int, ...]) -> int:
    """The outermost dimension of the contiguous lines of a box: those behind it are whole."""
    line_dim = len(shape) - 1
    while line_dim > 0 and extents[line_dim] == shape[line_dim]:
        line_dim -= 1
    return line_dim


@lru_cache(COUNTS_KEPT)
def _box(
    shape: tuple[int, ...],
    itemsize_bytes: int,
    extents: tuple[int, ...],
    max_command_1d_bytes: int,
    max_command_2d_bytes: int,
) -> tuple[tuple[int, ...], tuple[tuple[int, int, int, int, int], ...]]:
    """Bytes from one index to the next by dimension, and the commands of a box with these extents: where each
    begins in L1 and behind the corner of the box, bytes of a line, lines, stride."""
    line_dim = _line_dim(shape, extents)
    strides = tuple([prod(shape[dim + 1 :]) * itemsize_bytes for dim in range(len(shape))])
    line_bytes, lines, stride_bytes = itemsize_bytes, 1, 0
    if shape:
        line_bytes = extents[line_dim] * strides[line_dim]
    if line_dim > 0:
        lines, stride_bytes = extents[line_dim - 1], strides[line_dim - 1]
    outer_dims = range(max(0, line_dim - 1))
    parts: list[tuple[int, int, int, int, int]] = []
    l1_address = 0
    for outer in product(*(range(extents[dim]) for dim in outer_dims)):
        address = sum(index * strides[dim] for dim, index in zip(outer_dims, outer, strict=True))
        command = Command(True, l1_address, "", address, line_bytes, lines, stride_bytes if lines > 1 else 0)
        parts += [
            (item.l1_address, item.external_address, item.line_bytes, item.lines, item.stride_bytes)
            for item in _split(command, max_command_1d_bytes, max_command_2d_bytes)
        ]
        l1_address += command.size_bytes
    return strides, tuple(parts)


@lru_cache(COUNTS_KEPT)
def count_commands(
    shape: tuple[int, ...],
    itemsize_bytes: int,
    extents: tuple[int, ...],
    max_command_1d_bytes: int,
    max_command_2d_bytes: int,
) -> int:
    """How many commands `commands_for` makes of a box with these extents, without making them all."""
    lines, alike = _lines_and_outer(shape, extents)
    line_bytes = prod(extents) * itemsize_bytes // max(1, lines * alike)
    one = Command(True, 0, "l2", 0, line_bytes, lines, line_bytes if lines > 1 else 0)
    return alike * len(_split(one, max_command_1d_bytes, max_command_2d_bytes))


def count_lines(shape: tuple[int, ...], extents: tuple[int, ...]) -> int:
    """How many runs of bytes `lines_of` finds in a box with these extents, without listing them."""
    return prod(_lines_and_outer(shape, extents))


def repeated(shape: tuple[int, ...], extents: tuple[int, ...]) -> tuple[tuple[int, ...], int]:
    """Extents of a part of a box, and how often commands like those of that part make all of the box's."""
    outer = max(0, _line_dim(shape, extents) - 1)
    return (1,) * outer + extents[outer:], prod(extents[:outer])


def _lines_and_outer(shape: tuple[int, ...], extents: tuple[int, ...]) -> tuple[int, int]:
    """Lines of a 2D command, and how many of those the dimensions outside make."""
    line_dim = _line_dim(shape, extents)
    lines = extents[line_dim - 1] if line_dim > 0 else 1
    return lines, prod(extents[: max(0, line_dim - 1)])


def lines_of(shape: tuple[int, ...], itemsize_bytes: int, region: Region) -> list[tuple[int, int]]:
    """The runs of bytes a box of a C-contiguous tensor is made of, in order: (first byte, bytes) of each."""
    whole_bytes = prod(shape) * itemsize_bytes
    extents = tuple([stop - start for start, stop in region])
    strides, parts = _box(shape, itemsize_bytes, extents, whole_bytes, whole_bytes)
    corner = _offset(region, strides)
    return [
        (corner + far + line * stride, line_bytes)
        for _, far, line_bytes, lines, stride in parts
        for line in range(lines)
    ]


def _split(command: Command, max_1d_bytes: int, max_2d_bytes: int) -> tuple[Command, ...]:
    """The same bytes in commands the length fields can hold: whole lines first, then pieces of a line."""
    if command.lines > 1:
        if command.size_bytes <= max_2d_bytes:
            return (command,)
        at_once = max(1, max_2d_bytes // command.line_bytes)
        counts = [min(at_once, command.lines - done) for done in range(0, command.lines, at_once)]
        parts = (
            replace(
                command,
                l1_address=command.l1_address + number * at_once * command.line_bytes,
                external_address=command.external_address + number * at_once * command.stride_bytes,
                lines=lines,
                stride_bytes=command.stride_bytes if lines > 1 else 0,
            )
            for number, lines in enumerate(counts)
        )
        return tuple(piece for part in parts for piece in _split(part, max_1d_bytes, max_2d_bytes))
    size_bytes = command.line_bytes
    if size_bytes <= max_1d_bytes:
        return (command,)
    lines = -(-size_bytes // max_1d_bytes)
    if size_bytes <= max_2d_bytes and size_bytes % lines == 0:
        line_bytes = size_bytes // lines
        return (replace(command, line_bytes=line_bytes, lines=lines, stride_bytes=line_bytes),)
    return tuple(
        replace(
            command,
            l1_address=command.l1_address + done,
            external_address=command.external_address + done,
            line_bytes=min(max_1d_bytes, size_bytes - done),
        )
        for done in range(0, size_bytes, max_1d_bytes)
    )
