# SPDX-License-Identifier: Apache-2.0
"""From tilings and addresses to the Program: transfers under few IDs, waits, kernels, ends of life.

In which order one op does what is the business of `scheduler.programs.op_loop`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from math import prod

import numpy as np

from arch.spec.program import (
    Action,
    Command,
    Compute,
    DmaStart,
    DmaWait,
    Effect,
    Place,
    Program,
    Release,
    UdmaCommand,
    UdmaStart,
    UdmaWait,
)
from arch.spec.timing import DmaTiming
from scheduler.addresses.allocation import Allocation
from scheduler.programs.op_loop import Early, OpLoop
from scheduler.tiles.l1_layout import L1Layout
from scheduler.tiles.l2_slots import NO_SLOTS, OpSlots
from scheduler.tiles.tiling import Tiling
from scheduler.tiles.transfers import BoxTransfer, commands_for
from traces.events import Work
from trainlib.ir.graph import Op, TrainingGraph
from trainlib.ir.steps import KernelCall, find_part


@dataclass(eq=False)
class ProgramBuilder:
    """Emits the actions of a training graph, op after op.

    Transfer IDs are taken when a transfer is pushed and given back when it is waited for, in program order,
    so the builder counts them: before a push that would find none free it waits for the oldest transfer.
    Every box costs the master the address arithmetic around it: that of a range if every command of it is of
    one, else that of a box.
    """

    graph: TrainingGraph
    home: Callable[[str], Allocation]
    """Where an op finds a tensor in L2, by name."""
    _: KW_ONLY
    cores: int
    dma: DmaTiming
    actions: list[Action] = field(default_factory=list, init=False)
    _under_way: dict[int, None] = field(default_factory=dict, init=False)
    """DmaStart actions not yet waited for, oldest first: each holds an ID."""
    _waits: dict[int, int] = field(default_factory=dict, init=False)
    """DmaStart -> its DmaWait."""
    _udma_waits: dict[int, int] = field(default_factory=dict, init=False)
    """UdmaStart of a streamed box -> its UdmaWait."""
    streamed_bytes: dict[str, int] = field(default_factory=lambda: {"in": 0, "out": 0}, init=False)
    """Bytes of streamed boxes between L3 and L2."""
    _early: Early | None = field(default=None, init=False)

    def program(self) -> Program:
        """The program so far."""
        return Program(self.graph.name, tuple(self.actions))

    def add_op(
        self,
        op: Op,
        tiling: Tiling,
        layout: L1Layout,
        upcoming: tuple[Op, Tiling, L1Layout] | None = None,
        slots: OpSlots = NO_SLOTS,
    ) -> None:
        """Append the tile loop of one op; when the op ends all its own transfers have ended.

        With `upcoming` the inputs of that op's first tile whose layout says so (`L1Layout.early`) are pushed
        while the last tile of this one is computed; it must be the next op that is added. What has `slots` in
        L2 is streamed from L3.
        """
        loop = OpLoop(self, op, tiling, layout, self._early, slots)
        self._early = None
        following = OpLoop(self, *upcoming, None) if upcoming is not None and upcoming[2].early else None
        loop.run(following)
        if following is not None:
            self._early = following.early

    def add_release(self, op: Op, places: tuple[Place, ...], results: tuple[Place, ...]) -> None:
        """Append the end of an op and of the life of some buffers: reading them later is an error.

        `results` is where the tensors the op has written lie now.
        """
        self.actions.append(Release(len(self.actions), (), Work(op.layer, op.step), places, results))

    def start(self, boxes: Sequence[BoxTransfer], work: Work, *, to_l1: bool, deps: tuple[int, ...]) -> int:
        """Push one transfer of some boxes, the commands of all under one ID; returns its action."""
        while len(self._under_way) >= self.dma.transfer_ids:
            self.wait(next(iter(self._under_way)))
        commands: list[Command] = []
        code_cycles = 0
        for box in boxes:
            tensor = self.graph.tensors[box.tensor]
            of_box = commands_for(
                (prod(tensor.shape),) if box.flat else tensor.shape,
                tensor.dtype.bytes,
                box.region,
                external_level="l2",
                external_address=self._l2_address(box),
                l1_address=box.l1_address,
                to_l1=to_l1,
                dma=self.dma,
            )
            flat = all(command.contiguous for command in of_box)
            code_cycles += self.dma.transfer_code_1d_cycles if flat else self.dma.transfer_code_2d_cycles
            commands += of_box
        action = DmaStart(len(self.actions), deps, work, tuple(commands), code_cycles)
        self.actions.append(action)
        self._under_way[action.id] = None
        return action.id

    def wait(self, start: int) -> int:
        """The wait for a pushed transfer, appended unless the program has it already; returns its action."""
        if start not in self._waits:
            action = DmaWait(len(self.actions), (start,), self.actions[start].work, start)
            self.actions.append(action)
            self._waits[start] = action.id
            del self._under_way[start]
        return self._waits[start]

    def _l2_address(self, box: BoxTransfer) -> int:
        if box.l2_address is not None:
            return box.l2_address
        return self.home(self.graph.storage_of(box.tensor)).address

    def udma_start(self, commands: tuple[UdmaCommand, ...], work: Work, deps: tuple[int, ...]) -> int:
        """Start the uDMA on a streamed box; returns its action."""
        self.actions.append(UdmaStart(len(self.actions), deps, work, commands))
        way = "in" if commands[0].to_l2 else "out"
        self.streamed_bytes[way] += sum(command.size_bytes for command in commands)
        return len(self.actions) - 1

    def udma_wait(self, start: int) -> int:
        """The wait for a streamed box, appended unless the program has it already; returns its action."""
        if start not in self._udma_waits:
            action = UdmaWait(len(self.actions), (start,), self.actions[start].work, start)
            self.actions.append(action)
            self._udma_waits[start] = action.id
        return self._udma_waits[start]

    def waited(self, start: int) -> bool:
        """Whether the wait for this transfer is in the program."""
        return start in self._waits

    def call(self, work: Work, call: KernelCall, places: Mapping[str, Place], deps: tuple[int, ...]) -> int:
        """Append one kernel on the buffers `places`, named as the nest that is priced; returns its action."""
        used = {
            name: _part_of(places, name) if "[" in name else places[name]
            for name in (*call.reads, *call.writes)
        }
        addresses = {name: place.address for name, place in places.items()}
        addresses |= {name: place.address for name, place in used.items()}
        effect = Effect(
            tuple(used[name] for name in call.reads),
            tuple(used[name] for name in call.writes),
            call.compute,
            call.details,
        )
        team = call.work(self.cores if call.fork else 1, addresses)
        named = work if work.what == team.kernel else Work(work.op, work.step, work.tile, team.kernel)
        self.actions.append(Compute(len(self.actions), deps, named, team, call.fork, effect))
        return len(self.actions) - 1


def _part_of(places: Mapping[str, Place], name: str) -> Place:
    """The place of a part of a buffer (`trainlib.ir.steps.part`), which is contiguous."""
    buffer, first, shape = find_part(name, lambda known: places[known].shape)
    whole = places[buffer]
    itemsize = np.dtype(whole.dtype).itemsize
    return Place(whole.level, whole.address + first * itemsize, shape, whole.dtype, name)
