# SPDX-License-Identifier: Apache-2.0
"""Tables of plain text that fit a width: columns that do not are left out, the first column never.

No cell is cut or folded. Columns are taken in their order as long as they fit: what matters stands first.
"""

from __future__ import annotations

from collections.abc import Sequence

GAP = "  "
"""Between two columns."""


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
