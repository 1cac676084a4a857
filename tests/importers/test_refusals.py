# SPDX-License-Identifier: Apache-2.0
"""Whatever an importer refuses, it says what would do."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import importers
from configs.errors import InputError
from importers.graph.draft import NO_FORM, Problem
from importers.graph.onnx_file import load_onnx
from importers.onnx import forward
from importers.training import graph
from shared.onnx_models import NodeText, model, node, saved, value
from shared.onnx_training_models import mlp_nodes, mlp_weights, with_accumulation

FILES = sorted(Path(importers.__file__).parent.rglob("*.py"))
CURED = ("InputError", "UnsupportedLayerError", "ShapeError", "ConfigError")
NEEDED = {
    **{"CannotTakeError": ("nearest", 2), "Problem": ("nearest", 5)},
    **dict.fromkeys(CURED, ("cure", 99)),
}
"""Refusal -> the argument that says what would do, and its number where it has one."""


def bare(source: str) -> list[str]:
    """Refusals in a module that name neither a nearest form nor a cure, or an empty one."""
    found = []
    for call in ast.walk(ast.parse(source)):
        if (
            not isinstance(call, ast.Call)
            or not isinstance(call.func, ast.Name)
            or call.func.id not in NEEDED
        ):
            continue
        keyword, place = NEEDED[call.func.id]
        said = [item.value for item in call.keywords if item.arg == keyword] + call.args[place - 1 : place]
        if not said or any(isinstance(item, ast.Constant) and not item.value for item in said):
            found.append(f"{call.lineno}: {ast.unparse(call)}")
    return found


@pytest.mark.parametrize("file", FILES, ids=str)
def test_every_refusal_says_what_would_do(file: Path) -> None:
    assert not bare(file.read_text())


def test_a_refusal_without_a_cure_is_seen() -> None:
    assert bare('raise CannotTakeError("a window of 3 dimensions")')
    assert bare('raise InputError("no file", where=path, cure="")')
    assert not bare('raise CannotTakeError("a window of 3 dimensions", "a window of 2")')


def test_what_is_near_to_nothing_says_so() -> None:
    assert str(Problem("n", "Odd", (1, 2), "no layer for it", NO_FORM)).endswith(f"try: {NO_FORM}")


def read(folder: Path, op: NodeText, shape: tuple[int, ...] = (2, 4, 6, 6), **weights: Any) -> Any:
    """A file of one node, read as a network."""
    made = model([op], [value("x", shape)], [value("z", None)], weights)
    return forward.import_forward(load_onnx(saved(folder, made)))


def broken(node: Any) -> None:
    raise KeyError("a defect of ours")


@pytest.mark.needs_onnx
def test_a_defect_of_ours_is_not_the_fault_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(forward.HANDLERS, "Relu", broken)  # type: ignore[arg-type]
    with pytest.raises(KeyError, match="a defect of ours"):
        read(tmp_path, node("Relu", ["x"], ["z"]))
    monkeypatch.setitem(graph.HANDLERS, "Relu", broken)  # type: ignore[arg-type]
    made = with_accumulation(mlp_nodes(), [1, 10], mlp_weights(), {})
    with pytest.raises(KeyError, match="a defect of ours"):
        graph.import_training(load_onnx(saved(tmp_path, made)))


FLOATS, NUMBERS, YES = np.ones(1, np.float32), np.ones(1, np.int64), np.ones(1, bool)
DIFFERENT: dict[str, tuple[str, Sequence[Any], dict[str, Any], int, str]] = {
    "a third factor": ("Mul", [FLOATS, FLOATS], {}, 17, "the node has 3 inputs, opset 17 allows at most 2"),
    "zeroth order": ("mezo:PerturbNormal", [], {}, 17, "zeroth-order training"),
    "an op of a later opset": ("Swish", [], {}, 21, "opset 21 has no Swish\n  try: export with opset 24 or"),
    "an attribute of no op": (
        "Relu",
        [],
        {"alpha": 0.5},
        17,
        "Relu has no attribute 'alpha'\n  try: remove 'alpha'",
    ),
    "an attribute of another op": (
        "Softmax",
        [],
        {"dim": 1},
        17,
        "Softmax has no attribute 'dim'\n  try: use",
    ),
    "a word for another": (
        "LayerNormalization",
        [np.ones(6, np.float32)],
        {"eps": 1e-3},
        17,
        "LayerNormalization has no attribute 'eps'\n  try: use 'epsilon'",
    ),
    "a word that another op may have": ("Mul", [FLOATS], {"eta": 1.0}, 17, "Mul has no attribute 'eta'"),
    "an integer factor": ("Mul", [NUMBERS], {}, 17, "input 'B' must have the type of 'x', float32: 'c0' is"),
    "integers joined": (
        "Concat",
        [NUMBERS],
        {"axis": 0},
        17,
        "input 'inputs' must have the type of 'x', float32",
    ),
    "a gap": ("Mul", [None], {}, 17, "input 'B' of the node is missing"),
}


def apart(op: str, inputs: Sequence[Any], attributes: dict[str, Any], folder: Path, opset: int = 17) -> str:
    """How a file is refused whose node reads x, then these constants."""
    names = [f"c{number}" if item is not None else "" for number, item in enumerate(inputs)]
    weights = {name: item for name, item in zip(names, inputs, strict=True) if name}
    of_x = node(op, ["x", *names], ["z"], name="n", **attributes)
    made = model([of_x], [value("x", (2, 4, 6, 6))], [value("z", None)], weights, opset)
    with pytest.raises(InputError) as caught:
        forward.import_forward(load_onnx(saved(folder, made)))
    return str(caught.value)


@pytest.mark.needs_onnx
@pytest.mark.parametrize("case", DIFFERENT)
def test_a_node_on_which_readers_differ_is_refused_where_it_stands(case: str, tmp_path: Path) -> None:
    """onnx.checker refuses such files, too; readers pass over a third factor, or multiply by it."""
    op, inputs, attributes, opset, message = DIFFERENT[case]
    assert f"model.onnx: node 'n' ({op}): {message}" in apart(op, inputs, attributes, tmp_path, opset)


@pytest.mark.needs_onnx
@pytest.mark.parametrize(
    ("op", "names", "message"),
    [
        ("Where", ["x", "f", "f"], "input 'condition' must be bool: 'x' is float32"),
        ("Where", ["i", "x", "x"], "input 'condition' must be bool: 'i' is int64"),
        ("Where", ["b", "x", "i"], "input 'Y' must have the type of 'x', float32: 'i' is int64"),
        ("DequantizeLinear", ["q", "i"], "input 'x_scale' must be float32: 'i' is int64"),
        ("DequantizeLinear", ["q"], "input 'x_scale' of the node is missing"),
        ("QuantizeLinear", ["x", "i"], "input 'y_scale' must be float32: 'i' is int64"),
    ],
)
def test_types_of_inputs_are_those_of_the_op(
    op: str, names: Sequence[str], message: str, tmp_path: Path
) -> None:
    weights = {"f": FLOATS, "i": NUMBERS, "b": YES, "q": np.ones((2, 4, 6, 6), np.int8)}
    nodes = [node(op, names, ["h"], name="n"), node("Add", ["x", "h"], ["z"])]
    made = model(nodes, [value("x", (2, 4, 6, 6))], [value("z", None)], weights)
    with pytest.raises(InputError) as caught:
        forward.import_forward(load_onnx(saved(tmp_path, made)))
    assert f"node 'n' ({op}): {message}" in str(caught.value)


@pytest.mark.needs_onnx
@pytest.mark.parametrize(
    ("op", "inputs", "attributes", "opset"),
    [
        ("Div", [FLOATS], {"Delta": 1, "eps": 1, "eta": 1, "description": "of Deeploy"}, 17),
        ("Gelu", [], {}, 18),
        ("LayerNormalization", [np.ones(6, np.float32)], {}, 12),
        ("HardSwish", [], {}, 10),
        ("ReduceSum", [], {"axes": [1]}, 18),
        ("AveragePool", [], {"kernel_shape": [2, 2], "dilations": [1, 1]}, 13),
    ],
    ids=["remarks", "gelu", "layer_norm", "hard_swish", "older", "newer"],
)
def test_what_exporters_write_beside_the_opset_is_taken(
    op: str, inputs: Sequence[Any], attributes: dict[str, Any], opset: int, tmp_path: Path
) -> None:
    names = [f"c{number}" for number in range(len(inputs))]
    nodes = [node(op, ["x", *names], ["z"], **attributes)]
    weights = dict(zip(names, inputs, strict=True))
    made = model(nodes, [value("x", (2, 4, 6, 6))], [value("z", None)], weights, opset)
    assert forward.import_forward(load_onnx(saved(tmp_path, made))).spec.layers


W = np.ones((4, 4, 3, 3), np.float32)
WRONG: dict[str, tuple[NodeText, dict[str, Any]]] = {
    "a word for pads": (node("Conv", ["x", "w"], ["z"], pads="odd"), {"w": W}),
    "a number for strides": (node("Conv", ["x", "w"], ["z"], strides=2), {"w": W}),
    "two pads": (node("Conv", ["x", "w"], ["z"], pads=[1, 1]), {"w": W}),
    "no groups": (node("Conv", ["x", "w"], ["z"], group=0), {"w": W}),
    "no weight": (node("Conv", ["x"], ["z"]), {}),
    "a weight of two dimensions": (node("Conv", ["x", "w"], ["z"]), {"w": W[0, 0]}),
    "no window": (node("MaxPool", ["x"], ["z"]), {}),
    "a window of words": (node("MaxPool", ["x"], ["z"], kernel_shape=["a", "b"]), {}),
    "a tensor for an axis": (node("Softmax", ["x"], ["z"], axis=np.ones(2, np.float32)), {}),
    "a word for alpha": (node("LeakyRelu", ["x"], ["z"], alpha="much"), {}),
    "a scale of another size": (node("LayerNormalization", ["x", "w"], ["z"]), {"w": W[0, 0, 0, :2]}),
    "a norm of other channels": (
        node("BatchNormalization", ["x", "w", "w", "w", "w"], ["z"]),
        {"w": np.ones(3, np.float32)},
    ),
    "no shape": (node("Reshape", ["x"], ["z"]), {}),
    "one operand": (node("Add", ["x"], ["z"]), {}),
    "a permutation of others": (node("Transpose", ["x"], ["z"], perm=[0, 5]), {}),
}


@pytest.mark.needs_onnx
@pytest.mark.parametrize("case", WRONG)
def test_a_node_that_is_none_of_its_op_is_refused(case: str, tmp_path: Path) -> None:
    op, weights = WRONG[case]
    with pytest.raises(InputError):
        read(tmp_path, op, **weights)
