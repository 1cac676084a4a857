# SPDX-License-Identifier: Apache-2.0
"""Convolutions as layers of ours, and the windows that they and pools move over an image."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from importers.graph.arranging import Site, batch_first, fresh, image, viewed
from importers.graph.draft import CHECKED, CannotTakeError
from importers.graph.views import Shape, View
from importers.graph.weights import Constant

SAME = {"SAME_UPPER": (0, 1), "SAME_LOWER": (1, 0)}
"""Ways to pad so that a step of 1 keeps the size -> where an odd zero goes: before, behind."""


@dataclass(frozen=True, slots=True)
class Window:
    """A window over an image, rows before columns; `pads` are zeros up, down, left, right."""

    kernel: Shape
    stride: Shape
    dilation: Shape
    pads: Shape

    @property
    def options(self) -> dict[str, Any]:
        """As a layer says them."""
        return {
            "kernel": short(self.kernel),
            "stride": short(self.stride),
            "dilation": short(self.dilation),
            "padding": short(self.pads),
        }


def short(values: Sequence[int]) -> int | list[int]:
    """One number where all are the same."""
    return int(values[0]) if len(set(values)) == 1 else [int(value) for value in values]


def each(given: Any, count: int) -> list[int]:
    """A number for each of so many, where all may be said as one."""
    values = list(given) if isinstance(given, (list, tuple)) else [given]
    return values * count if len(values) == 1 else values


def rows_and_columns(values: Sequence[int], filler: int) -> Shape:
    """A number for each direction as (rows, columns); a sequence has one row."""
    return (filler, *values) if len(values) == 1 else tuple(values)


def window(
    kernel: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
    pads: Sequence[int],
    automatic: str = "NOTSET",
    sizes: Sequence[int] = (),
) -> Window:
    """A window of 1 or 2 directions over `sizes`; `pads` are those before all directions, then those behind.

    `automatic` is ONNX's word for pads that follow from the size. Raises `CannotTakeError`.
    """
    rank = len(kernel)
    if rank not in (1, 2):
        raise CannotTakeError(f"a window of {rank} dimensions is not supported", "use 1 or 2 dimensions")
    given = {"strides": (stride, rank), "dilations": (dilation, rank), "pads": (pads, 2 * rank)}
    for name, (values, count) in given.items():
        if len(values) != count:
            raise CannotTakeError(f"{name} has {len(values)} values, but {count} are needed", CHECKED)
    for name, values in {"strides": stride, "dilations": dilation, "sizes of the window": kernel}.items():
        if min(values) < 1:
            raise CannotTakeError(f"the {name} are {tuple(values)}, but must be 1 or more", CHECKED)
    before, behind = list(pads[:rank]), list(pads[rank:])
    if automatic in SAME:
        totals = [
            max(0, (-(-size // s) - 1) * s + d * (k - 1) + 1 - size)
            for size, k, s, d in zip(sizes, kernel, stride, dilation, strict=True)
        ]
        before, behind = ([(total + odd) // 2 for total in totals] for odd in SAME[automatic])
    elif automatic == "VALID":
        before, behind = [0] * rank, [0] * rank
    (up, left), (down, right) = (rows_and_columns(each, 0) for each in (before, behind))
    return Window(
        rows_and_columns(kernel, 1),
        rows_and_columns(stride, 1),
        rows_and_columns(dilation, 1),
        (up, down, left, right),
    )


@dataclass(frozen=True, slots=True)
class Placed:
    """A layer of ours: its type and options, and the shape in which it stores its weight."""

    kind: str
    options: Mapping[str, Any]
    weight: Shape


def convolution_of(x: Shape, w: Shape, window: Window, groups: int) -> Placed:
    """The layer for a convolution of [batch, channels, ...] by weights [outputs, inputs of a group, ...]."""
    if len(w) == 3:
        columns = Window(window.kernel[1:], window.stride[1:], window.dilation[1:], window.pads[2:])
        return Placed("conv1d", {**columns.options, "out_channels": w[0], "groups": groups}, w)
    is_point = window.kernel == window.stride == (1, 1) and not any(window.pads)
    if is_point and groups == 1:
        return Placed("pointwise", {"out_channels": w[0]}, w[:2])
    if groups == x[1] == w[0] and groups > 1:
        return Placed("depthwise", window.options, w)
    return Placed("conv2d", {**window.options, "out_channels": w[0], "groups": groups}, w)


def convolution(
    site: Site, view: View, weight: Constant, bias: Constant | None, window: Window, groups: int
) -> View:
    """A convolution over 1 or 2 dimensions behind batch and channels."""
    placed = convolution_of(view.shape, weight.shape, window, groups)
    word = batch_first(site, view, len(weight.shape))
    stored = weight.moved(lambda array: array.reshape(placed.weight))
    return biased(site, placed.kind, word, placed.options, stored, bias)


def transposed_convolution(
    site: Site,
    view: View,
    weight: Constant,
    bias: Constant | None,
    window: Window,
    groups: int,
    output_padding: Sequence[int],
) -> View:
    """A transposed convolution over 1 or 2 dimensions; weights [inputs, outputs of a group, ...]."""
    inputs, outputs, *kernel = weight.shape
    rank = len(kernel)
    options = {
        **window.options,
        "out_channels": outputs * groups,
        "output_padding": short(rows_and_columns(output_padding, 0)),
        "groups": groups,
    }
    stored = weight.moved(lambda array: array.reshape(inputs, outputs, *window.kernel))
    made = biased(site, "conv_transpose2d", image(site, view, rank), options, stored, bias)
    return fresh(made, (*made.stored[:2], *made.stored[-rank:]))


def _places(channels: int, kernel: Shape) -> Constant:
    """Weights of a group per channel, each output of which is one place of the window."""
    count = kernel[0] * kernel[1]
    return Constant(np.tile(np.eye(count, dtype=np.float32).reshape(count, 1, *kernel), (channels, 1, 1, 1)))


def unfolded(site: Site, view: View, window: Window) -> View:
    """The windows of an image side by side (im2col), [batch, channels · places of a window, windows]."""
    channels = view.shape[1]
    made = convolution(site, view, _places(channels, window.kernel), None, window, channels)
    return fresh(made, (*made.shape[:2], made.shape[2] * made.shape[3]))


def folded(site: Site, view: View, sizes: Shape, window: Window) -> View:
    """The sum of windows where they lie in an image of these sizes (col2im): the adjoint of `unfolded`."""
    counts, rest = [], []
    for axis, (size, kernel, stride, dilation) in enumerate(
        zip(sizes, window.kernel, window.stride, window.dilation, strict=True)
    ):
        free = size + sum(window.pads[2 * axis : 2 * axis + 2]) - dilation * (kernel - 1) - 1
        counts.append(free // stride + 1)
        rest.append(free % stride)
    channels = view.shape[1] // (window.kernel[0] * window.kernel[1])
    grid = viewed(site, view, (*view.shape[:2], *counts))
    return transposed_convolution(site, grid, _places(channels, window.kernel), None, window, channels, rest)


def biased(
    site: Site,
    kind: str,
    word: str,
    options: Mapping[str, Any],
    weight: Constant,
    bias: Constant | None,
    *,
    suffix: str = "",
) -> View:
    """A layer with weight and bias; a bias that is trained beside a frozen weight is a layer of its own."""
    if bias is None or weight.trained or not bias.trained:
        whole = {**options, "bias": bias is not None}
        return site.layer(kind, (word,), whole, {"w": weight, "b": bias}, suffix=suffix)
    made = site.layer(kind, (word,), options, {"w": weight}, suffix=suffix)
    space = (1,) * (len(made.stored) - 2) if kind != "linear" else ()
    column = bias.moved(lambda array: array.reshape(-1, *space))
    if column.shape == made.stored[1:]:
        return site.layer("position", (made.word,), {}, {"w": column}, suffix=f"{suffix}_bias")
    shape = {"shape": list(column.shape)}
    held = site.layer("parameter", (site.draft.first_input,), shape, {"w": column}, suffix=f"{suffix}_bias")
    return site.layer("broadcast_add", (made.word, held.word), suffix=f"{suffix}_biased")
