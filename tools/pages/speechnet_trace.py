# SPDX-License-Identifier: Apache-2.0
"""The published training step of SpeechNet and a run of ours in the same terms: block, layer, step, cause.

Read by `tools.pages.speechnet`.
"""

from __future__ import annotations

import csv
import gzip
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from pulptrain.running.session import RunOutcome
from scheduler.validation.rows.statistics import rank_correlation

TRACE = Path(__file__).resolve().parents[2] / "measured" / "speechnet-trace.csv.gz"
BLOCKS = ("b0", "b1", "b2", "b3", "b4")
CORES = 8

PUBLISHED_COUNTER_CYCLES = 34_084_097
"""Forward and backward pass by the counter on the device; the tiles of the trace are a little less."""
FORWARD_MACS = {"b0": 314_048, "b1": 2_523_136, "b2": 659_456, "b3": 143_360, "b4": 71_680}
"""Of FW and of WG, which is as many; half of the operations that the trace names with each tile."""
GRADIENT_MACS = {"b1": 2_494_464, "b2": 630_784, "b3": 250_880, "b4": 286_720}
"""Of IG: one per element of dX, output channel and position of the kernel, padding included."""

Key = tuple[str, str, str]
"""Block, layer and step. A gradient of a bias counts as a layer `bias`; steps are FW, IG, WG and UPD."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Cycles of kernels and of transfers nobody computes beside; `work_cycles` is `kernel_cycles` less the
    part in which cores had no work, in cycles of all cores."""

    kernel_cycles: float = 0
    work_cycles: float = 0
    in_cycles: float = 0
    out_cycles: float = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.kernel_cycles + other.kernel_cycles,
            self.work_cycles + other.work_cycles,
            self.in_cycles + other.in_cycles,
            self.out_cycles + other.out_cycles,
        )

    @property
    def dma_cycles(self) -> float:
        """Transfers in both directions."""
        return self.in_cycles + self.out_cycles

    @property
    def idle_cycles(self) -> float:
        """Cycles of kernels lost to cores without work."""
        return self.kernel_cycles - self.work_cycles

    @property
    def cycles(self) -> float:
        """All of them."""
        return self.kernel_cycles + self.dma_cycles


Costs = Mapping[Key, Cost]


def published_tiles() -> list[dict[str, str]]:
    """The rows of the published trace, tile by tile."""
    with gzip.open(TRACE, "rt", newline="") as file:
        return list(csv.DictReader(file))


def published_costs() -> dict[Key, Cost]:
    """The published trace, summed over tiles."""
    costs: dict[Key, Cost] = defaultdict(Cost)
    for tile in published_tiles():
        kernel = int(tile["kernel_cycles"])
        work = kernel * float(tile["cores"]) / CORES
        costs[tile["block"], tile["layer"], tile["step"]] += Cost(
            kernel, work, int(tile["in_cycles"]), int(tile["out_cycles"])
        )
    return dict(costs)


def our_costs(outcome: RunOutcome) -> dict[Key, Cost]:
    """The same of a run: core 0 says what is a kernel and what a wait, all cores how much was work.

    The sums of a batch norm's backward pass count as its IG, because the published kernel does both at once.
    """
    written = {op.name: set(op.outputs) for op in outcome.schedule.graph.ops}
    primitives = {op["name"]: op["primitive"] for op in outcome.summary["ops"]}
    costs: dict[Key, Cost] = defaultdict(Cost)
    for event in outcome.slices:
        core = event.track.rpartition(".core")[2]
        name = f"{event.work.op}.{event.work.step}"
        if not core.isdigit() or name not in primitives:
            continue
        cycles, master = event.end_cycles - event.start_cycles, core == "0"
        key = _key(event.work.op, primitives[name], event.work.step, event.work.what)
        if event.kind not in ("dma_wait", "dma_program"):
            work = cycles / CORES if event.kind == "compute" else 0
            costs[key] += Cost(kernel_cycles=cycles if master else 0, work_cycles=work)
        elif master and event.work.what in written[name]:
            costs[key] += Cost(out_cycles=cycles)
        elif master:
            costs[key] += Cost(in_cycles=cycles)
    return dict(costs)


def _key(layer: str, primitive: str, step: str, what: str) -> Key:
    phase = "FW" if step == "LOSS" else step.partition("_")[0]
    if primitive == "batch_norm" and phase == "WG":
        phase = "IG"
    if what == "conv_bias_wg":
        primitive = "bias"
    return layer[:2] if layer[:2] in BLOCKS else "head", primitive, phase


def passes(key: Key) -> bool:
    """Forward and backward pass, not the update."""
    return key[2] != "UPD"


def everything(_: Key) -> bool:
    """The update as well."""
    return True


def total(costs: Costs, chosen: Callable[[Key], bool] = passes) -> Cost:
    """Sum over the chosen ones, over forward and backward pass if not said."""
    return sum((cost for key, cost in costs.items() if chosen(key)), Cost())


def between_cycles(theirs: Costs) -> float:
    """Published cycles of forward and backward pass outside all tiles."""
    return PUBLISHED_COUNTER_CYCLES - total(theirs).cycles


def structure_correlation(theirs: Costs, ours: Costs) -> dict[str, float]:
    """Spearman's rank correlation of cycles by block, layer and step: convolutions, and all both have."""
    both = [key for key in theirs if key in ours and key[2] != "UPD"]
    found = {"pairs": float(len(both))}
    for name, keys in (("convolutions", [key for key in both if key[1] == "conv2d"]), ("all", both)):
        value = rank_correlation([theirs[key].cycles for key in keys], [ours[key].cycles for key in keys])
        assert value is not None
        found[name] = value
    return found
