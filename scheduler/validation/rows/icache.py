# SPDX-License-Identifier: Apache-2.0
"""KIND icache: straight-line code of growing size, in its first and in its fourth pass."""

from __future__ import annotations

from functools import cache

from arch.pricing.code_caches import CodeCaches
from arch.pricing.fetch_oracle import pass_stall_cycles
from arch.pricing.team_cost_model import TeamCostModel
from arch.spec.isa import CoreWork, Instruction, Op, TeamWork
from arch.spec.soc_config import load_soc
from arch.spec.timing import SocTiming
from configs.values import replace
from scheduler.validation.rows.cases import CORES, Case, Column
from scheduler.validation.rows.machines import RTL_MACHINE
from scheduler.validation.rows.prediction import Prediction

COLUMNS = (
    CORES,
    Column("n_nops", 1),
    Column("code_bytes", 1),
    Column("cold_iter0_max", 1),
    Column("iter3_max", 1),
)

RTL_COLUMNS = (*COLUMNS, Column("iter1_max", 1), Column("iter2_max", 1))
"""Those of rows measured on RTL, whose warm passes say how far measurements lie apart."""

MAX_CODE_BYTES = 1 << 20
"""Code of a row, and its instructions: as much as any L2 holds; measured ones have 16 KiB."""

CALLER_LINES = 4
"""Lines of the loop that calls and times the code; they compete for the caches and are not timed. Assumed."""

SEEDS = range(0, 256, 16)
"""What the replacement register may hold at the start is not known: the mean over these."""


@cache
def _machine(rtl: bool) -> SocTiming:
    """The files name no machine; each was taken with the others of its kind."""
    return load_soc(RTL_MACHINE, "rtl") if rtl else load_soc("pulp-open", "gvsoc")


def predict_cold(case: Case, *, rtl: bool) -> Prediction:
    """The first call of a program from empty caches, but for fork and join, which the row has not.

    `rtl`: the row was measured on RTL.
    """
    timing, instructions = _machine(rtl), _bounded(case, "n_nops")
    icache = replace(timing.icache, call_lines=0)
    team = TeamWork("nops", (CoreWork((Instruction(Op.ALU),) * instructions),) * case.number("cores"))
    cost_model = TeamCostModel(replace(timing, icache=icache))
    waits = CodeCaches(len(team.cores), icache).call(team)
    return Prediction(cost_model.price(team).cycles + max(waits.values(), default=0))


def predict_warm(case: Case, *, rtl: bool) -> Prediction:
    """The fourth pass, line by line through both caches, their replacement register in any state."""
    lines = _bounded(case, "code_bytes") // _machine(rtl).icache.line_bytes
    return Prediction(_bounded(case, "n_nops") + _fourth_pass_stall_cycles(lines, rtl))


def _bounded(case: Case, column: str) -> int:
    value = case.number(column)
    if value > MAX_CODE_BYTES:
        raise case.error(f"column '{column}' is {value}, which is too large", f"use at most {MAX_CODE_BYTES}")
    return value


@cache
def _fourth_pass_stall_cycles(lines: int, rtl: bool) -> int:
    walk = range(lines + CALLER_LINES)
    runs = [pass_stall_cycles([walk] * 4, _machine(rtl).icache, seed)[3] for seed in SEEDS]
    return round(sum(runs) / len(runs) * lines / len(walk))
