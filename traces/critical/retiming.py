# SPDX-License-Identifier: Apache-2.0
"""When everything would happen if activities took other times: a walk along the graph of a run."""

from __future__ import annotations

from collections.abc import Sequence

from traces.critical.activities import Graph


def durations(graph: Graph) -> list[int]:
    """What every activity took."""
    return [activity.cycles for activity in graph.activities]


def retimed(graph: Graph, cycles: Sequence[int]) -> list[int]:
    """The end of every activity, if each takes `cycles` and begins when those it comes after have ended.

    Whether a wait finds its transfer over is decided anew, by the rule of the machine. With the cycles of
    the run itself these are the ends of the run.
    """
    ends: list[int] = []
    woken: dict[int, int] = {}
    for number, activity in enumerate(graph.activities):
        start = max([ends[other] for other in activity.after], default=0)
        wait = graph.waits.get(number)
        if wait is not None:
            called, woken[wait.wake] = wait.lags.of(ends[wait.transfer] - start)
            ends.append(start + called)
        else:
            ends.append(start + woken.pop(number, cycles[number]))
    return ends
