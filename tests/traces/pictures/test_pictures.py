# SPDX-License-Identifier: Apache-2.0
"""What holds of every picture: text is text and large enough, nothing is cut, colours stay apart."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.axis import Axis, Tick
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Text

import pulptrain as pt
from configs.errors import InputError
from configs.values import replace
from pulptrain.python.result import Result
from pulptrain.running.pictures import PICTURES, RunPictures, Window, window_of
from traces.causes import GROUPS
from traces.memory_table import MemoryBlock
from traces.metrics import OpMetrics, measure
from traces.parts import windowed
from traces.pictures.bars import profile
from traces.pictures.drawing import Paper, is_our_picture
from traces.pictures.memory_map import KIND_STYLES, live_bytes
from traces.pictures.palette import (
    CAUSE_STYLES,
    INWARD_STYLE,
    KERNEL_LOOKS,
    MOVING_STYLE,
    OFF_CHIP_STYLE,
    OTHER_KERNELS,
    OUTWARD_STYLE,
    STALL_ORDER,
    STALL_STYLES,
    STEP_STYLES,
    Style,
    lightness,
    style,
)
from traces.pictures.stacked_bars import cause_rows, layer_rows
from traces.pictures.unit_gantt import LOOKS

MOVED = (INWARD_STYLE, OUTWARD_STYLE, OFF_CHIP_STYLE)
WAITS = tuple(
    STALL_STYLES[word] for word in ("dma_wait", "dma_program", "barrier", "fork", "offload", "idle")
)
"""What a core does beside computing: in rows by step or kernel no word of what is inside of kernels is."""
TOGETHER = {
    "step": (*STEP_STYLES.values(), *WAITS, *MOVED),
    "stall": (*map(style, STALL_ORDER), OUTWARD_STYLE, OFF_CHIP_STYLE),
    "kernel": (
        *(Style(colour, "") for colour in KERNEL_LOOKS),
        OTHER_KERNELS,
        MOVING_STYLE,
        *WAITS,
    ),
    "causes": tuple(CAUSE_STYLES.values()),
    "memory": tuple(KIND_STYLES.values()),
    "units": tuple(LOOKS.values()),
}
"""What may meet in a picture."""

NEAR_COLOUR = 60
"""Steps of red, green and blue together: edges of a thin area are mixed with what is beside it."""

# Machado, Oliveira and Fernandes, IEEE TVCG 15(6), 2009, severity 1.0, of linear RGB.
BLINDNESS = {
    "deuteranopia": (
        (0.367322, 0.860646, -0.227968),
        (0.280085, 0.672501, 0.047413),
        (-0.011820, 0.042940, 0.968881),
    ),
    "protanopia": (
        (0.152286, 1.052583, -0.204868),
        (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ),
}


def lab(colour: str, seen: Any) -> Any:
    """CIE L*a*b* of a colour as it is seen."""
    value = np.array([int(colour[at : at + 2], 16) for at in (1, 3, 5)]) / 255
    linear = np.where(value <= 0.04045, value / 12.92, ((value + 0.055) / 1.055) ** 2.4)
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    xyz = to_xyz @ np.clip(np.array(seen) @ linear, 0, 1) / (0.9505, 1.0, 1.089)
    x, y, z = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("picture", TOGETHER)
def test_what_meets_in_a_picture_is_told_apart_by_the_colour_blind_and_in_grey_print(picture: str) -> None:
    for one, other in itertools.combinations(TOGETHER[picture], 2):
        if one.hatch != other.hatch:
            continue
        assert abs(lightness(one.colour) - lightness(other.colour)) >= 7, (one, other)
        for seen in BLINDNESS.values():
            assert np.linalg.norm(lab(one.colour, seen) - lab(other.colour, seen)) >= 7, (one, other)


def test_every_cause_has_a_look() -> None:
    assert list(CAUSE_STYLES) == list(GROUPS)


def test_lightness_is_that_of_cie() -> None:
    for colour in ("#000000", "#FFFFFF", "#CC79A7"):
        assert lightness(colour) == pytest.approx(lab(colour, np.eye(3))[0], abs=0.05)


@pytest.fixture(scope="module")
def result() -> Result:
    return pt.run("tutorial-cnn", functional=False, cache=False, energy="generic-22fdx")


@pytest.fixture(scope="module")
def drawing(result: Result) -> RunPictures:
    return RunPictures(result.slices, result.summary, result._blocks)


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """The figures that are saved."""
    saved: list[Figure] = []
    save = Figure.savefig

    def keep(self: Figure, *arguments: Any, **options: Any) -> None:
        saved.append(self)
        save(self, *arguments, **options)

    monkeypatch.setattr(Figure, "savefig", keep)
    return saved


def boxes(figure: Figure) -> Iterator[tuple[str, Any]]:
    """Every text that is seen, and where it is in pixels."""
    figure.canvas.draw()
    renderer = figure.canvas.get_renderer()  # type: ignore[attr-defined]
    shown = [axis for axis in figure.findobj(Axis) if axis.axes.axison]  # type: ignore[union-attr]
    ticks = [tick for axis in shown for tick in axis._update_ticks()]  # type: ignore[union-attr]
    in_view = {id(label) for tick in ticks for label in (tick.label1, tick.label2)}
    labels = {id(label) for tick in figure.findobj(Tick) for label in (tick.label1, tick.label2)}  # type: ignore[union-attr]
    for text in figure.findobj(Text):
        is_seen = text.get_visible() and (id(text) in in_view or id(text) not in labels)
        if isinstance(text, Text) and is_seen and text.get_text().strip():
            yield text.get_text(), Text.get_window_extent(text, renderer)  # without an arrow


def check_legend(figure: Figure) -> None:
    """It is low, within the picture, and every colour in it is seen above it; `figure` has been drawn."""
    (legend,) = figure.legends
    box = legend.get_window_extent()
    assert box.height < 0.25 * figure.bbox.height
    assert box.x0 >= 0
    assert box.x1 <= figure.bbox.x1
    pixels = np.asarray(figure.canvas.buffer_rgba())[: -int(box.y1), :, :3].astype(int)  # type: ignore[attr-defined]
    packed = np.unique(pixels @ (65536, 256, 1))
    found = np.stack([packed >> 16, packed >> 8 & 255, packed & 255], axis=1)
    for handle, text in zip(legend.legend_handles, legend.get_texts(), strict=True):
        look = handle.get_markerfacecolor() if isinstance(handle, Line2D) else handle.get_facecolor()  # type: ignore[union-attr]
        distance = np.abs(found - np.rint(255 * np.array(to_rgb(look)))).sum(axis=1).min()
        assert distance <= NEAR_COLOUR, (text.get_text(), distance)


@pytest.mark.parametrize(
    ("what", "paper"),
    [("gantt", Paper()), ("memory", Paper()), *((what, Paper(3.5, 8.0)) for what in PICTURES)],
)
def test_text_is_large_enough_not_cut_and_not_over_other_text_and_the_legend_names_what_is_seen(
    what: str,
    paper: Paper,
    drawing: RunPictures,
    figures: list[Figure],
    tmp_path: Path,
) -> None:
    svg = tmp_path / "picture.svg"
    replace(drawing, paper=paper).draw(what, svg)
    text = svg.read_text()
    assert ">conv1" in text or ">fc" in text
    sizes = [float(size) for size in re.findall(r"font(?:-size)?: (?:\w+ )*([\d.]+)px", text)]
    assert sizes
    assert min(sizes) >= paper.font_points
    (figure,) = figures
    whole = figure.bbox
    seen = list(boxes(figure))
    check_legend(figure)
    for name, box in seen:
        assert box.x0 >= whole.x0 - 1, name
        assert box.x1 <= whole.x1 + 1, name
        assert box.y0 >= whole.y0 - 1, name
        assert box.y1 <= whole.y1 + 1, name
    for (one, box), (other, second) in itertools.combinations(seen, 2):
        across = min(box.x1, second.x1) - max(box.x0, second.x0)
        along = min(box.y1, second.y1) - max(box.y0, second.y0)
        assert min(across, along) < 0.35 * paper.font_points * 160 / 72, (one, other)


def test_the_legend_of_a_part_of_a_run_names_kinds_of_this_part(
    drawing: RunPictures, figures: list[Figure], tmp_path: Path
) -> None:
    replace(drawing, window=Window(0, 20_000), paper=Paper(dpi=60)).draw("bytes", tmp_path / "picture.png")
    (figure,) = figures
    figure.canvas.draw()
    check_legend(figure)
    named = {text.get_text() for text in figure.legends[0].get_texts()}
    assert KIND_STYLES["weight"].name in named
    assert KIND_STYLES["gradient"].name not in named, "there is none before the backward pass"


def test_the_note_of_a_roofline_explains_only_what_it_shows(
    drawing: RunPictures, figures: list[Figure], tmp_path: Path
) -> None:
    paper = Paper(dpi=60)
    replace(drawing, paper=paper).draw("roofline", tmp_path / "picture.png")
    ops = [{**op, "useful_macs": op["macs"] // 2} for op in drawing.summary["ops"]]
    wasting = {**drawing.summary, "ops": ops}
    replace(drawing, paper=paper, summary=wasting).draw("roofline", tmp_path / "picture.png")
    plain, hollow = (figure.legends[0].get_title().get_text().replace("\n", " ") for figure in figures)
    assert "hollow" not in plain
    assert "hollow: without multiplications by zero" in hollow
    assert "cross" not in plain + hollow
    assert "dots: tiles" in plain


def test_equal_runs_are_equal_files_of_every_kind_that_say_whose_they_are(
    drawing: RunPictures, tmp_path: Path
) -> None:
    for name in ("a", "b"):
        drawing.draw("causes", *(tmp_path / f"{name}.{ending}" for ending in ("svg", "pdf")))
    for ending in ("svg", "pdf"):
        assert (tmp_path / f"a.{ending}").read_bytes() == (tmp_path / f"b.{ending}").read_bytes()
        assert is_our_picture(tmp_path / f"a.{ending}")
    pdf = (tmp_path / "a.pdf").read_bytes()
    assert b"/FontFile2" in pdf, "a TrueType font, whose text can be searched"
    assert b"/Type3" not in pdf


def test_a_result_draws_every_picture_to_every_kind_of_file(result: Result, tmp_path: Path) -> None:
    path = result.plot("roofline", tmp_path / "roofline.pdf", width_inches=3.5, font_points=7)
    assert path.read_bytes().startswith(b"%PDF")
    assert result.gantt(tmp_path / "g.svg", window="fc.WG", colour_by="stall").is_file()
    assert "kernel" in result.gantt(tmp_path / "g.svg", window=(80_000, 90_000)).read_text()
    with pytest.raises(InputError, match="unknown picture 'rooflin'"):
        result.plot("rooflin", tmp_path / "x.svg")
    with pytest.raises(InputError, match="the picture format of"):
        result.plot("bytes", tmp_path / "x.jpg")


def test_a_window_is_an_op_or_cycles_and_names_its_files(drawing: RunPictures) -> None:
    op = window_of("fc.WG", drawing.ops, drawing.cycles)
    assert (op.op, op.file_part) == ("fc.WG", "-fc.WG")
    assert window_of(":5000", drawing.ops, drawing.cycles) == Window(0, 5000)
    assert window_of("5000:", drawing.ops, drawing.cycles).file_part == f"-5000-{drawing.cycles}"
    with pytest.raises(InputError, match=r"'fc.WG'.*relu1\.FW") as found:
        window_of("fc.WQ", drawing.ops, drawing.cycles)
    assert "conv1.FW" in str(found.value)
    for text in ("", "5:5", "a:b", f"{drawing.cycles}:"):
        with pytest.raises(InputError, match="nor a range of cycles"):
            window_of(text, drawing.ops, drawing.cycles)


def test_a_part_of_a_trace_has_the_cycles_of_the_part(drawing: RunPictures) -> None:
    start, end = 40_001, 91_777
    slices = windowed(drawing.slices, start, end)
    cores = {event.track for event in slices if ".core" in event.track}
    for track in cores:
        assert sum(event.duration_cycles for event in slices if event.track == track) == end - start
        assert all(event.busy_cycles >= 0 for event in slices)
    whole, part = measure(drawing.slices, drawing.cycles), measure(slices, end)
    by_name = {op.name: op for op in whole.ops}
    assert sum(op.cycles for op in part.ops) == end - start
    assert part.ops[1:-1]
    assert all(op.stalls == by_name[op.name].stalls for op in part.ops[1:-1] if op.name == "fc.IG")


def many_ops(count: int) -> list[OpMetrics]:
    causes = {**measure(()).total.causes, "busy": 5, "dma_in": 3}
    return [
        OpMetrics(
            f"layer{number // 4}.{step}",
            step,
            10 * number,
            10 * number + 10,
            10 + number % 7,
            8,
            5,
            (),
            0,
            0,
            1,
            9,
            causes,
        )
        for number in range(count)
        for step in (("FW_A", "IG", "WG", "UPD")[number % 4],)
    ]


def test_a_net_of_many_ops_has_few_bars_the_largest_first_and_no_cycle_is_lost() -> None:
    ops = many_ops(640)
    for rows in (layer_rows(ops), cause_rows(ops)):
        assert len(rows) == 21
        assert "others" in rows[-1].name
        assert sum(sum(row.parts.values()) for row in rows) == pytest.approx(sum(op.cycles for op in ops))
        lengths = [sum(row.parts.values()) for row in rows[:-1]]
        assert lengths == sorted(lengths, reverse=True)
    assert set(layer_rows(ops)[0].parts) == {"FW", "IG", "WG", "UPD"}


def test_a_profile_shares_out_every_amount_over_its_time() -> None:
    generator = np.random.default_rng(1)
    starts = generator.integers(0, 900, 60)
    intervals = [(int(start), int(start + generator.integers(1, 90)), float(start % 7)) for start in starts]
    edges = np.linspace(100, 700, 14)
    wanted = [
        sum(
            amount * max(min(end, high) - max(start, low), 0) / (end - start)
            for start, end, amount in intervals
        )
        for low, high in itertools.pairwise(edges)
    ]
    assert profile(intervals, edges) == pytest.approx(wanted)


def test_live_bytes_are_those_of_the_blocks_that_live() -> None:
    blocks = [
        MemoryBlock("a", "l1", 0, 100, "x", "y", 0, 50, "weight"),
        MemoryBlock("b", "l1", 100, 30, "x", "y", 20, 80, "weight"),
        MemoryBlock("c", "l1", 130, 7, "x", "y", 20, 50, "unheard of"),
    ]
    edges, kinds = live_bytes(blocks)
    assert edges.tolist() == [0, 20, 50, 80]
    assert {kind: values.tolist() for kind, values in kinds.items()} == {
        "weight": [100, 130, 30],
        "scratch": [0, 7, 0],
    }
