# SPDX-License-Identifier: Apache-2.0
"""docs/pictures.md: a table of a speed-up, and the pictures it shows."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache, partial

from configs.values import replace
from pulptrain.inputs.settings import Settings
from pulptrain.running.outputs import blocks_of
from pulptrain.running.pictures import RunPictures, window_of
from pulptrain.running.session import RunOutcome, run_model
from tools.pages.page import ROOT, Page, golden
from traces.pictures.drawing import Paper
from traces.speed_up import speed_up_of

MODEL, LARGE = "tutorial-cnn", "gru-keywords"
CORES = (1, 2, 8)
SHOWN = (
    ("close-up", MODEL, "gantt", "fc.IG", Paper(9.0)),
    ("overview", LARGE, "gantt", "", Paper(9.0)),
    ("roofline", MODEL, "roofline", "", Paper(6.0)),
)
"""File, model, picture, window and size."""
WIDTH = 100


@cache
def outcome(model: str, cores: int = 8) -> RunOutcome:
    """A run without numbers."""
    return run_model(model, settings=Settings(cores=cores), functional=False)


def speed_up() -> str:
    """The table of the page."""
    runs = [outcome(MODEL, cores).summary for cores in CORES]
    return "\n".join(["```", *speed_up_of(runs, [f"{cores}" for cores in CORES]).lines(WIDTH, 5), "```"])


class PicturesPage(Page):
    """The page with its pictures."""

    def write(self, names: Iterable[str]) -> None:
        """Write the block, and the pictures."""
        super().write(names)
        for file, model, what, window, paper in SHOWN:
            made = outcome(model)
            run = RunPictures(made.slices, made.summary, partial(blocks_of, made), paper=paper)
            shown = window_of(window, run.ops, run.cycles) if window else None
            replace(run, window=shown).draw(what, ROOT / "docs" / f"picture-{file}.png")


PAGE = PicturesPage("docs/pictures.md", {"speed_up": speed_up}, {"speed_up": lambda: [golden(MODEL), CORES]})
