"""One schedule of a training graph: a tiling per op, an address for everything, and the Program."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from arch.pricing import Pricer
from arch.program import Place, Program
from arch.timing import SocTiming
from configs.errors import InputError
from scheduler.estimate import TileCost, estimate_cycles
from scheduler.l1_layout import L1Layout, lay_out
from scheduler.memory_plan import Allocation, check_no_overlap, plan_home
from scheduler.options import ScheduleOptions
from scheduler.program import ProgramBuilder
from scheduler.tiling import Tiler, Tiling
from trainlib.graph import Op, TrainingGraph
from trainlib.primitives.calls import TeamChoice
from trainlib.registry import lowering_of

HOME_LEVEL = "l2"
"""Memory level all tensors live in between ops."""


@dataclass(frozen=True, slots=True)
class OpSchedule:
    """What was chosen for one op."""

    op: Op
    kernel: str
    tiling: Tiling
    layout: L1Layout
    macs: int


@dataclass(frozen=True, slots=True)
class Schedule:
    """A graph, where its tensors live, what was chosen per op, and the actions that carry it out."""

    graph: TrainingGraph
    options: ScheduleOptions
    ops: tuple[OpSchedule, ...]
    home: Mapping[str, Allocation]
    program: Program
    notes: tuple[str, ...]

    @property
    def peak_bytes(self) -> dict[str, int]:
        """Highest address used per level; L1 without the reserved stacks."""
        return {
            "l1": max((op.tiling.l1_bytes for op in self.ops), default=0),
            "l2": max((item.end_address for item in self.home.values()), default=0),
            "l3": 0,
        }


def build_schedule(
    graph: TrainingGraph, timing: SocTiming, pricer: Pricer, options: ScheduleOptions
) -> Schedule:
    """Tile every op, place every tensor and buffer, and emit the program.

    Of the tilings that fit L1 the one with the fewest estimated cycles is taken (`estimate_cycles`). Raises
    `DoesNotFitError` when L1 or L2 is too small, `InputError` when `options` names unknown ops or kernels.
    """
    _check_names(graph, options)
    home = plan_home(graph, HOME_LEVEL, timing.l2.size_bytes)
    builder = ProgramBuilder(
        graph,
        home,
        home_level=HOME_LEVEL,
        cores=timing.cores,
        buffer_depth=options.buffer_depth,
        max_command_bytes=timing.dma.max_command_bytes,
        transfer_code_1d_cycles=timing.dma.transfer_code_1d_cycles,
        transfer_code_2d_cycles=timing.dma.transfer_code_2d_cycles,
    )
    ops: list[OpSchedule] = []
    notes: list[str] = []
    for number, op in enumerate(graph.ops):
        lowering = lowering_of(op)
        kernel = _kernel(op, options, lowering.default_kernel(op))
        tiler = Tiler(
            op,
            graph.tensors,
            lowering,
            TeamChoice(kernel, options.codegen, options.accumulation, timing.cores),
            options.buffer_depth,
        )
        tiling = _choose(tiler, timing, pricer, options, notes)
        layout = lay_out(tiling, number)
        check_no_overlap(layout.allocations)
        ops.append(OpSchedule(op, kernel, tiling, layout, lowering.macs(op, graph.tensors)))
        builder.add_op(op, tiling, layout)
        builder.add_release(op, _ended(number, layout, home))
    return Schedule(graph, options, tuple(ops), home, builder.program(), tuple(notes))


def _kernel(op: Op, options: ScheduleOptions, default: str) -> str:
    if not default:
        return ""
    return options.kernels.get(op.name) or options.kernels.get(op.step) or default


def _check_names(graph: TrainingGraph, options: ScheduleOptions) -> None:
    ops = {op.name for op in graph.ops}
    steps = {op.step for op in graph.ops}
    for name in options.tile_sizes:
        if name not in ops:
            raise InputError(
                f"no op {name!r} to tile", where=graph.name, cure="one of " + ", ".join(sorted(ops))
            )
    for name in options.kernels:
        if name not in ops | steps:
            known = ", ".join(sorted(ops | steps))
            raise InputError(
                f"no op or step {name!r} to choose a kernel for", where=graph.name, cure=f"one of {known}"
            )


def _choose(
    tiler: Tiler, timing: SocTiming, pricer: Pricer, options: ScheduleOptions, notes: list[str]
) -> Tiling:
    available_bytes = timing.l1_usable_bytes
    wanted = options.tile_sizes.get(tiler.op.name)
    if wanted is not None:
        return tiler.fixed(wanted, available_bytes)
    tile_cost = TileCost(timing, pricer, tiler.tensors)
    candidates = tiler.fitting(available_bytes)
    best = min(candidates, key=lambda tiling: (estimate_cycles(tiling, tile_cost, tiler), len(tiling.tiles)))
    if options.buffer_depth > 1 and len(candidates[0].tiles) > 1:
        single = Tiler(tiler.op, tiler.tensors, tiler.lowering, tiler.choice, 1)
        fewest = len(single.fitting(available_bytes, keep=1)[0].tiles)
        if fewest < len(candidates[0].tiles):
            notes.append(
                f"{tiler.op.name}: tiles shrank to hold {options.buffer_depth} buffers per operand in L1: "
                f"{len(best.tiles)} tiles, where {fewest} would fit with single buffering"
            )
    return best


def _ended(number: int, layout: L1Layout, home: Mapping[str, Allocation]) -> tuple[Place, ...]:
    ended = [*layout.allocations, *(item for item in home.values() if item.last_op == number)]
    return tuple(Place(item.level, item.address, (item.size_bytes,), "uint8", item.name) for item in ended)
