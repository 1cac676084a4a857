# SPDX-License-Identifier: Apache-2.0
"""`pulptrain plot`: files of their own for windows, one file of a paper's size, speed-up, and bad input."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from xml.etree import ElementTree

import pytest
from matplotlib.image import imread

import pulptrain as pt
from pulptrain.__main__ import run
from pulptrain.commands.options import parse_paper
from pulptrain.running import pictures
from shared.printed import printed, refused
from shared.tuner_case import SMALL_MODEL
from traces.files.result_folder import SUMMARY_NAME, write_json
from traces.metrics import measure


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders ``1``, ``2`` and ``8`` of runs on so many cores; of the last with all files."""
    folder = tmp_path_factory.mktemp("runs")
    (folder / "small.yaml").write_text(SMALL_MODEL)
    for cores in (1, 2):
        result = pt.run(folder / "small.yaml", cores=cores, functional=False, cache=False)
        (folder / f"{cores}").mkdir()
        write_json(folder / f"{cores}" / SUMMARY_NAME, result.summary)
    command = ["run", str(folder / "small.yaml"), "--no-functional", "--no-cache", "-q"]
    assert run([*command, "--out", str(folder / "8")]) == 0
    return folder


@pytest.fixture
def copy(runs: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(runs / "8", tmp_path / "run"))


def op_of(folder: Path) -> str:
    """The op with most cycles."""
    ops = json.loads((folder / "summary.json").read_text())["ops"]
    return str(max(ops, key=lambda op: op["cycles"])["name"])


def test_a_window_by_an_ops_name_is_drawn_beside_the_whole_run(
    copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {path.name: path.read_bytes() for path in copy.iterdir()}
    op = op_of(copy)
    for what in ("breakdown", "roofline"):
        drawn = printed(capsys, "plot", str(copy), "--window", op, "--what", what)["pictures"]
        names = [Path(path).name for path in drawn]
        assert names == [f"{what}-{op}.png", f"{what}-{op}.svg"]
    assert {path.name: path.read_bytes() for path in copy.iterdir() if path.name in before} == before
    assert f">small on pulp-open: {op}, cycles " in (copy / f"breakdown-{op}.svg").read_text()


def test_a_window_measures_the_run_once(
    copy: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = []
    monkeypatch.setattr(pictures, "measure", lambda *run: measured.append(run) or measure(*run))
    printed(capsys, "plot", str(copy), "--window", op_of(copy), "--what", "gantt")
    assert len(measured) == 1


def test_a_figure_of_a_paper_is_one_file_of_its_size(copy: Path, tmp_path: Path) -> None:
    for ending in ("pdf", "svg"):
        out = tmp_path / f"figure.{ending}"
        paper = ["--width", "88mm", "--font", "7pt", "--out", str(out), "-q"]
        assert run(["plot", str(copy), "--what", "breakdown", *paper]) == 0
        assert run(["plot", str(copy), "--what", "breakdown", *paper]) == 0, "our own picture is drawn over"
    found = re.search(r'<svg [^>]*width="([\d.]+)pt"', (tmp_path / "figure.svg").read_text())
    assert found is not None
    assert float(found[1]) == pytest.approx(88 / 25.4 * 72, abs=0.1)
    found_box = re.search(rb"/MediaBox \[ ?0 0 ([\d.]+)", (tmp_path / "figure.pdf").read_bytes())
    assert found_box is not None
    assert float(found_box[1]) == pytest.approx(88 / 25.4 * 72, abs=0.1)


@pytest.mark.parametrize("command", ["plot", "compare"])
def test_a_picture_has_the_dots_and_the_title_that_are_asked_for(
    command: str, runs: Path, copy: Path, tmp_path: Path
) -> None:
    shown = ["plot", str(copy), "--what", "breakdown"] if command == "plot" else ["compare", str(copy)]
    shown += [str(runs / "8")] if command == "compare" else []
    own, asked, dots = (tmp_path / name for name in ("own.svg", "asked.svg", "dots.png"))
    assert run([*shown, "-q", "--out", str(own)]) == 0
    assert ">small" in own.read_text()
    assert run([*shown, "-q", "--title", "$x_$ 3", "--out", str(asked)]) == 0
    assert ">$x_$ 3<" in asked.read_text()
    assert run([*shown, "-q", "--title", "none", "--dpi", "300", "--width", "3in", "--out", str(dots)]) == 0
    assert imread(dots).shape[1] == 900
    assert run([*shown, "-q", "--title", "none", "--out", str(asked)]) == 0
    texts = asked.read_text()
    assert ">small" not in texts
    assert ">none" not in texts
    heights = [float(re.search(r'height="([\d.]+)pt"', svg.read_text())[1]) for svg in (own, asked)]  # type: ignore[index]
    assert heights[1] < heights[0], "the room of the title is not left empty"


def test_a_length_is_read_in_every_unit() -> None:
    for text in ("3.5in", "8.89cm", "88.9mm", "252pt"):
        paper = parse_paper("out", text, "8pt")
        assert paper is not None
        assert (paper.width_inches, paper.font_points) == (pytest.approx(3.5), pytest.approx(8))


def test_a_speed_up_adds_up_and_is_at_most_ideal_where_nothing_waits(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = [str(runs / cores) for cores in ("8", "1", "2")]
    out = ["--what", "speed-up", "--out", str(tmp_path)]
    found = printed(capsys, "plot", *folders, *out)
    assert found["cores"] == [1, 2, 8]
    for number, cores in enumerate((1, 2, 8)):
        summary = json.loads((runs / str(cores) / "summary.json").read_text())
        assert found["cycles"][number] == summary["cycles"]
        sums = sum(row["cycles"][number] for row in found["rows"])
        assert sums + summary["offload_cycles"] == summary["cycles"]
    gains = found["speedup"]
    assert gains[0] == 1
    assert 1 < gains[1] < gains[2] < 8
    assert (tmp_path / "speed-up.svg").is_file()
    speed = pt.speed_up(*folders, path=tmp_path / "speed-up.pdf", width_inches=3.5)
    assert speed.as_dict()["speedup"] == gains
    with pytest.raises(pt.InputError, match="the picture format of"):
        pt.speed_up(*folders, path=tmp_path / "speed-up.jpg")
    assert run(["plot", *folders, *out, "-q"]) == 0
    assert run(["plot", *folders, *out]) == 0
    shown = capsys.readouterr().out
    assert "times as fast from 1 to 8 cores" in shown
    assert re.search(r"total +[\d,]+ +[\d,]+ +[\d,]+ +\d\.\d\dx +\d+%", shown)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["8", "--width", "0in"], "--width: 0 in is not a valid size.*use 1 to 100in"),
        (["8", "--width", "3.5"], "--width"),
        (["8", "--width", "1in", "--font", "30pt"], "does not fit a chart"),
        *(
            (["8", "--width", "1in", "--font", "30pt", "--what", what], "does not fit a chart")
            for what in ("causes", "roofline", "bytes")
        ),
        (["8", "2", "--width", "1in", "--font", "30pt", "--what", "speed-up"], "does not fit a chart"),
        (["8", "--width", "1e400in"], "--width: .* is not a length with a unit"),
        (["8", "--title", 301 * "x"], "--title: the title is too long: 301 characters.*at most 300"),
        (["8", "--dpi", "5"], "--dpi: 5 dots per inch is not a valid size.*use 30"),
        (["8", "--font", "x"], "--font: 'x' is not a length.*8pt"),
        (["8", "--font", "0pt"], "--font"),
        (["8", "--window", "conv9.FW"], "is neither an op nor a range.*START:END"),
        (["8", "--window", "0:10", "--what", "roofline"], "use an op, e.g. conv1.FW"),
        (["8", "--what", "speedup"], "'speed-up'"),
        (["8", "--what", "speed-up"], "a speed-up needs two runs"),
        (["8", "8", "--what", "speed-up"], "have the same number of cores, 8"),
        (
            ["8", "2"],
            "one run, use --what speed-up, or draw all on one axis: .pulptrain compare .* --out strips.png",
        ),
        (["8", "2", "--what", "speed-up", "--window", "0:9"], "whole runs"),
        (["8", "--out", "all.pdf"], "pictures cannot share the one file"),
        (["8", "--out", ""], "--out: the name of the file or folder is empty"),
        (["8", "--what", "bytes", "--out", "none/x.pdf"], "does not exist"),
        (["nowhere"], "a folder written by"),
    ],
)
def test_what_cannot_be_drawn_is_refused_with_a_cure(
    arguments: list[str],
    message: str,
    runs: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(runs)
    error = refused(capsys, "plot", *arguments)
    assert re.search(message, error, re.DOTALL), error


def test_a_run_without_a_trace_or_with_an_empty_one_is_no_defect(
    copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = copy / "trace.csv"
    trace.write_text(trace.read_text().splitlines()[0] + "\n")
    for what in ("gantt", "breakdown", "causes", "bandwidth"):
        assert "the trace of the run is empty" in refused(capsys, "plot", str(copy), "--what", what, "-q")
    trace.unlink()
    assert "no trace table" in refused(capsys, "plot", str(copy), "-q")


@pytest.mark.parametrize("roofs", [None, {}, {"mac_per_cycle": -1}, "high"])
def test_a_summary_without_roofs_has_no_roofline(
    roofs: object, copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = copy / "summary.json"
    summary = json.loads(path.read_text())
    summary["roofs"] = roofs
    path.write_text(json.dumps({key: value for key, value in summary.items() if value is not None}))
    assert "run `pulptrain run MODEL --out DIR` again" in refused(
        capsys, "plot", str(copy), "--what", "roofline", "-q"
    )


def test_the_help_names_every_picture(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plot", "--help"]) == 0
    assert f"all|{'|'.join(pictures.PICTURES)}|speed-up" in capsys.readouterr().out


LONG_LAYER, LONG_MODEL = "layer_" + 294 * "x", "m" * 300
LONG = {
    "run": ["run", "long.yaml", "--out", "out"],
    "tune": [
        "tune",
        "long.yaml",
        "--trials",
        "2",
        "--workers",
        "1",
        "--out",
        "out",
        "--save-schedule",
        "t.yaml",
    ],
    "fit": ["fit", "long.yaml", "--time-limit", "1", "--out", "out"],
    "explore": ["explore", "sweep.yaml", "--workers", "1", "--out", "out"],
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == "run" else pytest.mark.slow, id=name) for name in LONG]
)
def test_names_longer_than_a_picture_are_drawn_without_their_middle(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of layers, and so of ops and tensors, and of models."""
    monkeypatch.chdir(tmp_path)
    text = SMALL_MODEL.replace("name: conv,", f"name: {LONG_LAYER},").replace(
        "name: small", f"name: {LONG_MODEL}"
    )
    Path("long.yaml").write_text(text)
    Path("sweep.yaml").write_text(
        f"name: {LONG_MODEL}\nmodel: long.yaml\nsweep: {{cores: [1, 2], l1: [48KiB, 64KiB]}}\n"
    )
    assert run([*LONG[name], "-q"]) == 0
    if name == "run":
        assert run(["compare", "out", "out", "--out", "compare.svg", "-q"]) == 0
    drawn = sorted(tmp_path.rglob("*.svg"))
    assert drawn
    for picture in drawn:
        elements = ElementTree.parse(picture).iter("{http://www.w3.org/2000/svg}text")
        texts = [element.text or "" for element in elements]
        assert max(map(len, texts)) <= 160, picture
        assert any("\u2026" in words or "mmm" in words for words in texts), picture
