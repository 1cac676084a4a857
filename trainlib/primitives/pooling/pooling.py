# SPDX-License-Identifier: Apache-2.0
"""What average and max pooling share: windows and their padding, references, lowerings.

A window never lies in the padding alone. Samples, channels, rows and columns of the result are cut; a tile
fetches the rows and columns its windows touch. PULP-TrainLib's loops know no padding and use the vertical
stride for the width as well; here both directions have kernel, stride and padding of their own. A padded
position is priced like any other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from configs.dtypes import INT32, UINT8, DType
from configs.errors import ShapeError
from configs.model_file import LayerSchema
from trainlib.ir.access import Index, Term
from trainlib.ir.graph import Op, Tensor
from trainlib.ir.steps import Array, Extent, Function, Tensors
from trainlib.primitives.contractions.conv_options import padding_of
from trainlib.primitives.definition import LayerPlan, NotNegative, Positive, Saved, Values
from trainlib.primitives.formulas import wide
from trainlib.primitives.lowering.axes import ONE, Area, Axes, Form, FormulaLowering
from trainlib.primitives.lowering.boxes import image_of
from trainlib.primitives.lowering.calls import BATCH
from trainlib.primitives.lowering.pieces import TileBuilder
from trainlib.primitives.lowering.placed import Placed

BYTE_WINDOW = 16
"""Rows and columns of the largest window of which a byte holds a place."""

_Pair = Annotated[list[Positive], Field(min_length=2, max_length=2)]
_Sides = Annotated[list[NotNegative], Field(min_length=2, max_length=4)]


class PoolingSchema(LayerSchema):
    """A window that slides over rows and columns: each option is one number, or [rows, columns]."""

    kernel: Positive | _Pair
    """Size of the window."""
    stride: Positive | _Pair | None = None
    """Step of the window; none: its size."""
    padding: NotNegative | _Sides = 0
    """Elements added on each side, or [up, down, left, right]."""


@dataclass(frozen=True, slots=True)
class Axis:
    """One direction: size of the input and of the output, kernel, stride, padding before.

    Behind there is as much padding as the last window needs.
    """

    size: int
    outputs: int
    kernel: int
    stride: int
    padding: int

    @property
    def is_padded(self) -> bool:
        """Whether a window reaches beyond the input."""
        return self.padding > 0 or (self.outputs - 1) * self.stride + self.kernel > self.size

    def window(self, output: int) -> Extent:
        """Input positions of the window of one output, clipped to the input."""
        first = output * self.stride - self.padding
        return max(first, 0), min(first + self.kernel, self.size)

    def read_by(self, name: str) -> Index:
        """Input positions that outputs read, by the loops over outputs and over a window."""
        return Index(f"{name}i", self.size, (Term(f"{name}o", self.stride), Term(f"{name}k")), -self.padding)

    def reaching(self, name: str) -> Index:
        """Outputs whose windows touch inputs, by the loops over inputs and over a window."""
        terms = Term(f"{name}i"), Term(f"{name}k", -1)
        return Index(f"{name}o", self.outputs, terms, self.padding, self.stride)


TileFunction = Callable[[Op, "Plane", "Plane", Sequence[Array]], tuple[Array, ...]]
"""What a tile computes: by op, box of its result, box it reads (of a gradient, of dy) and arrays."""


def axes_of(attributes: Mapping[str, Any]) -> tuple[Axis, Axis]:
    """Rows and columns."""
    rows, columns = (Axis(*attributes[name]) for name in ("rows", "columns"))
    return rows, columns


def pooling_plan(
    attributes: Mapping[str, Any], inputs: Sequence[Tensor], where: str, *, save_positions: bool = False
) -> LayerPlan:
    """Shapes of a pooling layer. Raises ShapeError for no image, a kernel too large, a window of padding."""
    batch, channels, *sizes = image_of(inputs[0], "pooling", where)
    kernels = _pair(attributes.get("kernel", sizes))
    strides = kernels if attributes.get("stride") is None else _pair(attributes["stride"])
    sides = padding_of({"padding": attributes.get("padding", 0)}, where)
    outputs = []
    for size, kernel, stride, before, after in zip(
        sizes, kernels, strides, sides[::2], sides[1::2], strict=True
    ):
        padded = size + before + after
        if kernel > padded:
            raise ShapeError(
                f"the pooling window {kernel} is larger than the padded input {padded}",
                where=where,
                cure="use a smaller kernel, more padding, or less stride in the layers before it",
            )
        outputs.append((padded - kernel) // stride + 1)
        if before >= kernel or (outputs[-1] - 1) * stride - before >= size:
            raise ShapeError(
                f"padding {before} and {after} is too large for {size} elements: a window of {kernel} lies "
                "entirely in the padding",
                where=where,
                cure=f"use padding of at most {kernel - 1}",
            )
    rows, columns = zip(sizes, outputs, kernels, strides, sides[::2], strict=True)
    output = (batch, channels, *outputs)
    return LayerPlan(
        output,
        saved={"argmax": Saved(output, place_dtype(kernels))} if save_positions else {},
        attributes={
            "batch": batch,
            "channels": channels,
            "rows": rows,
            "columns": columns,
            "count_include_pad": attributes.get("count_include_pad", True),
        },
    )


def _pair(value: Any) -> tuple[int, int]:
    first, second = (value, value) if isinstance(value, int) else value
    return first, second


@dataclass(frozen=True, slots=True)
class Plane:
    """A box of one channel: rows and columns."""

    rows: Extent
    columns: Extent

    @property
    def shape(self) -> tuple[int, int]:
        """Numbers of rows and columns."""
        return self.rows[1] - self.rows[0], self.columns[1] - self.columns[0]


def read_by(op: Op, outputs: Plane) -> Plane:
    """The box of x that a box of results reads."""
    sides = zip(axes_of(op.attributes), (outputs.rows, outputs.columns), strict=True)
    spans = (axis.read_by("").span({"o": side, "k": (0, axis.kernel)}) for axis, side in sides)
    return Plane(*(span.extent for span in spans))


def windows(x: Array, axes: tuple[Axis, Axis], outputs: Plane, fetched: Plane, fill: float) -> Array:
    """View [c, rows, columns, hk, wk] of the windows of `outputs`; x [c, h, w] is the box `fetched`."""
    spans = []
    for axis, extent in zip(axes, (outputs.rows, outputs.columns), strict=True):
        first = extent[0] * axis.stride - axis.padding
        spans.append((first, (extent[1] - 1) * axis.stride - axis.padding + axis.kernel - first))
    (top, height), (left, width) = spans
    padded = np.full((len(x), height, width), fill, x.dtype)
    down, along = fetched.rows[0] - top, fetched.columns[0] - left
    padded[:, down : down + x.shape[1], along : along + x.shape[2]] = x
    rows, columns = axes
    view = np.lib.stride_tricks.sliding_window_view(padded, (rows.kernel, columns.kernel), axis=(1, 2))
    return view[:, :: rows.stride, :: columns.stride]


def divisors(op: Op, outputs: Plane) -> Array:
    """[rows, columns] of `outputs`: what the sum of each window is divided by, fp32."""
    rows, columns = axes_of(op.attributes)
    if op.attributes["count_include_pad"]:
        return np.full(outputs.shape, rows.kernel * columns.kernel, np.float32)
    heights = [np.subtract(*rows.window(output)[::-1]) for output in range(*outputs.rows)]
    widths = [np.subtract(*columns.window(output)[::-1]) for output in range(*outputs.columns)]
    return np.outer(heights, widths).astype(np.float32)


def place_dtype(kernels: Sequence[int]) -> DType:
    """The format of a place in a window of these sizes: its row, and below that its column."""
    return UINT8 if max(kernels) <= BYTE_WINDOW else INT32


def place_bits(op: Op) -> int:
    """Bits of a place in a window that say the column, half of all; those above say the row."""
    return 4 * op_place_dtype(op).bytes


def op_place_dtype(op: Op) -> DType:
    """`place_dtype` of a pooling op."""
    return place_dtype([axis.kernel for axis in axes_of(op.attributes)])


IMAGE, RESULT = (BATCH, "c", "hi", "wi"), (BATCH, "c", "ho", "wo")
"""Dimensions of x and dx, and of y and dy."""


SIZES: Mapping[str, Axes] = {"ci": ("c",), **{name: (name,) for name in ("hi", "wi", "ho", "wo", "hk", "wk")}}
"""Dimensions that the sizes of the nests are of."""


class Pooling(FormulaLowering):
    """One fork per sample, channels over the cores; samples, channels, rows and columns may be cut.

    `buffers` are those of the arrays of `nest`; `function` is what a tile computes. A gradient (`kept` is
    IMAGE) is zeros and additions, so overlapping windows add up.
    """

    placed = True
    windows: Mapping[str, Axes] = {}
    """Sizes that are not those of `SIZES`."""

    def __init__(self, nest: str, buffers: str, function: TileFunction, kept: Axes = RESULT) -> None:
        self.nest, self.buffers, self.function, self.kept = nest, buffers, function, kept

    def axes(self, role: str) -> Axes:
        """Of images large and small; in the gradient x is read where the windows that touch dx read it."""
        if role == "x" and self.kept == IMAGE:
            return (*IMAGE[:2], "hi of x", "wi of x")
        return IMAGE if role in ("x", "dx") else RESULT

    def dimensions(self, op: Op, tensors: Tensors) -> Mapping[str, int]:
        """With rows and columns of the window."""
        windows = {f"{name}k": axis.kernel for name, axis in zip("hw", axes_of(op.attributes), strict=True)}
        return {**super().dimensions(op, tensors), **windows}

    def maps(self, op: Op, tensors: Tensors) -> Mapping[str, Index]:
        """What windows read; in the gradient what reads it, and what that reads."""
        axes = dict(zip("hw", axes_of(op.attributes), strict=True))
        if self.kept == RESULT:
            return {f"{name}i": axis.read_by(name) for name, axis in axes.items()}
        reaching = {f"{name}o": axis.reaching(name) for name, axis in axes.items()}
        return {**reaching, **{f"{name}i of x": axis.read_by(name) for name, axis in axes.items()}}

    def kernels(self, form: Form) -> Sequence[Placed]:
        """The loop over windows."""
        flags = {"stride": axes_of(form.op.attributes)[1].stride}
        sizes = {**SIZES, **self.windows}
        return (Placed(self.nest, self.buffers, self.formula, self.known, sizes, flags, each=True),)

    def reference(self, op: Op, values: Values) -> Values:
        """What a tile as large as the images computes, in float64, a sample at a time."""
        rows, columns = axes_of(op.attributes)
        results = Plane((0, rows.outputs), (0, columns.outputs))
        read = read_by(op, results)
        planes = (Plane((0, rows.size), (0, columns.size)), results) if "dy" in op else (results, read)
        seen, function = wide(values), partial(self.function, op, *planes)
        if "x" in op:
            seen = {**seen, "x": seen["x"][:, :, slice(*read.rows), slice(*read.columns)]}
        made = [function(arrays) for arrays in zip(*(seen[role] for role in op.reads), strict=True)]
        return dict(zip(op.writes, map(np.stack, zip(*made, strict=True)), strict=True))

    def formula(self, area: Area, build: TileBuilder) -> Function:
        """That of the boxes of a tile."""
        result, read = area.op.writes[0], "dy" if "dy" in area.op else "x"
        return partial(self.function, area.op, _plane(area, result), _plane(area, read))

    def known(self, area: Area, build: TileBuilder) -> Mapping[str, int]:
        """Where windows begin."""
        op, large, small = area.op, *(("dx", "dy") if "dy" in area.op else ("x", "y"))
        details = _walk(op, _plane(area, large), _plane(area, small), "")
        if large == "x" or "x" not in op:
            return details
        seen = _plane(area, "x")
        high, wide = seen.shape
        return {**details, **_walk(op, seen, _plane(area, small), "x_"), "x_rows": high, "x_columns": wide}


def _plane(area: Area, role: str) -> Plane:
    """Rows and columns of a tensor."""
    return Plane(*area.region(role)[2:])


def _walk(op: Op, inputs: Plane, outputs: Plane, word: str) -> dict[str, int]:
    """Where the windows of `outputs` begin in the box `inputs`, and where that lies in the image."""
    rows, columns = axes_of(op.attributes)
    high, wide = inputs.rows[0], inputs.columns[0]
    return {
        "step_h": rows.stride,
        "step_w": columns.stride,
        f"{word}top": outputs.rows[0] * rows.stride - rows.padding - high,
        f"{word}left": outputs.columns[0] * columns.stride - columns.padding - wide,
        f"{word}high": high,
        f"{word}wide": wide,
        "height": rows.size,
        "width": columns.size,
        "counted": rows.kernel * columns.kernel if op.attributes["count_include_pad"] else 0,
        "place_bits": place_bits(op),
    }


def _average(op: Op, outputs: Plane, fetched: Plane, arrays: Sequence[Array]) -> tuple[Array, ...]:
    """Mean of every window."""
    views = windows(arrays[0], axes_of(op.attributes), outputs, fetched, 0.0)
    # In the order of the loop.
    sums = views.reshape(*views.shape[:3], -1).cumsum(axis=3)[..., -1]
    return (sums / divisors(op, outputs),)


def _average_gradient(op: Op, inputs: Plane, reaching: Plane, arrays: Sequence[Array]) -> tuple[Array, ...]:
    """Every gradient spread evenly over its window."""
    rows, columns = axes_of(op.attributes)
    share = arrays[0] / divisors(op, reaching)
    dx = np.zeros((len(share), *inputs.shape), share.dtype)
    # Backwards, so that an element adds up what it gets in the order of the outputs.
    for y in reversed(range(rows.kernel)):
        for x in reversed(range(columns.kernel)):
            down = np.arange(*reaching.rows) * rows.stride - rows.padding + y - inputs.rows[0]
            along = np.arange(*reaching.columns) * columns.stride - columns.padding + x - inputs.columns[0]
            high = (down >= 0) & (down < inputs.shape[0])
            wide = (along >= 0) & (along < inputs.shape[1])
            dx[np.ix_(np.arange(len(share)), down[high], along[wide])] += share[:, high][:, :, wide]
    return (dx,)


def _global_average(op: Op, outputs: Plane, fetched: Plane, arrays: Sequence[Array]) -> tuple[Array, ...]:
    """What the positions of the tile add to the mean of all."""
    positions = np.float32(np.prod([axis.size for axis in axes_of(op.attributes)]))
    return (arrays[0].reshape(len(arrays[0]), -1).cumsum(axis=1)[:, -1:, None] / positions,)


class _GlobalAverage(Pooling):
    """FW of the average of whole images: samples and channels may be cut, and the sum over positions.

    The average loop with a window of the positions of the tile, divided by those of the image.
    """

    windows: Mapping[str, Axes] = {"ho": (ONE,), "wo": (ONE,), "hk": ("hi",), "wk": ("wi",)}

    def axes(self, role: str) -> Axes:
        """y has one position."""
        return IMAGE if role == "x" else (*self.kept, ONE, ONE)

    def maps(self, op: Op, tensors: Tensors) -> Mapping[str, Index]:
        """There is no window that reaches beyond a tile."""
        return {}

    def reductions(self, op: Op, tensors: Tensors) -> Mapping[str, int]:
        """Rows, columns of the image."""
        sizes = self._sizes(op, tensors, ("hi", "wi"))
        return {name: size for name, size in sizes.items() if size > 1}

    def known(self, area: Area, build: TileBuilder) -> Mapping[str, int]:
        """The window is the tile."""
        rows, columns = axes_of(area.op.attributes)
        return {**super().known(area, build), "top": 0, "left": 0, "counted": rows.size * columns.size}


AVERAGE_FORWARD = Pooling("avgpool_fw", "X:x Y:y", _average)
AVERAGE_BACKWARD = Pooling("avgpool_bw", "X:dx Y:dy", _average_gradient, IMAGE)
GLOBAL_AVERAGE = _GlobalAverage("avgpool_fw", "X:x Y:y", _global_average, (BATCH, "c"))
