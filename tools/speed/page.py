# SPDX-License-Identifier: Apache-2.0
"""docs/speed.md: the commands of this folder write its blocks, as no test can measure them again."""

from __future__ import annotations

from tools.speed.versions import ROOT

PAGE = ROOT / "docs" / "speed.md"


def write_block(name: str, text: str) -> None:
    """Put `text` between the comments that begin and end a block. Raises ValueError if there are none."""
    page = PAGE.read_text(encoding="utf-8")
    begin, end = f"<!-- measured: {name} -->\n", "<!-- end -->\n"
    before, found, rest = page.partition(begin)
    if not found or end not in rest:
        raise ValueError(f"{PAGE.name} has no block {name!r}")
    PAGE.write_text(
        before + begin + text.rstrip("\n") + "\n" + end + rest.partition(end)[2], encoding="utf-8"
    )
