# SPDX-License-Identifier: Apache-2.0
"""The check of numbers: what is right to the last rounding passes, what is not fails, and it says which."""

from __future__ import annotations

import re
from itertools import product
from operator import itemgetter
from pathlib import Path

import numpy as np
import pytest

import configs
from configs.dtypes import BY_NAME, DTYPES, FP32
from configs.errors import NotFiniteError, WrongNumbersError
from configs.model_file import LayerSpec, LossSpec, ModelSpec, OptimizerSpec
from configs.values import replace
from pulptrain.inputs.npz_file import read_values, write_values
from pulptrain.inputs.settings import Settings
from pulptrain.running.number_check import NumberCheck, functional_summary
from pulptrain.running.session import run_prepared
from pulptrain.running.training import stirred_values
from scheduler.executor import Executor
from shared.kept_plans import prepare, run_model
from shared.paths import DATA
from shared.tampering import tampered
from shared.tiers import sweep_nine_of_ten
from traces.report import not_finite_line
from trainlib.primitives.definition import DrawnInput
from trainlib.references.op_truth import OpTruth, nudged, room
from trainlib.references.verdicts import (
    FAILED,
    NOT_DECIDABLE,
    PASSED,
    WITHOUT_TRUTH,
    Verdict,
    judged,
    leans,
    together,
)
from trainlib.training.phases import build_training_graph
from trainlib.training.single import single

NONE = np.zeros(3)


def verdict_of(ours, truth, room=0.0, gain=0.0, dtype="float32"):
    truth = np.array(truth, np.float64)
    stored = np.array(ours, np.float32).astype(dtype)
    return judged("t", stored, truth, np.full(truth.shape, room), np.full(truth.shape, gain))


@pytest.mark.parametrize(
    ("ours", "truth", "expected"),
    [
        ([1, 2, 3], [1, 2, 3], PASSED),
        ([1e6, 5, -2], [1e6, 1, 2], FAILED),  # a large element hides no small one
        ([1, 2, 3], [np.inf, 2, 3], FAILED),
        ([np.inf, 2, 3], [1, 2, 3], FAILED),
        ([np.nan, 2, 3], [1, 2, 3], FAILED),
        ([1, 2, 3], [np.nan, 2, 3], FAILED),
        ([np.inf, np.nan, 3], [np.inf, np.nan, 3], PASSED),
        ([-np.inf, 2, 3], [np.inf, 2, 3], FAILED),
    ],
)
def test_infinities_and_nan_are_right_only_where_the_truth_has_them(ours, truth, expected) -> None:
    assert verdict_of(ours, truth, room=1e-7).verdict == expected


@pytest.mark.parametrize(
    ("ours", "expected"), [(65504, FAILED), (np.inf, PASSED), (65472, FAILED), (-np.inf, FAILED)]
)
def test_what_rounds_to_infinity_in_fp16_must_be_infinite(ours, expected) -> None:
    assert verdict_of([ours], [65521.0], room=0.5, dtype="float16").verdict == expected


@pytest.mark.parametrize(
    ("ours", "expected"), [(np.nan, PASSED), (448, FAILED), (416, FAILED), (-448, FAILED)]
)
def test_what_is_too_large_for_a_format_without_infinities_must_be_nan(ours, expected) -> None:
    assert verdict_of([ours], [464.5], room=0.1, dtype="float8_e4m3fn").verdict == expected
    assert verdict_of([ours], [-464.5], room=0.1, dtype="float8_e4m3fn").verdict == (
        PASSED if np.isnan(ours) else FAILED
    )


def test_and_a_nan_is_wrong_where_the_truth_fits() -> None:
    assert verdict_of([np.nan, 1], [440.0, 1], room=1, dtype="float8_e4m3fn").verdict == FAILED
    for ours in (np.nan, 448):
        assert verdict_of([ours], [463.9], room=0.5, dtype="float8_e4m3fn").verdict == PASSED
    assert verdict_of([np.nan], [np.nan], dtype="float8_e4m3fn").verdict == PASSED


@pytest.mark.parametrize("dtype", [item.name for item in DTYPES if item.is_narrow])
@pytest.mark.parametrize("spread", [1.0, 0.01])
def test_numbers_that_round_to_zero_do_not_lean_and_those_cut_off_do(dtype: str, spread: float) -> None:
    """Most of the second tensor lies below the smallest 8-bit number, or has few bits left."""
    truth = np.random.default_rng(0).normal(0, spread, 4000)
    nearest = truth.astype(np.float32).astype(dtype)
    assert leans(nearest, truth) == 0
    cut = np.where(np.abs(nearest.astype(float)) > np.abs(truth), _smaller(nearest), nearest)
    assert leans(cut.astype(dtype), truth) < -0.3


def test_next_to_the_largest_number_rounding_may_go_either_way() -> None:
    for ours in (65504, np.inf):
        assert verdict_of([ours], [65519.9], room=0.5, dtype="float16").verdict == PASSED


@pytest.mark.parametrize("dtype", [item.name for item in DTYPES if item.is_narrow])
def test_a_stored_number_must_be_the_nearest_one(dtype) -> None:
    truth = np.random.default_rng(0).uniform(-3, 3, 500)
    nearest = truth.astype(dtype)
    assert judged("t", nearest, truth, np.zeros(500), np.zeros(500)).verdict == PASSED
    towards_zero = np.where(np.abs(nearest.astype(float)) > np.abs(truth), _smaller(nearest), nearest)
    assert judged("t", towards_zero.astype(dtype), truth, np.zeros(500), np.zeros(500)).verdict == FAILED


def _smaller(array):
    words = f"uint{8 * array.itemsize}"
    return (array.view(words) - np.array(1, words)).view(array.dtype)


def test_a_tensor_that_is_zero_but_for_rounding_is_compared_with_what_it_sums() -> None:
    """Terms of size 1 that cancel: 1e-7 is their rounding, 1e-3 is not, whatever its own scale."""
    assert verdict_of([1e-7, -1e-7], [0, 2e-8], room=2e-7, gain=1).verdict == PASSED
    assert verdict_of([1e-3, 0], [0, 2e-8], room=2e-7, gain=1).verdict == FAILED


def test_where_rounding_may_be_as_large_as_a_defect_nothing_is_passed() -> None:
    """Rounding of 0.2 beside elements of 1: twice the value would not show, so 1.1 is no pass."""
    assert verdict_of([1.1, 0.5], [1, 0.5], room=0.2).verdict == NOT_DECIDABLE
    assert verdict_of([1.0005, 0.5], [1, 0.5], room=0.2).verdict == PASSED, "within the cap"
    assert verdict_of([1.3, 0.5], [1, 0.5], room=0.2).verdict == FAILED


def test_the_summary_says_null_for_not_decidable_and_false_for_failed() -> None:
    def passed(*words: str):
        return functional_summary("x", [Verdict(word, word) for word in words], 1)["passed"]

    assert passed(PASSED, PASSED) is True
    assert passed(PASSED, NOT_DECIDABLE) is None
    assert passed(NOT_DECIDABLE, FAILED) is False
    assert passed(PASSED, WITHOUT_TRUTH) is None, "nothing it could be compared with is no success"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((PASSED, WITHOUT_TRUTH), WITHOUT_TRUTH),
        ((NOT_DECIDABLE, WITHOUT_TRUTH), WITHOUT_TRUTH),
        ((NOT_DECIDABLE, PASSED), PASSED),
        ((WITHOUT_TRUTH, FAILED), FAILED),
    ],
)
def test_what_was_compared_with_nothing_in_one_iteration_is_not_hidden_by_another(words, expected) -> None:
    one, other = (Verdict("t", word) for word in words)
    assert together(one, other).verdict == together(other, one).verdict == expected


def test_a_nudge_breaks_no_tie_and_changes_no_order() -> None:
    values = np.random.default_rng(0).normal(size=2000).astype(np.float32).astype(np.float64)
    values[::7] = values[3]
    values[::11] = 0
    for seed in range(3):
        moved = nudged(values, seed)
        order = np.argsort(values, kind="stable")
        assert (np.diff(moved[order])[np.diff(values[order]) == 0] == 0).all()
        assert (np.diff(moved[order])[np.diff(values[order]) > 0] > 0).all()
        assert (moved[values == 0] == 0).all()
        assert 0 < np.max(np.abs(moved[values != 0] / values[values != 0] - 1)) < 2**-39


def two_layers(**options) -> ModelSpec:
    layers = (
        LayerSpec("fc1", "linear", {"out_features": 2}, "here"),
        LayerSpec("relu", "relu", {}, "here"),
        LayerSpec("fc2", "linear", {"out_features": 1, "bias": True}, "here"),
    )
    spec = ModelSpec(
        name="kinked",
        description="two units",
        source="test",
        input_shape=(2,),
        dataset="random",
        loss=LossSpec("mse"),
        optimizer=OptimizerSpec("sgd", {"learning_rate": 0.1}, "here"),
        batch=1,
        layers=layers,
        where="here",
    )
    return replace(spec, **options)


def test_the_gain_of_a_sum_is_the_root_of_the_sum_of_squares_of_its_terms() -> None:
    graph = build_training_graph(two_layers())
    op = next(op for op in graph.ops if op.name == "fc1.FW")
    values = {"input": np.array([[3.0, 4.0]]), "fc1.weight": np.array([[1.0, 0.5], [1.0, -0.75]])}
    gain = OpTruth(op, graph.tensors, values).gains(400)["fc1.out"]
    assert gain[0, 0] == pytest.approx(np.sqrt(2) * np.sqrt(13), rel=0.1), (
        "both factors of a product are nudged"
    )
    assert gain[0, 1] == pytest.approx(np.sqrt(2) * np.sqrt(18), rel=0.1), "though the terms cancel"


def test_an_input_of_a_relu_that_rounding_took_across_0_is_judged_on_its_side() -> None:
    """The second unit is 1e-8 above 0, less than fp32 resolves at its terms: its gradient is chance."""
    third = np.float32(1 / 3)
    kept = {
        "fc1.weight": np.array([[3.1, 2.7], [-third, third]], np.float32),
        "fc2.weight": np.array([[1.3, 0.9]], np.float32),
        "fc2.bias": np.array([0.1], np.float32),
    }
    sample = {"input": np.array([[0.7, 0.7 + 1e-7]], np.float32), "label": np.array([[5.0]], np.float32)}
    for nudge in (0.0, -2e-8):

        def across(op, tensors, nudge=nudge):
            if op == "fc1.FW":
                tensors["fc1.out"][0, 1] += np.float32(nudge)

        found = followed(kept, sample, across)
        assert found["fc1.out"].verdict == PASSED
    wrong = followed(kept, sample, lambda op, tensors: tensors.update(_scaled(tensors, "fc1.weight.grad")))
    assert wrong["fc1.weight.grad"].verdict == FAILED


def _scaled(tensors, name):
    return {key: array * np.float32(1.001) for key, array in tensors.items() if key == name}


def followed(kept, sample, tamper, times=None):
    """Verdicts of one iteration of `two_layers`; `tamper` changes what is seen of an op.

    It is seen as often as `times` says, once if that does not name it.
    """
    from arch.pricing.team_cost_model import TeamCostModel
    from arch.spec.soc_config import load_soc
    from scheduler.options import ScheduleOptions
    from scheduler.schedule import build_schedule

    graph = build_training_graph(two_layers())
    timing = load_soc("pulp-open", "rtl", {})
    cost_model = TeamCostModel(timing)
    executor = Executor(build_schedule(graph, timing, cost_model, ScheduleOptions()), timing, cost_model)
    executor.load({**kept, **sample})
    check = NumberCheck(kept, [graph])
    follower = check.followed(executor, graph, sample)
    watch = executor.watch

    def tampering(op, tensors):
        changed = {name: array.copy() for name, array in tensors.items()}
        tamper(op, changed)
        for _ in range((times or {}).get(op, 1)):
            watch(op, changed)

    executor.watch = tampering
    executor.simulate()
    follower.judge()
    return check.verdicts


KEPT = {
    "fc1.weight": np.array([[3.1, 2.7], [-0.3, 0.4]], np.float32),
    "fc2.weight": np.array([[1.3, 0.9]], np.float32),
    "fc2.bias": np.array([0.1], np.float32),
}
SAMPLE = {"input": np.array([[0.7, 0.8]], np.float32), "label": np.array([[5.0]], np.float32)}


def as_it_is(op, tensors):
    """What an op has left is what is seen of it."""


@pytest.mark.parametrize("op", [op.name for op in build_training_graph(two_layers()).ops])
def test_an_op_that_does_not_happen_or_happens_twice_fails_by_its_name(op: str) -> None:
    (wrong,) = [item for item in build_training_graph(two_layers()).ops if item.name == op]
    for times, said in ((0, "did not run"), (2, "ran 2 times")):
        found = followed(KEPT, SAMPLE, as_it_is, {op: times})
        for name in wrong.outputs:
            assert found[name].verdict == FAILED
            assert found[name].why == f"{op} {said} in iteration 1"


def test_an_op_reports_just_what_it_writes_in_its_shape() -> None:
    def tamper(op, tensors):
        if op == "fc1.FW":
            tensors["fc1.odd"] = tensors["fc1.out"]
        if op == "fc1.WG":
            tensors["fc1.weight.grad"] = tensors["fc1.weight.grad"][:1]
        if op == "fc2.UPD":
            tensors.clear()

    found = followed(KEPT, SAMPLE, tamper)
    failed = {name: item.why for name, item in found.items() if item.verdict == FAILED}
    assert failed.keys() == {"fc1.odd", "fc1.weight.grad", "fc2.weight_updated"}
    assert "a tensor that it does not write" in failed["fc1.odd"]
    assert "float32 (1, 2), not float32 (2, 2)" in failed["fc1.weight.grad"]
    assert "reported no result for it" in failed["fc2.weight_updated"]


def test_a_program_that_an_iteration_does_not_carry_out_is_wrong_in_all_its_tensors() -> None:
    graph = build_training_graph(two_layers())
    check = NumberCheck(KEPT, [graph])
    check.ended()
    assert check.wrong
    assert check.verdicts.keys() == {name for op in graph.ops for name in op.outputs}


def test_a_training_that_goes_on_from_states_of_its_own_is_right() -> None:
    """`torch.optim` starts at these states too: it took Adam's third update for its first."""
    spec = two_layers(optimizer=OptimizerSpec("adam", {"learning_rate": 0.01}, "here"))
    first = run_model(spec, iterations=2)
    again = run_model(spec, iterations=2, values=first.values).summary["functional"]
    assert again["passed"] is True
    assert first.summary["functional"]["skipped"] == again["skipped"] == []


def test_values_that_start_at_zero_are_stirred_and_variances_stay_positive() -> None:
    graph = build_training_graph(two_layers(optimizer=OptimizerSpec("adam", {"learning_rate": 0.1}, "here")))
    kept = {
        name: np.zeros(graph.tensors[name].shape, graph.tensors[name].dtype)
        for name in graph.of_kind("weight", "optimizer_state")
    }
    kept["fc1.weight"] = np.array([[1, 2], [3, 4]], np.float32)
    stirred = stirred_values(graph, kept)
    assert np.array_equal(stirred["fc1.weight"], kept["fc1.weight"]), "it is not one number throughout"
    assert stirred["fc2.bias"].any()
    assert (stirred["fc2.bias.v"] > 0).all()
    assert stirred["fc2.bias.t"] == kept["fc2.bias.t"], "a count is no float"


@pytest.mark.parametrize("ties", ["shared", "first"])
def test_a_gradient_that_goes_to_the_largest_element_is_judged(ties: str, tmp_path: Path) -> None:
    """The check nudges x and the maximum apart: that no element was equal any more let everything pass."""
    model = tmp_path / "largest.yaml"
    head = ASTRAY.partition("layers:")[0]
    model.write_text(
        head + "layers:\n  - {name: fc, type: linear, out_features: 6}\n"
        f"  - {{name: largest, type: reduce_max, axes: [0], ties: {ties}, keep_dims: true}}\n"
    )
    prepared = prepare(str(model), Settings())
    assert run_prepared(prepared, Settings()).summary["functional"]["passed"] is True
    wrong = tampered(prepared, "largest.IG", lambda array: array * np.float32(1.001))
    assert run_prepared(wrong, Settings()).summary["functional"]["passed"] is False


def test_a_defect_is_told_with_the_tensor_and_the_command_ends_with_1() -> None:
    prepared = tampered(
        prepare("digits-cnn", Settings()), "conv2.WG", lambda array: array * np.float32(0.999)
    )
    outcome = run_prepared(prepared, Settings())
    functional = outcome.summary["functional"]
    failed = [item["name"] for item in functional["tensors"] if item["verdict"] == FAILED]
    assert (functional["passed"], failed) == (False, ["conv2.weight.grad"])
    with pytest.raises(WrongNumbersError, match=r"differ from .* conv2\.weight\.grad: .* not ") as caught:
        outcome.refuse_wrong_numbers()
    assert caught.value.exit_code == 1


def test_the_first_three_iterations_the_last_and_one_between_are_checked() -> None:
    def checked(iterations: int) -> int:
        return run_model("simple-mlp", iterations=iterations).summary["functional"]["iterations_checked"]

    assert [checked(n) for n in (1, 2, 3, 4, 50)] == [1, 2, 3, 4, 5]


def test_every_tensor_an_op_writes_has_a_verdict_of_its_own() -> None:
    outcome = run_model("tutorial-cnn")
    named = [item["name"] for item in outcome.summary["functional"]["tensors"]]
    written = {name for op in outcome.schedule.graph.ops for name in op.outputs}
    assert set(named) >= written
    assert len(named) == len(set(named))


ATTACKED = {
    "rmod-14": Settings(cores=2, buffering="4", prefetch="off", placement="best-fit"),
    "rmod-1063": Settings(),
    "rmod-2101": Settings(),
}
"""Networks that a check of whole networks passed whatever their weights, or refused though right."""


@pytest.mark.parametrize(
    "torch", [pytest.param(True, marks=pytest.mark.needs_torch), False], ids=["PyTorch", "NumPy"]
)
@pytest.mark.parametrize("name", ATTACKED)
def test_a_network_that_magnifies_rounding_is_right_with_and_without_pytorch(
    name: str, torch: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not torch:
        monkeypatch.setattr("pulptrain.running.number_check.torch_available", lambda: False)
    functional = run_model(str(DATA / f"{name}.yaml"), ATTACKED[name], iterations=3).summary["functional"]
    assert functional["passed"] is True
    assert functional["tolerance"] <= 1e-3


@pytest.mark.needs_torch
def test_a_state_made_again_is_to_autograd_what_the_layer_made_and_not_what_was_stored(
    tmp_path: Path,
) -> None:
    """A GRU with small gradients: a column of its hidden state cancels, so storing it moves it by much."""
    path = tmp_path / "again.yaml"
    path.write_text(GRU_AGAIN)
    assert run_model(str(path)).summary["functional"]["passed"] is True


GRU_AGAIN = """
name: again
description: found by make fuzz SEED=21, number 8807
source: ours
input: {shape: [2, 60]}
dataset: random
loss: l1
optimizer: {name: sgd_momentum, learning_rate: 0.01, clip_norm: 1.0}
layers:
  - {name: l0, type: gru, recompute: true, hidden: 9}
"""


@pytest.mark.parametrize("factor", [-3, 0.9])
def test_and_its_weights_cannot_be_multiplied(factor: float) -> None:
    prepared = prepare(str(DATA / "rmod-1063.yaml"), Settings())
    (op,) = [op.name for op in prepared.schedule.graph.ops if op.step == "UPD" and "weight" in op["w"]][:1]
    wrong = tampered(prepared, op, lambda array: array * np.float32(factor))
    assert run_prepared(wrong, Settings()).summary["functional"]["passed"] is False


def test_what_overflows_is_told_and_ends_training_but_is_no_defect(tmp_path: Path) -> None:
    values = tmp_path / "large.npz"
    np.savez(values, **{"fc1.weight": np.full((2, 2), 6e4, np.float32)})
    spec = "name: big, description: d, source: s, input: {shape: [2]}, dataset: random, loss: mse"
    model = tmp_path / "big.yaml"
    model.write_text(
        "{" + spec + ", optimizer: {name: sgd, learning_rate: 1.0e+30}, batch: 1, layers: "
        "[{name: fc1, type: linear, out_features: 2}, {name: fc2, type: linear, out_features: 1}]}"
    )
    summary = run_model(str(model), iterations=20).summary
    event = summary["not_finite"]
    assert event["iteration"] == summary["training"]["iterations"] < 20
    assert event["value"] in ("infinity", "NaN")
    assert summary["functional"]["passed"] is True
    with pytest.raises(NotFiniteError, match="overflows float16"):
        run_model(str(model), Settings(dtype="fp16"), values=dict(np.load(values)))


ASTRAY = """
name: astray
description: an infinity, a NaN, and a ReLU that makes 0 of it
source: this test
input: {shape: [4]}
dataset: random
loss: mse
optimizer: {name: sgd, learning_rate: 0.1}
batch: 2
layers:
  - {name: large, type: scale, factor: 1.0e+30}
  - {name: infinite, type: scale, factor: 1.0e+30}
  - {name: nan, type: subtract, inputs: [infinite, infinite]}
  - {name: relu, type: relu}
  - {name: fc, type: linear, out_features: 2}
"""


@pytest.mark.parametrize("torch", [True, False])
def test_what_an_op_makes_of_a_nan_is_neither_right_nor_wrong(
    torch: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A ReLU as compiled (x > 0 ? x : 0) makes 0 of a NaN, as its formula does; PyTorch makes a NaN."""
    monkeypatch.setattr("pulptrain.running.number_check.torch_available", lambda: torch)
    model = tmp_path / "astray.yaml"
    model.write_text(ASTRAY)
    summary = run_model(str(model)).summary
    event = summary["not_finite"]
    assert (event["op"], event["tensor"], event["value"]) == ("infinite.FW", "infinite.out", "infinity")
    assert "in iteration 1, op infinite.FW" in not_finite_line(event)
    verdicts = {item["name"]: item for item in summary["functional"]["tensors"]}
    assert verdicts["infinite.out"]["verdict"] == "passed"
    if not torch:
        assert (summary["functional"]["passed"], verdicts["relu.out"]["verdict"]) == (True, "passed")
        return
    assert summary["functional"]["passed"] is None
    assert verdicts["relu.out"]["verdict"] == "without_truth"
    assert "relu.FW reads an infinity or a NaN" in verdicts["relu.out"]["reason"]


def test_a_weight_whose_second_moment_is_too_large_for_fp32_is_neither_right_nor_wrong(
    tmp_path: Path,
) -> None:
    """The machine divides by that infinity and stays; the truth, float64, moves by the learning rate."""
    model = tmp_path / "steep.yaml"
    steep = ASTRAY.partition("layers:")[0].replace("loss: mse", "loss: cross_entropy")
    steep = steep.replace("{name: sgd, learning_rate: 0.1}", "{name: adam, learning_rate: 0.1}")
    steep += "layers:\n  - {name: large, type: scale, factor: 1.0e+25}\n"
    model.write_text(steep + "  - {name: fc, type: linear, out_features: 2}\n")
    summary = run_model(str(model)).summary
    assert (summary["not_finite"]["op"], summary["not_finite"]["value"]) == ("fc.UPD", "infinity")
    verdicts = {item["name"]: item for item in summary["functional"]["tensors"]}
    assert verdicts["fc.weight.v_updated"]["verdict"] == "passed"
    assert verdicts["fc.weight_updated"]["verdict"] == "not_decidable"
    assert "values of 'fc.weight.v_updated' outside the range" in verdicts["fc.weight_updated"]["reason"]


CANCELLING = """
name: cancelling
description: the gradient of a norm's weight before another norm is 0 but for eps
source: this test
input: {shape: [1, 8, 8]}
dataset: random
loss: cross_entropy
optimizer: {name: sgd, learning_rate: 0.1}
batch: 2
layers:
  - {name: one, type: batch_norm}
  - {name: two, type: batch_norm, eps: 2.0e-5}
  - {name: flatten, type: flatten}
  - {name: fc, type: linear, out_features: 3}
"""


def test_terms_that_cancel_are_decided_by_inputs_with_which_they_do_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sum of 128 parts that is 1.01 of what it should be hides in their rounding, until dy is another."""
    model, settings = tmp_path / "cancelling.yaml", Settings(tiles=("one.WG=c:1,n:1,h:1,w:1",))
    model.write_text(CANCELLING)
    right, results = prepare(str(model), settings), list[int]()

    def passed(change):
        results.clear()
        functional = run_prepared(tampered(right, "one.WG", change), settings).summary["functional"]
        return functional["passed"], functional["not_decidable"]

    def as_it_is(array):
        results.append(1)
        return array

    def its_end_scaled(array):
        results.append(1)
        return (
            array * np.float32(1.01) if len(results) % of_an_iteration in (0, of_an_iteration - 1) else array
        )

    assert passed(as_it_is) == (True, 0)
    of_an_iteration = len(results) // 3
    assert passed(its_end_scaled) == (False, 0)
    monkeypatch.setattr(NumberCheck, "shaking", lambda check, kept: None)
    assert passed(as_it_is) == passed(its_end_scaled) == (None, 1)


def test_an_exponential_below_the_normal_numbers_times_a_hundred_is_no_defect() -> None:
    """silu(-98) = -98 exp(-98): half the smallest step of fp32 becomes 49 of them."""
    graph = single("silu", {}, (DrawnInput((2,)),)).graph
    op = graph.ops[0]
    x = np.array([[-98, -90]], np.float32)
    ours = x * np.exp(x)  # rounds the exponential first; 1 + exp(x) is 1
    truth = OpTruth(op, graph.tensors, {op["x"]: x})
    (part,) = truth.parts(2)
    far = room(truth, part, FP32, 1, kernel=False)
    assert np.abs(ours.ravel() - part.value).max() > 10 * FP32.finest_step
    assert judged("y", ours, part.value, far, part.gain).verdict == PASSED
    assert judged("y", ours * np.float32(1.01), part.value, far, part.gain).verdict == FAILED


def test_an_op_that_makes_a_nan_of_finite_numbers_is_wrong_and_what_reads_it_is_not_judged() -> None:
    wrong = tampered(prepare("simple-mlp", Settings()), "fc1.FW", lambda array: np.full_like(array, np.nan))
    functional = run_prepared(wrong, Settings()).summary["functional"]
    assert functional["passed"] is False
    assert [item["name"] for item in functional["tensors"] if item["verdict"] == "failed"] == ["fc1.out"]


def test_saved_values_continue_a_training(tmp_path: Path) -> None:
    whole = run_model("digits-cnn", Settings(dtype="bf16"), iterations=4)
    half = run_model("digits-cnn", Settings(dtype="bf16"), iterations=2)
    write_values(tmp_path / "half.npz", half.values)
    again = read_values(str(tmp_path / "half.npz"))
    resumed = run_model("digits-cnn", Settings(dtype="bf16"), values=again)
    for name in ("fc.weight", "conv1.weight"):
        assert np.array_equal(resumed.values[f"before/{name}"], half.values[name])
    assert set(half.values) >= {"results/fc.weight.grad", "results/losses", "before/fc.weight", "fc.weight"}
    assert len(whole.values["results/losses"]) == 4


def test_what_is_equal_in_two_tensors_does_not_move_alike() -> None:
    """A difference of equal numbers is 0, but each of them was rounded: its gain is that of its terms."""
    graph = build_training_graph(two_layers())
    op = next(op for op in graph.ops if op.step == "LOSS")
    values = {graph.output: np.array([[0.75]]), "label": np.array([[0.75]])}
    truth = OpTruth(op, graph.tensors, values)
    gradient = op["dy"]
    assert truth.output(gradient) == 0
    assert truth.gains(16)[gradient] > 0.5


def in_parts_of(elements: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainlib.references.op_truth.PART_ELEMENTS", elements)
    monkeypatch.setattr("truth.iteration.UPDATED_TOGETHER", elements)


OPTIMIZERS = (
    "{name: adam, learning_rate: 0.01, weight_decay: 0.1}",
    "{name: sgd_momentum, learning_rate: 0.01, nesterov: true, accumulate: 2, separate: true, clip_norm: 1}",
    "{name: adamw, learning_rate: 0.01, accumulate: 2, clip_value: 0.1}",
)


@pytest.mark.parametrize(
    "case",
    sweep_nine_of_ten(list(product(OPTIMIZERS, ["fp32", "bf16", "fp8_e4m3"])), *map(itemgetter, range(2))),
)
def test_what_is_found_does_not_depend_on_the_parts_that_are_looked_at_together(
    case: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    optimizer, dtype = case
    text = (Path(configs.__file__).parent / "models" / "simple-mlp.yaml").read_text()
    model = tmp_path / "m.yaml"
    model.write_text(re.sub(r"(?m)^optimizer:.*$", f"optimizer: {optimizer}", text))
    prepared = prepare(str(model), Settings(dtype=dtype))
    found = []
    for elements in (1 << 16, 37):
        in_parts_of(elements, monkeypatch)
        summary = run_prepared(prepared, Settings(dtype=dtype), iterations=4).summary
        found.append(summary["functional"])
    assert found[0] == found[1]
    assert found[0]["passed"]


def test_a_wrong_update_is_found_in_whatever_part_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    prepared = prepare("simple-mlp", Settings())
    found = []
    for elements in (1 << 16, 37):
        in_parts_of(elements, monkeypatch)
        wrong = tampered(prepared, "fc1.UPD", _with_another_end)
        functional = run_prepared(wrong, Settings()).summary["functional"]
        found.append(functional)
    assert found[0] == found[1]
    assert found[0]["passed"] is False


def _with_another_end(array: np.ndarray) -> np.ndarray:
    changed = array.copy()
    changed.reshape(-1)[-1] += np.float32(0.5)
    return changed


def test_nothing_is_remembered_of_iterations_that_are_not_followed() -> None:
    """Weights and states of `torch.optim` in float64 are four times what the machine has of them."""
    kept = {"w": np.zeros(3, np.float32)}
    check = NumberCheck(kept, (), 2)
    check.ended()
    assert check.memory.keys() == {"w"}
    check.ended()
    assert not check.memory
    assert check.iterations == 2


@pytest.mark.parametrize("dtype", [item.name for item in DTYPES])
@np.errstate(over="ignore")
def test_no_format_is_judged_otherwise_part_by_part(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Overflows, infinities, NaN and room beyond the cap: the wrong elements lie in different parts."""
    rng, largest = np.random.default_rng(0), BY_NAME[dtype].largest
    for number, spread in enumerate((1.0, 1.0, 1e-3, largest / 3, largest / 3)):
        truth = rng.normal(0, spread, 200)
        gain = np.abs(truth) * rng.uniform(0, 1.5, 200)
        room = gain * (0.2 if number == 1 else 1e-4)
        ours = (truth + rng.normal(0, 0.2, 200) * room).astype(dtype)
        ours[150:] = (truth[150:] * (1.5 if number == 4 else 1)).astype(dtype)
        truth[20:23] = np.inf, np.nan, 2 * largest
        found = []
        for elements in (1 << 16, 37):
            in_parts_of(elements, monkeypatch)
            found.append(judged("t", ours, truth, room, gain))
        assert found[0] == found[1]


@pytest.mark.parametrize("dtype", [item.name for item in DTYPES if item.is_narrow])
@pytest.mark.parametrize("size", [0, 1, 31, 32, 5000])
def test_a_narrow_tensor_leans_alike_whether_sorted_at_once_or_not(
    size: int, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    truth = np.random.default_rng(size).uniform(-3, 3, size)
    truth[::5] = truth[:1]
    nearest = truth.astype(dtype)
    smaller = np.where(np.abs(nearest.astype(float)) > np.abs(truth), _smaller(nearest), nearest)
    for stored in (nearest, smaller.astype(dtype)):
        monkeypatch.setattr("trainlib.references.verdicts.MOST_SORTED", 1 << 18)
        at_once = leans(stored, truth)
        monkeypatch.setattr("trainlib.references.verdicts.MOST_SORTED", 16)
        assert leans(stored, truth) == pytest.approx(at_once)
        assert (at_once != 0) == (stored is not nearest and size > 1000)


def test_the_steps_of_subnormal_numbers_are_no_wrong_numbers() -> None:
    graph = prepare("simple-mlp", Settings(cores=2)).schedule.graph
    smallest = {name: np.full(graph.tensors[name].shape, 1e-45) for name in graph.of_kind("weight")}
    assert run_model("simple-mlp", Settings(cores=2), values=smallest).summary["functional"]["passed"]
