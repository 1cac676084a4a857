# SPDX-License-Identifier: Apache-2.0
"""Result folders of tune and explore, and what is never overwritten."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

import pulptrain as pt
from pulptrain.__main__ import run
from shared.printed import printed, refused

SHORT = ("--tilings", "1", "--step-variants", "keep", "--workers", "1", "--no-cache", "--resident", "off")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_folder_of_tune_holds_the_schedule_and_a_run_with_it(capsys: pytest.CaptureFixture[str]) -> None:
    told = printed(capsys, "tune", "simple-mlp", *SHORT, "--out", "out")
    assert told["schedule"] == "out/schedule.yaml"
    for name in ("tune.json", "tune.csv", "tune.png", "summary.json", "gantt.png"):
        assert (Path("out") / name).is_file(), name
    ran = pt.load("out")
    assert isinstance(ran, pt.Result)
    assert ran.cycles == told["cycles"]
    untuned = pt.run("simple-mlp", functional=False)
    for choice in told["choices"]:
        assert choice["tuned_cycles"] == ran[choice["op"]].cycles
        assert choice["untuned_cycles"] == untuned[choice["op"]].cycles
    rows = list(csv.DictReader(open("out/tune.csv")))  # noqa: SIM115
    assert [row["op"] for row in rows] == [choice["op"] for choice in told["choices"]]
    assert pt.run("simple-mlp", functional=False, schedule="out/schedule.yaml").cycles == told["cycles"]


def test_a_schedule_of_no_name_overwrites_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["tune", "simple-mlp", *SHORT, "--quiet"]) == 0
    first = Path("schedule.yaml").read_bytes()
    assert run(["tune", "simple-mlp", *SHORT, "--batch", "2", "--quiet"]) == 0
    assert Path("schedule.yaml").read_bytes() == first
    assert "schedule-2.yaml" in [path.name for path in Path().iterdir()]
    assert run(["run", "simple-mlp", "--batch", "2", "--schedule", "schedule-2.yaml", "--quiet"]) == 0


def test_a_sweep_has_a_baseline_schedules_and_a_picture(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["tune", "simple-mlp", *SHORT, "--save-schedule", "s.yaml", "--quiet"]) == 0
    Path("e.yaml").write_text(
        "name: e\nmodel: simple-mlp\nobjectives: [cycles]\nbaseline: {schedule: none, prefetch: off}\n"
        "sweep: {schedule: [none, s.yaml], prefetch: [on, off]}\n"
    )
    assert run(["explore", "e.yaml", "--workers", "1", "--no-cache", "--out", "out"]) == 0
    printed = capsys.readouterr().out
    assert "speed-up" in printed
    assert "baseline" in printed
    points = json.loads(Path("out/points.json").read_text())
    assert points["baseline"] == 1
    by_values = {tuple(point["values"].values()): point for point in points["points"]}
    base = by_values["none", "off"]
    for point in points["points"]:
        assert point["speedup"] == pytest.approx(base["cycles"] / point["cycles"])
    head = Path("out/points.csv").read_text().splitlines()[0].split(",")
    assert len(head) == len(set(head))
    assert Path("out/grid.png").is_file()
    assert not Path("out/front.png").exists()


def test_options_of_the_command_hold_for_all_points(capsys: pytest.CaptureFixture[str]) -> None:
    Path("e.yaml").write_text(
        "name: e\nmodel: simple-mlp\nsettings: {cores: 2}\nsweep: {l1: [32KiB, 64KiB]}\n"
    )
    assert (
        run(["explore", "e.yaml", "--workers", "1", "--no-cache", "--cores", "4", "--batch", "2", "--json"])
        == 0
    )
    points = json.loads(capsys.readouterr().out)["points"]
    wanted = pt.run("simple-mlp", cores=4, batch=2, l1="64KiB", functional=False)
    assert (points[1]["cores"], points[1]["cycles"]) == (4, wanted.cycles)


def test_a_baseline_that_is_no_point_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    Path("e.yaml").write_text("name: e\nmodel: simple-mlp\nsweep: {cores: [1, 2]}\nbaseline: {cores: 3}\n")
    assert "no point of the sweep matches 'baseline'" in refused(
        capsys, "explore", "e.yaml", "--workers", "1"
    )
