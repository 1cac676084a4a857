# SPDX-License-Identifier: Apache-2.0
"""What layers with a sliding window say in a model file, and what is wrong with it: shapes, pads, groups."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from configs.errors import ShapeError
from configs.model_file import LayerSchema
from trainlib.ir.graph import Tensor
from trainlib.primitives.contractions.conv_geometry import ConvGeometry, Pads
from trainlib.primitives.definition import LayerPlan, Positive, Shape, weight_and_bias
from trainlib.primitives.lowering.boxes import image_of


class WindowSchema(LayerSchema):
    """Options of a sliding window."""

    kernel: int | list[int]
    """Size of the window: one number, or [rows, columns]."""
    stride: int | list[int] = 1
    """Step of the window: one number, or [rows, columns]."""
    padding: int | list[int] = 0
    """Zeros around: one number, [rows, columns], or [up, down, left, right]."""
    dilation: int | list[int] = 1
    """Distance of neighbouring weights: one number, or [rows, columns]."""
    bias: bool = False
    """Whether each output channel has a trained bias."""


class ChannelSchema(WindowSchema):
    """A window layer that chooses its channels."""

    out_channels: Positive
    """Channels of the output."""
    groups: Positive = 1
    """Number of independent groups of channels; it must divide the number of input channels."""


def image_extents(kind: str, tensor: Tensor, where: str) -> tuple[int, int, int, int]:
    """(batch, channels, rows, columns) of an image in either layout. Raises ShapeError for other shapes."""
    batch, first, second, third = image_of(tensor, kind, where)
    return (batch, third, first, second) if tensor.layout == "HWC" else (batch, first, second, third)


def image_shape(layout: str, batch: int, channels: int, rows: int, columns: int) -> Shape:
    """Shape of a batch of images in a layout."""
    return (batch, rows, columns, channels) if layout == "HWC" else (batch, channels, rows, columns)


def two_of(attributes: Mapping[str, Any], key: str, where: str) -> tuple[int, int]:
    """An option as (rows, columns), each at least 1. Raises ShapeError."""
    values = pair_of(attributes, key, where)
    if min(values) < 1:
        what = f"{key} is {attributes[key]}, but must be 1 or more"
        raise ShapeError(what, where=where, cure=f"use {key}: 1")
    return values


def pair_of(attributes: Mapping[str, Any], key: str, where: str) -> tuple[int, int]:
    """An option as (rows, columns). Raises ShapeError."""
    given = attributes[key]
    values = (given, given) if isinstance(given, int) else tuple(given)
    if len(values) != 2:
        cure = "use one number or [rows, columns]"
        raise ShapeError(f"{key} has {len(values)} numbers: {given}", where=where, cure=cure)
    return values


def padding_of(attributes: Mapping[str, Any], where: str) -> Pads:
    """The padding as (up, down, left, right), each at least 0. Raises ShapeError."""
    given = attributes["padding"]
    values = [given] * 4 if isinstance(given, int) else list(given)
    if len(values) == 2:
        values = [values[0], values[0], values[1], values[1]]
    if len(values) != 4:
        raise ShapeError(
            f"padding has {len(values)} numbers: {given}",
            where=where,
            cure="use one number, [rows, columns] or [up, down, left, right]",
        )
    if min(values) < 0:
        raise ShapeError(f"padding is {given}, but must be 0 or more", where=where, cure="use padding: 0")
    return values[0], values[1], values[2], values[3]


def window_attributes(attributes: Mapping[str, Any], where: str) -> dict[str, Any]:
    """hk, wk, strides, dilations and pads of the options. Raises ShapeError, also for useless padding."""
    hk, wk = two_of(attributes, "kernel", where)
    dilations, pads = two_of(attributes, "dilation", where), padding_of(attributes, where)
    reach = (dilations[0] * (hk - 1) + 1, dilations[1] * (wk - 1) + 1)
    for side, pad in enumerate(pads):
        if pad >= reach[side // 2]:
            dilated = f" dilated to {reach[0]}x{reach[1]}" if max(dilations) > 1 else ""
            raise ShapeError(
                f"padding {pad} must be smaller than the kernel {hk}x{wk}{dilated}, or some outputs "
                "depend on padding only",
                where=where,
                cure=f"use padding of at most {reach[side // 2] - 1}",
            )
    strides = two_of(attributes, "stride", where)
    return {"hk": hk, "wk": wk, "strides": strides, "dilations": dilations, "pads": pads}


def output_size(window: Mapping[str, Any], hi: int, wi: int, where: str) -> tuple[int, int]:
    """(ho, wo) of a convolution. Raises ShapeError for a kernel larger than the padded input."""
    up, down, left, right = window["pads"]
    (sh, sw), (dh, dw) = window["strides"], window["dilations"]
    reach_h, reach_w = dh * (window["hk"] - 1) + 1, dw * (window["wk"] - 1) + 1
    padded_h, padded_w = hi + up + down, wi + left + right
    if reach_h > padded_h or reach_w > padded_w:
        dilated = f" dilated to {reach_h}x{reach_w}" if max(dh, dw) > 1 else ""
        raise ShapeError(
            f"kernel {window['hk']}x{window['wk']}{dilated} is larger than the padded input "
            f"{padded_h}x{padded_w}",
            where=where,
            cure="use a smaller kernel, more padding, or less stride in the layers before it",
        )
    return (padded_h - reach_h) // sh + 1, (padded_w - reach_w) // sw + 1


def check_groups(groups: int, where: str, **channels: int) -> None:
    """Raise ShapeError unless the groups divide both numbers of channels."""
    for side, count in channels.items():
        if count % groups != 0:
            raise ShapeError(
                f"groups: {groups} does not divide the {count} {side} channels",
                where=where,
                cure="use groups that divide the input channels and the output channels",
            )


def convolution_plan(
    kind: str, attributes: Mapping[str, Any], tensor: Tensor, co: int, groups: int, where: str, **more: Any
) -> LayerPlan:
    """A convolution of `tensor` to `co` channels; its ops carry `more`, too. Raises ShapeError."""
    batch, ci, hi, wi = image_extents(kind, tensor, where)
    window = window_attributes(attributes, where)
    check_groups(groups, where, input=ci, output=co)
    ho, wo = output_size(window, hi, wi, where)
    extents = {"ci": ci, "hi": hi, "wi": wi, "co": co, "ho": ho, "wo": wo}
    carried = {**extents, **window, "batch": batch, "groups": groups, "layout": tensor.layout, **more}
    return LayerPlan(
        image_shape(tensor.layout, batch, co, ho, wo),
        weight_and_bias(ConvGeometry.of(carried).filters_shape(co, ci // groups), co, attributes["bias"]),
        attributes=carried,
    )
