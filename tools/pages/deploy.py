# SPDX-License-Identifier: Apache-2.0
"""docs/deploy.md: functions of an exported project, its instructions, whole iterations on the RTL."""

from __future__ import annotations

from deploy.program.network_text import ops_text
from deploy.project.network_files import programs_of
from pulptrain.inputs.settings import Settings
from pulptrain.running.session import prepare
from tools.deployed import instructions, sizes
from tools.pages import error_bars
from tools.pages.page import Page

SHOWN = ("conv1_FW", "fc_IG")


def functions() -> str:
    """Two functions of network.c of the tutorial's network."""
    schedule = prepare("tutorial-cnn", Settings(form="readable")).schedule
    (program,) = programs_of([schedule], [])
    text = ops_text(program.statements.ops, program.functions, program.buffers)
    parts = [part for part in text.split("\n\n") if any(f"void {name}(void)" in part for name in SHOWN)]
    return "\n".join(["```c", "\n\n".join(parts), "```"])


def tables() -> str:
    """The first op of the tutorial's network as a table."""
    schedule = prepare("tutorial-cnn", Settings(form="tables")).schedule
    (program,) = programs_of([schedule], [])
    text = ops_text(program.statements.ops, program.functions, program.buffers, program.groups)
    begin = text.index("static uint32_t")
    return "\n".join(["```c", text[begin : text.index("\n    0,", begin)] + "\n    0,\n    ...", "```"])


PAGE = Page(
    "docs/deploy.md",
    {
        "tables": tables,
        "functions": functions,
        "sizes": sizes.page,
        "walks": instructions.walks,
        "instructions": instructions.page,
        "iterations": error_bars.iterations,
    },
)
