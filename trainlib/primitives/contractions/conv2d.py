# SPDX-License-Identifier: Apache-2.0
"""2D convolution in CHW and HWC, every step with padding per side, strides, dilation, groups and bias.

`im2col` is ``cores`` (an im2row kernel, see `conv_im2col`), ``dma`` (patches fetched by 2D transfers, see
`conv_unroll`; HWC WG then multiplies with the im2row matrix, B not transposed) or ``none`` (direct loops, see
`conv_direct`). The library's own WG ignores padding and its IG padding and stride (found by running it); here
all three are what the mathematics says.

Every step may be cut along all dimensions of its result and of its sum, the kernel window excepted; a tile
over part of the channels (FW, IG) or of the positions (WG) unrolls only that part.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from configs.errors import ShapeError
from trainlib.ir.graph import Op, Tensor
from trainlib.primitives.contractions import conv2d_reference as reference
from trainlib.primitives.contractions.contraction import Strategy
from trainlib.primitives.contractions.conv_direct import DirectLoops
from trainlib.primitives.contractions.conv_examples import CONV2D_EXAMPLES
from trainlib.primitives.contractions.conv_geometry import ConvGeometry
from trainlib.primitives.contractions.conv_im2col import Im2col
from trainlib.primitives.contractions.conv_options import (
    ChannelSchema,
    convolution_attributes,
    convolution_parameters,
    image_shape,
)
from trainlib.primitives.contractions.convolution import convolution_step
from trainlib.primitives.definition import LayerPlan, LayerPrimitive, Step


class _Schema(ChannelSchema):
    im2col: Literal["cores", "dma", "none"] = "cores"
    """Who writes the windows out as a matrix: the cores, the DMA, or nobody (loops over the image itself)."""


def _plan(attributes: Mapping[str, Any], inputs: Sequence[Tensor], where: str) -> LayerPlan:
    co, groups = attributes["out_channels"], attributes["groups"]
    carried = convolution_attributes(attributes, inputs[0], co, groups, where, "conv2d")
    if attributes["im2col"] == "dma" and groups > 1:
        raise ShapeError(
            f"im2col: dma supports one group only, but the layer has {groups}",
            where=where,
            cure="use im2col: cores, or groups: 1",
        )
    geometry = ConvGeometry.of(carried)
    weights = geometry.filters_shape(co, geometry.ci_of_group)
    return LayerPlan(
        image_shape(geometry.layout, carried["batch"], co, geometry.ho, geometry.wo),
        convolution_parameters(weights, co, attributes["bias"]),
        attributes={**carried, "im2col": attributes["im2col"]},
    )


_MATRIX, _DIRECT = Im2col(), DirectLoops()


def as_asked(op: Op) -> Strategy:
    """As the option `im2col` of the layer says."""
    return _DIRECT if op.attributes["im2col"] == "none" else _MATRIX


PRIMITIVE = LayerPrimitive(
    name="conv2d",
    schema=_Schema,
    plan=_plan,
    steps=(
        Step.of("FW", "x w b? -> y", reference.forward, convolution_step("y", as_asked)),
        Step.of("WG", "x dy -> dw db?", reference.weight_gradient, convolution_step("dw", as_asked)),
        Step.of("IG", "dy w -> dx", reference.input_gradient, convolution_step("dx", as_asked)),
    ),
    examples=CONV2D_EXAMPLES,
    layouts=("CHW", "HWC"),
)
