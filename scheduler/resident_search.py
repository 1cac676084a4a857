# SPDX-License-Identifier: Apache-2.0
"""The search of residents: which tensors stay in L1 between ops, by simulating the whole iteration."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from arch.pricing.code_caches import WARM
from arch.pricing.cost_model import CostModel
from arch.spec.timing import SocTiming
from configs.errors import DoesNotFitError, InputError
from configs.values import Struct, replace
from scheduler.addresses.allocation import align
from scheduler.addresses.lifetimes import Life, storage_lives
from scheduler.code_in_l2 import Linked, Plan, has_code, with_code_in_l2, with_l2
from scheduler.memory.host_memory import TIMING_ONLY, HostUse
from scheduler.options import AUTO, ScheduleOptions
from scheduler.planned import Schedule
from scheduler.programs.program_code import with_code
from scheduler.schedule import build_schedule, in_one_memory
from scheduler.schedule_cache import ScheduleCache
from scheduler.table_form import with_tables
from scheduler.tiles.code_sizes import shipped_sizes
from scheduler.tiles.estimate import TileCost
from scheduler.tiles.resident_tensors import text_of
from traces.events import Slice, TeamKernel
from trainlib.ir.graph import TrainingGraph
from trainlib.ir.steps import Operand

SIMULATIONS = 32
"""Simulations of the iteration the pass may spend, the one without resident tensors included."""

PATIENCE = 4
"""Groups in a row that bring nothing worth a look, after which the search ends."""

DMA_STALLS = ("dma_wait", "dma_program")
MASTER = "core0"
"""Track of the core that drives the DMA."""

WORTH_A_LOOK = 1e-4
"""Least part of the cycles of the iteration that the transfers saved by a candidate take."""


class FoundResidents(Struct, frozen=True):
    """What stays in L1 (`ScheduleOptions.resident`), and cycles of the iteration without and with it.

    `candidates` are the spans of tensors that save transfers, `simulations` how often the iteration was
    simulated. `after_cycles` is never more than `before_cycles`.
    """

    resident: tuple[str, ...]
    before_cycles: int
    after_cycles: int
    candidates: int
    simulations: int


class ResidentSpan(Struct, frozen=True):
    """A storage in L1 from op `first_op` to `last_op`: bytes it takes, and DMA cycles it saves at most."""

    text: str
    storage: str
    first_op: int
    last_op: int
    size_bytes: int
    saved_cycles: int
    buffer_bytes: Mapping[int, int]
    """Op -> L1 bytes of the buffers that it spares."""

    @property
    def ops(self) -> range:
        """The ops during which it lies there."""
        return range(self.first_op, self.last_op + 1)

    def own_bytes(self, op: int) -> int:
        """L1 bytes an op does not need any more."""
        return self.buffer_bytes.get(op, 0)

    @property
    def gain(self) -> float:
        """Cycles saved per byte and op it lies there."""
        return self.saved_cycles / (max(1, self.size_bytes) * (self.last_op - self.first_op + 1))


def schedules_for(
    graphs: Sequence[TrainingGraph],
    timing: SocTiming,
    cost_model: CostModel,
    asked: Sequence[ScheduleOptions],
    caches: Sequence[ScheduleCache] = (),
    use: HostUse = TIMING_ONLY,
    linked: Linked | None = None,
    place: Callable[[Plan, SocTiming, Linked | None], list[Schedule]] = with_code_in_l2,
) -> list[Schedule]:
    """`build_schedule` of the programs of an iteration, which lie in one memory.

    Resident tensors that the options leave to it (`AUTO`) are those of `choose_resident`; what a cache says
    of an earlier choice is taken. Where code is fetched `place` finds room in L2 for that of all programs,
    as it was `linked`.
    """
    caches = caches or [ScheduleCache() for _ in graphs]

    def plan(machine: SocTiming) -> list[Schedule]:
        found: list[Schedule] = []
        for number, options in enumerate(in_one_memory(graphs, machine, asked)):
            beside = replace(use, beside=sum((item.size for item in found), use.beside))
            cache = caches[number] if machine is timing else caches[number].of_another_l2()
            found.append(_schedule_beside_code(graphs[number], machine, cost_model, options, cache, beside))
        return found

    return place(plan, timing, linked) if has_code(timing, asked[0].code_start) else plan(timing)


def _schedule_beside_code(
    graph: TrainingGraph,
    timing: SocTiming,
    cost_model: CostModel,
    options: ScheduleOptions,
    cache: ScheduleCache,
    use: HostUse,
) -> Schedule:
    if tuple(options.resident) != (AUTO,):
        return build_schedule(graph, timing, cost_model, options, cache, use=use)
    if cache.resident is not None:
        try:
            return build_schedule(graph, timing, cost_model, options, cache, cache.resident, use)
        except (InputError, DoesNotFitError):
            # It comes from a file that others may have changed: this model has no such tensors.
            cache.resident = None
    choice = choose_resident(graph, timing, cost_model, options, cache=cache)
    # Spans that an op refuses, and that were taken with others, are left out.
    schedule = build_schedule(graph, timing, cost_model, options, cache, choice.resident, use)
    cache.resident = schedule.resident
    if schedule.resident == choice.resident:
        return schedule
    return build_schedule(graph, timing, cost_model, options, cache, cache.resident, use)


def choose_resident(
    graph: TrainingGraph,
    timing: SocTiming,
    cost_model: CostModel,
    options: ScheduleOptions,
    *,
    simulations: int = SIMULATIONS,
    cache: ScheduleCache | None = None,
) -> FoundResidents:
    """Find tensors whose stay in L1 makes the iteration faster, for the tiles and kernels of some options.

    Candidates are all spans between two uses of a tensor that save transfers worth looking at. They are tried
    in groups, first those that leave the tiles as they are, then whatever fits L1, by the cycles saved per
    byte and op. One simulation of the whole iteration judges a group: the ops run one after another, so every
    span is charged with what its ops and their neighbours gain or lose. If some lose, the others are
    simulated again. A set is taken if the iteration takes fewer cycles with it; of a group of which nothing
    helps the halves are tried. Tiles the options do not fix are chosen anew beside what is resident. What
    `options.resident` says is not looked at. The result depends on nothing but the arguments; `cache`
    (`build_schedule`) saves time only. Raises what `build_schedule` raises without resident tensors.
    """
    search = _Search(graph, timing, cost_model, options, simulations, cache or ScheduleCache())
    before = search.start()
    candidates = [
        item
        for item in resident_spans(search.base, timing, cost_model, search.waits)
        if item.saved_cycles >= WORTH_A_LOOK * before
    ]
    search.improve(candidates)
    return FoundResidents(
        tuple(item.text for item in search.taken), before, search.cycles, len(candidates), search.simulations
    )


@dataclass(eq=False)
class _Search:
    """The set so far and its cycles, and the simulations spent."""

    _graph: TrainingGraph
    _timing: SocTiming
    _cost_model: CostModel
    _options: ScheduleOptions
    _most: int
    _cache: ScheduleCache
    base: Schedule = field(init=False)
    taken: list[ResidentSpan] = field(default_factory=list, init=False)
    cycles: int = field(default=0, init=False)
    simulations: int = field(default=0, init=False)
    in_vain: int = field(default=0, init=False)
    waits: Mapping[str, int] = field(default_factory=dict, init=False)
    """Op -> cycles its master waits for the DMA or programs it, with nothing resident."""
    _ops: Sequence[int] = field(default=(), init=False)
    """Cycles of each op with what is taken so far."""

    def __post_init__(self) -> None:
        self._cache.keep_rankings = True

    def start(self) -> int:
        """Simulate the iteration with nothing resident; its cycles."""
        first = self._simulate(())
        assert first is not None, "a schedule without resident tensors must fit"
        self.cycles, watch = first
        self.waits, self._ops = watch.waits, watch.op_cycles(self.base)
        return self.cycles

    def _simulate(self, candidates: Sequence[ResidentSpan]) -> tuple[int, _Watch] | None:
        """Cycles of the iteration with these tensors resident, and of its ops; None if they do not fit."""
        self.simulations += 1
        resident = tuple(item.text for item in candidates)
        try:
            schedule = build_schedule(
                self._graph, self._timing, self._cost_model, self._options, self._cache, resident
            )
        except DoesNotFitError:
            if not candidates:
                raise
            return None
        if not candidates:
            self.base = schedule
        watch = _Watch()
        from arch.blocks.soc import Soc  # a run whose figures are kept does without

        timing = self._timing
        if timing.l1.tables_bytes:
            (schedule,), tables_bytes = with_tables([schedule], timing, shipped_sizes())
            # Who asks finds room for them, or has left it: cycles do not depend on where L2 ends.
            timing = with_l2(timing, align(timing.l2.size_bytes) + tables_bytes)
        soc = Soc(timing, self._cost_model, watch, code_start=self._options.code_start)
        program = schedule.program if self._options.code_start == WARM else with_code(schedule.program)
        return soc.run(program, effects=False).cycles, watch

    def improve(self, candidates: Sequence[ResidentSpan]) -> None:
        """Take what helps of the candidates: first what leaves the tiles as they are, then whatever fits."""
        tried: set[str] = set()
        free_bytes = [self._timing.l1_usable_bytes - op.tiling.l1_bytes for op in self.base.ops]
        for room in (free_bytes, [self._timing.l1_usable_bytes] * len(free_bytes)):
            while not self._over():
                group = self._fitting([item for item in candidates if item.text not in tried], room)
                if not group:
                    break
                self._try(group)
                tried |= {item.text for item in group}

    def _fitting(self, candidates: Sequence[ResidentSpan], room: Sequence[int]) -> list[ResidentSpan]:
        """One span per storage, beside those taken and within the room of each op: the one that saves most.

        Storages go in the order of their best candidate.
        """
        chosen: list[ResidentSpan] = []
        held: Counter[int] = Counter()
        for item in self.taken:
            held.update(dict.fromkeys(item.ops, item.size_bytes))
        for storage in dict.fromkeys(item.storage for item in candidates):
            fitting = [
                item
                for item in candidates
                if item.storage == storage
                and all(held[op] + item.size_bytes - item.own_bytes(op) <= room[op] for op in item.ops)
                and not any(_clash(item, other) for other in self.taken)
            ]
            if fitting:
                item = max(fitting, key=lambda item: (item.saved_cycles, item.gain))
                chosen.append(item)
                held.update(dict.fromkeys(item.ops, item.size_bytes))
        return chosen

    def _try(self, group: Sequence[ResidentSpan]) -> None:
        waiting = [list(group)]
        while waiting and not self._over():
            some = waiting.pop(0)
            before, before_cycles = list(self.taken), self.cycles
            helping = self._helping(some, self._attempt([*before, *some]))
            if 0 < len(helping) < len(some) and not self._over():
                self._attempt([*before, *helping])
            if before_cycles - self.cycles >= WORTH_A_LOOK * before_cycles:
                self.in_vain = 0
                continue
            self.in_vain += 1
            if self.cycles == before_cycles and len(some) > 1:
                half = len(some) // 2
                waiting[:0] = [some[:half], some[half:]]

    def _attempt(self, candidates: list[ResidentSpan]) -> Sequence[int] | None:
        """Take these if the iteration is faster; by how much each op got slower, None if they do not fit."""
        before = self._ops
        simulated = self._simulate(candidates)
        if simulated is None:
            return None
        cycles, watch = simulated
        ops = watch.op_cycles(self.base)
        if cycles < self.cycles:
            self.taken, self.cycles, self._ops = candidates, cycles, ops
        return [after - earlier for after, earlier in zip(ops, before, strict=True)]

    def _helping(self, some: Sequence[ResidentSpan], slower: Sequence[int] | None) -> list[ResidentSpan]:
        """Those whose ops, with the ones beside them and with those of spans that meet them, got faster."""
        if slower is None:
            return []
        ends = sorted(some, key=lambda item: (item.first_op, item.last_op))
        helping: set[str] = set()
        while ends:
            together = [ends.pop(0)]
            last = together[0].last_op
            while ends and ends[0].first_op <= last + 1:
                together.append(ends.pop(0))
                last = max(last, together[-1].last_op)
            if sum(slower[max(0, together[0].first_op - 1) : last + 2]) < 0:
                helping |= {item.text for item in together}
        return [item for item in some if item.text in helping]

    def _over(self) -> bool:
        return self.simulations >= self._most or self.in_vain >= PATIENCE


class _Watch:
    """A tracer that keeps, per op, what the master core spends on transfers and when it is last at work."""

    def __init__(self) -> None:
        self.waits: Counter[str] = Counter()
        self._ends: dict[str, int] = {}

    def slice(self, event: Slice) -> None:
        """Look at what core 0 does."""
        if not event.track.endswith(MASTER):
            return
        name = f"{event.work.op}.{event.work.step}"
        self._ends[name] = max(self._ends.get(name, 0), event.end_cycles)
        if event.kind in DMA_STALLS:
            self.waits[name] += event.end_cycles - event.start_cycles

    def team(self, kernel: TeamKernel) -> None:
        """Look at what core 0 does in it."""
        for event in kernel.master_slices():
            self.slice(event)

    def counter(self, track: str, name: str, time_cycles: int, value: int) -> None:
        """Nothing to keep."""

    def op_cycles(self, schedule: Schedule) -> list[int]:
        """Cycles from the end of the op before to the end of each op."""
        cycles_of_ops: list[int] = []
        now = 0
        for op in schedule.ops:
            end_cycles = max(now, self._ends.get(op.op.name, 0))
            cycles_of_ops.append(end_cycles - now)
            now = end_cycles
        return cycles_of_ops


def _clash(one: ResidentSpan, other: ResidentSpan) -> bool:
    return one.storage == other.storage and one.first_op <= other.last_op and other.first_op <= one.last_op


def resident_spans(
    schedule: Schedule, timing: SocTiming, cost_model: CostModel, waits: Mapping[str, int]
) -> list[ResidentSpan]:
    """Spans of tensors that save transfers of a schedule without resident ones, most cycles per byte first.

    What transfers take beside kernels nobody waits for, so an op cannot gain more than its `waits` (cycles by
    name). Left out are spans that save nothing, and tensors larger than L1.
    """
    graph, plan = schedule.graph, schedule.plan
    cost = TileCost(timing, cost_model, graph.tensors)
    names = [op.op.name for op in schedule.ops]
    moved: Counter[tuple[str, int]] = Counter()
    buffers: dict[str, Counter[int]] = {}
    for number, op in enumerate(schedule.ops):
        tensors = {("in", item.name): item.tensor for task in op.tiling.tiles for item in task.inputs}
        tensors |= {("out", item.name): item.tensor for task in op.tiling.tiles for item in task.written}
        for buffer in op.tiling.buffers:
            if buffer.role != "scratch":
                owner = plan.owners[tensors[buffer.role, buffer.name]]
                buffers.setdefault(owner, Counter())[number] += buffer.size_bytes
        last: dict[str, Operand] = {}
        for task in op.tiling.tiles:
            fresh = [operand for operand in task.inputs if last.get(operand.name) != operand]
            last |= {operand.name: operand for operand in fresh}
            for operands, to_l1 in ((fresh, True), (task.outputs, False)):
                for operand in operands:
                    moved[plan.owners[operand.tensor], number] += round(
                        cost.transfer([operand], to_l1=to_l1).done_cycles
                    )
    spans: list[ResidentSpan] = []
    for life in storage_lives(graph, plan.owners).values():
        size_bytes = align(life.size_bytes)
        if not 0 < size_bytes <= timing.l1_usable_bytes:
            continue
        whole = Operand(life.name, tuple((0, size) for size in graph.tensors[life.name].shape))
        once_in, once_out = (
            round(cost.transfer([whole], to_l1=to_l1).done_cycles) for to_l1 in (True, False)
        )
        for first_op, last_op in _spans(life):
            uses = [use for use in life.uses if first_op <= use <= last_op]
            saved = sum(moved[life.name, use] for use in uses)
            if first_op in life.reads and (life.given or first_op > life.first_op):
                saved -= once_in
            if any(use in life.writes for use in uses) and (life.kept or last_op < life.uses[-1]):
                saved -= once_out
            saved = min(saved, sum(min(moved[life.name, use], waits[names[use]]) for use in uses))
            if saved > 0:
                text = text_of(graph, life.name, life.uses, first_op, last_op)
                spans.append(
                    ResidentSpan(text, life.name, first_op, last_op, size_bytes, saved, buffers[life.name])
                )
    return sorted(spans, key=lambda item: (-item.gain, item.first_op, item.text))


def _spans(life: Life) -> Iterator[tuple[int, int]]:
    for position, first_op in enumerate(life.uses):
        for last_op in life.uses[position:]:
            yield first_op, last_op
