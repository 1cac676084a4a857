# SPDX-License-Identifier: Apache-2.0
"""The roofline of a run: what a point is, tiles that add up to their op, and roofs nothing is above."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

import pulptrain as pt
from configs.errors import InputError
from pulptrain.python.result import Result
from traces.roofline import RoofPoint, off_chip_bytes, op_points, roofs_of, tile_points


@pytest.fixture(scope="module")
def result() -> Result:
    """With tensors in L3, and a convolution whose gradient multiplies zeros."""
    return pt.run("digits-cnn", l2="50KiB", functional=False, cache=False)


def test_points_are_the_figures_of_the_ops_and_below_the_roofs(result: Result) -> None:
    roofs = roofs_of(result.summary)
    assert roofs == {"mac_per_cycle": 4.0, "dma_bytes_per_cycle": 8.0, "l3_bytes_per_cycle": 2.0}
    points = {point.name: point for point in op_points(result.summary)}
    assert set(points) == {op["name"] for op in result.summary["ops"] if op["macs"]}
    for op in result.summary["ops"]:
        if op["macs"]:
            point = points[op["name"]]
            assert point.rate == op["macs"] / op["cycles"] <= roofs["mac_per_cycle"]
            assert point.intensity == op["macs"] / max(op["bytes_in"], op["bytes_out"])
            assert point.rate <= point.intensity * roofs["dma_bytes_per_cycle"]
    assert points["conv2.IG"].useful_rate < points["conv2.IG"].rate


def test_tiles_share_the_macs_of_their_op_and_take_at_most_its_cycles(result: Result) -> None:
    points = op_points(result.summary)
    tiles: dict[str, list[RoofPoint]] = {}
    for tile in tile_points(result.slices, points):
        tiles.setdefault(tile.name.partition(" ")[0], []).append(tile)
    assert max(map(len, tiles.values())) > 1
    for point in points:
        assert sum(tile.macs for tile in tiles[point.name]) == pytest.approx(point.macs)
        assert sum(tile.cycles for tile in tiles[point.name]) <= point.cycles


def test_what_comes_from_l3_is_counted_by_op(result: Result) -> None:
    moved = off_chip_bytes(result.slices)
    assert moved["fc.UPD"] > 0
    assert sum(moved.values()) == sum(e.bytes for e in result.slices if e.track.endswith("udma"))


@pytest.mark.parametrize("roofs", [None, [], {"mac_per_cycle": 4}, {"mac_per_cycle": True}])
def test_a_summary_without_roofs_is_told(roofs: object, result: Result) -> None:
    with pytest.raises(InputError, match="has no roofline limits"):
        roofs_of({**result.summary, "roofs": roofs})


@pytest.mark.parametrize("change", [{"useful_macs": -1}, {"macs": "many"}, {"causes": {}}])
def test_damaged_ops_are_told(change: Mapping[str, Any], result: Result) -> None:
    ops = [{**op, **change} for op in result.summary["ops"]]
    with pytest.raises(InputError):
        op_points({**result.summary, "ops": ops})


def test_sixteen_bit_numbers_go_two_at_a_time() -> None:
    narrow = pt.run("simple-mlp", dtype="fp16", functional=False, cache=False)
    assert roofs_of(narrow.summary)["mac_per_cycle"] == 8.0
