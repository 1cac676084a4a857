# SPDX-License-Identifier: Apache-2.0
"""What a summary says of a schedule and of its run: kept, so that nothing is planned for it a second time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from msgspec.structs import asdict

from arch.energy.activity import Activity
from configs.dtypes import FP32_BITS
from configs.values import Struct
from scheduler.time_line import TimeLine
from traces.metrics import Metrics
from trainlib.training.variants import own_variant

if TYPE_CHECKING:
    from scheduler.planned import OpSchedule, Schedule


class OpPlan(Struct, frozen=True):
    """How an op is carried out; `tile` is its size per dimension, `tiles` their number."""

    name: str
    primitive: str
    step: str
    variant: str
    kernel: str
    tile: Mapping[str, int]
    loop_order: tuple[str, ...]
    tiles: int
    macs: int
    useful_macs: int
    l1_bytes: int
    streamed: tuple[str, ...]
    """Storages it has in L3."""


class PlanFigures(Struct, frozen=True):
    """A schedule as a summary tells it; bytes by memory level, those staged by direction."""

    name: str
    cuts: tuple[OpPlan, ...]
    peak_bytes: Mapping[str, int]
    lower_bound_bytes: Mapping[str, int]
    staged_bytes: Mapping[str, int]
    placement: str
    resident: tuple[str, ...]
    buffer_depth: int
    counts: Mapping[str, int]
    """Of the tilings considered (`scheduler.tiles.tiling_candidates.Counts`)."""
    notes: tuple[str, ...]
    code_bytes: int
    """Of L2 that are code; 0 where all is in the caches."""
    lanes: int
    """Numbers in 32 bits (SIMD), of the narrowest format that is computed in."""


class Figures(Struct, frozen=True):
    """All that a summary says of a run of a program: nothing else of it is asked for where no trace is."""

    metrics: Metrics
    events: int
    line: TimeLine
    kernels: tuple[str, ...]
    """Names of those that ran, sorted."""
    activity: Activity
    plan: PlanFigures


def plan_figures(schedule: Schedule) -> PlanFigures:
    """Those of one program."""
    plan = schedule.plan
    formats = {tensor.dtype for tensor in schedule.graph.tensors.values()}
    lanes = [FP32_BITS // form.bits for form in formats if form.is_float and not form.is_storage_only]
    return PlanFigures(
        schedule.graph.name,
        tuple(_op_plan(op, plan.stream(number).storages) for number, op in enumerate(schedule.ops)),
        plan.peak_bytes,
        plan.lower_bound_bytes,
        plan.staged_bytes,
        plan.placement,
        schedule.resident,
        schedule.options.buffer_depth,
        asdict(schedule.counts),
        schedule.notes,
        plan.code_bytes,
        max(lanes, default=1),
    )


def _op_plan(item: OpSchedule, streamed: tuple[str, ...]) -> OpPlan:
    op, tiling = item.op, item.tiling
    return OpPlan(
        op.name,
        op.primitive,
        op.step,
        own_variant(op),
        item.kernel,
        dict(tiling.sizes),
        tiling.order,
        len(tiling.tiles),
        item.macs,
        item.useful_macs,
        tiling.l1_bytes,
        tuple(streamed),
    )
