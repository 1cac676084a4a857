# SPDX-License-Identifier: Apache-2.0
"""ATen ops with parameters or windows: convolutions, linear layers, norms, pooling, recurrent layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from importers.graph.arranging import viewed
from importers.graph.draft import CannotTakeError
from importers.graph.node import Handler, Node
from importers.graph.torch_capture import MOVES_STATISTICS, Aside, Running
from importers.graph.views import View
from importers.graph.weights import Constant
from importers.place.convolution import (
    Window,
    convolution,
    each,
    folded,
    transposed_convolution,
    unfolded,
    window,
)
from importers.place.moves import joined, sliced
from importers.place.norms import channel_norm, row_norm
from importers.place.pairs import applied
from importers.place.pooling import Stretch, averaged_image, interpolated, pool_options, pooled, stretched
from importers.place.products import gathered, linear, looked_up
from importers.place.recurrences import initial_state, last_state, recurrent, sequence


def _window(node: Node, kernel: Sequence[int], stride: Any) -> Window:
    rank, padding = len(kernel), node.get("padding", 0)
    automatic = {"same": "SAME_UPPER", "valid": "VALID"}.get(padding, "") if isinstance(padding, str) else ""
    pads = each(0 if automatic else padding, rank)
    dilation = each(node.get("dilation", 1), rank)
    return window(kernel, each(stride, rank), dilation, [*pads, *pads], automatic, node.x.shape[2:])


def _convolution(node: Node) -> View:
    weight, bias = node.needed("weight"), node.constant("bias")
    kernel = weight.shape[2:]
    if len(kernel) not in (1, 2) or node.get("transposed"):
        raise CannotTakeError(f"a convolution of {len(kernel)} dimensions is not supported", "use conv2d")
    over = _window(node, kernel, node["stride"])
    return convolution(node, node.x, weight, bias, over, node["groups"])


def _conv_transpose(node: Node) -> View:
    weight, bias = node.needed("weight"), node.constant("bias")
    kernel = weight.shape[2:]
    over = _window(node, kernel, node["stride"])
    padding = each(node["output_padding"], len(kernel))
    return transposed_convolution(node, node.x, weight, bias, over, node["groups"], padding)


def _addmm(node: Node) -> View:
    if node["beta"] != 1 or node["alpha"] != 1:
        raise CannotTakeError("beta or alpha other than 1 is not supported", "multiply in a separate op")
    return linear(node, node.view("mat1"), node.needed("mat2").moved(np.transpose), node.constant("self"))


def _embedding(node: Node) -> View:
    table, view = node.constant("weight"), node["indices"]
    if table is None:
        raise CannotTakeError("the table of the embedding is not a parameter", "use torch.nn.Embedding")
    if not isinstance(view, View):
        return viewed(node, gathered(node, table, view.value), node.shape)
    if node.get("scale_grad_by_freq"):
        raise CannotTakeError("scale_grad_by_freq=True is not supported", "set scale_grad_by_freq=False")
    return looked_up(node, view, table, node.get("padding_idx", -1))


# Norms


def _roles(node: Node) -> dict[str, Constant | None]:
    names = {"w": "weight", "b": "bias", "running_mean": "running_mean", "running_var": "running_var"}
    return {
        role: item.start if isinstance(item := node.get(name), Running) else node.constant(name)
        for role, name in names.items()
        if name in node.arguments
    }


def _batch_norm(node: Node) -> list[Any]:
    training = "no_training" not in node.op and node["training"]
    given = _roles(node)
    if not training and "running_mean" not in given:
        raise CannotTakeError(
            "the layer normalises with running statistics, but stores none",
            "use track_running_stats=True, or module.train()",
        )
    options = {"momentum": node["momentum"]} if training else {"fixed_statistics": True}
    made = channel_norm(node, "batch_norm", node.x, given, node["eps"], options)
    results: list[Any] = [made, *[Aside()] * (len(node.shapes) - 1)]
    if node.op == MOVES_STATISTICS:
        name = next(layer.name for layer in reversed(node.draft.layers) if layer.type == "batch_norm")
        for place, role in enumerate(("running_mean", "running_var"), start=3):
            before = node[role]
            if isinstance(before, Running):
                node.draft.take_from(f"{before.layer}.{role}", f"{name}.{role}")
            results[place] = Running(name, given[role])
    return results


def _instance_norm(node: Node) -> View:
    given, options = _roles(node), dict[str, Any]()
    if not node["use_input_stats"]:
        options["fixed_statistics"] = True
    elif given["running_mean"] is not None:
        options |= {"running": True, "momentum": node["momentum"]}
    return channel_norm(node, "instance_norm", node.x, given, node["eps"], options)


def _group_norm(node: Node) -> View:
    options = {"groups": node["num_groups"]}
    return channel_norm(node, "group_norm", node.x, _roles(node), node["eps"], options)


def _row_norm(node: Node) -> View:
    eps, count = node.get("eps", 2.0**-23), len(node["normalized_shape"])
    return row_norm(node, node.op, node.x, _roles(node), eps, count)


# Pooling


def _pool(node: Node) -> Any:
    """Any pool by windows; max-pools may say where they found what."""
    kind = "max_pool2d" if node.op.startswith("max") else "avg_pool2d"
    if node.get("divisor_override"):
        raise CannotTakeError("divisor_override is not supported", "set divisor_override=None")
    kernel = each(node["kernel_size"], len(node.shape) - 2)
    over = _window(node, kernel, node.get("stride") or kernel)
    return _pooled(node, kind, over, ceil=bool(node.get("ceil_mode")), counted=node.get("count_include_pad"))


def _pooled(node: Node, kind: str, over: Window, *, ceil: bool = False, counted: bool | None = None) -> Any:
    if 1 in node.used:
        raise CannotTakeError("the output of the indices is not supported", "use return_indices=False")
    options = pool_options(over, node.x.shape[2:], ceil=ceil, counted=counted)
    made = pooled(node, kind, node.x, options, len(node.shape) - 2)
    return [made, None] if node.several else made


def _adaptive(node: Node) -> Any:
    kind, rank = "max_pool2d" if "max" in node.op else "avg_pool2d", node.rank - 2
    outputs, sizes = node.shape[2:], node.x.shape[2:]
    if kind == "avg_pool2d" and outputs == sizes:
        return node.x
    if kind == "avg_pool2d" and set(outputs) == {1}:
        return averaged_image(node, node.x, rank)
    if any(size % output for size, output in zip(sizes, outputs, strict=True)):
        raise CannotTakeError(
            f"pooling windows of different sizes ({list(sizes)} to {list(outputs)}) are not supported",
            f"use input sizes that are multiples of {list(outputs)}",
        )
    kernel = [size // output for size, output in zip(sizes, outputs, strict=True)]
    return _pooled(node, kind, window(kernel, kernel, [1] * rank, [0] * (2 * rank)))


def _upsample(node: Node) -> View:
    if node.shape == node.x.shape:
        return node.x
    if node.op.endswith("_aa"):
        raise CannotTakeError("antialiased interpolation is not supported", "use antialias=False")
    scales = node.get("scale_factors")
    if scales and any(size * scale % 1 for size, scale in zip(node.x.shape[2:], scales, strict=True)):
        raise CannotTakeError(f"scales {scales} do not result in whole sizes", "use size, not scale_factor")
    kind = next(kind for kind in ("linear", "cubic", "nearest") if kind in node.op)
    aligned = node.get("align_corners")
    if aligned or kind == "cubic" or "exact" in node.op:
        how = Stretch(kind, "align_corners" if aligned else "half_pixel")
        return stretched(node, node.x, node.shape[2:], how)
    return interpolated(node, node.x, node.shape[2:], "bilinear" if kind == "linear" else "nearest")


def _windows(node: Node) -> View:
    """im2col and col2im, with the same padding on both sides."""
    over = _window(node, node["kernel_size"], node["stride"])
    if node.op == "im2col":
        return unfolded(node, node.x, over)
    return folded(node, node.x, tuple(node["output_size"]), over)


# Recurrent layers


def _recurrent(node: Node) -> list[Any]:
    kind, view = node.op.removesuffix("_tanh"), node.x
    states = node["hx"] if kind == "lstm" else [node["hx"]]
    weights = [node.as_constant(item) for item in node["params"]]
    layers, each, ways = node["num_layers"], 4 if node["has_biases"] else 2, 1 + node["bidirectional"]
    if len(weights) != each * layers * ways:
        raise CannotTakeError("an LSTM with projections is not supported", "set proj_size=0")
    batch_dim = 0 if node["batch_first"] else 1
    word = sequence(node, view, batch_dim, "use batch_first=True")
    made: list[View] = []
    for layer in range(layers):
        suffix = f"_l{layer}" if layers > 1 else ""
        for back in range(ways):
            number = ways * layer + back
            wx, wh, *biases = weights[each * number : each * (number + 1)]
            assert wx is not None
            assert wh is not None
            given: dict[str, Constant | None] = dict(zip(("bx", "bh"), biases, strict=False))
            given |= {"wx": wx.moved(np.transpose), "wh": wh.moved(np.transpose)}
            starts = [_initial(node, state, number, wh.shape[1], view.batch) for state in states]
            ending = f"{suffix}_reverse" if back else suffix
            made.append(recurrent(node, kind, word, starts, given, suffix=ending, back=bool(back)))
        output = made[-1] if ways == 1 else joined(node, made[-2:], 2, suffix=f"{suffix}_both")
        word = output.word
        if layer < layers - 1 and node["train"] and node["dropout"]:
            word = applied(node, "dropout", output, {"p": node["dropout"]}, suffix=f"_dropout{layer}").word
    if 2 in node.used:
        raise CannotTakeError(
            "the output of the last cell state is not supported", "use the output or the last hidden state"
        )
    output = output.swapped(0, batch_dim)
    if output.shape != node.shape:
        output = viewed(node, output, node.shape)
    return [output, _last(node, made, ways) if 1 in node.used else None, None]


def _initial(node: Node, state: Any, number: int, hidden: int, batch: int) -> str | None:
    """The word of the initial state of one of several layers and directions; None for zeros."""
    if isinstance(state, View) and state.shape[0] > 1:
        state = sliced(node, state, 0, number, number + 1)
    if isinstance(state, Constant) and state.trained:
        raise CannotTakeError("a trained initial state is not supported", "use the default state of zeros")
    return initial_state(node, state, hidden, batch, "use no initial state")


def _last(node: Node, made: Sequence[View], ways: int) -> View:
    """The last states of all layers and directions, [layers · directions, batch, hidden]."""
    parts = [
        last_state(node, item, suffix=f"_h{index}", back=index % ways == 1) for index, item in enumerate(made)
    ]
    return parts[0] if len(parts) == 1 else joined(node, parts, 0, suffix="_h")


HANDLERS: Mapping[str, Handler] = {
    **dict.fromkeys(("conv1d", "conv2d", "convolution"), _convolution),
    **dict.fromkeys(("conv_transpose1d", "conv_transpose2d"), _conv_transpose),
    "linear": lambda node: linear(node, node.x, node.needed("weight"), node.constant("bias")),
    "addmm": _addmm,
    "embedding": _embedding,
    **dict.fromkeys(
        (
            *("_native_batch_norm_legit_functional", "native_batch_norm", "batch_norm"),
            *("_native_batch_norm_legit_no_training", "_native_batch_norm_legit"),
        ),
        _batch_norm,
    ),
    "instance_norm": _instance_norm,
    "group_norm": _group_norm,
    **dict.fromkeys(("layer_norm", "rms_norm"), _row_norm),
    **dict.fromkeys(("max_pool1d", "max_pool2d", "avg_pool1d", "avg_pool2d"), _pool),
    **dict.fromkeys(("max_pool1d_with_indices", "max_pool2d_with_indices"), _pool),
    **dict.fromkeys(("adaptive_avg_pool1d", "adaptive_avg_pool2d"), _adaptive),
    **dict.fromkeys(("adaptive_max_pool1d", "adaptive_max_pool2d"), _adaptive),
    **dict.fromkeys(
        (
            *("upsample_nearest1d", "upsample_nearest2d", "_upsample_nearest_exact1d"),
            *("_upsample_nearest_exact2d", "upsample_linear1d", "upsample_bilinear2d", "upsample_bicubic2d"),
            *("_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa"),
        ),
        _upsample,
    ),
    **dict.fromkeys(("im2col", "col2im"), _windows),
    **dict.fromkeys(("gru", "lstm", "rnn_tanh"), _recurrent),
}
