# SPDX-License-Identifier: Apache-2.0
"""The off-chip side of a tile loop: boxes of streamed tensors between L3 and their slots in L2."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING

from arch.spec.program import UdmaCommand
from scheduler.tiles.l2_slots import Key, OpSlots
from scheduler.tiles.transfers import BoxTransfer, lines_of
from traces.events import Work
from trainlib.ir.steps import Operand

if TYPE_CHECKING:
    from scheduler.programs.program import ProgramBuilder

Load = tuple[str, int]
"""Name of an input buffer, and the tile that loads a new box into it."""


class StreamingEmitter:
    """Emits the transfers of the uDMA around those of the DMA, for the streamed boxes of one op.

    The boxes of a buffer take its slots in turn. One is fetched as soon as the box its slot held before lies
    in L1, so with two slots a box is under way from L3 while the one before it is under way from L2. A box of
    a result is sent when the DMA has brought it to its slot, and the slot waits
    for that before it is used again. In L2 a box lies as in L1, so the DMA moves it in one line; each of its
    lines in L3 is a transfer of the uDMA.
    """

    def __init__(
        self,
        builder: ProgramBuilder,
        slots: OpSlots,
        loads: Sequence[tuple[Load, Operand]],
        label: tuple[str, str],
    ) -> None:
        self._builder = builder
        self._slots = slots.slots
        self._homes = slots.homes
        self._layer, self._step = label
        self._operands = {load: operand for load, operand in loads if operand.tensor in self._homes}
        self._waiting: dict[str, list[int]] = {}
        """Input buffer -> tiles whose boxes have not been asked for, the next one last."""
        for name, tile in reversed(self._operands):
            self._waiting.setdefault(name, []).append(tile)
        self._turns: dict[Key, int] = {}
        self._fetched: dict[Load, tuple[int, int]] = {}
        """Load -> address of its slot, and its UdmaStart."""
        self._stores: dict[tuple[str, int], tuple[Operand, int]] = {}
        """(Output buffer, DmaStart) -> the box, and the address of its slot."""
        self._sent: dict[int, int] = {}
        """Address of a slot -> UdmaStart of the box it holds."""

    def streams(self, operand: Operand) -> bool:
        """Whether the boxes of an operand go through slots."""
        return operand.tensor in self._homes

    def from_l3(self, load: Load) -> bool:
        """Whether what a load brings comes from L3."""
        return load in self._operands

    def ahead(self, role: str, name: str, ahead: int) -> int:
        """How far the DMA may run ahead of a tile, or behind it with results, for a buffer.

        One tile, if another slot serves L3 meanwhile: further slots are for the uDMA to run ahead of the DMA.
        """
        slots = self._slots.get((role, name))
        return ahead if slots is None else min(ahead, len(slots) - 1, 1)

    def begin(self) -> None:
        """Fetch the first boxes, one per slot, in the order of the tiles."""
        first = [
            (tiles[-1 - turn], name)
            for name, tiles in self._waiting.items()
            for turn in range(min(len(tiles), len(self._slots["in", name])))
        ]
        for _, name in sorted(first, key=lambda item: item[0]):
            self._fetch(name)

    def arrived(self, load: Load) -> tuple[int, ...]:
        """Wait until the box of a load is in its slot; the actions to depend on."""
        if load not in self._operands:
            return ()
        return (self._builder.udma_wait(self._fetched[load][1]),)

    def taken(self, tile: int) -> None:
        """The boxes loaded for a tile lie in L1: fetch others into their slots, those needed first."""
        if not self._fetched:
            return
        names = [name for name, loaded_by in self._fetched if loaded_by == tile and self._waiting[name]]
        for name in sorted(names, key=lambda name: self._waiting[name][-1]):
            self._fetch(name)

    def loaded(self, load: Load, l1_address: int) -> BoxTransfer | None:
        """What the DMA moves from the slot of a load; None if it is not streamed."""
        operand = self._operands.get(load)
        return None if operand is None else self._box(operand, l1_address, self._fetched[load][0])

    def stored(self, operand: Operand, l1_address: int) -> BoxTransfer | None:
        """What the DMA moves to the next slot of a result, once that is free; None if it is not streamed."""
        if not self.streams(operand):
            return None
        address = self._next_slot("out", operand.name)
        if address in self._sent:
            self._builder.udma_wait(self._sent.pop(address))
        return self._box(operand, l1_address, address)

    def under_way(self, operand: Operand, box: BoxTransfer, start: int) -> None:
        """A box that `stored` gave is moved by this DmaStart."""
        if box.l2_address is not None:
            self._stores[operand.name, start] = operand, box.l2_address

    def reached(self, name: str, start: int, waited: int) -> None:
        """The DmaWait `waited` saw the end of a store: send the box to L3 if it is streamed."""
        if (name, start) not in self._stores:
            return
        operand, address = self._stores.pop((name, start))
        work = Work(self._layer, self._step, self._builder.actions[start].work.tile, operand.tensor)
        self._sent[address] = self._builder.udma_start(
            self._commands(operand, address, to_l2=False), work, (waited,)
        )

    def finish(self) -> None:
        """Wait for everything that is on its way to L3."""
        for start in self._sent.values():
            self._builder.udma_wait(start)

    def _fetch(self, name: str) -> None:
        load = name, self._waiting[name].pop()
        operand = self._operands[load]
        address = self._next_slot("in", name)
        work = Work(self._layer, self._step, load[1], operand.tensor)
        start = self._builder.udma_start(self._commands(operand, address, to_l2=True), work, ())
        self._fetched[load] = address, start

    def _next_slot(self, role: str, name: str) -> int:
        slots = self._slots[role, name]
        turn = self._turns.get((role, name), 0)
        self._turns[role, name] = turn + 1
        return slots[turn % len(slots)]

    def _box(self, operand: Operand, l1_address: int, l2_address: int) -> BoxTransfer:
        region = ((0, prod(operand.shape)),)
        return BoxTransfer(operand.tensor, region, l1_address, flat=True, l2_address=l2_address)

    def _commands(self, operand: Operand, address: int, *, to_l2: bool) -> tuple[UdmaCommand, ...]:
        tensor = self._builder.graph.tensors[operand.tensor]
        commands = []
        for box in operand.boxes:
            for first, size_bytes in lines_of(tensor.shape, tensor.dtype.bytes, box):
                home = self._homes[operand.tensor] + first
                commands.append(UdmaCommand(to_l2, address, home, size_bytes))
                address += size_bytes
        return tuple(commands)
