# SPDX-License-Identifier: Apache-2.0
"""The row programs of the norms: results by role, of matrices in which a row shares a mean.

x and dy are [rows, elements]; mean, inv_std, var, mean_g and mean_gx one number a row; w and b whatever
belongs to an element. What a norm lacks is None: a mean, parameters. `count` is how many elements share a
mean, also where a tile holds only some of them. Weight gradients are of matrices in which a row shares a
parameter.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from trainlib.primitives.definition import Values

Column = Any
"""One number a row; None of what a norm lacks."""


def _total(x: Any) -> Any:
    return x.sum(axis=1)[:, None]


def _times(x: Any, w: Column) -> Any:
    return x if w is None else x * w


def _offset(x: Any, mean: Column) -> Any:
    return x if mean is None else x - mean


def forward(x: Any, w: Any = None, b: Any = None, *, eps: float, count: float) -> Values:
    """Mean and deviation from offsets to a first mean, which is exact where the mean is large."""
    first = _total(x) / count
    offset = x - first
    offsets = _total(offset)
    rest = offsets / count
    inverse = 1 / np.sqrt((_total(offset * offset) - offsets * rest) / count + eps)
    y = (offset - rest) * _times(inverse, w)
    return {"y": y if b is None else y + b, "mean": first + rest, "inv_std": inverse}


def normalised(x: Any, inv_std: Column, mean: Column = None, w: Any = None, b: Any = None) -> Values:
    """y = w·xhat + b."""
    y = _offset(x, mean) * _times(inv_std, w)
    return {"y": y if b is None else y + b}


def inverse_of_squares(x: Any, *, eps: float, count: float) -> Values:
    """Of a norm without mean."""
    return {"inv_std": 1 / np.sqrt(_total(x * x) / count + eps)}


def mean_of(x: Any, *, count: float) -> Values:
    """Or what a tile has of its sum."""
    return {"mean": _total(x) / count}


def variance(x: Any, mean: Column = None, *, count: float) -> Values:
    """Mean of squared differences."""
    offset = _offset(x, mean)
    return {"var": _total(offset * offset) / count}


def inverse_deviation(
    var: Any,
    mean: Any = None,
    running_mean: Column = None,
    running_var: Column = None,
    *,
    eps: float,
    momentum: float,
    unbiased: float,
    averaged: float,
) -> Values:
    """Of matrices in which a row shares running statistics; these vectors move, if there are any."""
    made = {"inv_std": 1 / np.sqrt(var + eps)}
    if running_mean is None:
        return made
    return {**made, **_moved(mean, var * unbiased, running_mean, running_var, momentum, averaged)}


def running_average(
    running_mean: Column,
    running_var: Column,
    mean: Any,
    inv_std: Any,
    *,
    eps: float,
    momentum: float,
    unbiased: float,
    averaged: float,
) -> Values:
    """The running statistics, from the inverse deviation."""
    variance = (1 / np.square(inv_std) - eps) * unbiased
    return _moved(mean, variance, running_mean, running_var, momentum, averaged)


def known_statistics(running_mean: Column, running_var: Column, *, eps: float) -> Values:
    """The running statistics as those of every sample; they stay as they are."""
    kept = {"running_mean_updated": running_mean, "running_var_updated": running_var}
    return {"mean": running_mean, "inv_std": 1 / np.sqrt(running_var + eps), **kept}


def _moved(
    mean: Any, var: Any, old_mean: Column, old_var: Column, momentum: float, averaged: float
) -> Values:
    """running += momentum · (new - running), new the mean over the samples."""
    return {
        f"running_{name}_updated": old + momentum * (_total(new) / averaged - old)
        for name, new, old in (("mean", mean, old_mean), ("var", var, old_var))
    }


def weight_gradient(
    x: Any,
    dy: Any,
    inv_std: Any,
    mean: Any = None,
    dw: Column = None,
    db: Column = None,
    *,
    count: float,
    one_inverse: bool,
) -> Values:
    """dw = sum dy·xhat, db = sum dy, added to what there is; in batch norm the means that dx needs, too.

    `one_inverse`: all elements that share a parameter share inv_std as well.
    """
    terms, whole = dy * _offset(x, mean), _total(dy)
    along = _total(terms) * inv_std if one_inverse else _total(terms * inv_std)
    means = {"mean_gx": along / count, "mean_g": whole / count}
    return {"dw": along if dw is None else dw + along, "db": whole if db is None else db + whole, **means}


def gradient_means(
    x: Any, dy: Any, inv_std: Column, mean: Column = None, w: Any = None, *, count: float
) -> Values:
    """Of g = dy·w and of g·xhat."""
    g = _times(dy, w)
    return {"mean_g": _total(g) / count, "mean_gx": _total(g * _offset(x, mean)) * inv_std / count}


def input_gradient(
    x: Any, dy: Any, inv_std: Column, mean: Column = None, w: Any = None, *, count: float, one_w: bool
) -> Values:
    """dx = inv_std·(g - mean(g) - xhat·mean(g·xhat)); without a mean no mean(g).

    `one_w`: all elements that share a mean share w as well, which is a factor of everything then.
    """
    g, offset = dy if one_w else _times(dy, w), _offset(x, mean)
    along = _total(g * offset) * inv_std * inv_std / count
    centred = g if mean is None else g - _total(g) / count
    return {"dx": (centred - offset * along) * (_times(inv_std, w) if one_w else inv_std)}


def from_means(
    x: Any,
    dy: Any,
    inv_std: Column,
    mean_gx: Column,
    mean: Column = None,
    mean_g: Column = None,
    w: Any = None,
    *,
    of_batch: bool,
) -> Values:
    """The same from given means, which are those of dy, without w, in batch norm."""
    g = dy if of_batch else _times(dy, w)
    centred = g if mean_g is None else g - mean_g
    dx = centred - _offset(x, mean) * (mean_gx * inv_std)
    return {"dx": dx * (_times(inv_std, w) if of_batch else inv_std)}


def scaled(dy: Any, inv_std: Column, w: Any = None) -> Values:
    """dx where statistics are fixed."""
    return {"dx": dy * _times(inv_std, w)}
