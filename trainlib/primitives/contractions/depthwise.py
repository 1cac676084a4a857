# SPDX-License-Identifier: Apache-2.0
"""Depthwise convolution: every channel with a kernel of its own, by direct loops, stride, padding, bias.

Weights [c, 1, hk, wk] in CHW, [c, hk, wk, 1] in HWC. PULP-TrainLib has no matmul for it on its main branch
(the loops are faster than im2col), ignores stride or padding in most steps and computes WG and IG on every
core in full; here all steps know all options and share the channels between the cores. The published WG and
IG are variants where they can do the layer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from trainlib.ir.graph import Tensor
from trainlib.primitives.contractions import conv2d_reference as reference
from trainlib.primitives.contractions.conv_direct import published_depthwise
from trainlib.primitives.contractions.conv_options import WindowSchema, convolution_plan, image_extents
from trainlib.primitives.contractions.convolution import convolution_step
from trainlib.primitives.definition import AS_PUBLISHED, Example, LayerPlan, LayerPrimitive, Step, Variant


def _plan(attributes: Mapping[str, Any], inputs: Sequence[Tensor], where: str) -> LayerPlan:
    _, channels, _, _ = image_extents("depthwise", inputs[0], where)
    return convolution_plan("depthwise", attributes, inputs[0], channels, channels, where)


def _published(result: str) -> dict[str, Variant]:
    needs = "stride 1, padding 0, dilation 1 and CHW"
    return {AS_PUBLISHED: Variant(convolution_step(result, "published"), published_depthwise, needs)}


PRIMITIVE = LayerPrimitive(
    name="depthwise",
    schema=WindowSchema,
    plan=_plan,
    steps=(
        Step.of("FW", "x w b? -> y", reference.forward, convolution_step("y")),
        Step.of(
            "WG",
            "x dy -> dw db?",
            reference.weight_gradient,
            convolution_step("dw"),
            _published("dw"),
        ),
        Step.of("IG", "dy w -> dx", reference.input_gradient, convolution_step("dx"), _published("dx")),
    ),
    examples=(
        Example({"kernel": 3}, ((3, 6, 5),)),
        Example({"kernel": 3, "padding": 1, "bias": True}, ((4, 5, 6),)),
        Example({"kernel": 3, "stride": 2}, ((3, 8, 7),)),
        Example({"kernel": 5, "padding": [2, 1, 0, 2], "stride": [2, 1], "bias": True}, ((2, 7, 8),)),
        Example({"kernel": [2, 3], "dilation": [2, 1], "padding": 1}, ((2, 6, 6),)),
        Example({"layout": "HWC", "kernel": 3, "padding": 1, "stride": 2, "bias": True}, ((5, 6, 3),)),
        Example({"kernel": [3, 2], "bias": True, "variant": "as-published"}, ((3, 6, 7),)),
    ),
    layouts=("CHW", "HWC"),
)
