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
from trainlib.ir.graph import Tensor
from trainlib.primitives.contractions import conv2d_reference as reference
from trainlib.primitives.contractions.conv_options import ChannelSchema, convolution_plan
from trainlib.primitives.contractions.convolution import convolution_step
from trainlib.primitives.definition import Example, LayerPlan, LayerPrimitive, Step


class _Schema(ChannelSchema):
    im2col: Literal["cores", "dma", "none"] = "cores"
    """Who writes the windows out as a matrix: the cores, the DMA, or nobody (loops over the image itself)."""


def _plan(attributes: Mapping[str, Any], inputs: Sequence[Tensor], where: str) -> LayerPlan:
    co, groups = attributes["out_channels"], attributes["groups"]
    im2col = attributes["im2col"]
    plan = convolution_plan("conv2d", attributes, inputs[0], co, groups, where, im2col=im2col)
    if im2col == "dma" and groups > 1:
        raise ShapeError(
            f"im2col: dma supports one group only, but the layer has {groups}",
            where=where,
            cure="use im2col: cores, or groups: 1",
        )
    return plan


PRIMITIVE = LayerPrimitive(
    name="conv2d",
    schema=_Schema,
    plan=_plan,
    steps=(
        Step.of("FW", "x w b? -> y", reference.forward, convolution_step("y")),
        Step.of("WG", "x dy -> dw db?", reference.weight_gradient, convolution_step("dw")),
        Step.of("IG", "dy w -> dx", reference.input_gradient, convolution_step("dx")),
    ),
    examples=(
        Example({"out_channels": 3, "kernel": 3}, ((2, 6, 5),), kernels=("mm_M", "mm_unroll_2x4")),
        Example({"out_channels": 2, "kernel": 3, "padding": 1, "stride": 2}, ((3, 7, 6),)),
        Example({"out_channels": 2, "kernel": 5, "padding": 2}, ((1, 6, 7),)),
        Example({"out_channels": 2, "kernel": 1, "stride": 3}, ((2, 6, 6),)),
        Example(
            {
                "out_channels": 4,
                "kernel": [2, 3],
                "stride": [2, 1],
                "padding": [1, 0, 0, 2],
                "dilation": [1, 2],
                "groups": 2,
                "bias": True,
            },
            ((4, 6, 7),),
        ),
        Example({"out_channels": 3, "kernel": 3, "groups": 3, "bias": True, "padding": 1}, ((3, 4, 5),)),
        Example(
            {"layout": "HWC", "out_channels": 3, "kernel": 3, "bias": True}, ((6, 5, 2),), kernels=("mm_M",)
        ),
        Example(
            {"layout": "HWC", "out_channels": 4, "kernel": 3, "padding": [1, 2], "stride": 2, "groups": 2},
            ((5, 6, 4),),
        ),
        Example({"layout": "HWC", "out_channels": 2, "kernel": [3, 2], "dilation": 2}, ((7, 6, 2),)),
        Example({"out_channels": 3, "kernel": 3, "im2col": "dma", "padding": 1, "bias": True}, ((2, 4, 5),)),
        Example({"out_channels": 2, "kernel": 2, "im2col": "dma", "stride": 2}, ((2, 5, 4),)),
        Example(
            {"layout": "HWC", "out_channels": 2, "kernel": 2, "im2col": "dma", "dilation": 2}, ((4, 5, 3),)
        ),
        Example({"out_channels": 3, "kernel": 3, "im2col": "none", "bias": True}, ((2, 6, 5),)),
        Example(
            {
                "out_channels": 4,
                "kernel": 3,
                "im2col": "none",
                "padding": [1, 2, 0, 1],
                "stride": 2,
                "groups": 2,
                "bias": True,
            },
            ((4, 5, 6),),
        ),
        Example(
            {"layout": "HWC", "out_channels": 2, "kernel": 3, "im2col": "none", "dilation": 2}, ((6, 5, 3),)
        ),
    ),
    layouts=("CHW", "HWC"),
)
