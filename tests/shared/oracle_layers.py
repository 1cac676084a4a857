# SPDX-License-Identifier: Apache-2.0
"""FW of an op by `truth.layers`, whose options, as in a model file, are read off what the op carries."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from typing import Any

from trainlib.ir.graph import Op
from trainlib.ir.parameters import PARAMETER_NAMES

Tensors = Mapping[str, Any]


def forward(op: Op, tensors: Tensors) -> dict[str, Any]:
    """All that a layer makes, by role, of its `tensors` by role."""
    entry = import_module("truth.layers").LAYERS[op.primitive]
    channels_last = op.attributes.get("layout") == "HWC"
    x, own = [], {}
    for role, tensor in tensors.items():
        if role.removeprefix("x").isdigit() or role == "x":
            x.append(tensor.permute(0, 3, 1, 2) if channels_last else tensor)
        else:
            own[PARAMETER_NAMES.get(role, role)] = tensor
    if channels_last and own["weight"].ndim == len(("co", "kh", "kw", "ci")):
        own["weight"] = own["weight"].permute(0, 3, 1, 2)
    elif op.attributes.get("sources_first"):
        own["weight"] = own["weight"].T
    known = {**op.attributes, **OPTIONS.get(op.primitive, lambda carried, own: {})(op.attributes, own)}
    # A layer without an input has its batch: `truth` takes no more of it than its length.
    made = entry.forward(x or [range(op.attributes["batch"])], own, **known_of(entry.forward, known))
    if not isinstance(made, Mapping):
        several = made if isinstance(made, tuple | list) else (made,)
        made = {f"out{number or ''}": result for number, result in enumerate(several)}
    results = {name.replace("out", "y", 1) if name.startswith("out") else name: made[name] for name in made}
    if channels_last:
        results["y"] = results["y"].permute(0, 2, 3, 1)
    return results


def known_of(function: Callable[..., Any], known: Mapping[str, Any]) -> dict[str, Any]:
    """Those of `known` that are options of a function of `truth`."""
    return {name: known[name] for name in _options_of(function) if name in known}


@cache
def _options_of(function: Callable[..., Any]) -> tuple[str, ...]:
    found = inspect.signature(function).parameters.values()
    return tuple(item.name for item in found if item.kind is item.KEYWORD_ONLY)


def _convolution(carried: Tensors, own: Tensors) -> dict[str, Any]:
    weight = own["weight"]
    found = {"kernel": weight.shape[2:], "out_channels": len(weight), "stride": carried["strides"]}
    return {**found, "padding": carried["pads"], "dilation": carried["dilations"]}


def _convolution_1d(carried: Tensors, own: Tensors) -> dict[str, Any]:
    (kernel,), (_, stride), (_, dilation) = own["weight"].shape[2:], carried["strides"], carried["dilations"]
    found = {"kernel": kernel, "stride": stride, "dilation": dilation}
    return {**found, "out_channels": len(own["weight"]), "padding": carried["pads"][2:]}


def _transposed(carried: Tensors, own: Tensors) -> dict[str, Any]:
    return {**_convolution(carried, own), "out_channels": own["weight"].shape[1] * carried["groups"]}


def _pooling(carried: Tensors, own: Tensors) -> dict[str, Any]:
    sizes, outputs, *along = zip(carried["rows"], carried["columns"], strict=True)
    kernels, strides, before = along
    numbers = zip(sizes, outputs, kernels, strides, before, strict=True)
    ends = [max(0, (count - 1) * step + wide - first - size) for size, count, wide, step, first in numbers]
    sides = [side for pair in zip(before, ends, strict=True) for side in pair]
    return {"kernel": kernels, "stride": strides, "padding": sides}


def _reduced(carried: Tensors, own: Tensors) -> dict[str, Any]:
    return {"axes": range(carried["first"] - 1, carried["last"] - 1)}


def _extremum(carried: Tensors, own: Tensors) -> dict[str, Any]:
    return {**_reduced(carried, own), "ties": "first" if carried["first_only"] else "shared"}


def _recurrent(carried: Tensors, own: Tensors) -> dict[str, Any]:
    return {"bias": "bx" in own}


def _trailing(carried: Tensors, own: Tensors) -> dict[str, Any]:
    return {"axes": carried["trailing"]}


OPTIONS: Mapping[str, Callable[[Tensors, Tensors], dict[str, Any]]] = {
    "conv2d": _convolution,
    "depthwise": _convolution,
    "conv1d": _convolution_1d,
    "conv_transpose2d": _transposed,
    "pointwise": lambda carried, own: {"out_channels": len(own["weight"])},
    "linear": lambda carried, own: {"out_features": len(own["weight"])},
    "avg_pool2d": _pooling,
    "max_pool2d": _pooling,
    "reduce_mean": _reduced,
    "reduce_sum": _reduced,
    "reduce_max": _extremum,
    "reduce_min": _extremum,
    "interpolation": lambda carried, own: {"size": (carried["ho"], carried["wo"])},
    "rnn": _recurrent,
    "gru": _recurrent,
    "lstm": _recurrent,
    "layer_norm": _trailing,
    "rms_norm": _trailing,
    "expand": lambda carried, own: {"shape": carried["shape"][1:]},
    "parameter": lambda carried, own: {"shape": own["weight"].shape},
    "layout": lambda carried, own: {"to": "HWC" if carried["to_hwc"] else "CHW"},
}
"""Of layers whose ops carry something else than options: what they carry, and tensors by name, to options."""
