# SPDX-License-Identifier: Apache-2.0
"""docs/glossary.md: the stall words, and the steps."""

from __future__ import annotations

from tools.pages.page import Page, table
from traces import causes
from traces.stall_words import BUSY, MEANINGS


def stalls() -> str:
    """Every word a core's cycle can be lost for."""
    return table(
        ("word", "meaning"), [("`busy`", BUSY), *((f"`{word}`", text) for word, text in MEANINGS.items())]
    )


def bound() -> str:
    """What an op may be bound by, and what is counted for it."""
    meanings = {"busy": BUSY, **MEANINGS, **causes.MEANINGS}
    rows = [(group, cause) for group, members in causes.GROUPS.items() for cause in members]
    heads = ("bound by", "cause", "meaning")
    return table(heads, [(group, f"`{cause}`", meanings[cause]) for group, cause in rows])


PAGE = Page("docs/glossary.md", {"stalls": stalls, "bound": bound})
