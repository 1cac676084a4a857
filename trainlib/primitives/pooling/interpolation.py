# SPDX-License-Identifier: Apache-2.0
"""Interpolation of images to another size: nearest neighbour, or bilinear.

Nearest: output i takes input floor(i · in / out). Bilinear: output i lies at max(0, (i + 1/2) · in/out - 1/2)
in units of inputs (PyTorch's align_corners=False). IG is the true adjoint: each output gradient goes back to
the inputs it came from, with their weights. (PULP-TrainLib interpolates the gradient instead, puts output 0
on input 0 when it shrinks an image, and reads beyond an image of one row.)
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from configs.errors import ShapeError
from configs.model_file import LayerSchema
from trainlib.ir.graph import Op, Tensor
from trainlib.ir.steps import Array, Extent, Function, Ranges, Tensors
from trainlib.primitives.definition import Example, LayerPlan, LayerPrimitive, Positive, Shape, Values
from trainlib.primitives.formulas import wide
from trainlib.primitives.lowering.axes import Area, Axes, Form, FormulaLowering, Kernel
from trainlib.primitives.lowering.boxes import image_of
from trainlib.primitives.lowering.calls import BATCH
from trainlib.primitives.lowering.pieces import TileBuilder
from trainlib.primitives.lowering.placed import Fill, Placed

Taps = tuple[Array, Array, Array]
"""Per output: its lower input, its upper input, and the weight of the upper one."""


class _Schema(LayerSchema):
    mode: Literal["nearest", "bilinear"] = "nearest"
    """Take the nearest element, or weigh the four around."""
    size: Annotated[list[Positive], Field(min_length=2, max_length=2)] | None = None
    """[rows, columns] of the output; either this or `scale`."""
    scale: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """Rows and columns of the output per row and column of the input."""


def _plan(attributes: Mapping[str, Any], inputs: Sequence[Tensor], where: str) -> LayerPlan:
    batch, channels, hi, wi = image_of(inputs[0], "interpolation", where)
    size, scale = attributes["size"], attributes["scale"]
    if (size is None) == (scale is None):
        raise ShapeError(
            "interpolation needs exactly one of 'size' and 'scale'",
            where=where,
            cure="use size: [height, width], or scale: 2",
        )
    ho, wo = size if scale is None else (int(hi * scale), int(wi * scale))
    if min(ho, wo) < 1:
        message = f"scaling an image of {hi}x{wi} by {scale} leaves no pixels"
        raise ShapeError(message, where=where, cure=f"use a scale of {1 / min(hi, wi):.3g} or more")
    return LayerPlan(
        (batch, channels, ho, wo),
        attributes={"mode": attributes["mode"], "hi": hi, "wi": wi, "ho": ho, "wo": wo},
    )


def taps(mode: str, inputs: int, outputs: int) -> Taps:
    """Where the outputs of one axis come from."""
    positions = np.arange(outputs)
    if mode == "nearest":
        lower = positions * inputs // outputs
        return lower, lower, np.zeros(outputs)
    # (position + 1/2) * inputs / outputs - 1/2, in halves of an output.
    lower, rest = np.divmod(np.maximum((2 * positions + 1) * inputs - outputs, 0), 2 * outputs)
    return lower, np.minimum(lower + 1, inputs - 1), rest / (2 * outputs)


@dataclass(frozen=True, slots=True)
class _AxisTaps:
    """Outputs of one axis that a tile needs, and where they come from, counted in the tile's inputs."""

    inputs: Extent
    outputs: Extent
    lower: Array
    upper: Array
    share: Array


def _for_outputs(mode: str, sizes: tuple[int, int], outputs: Extent) -> _AxisTaps:
    """The inputs that `outputs` come from; `sizes` are those of the axis before and after."""
    lower, upper, share = (array[slice(*outputs)] for array in taps(mode, *sizes))
    inputs = (int(lower[0]), int(upper[-1]) + 1)
    return _AxisTaps(inputs, outputs, lower - inputs[0], upper - inputs[0], share)


def _for_inputs(mode: str, sizes: tuple[int, int], inputs: Extent) -> _AxisTaps:
    """The outputs that come from `inputs`; an axis that shrinks has inputs nothing comes from."""
    lower, upper, share = taps(mode, *sizes)
    reached = np.flatnonzero((upper >= inputs[0]) & (lower < inputs[1]))
    # A tile nothing comes from reads an output all the same, which adds to none of its inputs.
    outputs = (int(reached[0]), int(reached[-1]) + 1) if reached.size else (0, 1)
    part = slice(*outputs)
    return _AxisTaps(inputs, outputs, lower[part] - inputs[0], upper[part] - inputs[0], share[part])


def _axes(op: Op) -> tuple[tuple[int, int], tuple[int, int]]:
    """(inputs, outputs) of the rows and of the columns."""
    attributes = op.attributes
    return (attributes["hi"], attributes["ho"]), (attributes["wi"], attributes["wo"])


def _between(image: Array, rows: _AxisTaps, columns: _AxisTaps) -> Array:
    """y from the four around each output."""
    down, across = (axis.share.astype(image.dtype) for axis in (rows, columns))
    upper, lower = (
        line[..., columns.lower] + (line[..., columns.upper] - line[..., columns.lower]) * across
        for line in (image[:, :, rows.lower], image[:, :, rows.upper])
    )
    return np.asarray(upper + (lower - upper) * down[:, None])


def _added(gradient: Array, dx: Array, rows: _AxisTaps, columns: _AxisTaps) -> Array:
    """dx, and what comes back to it, in the order of the loop: above, below; left, right."""
    total, (*_, height, width) = dx.copy(), dx.shape
    of_row, across = (axis.share.astype(gradient.dtype) for axis in (rows, columns))
    along = np.stack([columns.lower, columns.upper] * 2, axis=1)
    of_column = np.stack([1 - across, across] * 2, axis=1)
    for row, share in enumerate(of_row):
        down = np.broadcast_to(np.repeat([rows.lower[row], rows.upper[row]], 2), along.shape)
        mine = (down >= 0) & (down < height) & (along >= 0) & (along < width)
        values = gradient[:, :, row, :, None] * np.repeat([1 - share, share], 2) * of_column
        where: Any = (slice(None), slice(None), down[mine], along[mine])
        np.add.at(total, where, values[..., mine])
    return total


def _strides(role: str, large: str, area: Area) -> Shape:
    """Of an image as the outputs are walked.

    Inputs are taken as walked evenly: a whole number of elements further per output, rounded down.
    """
    (*_, high, wide), (*_, rows, columns) = area.sizes(role), area.sizes(large)
    return high * wide, high // rows * wide, wide // columns


class _Interpolation(FormulaLowering):
    """FW: a box of y with the box of x it lies between; IG: one of dx with that of dy which came from it.

    Samples, channels, rows and columns of the result may be cut.
    """

    kept = (BATCH, "c", "h", "w")
    placed = True

    def axes_of(self, op: Op, tensors: Tensors, role: str) -> Axes:
        """What is read has rows and columns of its own."""
        return self.kept if role in op.writes else (BATCH, "c", "rows", "columns")

    def even(self, op: Op, tensors: Tensors) -> Collection[str]:
        """Samples and channels."""
        return self.kept[:2]

    def taps(self, area: Area) -> tuple[_AxisTaps, ...]:
        """Of the rows and the columns of a tile."""
        along, mode = _for_inputs if area.op.step == "IG" else _for_outputs, area.op.attributes["mode"]
        sides = zip("hw", _axes(area.op), strict=True)
        return tuple(along(mode, sizes, area.extents[name]) for name, sizes in sides)

    def reference(self, op: Op, values: Values) -> Values:
        """Of whole tensors, in float64."""
        mode, image = op.attributes["mode"], wide(values)[op.reads[0]]
        if op.step == "FW":
            rows, columns = (_for_outputs(mode, sizes, (0, sizes[1])) for sizes in _axes(op))
            return {"y": _between(image[:, :, slice(*rows.inputs), slice(*columns.inputs)], rows, columns)}
        taps = (_for_inputs(mode, sizes, (0, sizes[0])) for sizes in _axes(op))
        zeros = np.zeros((*image.shape[:2], op.attributes["hi"], op.attributes["wi"]))
        return {"dx": _added(image, zeros, *taps)}

    def area(self, op: Op, tensors: Tensors, ranges: Ranges) -> Area:
        """With what is read."""
        area = super().area(op, tensors, ranges)
        for name, axis in zip(("rows", "columns"), self.taps(area), strict=True):
            area.extents[name] = axis.outputs if op.step == "IG" else axis.inputs
        return area

    def kernels(self, form: Form) -> Sequence[Kernel]:
        """Loops over the outputs' rows and columns of all channels of a tile; additions begin with zeros."""
        small, large, high, wide = (
            ("dx", "dy", "rows", "columns") if form.op.step == "IG" else ("x", "y", "h", "w")
        )
        kind, moves, buffers = ("bw", "dy dx -> dx", "Y:dx X:dy") if small == "dx" else ("fw", "", "X:x Y:y")
        arrays = (item.split(":") for item in buffers.split())
        loop = Placed(
            f"interp_{form.op.attributes['mode']}_{kind}",
            buffers,
            self.formula,
            self.known,
            {"channels": (BATCH, "c"), "rows": (high,), "columns": (wide,)},
            strides={letter: partial(_strides, role, large) for letter, role in arrays},
            moves=moves,
        )
        return (Fill("dx", 0.0), loop) if small == "dx" else (loop,)

    def formula(self, area: Area, build: TileBuilder) -> Function:
        """Between four, or added to four by one core for each channel, so that no two add to one element."""
        compute: Any = _added if area.op.step == "IG" else _between
        taps = self.taps(area)
        return lambda arrays: (compute(*arrays, *taps),)

    def known(self, area: Area, build: TileBuilder) -> Mapping[str, int]:
        """Size of the small image, and where both begin."""
        small, large = ("dx", "dy") if area.op.step == "IG" else ("x", "y")
        starts = [start for role in (small, large) for start, _ in area.region(role)[2:]]
        names = ("height", "width", "high", "wide", "below", "beside")
        return dict(zip(names, (*area.sizes(small)[2:], *starts), strict=True))


PRIMITIVE = LayerPrimitive(
    name="interpolation",
    schema=_Schema,
    plan=_plan,
    steps=(_Interpolation().step("FW", "x -> y"), _Interpolation().step("IG", "dy -> dx")),
    examples=(
        Example({"scale": 2}, ((2, 3, 4),)),
        Example({"size": [5, 3]}, ((2, 7, 8),)),
        Example({"mode": "bilinear", "scale": 2.5}, ((2, 3, 4),)),
        Example({"mode": "bilinear", "size": [3, 4]}, ((1, 7, 9),)),
        Example({"mode": "bilinear", "size": [4, 4]}, ((1, 1, 2),)),
    ),
)
