# SPDX-License-Identifier: Apache-2.0
"""ONNX ops with weights or windows: convolutions, products, norms, pooling, recurrent layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from importers.graph.arranging import fresh, image, in_order, regrouped, rows, sample_word, under
from importers.graph.draft import CHECKED, CannotTakeError, Given, elements
from importers.graph.views import BATCH, View
from importers.onnx.call import NEAREST, Call, Constant, register, short
from importers.onnx.moves import part_of
from importers.place.cutting import sliced

NEAREST.update(
    {
        "ConvInteger": "Conv of float32",
        "QLinearConv": "Conv of float32",
        "MatMulInteger": "MatMul of float32",
        "LpPool": "AveragePool",
        "GlobalLpPool": "GlobalAveragePool",
        "MaxUnpool": "Resize",
        "DeformConv": "Conv",
        "LRN": "BatchNormalization",
        "Attention": "MatMul, Softmax, MatMul",
        "com.microsoft:Attention": "MatMul, Softmax, MatMul",
    }
)

_DEFAULTS = {"bias": False, "stride": 1, "padding": 0, "dilation": 1, "groups": 1, "output_padding": 0}


def _plain(options: dict[str, Any]) -> dict[str, Any]:
    """Without what says only the default."""
    return {key: value for key, value in options.items() if _DEFAULTS.get(key) != value or key == "kernel"}


def _sizes(call: Call, name: str, rank: int, default: int) -> list[int]:
    """An attribute with a number per direction as [rows, columns]; a sequence has one row."""
    values = list(call.attribute(name, (default,) * rank))
    if len(values) != rank:
        raise CannotTakeError(f"{name} {values} for {rank} directions", CHECKED)
    return [default, *values] if rank == 1 else values


def window(call: Call, sizes: Sequence[int], kernel: Sequence[int]) -> dict[str, list[int]]:
    """Stride, dilation and padding [up, down, left, right] of a window over an image of these sizes."""
    rank = len(sizes)
    stride, dilation = _sizes(call, "strides", rank, 1), _sizes(call, "dilations", rank, 1)
    given = list(call.attribute("pads", (0,) * (2 * rank)))
    automatic = call.attribute("auto_pad", "NOTSET")
    if len(given) != 2 * rank:
        raise CannotTakeError(f"pads {given} for {rank} directions", CHECKED)
    begin, end = given[:rank], given[rank:]
    if automatic in ("SAME_UPPER", "SAME_LOWER"):
        begin, end = [], []
        own = kernel[-rank:]
        for size, k, s, d in zip(sizes, own, stride[-rank:], dilation[-rank:], strict=True):
            total = max(0, (-(-size // s) - 1) * s + d * (k - 1) + 1 - size)
            less, more = total // 2, total - total // 2
            begin.append(less if automatic == "SAME_UPPER" else more)
            end.append(more if automatic == "SAME_UPPER" else less)
    elif automatic == "VALID":
        begin, end = [0] * rank, [0] * rank
    if rank == 1:
        begin, end = [0, *begin], [0, *end]
    return {
        "stride": stride,
        "dilation": dilation,
        "padding": [begin[0], end[0], begin[1], end[1]],
    }


@register("Conv")
def _conv(call: Call) -> Any:
    view, weight, bias = call.view(), call.needed(1), call.weight(2)
    rank = weight.value.ndim - 2
    if rank not in (1, 2):
        raise CannotTakeError(f"a convolution of {rank} dimensions", "Conv of 2 dimensions")
    groups, co = int(call.attribute("group", 1)), weight.value.shape[0]
    kernel = [1, *weight.value.shape[2:]][-2:]
    found = window(call, view.shape[2:], kernel)
    options: dict[str, Any] = {"bias": bias is not None}
    if rank == 1:
        word, batch_dim = sample_word(call, view)
        options |= {"out_channels": co, "kernel": kernel[1], "stride": found["stride"][1], "groups": groups}
        options |= {"padding": short(found["padding"][2:]), "dilation": found["dilation"][1]}
        made = call.layer("conv1d", (word,), _plain(options), {"w": weight, "b": bias})
        return under(made, batch_dim, 3)
    word, ci = image(call, view, 2), view.shape[1]
    if kernel == [1, 1] and found["stride"] == [1, 1] and not any(found["padding"]) and groups == 1:
        weights = weight.moved(lambda array: array[:, :, 0, 0])
        options["out_channels"] = co
        made = call.layer("pointwise", (word,), _plain(options), {"w": weights, "b": bias})
        return fresh(made, made.stored)
    options |= {"kernel": short(kernel), **{key: short(value) for key, value in found.items()}}
    if groups == ci == co and groups > 1:
        return call.layer("depthwise", (word,), _plain(options), {"w": weight, "b": bias})
    options |= {"out_channels": co, "groups": groups}
    return call.layer("conv2d", (word,), _plain(options), {"w": weight, "b": bias})


@register("ConvTranspose")
def _conv_transpose(call: Call) -> Any:
    view, weight, bias = call.view(), call.needed(1), call.weight(2)
    rank = weight.value.ndim - 2
    if rank not in (1, 2):
        raise CannotTakeError(f"a transposed convolution of {rank} dimensions", "one of 2 dimensions")
    groups = int(call.attribute("group", 1))
    kernel = [1, *weight.value.shape[2:]][-2:]
    if call.attribute("auto_pad", "NOTSET") != "NOTSET" or call.attribute("output_shape"):
        raise CannotTakeError("padding that follows from the size of the result", "pads and output_padding")
    found = window(call, view.shape[2:], kernel)
    output_padding = _sizes(call, "output_padding", rank, 0)
    options = {
        "out_channels": weight.value.shape[1] * groups,
        "kernel": short(kernel),
        **{key: short(value) for key, value in found.items()},
        "output_padding": short(output_padding),
        "groups": groups,
        "bias": bias is not None,
    }
    if rank == 1:
        weight = weight.moved(lambda array: array[:, :, None])
    made = call.layer(
        "conv_transpose2d", (image(call, view, rank),), _plain(options), {"w": weight, "b": bias}
    )
    batch, channels, *space = made.stored
    return fresh(made, (batch, channels, *space[-rank:]))


# Products


def linear(call: Call, view: View, weight: Given, bias: Given | None) -> View:
    """Every row of the last dimension times the rows of a matrix [out, in]."""
    word, rest = rows(call, view, len(view.dims) - 1)
    options = {"out_features": weight.value.shape[0], **({"bias": True} if bias is not None else {})}
    made = call.layer("linear", (word,), options, {"w": weight, "b": bias})
    return regrouped(view, made, rest, weight.value.shape[0])


@register("Gemm")
def _gemm(call: Call) -> Any:
    view, constant = call.view(), call.arguments[1]
    if call.attribute("transA", 0):
        view = view.permuted((1, 0))
    alpha, beta = float(call.attribute("alpha", 1.0)), float(call.attribute("beta", 1.0))
    turned = bool(call.attribute("transB", 0))
    if isinstance(constant, View):
        made = matrices(call, view, constant.permuted((1, 0)) if turned else constant)
        return _plus(call, _times(call, made, alpha), beta)
    weight = call.needed(1)
    weight = weight if turned else weight.moved(np.transpose)
    third = call.arguments[2] if call.has(2) else None
    if alpha == 1 and beta == 1 and _is_row(third, weight.value.shape[0]):
        return linear(call, view, weight, call.needed(2).moved(lambda array: array.reshape(-1)))
    return _plus(call, _times(call, linear(call, view, weight, None), alpha), beta)


def _is_row(found: Any, count: int) -> bool:
    """Whether it is a constant, and the same row of `count` numbers for every sample."""
    if not isinstance(found, Constant):
        return False
    return found.value.shape[-1:] == (count,) and found.value.size == count


def _times(call: Call, view: View, factor: float) -> View:
    return view if factor == 1 else call.like(view, "scale", {"factor": factor}, "_alpha")


def _plus(call: Call, view: View, beta: float) -> View:
    """The third input of a Gemm, added."""
    from importers.onnx.elements import added, as_view

    if not call.has(2) or beta == 0:
        return view
    third = call.arguments[2]
    if beta != 1:
        if isinstance(third, Constant) and third.trained:
            third = as_view(call, third, view)  # scaled as an activation: its gradient has the factor too
        if isinstance(third, View):
            third = call.like(third, "scale", {"factor": beta}, "_beta")
        else:
            third = Constant(third.value * np.float32(beta))
    return added(call, view, third)


@register("MatMul", "com.microsoft:FusedMatMul", "com.microsoft:TransposeMatMul", "importer:Linear")
def _matmul(call: Call) -> Any:
    left, right = call.arguments[0], call.arguments[1]
    if call.attribute("transBatchA", 0) or call.attribute("transBatchB", 0):
        raise CannotTakeError("transBatchA or transBatchB", "Transpose, then MatMul")
    alpha = float(call.attribute("alpha", 1.0))
    turns = [bool(call.attribute(name, 0)) for name in ("transA", "transB")]
    if isinstance(left, Constant):
        if not isinstance(right, View):
            raise CannotTakeError("a product of two constants", "its result as an initializer")
        from importers.onnx.elements import as_view

        left = as_view(call, left, right)
    view = left.swapped(len(left.dims) - 2, len(left.dims) - 1) if turns[0] else left
    if isinstance(right, Constant):
        if right.value.ndim == 2:
            weight = call.places.given(right)
            weight = weight if turns[1] else weight.moved(np.transpose)
            bias = call.weight(2) if call.node.op == "importer:Linear" else None
            return _times(call, linear(call, view, weight, bias), alpha)
        from importers.onnx.elements import as_view

        right = as_view(call, right, view)
    if turns[1]:
        right = right.swapped(len(right.dims) - 2, len(right.dims) - 1)
    return _times(call, matrices(call, view, right), alpha)


def matrices(call: Call, left: View, right: View) -> View:
    """Products of matrices, or of stacks of them, both activations."""
    if len(left.dims) < 2 or len(right.dims) < 2:
        raise CannotTakeError("a product with a vector", "matrices: Unsqueeze before, Squeeze behind")
    rank = max(len(left.dims), len(right.dims))
    while len(left.dims) < rank:
        left = left.with_dim(0)
    while len(right.dims) < rank:
        right = right.with_dim(0)
    batch_dims = {view.batch_dim for view in (left, right)} - {None}
    if len(batch_dims) > 1 or batch_dims & {rank - 1, rank - 2}:
        raise CannotTakeError("multiplies over samples", "a batch dimension in front of both")
    # A matrix that is stored transposed is read so by the product itself.
    turned = False
    if len(right.dims[-1]) == 1 and len(right.dims[-2]) == 1 and right.dims[-1][0] < right.dims[-2][0]:
        right, turned = right.swapped(rank - 2, rank - 1), True
    (first, batch_dim), (second, other) = sample_word(call, left), sample_word(call, right)
    options = {"transpose_b": True} if turned else {}
    if batch_dim is None and other is not None:
        batch_dim = other
    words = []
    for word, own in ((first, batch_dim), (second, other if other is not None else batch_dim)):
        shape = call.draft.tensors[word].shape
        if own is not None and len(shape) == rank + 1:
            shape = (shape[0], *(size for index, size in enumerate(shape[1:]) if index != own))
        words.append(call.draft.reshaped(word, shape, call.name, call.where))
    made = call.layer("matmul", words, options)
    return under(made, batch_dim, rank)


# Norms


def _norm_options(given: dict[str, Given | None], eps: float) -> dict[str, Any]:
    eps = float(np.format_float_positional(np.float32(eps)))  # 1e-5, not what fp32 makes of it
    options: dict[str, Any] = {} if eps == 1e-5 else {"eps": eps}
    if given["w"] is None:
        options["affine"] = False
    return options


def _channels(call: Call, view: View) -> str:
    """A word stored [batch, channels, ...] for a norm of channels."""
    word, batch_dim = sample_word(call, view)
    if batch_dim not in (0, None) or len(view.dims) < 2:
        raise CannotTakeError(f"its input {list(view.shape)} has no batch in front", "[batch, channels, ...]")
    return call.draft.reshaped(word, (view.batch, *view.shape[1:]), call.name, call.where)


@register("BatchNormalization", "com.microsoft:BatchNormInternal")
def _batch_norm(call: Call) -> Any:
    view = call.view()
    given = {"w": call.weight(1), "b": call.weight(2)}
    options = _norm_options(given, call.attribute("epsilon", 1e-5))
    running = {role: call.weight(index) for role, index in (("running_mean", 3), ("running_var", 4))}
    training = call.node.op.endswith("Internal") or bool(call.attribute("training_mode", 0))
    if training:
        momentum = round(1 - float(call.attribute("momentum", 0.9)), 6)
        if momentum != 0.1:
            options["momentum"] = momentum
    else:
        options["fixed_statistics"] = True
        running = {role: item and replace(item, trained=False) for role, item in running.items()}
    if call.used - {0, 1, 2} or (call.used - {0} and not training):
        raise CannotTakeError("its statistics are used", "one output")
    variance = running["running_var"]
    if variance is not None and (variance.value < 0).any():
        raise CannotTakeError("a variance below 0", "variances of 0 and more")
    made = call.layer("batch_norm", (_channels(call, view),), options, {**given, **running})
    return fresh(made, view.shape)


@register("InstanceNormalization")
def _instance_norm(call: Call) -> Any:
    view, given = call.view(), {"w": call.weight(1), "b": call.weight(2)}
    options = _norm_options(given, call.attribute("epsilon", 1e-5))
    return fresh(call.layer("instance_norm", (_channels(call, view),), options, given), view.shape)


@register("GroupNormalization")
def _group_norm(call: Call) -> Any:
    view = call.view()
    scale, shift = (call.needed(index).moved(lambda array: array.reshape(-1)) for index in (1, 2))
    given: dict[str, Given | None] = {"w": scale, "b": shift}
    options = _norm_options(given, call.attribute("epsilon", 1e-5))
    options["groups"] = int(call.attribute("num_groups", 1))
    if elements(scale.value.shape) != view.shape[1]:
        raise CannotTakeError("a scale per group", "opset 21, with a scale per channel")
    return fresh(call.layer("group_norm", (_channels(call, view),), options, given), view.shape)


@register("LayerNormalization", "RMSNormalization", "com.microsoft:SimplifiedLayerNormalization")
def _row_norm(call: Call) -> Any:
    view = in_order(call, call.view())
    kind = "layer_norm" if call.node.op == "LayerNormalization" else "rms_norm"
    axis = call.axis(len(view.dims), -1)
    count = len(view.dims) - axis
    if any(BATCH in dim for dim in view.dims[axis:]):
        raise CannotTakeError("normalises over samples", "dimensions behind the batch")
    if call.used - {0}:
        raise CannotTakeError("its statistics are used", "one output")
    row = view.shape[axis:]
    affine = [call.constant(index) for index in ((1, 2) if kind == "layer_norm" else (1,))]
    # A weight that repeats over the row is one weight: it is multiplied, or added, by a layer of its own.
    apart = any(item is not None and item.trained and item.value.size != elements(row) for item in affine)

    def shaped(index: int) -> Given | None:
        given = None if apart or index > len(affine) else call.weight(index)
        return None if given is None else given.moved(lambda array: np.broadcast_to(array, row).copy())

    given: dict[str, Given | None] = {"w": shaped(1), "b": shaped(2)}
    leading = elements(view.shape[:axis]) // view.batch
    shape = (view.batch, *((leading,) if leading > 1 else ()), *row)
    word = call.draft.reshaped(view.word, shape, call.name, call.where)
    options = _norm_options(given, call.attribute("epsilon", 1e-5))
    if count > 1:
        options["axes"] = count
    if kind == "layer_norm" and given["w"] is not None and given["b"] is None:
        options["bias"] = False
    made = call.layer(
        kind, (word,), options, {role: item for role, item in given.items() if item is not None}
    )
    found = View(made.word, made.stored, view.pieces, view.dims)
    return _affine(call, found, *affine) if apart else found


def _affine(call: Call, view: View, scale: Constant | None, shift: Constant | None = None) -> View:
    """Times one constant, plus another."""
    from importers.onnx.elements import added, as_view, pairwise

    if scale is not None:
        view = pairwise(call, "multiply", view, as_view(call, scale, view, "_scale"), "_scaled")
    return view if shift is None else added(call, view, as_view(call, shift, view, "_shift"))


# Pooling


def _pooling(call: Call) -> tuple[str, dict[str, Any], int]:
    view = call.view()
    kernel = list(call.attribute("kernel_shape", ()))
    rank = len(kernel)
    if rank not in (1, 2) or len(view.dims) != rank + 2:
        raise CannotTakeError(f"a window of {rank} dimensions", "a window of 1 or 2 dimensions")
    full = [1, *kernel][-2:]
    found = window(call, view.shape[2:], full)
    if found["dilation"] != [1, 1]:
        raise CannotTakeError("a dilated window", "dilations of 1")
    if call.attribute("ceil_mode", 0):
        pads = found["padding"]
        space = [1, *view.shape[2:]][-2:]
        for size, k, s, p in zip(space, full, found["stride"], (pads[:2], pads[2:]), strict=True):
            if (size + sum(p) - k) % s:
                raise CannotTakeError(f"ceil_mode with windows that reach beyond {size}", "ceil_mode=0")
    options: dict[str, Any] = {"kernel": short(full)}
    if found["stride"] != full:
        options["stride"] = short(found["stride"])
    if any(found["padding"]):
        options["padding"] = short(found["padding"])
    return image(call, view, rank), options, rank


def _pooled(view: View, rank: int) -> View:
    batch, channels, *space = view.stored
    return fresh(view, (batch, channels, *space[-rank:]))


@register("MaxPool")
def _max_pool(call: Call) -> Any:
    if 1 in call.used:
        raise CannotTakeError("its indices are used", "one output")
    word, options, rank = _pooling(call)
    return _pooled(call.layer("max_pool2d", (word,), options), rank)


@register("AveragePool")
def _average_pool(call: Call) -> Any:
    word, options, rank = _pooling(call)
    if "padding" in options and not call.attribute("count_include_pad", 0):
        options["count_include_pad"] = False
    return _pooled(call.layer("avg_pool2d", (word,), options), rank)


@register("GlobalAveragePool", "GlobalMaxPool")
def _global_pool(call: Call) -> Any:
    view = call.view()
    rank = len(view.dims) - 2
    if rank not in (1, 2):
        raise CannotTakeError(f"a window of {rank} dimensions", "a window of 1 or 2 dimensions")
    word = image(call, view, rank)
    if call.node.op == "GlobalAveragePool":
        made = call.layer("global_avg_pool", (word,))
    else:
        made = call.layer("max_pool2d", (word,), {"kernel": short([1, *view.shape[2:]][-2:])})
    return fresh(made, (*view.shape[:2], *(1,) * rank))


@register("Resize", "Upsample")
def _resize(call: Call) -> Any:
    view = call.view()
    if len(view.dims) != 4:
        raise CannotTakeError("an input that is no image", "[batch, channels, rows, columns]")
    mode = call.attribute("mode", "nearest")
    old = call.node.op == "Upsample"
    coordinates = "asymmetric" if old else call.attribute("coordinate_transformation_mode", "half_pixel")
    wanted = {"nearest": "asymmetric", "linear": "half_pixel"}.get(mode, "")
    rounding = "floor" if old else call.attribute("nearest_mode", "round_prefer_floor")
    if call.attribute("antialias", 0) or call.attribute("keep_aspect_ratio_policy", "stretch") != "stretch":
        raise CannotTakeError("antialiasing, or sizes that follow from others", "sizes, antialias 0")
    if (
        coordinates.removeprefix("pytorch_") != wanted
        or (mode == "nearest" and rounding != "floor")
        or call.attribute("axes")
    ):
        raise CannotTakeError(
            f"{mode} by {coordinates}", "nearest by asymmetric and floor, or linear by half_pixel"
        )
    sizes = call.constant(3) if not old and call.has(3) else None
    if sizes is not None:
        target = [int(size) for size in sizes.value]
    else:
        scales = call.constant(1 if old else 2)
        given = call.attribute("scales") if scales is None else scales.value
        if given is None or len(given) != 4:
            raise CannotTakeError("no sizes and no scales", "sizes or scales of four numbers")
        target = [int(size * scale) for size, scale in zip(view.shape, given, strict=True)]
        if any(
            abs(size * scale - whole) > 1e-6
            for size, scale, whole in zip(view.shape, given, target, strict=True)
        ):
            raise CannotTakeError("scales that do not give whole sizes", "sizes")
    if coordinates == "pytorch_half_pixel" and min(target[2:]) == 1:
        raise CannotTakeError("shrinks a dimension to 1 by pytorch_half_pixel", "half_pixel")
    if tuple(target[:2]) != view.shape[:2]:
        raise CannotTakeError("resizes batch or channels", "rows and columns only")
    options: dict[str, Any] = {"size": target[2:]}
    if mode == "linear":
        options["mode"] = "bilinear"
    return call.layer("interpolation", (image(call, view, 2),), options)


# Recurrent layers


GATES = {"GRU": (1, 0, 2), "LSTM": (0, 2, 3, 1), "RNN": (0,)}
"""Where ONNX has the gate that is the first, second ... of ours: z r h as r z n, i o f c as i f g o."""


_ACTIVATIONS = {"GRU": ("Sigmoid", "Tanh"), "LSTM": ("Sigmoid", "Tanh", "Tanh"), "RNN": ("Tanh",)}


def _check_recurrent(call: Call, kind: str, view: View) -> None:
    """Raise `CannotTakeError` for what our recurrent layers do not do."""
    usual = _ACTIVATIONS[kind]
    if call.attribute("direction", "forward") != "forward":
        raise CannotTakeError(f"direction {call.attribute('direction')}", "forward")
    if call.attribute("layout", 0):
        raise CannotTakeError("layout 1", "layout 0, transposed")
    if kind == "GRU" and not call.attribute("linear_before_reset", 0):
        raise CannotTakeError("a reset gate before the product", "linear_before_reset=1, as PyTorch has it")
    extra = call.attribute("clip") or call.attribute("input_forget", 0) or call.has(7)
    if tuple(call.attribute("activations", usual)) != usual or extra:
        raise CannotTakeError("activations, clips or peepholes of its own", f"activations {', '.join(usual)}")
    if len(view.dims) != 3 or (view.batch > 1 and view.batch_dim != 1):
        raise CannotTakeError(
            f"its input {list(view.shape)} does not have the batch second",
            "a Transpose before it: [time, batch, features]",
        )
    lengths = call.constant(4) if call.has(4) else None
    if lengths is not None and (lengths.value != view.shape[0]).any():
        raise CannotTakeError("sequences of unequal length", "one length")
    if 2 in call.used:
        raise CannotTakeError("its last cell is used", "its output or its last state")


def _states(call: Call, kind: str, view: View, hidden: int) -> list[str]:
    """Words of the initial states; none where they are zeros."""
    words = []
    places = (5, 6) if kind == "LSTM" else (5,)
    for index in places:
        state = call.arguments[index] if call.has(index) else None
        if isinstance(state, View):
            squeezed = in_order(call, state.without_dim(0))
            words.append(call.draft.reshaped(squeezed.word, (view.batch, hidden), call.name, call.where))
        elif isinstance(state, Constant) and state.value.any():  # zeros are nobody's weight
            raise CannotTakeError("an initial state that is neither zeros nor computed", "zeros")
    if len(words) not in (0, len(places)):
        raise CannotTakeError("only one of two initial states computed", "both or none")
    return words


@register("GRU", "LSTM", "RNN")
def _recurrent(call: Call) -> Any:
    kind, view = call.node.op, call.view()
    _check_recurrent(call, kind, view)
    ordered = in_order(call, view.swapped(0, 1))
    shape = (view.batch, view.shape[0], view.shape[2])
    word = call.draft.reshaped(ordered.word, shape, call.name, call.where)
    hidden = int(call.attribute("hidden_size", call.needed(2).value.shape[2]))
    order = GATES[kind]

    def gates(array: Any) -> Any:
        parts = array.reshape(len(order), hidden, *array.shape[1:])
        return parts[list(order)].reshape(array.shape)

    given: dict[str, Given | None] = {
        "wx": call.needed(1).moved(lambda array: gates(array[0]).T),
        "wh": call.needed(2).moved(lambda array: gates(array[0]).T),
    }
    both = call.constant(3)
    options: dict[str, Any] = {"hidden": hidden, **({"bias": False} if both is None else {})}
    if both is not None:
        for role, first in (("bx", 0), ("bh", len(order) * hidden)):
            own = call.places.given(part_of(both, 1, first, len(order) * hidden))
            given[role] = own.moved(lambda array: gates(array[0]))
    made = call.layer(kind.lower(), [word, *_states(call, kind, view, hidden)], options, given)
    # Ours is [batch, length, hidden], ONNX's [length, directions, batch, hidden].
    whole = View(made.word, made.stored, made.pieces, (made.dims[1], (), (BATCH,), made.dims[2]))
    if 1 not in call.used:
        return [whole]
    last = sliced(call, made, 1, made.shape[1] - 1, made.shape[1]).without_dim(1)
    return [whole, last.with_dim(0)]
