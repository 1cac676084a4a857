# SPDX-License-Identifier: Apache-2.0
"""Room for the code of a program in L2, beside its tensors: what is planned gets what the code leaves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from arch.spec.timing import SocTiming
from configs.errors import Contributor, DoesNotFitError
from scheduler.planned import Schedule
from scheduler.programs.program_code import CODE, with_code

ROUNDS = 6
"""How often it is planned again where the code of a plan for less L2 is larger than that before."""

Plan = Callable[[SocTiming], Schedule]


def beside_code(plan: Plan, timing: SocTiming) -> Schedule:
    """The schedule that `plan` makes, with its code, such that L2 holds both.

    Raises `DoesNotFitError` as `plan`, with the bytes of the code, and an L2 for which there is a plan.
    """
    try:
        return _beside_code(plan, timing)
    except DoesNotFitError as error:
        if error.level != "l2":
            raise
        raise _enough(error, plan, timing) from None


def _beside_code(plan: Plan, timing: SocTiming) -> Schedule:
    l2_bytes, reserved_bytes = timing.l2.size_bytes, 0
    for _ in range(ROUNDS):
        try:
            schedule = plan(_with_l2(timing, l2_bytes - reserved_bytes))
        except DoesNotFitError as error:
            raise _with_code(error, reserved_bytes, l2_bytes) from None
        schedule = replace(schedule, program=with_code(schedule.program))
        assert schedule.program.code is not None
        reserved_bytes = max(reserved_bytes, schedule.program.code.size_bytes)
        plan_bytes = schedule.peak_bytes.get("l2", 0)
        if plan_bytes + schedule.program.code.size_bytes <= l2_bytes:
            return schedule
    raise _with_code(DoesNotFitError("l2", plan_bytes, l2_bytes), reserved_bytes, l2_bytes)


def _enough(error: DoesNotFitError, plan: Plan, timing: SocTiming) -> DoesNotFitError:
    """The report with an L2 for which there is a plan; as it is if none was found."""
    size_bytes = error.required_bytes
    for _ in range(ROUNDS):
        size_bytes = -(-size_bytes // 1024) * 1024
        try:
            _beside_code(plan, _with_l2(timing, size_bytes))
        except DoesNotFitError as still:
            if still.level != "l2":
                break
            error = _with_code(still, 0, timing.l2.size_bytes)
            size_bytes = max(size_bytes + 1024, still.required_bytes)
            continue
        return error.but(cure=f"--l2 {size_bytes // 1024}KiB or a smaller model")
    return error


def _with_code(error: DoesNotFitError, code_bytes: int, l2_bytes: int) -> DoesNotFitError:
    """The report of a plan for what `code_bytes` leave of L2, of all of L2."""
    if error.level != "l2":
        return error
    code = (Contributor(CODE, code_bytes),) if code_bytes else ()
    return DoesNotFitError(
        "l2",
        error.required_bytes + code_bytes,
        l2_bytes,
        where=error.where,
        contributors=(*error.contributors, *code),
        cure=error.cure,
    )


def _with_l2(timing: SocTiming, size_bytes: int) -> SocTiming:
    return replace(timing, l2=replace(timing.l2, size_bytes=max(0, size_bytes)))
