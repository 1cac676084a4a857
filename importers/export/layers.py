# SPDX-License-Identifier: Apache-2.0
"""Layers with weights or windows as ONNX nodes: convolutions, products, norms, pooling, recurrent layers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from importers.export.layer import Layer, Writer
from importers.graph.draft import CannotTakeError
from importers.place.convolution import each
from importers.place.recurrences import regated
from trainlib.ir.parameters import PARAMETER_NAMES
from trainlib.primitives.contractions.conv_options import padding_of


def _window(layer: Layer) -> dict[str, Any]:
    """The attributes of a window over an image or a sequence, ONNX's order of pads."""
    options, rank = layer.options, len(layer.shapes[0]) - 2
    sides = padding_of(options, layer.name) if rank == 2 else each(options["padding"], 2)
    given = {**options, "stride": options["kernel"] if options["stride"] is None else options["stride"]}
    names = {name: option for name, option in _OF_DIRECTIONS.items() if option in options}
    attributes = {name: each(given[option], rank) for name, option in names.items()}
    return {**attributes, "pads": [*sides[::2], *sides[1::2]]}


_OF_DIRECTIONS = {
    "kernel_shape": "kernel",
    "strides": "stride",
    "dilations": "dilation",
    "output_padding": "output_padding",
}
"""Attribute -> option, a number for each direction."""


def _weights(layer: Layer) -> tuple[str, str]:
    return layer.weight("w", "weight"), layer.weight("b", "bias")


def _convolution(layer: Layer) -> None:
    op = "ConvTranspose" if "output_padding" in layer.options else "Conv"
    groups = layer.options.get("groups", layer.shapes[0][1])
    layer.node(op, (layer.x, *_weights(layer)), group=groups, **_window(layer))


def _pointwise(layer: Layer) -> None:
    weight = layer.weight("w", "weight", lambda array: array[:, :, None, None])
    layer.node("Conv", (layer.x, weight, layer.weight("b", "bias")), kernel_shape=[1, 1])


def _linear(layer: Layer) -> None:
    if len(layer.shapes[0]) == 2:
        layer.node("Gemm", (layer.x, *_weights(layer)), transB=1)
    else:
        _rows(layer, layer.x, "w", "b")


def _rows(layer: Layer, tensor: str, weight: str, bias: str, part: str = "") -> str:
    """Every row of the last dimension times a weight [out, in], as the layer's result or a part of it."""
    stored = layer.weight(weight, PARAMETER_NAMES.get(weight, weight), np.transpose)
    if bias not in layer.parameters:
        return layer.node("MatMul", (tensor, stored), part=part)
    product = layer.node("MatMul", (tensor, stored), part=f"{part}product")
    return layer.node("Add", (product, layer.weight(bias, PARAMETER_NAMES.get(bias, bias))), part=part)


def _matmul(layer: Layer) -> None:
    ranks = [len(shape) for shape in layer.shapes]
    if min(ranks) < 3:
        raise CannotTakeError(
            "a product with a vector is not supported", "use a matrix with one row or column"
        )
    left, right, rank = layer.wide(0), layer.wide(1), max(ranks)
    if layer.options["transpose_b"]:
        order = [*range(rank - 2), rank - 1, rank - 2]
        right = layer.node("Transpose", (right,), part="turned", perm=order)
    layer.node("MatMul", (left, right))


def _embedding(layer: Layer) -> None:
    layer.node("Gather", (layer.weight("w", "weight"), layer.x), axis=0)


def _attention(layer: Layer) -> None:
    """ONNX's Attention has no projections: products, a softmax, and moves between them."""
    batch, length, _ = layer.shapes[0]
    heads, features = layer.options["heads"], layer.parameters["wq"].shape[0]
    turned = {}
    for word, order in (("q", [0, 2, 1, 3]), ("k", [0, 2, 3, 1]), ("v", [0, 2, 1, 3])):
        rows = _rows(layer, layer.x, f"w{word}", f"b{word}", word)
        split = layer.reshaped(rows, (batch, length, heads, features // heads), f"{word}_heads")
        turned[word] = layer.node("Transpose", (split,), part=f"{word}_turned", perm=order)
    scores = layer.node("MatMul", (turned["q"], turned["k"]), part="scores")
    factor = layer.constant("factor", (features // heads) ** -0.5)
    scaled = layer.node("Mul", (scores, factor), part="scaled")
    shares = layer.node("Softmax", (scaled,), part="shares", axis=-1)
    context = layer.node("MatMul", (shares, turned["v"]), part="context")
    back = layer.node("Transpose", (context,), part="back", perm=[0, 2, 1, 3])
    _rows(layer, layer.reshaped(back, (batch, length, features), "joined"), "wo", "bo")


# Norms


def _affine(layer: Layer, count: int) -> tuple[str, str]:
    """Scale and shift per channel; ones and zeros where the layer has none."""
    return (
        layer.weight("w", "weight") or layer.filled("weight", 1.0, (count,)),
        layer.weight("b", "bias") or layer.filled("bias", 0.0, (count,)),
    )


def _batch_norm(layer: Layer) -> None:
    options, running = layer.options, []
    for role, start in (("running_mean", 0.0), ("running_var", 1.0)):
        running.append(layer.weight(role, role) or layer.filled(role, start, layer.shapes[0][1:2]))
    inputs = (layer.x, *_affine(layer, layer.shapes[0][1]), *running)
    numbers: dict[str, Any] = {"epsilon": float(options["eps"])}
    if not options["fixed_statistics"]:
        updated = (f"{layer.name}/{role}" for role in ("running_mean", "running_var"))
        numbers |= {"outputs": (*layer.results, *updated), "training_mode": 1}
        numbers["momentum"] = 1 - float(options["momentum"])
    layer.node("BatchNormalization", inputs, **numbers)


def _channel_norm(layer: Layer) -> None:
    options = layer.options
    if options.get("running") or options.get("fixed_statistics"):
        raise CannotTakeError("ONNX cannot store the running statistics of the layer", "set running: false")
    op, groups = "InstanceNormalization", {}
    if "groups" in options:
        op, groups = "GroupNormalization", {"num_groups": options["groups"]}
    inputs = (layer.x, *_affine(layer, layer.shapes[0][1]))
    layer.node(op, inputs, epsilon=float(options["eps"]), **groups)


def _layer_norm(layer: Layer) -> None:
    axes = layer.options["axes"]
    row = layer.shapes[0][-axes:]
    weight = layer.weight("w", "weight") or layer.filled("weight", 1.0, row)
    numbers = {"axis": -axes, "epsilon": float(layer.options["eps"])}
    layer.node("LayerNormalization", (layer.x, weight, layer.weight("b", "bias")), **numbers)


def _rms_norm(layer: Layer) -> None:
    """RMSNormalization is younger than the opset that is written."""
    rank, axes = len(layer.shapes[0]), layer.options["axes"]
    square = layer.node("Mul", (layer.x, layer.x), part="square")
    last = layer.integers("axes", range(rank - axes, rank))
    mean = layer.node("ReduceMean", (square, last), part="mean", keepdims=1)
    shifted = layer.node("Add", (mean, layer.constant("eps", layer.options["eps"])), part="shifted")
    root = layer.node("Sqrt", (shifted,), part="root")
    if "w" not in layer.parameters:
        layer.node("Div", (layer.x, root))
        return
    divided = layer.node("Div", (layer.x, root), part="divided")
    layer.node("Mul", (divided, layer.weight("w", "weight")))


# Pooling


def _pool(layer: Layer) -> None:
    attributes, counted = _window(layer), layer.options.get("count_include_pad")
    if counted is not None:
        attributes["count_include_pad"] = int(counted)
    layer.node("MaxPool" if counted is None else "AveragePool", (layer.x,), **attributes)


def _resize(layer: Layer) -> None:
    how = {"mode": "linear", "coordinate_transformation_mode": "half_pixel"}
    if layer.options["mode"] == "nearest":
        how = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    layer.node("Resize", (layer.x, "", "", layer.integers("sizes", layer.output)), **how)


# Recurrent layers


def _recurrent(layer: Layer) -> None:
    (batch, _, _), hidden, kind = layer.shapes[0], layer.options["hidden"], layer.primitive.upper()

    def gates(array: Any) -> Any:
        return regated(layer.primitive, array, back=True)[None]

    turned = layer.node("Transpose", (layer.x,), part="time_first", perm=[1, 0, 2])
    weights = [layer.weight(role, role, lambda array: gates(array.T)) for role in ("wx", "wh")]
    bias = ""
    if "bx" in layer.parameters:
        bias = layer.joined(
            "bias", lambda arrays: np.concatenate([gates(arrays["bx"]), gates(arrays["bh"])], axis=1)
        )
    states = [
        layer.reshaped(tensor, (1, batch, hidden), f"state{number}")
        for number, tensor in enumerate(layer.inputs[1:])
    ]
    extra: dict[str, Any] = {"linear_before_reset": 1} if kind == "GRU" else {}
    inputs = (turned, *weights, bias, "", *states)
    made = layer.node(kind, inputs, part="cell", hidden_size=hidden, **extra)
    one = layer.node("Squeeze", (made, layer.integers("direction", [1])), part="one_direction")
    layer.node("Transpose", (one,), perm=[1, 0, 2])


WRITERS: Mapping[str, Writer] = {
    **dict.fromkeys(("conv1d", "conv2d", "depthwise", "conv_transpose2d"), _convolution),
    "pointwise": _pointwise,
    "linear": _linear,
    "matmul": _matmul,
    "embedding": _embedding,
    "mhsa": _attention,
    "batch_norm": _batch_norm,
    **dict.fromkeys(("instance_norm", "group_norm"), _channel_norm),
    "layer_norm": _layer_norm,
    "rms_norm": _rms_norm,
    **dict.fromkeys(("max_pool2d", "avg_pool2d"), _pool),
    "global_avg_pool": lambda layer: layer.node("GlobalAveragePool", (layer.x,)),
    "interpolation": _resize,
    **dict.fromkeys(("gru", "lstm", "rnn"), _recurrent),
}
