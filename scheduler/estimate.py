"""A quick estimate of a tile loop, used to rank tilings before any is simulated."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from math import prod

import numpy as np

from arch.pricing import Pricer
from arch.timing import SocTiming
from scheduler.dma_cost import DmaCost
from scheduler.l1_layout import L1Layout, lay_out
from scheduler.partial_sums import written
from scheduler.tiling import Tiler, Tiling
from scheduler.transfers import commands_for
from trainlib.graph import Tensor
from trainlib.steps import KernelCall, Operand, TileTask, find_part


class TileCost:
    """Compute and transfer cycles of one tile, without contention between them."""

    def __init__(
        self, timing: SocTiming, pricer: Pricer, tensors: Mapping[str, Tensor], dma: DmaCost | None = None
    ) -> None:
        self.tensors = tensors
        self.timing = timing
        self.pricer = pricer
        self.dma = dma or DmaCost(timing)
        self._moved: dict[object, tuple[float, int, int]] = {}

    def compute_cycles(self, task: TileTask, layout: L1Layout) -> int:
        """Kernels of the tile one after another, each with its fork and join."""
        results = written(task)
        addresses = {operand.name: layout.operand_address("in", operand, 0) for operand in task.inputs}
        addresses |= {operand.name: layout.operand_address("out", operand, 0) for operand in results}
        addresses |= {scratch.name: layout.address("scratch", scratch.name, 0) for scratch in task.scratch}
        shapes = {operand.name: operand.shape for operand in (*task.inputs, *results)}
        shapes |= {scratch.name: scratch.shape for scratch in task.scratch}
        itemsize = {operand.name: self._itemsize_bytes(operand) for operand in (*task.inputs, *results)}
        itemsize |= {scratch.name: np.dtype(scratch.dtype).itemsize for scratch in task.scratch}
        for call in task.calls:
            for name in (*call.reads, *call.writes):
                if name not in addresses:
                    buffer, first, _ = find_part(name, shapes.__getitem__)
                    addresses[name] = addresses[buffer] + first * itemsize[buffer]
        return sum(self._call_cycles(call, addresses) for call in task.calls)

    def _itemsize_bytes(self, operand: Operand) -> int:
        return np.dtype(self.tensors[operand.tensor].dtype).itemsize

    def _call_cycles(self, call: KernelCall, addresses: dict[str, int]) -> int:
        team = call.work(self.timing.cores if call.fork else 1, addresses)
        unit = self.timing.event_unit
        fork_cycles = unit.fork_master_cycles + unit.join_cycles if call.fork else 0
        return fork_cycles + self.pricer.price(team).cycles

    def transfer(self, operands: Sequence[Operand], *, to_l1: bool) -> tuple[float, int]:
        """(cycles of the engine, cycles of the master) for moving some boxes one after another."""
        engine_cycles, master_cycles = 0.0, 0
        for operand in operands:
            shapes = Counter(tuple(stop - start for start, stop in region) for region in operand.boxes)
            commands, lines = 0, 0
            for shape, count in shapes.items():
                engine, of_box, lines_of_command = self._box(operand.tensor, shape, to_l1)
                engine_cycles += count * engine
                commands += count * of_box
                lines = max(lines, lines_of_command)
            master_cycles += self.dma.master_cycles(
                boxed=lines > 1, commands=commands, boxes=sum(shapes.values())
            )
        return engine_cycles, master_cycles

    def _box(self, name: str, shape: tuple[int, ...], to_l1: bool) -> tuple[float, int, int]:
        """Cycles of the engine, commands, and most lines of a command."""
        key = name, shape, to_l1
        if key not in self._moved:
            tensor = self.tensors[name]
            commands = commands_for(
                tensor.shape,
                np.dtype(tensor.dtype).itemsize,
                tuple((0, size) for size in shape),
                external_level="l2",
                external_address=0,
                l1_address=0,
                to_l1=to_l1,
                max_command_bytes=self.timing.dma.max_command_bytes,
            )
            engine_cycles = sum(
                self.dma.engine_cycles(command.line_bytes, command.lines, to_l1=to_l1) for command in commands
            )
            self._moved[key] = engine_cycles, len(commands), max(command.lines for command in commands)
        return self._moved[key]


def estimate_cycles(tiling: Tiling, cost: TileCost, tiler: Tiler) -> int:
    """Cycles of the tile loop from first load to last store.

    The most common shape of tile is priced, the others in proportion to what they write. One buffer per
    operand: sum of loads, kernels and stores. More: first load, then per tile the longer of the master (its
    kernels, and the code of the transfers) and the transfers beside them, then the last store. Tensors in L1
    move only where the op has to load or to store them.
    """
    layout = lay_out(tiling, 0, tiler.resident)
    compute_cycles = _compute_cycles(tiling, cost, layout)
    loaded: dict[str, Operand] = {}
    there: set[Operand] = set()
    loads: list[tuple[float, int]] = []
    stores: list[tuple[float, int]] = []
    for task in tiling.tiles:
        fresh = [
            operand
            for operand in task.inputs
            if loaded.get(operand.name) != operand and _is_loaded(operand, tiler, there)
        ]
        loaded.update({operand.name: operand for operand in fresh})
        loads.append(cost.transfer(fresh, to_l1=True))
        stores.append(cost.transfer([item for item in task.outputs if _is_stored(item, tiler)], to_l1=False))
    master_cycles = sum(master for _, master in (*loads, *stores))
    if tiler.buffer_depth == 1 or len(tiling.tiles) == 1:
        return round(sum(compute_cycles) + master_cycles + sum(engine for engine, _ in (*loads, *stores)))
    # Loads and stores have an engine each: beside tile t run the load of t + 1 and the store of t - 1.
    total = loads[0][0] + stores[-1][0]
    for tile, compute in enumerate(compute_cycles):
        load = loads[tile + 1] if tile + 1 < len(loads) else (0.0, 0)
        store = stores[tile - 1] if tile else (0.0, 0)
        total += max(compute + load[1] + stores[tile][1], load[0], store[0])
    return round(total + loads[0][1])


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


def _compute_cycles(tiling: Tiling, cost: TileCost, layout: L1Layout) -> list[float]:
    """Per tile; of the tiles that run the same kernels the most common shape is priced."""
    kinds: dict[object, dict[object, list[int]]] = {}
    for number, task in enumerate(tiling.tiles):
        calls = tuple((call.kernel, call.fork) for call in task.calls)
        shape = tuple(operand.shape for operand in (*task.inputs, *written(task)))
        kinds.setdefault((calls, len(task.inputs)), {}).setdefault(shape, []).append(number)
    result = [0.0] * len(tiling.tiles)
    for shapes in kinds.values():
        common = max(shapes.values(), key=len)
        task = tiling.tiles[common[0]]
        cycles = cost.compute_cycles(task, layout)
        elements = max(1, _elements(task))
        for numbers in shapes.values():
            share = _elements(tiling.tiles[numbers[0]]) / elements
            for number in numbers:
                result[number] = cycles * share
    return result


def _elements(task: TileTask) -> int:
    return sum(prod(operand.shape) for operand in written(task))
