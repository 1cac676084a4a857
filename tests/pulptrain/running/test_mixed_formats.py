# SPDX-License-Identifier: Apache-2.0
"""A network whose layers have formats of their own: casts and layout changes are ops with a cost."""

from pathlib import Path

import numpy as np
import pytest

from configs.model_file import load_model
from pulptrain.running.session import RunOutcome
from shared.agreement import compare, graph_tolerance
from shared.initial_values import initial_values
from shared.kept_plans import run_model
from shared.oracle_torch import evaluate_torch
from trainlib.ir.numerics import rounded
from trainlib.references.reference import evaluate
from trainlib.training.phases import build_training_graph
from truth.source import torch_available

MODEL = """\
name: mixed
description: fp32 around 16 bit, CHW around HWC
source: tests/pulptrain/running/test_mixed_formats.py
input: {{shape: [3, 8, 6]}}
dataset: random
loss: mse
optimizer: {{name: sgd, learning_rate: 0.01}}
batch: {batch}
layers:
  - {{name: conv1, type: conv2d, out_channels: 4, kernel: 3, padding: 1, bias: true}}
  - {{name: conv2, type: conv2d, out_channels: 6, kernel: 3, dtype: {dtype}, layout: {layout}}}
  - {{name: act, type: relu, dtype: {dtype}}}
  - {{name: conv3, type: conv2d, out_channels: 4, kernel: 3, stride: 2}}
  - {{name: flat, type: flatten}}
  - {{name: fc, type: linear, out_features: 5, bias: true, dtype: {dtype}}}
"""


def written(folder: Path, dtype: str = "bf16", layout: str = "HWC", batch: int = 2) -> str:
    path = folder / "mixed.yaml"
    path.write_text(MODEL.format(dtype=dtype, layout=layout, batch=batch), encoding="utf-8")
    return str(path)


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> RunOutcome:
    return run_model(written(tmp_path_factory.mktemp("mixed")), iterations=2)


def test_conversions_stand_at_the_boundaries_in_both_directions(outcome: RunOutcome) -> None:
    ops = [op["name"] for op in outcome.summary["ops"]]
    assert ops == [
        "conv1.FW",
        *("conv2.cast.FW", "conv2.layout.FW", "conv2.FW", "act.FW"),
        *("conv3.cast.FW", "conv3.layout.FW", "conv3.FW"),
        *("fc.cast.FW", "fc.FW", "fc.loss.cast.FW", "loss.LOSS", "fc.loss.cast.IG"),
        *("fc.WG", "fc.IG", "fc.cast.IG", "conv3.WG", "conv3.IG"),
        *("conv3.layout.IG", "conv3.cast.IG", "act.IG"),
        *("conv2.WG", "conv2.IG", "conv2.layout.IG", "conv2.cast.IG", "conv1.WG"),
        *("conv1.UPD", "conv1.bias.UPD", "conv2.UPD", "conv3.UPD", "fc.UPD", "fc.bias.UPD"),
    ]


def test_conversions_cost_cycles_and_move_bytes_of_both_formats(outcome: RunOutcome) -> None:
    ops = {op["name"]: op for op in outcome.summary["ops"]}
    for name, op in ops.items():
        assert op["cycles"] > 0, name
    elements = 2 * 4 * 8 * 6
    cast, back = ops["conv2.cast.FW"], ops["conv2.cast.IG"]
    assert (cast["primitive"], cast["bytes_in"], cast["bytes_out"]) == ("cast", 4 * elements, 2 * elements)
    assert (back["primitive"], back["bytes_in"], back["bytes_out"]) == ("cast", 2 * elements, 4 * elements)
    layout = ops["conv2.layout.FW"]
    assert (layout["primitive"], layout["bytes_in"], layout["bytes_out"]) == (
        "layout",
        2 * elements,
        2 * elements,
    )
    share = sum(op["cycles"] for op in ops.values() if op["primitive"] in ("cast", "layout"))
    assert 0.02 < share / outcome.summary["cycles"] < 0.5


def test_the_simulated_numbers_are_those_of_pytorch(outcome: RunOutcome) -> None:
    checked = outcome.summary["functional"]
    assert checked["passed"]
    assert checked["checked_against"] == ("PyTorch" if torch_available() else checked["checked_against"])
    assert len(checked["tensors"]) > 10
    assert outcome.summary["training"]["iterations"] == 2


@pytest.mark.needs_torch
@pytest.mark.parametrize("dtype", ["fp16", "bf16", "fp8_e4m3", "fp8_e5m2"])
@pytest.mark.parametrize("layout", ["CHW", "HWC"])
@pytest.mark.parametrize("batch", [1, 3])
def test_every_tensor_of_fw_and_bw_against_pytorch(
    tmp_path: Path, dtype: str, layout: str, batch: int
) -> None:
    spec = load_model(written(tmp_path, dtype, layout, batch))
    graph = build_training_graph(spec)
    values = initial_values(graph, spec, 0)
    ours, truth = evaluate(graph, values), evaluate_torch(graph, values)
    computed = {name for op in graph.ops for name in op.outputs} & set(truth)
    assert {*graph.gradients.values(), *graph.updates.values()} <= computed
    allowed = graph_tolerance(graph)
    for name, difference in compare(ours, truth, sorted(computed)).items():
        assert difference.max_rel_error <= allowed, name


def test_the_16_bit_layers_hold_16_bit_numbers_and_the_others_do_not(tmp_path: Path) -> None:
    spec = load_model(written(tmp_path))
    graph = build_training_graph(spec)
    assert graph.tensors["conv1.out"].dtype == graph.tensors["conv3.out"].dtype == "float32"
    for name in ("conv2.out", "conv2.weight", "act.out.grad", "conv2.weight.grad", "fc.weight"):
        assert graph.tensors[name].dtype == "bfloat16", name
    assert graph.tensors["conv2.out"].layout == "HWC"
    assert graph.tensors["conv2.out"].shape == (2, 6, 4, 6)
    ours = evaluate(graph, initial_values(graph, spec, 0))
    narrowed = rounded(ours["conv1.out"], "bfloat16").astype(np.float32)
    assert (narrowed != ours["conv1.out"]).any()
    assert np.array_equal(ours["conv2.cast.out"].astype(np.float32), narrowed)
    assert np.array_equal(ours["conv2.layout.out"].astype(np.float32), np.moveaxis(narrowed, 1, 3))


def test_without_other_formats_there_is_no_conversion(tmp_path: Path) -> None:
    graph = build_training_graph(load_model(written(tmp_path, "fp32", "CHW")))
    assert not [op.name for op in graph.ops if op.primitive in ("cast", "layout")]
