# SPDX-License-Identifier: Apache-2.0
"""Where files lie that tests read."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
"""Of the project."""

TESTS = ROOT / "tests"
DATA = TESTS / "data"
MEASURED = ROOT / "measured"
