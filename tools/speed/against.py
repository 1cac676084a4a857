# SPDX-License-Identifier: Apache-2.0
"""`python -m tools.speed.against REV`: the table of former and new user CPU, peak memory and cycles.

Every row runs in a new folder with an empty file of plans and prices, first the former version, then this
one, and so on; of each the run of median user CPU counts. What is compiled (Numba) is kept, and is made
before the first row. `--write` puts the table into docs/speed.md.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from configs.errors import InputError
from tools.pages.page import table
from tools.speed.measure import Measured, in_turns, once
from tools.speed.page import write_block
from tools.speed.rows import ROWS, WARM_UP, Row
from tools.speed.versions import Version, former, present

MIB = 1 << 20
HEAD = ("command", "former s", "now s", "ratio", "former MiB", "now MiB", "cycles")


def line(row: Row, old: Measured, new: Measured) -> list[str]:
    """A row of the table: the ratio is of user CPU, new over former."""
    cycles = [item.summary.get("cycles") for item in (old, new)]
    same = "the same" if cycles[0] == cycles[1] else f"{cycles[0]} -> {cycles[1]}"
    if old.exit_code or new.exit_code:
        same = f"exit code {old.exit_code} -> {new.exit_code}"
        if old.exit_code == new.exit_code:
            same = f"both: exit code {new.exit_code}"
    return [
        row.name,
        f"{old.user_seconds:.2f}",
        f"{new.user_seconds:.2f}",
        f"{new.user_seconds / old.user_seconds:.2f}",
        f"{old.peak_bytes / MIB:.0f}",
        f"{new.peak_bytes / MIB:.0f}",
        same,
    ]


def compared(versions: Sequence[Version], rows: Sequence[Row]) -> str:
    """The table, a line of progress for each row on standard error."""
    for version in versions:
        once(version, WARM_UP)
    lines = []
    for row in rows:
        lines.append(line(row, *in_turns(versions, row)))
        print("  ".join(lines[-1]), file=sys.stderr, flush=True)
    return table(HEAD, lines)


def main() -> int:
    """The command; 2 for a revision that cannot be compared with."""
    parser = argparse.ArgumentParser(prog="python -m tools.speed.against", description=__doc__)
    parser.add_argument("revision", help="the former version, as git names it")
    parser.add_argument("--only", default="", metavar="TEXT", help="rows that have this in their names")
    parser.add_argument("--write", action="store_true", help="put the table into docs/speed.md")
    asked = parser.parse_args()
    rows = [row for row in ROWS if asked.only in row.name]
    if not rows:
        parser.error(
            f"no row has {asked.only!r} in its name; there are: {'; '.join(row.name for row in ROWS)}"
        )
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        try:
            old = former(asked.revision, folder)
        except InputError as error:
            print(f"bench-against: {error}", file=sys.stderr)
            return 2
        text = f"This version compared with {old.name}.\n\n" + compared([old, present(folder)], rows)
    print(text)
    if asked.write:
        write_block("against", text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
