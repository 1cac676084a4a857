"""Geometry of a 2D convolution: what a tile needs of an axis, and which element every kernel position reads.

Along one axis output position o reads, for kernel position k, input position o·stride + k·dilation - before;
what lies outside the input is padding. The gradient goes the other way: input position i receives through k
from the o with o·stride = i + before - k·dilation, if there is one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainlib.steps import Array, Extent, Region

Pads = tuple[int, int, int, int]
"""Zero rows and columns added (up, down, left, right)."""

Taps = NDArray[np.int64]
"""[positions, kernel]: index of the element read, -1 where there is none (a zero)."""


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis: input `size`, output size, kernel, stride, dilation, zeros before and after the input."""

    size: int
    outputs: int
    kernel: int
    stride: int
    dilation: int
    before: int
    after: int

    @property
    def reach(self) -> int:
        """Positions from the first to the last one the kernel reads."""
        return self.dilation * (self.kernel - 1) + 1


@dataclass(frozen=True, slots=True)
class ConvGeometry:
    """Extents of one convolution; channels `ci` -> `co`, image `hi` x `wi` -> `ho` x `wo`, in a layout.

    `strides` and `dilations` are (rows, columns). Channels are in `groups` equal groups; group g of the
    outputs sees only group g of the inputs.
    """

    ci: int
    hi: int
    wi: int
    co: int
    ho: int
    wo: int
    hk: int
    wk: int
    strides: tuple[int, int]
    dilations: tuple[int, int]
    pads: Pads
    groups: int
    layout: str

    @classmethod
    def of(cls, attributes: Mapping[str, Any]) -> ConvGeometry:
        """From the attributes of an op."""
        return cls(**{name: attributes[name] for name in cls.__slots__})

    @property
    def height(self) -> Axis:
        """The axis of the rows."""
        return Axis(self.hi, self.ho, self.hk, self.strides[0], self.dilations[0], self.pads[0], self.pads[1])

    @property
    def width(self) -> Axis:
        """The axis of the columns."""
        return Axis(self.wi, self.wo, self.wk, self.strides[1], self.dilations[1], self.pads[2], self.pads[3])

    @property
    def window(self) -> int:
        """Kernel positions."""
        return self.hk * self.wk

    @property
    def ci_of_group(self) -> int:
        """Input channels of one group."""
        return self.ci // self.groups

    @property
    def co_of_group(self) -> int:
        """Output channels of one group."""
        return self.co // self.groups

    @property
    def plain(self) -> bool:
        """Whether it is what the library's CHW im2row describes: one stride, no dilation."""
        return self.layout == "CHW" and self.strides[0] == self.strides[1] and self.dilations == (1, 1)

    @property
    def hwc(self) -> bool:
        """Whether channels come last."""
        return self.layout == "HWC"

    def image(self, channels: Extent, rows: Extent, columns: Extent) -> Region:
        """A box of one image, without the batch, in the layout."""
        return (rows, columns, channels) if self.hwc else (channels, rows, columns)

    def filters(self, targets: Extent, sources: Extent) -> Region:
        """A box of the weights: [co, ci, hk, wk] in CHW, [co, hk, wk, ci] in HWC; ci within the group."""
        window = ((0, self.hk), (0, self.wk))
        return (targets, *window, sources) if self.hwc else (targets, sources, *window)

    def image_shape(self, channels: int, rows: int, columns: int) -> tuple[int, int, int]:
        """Shape of a box of one image."""
        return (rows, columns, channels) if self.hwc else (channels, rows, columns)

    def filters_shape(self, targets: int, sources: int) -> tuple[int, int, int, int]:
        """Shape of a box of the weights."""
        return (targets, self.hk, self.wk, sources) if self.hwc else (targets, sources, self.hk, self.wk)

    def image_chw(self, box: Array) -> Array:
        """A box of one image (a batch of 1 in front is dropped) as a view [c, h, w]."""
        image = box.reshape(box.shape[-3:])
        return np.moveaxis(image, -1, 0) if self.hwc else image

    def image_back(self, chw: Array) -> Array:
        """[c, h, w] in the layout, contiguous."""
        return np.ascontiguousarray(np.moveaxis(chw, 0, -1) if self.hwc else chw)

    def filters_chw(self, weights: Array) -> Array:
        """A box of the weights as a view [co, ci, hk, wk]."""
        return np.moveaxis(weights, -1, 1) if self.hwc else weights

    def filters_back(self, weights: Array) -> Array:
        """[co, ci, hk, wk] in the layout, contiguous."""
        return np.ascontiguousarray(np.moveaxis(weights, 1, -1) if self.hwc else weights)


@dataclass(frozen=True, slots=True)
class Segment:
    """Channels [start, stop) of one tile that lie in one group, and the channels of the group they meet."""

    group: int
    start: int
    stop: int
    others: Extent

    @property
    def count(self) -> int:
        """Number of channels."""
        return self.stop - self.start


def segments(channels: Extent, of_group: int, others_of_group: int) -> list[Segment]:
    """The parts of `channels` (`of_group` per group) in each group, with all channels on the other side."""
    found = []
    for group in range(channels[0] // of_group, (channels[1] - 1) // of_group + 1):
        start, stop = max(channels[0], group * of_group), min(channels[1], (group + 1) * of_group)
        others = (group * others_of_group, (group + 1) * others_of_group)
        found.append(Segment(group, start, stop, others))
    return found


@dataclass(frozen=True, slots=True)
class Span:
    """Rows (or columns) [start, stop) of a tensor that a tile needs, and zero rows around them.

    `before` is the position of row `start` relative to the first position the tile reads (in the stride-1
    positions of the reading side; negative if the row lies outside, as when a tile receives nothing at all
    and a row is fetched only to have one, or when a tile needs rows for another reason).
    """

    start: int
    stop: int
    before: int
    after: int

    @property
    def extent(self) -> Extent:
        """The interval, for an `Operand`."""
        return (self.start, self.stop)

    @property
    def count(self) -> int:
        """Number of rows."""
        return self.stop - self.start

    def with_also(self, others: Extent) -> Span:
        """The smallest span that also holds the rows `others` (none if that interval is empty)."""
        if others[0] >= others[1]:
            return self
        start, stop = min(self.start, others[0]), max(self.stop, others[1])
        return Span(start, stop, self.before + start - self.start, self.after + self.stop - stop)


def forward_span(axis: Axis, outputs: Extent) -> Span:
    """Input positions that `outputs` read, clipped to the input; what is clipped is padding.

    Never empty while the padding on either side is smaller than the reach of the kernel.
    """
    first = outputs[0] * axis.stride - axis.before
    last = (outputs[1] - 1) * axis.stride - axis.before + axis.reach
    start, stop = max(first, 0), min(last, axis.size)
    return Span(start, stop, start - first, last - stop)


def gradient_span(axis: Axis, inputs: Extent) -> Span:
    """Positions of the output gradient that reach `inputs`; at least one position.

    `before` and `after` of the result count positions of the strided gradient (o at o·stride), whose window
    for these inputs is `inputs` + reach - 1 positions long.
    """
    first = inputs[0] + axis.before - axis.reach + 1
    last = inputs[1] - 1 + axis.before
    start = min(max(-(-first // axis.stride), 0), axis.outputs - 1)
    stop = max(min(last // axis.stride + 1, axis.outputs), start + 1)
    return Span(start, stop, start * axis.stride - first, last - (stop - 1) * axis.stride)


def owned_inputs(axis: Axis, outputs: Extent) -> Extent:
    """Input positions that belong to `outputs` if every input position is to belong to one part of them.

    Each part begins where the window of its first output does; the first and the last part reach to the ends
    of the input. May be empty, as where the windows of a part begin in the padding.
    """

    def begin(output: int) -> int:
        return min(max(output * axis.stride - axis.before, 0), axis.size)

    start = begin(outputs[0]) if outputs[0] > 0 else 0
    return start, begin(outputs[1]) if outputs[1] < axis.outputs else axis.size


def forward_taps(axis: Axis, outputs: Extent, fetched: Extent) -> Taps:
    """For each output and kernel position the index into the `fetched` inputs."""
    positions = np.arange(*outputs)[:, None] * axis.stride - axis.before
    return _indices(positions + np.arange(axis.kernel) * axis.dilation, fetched)


def gradient_taps(axis: Axis, inputs: Extent, fetched: Extent) -> Taps:
    """For each input and position of the rotated kernel the index into the `fetched` gradient."""
    rotated = np.arange(axis.kernel)[::-1]
    strided = np.arange(*inputs)[:, None] + axis.before - rotated * axis.dilation
    return np.where(strided % axis.stride == 0, _indices(strided // axis.stride, fetched), -1)


def _indices(positions: Taps, fetched: Extent) -> Taps:
    inside = (positions >= fetched[0]) & (positions < fetched[1])
    return np.where(inside, positions - fetched[0], -1)


def met(taps: Taps) -> int:
    """Number of pairs (position, kernel position) that read an element."""
    return int(np.count_nonzero(taps >= 0))


def patches(box: Array, rows: Taps, columns: Taps, *, channels_last: bool = False) -> Array:
    """Patches of `box` [c, h, w] as [positions, c·hk·wk], or [positions, hk·wk·c]; 0 where none is read."""
    channels, height, width = box.shape
    padded = np.zeros((channels, height + 1, width + 1), box.dtype)
    padded[:, :-1, :-1] = box  # index -1 now reads a zero
    picked = padded.take(rows.ravel(), axis=1).take(columns.ravel(), axis=2)
    split = picked.reshape(channels, *rows.shape, *columns.shape)
    order = (1, 3, 2, 4, 0) if channels_last else (1, 3, 0, 2, 4)
    return split.transpose(order).reshape(len(rows) * len(columns), -1)


def block_transpose(weights: Array, *, channels_last: bool = False) -> Array:
    """Weights [co, ci, hk, wk] as matrix [ci, co·hk·wk] (or [ci, hk·wk·co]), every kernel rotated by 180°."""
    rotated = weights[:, :, ::-1, ::-1].transpose((1, 2, 3, 0) if channels_last else (1, 0, 2, 3))
    return np.ascontiguousarray(rotated).reshape(weights.shape[1], -1)
