# SPDX-License-Identifier: Apache-2.0
"""The picture of a sweep: every line is seen and named, and lines that would lie on each other are one."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations, product
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

from scheduler.explore.grid_picture import MOST_LINES, draw_grid

CORES, L1, L2 = (1, 2, 4, 8), ("32KiB", "48KiB", "64KiB"), ("512KiB", "1MiB", "1536KiB")


def drawn_lines(points: Any, monkeypatch: pytest.MonkeyPatch, folder: Path) -> tuple[Figure, list[Any]]:
    saved: list[Figure] = []
    monkeypatch.setattr(Figure, "savefig", lambda self, path, **_: (saved.append(self), Path(path).touch()))
    assert draw_grid(points, ("cores", "l1", "l2"), "cycles", "a sweep", folder / "grid.png")
    (figure,) = saved
    return figure, list(figure.axes[0].get_lines())


def test_nine_lines_that_lie_on_each_other_are_one_per_value_that_matters(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def cycles(values: Mapping[str, Any]) -> float:
        return float(8000 / values["cores"] + (900 if values["l1"] == "32KiB" else 0))

    points = [dict(zip(("cores", "l1", "l2"), point, strict=True)) for point in product(CORES, L1, L2)]
    figure, lines = drawn_lines([(p, cycles(p)) for p in points], monkeypatch, tmp_path)
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == [
        "l1 32KiB, any l2",
        "l1 48KiB or 64KiB, any l2",
    ]
    assert lines[1].get_ydata() == pytest.approx([8000, 4000, 2000, 1000])
    figure.canvas.draw()
    box, plot = legend.get_window_extent(), figure.axes[0].get_tightbbox()
    assert box.height < 0.25 * figure.bbox.height
    assert box.y0 >= 0
    assert plot is not None
    assert box.y1 <= plot.y0 + 1, "the legend is below the axes"


def test_lines_that_are_drawn_are_apart_and_differ_in_more_than_colour(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    names = ("cores", "l1", "l2")
    points = [
        (dict(zip(names, point, strict=True)), 1000.0 * point[0] + 160 * (at % 16) + 3 * (at % 5))
        for at, point in enumerate(product(CORES, range(4), range(4)))
    ]
    figure, lines = drawn_lines(points, monkeypatch, tmp_path)
    assert len(lines) == MOST_LINES
    highest = max(number for _, number in points)
    for one, other in combinations(lines, 2):
        apart = max(abs(a - b) for a, b in zip(one.get_ydata(), other.get_ydata(), strict=True))
        assert apart > 0.01 * highest
        assert (one.get_marker(), one.get_linestyle()) != (other.get_marker(), other.get_linestyle())
    assert "not drawn" in figure.legends[0].get_title().get_text()
