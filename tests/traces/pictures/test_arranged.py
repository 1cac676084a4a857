# SPDX-License-Identifier: Apache-2.0
"""Pictures of `tune`, `fit`, `explore` and of training: as wide and with text as large as was asked for."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from configs.errors import InputError
from pulptrain.running.training_curve import CurvePoint, draw_curve
from scheduler.explore.grid_picture import draw_grid
from scheduler.explore.picture import draw_front
from traces.pictures.drawing import OWN_PAPER
from traces.pictures.searches import draw_gains, draw_ladder

OPS = [("conv1.FW", 28_661, 18_858), ("fc.UPD", 25_559, 26_263)]
CYCLES = [({"cores": cores, "l1": l1}, 8e5 / cores) for cores in (1, 2, 4, 8) for l1 in ("32KiB", "64KiB")]
CURVE = [CurvePoint(number, 0.01 * number, 1 / number, 0.5) for number in (1, 2, 3)]
FORMS = [
    {"form": "full", "techniques": levers, "bytes": {"l2": 9999}, "cycles": 8} for levers in ([], ["paging"])
]

PICTURES: dict[str, Callable[..., Any]] = {
    "tune": lambda *path, **paper: draw_gains(OPS, "small on pulp-open", *path, **paper),
    "ladder": lambda *path, **paper: draw_ladder(FORMS, "small on pulp-open", *path, **paper),
    "training": lambda *path, **paper: draw_curve(CURVE, "small on pulp-open", *path, **paper),
    "heat map": lambda *path, **paper: draw_grid(CYCLES, ("cores", "l1"), "cycles", "sweep", *path, **paper),
    "front": lambda *path, **paper: draw_front(
        [(1.0, 3.0), (2.0, 2.0), (3.0, 3.0)], [0, 1], ["a", "b"], ("x", "y"), "sweep", *path, **paper
    ),
}


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_has_its_width_and_no_smaller_text(name: str, tmp_path: Path) -> None:
    paper = OWN_PAPER.but(width_inches=3.5, font_points=7.0)
    PICTURES[name](tmp_path / "a.svg", paper=paper)
    svg = (tmp_path / "a.svg").read_text()
    width = re.search(r'<svg [^>]*width="([\d.]+)pt"', svg)
    assert width is not None
    assert float(width[1]) == pytest.approx(3.5 * 72)
    sizes = [float(size) for size in re.findall(r"font(?:-size)?: (?:[a-z]+ )?([\d.]+)px", svg)]
    assert min(sizes) == max(sizes) == 7.0
    with pytest.raises(InputError, match="text of 30 pt does not fit"):
        PICTURES[name](tmp_path / "b.svg", paper=OWN_PAPER.but(width_inches=1.0, font_points=30.0))
