# SPDX-License-Identifier: Apache-2.0
"""docs/torch-index.md: how a hundred entries of the indices of torch.nn and torch.optim end here."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from tools.pages.page import ROOT, Page, table


def cases() -> str:
    """Right by section in a line, and a table of the refused with their reasons."""
    rows: list[dict[str, Any]] = json.loads((ROOT / "tests" / "torch-index.json").read_text(encoding="utf-8"))
    lines, refused = [], []
    for section in dict.fromkeys(row["section"] for row in rows):
        own = [row for row in rows if row["section"] == section]
        counts = Counter(row["status"] for row in own)
        right = ", ".join(f"`{row['name']}`" for row in own if row["status"] == "right")
        for row in own:
            if row["status"] == "refused":
                reason = row["reason"].removeprefix(f"optimizer {row['name']} is not supported: ")
                refused.append((f"`{row['name']}`", section, reason))
        wrong = len(own) - counts["right"] - counts["refused"]
        lines.append((section, counts["right"], counts["refused"], wrong, right))
    total = Counter(row["status"] for row in rows)
    others = len(rows) - total["right"] - total["refused"]
    seconds = sum(row["seconds"] for row in rows)
    lines.append(("**all**", total["right"], total["refused"], others, ""))
    return (
        table(("", "right", "refused", "wrong", "entries that are right"), lines)
        + f"\nAll of them together took {seconds:.0f} s of CPU time.\n\n"
        + table(("refused entry", "", "why"), refused)
    )


PAGE = Page("docs/torch-index.md", {"cases": cases})
