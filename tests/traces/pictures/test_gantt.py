# SPDX-License-Identifier: Apache-2.0
import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.image import imread

from configs.errors import InputError
from shared.synthetic_trace import training_run
from traces.events import COMPUTE, STALLS, TRANSFER, Slice, Work
from traces.metrics import measure
from traces.pictures.bars import Bar, overlay, to_columns
from traces.pictures.drawing import DPI, Paper, text_points
from traces.pictures.gantt import chart_rows, draw_gantt
from traces.pictures.op_strip import op_bands, op_spans
from traces.pictures.palette import BUSY_STYLE, STALL_STYLES, STEP_STYLES, ink_on, mixed_colour
from traces.pictures.timeline import TimeAxis

CLOCK_HZ = 100_000_000
FW, WG = Work("fc", "FW", 0), Work("fc", "WG", 0)


def test_slices_on_the_grid_keep_their_edges_and_meet_in_mixed_columns() -> None:
    bars = [Bar(0, 20, (("FW", 20),)), Bar(20, 22, (("barrier", 2),)), Bar(22, 32, (("FW", 10),))]
    assert to_columns(bars, 0, 32, 4) == [
        Bar(0, 16, (("FW", 16),)),
        Bar(16, 24, (("FW", 6), ("barrier", 2))),
        Bar(24, 32, (("FW", 8),)),
    ]


def test_touching_tiles_of_one_step_become_one_bar() -> None:
    tiles = [Bar(start, start + 10, (("FW", 10),)) for start in range(0, 100, 10)]
    assert to_columns(tiles, 0, 100, 10) == [Bar(0, 100, (("FW", 100),))]


@settings(derandomize=True, deadline=None, max_examples=100)
@given(
    widths=st.lists(st.tuples(st.integers(0, 30), st.integers(1, 40)), max_size=25),
    columns=st.integers(1, 60),
    window=st.tuples(st.integers(0, 300), st.integers(1, 600)),
)
def test_the_area_of_a_colour_is_its_cycles(
    widths: list[tuple[int, int]], columns: int, window: tuple[int, int]
) -> None:
    bars, now = [], 0
    for index, (gap, width) in enumerate(widths):
        now += gap
        bars.append(Bar(now, now + width, (("a" if index % 3 else "b", width),)))
        now += width
    start, end = window[0], window[0] + window[1]
    gridded = to_columns(bars, start, end, columns)
    assert len(gridded) <= columns
    for name in ("a", "b"):
        wanted = sum(
            max(min(bar.end_cycles, end) - max(bar.start_cycles, start), 0)
            for bar in bars
            if bar.parts[0][0] == name
        )
        drawn = sum(cycles for bar in gridded for part, cycles in bar.parts if part == name)
        assert drawn == pytest.approx(wanted)
    for before, after in itertools.pairwise(gridded):
        assert after.start_cycles >= before.end_cycles - 1e-6


def test_transfers_in_flight_together_share_the_height_of_their_row() -> None:
    assert overlay([Bar(0, 10, (("FW", 10),)), Bar(5, 15, (("WG", 10),)), Bar(20, 25, (("FW", 5),))]) == [
        Bar(0, 5, (("FW", 5),)),
        Bar(5, 10, (("FW", 2.5), ("WG", 2.5))),
        Bar(10, 15, (("WG", 5),)),
        Bar(20, 25, (("FW", 5),)),
    ]


def test_rows_stand_in_reading_order_and_channels_share_one() -> None:
    slices = [
        Slice("soc.cluster.core10", 0, 9, "idle"),
        Slice("soc.cluster.core2", 0, 9, COMPUTE, FW, (("fpu", 3),)),
        Slice("soc.cluster.dma.out1", 0, 9, TRANSFER, FW),
        Slice("soc.cluster.dma.in0", 0, 4, TRANSFER, FW),
        Slice("soc.cluster.dma.in1", 4, 9, TRANSFER, WG),
        Slice("soc.l2.port", 0, 9, TRANSFER, WG),
    ]
    assert list(chart_rows(slices, "step")) == ["DMA in", "DMA out", "core 2", "core 10"]
    staged = Slice("soc.udma", 2, 8, TRANSFER, Work("fc", "WG", what="fc.weight"), bytes=64)
    rows = chart_rows([*slices, staged, Slice("soc.udma", 8, 8, TRANSFER, WG)], "step")
    assert list(rows) == ["uDMA L3", "DMA in", "DMA out", "core 2", "core 10"]
    assert rows["uDMA L3"] == [Bar(2, 8, (("WG", 6),))]
    assert chart_rows(slices, "stall")["core 2"] == [Bar(0, 9, (("busy", 6), ("fpu", 3)))]


def test_names_of_ops_never_collide() -> None:
    ops = measure(training_run(cores=1)).ops * 3  # names of three iterations over each other: many bands
    end, paper = max(op.end_cycles for op in ops), Paper()
    points = 9.75 * 72 / end
    bands = op_bands(op_spans(ops), 0, end, points, paper)
    assert {band.placed for band in bands} >= {"inside", "above"}
    for before, after in itertools.pairwise(bands):
        assert before.end_cycles <= after.start_cycles
    for band in bands:
        if band.placed == "inside":
            assert text_points(band.name, paper.font_points) < (band.end_cycles - band.start_cycles) * points
    above = [(band.start_cycles + band.end_cycles) / 2 * points for band in bands if band.placed == "above"]
    assert all(after - before > paper.font_points for before, after in itertools.pairwise(above))


def rgb(colour: str) -> list[int]:
    return [int(colour[at : at + 2], 16) for at in (1, 3, 5)]


def has_colour(path: Path, colour: str, columns: slice, least_pixels: int) -> bool:
    pixels = np.rint(imread(path)[:, columns, :3] * 255).astype(int)
    return int((pixels == rgb(colour)).all(axis=2).sum()) >= least_pixels


def test_the_colours_stand_where_the_slices_are(tmp_path: Path) -> None:
    slices = [
        Slice("soc.cluster.core0", 0, 500, COMPUTE, FW, (("fpu", 250),)),
        Slice("soc.cluster.core0", 500, 1000, COMPUTE, WG),
        Slice("soc.cluster.dma.in", 0, 1000, TRANSFER, WG, bytes=8),
    ]
    step, stall = tmp_path / "step.png", tmp_path / "stall.png"
    draw_gantt(slices, 1000, CLOCK_HZ, step, ops=())
    draw_gantt(slices, 1000, CLOCK_HZ, stall, colour_by="stall", ops=())
    time = TimeAxis.beside(["DMA in", "core 0"], (0, 1000), CLOCK_HZ, Paper())
    left = round(time.left_inches * DPI)
    first, second = slice(left + 5, left + 600), slice(left + time.columns // 2 + 5, left + time.columns - 5)
    bar_pixels = 595 * 25  # a bar is at least 25 pixels high, minus its text
    assert has_colour(step, STEP_STYLES["FW"].colour, first, bar_pixels)
    # the legend below stands in the same columns but its patches are small
    assert not has_colour(step, STEP_STYLES["FW"].colour, second, 2000)
    assert has_colour(step, STEP_STYLES["WG"].colour, second, 2 * bar_pixels)
    assert has_colour(stall, STALL_STYLES["fpu"].colour, first, bar_pixels // 2)
    assert has_colour(stall, BUSY_STYLE.colour, second, bar_pixels)


@pytest.mark.parametrize(
    ("step", "drawn"),
    [("FW_MEAN", "FW"), ("FW_KNOWN", "FW"), ("IG_APPLY", "IG"), ("LOSS", "LOSS"), ("", "other")],
)
def test_parts_of_a_step_have_its_colour(step: str, drawn: str) -> None:
    work = Work("bn", step, 0)
    slices = [Slice("soc.cluster.core0", 0, 5, COMPUTE, work), Slice("soc.udma", 5, 9, TRANSFER, work)]
    assert chart_rows(slices, "step") == {
        "uDMA L3": [Bar(5, 9, ((drawn, 4),))],
        "core 0": [Bar(0, 5, ((drawn, 5),))],
    }
    assert ink_on(step) == ink_on(drawn)


def test_a_lifelike_run_gives_small_files_equal_from_run_to_run(tmp_path: Path) -> None:
    slices = training_run().slices
    run = measure(slices)
    for name in ("a", "b"):
        for colour_by in ("step", "stall"):
            png, svg = tmp_path / f"{name}-{colour_by}.png", tmp_path / f"{name}-{colour_by}.svg"
            draw_gantt(slices, run.makespan_cycles, CLOCK_HZ, png, svg, colour_by=colour_by, title="t")
    files = sorted(path.name[2:] for path in tmp_path.glob("a-*"))
    assert len(files) == 4
    for file in files:
        written = (tmp_path / f"a-{file}").read_bytes()
        assert written == (tmp_path / f"b-{file}").read_bytes()
        assert 10_000 < len(written) < 1_000_000


def test_a_close_up_labels_its_tiles_and_gives_exact_vector_bars(tmp_path: Path) -> None:
    svg = tmp_path / "zoom.svg"
    slices = training_run(cores=2).slices
    draw_gantt(slices, 300_000, CLOCK_HZ, None, svg, window=(30_000, 38_000))
    text = svg.read_text()
    assert ">tile 1 mm_2x2<" in text
    assert "<image" not in text


def test_every_word_has_a_look_of_its_own() -> None:
    looks = {(look.colour, look.hatch) for look in STALL_STYLES.values()}
    assert set(STALL_STYLES) == set(STALLS)
    assert len(looks | {(BUSY_STYLE.colour, "")}) == len(STALLS) + 1


def test_a_mixed_pixel_has_the_mean_colour_and_gaps_are_white() -> None:
    assert mixed_colour((("FW", 5.0),), 10) == pytest.approx(
        [(v / 255 + 1) / 2 for v in rgb(STEP_STYLES["FW"].colour)]
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"window": (50, 50)}, "window from cycle 50 to 50 is not valid"),
        ({"window": (-5, 50)}, "window from cycle -5"),
        ({"colour_by": "taste"}, "colour_by: unknown value 'taste'"),
    ],
)
def test_requests_that_make_no_picture_are_refused(
    tmp_path: Path, options: dict[str, object], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        draw_gantt([], 100, CLOCK_HZ, tmp_path / "x.png", **options)  # type: ignore[arg-type]


def test_an_empty_run_an_unwritable_folder_and_a_stopped_clock_are_input_errors(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="window from cycle 0 to 0"):
        draw_gantt([], 0, CLOCK_HZ, tmp_path / "x.png")
    with pytest.raises(InputError, match="cannot be written"):
        draw_gantt([], 10, CLOCK_HZ, tmp_path / "nowhere" / "x.png")
    with pytest.raises(InputError, match="the clock is 0 Hz"):
        draw_gantt([], 10, 0, tmp_path / "x.png")
