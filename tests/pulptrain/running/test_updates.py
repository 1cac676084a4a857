# SPDX-License-Identifier: Apache-2.0
"""`pulptrain run` where an update takes several mini-batches, or is a program of its own."""

import json
from pathlib import Path

import pytest

from configs.model_file import load_model
from configs.values import replace
from pulptrain.cli import dispatch
from pulptrain.inputs.settings import Settings
from shared.kept_plans import run_model
from shared.printed import printed
from shared.training_form_models import CNN, changed, written
from trainlib.references.reference import evaluate
from trainlib.training.phases import build_training_graph, build_training_phases, initial_weights
from trainlib.training.training_data import sample_stream

NET = (CNN[0], CNN[2], *CNN[-2:])
"""Convolution, tanh, linear: no batch norm, so that three batches of one train as one batch of three."""


def run(path: str, iterations: int = 1, **settings):
    return run_model(path, Settings(**settings), iterations=iterations)


def test_an_update_costs_its_mini_batches_and_itself(tmp_path: Path) -> None:
    path = written(tmp_path, NET, optimizer="name: sgd_momentum, learning_rate: 0.1, accumulate: 3")
    outcome = run(path)
    summary, parts = outcome.summary, outcome.summary["update"]
    assert (parts["mini_batches"], summary["cycles"]) == (3, parts["cycles_per_update"])
    assert summary["cycles"] == 3 * parts["mini_batch_cycles"] + parts["update_cycles"]
    for phase in ("mini_batch", "update"):
        one = parts[phase]
        assert one["cycles"] == sum(one["steps_cycles"].values()) + one["offload_cycles"]
    assert set(parts["mini_batch"]["steps_cycles"]) == {"FW", "LOSS", "WG", "IG", "ACCUMULATE"}
    assert set(parts["update"]["steps_cycles"]) == {"UPD"}
    by_name = {op["name"]: op for op in summary["ops"]}
    assert (by_name["fc.WG"]["runs_per_update"], by_name["fc.UPD"]["runs_per_update"]) == (3, 1)
    assert sum(op["cycles"] for op in summary["ops"]) + summary["offload_cycles"] == summary["cycles"]
    assert sum(summary["stalls"].values()) + summary["busy_cycles"] == 8 * summary["cycles"]
    assert summary["trace_cycles"] == max(item.end_cycles for item in outcome.slices if "core" in item.track)


def test_more_mini_batches_cost_in_proportion(tmp_path: Path) -> None:
    path = written(tmp_path, NET)
    two, five = (run(path, accumulate=count).summary for count in (2, 5))
    assert five["cycles"] - two["cycles"] == 3 * two["update"]["mini_batch_cycles"]
    assert five["update"]["update_cycles"] == two["update"]["update_cycles"]


@pytest.mark.parametrize(
    ("dtype", "options"),
    [
        ("fp32", ""),
        ("bf16", ", clip_norm: 0.02"),
        pytest.param("bf16", "", marks=pytest.mark.sweep),
        pytest.param("fp32", ", clip_norm: 0.02", marks=pytest.mark.sweep),
    ],
)
def test_the_numbers_of_a_whole_update_are_checked(tmp_path: Path, dtype: str, options: str) -> None:
    path = written(tmp_path, optimizer=f"name: adamw, learning_rate: 0.01, accumulate: 3{options}")
    functional = run(path, dtype=dtype).summary["functional"]
    assert functional["passed"]
    phases = build_training_phases(load_model(path))
    weights = sum(op.step == "UPD" for op in phases.update.ops)
    named = {item["name"] for item in functional["tensors"]}
    states = {name for name in named if name.endswith((".m_updated", ".v_updated", ".t_updated"))}
    assert len(states) == 3 * weights, "two moments and a step count of every weight"
    assert named >= {*phases.mini_batch.results, *phases.mini_batch.updates.values()}
    assert named >= set(phases.update.updates.values())


@pytest.mark.parametrize(("accumulate", "batch"), [(3, 1), (1, 2), (2, 2)])
def test_updates_train_as_one_large_batch_does(tmp_path: Path, accumulate: int, batch: int) -> None:
    """Losses of four updates, so that the totals of the one before must be overwritten (lazy reset)."""
    path = written(tmp_path, NET, batch=batch, optimizer="name: sgd_momentum, learning_rate: 0.2")
    summary = run(path, 4, accumulate=accumulate, separate_update=True).summary
    large = replace(load_model(path), batch=accumulate * batch)
    graph = build_training_graph(large)
    values, stream = initial_weights(graph, 0), sample_stream(graph, large, 0)
    losses = []
    for _ in range(4):
        known = evaluate(graph, {**values, **next(stream)})
        values = {name: known[graph.updates.get(name, name)] for name in values}
        losses.append(float(known[graph.loss][0]))
    assert summary["training"]["iterations"] == 4
    assert summary["training"]["first_loss"] == pytest.approx(losses[0], rel=1e-5)
    assert summary["training"]["last_loss"] == pytest.approx(losses[-1], rel=1e-5)
    assert summary["training"]["cycles"] == 4 * summary["cycles"]


def test_a_separate_update_shares_weights_and_gradients(tmp_path: Path) -> None:
    """The two programs do what one does: the same ops, no copy between them."""
    path = written(tmp_path, NET, optimizer="name: adam, learning_rate: 0.01")
    together, apart = run(path).summary, run(path, separate_update=True).summary
    assert [op["name"] for op in apart["ops"]] == [op["name"] for op in together["ops"]]
    assert (apart["macs"], apart["loss"]) == (together["macs"], together["loss"])
    assert apart["update"]["mini_batches"] == 1
    assert apart["update"]["mini_batch"]["steps_cycles"].keys() == {"FW", "LOSS", "WG", "IG"}
    phases = build_training_phases(
        replace(
            load_model(path),
            optimizer=replace(
                load_model(path).optimizer, options={"learning_rate": 0.01, "separate": True}, node=None
            ),
        )
    )
    assert set(phases.means) == set(phases.mini_batch.gradients.values())
    states = phases.update.of_kind("optimizer_state")
    assert states
    assert set(states) <= set(phases.mini_batch.tensors), "the states have their place in both plans"


def test_all_training_forms_at_once_on_the_simulated_soc(tmp_path: Path) -> None:
    """Recomputed, frozen, sparse and adapted layers, accumulated and clipped, to the end of two updates."""
    layers = changed(CNN, "pw", "update_channels: [1, 4]")
    layers = changed(changed(layers, "dw", "trainable: false"), "fc", "adapter: {rank: 2, alpha: 3}")
    optimizer = "name: adam, learning_rate: 0.01, accumulate: 2, clip_norm: 0.5"
    path = written(tmp_path, layers, optimizer=optimizer, model="recompute: [conv1, norm1, act1]")
    summary = run(path, 2).summary
    assert summary["functional"]["passed"]
    times = {op["name"]: op["runs_per_update"] for op in summary["ops"]}
    assert (times["conv1.again.FW"], times["pw.WG"], times["fc.up.UPD"]) == (2, 2, 1)
    assert not times.keys() & {"dw.WG", "fc.WG", "fc.UPD"}


def test_timing_alone_has_both_programs(tmp_path: Path) -> None:
    path = written(tmp_path, NET, optimizer="name: sgd, learning_rate: 0.1, accumulate: 4")
    with_numbers = run_model(path).summary
    without = run_model(path, functional=False).summary
    assert without["update"] == with_numbers["update"]
    assert (without["loss"], without["functional"]) == (None, None)


@pytest.mark.usefixtures("undrawn")
def test_the_command_line_reports_the_update(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, out = written(tmp_path, NET), str(tmp_path / "out")
    assert dispatch(["run", path, "--accumulate", "3", "--out", out]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert f"3 x {summary['update']['mini_batch_cycles']:,} cycles per mini-batch" in printed
    assert dispatch(["run", path, "--separate-update", "--dump-program"]) == 0
    assert "UPD" in capsys.readouterr().out


def test_dtype_and_batch_replace_those_of_the_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path, NET)
    summary = printed(capsys, "run", path, "--dtype", "bf16", "--batch", "3")
    plain = run_model(path).summary
    assert summary["macs"] == 3 * plain["macs"]
    assert summary["functional"]["tolerance"] > plain["functional"]["tolerance"]
    assert any(op["primitive"] == "cast" for op in summary["ops"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--dtype", "fp8"], "unknown dtype 'fp8'"),
        (["--batch", "0"], "the batch size is 0"),
        (["--accumulate", "0"], "the number of mini-batches per update is 0"),
    ],
)
def test_wrong_overrides_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert dispatch(["run", written(tmp_path, NET), *arguments]) == 2
    assert f"{arguments[0]}: {message}" in capsys.readouterr().err
