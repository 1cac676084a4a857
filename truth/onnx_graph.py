# SPDX-License-Identifier: Apache-2.0
"""The graph of an ONNX file by PyTorch: its outputs, and the gradients of its initializers by autograd.

It is read from the protobuf, node by node as ONNX's specification has them, and shares nothing with
`importers`: neither how attributes are read, nor shapes, nor what a weight is used for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


class CannotComputeError(Exception):
    """An op, or a form of one, that is not described here; the text names it."""


@dataclass
class _Node:
    """One node while it is computed: its inputs as tensors, None for one left out."""

    torch: Any
    op: str
    attributes: Mapping[str, Any]
    inputs: Sequence[Any]
    outputs: int
    opset: int
    kind: Any
    """The type that stands for every floating-point type of the file."""

    def get(self, name: str, default: Any = None) -> Any:
        return self.attributes.get(name, default)

    def at(self, index: int) -> Any:
        return self.inputs[index] if index < len(self.inputs) else None

    @property
    def x(self) -> Any:
        return self.inputs[0]

    def numbers(self, name: str, index: int) -> list[Any] | None:
        """Numbers of an attribute, or in newer opsets of an input; None if there are none."""
        given = self.get(name)
        if given is None and self.at(index) is not None:
            given = self.at(index).tolist()
        if given is None or isinstance(given, (list, tuple)):
            return None if given is None else list(given)
        return [given]

    def number(self, name: str, index: int, default: float) -> float:
        numbers = self.numbers(name, index)
        return float(numbers[0]) if numbers else default

    def cannot(self, what: str) -> CannotComputeError:
        return CannotComputeError(f"{self.op} ({what})")


_OPS: dict[str, Callable[[_Node], Any]] = {}


def _op(*names: str) -> Callable[[Callable[[_Node], Any]], Callable[[_Node], Any]]:
    def add(function: Callable[[_Node], Any]) -> Callable[[_Node], Any]:
        _OPS.update(dict.fromkeys(names, function))
        return function

    return add


# Elements

_ALONE = {
    **{
        name: name.lower() for name in ("Relu", "Sigmoid", "Tanh", "Exp", "Log", "Sqrt", "Abs", "Neg", "Sign")
    },
    **{name: name.lower() for name in ("Reciprocal", "Erf", "Floor", "Ceil", "Round", "Sin", "Cos")},
    "Not": "logical_not",
    "Identity": "clone",
}
_FUNCTIONAL = {"HardSwish": "hardswish", "Softplus": "softplus", "Mish": "mish", "Softsign": "softsign"}


_op(*_ALONE)(lambda n: getattr(n.torch, _ALONE[n.op])(n.x))
_op(*_FUNCTIONAL)(lambda n: getattr(n.torch.nn.functional, _FUNCTIONAL[n.op])(n.x))


@_op("Shrink")
def _shrink(n: _Node) -> Any:
    bound, bias = n.get("lambd", 0.5), n.get("bias", 0.0)
    return n.torch.where(n.x < -bound, n.x + bias, n.torch.where(n.x > bound, n.x - bias, 0 * n.x))


@_op("LeakyRelu", "Elu", "Celu", "Selu", "HardSigmoid", "ThresholdedRelu", "PRelu")
def _sided(n: _Node) -> Any:
    """Activations that differ on the two sides of a point."""
    t, x = n.torch, n.x
    if n.op == "PRelu":
        return t.where(x < 0, n.at(1) * x, x)
    alpha = n.get(
        "alpha", {"LeakyRelu": 0.01, "HardSigmoid": 0.2, "Selu": 1.67326319217681884765625}.get(n.op, 1.0)
    )
    if n.op == "LeakyRelu":
        return t.where(x < 0, alpha * x, x)
    if n.op == "HardSigmoid":
        return t.clamp(alpha * x + n.get("beta", 0.5), 0, 1)
    if n.op == "ThresholdedRelu":
        return t.where(x > alpha, x, t.zeros_like(x))
    # Both branches are computed, so the exponential is kept from overflowing where it is not taken.
    low = t.clamp(x, max=0)
    gamma = n.get("gamma", 1.05070102214813232421875) if n.op == "Selu" else 1.0
    curve = alpha * t.expm1(low / alpha if n.op == "Celu" else low)
    return gamma * t.where(x > 0, x, curve)


@_op(
    "Gelu",
    "com.microsoft:Gelu",
    "com.microsoft:BiasGelu",
    "com.microsoft:FastGelu",
    "com.microsoft:QuickGelu",
    "Swish",
)
def _gelu(n: _Node) -> Any:
    t, x = n.torch, n.x if n.at(1) is None else n.x + n.at(1)
    if n.op in ("Swish", "com.microsoft:QuickGelu"):
        return x * t.sigmoid(n.get("alpha", 1.0 if n.op == "Swish" else 1.702) * x)
    if n.op.endswith("FastGelu") or n.get("approximate") == "tanh":
        return 0.5 * x * (1 + t.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    return 0.5 * x * (1 + t.erf(x / math.sqrt(2)))


_op("Clip")(lambda n: n.torch.clamp(n.x, n.number("min", 1, -math.inf), n.number("max", 2, math.inf)))


_PAIRS = {
    **{
        "Add": "add",
        "Sub": "sub",
        "Mul": "mul",
        "Pow": "pow",
        "Max": "maximum",
        "Min": "minimum",
        "Sum": "add",
    },
    **{"Equal": "eq", "Greater": "gt", "GreaterOrEqual": "ge", "Less": "lt", "LessOrEqual": "le"},
    **{"And": "logical_and", "Or": "logical_or", "Xor": "logical_xor"},
}


_op(*_PAIRS)(lambda n: reduce(getattr(n.torch, _PAIRS[n.op]), n.inputs))


@_op("Div", "Mod")
def _divided(n: _Node) -> Any:
    if n.op == "Mod":
        return (n.torch.fmod if n.get("fmod", 0) else n.torch.remainder)(*n.inputs)
    rounding = None if n.x.is_floating_point() else "trunc"
    return n.torch.div(*n.inputs, rounding_mode=rounding)


_op("Where")(lambda n: n.torch.where(*n.inputs))


@_op("Cast", "CastLike")
def _cast(n: _Node) -> Any:
    if n.op == "CastLike":
        return n.x.to(n.at(1).dtype)
    from onnx import helper

    return n.x.to(_type(n, np.dtype(helper.tensor_dtype_to_np_dtype(n.get("to")))))


def _type(n: _Node, dtype: np.dtype[Any]) -> Any:
    if dtype.kind == "b":
        return n.torch.bool
    return n.torch.int64 if np.issubdtype(dtype, np.integer) else n.kind


@_op("Dropout")
def _dropout(n: _Node) -> Any:
    training = n.at(2) is not None and bool(n.at(2))
    if training and n.number("ratio", 1, 0.5):
        raise n.cannot("it draws random numbers")
    return [n.x, n.torch.ones_like(n.x, dtype=n.torch.bool)][: n.outputs]


# Shapes


@_op("Shape", "Size")
def _shape(n: _Node) -> Any:
    if n.op == "Size":
        return n.torch.tensor(n.x.numel())
    return n.torch.tensor(list(n.x.shape)[n.get("start", 0) : n.get("end")], dtype=n.torch.int64)


@_op("Constant")
def _constant(n: _Node) -> Any:
    ((name, value),) = n.attributes.items()
    if name == "value":
        return value
    return n.torch.tensor(value, dtype=n.kind if "float" in name else n.torch.int64)


@_op("ConstantOfShape")
def _constant_of_shape(n: _Node) -> Any:
    value = n.get("value", n.torch.zeros(1, dtype=n.kind))
    return n.torch.full(n.x.tolist(), value.item(), dtype=value.dtype)


@_op("Range")
def _range(n: _Node) -> Any:
    start, limit, step = (item.item() for item in n.inputs)
    return n.torch.arange(start, limit, step, dtype=n.x.dtype)


@_op("Reshape")
def _reshape(n: _Node) -> Any:
    sizes = n.numbers("shape", 1) or []
    if not n.get("allowzero", 0):
        sizes = [n.x.shape[index] if size == 0 else size for index, size in enumerate(sizes)]
    return n.x.reshape(tuple(sizes))


@_op("Flatten")
def _flatten(n: _Node) -> Any:
    axis = n.get("axis", 1)
    axis = axis + n.x.dim() if axis < 0 else axis
    return n.x.reshape(math.prod(n.x.shape[:axis]), -1)


@_op("Squeeze", "Unsqueeze")
def _squeeze(n: _Node) -> Any:
    axes, x = n.numbers("axes", 1), n.x
    if n.op == "Unsqueeze":
        rank = x.dim() + len(axes or [])
        for axis in sorted(axis % rank for axis in axes or []):
            x = x.unsqueeze(axis)
        return x
    axes = [axis for axis in range(x.dim()) if x.shape[axis] == 1] if axes is None else axes
    for axis in sorted((axis % n.x.dim() for axis in axes), reverse=True):
        if n.x.shape[axis] != 1:
            raise n.cannot(f"dimension {axis} is not 1")
        x = x.squeeze(axis)
    return x


_op("Transpose")(lambda n: n.x.permute(n.get("perm", list(range(n.x.dim()))[::-1])))
_op("Expand")(lambda n: n.x.expand(n.torch.broadcast_shapes(n.x.shape, tuple(n.at(1).tolist()))))
_op("Tile")(lambda n: n.x.repeat(n.at(1).tolist()))


@_op("Slice")
def _slice(n: _Node) -> Any:
    starts, ends = n.numbers("starts", 1) or [], n.numbers("ends", 2) or []
    axes, steps = n.numbers("axes", 3) or range(len(starts)), n.numbers("steps", 4) or [1] * len(starts)
    x = n.x
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        size = x.shape[axis]
        # A negative step counts down to the end that is not reached; before the first there is -1.
        low, high = (0, size) if step > 0 else (-1, size - 1)
        first, last = (
            min(max(place + size if place < 0 else place, edge), high)
            for place, edge in ((start, max(low, 0)), (end, low))
        )
        x = x.index_select(axis, n.torch.tensor(range(first, last, step), dtype=n.torch.int64))
    return x


@_op("Gather")
def _gather(n: _Node) -> Any:
    axis, index = n.get("axis", 0) % n.x.dim(), n.at(1)
    size = n.x.shape[axis]
    places = n.torch.where(index < 0, index + size, index)
    rows = n.x.index_select(axis, places.reshape(-1))
    return rows.reshape((*n.x.shape[:axis], *index.shape, *n.x.shape[axis + 1 :]))


@_op("GatherElements", "Scatter", "ScatterElements")
def _elements(n: _Node) -> Any:
    """Of one dimension, at an index for each element."""
    axis, index = n.get("axis", 0) % n.x.dim(), n.at(1)
    index = n.torch.where(index < 0, index + n.x.shape[axis], index)
    if n.op == "GatherElements":
        return n.x.gather(axis, index)
    if n.get("reduction", "none") not in ("none", "add"):
        raise n.cannot("reduction")
    adds = n.get("reduction", "none") == "add"
    return (n.x.scatter_add if adds else n.x.scatter)(axis, index, n.at(2))


@_op("GatherND", "ScatterND")
def _places(n: _Node) -> Any:
    """At an index of several dimensions for each part; GatherND has leading ones in common with it."""
    index, shared = n.at(1), n.get("batch_dims", 0)
    sizes = index.shape[:-1]
    places = [
        n.torch.arange(sizes[dim]).reshape([-1 if at == dim else 1 for at in range(len(sizes))]).expand(sizes)
        for dim in range(shared)
    ]
    for number, place in enumerate(index.unbind(-1)):
        places.append(n.torch.where(place < 0, place + n.x.shape[shared + number], place))
    if n.op == "GatherND":
        return n.x[tuple(places)]
    if n.get("reduction", "none") not in ("none", "add"):
        raise n.cannot("reduction")
    return n.x.index_put(tuple(places), n.at(2), accumulate=n.get("reduction", "none") == "add")


@_op("Concat", "com.microsoft:ConcatTraining")
def _concat(n: _Node) -> Any:
    axis = n.get("axis")
    sizes = n.torch.tensor([item.shape[axis] for item in n.inputs])
    return [n.torch.cat(list(n.inputs), axis), sizes][: n.outputs]


@_op("Split")
def _split(n: _Node) -> Any:
    axis, sizes = n.get("axis", 0), n.numbers("split", 1)
    if sizes is None:
        part = math.ceil(n.x.shape[axis] / n.outputs)
        sizes = [part] * (n.outputs - 1)
        sizes.append(n.x.shape[axis] - sum(sizes))
    return list(n.torch.split(n.x, sizes, axis))


@_op("Pad")
def _pad(n: _Node) -> Any:
    widths, rank = n.numbers("pads", 1) or [], n.x.dim()
    axes = n.numbers("axes", 3) or list(range(rank))
    pairs = dict(
        zip(
            (axis % rank for axis in axes),
            zip(widths[: len(axes)], widths[len(axes) :], strict=True),
            strict=True,
        )
    )
    mode = n.get("mode", "constant")
    if mode == "constant":
        return _padded(n, n.x, pairs, n.number("value", 2, 0.0))
    wide = n.x
    for axis, pair in pairs.items():
        places = np.pad(np.arange(wide.shape[axis]), pair, mode)
        wide = n.torch.index_select(wide, axis, n.torch.tensor(places))
    return wide


def _padded(n: _Node, x: Any, pairs: Mapping[int, tuple[int, int]], value: float) -> Any:
    flat = [size for axis in reversed(range(x.dim())) for size in pairs.get(axis, (0, 0))]
    return n.torch.nn.functional.pad(x, flat, value=value)


@_op("DepthToSpace", "SpaceToDepth")
def _blocks(n: _Node) -> Any:
    b, (samples, channels, high, wide) = n.get("blocksize"), n.x.shape
    if n.op == "SpaceToDepth":
        order = (0, 3, 5, 1, 2, 4) if n.get("mode", "DCR") == "DCR" else (0, 1, 3, 5, 2, 4)
        cut = n.x.reshape(samples, channels, high // b, b, wide // b, b).permute(order)
        return cut.reshape(samples, channels * b * b, high // b, wide // b)
    left = channels // (b * b)
    if n.get("mode", "DCR") == "DCR":
        cut = n.x.reshape(samples, b, b, left, high, wide).permute(0, 3, 4, 1, 5, 2)
    else:
        cut = n.x.reshape(samples, left, b, b, high, wide).permute(0, 1, 4, 2, 5, 3)
    return cut.reshape(samples, left, high * b, wide * b)


# Over dimensions


_MADE: dict[str, Callable[[Any, list[int], bool], Any]] = {
    "ReduceL1": lambda x, dims, keep: x.norm(1, dims, keep),
    "ReduceL2": lambda x, dims, keep: x.norm(2, dims, keep),
    "ReduceSumSquare": lambda x, dims, keep: x.pow(2).sum(dims, keepdim=keep),
    "ReduceLogSum": lambda x, dims, keep: x.sum(dims, keepdim=keep).log(),
    "ReduceLogSumExp": lambda x, dims, keep: x.logsumexp(dims, keepdim=keep),
}


@_op("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd", *_MADE)
def _reduce(n: _Node) -> Any:
    axes = n.numbers("axes", 1)
    if not axes and n.get("noop_with_empty_axes", 0):
        return n.x
    dims = [axis % n.x.dim() for axis in axes or range(n.x.dim())]
    keep = bool(n.get("keepdims", 1))
    if n.op in _MADE:
        return _MADE[n.op](n.x, dims, keep)
    if n.op == "ReduceProd":
        return reduce(lambda x, dim: x.prod(dim, keepdim=keep), sorted(dims, reverse=True), n.x)
    name = {"ReduceMean": "mean", "ReduceSum": "sum", "ReduceMax": "amax", "ReduceMin": "amin"}[n.op]
    return getattr(n.torch, name)(n.x, dims, keepdim=keep)


# Zeros stay zeros.
_op("LpNormalization")(
    lambda n: n.torch.nn.functional.normalize(n.x, n.get("p", 2), n.get("axis", -1), eps=1e-18)
)


@_op("LRN")
def _lrn(n: _Node) -> Any:
    # ONNX has the larger half of an even window behind, PyTorch before.
    size, alpha = n.get("size"), n.get("alpha", 1e-4)
    around = {1: ((size - 1) // 2, size // 2)}
    squares = _padded(n, n.x**2, around, 0.0).unfold(1, size, 1).sum(-1)
    return n.x / (n.get("bias", 1.0) + alpha / size * squares) ** n.get("beta", 0.75)


@_op("Softmax", "LogSoftmax")
def _softmax(n: _Node) -> Any:
    function = n.torch.softmax if n.op == "Softmax" else n.torch.log_softmax
    if n.opset >= 13:
        return function(n.x, n.get("axis", -1))
    axis = n.get("axis", 1) % n.x.dim()
    return function(n.x.reshape(math.prod(n.x.shape[:axis]), -1), 1).reshape(n.x.shape)


# Losses


@_op("SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss")
def _of_classes(n: _Node) -> Any:
    negative = n.op == "NegativeLogLikelihoodLoss"
    logs = n.x if negative else n.torch.log_softmax(n.x, 1)
    skipped = {"ignore_index": n.get("ignore_index", -100), "reduction": n.get("reduction", "mean")}
    loss = n.torch.nn.functional.nll_loss(logs, n.at(1), n.at(2), **skipped)
    return [loss, logs] if n.outputs > 1 else loss


@_op("com.microsoft:SoftmaxCrossEntropyLossGrad")
def _of_classes_grad(n: _Node) -> Any:
    if n.get("reduction", "mean") != "mean" or n.at(2) is not None or n.x.dim() != 2:
        raise n.cannot("not of a mean over rows")
    return (n.x.exp() - n.torch.nn.functional.one_hot(n.at(1), n.x.shape[1])) / len(n.x)


@_op("GeluGrad", "com.microsoft:GeluGrad")
def _gelu_grad(n: _Node) -> Any:
    t, x = n.torch, n.at(1)
    return n.x * (0.5 * (1 + t.erf(x / math.sqrt(2))) + x * t.exp(-(x**2) / 2) / math.sqrt(2 * math.pi))


@_op("com.microsoft:SoftmaxGrad", "com.microsoft:SoftmaxGrad_13")
def _softmax_grad(n: _Node) -> Any:
    """Of one dimension, by the output; where earlier opsets would join dimensions, of the last alone."""
    dy, y = n.inputs
    axis = n.get("axis", -1) % y.dim()
    if axis != y.dim() - 1 and n.opset < 13 and not n.op.endswith("_13"):
        raise n.cannot(f"dimension {axis} of {y.dim()}, the later ones joined to it")
    return y * (dy - (dy * y).sum(axis, keepdim=True))


@_op("com.microsoft:LayerNormalizationGrad")
def _layer_norm_grad(n: _Node) -> Any:
    """With mean and inverse deviation as inputs, or as Deeploy has it with the bias: both are made again."""
    dy, x, weight = n.inputs[:3]
    rows = tuple(range(n.get("axis", -1) % x.dim(), x.dim()))
    if n.at(4) is None:
        mean = x.mean(rows, keepdim=True)
        inverse = ((x - mean) ** 2).mean(rows, keepdim=True).add(n.get("epsilon", 1e-5)).rsqrt()
    else:
        mean, inverse = n.at(3), n.at(4)
    unit, slope, over = (x - mean) * inverse, dy * weight, tuple(range(rows[0]))
    dx = slope - slope.mean(rows, keepdim=True) - unit * (slope * unit).mean(rows, keepdim=True)
    return [inverse * dx, (dy * unit).sum(over), dy.sum(over)][: n.outputs]


_op("SGD")(lambda n: n.x - n.get("lr", 0.001) * n.at(1))


# Products


@_op("Gemm")
def _gemm(n: _Node) -> Any:
    a = n.x.mT if n.get("transA", 0) else n.x
    b = n.at(1).mT if n.get("transB", 0) else n.at(1)
    product = n.get("alpha", 1.0) * (a @ b)
    return product if n.at(2) is None else product + n.get("beta", 1.0) * n.at(2)


@_op("MatMul", "com.microsoft:FusedMatMul", "com.microsoft:TransposeMatMul")
def _matmul(n: _Node) -> Any:
    sides = []
    for item, turned, batch in ((n.x, "transA", "transBatchA"), (n.at(1), "transB", "transBatchB")):
        side = item.movedim(0, -2) if n.get(batch, 0) else item
        sides.append(side.mT if n.get(turned, 0) and side.dim() > 1 else side)
    return n.get("alpha", 1.0) * (sides[0] @ sides[1])


@_op("CumSum")
def _cumulative(n: _Node) -> Any:
    axis = int(n.inputs[1])
    x = n.x.flip(axis) if n.get("reverse", 0) else n.x
    y = x.cumsum(axis) - (x if n.get("exclusive", 0) else 0)
    return y.flip(axis) if n.get("reverse", 0) else y


_op("Einsum")(lambda n: n.torch.einsum(n.get("equation"), *n.inputs))


# Windows


@dataclass(frozen=True)
class _Window:
    kernel: list[int]
    strides: list[int]
    dilations: list[int]
    begin: list[int]
    end: list[int]

    @property
    def reach(self) -> list[int]:
        """Elements from the first to the last that a window sees, per direction."""
        return [(k - 1) * d + 1 for k, d in zip(self.kernel, self.dilations, strict=True)]


def _window(n: _Node, kernel: Sequence[int], space: Sequence[int]) -> _Window:
    rank = len(kernel)
    strides, dilations = n.get("strides", [1] * rank), n.get("dilations", [1] * rank)
    pads, automatic = n.get("pads", [0] * 2 * rank), n.get("auto_pad", "NOTSET")
    begin, end = list(pads[:rank]), list(pads[rank:])
    if automatic == "VALID":
        begin, end = [0] * rank, [0] * rank
    elif automatic != "NOTSET":
        for index, (size, k, s, d) in enumerate(zip(space, kernel, strides, dilations, strict=True)):
            whole = max((math.ceil(size / s) - 1) * s + (k - 1) * d + 1 - size, 0)
            half = [whole // 2, whole - whole // 2]
            begin[index], end[index] = half if automatic == "SAME_UPPER" else half[::-1]
    return _Window(list(kernel), list(strides), list(dilations), begin, end)


def _around(window: _Window) -> dict[int, tuple[int, int]]:
    return {index + 2: pair for index, pair in enumerate(zip(window.begin, window.end, strict=True))}


def _convolved(n: _Node, x: Any, weight: Any, window: _Window, groups: int) -> Any:
    function = getattr(n.torch.nn.functional, f"conv{len(window.kernel)}d")
    return function(x, weight, None, window.strides, 0, window.dilations, groups)


def _biased(x: Any, bias: Any) -> Any:
    return x if bias is None else x + bias.reshape(-1, *[1] * (x.dim() - 2))


@_op("Conv")
def _conv(n: _Node) -> Any:
    weight = n.at(1)
    window = _window(n, weight.shape[2:], n.x.shape[2:])
    x = _padded(n, n.x, _around(window), 0.0)
    return _biased(_convolved(n, x, weight, window, n.get("group", 1)), n.at(2))


@_op("ConvTranspose")
def _conv_transpose(n: _Node) -> Any:
    weight, space = n.at(1), n.x.shape[2:]
    rank = len(space)
    window = _window(n, weight.shape[2:], space)
    more = n.get("output_padding", [0] * rank)
    function = getattr(n.torch.nn.functional, f"conv_transpose{rank}d")
    whole = function(n.x, weight, None, window.strides, 0, 0, n.get("group", 1), window.dilations)
    automatic, wanted = n.get("auto_pad", "NOTSET"), n.get("output_shape")
    pairs = {}
    for index in range(rank):
        size, begin, end = whole.shape[2 + index] + more[index], window.begin[index], window.end[index]
        if automatic.startswith("SAME") or wanted:
            target = wanted[index - rank] if wanted else space[index] * window.strides[index]
            half = [(size - target) // 2, size - target - (size - target) // 2]
            begin, end = half if automatic == "SAME_UPPER" else half[::-1]
        pairs[index + 2] = (-begin, more[index] - end)
    return _biased(_padded(n, whole, pairs, 0.0), n.at(2))


def _pooling(n: _Node) -> tuple[_Window, _Window]:
    """The window as it is said, and padded so that the windows of ceil_mode fit as well."""
    space = n.x.shape[2:]
    window = _window(n, n.get("kernel_shape"), space)
    end = list(window.end)
    if n.get("ceil_mode", 0):
        for index, (size, reach, stride) in enumerate(zip(space, window.reach, window.strides, strict=True)):
            begin = window.begin[index]
            count = math.ceil((size + begin + end[index] - reach) / stride) + 1
            if (count - 1) * stride >= size + begin:
                count -= 1  # a window that would begin behind the image is none
            end[index] = max(end[index], (count - 1) * stride + reach - size - begin)
    return window, _Window(window.kernel, window.strides, window.dilations, window.begin, end)


@_op("MaxPool")
def _max_pool(n: _Node) -> Any:
    _, window = _pooling(n)
    function = getattr(n.torch.nn.functional, f"max_pool{len(window.kernel)}d")
    x = _padded(n, n.x, _around(window), -math.inf)
    largest = function(x, window.kernel, window.strides, 0, window.dilations)
    if n.outputs > 1:
        raise n.cannot("places")
    return largest


@_op("LpPool", "GlobalLpPool")
def _lp_pool(n: _Node) -> Any:
    p, rank = n.get("p", 2), n.x.dim() - 2
    if n.op == "GlobalLpPool":
        return n.torch.linalg.vector_norm(n.x, p, list(range(2, rank + 2)), keepdim=True)
    _, window = _pooling(n)
    powers = _padded(n, n.x.abs() ** p, _around(window), 0.0)
    channels = n.x.shape[1]
    ones = n.torch.ones((channels, 1, *window.kernel), dtype=n.x.dtype)
    return _convolved(n, powers, ones, window, channels) ** (1 / p)


@_op("Col2Im")
def _col2im(n: _Node) -> Any:
    sizes, kernel = n.at(1).tolist(), n.at(2).tolist()
    window = _window(n, kernel, sizes)
    padded = [size + sum(pair) for size, pair in zip(sizes, _around(window).values(), strict=True)]
    whole = n.torch.nn.functional.fold(n.x, padded, kernel, dilation=window.dilations, stride=window.strides)
    return _padded(n, whole, {axis: (-first, -last) for axis, (first, last) in _around(window).items()}, 0.0)


@_op("AveragePool")
def _average_pool(n: _Node) -> Any:
    said, window = _pooling(n)
    samples, channels, *space = n.x.shape
    ones = n.torch.ones((1, 1, *window.kernel), dtype=n.x.dtype)
    counted = n.torch.ones((1, 1, *space), dtype=n.x.dtype)
    if n.get("count_include_pad", 0):
        counted = _padded(n, counted, _around(said), 1.0)
        rest = {index + 2: (0, window.end[index] - said.end[index]) for index in range(len(space))}
        counted = _padded(n, counted, rest, 0.0)
    else:
        counted = _padded(n, counted, _around(window), 0.0)
    x = _padded(n, n.x, _around(window), 0.0)
    total = _convolved(n, x.reshape(samples * channels, 1, *x.shape[2:]), ones, window, 1)
    means = total / _convolved(n, counted, ones, window, 1)
    return means.reshape(samples, channels, *means.shape[2:])


@_op("GlobalAveragePool", "GlobalMaxPool")
def _global_pool(n: _Node) -> Any:
    rank = n.x.dim() - 2
    if n.op == "GlobalAveragePool":
        return n.x.mean(list(range(2, n.x.dim())), keepdim=True)
    return getattr(n.torch.nn.functional, f"max_pool{rank}d")(n.x, n.x.shape[2:])


@_op("Resize", "Upsample")
def _resize(n: _Node) -> Any:
    old = n.op == "Upsample" or n.opset < 11
    scales, sizes = n.numbers("scales", 1 if old else 2), None if old else n.numbers("sizes", 3)
    axes = [axis % n.x.dim() for axis in n.get("axes", range(n.x.dim()))]
    if (
        n.get("antialias", 0)
        or n.get("exclude_outside", 0)
        or n.get("keep_aspect_ratio_policy", "stretch") != "stretch"
    ):
        raise n.cannot("antialias, exclude_outside and keep_aspect_ratio_policy are not supported")
    x = n.x
    for index, axis in enumerate(axes):
        size = x.shape[axis]
        target = sizes[index] if sizes else math.floor(size * (scales or [])[index])
        scale = target / size if sizes else (scales or [])[index]
        if target != size or scale != 1:
            x = x.movedim(axis, -1) @ _interpolation(n, size, target, scale, old=old).T
            x = x.movedim(-1, axis)
    return x


def _interpolation(n: _Node, size: int, target: int, scale: float, *, old: bool) -> Any:
    """The matrix [target, size] that makes a line of another length."""
    mode, how = n.get("mode", "nearest"), n.get("coordinate_transformation_mode", "half_pixel")
    how = "asymmetric" if old else how
    matrix = n.torch.zeros((target, size), dtype=n.kind)
    for place in range(target):
        if how == "asymmetric":
            source = place / scale
        elif how == "align_corners":
            source = 0.0 if target == 1 else place * (size - 1) / (size * scale - 1)
        elif how in ("half_pixel", "pytorch_half_pixel"):
            source = 0.0 if how.startswith("pytorch") and target == 1 else (place + 0.5) / scale - 0.5
        else:
            raise n.cannot(how)
        if mode == "nearest":
            rounding = "floor" if old else n.get("nearest_mode", "round_prefer_floor")
            near = {
                "floor": math.floor,
                "ceil": math.ceil,
                "round_prefer_floor": lambda number: math.ceil(number - 0.5),
                "round_prefer_ceil": lambda number: math.floor(number + 0.5),
            }[rounding](source)
            matrix[place, min(max(near, 0), size - 1)] = 1
        elif mode == "linear":
            below = math.floor(source)
            for index, share in ((below, 1 - source + below), (below + 1, source - below)):
                matrix[place, min(max(index, 0), size - 1)] += share
        else:
            raise n.cannot(mode)
    return matrix


# Norms


def _normalised(x: Any, dims: Sequence[int], eps: float) -> Any:
    mean = x.mean(list(dims), keepdim=True)
    variance = ((x - mean) ** 2).mean(list(dims), keepdim=True)
    return (x - mean) / (variance + eps).sqrt()


def _per_channel(x: Any, given: Any) -> Any:
    return given.reshape(1, -1, *[1] * (x.dim() - 2))


@_op("BatchNormalization", "com.microsoft:BatchNormInternal")
def _batch_norm(n: _Node) -> Any:
    x, scale, shift, mean, variance = n.inputs[:5]
    eps = n.get("epsilon", 1e-5)
    # Between opset 7 and 13 more than one output means training.
    training = (
        bool(n.get("training_mode", 0)) or n.op.endswith("Internal") or (n.opset < 14 and n.outputs > 1)
    )
    if training:
        y = _normalised(x, [0, *range(2, x.dim())], eps)
    else:
        y = (x - _per_channel(x, mean)) / (_per_channel(x, variance) + eps).sqrt()
    y = y * _per_channel(x, scale) + _per_channel(x, shift)
    return [y, *[None] * (n.outputs - 1)]


@_op("InstanceNormalization", "GroupNormalization")
def _channel_norm(n: _Node) -> Any:
    x, scale, shift = n.inputs
    channels, eps = x.shape[1], n.get("epsilon", 1e-5)
    groups = channels if n.op == "InstanceNormalization" else n.get("num_groups")
    y = _normalised(x.reshape(x.shape[0], groups, -1), [2], eps).reshape(x.shape)
    if scale.numel() == groups != channels:  # before opset 21 a group norm had a scale per group
        scale, shift = (item.repeat_interleave(channels // groups) for item in (scale, shift))
    return y * _per_channel(x, scale) + _per_channel(x, shift)


@_op(
    *("LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization", "RMSNorm"),
    "com.microsoft:SimplifiedLayerNormalization",
)
def _row_norm(n: _Node) -> Any:
    x, eps = n.x, n.get("epsilon", n.get("eps", 1e-5))  # RMSNorm is Deeploy's
    dims = range(n.get("axis", -1) % x.dim(), x.dim())
    if n.op == "LayerNormalization":
        y = _normalised(x, dims, eps)
    else:
        y = x / ((x**2).mean(list(dims), keepdim=True) + eps).sqrt()
    y = y if n.at(1) is None else y * n.at(1)
    y = y if n.at(2) is None else y + n.at(2)
    return [y, *[None] * (n.outputs - 1)]


# Recurrent layers


@_op("GRU", "LSTM", "RNN")
def _recurrent(n: _Node) -> Any:
    t, kind = n.torch, n.op
    usual = {"GRU": ["Sigmoid", "Tanh"], "LSTM": ["Sigmoid", "Tanh", "Tanh"], "RNN": ["Tanh"]}[kind]
    directions = {"forward": [1], "reverse": [-1], "bidirectional": [1, -1]}[n.get("direction", "forward")]
    activations = list(n.get("activations", usual * len(directions)))
    if (
        activations != usual * len(directions)
        or n.get("clip")
        or n.get("input_forget", 0)
        or n.at(7) is not None
    ):
        raise n.cannot("other activations, clip, input_forget and peepholes are not supported")
    x = n.x.transpose(0, 1) if n.get("layout", 0) else n.x
    if n.at(4) is not None and bool((n.at(4) != x.shape[0]).any()):
        raise n.cannot("sequences of unequal length are not supported")
    step = {"GRU": _gru_step, "LSTM": _lstm_step, "RNN": _rnn_step}[kind]
    outputs, lasts, cells = [], [], []
    for number, direction in enumerate(directions):
        wx, wh = n.at(1)[number], n.at(2)[number]
        zeros = t.zeros(x.shape[1], wh.shape[1], dtype=x.dtype)
        bias = t.zeros(2 * wh.shape[0], dtype=x.dtype) if n.at(3) is None else n.at(3)[number]
        state, cell = (
            zeros if given is None else (given.transpose(0, 1) if n.get("layout", 0) else given)[number]
            for given in (n.at(5), n.at(6))
        )
        states = []
        for index in range(x.shape[0])[::direction]:
            state, cell = step(n, x[index] @ wx.T, wh, bias.chunk(2), state, cell)
            states.append(state)
        outputs.append(t.stack(states[::direction]))
        lasts.append(state)
        cells.append(cell)
    made = [t.stack(outputs, 1), t.stack(lasts), t.stack(cells)]
    if n.get("layout", 0):
        made = [made[0].permute(2, 0, 1, 3), made[1].transpose(0, 1), made[2].transpose(0, 1)]
    return made[: 3 if kind == "LSTM" else 2][: n.outputs]


def _gru_step(n: _Node, inner: Any, wh: Any, bias: Sequence[Any], h: Any, cell: Any) -> tuple[Any, Any]:
    t = n.torch
    (wz, wr, wn), (bz, br, bn), (cz, cr, cn) = (item.chunk(3) for item in (wh, *bias))
    xz, xr, xn = inner.chunk(3, dim=1)
    update, reset = t.sigmoid(xz + bz + h @ wz.T + cz), t.sigmoid(xr + br + h @ wr.T + cr)
    if n.get("linear_before_reset", 0):
        new = t.tanh(xn + bn + reset * (h @ wn.T + cn))
    else:
        new = t.tanh(xn + bn + (reset * h) @ wn.T + cn)
    return (1 - update) * new + update * h, cell


def _lstm_step(n: _Node, inner: Any, wh: Any, bias: Sequence[Any], h: Any, cell: Any) -> tuple[Any, Any]:
    t = n.torch
    enter, leave, forget, new = (inner + h @ wh.T + bias[0] + bias[1]).chunk(4, dim=1)
    cell = t.sigmoid(forget) * cell + t.sigmoid(enter) * t.tanh(new)
    return t.sigmoid(leave) * t.tanh(cell), cell


def _rnn_step(n: _Node, inner: Any, wh: Any, bias: Sequence[Any], h: Any, cell: Any) -> tuple[Any, Any]:
    return n.torch.tanh(inner + h @ wh.T + bias[0] + bias[1]), cell


# The whole graph


def read_graph(path: str, merged: Mapping[str, tuple[str, Sequence[int]]] = MappingProxyType({})) -> Any:
    """The model in a file, functions in place, external data from its own folder. Raises what onnx does.

    `importers.graph.onnx_file` has seen that the data lie there. onnx itself refuses files with several hard
    links or behind a symbolic one, as caches of packages have them. `merged` are initializers to be added:
    each the copy of one that some nodes, by their number, read instead of it.
    """
    import onnx
    from onnx import inliner
    from onnx.external_data_helper import ExternalDataInfo, uses_external_data

    model, folder = onnx.load(path, load_external_data=False), Path(path).resolve().parent
    for proto in _constants(model):
        if uses_external_data(proto):
            place = ExternalDataInfo(proto)
            with (folder / place.location).open("rb") as stream:
                stream.seek(place.offset or 0)
                proto.raw_data = stream.read(place.length or -1)
            proto.data_location = onnx.TensorProto.DEFAULT
            del proto.external_data[:]
    model = inliner.inline_local_functions(model) if model.functions else model
    graded = {node.input[0] for node in model.graph.node if node.op_type == "SoftmaxCrossEntropyLossGrad"}
    for node in model.graph.node:
        if node.op_type == "SoftmaxCrossEntropyLoss" and len(node.output) == 1 and node.output[0] in graded:
            node.output.insert(0, "")  # Deeploy writes the logarithms alone, in the place of the loss
    weights = {proto.name: proto for proto in model.graph.initializer}
    for new, (name, numbers) in merged.items():
        copied = model.graph.initializer.add()
        copied.CopyFrom(weights[name])
        copied.name = new
        for node in (model.graph.node[number] for number in numbers):
            node.input[:] = [new if item == name else item for item in node.input]
    return model


def _constants(model: Any) -> list[Any]:
    """Initializers, and the tensors that attributes of nodes are."""
    attributes = [item for node in model.graph.node for item in node.attribute]
    return [*model.graph.initializer, *(item.t for item in attributes if item.HasField("t"))]


def in_double(model: Any) -> Any:
    """A copy whose weights, constants and casts are of fp64 where they were of a narrower float."""
    from onnx import TensorProto, numpy_helper

    narrow = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16)
    copied = type(model)()
    copied.CopyFrom(model)
    for proto in _constants(copied):
        if proto.data_type in narrow:
            wide = numpy_helper.to_array(proto).astype(np.float64)
            proto.CopyFrom(numpy_helper.from_array(wide, proto.name))
    for node in copied.graph.node:
        for item in node.attribute:
            if node.op_type == "Cast" and item.name == "to" and item.i in narrow:
                item.i = TensorProto.DOUBLE
    return copied


def _full_name(node: Any) -> str:
    return str(node.op_type if node.domain in ("", "ai.onnx") else f"{node.domain}:{node.op_type}")


def statistics(model: Any) -> frozenset[str]:
    """Names of what batch norms read as running statistics: kept from iteration to iteration, not trained."""
    norms = [node for node in model.graph.node if node.op_type.startswith("BatchNorm")]
    return frozenset(name for node in norms for name in node.input[3:5])


class Computed:
    """The graph for one input, in fp64 (`double`) or fp32: every tensor by name, initializers as leaves.

    Raises `CannotComputeError` for what is not described here, and what PyTorch raises where the graph does
    not fit together.
    """

    def __init__(self, model: Any, feeds: Mapping[str, Array], *, double: bool) -> None:
        from onnx import numpy_helper

        self.torch = import_module("torch")
        self.kind = self.torch.float64 if double else self.torch.float32
        self.model = model
        self.values: dict[str, Any] = {"": None}
        self.leaves: dict[str, Any] = {}
        fixed = statistics(model)
        for proto in model.graph.initializer:
            value = self._tensor(numpy_helper.to_array(proto))
            if value.is_floating_point() and proto.name not in fixed:
                value.requires_grad_()
                self.leaves[proto.name] = value
            self.values[proto.name] = value
        self.values |= {name: self._tensor(array) for name, array in feeds.items()}
        self._run()

    def _tensor(self, array: Array) -> Any:
        wide = (
            array.astype(np.float64) if not np.issubdtype(array.dtype, np.integer) else array.astype(np.int64)
        )
        if array.dtype == bool:
            return self.torch.tensor(array)
        tensor = self.torch.tensor(wide)
        return tensor.to(self.kind) if tensor.is_floating_point() else tensor

    def _run(self) -> None:
        opset = max(
            (item.version for item in self.model.opset_import if item.domain in ("", "ai.onnx")), default=1
        )
        waiting = list(self.model.graph.node)
        while waiting:  # any order is allowed here that has every tensor written before it is read
            ready = [node for node in waiting if all(name in self.values for name in node.input)]
            if not ready:
                raise CannotComputeError(f"{_full_name(waiting[0])} (reads a tensor that no node writes)")
            for node in ready:
                self._node(node, opset)
            done = {id(node) for node in ready}
            waiting = [node for node in waiting if id(node) not in done]

    def _node(self, node: Any, opset: int) -> None:
        name = _full_name(node)
        if name not in _OPS:
            raise CannotComputeError(name)
        inputs = [self.values[item] for item in node.input]
        attributes = {item.name: self._attribute(item) for item in node.attribute}
        made = _OPS[name](_Node(self.torch, name, attributes, inputs, len(node.output), opset, self.kind))
        self.values.update(zip(node.output, made if isinstance(made, list) else [made], strict=True))
        self.values[""] = None

    def _attribute(self, item: Any) -> Any:
        from onnx import AttributeProto, numpy_helper

        if item.type == AttributeProto.TENSOR:
            return self._tensor(numpy_helper.to_array(item.t))
        if item.type == AttributeProto.STRING:
            return item.s.decode()
        if item.type == AttributeProto.STRINGS:
            return [word.decode() for word in item.strings]
        if item.type in (AttributeProto.FLOAT, AttributeProto.INT):
            return item.f if item.type == AttributeProto.FLOAT else item.i
        if item.type in (AttributeProto.FLOATS, AttributeProto.INTS):
            return list(item.floats if item.type == AttributeProto.FLOATS else item.ints)
        raise CannotComputeError(f"attribute {item.name}")

    def output(self) -> Any:
        """The tensor of the graph's first output."""
        return self.values[self.model.graph.output[0].name]

    def gradients(self, loss: Any) -> dict[str, Array]:
        """The gradient of `loss` (a number made of tensors of this graph) by initializer, or zeros."""
        names = list(self.leaves)
        gradients = self.torch.autograd.grad(loss, [self.leaves[name] for name in names], allow_unused=True)
        return {
            name: (self.torch.zeros_like(self.leaves[name]) if gradient is None else gradient).numpy()
            for name, gradient in zip(names, gradients, strict=True)
        }
