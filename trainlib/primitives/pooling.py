"""What average and max pooling share: windows and their padding, references by loops, lowerings.

A window never lies in the padding alone (padding of at most half the kernel). Output rows and channels are
cut; a tile of rows fetches the rows its windows touch. PULP-TrainLib's loops know no padding and use the
vertical stride for the width as well; here both directions have kernel, stride and padding of their own. A
padded position is priced like any other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from configs.errors import ShapeError
from configs.model_file import LayerSchema
from trainlib.graph import Op, Tensor
from trainlib.primitives.calls import NoMatmul, batch_extent, batch_range, box
from trainlib.primitives.definition import LayerPlan, NotNegative, Positive, Saved, Values
from trainlib.primitives.loops import Placed, loop_call
from trainlib.steps import Array, Extent, KernelCall, KernelChoice, TileTask, part

_Pair = Annotated[list[Positive], Field(min_length=2, max_length=2)]
_PairOrZero = Annotated[list[NotNegative], Field(min_length=2, max_length=2)]


class PoolingSchema(LayerSchema):
    """`kernel`, `stride` (default: the kernel) and `padding`: one number, or [rows, columns]."""

    kernel: Positive | _Pair
    stride: Positive | _Pair | None = None
    padding: NotNegative | _PairOrZero = 0


@dataclass(frozen=True, slots=True)
class Axis:
    """One direction: size of the input and of the output, kernel, stride, padding before (and after)."""

    size: int
    outputs: int
    kernel: int
    stride: int
    padding: int

    def window(self, output: int) -> Extent:
        """Input positions of the window of one output, clipped to the input."""
        first = output * self.stride - self.padding
        return max(first, 0), min(first + self.kernel, self.size)

    def read_by(self, outputs: Extent) -> Extent:
        """Input positions that these outputs read, clipped to the input."""
        return self.window(outputs[0])[0], self.window(outputs[1] - 1)[1]

    def reaching(self, inputs: Extent) -> Extent:
        """Outputs whose windows touch these inputs; at least one, so that there is a box to fetch."""
        first = -(-(inputs[0] + self.padding - self.kernel + 1) // self.stride)
        last = (inputs[1] - 1 + self.padding) // self.stride
        start = min(max(first, 0), self.outputs - 1)
        return start, max(min(last + 1, self.outputs), start + 1)


def axes_of(attributes: Mapping[str, Any]) -> tuple[Axis, Axis]:
    """Rows and columns."""
    rows, columns = (Axis(*attributes[name]) for name in ("rows", "columns"))
    return rows, columns


def pooling_plan(
    attributes: Mapping[str, Any], inputs: Sequence[Tensor], where: str, *, save_positions: bool
) -> LayerPlan:
    """Shapes of a pooling layer. Raises ShapeError for no image, a kernel too large, too much padding."""
    shape = inputs[0].shape
    if len(shape) != 4:
        raise ShapeError(
            f"pooling needs an image (channels, height, width), its input has shape {shape[1:]}",
            where=where,
            cure="put it before flatten and linear",
        )
    batch, channels, *sizes = shape
    kernels = _pair(attributes.get("kernel", sizes))
    strides = kernels if attributes.get("stride") is None else _pair(attributes["stride"])
    paddings = _pair(attributes.get("padding", 0))
    outputs = []
    for size, kernel, stride, padding in zip(sizes, kernels, strides, paddings, strict=True):
        if 2 * padding > kernel:
            raise ShapeError(
                f"padding {padding} is more than half of the kernel {kernel}: windows could see nothing else",
                where=where,
                cure=f"padding of at most {kernel // 2}",
            )
        if kernel > size + 2 * padding:
            raise ShapeError(
                f"kernel {kernel} is larger than the padded input {size + 2 * padding}",
                where=where,
                cure="a smaller kernel, more padding, or less stride in the layers before it",
            )
        outputs.append((size + 2 * padding - kernel) // stride + 1)
    columns_of = list(zip(sizes, outputs, kernels, strides, paddings, strict=True))
    output = (batch, channels, *outputs)
    return LayerPlan(
        output,
        saved={"argmax": Saved(output, "int32")} if save_positions else {},
        attributes={
            "batch": batch,
            "channels": channels,
            "rows": columns_of[0],
            "columns": columns_of[1],
            "count_include_pad": attributes.get("count_include_pad", True),
        },
    )


def _pair(value: Any) -> tuple[int, int]:
    first, second = (value, value) if isinstance(value, int) else value
    return first, second


def windows(x: Array, axes: tuple[Axis, Axis], outputs: Extent, first_row: int, fill: float) -> Array:
    """View [n, c, outputs, wo, hk, wk] of the windows of output rows; x begins with image row `first_row`."""
    rows, columns = axes
    top = outputs[0] * rows.stride - rows.padding
    bottom = (outputs[1] - 1) * rows.stride - rows.padding + rows.kernel
    right = (columns.outputs - 1) * columns.stride - columns.padding + columns.kernel
    padded = np.full(
        (*x.shape[:2], bottom - top, max(right, columns.size) + columns.padding), fill, np.float32
    )
    start, begin = first_row - top, columns.padding
    padded[:, :, start : start + x.shape[2], begin : begin + x.shape[3]] = x
    view = np.lib.stride_tricks.sliding_window_view(padded, (rows.kernel, columns.kernel), axis=(2, 3))
    return view[:, :, :: rows.stride, :: columns.stride][:, :, : outputs[1] - outputs[0], : columns.outputs]


def divisors(op: Op, outputs: Extent) -> Array:
    """[outputs, wo]: what the sum of each window is divided by, fp32."""
    rows, columns = axes_of(op.attributes)
    if op.attributes["count_include_pad"]:
        return np.full((outputs[1] - outputs[0], columns.outputs), rows.kernel * columns.kernel, np.float32)
    heights = [np.subtract(*rows.window(output)[::-1]) for output in range(*outputs)]
    widths = [np.subtract(*columns.window(output)[::-1]) for output in range(columns.outputs)]
    return np.outer(heights, widths).astype(np.float32)


def each_window(op: Op) -> list[tuple[int, int, slice, slice]]:
    """(output row, output column, rows of its window, columns of its window), for the references."""
    rows, columns = axes_of(op.attributes)
    return [
        (h, w, slice(*rows.window(h)), slice(*columns.window(w)))
        for h in range(rows.outputs)
        for w in range(columns.outputs)
    ]


class PoolingForward(NoMatmul):
    """FW: samples, channels and rows of y may be cut; one fork per sample, channels over the cores."""

    def __init__(self, nest: str, function: Any) -> None:
        self.nest = nest
        self.function = function

    def extents(self, op: Op, tensors: Mapping[str, Tensor]) -> Mapping[str, int]:
        """Samples, channels, output rows."""
        attributes = op.attributes
        rows, _ = axes_of(attributes)
        return {**batch_extent(attributes["batch"]), "c": attributes["channels"], "ho": rows.outputs}

    def tile(
        self, op: Op, tensors: Mapping[str, Tensor], ranges: Mapping[str, Extent], choice: KernelChoice
    ) -> TileTask:
        """The rows of x that the windows of these rows touch."""
        rows, columns = axes_of(op.attributes)
        samples, outputs = batch_range(ranges, op.attributes["batch"]), ranges["ho"]
        channels = ranges["c"]
        fetched = rows.read_by(outputs)
        sizes = _sizes(op, channels, fetched, outputs)
        calls: list[KernelCall] = []
        function = self.function(op, outputs, fetched[0])
        for sample in range(samples[1] - samples[0]):
            x, results = part("x", sample), tuple(part(role, sample) for role in op.writes)
            arrays = {"X": _image(x, fetched, columns.size, tensors[op["x"]].dtype)}
            for name, role, place in zip("YI", op.writes, results, strict=False):
                arrays[name] = _image(place, outputs, columns.outputs, tensors[op[role]].dtype)
            calls.append(loop_call(choice, self.nest, sizes, arrays, (x,), results, function))
        return TileTask(
            inputs=(box(op, "x", samples, channels, fetched, (0, columns.size)),),
            outputs=tuple(
                box(op, role, samples, channels, outputs, (0, columns.outputs)) for role in op.writes
            ),
            scratch=(),
            calls=tuple(calls),
        )


class PoolingBackward(NoMatmul):
    """IG: zero fill and accumulation, so overlapping windows add up; samples, channels, rows of dx cut."""

    def __init__(self, nest: str, streams: Mapping[str, str], function: Any) -> None:
        self.nest = nest
        self.streams = streams
        self.function = function

    def extents(self, op: Op, tensors: Mapping[str, Tensor]) -> Mapping[str, int]:
        """Samples, channels, input rows."""
        attributes = op.attributes
        rows, _ = axes_of(attributes)
        return {**batch_extent(attributes["batch"]), "c": attributes["channels"], "hi": rows.size}

    def tile(
        self, op: Op, tensors: Mapping[str, Tensor], ranges: Mapping[str, Extent], choice: KernelChoice
    ) -> TileTask:
        """The rows of dy whose windows touch these rows of dx."""
        rows, columns = axes_of(op.attributes)
        samples, inputs = batch_range(ranges, op.attributes["batch"]), ranges["hi"]
        channels = ranges["c"]
        reaching = rows.reaching(inputs)
        sizes = _sizes(op, channels, inputs, reaching)
        function = self.function(op, inputs, reaching)
        calls: list[KernelCall] = []
        for sample in range(samples[1] - samples[0]):
            reads = tuple(part(role, sample) for role in op.reads)
            arrays = {}
            for name, role in self.streams.items():
                extent, width = (inputs, columns.size) if role == "dx" else (reaching, columns.outputs)
                arrays[name] = _image(part(role, sample), extent, width, tensors[op[role]].dtype)
            calls.append(loop_call(choice, self.nest, sizes, arrays, reads, (part("dx", sample),), function))
        return TileTask(
            inputs=tuple(
                box(op, role, samples, channels, reaching, (0, columns.outputs)) for role in op.reads
            ),
            outputs=(box(op, "dx", samples, channels, inputs, (0, columns.size)),),
            scratch=(),
            calls=tuple(calls),
        )


def _sizes(op: Op, channels: Extent, inputs: Extent, outputs: Extent) -> dict[str, int]:
    rows, columns = axes_of(op.attributes)
    return {
        "ci": channels[1] - channels[0],
        "hi": inputs[1] - inputs[0],
        "wi": columns.size,
        "ho": outputs[1] - outputs[0],
        "wo": columns.outputs,
        "hk": rows.kernel,
        "wk": columns.kernel,
        "stride": columns.stride,
    }


def _image(buffer: str, rows: Extent, width: int, dtype: str) -> Placed:
    return Placed(buffer, ((rows[1] - rows[0]) * width, width, 1), dtype)


def average_reference(op: Op, values: Values) -> Values:
    """Mean of every window, one by one."""
    x = values["x"]
    rows, columns = axes_of(op.attributes)
    y = np.empty((*x.shape[:2], rows.outputs, columns.outputs), np.float32)
    for h, w, high, wide in each_window(op):
        window = x[:, :, high, wide].astype(np.float64)
        counted = window[0, 0].size
        if op.attributes["count_include_pad"]:
            counted = rows.kernel * columns.kernel
        y[:, :, h, w] = window.sum(axis=(2, 3)) / counted
    return {"y": y}


def average_gradient_reference(op: Op, values: Values) -> Values:
    """Every gradient spread evenly over its window."""
    dy = values["dy"].astype(np.float64)
    rows, columns = axes_of(op.attributes)
    dx = np.zeros((*dy.shape[:2], rows.size, columns.size))
    for h, w, high, wide in each_window(op):
        counted = dx[0, 0, high, wide].size
        if op.attributes["count_include_pad"]:
            counted = rows.kernel * columns.kernel
        dx[:, :, high, wide] += dy[:, :, h, w, None, None] / counted
    return {"dx": dx.astype(np.float32)}


def _tile_average(op: Op, outputs: Extent, first_row: int) -> Any:
    def function(arrays: Sequence[Array]) -> tuple[Array, ...]:
        views = windows(arrays[0][None], axes_of(op.attributes), outputs, first_row, 0.0)
        return ((views.sum(axis=(4, 5)) / divisors(op, outputs))[0],)

    return function


def _tile_average_gradient(op: Op, inputs: Extent, reaching: Extent) -> Any:
    rows, columns = axes_of(op.attributes)

    def function(arrays: Sequence[Array]) -> tuple[Array, ...]:
        share = arrays[0] / divisors(op, reaching)
        dx = np.zeros((len(share), inputs[1] - inputs[0], columns.size), np.float32)
        for y in range(rows.kernel):
            for x in range(columns.kernel):
                down = np.arange(*reaching) * rows.stride - rows.padding + y
                along = np.arange(columns.outputs) * columns.stride - columns.padding + x
                high = (down >= inputs[0]) & (down < inputs[1])
                wide = (along >= 0) & (along < columns.size)
                places = np.ix_(np.arange(len(share)), down[high] - inputs[0], along[wide])
                dx[places] += share[:, high][:, :, wide]
        return (dx,)

    return function


def average_forward() -> PoolingForward:
    """Lowering of FW of an average."""
    return PoolingForward("avgpool_fw", _tile_average)


def average_backward() -> PoolingBackward:
    """Lowering of IG of an average."""
    return PoolingBackward("avgpool_bw", {"X": "dx", "Y": "dy"}, _tile_average_gradient)
