# SPDX-License-Identifier: Apache-2.0
"""docs/deploy-kernels.md: which kernels have C sources, and compiled loops beside nests."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Any

from tools.deployed import generated
from tools.deployed.inner_loops import NUMBERS, STORED
from tools.kernel_sources import GENERATED, NONE_NEEDED, covered
from tools.pages.page import Page, table


def kernels() -> str:
    """Kernels by C file, those made from tables, and those refused."""
    found = covered()
    by_file: dict[str, list[str]] = defaultdict(list)
    for kernel, file in found.sources.items():
        by_file[file].append(f"`{kernel}`")
    words = {GENERATED: "generated from formulas", NONE_NEEDED: "none needed"}
    rows = [
        (words.get(file, f"`{file}`"), len(names), " ".join(names)) for file, names in sorted(by_file.items())
    ]
    refused = [(f"`{kernel}`", why) for kernel, why in found.refused.items()]
    counted = f"{len(found.sources)} kernels have C sources in fp32; refused: {len(refused)}."
    tables = table(("source", "kernels", "names"), rows), table(("refused", "why"), refused)
    return "\n\n".join((counted, *tables))


def loops() -> str:
    """Inner loops with multiply-adds: instructions a turn of the nest, and of the C source compiled."""
    rows: list[dict[str, Any]] = json.loads(STORED.read_text(encoding="utf-8"))
    shown = [row for row in rows if row["nest"].get("F")]
    body = [
        (
            f"`{row['kernel']}`",
            _counts(row["nest"]),
            _counts(row["c"]) if row["c"] else "-",
            f"{sum(row['c'].values()) - sum(row['nest'].values()):+d}" if row["c"] else "",
        )
        for row in shown
    ]
    paired = [sum(row["c"].values()) - sum(row["nest"].values()) for row in rows if row["c"]]
    near = sum(abs(difference) <= 1 for difference in paired)
    counted = (
        f"Nests have {len(rows)} innermost loops. {len(paired)} of them are found in C with the same loads, "
        f"stores and floating-point instructions; {near} of these differ by at most one integer instruction. "
        "The loops with multiply-adds:"
    )
    return f"{counted}\n\n{table(('kernel', 'nest', 'C', 'C - nest, instructions'), body)}"


def _counts(counts: dict[str, int]) -> str:
    order = [*NUMBERS, *(letter for letter in counts if letter not in NUMBERS)]
    return " ".join(
        f"{letter}*{counts[letter]}" if counts[letter] > 1 else letter for letter in order if letter in counts
    )


PAGE = Page("docs/deploy-kernels.md", {"kernels": kernels, "generated": generated.page, "loops": loops})
