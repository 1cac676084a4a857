"""Interpolation of images to another size: nearest neighbour, or bilinear.

Nearest: output i takes input floor(i · in / out). Bilinear: output i lies at max(0, (i + 1/2) · in/out - 1/2)
in units of inputs (PyTorch's align_corners=False). IG is the true adjoint: each output gradient goes back to
the inputs it came from, with their weights. (PULP-TrainLib interpolates the gradient instead, puts output 0
on input 0 when it shrinks an image, and reads beyond an image of one row.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from arch.isa import TeamWork
from configs.errors import ShapeError
from configs.model_file import LayerSchema
from trainlib.graph import Op, Tensor
from trainlib.primitives.box_copies import fill_call
from trainlib.primitives.calls import NoMatmul, batch_extent, batch_range, box
from trainlib.primitives.definition import (
    Example,
    LayerPlan,
    LayerPrimitive,
    Positive,
    Refused,
    Step,
    Values,
)
from trainlib.primitives.pieces import nest_work
from trainlib.steps import Array, Extent, KernelCall, KernelChoice, TileTask

Taps = tuple[Array, Array, Array]
"""Per output: its lower input, its upper input, and the weight of the upper one."""


class _Schema(LayerSchema):
    mode: Literal["nearest", "bilinear"] = "nearest"
    size: Annotated[list[Positive], Field(min_length=2, max_length=2)] | None = None
    scale: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None


def _plan(attributes: Mapping[str, Any], inputs: Sequence[Tensor], where: str) -> LayerPlan:
    shape = inputs[0].shape
    if len(shape) != 4:
        raise ShapeError(
            f"interpolation needs an image (channels, height, width), its input has shape {shape[1:]}",
            where=where,
        )
    batch, channels, hi, wi = shape
    size, scale = attributes["size"], attributes["scale"]
    if (size is None) == (scale is None):
        raise ShapeError(
            "interpolation needs either size or scale",
            where=where,
            cure="size: [height, width], or scale: 2",
        )
    ho, wo = size if scale is None else (int(hi * scale), int(wi * scale))
    if min(ho, wo) < 1:
        raise ShapeError(f"an image of {hi}x{wi} scaled by {scale} has no pixels", where=where)
    return LayerPlan(
        (batch, channels, ho, wo),
        attributes={"mode": attributes["mode"], "hi": hi, "wi": wi, "ho": ho, "wo": wo},
    )


def taps(mode: str, inputs: int, outputs: int) -> Taps:
    """Where the outputs of one axis come from."""
    positions = np.arange(outputs)
    if mode == "nearest":
        lower = positions * inputs // outputs
        return lower, lower, np.zeros(outputs, np.float32)
    source = np.maximum(0, (positions + 0.5) * inputs / outputs - 0.5)
    lower = np.floor(source).astype(int)
    return lower, np.minimum(lower + 1, inputs - 1), (source - lower).astype(np.float32)


def _of(op: Op) -> tuple[Taps, Taps]:
    """Taps of the rows and of the columns."""
    attributes = op.attributes
    return (
        taps(attributes["mode"], attributes["hi"], attributes["ho"]),
        taps(attributes["mode"], attributes["wi"], attributes["wo"]),
    )


class _Interpolation(NoMatmul):
    """What both steps share; samples, channels and rows of the result may be cut."""

    def extents(self, op: Op, tensors: Mapping[str, Tensor]) -> Mapping[str, int]:
        """Samples, channels, rows of the result."""
        batch, channels, rows, _ = tensors[op.outputs[0]].shape
        return {**batch_extent(batch), "c": channels, "h": rows}

    def work(
        self, op: Op, choice: KernelChoice, shapes: tuple[tuple[int, ...], tuple[int, ...]], dtype: str
    ) -> Any:
        """Loops over the outputs' rows and columns of all channels of a tile.

        `shapes` are those of the boxes of the small and the large side of the step: x and y, or dx and dy.
        Inputs are taken as walked evenly: a whole number of elements further per output, rounded down.
        """
        (_, _, small_rows, small_columns), (samples, channels, rows, columns) = shapes
        backward = op.step == "IG"
        kernel = f"interp_{op.attributes['mode']}_{'bw' if backward else 'fw'}"
        source = (
            small_rows * small_columns,
            small_rows // rows * small_columns,
            small_columns // columns,
        )
        result = (rows * columns, columns, 1)
        arrays = {"X": result, "Y": source} if backward else {"X": source, "Y": result}
        sizes = {"channels": samples * channels, "rows": rows, "columns": columns}

        def work(cores: int, addresses: Mapping[str, int]) -> TeamWork:
            names = ("dy", "dx") if backward else ("x", "y")
            places = [addresses[name] for name in names]
            return nest_work(choice.codegen, kernel, sizes, arrays, places, cores, dtype)

        return kernel, work


class _Forward(_Interpolation):
    """FW: rows of y, with the rows of x they lie between."""

    def tile(
        self, op: Op, tensors: Mapping[str, Tensor], ranges: Mapping[str, Extent], choice: KernelChoice
    ) -> TileTask:
        """One fork."""
        x, y = tensors[op["x"]], tensors[op["y"]]
        samples, channels, rows = batch_range(ranges, y.shape[0]), ranges["c"], ranges["h"]
        (low, high, share), columns = _of(op)
        low, high, share = low[slice(*rows)], high[slice(*rows)], share[slice(*rows)]
        needed = (int(low[0]), int(high[-1]) + 1)
        large = (samples[1] - samples[0], channels[1] - channels[0], rows[1] - rows[0], y.shape[3])
        small = (large[0], large[1], needed[1] - needed[0], x.shape[3])
        kernel, work = self.work(op, choice, (small, large), y.dtype)

        def function(arrays: Sequence[Array]) -> tuple[Array, ...]:
            left, right, weight = columns
            image = arrays[0]
            upper, lower = image[:, :, low - needed[0]], image[:, :, high - needed[0]]
            upper = upper[..., left] + (upper[..., right] - upper[..., left]) * weight
            lower = lower[..., left] + (lower[..., right] - lower[..., left]) * weight
            return (upper + (lower - upper) * share[:, None],)

        return TileTask(
            (box(op, "x", samples, channels, needed, (0, x.shape[3])),),
            (box(op, "y", samples, channels, rows, (0, y.shape[3])),),
            (),
            (KernelCall(kernel, ("x",), ("y",), work, function),),
        )


class _InputGradient(_Interpolation):
    """IG: rows of dx, with the rows of dy that came from them; zeros, then additions."""

    def tile(
        self, op: Op, tensors: Mapping[str, Tensor], ranges: Mapping[str, Extent], choice: KernelChoice
    ) -> TileTask:
        """Two forks; channels over the cores, so that no two cores add to one element."""
        dx, dy = tensors[op["dx"]], tensors[op["dy"]]
        samples, channels, rows = batch_range(ranges, dx.shape[0]), ranges["c"], ranges["h"]
        (low, high, share), (left, right, weight) = _of(op)
        reached = np.flatnonzero((high >= rows[0]) & (low < rows[1]))
        # An image that shrinks has rows nothing comes from; their tile reads a row all the same.
        needed = (int(reached[0]), int(reached[-1]) + 1) if reached.size else (0, 1)
        small = (samples[1] - samples[0], channels[1] - channels[0], rows[1] - rows[0], dx.shape[3])
        large = (small[0], small[1], needed[1] - needed[0], dy.shape[3])
        kernel, work = self.work(op, choice, (small, large), dx.dtype)

        def function(arrays: Sequence[Array]) -> tuple[Array, ...]:
            gradient, total = arrays[0], arrays[1].copy()
            to_left: Any = (slice(None), slice(None), left)
            to_right: Any = (slice(None), slice(None), right)
            for row in range(*needed):
                for source, part_of_row in ((low[row], 1 - share[row]), (high[row], share[row])):
                    if rows[0] <= source < rows[1]:
                        values = gradient[:, :, row - needed[0]] * part_of_row
                        target = total[:, :, source - rows[0]]
                        np.add.at(target, to_left, values * (1 - weight))
                        np.add.at(target, to_right, values * weight)
            return (total,)

        return TileTask(
            (box(op, "dy", samples, channels, needed, (0, dy.shape[3])),),
            (box(op, "dx", samples, channels, rows, (0, dx.shape[3])),),
            (),
            (
                fill_call(choice, "dx", small, 0.0, dx.dtype),
                KernelCall(kernel, ("dy", "dx"), ("dx",), work, function),
            ),
        )


def _matrix(mode: str, inputs: int, outputs: int) -> Array:
    """The interpolation of one axis as a matrix [outputs, inputs]."""
    matrix = np.zeros((outputs, inputs))
    for row in range(outputs):
        if mode == "nearest":
            matrix[row, int(row * inputs / outputs + 1e-9)] = 1
            continue
        centre = min(max((2 * row + 1) * inputs / (2 * outputs) - 0.5, 0), inputs - 1)
        # A tent of width 1 around each input; beyond the last input its value is held.
        matrix[row] = np.maximum(0, 1 - np.abs(np.arange(inputs) - centre))
    return matrix


def _matrices(op: Op) -> tuple[Array, Array]:
    attributes = op.attributes
    return (
        _matrix(attributes["mode"], attributes["hi"], attributes["ho"]),
        _matrix(attributes["mode"], attributes["wi"], attributes["wo"]),
    )


def _forward(op: Op, values: Values) -> Values:
    rows, columns = _matrices(op)
    return {"y": (rows @ values["x"].astype(np.float64) @ columns.T).astype(np.float32)}


def _backward(op: Op, values: Values) -> Values:
    rows, columns = _matrices(op)
    return {"dx": (rows.T @ values["dy"].astype(np.float64) @ columns).astype(np.float32)}


def _torch_forward(torch: Any, attributes: Mapping[str, Any], tensors: Mapping[str, Any]) -> Any:
    options = {} if attributes["mode"] == "nearest" else {"align_corners": False}
    return torch.nn.functional.interpolate(
        tensors["x"], size=(attributes["ho"], attributes["wo"]), mode=attributes["mode"], **options
    )


def _cases() -> Any:
    """Any size to any size, growing and shrinking."""
    from hypothesis import strategies as st

    def example(mode: str, shape: tuple[int, int, int], size: list[int]) -> Example:
        return Example({"mode": mode, "size": size}, (shape,))

    return st.builds(
        example,
        st.sampled_from(("nearest", "bilinear")),
        st.tuples(st.integers(1, 3), st.integers(1, 8), st.integers(1, 8)),
        st.lists(st.integers(1, 12), min_size=2, max_size=2),
    )


PRIMITIVE = LayerPrimitive(
    name="interpolation",
    schema=_Schema,
    plan=_plan,
    steps=(
        Step("FW", ("x",), ("y",), _forward, _Forward()),
        Step("IG", ("dy",), ("dx",), _backward, _InputGradient()),
    ),
    torch_forward=_torch_forward,
    examples=(
        Example({"scale": 2}, ((2, 3, 4),)),
        Example({"size": [5, 3]}, ((2, 7, 8),)),
        Example({"mode": "bilinear", "scale": 2.5}, ((2, 3, 4),)),
        Example({"mode": "bilinear", "size": [3, 4]}, ((1, 7, 9),)),
        Example({"mode": "bilinear", "size": [4, 4]}, ((1, 1, 2),)),
    ),
    refused=(
        Refused({}, ((1, 4, 4),), "either size or scale"),
        Refused({"size": [8, 8], "scale": 2}, ((1, 4, 4),), "either size or scale"),
        Refused({"size": [0, 8]}, ((1, 4, 4),), "size"),
        Refused({"scale": 0.1}, ((1, 4, 4),), "no pixels"),
        Refused({"scale": 2}, ((16,),), "needs an image"),
    ),
    cases=_cases,
)
