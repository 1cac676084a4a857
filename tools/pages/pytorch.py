# SPDX-License-Identifier: Apache-2.0
"""docs/torch-index.md: how a hundred entries of the indices of torch.nn and torch.optim end here."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from tools.pages.page import ROOT, Page, table


def cases() -> str:
    """Right by section in a line, the refused with their reasons."""
    rows: list[dict[str, Any]] = json.loads((ROOT / "tests" / "torch-index.json").read_text(encoding="utf-8"))
    lines = []
    for section in dict.fromkeys(row["section"] for row in rows):
        own = [row for row in rows if row["section"] == section]
        counts = Counter(row["status"] for row in own)
        right = ", ".join(f"`{row['name']}` {row['seconds']:.1f}" for row in own if row["status"] == "right")
        why = "; ".join(f"`{row['name']}`: {row['reason']}" for row in own if row["status"] == "refused")
        wrong = len(own) - counts["right"] - counts["refused"]
        lines.append((section, counts["right"], counts["refused"], wrong, right, why))
    total = Counter(row["status"] for row in rows)
    others = len(rows) - total["right"] - total["refused"]
    seconds = sum(row["seconds"] for row in rows)
    lines.append(("**all**", total["right"], total["refused"], others, f"{seconds:.0f} in all", ""))
    titles = ("", "right", "refused", "wrong", "right, user CPU seconds of two steps", "refused, and why")
    return table(titles, lines)


PAGE = Page("docs/torch-index.md", {"cases": cases})
