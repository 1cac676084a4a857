# SPDX-License-Identifier: Apache-2.0
"""Layers that work on elements, or move them, as ONNX nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from importers.export.layer import Layer, Writer
from importers.ops import ALONE, PAIRS, REDUCTIONS, RELATIONS, WITH_NUMBER, with_own

_ALONE = {op.ours: op for op in (*PAIRS, *ALONE[::-1]) if op.onnx and ":" not in op.written}
_RELATIONS = {op.ours: op.written for op in RELATIONS}
_REDUCTIONS = {op.ours: op.written for op in REDUCTIONS}


def _alone(layer: Layer) -> None:
    """A layer that is one node of the same inputs."""
    op, given = _ALONE[layer.primitive], layer.options
    attributes: dict[str, Any] = {item.onnx: float(given[item.option]) for item in op.numbers}
    if layer.primitive == "gelu":
        if given["form"] != "tanh":
            layer.exact("form", "erf")
        attributes["approximate"] = "tanh" if given["form"] == "tanh" else "none"
    elif "form" in given:
        layer.exact("form")
    layer.node(op.written, layer.inputs, **attributes)


def _with_number(layer: Layer) -> None:
    op, option = WITH_NUMBER[layer.primitive]
    layer.node(op, (layer.x, layer.constant(option, layer.options[option])))


def _silu(layer: Layer) -> None:
    gate = layer.node("Sigmoid", (layer.x,), part="gate")
    if layer.primitive == "silu":
        layer.node("Mul", (layer.x, gate))
    else:
        layer.node("Mul", (layer.node("Mul", (layer.x, gate), part="silu"), layer.inputs[1]))


def _clip(layer: Layer) -> None:
    bounds = [(word, layer.options[word]) for word in ("low", "high")]
    given = ["" if bound is None else layer.constant(word, bound) for word, bound in bounds]
    layer.node("Clip", (layer.x, *given))


def _compare(layer: Layer) -> None:
    bound = layer.constant("value", layer.options["value"])
    holds = layer.node(_RELATIONS[layer.options["form"]], (layer.x, bound), part="holds")
    layer.node("Cast", (holds,), to=1)


def _where(layer: Layer) -> None:
    zero = layer.node("Equal", (layer.x, layer.constant("zero", 0.0)), part="zero")
    layer.node("Where", (zero, layer.inputs[2], layer.inputs[1]))


def _dropout(layer: Layer) -> None:
    training = layer.constant("training", True, "bool")
    layer.node("Dropout", (layer.x, layer.constant("p", layer.options["p"]), training))


def _softmax(layer: Layer) -> None:
    if "exponential" in layer.options:
        layer.exact("exponential")
    layer.node("Softmax" if layer.primitive == "softmax" else "LogSoftmax", (layer.x,), axis=-1)


# Trained tensors


def _prelu(layer: Layer) -> None:
    ones = (1,) * (len(layer.shapes[0]) - 2) if layer.options["per_channel"] else ()
    slope = layer.weight("w", "weight", lambda array: array.reshape(-1, *ones))
    layer.node("PRelu", (layer.x, slope))


def _parameter(layer: Layer) -> None:
    weight = layer.weight("w", "weight", lambda array: array[None])
    layer.node("Expand", (weight, layer.integers("shape", layer.output)))


def _class_token(layer: Layer) -> None:
    token = layer.weight("w", "weight", lambda array: array.reshape(1, 1, -1))
    batch, _, features = layer.shapes[0]
    if batch > 1:
        shape = layer.integers("token_shape", (batch, 1, features))
        token = layer.node("Expand", (token, shape), part="token")
    layer.node("Concat", (token, layer.x), axis=1)


# Moves


def _sliced(layer: Layer, **numbers: Sequence[int]) -> None:
    layer.node("Slice", (layer.x, *(layer.integers(name, values) for name, values in numbers.items())))


def _slice(layer: Layer) -> None:
    start, stop = layer.options["start"], layer.options["stop"]
    _sliced(layer, starts=[start], ends=[stop], axes=[_axis(layer)])


def _flip(layer: Layer) -> None:
    axes = [1 + axis for axis in layer.options["axes"]]
    back, ends = [-1] * len(axes), [int(np.iinfo(np.int64).min)] * len(axes)
    _sliced(layer, starts=back, ends=ends, axes=axes, steps=back)


def _pad(layer: Layer) -> None:
    pairs = np.array([(0, 0), *layer.options["pads"]])
    widths = layer.integers("pads", pairs.T.ravel().tolist())
    layer.node("Pad", (layer.x, widths, layer.constant("value", layer.options["value"])))


def _reduce(layer: Layer) -> None:
    if "ties" in layer.options:
        layer.exact("ties", "shared")
    rank = len(layer.shapes[0]) - 1
    axes = layer.integers("axes", [axis % rank + 1 for axis in layer.options["axes"]])
    layer.node(_REDUCTIONS[layer.primitive], (layer.x, axes), keepdims=int(layer.options["keep_dims"]))


def _axis(layer: Layer) -> int:
    """The option `axis` with the batch in front."""
    return int(layer.options["axis"] % (len(layer.shapes[0]) - 1)) + 1


WRITERS: Mapping[str, Writer] = with_own(
    {
        **dict.fromkeys(_ALONE, _alone),
        **dict.fromkeys(_REDUCTIONS, _reduce),
    },
    {
        **dict.fromkeys(WITH_NUMBER, _with_number),
        "square": lambda layer: layer.node("Mul", (layer.x, layer.x)),
        **dict.fromkeys(("silu", "swiglu"), _silu),
        "clip": _clip,
        "compare": _compare,
        "where": _where,
        "dropout": _dropout,
        **dict.fromkeys(("softmax", "log_softmax"), _softmax),
        "prelu": _prelu,
        "position": lambda layer: layer.node("Add", (layer.x, layer.weight("w", "weight"))),
        "parameter": _parameter,
        "class_token": _class_token,
        "flatten": lambda layer: layer.node("Flatten", (layer.x,), axis=1),
        "reshape": lambda layer: layer.reshaped(layer.x, layer.output),
        "transpose": lambda layer: layer.node(
            "Transpose", (layer.x,), perm=[0, *(axis + 1 for axis in layer.options["axes"])]
        ),
        "broadcast_add": lambda layer: layer.node("Add", (layer.wide(0), layer.wide(1))),
        "expand": lambda layer: layer.node("Expand", (layer.wide(0), layer.integers("shape", layer.output))),
        "concat": lambda layer: layer.node("Concat", layer.inputs, axis=_axis(layer)),
        "split": lambda layer: layer.node(
            "Split", (layer.x, layer.integers("sizes", layer.options["sizes"])), axis=_axis(layer)
        ),
        "slice": _slice,
        "flip": _flip,
        "pad": _pad,
    },
    instead=("scale",),
)
