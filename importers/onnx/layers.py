# SPDX-License-Identifier: Apache-2.0
"""ONNX ops with weights or windows: convolutions, products, norms, pooling, recurrent layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from configs.values import replace
from importers.graph.arranging import viewed
from importers.graph.draft import CHECKED, CannotTakeError, elements
from importers.graph.node import Attributes, Handler, Node, axis_of
from importers.graph.views import BATCH, Shape, View
from importers.graph.weights import Constant
from importers.onnx.moves import images, number_in
from importers.place.convolution import (
    Window,
    convolution,
    folded,
    rows_and_columns,
    short,
    transposed_convolution,
    window,
)
from importers.place.elements import norm
from importers.place.moves import joined, sliced
from importers.place.norms import channel_norm, neighbour_norm, row_norm
from importers.place.pairs import as_view, scaled, times, total
from importers.place.pooling import (
    Stretch,
    averaged_image,
    interpolated,
    pool_options,
    pooled,
    power_pooled,
    stretched,
)
from importers.place.products import einsum, linear, multiplied, running_sum
from importers.place.recurrences import initial_state, last_state, recurrent, regated, sequence


def window_of(node: Attributes, sizes: Sequence[int], kernel: Sequence[int]) -> Window:
    """The window of a node over an image or a sequence of these sizes."""
    ones = (1,) * len(kernel)
    pads = node.sizes("pads", (0,) * (2 * len(kernel)))
    stride, dilation = node.sizes("strides", ones), node.sizes("dilations", ones)
    return window(kernel, stride, dilation, pads, node.text("auto_pad", "NOTSET"), sizes)


def groups_of(node: Attributes) -> int:
    """Groups of a convolution."""
    groups = node.integer("group", 1)
    if groups < 1:
        raise CannotTakeError(f"attribute group of the node is {groups}, but must be 1 or more", CHECKED)
    return groups


def _weight(node: Node, what: str) -> Constant:
    weight = node.needed(1)
    rank = len(weight.shape) - 2
    if node.sizes("kernel_shape", weight.shape[2:]) != weight.shape[2:]:
        reason = f"kernel_shape is not {list(weight.shape[2:])}, the kernel size of the weights"
        raise CannotTakeError(reason, CHECKED)
    if rank not in (1, 2):
        raise CannotTakeError(f"{what} of {rank} dimensions is not supported", "use 1 or 2 image dimensions")
    if node.rank != rank + 2:
        shape = list(node.x.shape)
        raise CannotTakeError(
            f"the first dimension of the input {shape} is not the batch",
            "use an input of shape [batch, channels, ...]",
        )
    return weight


def _conv(node: Node) -> View:
    weight = _weight(node, "a convolution")
    over = window_of(node, node.x.shape[2:], weight.shape[2:])
    return convolution(node, node.x, weight, node.constant(2), over, groups_of(node))


def _conv_transpose(node: Node) -> View:
    weight = _weight(node, "a transposed convolution")
    if node.text("auto_pad", "NOTSET") != "NOTSET" or node.get("output_shape"):
        raise CannotTakeError("output_shape and auto_pad are not supported", "set pads and output_padding")
    over = window_of(node, node.x.shape[2:], weight.shape[2:])
    rank = len(weight.shape) - 2
    padding = node.sizes("output_padding", (0,) * rank)
    if len(padding) != rank:
        raise CannotTakeError(f"output_padding has {len(padding)} values, but {rank} are needed", CHECKED)
    return transposed_convolution(node, node.x, weight, node.constant(2), over, groups_of(node), padding)


# Products


def _plus(node: Node, view: View, third: Any, beta: float) -> View:
    """The third input of a product, added."""
    if third is None or beta == 0:
        return view
    if beta != 1:
        if isinstance(third, Constant) and third.trained:
            third = as_view(node, third, view)  # scaled as an activation: its gradient has the factor too
        if isinstance(third, View):
            third = scaled(node, third, beta, suffix="_beta")
        else:
            third = replace(third, value=third.value * np.float32(beta))
    return total(node, view, third)


def _product(node: Node) -> View:
    operands = [node.get(0), node.get(1)]
    if node.integer("transBatchA", 0) or node.integer("transBatchB", 0):
        raise CannotTakeError(
            "transBatchA and transBatchB are not supported", "use Transpose and MatMul instead"
        )
    like = next((item for item in operands if isinstance(item, View)), None) or node.x
    for index, name in enumerate(("transA", "transB")):
        item = operands[index]
        if item is None or not item.shape:
            raise CannotTakeError(f"input {index} of the node is missing or a scalar", CHECKED)
        if node.op == "Gemm" and len(item.shape) != 2:
            raise CannotTakeError("the operands of the node are not matrices", CHECKED)
        if isinstance(item, Constant) and len(item.shape) > 2:
            operands[index] = item = as_view(node, item, like)
        if node.integer(name, 0) and len(item.shape) > 1:
            operands[index] = item.moved(np.transpose) if isinstance(item, Constant) else item.swapped(-2, -1)
    (left, right), third = operands, node.get(2)
    alpha, beta = node.real("alpha", 1.0), node.real("beta", 1.0)
    is_row = isinstance(third, Constant) and third.shape[-1:] == right.shape[-1:] == (third.value.size,)
    if isinstance(right, Constant) and is_row and alpha == beta == 1:
        return linear(node, left, right.moved(np.transpose), third.moved(lambda array: array.reshape(-1)))
    made = scaled(node, multiplied(node, left, right, as_stored=True), alpha, suffix="_alpha")
    return _plus(node, made, third, beta)


# Norms


def _batch_norm(node: Node) -> View:
    running = {"running_mean": node.constant(3), "running_var": node.constant(4)}
    training = True
    if not node.op.endswith("Internal"):
        if node.opset >= 14:
            training = bool(node.integer("training_mode", 0))
        elif node.opset >= 7:  # a training has more outputs
            training = len(node.shapes) > 1
        else:
            training = not node.integer("is_test", 0)
    if node.used - {0, 1, 2} or (node.used - {0} and not training):
        raise CannotTakeError("outputs mean and variance are not supported", "use the first output only")
    options: dict[str, Any] = {"momentum": round(1 - node.real("momentum", 0.9), 6)}
    if not training:
        options = {"fixed_statistics": True}
        running = {role: item and replace(item, trained=False) for role, item in running.items()}
    variance = running["running_var"]
    if variance is not None and (variance.value < 0).any():
        raise CannotTakeError("a variance of the node is negative", "store variances of 0 or more")
    if not node.integer("spatial", 1):  # every place of a channel has its own statistics
        given = {"w": node.constant(1), "b": node.constant(2), **running}
        flat = {role: item and item.moved(lambda array: array.reshape(-1)) for role, item in given.items()}
        rows = viewed(node, node.x, (node.x.shape[0], elements(node.x.shape[1:])))
        made = channel_norm(node, "batch_norm", rows, flat, eps_of(node, node.op), options)
        return viewed(node, made, node.x.shape)
    return _channel_norm(node, "batch_norm", options, running)


def eps_of(node: Attributes, op: str) -> float:
    """What a norm adds to the variance; RMSNorm, which is Deeploy's, may have another word for it."""
    return node.number("eps" if op == "RMSNorm" and node.has("eps") else "epsilon", 1e-5)


def _channel_norm(
    node: Node, kind: str, options: Mapping[str, Any], running: Mapping[str, Constant | None]
) -> View:
    given = {"w": node.constant(1), "b": node.constant(2), **running}
    return channel_norm(node, kind, node.x, given, eps_of(node, node.op), options)


def _group_norm(node: Node) -> View:
    scale, shift = (node.needed(index).moved(lambda array: array.reshape(-1)) for index in (1, 2))
    if scale.shape != node.x.shape[1:2]:
        raise CannotTakeError(
            "a scale per group (opset 18) is not supported", "export with opset 21: a scale per channel"
        )
    groups = {"groups": node.integer("num_groups", 1)}
    return channel_norm(node, "group_norm", node.x, {"w": scale, "b": shift}, eps_of(node, node.op), groups)


def _row_norm(node: Node) -> View:
    kind = "layer_norm" if node.op == "LayerNormalization" else "rms_norm"
    axis = node.axis(node.rank, -1)
    if node.used - {0}:
        raise CannotTakeError("outputs mean and variance are not supported", "use the first output only")
    row = node.x.shape[axis:]
    roles = {"w": 1, "b": 2} if kind == "layer_norm" else {"w": 1}
    affine = {role: node.constant(index) for role, index in roles.items()}
    # A weight that repeats over the row is one weight: it is multiplied, or added, by a layer of its own.
    whole = elements(row)
    apart = any(item and item.trained and item.value.size != whole for item in affine.values())
    given = {role: None if apart or item is None else _repeated(item, row) for role, item in affine.items()}
    made = row_norm(node, kind, node.x, given, eps_of(node, node.op), len(row))
    if apart and affine["w"] is not None:
        made = times(node, made, as_view(node, affine["w"], made, "_scale"))
    if apart and affine.get("b") is not None:
        made = total(node, made, as_view(node, affine["b"], made, "_shift"))
    return made


def _repeated(constant: Constant, row: Shape) -> Constant:
    """A constant for every element of a row."""
    try:
        return constant.moved(lambda array: np.broadcast_to(array, row).copy())
    except ValueError:
        reason = f"a scale or shift of shape {list(constant.shape)} for rows of {list(row)}"
        raise CannotTakeError(reason, CHECKED) from None


# Pooling


def _lrn(node: Node) -> View:
    size = node.integer("size", 0)
    if size < 1 or node.rank < 3:
        reason = f"size {size} must be 1 or more, and the number of dimensions, {node.rank}, 3 or more"
        raise CannotTakeError(reason, CHECKED)
    alpha, beta, bias = (
        node.number(name, default) for name, default in (("alpha", 1e-4), ("beta", 0.75), ("bias", 1.0))
    )
    return neighbour_norm(node, node.x, size, alpha, beta, bias)


def _col2im(node: Node) -> View:
    sizes, kernel = node.integers("image_shape", 1), node.integers("block_shape", 2)
    if sizes is None or kernel is None or not len(sizes) == len(kernel) == 2 or node.rank != 3:
        raise CannotTakeError(
            "Col2Im needs two-dimensional images", "use 2 numbers in image_shape and block_shape"
        )
    return folded(node, node.x, sizes, window_of(node, sizes, kernel))


def _pool(node: Node) -> View:
    kind = "max_pool2d" if node.op == "MaxPool" else "avg_pool2d"
    if kind == "max_pool2d" and 1 in node.used:
        raise CannotTakeError("the output of indices is not supported", "use the first output only")
    over, options = pool_of(node, node.x.shape, counts=node.op == "AveragePool")
    if node.op == "LpPool":
        order = node.integer("p", 2)
        if order < 1:
            raise CannotTakeError(f"attribute p of the node is {order}, but must be 1 or more", CHECKED)
        return power_pooled(node, node.x, over, options, order)
    return pooled(node, kind, node.x, options, node.rank - 2)


def pool_of(node: Attributes, shape: Shape, *, counts: bool) -> tuple[Window, dict[str, Any]]:
    """The window of a pool over images or sequences of this shape, and its options.

    `counts`: whether it says if a mean counts the padding.
    """
    kernel, sizes = node.sizes("kernel_shape"), shape[2:]
    if len(kernel) not in (1, 2) or len(shape) != len(kernel) + 2:
        raise CannotTakeError(
            f"a window of {len(kernel)} dimensions is not supported", "use 1 or 2 dimensions"
        )
    counted = bool(node.integer("count_include_pad", 0)) if counts else None
    over, ceil = window_of(node, sizes, kernel), bool(node.integer("ceil_mode", 0))
    return over, pool_options(over, sizes, ceil=ceil, counted=counted)


def _global_pool(node: Node) -> View:
    rank = node.rank - 2
    if node.op == "GlobalAveragePool" or rank not in (1, 2):
        return averaged_image(node, node.x, rank)
    kernel = short(rows_and_columns(node.x.shape[2:], 1))
    return pooled(node, "max_pool2d", node.x, {"kernel": kernel}, rank)


def _cumulative(node: Node) -> View:
    how = {"less": bool(node.integer("exclusive", 0)), "back": bool(node.integer("reverse", 0))}
    axis = axis_of(int(number_in(node.needed(1, "axis"), "axis")), node.rank)
    return running_sum(node, node.x, axis, **how)


_RESIZED = {"nearest": "asymmetric", "linear": "half_pixel", "cubic": ""}
"""Modes of a Resize, with the coordinates that `interpolation` has."""


def _resize(node: Node) -> View:
    view, mode, old = images(node), node.text("mode", "nearest"), node.op == "Upsample"
    coordinates = "asymmetric" if old else node.text("coordinate_transformation_mode", "half_pixel")
    if mode not in _RESIZED:
        raise CannotTakeError(f"mode {mode} is not supported", f"use {', '.join(_RESIZED)}")
    wanted = _RESIZED[mode]
    rounding = "floor" if old else node.text("nearest_mode", "round_prefer_floor")
    if node.integer("antialias", 0) or node.text("keep_aspect_ratio_policy", "stretch") != "stretch":
        raise CannotTakeError(
            "antialias and keep_aspect_ratio_policy are not supported",
            "set antialias 0 and keep_aspect_ratio_policy stretch",
        )
    is_other = coordinates.removeprefix("pytorch_") != wanted or (mode == "nearest" and rounding != "floor")
    if node.integer("exclude_outside", 0):
        raise CannotTakeError("Resize with exclude_outside is not supported", "set exclude_outside to 0")
    target, scales = _resized(node, view, old=old)
    if target[:2] != view.shape[:2]:
        raise CannotTakeError("resizing the batch or channels is not supported", "resize rows and columns")
    exact = all(size * scale == new for size, scale, new in zip(view.shape, scales, target, strict=True))
    if is_other or not exact or (coordinates == "pytorch_half_pixel" and min(target[2:]) == 1):
        how = Stretch(mode, coordinates, rounding, node.number("cubic_coeff_a", -0.75))
        return stretched(node, view, target[2:], how, scales[2:])
    return interpolated(node, view, target[2:], "bilinear" if mode == "linear" else "nearest")


def _resized(node: Node, view: View, *, old: bool) -> tuple[Shape, Sequence[float]]:
    """The shape of the result, and how many times that of its input each dimension is."""
    sizes, scales = None if old else node.constant(3), node.constant(1 if old else 2)
    if sizes is not None and scales is not None and scales.value.size:
        raise CannotTakeError("the node has scales and sizes", "use one of the two")
    given = node.get("scales", ()) if scales is None else scales.value.ravel()
    given = given if sizes is None else sizes.value.ravel()
    axes = [axis_of(axis, node.rank) for axis in node.sizes("axes", tuple(range(node.rank)))]
    if len(given) != len(axes):
        raise CannotTakeError(
            f"{len(given)} sizes or scales for {len(axes)} dimensions are not supported",
            "use one size or scale per dimension",
        )
    said = dict(zip(axes, map(float, given), strict=True))
    if sizes is None:
        factors = [said.get(axis, 1.0) for axis in range(node.rank)]
        return tuple(
            int(size * scale + 1e-6) for size, scale in zip(view.shape, factors, strict=True)
        ), factors
    target = tuple(int(said.get(axis, size)) for axis, size in enumerate(view.shape))
    return target, [new / size for new, size in zip(target, view.shape, strict=True)]


# Recurrent layers

_ACTIVATIONS = {"gru": ("Sigmoid", "Tanh"), "lstm": ("Sigmoid", "Tanh", "Tanh"), "rnn": ("Tanh",)}


def _ways(node: Attributes) -> tuple[bool, ...]:
    """Of each direction, whether it goes back in time."""
    word = node.text("direction", "forward")
    ways = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}
    if word not in ways:
        raise CannotTakeError(f"direction {word} of a recurrent node is unknown", CHECKED)
    return ways[word]


def check_recurrent(node: Attributes, kind: str, length: int) -> None:
    """Raise `CannotTakeError` for what our recurrent layers do not do."""
    usual = _ACTIVATIONS[kind] * len(_ways(node))
    if kind == "gru" and not node.integer("linear_before_reset", 0):
        raise CannotTakeError("linear_before_reset=0 is not supported", "set linear_before_reset=1")
    extra = node.get("clip") or node.integer("input_forget", 0) or node.has(7)
    if tuple(node.get("activations", usual)) != usual or extra:
        raise CannotTakeError(
            f"clip, input_forget, peepholes and activations other than {', '.join(usual)} are not supported",
            "use these activations, and remove clip, input_forget and peepholes",
        )
    lengths = node.values(4)
    if lengths is not None and (lengths != length).any():
        raise CannotTakeError("sequences of different lengths are not supported", "use the same length")


def _recurrent(node: Node) -> list[View]:
    kind, batch_first = node.op.lower(), bool(node.integer("layout", 0))
    view = node.x.swapped(0, 1) if batch_first else node.x
    check_recurrent(node, kind, view.shape[0])
    if 2 in node.used:
        raise CannotTakeError(
            "the output of the last cell state is not supported", "use the output or the last hidden state"
        )
    word = sequence(node, view, 1, "put a Transpose before the node: [time, batch, features]")
    ways = _ways(node)
    outputs, lasts = list[View](), list[View]()
    for number, back in enumerate(ways):
        given = _cell_weights(node, kind, len(ways), view.shape[2], number)
        wh = given["wh"]
        assert wh is not None
        states = [
            initial_state(node, _state(node, index, number, len(ways)), wh.shape[0], view.batch, "use zeros")
            for index in ((5, 6) if kind == "lstm" else (5,))
        ]
        suffix = "_reverse" if number else ""
        made = recurrent(node, kind, word, states, given, suffix=suffix, back=back)
        # Ours is [batch, length, hidden], ONNX's [length, directions, batch, hidden].
        outputs.append(replace(made, dims=(made.dims[1], (), (BATCH,), made.dims[2])))
        if 1 in node.used:
            lasts.append(last_state(node, made, suffix=f"{suffix}_last", back=back))
    whole = outputs[0] if len(outputs) == 1 else joined(node, outputs, 1, suffix="_both")
    last = joined(node, lasts, 0, suffix="_lasts") if len(lasts) == 2 else next(iter(lasts), None)
    if batch_first:
        whole, last = whole.permuted((2, 0, 1, 3)), last and last.swapped(0, 1)
    return [whole] if last is None else [whole, last]


def _cell_weights(node: Node, kind: str, ways: int, features: int, number: int) -> dict[str, Constant | None]:
    """The weights of one of several directions, as our layers have them."""
    wx, wh, both = node.needed(1), node.needed(2), node.constant(3)
    hidden = node.integer("hidden_size", wh.shape[-1])
    gates = hidden * {"gru": 3, "lstm": 4, "rnn": 1}[kind]
    fits = wx.shape == (ways, gates, features) and wh.shape == (ways, gates, hidden)
    if not fits or (both is not None and both.shape != (ways, 2 * gates)):
        wanted = f"{[ways, gates, features]}, {[ways, gates, hidden]} and {[ways, 2 * gates]}"
        raise CannotTakeError(f"the shapes of W, R and B must be {wanted}", CHECKED)
    given: dict[str, Constant | None] = {
        role: item.moved(lambda array: regated(kind, array[number]).T)
        for role, item in (("wx", wx), ("wh", wh))
    }
    if both is not None:
        for role, part in (("bx", slice(gates)), ("bh", slice(gates, None))):
            given[role] = both.moved(lambda array, part=part: regated(kind, array[number, part]))
    return given


def _state(node: Node, index: int, number: int, ways: int) -> Any:
    """An initial state [1, batch, hidden] of one of several directions."""
    state = node.get(index)
    if isinstance(state, View) and node.integer("layout", 0):
        state = state.swapped(0, 1)
    if isinstance(state, View) and ways > 1:
        return sliced(node, state, 0, number, number + 1, suffix=f"_state{index}_{number}")
    return state


HANDLERS: Mapping[str, Handler] = {
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    **dict.fromkeys(
        (
            *("Gemm", "MatMul", "importer:Linear"),
            *("com.microsoft:FusedMatMul", "com.microsoft:TransposeMatMul"),
        ),
        _product,
    ),
    **dict.fromkeys(("BatchNormalization", "com.microsoft:BatchNormInternal"), _batch_norm),
    "InstanceNormalization": lambda node: _channel_norm(node, "instance_norm", {}, {}),
    "GroupNormalization": _group_norm,
    **dict.fromkeys(
        (
            *("LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization", "RMSNorm"),
            "com.microsoft:SimplifiedLayerNormalization",
        ),
        _row_norm,
    ),
    **dict.fromkeys(("MaxPool", "AveragePool", "LpPool"), _pool),
    "GlobalLpPool": lambda node: norm(node, node.x, range(2, node.rank), node.integer("p", 2), keep=True),
    "LRN": _lrn,
    "Einsum": lambda node: einsum(node, node.text("equation", ""), node.inputs),
    "CumSum": _cumulative,
    "Col2Im": _col2im,
    **dict.fromkeys(("GlobalAveragePool", "GlobalMaxPool"), _global_pool),
    **dict.fromkeys(("Resize", "Upsample"), _resize),
    **dict.fromkeys(("GRU", "LSTM", "RNN"), _recurrent),
}
