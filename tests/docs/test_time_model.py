# SPDX-License-Identifier: Apache-2.0
"""docs/how-time-is-modelled.md: what it adds up by hand is what a run takes, and its picture is today's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.image import imread

from arch.pricing.team_cost_model import TeamCostModel
from arch.pricing.window_plan import START_OFFSETS_CYCLES
from arch.spec.program import Compute
from tools.pages import time_model as page
from tools.pages.page import ROOT
from traces.events import COMPUTE
from traces.pictures.drawing import is_our_picture

TEXT = (ROOT / page.PAGE.path).read_text()


def test_every_row_added_up_by_hand_is_a_slice_of_the_run() -> None:
    outcome = page.relu(1)
    by_hand = page.by_hand(outcome.timing)
    slices = [event for event in outcome.slices if event.track == page.CORE_0]
    assert [(row.kind, row.cycles) for row in by_hand] == [
        (event.kind, event.duration_cycles) for event in slices
    ]
    assert sum(row.cycles for row in by_hand) == outcome.summary["cycles"] == 784
    assert outcome.summary["simulator"]["events"] == 14
    assert "takes 784 cycles" in TEXT.replace("\n", " ")
    assert "The 784 cycles added up below take 14 events" in TEXT.replace("\n", " ")


def test_the_kernel_issues_and_stalls_as_its_text_says() -> None:
    (kernel,) = page.kernel_slices(page.relu(1))
    assert (kernel.instructions, dict(kernel.stalls)) == (
        14 + 9 + 64 * 3 + 2,
        {"load_use": 1 + 64, "branch": 1, "icache": 19},
    )


def test_eight_cores_are_on_the_mean_of_two_starts_where_the_page_says() -> None:
    outcome = page.relu(8)
    kernels = page.kernel_slices(outcome)
    for event in kernels[:7]:
        stalls = dict(event.stalls)
        assert (event.instructions, stalls["load_use"], stalls["branch"]) == (13 + 9 + 8 * 3 + 2, 9, 2 + 1)
    assert kernels[7].instructions + dict(kernels[7].stalls)["load_use"] + 1 == 59
    assert all(dict(event.stalls)["icache"] == 19 for event in kernels)
    assert max(event.end_cycles for event in kernels) == 419
    assert {event.end_cycles for event in outcome.slices if event.kind == "barrier"} == {425}
    assert outcome.summary["cycles"] == 579
    starts = [page.priced_from(outcome, offsets) for offsets in START_OFFSETS_CYCLES]
    for number, event in enumerate(kernels):
        conflicts = [dict(cost.cores[number].stalls).get("bank_conflict", 0) for cost in starts]
        assert dict(event.stalls).get("bank_conflict", 0) == round(sum(conflicts) / 2)


def test_transfers_and_kernels_of_the_picture_slow_each_other_down() -> None:
    outcome = page.two_tiles()
    moved = [event for event in outcome.slices if event.track.startswith("soc.cluster.dma")]
    assert sorted(event.duration_cycles for event in moved)[:3] == [153, 156, 164], "as the page says"
    kernels = [event for event in outcome.slices if event.kind == COMPUTE and event.track == page.CORE_0]
    assert len(kernels) == 2
    assert kernels[0].duration_cycles == 560
    (team, _) = [action.team for action in outcome.schedule.program.actions if isinstance(action, Compute)]
    assert TeamCostModel(outcome.timing).price(team).cycles == 559, "with nothing beside it"


def test_the_picture_shows_every_slice_of_a_run_of_today(tmp_path: Path) -> None:
    picture = ROOT / "docs" / page.PICTURE
    assert is_our_picture(picture)
    assert picture.stat().st_size < 150_000
    assert {event.track for event in page.two_tiles().slices} == set(page._ROWS)
    page.save_figure(page.draw(page.two_tiles()), tmp_path / "today.png", None)
    shown, today = imread(picture), imread(tmp_path / "today.png")
    assert shown.shape == today.shape
    assert np.abs(shown - today).mean() < 0.002, "python -m tools.pages time_model"


def test_letters_are_apart_and_stay_where_they_have_room() -> None:
    assert page._apart([0.0, 10.0, 11.0, 30.0], 3.0) == [0.0, 9.0, 12.0, 30.0]
    assert page._apart([1.0, 2.0, 3.0], 2.0) == [0.0, 2.0, 4.0]
