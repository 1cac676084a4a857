# SPDX-License-Identifier: Apache-2.0
"""docs/glossary.md: the stall words, and the steps."""

from __future__ import annotations

from tools.pages.page import Page, table
from traces.stall_words import BUSY, MEANINGS


def stalls() -> str:
    """Every word a core's cycle can be lost for."""
    return table(
        ("word", "meaning"), [("`busy`", BUSY), *((f"`{word}`", text) for word, text in MEANINGS.items())]
    )


PAGE = Page("docs/glossary.md", {"stalls": stalls})
