# SPDX-License-Identifier: Apache-2.0
"""docs/measured-logs.md: published cycles of the tutorial's network beside those of a run."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

from tools.pages.page import ROOT, Page
from tools.pages.why_slow import WIDTH, summary_of
from traces.compared.log import read_log
from traces.compared.residuals import residuals

PATH = "docs/measured-logs.md"


def beside() -> str:
    """The log of the page beside the run of the page."""
    text = (ROOT / PATH).read_text(encoding="utf-8")
    log = re.search(r"<!-- file: tutorial\.log -->\n```text\n(.*?)```", text, re.DOTALL)
    command = re.search(r"^pulptrain run tutorial-cnn (.*?) --no-functional --out out$", text, re.M | re.S)
    if log is None or command is None:
        raise ValueError(f"{PATH} has no tutorial.log, or no run of it")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "tutorial.log"
        file.write_text(log[1], encoding="utf-8")
        measured = read_log(file)
    summary = summary_of("tutorial-cnn", " ".join(command[1].replace("\\\n", " ").split()))
    found = residuals(summary, measured, "out", "tutorial.log", in_l1=True)
    return "\n".join(["```text", *found.lines(WIDTH, 10), "```"])


PAGE = Page(PATH, {"beside": beside})
