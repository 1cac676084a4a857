# SPDX-License-Identifier: Apache-2.0
"""The tile loop of one op: what the master core pushes, waits for and computes, in this order."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, TypeVar

from arch.spec.program import Place
from configs.values import Struct
from scheduler.programs.streaming_emitter import StreamingEmitter
from scheduler.tiles.l1_layout import L1Layout
from scheduler.tiles.l2_slots import NO_SLOTS, OpSlots
from scheduler.tiles.resident_tensors import Bytes, InPlace, missing
from scheduler.tiles.tiling import Tiling
from scheduler.tiles.transfers import BoxTransfer
from traces.events import Work
from trainlib.ir.graph import Op
from trainlib.ir.steps import Operand, Region, TileTask

if TYPE_CHECKING:
    from scheduler.programs.program import ProgramBuilder

IN_L1 = -1
"""Stands for the tile that loads an input which none has to load."""

_Item = TypeVar("_Item")

Early = Mapping[str, int]
"""Input buffers of the first tile that are being loaded already: name -> DmaStart."""


class _Input(Struct, frozen=True):
    """One input of one tile: its box, its L1 address, and the tile whose load brought it there.

    The tile is `IN_L1` for a box that lay there already. Of a resident tensor only the `parts` (bytes of it)
    are loaded that no earlier tile has asked for.
    """

    operand: Operand
    address: int
    loaded_by: int
    parts: tuple[Bytes, ...] = ()


class OpLoop:
    """Emits the tile loop of one op.

    A buffer of depth d is loaded d - 1 tiles before the tile that uses it (just before it for depth 1), and
    an output is waited for once d of its buffer are on their way. This is the order of PULP tile loops: push
    next inputs, fork, push this output, wait for the previous one. An input box that the tile before already
    used stays in L1 and is not loaded again; a box that an earlier tile stores (a partial sum) is loaded only
    after the wait for that store. Boxes of resident tensors are used where they lie; what has to be loaded of
    such a tensor is loaded once, by the first tile that asks for it. Boxes of streamed tensors come through
    `slots` in L2 (`StreamingEmitter`), into L1 not earlier than those allow.
    """

    def __init__(
        self,
        builder: ProgramBuilder,
        op: Op,
        tiling: Tiling,
        layout: L1Layout,
        early: Early | None,
        slots: OpSlots = NO_SLOTS,
    ) -> None:
        self.op = op
        self.early: dict[str, int] = {}
        self._builder = builder
        self._layout = layout
        self._tiles = tiling.tiles
        self._there: dict[str, list[Bytes]] = {}
        """Resident storage -> its bytes that are loaded or written by the tiles."""
        self._inputs = self._input_slots()
        loads = [
            ((name, tile), slot.operand)
            for tile, inputs in enumerate(self._inputs)
            for name, slot in inputs.items()
            if slot.loaded_by == tile
        ]
        self._streaming = StreamingEmitter(builder, slots, loads, (op.layer, op.step))
        self._ahead = {
            (buffer.role, buffer.name): self._streaming.ahead(
                buffer.role, buffer.name, min(buffer.depth, len(self._tiles)) - 1
            )
            for buffer in tiling.buffers
        }
        furthest = max([1, *self._ahead.values()])
        self._loads_at_once = max(1, builder.dma.transfer_ids // (2 * furthest))
        self._stores_at_once = max(1, builder.dma.transfer_ids // (2 * (furthest + 1)))
        self._stored_by = self._earlier_stores()
        self._started: dict[tuple[str, int], int] = {
            (name, 0): start for name, start in (early or {}).items()
        }
        self._awaited: dict[tuple[str, int], int] = {}
        self._held_back: list[tuple[str, int]] = []
        self._stores: dict[tuple[str, int], int] = {}
        self._store_queues: dict[str, deque[int]] = {}
        self._uses: dict[str, int] = {}
        self._last_compute: int | None = None

    def run(self, following: OpLoop | None) -> None:
        """Append everything; the first loads of `following` beside the last tile."""
        tiles = self._tiles
        self._streaming.begin()
        for tile in range(max([0, *self._ahead.values()])):
            self._load([(name, tile) for name in self._fresh(tile) if self._ahead["in", name] > tile])
        for tile, task in enumerate(tiles):
            self._load([(name, tile) for name in self._fresh(tile) if self._ahead["in", name] == 0])
            self._wait_for_inputs(tile)
            self._streaming.taken(tile)
            self._load_ahead(tile)
            if following is not None and tile == len(tiles) - 1:
                following.load_early(self._deps())
            self._compute(tile, task)
            self._store(tile, task)
        self._load_rest()
        for name in self._store_queues:
            self._wait_for_stores(name, 0)
        self._streaming.finish()

    def load_early(self, deps: tuple[int, ...]) -> None:
        """Push the loads of the first tile into buffers that are free already."""
        names = [name for name in self._fresh(0) if name in self._layout.early]
        for some in _shared(names, self._loads_at_once):
            start = self._builder.start(
                [box for name in some for box in self._boxes(name, 0)],
                self._work(0, self._tensor(some[0], 0)),
                to_l1=True,
                deps=deps,
            )
            self.early |= dict.fromkeys(some, start)

    def _input_slots(self) -> list[dict[str, _Input]]:
        current: dict[str, _Input] = {}
        loads: dict[str, int] = {}
        slots: list[dict[str, _Input]] = []
        for tile, task in enumerate(self._tiles):
            for operand in task.inputs:
                held = current.get(operand.name)
                in_place = self._layout.resident.get(operand.tensor)
                if in_place is not None:
                    current[operand.name] = self._resident_input(in_place, operand, tile)
                elif held is None or held.operand != operand:
                    use = loads.get(operand.name, 0)
                    loads[operand.name] = use + 1
                    address = self._layout.address("in", operand.name, use)
                    current[operand.name] = _Input(operand, address, tile)
            slots.append({operand.name: current[operand.name] for operand in task.inputs})
        return slots

    def _resident_input(self, in_place: InPlace, operand: Operand, tile: int) -> _Input:
        """An input that is used where its tensor lies; of two tiles the first loads what both ask for."""
        run = in_place.run_of(operand)
        parts: list[Bytes] = []
        if in_place.loads:
            there = self._there.setdefault(in_place.storage, [])
            parts = missing(run, there)
            there += parts
        return _Input(operand, in_place.address + run[0], tile if parts else IN_L1, tuple(parts))

    def _load_rest(self) -> None:
        """What later ops find resident and no tile of this op has loaded or written."""
        for name, in_place in self._layout.resident.items():
            if not in_place.rest:
                continue
            there = self._there.setdefault(in_place.storage, [])
            for task in self._tiles:
                there += [
                    run
                    for operand in task.outputs
                    if (use := self._layout.resident.get(operand.tensor)) is not None
                    and use.storage == in_place.storage
                    and (run := use.run_of(operand)) not in there
                ]
            parts = missing((0, in_place.tensor.size_bytes), there)
            there += parts
            if parts:
                boxes = [self._part(name, in_place.address, part) for part in parts]
                self._builder.wait(self._builder.start(boxes, self._work(0, name), to_l1=True, deps=()))

    def _part(self, tensor: str, address: int, part: Bytes) -> BoxTransfer:
        """Some bytes of a resident tensor that begins at an address."""
        first, last = part
        itemsize_bytes = self._builder.graph.tensors[tensor].dtype.bytes
        return BoxTransfer(
            tensor, ((first // itemsize_bytes, last // itemsize_bytes),), address + first, flat=True
        )

    def _earlier_stores(self) -> dict[tuple[str, int], tuple[str, int]]:
        """(input buffer, tile that loads it) -> (output buffer, earlier tile that stores the same box)."""
        stored: dict[tuple[str, Region], tuple[str, int]] = {}
        earlier: dict[tuple[str, int], tuple[str, int]] = {}
        for tile, task in enumerate(self._tiles):
            for operand in task.inputs:
                if (operand.tensor, operand.region) in stored and operand.tensor not in self._layout.resident:
                    earlier[operand.name, tile] = stored[operand.tensor, operand.region]
            for operand in task.outputs:
                stored[operand.tensor, operand.region] = operand.name, tile
        return earlier

    def _fresh(self, tile: int) -> list[str]:
        """Inputs of a tile that are loaded for it and are not on their way yet."""
        return [
            name
            for name, slot in self._inputs[tile].items()
            if slot.loaded_by == tile and (name, tile) not in self._started
        ]

    def _load_ahead(self, tile: int) -> None:
        """Loads for later tiles: those held back so far that may go now, then those that are due."""
        due, self._held_back = self._held_back, []
        for distance in sorted({ahead for ahead in self._ahead.values() if ahead > 0}):
            if tile + distance < len(self._tiles):
                due += [
                    (name, tile + distance)
                    for name in self._fresh(tile + distance)
                    if self._ahead["in", name] == distance
                ]
        if tile == 0:  # the kernel of the first tile would wait until L3 has brought the second one
            self._held_back += [load for load in due if self._streaming.from_l3(load)]
            due = [load for load in due if not self._streaming.from_l3(load)]
        self._load(due)

    def _load(self, wanted: Sequence[tuple[str, int]]) -> None:
        """Push these loads (buffer, tile), except those whose box is still to be stored."""
        free = []
        for load in wanted:
            store = self._stores.get(self._stored_by[load]) if load in self._stored_by else -1
            if store == -1 or (store is not None and self._builder.waited(store)):
                free.append(load)
            else:
                self._held_back.append(load)
        free.sort(key=self._streaming.from_l3)  # what lies in L2 need not wait for what comes from L3
        for some in _shared(free, self._loads_at_once):
            stores = [self._stores[self._stored_by[load]] for load in some if load in self._stored_by]
            deps = {*self._deps(), *(self._builder.wait(store) for store in stores)}
            deps |= {action for load in some for action in self._streaming.arrived(load)}
            name, tile = some[0]
            start = self._builder.start(
                [box for load in some for box in self._boxes(*load)],
                self._work(tile, self._tensor(name, tile)),
                to_l1=True,
                deps=tuple(sorted(deps)),
            )
            self._started |= dict.fromkeys(some, start)

    def _wait_for_inputs(self, tile: int) -> None:
        late = [load for load in self._held_back if load[1] == tile]
        if late:
            self._held_back = [load for load in self._held_back if load[1] != tile]
            for load in late:
                if load in self._stored_by:
                    self._builder.wait(self._stores[self._stored_by[load]])
            self._load(late)
        for name, slot in self._inputs[tile].items():
            if slot.loaded_by == tile:
                self._awaited[name, tile] = self._builder.wait(self._started[name, tile])

    def _compute(self, tile: int, task: TileTask) -> None:
        inputs = self._inputs[tile]
        places = {name: self._place(slot.operand, slot.address) for name, slot in inputs.items()}
        for scratch in task.scratch:
            address = self._layout.address("scratch", scratch.name, 0)
            places[scratch.name] = Place("l1", address, scratch.shape, scratch.dtype, scratch.name)
        for operand in task.written:
            places[operand.name] = self._place(operand, self._output_address(operand))
        loaded = [
            self._awaited[name, slot.loaded_by] for name, slot in inputs.items() if slot.loaded_by != IN_L1
        ]
        for call in task.calls:
            deps = tuple(sorted({*loaded, *self._deps()}))
            work = self._work(tile, call.kernel)
            self._last_compute = self._builder.call(work, call, places, deps)

    def _store(self, tile: int, task: TileTask) -> None:
        """Push the outputs, then wait until one buffer of each is free for the next tile."""
        outputs = [operand for operand in task.outputs if self._is_stored(operand)]
        for some in _shared(outputs, self._stores_at_once):
            boxes = [self._stored_box(operand) for operand in some]
            work = self._work(tile, some[0].tensor)
            start = self._builder.start(boxes, work, to_l1=False, deps=self._deps())
            for operand, box in zip(some, boxes, strict=True):
                self._streaming.under_way(operand, box, start)
                self._stores[operand.name, tile] = start
                self._store_queues.setdefault(operand.name, deque()).append(start)
        for operand in outputs:
            if operand.tensor in self._layout.resident:
                continue  # no other tile needs the place: it is waited for at the end
            self._uses[operand.name] = self._uses.get(operand.name, 0) + 1
            self._wait_for_stores(operand.name, self._ahead["out", operand.name])

    def _wait_for_stores(self, name: str, left: int) -> None:
        """Wait for the oldest stores of a buffer until so many are left under way."""
        queue = self._store_queues[name]
        while len(queue) > left:
            start = queue.popleft()
            self._streaming.reached(name, start, self._builder.wait(start))

    def _stored_box(self, operand: Operand) -> BoxTransfer:
        address = self._output_address(operand)
        box = self._streaming.stored(operand, address)
        return box or BoxTransfer(operand.tensor, operand.region, address)

    def _deps(self) -> tuple[int, ...]:
        return () if self._last_compute is None else (self._last_compute,)

    def _work(self, tile: int, what: str) -> Work:
        return Work(self.op.layer, self.op.step, tile, what)

    def _is_stored(self, operand: Operand) -> bool:
        in_place = self._layout.resident.get(operand.tensor)
        return in_place is None or in_place.stores

    def _output_address(self, operand: Operand) -> int:
        return self._layout.operand_address("out", operand, self._uses.get(operand.name, 0))

    def _tensor(self, name: str, tile: int) -> str:
        return self._inputs[tile][name].operand.tensor

    def _place(self, operand: Operand, address: int) -> Place:
        dtype = self._builder.graph.tensors[operand.tensor].dtype
        return Place("l1", address, operand.shape, dtype, operand.tensor)

    def _boxes(self, name: str, tile: int) -> list[BoxTransfer]:
        """The boxes of an input, one behind the other in its buffer."""
        slot = self._inputs[tile][name]
        operand, address = slot.operand, slot.address
        if slot.parts:
            whole = self._layout.resident[operand.tensor].address
            return [self._part(operand.tensor, whole, part) for part in slot.parts]
        streamed = self._streaming.loaded((name, tile), address)
        if streamed is not None:
            return [streamed]
        itemsize_bytes = self._builder.graph.tensors[operand.tensor].dtype.bytes
        boxes = []
        for region in operand.boxes:
            boxes.append(BoxTransfer(operand.tensor, region, address))
            address += prod(stop - start for start, stop in region) * itemsize_bytes
        return boxes


def _shared(items: Sequence[_Item], most: int) -> list[Sequence[_Item]]:
    """Each item alone; of more than `most`, the last ones together, because transfer IDs are few."""
    alone = len(items) if len(items) <= most else most - 1
    rest = items[alone:]
    return [*([item] for item in items[:alone]), *([rest] if rest else [])]
