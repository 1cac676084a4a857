# SPDX-License-Identifier: Apache-2.0
"""1D convolution of sequences [channels, length]: padding per side, stride, dilation, groups, bias.

An image of one row to the kernels, by im2col or by direct loops; its access map is that of the 2D convolution
without rows. PULP-TrainLib has none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from configs.errors import ShapeError
from configs.model_file import LayerSchema
from configs.values import replace
from trainlib.ir.graph import Op, Tensor
from trainlib.primitives.contractions import conv2d_reference as reference
from trainlib.primitives.contractions.conv_options import convolution_plan
from trainlib.primitives.contractions.convolution import convolution_step
from trainlib.primitives.definition import (
    Example,
    LayerPlan,
    LayerPrimitive,
    NotNegative,
    Positive,
    Reference,
    Step,
    Values,
    weight_and_bias,
)
from trainlib.primitives.lowering.boxes import sequence_of


class _Schema(LayerSchema):
    out_channels: Positive
    """Channels of the output."""
    kernel: Positive
    """Length of the window; the input is [channels, length]."""
    stride: Positive = 1
    """Step of the window."""
    padding: NotNegative | list[NotNegative] = 0
    """Zeros on both sides, or [before, after]."""
    dilation: Positive = 1
    """Distance of neighbouring weights."""
    groups: Positive = 1
    """Number of independent groups of channels."""
    bias: bool = False
    """Whether each output channel has a trained bias."""
    im2col: Literal["cores", "none"] = "cores"
    """Unit that unrolls the windows to a matrix: the cores, or none (loops over the sequence)."""


def _plan(attributes: Mapping[str, Any], inputs: Sequence[Tensor], where: str) -> LayerPlan:
    batch, ci, length = sequence_of(inputs[0], "conv1d", where, "channels, length")
    given = attributes["padding"]
    sides = [given, given] if isinstance(given, int) else list(given)
    if len(sides) != 2:
        cure = "use one number or [before, after]"
        raise ShapeError(f"padding has {len(sides)} numbers: {given}", where=where, cure=cure)
    rows = {"kernel": [1, attributes["kernel"]], "padding": [0, 0, *sides]}
    rows |= {name: [1, attributes[name]] for name in ("stride", "dilation")}
    image = replace(inputs[0], shape=(batch, ci, 1, length), layout="CHW")
    co, groups = attributes["out_channels"], attributes["groups"]
    more = {"rank": 1, "im2col": attributes["im2col"]}
    plan = convolution_plan("conv1d", {**attributes, **rows}, image, co, groups, where, **more)
    parameters = weight_and_bias((co, ci // groups, attributes["kernel"]), co, attributes["bias"])
    return replace(plan, output=(batch, co, plan.attributes["wo"]), parameters=parameters)


def _of_images(function: Reference) -> Reference:
    """A reference of the 2D convolution on images of one row."""

    def evaluate(op: Op, values: Values) -> Values:
        images = {role: array[:, :, None] if array.ndim == 3 else array for role, array in values.items()}
        results = function(op, images)
        return {role: array[:, :, 0] if array.ndim == 4 else array for role, array in results.items()}

    return evaluate


PRIMITIVE = LayerPrimitive(
    name="conv1d",
    schema=_Schema,
    plan=_plan,
    steps=(
        Step.of("FW", "x w b? -> y", _of_images(reference.forward), convolution_step("y")),
        Step.of("WG", "x dy -> dw db?", _of_images(reference.weight_gradient), convolution_step("dw")),
        Step.of("IG", "dy w -> dx", _of_images(reference.input_gradient), convolution_step("dx")),
    ),
    examples=(
        Example({"out_channels": 3, "kernel": 3}, ((2, 9),), kernels=("mm_M", "mm_unroll_2x4")),
        Example({"out_channels": 4, "kernel": 3, "padding": [2, 0], "bias": True}, ((3, 8),)),
        Example(
            {"out_channels": 4, "kernel": 3, "padding": 1, "stride": 2, "dilation": 2, "groups": 2},
            ((4, 11),),
        ),
        Example({"out_channels": 3, "kernel": 4, "stride": 3, "im2col": "none", "bias": True}, ((2, 12),)),
    ),
)
