# SPDX-License-Identifier: Apache-2.0
"""ATen ops element by element, reductions and softmax."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from importers.graph.draft import CannotTakeError, elements
from importers.graph.node import Handler, Node
from importers.graph.torch_capture import Aside
from importers.graph.views import View
from importers.graph.weights import Constant
from importers.ops import ALONE, REDUCTIONS, RELATIONS, SELU, by_aten, with_own
from importers.place.elements import (
    above,
    celu,
    compared,
    cosine,
    log_sum_exp,
    norm,
    reduced,
    selu,
    shifted_sine,
    shrunk,
    sign,
    sloped,
    softmax,
)
from importers.place.moves import sliced, squeezed, where
from importers.place.pairs import (
    applied,
    difference,
    number_of,
    pair,
    power,
    quotient,
    scaled,
    shifted,
    times,
    total,
    two_operands,
    with_constant,
)

SOFTPLUS_LINE = 18.0
"""Where log(1 + e^x) is x in fp32."""

LARGE = 1e9
"""In place of infinity in a mask that is added before a softmax, whose exponential is 0 either way."""

_ALONE = by_aten(ALONE)
_RELATIONS = by_aten(RELATIONS)
_REDUCTIONS = by_aten(REDUCTIONS)


def _alone(node: Node) -> View:
    op = _ALONE[node.op]
    numbers = {item.option: node[item.aten] for item in op.numbers}
    return applied(node, op.ours, node.x, {**op.options, **numbers})


def _elu(node: Node) -> View:
    if node["scale"] != 1 or node["input_scale"] != 1:
        raise CannotTakeError("elu with a scale is not supported", "use elu, then multiply")
    return _alone(node)


def _clamp(node: Node) -> View:
    bounds = {"low": node.get("min_val", node.get("min")), "high": node.get("max_val", node.get("max"))}
    options = {name: number_of(bound) for name, bound in bounds.items() if bound is not None}
    if None in options.values():
        raise CannotTakeError("the bounds must be numbers, not tensors", "use maximum and minimum")
    inside = {"slope_at_bounds": False} if node.op == "hardtanh" else {}
    return applied(node, "clip", node.x, {**options, **inside})


def _pow(node: Node) -> View:
    exponent = number_of(node["exponent"])
    if not isinstance(node["self"], View) or exponent is None:
        raise CannotTakeError("the exponent must be a number, not a tensor", "use a number")
    return power(node, node["self"], exponent)


def _dropout(node: Node) -> Any:
    drops = node.get("train", True) and node["p"]
    made = applied(node, "dropout", node.x, {"p": node["p"]}) if drops else node.x
    return [made, Aside()] if node.several else made


def _prelu(node: Node) -> View:
    ones = (1,) * (node.rank - 2)
    return sloped(node, node.x, node.needed("weight").moved(lambda array: array.reshape(-1, *ones)))


def _softplus(node: Node) -> View:
    if node["threshold"] < SOFTPLUS_LINE:
        raise CannotTakeError(
            f"threshold={node['threshold']} of softplus is not supported", "set threshold=20"
        )
    beta = float(node["beta"])
    if beta == 0:
        raise CannotTakeError("softplus with beta=0 divides by 0", "set beta=1")
    inner = scaled(node, node.x, beta, suffix="_inner")
    return scaled(node, applied(node, "softplus", inner), 1 / beta, suffix="_outer")


def _log_sigmoid(node: Node) -> Any:
    turned = scaled(node, node.x, -1.0, suffix="_turned")
    made = scaled(node, applied(node, "softplus", turned), -1.0, suffix="_log")
    return [made, Aside()] if node.several else made


def _glu(node: Node) -> View:
    dim = node.dim()
    half = node.x.shape[dim] // 2
    value = sliced(node, node.x, dim, 0, half, suffix="_value")
    gate = applied(node, "sigmoid", sliced(node, node.x, dim, half, 2 * half, suffix="_half"), suffix="_gate")
    return two_operands(node, "multiply", value, gate)


# Two operands


def before_softmax(mask: Constant) -> Constant:
    """A mask that is added before a softmax, minus infinity in it as a number large enough."""
    if np.isfinite(mask.value).all():
        return mask
    if mask.trained or np.isnan(mask.value).any() or np.isposinf(mask.value).any():
        raise CannotTakeError("the mask has NaN, or is trained and has infinities", "use finite numbers")
    if np.isneginf(mask.value).all(axis=-1).any():
        raise CannotTakeError("the mask hides all elements of a softmax", "leave one or more in each row")
    return Constant(np.nan_to_num(mask.value, neginf=-LARGE).astype(np.float32))


def _weights_nothing(node: Node, covered: Any) -> bool:
    """Whether elements where a mask is True only go into a softmax, of rows with others left.

    Then they become 0 and get no gradient, whatever very negative number they are.
    """
    return node.into_softmax and not np.broadcast_to(covered, node.shape).all(axis=-1).any()


def _add(node: Node) -> View:
    left, right, alpha = node["self"], node["other"], node.get("alpha", 1)
    if node.op == "rsub":
        left, right = right, left
    if alpha != 1 and isinstance(right, Constant) and right.number is None:
        raise CannotTakeError("alpha must be a number, not a tensor", "multiply in a separate step")
    if alpha != 1:
        right = times(node, right, alpha) if isinstance(right, View) else number_of(right) * alpha
    if node.op != "add":
        return difference(node, left, right)
    for item in (left, right):
        if isinstance(item, Constant) and _weights_nothing(node, np.isneginf(item.value)):
            mask = before_softmax(item)
            return total(node, *(mask if other is item else other for other in (left, right)))
    return total(node, left, right)


def _addcmul(node: Node) -> View:
    product = times(node, node["tensor1"], node["tensor2"])
    value = float(node.get("value", 1))
    return total(node, node["self"], scaled(node, product, value, suffix="_scale") if value != 1 else product)


def _div(node: Node) -> View:
    if node.get("rounding_mode"):
        raise CannotTakeError(
            f"a division with rounding_mode={node['rounding_mode']!r} is not supported",
            "set rounding_mode=None",
        )
    return quotient(node, node["self"], node["other"])


def _largest(node: Node) -> Any:
    """Of two tensors; or over one dimension, with the places of the first ones, or over all."""
    kind = "maximum" if node.op.startswith("max") else "minimum"
    if "other" in node.arguments:
        return pair(node, kind, node["self"], node["other"])
    if 1 in node.used:
        raise CannotTakeError(f"the indices of {kind[:3]} are not supported", "use only the values")
    ties = {"ties": "first"} if "dim" in node.arguments else {}
    made = _reduced(node, f"reduce_{kind[:3]}", options=ties)
    return [made, None] if ties else made


# Masks


def _compare(node: Node) -> View:
    view = node["self"]
    number = number_of(node["other"])
    if not isinstance(view, View) or number is None:
        raise CannotTakeError("comparing two tensors is not supported", "compare with a number")
    return compared(node, view, _RELATIONS[node.op].ours, number)


def _where(node: Node) -> View:
    mask, left, right = node["condition"], node.get("self"), node["other"]
    if isinstance(mask, Constant):
        for view, number, covered in ((left, right, ~mask.value), (right, left, mask.value)):
            fill = number_of(number)
            if isinstance(view, View) and fill is not None:
                return _masked(node, view, covered, fill)
    return where(node, mask, *(_tensor(item) for item in (left, right)))


def _tensor(item: Any) -> Any:
    """A number as a constant."""
    return item if isinstance(item, (View, Constant)) else Constant(np.array(item, np.float32))


def _masked_fill(node: Node) -> View:
    mask, value = node["mask"], node["value"]
    number = number_of(value)
    if not isinstance(mask, Constant) or number is None:
        raise CannotTakeError(
            "the mask must not depend on the network's input",
            "use a registered buffer, or compute the mask from sizes",
        )
    return _masked(node, node.x, mask.value, number)


def _masked(node: Node, view: View, mask: Any, value: float) -> View:
    """`value` where the constant mask is True, by products with 0; before a softmax by -1e9 added."""
    covered = mask.astype(bool)
    if value < -1e4 and _weights_nothing(node, covered):
        return with_constant(node, "add", view, Constant(np.where(covered, -LARGE, 0).astype(np.float32)))
    if not np.isfinite(value):
        raise CannotTakeError(
            f"setting elements to {value} is not supported",
            "use a finite number, or -inf right before a softmax of the last dimension",
        )
    kept = Constant((~covered).astype(np.float32))
    made = with_constant(node, "multiply", view, kept, suffix="_kept" if value else "")
    return with_constant(node, "add", made, Constant((covered * value).astype(np.float32))) if value else made


# Reductions


def _dims(node: Node) -> list[int]:
    return sorted(node.dims()) or list(range(node.rank))


def _keep(node: Node) -> bool:
    return bool(node.get("keepdim"))


def _reduced(node: Node, kind: str, **more: Any) -> View:
    return reduced(node, node.x, _dims(node), kind, keep=_keep(node), **more)


def _norm(node: Node) -> View:
    order = float(node.get("ord", node.get("p", 2)))
    return norm(node, node.x, _dims(node), order, keep=_keep(node))


def _distances(node: Node) -> View:
    """A norm of the difference of each row of one and each of another."""
    left, right = node.view("x1"), node.view("x2")
    rows = (left.with_dim(len(left.dims) - 1), right.with_dim(len(right.dims) - 2))
    apart = two_operands(node, "subtract", *rows, suffix="_apart")
    return norm(node, apart, (len(apart.dims) - 1,), float(node["p"]), keep=False)


def _weight_norm(node: Node) -> Any:
    """g · v / norm of v (Salimans and Kingma 2016); a norm for each index of one dimension, or of all."""
    view = node.view("v")
    kept = node["dim"] % len(view.dims) if node["dim"] != -1 else -1
    over = [dim for dim in range(len(view.dims)) if dim != kept]
    sizes = norm(node, view, over, 2, keep=kept != -1)
    made = times(node, view, quotient(node, node["g"], sizes))
    return [made, Aside()] if node.several else made


def _renorm(node: Node) -> View:
    """Parts of a dimension whose norm is above a bound are scaled down to it."""
    bound, kept = float(node["maxnorm"]), node.dim()
    over = [dim for dim in range(node.rank) if dim != kept]
    sizes = norm(node, node.x, over, float(node["p"]), keep=True)
    inside = compared(node, sizes, "le", bound, suffix="_inside")
    outside = compared(node, sizes, "gt", bound, suffix="_outside")
    factor = quotient(node, outside, shifted(node, scaled(node, sizes, 1 / bound), 1e-7 / bound))
    return times(node, node.x, total(node, factor, inside))


def _variance(node: Node) -> Any:
    dims = _dims(node)
    count = elements([node.x.shape[dim] for dim in dims])
    correction = node.get("correction", 1 if node.get("unbiased", True) else 0)
    if correction >= count:
        raise CannotTakeError(
            f"the variance divides by {count - correction} (elements {count} - correction {correction})",
            f"use a correction below {count}",
        )
    mean = reduced(node, node.x, dims, "reduce_mean", keep=True, suffix="_mean")
    away = two_operands(node, "subtract", node.x, mean, suffix="_centred")
    square = applied(node, "square", away, suffix="_square")
    biased = reduced(node, square, dims, "reduce_mean", keep=_keep(node), suffix="_biased")
    biased = scaled(node, biased, count / (count - correction), suffix="_variance")
    made = applied(node, "square_root", biased) if node.op.startswith("std") else biased
    return [made, mean if _keep(node) else squeezed(mean, dims)] if node.several else made


def _softmax(node: Node) -> View:
    kind = node.op.removeprefix("_")
    made = softmax(node, node.x, node.dim(), kind=kind)
    if kind == "log_softmax":
        node.draft.log_probabilities[made.word] = node.x.shape[node.dim()]
    return made


HANDLERS: Mapping[str, Handler] = with_own(
    {
        **dict.fromkeys(_ALONE, _alone),
        **dict.fromkeys(_RELATIONS, _compare),
        **dict.fromkeys(_REDUCTIONS, lambda node: _reduced(node, _REDUCTIONS[node.op].ours)),
    },
    {
        "gelu": lambda node: applied(
            node, "gelu", node.x, {"form": "tanh" if node["approximate"] == "tanh" else "erf"}
        ),
        "elu": _elu,
        **dict.fromkeys(("hardtanh", "clamp", "clip", "clamp_min", "clamp_max"), _clamp),
        "cos": lambda node: shifted_sine(node, node.x),
        "rsqrt": lambda node: applied(
            node, "reciprocal", applied(node, "square_root", node.x), suffix="_inverse"
        ),
        "pow": _pow,
        **dict.fromkeys(("native_dropout", "dropout"), _dropout),
        "prelu": _prelu,
        "softplus": _softplus,
        **dict.fromkeys(("log_sigmoid", "log_sigmoid_forward"), _log_sigmoid),
        "selu": lambda node: selu(node, node.x, *SELU),
        "celu": lambda node: celu(node, node.x, float(node["alpha"])),
        "glu": _glu,
        "threshold": lambda node: above(node, node.x, float(node["threshold"]), float(node["value"])),
        **dict.fromkeys(
            ("hardshrink", "softshrink"),
            lambda node: shrunk(node, node.x, float(node["lambd"]), hard=node.op == "hardshrink"),
        ),
        "sign": lambda node: sign(node, node.x),
        **dict.fromkeys(("add", "sub", "rsub"), _add),
        "mul": lambda node: times(node, node["self"], node["other"]),
        "addcmul": _addcmul,
        **dict.fromkeys(("div", "true_divide"), _div),
        **dict.fromkeys(("maximum", "max", "minimum", "min"), _largest),
        "where": _where,
        "masked_fill": _masked_fill,
        **dict.fromkeys(("norm", "linalg_vector_norm"), _norm),
        "renorm": _renorm,
        **dict.fromkeys(("cdist", "_cdist_forward"), _distances),
        **dict.fromkeys(("_weight_norm", "_weight_norm_interface"), _weight_norm),
        "logsumexp": lambda node: log_sum_exp(node, node.x, _dims(node), keep=_keep(node)),
        "cosine_similarity": lambda node: cosine(
            node, node.x, node.view("x2"), node.dim(), float(node["eps"])
        ),
        **dict.fromkeys(("var", "std", "var_mean", "std_mean"), _variance),
        **dict.fromkeys(("softmax", "_softmax", "log_softmax", "_log_softmax"), _softmax),
    },
    instead=("gelu", "elu"),
)
