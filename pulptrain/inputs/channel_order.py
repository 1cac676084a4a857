# SPDX-License-Identifier: Apache-2.0
"""A shape with its channels last, where they come first: what to say of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from configs.errors import ShapeError

_T = TypeVar("_T")

IMAGE_LAYERS = ("conv2d", "depthwise", "pointwise", "max_pool2d", "avg_pool2d", "batch_norm")
"""Layers whose input of three axes is an image."""

COLOURS = (1, 3, 4)
"""Channels an image has: grey, three colours, three and their opacity."""


def channels_last(layer: str, shape: Sequence[int]) -> str | None:
    """What to say if the input of `layer` looks like a square image with its channels last; else None."""
    if layer not in IMAGE_LAYERS or len(shape) != 3 or shape[2] not in COLOURS:
        return None
    rows, columns, channels = shape
    if rows != columns or rows <= channels:
        return None
    return (
        f"write an image of {channels} channels as [{channels}, {rows}, {columns}], channels first (with "
        f"layout HWC, too): [{rows}, {columns}, {channels}] has {rows} channels of {columns} by {channels}"
    )


def with_order(found: str | None, build: Callable[[], _T]) -> _T:
    """What `build` makes; `found`, if there is something, is the first cure of a `ShapeError` it raises."""
    try:
        return build()
    except ShapeError as error:
        if found is None:
            raise
        raise ShapeError(error.message, where=error.where, cure=f"{found}; or {error.cure}") from None
