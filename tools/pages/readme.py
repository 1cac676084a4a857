# SPDX-License-Identifier: Apache-2.0
"""README.md: the output of `pulptrain run tutorial-cnn`, and its picture in docs/."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable
from functools import cache
from io import StringIO
from pathlib import Path

from rich.console import Console

from pulptrain.outputs import write_outputs
from pulptrain.session import RunOutcome, run_model
from tools.pages.page import ROOT, Page
from traces.report import print_report

WIDTH = 100


@cache
def outcome() -> RunOutcome:
    """The run shown."""
    return run_model("tutorial-cnn")


def report() -> str:
    """The table and totals as a terminal of `WIDTH` columns shows them, without colours."""
    console = Console(file=StringIO(), width=WIDTH, color_system=None)
    print_report(outcome().summary, console)
    output = console.file
    assert isinstance(output, StringIO)
    lines = [line.rstrip() for line in output.getvalue().rstrip().splitlines()]
    return "\n".join(["```", *lines, "```"])


class ReadmePage(Page):
    """The page with its picture."""

    def write(self, names: Iterable[str]) -> None:
        """Write the block, and docs/gantt-tutorial-cnn.png."""
        super().write(names)
        with tempfile.TemporaryDirectory() as folder:
            write_outputs(outcome(), Path(folder))
            shutil.copy(Path(folder) / "gantt.png", ROOT / "docs" / "gantt-tutorial-cnn.png")


PAGE = ReadmePage("README.md", {"run": report})
