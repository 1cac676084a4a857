# SPDX-License-Identifier: Apache-2.0
"""ONNX ops on elements: activations, sums, products, comparisons, and means and sums over dimensions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from importers.graph.arranging import places_of, sample_word, under, viewed
from importers.graph.draft import CannotTakeError, elements
from importers.graph.node import Attributes, Handler, Node, axis_of, meant
from importers.graph.views import BATCH, View, neighbours
from importers.graph.weights import Constant
from importers.ops import ALONE, REDUCTIONS, RELATIONS, SELU, Op, by_onnx, with_own
from importers.place.elements import (
    above,
    celu,
    compared,
    log_sum_exp,
    norm,
    reduced,
    selu,
    shifted_sine,
    shrunk,
    sign,
    sloped,
    softsign,
)
from importers.place.moves import where
from importers.place.pairs import (
    applied,
    as_view,
    common_shape,
    difference,
    number_of,
    pair,
    power,
    quotient,
    scaled,
    times,
    total,
    two_operands,
)

_ALONE = by_onnx(ALONE)
_RELATIONS = by_onnx(RELATIONS)
_REDUCTIONS = by_onnx(REDUCTIONS)


def _alone(node: Node) -> View:
    op = _ALONE[node.op]
    return applied(node, op.ours, _biased(node), options_of(node, op))


def options_of(node: Attributes, op: Op) -> dict[str, Any]:
    """Options of a layer that one op is, by its name and its attributes."""
    return {**op.options, **{item.option: node.number(item.onnx, item.default) for item in op.numbers}}


def _biased(node: Node) -> View:
    """What an activation is of, two of which may be of a sum."""
    is_sum = node.op in ("com.microsoft:FastGelu", "com.microsoft:BiasGelu") and node.has(1)
    return total(node, node.x, node[1]) if is_sum else node.x


def _gelu(node: Node) -> View:
    tanh = node.text("approximate", "none") == "tanh"
    return applied(node, "gelu", _biased(node), {"form": "tanh"} if tanh else {})


def _quick_gelu(node: Node) -> View:
    alpha = node.number("alpha", 1.0 if node.op == "Swish" else 1.702)
    if alpha == 1:
        return applied(node, "silu", node.x)
    gate = applied(node, "sigmoid", scaled(node, node.x, alpha, suffix="_scale"), suffix="_gate")
    return two_operands(node, "multiply", node.x, gate)


def _hard_sigmoid(node: Node) -> View:
    alpha = node.number("alpha", 0.2)
    options = {"alpha": 1 / 6 if abs(alpha - 1 / 6) < 1e-6 else alpha, "beta": node.number("beta", 0.5)}
    return applied(node, "hard_sigmoid", node.x, options)


def _clip(node: Node) -> View:
    options = clip_options(node)
    return applied(node, "clip", node.x, options) if options else node.x


def clip_options(node: Attributes) -> dict[str, float]:
    """The bounds of a Clip that are no infinities."""
    options = {}
    for index, (name, option) in enumerate((("min", "low"), ("max", "high")), start=1):
        given = node.values(index) if node.has(index) else None
        if node.has(index) and (given is None or given.size != 1):
            raise CannotTakeError("the bounds must be single numbers", "use one number for each bound")
        bound = node.real(name, np.inf) if given is None else float(given.reshape(-1)[0])
        if abs(bound) < 3e38:
            options[option] = bound
    return options


def _shrink(node: Node) -> View:
    bound, bias = node.number("lambd", 0.5), node.number("bias", 0.0)
    if bias not in (0, bound) or bound < 0:
        raise CannotTakeError(
            f"Shrink with lambd {bound:g} and bias {bias:g} is not supported",
            "set bias to 0 or lambd, and lambd to 0 or more",
        )
    return shrunk(node, node.x, bound, hard=not bias)


def _prelu(node: Node) -> View:
    slope = node.needed(1, "slope")
    if slope.number is not None and 0 <= slope.number < 1:
        return applied(node, "leaky_relu", node.x, {"slope": meant(slope.number)})
    return sloped(node, node.x, slope)


def _softmax(node: Node) -> View:
    view, kind = node.x, "softmax" if node.op == "Softmax" else "log_softmax"
    rank = len(view.dims)
    dim = node.axis(rank, -1 if node.opset >= 13 else 1)
    if node.opset >= 13 or dim == rank - 1:
        return row_softmax(node, view.swapped(dim, rank - 1), kind).swapped(dim, rank - 1)
    # Old ones take everything from the axis on as one row.
    flat = viewed(node, view, (*view.shape[:dim], elements(view.shape[dim:])))
    return viewed(node, row_softmax(node, flat, kind), view.shape)


def row_softmax(node: Node, view: View, kind: str) -> View:
    """A softmax, or its logarithm, over the last dimension."""
    word, batch_dim = sample_word(node, view)
    if batch_dim == len(view.dims) - 1:
        raise CannotTakeError("a softmax over the batch is not supported", "use a dimension after the batch")
    return under(node.layer(kind, (word,)), batch_dim, len(view.dims))


# Two operands


def _two(how: Callable[[Any, Any, Any], View]) -> Handler:
    """A handler of the first two inputs."""
    return lambda node: how(node, _operand(node, 0), _operand(node, 1))


def _operand(node: Node, index: int) -> Any:
    return node[index] if node.has(index) else node.needed(index)


def _sum(node: Node) -> View:
    result, *rest = node.inputs
    for item in rest:
        result = total(node, result, item)
    return node.as_view(result, 0)


def _power(node: Node) -> View:
    exponent = node.constant(1)
    if exponent is None or exponent.alike is None:
        raise CannotTakeError("the exponent must be a single number", "use one number as exponent")
    return power(node, node.x, meant(exponent.alike))


def _extreme(node: Node) -> View:
    kind, option = ("minimum", "high") if node.op == "Min" else ("maximum", "low")
    items = node.inputs
    result, *views = [item for item in items if isinstance(item, View)]
    for number, item in enumerate(views):
        result = two_operands(node, kind, result, item, suffix=f"_{number}" if number else "")
    for number, item in enumerate(items):
        if isinstance(item, View):
            continue
        bound, suffix = number_of(item), f"_bound{number}"
        if bound is not None and common_shape(item.shape, result.shape) == result.shape:
            result = applied(node, "clip", result, {option: bound}, suffix=suffix)
        else:
            result = pair(node, kind, result, item, suffix=suffix)
    return result


_MIRRORED = {"ge": "le", "gt": "lt", "le": "ge", "lt": "gt", "eq": "eq"}


def _compare(node: Node) -> View:
    left, right, form = _operand(node, 0), _operand(node, 1), _RELATIONS[node.op].ours
    if isinstance(left, Constant):
        left, right, form = right, left, _MIRRORED[form]
    if isinstance(right, Constant) and right.alike is not None:
        return compared(node, left, form, meant(right.alike))
    away = two_operands(node, "subtract", left, as_view(node, right, left), suffix="_difference")
    return compared(node, away, form, 0.0)


def _where(node: Node) -> View:
    items = [_operand(node, index) for index in range(3)]
    for number, item in enumerate(items):
        if number and isinstance(item, Constant) and not np.isfinite(item.value).all():
            # A mask of attention: softmax of the least number is 0 as that of minus infinity.
            items[number] = Constant(np.nan_to_num(item.value, neginf=-1e30, posinf=1e30, nan=0.0))
    return where(node, *items)


def _reduce(node: Node) -> View:
    view = node.x
    rank, kind, keep = len(view.dims), _REDUCTIONS[node.op].ours, bool(node.integer("keepdims", 1))
    axes = reduced_axes(node, rank)
    if kind == "reduce_mean" and axes == [2, 3] and rank == 4 and view.batch_dim in (0, None):
        return reduced(node, view, axes, kind, keep=keep)
    if any(BATCH in view.dims[axis] and view.batch > 1 for axis in axes):
        raise CannotTakeError("a sum over the batch is not supported", "sum over dimensions after the batch")
    for number, group in enumerate(neighbours([axis for axis in axes if view.shape[axis] > 1])):
        word, batch_dim = sample_word(node, view)
        places = places_of(rank, batch_dim)
        options = {"axes": [places.index(axis) for axis in group], "keep_dims": True}
        made = node.layer(kind, (word,), options, suffix=f"_{number}" if number else "")
        view = under(made, batch_dim, rank)
    for axis in () if keep else axes[::-1]:
        view = view.without_dim(axis)
    return view


def _reduce_composed(node: Node) -> View:
    """Reductions made of others."""
    view, keep = node.x, bool(node.integer("keepdims", 1))
    dims = reduced_axes(node, len(view.dims))
    if not dims:
        raise CannotTakeError("the node has no axes to reduce", "set the attribute or input axes")
    if node.op in _ORDERS:
        return norm(node, view, dims, _ORDERS[node.op], keep=keep)
    if node.op == "ReduceLogSumExp":
        return log_sum_exp(node, view, dims, keep=keep)
    if node.op == "ReduceSumSquare":
        return reduced(node, applied(node, "square", view), dims, "reduce_sum", keep=keep)
    return applied(node, "logarithm", reduced(node, view, dims, "reduce_sum", keep=keep))


_ORDERS = {"ReduceL1": 1.0, "ReduceL2": 2.0}


def _normalized(node: Node) -> View:
    dims, order = (node.axis(node.rank, -1),), node.integer("p", 2)
    if order not in (1, 2):
        raise CannotTakeError(f"attribute p of the node is {order}, not 1 or 2", "use p = 1 or p = 2")
    return two_operands(node, "divide", node.x, norm(node, node.x, dims, order, keep=True))


def reduced_axes(node: Attributes, rank: int) -> list[int]:
    """The dimensions that a reduction takes together; none where it says that no axes are none."""
    asked = node.integers("axes", 1)
    if not asked and node.integer("noop_with_empty_axes", 0):
        return []
    return sorted({axis_of(axis, rank) for axis in (asked or range(rank))})


HANDLERS: Mapping[str, Handler] = with_own(
    {
        **dict.fromkeys(_ALONE, _alone),
        **dict.fromkeys(_RELATIONS, _compare),
        **dict.fromkeys(_REDUCTIONS, _reduce),
    },
    {
        **dict.fromkeys(("Gelu", "com.microsoft:Gelu", "com.microsoft:BiasGelu"), _gelu),
        **dict.fromkeys(("com.microsoft:QuickGelu", "Swish"), _quick_gelu),
        "HardSigmoid": _hard_sigmoid,
        "Clip": _clip,
        "Cos": lambda node: shifted_sine(node, node.x),
        "Softsign": lambda node: softsign(node, node.x),
        "Selu": lambda node: selu(node, node.x, node.number("alpha", SELU[0]), node.number("gamma", SELU[1])),
        "Celu": lambda node: celu(node, node.x, node.number("alpha", 1.0)),
        "ThresholdedRelu": lambda node: above(node, node.x, node.number("alpha", 1.0), 0.0),
        "Shrink": _shrink,
        "Sign": lambda node: sign(node, node.x),
        "PRelu": _prelu,
        **dict.fromkeys(("Softmax", "LogSoftmax"), _softmax),
        **dict.fromkeys(("Add", "Sum"), _sum),
        "Sub": _two(difference),
        "Mul": _two(times),
        "Div": _two(quotient),
        "Pow": _power,
        **dict.fromkeys(("Min", "Max"), _extreme),
        "And": lambda node: pair(node, "multiply", _operand(node, 0), _operand(node, 1)),
        "Not": lambda node: compared(node, node.x, "eq", 0.0),
        "Where": _where,
        **dict.fromkeys((*_ORDERS, "ReduceSumSquare", "ReduceLogSum", "ReduceLogSumExp"), _reduce_composed),
        "LpNormalization": _normalized,
    },
    instead=("Gelu", "com.microsoft:Gelu", "HardSigmoid"),
)
