# SPDX-License-Identifier: Apache-2.0
"""Write tests/validation-figures.json: the figures of every measured set on a seeded sample of its rows.

Run it after a change of the model: ``python tools/update_validation_figures.py``. A test compares, so that
what a change does to the accuracy shows as a difference of this file.
"""

from __future__ import annotations

import json
from pathlib import Path

from tools.validation.sets import SETS
from tools.validation_sample import sample_figures

ROOT = Path(__file__).resolve().parents[1]
FIGURES = ROOT / "tests" / "validation-figures.json"


def main() -> None:
    """Predict the samples and write the file."""
    figures = {name: sample_figures(name, ROOT / "measured") for name in SETS}
    FIGURES.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
