# SPDX-License-Identifier: Apache-2.0
"""Forward ONNX graphs as models: op by op against onnx's reference implementation, and what is refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from configs.errors import InputError, UnsupportedLayerError
from importers.graph.onnx_file import load_onnx
from importers.onnx.forward import import_forward
from pulptrain.__main__ import run
from shared.onnx_models import NodeText, model, node, saved, value
from shared.printed import printed
from trainlib.references.reference import evaluate
from trainlib.training.phases import build_training_phases, initial_weights

pytestmark = pytest.mark.needs_onnx

RANDOM = np.random.default_rng(5)


def drawn(*shape: int) -> Any:
    return RANDOM.uniform(-1, 1, shape).astype(np.float32)


@dataclass(frozen=True)
class Network:
    """Nodes from ``h``, which a weight makes of the input x, to ``z``."""

    name: str
    nodes: Sequence[NodeText]
    shape: Sequence[int]
    weights: Mapping[str, Any] = field(default_factory=dict)
    opset: int = 17
    layers: Sequence[str] | None = None
    """Types of the layers it becomes, behind the first."""

    def __str__(self) -> str:
        return self.name


def one(op: str, shape: Sequence[int], *inputs: Any, opset: int = 17, **attributes: Any) -> Network:
    """One node, constants as its further inputs."""
    names = [f"c{number}" for number in range(len(inputs))]
    weights = {name: array for name, array in zip(names, inputs, strict=True) if array is not None}
    given = [name if name in weights else "" for name in names]
    return Network(
        f"{op}-{list(shape)}-{opset}", [node(op, ["h", *given], ["z"], **attributes)], shape, weights, opset
    )


def both_sides(op: str, shape: Sequence[int], *inputs: Any, **attributes: Any) -> Network:
    """One node, on numbers below and above 0."""
    found = one(op, shape, *inputs, **attributes)
    moved = node(op, ["s", *(f"c{number}" for number in range(len(inputs)))], ["z"], **attributes)
    nodes = [node("Sub", ["h", "half"], ["s"]), moved]
    return Network(f"{found.name} below 0", nodes, shape, {**found.weights, "half": np.float32(0.5)})


def norm_of_instances(count: int) -> list[Any]:
    """So many parts of a sample normalised, then Mul and Add per channel: a group norm taken apart."""
    return [
        node("Constant", [], ["ones"], value=np.ones(count, np.float32)),
        node("Constant", [], ["zeros"], value=np.zeros(count, np.float32)),
        node("Reshape", ["h", "groups"], ["g"]),
        node("InstanceNormalization", ["g", "ones", "zeros"], ["n"], epsilon=1e-4),
        node("Reshape", ["n", "back"], ["r"]),
        node("Mul", ["r", "w"], ["s"]),
        node("Add", ["s", "b"], ["z"]),
    ]


IMAGE = (2, 4, 6, 6)
NETWORKS = [
    *(
        one(op, (2, 6))
        for op in ("Relu", "Sigmoid", "Tanh", "Exp", "Neg", "Abs", "Erf", "Identity", "HardSwish")
    ),
    *(one(op, (2, 6)) for op in ("Sin", "Cos")),
    one("Clip", (2, 6), np.float32(-0.3), np.float32(0.4)),
    one("Clip", (2, 6), opset=9, min=-0.3, max=0.4),
    one("LeakyRelu", (2, 6), alpha=0.2),
    one("Elu", (2, 6)),
    one("HardSigmoid", (2, 6), alpha=0.2, beta=0.4),
    one("Mul", (2, 6), np.float32(0.3)),
    one("Mul", (2, 4, 5), drawn(4, 1)),
    one("Add", (2, 6), drawn(6)),
    one("Add", (2, 4, 5), drawn(4, 1)),
    one("Sub", (2, 6), np.float32(0.25)),
    one("Div", (2, 6), np.full(6, 3, np.float32)),
    one("Pow", (2, 6), np.float32(2)),
    one("Max", (2, 6), np.float32(0.1)),
    one("Softmax", (2, 6)),
    one("Softmax", (2, 4, 5), axis=1),
    one("LogSoftmax", (2, 4, 5), axis=1),
    *(both_sides(op, (2, 6)) for op in ("Softplus", "Softsign", "Celu", "Selu", "Elu", "LeakyRelu", "Relu")),
    both_sides("ThresholdedRelu", (2, 6), alpha=0.1),
    one("Mish", (2, 6), opset=18),
    both_sides("Celu", (2, 6), alpha=0.5),
    *(both_sides("PRelu", (2, 4, 5), drawn(*shape)) for shape in ((1,), (4, 1), (4, 5), (5,))),
    Network(
        "PReLU of a sample without its batch",
        [
            node("Reshape", ["h", "table"], ["t"]),
            node("Sub", ["t", "half"], ["s"]),
            node("PRelu", ["s", "slopes"], ["p"]),
            node("Reshape", ["p", "row"], ["z"]),
        ],
        (1, 16),
        {
            "table": np.array([4, 4]),
            "half": np.float32(0.5),
            "slopes": drawn(4),
            "row": np.array([1, 16]),
        },
    ),
    one("Transpose", (2, 4, 5), perm=[0, 2, 1]),
    one("Reshape", (2, 4, 6), np.array([2, 3, 8])),
    one("Flatten", IMAGE),
    one("Unsqueeze", (2, 6), np.array([1])),
    one("Unsqueeze", (2, 6), opset=9, axes=[2]),
    one("Slice", (2, 7), np.array([1]), np.array([5]), np.array([1])),
    one("Slice", (2, 8), np.array([1]), np.array([8]), np.array([1]), np.array([2])),
    one("Slice", (2, 6), np.array([-1]), np.array([-100]), np.array([1]), np.array([-1])),
    one("Gather", (2, 4, 5), np.array(2), axis=1),
    one("Gather", (2, 4, 5), np.array([3, 0]), axis=1),
    one("GatherElements", (2, 4, 5), np.array([[[3] * 5, [-4] * 5]] * 2), axis=1),
    one("GatherElements", (2, 4, 5), np.array([[[3, 0], [1, 1], [2, -1], [4, 0]]] * 2), axis=2),
    one("GatherND", (2, 4, 5), np.array([[[1], [0]]] * 2), batch_dims=1),
    one("GatherND", (2, 4, 5), np.array([[[0, 1, 4], [0, 3, 0]], [[1, 1, 4], [1, 3, 0]]])),
    one("ScatterElements", (1, 4, 5), np.array([[[4, 0]]]), drawn(1, 1, 2), axis=2),
    one("ScatterND", (1, 4, 5), np.array([[0, 2], [0, 0]]), drawn(2, 5), reduction="add"),
    one("Pad", (2, 4, 5), np.array([0, 1, 0, 0, 0, 2])),
    one("Expand", (2, 1, 5), np.array([2, 3, 5])),
    one("ReduceMean", (2, 4, 5), axes=[1], keepdims=0),
    one("ReduceMean", IMAGE, axes=[2, 3]),
    one("ReduceSum", (2, 4, 5), np.array([-1])),
    one("ReduceMax", (2, 4, 5), axes=[1], keepdims=0),
    one("ReduceMax", IMAGE, axes=[1, 3]),
    one("ReduceMin", (2, 4, 5), np.array([-1]), opset=18),
    one("GlobalAveragePool", IMAGE),
    one("GlobalMaxPool", IMAGE),
    one("MaxPool", IMAGE, kernel_shape=[2, 2], strides=[2, 2]),
    one("AveragePool", IMAGE, kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
    one("AveragePool", IMAGE, kernel_shape=[3, 3], pads=[1, 1, 1, 1], count_include_pad=1),
    one("Conv", IMAGE, drawn(3, 4, 3, 3), drawn(3), pads=[1, 1, 1, 1], strides=[2, 2]),
    one("Conv", IMAGE, drawn(6, 4, 1, 1)),
    one("Conv", IMAGE, drawn(4, 1, 3, 3), group=4, auto_pad="SAME_UPPER"),
    one("Conv", (2, 4, 9), drawn(3, 4, 3), drawn(3), dilations=[2]),
    one("ConvTranspose", IMAGE, drawn(4, 3, 2, 2), strides=[2, 2]),
    one("LayerNormalization", (2, 4, 6), drawn(6), drawn(6), axis=-1),
    one("BatchNormalization", IMAGE, drawn(4), drawn(4), drawn(4), 1 + np.abs(drawn(4))),
    one("InstanceNormalization", IMAGE, drawn(4), drawn(4)),
    one("DepthToSpace", IMAGE, blocksize=2),
    one("SpaceToDepth", IMAGE, blocksize=2),
    one("Gemm", (2, 6), drawn(5, 6), drawn(5), transB=1),
    one("Gemm", (2, 6), drawn(6, 5), drawn(5), alpha=0.5, beta=1.0),
    one("MatMul", (2, 4, 6), drawn(6, 5)),
    one("Cast", (2, 6), to=1),
    one("Sqrt", (2, 6)),
    Network(
        "split, concat, squeeze-excite",
        [
            node("Split", ["h"], ["a", "b"], axis=1),
            node("Concat", ["b", "a"], ["c"], axis=1),
            node("GlobalAveragePool", ["c"], ["p"]),
            node("Sigmoid", ["p"], ["s"]),
            node("Mul", ["c", "s"], ["z"]),
        ],
        IMAGE,
        layers=("split", "concat", "global_avg_pool", "sigmoid", "expand", "multiply"),
    ),
    Network(
        "attention",
        [
            node("Transpose", ["h"], ["t"], perm=[0, 2, 1]),
            node("MatMul", ["h", "t"], ["scores"]),
            node("Div", ["scores", "root"], ["scaled"]),
            node("Where", ["mask", "scaled", "least"], ["masked"]),
            node("Softmax", ["masked"], ["p"], axis=-1),
            node("MatMul", ["p", "h"], ["z"]),
        ],
        (2, 5, 4),
        {"root": np.float32(2), "mask": np.tri(5, dtype=bool), "least": np.float32(-np.inf)},
        layers=None,
    ),
    Network(
        "SiLU that an exporter took apart",
        [node("Sigmoid", ["h"], ["s"]), node("Mul", ["h", "s"], ["z"])],
        (2, 6),
        layers=("silu",),
    ),
    Network(
        "GELU that an exporter took apart",
        [
            node("Div", ["h", "root"], ["a"]),
            node("Erf", ["a"], ["b"]),
            node("Add", ["b", "one"], ["c"]),
            node("Mul", ["h", "c"], ["d"]),
            node("Mul", ["d", "half"], ["z"]),
        ],
        (2, 6),
        {"root": np.float32(2**0.5), "one": np.float32(1), "half": np.float32(0.5)},
        layers=("gelu",),
    ),
    Network(
        "layer norm that an exporter took apart",
        [
            node("ReduceMean", ["h"], ["m"], axes=[-1]),
            node("Sub", ["h", "m"], ["d"]),
            node("Pow", ["d", "two"], ["q"]),
            node("ReduceMean", ["q"], ["v"], axes=[-1]),
            node("Add", ["v", "eps"], ["e"]),
            node("Sqrt", ["e"], ["r"]),
            node("Div", ["d", "r"], ["n"]),
            node("Mul", ["n", "g"], ["s"]),
            node("Add", ["s", "b"], ["z"]),
        ],
        (2, 6),
        {"two": np.float32(2), "eps": np.float32(1e-5), "g": drawn(6), "b": drawn(6)},
        layers=("layer_norm",),
    ),
    Network(
        "group norm that an exporter took apart",
        norm_of_instances(2),
        IMAGE,
        {"groups": np.array([0, 2, -1]), "back": np.array(IMAGE), "w": drawn(4, 1, 1), "b": drawn(4, 1, 1)},
        layers=("group_norm",),
    ),
    Network(
        "instances that are no groups of whole channels",
        norm_of_instances(3),
        IMAGE,
        {"groups": np.array([0, 3, -1]), "back": np.array(IMAGE), "w": drawn(4, 1, 1), "b": drawn(4, 1, 1)},
    ),
    Network(
        "a product by a transpose of all dimensions, the batch of 1 among them",
        [
            node("Transpose", ["h"], ["rows"], perm=[0, 2, 1]),
            node("Transpose", ["h"], ["t"]),
            node("MatMul", ["rows", "t"], ["squares"]),
            node("Reshape", ["squares", "one"], ["z"]),
        ],
        (1, 2, 4),
        {"one": np.array([1, 16])},
    ),
    Network(
        "linear layer that an exporter took apart",
        [node("MatMul", ["h", "w"], ["p"]), node("Add", ["p", "b"], ["z"])],
        (2, 3, 6),
        {"w": drawn(6, 5), "b": drawn(5)},
        layers=("linear",),
    ),
    *(
        one(op, IMAGE, axes=[1, 3])
        for op in ("ReduceL1", "ReduceL2", "ReduceSumSquare", "ReduceLogSum", "ReduceLogSumExp")
    ),
    one("LpNormalization", (2, 4, 5), axis=1, p=1),
    one("LRN", (5, 5, 3, 4), size=4, alpha=0.3, beta=0.5, bias=0.8),
    one("LpPool", IMAGE, kernel_shape=[3, 2], strides=[2, 2], pads=[1, 0, 0, 1], p=3),
    one("AveragePool", IMAGE, kernel_shape=[3, 3], strides=[2, 2], pads=[2, 0, 0, 1], ceil_mode=1),
    one("MaxPool", IMAGE, kernel_shape=[3, 3], strides=[2, 2], pads=[0, 2, 1, 0], ceil_mode=1),
    both_sides("Shrink", (2, 6), lambd=0.3, bias=0.3),
    both_sides("Shrink", (2, 6), lambd=0.3),
    both_sides("Sign", (2, 6)),
    one("Tile", (2, 4, 5), np.array([1, 3, 2])),
    *(one("Pad", (2, 4, 5), np.array([0, 1, 3, 0, 2, 0]), mode=mode) for mode in ("reflect", "edge")),
    one("Pad", (2, 4, 5), np.array([0, 1, 3, 0, 2, 0]), mode="wrap", opset=19),
    one("Slice", (2, 3, 7), np.array([-2, 6]), np.array([-100, 0]), np.array([1, 2]), np.array([-1, -2])),
    one(
        "Col2Im",
        (2, 8, 12),
        np.array([4, 5]),
        np.array([2, 2]),
        opset=18,
        strides=[1, 2],
        pads=[1, 1, 0, 0],
    ),
]


def built(network: Network) -> Any:
    """The network behind a product with a weight and a square, so that its input is positive."""
    count = network.shape[-1]
    first = [
        node("MatMul", ["x", "first"], ["f"]),
        node("Mul", ["f", "f"], ["positive"]),
        node("Add", ["positive", "some"], ["h"]),
    ]
    weights = {"first": drawn(count, count), "some": np.float32(0.01), **network.weights}
    return model(
        [*first, *network.nodes], [value("x", network.shape)], [value("z", None)], weights, network.opset
    )


@pytest.mark.parametrize("network", NETWORKS, ids=str)
def test_a_forward_graph_computes_what_onnx_says(network: Network, tmp_path: Path) -> None:
    from onnx.reference import ReferenceEvaluator

    made = built(network)
    imported = import_forward(load_onnx(saved(tmp_path, made)))
    graph = build_training_phases(imported.spec).mini_batch
    x = drawn(*network.shape)
    label = np.zeros(graph.tensors["label"].shape, graph.tensors["label"].dtype)
    values = {**initial_weights(graph, 0), **imported.values, "input": imported.sample(x), "label": label}
    found = evaluate(graph, values)[graph.output]
    (truth,) = ReferenceEvaluator(made).run(None, {"x": x})
    np.testing.assert_allclose(found.reshape(truth.shape), truth, rtol=2e-5, atol=2e-6)
    if network.layers is not None:
        kinds = [layer.type for layer in imported.spec.layers if layer.type not in ("flatten", "reshape")]
        assert kinds == ["linear", "square", "shift", *network.layers]


@pytest.mark.parametrize("condition", ["initializer", "shape"])
def test_an_if_of_a_constant_condition_is_its_branch(condition: str, tmp_path: Path) -> None:
    """Two in a row, whose branches use the same names, a weight among them; one passes on what it reads."""
    from onnx import TensorProto, helper, numpy_helper
    from onnx.reference import ReferenceEvaluator

    def branch(*nodes: Any) -> Any:
        results = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
        return helper.make_graph(nodes, "b", [], results, [numpy_helper.from_array(weight, "w")])

    weight = drawn(4, 4)
    product = branch(
        helper.make_node("MatMul", ["h", "w"], ["m"]), helper.make_node("Tanh", ["m"], ["y"], name="t")
    )
    passed = branch(helper.make_node("Identity", ["a"], ["y"]))
    again = branch(
        helper.make_node("MatMul", ["a", "w"], ["m"]), helper.make_node("Sigmoid", ["m"], ["y"], name="t")
    )
    network = Network(
        "if",
        [
            node("Shape", ["h"], ["sizes"]),
            node("ReduceMin", ["sizes"], ["least"], keepdims=0),
            node("Greater", ["least", "one"], ["shape"]),
            node("Not", [condition], ["turned"]),
            node("If", [condition], ["a"], name="first", then_branch=product, else_branch=product),
            node("If", ["turned"], ["z"], name="second", then_branch=passed, else_branch=again),
        ],
        (2, 4),
        {"initializer": np.array(True), "one": np.array(1)},
    )
    path = saved(tmp_path, built(network))
    imported = import_forward(load_onnx(path))
    kinds = [layer.type for layer in imported.spec.layers]
    assert kinds == ["linear", "square", "shift", "linear", "tanh", "linear", "sigmoid"]
    graph = build_training_phases(imported.spec).mini_batch
    x, label = drawn(2, 4), np.zeros(2, graph.tensors["label"].dtype)
    values = {**initial_weights(graph, 0), **imported.values, "input": x, "label": label}
    (truth,) = ReferenceEvaluator(path).run(None, {"x": x})
    np.testing.assert_allclose(evaluate(graph, values)[graph.output], truth, rtol=2e-5)


BATCH_NORMS = [
    *((opset, {"is_test": 1}, 1) for opset in (1, 6)),
    *((opset, {}, 1) for opset in (7, 9, 14, 15)),
    *((opset, {"is_test": 1, "spatial": 0}, 1) for opset in (1, 6)),
    (7, {"spatial": 0}, 1),
    *((opset, {"is_test": 0}, 5) for opset in (1, 6)),
    *((opset, {}, 5) for opset in (7, 9)),
    *((opset, {"training_mode": 1}, 3) for opset in (14, 15)),
    (9, {}, 0),
]
"""Opset, attributes, outputs: a training says so by an attribute, in opsets 7 to 13 by its outputs alone.

0 stands for one output with a name and four without.
"""


@pytest.mark.needs_torch
@pytest.mark.parametrize(("opset", "attributes", "outputs"), BATCH_NORMS)
def test_a_batch_norm_of_any_opset_is_that_of_pytorch(
    opset: int, attributes: dict[str, int], outputs: int, tmp_path: Path
) -> None:
    import torch

    shape, training = (3, 4, 5), outputs > 1
    sizes = shape[1:] if attributes.get("spatial") == 0 else shape[1:2]
    weights = {name: drawn(*sizes) for name in "wbm"} | {"v": 1 + np.abs(drawn(*sizes))}
    names = ["z", "mean", "variance", "saved_mean", "saved_variance"][:outputs] or ["z", "", "", "", ""]
    old = {"consumed_inputs": [0, 0, 0, 1, 1]} if opset == 1 else {}
    norm = node("BatchNormalization", ["x", *"wbmv"], names, epsilon=1e-3, **attributes, **old)
    made = model([norm], [value("x", shape)], [value("z", shape)], weights, opset)
    imported = import_forward(load_onnx(saved(tmp_path, made)))
    graph = build_training_phases(imported.spec).mini_batch
    x = drawn(*shape)
    label = np.zeros(graph.tensors["label"].shape, graph.tensors["label"].dtype)
    values = {**initial_weights(graph, 0), **imported.values, "input": x, "label": label}
    found = evaluate(graph, values)[graph.output]
    rows = torch.tensor(x if sizes == (4,) else x.reshape(3, 20))
    w, b, m, v = (torch.tensor(weights[name].ravel()) for name in "wbmv")
    truth = torch.nn.functional.batch_norm(rows, m, v, w, b, training, eps=1e-3)
    np.testing.assert_allclose(found.reshape(shape), truth.reshape(shape), rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize(
    ("op", "index", "message"),
    [
        ("GatherND", [[1, 2], [0, 2]], "the indices are not the same for all samples"),
        ("GatherND", [[1, 2, 0, 3]], "do not fit dimensions"),
        ("GatherND", [[0, 4], [1, 4]], "outside the dimension"),
        ("GatherElements", [3, 0], "do not fit dimensions"),
        ("GatherElements", np.zeros((2, 5, 5), int), "do not fit dimensions"),
        ("ScatterND", [[0, 1], [0, 1]], "scattering twice to one place"),
        ("ScatterND", [[0, 1, 1, 1]], "do not fit dimensions"),
        ("ScatterElements", [0], "do not fit dimensions"),
        ("ScatterElements", [[[1]]], "elements are scattered, but there are indices for 1"),
    ],
)
def test_indices_that_no_slice_follows_are_refused(op: str, index: Any, message: str, tmp_path: Path) -> None:
    updates = [np.zeros((2, 5), np.float32)] if op.startswith("Scatter") else []
    network = one(op, (2, 4, 5), np.array(index), *updates, **({} if op.endswith("ND") else {"axis": 2}))
    with pytest.raises(UnsupportedLayerError, match=message):
        import_forward(load_onnx(saved(tmp_path, built(network))))


IMAGES, ROWS, PLACES = (2, 3, 4, 6), (2, 4, 6), np.zeros((2, 4, 1), np.int64)
MISTAKES = {
    "float indices": (
        one("GatherElements", ROWS, PLACES.astype(np.float32), axis=2),
        "must be int32 or int64",
    ),
    "no updates": (one("ScatterElements", ROWS, PLACES, axis=2), "input 'updates' of the node is missing"),
    "letters": (one("Einsum", ROWS, np.ones((6, 5), np.float32), equation="bi,ij->bj"), "of 3 and 2 dimen"),
    "axes": (one("CumSum", ROWS, np.array([1, 2])), "axis of the node is not a number"),
    "order": (one("LpPool", IMAGES, kernel_shape=[2, 2], p=0), "attribute p of the node is 0"),
    "window": (
        one("Col2Im", (2, 8, 4), np.array([4, 4]), np.array([0, 2]), opset=18),
        r"the window are \(0, 2\)",
    ),
    "a norm of order 3": (
        one("LpNormalization", ROWS, p=3),
        "attribute p of the node is 3, not 1 or 2; try: use p = 1 or p = 2",
    ),
    "mode": (
        one("Resize", IMAGES, None, np.float32([1, 1, 2, 2]), mode="spline"),
        "use nearest, linear, cubic",
    ),
    "scales and sizes": (
        one("Resize", IMAGES, None, np.float32([1, 1, 2, 2]), np.array([2, 3, 8, 12])),
        "the node has scales and sizes",
    ),
    "too large": (
        one("Resize", IMAGES, None, np.float32([1, 1, 1e9, 1])),
        "PULPTRAIN_HOST_MEMORY",
    ),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_a_mistake_of_a_node_is_refused_by_name(case: str, tmp_path: Path) -> None:
    network, message = MISTAKES[case]
    with pytest.raises(InputError, match=message):
        import_forward(load_onnx(saved(tmp_path, built(network))))


@pytest.mark.parametrize("op", ["RMSNormalization", "SimplifiedLayerNormalization"])
def test_a_computed_scale_of_a_norm_is_refused(op: str, tmp_path: Path) -> None:
    nodes = [node("Relu", ["x"], ["h"]), node(op, ["x", "h"], ["z"])]
    path = saved(tmp_path, model(nodes, [value("x", ROWS)], [value("z", ROWS)], {}, opset=23))
    with pytest.raises(UnsupportedLayerError, match="input 1 is computed, but must be a constant"):
        import_forward(load_onnx(path))


def test_a_celu_of_no_slope_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedLayerError, match="Celu with alpha 0"):
        import_forward(load_onnx(saved(tmp_path, built(one("Celu", (2, 6), alpha=0.0)))))


def test_all_nodes_that_cannot_be_taken_are_listed_at_once(tmp_path: Path) -> None:
    nodes = [
        node("Einsum", ["x", "w", "w"], ["a"], name="first", equation="ij,jk,kl->il"),
        node("Relu", ["x"], ["b"], name="fine"),
        node("ReverseSequence", ["b", "lengths"], ["c"], name="second", batch_axis=0, time_axis=1),
        node("my.domain:Odd", ["b"], ["d"], name="third"),
        node("Sum", ["a", "c", "d"], ["z"], name="behind"),
    ]
    weights = {"w": drawn(4, 4), "lengths": np.array([4, 4])}
    path = saved(tmp_path, model(nodes, [value("x", [2, 4])], [value("z", [2, 4])], weights))
    with pytest.raises(UnsupportedLayerError) as caught:
        import_forward(load_onnx(path))
    text = str(caught.value)
    assert "3 of 5 operations" in text
    for word in (
        "first (Einsum of shape [2, 4]",
        "second (ReverseSequence",
        "third (my.domain:Odd",
        "; try:",
    ):
        assert word in text
    assert "fine" not in text
    assert "behind" not in text
    assert run(["run", path]) == 2


def test_a_recurrent_network_reads_its_batch_second_and_keeps_the_names_of_its_weights(
    tmp_path: Path,
) -> None:
    from onnx.reference import ReferenceEvaluator

    hidden, features = 5, 3
    nodes = [
        node("Slice", ["w", "zero", "hidden"], ["r"]),
        node("Slice", ["w", "hidden", "two"], ["z"]),
        node("Slice", ["w", "two", "three"], ["n"]),
        node("Concat", ["z", "r", "n"], ["all"], axis=0),
        node("Unsqueeze", ["all", "zero"], ["wx"]),
        node("GRU", ["x", "wx", "wh", "b"], ["y", "last"], hidden_size=hidden, linear_before_reset=1),
        node("Squeeze", ["last", "zero"], ["out"]),
    ]
    weights = {
        "w": drawn(3 * hidden, features),
        "wh": drawn(1, 3 * hidden, hidden),
        "b": drawn(1, 6 * hidden),
        "zero": np.array([0]),
        "hidden": np.array([hidden]),
        "two": np.array([2 * hidden]),
        "three": np.array([3 * hidden]),
    }
    made = model(nodes, [value("x", [7, 2, features])], [value("out", [2, hidden])], weights)
    imported = import_forward(load_onnx(saved(tmp_path, made)))
    assert imported.spec.input_shape == (7, features)
    graph = build_training_phases(imported.spec).mini_batch
    x = drawn(7, 2, features)
    values = {**imported.values, "input": imported.sample(x), "label": np.zeros(2, np.int32)}
    (truth,) = ReferenceEvaluator(made).run(None, {"x": x})
    np.testing.assert_allclose(evaluate(graph, values)[graph.output], truth, rtol=1e-5, atol=1e-6)
    back = imported.theirs(imported.values, {name: np.zeros_like(array) for name, array in weights.items()})
    np.testing.assert_array_equal(back["w"], weights["w"])
    np.testing.assert_array_equal(back["wh"], weights["wh"])


@pytest.mark.smoke
def test_a_converted_model_gives_the_same_cycles_and_numbers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:

    monkeypatch.chdir(tmp_path)
    nodes = [node("Gemm", ["x", "w", "b"], ["h"]), node("Relu", ["h"], ["z"])]
    made = model(nodes, [value("x", ["n", 6])], [value("z", None)], {"w": drawn(6, 4), "b": drawn(4)})
    saved(tmp_path, made, "net.onnx")
    assert run(["convert", "net.onnx", "net.yaml", "--optimizer", "sgd lr=0.05"]) == 0
    capsys.readouterr()
    summaries = []
    for command in (["net.onnx", "--optimizer", "sgd lr=0.05"], ["net.yaml", "--values", "net.npz"]):
        summaries.append(printed(capsys, "run", *command))
    first, second = summaries
    assert first["functional"]["passed"]
    assert (first["cycles"], first["loss"]) == (second["cycles"], second["loss"])
    assert run(["convert", "net.onnx", "net.txt"]) == 2


def test_a_variance_below_0_is_refused(tmp_path: Path) -> None:
    ones = np.ones(2, np.float32)
    weights = {"g": ones, "b": ones, "m": ones, "v": -ones}
    norm = node("BatchNormalization", ["x", "g", "b", "m", "v"], ["y"])
    path = saved(tmp_path, model([norm], [value("x", [1, 2, 3, 3])], [value("y", [1, 2, 3, 3])], weights))
    with pytest.raises(UnsupportedLayerError, match="a variance of the node is negative"):
        import_forward(load_onnx(path))
