# SPDX-License-Identifier: Apache-2.0
"""docs/buffering.md: what double buffering, a larger L1 and a wider DMA gain, measured by simulation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any

from arch.pricing.team_cost_model import TeamCostModel
from configs.errors import DoesNotFitError
from configs.model_file import load_model
from configs.values import replace
from pulptrain.inputs.settings import Settings, schedule_options, soc_timing
from pulptrain.running.session import run_model
from scheduler.executor import Executor
from scheduler.planned import Schedule
from scheduler.schedule import build_schedule
from tools.pages.page import Page, golden, table
from traces.recorder import Recorder
from trainlib.ir.graph import TrainingGraph
from trainlib.primitives.definition import DrawnInput
from trainlib.training.phases import build_layer_graph, build_training_graph, only

L1_SIZES = ("16KiB", "32KiB", "64KiB", "128KiB", "256KiB", "512KiB", "1MiB")
WIDTHS = {"conv": (2, 4, 8, 16, 32), "linear": (2, 4, 8, 16, 32), "resnet8": (4, 8, 16)}
"""Bytes per cycle of the DMA and of its link to L2, swept per workload."""

BUFFERINGS = ("single", "double")

LAYERS: Mapping[str, tuple[str, Mapping[str, Any], tuple[int, ...], int]] = {
    "conv": ("conv2d", {"out_channels": 32, "kernel": 3, "padding": 1}, (32, 32, 32), 1),
    "pointwise": ("pointwise", {"out_channels": 64}, (64, 24, 24), 1),
    "linear, batch 4": ("linear", {"out_features": 256}, (640,), 4),
    "linear": ("linear", {"out_features": 128}, (640,), 2),
    "linear, batch 1": ("linear", {"out_features": 128}, (640,), 1),
    "relu": ("relu", {}, (32, 32, 32), 1),
}
"""Forward steps: layer, options, input without batch, batch."""


@dataclass(frozen=True, slots=True)
class Found:
    """One simulated program; cycles on core 0 of kernels (forks included) and of waiting for the DMA."""

    cycles: int
    kernel_cycles: int
    wait_cycles: int
    tiles: int
    tile_sizes: Mapping[str, Mapping[str, int]]
    orders: Mapping[str, Sequence[str]]


@cache
def graph_of(workload: str) -> TrainingGraph:
    """A forward step alone, or a whole training iteration of a model."""
    if workload not in LAYERS:
        return replace(build_training_graph(load_model(workload)), draws={})
    kind, options, shape, batch = LAYERS[workload]
    graph = build_layer_graph(kind, options, [DrawnInput(shape)], batch=batch)
    return only(graph, [op for op in graph.ops if op.step == "FW"])


@cache
def cost_model_of(l1: str, width_bytes: int, timing: str) -> TeamCostModel:
    """One per machine: what it has priced holds for all workloads."""
    return TeamCostModel(soc_timing(settings_of(l1, width_bytes, "double", timing)))


def settings_of(l1: str, width_bytes: int, buffering: str, timing: str) -> Settings:
    """`pulp-open` with another L1 and DMA; its ports of L1 move a word of 4 B at least.

    All code lies in the caches, so that a figure is of transfers and kernels alone.
    """
    wide = (f"dma.l1_bytes_per_cycle={max(width_bytes, 4)}", f"l2.link_bytes_per_cycle={width_bytes}")
    overrides = wide if width_bytes != 8 else ()
    return Settings(l1=l1, l2="8MiB", buffering=buffering, timing=timing, icache="warm", overrides=overrides)


@cache
def simulate(
    workload: str, l1: str = "64KiB", width_bytes: int = 8, buffering: str = "double", timing: str = "rtl"
) -> Found | None:
    """One point with the tiles of the heuristic; None if it does not fit."""
    return simulate_with(workload, l1, width_bytes, buffering, None, timing)


def simulate_with(
    workload: str, l1: str, width_bytes: int, buffering: str, tiles: Found | None, profile: str = "rtl"
) -> Found | None:
    """The same with the tiles found for another machine, if there are any."""
    settings = settings_of(l1, width_bytes, buffering, profile)
    options = schedule_options(settings)
    if tiles is not None:
        options = replace(options, tile_sizes=tiles.tile_sizes, loop_orders=tiles.orders)
    timing, cost_model = soc_timing(settings), cost_model_of(l1, width_bytes, profile)
    try:
        schedule = build_schedule(graph_of(workload), timing, cost_model, options)
    except DoesNotFitError:
        return None
    recorder = Recorder()
    cycles = Executor(schedule, timing, cost_model, recorder, functional=False).simulate().cycles
    waits = sum(
        event.end_cycles - event.start_cycles
        for event in recorder.slices
        if event.track.endswith("core0") and event.kind in ("dma_wait", "dma_program")
    )
    return Found(cycles, cycles - waits, waits, *_tiles_of(schedule))


def _tiles_of(schedule: Schedule) -> tuple[int, dict[str, dict[str, int]], dict[str, tuple[str, ...]]]:
    sizes = {op.op.name: dict(op.tiling.sizes) for op in schedule.ops if op.tiling.sizes}
    orders = {op.op.name: op.tiling.order for op in schedule.ops if op.tiling.sizes}
    return sum(len(op.tiling.tiles) for op in schedule.ops), sizes, orders


def gain(workload: str, timing: str = "rtl") -> tuple[float, float]:
    """(share of the cycles double buffering saves, share of waiting with single buffering)."""
    single, double = (simulate(workload, buffering=buffering, timing=timing) for buffering in BUFFERINGS)
    assert single is not None
    assert double is not None
    return 1 - double.cycles / single.cycles, single.wait_cycles / single.cycles


def best_by_l1(workload: str, sizes: Sequence[str] = L1_SIZES) -> dict[str, int]:
    """Fewest cycles of either buffering with the tiles of this L1 or a smaller one, which it also holds."""
    best: dict[str, int] = {}
    for size in sizes:
        found = [simulate(workload, size, 8, buffering) for buffering in BUFFERINGS]
        cycles = [item.cycles for item in found if item is not None]
        before = [best[smaller] for smaller in best]
        if cycles or before:
            best[size] = min(cycles + before)
    return best


def best_by_width(workload: str, widths: Sequence[int]) -> dict[int, int]:
    """Fewest cycles of either buffering with the tiles of this DMA or of a narrower one."""
    best: dict[int, int] = {}
    tried: list[tuple[str, Found]] = []
    for width in widths:
        cycles = []
        for buffering, tiles in tried:
            again = simulate_with(workload, "64KiB", width, buffering, tiles)
            assert again is not None
            cycles.append(again.cycles)
        for buffering in BUFFERINGS:
            own = simulate(workload, "64KiB", width, buffering)
            if own is not None:
                cycles.append(own.cycles)
                tried.append((buffering, own))
        best[width] = min(cycles)
    return best


def gains_table() -> str:
    """Gain of double buffering per layer."""
    rows = []
    for name, (kind, options, shape, batch) in LAYERS.items():
        saved, waiting = gain(name)
        single, double = (simulate(name, buffering=buffering) for buffering in BUFFERINGS)
        assert single is not None
        assert double is not None
        described = ", ".join(f"{key} {value}" for key, value in options.items())
        text = f"`{kind}` FW, {'x'.join(map(str, shape))}, batch {batch}" + (
            f", {described}" if described else ""
        )
        cycles = f"{single.cycles:,}", f"{double.cycles:,}"
        rows.append((name, text, *cycles, f"{saved:.1%}", f"{waiting:.1%}", f"{gain(name, 'gvsoc')[0]:.1%}"))
    return table(("layer", "", "single", "double", "gain", "transfers", "gain, `gvsoc`"), rows)


Points = Mapping[tuple[str, str], Found | None]
"""By size or width, and buffering."""


def l1_points(workload: str) -> Points:
    """All sizes of L1 with the tiles of the heuristic."""
    return {(size, way): simulate(workload, size, 8, way) for size in L1_SIZES for way in BUFFERINGS}


def width_points(workload: str) -> Points:
    """All widths of the DMA with the tiles of the heuristic."""
    return {
        (str(width), way): simulate(workload, "64KiB", width, way)
        for width in WIDTHS[workload]
        for way in BUFFERINGS
    }


def l1_tables() -> str:
    """A table per workload."""
    return "\n".join(
        _sweep(workload, "L1", L1_SIZES, l1_points(workload), best_by_l1(workload)) for workload in WIDTHS
    )


def width_tables() -> str:
    """A table per workload."""
    parts = []
    for workload, widths in WIDTHS.items():
        best = {str(width): cycles for width, cycles in best_by_width(workload, widths).items()}
        parts.append(_sweep(workload, "B/cycle", [*map(str, widths)], width_points(workload), best))
    return "\n".join(parts)


def exceptions_table() -> str:
    """Where more is slower."""
    rows = [row for workload in WIDTHS for row in _exceptions(workload, L1_SIZES, l1_points(workload))]
    for workload, widths in WIDTHS.items():
        rows += _exceptions(workload, [*map(str, widths)], width_points(workload))
    return table(
        ("workload", "step", "buffering", "cycles", "of kernels", "of waits", "tiles", "cause"), rows
    )


def _sweep(
    workload: str,
    title: str,
    names: Sequence[str],
    points: Points,
    best: Mapping[str, int],
) -> str:
    rows = []
    for name in names:
        single, double = (points[name, buffering] for buffering in BUFFERINGS)
        cells = [f"{item.cycles:,}" if item else "does not fit" for item in (single, double)]
        saved = f"{1 - double.cycles / single.cycles:.1%}" if single and double else "-"
        rows.append((name, *cells, saved, f"{best[name]:,}" if name in best else "-"))
    return f"### {workload}\n\n" + table((title, *BUFFERINGS, "gain", "best"), rows)


def _exceptions(workload: str, names: Sequence[str], points: Points) -> list[tuple[str, ...]]:
    """Neighbours of a sweep where the larger machine is slower, with what got longer."""
    rows: list[tuple[str, ...]] = []
    for buffering in BUFFERINGS:
        for small, large in pairwise(names):
            before, after = points[small, buffering], points[large, buffering]
            if before is None or after is None or after.cycles <= before.cycles:
                continue
            kernels = after.kernel_cycles - before.kernel_cycles
            waits = after.wait_cycles - before.wait_cycles
            rows.append(
                (
                    workload,
                    f"{small} to {large}",
                    buffering,
                    f"+{after.cycles - before.cycles:,} ({after.cycles / before.cycles - 1:.1%})",
                    f"{kernels:+,}",
                    f"{waits:+,}",
                    f"{before.tiles} to {after.tiles}",
                    _cause(kernels, waits, before.tiles, after.tiles),
                )
            )
    return rows


def _cause(kernels: int, waits: int, tiles_before: int, tiles_after: int) -> str:
    if kernels >= waits:
        return "kernels: tiles of another shape, other bank conflicts"
    if tiles_after < tiles_before:
        return "waits: larger tiles, whose first load and last store nothing hides"
    return "waits: transfers of another shape"


def of_best(model: str) -> tuple[int, int]:
    """Cycles, and the peak of L2 in bytes, of an iteration with ``--buffering best``, else the defaults."""
    summary = run_model(model, Settings(l1="64KiB", buffering="best"), functional=False).summary
    return summary["cycles"], summary["peak_bytes"]["l2"]


def zoo_table() -> str:
    """Every model with double buffers and with the estimated best of both."""
    rows = []
    for model, figures in golden().items():
        double, (cycles, peak_bytes) = figures["default_l2"], of_best(model)
        change = 100 * (cycles / double["cycles"] - 1)
        peaks = f"{double['peak_bytes']['l2']:,}", f"{peak_bytes:,}"
        rows.append((model, f"{double['cycles']:,}", f"{cycles:,}", f"{change:+.2f}%", *peaks))
    return table(("model", "double", "best", "change", "L2, double", "L2, best"), rows)


PAGE = Page(
    "docs/buffering.md",
    {
        "zoo": zoo_table,
        "gains": gains_table,
        "l1": l1_tables,
        "width": width_tables,
        "slower": exceptions_table,
    },
    {
        "zoo": golden,
        **dict.fromkeys(
            ("gains", "l1", "width", "slower"),
            lambda: (golden("resnet8", "simple-mlp"), L1_SIZES, WIDTHS, LAYERS),
        ),
    },
)
