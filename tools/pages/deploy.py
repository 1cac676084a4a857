# SPDX-License-Identifier: Apache-2.0
"""docs/deploy.md: functions of an exported project, kernels there are in C, compiled loops beside nests."""

from __future__ import annotations

import json
from typing import Any

from deploy.calls.call import c_calls
from deploy.program.network_text import ops_text
from deploy.project.network_files import programs_of
from pulptrain.given.settings import Settings
from pulptrain.running.session import prepare
from tools.deployed.inner_loops import NUMBERS, STORED
from tools.pages import error_bars
from tools.pages.deployed_kernels import kernels
from tools.pages.page import Page, table

PATH = "docs/deploy.md"

SHOWN = ("conv1_FW", "fc_IG")


def functions() -> str:
    """Two functions of network.c of the tutorial's network."""
    schedule = prepare("tutorial-cnn", Settings()).schedule
    (program,) = programs_of([schedule], c_calls, [])
    text = ops_text(program.statements.ops, program.functions, program.buffers)
    parts = [part for part in text.split("\n\n") if any(f"void {name}(void)" in part for name in SHOWN)]
    return "\n".join(["```c", "\n\n".join(parts), "```"])


def loops() -> str:
    """Inner loops with multiply-adds: instructions a turn of the nest, and of the C source compiled."""
    rows: list[dict[str, Any]] = json.loads(STORED.read_text(encoding="utf-8"))
    shown = [row for row in rows if row["nest"].get("F")]
    body = [
        (
            f"`{row['kernel']}`",
            _counts(row["nest"]),
            _counts(row["c"]) if row["c"] else "-",
            f"{sum(row['c'].values()) - sum(row['nest'].values()):+d}" if row["c"] else "",
        )
        for row in shown
    ]
    paired = [sum(row["c"].values()) - sum(row["nest"].values()) for row in rows if row["c"]]
    near = sum(abs(difference) <= 1 for difference in paired)
    counted = (
        f"Of {len(rows)} innermost loops of nests {len(paired)} are found in C with the same loads, stores "
        f"and floating-point instructions; {near} of these are within one integer instruction. Those with "
        "multiply-adds:"
    )
    return f"{counted}\n\n{table(('kernel', 'nest', 'C', 'instructions'), body)}"


def _counts(counts: dict[str, int]) -> str:
    order = [*NUMBERS, *(letter for letter in counts if letter not in NUMBERS)]
    return " ".join(
        f"{letter}*{counts[letter]}" if counts[letter] > 1 else letter for letter in order if letter in counts
    )


PAGE = Page(
    PATH,
    {"functions": functions, "kernels": kernels, "loops": loops, "iterations": error_bars.iterations},
)
