# SPDX-License-Identifier: Apache-2.0
"""docs/models-of-others.md: models of other people, in training and in inference; Deeploy's test folders."""

from __future__ import annotations

import csv
from collections import Counter

from tools.pages.page import ROOT, Page, table

MODES = ("training", "inference", "simulated")


def rows(name: str = "models-of-others") -> list[dict[str, str]]:
    """One for each model, or for what else a file of this name measured."""
    with (ROOT / "measured" / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def counts() -> str:
    """How many are right, wrong and refused in each mode."""
    words = ("right", "wrong", "not decidable", "refused", "too large", "not tried")
    found = {mode: Counter(row[mode].split(" (")[0] or "not tried" for row in rows()) for mode in MODES}
    return table(
        (f"of {len(rows())} models", *words),
        [(mode, *(found[mode][word] for word in words)) for mode in MODES],
    )


def models() -> str:
    """A line for each, with the reason of a refusal."""
    lines = [
        (
            f"`{row['model']}`",
            row["source"],
            f"{int(row['parameters']):,}",
            row["input"],
            *(row[mode] for mode in MODES),
            row["layers"],
            row["tensors"],
            row["error_share"],
            row["reason"],
        )
        for row in rows()
    ]
    titles = (
        "model",
        "source",
        "parameters",
        "input",
        *MODES,
        "layers",
        "tensors compared",
        "error",
        "refused because",
    )
    return table(titles, lines)


def deeploy() -> str:
    """How the graphs of Deeploy's test folders end, and why."""
    found = Counter((row["status"], row["reason"]) for row in rows("deeploy-folders"))
    order = ("right", "wrong", "not decidable", "refused", "not tried")
    ends = sorted(found, key=lambda end: (order.index(end[0]), -found[end], end))
    return table(("graphs", "result", "why"), [(found[end], *end) for end in ends])


PAGE = Page("docs/models-of-others.md", {"counts": counts, "models": models, "deeploy": deeploy})
