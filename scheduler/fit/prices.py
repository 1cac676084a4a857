# SPDX-License-Identifier: Apache-2.0
"""What ops and copies are priced with: cycles, and what they cost beside their time."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from arch.blocks.soc import Soc, core_paths
from arch.energy.activity import activity_of
from arch.pricing.team_cost_model import TeamCostModel
from arch.spec.program import Program
from arch.spec.timing import SocTiming
from configs.values import Struct, replace
from scheduler.addresses.allocation import align
from scheduler.addresses.lifetimes import storage_lives
from scheduler.addresses.plan_options import ALL_OTHERS, STREAMED, PlanOptions
from scheduler.counted_run import CountedRun
from scheduler.options import ScheduleOptions
from scheduler.schedule import build_schedule
from scheduler.table_form import alone_with_code
from scheduler.tiles.l2_slots import OpStream
from scheduler.tuner.objective import Objective
from scheduler.tuner.task import task_of
from traces.recorder import Recorder
from trainlib.ir.graph import Op, TrainingGraph

UNITS_OF_JOULE = 10**15
"""Energy is priced in whole femtojoules, as `Objective` has them."""


class Price(Struct, frozen=True):
    """Cycles of an op, and what it costs beside its time; if it streams, the bytes of its slots in L2."""

    cycles: int = 0
    cost: int = 0
    slot_bytes: int = 0


def _unknown(graph: TrainingGraph, op: Op, stream: OpStream) -> Price:
    return Price(slot_bytes=stream.window_bytes)


class Prices(Struct, frozen=True):
    """Of ops by name, with all their tensors in L2, and of ops that stream; of a cycle; of a byte copied.

    As it stands the cost is cycles, and ops that stream take no longer than their transfers.
    """

    ops: Mapping[str, Price] = {}
    streamed: Callable[[TrainingGraph, Op, OpStream], Price] = _unknown
    cycle_cost: int = 1
    byte_cost: float = 0.0

    def of(self, name: str) -> Price:
        """An op that finds all its tensors in L2; nothing for one without a price."""
        return self.ops.get(name, Price())

    def copy_cost(self, size_bytes: int) -> int:
        """A copy between L2 and L3, beside its time."""
        return round(self.byte_cost * size_bytes)


def energy_prices(
    joules: Mapping[str, tuple[int, float]], objective: Objective, timing: SocTiming, streamed: StreamedOps
) -> Prices:
    """Prices in femtojoules, of ops that took so many cycles and joules.

    While the cluster waits for a copy its cores sleep, and clock and leakage go on.
    """
    cycle_cost = objective.cost({"asleep_cycles": timing.cores}, 1)
    million = 10**6
    ops = {
        name: Price(cycles, round(each * UNITS_OF_JOULE) - cycle_cost * cycles)
        for name, (cycles, each) in joules.items()
    }

    def price(graph: TrainingGraph, op: Op, stream: OpStream) -> Price:
        found = streamed(graph, op, stream)
        return replace(found, cost=found.cost - cycle_cost * found.cycles)

    return Prices(ops, price, cycle_cost, objective.cost({"l3_read_bytes": million}, 0) / million)


class StreamedOps:
    """Prices of ops that stream: each is simulated alone, the rest of its tensors in L2; equal ones once.

    The `code_start` of the options is that of an op alone.
    """

    def __init__(self, timing: SocTiming, options: ScheduleOptions, objective: Objective) -> None:
        self._timing, self._options, self._objective = timing, options, objective
        self._known: dict[tuple[str, frozenset[str], int, int], Price] = {}
        self._cost_model = TeamCostModel(timing)
        self._hand_over_cycles = self._simulated(Program("nothing", ()), timing)

    def __call__(self, graph: TrainingGraph, op: Op, stream: OpStream) -> Price:
        """Cycles, and all it costs by the objective (0 where that is cycles)."""
        task = task_of(graph, op)
        streamed = frozenset(role for role, tensor in op.roles.items() if tensor in stream.tensors)
        key = task.content, streamed, stream.window_bytes, stream.most_slots
        if key not in self._known:
            self._known[key] = self._price(task.graph, streamed & task.graph.tensors.keys(), stream)
        return self._known[key]

    def _price(self, graph: TrainingGraph, streamed: frozenset[str], stream: OpStream) -> Price:
        """Of the only op of a graph. L2 has room for what it does not stream, and the slots."""
        op = graph.ops[0]
        outside = {graph.storage_of(name) for name in streamed}
        whole_bytes = sum(
            align(life.size_bytes) for name, life in storage_lives(graph).items() if name not in outside
        )
        size_bytes = whole_bytes + stream.window_bytes
        timing = replace(self._timing, l2=replace(self._timing.l2, size_bytes=size_bytes))
        memory = PlanOptions(homes={ALL_OTHERS: "l2", **dict.fromkeys(sorted(streamed), STREAMED)})
        options = replace(self._options, memory=memory, buffers={}, resident=())
        schedule = build_schedule(graph, timing, self._cost_model, options)
        slots = [item for item in schedule.plan.allocations if item.level == "l2" and item.staged]
        slot_bytes = sum(item.size_bytes for item in slots)
        if not self._objective.counts:
            cycles = self._simulated(schedule.program, timing)
            return Price(cycles - self._hand_over_cycles, slot_bytes=slot_bytes)
        counted = CountedRun(schedule.program, core_paths(timing), traced=False)
        metrics = counted.metrics(self._simulated(schedule.program, timing, counted.recorder))
        activity = activity_of(schedule.program, metrics, timing, graph.formats)
        counts = activity.by_op[op.name]
        return Price(counts["cycles"], self._objective.cost(counts, counts["cycles"]), slot_bytes)

    def _simulated(self, program: Program, timing: SocTiming, recorder: Recorder | None = None) -> int:
        program, start = alone_with_code(program, timing, self._options.code_start)
        soc = Soc(timing, self._cost_model, recorder, detect_races=False, code_start=start)
        return soc.run(program, effects=False, logged=False).cycles
