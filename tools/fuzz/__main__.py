"""`make fuzz SEED=0 COUNT=20000`: run inputs, keep what fails, go on where an earlier run stopped.

Everything lies below ``out/fuzz/SEED``: `progress.json` (what is done, counts by kind) and, per defect, a
folder with the smallest input found: its files, ``command.txt`` and what was said.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import sys
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tools.fuzz.pool import Pool, minimised
from tools.fuzz.subjects import KINDS, ROOT, Subject, base_files, subject
from tools.fuzz.worker import Outcome, place

BATCH = 100
"""Inputs between two looks at the progress file."""

KEPT_PER_DEFECT = 1


def main() -> int:
    """Run the inputs that are not done; exit code 1 if any failed."""
    asked = _parser().parse_args()
    folder = Path(asked.out).resolve() / str(asked.seed)
    folder.mkdir(parents=True, exist_ok=True)
    progress = _read(folder)
    os.environ["PULPTRAIN_NO_CACHE"] = "1"
    base_files()
    started, first = time.monotonic(), progress["next"]
    kinds = tuple(asked.kinds.split(",")) if asked.kinds else ()
    pool = Pool(asked.workers, folder / "work")
    try:
        while progress["next"] < asked.count and time.monotonic() - started < asked.seconds:
            numbers = range(progress["next"], min(progress["next"] + BATCH, asked.count))
            items = ((number, subject(asked.seed, number, kinds)) for number in numbers)
            for number, item, outcome in list(pool.outcomes(items)):
                _note(progress, number, item, outcome)
                if outcome.failure and progress["kept"].get(outcome.failure, 0) < KEPT_PER_DEFECT:
                    progress["kept"][outcome.failure] = progress["kept"].get(outcome.failure, 0) + 1
                    _keep(folder, pool, number, item, outcome)
            progress["next"] = numbers.stop
            (folder / "progress.json").write_text(json.dumps(progress, indent=1))
            rate = (progress["next"] - first) / (time.monotonic() - started)
            print(f"{progress['next']}/{asked.count}, {rate:.1f}/s, {_failures(progress)} failed", flush=True)
    finally:
        pool.end()
    _print(progress)
    return 1 if _failures(progress) else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="make fuzz", description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after this, to go on later")
    parser.add_argument("--kinds", default="", help=f"some of {','.join(KINDS)}")
    parser.add_argument("--out", default=str(ROOT / "out" / "fuzz"))
    return parser


def _read(folder: Path) -> dict[str, Any]:
    file = folder / "progress.json"
    if file.is_file():
        found: dict[str, Any] = json.loads(file.read_text())
        return found
    return {"next": 0, "counts": {}, "failures": {}, "kept": {}, "slowest": []}


def _note(progress: dict[str, Any], number: int, item: Subject, outcome: Outcome) -> None:
    counts = Counter(progress["counts"].get(item.kind, {}))
    counts[str(outcome.exit_code) if not outcome.failure else "failed"] += 1
    progress["counts"][item.kind] = dict(counts)
    if outcome.failure:
        progress["failures"].setdefault(f"{item.kind}: {outcome.failure}", []).append(number)
    progress["slowest"] = sorted([*progress["slowest"], [round(outcome.cpu_seconds, 2), number, item.kind]])[
        -10:
    ]


def _failures(progress: Mapping[str, Any]) -> int:
    return sum(len(numbers) for numbers in progress["failures"].values())


def _keep(folder: Path, pool: Pool, number: int, item: Subject, outcome: Outcome) -> None:
    """Save the smallest input that fails like this one."""
    slow = outcome.exit_code < 0
    smallest = item if slow else minimised(item, lambda tried: pool.outcome(tried).failure == outcome.failure)
    name = re.sub(r"\W+", "-", outcome.failure)[:60]
    target = folder / f"{item.kind}-{number}-{name}"
    place(smallest, target)
    (target / "command.txt").write_text("pulptrain " + shlex.join(smallest.arguments) + "\n")
    (target / "said.txt").write_text(f"{outcome.failure}\n{outcome.details}\n")
    print(f"  {item.kind} {number}: {outcome.failure}", flush=True)


def _print(progress: Mapping[str, Any]) -> None:
    columns = ("0", "2", "3", "4", "failed")
    print(f"{'kind':<10}" + "".join(f"{column:>8}" for column in columns))
    for kind, counts in sorted(progress["counts"].items()):
        print(f"{kind:<10}" + "".join(f"{counts.get(column, 0):>8}" for column in columns))
    for failure, numbers in sorted(progress["failures"].items()):
        print(f"{len(numbers):>6}  {failure}  (first: {numbers[0]})")
    print("slowest (CPU seconds, input, kind):", progress["slowest"][-3:])


if __name__ == "__main__":
    sys.exit(main())
