# SPDX-License-Identifier: Apache-2.0
"""docs/speed.md: the commands of this folder write its blocks, as no test can measure them again."""

from __future__ import annotations

from tools.pages.page import Page

PATH = "docs/speed.md"
BLOCKS = ("against", "growth")


def write_block(name: str, text: str) -> None:
    """Put `text` into a block. Raises ValueError unless the page has `BLOCKS`, once each."""
    Page(PATH, {**dict.fromkeys(BLOCKS, str), name: lambda: text}).write([name])
