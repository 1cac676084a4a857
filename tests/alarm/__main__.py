"""`make alarm`: every defect in every case and dtype, and the score; then random models without a defect."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from concurrent.futures import ProcessPoolExecutor, as_completed

from alarm.defects import DEFECTS
from alarm.trial import CASES, DTYPES, REFUSED, SURVIVED, Case, tried


def _all_of(case: Case, dtype: str) -> list[tuple[str, str, str]]:
    return [(name, *tried(case, dtype, name)) for name in DEFECTS]


def main() -> int:
    """Print the score by dtype and every survivor; exit code 1 if there is one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", nargs="*", default=[case.model for case in CASES], help="models")
    parser.add_argument("--dtypes", nargs="*", default=DTYPES)
    parser.add_argument("--workers", type=int, default=2)
    arguments = parser.parse_args()
    counts: dict[str, Counter[str]] = {dtype: Counter() for dtype in arguments.dtypes}
    seen: Counter[str] = Counter()
    survivors = []
    with ProcessPoolExecutor(arguments.workers) as pool:
        jobs = {
            pool.submit(_all_of, case, dtype): (case, dtype)
            for case in CASES
            for dtype in arguments.dtypes
            if case.model in arguments.cases
        }
        for job in as_completed(jobs):
            case, dtype = jobs[job]
            for name, verdict, why in job.result():
                counts[dtype][verdict] += 1
                seen[name] += verdict == REFUSED
                if verdict == SURVIVED:
                    survivors.append(f"{case.model} {dtype}: {name}: {why}")
            print(f"done: {case.model} {dtype}", file=sys.stderr, flush=True)
    print(f"{len(DEFECTS)} defects, {len(arguments.cases)} models, 3 iterations")
    for dtype, count in counts.items():
        effective = count[REFUSED] + count[SURVIVED]
        rest = ", ".join(f"{count[word]} {word}" for word in sorted(count) if word not in (REFUSED, SURVIVED))
        print(f"{dtype}: {count[REFUSED]} of {effective} refused; {rest}")
    for line in sorted(survivors):
        print(f"survived: {line}")
    for name in sorted(set(DEFECTS) - {name for name, number in seen.items() if number}):
        print(f"never seen at work: {name}")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
