# SPDX-License-Identifier: Apache-2.0
"""Streamed tensors: what an op has in L3 and moves box by box through slots in L2, not as whole copies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from configs.values import Struct
from trainlib.ir.steps import Operand

if TYPE_CHECKING:
    from scheduler.tiles.tiling import Tiling

Key = tuple[str, str]
"""Role (in, out) and name of a buffer."""

ONE_SLOT = 1
MANY_SLOTS = 1 << 30
"""No limit but the number of slots the buffer has in L1."""


class OpStream(Struct, frozen=True):
    """What one op streams: `storages`, and `tensors`, the op's own tensors that lie in them.

    All slots together take at most `window_bytes` of L2. A buffer has as many slots there as in L1, but not
    more than `most_slots`.
    """

    storages: tuple[str, ...]
    tensors: frozenset[str]
    window_bytes: int
    most_slots: int = MANY_SLOTS

    def holds(self, operand: Operand) -> bool:
        """Whether the boxes of an operand are streamed."""
        return operand.tensor in self.tensors


NOT_STREAMED = OpStream((), frozenset(), 0)
"""For an op that finds all its tensors in L2."""


def slots_of(tiling: Tiling, stream: OpStream) -> dict[Key, tuple[int, int]]:
    """The slots in L2 an op needs that is cut like this."""
    streamed = {
        (role, operand.name)
        for task in tiling.tiles
        for role, operands in (("in", task.inputs), ("out", task.outputs))
        for operand in operands
        if stream.holds(operand)
    }
    return {
        (buffer.role, buffer.name): (buffer.slot_bytes, min(buffer.slots, stream.most_slots))
        for buffer in tiling.buffers
        if (buffer.role, buffer.name) in streamed
    }


def slot_bytes(tiling: Tiling, stream: OpStream) -> int:
    """Bytes of all slots in L2 together."""
    return sum(size_bytes * count for size_bytes, count in slots_of(tiling, stream).values())


class OpSlots(Struct, frozen=True):
    """Where an op streams: addresses of the slots in L2 by buffer, and of the streamed tensors in L3."""

    slots: Mapping[Key, tuple[int, ...]]
    homes: Mapping[str, int]


NO_SLOTS = OpSlots({}, {})
"""For an op that streams nothing."""
