# SPDX-License-Identifier: Apache-2.0
"""The result of a run as one plain object: what `run --json` prints and `summary.json` holds."""

from __future__ import annotations

from collections.abc import Iterable
from math import isfinite
from typing import Any

from arch.spec.timing import SocTiming
from configs.errors import REPORT, PulptrainError
from configs.grades import MEASURED
from configs.version import VERSION
from scheduler.options import BEST_DEPTH
from scheduler.plan_figures import OpPlan, PlanFigures
from traces.causes import causes_of
from traces.metrics import Metrics, OpMetrics
from traces.stall_words import every_stall
from trainlib.kernels.evidence import nest_evidence


def run_summary(
    plan: PlanFigures, timing: SocTiming, metrics: Metrics, kernels: Iterable[str], *, codegen: str
) -> dict[str, Any]:
    """Figures of the simulated iteration, by the contract of ``pulptrain run --json``; `kernels` are those
    that ran.

    Cycles are cluster cycles, `seconds` at the cluster clock. Raises `PulptrainError` if an iteration took no
    cycles at all, for which no rate has a meaning.
    """
    cycles = metrics.makespan_cycles
    if cycles <= 0:
        raise PulptrainError("an iteration took no cycles", cure=REPORT)
    macs = sum(op.macs for op in plan.cuts)
    measured = {op.name: op for op in metrics.ops}
    return {
        "model": plan.name,
        "cycles": cycles,
        "seconds": cycles / timing.clock.cluster_hz,
        "cluster_hz": timing.clock.cluster_hz,
        "macs": macs,
        "useful_macs": sum(op.useful_macs for op in plan.cuts),
        "mac_per_cycle": macs / cycles,
        "offload_cycles": metrics.offload_cycles,
        "peak_bytes": plan.peak_bytes,
        "lower_bound_bytes": plan.lower_bound_bytes,
        "placement": plan.placement,
        "staged_bytes": plan.staged_bytes,
        "capacity_bytes": {
            "l1": timing.l1_usable_bytes + timing.l1.tables_bytes,
            "l2": timing.l2.size_bytes,
            "l3": timing.l3.size_bytes,
        },
        "ops": [_op_summary(op, measured.get(op.name)) for op in plan.cuts],
        "stalls": every_stall(metrics.total.stalls),
        "busy_cycles": metrics.total.busy_cycles,
        "causes": dict(metrics.total.causes),
        "utilisation": dict(metrics.utilisation),
        "bytes_in": metrics.bytes_in,
        "bytes_out": metrics.bytes_out,
        "resident": list(plan.resident),
        "buffering": "best" if plan.buffer_depth == BEST_DEPTH else plan.buffer_depth,
        "tilings": dict(plan.counts),
        "notes": list(plan.notes),
        "unmeasured_kernels": [
            name
            for name in kernels
            if nest_evidence(codegen, name).label != MEASURED  # by no measured row
        ],
        "soc": timing.name,
        "cores": timing.cores,
        "fpus": timing.fpu.count,
        "fpu_mapping": timing.fpu.mapping,
        "bank_conflicts": timing.l1.bank_conflicts,
        "timing": timing.profile,
        "roofs": roofs(timing, plan.lanes),
        "codegen": codegen,
        "version": VERSION,
    }


def roofs(timing: SocTiming, lanes: int) -> dict[str, float]:
    """What the SoC can do at most in a cluster cycle, whatever the kernel and the transfer.

    An FPU takes a multiply-add every `interval_cycles`, a core issues one every `fma_cycles`; it is one of as
    many `lanes` as 32 bits hold numbers of the narrowest format that is computed in (SIMD). The DMA has ports
    of `l1_bytes_per_cycle` in each direction, behind the link to L2. The HyperBus is half duplex.
    """
    fpu, dma, l3, clock = timing.fpu, timing.dma, timing.l3, timing.clock
    macs = min(timing.cores / fpu.fma_cycles, fpu.count / fpu.interval_cycles)
    link = timing.l2.link_bytes_per_cycle * clock.soc_hz / clock.cluster_hz
    return {
        "mac_per_cycle": lanes * macs,
        "dma_bytes_per_cycle": min(dma.l1_bytes_per_cycle, link or dma.l1_bytes_per_cycle),
        "l3_bytes_per_cycle": l3.bytes_per_peripheral_cycle * clock.peripheral_hz / clock.cluster_hz,
    }


_COUNTED = ("instructions", "bytes_in", "bytes_out", "busy_cycles", "core_cycles")
"""Figures of an op that are 0 where nothing of it was measured."""


def _op_summary(op: OpPlan, measured: OpMetrics | None) -> dict[str, Any]:
    cycles = measured.cycles if measured else 0
    return {
        "name": op.name,
        "primitive": op.primitive,
        "step": op.step,
        "variant": op.variant,
        "kernel": op.kernel,
        "tile": dict(op.tile),
        "loop_order": list(op.loop_order),
        "tiles": op.tiles,
        "cycles": cycles,
        "macs": op.macs,
        "useful_macs": op.useful_macs,
        "mac_per_cycle": op.macs / cycles if cycles else None,
        **{key: getattr(measured, key, 0) for key in _COUNTED},
        "stalls": every_stall(measured.stalls if measured else ()),
        "causes": dict(measured.causes) if measured else causes_of({}, {}),
        "l1_bytes": op.l1_bytes,
        "streamed": list(op.streamed),
    }


def simulator_summary(events: int, wall_seconds: float, cycles: int) -> dict[str, Any]:
    """Speed of the simulator itself: the only place of the result where wall-clock time may appear."""
    return {
        "events": events,
        "wall_seconds": wall_seconds,
        "cycles_per_second": cycles / wall_seconds if wall_seconds > 0 else None,
    }


def finite_or_none(number: float) -> float | None:
    """The number, for JSON, which knows neither infinity nor NaN."""
    return float(number) if isfinite(number) else None
