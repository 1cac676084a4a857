# SPDX-License-Identifier: Apache-2.0
"""What targets may hold, how they are made up, and class numbers, for the losses that ask for the same."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from configs.dtypes import INT32
from configs.errors import InputError, ShapeError
from trainlib.ir.graph import Tensor
from trainlib.ir.steps import Array
from trainlib.primitives.definition import LabelPlan, LabelValues, Shape

ROUNDING = 1e-6
"""How far a target may be off a bound: that of fp32."""


def _distribution(generator: Any, shape: Shape) -> Array:
    """Shares of the first axis that add up to one."""
    parts = generator.uniform(0.1, 1, shape)
    shares: Array = parts / parts.sum(axis=0)
    return shares


SHARES = LabelValues(
    "0 to 1",
    lambda generator, shape: generator.uniform(0, 1, shape),
    lambda label: (label >= -ROUNDING) & (label <= 1 + ROUNDING),
)
SIGNS = LabelValues(
    "-1 or 1",
    lambda generator, shape: 2.0 * generator.integers(2, size=shape) - 1,
    lambda label: np.abs(np.abs(label) - 1) <= ROUNDING,
)
COUNTS = LabelValues(
    "0 or more",
    lambda generator, shape: generator.integers(4, size=shape).astype(np.float64),
    lambda label: label >= 0,
)
DISTRIBUTION = LabelValues("0 or more", _distribution, lambda label: label >= 0)
LOGARITHMS = LabelValues(
    "logarithms of probabilities",
    lambda generator, shape: np.log(_distribution(generator, shape)),
    np.isfinite,
)


def class_numbers(attributes: Mapping[str, Any], output: Tensor, where: str) -> LabelPlan:
    """The plan of class numbers, one for each place of an output [N, classes, places].

    Raises ShapeError for an output that has no axis of classes, and for weights that are not one for each.
    """
    if len(output.shape) < 2 or output.layout != "CHW":
        raise ShapeError(
            "a loss over classes needs scores of shape [classes] or [classes, ...], but the network's "
            f"output has shape {list(output.shape[1:])}{' in HWC' if output.layout != 'CHW' else ''}",
            where=where,
            cure="end the network with a linear layer, or with a convolution in layout: CHW",
        )
    samples, classes, *places = output.shape
    weights = attributes.get("class_weights")
    if weights is not None and len(weights) != classes:
        raise ShapeError(
            f"the loss has {len(weights)} class_weights, but {classes} classes",
            where=where,
            cure=f"write {classes} class weights",
        )
    ignored = attributes.get("ignore_index")
    return LabelPlan((samples, *places), INT32, classes, hard=True, ignored=ignored)


def counted(label: Array, classes: int, where: str, ignore_index: int | None = None) -> Array:
    """Which class numbers count. InputError for one that is none."""
    counts: Array = np.full(label.shape, True) if ignore_index is None else label != ignore_index
    wrong = label[counts & ((label < 0) | (label >= classes))]
    if wrong.size:
        raise InputError(
            f"label {int(wrong[0])} is not a class: classes are 0 to {classes - 1}",
            where=where,
            cure="count classes from 0, and use one output per class in the last layer"
            + (f"; ignore_index: {int(wrong[0])} leaves the label out" if wrong[0] < 0 else ""),
        )
    return counts


def rows(array: Array) -> Array:
    """[N, classes, places] as rows of classes, places behind one another."""
    moved: Array = np.moveaxis(array, 1, -1)
    return moved.reshape(-1, array.shape[1])


def unrowed(array: Array, shape: Shape) -> Array:
    """The reverse of `rows`, for a result of this shape."""
    moved: Array = np.moveaxis(array.reshape(shape[0], *shape[2:], shape[1]), -1, 1)
    return moved
