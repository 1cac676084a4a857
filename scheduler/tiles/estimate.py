# SPDX-License-Identifier: Apache-2.0
"""A quick estimate of a tile loop, used to rank tilings before any is simulated."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf, prod

from arch.pricing.cost_model import CostModel
from arch.spec.isa import TeamWork
from arch.spec.timing import SocTiming
from configs.values import Struct
from scheduler.tiles.code_cost import CodeCost, TileCode
from scheduler.tiles.code_sizes import LEAST_LOOP, shipped_sizes
from scheduler.tiles.l1_layout import L1Layout, lay_out
from scheduler.tiles.tiling import Tiler, Tiling
from scheduler.tiles.transfer_cost import DmaCost
from scheduler.tiles.transfers import commands_for, repeated
from trainlib.ir.graph import Tensor
from trainlib.ir.steps import Operand, TileTask, find_part
from trainlib.primitives.lowering.boxes import sizes_of

MOST_PRICED = 32
"""Tiles of one tiling whose kernels are priced, if no more are given: others are like one of them."""


class Transfer(Struct, frozen=True):
    """Boxes that move one after another: cycles of the engine, of the master, and until the last wait ends.

    The master's are those of address arithmetic, programming, and waits that find the transfers over.
    """

    engine_cycles: float
    master_cycles: int
    done_cycles: float
    statements: tuple[tuple[str, int], ...] = ()
    """Those that order it: their word in the sizes of code, and how many."""
    waits: int = 0
    table_cycles: float = 0.0
    """What core 0 takes for their records of a table, more than for the code of a tile loop around them."""


NO_TRANSFER = Transfer(0.0, 0, 0.0)

_Forked = tuple[TeamWork, int]
"""A kernel and the cycles of its fork and join."""


class _BoxCost(Struct, frozen=True):
    """Commands of a box, whether one is not a range, cycles of the first, at what pace others follow."""

    commands: int
    boxed: bool
    first_cycles: float
    pace_cycles: float


class Early(Struct, frozen=True):
    """Tensors an op may load boxes of while the op before computes its last tile, for `within_cycles`."""

    tensors: frozenset[str]
    within_cycles: int


NOTHING_EARLY = Early(frozenset(), 0)


class TileCost:
    """Compute and transfer cycles of one tile, without contention between them.

    With `code` the op has code that is fetched.
    """

    def __init__(
        self,
        timing: SocTiming,
        cost_model: CostModel,
        tensors: Mapping[str, Tensor],
        dma: DmaCost | None = None,
        code: CodeCost | None = None,
    ) -> None:
        self.code = code
        self.tensors = tensors
        self.timing = timing
        self.cost_model = cost_model
        self.dma = dma or DmaCost(timing)
        self._moved: dict[object, _BoxCost] = {}
        self._transfers: dict[object, Transfer] = {}

    def compute_cycles(self, works: Sequence[_Forked]) -> int:
        """Kernels of a tile one after another, each with its fork and join."""
        return sum(fork_cycles + self.cost_model.price(work).cycles for work, fork_cycles in works)

    def least_cycles(self, works: Sequence[_Forked]) -> int:
        """What `compute_cycles` is not below."""
        return sum(fork_cycles + self.cost_model.least_cycles(work) for work, fork_cycles in works)

    def works(self, task: TileTask, addresses: Mapping[str, int]) -> list[_Forked]:
        """The kernels of a tile, and the cycles of their forks.

        `addresses` (L1 bytes) are those of its operands and scratch buffers.
        """
        places = dict(addresses)
        operands = (*task.inputs, *task.written)
        buffers = {item.name: (item.shape, self.tensors[item.tensor].dtype) for item in operands}
        buffers |= {scratch.name: (scratch.shape, scratch.dtype) for scratch in task.scratch}
        for call in task.calls:
            for name in (*call.reads, *call.writes):
                if name not in places:
                    buffer, first, _ = find_part(name, lambda buffer: buffers[buffer][0])
                    places[name] = places[buffer] + first * buffers[buffer][1].bytes
        # A price depends on banks alone, so that works a whole turn apart are one.
        turn = self.timing.l1.banks * self.timing.l1.word_bytes
        places = {name: address % turn for name, address in places.items()}
        return [
            (call.work(self.timing.cores if call.fork else 1, places), self.fork_cycles * call.fork)
            for call in task.calls
        ]

    @property
    def fork_cycles(self) -> int:
        """A fork and its join."""
        unit = self.timing.event_unit
        return unit.fork_master_cycles + unit.join_cycles

    def transfer(self, operands: Sequence[Operand], *, to_l1: bool) -> Transfer:
        """What moving some boxes one after another takes, pushed together on an idle DMA."""
        key = to_l1, *[(item.tensor, item.pieces or item.shape) for item in operands]
        found = self._transfers.get(key)
        if found is None:
            found = self._transfers[key] = self._transfer(operands, to_l1=to_l1)
        return found

    def _transfer(self, operands: Sequence[Operand], *, to_l1: bool) -> Transfer:
        dma = self.timing.dma
        engine_cycles, pushed_cycles, end_cycles = 0.0, 0, 0.0
        ends: list[float] = []
        statements: list[tuple[str, int]] = []
        table_cycles, walk_cycles = 0.0, shipped_sizes()["walk_cycles"]
        for operand in operands:
            shapes = Counter(sizes_of(box) for box in operand.boxes)
            boxes = [(self._box(operand.tensor, shape, to_l1), count) for shape, count in shapes.items()]
            boxed = any(box.boxed for box, _ in boxes)
            pushed_cycles += self.dma.master_cycles(boxed=boxed) - dma.wait_done_cycles
            code_cycles = dma.transfer_code_2d_cycles if boxed else dma.transfer_code_1d_cycles
            pushed_cycles += code_cycles * (len(operand.boxes) - 1)
            table_cycles -= code_cycles * len(operand.boxes)
            first = True
            for box, count in boxes:
                commands = box.commands * count
                is_loop = commands >= LEAST_LOOP
                word = "transfer_2d" if box.boxed else "transfer_1d"
                statements += [(word, 1 if is_loop else commands), ("loop", int(is_loop))]
                table_cycles += commands * walk_cycles[word]
                # Further commands follow at the pace of the engine, or of the master that pushes them.
                first_end = max(end_cycles + box.pace_cycles, pushed_cycles + box.first_cycles)
                pushed_cycles += (commands - first) * dma.program_next_cycles
                end_cycles = max(
                    first_end + (commands - 1) * box.pace_cycles, pushed_cycles + box.first_cycles
                )
                engine_cycles += commands * box.pace_cycles + (first and box.first_cycles - box.pace_cycles)
                first = False
            ends.append(end_cycles)
        done_cycles = float(pushed_cycles)
        for end in ends:
            done_cycles = max(done_cycles, end) + dma.wait_done_cycles
        master_cycles = pushed_cycles + len(ends) * dma.wait_done_cycles
        return Transfer(engine_cycles, master_cycles, done_cycles, tuple(statements), len(ends), table_cycles)

    def _box(self, name: str, shape: tuple[int, ...], to_l1: bool) -> _BoxCost:
        key = name, shape, to_l1
        if key not in self._moved:
            tensor = self.tensors[name]
            part, times = repeated(tensor.shape, shape)
            commands = commands_for(
                tensor.shape,
                tensor.dtype.bytes,
                tuple((0, size) for size in part),
                external_level="l2",
                external_address=0,
                l1_address=0,
                to_l1=to_l1,
                dma=self.timing.dma,
            )
            first = commands[0]
            pace = sum(
                command.lines * self.dma.line_cycles(command.line_bytes, to_l1=to_l1) for command in commands
            )
            self._moved[key] = _BoxCost(
                len(commands) * times,
                any(not command.contiguous for command in commands),
                self.dma.engine_cycles(first.line_bytes, first.lines, to_l1=to_l1),
                pace / len(commands),
            )
        return self._moved[key]


class TileLoop:
    """A tiling carried out tile by tile: at most `MOST_PRICED` tiles are priced, see `cycles`.

    One buffer per operand: sum of loads, kernels and stores. More: first load, then per tile the longer of
    the master (its kernels, and the code of the transfers) and the transfers beside them, then the last
    store. Tensors in L1 move only where the op has to load or to store them. What of the first load may be
    `early` is not waited for as long as the op before computes, if there is room for it beside buffers like
    these.
    """

    def __init__(self, tiling: Tiling, cost: TileCost, tiler: Tiler, early: Early = NOTHING_EARLY) -> None:
        self.tiles = len(tiling.tiles)
        self._cost = cost
        self._alone = tiler.buffer_depth == 1 or self.tiles == 1
        loaded: dict[str, Operand] = {}
        there: set[Operand] = set()
        self._loads: list[Transfer] = []
        self._stores: list[Transfer] = []
        for task in tiling.tiles:
            fresh = []
            for operand in task.inputs:
                before = loaded.get(operand.name)
                if before is operand or (before is not None and before == operand):
                    continue
                if not tiler.resident or _is_loaded(operand, tiler, there):
                    fresh.append(operand)
                    loaded[operand.name] = operand
            load = cost.transfer(fresh, to_l1=True) if fresh else NO_TRANSFER
            if not self._loads:
                late = _late(tiling, fresh, tiler, early, cost.timing.l1_usable_bytes)
                saved_cycles = load.done_cycles - cost.transfer(late, to_l1=True).done_cycles
                self._saved_cycles = min(saved_cycles, early.within_cycles)
            self._loads.append(load)
            stored = [item for item in task.outputs if _is_stored(item, tiler)]
            self._stores.append(cost.transfer(stored, to_l1=False) if stored else NO_TRANSFER)
        self._groups = _groups(tiling, cost, lay_out(tiling, 0, tiler.resident))
        self._code_cycles = [*cost.code.waits([*self._code(tiling.tiles)])] if cost.code is not None else []
        """What each tile waits for code, if code counts."""

    @cached_property
    def _least(self) -> list[float]:
        """Per tile: what its kernels take at least, 0 of tiles that are not priced."""
        result = [0.0] * self.tiles
        for group in self._groups[:MOST_PRICED]:
            least = self._cost.least_cycles(group.works)
            for number in group.tiles:
                result[number] = least
        return result

    @cached_property
    def least_cycles(self) -> int:
        """What `cycles` is not below."""
        return self._with_transfers(self._least)

    def cycles(self, at_most: float = inf) -> int | None:
        """From first load to last store; None if that is more than `at_most`.

        Tiles of the same shape at the same banks are priced once, the most frequent ones first. At least one
        of those that run the same kernels is. Others take what the most frequent one of their shape takes,
        or that of their kernels in proportion to what they write.
        """
        result = list(self._least) if at_most < inf else [0.0] * self.tiles
        priced_cycles: dict[object, float] = {}
        priced = 0
        for group in self._groups:
            elements = max(1, sum(prod(operand.shape) for operand in group.task.written))
            is_priced = priced < MOST_PRICED or group.calls not in priced_cycles
            if is_priced:
                if (
                    at_most < inf
                    and (self._with_transfers(result) if priced else self.least_cycles) > at_most
                ):
                    return None
                cycles = float(self._cost.compute_cycles(group.works))
                priced += 1
                priced_cycles.setdefault(group.shape, cycles)
                priced_cycles.setdefault(group.calls, cycles / elements)
            else:
                cycles = priced_cycles.get(group.shape, priced_cycles[group.calls] * elements)
            for number in group.tiles:
                result[number] = cycles
        total = self._with_transfers(result)
        return total if total <= at_most else None

    def _code(self, tasks: Sequence[TileTask]) -> Iterator[TileCode]:
        """The code of every tile; that around all of them with the first."""
        loads, stores = [*self._loads, NO_TRANSFER], self._stores
        for number, task in enumerate(tasks):
            waited, store = loads[number], stores[number]
            calls = tuple([(call.kernel, call.fork) for call in task.calls])
            pushed = waited if self._alone else loads[number + 1]
            # Of two buffers the store of a tile is waited for when that of the next one is ordered.
            stored = store if self._alone else stores[number - 2] if number > 1 else NO_TRANSFER
            around: tuple[tuple[str, int], ...] = () if number else (("op", 1),)
            table_cycles = pushed.table_cycles + store.table_cycles
            if not (self._alone or number):
                around += (*loads[0].statements, ("wait", 2 * stores[-1].waits))
                table_cycles += loads[0].table_cycles
            yield TileCode(
                (id(waited), id(pushed), id(store), id(stored), calls),
                (
                    *around,
                    ("wait", waited.waits + (0 if self._alone else stored.waits)),
                    *pushed.statements[:2],
                ),
                (
                    *pushed.statements[2:],
                    ("fork", len(calls)),
                    *store.statements,
                    ("wait", stored.waits if self._alone else 0),
                ),
                [kernel for kernel, _ in calls],
                0.0 if self._alone else pushed.engine_cycles,
                table_cycles,
            )

    def _with_transfers(self, compute_cycles: Sequence[float]) -> int:
        loads, stores = self._loads, self._stores
        if self._code_cycles:
            compute_cycles = [sum(both) for both in zip(compute_cycles, self._code_cycles, strict=True)]
        if self._alone:
            moved_cycles = sum(item.done_cycles for item in (*loads, *stores))
            return round(sum(compute_cycles) + moved_cycles - self._saved_cycles)
        # Loads and stores have an engine each: beside tile t run the load of t + 1, which is not pushed
        # before the wait for that of t is over, and the store of t - 1.
        total = loads[0].done_cycles - self._saved_cycles + stores[-1].done_cycles - stores[-1].master_cycles
        for tile, compute in enumerate(compute_cycles):
            load = loads[tile + 1] if tile + 1 < len(loads) else NO_TRANSFER
            store = stores[tile - 1] if tile else NO_TRANSFER
            total += max(
                compute + load.master_cycles + stores[tile].master_cycles,
                load.done_cycles,
                store.engine_cycles,
            )
        return round(total)


def _late(
    tiling: Tiling, inputs: Sequence[Operand], tiler: Tiler, early: Early, usable_bytes: int
) -> list[Operand]:
    """Inputs of the first tile that are not loaded while the op before is at work."""
    late = [item for item in inputs if item.tensor not in early.tensors or item.tensor in tiler.resident]
    early_bytes = sum(tiler.operand_bytes(item) for item in inputs if item not in late)
    return late if tiling.l1_bytes + early_bytes <= usable_bytes else list(inputs)


def _is_loaded(operand: Operand, tiler: Tiler, there: set[Operand]) -> bool:
    """Whether a box has to be loaded; `there` collects those of resident tensors, which are loaded once."""
    in_place = tiler.resident.get(operand.tensor)
    if in_place is None:
        return True
    is_new = in_place.loads and operand not in there
    there.add(operand)
    return is_new


def _is_stored(operand: Operand, tiler: Tiler) -> bool:
    in_place = tiler.resident.get(operand.tensor)
    return in_place is None or in_place.stores


def _groups(tiling: Tiling, cost: TileCost, layout: L1Layout) -> list[_Group]:
    """Tiles of the same shape at the same banks, the most frequent ones first."""
    turn = cost.timing.l1.banks * cost.timing.l1.word_bytes
    groups: dict[object, _Group] = {}
    slots = _Slots(layout)
    kernels: dict[int, tuple[object, tuple[tuple[str, bool], ...]]] = {}
    for number, task in enumerate(tiling.tiles):
        addresses = slots.addresses(task)
        made = task.calls
        kept = kernels.get(id(made))
        if kept is None:
            kept = kernels[id(made)] = made, (*[(call.kernel, call.fork) for call in made],)
        calls = *kept[1], len(task.inputs)
        shape = calls, (*[operand.shape for operand in (*task.inputs, *task.written)],)
        key = shape, (*[address % turn for address in addresses.values()],)
        group = groups.get(key)
        if group is None:
            group = groups[key] = _Group(cost, calls, shape, task, addresses, [])
        group.tiles.append(number)
    return sorted(groups.values(), key=lambda group: -len(group.tiles))


@dataclass(frozen=True)
class _Group:
    """Tiles that cost the same."""

    cost: TileCost
    calls: object
    shape: object
    task: TileTask
    addresses: Mapping[str, int]
    tiles: list[int]

    @cached_property
    def works(self) -> list[_Forked]:
        return self.cost.works(self.task, self.addresses)


class _Slots:
    """Where the buffers of one tile after another lie, slots going round as in `programs.op_loop`."""

    def __init__(self, layout: L1Layout) -> None:
        self._layout = layout
        self._loaded: dict[str, Operand] = {}
        self._loads: Counter[str] = Counter()
        self._uses: Counter[str] = Counter()

    def addresses(self, task: TileTask) -> dict[str, int]:
        """L1 addresses of the operands and scratch buffers of the next tile."""
        layout = self._layout
        found: dict[str, int] = {}
        for operand in task.inputs:
            before = self._loaded.get(operand.name)
            if before is not operand and before != operand:
                self._loaded[operand.name] = operand
                self._loads[operand.name] += 1
            found[operand.name] = layout.operand_address("in", operand, self._loads[operand.name] - 1)
        for operand in task.written:
            found[operand.name] = layout.operand_address("out", operand, self._uses[operand.name])
        self._uses.update(operand.name for operand in task.outputs)
        for scratch in task.scratch:
            found[scratch.name] = layout.address("scratch", scratch.name, 0)
        return found
