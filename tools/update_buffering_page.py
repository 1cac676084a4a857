"""Write docs/buffering.md: what double buffering, a larger L1 and a wider DMA gain, measured by simulation.

Run it after a change of the model (some minutes): ``python tools/update_buffering_page.py``. A slow test
compares the committed page with what this program would write, a quick one the first table.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from arch.team_cost_model import TeamCostModel
from configs.errors import DoesNotFitError
from configs.model_file import load_model
from pulptrain.settings import Settings, schedule_options, soc_timing
from scheduler.executor import Executor
from scheduler.schedule import Schedule, build_schedule
from traces.recorder import Recorder
from trainlib.graph import TrainingGraph
from trainlib.primitives.definition import InputCase
from trainlib.training import build_layer_graph, build_training_graph, only

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "buffering.md"
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

INTRODUCTION = """\
# Buffering, L1 size and DMA width

<!-- Written by tools/update_buffering_page.py; do not edit. -->

Simulated on `pulp-open` (8 cores, `rtl`, codegen `clang-xpulp`), fp32, 8 MiB of L2, 64 KiB of L1 and 8 bytes
per cycle of DMA unless a column says otherwise; tiles by the scheduler's own choice. **Gain** is the share of
the cycles with single buffering that double buffering saves. **Transfers** is the time the cluster waits for
transfers with single buffering, as a share of the cycles: the most that any overlap could save.

Published for the FloatGEMM of Deeploy on Siracusa (8 cores, GVSoC; github.com/pulp-platform/Deeploy, pull
requests 114 and 138): 2.0 % where the kernel dominates (140,789 to 137,984 cycles), 21.4 % where transfers do
(7,391 to 5,811).
"""


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
    graph = build_layer_graph(kind, options, [InputCase(shape)], batch=batch)
    return only(graph, [op for op in graph.ops if op.step == "FW"])


@cache
def cost_model_of(l1: str, width_bytes: int) -> TeamCostModel:
    """One per machine: what it has priced holds for all workloads."""
    return TeamCostModel(soc_timing(settings_of(l1, width_bytes, "double")))


def settings_of(l1: str, width_bytes: int, buffering: str) -> Settings:
    """`pulp-open` with another L1 and DMA."""
    wide = (f"dma.l1_bytes_per_cycle={width_bytes}", f"l2.link_bytes_per_cycle={width_bytes}")
    return Settings(l1=l1, l2="8MiB", buffering=buffering, overrides=wide if width_bytes != 8 else ())


@cache
def simulate(
    workload: str, l1: str = "64KiB", width_bytes: int = 8, buffering: str = "double"
) -> Found | None:
    """One point with the tiles of the heuristic; None if it does not fit."""
    return simulate_with(workload, l1, width_bytes, buffering, None)


def simulate_with(
    workload: str, l1: str, width_bytes: int, buffering: str, tiles: Found | None
) -> Found | None:
    """The same with the tiles found for another machine, if there are any."""
    settings = settings_of(l1, width_bytes, buffering)
    options = schedule_options(settings)
    if tiles is not None:
        options = replace(options, tile_sizes=tiles.tile_sizes, loop_orders=tiles.orders)
    timing, cost_model = soc_timing(settings), cost_model_of(l1, width_bytes)
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


def _tiles_of(schedule: Schedule) -> tuple[int, dict[str, dict[str, int]], dict[str, Sequence[str]]]:
    sizes = {op.op.name: dict(op.tiling.sizes) for op in schedule.ops if op.tiling.sizes}
    orders = {op.op.name: op.tiling.order for op in schedule.ops if op.tiling.sizes}
    return sum(len(op.tiling.tiles) for op in schedule.ops), sizes, orders


def gain(workload: str) -> tuple[float, float]:
    """(share of the cycles double buffering saves, share of waiting with single buffering)."""
    single, double = (simulate(workload, buffering=buffering) for buffering in BUFFERINGS)
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
        rows.append(
            (name, text, f"{single.cycles:,}", f"{double.cycles:,}", f"{saved:.1%}", f"{waiting:.1%}")
        )
    return _table(("layer", "", "single", "double", "gain", "transfers"), rows)


def buffering_page() -> str:
    """The whole page, in Markdown."""
    parts = [INTRODUCTION, "## What overlap gains\n", gains_table()]
    exceptions: list[tuple[str, ...]] = []
    parts += [
        "## L1 size\n",
        "Cycles with the tiles chosen for this L1; best of both bufferings with the tiles chosen for it or\n"
        "any smaller one (a larger L1 holds them as well). `resnet8` is a whole training iteration.\n",
    ]
    for workload in ("conv", "linear", "resnet8"):
        points = {
            (size, buffering): simulate(workload, size, 8, buffering)
            for size in L1_SIZES
            for buffering in BUFFERINGS
        }
        best = best_by_l1(workload)
        parts.append(_sweep(workload, "L1", L1_SIZES, points, best))
        exceptions += _exceptions(workload, L1_SIZES, points)
    parts += [
        "## DMA width\n",
        "Bytes per cycle into L1, and of the link to L2. Best: both bufferings with the tiles chosen for\n"
        "this width or a narrower one, simulated again.\n",
    ]
    for workload, widths in WIDTHS.items():
        wide = {
            (str(width), buffering): simulate(workload, "64KiB", width, buffering)
            for width in widths
            for buffering in BUFFERINGS
        }
        best = {str(width): cycles for width, cycles in best_by_width(workload, widths).items()}
        names = [str(width) for width in widths]
        parts.append(_sweep(workload, "B/cycle", names, wide, best))
        exceptions += _exceptions(workload, names, wide)
    parts += [
        "## Where more is slower\n",
        "The best is monotone, the heuristic need not be: it counts what thousands of tilings move and\n"
        "issue, and estimates the five that look best tile by tile. Double buffering is slower than single\n"
        "where two boxes per buffer leave so little of L1 that tiles, and with them sums, are cut finer\n"
        "than overlap makes good for (`--buffering best` chooses per op). Steps up a sweep that cost\n"
        "cycles, by what they cost on core 0:\n",
        _table(
            ("workload", "step", "buffering", "cycles", "of kernels", "of waits", "tiles", "cause"),
            exceptions,
        ),
    ]
    return "\n".join(parts)


def _sweep(
    workload: str,
    title: str,
    names: Sequence[str],
    points: Mapping[tuple[str, str], Found | None],
    best: Mapping[str, int],
) -> str:
    rows = []
    for name in names:
        single, double = (points[name, buffering] for buffering in BUFFERINGS)
        cells = [f"{item.cycles:,}" if item else "does not fit" for item in (single, double)]
        saved = f"{1 - double.cycles / single.cycles:.1%}" if single and double else "-"
        rows.append((name, *cells, saved, f"{best[name]:,}" if name in best else "-"))
    return f"### {workload}\n\n" + _table((title, *BUFFERINGS, "gain", "best"), rows)


def _exceptions(
    workload: str, names: Sequence[str], points: Mapping[tuple[str, str], Found | None]
) -> list[tuple[str, ...]]:
    """Neighbours of a sweep where the larger machine is slower, with what got longer."""
    rows = []
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


def _table(titles: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [titles, ["---"] * len(titles), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines) + "\n"


def main() -> int:
    """Write the page."""
    PAGE.write_text(buffering_page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
