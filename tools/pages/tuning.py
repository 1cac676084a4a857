# SPDX-License-Identifier: Apache-2.0
"""docs/tuning.md: what `tune` and `explore` print."""

from __future__ import annotations

import re

import pulptrain as pt
from pulptrain.exploring.exploration_report import exploration_lines
from pulptrain.tuning.tuning_report import tuning_lines
from tools.pages.page import ROOT, Page, golden

TUNE_WIDTH = 108
EXPLORE_WIDTH = 80
SPEC = ROOT / "examples" / "explore-tutorial-cnn.yaml"


def tune() -> str:
    """`pulptrain tune tutorial-cnn --tilings 4`, but for the seconds it took."""
    tuned = pt.tune("tutorial-cnn", tilings=4, workers=1, cache=False)
    summary = {**tuned.summary, "command": "pulptrain run tutorial-cnn --schedule schedule.yaml"}
    lines = [re.sub(r"; [\d.]+ s$", "", line) for line in tuning_lines(summary, TUNE_WIDTH)]
    return "\n".join(["```", *lines, "```"])


def explore() -> str:
    """`pulptrain explore examples/explore-tutorial-cnn.yaml`."""
    explored = pt.explore(spec=SPEC, workers=1, cache=False)
    return "\n".join(["```", *exploration_lines(explored.summary, EXPLORE_WIDTH), "```"])


PAGE = Page(
    "docs/tuning.md",
    {"tune": tune, "explore": explore},
    {"tune": lambda: golden("tutorial-cnn"), "explore": lambda: (golden("tutorial-cnn"), SPEC.read_text())},
)
