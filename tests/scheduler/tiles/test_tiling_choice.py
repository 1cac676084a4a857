# SPDX-License-Identifier: Apache-2.0
"""The heuristic's tiles: what its estimate says, what the simulation says, and what it did not look at."""

from __future__ import annotations

import numpy as np
import pytest

from arch.blocks.soc import Soc
from arch.pricing.team_cost_model import TeamCostModel
from arch.spec.soc_config import load_soc
from configs.values import replace
from pulptrain.inputs.settings import with_options
from scheduler.options import ScheduleOptions
from scheduler.schedule import build_schedule, tiler_of
from scheduler.schedule_cache import ScheduleCache
from scheduler.tiles.estimate import NOTHING_EARLY, Early, TileCost, TileLoop
from scheduler.tiles.short_list import KernelCount, moves_of, short_list
from scheduler.tiles.tiling import Tiling
from scheduler.tiles.tiling_candidates import enumerate_tilings
from scheduler.tiles.transfer_cost import DmaCost
from scheduler.tiling_choice import TilingChoice, TilingChooser, early_beside
from trainlib.ir.graph import Op
from trainlib.kernels.catalogue import matmul_work
from trainlib.primitives.definition import DrawnInput
from trainlib.training.phases import build_layer_graph, only

TIMING = with_options(load_soc("pulp-open", "rtl"), l1="16KiB", l2="8MiB")
COST_MODEL = TeamCostModel(TIMING)
LAYERS = {
    "conv2d": ({"out_channels": 16, "kernel": 3, "padding": 1}, (8, 16, 16)),
    "linear": ({"out_features": 64}, (320,)),
    "relu": ({}, (16, 16, 16)),
}


def graph_of(kind: str):
    options, shape = LAYERS[kind]
    graph = build_layer_graph(kind, options, [DrawnInput(shape)], batch=1)
    return only(graph, [op for op in graph.ops if op.step == "FW"])


def tiler_for(kind: str, depth: int):
    graph = graph_of(kind)
    return tiler_of(graph.ops[0], graph, TIMING, ScheduleOptions(depth))


def simulated_cycles(kind: str, depth: int, tiling: Tiling) -> int:
    name = tiling.op
    options = ScheduleOptions(
        depth, tile_sizes={name: dict(tiling.sizes)}, loop_orders={name: tiling.order}, prefetch=False
    )
    schedule = build_schedule(graph_of(kind), TIMING, COST_MODEL, options)
    return Soc(TIMING, COST_MODEL).run(schedule.program, effects=False).cycles


def estimated_cycles(kind: str, depth: int, tiling: Tiling, early: Early = NOTHING_EARLY) -> int:
    tiler = tiler_for(kind, depth)
    cycles = TileLoop(tiling, TileCost(TIMING, COST_MODEL, tiler.tensors), tiler, early).cycles()
    assert cycles is not None
    return cycles


@pytest.mark.parametrize("kind", LAYERS)
def test_the_estimate_of_single_buffered_tiles_is_that_of_the_simulation(kind: str) -> None:
    """All waits are in the open. Left are the hand-over to the cluster (224 cycles) and skews of some tens of
    cycles per tile.
    """
    candidates = enumerate_tilings(tiler_for(kind, 1), TIMING.l1_usable_bytes)
    few = np.flatnonzero(candidates.tiles <= 60)
    for index in few[:: max(1, len(few) // 6)]:
        tiling = candidates.tiling(int(index))
        simulated = simulated_cycles(kind, 1, tiling) - 224
        difference = abs(estimated_cycles(kind, 1, tiling) - simulated)
        assert difference <= 0.02 * simulated + 40 * len(tiling.tiles)


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("drawn", [4, pytest.param(24, marks=pytest.mark.sweep)])
def test_the_choice_is_hardly_slower_than_the_best_of_a_sample(kind: str, depth: int, drawn: int) -> None:
    """Of 16 KiB the stacks leave 7: tiles are small, and what kernels do around sums weighs most."""
    tiler = tiler_for(kind, depth)
    chooser = TilingChooser(TIMING, COST_MODEL, ScheduleOptions(depth), ScheduleCache())
    chosen = chooser.choose(tiler).tiling
    own = simulated_cycles(kind, depth, chosen)
    candidates = enumerate_tilings(tiler, TIMING.l1_usable_bytes)
    few = np.flatnonzero(candidates.tiles <= 2 * len(chosen.tiles) + 10)
    sample = np.random.default_rng(0).choice(few, min(drawn, len(few)), replace=False)
    best = min(simulated_cycles(kind, depth, candidates.tiling(int(index))) for index in sample)
    assert own <= 1.03 * best


def test_issued_instructions_are_those_the_cost_model_counts() -> None:
    for kernel in ("mm", "mm_M", "mm_unroll_2x4"):
        work = matmul_work(kernel, "clang-xpulp", 12, 20, 9, False, 1, 0, 4096, 8192)
        priced = COST_MODEL.price(work)
        assert work.issued[0] == priced.cores[0].instructions


def test_the_short_list_counts_kernels_and_transfers_not_transfers_alone() -> None:
    """A tile of few output channels moves the least here, and leaves most cores without work."""
    tiler = tiler_for("conv2d", 2)
    candidates = enumerate_tilings(tiler, TIMING.l1_usable_bytes)
    dma = DmaCost(TIMING)
    moves = moves_of(candidates, dma)
    usable = np.ones(len(candidates), np.bool_)
    first = short_list(candidates, moves, usable, dma, COST_MODEL)[0]
    count = KernelCount(candidates, candidates.sizes_at(first), COST_MODEL, dma)
    moved = moves.load_cycles + moves.store_cycles + moves.master_cycles
    least = int(np.argmin(moved))
    assert moved[least] < moved[first]
    assert count.counted(candidates.sizes_at(least)) > count.counted(candidates.sizes_at(first))


def test_counting_along_one_dimension_at_a_time_is_exact_for_the_reference() -> None:
    candidates = enumerate_tilings(tiler_for("linear", 2), TIMING.l1_usable_bytes)
    reference = int(np.argmin(candidates.tiles))
    count = KernelCount(candidates, candidates.sizes_at(reference), COST_MODEL, DmaCost(TIMING))
    by_product = count.cycles()[reference]
    assert by_product == pytest.approx(count.counted(candidates.sizes_at(reference)), rel=1e-12)


def test_what_is_loaded_early_is_not_waited_for_as_long_as_the_op_before_computes() -> None:
    tiler = tiler_for("linear", 2)
    tiling = tiler.build({"co": 8, "ci": 40})
    weight = frozenset({tiler.op["w"]})
    plain = estimated_cycles("linear", 2, tiling)
    assert plain - estimated_cycles("linear", 2, tiling, Early(weight, 64)) == 64
    all_of_it = plain - estimated_cycles("linear", 2, tiling, Early(weight, 10**6))
    assert 64 < all_of_it < plain / 4
    full = replace(tiling, buffers=(*tiling.buffers[:-1], replace(tiling.buffers[-1], slots=10**4)))
    assert estimated_cycles("linear", 2, full, Early(weight, 64)) == estimated_cycles("linear", 2, full)


@pytest.mark.parametrize(("cycles", "within"), [(0, 0), (1, 1), (700, 512), (10**6, 512)])
def test_the_time_of_the_op_before_is_rounded_down(cycles: int, within: int) -> None:
    """10^6 cycles fill L1 many times: 7168 bytes at 8 bytes per cycle are 896, rounded down 512."""
    tiling = tiler_for("relu", 2).build({})
    early = early_beside(TilingChoice("", tiling, estimated_cycles=cycles), frozenset({"x"}), TIMING)
    assert early == Early(frozenset({"x"}), within)
    assert early_beside(None, frozenset({"x"}), TIMING) == NOTHING_EARLY


@pytest.mark.parametrize("kind", ["gru", "lstm"])
@pytest.mark.parametrize("depth", [1, 2])
def test_time_steps_that_are_cut_alike_get_what_each_would_get_alone(kind: str, depth: int) -> None:
    options = {"hidden": 40, "stepwise": True}
    graph = build_layer_graph(kind, options, [DrawnInput((4, 6))], batch=1)
    together = ScheduleCache()

    def choice_of(op: Op, cache: ScheduleCache) -> TilingChoice:
        tiler = tiler_of(op, graph, TIMING, ScheduleOptions(depth))
        choice = TilingChooser(TIMING, COST_MODEL, ScheduleOptions(depth), cache).choose(tiler)
        assert isinstance(choice, TilingChoice)
        return choice

    for op in graph.ops:
        one, alone = choice_of(op, together), choice_of(op, ScheduleCache())
        assert (one.kernel, one.counts, one.estimated_cycles, one.note) == (
            *(alone.kernel, alone.counts, alone.estimated_cycles, alone.note),
        )
        assert (one.tiling.sizes, one.tiling.order, one.tiling.buffers) == (
            *(alone.tiling.sizes, alone.tiling.order, alone.tiling.buffers),
        )
    steps = [op for op in graph.ops if op.step.startswith(("FW_STEP", "BPTT_C"))]
    assert 0 < len(together.siblings) < len(steps)
