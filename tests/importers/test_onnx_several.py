# SPDX-License-Identifier: Apache-2.0
"""ONNX graphs of several inputs, several outputs, or with a loss at the end, against other readers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from configs.errors import InputError, UnsupportedLayerError
from configs.model_file import LossSpec
from importers.graph.onnx_file import load_onnx
from importers.onnx.forward import import_forward
from pulptrain.__main__ import run
from pulptrain.foreign.foreign_check import OnnxOrigin, check_file, check_output
from shared.onnx_models import NodeText, ValueText, model, node, saved, value
from shared.printed import printed
from trainlib.references.reference import evaluate
from trainlib.training.phases import build_training_graph, initial_weights
from trainlib.training.training_data import sample_stream

pytestmark = [pytest.mark.needs_onnx, pytest.mark.needs_torch]

RANDOM = np.random.default_rng(27)


def drawn(*shape: int) -> Any:
    return RANDOM.uniform(-1, 1, shape).astype(np.float32)


def gemm(x: str, w: str, y: str, **attributes: Any) -> NodeText:
    return node("Gemm", [x, w], [y], **attributes)


@dataclass(frozen=True)
class Case:
    """Nodes from `inputs` to `outputs`, and the losses they become: name, labels or target, options."""

    inputs: Sequence[ValueText]
    nodes: Sequence[NodeText]
    outputs: Sequence[str]
    weights: Mapping[str, Any]
    losses: Sequence[tuple[str, str | None, Mapping[str, Any]]]


X, LABELS = value("x", [2, 4]), value("labels", [2], "int64")
WANTED = value("wanted", [2, 3])
W = {"w": drawn(4, 3)}
HARD = {"labels": "hard"}
TWO = [value("left", [2, 4]), value("right", [2, 4])]
SQUARED = [gemm("x", "w", "y"), node("Sub", ["y", "wanted"], ["e"])]
CLASSES = {"w": drawn(3, 2, 1, 1), "c": np.array([0.5, 2, 1], np.float32)}

CASES = {
    "two inputs of one weight": Case(
        TWO,
        [gemm("left", "w", "a"), gemm("right", "w", "b"), node("Sub", ["a", "b"], ["z"])],
        ["z"],
        W,
        [("cross_entropy", "label", HARD)],
    ),
    "numbers of words and numbers": Case(
        [value("words", [2, 3], "int64"), value("x", [2, 4])],
        [
            node("Gather", ["table", "words"], ["rows"]),
            node("Flatten", ["rows"], ["flat"]),
            node("Concat", ["flat", "x"], ["both"], axis=1),
            gemm("both", "v", "z"),
        ],
        ["z"],
        {"table": drawn(5, 2), "v": drawn(10, 3)},
        [("cross_entropy", "label", HARD)],
    ),
    "two outputs, one of them before the last layer": Case(
        [X],
        [gemm("x", "w", "a"), node("Relu", ["a"], ["h"]), gemm("h", "v", "z"), gemm("h", "u", "aux")],
        ["z", "aux"],
        {**W, "v": drawn(3, 2), "u": drawn(3, 5)},
        [("cross_entropy", "label", HARD), ("cross_entropy", "label_2", HARD)],
    ),
    "parts of one tensor": Case(
        [X],
        [gemm("x", "v", "a"), node("Split", ["a", "sizes"], ["z", "aux"], axis=1)],
        ["z", "aux"],
        {"v": drawn(4, 6), "sizes": np.array([2, 4])},
        [("cross_entropy", "label", HARD), ("cross_entropy", "label_2", HARD)],
    ),
    "cross-entropy": Case(
        [X, LABELS],
        [gemm("x", "w", "y"), node("SoftmaxCrossEntropyLoss", ["y", "labels"], ["z"])],
        ["z"],
        W,
        [("cross_entropy", "label", {**HARD, "reduction": "mean"})],
    ),
    "cross-entropy of pixels, with weights of classes, and the logarithms": Case(
        [value("labels", [2, 2, 3], "int64"), value("x", [2, 2, 2, 3])],
        [
            node("Constant", [], ["k"], value=CLASSES["c"]),
            node("Conv", ["x", "w"], ["y"]),
            node(
                "SoftmaxCrossEntropyLoss",
                ["y", "labels", "k"],
                ["z", "logs"],
                ignore_index=1,
                reduction="sum",
            ),
        ],
        ["z", "logs"],
        {"w": CLASSES["w"]},
        [
            (
                "cross_entropy",
                "label",
                {**HARD, "ignore_index": 1, "reduction": "sum", "class_weights": [0.5, 2.0, 1.0]},
            )
        ],
    ),
    "of log-probabilities, half of it": Case(
        [X, LABELS],
        [
            gemm("x", "w", "y"),
            node("LogSoftmax", ["y"], ["logs"], axis=1),
            node("NegativeLogLikelihoodLoss", ["logs", "labels"], ["nll"]),
            node("Mul", ["nll", "half"], ["z"]),
        ],
        ["z"],
        {**W, "half": np.array(0.5, np.float32)},
        [("nll", "label", {"reduction": "mean", "weight": 0.5})],
    ),
    "squares by Mul": Case(
        [X, WANTED],
        [*SQUARED, node("Mul", ["e", "e"], ["s"]), node("ReduceMean", ["s"], ["z"], keepdims=0)],
        ["z"],
        W,
        [("mse", "label", {"reduction": "mean"})],
    ),
    "squares by Pow, summed": Case(
        [WANTED, X],
        [
            gemm("x", "w", "y"),
            node("Sub", ["wanted", "y"], ["e"]),
            node("Pow", ["e", "two"], ["s"]),
            node("ReduceSum", ["s", "axes"], ["z"], keepdims=0),
        ],
        ["z"],
        {**W, "two": np.array(2, np.float32), "axes": np.array([0, 1])},
        [("mse", "label", {"reduction": "sum"})],
    ),
    "two losses, one of a layer before": Case(
        [X, LABELS, value("wanted", [2, 3])],
        [
            *SQUARED,
            node("Abs", ["e"], ["s"]),
            node("ReduceMean", ["s"], ["l1"], keepdims=0),
            node("Relu", ["y"], ["h"]),
            gemm("h", "v", "logits"),
            node("SoftmaxCrossEntropyLoss", ["logits", "labels"], ["ce"]),
            node("Mul", ["l1", "share"], ["part"]),
            node("Add", ["ce", "part"], ["z"]),
        ],
        ["z"],
        {**W, "v": drawn(3, 5), "share": np.array(0.25, np.float32)},
        [
            ("cross_entropy", "label", {**HARD, "reduction": "mean"}),
            ("l1", "wanted", {"reduction": "mean", "weight": 0.25}),
        ],
    ),
    "a distance of two inputs": Case(
        TWO,
        [
            gemm("left", "w", "a"),
            gemm("right", "w", "b"),
            node("Sub", ["a", "b"], ["e"]),
            node("Mul", ["e", "e"], ["s"]),
            node("ReduceMean", ["s"], ["z"], keepdims=0),
        ],
        ["z"],
        W,
        [("output", None, {"reduction": "mean"})],
    ),
}


def read(case: Case, folder: Path, **how: Any) -> OnnxOrigin:
    made = model(case.nodes, case.inputs, [value(name, None) for name in case.outputs], case.weights)
    graph = load_onnx(saved(folder, made))
    return OnnxOrigin(graph, import_forward(graph, **how))


@pytest.mark.parametrize("name", CASES)
def test_losses_and_gradients_are_those_of_the_file(name: str, tmp_path: Path) -> None:
    from onnx.reference import ReferenceEvaluator

    case = CASES[name]
    origin = read(case, tmp_path)
    spec = origin.read.spec
    assert [(loss.name, loss.label, dict(loss.options)) for loss in spec.losses] == [
        (kind, label or spec.losses[number].label, options)
        for number, (kind, label, options) in enumerate(case.losses)
    ]
    graph = build_training_graph(spec)
    sample = next(sample_stream(graph, spec, 0))
    results = evaluate(graph, {**sample, **initial_weights(graph, 0), **origin.read.values})
    results["loss"] = sum(results[name] for name in graph.losses)
    check = check_file(origin, spec, graph, sample, results)
    assert not isinstance(check, str), check
    assert check.passed, (check.tensor, check.worst)
    assert check.compared == 1 + len(graph.weights)
    note = check_output(origin)
    if not origin.read.loss:
        assert "equals that of the file, computed by onnx.reference" in note
        return
    feeds = {
        key: array.astype(np.int64) if array.dtype.kind == "i" else array
        for key, array in origin.fed(sample).items()
    }
    found = ReferenceEvaluator(origin.graph.path).run(["z"], feeds)[0]
    np.testing.assert_allclose(results["loss"][0], found, rtol=2e-6)


@pytest.mark.parametrize("name", CASES)
def test_the_machine_runs_it(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    origin = read(CASES[name], tmp_path)
    assert run(["run", origin.graph.path, "--json"]) == 0, capsys.readouterr().err
    functional = json.loads(capsys.readouterr().out)["functional"]
    assert functional["passed"]
    assert functional["file"]["passed"]


def test_shapes_of_several_inputs_are_said_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes = [gemm("left", "w", "a"), gemm("right", "w", "b"), node("Add", ["a", "b"], ["z"])]
    free = [value(name, ["n", "k"]) for name in ("left", "right")]
    path = saved(tmp_path, model(nodes, free, [value("z", None)], W))
    assert printed(capsys, "run", path, "--input", "left=3,4 right=3,4")["functional"]["file"]["passed"]
    assert run(["run", path, "--input", "left=3,4 right=2,4"]) == 2
    assert "the inputs of the graph have different batch sizes: left 3, right 2" in capsys.readouterr().err
    assert run(["run", path, "--input", "3,4"]) == 2
    assert "input 'right' has no size" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("case", "how", "reason"),
    [
        (
            "cross-entropy",
            {"loss": LossSpec("mse")},
            "the graph ends in a loss already, so --loss cannot be used: 'z'",
        ),
        (
            Case([X], [gemm("x", "w", "z")], ["z", "x"], W, []),
            {},
            "has no layer",
        ),
        (
            Case([X, value("u", [3, 4])], [gemm("x", "w", "a"), gemm("u", "w", "z")], ["a", "z"], W, []),
            {},
            "different batch sizes: x 2, u 3",
        ),
        (
            Case(
                [X, LABELS],
                [*CASES["cross-entropy"].nodes, node("ReduceMean", ["y"], ["m"], keepdims=0)],
                ["z", "m"],
                W,
                [],
            ),
            {},
            "ends in several losses: 'z', 'm'",
        ),
    ],
)
def test_what_is_no_training_is_refused(
    case: str | Case, how: Mapping[str, Any], reason: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=reason):
        read(CASES[case] if isinstance(case, str) else case, tmp_path, **how)


@pytest.mark.parametrize(
    ("nodes", "reason"),
    [
        (
            [node("SoftmaxCrossEntropyLoss", ["y", "labels"], ["z"], reduction="none")],
            "a loss per sample is not supported; try: set reduction mean or sum",
        ),
        (
            [
                node("SoftmaxCrossEntropyLoss", ["y", "labels"], ["l"]),
                node("Exp", ["l"], ["z"]),
            ],
            "computing with losses or sums|must be computed from",
        ),
        (
            [
                node("ReduceMean", ["y"], ["m"], axes=[0]),
                node("SoftmaxCrossEntropyLoss", ["y", "labels"], ["z"]),
            ],
            "only if its result is a single number",
        ),
    ],
)
def test_numbers_of_all_samples_are_refused_where_a_layer_would_read_them(
    nodes: Sequence[NodeText], reason: str, tmp_path: Path
) -> None:
    with pytest.raises(UnsupportedLayerError, match=reason):
        read(Case([X, LABELS], [gemm("x", "w", "y"), *nodes], ["z"], W, []), tmp_path)
