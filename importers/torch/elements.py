# SPDX-License-Identifier: Apache-2.0
"""ATen ops element by element, reductions and softmax."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np

from importers.graph.arranging import fresh, image, regrouped, rows, sample_word, under
from importers.graph.draft import CannotTakeError, Given, elements
from importers.graph.views import BATCH, Shape, View
from importers.place.cutting import sliced
from importers.place.pairs import two_operands, wider, with_constant
from importers.torch.capture import NEAREST, Aside, Call, Constant, register, shape_of
from importers.torch.moves import axis_of

NEAREST.update(
    {
        "feature_dropout": "Dropout",
        "alpha_dropout": "Dropout",
        "cumsum": "matmul with a triangular constant",
        "bernoulli": "Dropout",
        "rand_like": "Dropout",
        "logical_and": "multiplying masks",
        "sign": "clamp",
        "sin": "a table as a buffer",
        "cos": "a table as a buffer",
    }
)

SELU_ALPHA, SELU_GAMMA = 1.6732632423543772, 1.0507009873554805
"""Klambauer et al. 2017, as PyTorch has them."""

SOFTPLUS_LINE = 18.0
"""Where log(1 + e^x) is x in fp32."""

SOFTMAXES = ("softmax", "_softmax")

LARGE = 1e9
"""In place of infinity in a mask that is added before a softmax, whose exponential is 0 either way."""


def applied(
    call: Call, kind: str, view: View, options: dict[str, Any] | None = None, *, suffix: str = ""
) -> View:
    """An elementwise layer: the elements stay where they are."""
    made = call.layer(kind, (view.word,), options, suffix=suffix)
    return View(made.word, made.stored, view.pieces, view.dims)


def _unary(kind: str, *names: str) -> None:
    @register(*names)
    def _apply(call: Call) -> Any:
        return applied(call, kind, call.view("self"))


for _kind, _names in {
    "relu": ("relu",),
    "sigmoid": ("sigmoid",),
    "tanh": ("tanh",),
    "silu": ("silu",),
    "hard_swish": ("hardswish",),
    "hard_sigmoid": ("hardsigmoid",),
    "exponential": ("exp",),
    "logarithm": ("log",),
    "square_root": ("sqrt",),
    "reciprocal": ("reciprocal",),
    "square": ("square",),
    "absolute": ("abs",),
    "error_function": ("erf", "special_erf"),
    "mish": ("mish",),
}.items():
    _unary(_kind, *_names)


@register("leaky_relu")
def _leaky_relu(call: Call) -> Any:
    slope = call["negative_slope"]
    return applied(call, "leaky_relu", call.view("self"), {} if slope == 0.01 else {"slope": slope})


@register("gelu")
def _gelu(call: Call) -> Any:
    form = {"none": "erf", "tanh": "tanh"}[call["approximate"]]
    return applied(call, "gelu", call.view("self"), {} if form == "erf" else {"form": form})


@register("elu")
def _elu(call: Call) -> Any:
    if call["scale"] != 1 or call["input_scale"] != 1:
        raise CannotTakeError("scaled elu", "elu")
    return applied(call, "elu", call.view("self"), {} if call["alpha"] == 1 else {"alpha": call["alpha"]})


@register("hardtanh", "clamp", "clip", "clamp_min", "clamp_max")
def _clamp(call: Call) -> Any:
    bounds = {
        "low": call.get("min_val", call.get("min")),
        "high": call.get("max_val", call.get("max")),
    }
    if any(isinstance(bound, (View, Constant)) for bound in bounds.values()):
        raise CannotTakeError("bounds that are tensors", "numbers as bounds, or maximum and minimum")
    options = {name: float(bound) for name, bound in bounds.items() if bound is not None}
    if options == {"low": 0.0}:
        return applied(call, "relu", call.view("self"))
    return applied(call, "clip", call.view("self"), options)


@register("relu6")
def _relu6(call: Call) -> Any:
    return applied(call, "clip", call.view("self"), {"low": 0.0, "high": 6.0})


@register("rsqrt")
def _rsqrt(call: Call) -> Any:
    return applied(call, "reciprocal", applied(call, "square_root", call.view("self")), suffix="_inverse")


@register("neg")
def _neg(call: Call) -> Any:
    return applied(call, "scale", call.view("self"), {"factor": -1.0})


@register("pow")
def _pow(call: Call) -> Any:
    exponent = call["exponent"]
    exponent = exponent.number if isinstance(exponent, Constant) else exponent
    if not isinstance(call["self"], View) or not isinstance(exponent, (int, float)):
        raise CannotTakeError("an exponent that is a tensor", "a number as the exponent")
    simple = {1: "", 2: "square", 0.5: "square_root", -1: "reciprocal"}.get(exponent)
    if simple is not None:
        return applied(call, simple, call.view("self")) if simple else call.view("self")
    return applied(call, "power", call.view("self"), {"exponent": float(exponent)})


@register("native_dropout", "dropout")
def _dropout(call: Call) -> Any:
    view = call.view("input")
    made = view
    if call.get("train", True) and call["p"]:
        made = applied(call, "dropout", view, {"p": call["p"]})
    return [made, Aside()] if isinstance(call.node.meta["val"], (tuple, list)) else made


@register("prelu")
def _prelu(call: Call) -> Any:
    view, slope = call.view("self"), call.weight("weight")
    assert slope is not None
    if slope.value.size == 1:
        made = call.layer("prelu", (view.word,), {}, {"w": slope.moved(lambda array: array.reshape(-1))})
        return replace(view, word=made.word, stored=made.stored)
    rank = len(view.dims)
    if view.batch_dim == 0:
        word, _ = sample_word(call, view)
        return under(call.layer("prelu", (word,), {"per_channel": True}, {"w": slope}), 0, rank)
    spread = slope.moved(lambda array: array.reshape(1, -1, *(1,) * (rank - 2)))
    left = applied(call, "clip", view, {"high": 0.0}, suffix="_left")
    scaled_left = multiplied(call, left, spread, suffix="_slope")
    return two_operands(call, "add", applied(call, "relu", view, suffix="_right"), scaled_left, view.shape)


@register("softplus")
def _softplus(call: Call) -> Any:
    if call["threshold"] < SOFTPLUS_LINE:
        raise CannotTakeError(f"a softplus that is a line from {call['threshold']} on", "threshold=20")
    beta = float(call["beta"])
    if beta == 0:
        raise CannotTakeError("a softplus of beta 0, which is infinite", "beta=1")
    inner = scaled(call, call.view("self"), beta, suffix="_inner")
    made = applied(call, "softplus", inner)
    return scaled(call, made, 1 / beta, suffix="_outer")


@register("log_sigmoid", "log_sigmoid_forward")
def _log_sigmoid(call: Call) -> Any:
    turned = scaled(call, call.view("self"), -1.0, suffix="_turned")
    made = scaled(call, applied(call, "softplus", turned), -1.0, suffix="_log")
    return [made, Aside()] if isinstance(call.node.meta["val"], (tuple, list)) else made


@register("selu")
def _selu(call: Call) -> Any:
    inner = applied(call, "elu", call.view("self"), {"alpha": SELU_ALPHA}, suffix="_elu")
    return scaled(call, inner, SELU_GAMMA)


@register("celu")
def _celu(call: Call) -> Any:
    alpha = float(call["alpha"])
    if alpha <= 0:
        raise CannotTakeError(f"a celu of alpha {alpha:g}", "more than 0")
    inner = scaled(call, call.view("self"), 1 / alpha, suffix="_inner")
    return scaled(call, applied(call, "elu", inner), alpha, suffix="_outer")


@register("glu")
def _glu(call: Call) -> Any:
    view = call.view("self")
    dim = axis_of(call["dim"], len(view.dims))
    half = view.shape[dim] // 2
    value = sliced(call, view, dim, 0, half, suffix="_value")
    gate = applied(call, "sigmoid", sliced(call, view, dim, half, 2 * half, suffix="_half"), suffix="_gate")
    return two_operands(call, "multiply", value, gate, call.shape)


# Two operands


def scaled(call: Call, view: View, factor: float, *, suffix: str = "") -> View:
    """A number times a tensor."""
    return view if factor == 1 else applied(call, "scale", view, {"factor": float(factor)}, suffix=suffix)


def _shifted(call: Call, view: View, offset: float, *, suffix: str = "") -> View:
    return view if offset == 0 else applied(call, "shift", view, {"offset": float(offset)}, suffix=suffix)


def multiplied(call: Call, view: View, given: Given, *, suffix: str = "") -> View:
    """A tensor times a constant or parameter."""
    return with_constant(call, "multiply", view, given, suffix=suffix)


def _number(item: Any) -> float | None:
    if isinstance(item, (int, float)):
        return float(item)
    return item.number if isinstance(item, Constant) else None


def _binary(call: Call, kind: str, left: Any, right: Any) -> View:
    shape = call.shape
    if isinstance(left, View) and isinstance(right, View):
        if left is right and kind == "multiply":
            return applied(call, "square", left)
        return two_operands(call, kind, left, right, shape)
    view, other = (left, right) if isinstance(left, View) else (right, left)
    found = call.as_given(other)
    assert found is not None
    if found.value.dtype == bool:
        found = Given(found.value.astype(np.float32))
    if kind == "add" and _weights_nothing(call, np.isneginf(found.value)):
        found = before_softmax(found)
    if not np.isfinite(found.value).all():
        raise CannotTakeError(
            "a constant with infinities", "finite numbers, or -inf in a mask right before a softmax"
        )
    return with_constant(call, kind, view, found, turned=view is right)


def before_softmax(given: Given) -> Given:
    """A mask that is added before a softmax, minus infinity in it as a number large enough."""
    if np.isfinite(given.value).all():
        return given
    if given.trained or np.isnan(given.value).any() or np.isposinf(given.value).any():
        raise CannotTakeError("a mask with infinities that is trained, or with NaN", "finite numbers")
    if np.isneginf(given.value).all(axis=-1).any():
        raise CannotTakeError("a mask that leaves nothing of a row", "one that leaves an element of each")
    return Given(np.nan_to_num(given.value, neginf=-LARGE).astype(np.float32))


def _weights_nothing(call: Call, where: Any) -> bool:
    """Whether elements where a mask is True only go into a softmax, of rows with others left.

    Then they become 0 and get no gradient, whatever very negative number they are.
    """
    users = [user for user in call.node.users if user.op == "call_function"]
    rank = len(call.shape)
    if not rank or not users or any(str(user.target).split(".")[1] not in SOFTMAXES for user in users):
        return False
    if any(user.args[1] % rank != rank - 1 for user in users):
        return False
    return not np.broadcast_to(where, call.shape).all(axis=-1).any()


def _grows(view: View, shape: Shape) -> bool:
    """Whether the other operand makes it larger."""
    return elements(view.shape) != elements(shape)


@register("add", "sub", "rsub")
def _add(call: Call) -> Any:
    left, right, alpha = call["self"], call["other"], call.get("alpha", 1)
    name = str(call.node.target)
    sign = -1 if "sub" in name else 1
    if "rsub" in name:
        left, right = right, left
    numbers = _number(left), _number(right)
    if isinstance(left, View) and numbers[1] is not None and not _grows(left, call.shape):
        return wider(_shifted(call, left, sign * alpha * numbers[1]), len(call.shape))
    if isinstance(right, View) and numbers[0] is not None and not _grows(right, call.shape):
        turned = scaled(call, right, sign * alpha, suffix="_scale")
        return wider(_shifted(call, turned, numbers[0]), len(call.shape))
    if isinstance(right, View):
        if alpha != 1:
            right = scaled(call, right, alpha, suffix="_alpha")
    elif isinstance(right, Constant) and alpha != 1:
        raise CannotTakeError("alpha of a tensor", "a product of its own")
    if sign > 0:
        return _binary(call, "add", left, right)
    return _binary(call, "subtract", left, right)


@register("mul")
def _mul(call: Call) -> Any:
    left, right = call["self"], call["other"]
    for view, other in ((left, right), (right, left)):
        number = _number(other)
        if isinstance(view, View) and number is not None and not _grows(view, call.shape):
            return wider(scaled(call, view, number), len(call.shape))
    return _binary(call, "multiply", left, right)


@register("div", "true_divide")
def _div(call: Call) -> Any:
    if call.get("rounding_mode"):
        raise CannotTakeError("division of integers", "rounding_mode=None")
    left, right = call["self"], call["other"]
    number = _number(right)
    if isinstance(left, View) and number:
        return wider(scaled(call, left, 1 / number), len(call.shape))
    if _number(left) is not None and isinstance(right, View):
        inverse = applied(call, "reciprocal", right)
        return scaled(call, inverse, _number(left) or 0.0, suffix="_scale")
    if isinstance(right, Constant) and not right.trained:
        return _binary(call, "multiply", left, Constant(1 / right.tensor))
    return _binary(call, "divide", left, right)


@register("maximum", "max")
def _maximum(call: Call) -> Any:
    if "other" in call.arguments:
        return _binary(call, "maximum", call["self"], call["other"])
    return _first_extreme(call, "reduce_max")


@register("min")
def _min(call: Call) -> Any:
    if "other" in call.arguments:
        return _binary(call, "minimum", call["self"], call["other"])
    return _first_extreme(call, "reduce_min")


def _first_extreme(call: Call, kind: str) -> Any:
    """Values over one dimension, or over all: with the places of the first ones, which nobody may read."""
    view = call.view("self")
    if "dim" not in call.arguments:
        return averaged(call, view, list(range(len(view.dims))), keep=False, kind=kind)
    if call.used(1):
        raise CannotTakeError(f"uses the places of the {kind.removeprefix('reduce_')}", "their values only")
    dims, keep = _dims_of(call, view, call["dim"]), bool(call.get("keepdim"))
    return [averaged(call, view, dims, keep=keep, kind=kind, options={"ties": "first"}), None]


@register("amax", "amin")
def _extreme(call: Call) -> Any:
    view = call.view("self")
    kind = "reduce_max" if "amax" in str(call.node.target) else "reduce_min"
    return averaged(
        call, view, _dims_of(call, view, call.get("dim")), keep=bool(call.get("keepdim")), kind=kind
    )


@register("minimum")
def _minimum(call: Call) -> Any:
    return _binary(call, "minimum", call["self"], call["other"])


@register("addcmul")
def _addcmul(call: Call) -> Any:
    raise CannotTakeError("a sum and a product in one", "add and mul")


# Masks


@register("gt", "ge", "lt", "le", "eq")
def _compare(call: Call) -> Any:
    op = str(call.node.target).split(".")[1]
    number, view = _number(call["other"]), call["self"]
    if not isinstance(view, View) or number is None:
        raise CannotTakeError("a comparison of tensors", "a comparison with a number")
    return applied(call, "compare", view, {"form": op, "value": number})


@register("where")
def _where(call: Call) -> Any:
    mask, left, right = call["condition"], call.get("self"), call["other"]
    if isinstance(mask, Constant):
        if isinstance(left, View) and _number(right) is not None:
            return _masked(call, left, ~mask.tensor, _number(right) or 0.0)
        if isinstance(right, View) and _number(left) is not None:
            return _masked(call, right, mask.tensor, _number(left) or 0.0)
    views = [item for item in (mask, left, right) if isinstance(item, View)]
    if len(views) == 3 and len({(item.pieces, item.dims) for item in views}) == 1:
        words = [call.draft.reshaped(item.word, mask.stored, call.name, call.where) for item in views]
        made = call.layer("where", words)
        return View(made.word, made.stored, mask.pieces, mask.dims)
    if isinstance(mask, View):
        return _chosen(call, mask, left, right)
    raise CannotTakeError("a choice between tensors of different shapes", "tensors of one shape")


def _chosen(call: Call, mask: View, left: Any, right: Any) -> View:
    """mask·left + (1 - mask)·right."""
    inverse = _shifted(call, scaled(call, mask, -1.0, suffix="_turned"), 1.0, suffix="_inverse")
    parts = []
    for which, (share, item) in enumerate(((mask, left), (inverse, right))):
        number, suffix = _number(item), f"_part{which}"
        if number == 0:
            continue
        if number is not None:
            parts.append(scaled(call, share, number, suffix=suffix))
        elif isinstance(item, View):
            parts.append(two_operands(call, "multiply", share, item, call.shape, suffix=suffix))
        else:
            raise CannotTakeError("a choice between tensors of different shapes", "numbers or activations")
    if not parts:
        return scaled(call, mask, 0.0)
    return parts[0] if len(parts) == 1 else two_operands(call, "add", parts[0], parts[1], call.shape)


@register("masked_fill")
def _masked_fill(call: Call) -> Any:
    value, mask = _number(call["value"]), call["mask"]
    if not isinstance(mask, Constant) or value is None:
        raise CannotTakeError("a mask that is computed", "a mask that is a buffer or made of sizes")
    return _masked(call, call.view("self"), mask.tensor, value)


def _masked(call: Call, view: View, mask: Any, value: float) -> View:
    """`value` where the constant mask is True, by products with 0; before a softmax by -1e9 added."""
    where = mask.numpy().astype(bool)
    if value < -1e4 and _weights_nothing(call, where):
        return with_constant(call, "add", view, Given(np.where(where, -LARGE, 0).astype(np.float32)))
    if not np.isfinite(value):
        raise CannotTakeError(
            f"sets elements to {value}",
            "a finite number, or -inf right before a softmax of the last dimension",
        )
    kept = multiplied(call, view, Given((~where).astype(np.float32)), suffix="_kept" if value else "")
    if not value:
        return kept
    return with_constant(call, "add", kept, Given((where * value).astype(np.float32)))


# Reductions


def _dims_of(call: Call, view: View, asked: Any) -> list[int]:
    if asked is None or asked == []:
        return list(range(len(view.dims)))
    return sorted(axis_of(dim, len(view.dims)) for dim in (asked if isinstance(asked, list) else [asked]))


def averaged(
    call: Call,
    view: View,
    dims: Sequence[int],
    *,
    keep: bool,
    kind: str = "reduce_mean",
    suffix: str = "",
    options: Mapping[str, Any] = MappingProxyType({}),
) -> View:
    """The mean (sum, extreme) over some dimensions, none of which counts samples (unless there is one)."""
    if any(BATCH in view.dims[dim] for dim in dims) and view.batch > 1:
        raise CannotTakeError(f"a {kind.removeprefix('reduce_')} over samples", "a network of single samples")
    taken = [piece for dim in dims for piece in view.dims[dim] if piece != BATCH]
    seen = [() if index in dims else dim for index, dim in enumerate(view.dims) if keep or index not in dims]
    if not taken:
        return View(view.word, view.stored, view.pieces, tuple(seen))
    inner = sorted(taken)
    pieces = range(1, len(view.pieces))
    if inner == list(range(inner[0], inner[-1] + 1)):
        before, after = list(range(1, inner[0])), list(range(inner[-1] + 1, len(view.pieces)))
    else:
        before, after = [piece for piece in pieces if piece not in inner], []
    groups: list[Sequence[int]] = [*([before] if before else []), inner, *([after] if after else [])]
    word = call.stored(view, groups)
    alone = not before and not after
    own = {"axes": [1 if before else 0], **({"keep_dims": True} if alone else {}), **options}
    made = call.layer(kind, (word,), own, suffix=suffix)
    rest = [*before, *after]
    number = {BATCH: BATCH} | {piece: 1 + index for index, piece in enumerate(rest)}
    sizes = (view.batch, *(view.pieces[piece] for piece in rest))
    dims_seen = tuple(tuple(number[piece] for piece in dim) for dim in seen)
    return View(made.word, made.stored, sizes, dims_seen)


@register("mean")
def _mean(call: Call) -> Any:
    view = call.view("self")
    dims, keep = _dims_of(call, view, call.get("dim")), bool(call.get("keepdim"))
    if dims == [2, 3] and len(view.dims) == 4 and view.batch_dim == 0 and view.samples_only(0):
        made = call.layer("global_avg_pool", (image(call, view, 2),))
        return fresh(made, (*view.shape[:2], 1, 1) if keep else view.shape[:2])
    return averaged(call, view, dims, keep=keep)


@register("sum")
def _sum(call: Call) -> Any:
    view = call.view("self")
    dims = _dims_of(call, view, call.get("dim"))
    return averaged(call, view, dims, keep=bool(call.get("keepdim")), kind="reduce_sum")


@register("var", "std")
def _variance(call: Call) -> Any:
    view = call.view("self")
    dims = _dims_of(call, view, call.get("dim"))
    count = elements([view.shape[dim] for dim in dims])
    correction = call.get("correction", 1 if call.get("unbiased", True) else 0)
    mean = averaged(call, view, dims, keep=True, suffix="_mean")
    away = two_operands(call, "subtract", view, mean, view.shape, suffix="_centred")
    square = applied(call, "square", away, suffix="_square")
    found = averaged(call, square, dims, keep=bool(call.get("keepdim")), suffix="_biased")
    found = scaled(call, found, count / (count - correction), suffix="_variance")
    return applied(call, "square_root", found) if "std" in str(call.node.target) else found


# Softmax


def softmax(call: Call, view: View, dim: int, *, kind: str = "softmax", suffix: str = "") -> View:
    """Softmax, or its logarithm, over one dimension."""
    if BATCH in view.dims[dim]:
        raise CannotTakeError("a softmax over samples", "a dimension behind the batch")
    word, rest = rows(call, view, dim)
    made = call.layer(kind, (word,), suffix=suffix)
    return regrouped(view, made, rest, view.shape[dim], dim)


@register("softmax", "_softmax")
def _softmax(call: Call) -> Any:
    view = call.view("self")
    return softmax(call, view, axis_of(call["dim"], len(view.dims)))


@register("log_softmax", "_log_softmax")
def _log_softmax(call: Call) -> Any:
    view = call.view("self")
    made = softmax(call, view, axis_of(call["dim"], len(view.dims)), kind="log_softmax")
    call.draft.log_probabilities[made.word] = view.shape[axis_of(call["dim"], len(view.dims))]
    return made


@register("zeros_like", "ones_like", "full_like", "new_zeros", "new_ones", "new_full")
def _like(call: Call) -> Any:
    value = call.get("fill_value", 1.0 if "ones" in str(call.node.target) else 0.0)
    shape = shape_of(call.node) or ()
    return Constant(call.torch.full(shape, value, dtype=call.node.meta["val"].dtype))
