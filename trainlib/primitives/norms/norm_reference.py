# SPDX-License-Identifier: Apache-2.0
"""Untiled references of all norms, on whole axes of a view of x; they share no code with the tiles."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from trainlib.ir.graph import Op
from trainlib.ir.steps import Array
from trainlib.primitives.definition import Shape, Values
from trainlib.primitives.norms.norm import BIASED


def _kind(x: Array) -> type[np.floating[Any]]:
    """Results are float32, and float64 for an x in float64 (finite differences)."""
    return np.float64 if x.dtype == np.float64 else np.float32


def _view(op: Op, x: Array) -> tuple[Shape, tuple[int, ...], Shape, tuple[int, ...]]:
    """(shape of a view of x, axes of a mean, shape of a parameter there, axes that share a parameter)."""
    attributes = op.attributes
    channels = attributes["shape"][0]
    if attributes["family"] == "row":
        row = prod(attributes["shape"][len(attributes["shape"]) - attributes["trailing"] :])
        return (x.size // row, row), (1,), (1, row), (0,)
    if attributes["family"] == "batch":
        return (len(x), channels, x[0, 0].size), (0, 2), (1, channels, 1), (0, 2)
    groups = attributes["groups"]
    view = (len(x), groups, channels // groups, x[0, 0].size)
    return view, (2, 3), (1, groups, channels // groups, 1), (0, 3)


def _normalised(op: Op, values: Values, x: Array) -> Array:
    """xhat from the saved statistics, in the shape of the view."""
    view, axes, _, _ = _view(op, x)
    kept = tuple(1 if axis in axes else size for axis, size in enumerate(view))
    inverse = values["inv_std"].astype(np.float64).reshape(kept)
    mean = values["mean"].astype(np.float64).reshape(kept) if "mean" in values else 0.0
    result: Array = (x.astype(np.float64).reshape(view) - mean) * inverse
    return result


def forward(op: Op, values: Values) -> Values:
    """y, the statistics it was made with and, where there are any, the running statistics afterwards."""
    attributes = op.attributes
    x = values["x"]
    view, axes, shared, _ = _view(op, x)
    wide = x.astype(np.float64).reshape(view)
    kept = tuple(1 if axis in axes else size for axis, size in enumerate(view))
    mean = wide.mean(axis=axes, keepdims=True) if attributes["centred"] else np.zeros(kept)
    variance = np.square(wide - mean).mean(axis=axes, keepdims=True)
    results: dict[str, Array] = {}
    if "running_mean" in values:
        old_mean, old_variance = values["running_mean"], values["running_var"]
        if attributes.get("inference"):
            results["running_mean_updated"], results["running_var_updated"] = old_mean, old_variance
            spread = (1, *kept[1:])
            mean = np.broadcast_to(old_mean.astype(np.float64).reshape(spread), kept)
            variance = np.broadcast_to(old_variance.astype(np.float64).reshape(spread), kept)
        else:
            count = wide.size / mean.size
            share = attributes["momentum"]
            channels = old_mean.shape[0]
            new_mean = mean.reshape(-1, channels).mean(axis=0)
            new_variance = (variance * count / (count - 1)).reshape(-1, channels).mean(axis=0)
            results["running_mean_updated"] = (1 - share) * old_mean + share * new_mean
            results["running_var_updated"] = (1 - share) * old_variance + share * new_variance
    inverse = 1 / np.sqrt(variance + attributes["eps"])
    y = (wide - mean) * inverse
    if "w" in values:
        y = y * values["w"].reshape(shared)
    if "b" in values:
        y = y + values["b"].reshape(shared)
    statistics = _statistics_shape(op, x)
    results["y"] = y.astype(_kind(x)).reshape(x.shape)
    results["mean"] = mean.astype(_kind(x)).reshape(statistics)
    results["inv_std"] = inverse.astype(_kind(x)).reshape(statistics)
    return results


def _statistics_shape(op: Op, x: Array) -> Shape:
    shape = op.attributes["shape"]
    if op.attributes["family"] == "batch":
        return tuple(shape[:1])
    if op.attributes["family"] == "row":
        return (len(x), *shape[: len(shape) - op.attributes["trailing"]])
    return (len(x), op.attributes["groups"])


def weight_gradient(op: Op, values: Values) -> Values:
    """dw = sum dy·xhat, db = sum dy."""
    x = values["x"]
    view, _, _, axes = _view(op, x)
    dy = values["dy"].astype(np.float64).reshape(view)
    parameter = (
        op.attributes["shape"][len(op.attributes["shape"]) - op.attributes["trailing"] :]
        if op.attributes["family"] == "row"
        else op.attributes["shape"][:1]
    )
    dw = (dy * _normalised(op, values, x)).sum(axis=axes).reshape(parameter)
    return {"dw": dw.astype(_kind(x)), "db": dy.sum(axis=axes).astype(_kind(x)).reshape(parameter)}


def input_gradient(op: Op, values: Values) -> Values:
    """dx = inv_std / D · (D·g - sum g - xhat·sum g·xhat); without mean no sum g."""
    x = values["x"]
    view, axes, shared, _ = _view(op, x)
    kept = tuple(1 if axis in axes else size for axis, size in enumerate(view))
    g = values["dy"].astype(np.float64).reshape(view)
    if "w" in values:
        g = g * values["w"].reshape(shared)
    inverse = values["inv_std"].astype(np.float64).reshape(kept)
    xhat = _normalised(op, values, x)
    count = g.size / inverse.size
    total = count * g - xhat * (g * xhat).sum(axis=axes, keepdims=True)
    if op.attributes["centred"]:
        total = total - g.sum(axis=axes, keepdims=True)
    return {"dx": (inverse / count * total).astype(_kind(x)).reshape(x.shape)}


def mean(op: Op, values: Values) -> Values:
    """The mean of all elements that share one; in prediction the running one, where there is any."""
    x = values["x"]
    view, axes, _, _ = _view(op, x)
    shape = _statistics_shape(op, x)
    if op.attributes.get("inference") and "running_mean" in values:
        return {"mean": np.broadcast_to(values["running_mean"], shape).astype(_kind(x))}
    means = x.astype(np.float64).reshape(view).mean(axis=axes)
    return {"mean": means.reshape(shape).astype(_kind(x))}


def variance(op: Op, values: Values) -> Values:
    """Mean of the squared differences from the mean given (from 0 without)."""
    x = values["x"]
    view, axes, _, _ = _view(op, x)
    kept = tuple(1 if axis in axes else size for axis, size in enumerate(view))
    offset = x.astype(np.float64).reshape(view)
    if "mean" in values:
        offset = offset - values["mean"].astype(np.float64).reshape(kept)
    variances = np.square(offset).mean(axis=axes)
    return {"var": variances.reshape(_statistics_shape(op, x)).astype(_kind(x))}


def inverse_deviation(op: Op, values: Values) -> Values:
    """1 / sqrt(variance + eps), and the running statistics; in prediction these are the ones used."""
    attributes, variances = op.attributes, values["var"]
    spread = variances.astype(np.float64)
    results: dict[str, Array] = {}
    if "running_var" in values:
        old_mean, old_variance = values["running_mean"], values["running_var"]
        if attributes.get("inference"):
            results["running_mean_updated"], results["running_var_updated"] = old_mean, old_variance
            spread = np.broadcast_to(old_variance.astype(np.float64), variances.shape)
        else:
            elements = int(prod(attributes["shape"][1:]))
            elements *= attributes["batch"] if attributes["family"] == "batch" else 1
            share, channels = attributes["momentum"], old_mean.shape[0]
            new_mean = values["mean"].astype(np.float64).reshape(-1, channels).mean(axis=0)
            fewer = elements if BIASED in attributes else elements - 1
            new_variance = (spread * elements / fewer).reshape(-1, channels).mean(axis=0)
            results["running_mean_updated"] = (1 - share) * old_mean + share * new_mean
            results["running_var_updated"] = (1 - share) * old_variance + share * new_variance
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
    x = values["x"]
    _, _, shared, _ = _view(op, x)
    y = _normalised(op, values, x)
    if "w" in values:
        y = y * values["w"].reshape(shared)
    if "b" in values:
        y = y + values["b"].reshape(shared)
    return {"y": y.astype(_kind(x)).reshape(x.shape)}


def gradient_means(op: Op, values: Values) -> Values:
    """Means of g = dy·w and of g·xhat over all elements that share a mean."""
    x = values["x"]
    view, axes, shared, _ = _view(op, x)
    g = values["dy"].astype(np.float64).reshape(view)
    if "w" in values:
        g = g * values["w"].reshape(shared)
    factors = {"mean_g": g, "mean_gx": g * _normalised(op, values, x)}
    shape = _statistics_shape(op, x)
    return {role: terms.mean(axis=axes).reshape(shape).astype(_kind(x)) for role, terms in factors.items()}


def weight_gradient_and_means(op: Op, values: Values) -> Values:
    """dw and db of a batch norm, and the means of dy and dy·xhat."""
    return {**weight_gradient(op, values), **gradient_means(op, values)}


def input_gradient_from_means(op: Op, values: Values) -> Values:
    """dx = inv_std·(g - mean g - xhat·mean g·xhat); the means of a batch norm are those of dy, without w."""
    x = values["x"]
    view, axes, shared, _ = _view(op, x)
    kept = tuple(1 if axis in axes else size for axis, size in enumerate(view))
    weights = values["w"].astype(np.float64).reshape(shared) if "w" in values else np.ones(())
    g, over = values["dy"].astype(np.float64).reshape(view), _normalised(op, values, x)
    before = weights if op.attributes["family"] != "batch" else np.ones(())
    total = g * before - over * values["mean_gx"].astype(np.float64).reshape(kept)
    if "mean_g" in values:
        total = total - values["mean_g"].astype(np.float64).reshape(kept)
    if op.attributes["family"] == "batch":
        total = total * weights
    inverse = values["inv_std"].astype(np.float64).reshape(kept)
    return {"dx": (inverse * total).astype(_kind(x)).reshape(x.shape)}


def scaled_gradient(op: Op, values: Values) -> Values:
    """dx = dy·w·inv_std, with statistics that do not depend on x."""
    dy = values["dy"]
    view, axes, shared, _ = _view(op, dy)
    kept = tuple(1 if axis in axes else size for axis, size in enumerate(view))
    g = dy.astype(np.float64).reshape(view) * values["inv_std"].astype(np.float64).reshape(kept)
    if "w" in values:
        g = g * values["w"].reshape(shared)
    return {"dx": g.astype(_kind(dy)).reshape(dy.shape)}
