# SPDX-License-Identifier: Apache-2.0
"""`pulptrain fit`: answers that run as told, the ladder, and what is refused."""

import json
import re
import time
from itertools import pairwise
from pathlib import Path
from typing import Any, NoReturn

import pytest

import pulptrain as pt
from configs.errors import DoesNotFitError, InputError
from configs.model_file import load_model
from pulptrain.cli import dispatch
from pulptrain.fitting.fit_model import Fitting, fit_model
from pulptrain.fitting.ladder import forms_of
from pulptrain.inputs.settings import Settings, soc_timing
from pulptrain.process import BEGUN_SECONDS
from pulptrain.process.interrupts import command_begun_seconds
from pulptrain.running.session import model_of, prepare
from scheduler.fit.problem import evaluate
from scheduler.fit.solver import UndecidedError
from scheduler.tiles.transfer_cost import UdmaCost

pytestmark = pytest.mark.needs_ortools

MODEL = "digits-cnn"


@pytest.fixture(scope="module")
def fitted() -> Any:
    peak = pt.run(MODEL, functional=False).summary["peak_bytes"]["l2"]
    return pt.fit(MODEL, l2=-(-peak * 6 // 10 // 1024) * 1024, points=0, time_limit=5)


@pytest.fixture(scope="module")
def with_a_front() -> Any:
    return pt.fit("simple-mlp", l2=3072, icache="warm", points=2, time_limit=20)


def test_the_answer_fits_and_is_what_was_predicted(fitted: Any) -> None:
    summary = fitted.summary
    assert summary["peak_bytes"]["l2"] <= summary["budget_bytes"]["l2"]
    assert summary["predicted_bytes"] == summary["peak_bytes"]["l2"]
    assert summary["cycles"] == pytest.approx(summary["predicted_cycles"], rel=0.03)
    assert {row["action"] for row in summary["decisions"]} <= {
        "recompute",
        "page",
        "stream",
        "update at once",
    }


def test_the_model_it_writes_takes_these_cycles_with_right_numbers(fitted: Any, tmp_path: Path) -> None:
    path = fitted.save(tmp_path / "small.yaml")
    l2 = fitted.summary["budget_bytes"]["l2"]
    result = pt.run(path, l2=l2, placement="optimal")
    assert result.summary["cycles"] == fitted.cycles
    assert result.summary["peak_bytes"] == fitted.summary["peak_bytes"]
    assert result.summary["functional"]["passed"]


def test_an_answer_leaves_room_for_the_code_and_counts_it(tmp_path: Path) -> None:
    options = {"icache": "steady", "l2": 9 << 10, "form": "readable"}
    fitted = pt.fit("simple-mlp", points=0, time_limit=5, **options)
    result = pt.run(fitted.save(tmp_path / "small.yaml"), functional=False, placement="optimal", **options)
    assert result.cycles == fitted.cycles
    unpaged = prepare("simple-mlp", Settings(icache="steady", form="readable")).schedule.plan.code_bytes
    assert result.summary["code_bytes"] > unpaged > 4_000, "copies are code, too"
    assert fitted.summary["predicted_bytes"] == fitted.summary["peak_bytes"]["l2"]
    assert result.summary["peak_bytes"]["l2"] <= 9 << 10
    warm = pt.fit("simple-mlp", points=0, time_limit=5, l2=9 << 10, icache="warm")
    assert warm.summary["peak_bytes"]["l3"] == 0, "without code all of it fits"
    assert fitted.summary["peak_bytes"]["l3"] > 0


def test_with_code_the_sizes_that_a_refusal_names_are_enough() -> None:
    """5 KiB hold the code of all parameters unpaged and 780 B; of inference the code is less."""
    asked = {"icache": "steady", "l3": 0, "points": 0, "time_limit": 2}
    with pytest.raises(DoesNotFitError) as raised:
        pt.fit("simple-mlp", l2="5KiB", **asked)
    error = raised.value
    (inference,) = error.levers
    small = Settings(icache="steady", l2=f"{inference.required_bytes}B", l3="0", steps="fw")
    assert prepare("simple-mlp", small)
    assert pt.fit("simple-mlp", l2=error.required_bytes, **asked).summary["peak_bytes"]["l3"] == 0


@pytest.mark.parametrize("l2", [2048, 3072])
def test_what_streams_is_predicted_too_computes_the_same_and_nothing_better_was_left(
    l2: int, with_a_front: Any, tmp_path: Path
) -> None:
    small = {"l2": l2, "icache": "warm", "points": 0, "time_limit": 20}
    fitted = with_a_front if l2 == 3072 else pt.fit("simple-mlp", **small)
    summary = fitted.summary
    assert any(row["action"] == "stream" for row in summary["decisions"])
    assert summary["predicted_bytes"] == summary["peak_bytes"]["l2"]
    assert summary["cycles"] == pytest.approx(summary["predicted_cycles"], rel=0.03)
    assert summary["optimality_gap"] < 0.005
    path = fitted.save(tmp_path / "small.yaml")
    assert load_model(str(path)).streams
    assert pt.run(path, l2=l2, icache="warm", placement="optimal").summary["functional"]["passed"]


def test_by_energy_it_takes_no_more_of_it_than_the_fastest_way_and_within_a_deadline() -> None:
    small = {"l2": "3KiB", "icache": "warm", "points": 0, "time_limit": 20}
    fast, frugal = (
        pt.fit("simple-mlp", "vega", objective=objective, **small).summary
        for objective in ("cycles", "energy")
    )
    assert frugal["joules"] < fast["joules"]
    assert frugal["joules"] == pytest.approx(frugal["predicted_joules"], rel=0.03)
    assert frugal["cycles"] > fast["cycles"]
    between = (fast["cycles"] + frugal["cycles"]) // 2
    found = pt.fit("simple-mlp", "vega", objective="energy", deadline=between, **small).summary
    assert found["cycles"] <= between
    assert frugal["joules"] <= found["joules"] <= fast["joules"]


def test_what_may_be_changed_is_where_it_helps_and_is_priced_as_a_whole() -> None:
    small = {"l2": "8KiB", "l3": 0, "icache": "warm"}
    found = pt.fit("simple-mlp", batch=16, allow="accumulate", points=0, time_limit=5, **small)
    summary = found.summary
    assert summary["decisions"][0]["action"].startswith("accumulate")
    assert summary["cycles"] == pytest.approx(summary["predicted_cycles"], rel=0.03)
    assert summary["peak_bytes"]["l2"] <= summary["budget_bytes"]["l2"]


def test_the_list_of_the_user_is_a_form_and_the_others_do_not_heed_it() -> None:
    spec = load_model("resnet8")
    sparse = "sparse (1/8 of the channels)"
    assert [form.name for form in forms_of(spec)][-3:] == ["last quarter (from s3_conv2)", sparse, "full"]
    listed = model_of(spec, Settings(train="conv1, fc"))
    assert [form.name for form in forms_of(listed)][-2:] == ["as listed (conv1, fc)", "full"]
    assert forms_of(listed)[-1].spec == spec


def test_a_time_that_is_over_before_the_search_leaves_an_answer() -> None:
    """The planner has none without an L3: what is computed again is searched, however late it is."""
    long_ago = time.perf_counter() - 60
    outcome = fit_model(
        "digits-cnn", Settings(l2="54KiB", l3="0", icache="warm"), seconds=60, started=long_ago
    )
    assert outcome.answer.decisions.again
    assert outcome.answer.peak_bytes["l2"] <= 54 << 10
    # With what backward reads of the model as it is, 55,964 B are the least.
    assert {layer.backward_reads for layer in outcome.spec.layers if layer.type == "relu"} == {"input"}


def test_that_none_was_found_in_time_is_not_that_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(*_: object, **__: object) -> None:
        raise UndecidedError

    monkeypatch.setattr("pulptrain.fitting.fit_model.solve", nothing)
    with pytest.raises(
        InputError,
        match=r"after 0.1 s without a way .* a longer search may find one\n  try: use --time-limit 60",
    ):
        pt.fit("simple-mlp", l2="4KiB", l3=0, icache="warm", time_limit=0.1)


def test_a_refusal_ends_with_its_time_and_names_one_form_that_fits() -> None:
    with pytest.raises(
        InputError,
        match=r"--time-limit: the search reached its time limit .* of L2; a longer search may find some",
    ) as raised:
        pt.fit("simple-mlp", l2="2KiB", l3=0, icache="warm", time_limit=0.01)
    size = re.search(r"--l2 (\d+)KiB for inference;", str(raised.value))
    assert size is not None
    pt.run("simple-mlp", steps="fw", l2=f"{size[1]}KiB", l3=0, icache="warm", functional=False)


def test_the_time_begins_with_the_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    times: list[float] = []

    def reading(*_: object) -> NoReturn:
        times.append(time.perf_counter())
        raise InputError("read")

    monkeypatch.setattr("pulptrain.foreign.model_source.open_source", reading)
    monkeypatch.setattr(
        "pulptrain.commands.fit.command_begun_seconds", lambda: times.append(command_begun_seconds())
    )
    assert dispatch(["fit", "simple-mlp", "-q", "--save-model", str(tmp_path / "x.yaml")]) == 2
    started, read = times
    assert started < read
    monkeypatch.setattr("sys.argv", ["pulptrain"])
    assert command_begun_seconds() == BEGUN_SECONDS < started, "of a process the imports count, too"


def test_points_of_the_front_are_not_dominated(with_a_front: Any) -> None:
    front = [point for point in with_a_front.summary["points"] if point["on_front"]]
    assert len(front) > 1
    for before, after in pairwise(front):
        assert before["peak_l2_bytes"] <= after["peak_l2_bytes"]
        assert before["cycles"] >= after["cycles"]


def test_a_form_with_levers_needs_no_more_than_without_and_fit_finds_the_sizes_of_the_ladder() -> None:
    rows = pt.fit("simple-mlp", icache="warm", ladder=True).ladder
    least = {row["form"]: row["bytes"]["l2"] for row in rows if not row["techniques"]}
    assert next(iter(least)) == "inference"
    assert list(least)[-1] == "full"
    assert least["inference"] <= least["last layer"] <= least["full"]
    for row in rows:
        assert row["bytes"]["l2"] <= max(1024, least[row["form"]])
    full = {row["techniques"][-1]: row for row in rows if row["form"] == "full" and row["techniques"]}
    assert full["streaming"]["bytes"]["l2"] < full["paging"]["bytes"]["l2"] < full["recompute"]["bytes"]["l2"]
    for technique, l3 in (("streaming", None), ("recompute", 0)):
        row = full[technique]
        fitted = pt.fit("simple-mlp", icache="warm", l2=f"{row['bytes']['l2']}B", l3=l3, time_limit=0.5)
        assert fitted.summary["peak_bytes"]["l2"] <= row["bytes"]["l2"], technique
        assert fitted.cycles <= row["cycles"], technique


def test_with_room_for_everything_nothing_is_decided() -> None:
    summary = pt.fit("simple-mlp", points=0).summary
    assert summary["decisions"] == []
    assert summary["cycles"] == summary["before"]["cycles"]


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (
            ["--l2", "2KiB", "--l3", "0", "--icache", "warm"],
            2,
            "too small to train any parameters of simple-mlp: even inference needs",
        ),
        (["--deadline", "1kcycles"], 2, "cycles even with all data in L2, but the deadline is 1,000"),
        (["--deadline", "soon"], 2, "'soon' is not a number of cycles"),
        (["--objective", "energy"], 2, "pulp-open has no energy coefficients"),
        (["--allow", "magic"], 2, "unknown change 'magic'"),
        (["--train", "fc7"], 2, "unknown layer 'fc7'"),
        (["--objective", "fun"], 2, "unknown objective 'fun'"),
    ],
)
def test_what_cannot_be_is_refused(
    words: list[str], code: int, said: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert dispatch(["fit", "simple-mlp", "-q", "--save-model", str(tmp_path / "x.yaml"), *words]) == code
    assert said in capsys.readouterr().err


def test_without_an_l3_to_page_to_the_forms_that_fit_are_told(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = ["fit", "simple-mlp", "-q", "--save-model", str(tmp_path / "x.yaml"), "--icache", "warm"]
    words += ["--l2", "4KiB", "--l3", "0"]
    assert dispatch(words) == 3
    told = capsys.readouterr().err
    assert "add an L3 to page to" in told
    assert "inference" in told


def test_json_and_files(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ["fit", "simple-mlp", "--l2", "9KiB", "--points", "0", "--json", "--out", str(tmp_path / "out")]
    assert dispatch(words) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["feasible"] is True
    assert (tmp_path / "out" / "simple-mlp-fit.yaml").is_file()
    assert (tmp_path / "out" / "memory-before-after.png").is_file()


def test_a_decision_saves_and_costs_what_it_would_be_without(tmp_path: Path) -> None:
    fitted = pt.fit("simple-mlp", l2="4KiB", icache="warm", points=0, time_limit=20)
    rows = {row["tensor"]: row for row in fitted.summary["decisions"]}
    assert rows.keys() == {"all weight gradients", "fc2.weight", "fc1.weight.grad"}
    udma = UdmaCost(soc_timing(Settings()))
    paged, streamed = rows["fc2.weight"], rows["fc1.weight.grad"]
    assert (paged["action"], paged["saved_bytes"]) == ("page", 320)
    # It arrives twice behind other ops, and leaves after the update with nothing to hide that.
    assert paged["added_cycles"] == 2 * udma.set_up_cycles + udma.lines_cycles([320])
    slot_bytes = load_model(str(fitted.save(tmp_path / "small.yaml"))).slot_bytes
    assert (streamed["action"], streamed["before_ops"]) == ("stream", ["fc1.WG", "fc1.UPD"])
    assert streamed["saved_bytes"] == 2048 - max(slot_bytes.values())
    assert sum(row["added_cycles"] for row in rows.values()) == pytest.approx(
        fitted.cycles - fitted.summary["before"]["cycles"], rel=0.03
    )


def test_an_answer_is_written_and_printed_before_points_of_the_front_which_only_leave_notes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    found = Fitting.answer
    asked = []

    def too_large(self: Fitting, l2_bytes: int, *how: Any) -> Any:
        asked.append(l2_bytes)
        if len(asked) > 1:
            written = json.loads((tmp_path / "out" / "fit.json").read_text())
            assert (tmp_path / "out" / "memory-before-after.png").is_file()
            assert f"{written['cycles']:,} cycles" in (tmp_path / "out" / "simple-mlp-fit.yaml").read_text()
            if len(asked) == 3:
                raise KeyboardInterrupt
            raise InputError("the request needs 17 GiB of this computer's memory", where="--l2")
        return found(self, l2_bytes, *how)

    monkeypatch.setattr(Fitting, "answer", too_large)
    words = ["fit", "simple-mlp", "--l2", "9KiB", "--form", "readable"]
    words += ["--out", str(tmp_path / "out"), "--points"]
    assert dispatch([*words, "1"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert told.index("run it") < told.index("of L2: the request needs 17 GiB of this computer's memory")
    assert json.loads((tmp_path / "out" / "fit.json").read_text())["notes"]
    asked[1:] = []
    asked.append(0)
    assert dispatch([*words, "3"]) == 130
    assert {path.name for path in (tmp_path / "out").iterdir()} >= {"fit.json", "simple-mlp-fit.yaml"}


def test_a_time_is_that_of_the_command_once_it_is_over_nothing_is_searched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def searched(*_: Any, **__: Any) -> None:
        raise AssertionError("a search without time for it")

    monkeypatch.setattr("pulptrain.fitting.fit_model.solve", searched)
    # Shorter than any pricing: in a process that has priced the ops before, 0.1 s was enough for a point.
    summary = pt.fit("simple-mlp", l2="4KiB", icache="warm", time_limit=0.001, points=2).summary
    assert summary["peak_bytes"]["l2"] <= 4096
    assert "the time limit left out 2 of 2 points" in summary["notes"][0]


@pytest.mark.parametrize(
    "words",
    [
        "--save-model x.yaml",
        "--deadline 1M",
        "--objective energy",
        "--allow accumulate",
        "--points 2",
        "--time-limit 5",
    ],
)
def test_what_a_ladder_has_no_use_for_is_refused(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert dispatch(["fit", "simple-mlp", "--ladder", *words.split()]) == 2
    assert f"{words.split(maxsplit=1)[0]} applies to one choice of trained" in capsys.readouterr().err


@pytest.mark.parametrize("l2_bytes", [12 << 10, 31 << 10])
def test_what_the_planner_decides_by_itself_is_an_answer_to_begin_with(l2_bytes: int) -> None:
    fitting = Fitting(load_model(MODEL), Settings(placement="optimal"))
    problem = fitting.problem(l2_bytes)
    decisions = fitting.planned(problem)
    assert decisions is not None
    assert decisions.moved
    assert evaluate(problem, decisions).keeps(problem)
