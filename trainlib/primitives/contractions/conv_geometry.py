# SPDX-License-Identifier: Apache-2.0
"""Geometry of a 2D convolution: extents of its tensors, layouts, groups, and patches as matrices.

What a tile needs of an axis follows from the access maps (`convolution.CONVOLUTION`, `trainlib.ir.access`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from configs.values import Struct
from trainlib.ir.access import Taps
from trainlib.ir.steps import Array, Extent

MOST_GEOMETRIES = 1024
"""Ops whose geometry is kept ready."""

Pads = tuple[int, int, int, int]
"""Zero rows and columns added (up, down, left, right)."""


WINDOW = ("hk", "wk")
"""Loops no tile cuts: a tile of one channel holds the whole window at 4 B per position."""


class ConvGeometry(Struct, frozen=True):
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
    rank: int = 2
    """1: the tensors have no axis of rows, of which there is one."""

    @classmethod
    def of(cls, attributes: Mapping[str, Any]) -> ConvGeometry:
        """From the attributes of an op."""
        # Tilers ask thousands of times for the same op. Attributes are not changed, and kept alive here.
        kept = _GEOMETRIES.get(id(attributes))
        if kept is None:
            if len(_GEOMETRIES) >= MOST_GEOMETRIES:
                _GEOMETRIES.clear()
            geometry = cls(**{name: attributes[name] for name in cls.__struct_fields__ if name in attributes})
            kept = _GEOMETRIES[id(attributes)] = attributes, geometry
        return kept[1]

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
    def one_stride(self) -> bool:
        """Whether it is what the library's loops know: one stride for both axes, no dilation."""
        return self.strides[0] == self.strides[1] and self.dilations == (1, 1)

    @property
    def plain(self) -> bool:
        """Whether the library's CHW im2row does it."""
        return self.layout == "CHW" and self.one_stride

    @property
    def hwc(self) -> bool:
        """Whether channels come last."""
        return self.layout == "HWC"

    def filters_shape(self, targets: int, sources: int) -> tuple[int, int, int, int]:
        """Shape of a box of the weights."""
        return (targets, self.hk, self.wk, sources) if self.hwc else (targets, sources, self.hk, self.wk)

    def image_chw(self, box: Array) -> Array:
        """A box of one image (a batch of 1 in front is dropped) as a view [c, h, w]."""
        image = box.reshape(box.shape[-1 - self.rank :])
        chw = np.moveaxis(image, -1, 0) if self.hwc else image
        return chw if self.rank == 2 else chw[:, None, :]

    def image_back(self, chw: Array) -> Array:
        """[c, h, w] in the layout, contiguous."""
        image = chw if self.rank == 2 else chw[:, 0, :]
        return np.ascontiguousarray(np.moveaxis(image, 0, -1) if self.hwc else image)

    def filters_chw(self, weights: Array) -> Array:
        """A box of the weights as a view [co, ci, hk, wk]."""
        filters = np.moveaxis(weights, -1, 1) if self.hwc else weights
        return filters if self.rank == 2 else filters[:, :, None, :]

    def filters_back(self, weights: Array) -> Array:
        """[co, ci, hk, wk] in the layout, contiguous."""
        filters = weights if self.rank == 2 else weights[:, :, 0, :]
        return np.ascontiguousarray(np.moveaxis(filters, 1, -1) if self.hwc else filters)


_GEOMETRIES: dict[int, tuple[Mapping[str, Any], ConvGeometry]] = {}


class Segment(Struct, frozen=True):
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
    cuts = []
    for group in range(channels[0] // of_group, (channels[1] - 1) // of_group + 1):
        start, stop = max(channels[0], group * of_group), min(channels[1], (group + 1) * of_group)
        others = (group * others_of_group, (group + 1) * others_of_group)
        cuts.append(Segment(group, start, stop, others))
    return cuts


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
