# SPDX-License-Identifier: Apache-2.0
"""One schedule of a training graph: a tiling per op, an address for everything, and the Program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from arch.pricing.code_caches import COLD, STEADY, WARM
from arch.pricing.cost_model import CostModel
from arch.spec.program import Place
from arch.spec.timing import SocTiming
from configs.errors import DoesNotFitError, InputError
from configs.values import Struct, replace
from scheduler.memory.host_memory import (
    NO_PROGRAM,
    TIMING_ONLY,
    HostUse,
    ProgramSize,
    check_host_memory,
    program_size,
)
from scheduler.memory.memory_plan import MemoryPlan, plan_memory
from scheduler.memory.shared_memory import plans_beside
from scheduler.options import BEST_DEPTH, WHOLE_OPS, ScheduleOptions
from scheduler.planned import OpSchedule, Schedule
from scheduler.programs.prefetch import readable_early
from scheduler.programs.program import ProgramBuilder
from scheduler.programs.staging_emitter import StagingEmitter, places_of
from scheduler.schedule_cache import ScheduleCache
from scheduler.tiles.code_cost import MOST, CodeCost, Lost, OpCode, functions_bytes, op_code
from scheduler.tiles.code_sizes import MOST_TRANSFERS
from scheduler.tiles.l1_layout import L1Layout, lay_out_ops
from scheduler.tiles.l2_slots import NOT_STREAMED, OpSlots, OpStream
from scheduler.tiles.resident_rules import NotInPlace
from scheduler.tiles.resident_tensors import NOT_RESIDENT, InPlace, Residents, residents_of, without
from scheduler.tiles.streaming_choice import Streamer
from scheduler.tiles.tiling import BufferDepths, Tiler, Tiling
from scheduler.tiles.tiling_candidates import NO_COUNTS
from scheduler.tiling_choice import TilingChoice, TilingChooser, early_beside
from trainlib.ir.graph import Op, TrainingGraph
from trainlib.ir.steps import KernelChoice
from trainlib.registry import lowering_of, matmul_of
from trainlib.training.variants import with_variants


class Choices(Struct, frozen=True):
    """What is chosen: `tilings` by number of the op, and what stays in L1 between ops."""

    tilings: tuple[TilingChoice, ...]
    residents: Residents
    notes: tuple[str, ...]
    """Why something that was to be resident is not, and what is to be known of the tilings."""
    size: ProgramSize
    """What the program will consist of."""


class Layout(Struct, frozen=True):
    """Where everything lies: `plan` with the slots and buffers of all ops, and the ops as they are cut."""

    plan: MemoryPlan
    ops: tuple[OpSchedule, ...]
    slots: tuple[OpSlots, ...]
    """In L2, of what the ops stream, by number of the op."""
    residents: Residents


def build_schedule(
    graph: TrainingGraph,
    timing: SocTiming,
    cost_model: CostModel,
    options: ScheduleOptions,
    cache: ScheduleCache | None = None,
    resident: Sequence[str] | None = None,
    use: HostUse = TIMING_ONLY,
) -> Schedule:
    """Tile every op, place every tensor and buffer, and emit the program.

    Of the tilings that fit L1 the one with the fewest estimated cycles is taken (`TileLoop`). A
    resident tensor that an op cannot use in place is moved like others, and a note says why. `resident` goes
    before what the options say is resident. `cache` serves all schedules of the same graph, SoC, cost model
    and options, whatever is resident. `use` says what a run will do with the schedule. Raises
    `DoesNotFitError` when L1, L2 or L3 is too small, `InputError` for unknown names in `options` and where a
    run would need more of this computer's memory than is allowed.
    """
    check_names(graph, options)
    graph = with_variants(graph, options.variants)
    # Place: every tensor in L2 or L3, what is copied between them and when, which ops stream from L3.
    placed = plan_memory(graph, timing, options.memory, streamer_of(graph, timing, options))
    # Choose: what stays in L1 between ops; kernel, tiles and loop order of every op.
    cache = cache if cache is not None else ScheduleCache()
    chooser = TilingChooser(
        timing, cost_model, options, cache, code=partial(_code_cost, graph, timing, options, cache)
    )
    choices = _choose(graph, placed, chooser, options.resident if resident is None else resident, use)
    # Lay out: in L1 the buffers of every op beside the residents, in L2 the slots of what is streamed.
    layout = _lay_out(graph, placed, choices, timing, prefetch=options.prefetch)
    # Emit: the actions of the fabric controller and of the master core, op by op.
    builder = _emit(graph, layout, timing)
    plan = replace(layout.plan, streamed_bytes=dict(builder.streamed_bytes))
    plan.check()
    counts = sum((choice.counts for choice in choices.tilings if choice.counts is not None), NO_COUNTS)
    notes = (*plan.notes, *choices.notes)
    texts = choices.residents.texts
    program = builder.program()
    return Schedule(graph, options, layout.ops, plan, program, notes, counts, texts, choices.size)


def _choose(
    graph: TrainingGraph,
    plan: MemoryPlan,
    chooser: TilingChooser,
    resident: Sequence[str],
    use: HostUse,
) -> Choices:
    """A tiling for every op. What an op cannot use in place is resident no more, and all is chosen again.

    After every op what the program will take is compared with what is allowed: tiles are large, too.
    """
    timing, options = chooser.timing, chooser.options
    texts, notes = list(resident), list[str]()
    while True:
        residents = residents_of(graph, plan.owners, texts, timing.l1_usable_bytes)
        tilings: list[TilingChoice] = []
        size = NO_PROGRAM
        for number, op in enumerate(graph.ops):
            in_place, stream = residents.of_op(number), plan.stream(number)
            both = sorted(stream.tensors & in_place.keys())
            if both:
                storage = in_place[both[0]].storage
                texts = without(residents, storage, number)
                notes.append(f"{storage} does not stay in L1: {op.name} streams it from L3")
                break
            tiler = tiler_of(op, graph, timing, options, in_place, stream)
            readable = readable_early(graph, plan, number) if options.prefetch else frozenset[str]()
            early = early_beside(tilings[-1] if tilings else None, readable, timing)
            chooser.check = partial(_check_rest, graph, plan, chooser, residents, use, number, size)
            try:
                choice = chooser.choose(tiler, residents.limit_bytes(number), early)
            except DoesNotFitError as error:
                raise residents.beside(error, number) from None
            if isinstance(choice, NotInPlace):
                texts = without(residents, choice.storage, number)
                notes.append(f"{choice.storage} does not stay in L1: {choice.why}")
                break
            tilings.append(choice)
            size += program_size(tiler, choice.tiling, timing.dma)
            check_host_memory(graph, timing, use, size)
        else:
            notes += [
                f"{op.name}: {choice.note}"
                for op, choice in zip(graph.ops, tilings, strict=True)
                if choice.note
            ]
            return Choices(tuple(tilings), residents, tuple(notes), size)


def _check_rest(
    graph: TrainingGraph,
    plan: MemoryPlan,
    chooser: TilingChooser,
    residents: Residents,
    use: HostUse,
    number: int,
    size: ProgramSize,
    least: ProgramSize,
) -> None:
    """Raise `InputError` if ops before `number` of this `size`, itself and those behind it are too much.

    Asked before an op of very many tiles is built: each such op takes tens of seconds.
    """
    for later in range(number + 1, len(graph.ops)):
        in_place, stream = residents.of_op(later), plan.stream(later)
        tiler = tiler_of(graph.ops[later], graph, chooser.timing, chooser.options, in_place, stream)
        least += chooser.least(tiler, residents.limit_bytes(later))
    check_host_memory(graph, chooser.timing, use, size + least)


def _lay_out(
    graph: TrainingGraph, placed: MemoryPlan, choices: Choices, timing: SocTiming, *, prefetch: bool
) -> Layout:
    """Addresses of everything the tilings need."""
    numbers = range(len(graph.ops))
    tilings = [choice.tiling for choice in choices.tilings]
    plan, slots = placed.with_slots(list(zip(graph.ops, tilings, strict=True)))
    layouts = lay_out_ops(
        tilings,
        [readable_early(graph, plan, number) if prefetch else () for number in numbers],
        timing.l1_usable_bytes,
        timing.l1.banks * timing.l1.word_bytes,
        choices.residents,
    )
    plan = plan.with_l1(zip(graph.ops, (layout.allocations for layout in layouts), strict=True))
    plan = replace(plan, allocations=(*plan.allocations, *choices.residents.allocations))
    ops = tuple(
        OpSchedule(
            op,
            choice.kernel,
            choice.tiling,
            layout,
            lowering_of(op).macs(op, graph.tensors),
            lowering_of(op).useful_macs(op, graph.tensors),
            choice.estimated_cycles,
        )
        for op, choice, layout in zip(graph.ops, choices.tilings, layouts, strict=True)
    )
    return Layout(plan, ops, tuple(slots), choices.residents)


def _emit(graph: TrainingGraph, layout: Layout, timing: SocTiming) -> ProgramBuilder:
    """The builder with all actions: around the tile loop of every op the copies between L2 and L3."""
    plan, ops = layout.plan, layout.ops
    dma = timing.dma
    if timing.l1.tables_bytes:  # which another transfer brings
        dma = replace(dma, transfer_ids=min(dma.transfer_ids - 1, MOST_TRANSFERS))
    builder = ProgramBuilder(graph, partial(plan.place, 0), cores=timing.cores, dma=dma)
    staging = StagingEmitter(plan, graph, builder.actions, [item.layout.resident for item in ops])
    for number, item in enumerate(ops):
        # Loads pushed early for the next op use these places as well: only of tensors `plan.readable` here.
        builder.home = partial(plan.place, number)
        staging.before(number)
        upcoming = next(((each.op, each.tiling, each.layout) for each in ops[number + 1 : number + 2]), None)
        builder.add_op(item.op, item.tiling, item.layout, upcoming, layout.slots[number])
        staging.after(number)
        ending = [*item.layout.allocations, *layout.residents.ending(number), *plan.ending(number)]
        builder.add_release(item.op, places_of(ending), _results(graph, plan, number, item.layout))
    return builder


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
            options.buffer_gap_bytes,
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
    codes = [
        functions_bytes(op_codes(with_variants(graph, options.variants), timing, options))
        for graph, options in zip(graphs, chosen, strict=True)
    ]
    return [
        replace(options, memory=plan, code_beside_bytes=beside_bytes)
        for options, plan, beside_bytes in zip(chosen, plans, reversed(codes), strict=True)
    ]


def streamer_of(graph: TrainingGraph, timing: SocTiming, options: ScheduleOptions) -> Streamer:
    """What chooses which tensors the ops of a graph stream, for `plan_memory`."""
    graph = with_variants(graph, options.variants)

    def tiler(number: int) -> Tiler:
        return tiler_of(graph.ops[number], graph, timing, options)

    def fixed(tiler: Tiler) -> Tiling | None:
        sizes = options.tile_sizes.get(tiler.op.name)
        order = options.loop_orders.get(tiler.op.name)
        if sizes is None and order is None and options.buffer_depth != WHOLE_OPS:
            return None
        return tiler.build(sizes or {}, order or ())

    return Streamer(graph, timing, tiler, fixed)


def op_codes(graph: TrainingGraph, timing: SocTiming, options: ScheduleOptions) -> list[OpCode]:
    """The code of the ops of a graph, before they are cut."""
    return [op_code(tiler_of(op, graph, timing, options), timing.l1_usable_bytes) for op in graph.ops]


def lost_code(graph: TrainingGraph, timing: SocTiming, options: ScheduleOptions) -> Lost | None:
    """What of its code an op of a graph does not find in the shared cache; None if all code starts warm."""
    if options.code_start == WARM:
        return None
    cold = options.code_start == COLD
    return Lost(timing, op_codes(graph, timing, options), options.code_beside_bytes, cold=cold)


def _code_cost(
    graph: TrainingGraph, timing: SocTiming, options: ScheduleOptions, cache: ScheduleCache
) -> CodeCost | None:
    """What ops wait for their code, asked only where a tiling is not kept; None if all code starts warm."""
    if cache.code is None and (lost := lost_code(graph, timing, options)) is not None:
        cache.code = CodeCost(timing, lost)
    return cache.code


def code_of_op_alone(graph: TrainingGraph, timing: SocTiming, options: ScheduleOptions) -> str:
    """What the instruction caches hold when an op of a graph is simulated alone: nothing of its code, or
    where most of a program survives what an iteration of the op alone leaves."""
    lost = lost_code(graph, timing, options)
    if lost is None:
        return WARM
    return COLD if lost.is_walked or lost.own >= MOST else STEADY


def multiplying(graph: TrainingGraph, variants: Mapping[str, str]) -> list[Op]:
    """The ops that a kernel can be chosen for: those with a matmul in the variants that are asked for."""
    return [op for op in with_variants(graph, variants).ops if lowering_of(op).default_kernel(op)]


def check_names(graph: TrainingGraph, options: ScheduleOptions) -> None:
    """Raise `InputError` for an op or step that the graph has not, or that has no matmul for a kernel."""
    ops = {op.name for op in graph.ops}
    for option, named in (
        ("--tile", options.tile_sizes),
        ("--loop-order", options.loop_orders),
        ("--buffering", options.buffers),
    ):
        for name in named:
            if name not in ops:
                names = ", ".join(sorted(ops))
                raise InputError(
                    f"model {graph.name} has no op {name!r}", where=option, cure=f"use one of {names}"
                )
    multiply = {name for op in multiplying(graph, options.variants) for name in (op.name, op.step)}
    for name, kernel in options.kernels.items():
        if name not in multiply:
            is_known = any(name in (op.name, op.step) for op in graph.ops)
            swapped = kernel in multiply
            others = f"use one of {', '.join(sorted(multiply))}" if multiply else "remove --kernel"
            raise InputError(
                f"{name} does not use a matmul kernel"
                if is_known
                else f"--kernel {name}={kernel}: no op or step that can choose its kernel has this name",
                where=graph.name,
                cure=f"write the op first: --kernel {kernel}={name}" if swapped else others,
            )
