"""A quick estimate of a tile loop, used to rank tilings before any is simulated."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from arch.pricing import Pricer
from arch.timing import SocTiming
from scheduler.l1_layout import L1Layout, lay_out
from scheduler.tiling import Tiler, Tiling
from trainlib.graph import Tensor
from trainlib.steps import KernelCall, Operand, TileTask, find_part


class TileCost:
    """Compute and transfer cycles of one tile, without contention between them."""

    def __init__(self, timing: SocTiming, pricer: Pricer, tensors: Mapping[str, Tensor]) -> None:
        self.tensors = tensors
        self.timing = timing
        self.pricer = pricer

    def compute_cycles(self, task: TileTask, layout: L1Layout) -> int:
        """Kernels of the tile one after another, each with its fork and join."""
        addresses = {operand.name: layout.address("in", operand.name, 0) for operand in task.inputs}
        addresses |= {operand.name: layout.address("out", operand.name, 0) for operand in task.outputs}
        addresses |= {scratch.name: layout.address("scratch", scratch.name, 0) for scratch in task.scratch}
        shapes = {operand.name: operand.shape for operand in (*task.inputs, *task.outputs)}
        shapes |= {scratch.name: scratch.shape for scratch in task.scratch}
        itemsize = {operand.name: self._itemsize_bytes(operand) for operand in (*task.inputs, *task.outputs)}
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

    def transfer_cycles(self, size_bytes: int) -> int:
        """Moving `size_bytes` in one direction, programming and waiting included."""
        dma = self.timing.dma
        if size_bytes == 0:
            return 0
        return dma.program_1d_cycles + dma.wait_done_cycles + -(-size_bytes // dma.l1_bytes_per_cycle)


def estimate_cycles(tiling: Tiling, cost: TileCost, tiler: Tiler) -> int:
    """Cycles of the tile loop from first load to last store; tiles of equal shape are priced once.

    One buffer per operand: sum of loads, kernels and stores. More: first load, then per tile the longer of
    its kernels and the transfers beside them, then the last store.
    """
    layout = lay_out(tiling, 0)
    priced: dict[object, int] = {}
    regions: dict[str, object] = {}
    compute_cycles: list[int] = []
    load_cycles: list[int] = []
    store_cycles: list[int] = []
    for task in tiling.tiles:
        shape = tuple(operand.shape for operand in (*task.inputs, *task.outputs))
        if shape not in priced:
            priced[shape] = cost.compute_cycles(task, layout)
        compute_cycles.append(priced[shape])
        fresh = [operand for operand in task.inputs if regions.get(operand.name) != operand.region]
        regions.update({operand.name: operand.region for operand in fresh})
        load_cycles.append(sum(cost.transfer_cycles(tiler.operand_bytes(operand)) for operand in fresh))
        store_cycles.append(sum(cost.transfer_cycles(tiler.operand_bytes(item)) for item in task.outputs))
    if tiler.buffer_depth == 1:
        return sum(compute_cycles) + sum(load_cycles) + sum(store_cycles)
    # Loads and stores have an engine each: beside tile t run the load of t + 1 and the store of t - 1.
    beside = [max(pair) for pair in zip([*load_cycles[1:], 0], [0, *store_cycles[:-1]], strict=True)]
    overlapped = sum(max(pair) for pair in zip(compute_cycles, beside, strict=True))
    return load_cycles[0] + overlapped + store_cycles[-1]
