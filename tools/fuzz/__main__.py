# SPDX-License-Identifier: Apache-2.0
"""`make fuzz SEED=0 COUNT=20000`: run inputs, keep what fails, go on where an earlier run stopped.

Everything lies below ``out/fuzz/SEED``: `progress.json` (what is done, and by kind how it ended) and, per
defect, a folder with the smallest input found: its files, ``command.txt`` and what was said. An input fails
that ends with a traceback or an exit code not its own, writes or changes what was not asked for, takes more
than 1 GiB of memory, or more than 20 s of processor time: a busy computer makes no input fail.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import sys
import time
from pathlib import Path

from tools.fuzz import tally as tallies
from tools.fuzz.folder import place
from tools.fuzz.pool import Pool, minimised
from tools.fuzz.subject import ROOT, Subject
from tools.fuzz.subjects import KINDS, base_files, subject
from tools.fuzz.worker import Outcome

BATCH = 100
"""Inputs between two looks at the progress file."""


def main() -> int:
    """Run the inputs that are not done; exit code 1 if any failed."""
    asked = _parser().parse_args()
    folder = Path(asked.out).resolve() / str(asked.seed)
    folder.mkdir(parents=True, exist_ok=True)
    kinds = asked.kinds.split(",") if asked.kinds else list(KINDS)
    tally = tallies.read(folder, kinds)
    os.environ["PULPTRAIN_NO_CACHE"] = "1"
    base_files()
    started, first = time.monotonic(), tally.next
    pool = Pool(asked.workers, folder / "work")
    try:
        while tally.next < asked.count and time.monotonic() - started < asked.seconds:
            numbers = range(tally.next, min(tally.next + BATCH, asked.count))
            items = ((number, subject(asked.seed, number, kinds)) for number in numbers)
            for number, item, outcome in sorted(pool.outcomes(items), key=lambda done: done[0]):
                if tally.add(number, item, outcome):
                    _keep(folder, pool, number, item, outcome)
            tally.next = numbers.stop
            tallies.write(tally, folder)
            rate = (tally.next - first) / (time.monotonic() - started)
            print(f"{tally.next}/{asked.count}, {rate:.1f}/s, {tally.failed()} failed", flush=True)
    finally:
        pool.end()
    print("\n".join(tally.lines()))
    return 1 if tally.failed() else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="make fuzz", description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after this, to go on later")
    parser.add_argument("--kinds", default="", help=f"some of {','.join(KINDS)}")
    parser.add_argument("--out", default=str(ROOT / "out" / "fuzz"))
    return parser


def _keep(folder: Path, pool: Pool, number: int, item: Subject, outcome: Outcome) -> None:
    """Save the smallest input that fails like this one."""
    slow = outcome.exit_code < 0
    smallest = item if slow else minimised(item, lambda tried: pool.outcome(tried).failure == outcome.failure)
    name = re.sub(r"\W+", "-", outcome.failure)[:60]
    target = folder / f"{item.kind}-{number}-{name}"
    place(smallest, target)
    output = f" > {smallest.stdout}" if smallest.stdout else ""
    command = f"pulptrain {shlex.join(smallest.arguments)}{output}\n"
    said = f"{outcome.failure}\n{outcome.details}\n"
    for file, text in (("command.txt", command), ("said.txt", said)):
        (target / file).write_bytes(text.encode(errors="surrogateescape"))
    print(f"  {item.kind} {number}: {outcome.failure}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
