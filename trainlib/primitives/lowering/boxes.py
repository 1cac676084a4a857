# SPDX-License-Identifier: Apache-2.0
"""Boxes of tensors that tiles cover: which dimensions may be cut, and what a choice of them covers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from configs.errors import ShapeError
from trainlib.ir.graph import Tensor
from trainlib.ir.steps import Region
from trainlib.primitives.definition import Shape
from trainlib.primitives.lowering.calls import batch_extent

CUT_DIMENSIONS = 2
"""Leading dimensions of a sample that a tile may cut, so that its box is made of few contiguous runs."""


def leading_extents(shape: Shape, axes: Sequence[int] | None = None) -> dict[str, int]:
    """The batch and up to two dimensions of a sample (of `axes`, if given), each ``d`` with its number."""
    sample = shape[1:]
    allowed = range(len(sample)) if axes is None else axes
    return {**batch_extent(shape[0]), **leading({f"d{axis}": sample[axis] for axis in allowed})}


def leading(sizes: Mapping[str, int]) -> dict[str, int]:
    """The first two of these dimensions; if these have one element each, of those that have more."""
    first = list(sizes)[:CUT_DIMENSIONS]
    if all(sizes[name] == 1 for name in first):
        first = [name for name, size in sizes.items() if size > 1][:CUT_DIMENSIONS] or first
    return {name: sizes[name] for name in first}


def sizes_of(region: Region) -> Shape:
    """Shape of a box."""
    return tuple(stop - start for start, stop in region)


def sequence_of(tensor: Tensor, name: str, where: str, axes: str = "length, features") -> Shape:
    """(batch, length, features) of an input of the layer `name`. Raises ShapeError for other ranks."""
    if len(tensor.shape) != 3:
        raise ShapeError(
            f"{name} needs a sequence ({axes}), but its input has shape {tensor.shape[1:]}",
            where=where,
            cure="use an input of two dimensions",
        )
    return tensor.shape


def image_of(tensor: Tensor, name: str, where: str) -> Shape:
    """(batch, channels, rows, columns) in the order they are stored, as `sequence_of`."""
    if len(tensor.shape) != 4:
        raise ShapeError(
            f"{name} needs an image (channels, height, width), but its input has shape {tensor.shape[1:]}",
            where=where,
            cure=f"use an input of three sizes, e.g. 3x32x32, or move {name} before flatten and linear",
        )
    return tensor.shape


def rows_of(tensor: Tensor, name: str, where: str) -> Shape:
    """The shape of an input of the layer `name` with an axis behind the batch. Raises ShapeError."""
    if len(tensor.shape) < 2:
        message = f"the input of {name} has shape {tensor.shape}: only the batch"
        raise ShapeError(message, where=where, cure="use an input of samples with one dimension or more")
    return tensor.shape


def sample_axis(axis: int, shape: Shape, where: str) -> int:
    """The axis of a sample, counted from 0 behind the batch; ShapeError if the sample has no such axis."""
    if not 0 <= axis < len(shape) - 1:
        raise ShapeError(
            f"axis {axis} is outside a sample of shape {shape[1:]}",
            where=where,
            cure="count axes from 0, without the batch",
        )
    return axis


def row_major(shape: Shape) -> Shape:
    """Strides, in elements, of a C-contiguous array."""
    return tuple(prod(shape[axis + 1 :]) for axis in range(len(shape)))
