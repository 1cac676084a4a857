# SPDX-License-Identifier: Apache-2.0
"""The engine of the pages: where their blocks are, what is in them, what should be; and tables.

A block stands between two comments::

    <!-- block: presets -->
    ...
    <!-- end -->

What is around it is written in the page itself. A module of this folder says as `PAGE` which blocks a page
has and what makes each; a test compares the committed blocks with what is made today.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_BLOCK = re.compile(r"(<!-- block: (\w+) -->\n)(.*?)(<!-- end -->\n)", re.DOTALL)


@dataclass(frozen=True)
class Page:
    """A page below the root of the repository, and by name what makes the text of each of its blocks."""

    path: str
    blocks: Mapping[str, Callable[[], str]]

    def shown(self) -> dict[str, str]:
        """The blocks as they are in the file. Raises `ValueError` unless they are `blocks`, once each."""
        found = [(match[2], match[3]) for match in _BLOCK.finditer(self._text())]
        if sorted(name for name, _ in found) != sorted(self.blocks):
            raise ValueError(f"{self.path} has {[name for name, _ in found]}, not {list(self.blocks)}")
        return dict(found)

    def made(self, name: str) -> str:
        """A block as it should be."""
        text = self.blocks[name]()
        return text if text.endswith("\n") else text + "\n"

    def write(self, names: Iterable[str]) -> None:
        """Put these blocks into the file as they should be."""
        texts = {**self.shown(), **{name: self.made(name) for name in names}}
        page = _BLOCK.sub(lambda match: match[1] + texts[match[2]] + match[4], self._text())
        (ROOT / self.path).write_text(page, encoding="utf-8")

    def _text(self) -> str:
        return (ROOT / self.path).read_text(encoding="utf-8")


def table(titles: Sequence[str], rows: Iterable[Sequence[object]], *, numbers: bool = False) -> str:
    """A table in Markdown; with `numbers` all columns but the first are aligned to the right."""
    rule = ["---", *["--:" if numbers else "---"] * (len(titles) - 1)]
    lines = [f"|{'|'.join(rule)}|"]
    for cells in (titles, *rows):
        lines.append("| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |")
    return "\n".join([lines[1], lines[0], *lines[2:]]) + "\n"
