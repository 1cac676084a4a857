# SPDX-License-Identifier: Apache-2.0
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

import pytest

from pulptrain.__main__ import run
from scheduler.search.cache import ResultCache
from scheduler.tuner import search_space, strategies
from scheduler.tuner.schedule_file import load_schedule
from shared.paths import ROOT
from shared.printed import printed, refused
from shared.tuner_case import SMALL_MODEL

SIMPLE = ["--cores", "2", "--l1", "16KiB", "--fpus", "private", "--bank-conflicts", "off"]


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A model file in an empty current folder."""
    monkeypatch.chdir(tmp_path)
    Path("small.yaml").write_text(SMALL_MODEL)
    return "small.yaml"


def tune(model: str, *options: str) -> list[str]:
    arguments = ["tune", model, *SIMPLE, "--tilings", "2", *options]
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


def test_run_takes_the_cycles_that_tune_found(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    tuned = printed(capsys, *tune(model, "--no-cache", "--save-schedule", "s.yaml"))
    assert tuned["schedule"] == "s.yaml"
    assert tuned["pruned"] == tuned["candidates"] - tuned["evaluated"] > 0
    assert tuned["strategy"] == "pruned"
    first = tuned["choices"][0]
    assert first["op"] == "conv.FW"
    assert {"step", "kernel", "tile", "loop_order", "buffering", "cycles", "runner_up"} <= set(first)
    ran = printed(capsys, "run", model, *SIMPLE, "--schedule", "s.yaml")
    assert ran["cycles"] == tuned["cycles"]
    assert ran["functional"]["passed"]
    plain = printed(capsys, "run", model, *SIMPLE)
    assert plain["cycles"] == tuned["untuned_cycles"] > tuned["cycles"]


def test_the_network_pass_gains_and_run_honours_it(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    apart = printed(capsys, *tune(model, "--cache", "c", "--resident", "off", "--save-schedule", "a.yaml"))
    tuned = printed(capsys, *tune(model, "--cache", "c", "--save-schedule", "s.yaml"))
    assert apart["resident"] == []
    stay = tuned["resident"][0]
    assert stay["program"] == "iteration"
    assert stay["before_cycles"] == apart["cycles"]
    assert stay["after_cycles"] == tuned["cycles"] < apart["cycles"]
    ran = printed(capsys, "run", model, *SIMPLE, "--schedule", "s.yaml")
    assert ran["cycles"] == tuned["cycles"]
    assert sorted(ran["resident"]) == sorted(stay["resident"])
    again = printed(capsys, *tune(model, "--cache", "c", "--save-schedule", "again.yaml"))
    assert Path("again.yaml").read_bytes() == Path("s.yaml").read_bytes()
    assert again["resident"] == tuned["resident"]


def test_an_update_of_its_own_is_tuned_and_run_with_the_same_cycles(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("twice.yaml").write_text(
        SMALL_MODEL.replace("learning_rate: 0.1}", "learning_rate: 0.1, accumulate: 2}")
    )
    tuned = printed(capsys, *tune("twice.yaml", "--no-cache", "--save-schedule", "s.yaml"))
    assert [stay["program"] for stay in tuned["resident"]] == ["iteration", "update"]
    ran = printed(capsys, "run", "twice.yaml", *SIMPLE, "--schedule", "s.yaml")
    assert ran["cycles"] == tuned["cycles"]


def test_a_resident_tensor_the_model_has_not_is_refused(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    printed(capsys, *tune(model, "--no-cache", "--save-schedule", "s.yaml"))
    text = Path("s.yaml").read_text()
    first = re.search(r"^    - ([\w.]+)", text, re.MULTILINE)
    assert first is not None
    Path("s.yaml").write_text(text.replace(f"    - {first[1]}", "    - conv.weights", 1))
    error = refused(capsys, "run", model, *SIMPLE, "--schedule", "s.yaml")
    assert "conv.weights" in error
    assert "s.yaml:" in error


def test_the_im2col_that_tune_chose_is_the_one_that_runs(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The layer says cores; its steps go other ways, by the file or by the command line."""
    tuned = printed(capsys, *tune(model, "--no-cache", "--resident", "off", "--save-schedule", "s.yaml"))
    ways = {choice["op"]: choice["variant"] for choice in tuned["choices"]}
    assert ways == {
        "conv.FW": "dma",
        "relu.FW": "",
        "loss.LOSS": "",
        "relu.IG": "",
        "conv.WG": "dma",
        "conv.UPD": "",
    }
    ran = printed(capsys, "run", model, *SIMPLE, "--schedule", "s.yaml")
    assert ran["cycles"] == tuned["cycles"]
    assert ran["functional"]["passed"]
    kept = printed(capsys, *tune(model, "--no-cache", "--resident", "off", "--step-variants", "keep"))
    assert {choice["variant"] for choice in kept["choices"]} == {""}
    assert kept["candidates"] < tuned["candidates"]
    assert kept["cycles"] > tuned["cycles"]
    # What the command line says of an op goes first: the file's tile and kernel are of a way it does not go.
    other = printed(capsys, "run", model, *SIMPLE, "--schedule", "s.yaml", "--im2col", "FW=none")
    assert [op["kernel"] for op in other["ops"] if op["name"] == "conv.FW"] == [""]
    assert [op["tile"] for op in other["ops"][1:]] == [op["tile"] for op in ran["ops"][1:]]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--im2col", "conv.FW=gpu"], "one of cores, dma, none"),
        (["--im2col", "relu.FW=dma"], "relu.FW: this op has no variant that can be chosen for it alone"),
        (["--im2col", "conv.XX=dma"], "'conv.XX' is not an op or step"),
        (["--im2col", "dma"], "write e.g. conv1.WG=dma"),
        (["--variant", "conv.FW=as-published"], "one of cores, dma, none"),
        (["--variant", "fast"], "default or as-published"),
        (["--variant", "default", "--variant", "as-published"], "default or as-published"),
    ],
)
def test_an_im2col_that_cannot_be_is_refused(
    model: str, options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in refused(capsys, "run", model, *SIMPLE, *options)


BLOCK = """
name: block
description: a depthwise and a residual layer between two pointwise ones
source: made up
input: {shape: [4, 4, 4]}
dataset: random
loss: mse
optimizer: {name: sgd, learning_rate: 0.1}
layers:
  - {name: pw, type: pointwise, out_channels: 4, layout: HWC}
  - {name: dw, type: depthwise, kernel: 1}
  - {name: pw2, type: pointwise, out_channels: 4, layout: HWC}
  - {name: sum, type: add, inputs: [dw, pw2]}
"""


def test_tune_takes_the_cheaper_variant_and_run_the_one_it_took(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("block.yaml").write_text(BLOCK)
    options = ("--cache", "c", "--resident", "off")
    names = {"pw2.IG", "dw.WG", "dw.IG", "sum.FW", "dw.ACC"}

    def chosen(*more: str) -> dict[str, tuple[str, int]]:
        tuned = printed(capsys, *tune("block.yaml", *options, *more, "--save-schedule", "schedule.yaml"))
        assert {choice["op"] for choice in tuned["choices"] if choice["variant"]} <= names
        ran = printed(capsys, "run", "block.yaml", *SIMPLE, "--schedule", "schedule.yaml")
        assert ran["cycles"] == tuned["cycles"]
        assert ran["functional"]["passed"]
        in_run = {op["name"]: op["variant"] for op in ran["ops"]}
        found = {item["op"]: (item["variant"], item["cycles"]) for item in tuned["choices"]}
        assert all(in_run[name] == (found[name][0] or "default") for name in names)
        return {name: found[name] for name in names}

    free, kept = chosen(), chosen("--step-variants", "keep")
    published = chosen("--step-variants", "as-published")
    assert {variant for variant, _ in kept.values()} == {""}
    for name in names:
        assert free[name][1] == min(item[name][1] for item in (free, kept, published))
    assert free["pw2.IG"][0] == "direct", "the matmul reads the weights as they lie"
    assert free["dw.WG"][0] == "as-published", "one nest refills less code than an im2col and a matmul"
    others = names - {"pw2.IG", "dw.WG"}
    assert {name for name in names if free[name][0] == "default"} == others
    assert published["pw2.IG"] == kept["pw2.IG"]
    assert all(published[name][1] > kept[name][1] for name in others)


def test_a_model_as_published_is_tuned_and_run_as_such(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("block.yaml").write_text(BLOCK)
    options = ("--variant", "as-published")
    keep = ("--no-cache", "--resident", "off", "--step-variants", "keep")
    tuned = printed(capsys, *tune("block.yaml", *keep, *options))
    assert "sum.IG" in [choice["op"] for choice in tuned["choices"]]
    ran = printed(capsys, "run", "block.yaml", *SIMPLE, *options, "--schedule", "schedule.yaml")
    assert ran["cycles"] == tuned["cycles"]
    published = {op["name"] for op in ran["ops"] if op["variant"] == "as-published"}
    assert published == {"sum.FW", "sum.IG", "dw.WG", "dw.IG", "dw.ACC"}
    assert "with a different batch, dtype or layers than in this run" in refused(
        capsys, "run", "block.yaml", *SIMPLE, "--schedule", "schedule.yaml"
    )
    one = printed(capsys, "run", "block.yaml", *SIMPLE, "--variant", "dw.WG=as-published")
    assert [op["name"] for op in one["ops"] if op["variant"] == "as-published"] == ["dw.WG"]


def test_a_1d_convolution_is_never_unrolled_by_the_dma(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = BLOCK[: BLOCK.index("layers:")].replace("[4, 4, 4]", "[2, 12]")
    layers = "layers:\n  - {name: conv, type: conv1d, out_channels: 4, kernel: 3}\n"
    Path("line.yaml").write_text(text + layers)
    tuned = printed(capsys, *tune("line.yaml", "--no-cache", "--resident", "off"))
    assert {choice["variant"] for choice in tuned["choices"]} <= {"", "cores", "none"}
    assert "one of cores, none" in refused(capsys, "run", "line.yaml", *SIMPLE, "--im2col", "conv.FW=dma")


def test_what_is_said_of_an_op_holds_in_the_program_that_has_it(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    chosen = [
        "--separate-update",
        "--kernel",
        "conv.WG=mm_M",
        "--im2col",
        "FW=none",
        "--tile",
        "conv.UPD=d0:2",
    ]
    ran = printed(capsys, "run", model, *SIMPLE, *chosen)
    ops = {op["name"]: op for op in ran["ops"]}
    assert ops["conv.WG"]["kernel"] == "mm_M"
    assert ops["conv.FW"]["kernel"] == ""
    assert ops["conv.UPD"]["tile"]["d0"] == 2
    assert "no op or step that can choose its kernel has this name" in refused(
        capsys, "run", model, *SIMPLE, "--separate-update", "--kernel", "conv.XX=mm_M"
    )


def test_layouts_are_searched_recorded_and_run(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    cache = ["--cache", "c", "--resident", "off"]
    kept = printed(capsys, *tune(model, *cache))
    last = printed(capsys, *tune(model, *cache, "--layout", "HWC", "--save-schedule", "hwc.yaml"))
    assert (kept["layout"], last["layout"]) == ({}, {"conv": "HWC"})
    assert "layout: {conv: HWC}" in Path("hwc.yaml").read_text()
    ran = printed(capsys, "run", model, *SIMPLE, "--schedule", "hwc.yaml")
    assert ran["cycles"] == last["cycles"]
    assert ran["functional"]["passed"]
    assert "conv.layout.FW" in [op["name"] for op in ran["ops"]]
    found = printed(capsys, *tune(model, *cache, "--layout", "search", "--save-schedule", "s.yaml"))
    assert found["cycles"] == min(kept["cycles"], last["cycles"])
    again = printed(
        capsys, *tune(model, *cache, "--layout", "search", "--workers", "2", "--save-schedule", "again.yaml")
    )
    assert again["choices"] == found["choices"]
    assert Path("again.yaml").read_bytes() == Path("s.yaml").read_bytes()


@pytest.mark.parametrize(
    ("edited", "message"),
    [
        ("layout: {conv: HCW}", "unknown layout 'HCW'"),
        ("layout: {relu: HWC}", "layer 'relu' cannot be chosen"),
        ("layout: {conv: CHW}", "small has no op 'conv.layout.FW'"),
    ],
)
def test_a_layout_edited_to_what_cannot_be_is_told_at_its_line(
    model: str, edited: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    printed(capsys, *tune(model, "--cache", "c", "--layout", "HWC"))
    text = Path("schedule.yaml").read_text()
    Path("schedule.yaml").write_text(text.replace("layout: {conv: HWC}", edited))
    error = refused(capsys, "run", model, *SIMPLE, "--schedule", "schedule.yaml")
    assert message in error
    assert re.search(r"schedule.yaml:\d+", error)


def test_residents_of_the_command_line_go_before_those_of_the_file(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    tuned = printed(capsys, *tune(model, "--cache", "c", "--save-schedule", "s.yaml"))
    stay = tuned["resident"][0]
    assert stay["resident"]
    with_file = ["run", model, *SIMPLE, "--schedule", "s.yaml"]
    off = printed(capsys, *with_file, "--resident", "off")
    assert off["resident"] == []
    assert off["cycles"] == stay["before_cycles"] > tuned["cycles"]
    one = printed(capsys, *with_file, "--resident", "conv.out")
    assert [text.partition("@")[0] for text in one["resident"]] == ["conv.out"]


def test_equal_runs_write_equal_files(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    cache = ["--cache", "c.sqlite"]
    one = printed(capsys, *tune(model, *cache, "--save-schedule", "1.yaml"))
    two = printed(capsys, *tune(model, *cache, "--save-schedule", "2.yaml", "--workers", "2"))
    assert Path("1.yaml").read_bytes() == Path("2.yaml").read_bytes()
    assert one["simulator"]["cached"] == 0
    assert two["simulator"]["cached"] == two["evaluated"]
    for result in (one, two):
        del result["simulator"], result["schedule"], result["command"]
    assert one == two


def test_a_schedule_is_the_start_of_the_next_search(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    first = printed(capsys, *tune(model, "--no-cache"))
    again = printed(capsys, *tune(model, "--no-cache", "--start", "schedule.yaml"))
    best = [(choice["op"], choice["tile"], choice["kernel"]) for choice in first["choices"]]
    assert best == [(choice["op"], choice["tile"], choice["kernel"]) for choice in again["choices"]]
    assert again["evaluated"] <= first["evaluated"]


ROOMS = ("arch", "barvinn", "configs", "traces", "trainlib", "truth", "importers", "scheduler", "pulptrain")


@pytest.fixture
def command_line(tmp_path_factory: pytest.TempPathFactory) -> Callable[[list[str]], subprocess.Popen[str]]:
    """Starts `pulptrain` from a copy of its source: who edits that meanwhile makes no new version of it."""
    root, copy = ROOT, tmp_path_factory.mktemp("source")
    for room in ROOMS:
        shutil.copytree(root / room, copy / room, ignore=shutil.ignore_patterns("__pycache__"))
    environment = {**os.environ, "PYTHONPATH": str(copy)}

    def start(arguments: list[str]) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "pulptrain", *arguments]
        return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)

    return start


@pytest.mark.slow
def test_killed_and_begun_again_it_ends_with_the_same_schedule(
    model: str, command_line: Callable[[list[str]], subprocess.Popen[str]]
) -> None:
    search = ["--strategy", "exhaustive", "--json"]
    arguments = tune(model, *search, "--cache", "killed.sqlite", "--save-schedule", "killed.yaml")
    process = command_line(arguments)
    while process.poll() is None and evaluations_in("killed.sqlite") <= 10:
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    assert not Path("killed.yaml").exists()
    resumed = json.loads(command_line(arguments).communicate()[0])
    assert 0 < resumed["simulator"]["cached"] < resumed["evaluated"]
    whole = command_line(tune(model, *search, "--no-cache", "--save-schedule", "whole.yaml"))
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
    assert "interrupted; best schedule so far: schedule.yaml" in capsys.readouterr().err
    monkeypatch.setattr(ResultCache, "write", write)
    choices = load_schedule("schedule.yaml").choices
    assert 0 < len(choices) < 4
    assert printed(capsys, "run", model, *SIMPLE, "--schedule", "schedule.yaml")["functional"]["passed"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--strategy", "best"], "exhaustive"),
        (["--workers", "0"], "1 or more"),
        (["--executor", "dask://"], "dask://HOST:PORT"),
        (["--cache", "c", "--no-cache"], "--no-cache: the option cannot be used together with --cache"),
        (["--start", "none.yaml"], "the file does not exist"),
        (["--tilings", "-1"], "--tilings"),
        (["--step-variants", "gpu"], "unknown variant 'gpu'"),
        (["--variant", "FW=none"], "use --step-variants with those to choose from"),
        (["--layout", "HCW"], "unknown layout 'HCW'"),
        (["--strategy", "paper", "--largest-tiles", "0"], "--largest-tiles"),
    ],
)
def test_bad_input_is_refused(
    model: str, options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    error = refused(capsys, *tune(model, *options))
    assert message in error
    assert not Path("schedule.yaml").exists()


def test_a_memory_too_small_for_the_iteration_is_refused_as_by_run(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    small = ["--l2", "2KiB", "--l3", "1MiB"]
    reports = [
        refused(capsys, *command, code=3).partition("L2 is too small: ")[2].splitlines()
        for command in (tune(model, *small), ["run", model, *SIMPLE, *small])
    ]
    assert reports[0][-1] == reports[1][-1] == "  try: use --l2 5288B or a smaller model"
    assert reports[0][:-1] == reports[1][: len(reports[0]) - 1]  # then run says what other changes would save
    assert not Path("schedule.yaml").exists()


def test_where_only_untuned_choices_fit_the_report_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    small = ["simple-mlp", "--l2", "8KiB", "--l3", "1MiB", "--no-cache"]
    assert printed(capsys, "run", *small, "--no-functional")["cycles"] > 0
    error = refused(capsys, "tune", *small, "--tilings", "1", "--workers", "1", "--quiet", code=3)
    assert "L2 is too small for an iteration with the tuned choices: " in error
    assert error.endswith(" or a smaller model, or run it untuned\n")


def test_a_search_for_all_cuts_is_bounded_and_says_so(
    model: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--tilings", "0", "--strategy", "paper", "--no-cache", "--workers", "1", "--resident", "off")
    assert printed(capsys, *tune(model, *options))["truncated_ops"] == []
    for module in (search_space, strategies):
        monkeypatch.setattr(module, "MOST_CUTS", 2)
    few = printed(capsys, *tune(model, *options))
    assert few["truncated_ops"]
    assert all(choice["candidates"] <= 4 * 60 for choice in few["choices"])
    assert run([*tune(model, *options)]) == 0
    assert "more tilings than are searched" in " ".join(capsys.readouterr().out.split())
