"""A quick estimate of a tile loop, used to rank tilings before any is simulated."""

from __future__ import annotations

from arch.pricing import Pricer
from arch.timing import SocTiming
from scheduler.l1_layout import L1Layout, lay_out
from scheduler.tiling import Tiler, Tiling
from trainlib.steps import KernelCall, TileTask


class TileCost:
    """Compute and transfer cycles of one tile, without contention between them."""

    def __init__(self, timing: SocTiming, pricer: Pricer) -> None:
        self.timing = timing
        self.pricer = pricer

    def compute_cycles(self, task: TileTask, layout: L1Layout) -> int:
        """Kernels of the tile one after another, each with its fork and join."""
        addresses = {operand.tensor: layout.address("in", operand.tensor, 0) for operand in task.inputs}
        addresses |= {operand.tensor: layout.address("out", operand.tensor, 0) for operand in task.outputs}
        addresses |= {scratch.name: layout.address("scratch", scratch.name, 0) for scratch in task.scratch}
        return sum(self._call_cycles(call, addresses) for call in task.calls)

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
    """Cycles of the tile loop: sum of loads, kernels and stores, overlapped when there are several buffers.

    Tiles of equal shape are priced once. With depth >= 2 a tile costs the longer of its computation and its
    transfers; with depth 1 their sum.
    """
    layout = lay_out(tiling, 0)
    priced: dict[object, int] = {}
    regions: dict[str, object] = {}
    total_cycles = 0
    for task in tiling.tiles:
        shape = tuple(operand.shape for operand in (*task.inputs, *task.outputs))
        if shape not in priced:
            priced[shape] = cost.compute_cycles(task, layout)
        moved_cycles = 0
        for operand in (*task.inputs, *task.outputs):
            if regions.get(operand.tensor) != operand.region:
                regions[operand.tensor] = operand.region
                moved_cycles += cost.transfer_cycles(tiler.operand_bytes(operand))
        if tiler.buffer_depth > 1:
            total_cycles += max(priced[shape], moved_cycles)
        else:
            total_cycles += priced[shape] + moved_cycles
    return total_cycles
