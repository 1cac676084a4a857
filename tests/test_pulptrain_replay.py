# SPDX-License-Identifier: Apache-2.0
"""`pulptrain replay`: rows, statuses and exit codes, on cases built here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pulptrain.__main__ import run
from tests.onnx_models import model, node, saved, value
from tests.onnx_training_models import mlp_case

pytestmark = [pytest.mark.needs_onnx, pytest.mark.needs_torch]

KEYS = ["name", "nodes", "status", "loss_error", "value_error", "n_accum", "cycles", "seconds", "reason"]


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
    assert row["cycles"] > 1000
    assert row["seconds"] == pytest.approx(row["cycles"] / 50e6)
    assert "found from the losses" in row["reason"]


def test_a_batch_of_several_samples_is_right(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (row,) = replayed(capsys, 0, mlp_case(tmp_path, 2, batch=3))
    assert (row["status"], row["n_accum"]) == ("right", 2)


def test_a_wrong_number_of_mini_batches_is_caught(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    case = mlp_case(tmp_path, 1, updates=4)
    (row,) = replayed(capsys, 5, case, "--n-accum", "2")
    assert row["status"] == "wrong"
    assert "is off by" in row["reason"] or "loss" in row["reason"]
    (row,) = replayed(capsys, 2, case, "--n-accum", "3")
    assert "no whole number" in row["reason"]


def test_a_golden_that_is_off_by_little_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    case = mlp_case(tmp_path, 1)
    path = case / "mlp_train" / "outputs.npz"
    with np.load(path) as stored:
        arrays = dict(stored)
    arrays["w2"] = arrays["w2"].copy()
    arrays["w2"][1, 2] += 1e-5
    np.savez(path, **arrays)
    (row,) = replayed(capsys, 5, case)
    assert "w2 is off by 1e-05" in row["reason"]


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
    assert "last: Det of shape" in rows[1]["reason"]
    forward_case(tmp_path / "cases" / "wrong", "Abs")
    assert [row["status"] for row in replayed(capsys, 5, tmp_path)] == ["right", "refused", "wrong"]


def test_the_folders_of_onnx_runtime_give_two_rows_and_skip_the_evaluation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from pulptrain.replay import find_cases

    for name in ("training_model", "network_infer", "eval_model", "optimizer_model"):
        (tmp_path / f"{name}.onnx").write_bytes(b"")
    for name in ("inputs", "outputs"):
        np.savez(tmp_path / f"{name}.npz", x0=np.zeros(1))
    cases, notes = find_cases([str(tmp_path)])
    assert [case.name.rpartition(":")[2] for case in cases] == ["training_model", "network_infer"]
    assert all(case.optimizer == tmp_path / "optimizer_model.onnx" for case in cases)
    assert "eval_model.onnx is not replayed" in notes[0]
    rows = replayed(capsys, 2, tmp_path)
    assert {row["status"] for row in rows} == {"refused"}


def test_a_folder_without_a_case_is_refused(tmp_path: Path) -> None:
    assert run(["replay", str(tmp_path)]) == 2
    assert run(["replay", str(tmp_path / "missing")]) == 2


def test_a_training_graph_is_run_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(mlp_case(tmp_path, 1) / "mlp_train" / "network.onnx")
    assert run(["run", path, "--iterations", "2", "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["functional"]["passed"]
    assert "backward pass that the graph has of its own" in summary["functional"]["checked_against"]
    assert {"ACCUMULATE", "UPD", "LOSS"} <= {op["step"] for op in summary["ops"]}
    assert run(["run", path, "--loss", "mse"]) == 2
    assert run(["run", "tutorial-cnn", "--learning-rate", "0.1"]) == 2
