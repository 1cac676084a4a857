"""One schedule of a training graph: a tiling per op, an address for everything, and the Program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from arch.pricing import Pricer
from arch.program import Place, Program
from arch.timing import SocTiming
from configs.errors import DoesNotFitError, InputError
from scheduler.choice import Choice, Known, choose, early_beside
from scheduler.memory.memory_plan import MemoryPlan, plan_memory
from scheduler.memory.shared_memory import plans_beside
from scheduler.options import BEST_DEPTH, WHOLE_OPS, ScheduleOptions
from scheduler.programs.prefetch import readable_early
from scheduler.programs.program import ProgramBuilder
from scheduler.programs.staging_actions import StagingActions, places_of
from scheduler.tiles.candidates import NO_COUNTS, Counts
from scheduler.tiles.dma_cost import DmaCost
from scheduler.tiles.in_place import NotInPlace
from scheduler.tiles.l1_layout import L1Layout, lay_out_ops
from scheduler.tiles.resident import NOT_RESIDENT, InPlace, Residents, residents_of, without
from scheduler.tiles.streaming import Streamer
from scheduler.tiles.streams import NOT_STREAMED, OpStream
from scheduler.tiles.tiling import BufferDepths, Tiler, Tiling
from trainlib.graph import Op, TrainingGraph
from trainlib.im2col import with_ways
from trainlib.registry import lowering_of, matmul_of
from trainlib.steps import KernelChoice

NEAR_LEVEL = "l2"
"""Memory level in which an op finds its tensors."""


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
    """A graph, where everything lives, what was chosen per op, and the actions that carry it out."""

    graph: TrainingGraph
    options: ScheduleOptions
    ops: tuple[OpSchedule, ...]
    plan: MemoryPlan
    program: Program
    notes: tuple[str, ...]
    counts: Counts = NO_COUNTS
    """Tilings considered for all ops together."""
    resident: tuple[str, ...] = ()
    """What stays in L1 between ops, as `ScheduleOptions.resident` says it."""

    @property
    def peak_bytes(self) -> dict[str, int]:
        """Highest address used per level; L1 without the reserved stacks."""
        return self.plan.peak_bytes


def build_schedule(
    graph: TrainingGraph,
    timing: SocTiming,
    pricer: Pricer,
    options: ScheduleOptions,
    known: Known | None = None,
) -> Schedule:
    """Tile every op, place every tensor and buffer, and emit the program.

    Of the tilings that fit L1 the one with the fewest estimated cycles is taken (`estimate_cycles`). A
    resident tensor that an op cannot use in place is moved like others, and a note says why. `known` keeps
    what was found, for schedules of the same graph, SoC, pricer and options but for `resident`. Raises
    `DoesNotFitError` when L1, L2 or L3 is too small, `InputError` for unknown names in `options`.
    """
    check_names(graph, options)
    graph = with_ways(graph, options.im2col)
    plan = plan_memory(graph, timing, options.memory, streamer_of(graph, timing, options))
    builder = ProgramBuilder(
        graph,
        plan.places(0),
        home_level=NEAR_LEVEL,
        cores=timing.cores,
        max_command_bytes=timing.dma.max_command_bytes,
        transfer_ids=timing.dma.transfer_ids,
        transfer_code_1d_cycles=timing.dma.transfer_code_1d_cycles,
        transfer_code_2d_cycles=timing.dma.transfer_code_2d_cycles,
    )
    residents, chosen, moved = _choices(graph, plan, timing, pricer, options, known or Known())
    plan, slots = plan.with_slots([(op, choice.tiling) for op, choice in zip(graph.ops, chosen, strict=True)])
    staging = StagingActions(plan, graph, builder.actions)
    readable = [readable_early(graph, plan, number) for number in range(len(graph.ops))]
    layouts = lay_out_ops(
        [choice.tiling for choice in chosen],
        readable if options.prefetch else [()] * len(readable),
        timing.l1_usable_bytes,
        timing.l1.banks * timing.l1.word_bytes,
        residents,
    )
    ops = [
        OpSchedule(op, choice.kernel, choice.tiling, layout, lowering_of(op).macs(op, graph.tensors))
        for op, choice, layout in zip(graph.ops, chosen, layouts, strict=True)
    ]
    for number, item in enumerate(ops):
        # Loads pushed early for the next op use these places as well: only of tensors `plan.readable` here.
        builder.home = plan.places(number)
        staging.before(number)
        upcoming = ops[number + 1] if number + 1 < len(ops) else None
        builder.add_op(item.op, item.tiling, item.layout, upcoming, slots[number])
        staging.after(number)
        ending = [*item.layout.allocations, *residents.ending(number), *plan.ending(number)]
        builder.add_release(item.op, places_of(ending), _results(graph, plan, number, item.layout))
    plan = plan.with_l1((item.op, item.layout.allocations) for item in ops)
    plan = replace(
        plan,
        allocations=(*plan.allocations, *residents.allocations),
        streamed_bytes=dict(builder.streamed_bytes),
    )
    plan.check()
    notes = (*plan.notes, *moved, *(choice.note for choice in chosen if choice.note))
    counts = sum((choice.counts for choice in chosen if choice.counts is not None), NO_COUNTS)
    return Schedule(graph, options, tuple(ops), plan, builder.program(), notes, counts, residents.texts)


def _results(graph: TrainingGraph, plan: MemoryPlan, number: int, layout: L1Layout) -> tuple[Place, ...]:
    """Where the tensors an op has written lie when it ends: in L1, in L2, or in L3 what it streamed there."""
    places = []
    for name in graph.ops[number].outputs:
        tensor, in_place = graph.tensors[name], layout.resident.get(name)
        if in_place is not None:
            level, address = "l1", in_place.address
        else:
            streamed = name in plan.stream(number).tensors
            lies = plan.home(name) if streamed else plan.place(number, name)
            level, address = lies.level, lies.address
        places.append(Place(level, address, tensor.shape, tensor.dtype, name))
    return tuple(places)


def _choices(
    graph: TrainingGraph,
    plan: MemoryPlan,
    timing: SocTiming,
    pricer: Pricer,
    options: ScheduleOptions,
    known: Known,
) -> tuple[Residents, list[Choice], list[str]]:
    """What is resident; kernel and tiling of every op; why something asked for is not resident."""
    dma = DmaCost(timing)
    texts, notes = list(options.resident), list[str]()
    while True:
        residents = residents_of(graph, plan.owners, texts, timing.l1_usable_bytes)
        chosen: list[Choice] = []
        for number, op in enumerate(graph.ops):
            in_place, stream = residents.of_op(number), plan.stream(number)
            both = sorted(stream.tensors & in_place.keys())
            if both:
                storage = in_place[both[0]].storage
                texts = without(residents, storage, number)
                notes.append(f"{storage} does not stay in L1: {op.name} streams it from L3")
                break
            tiler = tiler_of(op, graph, timing, options, in_place, stream)
            limit_bytes = residents.limit_bytes(number)
            readable = readable_early(graph, plan, number) if options.prefetch else frozenset[str]()
            early = early_beside(chosen[-1] if chosen else None, readable, timing)
            try:
                choice = choose(tiler, timing, pricer, options, dma, known, limit_bytes, early)
            except DoesNotFitError as error:
                raise residents.beside(error, number) from None
            if isinstance(choice, NotInPlace):
                texts = without(residents, choice.storage, number)
                notes.append(f"{choice.storage} does not stay in L1: {choice.why}")
                break
            chosen.append(choice)
        else:
            return residents, chosen, notes


def tiler_of(
    op: Op,
    graph: TrainingGraph,
    timing: SocTiming,
    options: ScheduleOptions,
    resident: Mapping[str, InPlace] = NOT_RESIDENT,
    stream: OpStream = NOT_STREAMED,
) -> Tiler:
    """What cuts an op under some options, with the tensors it finds in L1 and those it has in L3."""
    lowering = lowering_of(op)
    chosen = options.kernels.get(op.name) or options.kernels.get(op.step) or ""
    kernel = matmul_of(op, graph.tensors, options.codegen, chosen)
    return Tiler(
        op,
        graph.tensors,
        lowering,
        KernelChoice(kernel, options.codegen, options.accumulation, timing.cores),
        BufferDepths(
            2 if options.buffer_depth == BEST_DEPTH else max(1, options.buffer_depth),
            options.buffers.get(op.name, {}),
        ),
        resident,
        stream,
    )


def in_one_memory(
    graphs: Sequence[TrainingGraph], timing: SocTiming, chosen: Sequence[ScheduleOptions]
) -> list[ScheduleOptions]:
    """The options of the programs such that what they share lies at the same addresses in all plans.

    The programs are one, or that of a mini-batch and that of the update. Raises as `plans_beside`.
    """
    if len(graphs) == 1:
        return list(chosen)
    mini_batch, update = graphs
    streamers = streamer_of(mini_batch, timing, chosen[0]), streamer_of(update, timing, chosen[1])
    plans = plans_beside(mini_batch, update, timing, chosen[0].memory, streamers)
    return [replace(options, memory=plan) for options, plan in zip(chosen, plans, strict=True)]


def streamer_of(graph: TrainingGraph, timing: SocTiming, options: ScheduleOptions) -> Streamer:
    """What chooses which tensors the ops of a graph stream, for `plan_memory`."""
    graph = with_ways(graph, options.im2col)

    def tiler(number: int) -> Tiler:
        return tiler_of(graph.ops[number], graph, timing, options)

    def fixed(tiler: Tiler) -> Tiling | None:
        sizes = options.tile_sizes.get(tiler.op.name)
        order = options.loop_orders.get(tiler.op.name)
        if sizes is None and order is None and options.buffer_depth != WHOLE_OPS:
            return None
        return tiler.build(sizes or {}, order or ())

    return Streamer(graph, timing, tiler, fixed)


def check_names(graph: TrainingGraph, options: ScheduleOptions) -> None:
    """Raise `InputError` for an op or step `options` names that the graph does not have."""
    ops = {op.name for op in graph.ops}
    steps = {op.step for op in graph.ops}
    for what, named in (
        ("to tile", options.tile_sizes),
        ("to order the loops of", options.loop_orders),
        ("to choose buffers for", options.buffers),
    ):
        for name in named:
            if name not in ops:
                known = ", ".join(sorted(ops))
                raise InputError(f"no op {name!r} {what}", where=graph.name, cure=f"one of {known}")
    for name in options.kernels:
        if name not in ops | steps:
            known = ", ".join(sorted(ops | steps))
            raise InputError(
                f"no op or step {name!r} to choose a kernel for", where=graph.name, cure=f"one of {known}"
            )
