# SPDX-License-Identifier: Apache-2.0
"""Tilings of an op as arrays: what streaming a buffer would cost the uDMA, and the slots it would take."""

from __future__ import annotations

import numpy as np

from arch.spec.timing import SocTiming
from configs.values import Struct
from scheduler.addresses.allocation import ALIGNMENT_BYTES
from scheduler.tiles.footprint import Floats, Integers
from scheduler.tiles.l2_slots import Key, OpStream, slot_bytes
from scheduler.tiles.tiling import Tiler, Tiling
from scheduler.tiles.tiling_candidates import TilingCandidates
from scheduler.tiles.transfer_cost import UdmaCost
from trainlib.ir.steps import Operand


class Streamed(Struct, frozen=True):
    """One buffer in every tiling: uDMA cycles for its boxes, bytes of a slot, number of slots.

    Cycles are infinite where a sum is stored and loaded again: it would have to come back from L3 in time.
    """

    tensor: str
    cycles: Floats
    slot_bytes: Integers
    slots: Integers


def streamed_buffers(candidates: TilingCandidates, udma_cost: UdmaCost) -> dict[Key, Streamed]:
    """Every buffer of an op, as if it were streamed."""
    footprint, rows = candidates.footprint, candidates.rows
    streamed = {}
    for column in footprint.moved:
        key, box, changes = footprint.keys[column], footprint.box(column), candidates.changes[column]
        lines = np.maximum(1, box.lines[rows])
        line_bytes = np.maximum(1, np.rint(box.size_bytes[rows] / lines)).astype(np.int64)
        cycles = changes * udma_cost.box_cycles(line_bytes, lines)
        streamed[key] = Streamed(
            footprint.tensors[key],
            np.where(candidates.of_sum(column)[0] > 0, np.inf, cycles),
            -(-footprint.largest_bytes[column][rows] // ALIGNMENT_BYTES) * ALIGNMENT_BYTES,
            np.minimum(candidates.tiler.depths.of(*key), changes),
        )
    return streamed


def streaming_cycles(candidates: TilingCandidates, timing: SocTiming) -> Floats:
    """Cycles of the uDMA per candidate for what its op streams; infinite where it cannot, or lacks room."""
    stream = candidates.tiler.stream
    cycles, taken_bytes = np.zeros(len(candidates)), np.zeros(len(candidates), np.int64)
    if not stream.tensors:
        return cycles
    for item in streamed_buffers(candidates, UdmaCost(timing)).values():
        if item.tensor in stream.tensors:
            cycles += item.cycles
            taken_bytes += item.slot_bytes * np.minimum(item.slots, stream.most_slots)
    return np.where(taken_bytes <= stream.window_bytes, cycles, np.inf)


def fits_slots(tiling: Tiling, stream: OpStream) -> bool:
    """Whether the slots of an op that is cut like this are within what it has of L2."""
    return not stream.tensors or slot_bytes(tiling, stream) <= stream.window_bytes


def with_streams(cycles: int, tiling: Tiling, tiler: Tiler, timing: SocTiming) -> int:
    """The estimate of a tile loop of so many `cycles` whose streamed boxes were counted from L2 on.

    The first box comes and the last one goes while nothing else is under way; between them the uDMA is at
    work beside the loop, which waits for it where it takes longer. Its transfers cost the master time.
    """
    if not tiler.stream.tensors:
        return cycles
    udma_cost = UdmaCost(timing)
    last: dict[str, Operand] = {}
    loads, stores = list[float](), list[float]()
    master_cycles = 0.0
    for task in tiling.tiles:
        fresh = [operand for operand in task.inputs if last.get(operand.name) != operand]
        last |= {operand.name: operand for operand in fresh}
        for operands, moved in ((fresh, loads), (task.outputs, stores)):
            sizes = [
                [size_bytes for box in operand.boxes for _, size_bytes in tiler.lines(operand, box)]
                for operand in operands
                if tiler.stream.holds(operand)
            ]
            bus = [float(sum(udma_cost.bus_cycles(size_bytes) for size_bytes in lines)) for lines in sizes]
            moved.append(sum(bus))
            for lines, cycles_of_box in zip(sizes, bus, strict=True):
                master_cycles += len(lines) * timing.l3.program_cycles + timing.l3.wake_cycles
                master_cycles += udma_cost.blocked_cycles(cycles_of_box, len(lines))
    total = max(cycles + master_cycles, sum(loads) + sum(stores))
    return round(total + loads[0] + stores[-1])
