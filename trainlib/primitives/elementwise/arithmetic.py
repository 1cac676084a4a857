# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: PLW0108  (the parameters of a formula name its roles, those of a NumPy function do not)
"""Elementary arithmetic, which imported graphs consist of where no layer of ours does the whole.

The entries are written as those of `trainlib.primitives.elementwise.table`. PULP-TrainLib has none of them;
their nests are estimates. Shapes are equal: what repeats is made larger by `expand` first.
"""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from pydantic import Field, model_validator

from configs.dtypes import INT32
from configs.model_file import LayerSchema
from trainlib.primitives.definition import DrawnInput, Example, LayerPrimitive
from trainlib.primitives.elementwise import functions as fn
from trainlib.primitives.elementwise.entry import WIDE, Elementwise, elementwise
from trainlib.primitives.formulas import Formula
from trainlib.primitives.lowering.calls import VECTOR_ADD

Finite = Annotated[float, Field(allow_inf_nan=False)]


class _Bounds(LayerSchema):
    """As ONNX and PyTorch, either may be missing, and low wins if they cross."""

    low: Finite | None = None
    """Lower limit (default: none)."""
    high: Finite | None = None
    """Upper limit (default: none)."""
    slope_at_bounds: bool = True
    """Whether the gradient passes where the input equals a limit; PyTorch: clamp true, ReLU6 and Hardtanh
    false."""

    @model_validator(mode="after")
    def _one_at_least(self) -> _Bounds:
        if self.low is None and self.high is None:
            raise ValueError("clip needs 'low' or 'high', or both")
        return self


class _Line(LayerSchema):
    alpha: Finite = 1 / 6
    """Slope of the line."""
    beta: Finite = 0.5
    """Value of the line at x = 0."""


class _EluSlope(LayerSchema):
    alpha: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    """For large negative x, the output tends to -alpha."""


class _Offset(LayerSchema):
    offset: Finite
    """Constant that is added to every element."""


class _Exponent(LayerSchema):
    exponent: Finite
    """The constant exponent."""


class _Relation(LayerSchema):
    form: Literal["ge", "gt", "le", "lt", "eq"]
    """Greater or equal, greater, less or equal, less, equal."""
    value: Finite = 0.0
    """Constant to compare with."""


class _Rounding(LayerSchema):
    straight_through: bool = False
    """Pass the gradient on as it is (Bengio 2013), where the derivative is 0."""


POSITIVE = (
    Example(inputs=(DrawnInput((7,), low=0.2, high=2),)),
    Example(inputs=(DrawnInput((3, 4, 5), low=0.5, high=4),)),
)
"""Cases of functions of positive numbers."""

PAIRS = (Example(inputs=((7,), (7,))), Example(inputs=((2, 3, 5), (2, 3, 5))))
"""Cases of functions of two tensors."""


_RELATIONS = {"ge": np.greater_equal, "gt": np.greater, "le": np.less_equal, "lt": np.less, "eq": np.equal}


def _relation(holds: np.ufunc) -> Elementwise:
    """1 where it holds, else 0; nothing flows back, whatever the value."""
    return Elementwise(
        y=lambda x, value: np.where(holds(x, value), 1, 0),
        dx=lambda dy: 0 * dy,
        nests=("relu_fw", "scale_by_number"),
    )


def _rounding(name: str, y: Formula) -> LayerPrimitive:
    """Rounding to integers; the derivative is 0, or 1 straight through."""
    return elementwise(
        name,
        y=y,
        dx=lambda dy, straight_through: (1 if straight_through else 0) * dy,
        nests=("relu_fw", "scale_by_number"),
        options=_Rounding,
        examples=(
            Example(inputs=(DrawnInput((7,), low=-4, high=4),)),
            Example({"straight_through": True}, (DrawnInput((3, 5), low=-4, high=4),)),
        ),
    )


PRIMITIVES: tuple[LayerPrimitive, ...] = (
    _rounding("floor", lambda x: np.floor(x)),
    _rounding("ceil", lambda x: np.ceil(x)),
    _rounding("round", lambda x: np.rint(x)),
    elementwise(
        "multiply",
        y=lambda x, x1: x * x1,
        dx=lambda x1, dy: dy * x1,
        dx1=lambda x, dy: dy * x,
        nests=("multiply", "multiply", "multiply"),
        examples=PAIRS,
    ),
    elementwise(
        "subtract",
        y=lambda x, x1: x - x1,
        dx=lambda dy: dy,
        dx1=lambda dy: -dy,
        nests=(VECTOR_ADD, "copy", "scale_by_number"),
        examples=PAIRS,
    ),
    elementwise(
        "divide",
        y=lambda x, x1: x / x1,
        dx=lambda dy, x1: dy / x1,
        dx1=lambda x, x1, dy: -dy * x / (x1 * x1),
        nests=("divide", "divide", "divide_bw_divisor"),
        examples=(
            Example(inputs=((7,), DrawnInput((7,), low=0.5, high=2))),
            Example(inputs=((2, 3, 5), DrawnInput((2, 3, 5), low=-3, high=-1))),
        ),
    ),
    elementwise(  # equal ones share the gradient, as in PyTorch
        "maximum",
        y=lambda x, x1: np.where(x > x1, x, x1),
        dx=lambda x, x1, dy: np.where(x > x1, dy, np.where(x < x1, 0, dy / 2)),
        dx1=lambda x, x1, dy: np.where(x > x1, 0, np.where(x < x1, dy, dy / 2)),
        nests=(VECTOR_ADD, "choose_bw", "choose_bw"),
        own_slope=True,
        examples=PAIRS,
    ),
    elementwise(
        "minimum",
        y=lambda x, x1: np.where(x < x1, x, x1),
        dx=lambda x, x1, dy: np.where(x < x1, dy, np.where(x > x1, 0, dy / 2)),
        dx1=lambda x, x1, dy: np.where(x < x1, 0, np.where(x > x1, dy, dy / 2)),
        nests=(VECTOR_ADD, "choose_bw", "choose_bw"),
        own_slope=True,
        examples=PAIRS,
    ),
    elementwise(  # x is the mask, of which there is no gradient
        "where",
        y=lambda x, x1, x2: np.where(x != 0, x1, x2),
        dx=lambda dy: 0 * dy,
        dx1=lambda x, dy: np.where(x != 0, dy, 0),
        dx2=lambda x, dy: np.where(x != 0, 0, dy),
        nests=("choose", "scale_by_number", "multiply", "multiply"),
        examples=(
            Example(inputs=(DrawnInput((9,), INT32, low=0, high=2), (9,), (9,))),
            Example(inputs=(DrawnInput((2, 3, 5), low=0.2, high=1), (2, 3, 5), (2, 3, 5))),
        ),
    ),
    elementwise(
        "compare",
        {form: _relation(holds) for form, holds in _RELATIONS.items()},
        options=_Relation,
        examples=tuple(
            Example({"form": form, "value": 0.25}, (DrawnInput((3, 4), away_from=(0.25,)),))
            for form in _RELATIONS
        ),
    ),
    elementwise(
        "clip",
        y=lambda x, low=None, high=None: np.clip(x, low, high),
        dx=lambda x, dy, low=None, high=None, slope_at_bounds=True: np.where(
            fn.inside(x, low, high, slope_at_bounds), dy, 0
        ),
        nests=("clip_fw", "clip_bw"),
        own_slope=True,
        options=_Bounds,
        examples=(
            Example({"low": 0.0, "high": 6.0}, (DrawnInput((3, 4, 5), low=-4, high=9, away_from=(0, 6)),)),
            Example({"high": 0.5}, (DrawnInput((7,), away_from=(0.5,)),)),
            Example({"low": -0.5}, (DrawnInput((2, 9), away_from=(-0.5,)),)),
            Example({"low": 0.0, "slope_at_bounds": False}, (DrawnInput((9,), away_from=(0,)),)),
        ),
    ),
    elementwise(
        "hard_sigmoid",
        z=lambda x, alpha, beta: alpha * x + beta,
        y=lambda z: np.clip(z, 0, 1),
        dx=lambda z, dy, alpha: np.where((z > 0) & (z < 1), alpha * dy, 0),
        nests=("hard_sigmoid_fw", "hard_sigmoid_bw"),
        options=_Line,
        examples=(
            Example(inputs=(DrawnInput((3, 4, 5), low=-5, high=5, away_from=(-3, 3)),)),
            Example({"alpha": 0.2}, (DrawnInput((7,), low=-5, high=5, away_from=(-2.5, 2.5)),)),
        ),
    ),
    elementwise(  # Howard et al. 2019, MobileNetV3
        "hard_swish",
        y=lambda x: x * (np.clip(x + 3, 0, 6) / 6),  # so that large x do not overflow on the way
        dx=lambda x, dy: dy * np.where(x >= 3, 1, np.where(x > -3, x / 3 + 0.5, 0)),
        nests=("hard_swish_fw", "hard_swish_bw"),
        examples=(
            Example(inputs=(DrawnInput((4, 3, 5), low=-5, high=5, away_from=(-3, 3)),)),
            Example(inputs=((7,),)),
        ),
    ),
    elementwise(  # Clevert et al. 2016
        "elu",
        y=lambda x, alpha: np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0))),
        dx=lambda x, dy, alpha: dy * np.where(x > 0, 1, alpha * np.exp(np.minimum(x, 0))),
        nests=("exponential", "exponential_product"),
        own_slope=True,  # at 0 it is alpha
        more=(  # as PyTorch in place: y + alpha is alpha * e^x, to a rounding of alpha
            lambda y, dy, alpha: np.where(y > 0, dy, (y + alpha) * dy),
            "elu_from_y_bw",
        ),
        options=_EluSlope,
        examples=(
            Example(inputs=(DrawnInput((3, 4, 5), low=-6, high=6, away_from=(0,)),)),
            Example({"alpha": 0.5}, (DrawnInput((7,), low=-3, high=3, away_from=(0,)),)),
        ),
    ),
    elementwise(  # log(1 + e^x)
        "softplus",
        y=lambda x: np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x))),
        dx=lambda x, dy: dy * fn.sigmoid(x),
        nests=("softplus_fw", "softplus_bw"),
        own_slope=True,
        examples=WIDE,
    ),
    elementwise(  # x * tanh(softplus(x)), Misra 2019
        "mish",
        y=lambda x: x * fn.mish_gate(x),
        dx=lambda x, dy: dy * (fn.mish_gate(x) + x * fn.mish_slope(x)),
        nests=("mish_fw", "mish_bw"),
        examples=WIDE,
    ),
    elementwise(  # dx is dy itself: a view, no op
        "shift",
        y=lambda x, offset: x + offset,
        nests=("relu_fw",),  # a load, one instruction, a store
        options=_Offset,
        examples=(Example({"offset": 0.5}, ((7,),)), Example({"offset": -1.5}, ((3, 4, 5),))),
        takes_over=True,
    ),
    elementwise(  # dx from the stored output
        "exponential",
        y=lambda x: np.exp(x),
        dx=lambda y, dy: dy * y,
        nests=("exponential", "multiply"),
        examples=(Example(inputs=((7,),)), Example(inputs=(DrawnInput((3, 4, 5), low=-4, high=4),))),
    ),
    elementwise(
        "logarithm",
        y=lambda x: np.log(x),
        dx=lambda dy, x: dy / x,
        nests=("logarithm", "divide"),
        examples=(
            # Near 1 the result has no digits to compare.
            Example(inputs=(DrawnInput((7,), low=0.05, high=0.5),)),
            Example(inputs=(DrawnInput((3, 4, 5), low=1.5, high=6),)),
        ),
    ),
    elementwise(  # dx from the stored output
        "square_root",
        y=lambda x: np.sqrt(x),
        dx=lambda dy, y: dy / (2 * y),
        nests=("unary_division", "divide"),
        examples=POSITIVE,
    ),
    elementwise(  # dx from the stored output
        "reciprocal",
        y=lambda x: 1 / x,
        dx=lambda y, dy: -dy * y * y,
        nests=("unary_division", "product_with_square"),
        examples=POSITIVE,
    ),
    elementwise(
        "square",
        y=lambda x: x * x,
        dx=lambda x, dy: 2 * x * dy,
        nests=("scale_by_number", "product_with_square"),
        examples=(Example(inputs=((7,),)), Example(inputs=((3, 4, 5),))),
    ),
    elementwise(  # of positive numbers, unless the exponent is an integer
        "power",
        y=lambda x, exponent: x**exponent,
        dx=lambda x, dy, exponent: dy * exponent * x ** (exponent - 1),
        nests=("power", "power_bw"),
        options=_Exponent,
        examples=(
            Example({"exponent": 1.5}, POSITIVE[0].inputs),
            Example({"exponent": -2.0}, POSITIVE[1].inputs),
            Example({"exponent": 3.0}, (DrawnInput((2, 9)),)),
        ),
    ),
    elementwise(
        "error_function",
        y=lambda x: 2 * fn.normal(x * np.sqrt(2)) - 1,
        dx=lambda x, dy: dy * (2 / np.sqrt(np.pi)) * np.exp(-x * x),
        nests=("error_function", "exponential_product"),
        examples=(Example(inputs=((7,),)), Example(inputs=(DrawnInput((3, 4, 5), low=-3, high=3),))),
    ),
    elementwise(  # sinf and cosf are counted as expf: like it a range reduction and a polynomial
        "sine",
        y=lambda x: np.sin(x),
        dx=lambda x, dy: np.cos(x) * dy,
        nests=("exponential", "exponential_product"),
        examples=(Example(inputs=((7,),)), Example(inputs=(DrawnInput((3, 4, 5), low=-9, high=9),))),
    ),
    elementwise(  # no slope at 0, as in PyTorch
        "absolute",
        y=lambda x: np.abs(x),
        dx=lambda x, dy: np.sign(x) * dy,
        nests=("relu_fw", "clip_bw"),
        examples=(Example(inputs=((7,),)), Example(inputs=((3, 4, 5),))),
    ),
)
"""Elementary arithmetic; `trainlib.registry` lists it from here."""
