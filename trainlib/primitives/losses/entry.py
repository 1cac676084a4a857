# SPDX-License-Identifier: Apache-2.0
"""What a loss says about itself, and the primitive that follows from it.

A loss is described by its terms and their slopes; `weight` and `reduction`, which every loss has, are here:
loss = weight · Σ terms / D, where D is what the loss takes a mean over, the samples of the mini-batch, or 1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from configs.errors import InputError
from configs.model_file import LossSchema
from trainlib.ir.graph import Op, Tensor
from trainlib.ir.steps import Array
from trainlib.primitives.definition import (
    ANY_LABEL,
    Example,
    LabelPlan,
    LabelValues,
    LossPrimitive,
    Shape,
    Step,
    Values,
)
from trainlib.primitives.derivative import derivative
from trainlib.primitives.formulas import Formula, arguments, by_name, parameters, wide
from trainlib.primitives.lowering.elementwise import LossLowering, LossNests

LabelRule = Callable[[Mapping[str, Any], Tensor, str], LabelPlan]

NestRule = Callable[[Mapping[str, Any], Shape], LossNests]
"""The nests for these options and this shape of y."""


def loss(
    name: str,
    *,
    terms: Formula,
    slopes: Formula,
    examples: tuple[Example, ...],
    count: Formula = lambda y: y.size,
    own_slope: bool = False,
    options: type[LossSchema] = LossSchema,
    labels: LabelRule | None = None,
    nests: NestRule = lambda attributes, shape: LossNests(cut="elements"),
    values: LabelValues | Callable[[Mapping[str, Any]], LabelValues] = ANY_LABEL,
    unlabelled: bool = False,
    single: bool = False,
) -> LossPrimitive:
    """The loss `name`: `terms` of y and label, whose sum is the loss, and `slopes`, its derivative by y.

    `count` is what a mean divides by. In the untiled reference the slopes are the derivative of `terms`
    (`trainlib.primitives.derivative`); with `own_slope`, where no term is of an element, they are `slopes`.
    Formulas are computed in float64 and rounded once, in fp32 if `single`.
    `labels` is the plan of the labels (default: fp32 of the shape of the output, of such `values`);
    `unlabelled`: there are none. `nests` says which nests compute both (default: its own; may be cut).
    """

    def allowed(attributes: Mapping[str, Any]) -> LabelValues:
        return values if isinstance(values, LabelValues) else values(attributes)

    def like_output(attributes: Mapping[str, Any], output: Tensor, where: str) -> LabelPlan:
        return LabelPlan(output.shape, values=allowed(attributes))

    def checked(op: Op, given: Values) -> Values:
        if not unlabelled:
            _check_label(allowed(op.attributes), op, given["label"])
        return given if single else wide(given)

    names = parameters(terms)
    summed, sloped, counted = by_name(terms), by_name(slopes), by_name(count)

    def value(op: Op, given: Values) -> Any:
        exact = checked(op, given)
        total = np.sum(summed(op, exact), dtype=np.float64)
        return total * op.attributes["weight"] / _divisor(op, exact, counted)

    def gradient(op: Op, given: Values) -> Array:
        exact = checked(op, given)
        scaled: Array = sloped(op, exact) * scale(op, exact)
        return scaled

    def scale(op: Op, given: Values) -> float:
        return float(op.attributes["weight"] / _divisor(op, given, counted))

    def evaluated(op: Op, given: Values) -> Values:
        exact = wide(checked(op, given))
        share = scale(op, exact)
        slope = sloped(op, exact) if own_slope else derivative(terms, arguments(names, op, exact), "y")
        whole = np.broadcast_to(np.asarray(slope) * share, given["y"].shape)
        return {"loss": np.array([share * np.sum(summed(op, exact))]), "dy": whole}

    reads = ("y",) if unlabelled else ("y", "label")
    each, counts = {"loss": summed, "dy": sloped}, "label" in parameters(count)
    lowering = LossLowering(nests, value, gradient, each, scale, counts)
    return LossPrimitive(
        name=name,
        schema=options,
        step=Step("LOSS", reads, ("loss", "dy"), evaluated, lowering, formula=True),
        plan=(lambda attributes, output, where: None) if unlabelled else labels or like_output,
        examples=examples,
    )


def _divisor(op: Op, given: Values, counted: Callable[[Op, Values], Any]) -> float:
    """What the sum is divided by."""
    reduction = op.attributes["reduction"]
    if reduction == "sum":
        return 1.0
    if reduction == "batchmean":
        return float(len(given["y"]))
    number = counted(op, given)
    if number == 0:
        raise InputError(
            "the mean loss divides by 0: every label of the mini-batch is ignore_index or has class weight 0",
            where=op.name,
            cure="use reduction: sum, or a mini-batch with other labels",
        )
    return float(number)


def _check_label(values: LabelValues, op: Op, label: Array) -> None:
    wrong = label[~values.fits(label)]
    if wrong.size:
        raise InputError(
            f"a label holds {float(wrong.flat[0]):.3g}, which {op.primitive} does not take",
            where=op.name,
            cure=f"use labels of {values.about}",
        )
