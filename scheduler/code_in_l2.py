# SPDX-License-Identifier: Apache-2.0
"""The code of programs takes its bytes in the plan of L2, behind all that is planned there."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from arch.pricing.code_caches import WARM
from arch.spec.timing import SocTiming
from configs.errors import Contributor, DoesNotFitError
from configs.values import replace
from scheduler.addresses.allocation import ALIGNMENT_BYTES, Interval, align
from scheduler.memory.memory_plan import CODE_KIND, MemoryPlan
from scheduler.planned import Schedule
from scheduler.programs.program_code import CODE, LinkedCode, codes_of
from scheduler.table_form import with_tables
from scheduler.tiles.code_sizes import Sizes, shipped_sizes

TRIALS = 4
"""Sizes of L2 that are planned for to say which is enough."""

HALVINGS = 2
"""Smaller ones that are planned for then, so that the one that is named is not much too large."""

QUICK_ACTIONS = 2_000
"""Programs with more take too long to plan for that: a smaller size than the named one may be enough."""

TENSORS = "tensors and buffers"

Plan = Callable[[SocTiming], Sequence[Schedule]]
"""Plans the programs for a machine."""

Linked = Callable[[Sequence[Schedule]], LinkedCode]
"""What a linked export says of the code of schedules."""


def has_code(timing: SocTiming, code_start: str) -> bool:
    """Whether code counts: it is fetched, or comes as tables."""
    return code_start != WARM or timing.l1.tables_bytes > 0


def with_code_in_l2(plan: Plan, timing: SocTiming, linked: Linked | None = None) -> list[Schedule]:
    """The schedules of programs in one memory, with the code of all of them.

    Where it finds no room they are planned for so much less L2, which moves tensors to L3, if there is one.
    Raises `DoesNotFitError`; of L2 with a size that was tried.
    """
    try:
        return placed_with_code(plan, timing, linked)
    except DoesNotFitError as error:
        if error.level != "l2":
            raise
        refused, needed_bytes = error, error.required_bytes
    for _ in range(TRIALS):
        try:
            schedules = placed_with_code(plan, with_l2(timing, needed_bytes), linked)
        except DoesNotFitError as error:
            if error.level != "l2":
                break
            needed_bytes = error.required_bytes
        else:
            needed_bytes, schedules = _smaller(plan, timing, linked, needed_bytes, schedules)
            code = Contributor(CODE, schedules[0].plan.code_bytes)
            parts = (*refused.contributors, code) if code.size_bytes else refused.contributors
            what = refused.what
            if any(item.name == CODE for item in refused.contributors):
                parts = Contributor(TENSORS, needed_bytes - code.size_bytes), code
            elif sum(item.size_bytes for item in parts) < needed_bytes // 2:  # another op decides
                what, parts = _largest_of(schedules)
            raise _too_small(needed_bytes, timing.l2.size_bytes, parts).but(where=refused.where, what=what)
    raise refused.but(cure=f"use more than --l2 {needed_bytes}B, or a smaller model")


def _largest_of(schedules: Sequence[Schedule]) -> tuple[str, tuple[Contributor, ...]]:
    """When the programs hold most in L2, and what that is."""
    schedule = max(schedules, key=lambda each: each.plan.peak_bytes.get("l2", 0))
    names = [*(op.name for op in schedule.graph.ops), "the end"]
    held = [item for item in schedule.plan.allocations if item.level == "l2"]
    during = [[item for item in held if item.first_op <= op <= item.last_op] for op in range(len(names))]
    most = max(range(len(names)), key=lambda op: sum(item.size_bytes for item in during[op]))
    return f"the tensors of {schedule.graph.name} at {names[most]}", tuple(
        Contributor(CODE, item.size_bytes)
        if item.kind == CODE_KIND
        else Contributor(item.tensor or item.name, item.size_bytes, names[item.first_op], names[item.last_op])
        for item in during[most]
    )


def _smaller(
    plan: Plan, timing: SocTiming, linked: Linked | None, enough_bytes: int, schedules: list[Schedule]
) -> tuple[int, list[Schedule]]:
    """A size of L2 that is enough, and its schedules, where a larger one is; without L3 nothing moves."""
    too_small_bytes = timing.l2.size_bytes
    is_quick = sum(len(schedule.program.actions) for schedule in schedules) <= QUICK_ACTIONS
    for _ in range(HALVINGS if timing.l3.size_bytes and is_quick else 0):
        tried_bytes = (too_small_bytes + enough_bytes) // 2 // ALIGNMENT_BYTES * ALIGNMENT_BYTES
        try:
            schedules = placed_with_code(plan, with_l2(timing, tried_bytes), linked)
            enough_bytes = tried_bytes
        except DoesNotFitError:
            too_small_bytes = tried_bytes
    return enough_bytes, schedules


def with_l2(timing: SocTiming, l2_bytes: int) -> SocTiming:
    """The machine with an L2 of another size."""
    return replace(timing, l2=replace(timing.l2, size_bytes=l2_bytes))


def placed_with_code(
    plan: Plan, timing: SocTiming, linked: Linked | None = None, sizes: Sizes | None = None
) -> list[Schedule]:
    """As `with_code_in_l2`, but what it says to be enough where it refuses was not tried."""
    l2_bytes, refused = timing.l2.size_bytes, list[DoesNotFitError]()
    planned_bytes = l2_bytes
    schedules = plan(timing)
    while True:
        tables_bytes = 0
        if timing.l1.tables_bytes:
            schedules, tables_bytes = with_tables(schedules, timing, sizes or shipped_sizes())
        known = linked(schedules) if linked is not None else None
        programs = [schedule.program.actions for schedule in schedules]
        codes = codes_of(programs, sizes or shipped_sizes(), known)
        coded = [
            replace(schedule, program=replace(schedule.program, code=code))
            for schedule, code in zip(schedules, codes, strict=True)
        ]
        if not timing.l2.holds_code:
            return coded
        size_bytes = tables_bytes + align(codes[0].size_bytes)
        address = align(max(schedule.peak_bytes.get("l2", 0) for schedule in schedules))
        if address + size_bytes <= l2_bytes:
            return [
                replace(schedule, plan=_with_code(schedule.plan, address, size_bytes, l2_bytes))
                for schedule in coded
            ]
        parts = Contributor(TENSORS, address), Contributor(CODE, size_bytes)
        refused.append(_too_small(address + size_bytes, l2_bytes, parts))
        left_bytes = (l2_bytes - size_bytes) // ALIGNMENT_BYTES * ALIGNMENT_BYTES
        if timing.l3.size_bytes and 0 < left_bytes < planned_bytes:
            planned_bytes = left_bytes
            try:
                schedules = plan(with_l2(timing, left_bytes))
                continue
            except DoesNotFitError as error:
                if error.level != "l2":
                    raise
                required_bytes = error.required_bytes + size_bytes
                refused.append(_too_small(required_bytes, l2_bytes, (*error.contributors, parts[1])))
        raise min(refused, key=lambda error: error.required_bytes) from None


def _too_small(required_bytes: int, l2_bytes: int, parts: tuple[Contributor, ...]) -> DoesNotFitError:
    cure = f"use --l2 {required_bytes}B or a smaller model"
    return DoesNotFitError("l2", required_bytes, l2_bytes, contributors=parts, cure=cure)


def _with_code(plan: MemoryPlan, address: int, size_bytes: int, l2_bytes: int) -> MemoryPlan:
    item = Interval(CODE_KIND, size_bytes, 0, len(plan.ops), CODE_KIND).at("l2", address)
    capacity_bytes = {**plan.capacity_bytes, "l2": l2_bytes}
    return replace(plan, allocations=(*plan.allocations, item), capacity_bytes=capacity_bytes)


def without_code(schedule: Schedule) -> Schedule:
    """The schedule with what lies in L2 beside its code."""
    kept = tuple(item for item in schedule.plan.allocations if item.kind != CODE_KIND)
    return replace(schedule, plan=replace(schedule.plan, allocations=kept))
