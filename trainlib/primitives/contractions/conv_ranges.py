"""Dimensions the steps of image layers are cut along, by names their ops carry: n, co, ci, ho, wo, hi, wi.

A dimension a tile does not name is whole. Rows and columns of a result are extents, the channels (or
positions and samples) it is a sum over are reductions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from trainlib.graph import Op
from trainlib.primitives.lowering.calls import BATCH, batch_extent
from trainlib.steps import Extent


def result_extents(op: Op, *names: str) -> dict[str, int]:
    """The batch (if it is more than one sample), then the attributes `names`, with sizes."""
    return {**batch_extent(op.attributes["batch"]), **{name: op.attributes[name] for name in names}}


def summed(**sizes: int) -> dict[str, int]:
    """Reduction dimensions with sizes, without those of one element."""
    return {name: size for name, size in sizes.items() if size > 1}


def position_sums(op: Op) -> dict[str, int]:
    """What a weight gradient is a sum over: samples, output rows, output columns."""
    attributes = op.attributes
    return summed(**{BATCH: attributes["batch"]}, ho=attributes["ho"], wo=attributes["wo"])


def interval(op: Op, ranges: Mapping[str, Extent], name: str) -> Extent:
    """The part of a dimension a tile covers."""
    return ranges.get(name, (0, op.attributes["batch" if name == BATCH else name]))


class Cut(NamedTuple):
    """What a tile of a result covers: samples, channels, rows and columns, and the channels it sums over."""

    samples: Extent
    channels: Extent
    rows: Extent
    columns: Extent
    summed: Extent


def cut_of(op: Op, ranges: Mapping[str, Extent], result: tuple[str, str, str], over: str, size: int) -> Cut:
    """The tile of a step whose result has the dimensions `result`, and that sums over `over` of this size."""
    channels, rows, columns = (interval(op, ranges, name) for name in result)
    return Cut(interval(op, ranges, BATCH), channels, rows, columns, ranges.get(over, (0, size)))


def count(extent: Extent) -> int:
    """Number of elements of an interval."""
    return extent[1] - extent[0]
