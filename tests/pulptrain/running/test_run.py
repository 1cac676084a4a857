# SPDX-License-Identifier: Apache-2.0
"""Whole training iterations through the front door: right numbers for any schedule, figures that add up."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pulptrain.inputs.settings import Settings
from pulptrain.running.session import RunOutcome
from shared.kept_plans import run_model
from traces.metrics import check_tracks
from trainlib.ir.numerics import FP32_TOLERANCE
from truth.source import torch_available

MODELS = ("digits-cnn", "tutorial-cnn")


def outcome(model: str, **settings: object) -> RunOutcome:
    return run_model(model, Settings(**settings))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("model", "l1", "cores", "buffering"),
    [
        ("digits-cnn", "64KiB", 8, "double"),
        pytest.param("tutorial-cnn", "64KiB", 8, "double", marks=pytest.mark.smoke),
        ("digits-cnn", "64KiB", 8, "single"),
        pytest.param("tutorial-cnn", "64KiB", 8, "single", marks=pytest.mark.sweep),
        pytest.param("digits-cnn", "64KiB", 1, "double", marks=pytest.mark.sweep),
        ("tutorial-cnn", "64KiB", 1, "double"),
        ("digits-cnn", "32KiB", 16, "single"),
        pytest.param("tutorial-cnn", "32KiB", 16, "single", marks=pytest.mark.sweep),
        pytest.param("digits-cnn", "16KiB", 4, "double", marks=pytest.mark.sweep),
        ("tutorial-cnn", "16KiB", 4, "double"),
        ("digits-cnn", "10KiB", 2, "single"),
        pytest.param("tutorial-cnn", "10KiB", 2, "single", marks=pytest.mark.sweep),
        pytest.param("digits-cnn", "256KiB", 5, "3", marks=pytest.mark.sweep),
        ("tutorial-cnn", "256KiB", 5, "3"),
    ],
)
def test_gradients_and_updates_agree_with_pytorch(model: str, l1: str, cores: int, buffering: str) -> None:
    summary = outcome(model, l1=l1, cores=cores, buffering=buffering).summary
    check = summary["functional"]
    assert torch_available()
    assert check["checked_against"] == "PyTorch"
    assert check["passed"]
    assert 0.0 <= check["max_rel_error"] <= FP32_TOLERANCE
    named = {item["name"] for item in check["tensors"]}
    weights = {"digits-cnn": 3, "tutorial-cnn": 2}[model]
    assert sum(name.endswith(".weight.grad") for name in named) == weights
    assert sum(name.endswith(".weight_updated") for name in named) == weights
    assert {"loss", "fc.out"} <= named


@pytest.mark.parametrize("model", MODELS)
def test_every_cycle_of_every_core_is_accounted_for(model: str) -> None:
    result = outcome(model)
    summary = result.summary
    check_tracks(result.slices, summary["cycles"])
    assert sum(op["cycles"] for op in summary["ops"]) + summary["offload_cycles"] == summary["cycles"]
    lost = sum(summary["stalls"].values())
    assert summary["busy_cycles"] + lost == summary["cycles"] * summary["cores"]
    assert summary["seconds"] == summary["cycles"] / summary["cluster_hz"]


def test_macs_are_those_of_the_layers() -> None:
    summary = outcome("tutorial-cnn").summary
    macs = {op["name"]: op["macs"] for op in summary["ops"] if op["macs"]}
    # Conv2D 8 -> 16, 3x3 on 8x8 without padding: FW and WG; Linear 576 -> 32: FW, WG and IG
    assert sorted(macs.values()) == [32 * 576, 32 * 576, 32 * 576, 41472, 41472]
    assert summary["macs"] == 3 * 32 * 576 + 2 * 41472


def test_two_runs_give_the_same_result_and_trace() -> None:
    first, second = outcome("digits-cnn", seed=3), outcome("digits-cnn", seed=3)
    for summary in (first.summary, second.summary):
        summary.pop("simulator")
    assert json.dumps(first.summary) == json.dumps(second.summary)
    assert list(first.slices) == list(second.slices)


def test_timing_does_not_depend_on_the_numbers() -> None:
    cycles = {outcome("digits-cnn", seed=seed).summary["cycles"] for seed in (0, 1)}
    cycles.add(run_model("digits-cnn", functional=False).summary["cycles"])
    assert len(cycles) == 1


def tiles_of(result: RunOutcome) -> tuple[str, ...]:
    return tuple(
        f"{op['name']}=" + ",".join(f"{name}:{size}" for name, size in op["tile"].items())
        for op in result.summary["ops"]
        if op["tile"]
    )


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("l1", ["64KiB", "24KiB"])
def test_double_buffering_is_never_slower_at_equal_tiles(model: str, l1: str) -> None:
    double = outcome(model, l1=l1)
    single = outcome(model, l1=l1, buffering="single", tiles=tiles_of(double))
    assert [op["tile"] for op in single.summary["ops"]] == [op["tile"] for op in double.summary["ops"]]
    assert double.summary["cycles"] <= single.summary["cycles"]


def test_double_buffering_pays_where_transfers_are_as_long_as_the_kernel() -> None:
    """The SGD step of the linear layer moves 12 bytes for 1 multiply-add: memory bound."""

    def sgd_cycles(result: RunOutcome) -> int:
        (cycles,) = (
            op["cycles"]
            for op in result.summary["ops"]
            if op["name"].startswith("fc") and op["step"] == "UPD"
        )
        return int(cycles)

    double = outcome("tutorial-cnn")
    single = outcome("tutorial-cnn", buffering="single", tiles=tiles_of(double))
    assert sgd_cycles(double) <= 0.85 * sgd_cycles(single)


def test_a_run_says_when_more_buffers_mean_smaller_tiles() -> None:
    assert outcome("tutorial-cnn", buffering="single").summary["notes"] == []
    notes = outcome("tutorial-cnn").summary["notes"]
    # 8 rows of 576 weight gradients fit twice, 16 rows once
    assert any(
        note.startswith("fc.WG: smaller tiles, to fit 2 buffers") and "4 tiles, where 2" in note
        for note in notes
    )


@pytest.mark.parametrize(("timing", "least"), [("gvsoc", 6.0), ("rtl", 5.7)])
def test_eight_cores_beat_one_by_six_with_private_fpus_and_mm_m(timing: str, least: float) -> None:
    """On RTL each of the eight refills its own instruction cache, over one port, at every fork.

    Warm: what core 0 waits for the program's code is as long with one core (5.3 with it).
    """
    machine = {"fpus": "private", "timing": timing, "icache": "warm"}
    cycles = {cores: outcome("tutorial-cnn", cores=cores, **machine).summary["cycles"] for cores in (1, 8)}
    assert cycles[1] / cycles[8] >= least


def test_a_row_parallel_kernel_leaves_linear_ig_on_one_core() -> None:
    """IG is a vector times a matrix: N = 1, so only one core gets a row (as measured on GVSoC)."""

    def ig(**settings: object) -> dict[str, object]:
        ops = outcome("tutorial-cnn", **settings).summary["ops"]
        return next(op for op in ops if op["step"] == "IG" and op["primitive"] == "linear")

    by_columns, by_rows = ig(), ig(kernels=("IG=mm",))
    assert by_columns["kernel"] == "mm_M"
    assert by_rows["cycles"] > 4 * int(str(by_columns["cycles"]))


@pytest.mark.parametrize(
    ("iterations", "accuracy"), [(750, 0.8), pytest.param(3000, 0.9, marks=pytest.mark.slow)]
)
def test_training_on_digits_reaches_90_percent_in_two_epochs(iterations: int, accuracy: float) -> None:
    """And 80 percent in half of the first."""
    training = run_model("digits-cnn", iterations=iterations).summary["training"]
    assert training["iterations"] == iterations
    assert training["test_samples"] == 297
    assert training["test_accuracy"] >= accuracy
    assert training["mean_loss_last"] < training["mean_loss_first"]


def test_replayed_iterations_give_what_numpy_gives(tmp_path: Path) -> None:
    """Three iterations on the simulated memories end with the weights of three untiled ones."""
    from scheduler.executor import Executor
    from shared.agreement import compare
    from shared.kept_plans import prepare
    from trainlib.references.reference import evaluate
    from trainlib.training.phases import initial_weights
    from trainlib.training.training_data import sample_stream

    prepared = prepare("digits-cnn", Settings(l1="24KiB"))
    graph = prepared.schedule.graph
    executor = Executor(prepared.schedule, prepared.timing, prepared.cost_model)
    weights = dict(initial_weights(graph, 0))
    executor.load(weights)
    stream = sample_stream(graph, prepared.spec, 0)
    for _ in range(3):
        values = next(stream)
        truth = evaluate(graph, {**values, **weights})
        weights = {
            tensor.alias_of: truth[name]
            for name, tensor in graph.tensors.items()
            if tensor.alias_of in graph.weights
        }
        executor.load(values)
        executor.replay()
    ours = {name: executor.fetch(name) for name in graph.weights}
    assert all(error.max_rel_error <= FP32_TOLERANCE for error in compare(ours, weights).values())


def test_without_pytorch_the_check_is_untiled_numpy_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pulptrain.running.number_check.torch_available", lambda: False)
    check = outcome("digits-cnn").summary["functional"]
    assert "NumPy" in check["checked_against"]
    assert "not installed" in check["checked_against"]
    assert check["passed"]


def test_wrong_numbers_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check must be able to fail: a kernel that computes something else is found."""
    import numpy as np

    from configs.errors import PulptrainError
    from truth.iteration import Iteration

    class SlightlyOff(Iteration):
        def __init__(self, *args: object) -> None:
            super().__init__(*args)  # type: ignore[arg-type]
            self.made = {name: tensor * np.float32(1.001) for name, tensor in self.made.items()}

    monkeypatch.setattr("truth.iteration.Iteration", SlightlyOff)
    with pytest.raises(PulptrainError, match="differ from PyTorch"):
        outcome("digits-cnn")


def test_ctrl_c_during_training_keeps_the_iterations_done() -> None:
    def stop_at_ten(done: int, total: int, loss: float) -> None:
        if done == 10:
            raise KeyboardInterrupt

    result = run_model("digits-cnn", iterations=1000, progress=stop_at_ten)
    assert result.interrupted
    assert result.summary["training"]["iterations"] == 10
    assert result.summary["training"]["iterations_requested"] == 1000
