# SPDX-License-Identifier: Apache-2.0
"""Every layer, by its type in a model file, as its forward pass in PyTorch; autograd has the backward one.

A forward function takes the inputs, the tensors of the layer by name (parameters, running statistics, masks)
and the options as keywords, whose defaults are those of docs/primitives.md. It gives the output, several
outputs, or tensors by the ends of their names. Images and weights come in the order CHW. What only the
lowering knows (`im2col`, `stepwise`) is taken and not used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf, pi, sqrt
from typing import Any

import torch
from torch.nn import functional as fn

from truth.source import DisagreementError

Inputs = Sequence[Any]
Held = Mapping[str, Any]
Names = Callable[[Mapping[str, Any]], tuple[str, ...]]


def _none(options: Mapping[str, Any]) -> tuple[str, ...]:
    return ()


@dataclass(frozen=True, slots=True)
class Layer:
    """One type: `parameters` and `buffers` name its tensors, given its options.

    `layouts` are the orders of axes of the images it takes, None for any; `view` says that it moves nothing.
    """

    forward: Callable[..., Any]
    parameters: Names = _none
    buffers: Names = _none
    masks: tuple[str, ...] = ()
    constants: tuple[str, ...] = ()
    """Parameters that no training moves, as their gradient is 0."""
    layouts: tuple[str, ...] | None = ("CHW",)
    view: bool = False
    overwrites: str = ""
    """Parameter whose place the output takes."""


BOTH = ("CHW", "HWC")

LAYERS: dict[str, Layer] = {}
"""Every layer by type."""


def _entry(name: str, **how: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def register(forward: Callable[..., Any]) -> Callable[..., Any]:
        LAYERS[name] = Layer(forward, **how)
        return forward

    return register


def _each(name: str, forward: Callable[..., Any]) -> None:
    """A layer that works element by element."""
    LAYERS[name] = Layer(forward, layouts=None)


def _with_bias(*names: str, default: bool = False, biases: tuple[str, ...] = ("bias",)) -> Names:
    return lambda options: (*names, *(biases if options.get("bias", default) else ()))


def _shaped(held: Held, name: str, *shape: int) -> Any:
    if tuple(held[name].shape) != shape:
        raise DisagreementError(name, f"has shape {list(held[name].shape)}, the model says {list(shape)}")
    return held[name]


def _two(value: Any) -> tuple[int, int]:
    rows, columns = (value, value) if isinstance(value, int) else value
    return rows, columns


def _sides(value: Any) -> tuple[int, int, int, int]:
    """(up, down, left, right) of one number, [rows, columns], or all four."""
    if isinstance(value, int):
        return value, value, value, value
    if len(value) == 2:
        return value[0], value[0], value[1], value[1]
    up, down, left, right = value
    return up, down, left, right


# Windows


def _convolution(
    x: Any, weight: Any, bias: Any, stride: Any, padding: Any, dilation: Any, groups: int
) -> Any:
    up, down, left, right = _sides(padding)
    padded = fn.pad(x, (left, right, up, down))
    return fn.conv2d(padded, weight, bias, _two(stride), 0, _two(dilation), groups)


@_entry("conv2d", parameters=_with_bias("weight"), layouts=BOTH)
def _conv2d(
    x: Inputs,
    held: Held,
    *,
    kernel: Any,
    out_channels: int,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    bias: bool = False,
    groups: int = 1,
    im2col: str = "cores",
) -> Any:
    weight = _shaped(held, "weight", out_channels, x[0].shape[1] // groups, *_two(kernel))
    return _convolution(x[0], weight, held.get("bias"), stride, padding, dilation, groups)


@_entry("depthwise", parameters=_with_bias("weight"), layouts=BOTH)
def _depthwise(
    x: Inputs,
    held: Held,
    *,
    kernel: Any,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    bias: bool = False,
) -> Any:
    channels = x[0].shape[1]
    weight = _shaped(held, "weight", channels, 1, *_two(kernel))
    return _convolution(x[0], weight, held.get("bias"), stride, padding, dilation, channels)


@_entry("pointwise", parameters=_with_bias("weight"), layouts=BOTH)
def _pointwise(x: Inputs, held: Held, *, out_channels: int, bias: bool = False) -> Any:
    weight = _shaped(held, "weight", out_channels, x[0].shape[1])
    return fn.conv2d(x[0], weight[:, :, None, None], held.get("bias"))


@_entry("conv1d", parameters=_with_bias("weight"))
def _conv1d(
    x: Inputs,
    held: Held,
    *,
    out_channels: int,
    kernel: int,
    stride: int = 1,
    padding: Any = 0,
    dilation: int = 1,
    groups: int = 1,
    bias: bool = False,
    im2col: str = "cores",
) -> Any:
    weight = _shaped(held, "weight", out_channels, x[0].shape[1] // groups, kernel)
    padded = fn.pad(x[0], _two(padding))
    return fn.conv1d(padded, weight, held.get("bias"), stride, 0, dilation, groups)


@_entry("conv_transpose2d", parameters=_with_bias("weight"), layouts=BOTH)
def _conv_transpose2d(
    x: Inputs,
    held: Held,
    *,
    kernel: Any,
    out_channels: int,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    bias: bool = False,
    groups: int = 1,
    output_padding: Any = 0,
) -> Any:
    weight = _shaped(held, "weight", x[0].shape[1], out_channels // groups, *_two(kernel))
    up, down, left, right = _sides(padding)
    # PyTorch has the same padding on both sides only: compute all, let it grow at its end, then cut.
    whole = fn.conv_transpose2d(x[0], weight, None, _two(stride), 0, 0, groups, _two(dilation))
    rows, columns = _two(output_padding)
    grown = fn.pad(whole, (0, columns, 0, rows))
    y = grown[:, :, up : grown.shape[2] - down, left : grown.shape[3] - right]
    return y + held["bias"][:, None, None] if "bias" in held else y


@_entry("avg_pool2d")
def _avg_pool2d(
    x: Inputs,
    held: Held,
    *,
    kernel: Any,
    stride: Any = None,
    padding: Any = 0,
    count_include_pad: bool = True,
) -> Any:
    def mean(image: Any) -> Any:
        up, down, left, right = _sides(padding)
        step = _two(kernel if stride is None else stride)
        return fn.avg_pool2d(fn.pad(image, (left, right, up, down)), _two(kernel), step)

    return mean(x[0]) if count_include_pad else mean(x[0]) / mean(torch.ones_like(x[0]))


@_entry("max_pool2d")
def _max_pool2d(x: Inputs, held: Held, *, kernel: Any, stride: Any = None, padding: Any = 0) -> Any:
    step, (up, down, left, right) = _two(kernel if stride is None else stride), _sides(padding)
    padded = fn.pad(x[0], (left, right, up, down), value=float("-inf"))
    y, places = fn.max_pool2d(padded, _two(kernel), step, return_indices=True)
    rows = places // padded.shape[3] - step[0] * torch.arange(y.shape[2])[:, None]
    columns = places % padded.shape[3] - step[1] * torch.arange(y.shape[3])
    return {"out": y, "argmax": (16 if max(_two(kernel)) <= 16 else 65536) * rows + columns}


_entry("global_avg_pool")(lambda x, held: x[0].mean(dim=(2, 3), keepdim=True))


@_entry("interpolation")
def _interpolation(
    x: Inputs, held: Held, *, mode: str = "nearest", size: Any = None, scale: Any = None
) -> Any:
    rows, columns = x[0].shape[2:]
    wanted = tuple(size) if size is not None else (int(rows * scale), int(columns * scale))
    corners = {"align_corners": False} if mode == "bilinear" else {}
    return fn.interpolate(x[0], size=wanted, mode=mode, **corners)


# Matrices


@_entry("linear", parameters=_with_bias("weight"))
def _linear(x: Inputs, held: Held, *, out_features: int, bias: bool = False) -> Any:
    return fn.linear(x[0], _shaped(held, "weight", out_features, x[0].shape[-1]), held.get("bias"))


def _aligned(x: Any, axes: int) -> Any:
    """A batch whose samples have this many axes: those in front are of size 1, as NumPy broadcasts."""
    return x.reshape(len(x), *(1,) * (axes - (x.ndim - 1)), *x.shape[1:])


@_entry("matmul", layouts=None)
def _matmul(x: Inputs, held: Held, *, transpose_b: bool = False) -> Any:
    left = x[0].unsqueeze(1) if x[0].ndim == 2 else x[0]
    vector = x[1].ndim == 2
    right = x[1].unsqueeze(2) if vector else x[1].mT if transpose_b else x[1]
    axes = max(left.ndim, right.ndim) - 1
    y = _aligned(left, axes) @ _aligned(right, axes)
    if vector:
        y = y.squeeze(-1)
    if x[0].ndim == 2:
        y = y.squeeze(-1 if vector else -2)
    return y.reshape(-1, 1) if y.ndim == 1 else y


@_entry("embedding", parameters=lambda options: ("weight",), layouts=None)
def _embedding(
    x: Inputs, held: Held, *, vocabulary: int, features: int, padding_id: int | None = None
) -> Any:
    return fn.embedding(x[0].long(), _shaped(held, "weight", vocabulary, features), padding_idx=padding_id)


ATTENTION = tuple("qkvo")


def low_rank_names(adapter: Mapping[str, Any] | None) -> tuple[str, ...]:
    """The matrices of the adapters of attention."""
    parts = (adapter.get("projections") or ATTENTION) if adapter else ()
    return tuple(f"w{part}_{end}" for part in parts for end in ("down", "up"))


def _of_attention(options: Mapping[str, Any]) -> tuple[str, ...]:
    biases = tuple(f"b{part}" for part in ATTENTION) if options.get("bias") else ()
    weights = tuple(f"w{part}" for part in ATTENTION)
    return (*weights, *biases, *low_rank_names(options.get("adapter")))


@_entry(
    "mhsa",
    parameters=_of_attention,
    constants=("bk",),  # the same number added to all scores of a query
    layouts=None,
)
def _mhsa(
    x: Inputs,
    held: Held,
    *,
    heads: int,
    features: int | None = None,
    bias: bool = False,
    adapter: Mapping[str, Any] | None = None,
) -> Any:
    samples, length, width = x[0].shape
    inner = width if features is None else features

    def weight(part: str, rows: int, columns: int) -> Any:
        """With the adapter's product in it."""
        whole = _shaped(held, f"w{part}", rows, columns)
        if adapter is None or f"w{part}_up" not in held:
            return whole
        rank = adapter["rank"]
        up = _shaped(held, f"w{part}_up", rows, rank)
        product = up @ _shaped(held, f"w{part}_down", rank, columns)
        return whole + (adapter.get("alpha") or rank) / rank * product

    queries, keys, values = (
        fn.linear(x[0], weight(part, inner, width), held.get(f"b{part}"))
        .reshape(samples, length, heads, inner // heads)
        .transpose(1, 2)
        for part in "qkv"
    )
    mixed = fn.scaled_dot_product_attention(queries, keys, values).transpose(1, 2)
    return fn.linear(mixed.reshape(samples, length, inner), weight("o", width, inner), held.get("bo"))


_entry("position", parameters=lambda options: ("weight",), layouts=None)(
    lambda x, held: x[0] + _shaped(held, "weight", *x[0].shape[1:])
)


@_entry("class_token", parameters=lambda options: ("weight",), layouts=None)
def _class_token(x: Inputs, held: Held) -> Any:
    token = _shaped(held, "weight", x[0].shape[-1])
    return torch.cat([token.expand(len(x[0]), 1, -1), x[0]], dim=1)


_entry("parameter", parameters=lambda options: ("weight",), layouts=None)(
    lambda x, held, *, shape, once=False, integers=False: _shaped(held, "weight", *shape).expand(
        1 if once else len(x[0]), *shape
    )
)


@_entry("projected", parameters=lambda options: ("weight",), layouts=None, overwrites="weight")
def _projected(x: Inputs, held: Held) -> Any:
    """The numbers of x, with the gradient of the weight whose place they take."""
    weight = _shaped(held, "weight", *x[0].shape[1:])
    return x[0].detach() + (weight - weight.detach())


# Recurrent: the weights are stored [inputs, gates].


def _recurrent(cell: str, gates: int) -> Callable[..., Any]:
    def forward(x: Inputs, held: Held, *, hidden: int, bias: bool = True, stepwise: bool = False) -> Any:
        rows = gates * hidden
        shapes = {"wx": (x[0].shape[2], rows), "wh": (hidden, rows), "bx": (rows,), "bh": (rows,)}
        weights = [_shaped(held, name, *shapes[name]) for name in ("wx", "wh", "bx", "bh") if name in held]
        weights[:2] = [weight.T for weight in weights[:2]]
        states = 2 if cell == "lstm" else 1
        zero = x[0].new_zeros(len(x[0]), hidden)
        start = [(x[number] if number < len(x) else zero)[None] for number in range(1, states + 1)]
        run = getattr(torch, cell)
        return run(x[0], start if states == 2 else start[0], weights, bias, 1, 0.0, False, False, True)[0]

    return forward


for _type, _cell, _gates in (("rnn", "rnn_tanh", 1), ("gru", "gru", 3), ("lstm", "lstm", 4)):
    LAYERS[_type] = Layer(
        _recurrent(_cell, _gates), _with_bias("wx", "wh", default=True, biases=("bx", "bh")), layouts=None
    )


# Norms


def _affine(options: Mapping[str, Any]) -> tuple[str, ...]:
    if not options.get("affine", True):
        return ()
    return ("weight", "bias") if options.get("bias", True) else ("weight",)


STATISTICS = ("running_mean", "running_var")


def _with_statistics(norm: Callable[..., Any], held: Held) -> Any:
    """What `norm` of copies of the running statistics gives, and the statistics after it."""
    running = [held[name].clone() for name in STATISTICS if name in held]
    y = norm(*(running or (None, None)))
    return {"out": y, **dict(zip((f"{name}_updated" for name in STATISTICS), running, strict=False))}


@_entry("batch_norm", parameters=_affine, buffers=lambda options: STATISTICS)
def _batch_norm(
    x: Inputs,
    held: Held,
    *,
    affine: bool = True,
    eps: float = 1e-5,
    momentum: float = 0.1,
    fixed_statistics: bool = False,
) -> Any:
    def norm(mean: Any, variance: Any) -> Any:
        training = not fixed_statistics
        return fn.batch_norm(
            x[0], mean, variance, held.get("weight"), held.get("bias"), training, momentum, eps
        )

    return _with_statistics(norm, held)


def _instance_statistics(options: Mapping[str, Any]) -> tuple[str, ...]:
    return STATISTICS if options.get("running", False) or options.get("fixed_statistics", False) else ()


@_entry("instance_norm", parameters=_affine, buffers=_instance_statistics)
def _instance_norm(
    x: Inputs,
    held: Held,
    *,
    affine: bool = True,
    eps: float = 1e-5,
    stepwise: bool = False,
    momentum: float = 0.1,
    fixed_statistics: bool = False,
    running: bool = False,
) -> Any:
    def norm(mean: Any, variance: Any) -> Any:
        own_batch = not fixed_statistics
        return fn.instance_norm(
            x[0], mean, variance, held.get("weight"), held.get("bias"), own_batch, momentum, eps
        )

    return _with_statistics(norm, held)


@_entry("group_norm", parameters=_affine)
def _group_norm(
    x: Inputs, held: Held, *, groups: int, affine: bool = True, eps: float = 1e-5, stepwise: bool = False
) -> Any:
    return fn.group_norm(x[0], groups, held.get("weight"), held.get("bias"), eps)


@_entry("layer_norm", parameters=_affine)
def _layer_norm(
    x: Inputs,
    held: Held,
    *,
    affine: bool = True,
    eps: float = 1e-5,
    stepwise: bool = False,
    axes: int = 1,
    bias: bool = True,
) -> Any:
    return fn.layer_norm(x[0], x[0].shape[-axes:], held.get("weight"), held.get("bias"), eps)


@_entry("rms_norm", parameters=lambda options: _affine({**options, "bias": False}))
def _rms_norm(
    x: Inputs, held: Held, *, affine: bool = True, eps: float = 1e-5, stepwise: bool = False, axes: int = 1
) -> Any:
    return fn.rms_norm(x[0], x[0].shape[-axes:], held.get("weight"), eps)


# Element by element

_each("relu", lambda x, held: {"out": fn.relu(x[0]), "mask": x[0] > 0})
_each("leaky_relu", lambda x, held, *, slope=0.01: fn.leaky_relu(x[0], slope))
_each("sigmoid", lambda x, held: torch.sigmoid(x[0]))
_each("silu", lambda x, held: fn.silu(x[0]))
_each("swiglu", lambda x, held: fn.silu(x[0]) * x[1])
_each("scale", lambda x, held, *, factor: x[0] * factor)
_each("shift", lambda x, held, *, offset: x[0] + offset)
_each("add", lambda x, held: x[0] + x[1])
_each("subtract", lambda x, held: x[0] - x[1])
_each("multiply", lambda x, held: x[0] * x[1])
_each("divide", lambda x, held: x[0] / x[1])
_each("maximum", lambda x, held: torch.maximum(x[0], x[1]))
_each("minimum", lambda x, held: torch.minimum(x[0], x[1]))
_each("where", lambda x, held: torch.where(x[0] != 0, x[1], x[2]))


@_entry("clip", layouts=None)
def _clip(
    x: Inputs,
    held: Held,
    *,
    low: float | None = None,
    high: float | None = None,
    slope_at_bounds: bool = True,
) -> Any:
    if slope_at_bounds:
        y = torch.clamp(x[0], low, high)
        return {"out": y, "mask": y == x[0]}
    y = fn.hardtanh(x[0], -inf if low is None else low, inf if high is None else high)
    return {"out": y, "mask": (y == x[0]) & (y != low) & (y != high)}


_each("hard_sigmoid", lambda x, held, *, alpha=1 / 6, beta=0.5: torch.clamp(alpha * x[0] + beta, 0, 1))
_each("hard_swish", lambda x, held: fn.hardswish(x[0]))
_each("elu", lambda x, held, *, alpha=1.0: fn.elu(x[0], alpha))
_each("softplus", lambda x, held: fn.softplus(x[0]))
_each("mish", lambda x, held: fn.mish(x[0]))
_each("exponential", lambda x, held: torch.exp(x[0]))
_each("logarithm", lambda x, held: torch.log(x[0]))
_each("square_root", lambda x, held: torch.sqrt(x[0]))
_each("reciprocal", lambda x, held: torch.reciprocal(x[0]))
_each("square", lambda x, held: torch.square(x[0]))
_each("power", lambda x, held, *, exponent: torch.pow(x[0], exponent))
_each("error_function", lambda x, held: torch.erf(x[0]))
_each("sine", lambda x, held: torch.sin(x[0]))
_each("absolute", lambda x, held: torch.abs(x[0]))


def _rounding(name: str) -> None:
    def rounded(x: Inputs, held: Held, *, straight_through: bool = False) -> Any:
        y = getattr(torch, name)(x[0])
        return x[0] + (y - x[0]).detach() if straight_through else y

    _each(name, rounded)


for _name in ("floor", "ceil", "round"):
    _rounding(_name)


@_entry("compare", layouts=None)
def _compare(x: Inputs, held: Held, *, form: str, value: float = 0.0) -> Any:
    """Its gradient is 0, and not none."""
    return getattr(torch, form)(x[0], value).to(x[0].dtype) + 0 * x[0]


@_entry("dropout", masks=("mask",), layouts=None)
def _dropout(x: Inputs, held: Held, *, p: float = 0.5) -> Any:
    """The mask is the machine's; `truth.samples` says whether it is one of this share."""
    return x[0] * _shaped(held, "mask", *x[0].shape) / (1 - p)


@_entry("prelu", parameters=lambda options: ("weight",))
def _prelu(x: Inputs, held: Held, *, per_channel: bool = False) -> Any:
    return torch.prelu(x[0], _shaped(held, "weight", x[0].shape[1] if per_channel else 1))


# PULP-TrainLib approximates e^x by the bits of a float, or a polynomial, and GELU's tanh by a quotient. These
# are its numbers, not formulas that PyTorch has; the derivative is what its steps take it for.
FASTEXP = (121.2740575, 27.7280233, 4.84252568, 1.49012907)
"""Offset, and coefficients of the fraction, of its exponential for tanh."""
SCHRAUDOLPH = (12102203.17133801, 1064986823.010288)
"""Slope and offset of the bits of e^x: 2^23 / ln 2, and 127 · 2^23 less what halves the error."""
TAYLOR = (1.0, -1.0, 0.5, -0.16, 0.0416, -0.008)
"""Its factors of (-x)^k for e^x, x <= 0."""
LOG2_E = 1.442695040


def _float_of_bits(bits: Any) -> Any:
    return bits.to(torch.int64).to(torch.int32).view(torch.float32)


@_entry("tanh", layouts=None)
def _tanh(x: Inputs, held: Held, *, form: str = "exact") -> Any:
    if form == "exact":
        return torch.tanh(x[0])
    with torch.no_grad():
        power = torch.clamp(LOG2_E * -2 * x[0].float(), min=-126)
        fraction = power - power.trunc() + (power < 0)
        exponent = power + FASTEXP[0] + FASTEXP[1] / (FASTEXP[2] - fraction) - FASTEXP[3] * fraction
        bits = torch.clamp(exponent * (1 << 23), max=0x7F7FFFFF + 1)
        y = (2 / (1 + _float_of_bits(bits)) - 1).to(x[0].dtype)
    return y + (1 - y * y) * (x[0] - x[0].detach())


@_entry("gelu", layouts=None)
def _gelu(x: Inputs, held: Held, *, form: str = "erf") -> Any:
    if form != "pulp_rational":
        return fn.gelu(x[0], approximate={"erf": "none", "tanh": "tanh"}[form])
    u = torch.clamp(sqrt(2 / pi) * (x[0] + 0.044715 * x[0] ** 3), -8, 8)
    above = u * (135135 + u**2 * (17325 + u**2 * (378 + u**2)))
    below = 135135 + u**2 * (62370 + u**2 * (3150 + 28 * u**2))
    return x[0] / 2 * (1 + torch.clamp(above / below, -1, 1))


# Along an axis


@_entry("softmax")
def _softmax(x: Inputs, held: Held, *, exponential: str = "exact") -> Any:
    if exponential == "exact":
        return torch.softmax(x[0], dim=-1)
    with torch.no_grad():
        low = (x[0] - x[0].amax(-1, keepdim=True)).float()
        if exponential == "schraudolph":
            bits = low * torch.tensor(SCHRAUDOLPH[0]) + torch.tensor(SCHRAUDOLPH[1])
            weights = _float_of_bits(torch.where(bits < 1 << 23, torch.zeros_like(bits), bits))
        else:
            series = torch.zeros_like(low)
            for number, factor in enumerate(TAYLOR):
                series = series + factor * (-low) ** number
            weights = torch.where(-low * LOG2_E < 3.14, series, torch.zeros_like(series))
        y = weights.to(x[0].dtype)
        y = y / y.sum(-1, keepdim=True)
    # Its gradient is that of a softmax whose result is y.
    sloped = y * (x[0] - (y * x[0]).sum(-1, keepdim=True))
    return y + sloped - sloped.detach()


_entry("log_softmax")(lambda x, held: torch.log_softmax(x[0], dim=-1))


def _axes(axes: Sequence[int]) -> tuple[int, ...]:
    """Axes of a batch for those of a sample."""
    return tuple(1 + axis for axis in sorted(axes))


_entry("reduce_mean")(
    lambda x, held, *, axes, keep_dims=False: torch.mean(x[0], dim=_axes(axes), keepdim=keep_dims)
)
_entry("reduce_sum")(
    lambda x, held, *, axes, keep_dims=False: torch.sum(x[0], dim=_axes(axes), keepdim=keep_dims)
)


def _extremum(word: str) -> Callable[..., Any]:
    def forward(
        x: Inputs, held: Held, *, axes: Sequence[int], keep_dims: bool = False, ties: str = "shared"
    ) -> Any:
        dims = _axes(axes)
        if ties == "shared":
            return getattr(torch, f"a{word}")(x[0], dim=dims, keepdim=keep_dims)
        flat = x[0].flatten(dims[0], dims[-1])
        y = getattr(torch, word)(flat, dim=dims[0]).values
        return y.reshape(*y.shape[: dims[0]], *(1,) * len(dims), *y.shape[dims[0] :]) if keep_dims else y

    return forward


LAYERS["reduce_max"] = Layer(_extremum("max"))
LAYERS["reduce_min"] = Layer(_extremum("min"))


# Moving data


@_entry("broadcast_add", layouts=None)
def _broadcast_add(x: Inputs, held: Held) -> Any:
    axes = max(item.ndim for item in x) - 1
    return _aligned(x[0], axes) + _aligned(x[1], axes)


@_entry("pad")
def _pad(x: Inputs, held: Held, *, pads: Sequence[Sequence[int]], value: float = 0.0) -> Any:
    return fn.pad(x[0], [width for before, after in reversed(pads) for width in (before, after)], value=value)


_entry("flatten", view=True)(lambda x, held: x[0].flatten(1))
_entry("reshape", view=True)(lambda x, held, *, shape: x[0].reshape(len(x[0]), *shape))
_entry("expand", layouts=None)(lambda x, held, *, shape: _aligned(x[0], len(shape)).expand(-1, *shape))
_entry("concat")(lambda x, held, *, axis=0: torch.cat(list(x), dim=1 + axis))
_entry("split")(lambda x, held, *, sizes, axis=0: torch.split(x[0], list(sizes), dim=1 + axis))
_entry("slice")(lambda x, held, *, stop, axis=0, start=0: x[0].narrow(1 + axis, start, stop - start))
_entry("flip")(lambda x, held, *, axes: torch.flip(x[0], _axes(axes)))
_entry("transpose")(lambda x, held, *, axes: x[0].permute(0, *(1 + axis for axis in axes)))

# Put in by the machine where a layer wants another format or order

_entry("cast", layouts=None)(lambda x, held, *, to: x[0])
_entry("layout", layouts=None)(
    lambda x, held, *, to: x[0].permute(0, 2, 3, 1) if to == "HWC" else x[0].permute(0, 3, 1, 2)
)
