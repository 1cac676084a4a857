# SPDX-License-Identifier: Apache-2.0
"""`make alarm`: every defect in every case and dtype, and the score; then runs without a defect.

Those are the zoo in three dtypes with seeds 0 to 4, and random models, with PyTorch and as if it were not
installed. Progress goes to standard error, the score to standard output.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial

from alarm.formula_defects import FORMULA_DEFECTS
from alarm.graph_defects import GRAPH_DEFECTS, GraphDefect, tried
from alarm.late import DRAWN, ITERATIONS, SURE, refused, seeds_that_draw
from alarm.random_models import all_of
from alarm.registry import DEFECTS
from alarm.trial import CASES, DTYPES, REFUSED, SURVIVED, all_defects, zoo_verdicts
from configs.library import list_names

Line = tuple[str, str, str]
"""(what was tried, verdict, why)."""


def _carried_out(jobs: dict[str, Callable[[], list[Line]]], workers: int) -> Iterable[tuple[str, list[Line]]]:
    # A process per job: one that takes PyTorch for not installed must not try anything else.
    with ProcessPoolExecutor(workers, max_tasks_per_child=1) as pool:
        futures = {pool.submit(job): name for name, job in jobs.items()}
        for number, future in enumerate(as_completed(futures), 1):
            print(f"{number} of {len(futures)}: {futures[future]}", file=sys.stderr, flush=True)
            yield futures[future], future.result()


def _score(names: list[str], models: list[str], dtypes: list[str], workers: int) -> bool:
    """Print how many defects were refused; whether none survived."""
    jobs = {
        f"{dtype} {case.model}": partial(all_defects, case, dtype, names)
        for case in CASES
        for dtype in dtypes
        if case.model in models
    }
    counts: dict[str, Counter[str]] = {dtype: Counter() for dtype in dtypes}
    refused: set[str] = set()
    survivors = []
    for job, lines in _carried_out(jobs, workers):
        for name, verdict, why in lines:
            counts[job.partition(" ")[0]][verdict] += 1
            if verdict == REFUSED:
                refused.add(name)
            if verdict == SURVIVED:
                survivors.append(f"survived: {job}: {name}: {why}")
    print(f"{len(names)} defects in {len(jobs) // len(dtypes)} models, 3 iterations")
    for dtype, count in counts.items():
        rest = ", ".join(f"{count[word]} {word}" for word in sorted(count) if word not in (REFUSED, SURVIVED))
        print(f"{dtype}: {count[REFUSED]} of {count[REFUSED] + count[SURVIVED]} refused; {rest}")
    print("\n".join(sorted(survivors)) or "no survivor")
    for name in sorted(set(names) - refused):
        print(f"refused nowhere: {name}")
    return not survivors


def _torch_score(where: str, defects: Mapping[str, GraphDefect]) -> bool:
    """Print how many defects that only PyTorch can tell were refused, and why; whether none survived."""
    found = {name: tried(defect) for name, defect in defects.items()}
    survivors = [name for name, (verdict, _) in found.items() if verdict == SURVIVED]
    print(f"{where}: {len(defects) - len(survivors)} of {len(defects)} refused")
    print("\n".join(f"{verdict}: {name}: {why}" for name, (verdict, why) in found.items()))
    return not survivors


def _late_score() -> bool:
    """Print how often defects of one iteration were refused, whichever was drawn; whether as they must be."""
    seeds = [next(seeds_that_draw(number)) for number in range(4, ITERATIONS)]
    counts = {name: sum(refused(how, seed) for seed in seeds) for name, how in (SURE | DRAWN).items()}
    for name, count in counts.items():
        print(f"iteration 6 of {ITERATIONS}: refused {count} of {len(seeds)} times: {name}")
    return all(counts[name] == (len(seeds) if name in SURE else 1) for name in counts)


def _false_alarms(jobs: dict[str, Callable[[], list[Line]]], workers: int) -> bool:
    """Print the verdicts on runs without a defect; whether none was called wrong."""
    counts: dict[str, Counter[str]] = {}
    told = []
    for job, lines in _carried_out(jobs, workers):
        for name, verdict, why in lines:
            counts.setdefault(job.partition(":")[0], Counter())[verdict] += 1
            if verdict not in ("right", "refused"):
                told.append(f"{verdict}: {job} {name}: {why}")
    for kind, count in sorted(counts.items()):
        print(f"{kind}: " + ", ".join(f"{number} {word}" for word, number in sorted(count.items())))
    print("\n".join(sorted(told)) or "no alarm, nothing undecided")
    return not any(line.startswith("ALARM") for line in told)


def main() -> int:
    """Print the scores; exit code 1 for a survivor or a false alarm."""
    parser = argparse.ArgumentParser(prog="python -m alarm", description=__doc__)
    parser.add_argument(
        "--parts", nargs="*", default=["defects", "graph", "formulas", "late", "zoo", "random"]
    )
    parser.add_argument("--only", nargs="*", default=[""], help="defects with one of these in their names")
    parser.add_argument("--models", nargs="*", default=[case.model for case in CASES])
    parser.add_argument("--zoo", nargs="*", default=list(list_names("models")))
    parser.add_argument("--dtypes", nargs="*", default=list(DTYPES))
    parser.add_argument("--seeds", type=int, default=5, help="seeds of the zoo")
    parser.add_argument("--count", type=int, default=500, help="random models, with and without PyTorch each")
    parser.add_argument("--workers", type=int, default=2)
    given = parser.parse_args()
    fine = True
    if "defects" in given.parts:
        names = [name for name in DEFECTS if any(word in name for word in given.only)]
        fine &= _score(names, given.models, given.dtypes, given.workers)
    if "graph" in given.parts:
        fine &= _torch_score("model to graph", GRAPH_DEFECTS)
    if "formulas" in given.parts:
        fine &= _torch_score("formulas", FORMULA_DEFECTS)
    if "late" in given.parts:
        fine &= _late_score()
    if "zoo" in given.parts:
        zoo = {
            f"zoo {dtype}: {model}": partial(zoo_verdicts, model, dtype, range(given.seeds))
            for model in given.zoo
            for dtype in given.dtypes
        }
        fine &= _false_alarms(zoo, given.workers)
    if "random" in given.parts:
        parts = {
            f"random {'with' if torch else 'without'} PyTorch: {start}": partial(
                all_of, range(start, min(start + 25, given.count)), torch=torch
            )
            for torch in (True, False)
            for start in range(0, given.count, 25)
        }
        fine &= _false_alarms(parts, given.workers)
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
