"""`pulptrain tune`: the schedule it writes is what `run` runs, whatever happened on the way."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tuner_case import SMALL_MODEL

from pulptrain.__main__ import run
from scheduler.tuner.cache import ResultCache
from scheduler.tuner.schedule_file import load_schedule

SIMPLE = ["--cores", "2", "--l1", "16KiB", "--fpus", "private", "--bank-conflicts", "off"]


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A model file in an empty current folder."""
    monkeypatch.chdir(tmp_path)
    Path("small.yaml").write_text(SMALL_MODEL)
    return "small.yaml"


def tune(model: str, *options: str) -> list[str]:
    arguments = ["tune", model, *SIMPLE, "--cuts", "2", *options]
    return arguments if "--workers" in options else [*arguments, "--workers", "1"]


def evaluations_in(cache: str) -> int:
    if not Path(cache).exists():
        return 0
    with closing(sqlite3.connect(f"file:{cache}?mode=ro", uri=True)) as connection:
        try:
            query = "SELECT count(*) FROM results_1 WHERE item LIKE 'cycles %'"
            return int(connection.execute(query).fetchone()[0])
        except sqlite3.OperationalError:
            return 0


def answer(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert run([*arguments, "--json"]) == 0
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    return result


def test_run_takes_the_cycles_that_tune_found(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    tuned = answer(tune(model, "--no-cache", "--schedule", "s.yaml"), capsys)
    assert tuned["schedule"] == "s.yaml"
    assert tuned["pruned"] == tuned["candidates"] - tuned["evaluated"] > 0
    assert tuned["strategy"] == "pruned"
    first = tuned["choices"][0]
    assert first["op"] == "conv.FW"
    assert {"step", "kernel", "tile", "loop_order", "buffering", "cycles", "runner_up"} <= set(first)
    ran = answer(["run", model, *SIMPLE, "--schedule", "s.yaml"], capsys)
    assert ran["cycles"] == tuned["cycles"]
    assert ran["functional"]["passed"]
    plain = answer(["run", model, *SIMPLE], capsys)
    assert plain["cycles"] == tuned["untuned_cycles"] > tuned["cycles"]


def test_the_network_pass_gains_and_run_honours_it(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    apart = answer(tune(model, "--cache", "c", "--resident", "off", "--schedule", "apart.yaml"), capsys)
    tuned = answer(tune(model, "--cache", "c", "--schedule", "s.yaml"), capsys)
    assert apart["resident"] == []
    stay = tuned["resident"][0]
    assert stay["program"] == "iteration"
    assert stay["before_cycles"] == apart["cycles"]
    assert stay["after_cycles"] == tuned["cycles"] < apart["cycles"]
    ran = answer(["run", model, *SIMPLE, "--schedule", "s.yaml"], capsys)
    assert ran["cycles"] == tuned["cycles"]
    assert sorted(ran["resident"]) == sorted(stay["resident"])
    again = answer(tune(model, "--cache", "c", "--schedule", "again.yaml"), capsys)
    assert Path("again.yaml").read_bytes() == Path("s.yaml").read_bytes()
    assert again["resident"] == tuned["resident"]


def test_an_update_of_its_own_is_tuned_and_run_with_the_same_cycles(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("twice.yaml").write_text(
        SMALL_MODEL.replace("learning_rate: 0.1}", "learning_rate: 0.1, accumulate: 2}")
    )
    tuned = answer(tune("twice.yaml", "--no-cache", "--schedule", "s.yaml"), capsys)
    assert [stay["program"] for stay in tuned["resident"]] == ["iteration", "update"]
    ran = answer(["run", "twice.yaml", *SIMPLE, "--schedule", "s.yaml"], capsys)
    assert ran["cycles"] == tuned["cycles"]


def test_a_resident_tensor_the_model_has_not_is_refused(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    answer(tune(model, "--no-cache", "--schedule", "s.yaml"), capsys)
    text = Path("s.yaml").read_text()
    first = re.search(r"^    - ([\w.]+)", text, re.MULTILINE)
    assert first is not None
    Path("s.yaml").write_text(text.replace(f"    - {first[1]}", "    - conv.weights", 1))
    assert run(["run", model, *SIMPLE, "--schedule", "s.yaml"]) == 2
    error = capsys.readouterr().err
    assert "conv.weights" in error
    assert "s.yaml:" in error


def test_equal_runs_write_equal_files(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    cache = ["--cache", "c.sqlite"]
    one = answer(tune(model, *cache, "--schedule", "1.yaml"), capsys)
    two = answer(tune(model, *cache, "--schedule", "2.yaml", "--workers", "2"), capsys)
    assert Path("1.yaml").read_bytes() == Path("2.yaml").read_bytes()
    assert one["simulator"]["cached"] == 0
    assert two["simulator"]["cached"] == two["evaluated"]
    for result in (one, two):
        del result["simulator"], result["schedule"]
    assert one == two


def test_a_schedule_is_the_start_of_the_next_search(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    first = answer(tune(model, "--no-cache"), capsys)
    again = answer(tune(model, "--no-cache", "--start", "schedule.yaml"), capsys)
    best = [(choice["op"], choice["tile"], choice["kernel"]) for choice in first["choices"]]
    assert best == [(choice["op"], choice["tile"], choice["kernel"]) for choice in again["choices"]]
    assert again["evaluated"] <= first["evaluated"]


ROOMS = ("arch", "configs", "traces", "trainlib", "scheduler", "pulptrain")


@pytest.fixture
def command_line(tmp_path_factory: pytest.TempPathFactory) -> Callable[[list[str]], subprocess.Popen[str]]:
    """Starts `pulptrain` from a copy of its source: who edits that meanwhile makes no new version of it."""
    root, copy = Path(__file__).resolve().parents[1], tmp_path_factory.mktemp("source")
    for room in ROOMS:
        shutil.copytree(root / room, copy / room, ignore=shutil.ignore_patterns("__pycache__"))
    environment = {**os.environ, "PYTHONPATH": str(copy)}

    def start(arguments: list[str]) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "pulptrain", *arguments]
        return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)

    return start


def test_killed_and_begun_again_it_ends_with_the_same_schedule(
    model: str, command_line: Callable[[list[str]], subprocess.Popen[str]]
) -> None:
    search = ["--strategy", "exhaustive", "--json"]
    arguments = tune(model, *search, "--cache", "killed.sqlite", "--schedule", "killed.yaml")
    process = command_line(arguments)
    for _ in range(3000):
        if evaluations_in("killed.sqlite") > 10:
            break
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    assert not Path("killed.yaml").exists()
    resumed = json.loads(command_line(arguments).communicate()[0])
    assert 0 < resumed["simulator"]["cached"] < resumed["evaluated"]
    whole = command_line(tune(model, *search, "--no-cache", "--schedule", "whole.yaml"))
    whole.communicate()
    assert whole.returncode == 0
    assert Path("killed.yaml").read_bytes() == Path("whole.yaml").read_bytes()


def test_ctrl_c_leaves_a_schedule_that_runs(
    model: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write, calls = ResultCache.write, 0

    def interrupted(cache: ResultCache, context: str, values: dict[str, str]) -> None:
        nonlocal calls
        calls += 1
        if calls == 8:
            raise KeyboardInterrupt
        write(cache, context, values)

    monkeypatch.setattr(ResultCache, "write", interrupted)
    assert run(tune(model, "--cache", "c.sqlite", "--quiet")) == 130
    assert "interrupted; the best so far is in schedule.yaml" in capsys.readouterr().err
    monkeypatch.setattr(ResultCache, "write", write)
    choices = load_schedule("schedule.yaml").choices
    assert 0 < len(choices) < 4
    assert answer(["run", model, *SIMPLE, "--schedule", "schedule.yaml"], capsys)["functional"]["passed"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--strategy", "best"], "exhaustive"),
        (["--workers", "0"], "1 or more"),
        (["--executor", "dask://"], "dask://HOST:PORT"),
        (["--cache", "c", "--no-cache"], "exclude"),
        (["--start", "none.yaml"], "no such file"),
        (["--cuts", "-1"], "--cuts"),
        (["--strategy", "paper", "--largest-tiles", "0"], "--largest-tiles"),
    ],
)
def test_bad_input_is_refused(
    model: str, options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tune(model, *options)) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error
    assert not Path("schedule.yaml").exists()
