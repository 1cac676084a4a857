# SPDX-License-Identifier: Apache-2.0
"""What the simulation of a program came to, and the same as text for the cache."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, TypeVar

from arch.energy.activity import Activity
from scheduler.options import BEST_DEPTH
from scheduler.plan_figures import OpPlan, PlanFigures
from scheduler.search import rows
from scheduler.time_line import TimeLine
from traces.metrics import CoreMetrics, MasterTime, Metrics, OpMetrics

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Figures:
    """All that a summary says of a run of a program: nothing else of it is asked for where no trace is."""

    metrics: Metrics
    events: int
    line: TimeLine
    kernels: tuple[str, ...]
    """Names of those that ran, sorted."""
    activity: Activity
    plan: PlanFigures


def figures_text(figures: Sequence[Figures]) -> str:
    """For `figures_from`."""
    return json.dumps([asdict(item) for item in figures], separators=(",", ":"))


def figures_from(text: str) -> tuple[Figures, ...]:
    """What `figures_text` has written. Raises `ValueError` or `TypeError` for any other text."""
    return _all(Figures, json.loads(text))


def _made(kind: type[_T], value: object) -> _T:
    if not isinstance(value, Mapping):
        raise ValueError("not an object")
    return kind(**{key: _VALUES.get(key, rows.whole)(item) for key, item in value.items()})


def _all(kind: type[_T], value: object) -> tuple[_T, ...]:
    return tuple(_made(kind, item) for item in rows.items(value))


def _stalls(value: object) -> tuple[tuple[str, int], ...]:
    return tuple((rows.text_in(word), rows.whole(cycles)) for word, cycles in rows.items(value))


def _depth(value: object) -> int:
    return BEST_DEPTH if value == BEST_DEPTH else rows.whole(value)


_VALUES: Mapping[str, Callable[[Any], Any]] = {
    **dict.fromkeys(("name", "step", "kind", "what", "primitive", "variant", "kernel"), rows.text_in),
    "placement": rows.text_in,
    **dict.fromkeys(("tile", "peak_bytes", "lower_bound_bytes", "staged_bytes", "counts"), rows.by_name),
    **dict.fromkeys(("loop_order", "streamed", "resident", "notes"), rows.words),
    "buffer_depth": _depth,
    "cuts": partial(_all, OpPlan),
    "plan": partial(_made, PlanFigures),
    "stalls": _stalls,
    "causes": rows.by_name,
    "utilisation": partial(rows.by_name, read=rows.number),
    "master": partial(_all, MasterTime),
    "cores": partial(_all, CoreMetrics),
    "ops": partial(_all, OpMetrics),
    "total": partial(_made, CoreMetrics),
    "metrics": partial(_made, Metrics),
    "line": rows.line,
    "kernels": rows.words,
    "activity": partial(_made, Activity),
    **dict.fromkeys(("by_op", "by_core"), partial(rows.by_name, read=rows.by_name)),
}
"""By field what reads it; all others are whole numbers."""
