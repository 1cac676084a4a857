# SPDX-License-Identifier: Apache-2.0
"""ATen ops with parameters or windows: convolutions, linear layers, norms, pooling, recurrent layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from importers.graph.arranging import fresh, image, in_order, regrouped, rows, viewed
from importers.graph.draft import CannotTakeError, Given, elements
from importers.graph.views import BATCH, Shape, View
from importers.place.cutting import sliced
from importers.torch.capture import NEAREST, Aside, Call, Constant, register

NEAREST.update(
    {
        "conv3d": "conv2d",
        "conv_transpose3d": "conv_transpose2d",
        "max_pool3d": "max_pool2d",
        "avg_pool3d": "avg_pool2d",
        "upsample_bicubic2d": "mode='bilinear'",
        "upsample_linear1d": "mode='nearest'",
        "embedding_bag": "embedding and mean",
    }
)


def _two(given: Any, rank: int, filler: int) -> list[int]:
    """A size per direction as [rows, columns]; a sequence has one row."""
    values = list(given) if isinstance(given, (list, tuple)) else [given] * rank
    values = values * rank if len(values) == 1 else values
    return [filler, *values] if rank == 1 else values


def _pads(call: Call, kernel: Sequence[int], dilation: Sequence[int], rank: int) -> list[int]:
    """[up, down, left, right]."""
    given = call.get("padding", 0)
    if given == "valid":
        return [0, 0, 0, 0]
    if given == "same":
        total = [d * (k - 1) for k, d in zip(kernel, dilation, strict=True)]
        return [part for size in total for part in (size // 2, size - size // 2)]
    high, wide = _two(given, rank, 0)
    return [high, high, wide, wide]


def _short(values: Sequence[int]) -> int | list[int]:
    """One number where all are the same."""
    return values[0] if len(set(values)) == 1 else list(values)


@register("conv1d", "conv2d", "convolution")
def _convolution(call: Call) -> Any:
    view, weight, bias = call.view("input"), call.weight("weight"), call.weight("bias")
    assert weight is not None
    rank = weight.value.ndim - 2
    if rank not in (1, 2) or call.get("transposed"):
        raise CannotTakeError(f"a convolution of {rank} dimensions", "conv2d")
    groups, co = call["groups"], weight.value.shape[0]
    kernel = _two(list(weight.value.shape[2:]), rank, 1)
    stride, dilation = _two(call["stride"], rank, 1), _two(call["dilation"], rank, 1)
    pads = _pads(call, kernel, dilation, rank)
    options: dict[str, Any] = {}
    if rank == 1:
        word = in_order(call, view).word
        options |= {"out_channels": co, "kernel": kernel[1], "stride": stride[1], "groups": groups}
        options |= {"padding": _short(pads[2:]), "dilation": dilation[1]}
        image(call, view, 1)
        return _with_bias(call, "conv1d", (word,), _plain(options), weight, bias)
    word, ci = image(call, view, 2), view.shape[1]
    if kernel == [1, 1] and stride == [1, 1] and pads == [0, 0, 0, 0] and groups == 1:
        weights = weight.moved(lambda array: array[:, :, 0, 0])
        options["out_channels"] = co
        return _with_bias(call, "pointwise", (word,), _plain(options), weights, bias)
    options |= {"kernel": _short(kernel), "stride": _short(stride), "dilation": _short(dilation)}
    options["padding"] = _short(pads)
    if groups == ci == co and groups > 1:
        return _with_bias(call, "depthwise", (word,), _plain(options), weight, bias)
    options |= {"out_channels": co, "groups": groups}
    return _with_bias(call, "conv2d", (word,), _plain(options), weight, bias)


def _with_bias(
    call: Call,
    kind: str,
    inputs: Sequence[str],
    options: dict[str, Any],
    weight: Given,
    bias: Given | None,
    *,
    suffix: str = "",
) -> View:
    """A layer with weight and bias; a bias that is trained beside a frozen weight is a layer of its own."""
    if bias is None or weight.trained or not bias.trained:
        options = {**options, **({"bias": True} if bias is not None else {})}
        return call.layer(kind, inputs, options, {"w": weight, "b": bias}, suffix=suffix)
    made = call.layer(kind, inputs, options, {"w": weight}, suffix=suffix)
    space = (1,) * (len(made.stored) - 2) if kind != "linear" else ()
    own = bias.moved(lambda array: array.reshape(-1, *space))
    if own.value.shape == made.stored[1:]:
        return call.layer("position", (made.word,), {}, {"w": own}, suffix=f"{suffix}_bias")
    shape = {"shape": list(own.value.shape)}
    held = call.layer("parameter", ("input",), shape, {"w": own}, suffix=f"{suffix}_bias")
    words = (made.word, held.word)
    return call.layer("broadcast_add", words, suffix=f"{suffix}_biased")


_DEFAULTS = {"stride": 1, "padding": 0, "dilation": 1, "groups": 1, "output_padding": 0}


def _plain(options: dict[str, Any]) -> dict[str, Any]:
    """Without what says only the default."""
    return {key: value for key, value in options.items() if _DEFAULTS.get(key) != value}


@register("conv_transpose1d", "conv_transpose2d")
def _conv_transpose(call: Call) -> Any:
    view, weight, bias = call.view("input"), call.weight("weight"), call.weight("bias")
    assert weight is not None
    rank = weight.value.ndim - 2
    kernel = _two(list(weight.value.shape[2:]), rank, 1)
    dilation = _two(call["dilation"], rank, 1)
    options = {
        "out_channels": weight.value.shape[1] * call["groups"],
        "kernel": _short(kernel),
        "stride": _short(_two(call["stride"], rank, 1)),
        "padding": _short(_pads(call, kernel, dilation, rank)),
        "dilation": _short(dilation),
        "output_padding": _short(_two(call["output_padding"], rank, 0)),
        "groups": call["groups"],
    }
    if rank == 1:
        weight = weight.moved(lambda array: array[:, :, None])
    word = image(call, view, rank)
    return fresh(_with_bias(call, "conv_transpose2d", (word,), _plain(options), weight, bias), call.shape)


def linear(call: Call, view: View, weight: Given, bias: Given | None, *, suffix: str = "") -> View:
    """Every row of the last dimension times the rows of a matrix [out, in]."""
    word, rest = rows(call, view, len(view.dims) - 1)
    options = {"out_features": weight.value.shape[0]}
    made = _with_bias(call, "linear", (word,), options, weight, bias, suffix=suffix)
    return regrouped(view, made, rest, weight.value.shape[0])


@register("linear")
def _linear(call: Call) -> Any:
    weight = call.weight("weight")
    assert weight is not None
    return linear(call, call.view("input"), weight, call.weight("bias"))


@register("addmm")
def _addmm(call: Call) -> Any:
    if call["beta"] != 1 or call["alpha"] != 1:
        raise CannotTakeError("beta and alpha other than 1", "scale by itself")
    weight = call.weight("mat2")
    assert weight is not None
    return linear(call, call.view("mat1"), weight.moved(np.transpose), call.weight("self"))


@register("embedding")
def _embedding(call: Call) -> Any:
    weight, view = call.weight("weight"), call.arguments["indices"]
    if weight is None or not isinstance(view, View):
        raise CannotTakeError("looks up a constant", "a parameter")
    if call.get("scale_grad_by_freq"):
        raise CannotTakeError("divides a row's gradient by how often it is read", "scale_grad_by_freq=False")
    vocabulary, features = weight.value.shape
    padding = call.get("padding_idx", -1)
    options: dict[str, Any] = {"vocabulary": vocabulary, "features": features}
    if padding >= 0:
        options["padding_id"] = padding
    ordered = in_order(call, view)
    made = call.layer("embedding", (ordered.word,), options, {"w": weight})
    return viewed(call, made, call.shape)


# Norms


def _affine(call: Call) -> dict[str, Given | None]:
    return {"w": call.weight("weight"), "b": call.weight("bias")}


def _norm_options(given: dict[str, Given | None], eps: float) -> dict[str, Any]:
    options: dict[str, Any] = {} if eps == 1e-5 else {"eps": eps}
    if given["w"] is None:
        options["affine"] = False
    return options


def _channels(call: Call, view: View) -> str:
    """A word stored [batch, channels, ...] for a norm of channels."""
    if view.batch_dim != 0 or not view.samples_only(0) or len(view.dims) < 2:
        raise CannotTakeError(f"its input {list(view.shape)} has no batch in front", "[batch, channels, ...]")
    return call.draft.reshaped(in_order(call, view).word, view.shape, call.name, call.where)


def _batch_norm(call: Call, *, frozen: bool) -> View:
    view, given = call.view("input"), _affine(call)
    options = _norm_options(given, call["eps"])
    running = {"running_mean": call.weight("running_mean"), "running_var": call.weight("running_var")}
    if frozen:
        options["fixed_statistics"] = True
    elif call["momentum"] != 0.1:
        options["momentum"] = call["momentum"]
    made = call.layer("batch_norm", (_channels(call, view),), options, {**given, **running})
    return fresh(made, view.shape)


@register("_native_batch_norm_legit_functional", "native_batch_norm", "batch_norm")
def _native_batch_norm(call: Call) -> Any:
    frozen = not call["training"]
    return [_batch_norm(call, frozen=frozen), *[Aside()] * 4]


@register("_native_batch_norm_legit_no_training")
def _frozen_batch_norm(call: Call) -> Any:
    return [_batch_norm(call, frozen=True), *[Aside()] * 2]


@register("_native_batch_norm_legit")
def _batch_norm_of_batch(call: Call) -> Any:
    if not call["training"]:
        raise CannotTakeError(
            "no statistics to normalise with", "track_running_stats=True, or module.train()"
        )
    return [_batch_norm(call, frozen=False), *[Aside()] * 2]


@register("instance_norm")
def _instance_norm(call: Call) -> Any:
    view, given = call.view("input"), _affine(call)
    options = _norm_options(given, call["eps"])
    running = {"running_mean": call.weight("running_mean"), "running_var": call.weight("running_var")}
    if not call["use_input_stats"]:
        options["fixed_statistics"] = True
    elif running["running_mean"] is not None:
        options |= {"running": True, "momentum": call["momentum"]}
    made = call.layer("instance_norm", (_channels(call, view),), options, {**given, **running})
    return fresh(made, view.shape)


@register("group_norm")
def _group_norm(call: Call) -> Any:
    view, given = call.view("input"), _affine(call)
    options = {**_norm_options(given, call["eps"]), "groups": call["num_groups"]}
    return fresh(call.layer("group_norm", (_channels(call, view),), options, given), view.shape)


def _row_norm(call: Call, kind: str, eps: float, given: dict[str, Given | None]) -> View:
    view = in_order(call, call.view("input"))
    row: Shape = tuple(call["normalized_shape"])
    count = len(row)
    if any(BATCH in dim for dim in view.dims[len(view.dims) - count :]):
        raise CannotTakeError("normalises over samples", "dimensions behind the batch")
    leading = elements(view.shape[: len(view.dims) - count]) // view.batch
    shape = (view.batch, *((leading,) if leading > 1 else ()), *row)
    word = call.draft.reshaped(view.word, shape, call.name, call.where)
    options = _norm_options(given, eps)
    if count > 1:
        options["axes"] = count
    if kind == "layer_norm" and given["w"] is not None and given["b"] is None:
        options["bias"] = False
    made = call.layer(kind, (word,), options, given)
    return View(made.word, made.stored, view.pieces, view.dims)


@register("layer_norm")
def _layer_norm(call: Call) -> Any:
    return _row_norm(call, "layer_norm", call["eps"], _affine(call))


@register("rms_norm")
def _rms_norm(call: Call) -> Any:
    return _row_norm(call, "rms_norm", call.get("eps", 2.0**-23), {"w": call.weight("weight")})


# Pooling


def _pooling(call: Call, rank: int) -> tuple[str, dict[str, Any]]:
    view = call.view("self")
    kernel = _two(call["kernel_size"], rank, 1)
    stride = _two(call["stride"], rank, 1) if call.get("stride") else kernel
    padding = _two(call["padding"], rank, 0)
    if call.get("ceil_mode"):
        space = [1, *view.shape[2:]] if rank == 1 else view.shape[2:]
        for size, k, s, p in zip(space, kernel, stride, padding, strict=True):
            if (size + 2 * p - k) % s:
                raise CannotTakeError(f"ceil_mode with windows that reach beyond {size}", "ceil_mode=False")
    options: dict[str, Any] = {"kernel": _short(kernel)}
    if stride != kernel:
        options["stride"] = _short(stride)
    if any(padding):
        options["padding"] = _short(padding)
    return image(call, view, rank), options


def _max_pool(call: Call, rank: int) -> View:
    if any(size != 1 for size in _two(call.get("dilation", 1), rank, 1)):
        raise CannotTakeError("a dilated window", "dilation=1")
    word, options = _pooling(call, rank)
    return call.layer("max_pool2d", (word,), options)


@register("max_pool2d")
def _max_pool2d(call: Call) -> Any:
    return _max_pool(call, 2)


@register("max_pool1d")
def _max_pool1d(call: Call) -> Any:
    return fresh(_max_pool(call, 1), call.shape)


@register("max_pool2d_with_indices", "max_pool1d_with_indices")
def _max_pool_indices(call: Call) -> Any:
    if call.used(1):
        raise CannotTakeError("its places are used", "return_indices=False")
    return [fresh(_max_pool(call, len(shape_dims(call)) - 2), shape_dims(call)), None]


def shape_dims(call: Call) -> Shape:
    """Shape of the first of several results."""
    return tuple(int(size) for size in call.node.meta["val"][0].shape)


@register("avg_pool1d", "avg_pool2d")
def _avg_pool(call: Call) -> Any:
    if call.get("divisor_override"):
        raise CannotTakeError("a divisor of its own", "divisor_override=None")
    word, options = _pooling(call, len(call.shape) - 2)
    if "padding" in options and not call["count_include_pad"]:
        options["count_include_pad"] = False
    return fresh(call.layer("avg_pool2d", (word,), options), call.shape)


def _adaptive(call: Call, kind: str) -> View:
    view = call.view("self")
    rank = len(view.dims) - 2
    outputs, sizes = call.shape[2:], view.shape[2:]
    if outputs == sizes:
        return view
    word = image(call, view, rank)
    if kind == "avg_pool2d" and set(outputs) == {1}:
        return fresh(call.layer("global_avg_pool", (word,)), call.shape)
    if any(size % output for size, output in zip(sizes, outputs, strict=True)):
        raise CannotTakeError(
            f"windows of unequal size: {list(sizes)} to {list(outputs)}", f"sizes that {list(outputs)} divide"
        )
    kernel = _two([size // output for size, output in zip(sizes, outputs, strict=True)], rank, 1)
    return fresh(call.layer(kind, (word,), {"kernel": _short(kernel)}), call.shape)


@register("adaptive_avg_pool1d", "adaptive_avg_pool2d")
def _adaptive_avg_pool(call: Call) -> Any:
    return _adaptive(call, "avg_pool2d")


@register("adaptive_max_pool1d", "adaptive_max_pool2d")
def _adaptive_max_pool(call: Call) -> Any:
    view = call.view("self")
    outputs, sizes = shape_dims(call)[2:], view.shape[2:]
    if call.used(1) or any(size % output for size, output in zip(sizes, outputs, strict=True)):
        raise CannotTakeError(
            f"windows of unequal size, or places: {list(sizes)} to {list(outputs)}",
            "sizes that the result divides, return_indices=False",
        )
    rank = len(sizes)
    kernel = _two([size // output for size, output in zip(sizes, outputs, strict=True)], rank, 1)
    made = call.layer("max_pool2d", (image(call, view, rank),), {"kernel": _short(kernel)})
    return [fresh(made, shape_dims(call)), None]


@register("upsample_nearest2d", "upsample_nearest1d", "_upsample_nearest_exact2d", "upsample_bilinear2d")
def _upsample(call: Call) -> Any:
    op = str(call.node.target)
    if call.get("align_corners"):
        raise CannotTakeError("align_corners", "align_corners=False")
    if "exact" in op:
        raise CannotTakeError("nearest-exact", "mode='nearest'")
    rank = len(call.shape) - 2
    scales = call.get("scale_factors")
    sizes = call.view("input" if "input" in call.arguments else "self").shape[2:]
    if scales and any(int(size * scale) != size * scale for size, scale in zip(sizes, scales, strict=True)):
        raise CannotTakeError(f"scales {scales} that do not give whole sizes", "size=")
    options: dict[str, Any] = {"size": _two(list(call.shape[2:]), rank, 1)}
    if "bilinear" in op:
        options["mode"] = "bilinear"
    view = call.view("input" if "input" in call.arguments else "self")
    return fresh(call.layer("interpolation", (image(call, view, rank),), options), call.shape)


# Recurrent layers


def _initial(call: Call, found: Any, layer: int, view: View) -> str | None:
    """The word of an initial state [layers, batch, hidden]; None for zeros."""
    if isinstance(found, Constant):
        if found.trained or bool((found.tensor != 0).any()):
            raise CannotTakeError("an initial state that is neither zeros nor computed", "no initial state")
        return None
    state = call.as_view(found)
    part = sliced(call, state, 0, layer, layer + 1) if state.shape[0] > 1 else state
    part = in_order(call, part.without_dim(0))
    if part.batch_dim != 0 or part.batch != view.batch:
        raise CannotTakeError(
            "an initial state without the batch", "a state of shape [layers, batch, hidden], or none"
        )
    return part.word


def _recurrent(call: Call, kind: str, view: View, states: Sequence[Any]) -> list[Any]:
    weights = [call.as_given(item) for item in call["params"]]
    layers, biases = call["num_layers"], call["has_biases"]
    if call["bidirectional"]:
        raise CannotTakeError("two directions", "bidirectional=False")
    each = 4 if biases else 2
    if len(weights) != each * layers:
        raise CannotTakeError("a projection", "proj_size=0")
    time_dim, batch_dim = (1, 0) if call["batch_first"] else (0, 1)
    if len(view.dims) != 3 or view.batch_dim != batch_dim or not view.samples_only(batch_dim):
        found = "first" if batch_dim == 0 else "second"
        raise CannotTakeError(
            f"its input {list(view.shape)} does not have the batch {found}", "batch_first=True"
        )
    ordered = in_order(call, view if batch_dim == 0 else view.swapped(0, 1))
    word = call.draft.reshaped(ordered.word, ordered.shape, call.name, call.where)
    made: list[View] = []
    for layer in range(layers):
        wx, wh, *bias = weights[each * layer : each * (layer + 1)]
        assert wx is not None
        assert wh is not None
        given: dict[str, Given | None] = {"wx": wx.moved(np.transpose), "wh": wh.moved(np.transpose)}
        given |= dict(zip(("bx", "bh"), bias, strict=False))
        words = [_initial(call, state, layer, view) for state in states]
        inputs = [word, *(item for item in words if item is not None)]
        if any(words) and not all(words):
            raise CannotTakeError("only one of two initial states computed", "both or none")
        options = {"hidden": wh.value.shape[1], **({} if biases else {"bias": False})}
        suffix = f"_l{layer}" if layers > 1 else ""
        made.append(call.layer(kind, inputs, options, given, suffix=suffix))
        word = made[-1].word
        if layer < layers - 1 and call["train"] and call["dropout"]:
            word = call.layer("dropout", (word,), {"p": call["dropout"]}, suffix=f"_dropout{layer}").word

    def last() -> View:
        parts = []
        for index, item in enumerate(made):
            end = sliced(call, item, 1, item.shape[1] - 1, item.shape[1], suffix=f"_h{index}").without_dim(1)
            parts.append(end.with_dim(0))
        if len(parts) == 1:
            return parts[0]
        words = [call.draft.reshaped(part.word, (part.batch, 1, part.shape[2]), call.name) for part in parts]
        joined = call.layer("concat", words, {"axis": 0}, suffix="_h")
        return joined.swapped(0, 1)

    output = made[-1] if batch_dim == 0 else made[-1].swapped(0, 1)
    if time_dim == 1 and output.shape != shape_dims(call):
        output = viewed(call, output, shape_dims(call))

    def no_cell() -> View:
        raise CannotTakeError("its last cell is used", "its output or its last state")

    return [output, last, no_cell]


@register("gru")
def _gru(call: Call) -> Any:
    return _recurrent(call, "gru", call.view("input"), [call["hx"]])[:2]


@register("lstm")
def _lstm(call: Call) -> Any:
    return _recurrent(call, "lstm", call.view("input"), call["hx"])


@register("rnn_tanh")
def _rnn(call: Call) -> Any:
    return _recurrent(call, "rnn", call.view("input"), [call["hx"]])[:2]


NEAREST["rnn_relu"] = "nonlinearity='tanh'"
