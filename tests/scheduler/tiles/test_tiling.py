# SPDX-License-Identifier: Apache-2.0
"""Enumeration of tilings: exact L1 bytes, nothing lost, and what each rule removed."""

from __future__ import annotations

from itertools import permutations, product
from math import factorial, prod

import numpy as np
import pytest

from arch.pricing.team_cost_model import TeamCostModel
from arch.spec.soc_config import load_soc
from configs.errors import DoesNotFitError, InputError
from scheduler.options import ScheduleOptions
from scheduler.schedule_cache import ScheduleCache
from scheduler.tiles.tiling import BufferDepths, Tiler, tile_ranges
from scheduler.tiles.tiling_candidates import balanced_sizes, enumerate_tilings
from scheduler.tiling_choice import TilingChooser, smallest_does_not_fit, whole_op
from trainlib.ir.steps import KernelChoice
from trainlib.primitives.definition import DrawnInput
from trainlib.registry import lowering_of
from trainlib.training.single import single

CHOICE = KernelChoice("mm", "clang-xpulp")
CONV = {"out_channels": 6, "kernel": 3, "padding": 1, "bias": True}
CASES = [
    ("linear", {"out_features": 6, "bias": True}, (10,), 3),
    ("conv2d", CONV, (4, 6, 5), 1),
    ("conv2d", {"out_channels": 6, "kernel": 3, "groups": 2, "stride": 2}, (4, 6, 5), 2),
    ("conv2d", CONV | {"im2col": "dma"}, (4, 6, 5), 2),
    ("relu", {}, (4, 6, 5), 2),
]


def tilers(name, attributes, shape, batch, depth=2):
    """One tiler per step of a layer."""
    graph = single(name, attributes, [DrawnInput(shape)], batch=batch).graph
    return [Tiler(op, graph.tensors, lowering_of(op), CHOICE, depth) for op in graph.ops]


def linear_fw(depth=2):
    return tilers("linear", {"out_features": 6}, (10,), 3, depth)[0]


def every_size(extent: int) -> list[int]:
    return list(range(extent, 0, -1))


def test_border_tiles_are_smaller_and_the_first_loop_is_the_outermost() -> None:
    assert list(tile_ranges({"n": 5}, {"n": 2})) == [{"n": (0, 2)}, {"n": (2, 4)}, {"n": (4, 5)}]
    ranges = list(tile_ranges({"n": 2, "m": 2}, {"n": 1, "m": 1}, ["m", "n"]))
    assert ranges == [
        {"n": (0, 1), "m": (0, 1)},
        {"n": (1, 2), "m": (0, 1)},
        {"n": (0, 1), "m": (1, 2)},
        {"n": (1, 2), "m": (1, 2)},
    ]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]}{case[3]}")
@pytest.mark.parametrize("depth", [1, 3])
@pytest.mark.parametrize("drawn", [4, pytest.param(40, marks=pytest.mark.sweep)])
def test_l1_bytes_and_tiles_of_every_candidate_are_those_of_the_built_tiling(case, depth, drawn) -> None:
    """The arrays come from tiles cut along one dimension each; the truth from all tiles of the candidate."""
    for tiler in tilers(*case, depth=depth):
        found = enumerate_tilings(tiler, 1 << 30)
        chosen = np.random.default_rng(0).permutation(len(found))[:drawn]
        for index in chosen:
            tiling = found.tiling(int(index))
            assert tiling.l1_bytes == found.l1_bytes[index], (tiler.op.name, tiling.sizes, tiling.order)
            assert len(tiling.tiles) == found.tiles[index]


@pytest.mark.parametrize("case", [CASES[0], CASES[1], CASES[3]], ids=lambda case: case[0])
@pytest.mark.parametrize("drawn", [4, pytest.param(25, marks=pytest.mark.sweep)])
def test_what_is_said_to_move_is_what_the_tiles_move(case, drawn) -> None:
    for tiler in tilers(*case):
        found = enumerate_tilings(tiler, 1 << 30)
        footprint = found.footprint
        for index in np.random.default_rng(1).permutation(len(found))[:drawn]:
            tiling = found.tiling(int(index))
            for column in footprint.moved:
                role, name = footprint.keys[column]
                boxes = 0
                last = None
                for task in tiling.tiles:
                    for operand in task.inputs if role == "in" else task.written:
                        if operand.name == name:
                            boxes += operand.region != last
                            last = operand.region
                assert boxes == found.changes[column, index], (
                    tiler.op.name,
                    name,
                    tiling.sizes,
                    tiling.order,
                )


def test_every_tiling_that_fits_is_found() -> None:
    """All integer sizes, all loop orders, against a loop over everything."""
    tiler = linear_fw()
    available_bytes = 400
    found = enumerate_tilings(tiler, available_bytes, sizes_of=every_size, every_order=True)
    names = list(tiler.dims)
    fitting = set()
    for sizes in product(*(range(1, extent + 1) for extent in tiler.dims.values())):
        chosen = dict(zip(names, sizes, strict=True))
        cut = [name for name in names if chosen[name] < tiler.dims[name]]
        for order in permutations(cut):
            if tiler.build(chosen, order).l1_bytes <= available_bytes:
                fitting.add((sizes, order))
    ours = set()
    for index in range(len(found)):
        sizes = tuple(found.sizes_at(index).values())
        whole = dict(zip(names, sizes, strict=True))
        order = found.orders[found.order[index]]
        ours.add((sizes, tuple(name for name in order if whole[name] < tiler.dims[name])))
    assert ours == fitting
    assert len(found) == len(fitting)


def test_rules_remove_what_they_say() -> None:
    tiler = linear_fw()
    assert dict(tiler.dims) == {"n": 3, "co": 6, "ci": 10}
    counts = enumerate_tilings(tiler, 400).counts
    assert counts.total == 3 * 6 * 10 * factorial(3)
    balanced = prod(len(balanced_sizes(extent)) for extent in tiler.dims.values())
    assert counts.pruned_by_size == (180 - balanced) * 6
    assert counts.pruned_by_l1 > 0
    assert (
        counts.total
        == counts.pruned_by_size + counts.pruned_by_loop_order + counts.pruned_by_l1 + counts.estimated
    )
    everything = enumerate_tilings(tiler, 1 << 30, sizes_of=every_size, every_order=True).counts
    assert everything.pruned_by_size == everything.pruned_by_l1 == 0


def test_loop_orders_that_load_the_same_are_tried_once() -> None:
    """Of y = x · Wᵀ cut in two dimensions the order decides which of x and W stays."""
    tiler = linear_fw()
    found = enumerate_tilings(tiler, 1 << 30, sizes_of=every_size)
    rows = np.flatnonzero((found.sizes == [2, 3, 10]).all(axis=1))
    assert [found.orders[found.order[row]][:2] for row in rows] == [("n", "co"), ("co", "n")]
    keys = found.footprint.keys
    moved = {keys[column]: found.changes[column, rows].tolist() for column in found.footprint.moved}
    assert moved == {("in", "x"): [2, 4], ("in", "w"): [4, 2], ("out", "y"): [4, 4]}


def test_a_fixed_tile_must_name_dimensions_of_the_step() -> None:
    tiler = linear_fw(1)
    assert tiler.fixed({"co": 4}, 10_000).sizes == (("n", 3), ("co", 4), ("ci", 10))
    assert tiler.fixed({"co": 4}, 10_000, ["ci", "co"]).order == ("ci", "co", "n")
    with pytest.raises(InputError, match="one of n, co, ci"):
        tiler.fixed({"rows": 4}, 10_000)
    with pytest.raises(InputError, match=r"use 1 to 6"):
        tiler.fixed({"co": 9}, 10_000)
    with pytest.raises(InputError, match="names a dimension twice"):
        tiler.fixed({}, 10_000, ["co", "co"])
    with pytest.raises(InputError, match="the op has no tile dimension 'k'"):
        tiler.fixed({}, 10_000, ["k"])


def test_depth_of_one_operand() -> None:
    graph = single("linear", {"out_features": 6}, [DrawnInput((10,))], batch=3).graph
    op = graph.ops[0]
    tiler = Tiler(op, graph.tensors, lowering_of(op), CHOICE, BufferDepths(3, {"w": 1}))
    slots = {buffer.name: buffer.slots for buffer in tiler.build({"co": 1}).buffers}
    assert slots == {"x": 1, "w": 1, "y": 3}


def test_what_does_not_fit_says_what_is_needed_and_what_to_do() -> None:
    tiler = linear_fw()
    smallest = enumerate_tilings(tiler, 1 << 30).l1_bytes.min()
    assert len(enumerate_tilings(tiler, int(smallest)))
    assert not len(enumerate_tilings(tiler, int(smallest) - 1))
    timing = load_soc("pulp-open", "rtl")
    chooser = TilingChooser(timing, TeamCostModel(timing), ScheduleOptions(), ScheduleCache())
    with pytest.raises(DoesNotFitError) as raised:
        chooser.choose(tiler, int(smallest) - 1)
    assert raised.value.exit_code == 3
    assert raised.value.available_bytes == smallest - 1
    needed = smallest_does_not_fit(tiler, 0).required_bytes
    assert raised.value.required_bytes == needed
    assert {item.name.split(" ")[0] for item in raised.value.contributors} >= {"x", "x.out"} - {"x.out"}
    assert "enlarge --l1 by 1 KiB or more" in str(raised.value)


def test_whole_ops_need_everything_at_once() -> None:
    tiler = linear_fw()
    needed = 4 * (3 * 10 + 6 * 10 + 3 * 6)
    assert whole_op(tiler, needed).l1_bytes == needed
    with pytest.raises(DoesNotFitError, match=f"{needed} B required") as raised:
        whole_op(tiler, needed - 1)
    assert "allows smaller tiles" in str(raised.value)
