# SPDX-License-Identifier: Apache-2.0
"""Elementwise layers: formula, derivative, nest. A new one is an entry of `PRIMITIVES`, nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from configs.dtypes import BY_NAME, UINT8, dtype_of
from configs.model_file import LayerSchema
from trainlib.ir.graph import Tensor
from trainlib.ir.steps import Array
from trainlib.primitives.definition import (
    DrawnInput,
    Example,
    LayerPlan,
    LayerPrimitive,
    Output,
    Random,
    Shape,
    Share,
)
from trainlib.primitives.elementwise import functions as fn
from trainlib.primitives.elementwise.entry import WIDE, Elementwise, elementwise
from trainlib.primitives.lowering.calls import BROADCAST_ADD, VECTOR_ADD


class _LeakySlope(LayerSchema):
    slope: Annotated[float, Field(ge=0, lt=1)] = 0.01
    """Slope below zero."""


class _TanhForm(LayerSchema):
    form: Literal["exact", "pulp_fastexp"] = "exact"
    """Exact, or the approximation of PULP-TrainLib's RNN."""


class _GeluForm(LayerSchema):
    form: Literal["erf", "tanh", "pulp_rational"] = "erf"
    """Exact (erf), by tanh, or PULP-TrainLib's quotient of polynomials."""


class _Factor(LayerSchema):
    factor: Annotated[float, Field(allow_inf_nan=False)]
    """Constant factor of every element."""


class _DropShare(LayerSchema):
    p: Share = 0.5
    """Share of the elements that is dropped."""


class _Format(LayerSchema):
    to: str
    """NumPy name of the dtype of the result."""


def in_format(attributes: Mapping[str, Any], inputs: Sequence[Tensor], where: str) -> LayerPlan:
    """The same shape in another format."""
    return LayerPlan(Output(inputs[0].shape, dtype_of(attributes["to"])), attributes=dict(attributes))


def draw_mask(attributes: Mapping[str, Any], inputs: Sequence[Tensor], where: str) -> LayerPlan:
    """A mask drawn anew in every iteration from the seed of the run, 0 with probability p and 1 otherwise.

    It is bytes whatever the format of the layer; its scale is applied by the steps. (PULP-TrainLib seeds its
    generator anew for every element, and has no backward pass.)
    """
    shape, share = inputs[0].shape, attributes["p"]

    def draw(generator: Any, shape: Shape) -> Array:
        return np.asarray(generator.random(shape) >= share)

    mask = Random(shape, draw, dtype=UINT8, only=(0, 1))
    return LayerPlan(shape, randoms={"mask": mask}, attributes={"p": share})


PRIMITIVES: tuple[LayerPrimitive, ...] = (
    elementwise(  # slope 0 at x = 0, as in PyTorch
        "relu",
        y=lambda x: np.where(x > 0, x, 0),
        dx=lambda x, dy: np.where(x > 0, dy, 0),
        nests=("relu_fw", "relu_bw"),
        examples=(
            Example(inputs=((7,),)),
            Example(inputs=((3, 5, 4),)),
            Example(inputs=(DrawnInput((2, 9), low=-0.1, high=0.1),)),
        ),
        takes_over=True,
    ),
    elementwise(  # the smaller slope at x = 0
        "leaky_relu",
        y=lambda x, slope: np.where(x > 0, x, slope * x),
        dx=lambda x, dy, slope: np.where(x > 0, dy, slope * dy),
        # With a slope below 1 the larger of the two branches is the right one.
        nests=("leakyrelu_fw", "leakyrelu_bw"),
        options=_LeakySlope,
        examples=(
            Example(inputs=((7,),)),
            Example({"slope": 0.2}, ((3, 4, 5),)),
            Example({"slope": 0.0}, (DrawnInput((2, 9), low=-0.1, high=0.1),)),
        ),
    ),
    elementwise(  # dx from the stored output
        "sigmoid",
        y=fn.sigmoid,
        dx=lambda y, dy: dy * y * (1 - y),
        nests=("sigmoid_fw", "sigmoid_bw"),
        examples=WIDE,
    ),
    elementwise(  # dx from the stored output, whatever the form
        "tanh",
        {
            form: Elementwise(y=y, dx=lambda y, dy: dy * (1 - y * y), nests=(nest, "tanh_bw"))
            for form, y, nest in (
                ("exact", fn.tanh_by_exponential, "tanh_fw"),
                ("pulp_fastexp", fn.fastexp_tanh, "tanh_fastexp_fw"),
            )
        },
        options=_TanhForm,
        examples=(
            Example(inputs=((7,),)),
            Example(inputs=(DrawnInput((3, 4, 5), low=-4, high=4),)),
            Example(inputs=(DrawnInput((4, 16), low=-12, high=12),)),
            Example({"form": "pulp_fastexp"}, (DrawnInput((4, 8), low=-4, high=4),)),
        ),
    ),
    elementwise(  # swish
        "silu",
        y=lambda x: x * fn.sigmoid(x),
        dx=lambda x, dy: dy * (s := fn.sigmoid(x)) * (1 + x * (1 - s)),
        nests=("silu_fw", "silu_bw"),
        examples=WIDE,
    ),
    elementwise(  # x · Phi(x), Phi the normal distribution function; PULP-TrainLib has FW only
        "gelu",
        {
            "erf": Elementwise(
                y=lambda x: x * fn.normal(x),
                dx=lambda x, dy: dy * (fn.normal(x) + x * (np.exp(-x * x / 2) / fn.ROOT_OF_TWO_PI)),
                nests=("gelu_erf_fw", "gelu_erf_bw"),
            ),
            "tanh": Elementwise(
                y=lambda x: x * fn.sigmoid(2 * fn.gelu_argument(x)),  # 1 + tanh(u) = 2 · sigmoid(2u)
                dx=lambda x, dy: (
                    dy
                    * ((s := fn.sigmoid(2 * fn.gelu_argument(x))) + 2 * (x * s * (1 - s)) * fn.gelu_slope(x))
                ),
                nests=("gelu_tanh_fw", "gelu_tanh_bw"),
            ),
            "pulp_rational": Elementwise(
                y=lambda x: x / 2 * (1 + fn.rational_tanh(fn.gelu_argument(x))),
                dx=lambda x, dy: (
                    dy
                    * (
                        (1 + fn.rational_tanh(u := fn.gelu_argument(x))) / 2
                        + x / 2 * fn.rational_tanh_slope(u) * fn.gelu_slope(x)
                    )
                ),
                nests=("gelu_fw", "gelu_bw"),
            ),
        },
        options=_GeluForm,
        examples=(
            Example(inputs=(DrawnInput((3, 4, 5), low=-5, high=5),)),
            Example({"form": "tanh"}, (DrawnInput((3, 4, 5), low=-5, high=5),)),
            Example({"form": "pulp_rational"}, (DrawnInput((3, 4, 5), low=-4, high=4),)),
            Example({"form": "pulp_rational"}, (DrawnInput((2, 9), low=5, high=9),)),
        ),
    ),
    elementwise(  # the gate of a transformer's feed-forward layer; PULP-TrainLib has FW only
        "swiglu",
        y=lambda x, x1: x * fn.sigmoid(x) * x1,
        # The slope first: a product of two large values may be infinite where the gradient is not.
        dx=lambda x, x1, dy: dy * ((s := fn.sigmoid(x)) * (1 + x * (1 - s))) * x1,
        dx1=lambda x, dy: dy * (x * fn.sigmoid(x)),
        nests=("swiglu_fw", "swiglu_bw_gate", "swiglu_bw_value"),
        examples=(
            Example(inputs=((7,), (7,))),
            Example(inputs=(DrawnInput((3, 4, 5), low=-6, high=6), (3, 4, 5))),
        ),
    ),
    elementwise(
        "scale",
        y=lambda x, factor: factor * x,
        dx=lambda dy, factor: factor * dy,
        nests=("scale_by_number", "scale_by_number"),
        options=_Factor,
        examples=(
            Example({"factor": 0.3}, ((7,),)),
            Example({"factor": -2.0}, ((3, 4, 5),)),
            Example({"factor": 4.0}, ((2, 9),)),
        ),
    ),
    elementwise(  # residual; both gradients are dy itself: views, no op (PULP-TrainLib: a copy for x)
        "add",
        y=lambda x, x1: x + x1,
        nests=(VECTOR_ADD,),
        published=Elementwise(y=lambda x, x1: x + x1, dx=lambda dy: dy, nests=(BROADCAST_ADD, "copy")),
        examples=(
            Example(inputs=((7,), (7,))),
            Example(inputs=((2, 3, 5), (2, 3, 5))),
            Example({"variant": "as-published"}, ((2, 3, 5), (2, 3, 5))),
        ),
        takes_over=True,
    ),
    elementwise(  # in prediction nothing is dropped and nothing scaled
        "dropout",
        y=lambda x, mask, p, inference=False: x if inference else x * mask * (1 / (1 - p)),
        dx=lambda dy, mask, p: dy * mask * (1 / (1 - p)),
        nests=("dropout", "dropout"),
        options=_DropShare,
        plan=draw_mask,
        examples=(
            Example(inputs=((20,),)),
            Example({"p": 0.23}, ((3, 4, 5),)),
            Example({"p": 0.0}, ((6,),)),
        ),
    ),
    elementwise(  # the builder inserts it where a layer's input has another format; widening is exact
        "cast",
        y=lambda x: x,
        dx=lambda dy: dy,
        nests=("relu_fw", "relu_fw"),  # a load, one instruction, a store
        options=_Format,
        plan=in_format,
        examples=tuple(Example({"to": to}, (DrawnInput((3, 5)),), roundings=2) for to in BY_NAME),
        takes_over=True,
        internal=True,
    ),
)
"""Every elementwise layer; `trainlib.registry` lists them from here."""
