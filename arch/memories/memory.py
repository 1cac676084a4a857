# SPDX-License-Identifier: Apache-2.0
"""Byte-backed storage of the modelled memories, and the views that places and DMA commands have on it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from math import gcd

import numpy as np
from numpy.typing import NDArray

from arch.spec.program import Array, Command, Move, Place, UdmaCommand
from configs.dtypes import POISON_BYTE
from configs.errors import InputError, ShapeError

BLOCK_BYTES = 1 << 20
"""Bytes that are looked at together where all are looked through."""

_UNITS: dict[int, type[np.unsignedinteger]] = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


class Storage:
    """The bytes of one memory level, fresh ones poisoned.

    `level` is l1, l2 or l3; addresses are byte offsets from its start.
    """

    def __init__(self, level: str, size_bytes: int) -> None:
        self.level = level
        self.size_bytes = size_bytes

    @cached_property
    def bytes(self) -> NDArray[np.uint8]:
        """All of them; made when somebody first looks: few programs use an L3 of megabytes."""
        return np.full(self.size_bytes, POISON_BYTE, dtype=np.uint8)

    @property
    def _is_untouched(self) -> bool:
        return "bytes" not in self.__dict__

    def check(self, address: int, size_bytes: int, what: str) -> None:
        """Raise `InputError` unless [address, address + size_bytes) lies in this memory."""
        if address < 0 or address + size_bytes > self.size_bytes:
            raise InputError(
                f"{what or 'an access'} uses bytes {address} to {address + size_bytes}, "
                f"but the memory has {self.size_bytes} B",
                where=self.level,
                cure="use an address inside the memory, or a larger memory",
            )

    def view(self, place: Place) -> Array:
        """The array at `place`, sharing memory with this storage. Raises `InputError` outside the memory."""
        dtype = np.dtype(place.dtype)
        self.check(place.address, place.size_bytes, place.name)
        return np.ndarray(place.shape, dtype, buffer=self.bytes, offset=place.address)

    def read(self, place: Place) -> Array:
        """A copy of the array at `place`."""
        return self.view(place).copy()

    def write(self, place: Place, array: Array) -> None:
        """Copy `array` to `place`, converting to its dtype. Raises `ShapeError` when the shapes differ."""
        if tuple(array.shape) != tuple(place.shape):
            raise ShapeError(
                f"the array has shape {tuple(array.shape)}: use the shape of its place, {tuple(place.shape)}",
                where=place.name or self.level,
            )
        self.view(place)[...] = array

    def content(self) -> Array:
        """A copy of the bytes up to the last one that is not poison."""
        last = 0 if self._is_untouched else self.size_bytes
        while last > 0:
            first = max(0, last - BLOCK_BYTES)
            used = np.flatnonzero(self.bytes[first:last] != POISON_BYTE)
            if used.size:
                return self.bytes[: first + int(used[-1]) + 1].copy()
            last = first
        return np.zeros(0, np.uint8)

    def set_content(self, content: Array) -> None:
        """Make the memory what it was when `content` was taken of it."""
        if self._is_untouched and not content.size:
            return
        self.bytes[: content.size] = content
        self.bytes[content.size :] = POISON_BYTE

    def poison(self, place: Place) -> None:
        """Make the bytes of `place` unreadable (NaN)."""
        self.check(place.address, place.size_bytes, place.name)
        self.bytes[place.address : place.address + place.size_bytes] = POISON_BYTE


def external_span_bytes(command: Command) -> int:
    """Bytes from the first to behind the last byte of a command in its external memory."""
    return (command.lines - 1) * command.stride_bytes + command.line_bytes


def check_command(command: Command, l1: Storage, external: Storage) -> None:
    """Raise `InputError` when a command is empty, has a negative stride, or leaves one of its memories."""
    if command.line_bytes <= 0 or command.lines <= 0 or command.stride_bytes < 0:
        raise InputError(
            f"a DMA command of {command.lines} lines of {command.line_bytes} B, "
            f"{command.stride_bytes} B apart: use lines and bytes of 1 or more, and a stride of 0 or more"
        )
    l1.check(command.l1_address, command.size_bytes, "a DMA command")
    external.check(command.external_address, external_span_bytes(command), "a DMA command")


def command_views(command: Command, l1: Storage, external: Storage) -> tuple[Array, Array]:
    """(source, destination) of a command as views of equal shape (lines, units) and unsigned dtype.

    The unit is the widest word (up to 8 B) that divides both addresses, the line and the stride.
    """
    stride_bytes = command.stride_bytes if command.lines > 1 else command.line_bytes
    unit_bytes = gcd(8, command.l1_address, command.external_address, command.line_bytes, stride_bytes)
    dtype = _UNITS[unit_bytes]
    shape = (command.lines, command.line_bytes // unit_bytes)
    near = np.ndarray(shape, dtype, buffer=l1.bytes, offset=command.l1_address)
    far = np.ndarray(
        shape,
        dtype,
        buffer=external.bytes,
        offset=command.external_address,
        strides=(stride_bytes, unit_bytes),
    )
    return (far, near) if command.to_l1 else (near, far)


def move_views(move: Move, storages: Mapping[str, Storage]) -> tuple[Array, Array]:
    """(source, destination) of a command of the DMA or of the uDMA as views of equal shape and dtype."""
    if not isinstance(move, UdmaCommand):
        return command_views(move, storages["l1"], storages[move.external_level])
    unit_bytes = gcd(8, move.l2_address, move.l3_address, move.size_bytes)
    shape = (move.size_bytes // unit_bytes,)
    near, far = (
        np.ndarray(shape, _UNITS[unit_bytes], buffer=storages[level].bytes, offset=address)
        for level, address in (("l2", move.l2_address), ("l3", move.l3_address))
    )
    return (far, near) if move.to_l2 else (near, far)


def poison_view(view: Array) -> None:
    """Fill a view of unsigned words with `POISON_BYTE`."""
    view.fill(int.from_bytes(bytes([POISON_BYTE]) * view.itemsize))
