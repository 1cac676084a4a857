# SPDX-License-Identifier: Apache-2.0
"""Try timing defects against the bounds of validation; `make alarm` ends with it.

    python -m tools.timing_defects               all defects and harmless changes (some minutes)
    python -m tools.timing_defects NAME...       some of them
    python -m tools.timing_defects --write       and write figures, bounds and findings as they are today

Written after a change of the model that is meant: the difference of tests/timing-defects.json says what it
did to the accuracy. Then `python -m tools.pages timing_defects`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Any

from tools.timing_defects.bounds import COMMITTED, Cycles, Move, committed, figures_of, moves
from tools.timing_defects.defects import DEFECTS, NOT_SEEN
from tools.timing_defects.harmless import HARMLESS
from tools.timing_defects.rows import count_of
from tools.timing_defects.trial import AS_IT_IS, OutgrownError, predictions

DIGITS = 3
"""Decimals of what is written."""


def _figures(cycles: Cycles) -> dict[str, dict[str, float]]:
    """Today's figures and the bounds that follow from them."""
    return {
        figure.name: {"percent": round(figure.percent, DIGITS), "bound": round(figure.bound, DIGITS)}
        for figure in figures_of(cycles)
    }


def _record(moved: Sequence[Move]) -> dict[str, Any]:
    """What is written of a defect: its farthest figure, and how many have left their bounds."""
    if not moved:
        return {"figures": 0}
    first = moved[0]
    return {
        "figures": len(moved),
        "figure": first.figure,
        "from_percent": first.committed,
        "to_percent": round(first.percent, DIGITS),
        "bound": first.bound,
    }


def _moved(move: Move) -> str:
    return f"{move.figure} {move.committed:+.2f} -> {move.percent:+.2f} %, {move.times:.1f} times its bound"


def _tell(name: str, found: Sequence[Move]) -> bool:
    """Print what came of a change; whether it is as it should be."""
    if name in DEFECTS:
        said = f"{_moved(found[0])}; {len(found)} figures" if found else "no figure moved"
        print(f"{'seen' if found else 'not seen'}: {name}: {said}", flush=True)
        return bool(found) != (name in NOT_SEEN)
    print(f"{'leaves its bounds' if found else 'within its bounds'}: {name or 'the product as it is'}")
    for move in found:
        print(f"  {_moved(move)}")
    return not found


def main() -> int:
    """Print what came of every change; exit code 1 if one is seen that should not be, or the other way."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.timing_defects",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--write", action="store_true", help="write tests/timing-defects.json")
    parser.add_argument("--workers", type=int, default=2)
    given = parser.parse_args()
    names = given.names or [*HARMLESS, *DEFECTS]
    for name in names:
        if name not in HARMLESS and name not in DEFECTS:
            parser.error(f"no {name!r}")
    records: dict[str, Any] = committed()["defects"] if COMMITTED.exists() else {}
    if given.write:
        ((_, cycles),) = predictions([AS_IT_IS])
        if isinstance(cycles, OutgrownError):
            raise cycles
        _write(_figures(cycles), records)
    fine = True
    for name, cycles in predictions([AS_IT_IS, *names], workers=given.workers):
        if isinstance(cycles, OutgrownError):
            print(f"no longer fits: {cycles}", flush=True)
            fine = False
            continue
        moved = moves(cycles)
        fine &= _tell(name, moved)
        if name in DEFECTS:
            records[name] = _record(moved)
    if given.write:
        _write(committed()["figures"], records)
    seen = sum(record["figures"] > 0 for record in records.values())
    print(f"{seen} of {len(DEFECTS)} timing defects seen, by {count_of()} measured rows")
    return 0 if fine else 1


def _write(figures: dict[str, Any], records: dict[str, Any]) -> None:
    known = {name: records[name] for name in DEFECTS if name in records}
    found = {"rows": count_of(), "figures": figures, "defects": known}
    COMMITTED.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
