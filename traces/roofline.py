# SPDX-License-Identifier: Apache-2.0
"""The roofline model of a run (Williams, Waterman and Patterson, CACM 52(4), 2009), by op and by tile.

A point is MAC per cycle against MAC per byte. Bytes are those of the direction that moves more: the DMA
moves both ways at once, each at its own rate, so that no op without bytes prefetched for it during another
is above the roof. Executed MACs count what padding and strides multiply by zero, useful ones do not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from configs.errors import InputError
from configs.values import Struct
from traces.csv_file import AGAIN
from traces.events import COMPUTE, TRANSFER, Slice
from traces.recorder import transfer_direction
from traces.totals import summed
from traces.tracks import CORE, DMA, OUTWARD, UDMA, op_label, track_name
from traces.why import check_causes

ROOFS = ("mac_per_cycle", "dma_bytes_per_cycle", "l3_bytes_per_cycle")


class RoofPoint(Struct, frozen=True):
    """An op, or a tile of it: MACs executed and useful, cluster cycles, bytes of the busier direction."""

    name: str
    step: str
    macs: float
    useful_macs: float
    cycles: int
    moved_bytes: int

    @property
    def intensity(self) -> float:
        """Executed MACs per byte."""
        return self.macs / self.moved_bytes

    @property
    def rate(self) -> float:
        """Executed MACs per cycle."""
        return self.macs / self.cycles

    @property
    def useful_rate(self) -> float:
        """Useful MACs per cycle."""
        return self.useful_macs / self.cycles


def roofs_of(summary: Mapping[str, Any]) -> dict[str, float]:
    """The roofs a summary says. Raises `InputError` if it does not, as one of a former version."""
    roofs = summary.get("roofs")
    is_known = isinstance(roofs, dict) and all(
        type(roofs.get(name)) in (int, float) and 0 < roofs[name] < 1e9 for name in ROOFS
    )
    if not is_known:
        raise InputError("the summary of the run has no roofline limits", where="summary.json", cure=AGAIN)
    return {name: float(summary["roofs"][name]) for name in ROOFS}


def peaks_of(summary: Mapping[str, Any]) -> dict[str, float]:
    """Bytes per cycle that can be moved: by the ``dma`` in each direction, and from or to ``l3``."""
    roofs = roofs_of(summary)
    return {"dma": roofs["dma_bytes_per_cycle"], "l3": roofs["l3_bytes_per_cycle"]}


def op_points(summary: Mapping[str, Any]) -> list[RoofPoint]:
    """A point per op that multiplies and moves something. Raises `InputError` for a damaged summary."""
    check_causes(summary)
    points = []
    for op in summary["ops"]:
        useful, moved = op.get("useful_macs", op["macs"]), max(op["bytes_in"], op["bytes_out"])
        if type(useful) is not int or not 0 <= useful <= op["macs"]:
            raise InputError(
                f"useful_macs of {op['name']} must be a number from 0 to {op['macs']}",
                where="summary.json",
                cure=AGAIN,
            )
        if op["macs"] and op["cycles"] and moved:
            name = op_label(op["name"], op["step"])
            points.append(RoofPoint(name, op["step"], op["macs"], useful, op["cycles"], moved))
    return points


def off_chip_bytes(slices: Iterable[Slice]) -> dict[str, int]:
    """Bytes between L2 and L3 by op."""
    return summed(
        (op_label(event.work.op, event.work.step), event.bytes)
        for event in slices
        if event.kind == TRANSFER and track_name(event.track).family == UDMA
    )


def tile_points(slices: Iterable[Slice], ops: Sequence[RoofPoint]) -> list[RoofPoint]:
    """A point per tile of the ops: its MACs are those of the op by its share of the instructions.

    Its cycles are those that core 0 spends on it, waits for its transfers included; all tiles of an op have
    at most the cycles of the op.
    """
    op_points = {op.name: op for op in ops}
    counts_of_tile: dict[tuple[str, int], list[int]] = {}
    for event in slices:
        name, track = op_label(event.work.op, event.work.step), track_name(event.track)
        if name not in op_points or event.work.tile < 0:
            continue
        counts = counts_of_tile.setdefault((name, event.work.tile), [0, 0, 0, 0])
        if track.family == CORE:
            counts[0] += event.duration_cycles if track.index == 0 else 0
            counts[1] += event.instructions if event.kind == COMPUTE else 0
        elif track.family == DMA and event.kind == TRANSFER:
            counts[3 if transfer_direction(event) == OUTWARD else 2] += event.bytes
    issued = summed((name, counts[1]) for (name, _), counts in counts_of_tile.items())
    points = []
    for (name, tile), (cycles, instructions, inward, outward) in sorted(counts_of_tile.items()):
        op, share = op_points[name], instructions / max(issued[name], 1)
        if cycles and share and (inward or outward):
            moved = max(inward, outward)
            points.append(
                RoofPoint(
                    f"{name} tile {tile}", op.step, op.macs * share, op.useful_macs * share, cycles, moved
                )
            )
    return points
