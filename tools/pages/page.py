# SPDX-License-Identifier: Apache-2.0
"""The engine of the pages: where their blocks are, what is in them, what should be; and tables.

A block stands between two comments::

    <!-- block: presets -->
    ...
    <!-- end -->

What is around it is written in the page itself. A module of this folder says as `PAGE` which blocks a page
has and what makes each; a test compares the committed blocks with what is made today. For a block that takes
too long for every test the module says what its figures rest on, and the block has a stamp of that, its
digest when it was written::

    <!-- block: l1 of 1f0c2b9a -->
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
_BLOCK = re.compile(r"<!-- block: (\w+)(?: of (\w+))? -->\n(.*?)<!-- end -->\n", re.DOTALL)


@dataclass(frozen=True)
class Page:
    """A page below the root of the repository, and by name what makes the text of each of its blocks.

    `rests_on` has the slow ones, each with what tells cheaply whether it would be another: figures that are
    tested every time, and what was asked.
    """

    path: str
    blocks: Mapping[str, Callable[[], str]]
    rests_on: Mapping[str, Callable[[], object]] = field(default_factory=dict)

    def shown(self) -> dict[str, str]:
        """The blocks as they are in the file. Raises `ValueError` unless they are `blocks`, once each."""
        found = [(match[1], match[3]) for match in _BLOCK.finditer(self._text())]
        if sorted(name for name, _ in found) != sorted(self.blocks):
            raise ValueError(f"{self.path} has {[name for name, _ in found]}, not {list(self.blocks)}")
        return dict(found)

    def older(self) -> list[str]:
        """The slow blocks that rest on something else than today."""
        stamps = {match[1]: match[2] for match in _BLOCK.finditer(self._text())}
        return [name for name in self.rests_on if stamps[name] != self._stamp(name)]

    def text_of(self, name: str) -> str:
        """A block as it should be."""
        text = self.blocks[name]()
        return text if text.endswith("\n") else text + "\n"

    def write(self, names: Iterable[str]) -> None:
        """Put these blocks into the file as they should be."""
        self.shown()
        new = {name: self._block(name) for name in names}
        page = _BLOCK.sub(lambda match: new.get(match[1], match[0]), self._text())
        (ROOT / self.path).write_text(page, encoding="utf-8")

    def _block(self, name: str) -> str:
        stamp = f" of {self._stamp(name)}" if name in self.rests_on else ""
        return f"<!-- block: {name}{stamp} -->\n{self.text_of(name)}<!-- end -->\n"

    def _stamp(self, name: str) -> str:
        text = json.dumps(self.rests_on[name](), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:8]

    def _text(self) -> str:
        return (ROOT / self.path).read_text(encoding="utf-8")


def older_than_today(changes: Mapping[str, float], why: str = "") -> str:
    """A first line that names rows computed before today's golden metrics, and what that means.

    `changes` are today's cycles of the default run over those of the row, less 1, by name; `why` may differ.
    """
    if not changes:
        return ""
    least, most = 100 * min(changes.values()), 100 * max(changes.values())
    return (
        f"*Older than today's version of pulptrain: the rows of {', '.join(changes)}{why}. Today's default "
        f"cycles of these models differ by {least:+.1f} to {most:+.1f} %.*\n\n"
    )


def golden(*models: str) -> dict[str, Any]:
    """What an iteration of these models takes, of all if none is named, as every test run holds it.

    Without the events of the simulator, which no page shows.
    """
    figures = _figures("golden-metrics")
    for taken in figures.values():
        del taken["events"], taken["default_l2"]["events"]
    return {name: figures[name] for name in models or figures}


def accuracy(*sets: str) -> dict[str, Any]:
    """What is predicted of samples of these sets of measured rows, of all if none is named."""
    figures = _figures("validation-figures")
    return {name: figures[name] for name in sets or figures}


def sources(room: str) -> dict[str, str]:
    """What decides where no figures of this are held: digests of the files of a room and of its settings."""
    files = sorted([*(ROOT / room).rglob("*.py"), *(ROOT / "configs").rglob(f"{room}*.yaml")])
    return {str(path.relative_to(ROOT)): hashlib.sha256(path.read_bytes()).hexdigest()[:8] for path in files}


def _figures(name: str) -> dict[str, Any]:
    """A file of figures that `make test` holds."""
    found: dict[str, Any] = json.loads((ROOT / "tests" / f"{name}.json").read_text(encoding="utf-8"))
    return found


def table(titles: Sequence[str], rows: Iterable[Sequence[object]], *, numbers: bool = False) -> str:
    """A table in Markdown; with `numbers` all columns but the first are aligned to the right."""
    rule = ["---", *["--:" if numbers else "---"] * (len(titles) - 1)]
    lines = [f"|{'|'.join(rule)}|"]
    for cells in (titles, *rows):
        lines.append("| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |")
    return "\n".join([lines[1], lines[0], *lines[2:]]) + "\n"
