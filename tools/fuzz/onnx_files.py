# SPDX-License-Identifier: Apache-2.0
"""ONNX files to be mutated: small networks and a training graph, changed as messages and as bytes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from random import Random
from typing import Any

import numpy as np

from tools.fuzz.mutate import mutated_bytes
from tools.fuzz.subject import FOLDER, Subject

NUMBERS = (0, 1, -1, 2, 3, 5, 7, 64, -2, 1 << 20, 1 << 31, 1 << 40, (1 << 63) - 1, -(1 << 63))
OPTIONS: Sequence[tuple[str, ...]] = (
    *((), (), ("--batch", "2"), ("--input", "1,3,8,8"), ("--input", "2,6"), ("--loss", "mse")),
    *(("--optimizer", "adam lr=0.01"), ("--no-functional",), ("--accumulate", "2"), ("--json",)),
)
OPS = (
    *("Relu", "Gemm", "MatMul", "Conv", "Add", "Mul", "Div", "Softmax", "Reshape", "Transpose", "Concat"),
    *("Split", "Slice", "Gather", "ReduceMean", "MaxPool", "BatchNormalization", "Identity", "Odd", "Clip"),
    *("Expand", "Where", "GRU", "SGD", "Flatten", "Squeeze", "Cast", "Pow", "Loop", "Constant", "Shape"),
    *("GatherElements", "GatherND", "ScatterElements", "ScatterND", "Einsum"),
    *("Sin", "Cos", "Floor", "Ceil", "Round"),
)


def onnx_subject(generator: Random) -> Subject:
    """A file changed once or several times, run."""
    models = _models()
    data = models[generator.choice(sorted(models))]
    change = _changed if generator.random() < 0.75 else mutated_bytes
    data = change(data, generator)
    small = ("--no-cache", "-q", "--cores", "2")
    arguments: tuple[str, ...] = ("run", f"{FOLDER}/m.onnx", *small, *generator.choice(OPTIONS))
    return Subject("onnx", arguments, {"m.onnx": data})


def _changed(data: bytes, generator: Random) -> bytes:
    import onnx

    model = onnx.ModelProto()
    model.ParseFromString(data)
    for _ in range(generator.choice((1, 1, 1, 2, 3, 6))):
        generator.choice(_CHANGES)(model, generator)
    written: bytes = model.SerializeToString()
    return written


def _attribute(model: Any, generator: Random) -> None:
    found = [item for node in model.graph.node for item in node.attribute]
    if not found:
        return
    item = generator.choice(found)
    match generator.randrange(4):
        case 0:
            item.i = generator.choice(NUMBERS)
        case 1 if item.ints:
            item.ints[generator.randrange(len(item.ints))] = generator.choice(NUMBERS)
        case 2:
            item.f = generator.choice((0.0, -1.0, float("nan"), float("inf"), 1e30))
        case _:
            item.type = generator.randrange(15)


def _dimension(model: Any, generator: Random) -> None:
    values = [*model.graph.input, *model.graph.output, *model.graph.value_info]
    dims = [dim for value in values for dim in value.type.tensor_type.shape.dim]
    if not dims:
        return
    dim = generator.choice(dims)
    if generator.random() < 0.2:
        dim.dim_param = "n"
    else:
        dim.dim_value = generator.choice(NUMBERS)


def _weight(model: Any, generator: Random) -> None:
    if not model.graph.initializer:
        return
    item = generator.choice(model.graph.initializer)
    match generator.randrange(5):
        case 0 if item.dims:
            item.dims[generator.randrange(len(item.dims))] = generator.choice(NUMBERS)
        case 1:
            item.data_type = generator.randrange(30)
        case 2:
            item.raw_data = mutated_bytes(item.raw_data, generator)
        case 3:
            item.data_location = 1
            item.external_data.add(
                key="location", value=generator.choice(("../x", "m.onnx", "/etc/hosts", ""))
            )
        case _:
            item.name = generator.choice(_names(model))


def _names(model: Any) -> list[str]:
    found = [name for node in model.graph.node for name in (*node.input, *node.output)]
    return [*found, "", "nobody"]


def _edge(model: Any, generator: Random) -> None:
    node = generator.choice(model.graph.node) if model.graph.node else None
    if node is None:
        return
    side = node.input if generator.random() < 0.7 else node.output
    match generator.randrange(3):
        case 0 if side:
            side[generator.randrange(len(side))] = generator.choice(_names(model))
        case 1 if side:
            del side[generator.randrange(len(side))]
        case _:
            side.append(generator.choice(_names(model)))


def _node(model: Any, generator: Random) -> None:
    nodes = model.graph.node
    if not nodes:
        return
    place = generator.randrange(len(nodes))
    match generator.randrange(4):
        case 0:
            del nodes[place]
        case 1:
            nodes.append(nodes[place])
        case 2:
            nodes[place].op_type = generator.choice(OPS)
        case _:
            nodes[place].domain = generator.choice(("", "com.microsoft", "x.y"))


def _opset(model: Any, generator: Random) -> None:
    model.opset_import[0].version = generator.choice((0, 1, 6, 7, 9, 11, 13, 21, 99, -1))


_CHANGES: Sequence[Callable[[Any, Random], None]] = (
    *(_attribute, _attribute, _dimension, _weight, _weight, _edge, _edge, _node, _node, _opset),
)


@cache
def _models() -> Mapping[str, bytes]:
    """The files before they are changed."""
    from onnx import helper, numpy_helper

    draw = np.random.default_rng(1)

    def weights(**shapes: Sequence[int]) -> list[Any]:
        return [
            numpy_helper.from_array(draw.uniform(-0.5, 0.5, shape).astype(np.float32), name)
            for name, shape in shapes.items()
        ]

    def model_bytes(
        nodes: list[Any], shape: Sequence[int], initializers: list[Any], labels: bool = False
    ) -> bytes:
        inputs = [helper.make_tensor_value_info("x", 1, shape)]
        inputs += [helper.make_tensor_value_info("t", 7, shape[:1])] if labels else []
        output = helper.make_tensor_value_info("z", 1, None)
        graph = helper.make_graph(nodes, "g", inputs, [output], initializers)
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
        data: bytes = helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()
        return data

    node = helper.make_node
    ones = numpy_helper.from_array(np.ones(4, np.float32), "v")
    integers = numpy_helper.from_array(np.array([1, 4, 2]), "to")
    return {
        "cnn": model_bytes(
            [
                node("Conv", ["x", "w", "b"], ["c"], kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[2, 2]),
                node("BatchNormalization", ["c", "g", "b", "b", "v"], ["n"], epsilon=1e-5),
                node("Relu", ["n"], ["r"]),
                node("MaxPool", ["r"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
                node("Flatten", ["p"], ["f"]),
                node("Gemm", ["f", "fc"], ["z"], transB=1),
            ],
            [1, 3, 8, 8],
            [
                *weights(w=(4, 3, 3, 3), b=(4,), g=(4,), fc=(5, 16)),
                ones,
            ],
        ),
        "attention": model_bytes(
            [
                node("LayerNormalization", ["x", "g", "s"], ["n"], axis=-1),
                node("Transpose", ["n"], ["t"], perm=[0, 2, 1]),
                node("MatMul", ["n", "t"], ["a"]),
                node("Softmax", ["a"], ["p"], axis=-1),
                node("MatMul", ["p", "n"], ["v"]),
                node("Gelu", ["v"], ["u"], domain="com.microsoft"),
                node("Split", ["u"], ["l", "k"], axis=2),
                node("Concat", ["k", "l"], ["j"], axis=2),
                node("Reshape", ["j", "to"], ["q"]),
                node("ReduceMean", ["q"], ["m"], axes=[1], keepdims=0),
                node("MatMul", ["m", "fc"], ["z"]),
            ],
            [1, 2, 4],
            [*weights(g=(4,), s=(4,), fc=(2, 3)), integers],
        ),
        "training": model_bytes(
            [
                node("Gemm", ["x", "w", "b"], ["h"], transB=1),
                node("Relu", ["h"], ["r"]),
                node("Gemm", ["r", "u"], ["o"], transB=1),
                node("SoftmaxCrossEntropyLoss", ["o", "t"], ["z", "lp"], reduction="mean"),
                node("SoftmaxCrossEntropyLossGrad", ["lp", "t"], ["do"], domain="com.microsoft"),
                node("Gemm", ["do", "r"], ["du"], transA=1),
                node("Gemm", ["do", "u"], ["dr"]),
                node("ReluGrad", ["dr", "r"], ["dh"], domain="com.microsoft"),
                node("Gemm", ["dh", "x"], ["dw"], transA=1),
                node("ReduceSum", ["dh"], ["db"], axes=[0], keepdims=0),
                *(node("SGD", [name, f"d{name}"], [f"{name}_updated"], lr=0.01) for name in "wbu"),
            ],
            [2, 6],
            weights(w=(5, 6), b=(5,), u=(3, 5)),
            labels=True,
        ),
    }
