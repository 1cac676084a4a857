# SPDX-License-Identifier: Apache-2.0
"""Tilings and kernel prices kept on disk: a second run asks for neither, and no result depends on them."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arch.blocks.soc import Soc
from arch.pricing.cost_model import CoreCost, DmaService, TeamCost
from arch.pricing.team_cost_model import TeamCostModel
from arch.spec.isa import TeamWork
from configs.values import replace
from pulptrain.cli import dispatch
from pulptrain.foreign.model_source import open_source
from pulptrain.inputs.settings import Settings
from pulptrain.running.session import RunOutcome, run_model
from scheduler import resident_search, run_cache, tiling_choice
from scheduler.run_cache import cost_from, cost_text
from scheduler.search.cache import ResultCache
from scheduler.tiles.tiling import Tiler
from shared.onnx_training_models import mlp_case
from traces.events import STALLS

MODEL = "digits-cnn"

SMALL = "simple-mlp"
"""Where one op of a kind is enough."""

stalls = st.dictionaries(st.sampled_from(STALLS), st.integers(1, 10**9), max_size=4)
cores = st.builds(
    lambda issued, lost: CoreCost(issued + sum(lost.values()), issued, tuple(lost.items())),
    st.integers(0, 10**9),
    stalls,
)
words = st.none() | st.tuples(st.integers(0, 10**6), st.integers(1, 10**6))


@given(st.lists(cores, max_size=8), st.none() | st.builds(DmaService, words, words))
def test_a_price_is_read_as_it_was_written(costs: list[CoreCost], dma: DmaService | None) -> None:
    cost = TeamCost(tuple(costs), dma)
    again = cost_from(cost_text(cost))
    assert (again, again.dma) == (cost, dma)


def results(outcome: RunOutcome) -> str:
    """Everything a run says apart from how long it took."""
    summary = {key: value for key, value in outcome.summary.items() if key != "simulator"}
    return json.dumps([summary, [repr(item) for item in outcome.slices]])


def refuse(*_: object, **__: object) -> None:
    raise AssertionError("asked although the answer is kept")


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param(Settings(), id="double"),
        pytest.param(Settings(buffering="single"), id="single", marks=pytest.mark.sweep),
        pytest.param(Settings(accumulate=2), id="two programs"),
        pytest.param(Settings(l2="50KiB"), id="staged", marks=pytest.mark.sweep),
        pytest.param(Settings(l2="12KiB", icache="warm"), id="streamed"),
    ],
)
def test_a_second_run_asks_nothing_and_says_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: Settings
) -> None:
    cache = ResultCache(tmp_path / "kept.sqlite")
    without = results(run_model(MODEL, settings, functional=False))
    assert results(run_model(MODEL, settings, functional=False, cache=cache)) == without
    monkeypatch.setattr(TeamCostModel, "price", refuse)
    monkeypatch.setattr(tiling_choice, "enumerate_tilings", refuse)
    assert results(run_model(MODEL, settings, functional=False, cache=cache)) == without
    with_numbers = run_model(MODEL, settings, cache=cache).summary
    assert with_numbers["functional"]["passed"]
    assert with_numbers["cycles"] == json.loads(without)[0]["cycles"]


@pytest.mark.needs_onnx
@pytest.mark.needs_torch
def test_a_training_graph_asks_nothing_the_second_time_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(mlp_case(tmp_path, mini_batches=2) / "mlp_train" / "network.onnx")
    cache = ResultCache(tmp_path / "kept.sqlite")

    def run() -> RunOutcome:
        source = open_source(path, Settings(accumulate=2))
        return source.run(Settings(), functional=False, iterations=1, cache=cache, traced=False)

    first = run()
    monkeypatch.setattr(TeamCostModel, "price", refuse)
    monkeypatch.setattr(tiling_choice, "enumerate_tilings", refuse)
    again = run()
    assert (first.summary["simulator"]["cached"], again.summary["simulator"]["cached"]) == (0, 2)
    assert results(replace(again, slices=first.slices)) == results(first)


def test_a_second_run_asks_no_more_what_stays_in_l1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = ResultCache(tmp_path / "kept.sqlite")
    settings = Settings(resident="auto")
    first = run_model(MODEL, settings, functional=False, cache=cache)
    assert first.summary["resident"]
    monkeypatch.setattr(resident_search, "choose_resident", lambda *_, **__: refuse())
    monkeypatch.setattr(TeamCostModel, "price", refuse)
    monkeypatch.setattr(tiling_choice, "enumerate_tilings", refuse)
    assert results(run_model(MODEL, settings, functional=False, cache=cache)) == results(first)
    with pytest.raises(AssertionError, match="the answer is kept"):
        run_model(MODEL, replace(settings, l1="32KiB"), functional=False, cache=cache)


@pytest.fixture(scope="module")
def kept_of_a_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What one run leaves."""
    path = tmp_path_factory.mktemp("kept") / "kept.sqlite"
    cache = ResultCache(path)
    run_model(SMALL, functional=False, cache=cache)
    cache.close()
    return path


@pytest.mark.parametrize(
    "other",
    [
        Settings(l1="32KiB"),
        Settings(cores=4),
        Settings(overrides=("l1.banks=8",)),
        Settings(codegen="pulp-gcc7"),
        Settings(dtype="bf16"),
        Settings(kernels=("FW=mm",)),
        Settings(timing="gvsoc"),
    ],
    ids=lambda settings: str(settings)[:0] or None,
)
def test_another_question_finds_nothing(tmp_path: Path, kept_of_a_run: Path, other: Settings) -> None:
    """The context covers SoC, codegen, model and options: what is kept for one is not taken for another."""
    cache = ResultCache(Path(shutil.copy(kept_of_a_run, tmp_path)))
    fresh = results(run_model(SMALL, other, functional=False))
    assert results(run_model(SMALL, other, functional=False, cache=cache)) == fresh


def asked_again(
    monkeypatch: pytest.MonkeyPatch, cache: ResultCache, model: str, settings: Settings
) -> tuple[list[str], list[str]]:
    """Ops whose tilings, and kernels whose prices, a run with the cache does not find there."""
    cut: list[str] = []
    priced: list[str] = []
    enumerate_tilings, price = tiling_choice.enumerate_tilings, TeamCostModel.price

    def cutting(tiler: Tiler, *given: Any) -> Any:
        cut.append(tiler.op.name)
        return enumerate_tilings(tiler, *given)

    def pricing(self: TeamCostModel, work: TeamWork, *given: Any) -> Any:
        priced.append(work.kernel)
        return price(self, work, *given)

    with monkeypatch.context() as patch:
        patch.setattr(tiling_choice, "enumerate_tilings", cutting)
        patch.setattr(TeamCostModel, "price", pricing)
        run_model(model, settings, functional=False, cache=cache)
    return cut, priced


@pytest.mark.parametrize(
    ("part", "other"),
    [
        ("model_version", lambda: "another source"),
        ("numpy_version", "0"),
        ("sys", SimpleNamespace(version_info=(3, 99, 0))),
        ("", Settings(timing="gvsoc")),
        ("", Settings(overrides=("l1.banks=8",))),
        ("", Settings(codegen="pulp-gcc7")),
    ],
    ids=["code", "NumPy", "Python", "profile", "parameter", "codegen"],
)
def test_what_has_made_a_price_is_in_its_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str, other: Any
) -> None:
    cache = ResultCache(tmp_path / "kept.sqlite")
    run_model(SMALL, functional=False, cache=cache)
    assert asked_again(monkeypatch, cache, SMALL, Settings()) == ([], [])
    if part:
        monkeypatch.setattr(run_cache, part, other)
    cut, priced = asked_again(monkeypatch, cache, SMALL, Settings() if part else other)
    assert cut
    assert priced


def for_figures(cache: ResultCache, settings: Settings, model: str = SMALL) -> RunOutcome:
    return run_model(model, settings, functional=False, traced=False, cache=cache)


@pytest.mark.parametrize(
    ("settings", "programs"),
    [(Settings(), 1), (Settings(accumulate=2), 2), (Settings(l2="12KiB", icache="warm"), 1)],
    ids=["one program", "two programs", "streamed"],
)
def test_a_second_run_for_figures_alone_simulates_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: Settings, programs: int
) -> None:
    cache = ResultCache(tmp_path / "kept.sqlite")
    first = for_figures(cache, settings, MODEL)
    with monkeypatch.context() as patch:
        patch.setattr(Soc, "run", refuse)
        second = for_figures(cache, settings, MODEL)
    assert not first.slices
    assert not second.slices
    assert (first.summary["simulator"]["cached"], second.summary["simulator"]["cached"]) == (0, programs)
    assert first.summary["simulator"]["events"] == second.summary["simulator"]["events"]
    late, early = (
        [(type(action), action.id, action.deps, action.work) for action in outcome.schedule.program.actions]
        for outcome in (first, second)
    )
    assert late == early
    with_numbers = run_model(MODEL, settings, traced=False, cache=cache)
    assert with_numbers.summary["functional"]["passed"]
    assert with_numbers.summary["cycles"] == first.summary["cycles"]
    assert not with_numbers.slices
    traced = run_model(MODEL, settings, functional=False, cache=cache)
    assert traced.slices
    assert results(first) == results(second) == results(replace(traced, slices=()))


@pytest.mark.parametrize(
    "other",
    [
        *({"icache": "cold"}, {"timing": "gvsoc"}, {"overrides": ("l1.banks=8",)}, {"batch": 2}),
        *({"kernels": ("fc1.WG=mm",)}, {"steps": "fw,ig"}, {"accumulate": 2}, {"buffering": "single"}),
    ],
    ids=str,
)
def test_what_has_made_figures_is_in_their_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: dict[str, Any]
) -> None:
    cache = ResultCache(tmp_path / "kept.sqlite")
    for_figures(cache, Settings())
    monkeypatch.setattr(Soc, "run", refuse)
    for_figures(cache, Settings())
    with pytest.raises(AssertionError, match="asked although"):
        for_figures(cache, Settings(**other))


@pytest.mark.parametrize("changed", [(), (("traces",),)], ids=["simulator", "what reads slices"])
def test_figures_are_those_of_the_code_of_today(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: tuple[Any, ...]
) -> None:
    cache = ResultCache(tmp_path / "kept.sqlite")
    for_figures(cache, Settings())
    version = run_cache.model_version
    monkeypatch.setattr(
        run_cache, "model_version", lambda *of: "another source" if of == changed else version(*of)
    )
    assert not for_figures(cache, Settings()).summary["simulator"]["cached"]


def test_where_one_layer_is_changed_the_others_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The op behind may find that it can load less, or more, while the changed one is at work."""
    cache = ResultCache(tmp_path / "kept.sqlite")
    warm = Settings(icache="warm")
    first = run_model(MODEL, warm, functional=False, cache=cache)
    ops = [op["name"] for op in first.summary["ops"]]
    edited = replace(warm, kernels=("conv1.WG=mm_unroll_2x4",))
    place = ops.index("conv1.WG")
    cut, _ = asked_again(monkeypatch, cache, MODEL, edited)
    assert "conv1.WG" in cut
    assert set(cut) <= {"conv1.WG", *ops[place + 1 : place + 2]}
    assert asked_again(monkeypatch, cache, MODEL, edited) == ([], [])
    assert asked_again(monkeypatch, cache, MODEL, warm) == ([], [])


def test_where_code_is_fetched_another_layer_changes_the_waits_of_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A larger kernel leaves less of the shared cache to the others: their tilings are searched again."""
    cache = ResultCache(tmp_path / "kept.sqlite")
    first = run_model(MODEL, functional=False, cache=cache)
    cut, _ = asked_again(monkeypatch, cache, MODEL, Settings(kernels=("conv1.WG=mm_unroll_2x4",)))
    assert set(cut) == {op["name"] for op in first.summary["ops"]}
    assert asked_again(monkeypatch, cache, MODEL, Settings()) == ([], [])


def test_a_damaged_file_is_set_aside(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "kept.sqlite"
    ResultCache(path).close()
    with path.open("r+b") as stream:
        stream.seek(16)
        stream.write(b"this is no database" * 3)
    expected = results(run_model(SMALL, functional=False))
    assert results(run_model(SMALL, functional=False, cache=ResultCache(path))) == expected
    assert "damaged" in capsys.readouterr().err
    assert (tmp_path / "kept.sqlite.corrupt-1").exists()


def run_json(*arguments: str) -> dict[str, object]:
    command = [sys.executable, "-m", "pulptrain", "run", MODEL, "--no-functional", "--json", *arguments]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    return {key: value for key, value in json.loads(result.stdout).items() if key != "simulator"}


@pytest.mark.slow
def test_two_processes_share_a_file(tmp_path: Path) -> None:
    """Started together on an empty file; both write what both have found."""
    arguments = ["run", MODEL, "--no-functional", "--json", "--cache", str(tmp_path / "kept.sqlite")]
    command = [sys.executable, "-m", "pulptrain", *arguments]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    printed = [json.loads(process.communicate()[0]) for process in both]
    for summary in printed:
        del summary["simulator"]
    assert printed[0] == printed[1] == run_json("--no-cache")
    assert run_json("--cache", str(tmp_path / "kept.sqlite")) == printed[0]


def test_without_a_cache_folder_there_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The folder cannot be made: its parent is a file. A file the user names is an error instead."""
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocked))
    monkeypatch.delenv("PULPTRAIN_CACHE", raising=False)
    assert dispatch(["run", SMALL, "--no-functional", "--quiet"]) == 0
    assert "results are not cached" in capsys.readouterr().err
    assert dispatch(["run", SMALL, "--quiet", "--cache", str(blocked / "kept.sqlite")]) == 2
    assert "another --cache FILE" in capsys.readouterr().err


def test_variables_name_the_cache_or_turn_it_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    named, other = tmp_path / "named.sqlite", tmp_path / "other.sqlite"
    monkeypatch.setenv("PULPTRAIN_CACHE", str(named))
    run = ["run", SMALL, "--no-functional", "--quiet"]
    assert dispatch([*run, "--no-cache"]) == 0
    assert os.listdir(tmp_path) == []
    assert dispatch(run) == 0
    assert named.exists()
    monkeypatch.setenv("PULPTRAIN_NO_CACHE", "1")
    named.unlink()
    assert dispatch(run) == 0
    assert not named.exists()
    assert dispatch([*run, "--cache", str(other)]) == 0
    assert other.exists(), "an option outdoes a variable"
