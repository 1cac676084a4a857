# SPDX-License-Identifier: Apache-2.0
"""Transposed 2D convolution: the adjoint of a convolution from its output y to its input x.

ho = (hi - 1)·stride - pads + dilation·(hk - 1) + output_padding + 1. Weights [ci, co/groups, hk, wk] in CHW
in every step, [ci, hk, wk, co/groups] in HWC. PULP-TrainLib has direct loops only, parallel over co (FW, WG)
and ci (IG); its FW indexes the weights the other way round than its WG and IG, and FW and IG add to whatever
the output holds. Here one order of weights serves all steps and outputs begin at zero or at the bias.

The ops carry the geometry of the adjoint convolution, whose inputs are this layer's outputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from configs.errors import ShapeError
from trainlib.ir.graph import Tensor
from trainlib.primitives.contractions.conv2d_reference import correlate, references, scatter
from trainlib.primitives.contractions.conv_geometry import ConvGeometry
from trainlib.primitives.contractions.conv_options import (
    ChannelSchema,
    check_groups,
    image_extents,
    image_shape,
    pair_of,
    window_attributes,
)
from trainlib.primitives.contractions.convolution import transposed_step
from trainlib.primitives.definition import Example, LayerPlan, LayerPrimitive, Step, weight_and_bias


class _Schema(ChannelSchema):
    output_padding: int | list[int] = 0
    """Rows and columns added to the output at its end, where the stride leaves its size open."""


def _output_padding(attributes: Mapping[str, Any], window: Mapping[str, Any], where: str) -> tuple[int, int]:
    given, extra = attributes["output_padding"], pair_of(attributes, "output_padding", where)
    for more, stride, dilation in zip(extra, window["strides"], window["dilations"], strict=True):
        if not 0 <= more < max(stride, dilation):
            raise ShapeError(
                f"output_padding {given} must be smaller than stride {stride} or dilation {dilation}",
                where=where,
                cure="use output_padding: 0, or a larger stride",
            )
    return extra


def _plan(attributes: Mapping[str, Any], inputs: Sequence[Tensor], where: str) -> LayerPlan:
    batch, ci, hi, wi = image_extents("conv_transpose2d", inputs[0], where)
    co, groups = attributes["out_channels"], attributes["groups"]
    window = window_attributes(attributes, where)
    extra = _output_padding(attributes, window, where)
    check_groups(groups, where, input=ci, output=co)
    pads = window["pads"]
    sizes = []
    for axis, (size, kernel) in enumerate(((hi, window["hk"]), (wi, window["wk"]))):
        reach = window["dilations"][axis] * (kernel - 1) + 1
        full = (size - 1) * window["strides"][axis] + reach + extra[axis]
        sizes.append(full - pads[2 * axis] - pads[2 * axis + 1])
    ho, wo = sizes
    if min(sizes) < 1:
        raise ShapeError(
            f"the output would be empty: {ho}x{wo} pixels",
            where=where,
            cure="use less padding, or a larger kernel or stride",
        )
    layout = inputs[0].layout
    adjoint = {"ci": co, "hi": ho, "wi": wo, "co": ci, "ho": hi, "wo": wi}
    carried = {**adjoint, **window, "batch": batch, "groups": groups, "layout": layout}
    weights = ConvGeometry.of(carried).filters_shape(ci, co // groups)
    return LayerPlan(
        image_shape(layout, batch, co, ho, wo),
        weight_and_bias(weights, co, attributes["bias"]),
        attributes={**carried, "output_padding": extra},
    )


_FORWARD, _WEIGHT_GRADIENT, _INPUT_GRADIENT = references(scatter, correlate, transposed=True)

PRIMITIVE = LayerPrimitive(
    name="conv_transpose2d",
    schema=_Schema,
    plan=_plan,
    steps=(
        Step.of("FW", "x w b? -> y", _FORWARD, transposed_step("y", "scattered")),
        Step.of("WG", "x dy -> dw db?", _WEIGHT_GRADIENT, transposed_step("dw")),
        Step.of("IG", "dy w -> dx", _INPUT_GRADIENT, transposed_step("dx")),
    ),
    examples=(
        Example({"out_channels": 3, "kernel": 3, "stride": 2, "padding": 1, "bias": True}, ((2, 3, 4),)),
        Example({"out_channels": 2, "kernel": 2}, ((3, 4, 3),)),
        Example(
            {
                "out_channels": 4,
                "kernel": [3, 2],
                "stride": [3, 2],
                "padding": [1, 0, 0, 1],
                "output_padding": [2, 1],
                "groups": 2,
                "bias": True,
            },
            ((4, 3, 4),),
        ),
        Example(
            {"out_channels": 2, "kernel": 2, "dilation": 3, "output_padding": 2, "bias": True}, ((2, 4, 3),)
        ),
        Example({"layout": "HWC", "out_channels": 3, "kernel": 3, "stride": 2, "bias": True}, ((3, 4, 2),)),
    ),
    layouts=("CHW", "HWC"),
)
