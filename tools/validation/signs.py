# SPDX-License-Identifier: Apache-2.0
"""Single against double buffering, op by op of exported programs: is what was faster predicted to be?"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from scheduler.validation.rows.statistics import Result
from scheduler.validation.rows.steps import FIRST

LEAST_PERCENT = 2.0
"""A measured difference that is looked at."""


@dataclass(frozen=True, slots=True)
class Pair:
    """An op that was executed with single and with double buffers."""

    single: Result
    double: Result

    @property
    def tiles(self) -> tuple[int, int]:
        """With single and with double buffers."""
        return int(self.single.case.cells["tiles"]), int(self.double.case.cells["tiles"])

    @property
    def is_one_program(self) -> bool:
        """Whether both runs executed the same: of one tile no operand has a second buffer."""
        return self.tiles == (1, 1)

    def percent(self, column: str = "") -> float:
        """By how much double buffers take longer, predicted or in a measured column."""
        single, double = (
            each.case.number(column) if column else each.prediction.cycles
            for each in (self.single, self.double)
        )
        return 100.0 * (double / single - 1)

    @property
    def is_right(self) -> bool:
        """Whether the sign is predicted."""
        return self.percent() * self.percent(self.single.column) > 0


def pairs(results: Sequence[Result]) -> list[Pair]:
    """Those of the results of a set of KIND steps."""
    found = defaultdict[tuple[str, ...], dict[str, Result]](dict)
    for result in results:
        key = (*[result.case.text(name) for name in ("model", "op")], str(result.case.number("cores")))
        found[key][result.case.text("buffering")] = result
    return [Pair(each["single"], each["double"]) for each in found.values() if len(each) > 1]


def _of(found: Sequence[Pair]) -> str:
    right = sum(pair.is_right for pair in found)
    return f"all {right}" if right == len(found) else f"{right} of the {len(found)}"


def section(results: Sequence[Result]) -> list[str]:
    """The lines of the page, if there are pairs."""
    found = pairs(results)
    column = found[0].single.column if found else ""
    noise = [abs(pair.percent(column)) for pair in found if pair.is_one_program]
    if not noise:
        return []
    seen = [pair for pair in found if abs(pair.percent(column)) > LEAST_PERCENT]
    cut, alike = ([pair for pair in seen if pair.is_one_program is same] for same in (False, True))
    flips = sum(pair.percent(FIRST) * pair.percent(column) < 0 for pair in alike)
    p50, p95 = (float(np.percentile(noise, share)) for share in (50, 95))
    lines = [
        "## Single against double buffering",
        "",
        "Does the model predict whether double buffering makes an op faster or slower? "
        f"{len(found)} ops were executed with single and with double buffers; {len(seen)} of them differ by "
        f"more than {LEAST_PERCENT:.0f} %. {len(cut)} of these have several tiles; the predicted sign is "
        f"right for {_of(cut)}. The other {len(alike)} have one tile in "
        "both runs, so they execute the same kernels. Their cycles differ only because code and data are at "
        "other addresses, the caches hold other lines, and loads for the next op start earlier. This "
        f"difference is the noise: over all {len(noise)} ops of one tile it is {p50:.1f} % in the median, "
        f"{p95:.1f} % at the 95th percentile and {max(noise):.1f} % at most. Of these {len(alike)} ops, "
        f"{flips} even have another sign in the first iteration than later. The predicted sign is right for "
        f"{_of(alike)}.",
        "",
        "The table has the change of an op's cycles by double buffering in % (+: slower), measured in later "
        "iterations and in the first one, and predicted for later ones.",
        "",
        "| model | op | tiles, single and double | measured | measured, first | predicted | predicted sign |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for pair in sorted(seen, key=lambda pair: (pair.is_one_program, -abs(pair.percent(column)))):
        case = pair.single.case
        cells = (
            *(case.text("model"), case.text("op"), " and ".join(map(str, pair.tiles))),
            *(f"{pair.percent(name):+.1f}" for name in (column, FIRST, "")),
            "right" if pair.is_right else "**wrong**",
        )
        lines.append(f"| {' | '.join(cells)} |")
    return [*lines, ""]
