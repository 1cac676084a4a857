# SPDX-License-Identifier: Apache-2.0
"""All norms once more, on whole axes of a view of x."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from shared.oracle_formulas import Oracles

if TYPE_CHECKING:
    from trainlib.ir.graph import Op
    from trainlib.ir.steps import Array
    from trainlib.primitives.definition import Shape, Values

_RUNNING = ("running_mean", "running_var")


def _kind(x: Array) -> type[np.floating[Any]]:
    """Results are float32, and float64 for an x in float64 (finite differences)."""
    return np.float64 if x.dtype == np.float64 else np.float32


class _View:
    """What an op reads, in float64 and in shapes that fit a view of x in which a mean is over whole axes.

    `axes` are those of a mean, `shared` is the shape of a parameter there, `sharing` are the axes that share
    one; `statistics` and `parameters` are the shapes they are stored in.
    """

    view: Shape
    axes: Shape
    shared: Shape
    sharing: Shape

    def __init__(self, op: Op, values: Values, source: str = "x") -> None:
        self.values, self.like = values, values[source]
        shape, family = op.attributes["shape"], op.attributes["family"]
        batch, channels, groups = len(self.like), shape[0], op.attributes["groups"]
        leading = len(shape) - op.attributes["trailing"]
        if family == "row":
            self.parameters, self.statistics = shape[leading:], (batch, *shape[:leading])
            row = prod(self.parameters)
            self.view, self.axes, self.shared, self.sharing = (
                (self.like.size // row, row),
                (1,),
                (1, row),
                (0,),
            )
        elif family == "batch":
            self.parameters = self.statistics = tuple(shape[:1])
            self.view, self.axes = (batch, channels, self.like[0, 0].size), (0, 2)
            self.shared, self.sharing = (1, channels, 1), self.axes
        else:
            self.parameters, self.statistics = shape[:1], (batch, groups)
            self.view, self.axes = (batch, groups, channels // groups, self.like[0, 0].size), (2, 3)
            self.shared, self.sharing = (1, *self.view[1:3], 1), (0, 3)
        self.kept = tuple(1 if axis in self.axes else size for axis, size in enumerate(self.view))

    def wide(self, role: str) -> Array:
        """x, or a gradient of its shape."""
        return self.values[role].astype(np.float64).reshape(self.view)

    def statistic(self, role: str) -> Array | float:
        """Numbers of which there is one a mean; 0 without them."""
        return self.values[role].astype(np.float64).reshape(self.kept) if role in self.values else 0.0

    def parameter(self, role: str, without: float) -> Array | float:
        """w or b, or what stands for it."""
        return self.values[role].reshape(self.shared) if role in self.values else without

    def xhat(self) -> Array:
        """By the statistics that are given."""
        return (self.wide("x") - self.statistic("mean")) * self.statistic("inv_std")

    def gradient(self) -> Array:
        """g = dy·w."""
        return self.wide("dy") * self.parameter("w", 1.0)

    def as_x(self, array: Array) -> Array:
        """A result of the shape of x."""
        return array.astype(_kind(self.like)).reshape(self.like.shape)

    def as_statistic(self, array: Array) -> Array:
        """A result with a number a mean."""
        return array.astype(_kind(self.like)).reshape(self.statistics)


def _running_updated(op: Op, values: Values, mean: Array, variance: Array, count: float) -> dict[str, Array]:
    """The running statistics afterwards, those of this batch being over `count` elements."""
    if op.attributes.get("inference"):
        return {f"{role}_updated": values[role] for role in _RUNNING}
    unbiased = variance * count / (count if "running_biased" in op.attributes else count - 1)
    share = op.attributes["momentum"]
    return {
        f"{role}_updated": (1 - share) * values[role]
        + share * new.reshape(-1, len(values[role])).mean(axis=0)
        for role, new in zip(_RUNNING, (mean, unbiased), strict=True)
    }


def forward(op: Op, values: Values) -> Values:
    """y, the statistics it was made with and, where there are any, the running statistics afterwards."""
    view = _View(op, values)
    wide = view.wide("x")
    mean = wide.mean(axis=view.axes, keepdims=True) if op.attributes["centred"] else np.zeros(view.kept)
    variance = np.square(wide - mean).mean(axis=view.axes, keepdims=True)
    results: dict[str, Array] = {}
    if "running_mean" in values:
        results = _running_updated(op, values, mean, variance, wide.size / mean.size)
        if op.attributes.get("inference"):
            given = [values[role].astype(np.float64).reshape(1, *view.kept[1:]) for role in _RUNNING]
            mean, variance = (np.broadcast_to(array, view.kept) for array in given)
    inverse = 1 / np.sqrt(variance + op.attributes["eps"])
    y = (wide - mean) * inverse * view.parameter("w", 1.0) + view.parameter("b", 0.0)
    statistics = {"mean": view.as_statistic(mean), "inv_std": view.as_statistic(inverse)}
    return {"y": view.as_x(y), **statistics, **results}


def weight_gradient(op: Op, values: Values) -> Values:
    """dw = sum dy·xhat, db = sum dy."""
    view = _View(op, values)
    dy = view.wide("dy")
    sums = {"dw": dy * view.xhat(), "db": dy}
    return {
        role: terms.sum(axis=view.sharing).astype(_kind(view.like)).reshape(view.parameters)
        for role, terms in sums.items()
    }


def input_gradient(op: Op, values: Values) -> Values:
    """dx = inv_std / D · (D·g - sum g - xhat·sum g·xhat); without mean no sum g."""
    view = _View(op, values)
    g, xhat, inverse = view.gradient(), view.xhat(), np.asarray(view.statistic("inv_std"))
    count = g.size / inverse.size
    total = count * g - xhat * (g * xhat).sum(axis=view.axes, keepdims=True)
    if op.attributes["centred"]:
        total = total - g.sum(axis=view.axes, keepdims=True)
    return {"dx": view.as_x(inverse / count * total)}


def mean(op: Op, values: Values) -> Values:
    """The mean of all elements that share one; in prediction the running one, where there is any."""
    view = _View(op, values)
    if op.attributes.get("inference") and "running_mean" in values:
        return {"mean": np.broadcast_to(values["running_mean"], view.statistics).astype(_kind(view.like))}
    return {"mean": view.as_statistic(view.wide("x").mean(axis=view.axes))}


def variance(op: Op, values: Values) -> Values:
    """Mean of the squared differences from the mean given (from 0 without)."""
    view = _View(op, values)
    offset = view.wide("x") - view.statistic("mean")
    return {"var": view.as_statistic(np.square(offset).mean(axis=view.axes))}


def inverse_deviation(op: Op, values: Values) -> Values:
    """1 / sqrt(variance + eps), and the running statistics; in prediction these are the ones used."""
    attributes, variances = op.attributes, values["var"]
    spread = variances.astype(np.float64)
    results: dict[str, Array] = {}
    if "running_var" in values:
        elements = int(prod(attributes["shape"][1:]))
        elements *= attributes["batch"] if attributes["family"] == "batch" else 1
        results = _running_updated(op, values, values["mean"].astype(np.float64), spread, elements)
        if attributes.get("inference"):
            spread = np.broadcast_to(values["running_var"].astype(np.float64), variances.shape)
    results["inv_std"] = (1 / np.sqrt(spread + attributes["eps"])).astype(_kind(variances))
    return results


def known_statistics(op: Op, values: Values) -> Values:
    """The running statistics as those to normalise with; they stay as they are."""
    attributes, mean, variance = op.attributes, values["running_mean"], values["running_var"]
    of_batch = attributes["family"] == "batch"
    shape = mean.shape if of_batch else (attributes["batch"], attributes["groups"])
    inverse = 1 / np.sqrt(variance.astype(np.float64) + attributes["eps"])
    return {
        "mean": np.broadcast_to(mean, shape),
        "inv_std": np.broadcast_to(inverse, shape).astype(_kind(variance)),
        "running_mean_updated": mean,
        "running_var_updated": variance,
    }


def normalised(op: Op, values: Values) -> Values:
    """y = w·xhat + b from statistics that are given."""
    view = _View(op, values)
    return {"y": view.as_x(view.xhat() * view.parameter("w", 1.0) + view.parameter("b", 0.0))}


def gradient_means(op: Op, values: Values) -> Values:
    """Means of g = dy·w and of g·xhat over all elements that share a mean."""
    view = _View(op, values)
    g = view.gradient()
    factors = {"mean_g": g, "mean_gx": g * view.xhat()}
    return {role: view.as_statistic(terms.mean(axis=view.axes)) for role, terms in factors.items()}


def weight_gradient_and_means(op: Op, values: Values) -> Values:
    """dw and db of a batch norm, and the means of dy and dy·xhat."""
    return {**weight_gradient(op, values), **gradient_means(op, values)}


def input_gradient_from_means(op: Op, values: Values) -> Values:
    """dx = inv_std·(g - mean g - xhat·mean g·xhat); the means of a batch norm are those of dy, without w."""
    view = _View(op, values)
    weights = view.parameter("w", 1.0)
    before, behind = (1.0, weights) if op.attributes["family"] == "batch" else (weights, 1.0)
    total = view.wide("dy") * before - view.xhat() * view.statistic("mean_gx") - view.statistic("mean_g")
    return {"dx": view.as_x(view.statistic("inv_std") * (total * behind))}


def scaled_gradient(op: Op, values: Values) -> Values:
    """dx = dy·w·inv_std, with statistics that do not depend on x."""
    view = _View(op, values, "dy")
    return {"dx": view.as_x(view.wide("dy") * view.statistic("inv_std") * view.parameter("w", 1.0))}


_STEPS: Mapping[str, Callable[[Op, Values], Values]] = {
    "FW": forward,
    "FW_MEAN": mean,
    "FW_VAR": variance,
    "FW_INV": inverse_deviation,
    "FW_KNOWN": known_statistics,
    "FW_APPLY": normalised,
    "WG": weight_gradient,
    "IG": input_gradient,
    "IG_SUMS": gradient_means,
    "IG_APPLY": input_gradient_from_means,
    "IG_SCALE": scaled_gradient,
}

ORACLES: Oracles = {
    **{
        (name, step): formula
        for name in ("batch_norm", "group_norm", "instance_norm", "layer_norm", "rms_norm")
        for step, formula in _STEPS.items()
    },
    ("batch_norm", "WG"): weight_gradient_and_means,
}
