# SPDX-License-Identifier: Apache-2.0
"""An ONNX file against what was read of it: output at import, gradients after a run, by other readers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from configs.errors import UnsupportedLayerError, WrongNumbersError
from configs.values import replace
from importers.graph.onnx_file import load_onnx
from importers.graph.onnx_folding import _FOLDED
from importers.graph.onnx_fusion import OWN
from importers.graph.weights import WeightNumbers
from importers.onnx.forward import HANDLERS, import_forward
from importers.onnx.losses import LOSSES
from pulptrain.__main__ import run
from pulptrain.foreign import foreign_check
from pulptrain.foreign.foreign_check import OnnxOrigin, check_file, check_output
from shared.onnx_models import NodeText, model, node, saved, value
from shared.printed import printed
from trainlib.references.conditioning import conditioning
from trainlib.references.reference import evaluate
from trainlib.training.phases import build_training_graph, initial_weights
from trainlib.training.training_data import sample_stream
from truth.onnx_graph import _OPS, Computed

pytestmark = [pytest.mark.needs_onnx, pytest.mark.needs_torch]

RANDOM = np.random.default_rng(25)
WEIGHTS = Mapping[str, Any]


def drawn(*shape: int) -> Any:
    return RANDOM.uniform(-1, 1, shape).astype(np.float32)


def read(folder: Path, nodes: Sequence[NodeText], shape: Sequence[int], weights: WEIGHTS) -> OnnxOrigin:
    """A file of these nodes from x to z, and what it was read as."""
    graph = load_onnx(saved(folder, model(nodes, [value("x", shape)], [value("z", None)], weights)))
    return OnnxOrigin(graph, import_forward(graph))


def gradients_of(origin: OnnxOrigin, seed: int = 0) -> Any:
    """The check of one iteration of ours, by its references."""
    spec = origin.read.spec
    graph = build_training_graph(spec)
    sample = next(sample_stream(graph, spec, seed))
    values = {**sample, **initial_weights(graph, seed), **origin.read.values}
    fed = {"input": sample[graph.input], "label": sample[graph.label]}
    return check_file(origin, spec, graph, fed, evaluate(graph, values), partial(conditioning, graph, values))


def gemm(x: str, y: str, name: str, *more: str, **attributes: Any) -> NodeText:
    return node("Gemm", [x, "w", *more], [y], name=name, **attributes)


SQUARE = {"w": drawn(4, 4)}
SHARED = {
    "Gemm": ([gemm("x", "a", "one"), node("Relu", ["a"], ["b"]), gemm("b", "z", "two")], [2, 4], SQUARE),
    "its Transpose": (
        [
            node("MatMul", ["x", "w"], ["a"], name="one"),
            node("Transpose", ["w"], ["t"]),
            node("MatMul", ["a", "t"], ["z"], name="two"),
        ],
        [2, 4],
        {"w": drawn(4, 6)},
    ),
    "Conv": (
        [node("Conv", ["x", "w"], ["a"], name="one"), node("Conv", ["a", "w"], ["z"], name="two")],
        [1, 3, 6, 6],
        {"w": drawn(3, 3, 3, 3)},
    ),
    "Identity and Reshape": (
        [
            node("Identity", ["w"], ["v"]),
            node("Reshape", ["v", "shape"], ["u"]),
            gemm("x", "a", "one"),
            node("Gemm", ["a", "u"], ["z"], name="two"),
        ],
        [2, 4],
        {**SQUARE, "shape": np.array([4, 4])},
    ),
    "a part of it joined with another": (
        [
            node("Slice", ["w", "zero", "two"], ["s"]),
            node("Concat", ["s", "v"], ["u"], axis=0),
            gemm("x", "a", "one"),
            node("MatMul", ["a", "u"], ["z"], name="two"),
        ],
        [2, 4],
        {**SQUARE, "v": drawn(2, 4), "zero": np.array([0]), "two": np.array([2])},
    ),
}


TURNED = ("its Transpose", "a part of it joined with another")


@pytest.mark.parametrize("case", [case for case in SHARED if case not in TURNED])
def test_a_weight_that_two_nodes_train_is_one_weight_with_the_gradients_of_both(
    case: str, tmp_path: Path
) -> None:
    origin = read(tmp_path, *SHARED[case])
    assert [*origin.read.values] == [*origin.read.sources] == ["one.weight"]
    assert origin.read.spec.layers[-1].weights_of == {"weight": "one"}
    assert gradients_of(origin).passed


@pytest.mark.parametrize("case", TURNED)
def test_a_weight_in_two_orders_or_in_parts_is_cut_and_turned_by_layers(case: str, tmp_path: Path) -> None:
    origin = read(tmp_path, *SHARED[case])
    held = [layer for layer in origin.read.spec.layers if layer.type == "parameter"]
    assert [layer.attributes["once"] for layer in held] == [True] * len(held)
    assert "w" in {given.source for given in origin.read.sources.values()}
    assert gradients_of(origin).passed


def test_a_constant_that_two_nodes_read_is_no_weight(tmp_path: Path) -> None:
    nodes = [node("Constant", [], ["w"], value=drawn(4, 4)), *SHARED["Gemm"][0][:2], gemm("b", "c", "two")]
    origin = read(tmp_path, [*nodes, node("Gemm", ["c", "v"], ["z"])], [2, 4], {"v": drawn(4, 4)})
    assert {given.source for given in origin.read.sources.values() if given.trained} == {"v"}
    assert gradients_of(origin).passed


EXACT: Mapping[str, tuple[Sequence[NodeText], Sequence[int], WEIGHTS]] = {
    "beta scales a bias and its gradient": (
        [gemm("x", "z", "g", "c", beta=0.5, alpha=2.0)],
        [4, 3],
        {"w": drawn(3, 5), "c": drawn(5)},
    ),
    "one number for all columns": ([gemm("x", "z", "g", "c")], [4, 3], {"w": drawn(3, 5), "c": drawn(1)}),
    "a matrix joined of two weights": (
        [node("Concat", ["w", "v"], ["u"], axis=0), node("MatMul", ["x", "u"], ["z"])],
        [4, 4],
        {"w": drawn(2, 3), "v": drawn(2, 3)},
    ),
    "numbers in a weight": (
        [
            node("Constant", [], ["k"], value=np.zeros((2, 3), np.float32)),
            node("Concat", ["w", "k"], ["u"], axis=0),
            node("MatMul", ["x", "u"], ["z"]),
        ],
        [4, 4],
        {"w": drawn(2, 3)},
    ),
    "elements at indices": (
        [gemm("x", "a", "g"), node("GatherND", ["a", "places"], ["z"], batch_dims=1)],
        [2, 3],
        {"w": drawn(3, 5), "places": np.array([[[1], [-2], [0]]] * 2)},
    ),
    "added at indices": (
        [
            gemm("x", "a", "g"),
            node("MatMul", ["a", "v"], ["b"]),
            node("ScatterElements", ["a", "places", "b"], ["z"], axis=1, reduction="add"),
        ],
        [2, 3],
        {"w": drawn(3, 5), "v": drawn(5, 2), "places": np.array([[3, -5]] * 2)},
    ),
    "an equation": (
        [node("Einsum", ["x", "w"], ["z"], equation="bij,jk->bki")],
        [2, 4, 3],
        {"w": drawn(3, 5)},
    ),
    "sums from each on": (
        [gemm("x", "a", "g"), node("CumSum", ["a", "last"], ["z"], exclusive=1, reverse=1)],
        [4, 3],
        {"w": drawn(3, 5), "last": np.array(1)},
    ),
    "weight norm": (
        [
            node("ReduceL2", ["v"], ["n"], axes=[1], keepdims=1),
            node("Div", ["v", "n"], ["u"]),
            node("Mul", ["u", "g"], ["w"]),
            gemm("x", "z", "one", "c", transB=1),
        ],
        [4, 3],
        {"v": drawn(5, 3), "g": drawn(5, 1), "c": drawn(5)},
    ),
    "rows of a table of weights": (
        [node("Gather", ["t", "i"], ["w"], axis=0), node("Mul", ["x", "w"], ["z"])],
        [2, 4, 3],
        {"t": drawn(3, 3), "i": np.array([2, 0, 2, 1])},
    ),
    "a scale and a shift of one number for all of a layer norm": (
        [gemm("x", "a", "g"), node("LayerNormalization", ["a", "s", "t"], ["z"])],
        [4, 3],
        {"w": drawn(3, 5), "s": drawn(1), "t": drawn(1)},
    ),
    "a trained bias beside a weight that is a constant": (
        [
            node("Constant", [], ["k"], value=drawn(4, 3, 3, 3)),
            node("Conv", ["x", "k", "c"], ["a"]),
            node("Flatten", ["a"], ["f"]),
            node("Gemm", ["f", "w"], ["z"]),
        ],
        [2, 3, 4, 4],
        {"c": drawn(4), "w": drawn(16, 3)},
    ),
    "weights that are subtracted, and divided by": (
        [gemm("x", "a", "g"), node("Sub", ["a", "c"], ["b"]), node("Div", ["b", "s"], ["z"])],
        [4, 3],
        {"w": drawn(3, 5), "c": drawn(5), "s": 1 + drawn(5) ** 2},
    ),
    "a matrix before what it multiplies": (
        [gemm("x", "a", "g"), node("Reshape", ["a", "shape"], ["b"]), node("MatMul", ["m", "b"], ["z"])],
        [4, 3],
        {"w": drawn(3, 6), "m": drawn(2, 3), "shape": np.array([4, 3, 2])},
    ),
    "convolution, norms, pooling": (
        [
            node("Conv", ["x", "w", "c"], ["a"], strides=[2, 2], pads=[1, 0, 1, 2]),
            node("BatchNormalization", ["a", "s", "t", "m", "v"], ["b"]),
            node("LeakyRelu", ["b"], ["d"], alpha=0.2),
            node("MaxPool", ["d"], ["e"], kernel_shape=[2, 2], strides=[1, 1]),
            node("Flatten", ["e"], ["f"]),
            node("LayerNormalization", ["f", "g"], ["h"]),
            node("Gemm", ["h", "o"], ["z"]),
        ],
        [2, 3, 8, 8],
        {
            **{"w": drawn(4, 3, 3, 3), "c": drawn(4), "s": drawn(4), "m": drawn(4), "v": 1 + drawn(4) ** 2},
            **{"t": drawn(4), "g": drawn(36), "o": drawn(36, 3)},
        },
    ),
    **{
        f"{direction} {op}": (
            [
                node("Gemm", ["x", "w"], ["a"]),
                node("Reshape", ["a", "rows"], ["b"]),
                node("Transpose", ["b"], ["t"], perm=[1, 0, 2]),
                node(op, ["t", "k", "r", "c"], ["y", "last"], direction=direction, hidden_size=2, **more),
                node("Transpose", ["y"], ["d"], perm=[2, 0, 1, 3]),
                node("Transpose", ["last"], ["e"], perm=[1, 0, 2]),
                node("Flatten", ["d"], ["f"]),
                node("Flatten", ["e"], ["g"]),
                node("Concat", ["f", "g"], ["z"], axis=1),
            ],
            [2, 5],
            {
                **{"w": drawn(5, 12), "rows": np.array([2, 4, 3]), "k": drawn(ways, 2 * gates, 3)},
                **{"r": drawn(ways, 2 * gates, 2), "c": drawn(ways, 4 * gates)},
            },
        )
        for op, gates, more in (("GRU", 3, {"linear_before_reset": 1}), ("LSTM", 4, {}), ("RNN", 1, {}))
        for direction, ways in (("reverse", 1), ("bidirectional", 2))
    },
}


def test_a_norm_of_neighbours_is_not_that_of_the_reference_of_onnx(tmp_path: Path) -> None:
    """It loops over samples where it means channels."""
    nodes = [gemm("x", "a", "g"), node("Reshape", ["a", "s"], ["b"])]
    norm = [node("LRN", ["b"], ["n"], size=3, alpha=0.5), node("Flatten", ["n"], ["z"])]
    origin = read(tmp_path, [*nodes, *norm], [2, 4], {"w": drawn(4, 24), "s": np.array([2, 6, 2, 2])})
    assert "equals that of the file, computed by PyTorch" in check_output(origin)
    assert gradients_of(origin).passed


@pytest.mark.parametrize("case", EXACT)
def test_output_and_gradients_are_those_of_the_file(case: str, tmp_path: Path) -> None:
    origin = read(tmp_path, *EXACT[case])
    assert "equals that of the file, computed by onnx.reference" in check_output(origin)
    check = gradients_of(origin)
    assert check.passed, (check.tensor, check.worst)
    trained = sum(given.trained for given in origin.read.sources.values())
    assert check.compared == trained + 1


REFUSED = {
    "a column that Gemm adds": (
        [gemm("x", "z", "g", "c")],
        [4, 3],
        {"w": drawn(3, 4), "c": drawn(4, 1)},
        "differs by sample",
    ),
    "batches turned by a product": (
        [node("com.microsoft:FusedMatMul", ["x", "x"], ["z"], transBatchA=1, transBatchB=1)],
        [1, 2, 2],
        {},
        "transBatchA",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_would_be_another_network_is_refused(case: str, tmp_path: Path) -> None:
    nodes, shape, weights, reason = REFUSED[case]
    with pytest.raises(UnsupportedLayerError, match=reason):
        read(tmp_path, nodes, shape, weights)


MERGED = {
    "of another module": ("n2/", "n1.weight", False, {"n2.weight": ("n1.weight", (2,))}),
    "of the same module": ("n1_1/", "n1.weight", False, {}),
    "of modules without names": ("", "s", False, {"s_1": ("s", (2,))}),
    "of a file that shares more": ("", "s", True, {}),
}


@pytest.mark.parametrize("case", MERGED)
def test_equal_weights_that_only_a_merge_explains_are_taken_apart(case: str, tmp_path: Path) -> None:
    """Two norms, which an exporter has let share ones; a module that is used twice shares them indeed."""
    module, weight, shares, wanted = MERGED[case]
    first, second = (f"/{part}LayerNormalization" if part else "" for part in (module and "n1/", module))
    nodes = [
        node("LayerNormalization", ["x", weight], ["a"], name=first),
        node("Gemm", ["a", "w", "c"], ["b"]),
        node("LayerNormalization", ["b", weight], ["d"], name=second),
        node("Gemm", ["d", "w" if shares else "v"], ["z"]),
    ]
    weights = {weight: np.ones(4, np.float32), "w": drawn(4, 4), "c": drawn(4)}
    origin = read(tmp_path, nodes, [3, 4], weights | ({} if shares else {"v": drawn(4, 2)}))
    assert origin.graph.merged == wanted
    owners = [given.source for given in origin.read.sources.values() if given.value.size == 4]
    assert sorted(owners) == sorted([weight, "c", *wanted])
    assert gradients_of(origin).passed


def spoilt(origin: OnnxOrigin, change: Any) -> OnnxOrigin:
    """As if it had been read otherwise."""
    return replace(origin, read=change(origin.read))


def test_another_output_is_refused_with_its_name_and_the_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    origin = read(tmp_path, *EXACT["beta scales a bias and its gradient"])
    values = {name: array * np.float32(1.001) for name, array in origin.read.values.items()}
    other = spoilt(origin, lambda found: replace(found, values=values))
    with pytest.raises(
        WrongNumbersError, match=r"output 'z' .* onnx.reference.* times the tolerance"
    ) as caught:
        check_output(other)
    assert caught.value.exit_code == 1
    monkeypatch.setattr(foreign_check, "MOST_WINDOWS", -1)
    assert "by PyTorch" in check_output(origin)
    with pytest.raises(WrongNumbersError, match="output 'z' of pulptrain differs from that of PyTorch"):
        check_output(other)


NORM = {name: RANDOM.uniform(0.5, 1, 3).astype(np.float32) for name in "sbmv"}
WRONG_THERE = {
    "BatchNormalization": ([node("BatchNormalization", ["y", *NORM], ["z"])], NORM, (7, 9, 11, 13), 14),
    "Softmax": ([node("Softmax", ["y"], ["z"])], {}, (9, 12), 13),
    "LogSoftmax": ([node("LogSoftmax", ["y"], ["z"], axis=2)], {}, (11,), 13),
}
"""Nodes that onnx.reference computes wrongly: their weights, in which opsets, and where it is right."""


@pytest.mark.parametrize("op", WRONG_THERE)
def test_where_onnx_reference_is_known_to_be_wrong_pytorch_decides(
    op: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes, weights, opsets, right = WRONG_THERE[op]
    nodes, weights = [node("Conv", ["x", "w"], ["y"]), *nodes], {"w": drawn(3, 3, 1, 1), **weights}
    for opset in (*opsets, right):
        made = model(nodes, [value("x", [2, 3, 4, 4])], [value("z", None)], weights, opset=opset)
        graph = load_onnx(saved(tmp_path, made))
        origin = OnnxOrigin(graph, import_forward(graph))
        who = "onnx.reference" if opset == right else "PyTorch"
        assert f"equals that of the file, computed by {who} (0.0" in check_output(origin), opset
        values = {name: array * np.float32(1.01) for name, array in origin.read.values.items()}
        with pytest.raises(WrongNumbersError, match="times the tolerance"):
            check_output(spoilt(origin, lambda found, values=values: replace(found, values=values)))
    with monkeypatch.context() as without:
        without.setattr(foreign_check, "missing_torch", lambda: "no PyTorch")
        made = model(nodes, [value("x", [2, 3, 4, 4])], [value("z", None)], weights, opset=opsets[-1])
        graph = load_onnx(saved(tmp_path, made))
        origin = OnnxOrigin(graph, import_forward(graph))
        assert "not compared with the file's" in check_output(origin)
        without.setattr(foreign_check, "_WRONG_THERE", {})
        with pytest.raises(WrongNumbersError, match=r"that of onnx\.reference"):
            check_output(origin)
    monkeypatch.setattr(foreign_check, "_WRONG_THERE", {})
    with pytest.raises(WrongNumbersError, match=r"onnx.reference by .*PyTorch computes the same values"):
        check_output(origin)


def test_a_gradient_of_another_weight_and_a_frozen_weight_show(tmp_path: Path) -> None:
    origin = read(tmp_path, *EXACT["a matrix joined of two weights"])
    places = WeightNumbers(("v", "w"), origin.read.places.starts, origin.read.places.shapes)
    assert not gradients_of(spoilt(origin, lambda found: replace(found, places=places))).passed
    check = gradients_of(spoilt(origin, lambda found: replace(found, sources={})))
    assert not check.passed
    assert "which pulptrain cannot train" in check.tensor


def test_a_run_says_who_has_compared_what(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    origin = read(tmp_path, *EXACT["beta scales a bias and its gradient"])
    path = origin.graph.path
    summary = printed(capsys, "run", path)
    assert summary["functional"]["file"]["passed"]
    notes = "\n".join(summary["notes"])
    assert "the output equals that of the file, computed by onnx.reference" in notes
    assert "gradients equal those of the file, computed by torch.autograd (3 tensors" in notes
    assert summary["functional"]["skipped"] == []
    saved = str(tmp_path / "values.npz")
    assert run(["run", path, "--json", "--iterations", "2", "--save-values", saved]) == 0
    assert "with those of the file (the run has several iterations)" in capsys.readouterr().out
    assert run(["run", path, "--json", "--values", saved]) == 0, "other weights are not those of the file"
    assert "with those of the file (the user passed values or samples)" in capsys.readouterr().out
    true = foreign_check.gradients_of_file

    def other(*given: Any, **how: Any) -> Any:
        found = true(*given, **how)
        return replace(found, tensors={name: array * 1.001 for name, array in found.tensors.items()})

    monkeypatch.setattr(foreign_check, "gradients_of_file", other)
    assert run(["run", path]) == 1
    assert "differs from the result of torch.autograd for the file" in capsys.readouterr().err


def test_all_ops_that_are_read_are_described_a_second_time() -> None:
    names = {name for name in (*HANDLERS, *LOSSES, *_FOLDED) if not name.startswith(OWN)}
    assert names <= _OPS.keys()


@pytest.mark.parametrize("op", ["GeluGrad", "SoftmaxGrad", "LayerNormalizationGrad", "with statistics"])
def test_gradient_nodes_are_read_as_autograd_has_them(op: str) -> None:
    import torch

    x, dy, w, b = (torch.tensor(drawn(*shape).astype("float64")) for shape in ((2, 3, 5),) * 2 + ((5,),) * 2)
    leaves = [item.requires_grad_() for item in (x, w, b)]
    if op == "GeluGrad":
        y, reads, count = torch.nn.functional.gelu(x), [dy, x], 1
    elif op == "SoftmaxGrad":
        y = torch.softmax(x, -1)
        reads, count = [dy, y], 1
    else:
        y = torch.nn.functional.layer_norm(x, (5,), w, b)
        reads, count = [dy, x, w, b], 3
        if op == "with statistics":
            reads[3:] = [x.mean(-1, keepdim=True), (x.var(-1, correction=0, keepdim=True) + 1e-5).rsqrt()]
    names = [f"in{number}" for number in range(len(reads))]
    outs = [f"out{number}" for number in range(count)]
    kind = "LayerNormalizationGrad" if op == "with statistics" else op
    graph = model([node(f"com.microsoft:{kind}", names, outs)], [value(n, None) for n in names], [])
    feeds = {name: item.detach().numpy() for name, item in zip(names, reads, strict=True)}
    found = Computed(graph, feeds, double=True).values
    for out, gradient in zip(outs, torch.autograd.grad(y, leaves[:count], dy), strict=True):
        assert torch.allclose(found[out], gradient, rtol=1e-12, atol=1e-12)
