# SPDX-License-Identifier: Apache-2.0
"""ONNX ops on elements: activations, sums, products, comparisons, and means and sums over dimensions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from importers.graph.arranging import in_order, sample_word, under, viewed
from importers.graph.draft import CHECKED, CannotTakeError, elements
from importers.graph.views import BATCH, View, neighbours
from importers.onnx.call import NEAREST, Call, Constant, axis_of, register
from importers.onnx.moves import expanded
from importers.place.pairs import two_operands

NEAREST.update(
    {
        "ArgMax": "the output of the network before it",
        "CumSum": "MatMul with a triangle of ones",
        "Shrink": "Relu of differences",
        "ReduceProd": "Mul",
        "QuantizeLinear": "float32, or run with --dtype",
        "DequantizeLinear": "float32, or run with --dtype",
        "Sin": "a table of constants",
        "Cos": "a table of constants",
    }
)

SELU_ALPHA, SELU_GAMMA = 1.67326319217681884765625, 1.05070102214813232421875
"""Klambauer et al. 2017, as ONNX has them."""

_ALONE: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "Relu": ("relu", {}),
    "Sigmoid": ("sigmoid", {}),
    "Tanh": ("tanh", {}),
    "importer:Silu": ("silu", {}),
    "com.microsoft:QuickGelu": ("silu", {}),
    "Exp": ("exponential", {}),
    "Log": ("logarithm", {}),
    "Sqrt": ("square_root", {}),
    "Reciprocal": ("reciprocal", {}),
    "Erf": ("error_function", {}),
    "Abs": ("absolute", {}),
    "Neg": ("scale", {"factor": -1.0}),
    "HardSwish": ("hard_swish", {}),
    "Softplus": ("softplus", {}),
    "Mish": ("mish", {}),
    "com.microsoft:FastGelu": ("gelu", {"form": "tanh"}),
}
"""Ops of one input without attributes -> layer and its options."""


@register(*_ALONE)
def _alone(call: Call) -> Any:
    if call.node.op == "com.microsoft:QuickGelu" and call.attribute("alpha", 1.702) != 1:
        raise CannotTakeError("an alpha other than 1", "Gelu")
    kind, options = _ALONE[call.node.op]
    view = call.view()
    if call.node.op == "com.microsoft:FastGelu" and call.has(1):
        view = added(call, view, call.arguments[1])
    return call.like(view, kind, options)


@register("Gelu", "com.microsoft:Gelu", "com.microsoft:BiasGelu")
def _gelu(call: Call) -> Any:
    view = call.view()
    if call.node.op.endswith("BiasGelu"):
        view = added(call, view, call.arguments[1])
    tanh = call.attribute("approximate", "none") == "tanh"
    return call.like(view, "gelu", {"form": "tanh"} if tanh else {})


def _number(value: float) -> float:
    """An attribute as it was meant: 0.1, not what fp32 makes of it."""
    return float(np.format_float_positional(np.float32(value)))


@register("LeakyRelu", "Elu", "HardSigmoid", "Clip")
def _with_numbers(call: Call) -> Any:
    view, op = call.view(), call.node.op
    if op == "LeakyRelu":
        return call.like(view, "leaky_relu", {"slope": _number(call.attribute("alpha", 0.01))})
    if op == "Elu":
        alpha = _number(call.attribute("alpha", 1.0))
        return call.like(view, "elu", {} if alpha == 1 else {"alpha": alpha})
    if op == "HardSigmoid":
        alpha = _number(call.attribute("alpha", 0.2))
        options = {"alpha": 1 / 6 if abs(alpha - 1 / 6) < 1e-6 else alpha}
        beta = _number(call.attribute("beta", 0.5))
        return call.like(view, "hard_sigmoid", options if beta == 0.5 else {**options, "beta": beta})
    options = {}
    for index, (name, option) in enumerate((("min", "low"), ("max", "high")), start=1):
        bound = call.attribute(name)
        constant = call.constant(index) if call.has(index) else None
        if constant is not None:
            if constant.value.size != 1:
                raise CannotTakeError("bounds that are no numbers", "a number for each bound")
            bound = float(constant.value.reshape(-1)[0])
        if bound is not None and abs(bound) < 3e38:
            options[option] = float(bound)
    return call.like(view, "clip", options) if options else view


@register("Softsign")
def _softsign(call: Call) -> Any:
    view = call.view()
    size = call.like(call.like(view, "absolute", suffix="_size"), "shift", {"offset": 1.0}, "_below")
    return pairwise(call, "divide", view, size)


@register("Celu", "Selu")
def _scaled_elu(call: Call) -> Any:
    """alpha · elu(x / alpha), and gamma · elu(x) of slope alpha."""
    view = call.view()
    if call.node.op == "Selu":
        alpha = _number(call.attribute("alpha", SELU_ALPHA))
        gamma = _number(call.attribute("gamma", SELU_GAMMA))
        return call.like(call.like(view, "elu", {"alpha": alpha}, "_elu"), "scale", {"factor": gamma})
    alpha = _number(call.attribute("alpha", 1.0))
    if alpha <= 0:
        raise CannotTakeError(f"a Celu of alpha {alpha:g}", "more than 0")
    if alpha == 1:
        return call.like(view, "elu")
    inner = call.like(view, "scale", {"factor": 1 / alpha}, "_inner")
    return call.like(call.like(inner, "elu", suffix="_elu"), "scale", {"factor": alpha})


@register("ThresholdedRelu")
def _thresholded(call: Call) -> Any:
    view, bound = call.view(), _number(call.attribute("alpha", 1.0))
    mask = call.like(view, "compare", {"form": "gt", "value": bound}, "_above")
    return pairwise(call, "multiply", view, mask)


@register("PRelu")
def _prelu(call: Call) -> Any:
    view, slope = call.view(), call.constant(1)
    if slope is None:
        raise CannotTakeError("its slope is missing", CHECKED)
    rank, shape = len(view.dims), slope.value.shape
    own = (1,) * (rank - len(shape)) + shape
    if not slope.trained and slope.number is not None and 0 <= slope.number < 1:
        return call.like(view, "leaky_relu", {"slope": _number(slope.number)})
    if own == (1,) * rank or (view.batch_dim == 0 and own == (1, view.shape[1], *(1,) * (rank - 2))):
        word, batch_dim = sample_word(call, view)
        weights = call.places.given(slope).moved(lambda array: array.reshape(-1))
        options = {"per_channel": True} if slope.value.size > 1 else {}
        return under(call.layer("prelu", (word,), options, {"w": weights}), batch_dim, rank)
    left, right = call.like(view, "clip", {"high": 0.0}, "_left"), call.like(view, "relu", suffix="_right")
    scaled = pairwise(call, "multiply", left, as_view(call, slope, view), "_slope")
    return pairwise(call, "add", right, scaled)


@register("Softmax", "LogSoftmax")
def _softmax(call: Call) -> Any:
    view = call.view()
    rank = len(view.dims)
    dim = call.axis(rank, -1 if call.opset >= 13 else 1)
    if call.opset < 13 and dim != rank - 1:
        # Old ones take everything from the axis on as one row.
        flat = viewed(call, view, (*view.shape[:dim], elements(view.shape[dim:])))
        return viewed(call, _row_softmax(call, flat), view.shape)
    last = rank - 1
    if dim == last:
        return _row_softmax(call, view)
    return _row_softmax(call, view.swapped(dim, last)).swapped(dim, last)


def _row_softmax(call: Call, view: View) -> View:
    word, batch_dim = sample_word(call, view)
    if batch_dim == len(view.dims) - 1:
        raise CannotTakeError("a softmax over samples", "a dimension behind the batch")
    kind = "softmax" if call.node.op == "Softmax" else "log_softmax"
    return under(call.layer(kind, (word,)), batch_dim, len(view.dims))


# Two operands


def as_view(call: Call, constant: Constant, like: View, suffix: str = "_constant") -> View:
    """A constant as an activation, the same for every sample: a parameter, frozen unless it is a weight."""
    if not constant.value.ndim:
        places = None if constant.places is None else constant.places.reshape(1)
        constant = Constant(constant.value.reshape(1), places, constant.trained)
    value = constant.value
    if not np.issubdtype(value.dtype, np.floating) and value.dtype != bool:
        value = value.astype(np.float32)
    given = call.places.given(Constant(value.astype(np.float32), constant.places, constant.trained))
    missing = len(like.dims) - value.ndim
    batch_dim = like.batch_dim
    own = None if batch_dim is None or batch_dim < missing else batch_dim - missing
    if own is not None and value.shape[own] != 1:
        if like.batch > 1:
            raise CannotTakeError(
                "a constant that differs from sample to sample", "one that is the same for all"
            )
        own = None if value.shape[own] != 1 else own
    shape = tuple(size for index, size in enumerate(value.shape) if index != own) or (1,)
    made = call.layer(
        "parameter",
        ("input",),
        {"shape": list(shape)},
        {"w": given.moved(lambda array: array.reshape(shape))},
        suffix=suffix,
    )
    # The dimensions of `like` it does not have repeat, and that of the batch counts samples here as well.
    dims = list(made.dims[1:])
    if own is not None:
        dims.insert(own, ())
    dims = [*((),) * missing, *dims] if len(dims) == value.ndim else [()] * (value.ndim + max(missing, 0))
    if batch_dim is not None:
        dims[batch_dim - min(missing, 0)] = (BATCH,)
    return replace(made, dims=tuple(dims))


def _same_order(call: Call, left: View, right: View) -> tuple[View, View]:
    """Two views of one shape, stored alike."""
    if (left.stored, left.pieces, left.dims) == (right.stored, right.pieces, right.dims):
        return left, right
    first, second = in_order(call, left), in_order(call, right)
    if (first.stored, first.dims) != (second.stored, second.dims):
        raise CannotTakeError("operands with the batch in different places", "the batch in front of both")
    return first, second


def pairwise(call: Call, kind: str, left: View, right: View, suffix: str = "") -> View:
    """A layer of two tensors of one shape; what repeats is made larger first."""
    return two_operands(call, kind, left, right, _common_shape(left, right), suffix=suffix)


def _common_shape(left: View, right: View) -> tuple[int, ...]:
    try:
        return np.broadcast_shapes(left.shape, right.shape)
    except ValueError:
        raise CannotTakeError(
            f"shapes {list(left.shape)} and {list(right.shape)} cannot be broadcast",
            CHECKED,
        ) from None


def added(call: Call, left: Any, right: Any) -> View:
    """The sum of two tensors, at least one of them an activation."""
    if isinstance(left, Constant):
        left, right = right, left
    if isinstance(right, Constant):
        return _added_constant(call, left, right)
    return pairwise(call, "add", left, right)


def _added_constant(call: Call, view: View, constant: Constant) -> View:
    number = constant.number
    if number is not None and not constant.trained:
        return view if number == 0 else call.like(view, "shift", {"offset": _number(number)})
    sample = view.shape[1:]
    own = constant.value.shape[-len(sample) :] if sample else ()
    if view.batch_dim == 0 and own == sample and elements(constant.value.shape) == elements(sample):
        word, _ = sample_word(call, view)
        given = call.places.given(constant).moved(lambda array: array.reshape(sample))
        return under(call.layer("position", (word,), {}, {"w": given}), 0, len(view.dims))
    return added(call, view, as_view(call, constant, view))


@register("Add", "Sum")
def _add(call: Call) -> Any:
    total, *rest = call.arguments
    for item in rest:
        total = added(call, total, item)
    return total


@register("Sub")
def _subtract(call: Call) -> Any:
    left, right = call.arguments
    if isinstance(right, Constant):
        return added(call, left, _negated(right))
    if isinstance(left, Constant):
        return added(call, call.like(right, "scale", {"factor": -1.0}, "_negative"), left)
    return pairwise(call, "subtract", left, right)


def _negated(constant: Constant) -> Constant:
    if constant.trained:
        raise CannotTakeError("subtracts a weight", "adding it")
    return Constant(-constant.value)


@register("Mul")
def _multiply(call: Call) -> Any:
    left, right = call.arguments
    if isinstance(left, Constant):
        left, right = right, left
    if isinstance(right, Constant):
        if right.number is not None and not right.trained:
            return left if right.number == 1 else call.like(left, "scale", {"factor": _number(right.number)})
        right = as_view(call, right, left)
    if left is right or left == right:
        return call.like(left, "square")
    return pairwise(call, "multiply", left, right)


@register("Div")
def _divide(call: Call) -> Any:
    left, right = call.arguments
    if isinstance(right, Constant):
        if right.trained:
            return pairwise(call, "divide", left, as_view(call, right, left))
        if (right.value == 0).any():
            raise CannotTakeError("divides by 0", "a divisor that is not 0")
        if right.number is not None:
            return left if right.number == 1 else call.like(left, "scale", {"factor": 1 / right.number})
        inverse = Constant((1 / right.value.astype(np.float64)).astype(np.float32))
        return pairwise(call, "multiply", left, as_view(call, inverse, left))
    if isinstance(left, Constant):
        inverse_view = call.like(right, "reciprocal", suffix="_inverse")
        number = left.number
        if number is not None and not left.trained:
            return (
                inverse_view if number == 1 else call.like(inverse_view, "scale", {"factor": _number(number)})
            )
        return pairwise(call, "multiply", inverse_view, as_view(call, left, right))
    return pairwise(call, "divide", left, right)


@register("Pow")
def _power(call: Call) -> Any:
    exponent = call.constant(1)
    if exponent is None or exponent.number is None:
        raise CannotTakeError("an exponent that is no number", "one number")
    number = exponent.number
    simple = {2.0: "square", 0.5: "square_root", -1.0: "reciprocal"}
    if number == 1:
        return call.view()
    if number in simple:
        return call.like(call.view(), simple[number])
    return call.like(call.view(), "power", {"exponent": _number(number)})


@register("Min", "Max")
def _extreme(call: Call) -> Any:
    kind, option = ("minimum", "high") if call.node.op == "Min" else ("maximum", "low")
    views = [item for item in call.arguments if isinstance(item, View)]
    result = views[0]
    for number, item in enumerate(views[1:]):
        result = pairwise(call, kind, result, item, f"_{number}" if number else "")
    for number, item in enumerate(call.arguments):
        if isinstance(item, Constant):
            bound = item.number
            if bound is not None and not item.trained:
                result = call.like(result, "clip", {option: _number(bound)}, f"_bound{number}")
            else:
                result = pairwise(call, kind, result, as_view(call, item, result), f"_bound{number}")
    return result


_RELATIONS = {
    "GreaterOrEqual": "ge",
    "Greater": "gt",
    "LessOrEqual": "le",
    "Less": "lt",
    "Equal": "eq",
}
_MIRRORED = {"ge": "le", "gt": "lt", "le": "ge", "lt": "gt", "eq": "eq"}


@register(*_RELATIONS)
def _compare(call: Call) -> Any:
    left, right = call.arguments
    form = _RELATIONS[call.node.op]
    if isinstance(left, Constant):
        left, right, form = right, left, _MIRRORED[form]
    if isinstance(right, Constant) and right.number is not None:
        options = {"form": form, **({"value": _number(right.number)} if right.number else {})}
        return call.like(left, "compare", options)
    other = as_view(call, right, left) if isinstance(right, Constant) else right
    return call.like(pairwise(call, "subtract", left, other, "_difference"), "compare", {"form": form})


@register("And", "Not")
def _logic(call: Call) -> Any:
    if call.node.op == "Not":
        return call.like(call.view(), "compare", {"form": "eq"})
    left, right = (
        item if isinstance(item, View) else as_view(call, item, call.arguments[1 - index])
        for index, item in enumerate(call.arguments)
    )
    return pairwise(call, "multiply", left, right)


@register("Where")
def _where(call: Call) -> Any:
    condition, first, second = call.arguments
    like = next(item for item in call.arguments if isinstance(item, View))
    shape: tuple[int, ...] = ()
    for item in call.arguments:
        own = item.shape if isinstance(item, View) else item.value.shape
        try:
            shape = np.broadcast_shapes(shape, own)
        except ValueError:
            raise CannotTakeError("shapes that cannot be broadcast", CHECKED) from None
    views = []
    for number, item in enumerate((condition, first, second)):
        if isinstance(item, Constant):
            if number and not np.isfinite(item.value).all():
                # A mask of attention: softmax of the least number is 0 as that of minus infinity.
                finite = Constant(np.nan_to_num(item.value, neginf=-1e30, posinf=1e30, nan=0.0))
            else:
                finite = item
            view = as_view(call, finite, like, f"_constant{number}")
        else:
            view = item
        views.append(expanded(call, view, shape, f"_expand{number}"))
    first_view, second_view = _same_order(call, views[1], views[2])
    mask, first_view = _same_order(call, views[0], first_view)
    mask, second_view = _same_order(call, mask, second_view)
    mask, first_view = _same_order(call, mask, first_view)
    made = call.layer("where", (mask.word, first_view.word, second_view.word))
    return replace(first_view, word=made.word)


# Over dimensions


_REDUCED = {
    "ReduceMean": "reduce_mean",
    "ReduceSum": "reduce_sum",
    "ReduceMax": "reduce_max",
    "ReduceMin": "reduce_min",
}


@register(*_REDUCED)
def _reduce(call: Call) -> Any:
    view = call.view()
    rank = len(view.dims)
    asked = call.integers("axes", 1)
    if not asked and call.attribute("noop_with_empty_axes", 0):
        return view
    axes = sorted({axis_of(axis, rank) for axis in (asked or range(rank))})
    keep = bool(call.attribute("keepdims", 1))
    return reduced(call, view, axes, _REDUCED[call.node.op], keep=keep)


def reduced(call: Call, view: View, axes: list[int], kind: str, *, keep: bool) -> View:
    """A mean, sum or extreme: a layer for each group of neighbours; images are averaged by pooling."""
    if any(BATCH in view.dims[axis] and view.batch > 1 for axis in axes):
        raise CannotTakeError("sums over samples", "dimensions behind the batch")
    axes = [axis for axis in axes if view.shape[axis] > 1 or not keep]
    real = [axis for axis in axes if view.shape[axis] > 1]
    if (
        kind == "reduce_mean"
        and len(view.dims) == 4
        and axes == [2, 3]
        and view.batch_dim in (0, None)
        and real
    ):
        from importers.graph.arranging import fresh, image

        made = call.layer("global_avg_pool", (image(call, view, 2),))
        return fresh(made, (*view.shape[:2], 1, 1) if keep else view.shape[:2])
    result = view
    for number, group in enumerate(neighbours(real)):
        word, batch_dim = sample_word(call, result)
        places = [index for index in range(len(result.dims)) if index != batch_dim]
        options = {"axes": [places.index(axis) for axis in group], "keep_dims": True}
        made = call.layer(kind, (word,), options, suffix=f"_{number}" if number else "")
        result = under(made, batch_dim, len(result.dims))
    if not keep:
        for axis in reversed(axes):
            result = result.without_dim(axis)
    return result
