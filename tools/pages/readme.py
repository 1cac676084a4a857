# SPDX-License-Identifier: Apache-2.0
"""README.md: the first lines of `pulptrain run tutorial-cnn`, and its picture in docs/."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable
from functools import cache
from itertools import takewhile
from pathlib import Path

from pulptrain.running.outputs import write_outputs
from pulptrain.running.session import RunOutcome, run_model
from tools.pages import error_bars
from tools.pages.page import ROOT, Page
from traces.report import report_lines

WIDTH = 100


@cache
def outcome() -> RunOutcome:
    """The run shown."""
    return run_model("tutorial-cnn")


def report() -> list[str]:
    """What a terminal of `WIDTH` columns shows."""
    return report_lines(outcome().summary, WIDTH)


def head() -> str:
    """The report without its tables."""
    return "\n".join(["```", *takewhile(bool, report()), "```"])


class ReadmePage(Page):
    """The page with its picture."""

    def write(self, names: Iterable[str]) -> None:
        """Write the block, and docs/gantt-tutorial-cnn.png."""
        super().write(names)
        with tempfile.TemporaryDirectory() as folder:
            write_outputs(outcome(), Path(folder))
            shutil.copy(Path(folder) / "gantt.png", ROOT / "docs" / "gantt-tutorial-cnn.png")


PAGE = ReadmePage("README.md", {"run": head, "iterations": error_bars.in_short})
