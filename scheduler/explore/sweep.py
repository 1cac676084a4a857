# SPDX-License-Identifier: Apache-2.0
"""Simulates the points of a sweep over any workers, and keeps every result as soon as it is there."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

from scheduler.explore.point import Outcome, Point, simulate_point
from scheduler.search.cache import ResultCache
from scheduler.search.driver import Job, drive
from scheduler.search.fingerprint import model_version
from scheduler.search.progress import Meter, NoMeter
from scheduler.search.rows import text_of, value_of
from scheduler.search.workers import Workers


def simulate_points(
    points: Sequence[Point], workers: Workers, cache: ResultCache | None, meter: Meter | None = None
) -> tuple[dict[int, Outcome], int, bool]:
    """(outcome by position of the point, points taken from the cache, whether Ctrl-C ended it early).

    Equal points are simulated once. Outcomes do not depend on the workers.
    """
    meter = meter or NoMeter()
    by_content: dict[str, list[int]] = {}
    for position, point in enumerate(points):
        by_content.setdefault(point.content, []).append(position)
    # All points of one version of the simulator share a context: their content hash says the rest.
    context = f"explore {model_version()}"
    stored = cache.read(context, lambda _, text: value_of(text, Outcome)) if cache is not None else {}
    outcomes = {content: stored[content] for content in by_content if content in stored}
    cached = sum(len(by_content[content]) for content in outcomes)
    meter.expect(len(by_content) - len(outcomes))

    def arrive(content: str, outcome: Outcome) -> None:
        outcomes[content] = outcome
        if cache is not None:
            cache.write(context, {content: text_of(outcome)})
        meter.done(1)

    def one(content: str) -> Generator[Sequence[Job], Sequence[Any], None]:
        point = points[by_content[content][0]]
        yield [Job(simulate_point, (point,), lambda outcome: arrive(content, outcome))]

    interrupted = False
    try:
        drive([one(content) for content in by_content if content not in outcomes], workers)
    except KeyboardInterrupt:
        interrupted = True
    by_position = {position: outcomes[content] for content in outcomes for position in by_content[content]}
    return dict(sorted(by_position.items())), cached, interrupted
