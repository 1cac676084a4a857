# SPDX-License-Identifier: Apache-2.0
"""`python -m tools.deployed.mends`: iterations with the C that the RTL executed and with that of today.

Kernels are priced at the instructions that were counted: those of KIND steps, and of today's C those of
`tools.deployed.counted`. Prints the table of docs/deploy.md.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from itertools import product
from pathlib import Path
from typing import Any

from arch.pricing.code_caches import STEADY, WARM
from arch.spec.soc_config import READABLE
from pulptrain.inputs.settings import Settings
from pulptrain.running.session import prepare
from scheduler.code_in_l2 import placed_with_code, without_code
from scheduler.executor import Executor
from scheduler.planned import Schedule
from scheduler.tiles.code_sizes import EXECUTED, shipped_sizes
from scheduler.validation.rows.cases import read_cases
from scheduler.validation.rows.machines import RTL_MACHINE, cost_model_of
from scheduler.validation.rows.steps import (
    CODEGEN,
    COLUMNS,
    L1_BYTES,
    LATER,
    Counted,
    Run,
    measured_shares,
    model_beside,
    rtl_of_the_bench,
)
from tools.deployed.counted import execute
from tools.pages.page import ROOT, table

ROWS = ROOT / "measured" / "rtl-steps.csv.gz"

L1 = f"{L1_BYTES}B"


def main() -> int:
    """The command."""
    rows = []
    measured: dict[tuple[str, str], int] = defaultdict(int)
    for case in read_cases(str(ROWS), COLUMNS, (), ("model", "buffering", "cores", "op")):
        if case.number("cores") == 8:
            measured[case.text("model"), case.text("buffering")] += case.number(LATER)
    for model, buffering in product(("tutorial-cnn", "simple-mlp", "attn"), ("single", "double", "best")):
        on_rtl = measured.get((model, buffering))
        row = _row(model_beside(ROWS, model), buffering, known=bool(on_rtl))
        rows.append((model, buffering, on_rtl or "", *row))
    heads = ("model", "buffering", "RTL", "C of 0bac56ab", "C of today", "nests", "bytes of code")
    print(table(heads, [[f"{cell:,}" if isinstance(cell, int) else cell for cell in row] for row in rows]))
    return 0


def _row(model: str, buffering: str, *, known: bool) -> tuple[int | str, ...]:
    """Cycles of an iteration: with the C of then, where it was executed, with that of today, with nests."""
    start = WARM if known else STEADY  # the executed ones were planned with all code in the caches
    how: dict[str, Any] = {
        "soc": RTL_MACHINE,
        "codegen": CODEGEN,
        "l1": L1,
        "icache": start,
        "buffering": buffering,
    }
    settings = Settings(**how, form=READABLE)
    schedule = prepare(model, settings).schedule
    folder = Path("out/mends") / f"{Path(model).stem}-{buffering}"
    options = [word for key, value in how.items() for word in (f"--{key}", value)]
    shares = {
        op: found["c"] / found["nest"] for op, found in execute(model, folder.absolute(), *options).items()
    }
    before: int | str = ""
    if known:
        run = Run(model, buffering, 8, CODEGEN)
        before = _cycles(schedule, measured_shares(run, str(ROWS)), EXECUTED)[0]
    cycles, code_bytes = _cycles(schedule, shares)
    return before, cycles, _cycles(schedule, {})[0], code_bytes


def _cycles(schedule: Schedule, shares: dict[str, float], sizes: str | None = None) -> tuple[int, int]:
    """Cycles of an iteration whose kernels have these shares of the instructions of their nests; its code."""
    timing = rtl_of_the_bench()
    known = shipped_sizes(sizes) if sizes else None
    bare = without_code(schedule)
    (placed,) = placed_with_code(lambda _: [bare], timing, sizes=known)
    costs = Counted(placed, cost_model_of(timing), shares)
    executor = Executor(placed, timing, costs, functional=False, code_start=STEADY)
    return executor.simulate().cycles, placed.plan.code_bytes


if __name__ == "__main__":
    sys.exit(main())
