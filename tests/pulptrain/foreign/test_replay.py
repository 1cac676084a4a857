# SPDX-License-Identifier: Apache-2.0
"""`pulptrain replay`: rows, statuses and exit codes, on cases built here."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from configs.values import replace
from importers.training.graph import ImportedTraining, import_training, optimizer_beside
from pulptrain.__main__ import run
from pulptrain.foreign.golden_updates import GoldenUpdate
from shared.onnx_models import model, node, saved, value
from shared.onnx_training_models import (
    mlp_case,
    mlp_nodes,
    mlp_samples,
    mlp_weights,
    softmax_loss,
    updated,
    with_accumulation,
)
from shared.printed import printed

pytestmark = [pytest.mark.needs_onnx, pytest.mark.needs_torch]

KEYS = ["name", "nodes", "status", "loss_error", "value_error", "update_error", "gradient_error", "tensors"]
KEYS += ["not_decidable", "n_accum", "cycles", "seconds", "reason"]


def replayed(capsys: pytest.CaptureFixture[str], code: int, *arguments: Any) -> list[dict[str, Any]]:
    """The rows of a command that ends with this exit code."""
    assert run(["replay", *map(str, arguments), "--json"]) == code
    rows: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
    assert all(list(row) == KEYS for row in rows)
    return rows


@pytest.mark.smoke
@pytest.mark.parametrize("mini_batches", [1, 3])
def test_a_case_is_right_and_its_mini_batches_are_found(
    mini_batches: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (row,) = replayed(capsys, 0, mlp_case(tmp_path, mini_batches))
    assert (row["name"], row["status"], row["n_accum"]) == ("mlp_train", "right", mini_batches)
    assert row["loss_error"] < 1e-6
    assert row["value_error"] < 1e-7
    assert row["update_error"] < 1e-5
    assert (row["tensors"], row["not_decidable"], row["gradient_error"]) == (4, 0, None)
    assert row["cycles"] > 1000
    assert row["seconds"] == pytest.approx(row["cycles"] / 50e6)
    assert "derived from the losses" in row["reason"]


def test_a_batch_of_several_samples_is_right(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (row,) = replayed(capsys, 0, mlp_case(tmp_path, 2, batch=3))
    assert (row["status"], row["n_accum"]) == ("right", 2)


def test_a_case_that_does_not_fit_ends_as_a_run_would(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (row,) = replayed(capsys, 3, mlp_case(tmp_path, 1), "--l2", "1KiB", "--set", "l3.size_bytes=1024")
    assert row["status"] == "too large"
    assert "L2 is too small" in row["reason"]


def test_a_wrong_number_of_mini_batches_is_caught(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    case = mlp_case(tmp_path, 1, updates=4)
    (row,) = replayed(capsys, 5, case, "--accumulate", "2")
    assert row["status"] == "wrong"
    assert "is off by" in row["reason"] or "loss" in row["reason"]
    (row,) = replayed(capsys, 2, case, "--accumulate", "3")
    assert "mini-batches are stored, but an update takes" in row["reason"]


def with_outputs(case: Path, **changed: Any) -> None:
    """Change goldens of a case; None takes one away."""
    path = case / "mlp_train" / "outputs.npz"
    with np.load(path) as stored:
        arrays = dict(stored) | changed
    np.savez(path, **{name: array for name, array in arrays.items() if array is not None})


def outputs(case: Path) -> dict[str, Any]:
    with np.load(case / "mlp_train" / "outputs.npz") as stored:
        return dict(stored)


def test_a_golden_that_is_off_by_little_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    case = mlp_case(tmp_path, 1)
    w2 = outputs(case)["w2"]
    w2[1, 2] += 1e-5
    with_outputs(case, w2=w2)
    (row,) = replayed(capsys, 5, case)
    assert "w2 is off by 1e-05, 8.6e-05 of its update" in row["reason"]


def test_a_machine_that_trains_a_weight_otherwise_is_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not at all, at another learning rate, backwards; the updates are some 1e-4 of the weights."""
    factors = {"w1": 0, "b1": 0.9, "w2": 1.1, "b2": -1}

    def defective(*arguments: Any) -> ImportedTraining:
        imported = import_training(*arguments)
        update = imported.phases.update
        assert update is not None
        ops = [
            replace(op, attributes={**op.attributes, "learning_rate": 0.0001 * factors[op["w"]]})
            for op in update.ops
        ]
        return replace(imported, phases=replace(imported.phases, update=replace(update, ops=tuple(ops))))

    monkeypatch.setattr("pulptrain.foreign.replay.import_training", defective)
    case = mlp_case(tmp_path, 1, updates=1, rate=0.0001)
    with_outputs(case, loss=None)
    (row,) = replayed(capsys, 5, case)
    assert row["value_error"] < 2e-4
    assert row["update_error"] == pytest.approx(2, rel=1e-3)  # of b2
    for weight, share in (("w1", "1"), ("b1", "0.1"), ("w2", "0.1")):
        assert re.search(rf"{weight} is off by \S+, {share} of its update", row["reason"])


def test_what_moves_less_than_its_rounding_is_counted_and_not_passed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    case = mlp_case(tmp_path, 1, updates=1, rate=1e-7)
    with_outputs(case, loss=None)
    (row,) = replayed(capsys, 0, case)
    assert (row["status"], row["tensors"], row["not_decidable"]) == ("not decidable", 4, 4)
    assert row["update_error"] is None
    assert "below ten times the rounding error: w1, b1, w2 and 1 more" in row["reason"]


def test_at_a_kink_both_sides_are_right_and_nothing_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The input of one ReLU is 0 but for rounding; it makes some per cent of the update of w1."""
    weights = mlp_weights()
    ((x, _),) = mlp_samples(1)
    wide = x[0].astype(np.float64)
    weights["w1"][0] -= ((weights["w1"][0] @ wide) / (wide @ wide) * wide).astype(np.float32)
    weights["b1"][0] = 0
    weights["w2"][:, 0] *= 0.012
    case = mlp_case(tmp_path / "cases", 1, updates=1, weights=weights)
    errors = []
    for side in (-1e-6, 1e-6):
        shift = np.float32([side, 0, 0, 0, 0, 0])
        there = mlp_case(tmp_path / str(side), 1, updates=1, weights=weights | {"b1": weights["b1"] + shift})
        found = outputs(there)
        with_outputs(case, **{**found, "b1": found["b1"] - shift})
        (row,) = replayed(capsys, 0, case)
        assert (row["status"], row["not_decidable"]) == ("right", 0)
        errors.append(row["update_error"])
    with_outputs(case, w1=weights["w1"] + 0.9 * (found["w1"] - weights["w1"]))
    (row,) = replayed(capsys, 5, case)
    assert row["reason"].startswith("w1 is off by")
    assert min(errors) < 1e-3
    assert max(errors) > 1e-2


def artifacts_case(folder: Path) -> dict[str, Any]:
    """A folder as ONNX Runtime's artifacts have it, one step at a rate of 0.05; returns its goldens."""
    import torch

    weights = mlp_weights()
    ((x, label),) = mlp_samples(1)
    saved(folder, with_accumulation(mlp_nodes(), [1, 10], weights, {}), "training_model.onnx")
    forward = [mlp_nodes()[number] for number in (1, 2, 0)]
    network = model(forward, [value("input", [1, 10])], [value("output", [1, 4])], weights)
    saved(folder, network, "network_infer.onnx")
    given = {f"w0:{name}": array for name, array in weights.items()}
    np.savez(folder / "inputs.npz", x0=x, y0=label, **given)
    w = {name: torch.tensor(array, requires_grad=True) for name, array in weights.items()}
    h = torch.relu(torch.tensor(x) @ w["w1"].T + w["b1"])
    loss = torch.nn.functional.cross_entropy(h @ w["w2"].T + w["b2"], torch.tensor(label))
    loss.backward()
    gradients = {name: parameter.grad.numpy() for name, parameter in w.items()}
    return {
        "loss": np.float32([loss.item()]),
        **{f"grad0:{name}": array for name, array in gradients.items()},
        **{f"w1:{name}": weights[name] - np.float32(0.05) * array for name, array in gradients.items()},
    }


def test_gradients_are_compared_where_they_are_stored(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    goldens = artifacts_case(tmp_path)
    np.savez(tmp_path / "outputs.npz", **goldens)
    for row in replayed(capsys, 0, tmp_path, "--learning-rate", 0.05):
        assert (row["status"], row["tensors"], row["not_decidable"]) == ("right", 8, 0)
        assert 0 < row["gradient_error"] < 1e-6
    goldens["grad0:w1"][2] *= 0.99
    np.savez(tmp_path / "outputs.npz", **goldens)
    for row in replayed(capsys, 5, tmp_path, "--learning-rate", 0.05):
        assert row["reason"].startswith("the gradient of w1 is off by")


@pytest.mark.parametrize(
    ("found", "golden", "stored", "spread", "verdict"),
    [
        ([1.0], [1.0], 0, 0, "right"),
        ([1.0 + 1e-7], [1.0], 0, 0, "wrong"),
        ([1.0], [1.0], 1, 0, "not decidable"),
        ([1.0 + 3e-7], [1.0], 1, 0, "wrong"),
        ([1.02], [1.02001], 1, 0, "wrong"),
        ([1.02], [1.02001], 1, 2e-5, "right"),
        ([1.02], [1.022], 1, 4e-3, "not decidable"),
        ([1.02], [1.022], 1, 1e-3, "wrong"),
        ([1.02], [1.05], 1, 1e-2, "not decidable"),
        ([1.02], [1.3], 1, 1e-2, "wrong"),
        ([np.inf], [np.inf], 1, 0, "wrong"),
        ([np.nan], [1.02], 1, np.inf, "wrong"),
        (None, [1.0], 0, 0, "wrong"),
    ],
)
def test_a_tensor_that_was_1_is_judged_by_how_far_it_moved(
    found: list[float] | None, golden: list[float], stored: int, spread: float, verdict: str
) -> None:
    there = np.array(found, np.float32) if found is not None else None
    item = GoldenUpdate("w", np.ones(1, np.float32), np.array(golden, np.float32), there, stored)
    assert item.judged(spread).verdict == verdict


def test_a_run_that_overflows_says_where(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (row,) = replayed(capsys, 5, mlp_case(tmp_path, 1, rate=1e30))
    assert row["status"] == "wrong"
    assert "update 2: the op" in row["reason"]
    assert "overflows float32 to infinity in 'output'" in row["reason"]


def test_a_network_without_weights_is_replayed_forward(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved(
        tmp_path,
        model([node("Relu", ["x"], ["z"])], [value("x", [2, 4])], [value("z", [2, 4])]),
        "network.onnx",
    )
    x = np.linspace(-1, 1, 8, dtype=np.float32).reshape(2, 4)
    np.savez(tmp_path / "inputs.npz", x=x)
    np.savez(tmp_path / "outputs.npz", z=np.maximum(x, 0))
    (row,) = replayed(capsys, 0, tmp_path)
    assert (row["status"], row["value_error"], row["reason"]) == (
        "right",
        0,
        "nothing to train: forward only",
    )
    np.savez(tmp_path / "outputs.npz", z=np.abs(x))
    replayed(capsys, 5, tmp_path)


def test_a_network_that_nobody_trained_may_use_a_weight_twice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exporters keep equal weights once; only where they are trained that would be two gradients to add."""
    w = np.linspace(-1, 1, 9, dtype=np.float32).reshape(3, 3)
    nodes = [node("MatMul", ["x", "w"], ["y"]), node("MatMul", ["y", "w"], ["z"])]
    saved(tmp_path, model(nodes, [value("x", [2, 3])], [value("z", [2, 3])], {"w": w}), "network.onnx")
    x = np.linspace(-1, 2, 6, dtype=np.float32).reshape(2, 3)
    np.savez(tmp_path / "inputs.npz", x=x)
    np.savez(tmp_path / "outputs.npz", z=x @ w @ w)
    (row,) = replayed(capsys, 0, tmp_path)
    assert (row["status"], row["reason"]) == ("right", "nothing to train: forward only")


def forward_case(folder: Path, op: str = "Relu") -> None:
    """A network of one layer, its output stored."""
    folder.mkdir(parents=True)
    w = np.arange(12, dtype=np.float32).reshape(4, 3) / 10
    nodes = [node("MatMul", ["x", "w"], ["h"]), node(op, ["h"], ["z"], name="last")]
    saved(folder, model(nodes, [value("x", [2, 4])], [value("z", [2, 3])], {"w": w}), "network.onnx")
    x = np.linspace(-1, 1, 8, dtype=np.float32).reshape(2, 4)
    np.savez(folder / "inputs.npz", x=x)
    np.savez(folder / "outputs.npz", z=np.maximum(x @ w, 0))


def test_a_network_is_compared_by_its_output_and_what_cannot_be_taken_says_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    forward_case(tmp_path / "cases" / "good")
    (row,) = replayed(capsys, 0, tmp_path)
    assert (row["name"], row["loss_error"], row["n_accum"]) == ("cases/good", None, None)
    forward_case(tmp_path / "cases" / "odd", "Det")
    rows = replayed(capsys, 2, tmp_path)
    assert [row["status"] for row in rows] == ["right", "refused"]
    assert "last (Det of shape" in rows[1]["reason"]
    forward_case(tmp_path / "cases" / "wrong", "Abs")
    assert [row["status"] for row in replayed(capsys, 5, tmp_path)] == ["right", "refused", "wrong"]


def test_goldens_of_another_graph_decide_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As the network beside a training graph, whose losses and weights are stored in Deeploy's form."""
    forward_case(tmp_path / "case")
    right = dict(np.load(tmp_path / "case" / "outputs.npz"))["z"]
    for outputs, code, status in (
        ({"loss": np.zeros(2), "w_updated": np.zeros((4, 3))}, 0, "not decidable"),
        ({"other": np.zeros(5)}, 0, "not decidable"),
        ({"other": right}, 0, "right"),
        ({"z": np.zeros(5)}, 5, "wrong"),
        ({"loss": np.zeros(2), "z": right}, 0, "right"),
    ):
        np.savez(tmp_path / "case" / "outputs.npz", **outputs)
        (row,) = replayed(capsys, code, tmp_path)
        assert row["status"] == status, outputs
        assert ("no golden values for this graph" in row["reason"]) == (status == "not decidable")


def test_a_golden_contradicts_its_file_only_if_pytorch_computes_what_was_simulated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from truth.onnx_graph import Computed

    forward_case(tmp_path / "case")
    np.savez(tmp_path / "case" / "outputs.npz", z=np.ones((2, 3)))
    (row,) = replayed(capsys, 5, tmp_path)
    assert row["reason"].startswith("z is off by")
    assert "the golden contradicts the file" in row["reason"]
    computed = Computed.__init__

    def off(self: Computed, *arguments: Any, **options: Any) -> None:
        computed(self, *arguments, **options)
        self.values["z"] = self.values["z"] + 1e-3

    monkeypatch.setattr(Computed, "__init__", off)
    (row,) = replayed(capsys, 5, tmp_path)
    assert row["status"] == "wrong"
    assert "contradicts" not in row["reason"]


def test_weights_that_train_as_the_file_says_and_not_as_its_golden(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in transformers of Deeploy: `GeluGrad` reads the tensor before the bias, the golden does not."""
    import torch

    from truth import onnx_graph

    weights = {name: mlp_weights()[name] for name in ("w1", "b1", "w2")}
    nodes = [
        node("Gemm", ["input", "w1"], ["m"], transB=1),
        node("Add", ["m", "b1"], ["z"]),
        node("Gelu", ["z"], ["h"]),
        node("Gemm", ["h", "w2"], ["output"], transB=1),
        *softmax_loss("output", "output_grad"),
        node("Gemm", ["output_grad", "h"], ["w2_grad"], transA=1),
        node("Gemm", ["output_grad", "w2"], ["h_grad"]),
        node("GeluGrad", ["h_grad", "m"], ["z_grad"]),
        node("Gemm", ["z_grad", "input"], ["w1_grad"], transA=1),
        *updated(["w1", "w2"], 0.05),
    ]
    inputs = [value("input", [2, 10]), value("labels", [2], "int64")]
    results = [value(f"{name}_updated", weights[name].shape) for name in ("w1", "w2")]
    saved(tmp_path, model(nodes, inputs, results, weights), "network.onnx")
    ((x, labels),) = mlp_samples(1, batch=2)
    np.savez(tmp_path / "inputs.npz", arr_0000=x, arr_0001=labels)
    w1, b1, w2 = (torch.tensor(array, requires_grad=True) for array in weights.values())
    logits = torch.nn.functional.gelu(torch.tensor(x) @ w1.T + b1) @ w2.T
    torch.nn.functional.cross_entropy(logits, torch.tensor(labels)).backward()
    golden = {"w1_updated": w1 - 0.05 * w1.grad, "w2_updated": w2 - 0.05 * w2.grad}
    np.savez(tmp_path / "outputs.npz", **{name: array.detach().numpy() for name, array in golden.items()})
    (row,) = replayed(capsys, 5, tmp_path)
    assert re.match(r"w1 is off by [^;]*; the golden contradicts the file", row["reason"])
    read = onnx_graph._OPS["GeluGrad"]
    monkeypatch.setitem(onnx_graph._OPS, "GeluGrad", lambda item: 1.01 * read(item))
    (row,) = replayed(capsys, 5, tmp_path)
    assert "contradicts" not in row["reason"]


def test_the_folders_of_onnx_runtime_give_two_rows_and_skip_the_evaluation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from pulptrain.foreign.replay import find_cases

    for name in ("training_model", "network_infer", "eval_model", "optimizer_model"):
        (tmp_path / f"{name}.onnx").write_bytes(b"")
    for name in ("inputs", "outputs"):
        np.savez(tmp_path / f"{name}.npz", x0=np.zeros(1))
    cases, notes = find_cases([str(tmp_path)])
    assert [case.name.rpartition(":")[2] for case in cases] == ["training_model", "network_infer"]
    assert all(case.optimizer == tmp_path / "optimizer_model.onnx" for case in cases)
    assert "cannot replay eval_model.onnx" in notes[0]
    rows = replayed(capsys, 2, tmp_path)
    assert {row["status"] for row in rows} == {"refused"}


def test_the_optimizer_beside_goes_before_one_inside(tmp_path: Path) -> None:
    """Of Deeploy's own only one says the learning rate: 0.01 was taken for 0.001."""
    inside, beside = tmp_path / "a_train/optimizer_model.onnx", tmp_path / "a_optimizer/network.onnx"
    for file in (inside, beside):
        file.parent.mkdir()
        assert optimizer_beside(tmp_path / "a_train") is None
    inside.touch()
    assert optimizer_beside(tmp_path / "a_train") == inside
    beside.touch()
    assert optimizer_beside(tmp_path / "a_train") == beside


def test_a_test_of_a_kernel_is_replayed_node_by_node(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two inputs of which neither has a batch, two outputs, and a gradient without its forward op."""
    nodes = [
        node("Mul", ["a", "b"], ["c"]),
        node("ReduceSum", ["c", "axes"], ["total"], keepdims=0),
        node("com.microsoft:SoftmaxGrad", ["a", "c"], ["dx"], axis=-1),
    ]
    inputs, outputs = [value("a", [6, 5]), value("b", [6, 1])], [value("total", [5]), value("dx", [6, 5])]
    saved(tmp_path, model(nodes, inputs, outputs, {"axes": np.array([0])}), "network.onnx")
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(shape).astype(np.float32) for shape in ((6, 5), (6, 1)))
    np.savez(tmp_path / "inputs.npz", a=a, b=b)
    c = a.astype(np.float64) * b
    right = {"total": c.sum(axis=0), "dx": c * (a - (a * c).sum(axis=1, keepdims=True))}
    np.savez(tmp_path / "outputs.npz", **right)
    (row,) = replayed(capsys, 0, tmp_path)
    assert (row["status"], row["nodes"]) == ("right", 3)
    for name, golden in right.items():
        for off, reason in ((1e-4, "0.0001"), (np.nan, "inf")):
            np.savez(tmp_path / "outputs.npz", **right | {name: golden + off})
            (row,) = replayed(capsys, 5, tmp_path)
            assert row["reason"].startswith(f"{name} is off by {reason}")
    np.savez(tmp_path / "outputs.npz", first=right["total"])
    (row,) = replayed(capsys, 2, tmp_path)
    assert "outputs.npz has 1 arrays, but the graph has 2 outputs" in row["reason"]


def test_gradients_and_lookups_of_kernels_need_nothing_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A loss and a pool without their forward ops, and a vector of numbers of rows."""
    import torch

    nodes = [
        node("com.microsoft:MSELossGrad", ["a", "b"], ["da"], reduction="sum"),
        node("com.microsoft:MaxPoolGrad", ["dy", "x"], ["dx"], kernel_shape=[2, 2], strides=[2, 2]),
        node("Gather", ["table", "numbers"], ["rows"]),
    ]
    shapes = {"a": [3, 4], "b": [3, 4], "dy": [1, 2, 2, 3], "x": [1, 2, 4, 6], "table": [5, 2]}
    inputs = [*(value(name, shape) for name, shape in shapes.items()), value("numbers", [7], "int64")]
    outputs = [value("da", [3, 4]), value("dx", [1, 2, 4, 6]), value("rows", [7, 2])]
    saved(tmp_path, model(nodes, inputs, outputs), "network.onnx")
    rng = np.random.default_rng(0)
    fed: dict[str, Any] = {
        name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()
    }
    fed["numbers"] = rng.integers(0, 5, 7)
    x = torch.tensor(fed["x"], requires_grad=True)
    torch.nn.functional.max_pool2d(x, 2).backward(torch.tensor(fed["dy"]))
    rows = fed["table"][fed["numbers"]]
    np.savez(tmp_path / "inputs.npz", **fed)
    np.savez(tmp_path / "outputs.npz", da=2 * (fed["a"] - fed["b"]), dx=x.grad.numpy(), rows=rows)
    (row,) = replayed(capsys, 0, tmp_path)
    assert (row["status"], row["nodes"]) == ("right", 3)
    np.savez(tmp_path / "inputs.npz", **fed | {"a": fed["a"][:2]})
    (row,) = replayed(capsys, 2, tmp_path)
    assert "'a' has shape [2, 4], not [3, 4]" in row["reason"]


def test_a_graph_without_a_batch_is_one_sample_where_nothing_trains(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cuts = {"from": np.array([5]), "to": np.array([0]), "of": np.array([0]), "by": np.array([-2])}
    made = model(
        [node("Slice", ["x", *cuts], ["y"])], [value("x", [6, 4])], [value("y", [3, 4])], cuts, opset=13
    )
    path = saved(tmp_path, made, "network.onnx")
    x = np.arange(24, dtype=np.float32).reshape(6, 4)
    np.savez(tmp_path / "inputs.npz", x=x)
    np.savez(tmp_path / "outputs.npz", y=x[5:0:-2])
    (row,) = replayed(capsys, 0, tmp_path)
    assert row["status"] == "right"
    assert run(["run", str(path), "--no-functional"]) == 2
    assert "preserves the batch" in capsys.readouterr().err


def test_inputs_of_a_kernel_are_those_with_numbers_and_a_graph_needs_outputs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Deeploy's harness stores how many samples there are before the arrays."""
    inputs = [value("a", [1, 4]), value("b", [1, 4])]
    sub = node("Sub", ["a", "b"], ["c"])
    saved(tmp_path, model([sub], inputs, [value("c", [1, 4])]), "network.onnx")
    a, b = np.arange(4, dtype=np.float32)[None], np.ones((1, 4), np.float32)
    np.savez(tmp_path / "inputs.npz", meta_n_batches=np.array(1), arr_0000=a, arr_0001=b)
    np.savez(tmp_path / "outputs.npz", c=a - b)
    (row,) = replayed(capsys, 0, tmp_path)
    assert row["status"] == "right"
    saved(tmp_path, model([sub], inputs, []), "network.onnx")
    (row,) = replayed(capsys, 2, tmp_path)
    assert "the graph has no outputs" in row["reason"]


def test_a_norm_without_mean_gives_the_only_statistic_it_has(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    norm = node("com.microsoft:SimplifiedLayerNormalization", ["x", "w"], ["y", "inverse"], epsilon=1e-3)
    outputs = [value("y", [4, 6]), value("inverse", [4, 1])]
    saved(tmp_path, model([norm], [value("x", [4, 6]), value("w", [6])], outputs), "network.onnx")
    x = np.linspace(-2, 3, 24, dtype=np.float32).reshape(4, 6)
    np.savez(tmp_path / "inputs.npz", x=x, w=np.arange(6, dtype=np.float32))
    inverse = 1 / np.sqrt(np.mean(x.astype(np.float64) ** 2, axis=1, keepdims=True) + 1e-3)
    np.savez(tmp_path / "outputs.npz", y=x * inverse * np.arange(6), inverse=inverse)
    (row,) = replayed(capsys, 0, tmp_path)
    assert row["status"] == "right"


def test_a_folder_without_a_case_is_refused(tmp_path: Path) -> None:
    assert run(["replay", str(tmp_path)]) == 2
    assert run(["replay", str(tmp_path / "missing")]) == 2


def test_a_training_graph_is_run_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(mlp_case(tmp_path, 1) / "mlp_train" / "network.onnx")
    summary = printed(capsys, "run", path, "--iterations", "2")
    assert summary["functional"]["passed"]
    assert "backward pass of a training graph" in summary["functional"]["checked_against"]
    assert {"ACCUMULATE", "UPD", "LOSS"} <= {op["step"] for op in summary["ops"]}
    assert run(["run", path, "--loss", "mse"]) == 2
    assert run(["run", "tutorial-cnn", "--learning-rate", "0.1"]) == 2
