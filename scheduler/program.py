"""From tilings and addresses to the Program: which action the master core does when."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from arch.program import Action, Array, Compute, DmaStart, DmaWait, Effect, Place, Program, Release
from scheduler.l1_layout import L1Layout
from scheduler.memory_plan import Allocation
from scheduler.tiling import Tiling
from scheduler.transfers import commands_for
from traces.events import Work
from trainlib.graph import Op, TrainingGraph
from trainlib.primitives.calls import refuse_nan
from trainlib.steps import KernelCall, Operand, Region, TileTask, find_part


@dataclass(frozen=True, slots=True)
class _Input:
    """One input of one tile: its box, its L1 address, and the tile whose load brought it there."""

    operand: Operand
    address: int
    loaded_by: int


@dataclass(slots=True)
class _Loop:
    """State of the tile loop of one op while its actions are emitted."""

    op: Op
    layout: L1Layout
    inputs: list[dict[str, _Input]]
    started: dict[tuple[str, int], int] = field(default_factory=dict)
    """(buffer, tile) -> DmaStart that loads it."""
    awaited: dict[tuple[str, int], int] = field(default_factory=dict)
    """(buffer, tile that loaded it) -> DmaWait after which it is there."""
    last_compute: int | None = None

    def work(self, tile: int, what: str) -> Work:
        return Work(self.op.layer, self.op.step, tile, what)


class ProgramBuilder:
    """Emits the actions of a training graph, op after op, tile after tile.

    With buffer depth d the inputs of the d - 1 next tiles are pushed before a tile is computed, and the
    output of a tile is waited for after the computation d - 1 tiles later (at once for depth 1). This is the
    order of PULP tile loops: push next inputs, fork, wait for the previous output, push this output. An
    input box that the tile before already used stays in L1 and is not loaded again. Every transfer costs the
    master the address arithmetic around it: that of a range if all its commands are 1D, else that of a box.
    """

    def __init__(
        self,
        graph: TrainingGraph,
        home: Mapping[str, Allocation],
        *,
        home_level: str,
        cores: int,
        buffer_depth: int,
        max_command_bytes: int,
        transfer_code_1d_cycles: int = 0,
        transfer_code_2d_cycles: int = 0,
    ) -> None:
        self.graph = graph
        self.home = home
        self.home_level = home_level
        self.cores = cores
        self.buffer_depth = buffer_depth
        self.max_command_bytes = max_command_bytes
        self.transfer_code_1d_cycles = transfer_code_1d_cycles
        self.transfer_code_2d_cycles = transfer_code_2d_cycles
        self.actions: list[Action] = []

    def program(self) -> Program:
        """The program so far."""
        return Program(self.graph.name, tuple(self.actions))

    def add_op(self, op: Op, tiling: Tiling, layout: L1Layout) -> None:
        """Append the tile loop of one op; when the op ends all its transfers have ended."""
        tiles = tiling.tiles
        loop = _Loop(op, layout, self._input_slots(tiles, layout))
        ahead = min(self.buffer_depth, len(tiles)) - 1
        stores: deque[list[int]] = deque()
        for tile in range(ahead):
            self._load(loop, tile)
        for tile, task in enumerate(tiles):
            if ahead == 0:
                self._load(loop, tile)
            self._wait_for_inputs(loop, tile)
            if 0 < ahead < len(tiles) - tile:
                self._load(loop, tile + ahead)
            outputs = {
                operand.name: self._place(operand, layout.address("out", operand.name, tile))
                for operand in task.outputs
            }
            self._compute(loop, tile, task, outputs)
            if ahead and len(stores) == ahead:
                self._wait_for_stores(loop, stores.popleft())
            stores.append(
                [self._store(loop, tile, operand, outputs[operand.name].address) for operand in task.outputs]
            )
            if ahead == 0:
                self._wait_for_stores(loop, stores.popleft())
        while stores:
            self._wait_for_stores(loop, stores.popleft())

    def add_release(self, op: Op, places: tuple[Place, ...]) -> None:
        """Append the end of life of some buffers: reading them later is an error the numbers will show."""
        self.actions.append(Release(len(self.actions), (), Work(op.layer, op.step), places))

    @staticmethod
    def _input_slots(tiles: tuple[TileTask, ...], layout: L1Layout) -> list[dict[str, _Input]]:
        current: dict[str, _Input] = {}
        loads: dict[str, int] = {}
        slots: list[dict[str, _Input]] = []
        for tile, task in enumerate(tiles):
            for operand in task.inputs:
                known = current.get(operand.name)
                if known is None or known.operand.region != operand.region:
                    use = loads.get(operand.name, 0)
                    loads[operand.name] = use + 1
                    address = layout.address("in", operand.name, use)
                    current[operand.name] = _Input(operand, address, tile)
            slots.append({operand.name: current[operand.name] for operand in task.inputs})
        return slots

    def _load(self, loop: _Loop, tile: int) -> None:
        deps = () if loop.last_compute is None else (loop.last_compute,)
        for name, slot in loop.inputs[tile].items():
            if slot.loaded_by == tile:
                operand = slot.operand
                loop.started[name, tile] = self._transfer(
                    loop, tile, operand.tensor, operand.region, slot.address, to_l1=True, deps=deps
                )

    def _wait_for_inputs(self, loop: _Loop, tile: int) -> None:
        for name, slot in loop.inputs[tile].items():
            if slot.loaded_by == tile:
                loop.awaited[name, tile] = self._wait(loop, loop.started[name, tile])

    def _wait(self, loop: _Loop, start: int) -> int:
        begun = self.actions[start].work
        action = DmaWait(len(self.actions), (start,), loop.work(begun.tile, begun.what), start)
        self.actions.append(action)
        return action.id

    def _wait_for_stores(self, loop: _Loop, starts: list[int]) -> None:
        for start in starts:
            self._wait(loop, start)

    def _compute(self, loop: _Loop, tile: int, task: TileTask, outputs: Mapping[str, Place]) -> None:
        inputs = loop.inputs[tile]
        places = {name: self._place(slot.operand, slot.address) for name, slot in inputs.items()}
        for scratch in task.scratch:
            address = loop.layout.address("scratch", scratch.name, 0)
            places[scratch.name] = Place("l1", address, scratch.shape, scratch.dtype, scratch.name)
        loaded = [loop.awaited[name, slot.loaded_by] for name, slot in inputs.items()]
        for call in task.calls:
            deps = {*loaded} if loop.last_compute is None else {*loaded, loop.last_compute}
            loop.last_compute = self._call(loop, tile, call, {**places, **outputs}, tuple(sorted(deps)))

    def _call(
        self, loop: _Loop, tile: int, call: KernelCall, places: dict[str, Place], deps: tuple[int, ...]
    ) -> int:
        used = {name: _part_of(places, name) for name in (*call.reads, *call.writes)}
        addresses = {name: place.address for name, place in (places | used).items()}
        effect = Effect(
            tuple(used[name] for name in call.reads),
            tuple(used[name] for name in call.writes),
            _watched(loop.op, call),
        )
        team = call.work(self.cores if call.fork else 1, addresses)
        action = Compute(len(self.actions), deps, loop.work(tile, call.kernel), team, call.fork, effect)
        self.actions.append(action)
        return action.id

    def _place(self, operand: Operand, address: int) -> Place:
        return Place("l1", address, operand.shape, self.graph.tensors[operand.tensor].dtype, operand.tensor)

    def _store(self, loop: _Loop, tile: int, operand: Operand, address: int) -> int:
        deps = () if loop.last_compute is None else (loop.last_compute,)
        return self._transfer(loop, tile, operand.tensor, operand.region, address, to_l1=False, deps=deps)

    def _transfer(
        self,
        loop: _Loop,
        tile: int,
        name: str,
        region: Region,
        l1_address: int,
        *,
        to_l1: bool,
        deps: tuple[int, ...],
    ) -> int:
        tensor = self.graph.tensors[name]
        commands = commands_for(
            tensor.shape,
            np.dtype(tensor.dtype).itemsize,
            region,
            external_level=self.home_level,
            external_address=self.home[self.graph.storage_of(name)].address,
            l1_address=l1_address,
            to_l1=to_l1,
            max_command_bytes=self.max_command_bytes,
        )
        box = any(command.lines > 1 for command in commands)
        code_cycles = self.transfer_code_2d_cycles if box else self.transfer_code_1d_cycles
        action = DmaStart(len(self.actions), deps, loop.work(tile, name), commands, code_cycles)
        self.actions.append(action)
        return action.id


def _watched(op: Op, call: KernelCall) -> Callable[[Sequence[Array]], Sequence[Array]]:
    """What the call computes; InputError that names the op if it makes a NaN of its own."""

    def function(arrays: Sequence[Array]) -> Sequence[Array]:
        results = call.compute(arrays)
        refuse_nan(op, arrays, results)
        return results

    return function


def _part_of(places: Mapping[str, Place], name: str) -> Place:
    """The place of a buffer, or of a part of one (`trainlib.steps.part`), which is contiguous."""
    buffer, first, shape = find_part(name, lambda known: places[known].shape)
    whole = places[buffer]
    if buffer == name:
        return whole
    itemsize = np.dtype(whole.dtype).itemsize
    return Place(whole.level, whole.address + first * itemsize, shape, whole.dtype, name)
