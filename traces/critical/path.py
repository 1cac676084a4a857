# SPDX-License-Identifier: Apache-2.0
"""The critical path of a run: what its length consists of, by resource and by op, and the slack of the rest.

The path is found from the end: what an activity waited for longest comes before it. One activity follows
the other without a gap, so that their cycles add up to the makespan.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from configs.values import Struct
from traces.critical.activities import FABRIC, START_UP, Activity, Graph
from traces.events import COMPUTE, TRANSFER
from traces.text_table import Table, first_line_repr
from traces.totals import summed
from traces.tracks import UDMA, op_label, track_name

COLUMNS = ("compute", "fork and join", "DMA code", "wake-up", "DMA in", "DMA out", "L3", "offload")
"""What activities are told apart by, in the order they are shown."""

_OF_CORE = {COMPUTE: "compute", "dma_program": "DMA code", "dma_wait": "wake-up", "offload": "offload"}
_L3 = track_name(UDMA).label


class CriticalPath(Struct, frozen=True):
    """The path: its activities in order, and by (column, op) the least slack of those that are not on it.

    Slack is what one activity alone may take longer before the run does. `cycles` is the makespan.
    """

    activities: tuple[Activity, ...]
    slack_cycles: Mapping[tuple[str, str], int]

    @property
    def cycles(self) -> int:
        """Its length."""
        return sum(activity.cycles for activity in self.activities)

    __repr__ = first_line_repr

    def __str__(self) -> str:
        return "\n".join(path_lines(self, 10, 120))

    def resources(self) -> dict[tuple[str, str], int]:
        """Cycles on the path by resource and column, the most first."""
        cycles = summed(((item.resource, column_of(item)), item.cycles) for item in self.activities)
        return dict(sorted(cycles.items(), key=lambda item: -item[1]))

    def ops(self) -> dict[str, dict[str, int]]:
        """Cycles on the path by op and column, ops in the order of the run; those of no op under ""."""
        by_op: dict[str, dict[str, int]] = {}
        for activity in self.activities:
            op = by_op.setdefault(_op_of(activity), dict.fromkeys(COLUMNS, 0))
            op[column_of(activity)] += activity.cycles
        return by_op


def critical_path(graph: Graph) -> CriticalPath:
    """The path of an executed program. Of activities that end together the first goes before."""
    activities = graph.activities
    path: list[int] = []
    number = len(activities) - 1
    while number >= 0:
        path.append(number)
        number = max(activities[number].after, key=lambda other: activities[other].end_cycles, default=-1)
    on_path = set(path)
    least: dict[tuple[str, str], int] = {}
    for number, cycles in enumerate(slacks(graph)):
        if number not in on_path:
            key = column_of(activities[number]), _op_of(activities[number])
            least[key] = min(cycles, least.get(key, cycles))
    taken = [activities[number] for number in reversed(path)]
    return CriticalPath(tuple(activity for activity in taken if activity.cycles), least)


def slacks(graph: Graph) -> list[int]:
    """What every activity may end later before the run does; one that nothing waits for, until its end."""
    latest = [graph.cycles] * len(graph.activities)
    for number in range(len(graph.activities) - 1, -1, -1):
        activity = graph.activities[number]
        for other in activity.after:
            latest[other] = min(latest[other], latest[number] - activity.cycles)
    return [
        max(0, late - activity.end_cycles) for late, activity in zip(latest, graph.activities, strict=True)
    ]


def column_of(activity: Activity) -> str:
    """One of `COLUMNS`."""
    if activity.kind in (TRANSFER, START_UP):
        return "L3" if activity.resource == _L3 else activity.resource
    return "offload" if activity.resource == FABRIC else _OF_CORE.get(activity.kind, "fork and join")


def path_json(path: CriticalPath, summary: Mapping[str, Any]) -> dict[str, Any]:
    """The path for machines: cycles by resource and by op both sum to `cycles`."""
    ops = path.ops()
    return {
        "model": summary["model"],
        "soc": summary["soc"],
        "cycles": path.cycles,
        "critical_path": [
            {"resource": resource, "what": column, "cycles": cycles}
            for (resource, column), cycles in path.resources().items()
        ],
        "ops": [
            {
                "name": name,
                "cycles": sum(columns.values()),
                "on_path_cycles": {column: cycles for column, cycles in columns.items() if cycles},
                "slack_cycles": {
                    column: path.slack_cycles[column, name]
                    for column in COLUMNS
                    if (column, name) in path.slack_cycles
                },
            }
            for name, columns in ops.items()
        ],
    }


def path_lines(path: CriticalPath, top: int, width: int) -> list[str]:
    """Tables of what is on the path, by resource and by op, and of the slack beside it."""
    whole = max(path.cycles, 1)
    resources = list(path.resources().items())
    by_resource = [
        (f"{resource}, {column}" if resource != column else resource, f"{cycles:,}", f"{cycles / whole:.1%}")
        for (resource, column), cycles in resources[:top]
    ]
    if left := sum(cycles for _, cycles in resources[top:]):
        by_resource.append((_others(len(resources) - top), f"{left:,}", f"{left / whole:.1%}"))
    named = sorted(path.ops().items(), key=lambda item: -sum(item[1].values()))
    rows = [_row(name or "(no op)", columns, whole) for name, columns in named[:top]]
    if len(named) > top:
        rest = {column: sum(columns[column] for _, columns in named[top:]) for column in COLUMNS}
        rows.append(_row(_others(len(named) - top), rest, whole))
    moving = ("DMA in", "DMA out", "L3")
    slack = [
        (name, *(_number(path.slack_cycles.get((column, name))) for column in moving))
        for name, _ in named[:top]
        if name
    ]
    return [
        f"critical path  {path.cycles:,} cycles, {len(path.activities):,} activities",
        "",
        *Table(("on the path", "cycles", "share"), by_resource).lines(width),
        "",
        *Table(("ops on the path", "cycles", "share", *COLUMNS), rows).lines(width),
        "",
        *Table(("least slack of other work", *moving), slack).lines(width),
    ]


def _row(name: str, columns: Mapping[str, int], whole: int) -> Sequence[str]:
    cycles = sum(columns.values())
    return (
        name,
        f"{cycles:,}",
        f"{cycles / whole:.1%}",
        *(_number(columns[column] or None) for column in COLUMNS),
    )


def _others(count: int) -> str:
    return f"{count} other{'s' if count > 1 else ''}"


def _number(cycles: int | None) -> str:
    return "" if cycles is None else f"{cycles:,}"


def _op_of(activity: Activity) -> str:
    return op_label(activity.work.op, activity.work.step) if activity.work.op else ""
