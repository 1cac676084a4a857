# SPDX-License-Identifier: Apache-2.0
"""Tables, as plain text that fits a width (columns that do not are left out, the first never) and as HTML.

No cell is cut or folded. Columns are taken in their order as long as they fit: what matters stands first.
"""

from __future__ import annotations

import html
import textwrap
from collections.abc import Sequence

from configs.values import Struct

GAP = "  "
"""Between two columns."""

LABEL_WIDTH = 12
"""Columns of the labels of the headline."""


def first_line_repr(shown: object) -> str:
    """The repr of what prints as tables: its class, and of the first line at most a hundred characters."""
    return f"{type(shown).__name__}({str(shown).partition(chr(10))[0].strip()[:100]})"


def table_lines(
    heads: Sequence[str], rows: Sequence[Sequence[str]], width: int, *, left: Sequence[str] = ()
) -> list[str]:
    """Heads and rows as lines at most `width` wide, but for a first column that is wider by itself.

    The first column and those in `left` are set to the left. A column whose cells are all empty is left out.
    """
    shown: list[int] = []
    used = 0
    widths = [max([len(head), *(len(row[at]) for row in rows)]) for at, head in enumerate(heads)]
    for at in range(len(heads)):
        if at and all(row[at] in ("", "-") for row in rows):
            continue
        needed = widths[at] + (len(GAP) if shown else 0)
        if shown and used + needed > width:
            continue
        shown.append(at)
        used += needed
    aligned = [str.ljust if at == 0 or heads[at] in left else str.rjust for at in shown]

    def line(cells: Sequence[str]) -> str:
        texts = (align(cells[at], widths[at]) for at, align in zip(shown, aligned, strict=True))
        return GAP.join(texts).rstrip()

    return [line(heads), *(line(row) for row in rows)]


def wrapped(text: str, width: int, indent: str = "") -> list[str]:
    """Lines at most `width` wide, all but the first indented; no word is cut, nor a percentage."""
    lines = textwrap.wrap(
        text.replace(" %", f"{_HARD_SPACE}%"),
        max(width, 40),
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [line.replace(_HARD_SPACE, " ") for line in lines]


_HARD_SPACE = "\N{NO-BREAK SPACE}"


COMMAND, RUN_IT = "", "run it"
"""Labels of commands: lines that are never folded, to be copied."""


def labelled(label: str, text: str, width: int) -> list[str]:
    """A line of a headline, folded behind its label."""
    line = f"{label:<{LABEL_WIDTH}}{text}"
    return [line] if label in (COMMAND, RUN_IT) else wrapped(line, width, " " * LABEL_WIDTH)


def change(share: float, decimals: int = 1) -> str:
    """A change, a share of what was before, in per cent with its sign; of none that shows without one."""
    text = f"{100 * share:+.{decimals}f}"
    return text if float(text) else text[1:]


def counted(count: int, noun: str) -> str:
    """So many of something: ``1 other``, ``2 others``."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def amount(value: float, unit: str) -> str:
    """An amount in the prefix that leaves one to three digits before the point."""
    prefix, factor = next(
        ((name, each) for name, each in _PREFIXES if abs(value) >= each),
        _PREFIXES[-1] if value else ("", 1.0),
    )
    return f"{value / factor:.3g} {prefix}{unit}"


_PREFIXES = (("", 1.0), ("m", 1e-3), ("u", 1e-6), ("n", 1e-9), ("p", 1e-12))


def percent(part: int, whole: int) -> str:
    """A share in a cell; a dash of nothing."""
    return f"{part / whole:.0%}" if whole else "-"


class Table(Struct, frozen=True):
    """Heads and rows; the first column and those in `left` are set to the left."""

    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    left: Sequence[str] = ()

    def lines(self, width: int) -> list[str]:
        """As `table_lines`."""
        return table_lines(self.heads, self.rows, width, left=self.left)

    def html(self) -> str:
        """A ``<table>`` of all columns that have something in them."""
        shown = [
            at
            for at in range(len(self.heads))
            if not at or any(row[at] not in ("", "-") for row in self.rows)
        ]
        style = {
            at: "left" if not at or self.heads[at] in self.left else "right" for at in range(len(self.heads))
        }

        def line(cells: Sequence[str], tag: str) -> str:
            made = (f'<{tag} style="text-align:{style[at]}">{html.escape(cells[at])}</{tag}>' for at in shown)
            return f"<tr>{''.join(made)}</tr>"

        body = "".join(line(row, "td") for row in self.rows)
        return f"<table><thead>{line(self.heads, 'th')}</thead><tbody>{body}</tbody></table>"
