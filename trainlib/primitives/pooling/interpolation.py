# SPDX-License-Identifier: Apache-2.0
"""Interpolation of images to another size: nearest neighbour, or bilinear.

Nearest: output i takes input floor(i · in / out). Bilinear: output i lies at max(0, (i + 1/2) · in/out - 1/2)
in units of inputs (PyTorch's align_corners=False). IG is the true adjoint: each output gradient goes back to
the inputs it came from, with their weights. (PULP-TrainLib interpolates the gradient instead, puts output 0
on input 0 when it shrinks an image, and reads beyond an image of one row.)
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from configs.errors import ShapeError
from configs.model_file import LayerSchema
from trainlib.ir.graph import Op, Tensor
from trainlib.ir.steps import Array, Extent, Ranges, Tensors
from trainlib.primitives.definition import Example, LayerPlan, LayerPrimitive, Positive, Step, Values
from trainlib.primitives.formulas import wide
from trainlib.primitives.lowering.axes import Area, Axes, AxesLowering
from trainlib.primitives.lowering.boxes import image_of
from trainlib.primitives.lowering.calls import BATCH
from trainlib.primitives.lowering.pieces import Piece, TileBuilder

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


def _forward(op: Op, values: Values) -> Values:
    """Of whole tensors, in float64."""
    rows, columns = (_for_outputs(op.attributes["mode"], sizes, (0, sizes[1])) for sizes in _axes(op))
    return {
        "y": _between(wide(values)["x"][:, :, slice(*rows.inputs), slice(*columns.inputs)], rows, columns)
    }


def _backward(op: Op, values: Values) -> Values:
    """Of whole tensors, in float64."""
    rows, columns = (_for_inputs(op.attributes["mode"], sizes, (0, sizes[0])) for sizes in _axes(op))
    dy = wide(values)["dy"]
    dx = np.zeros((*dy.shape[:2], op.attributes["hi"], op.attributes["wi"]))
    return {"dx": _added(dy, dx, rows, columns)}


class _Interpolation(AxesLowering):
    """What both steps share; samples, channels, rows and columns of the result may be cut."""

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

    def area(self, op: Op, tensors: Tensors, ranges: Ranges) -> Area:
        """With what is read."""
        area = super().area(op, tensors, ranges)
        for name, axis in zip(("rows", "columns"), self.taps(area), strict=True):
            area.extents[name] = axis.outputs if op.step == "IG" else axis.inputs
        return area

    def run(self, area: Area, build: TileBuilder, compute: Callable[..., Array]) -> None:
        """Loops over the outputs' rows and columns of all channels of a tile.

        Inputs are taken as walked evenly: a whole number of elements further per output, rounded down.
        """
        op, backward = area.op, area.op.step == "IG"
        small, large = ("dx", "dy") if backward else ("x", "y")
        *_, small_rows, small_columns = area.sizes(small)
        samples, channels, rows, columns = area.sizes(large)
        source = (small_rows * small_columns, small_rows // rows * small_columns, small_columns // columns)
        pieces = (Piece(small, strides=source), Piece(large, strides=(rows * columns, columns, 1)))
        arrays = dict(zip("YX" if backward else "XY", pieces, strict=True))
        reads, written = (("dy", "dx"), "dx") if backward else (("x",), "y")
        sizes = {"channels": samples * channels, "rows": rows, "columns": columns}
        nest = f"interp_{op.attributes['mode']}_{'bw' if backward else 'fw'}"
        build.run(nest, arrays, reads, (written,), compute, **sizes)
        starts = [start for role in (small, large) for start, _ in area.region(role)[2:]]
        names = ("high", "wide", "below", "beside")
        build.known(height=small_rows, width=small_columns, **dict(zip(names, starts, strict=True)))


class _Forward(_Interpolation):
    """FW: a box of y, with the box of x it lies between."""

    def compute(self, area: Area, build: TileBuilder) -> None:
        """One fork."""
        rows, columns = self.taps(area)
        self.run(area, build, lambda image: _between(image, rows, columns))


class _InputGradient(_Interpolation):
    """IG: a box of dx, with the box of dy that came from it; zeros, then additions."""

    def compute(self, area: Area, build: TileBuilder) -> None:
        """Two forks; channels over the cores, so that no two cores add to one element."""
        rows, columns = self.taps(area)
        build.fill("dx", area.sizes("dx"), 0.0)
        self.run(area, build, lambda dy, dx: _added(dy, dx, rows, columns))


PRIMITIVE = LayerPrimitive(
    name="interpolation",
    schema=_Schema,
    plan=_plan,
    steps=(
        Step.of("FW", "x -> y", _forward, _Forward(), formula=True),
        Step.of("IG", "dy -> dx", _backward, _InputGradient(), formula=True),
    ),
    examples=(
        Example({"scale": 2}, ((2, 3, 4),)),
        Example({"size": [5, 3]}, ((2, 7, 8),)),
        Example({"mode": "bilinear", "scale": 2.5}, ((2, 3, 4),)),
        Example({"mode": "bilinear", "size": [3, 4]}, ((1, 7, 9),)),
        Example({"mode": "bilinear", "size": [4, 4]}, ((1, 1, 2),)),
    ),
)
