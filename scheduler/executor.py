# SPDX-License-Identifier: Apache-2.0
"""Carries out a schedule on a simulated SoC: values in, one timed iteration, any number of replayed ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from arch.blocks.soc import RunResult, Soc
from arch.pricing.code_caches import WARM
from arch.pricing.cost_model import CostModel
from arch.spec.program import Array, Place, Release
from arch.spec.timing import SocTiming
from configs.errors import InputError, NotFiniteError
from scheduler.addresses.lifetimes import Runs
from scheduler.code_in_l2 import placed_with_code
from scheduler.memory.completeness import check_complete
from scheduler.memory.plan_check import check_program
from scheduler.planned import Schedule
from traces.events import NullTracer, Tracer
from trainlib.references.reference import check_values_of, not_finite

Watch = Callable[[str, Mapping[str, Array]], None]
"""Called when an op ends, with its name and copies of the tensors it has written, as they lie in memory."""


class Executor:
    """Runs the program of a schedule on a `Soc`, by default one of its own.

    The first iteration is simulated event by event; later ones replay the recorded order of its DMA copies
    and kernels on new inputs, which gives the numbers of an iteration without its timing. Memory contents
    persist, so updated weights carry over. Where an op makes an infinity or a NaN the iteration goes on, so
    that its cycles are known; `not_finite` then names the first such op. Raises
    `addresses.allocation.PlanError` for a plan in which live buffers overlap, or a program that leaves its
    plan, `memory.completeness.IncompleteError` for one that does not make all of its graph, and
    `DoesNotFitError` where L2 has no room for the code beside the plan (unless all starts warm). `code_start`
    is that of `arch.blocks.soc.Soc`. A `soc` that is given (with its tracer) is shared with the executors of
    other programs: they find in its memories what this one leaves.
    """

    def __init__(
        self,
        schedule: Schedule,
        timing: SocTiming,
        cost_model: CostModel,
        tracer: Tracer | None = None,
        *,
        functional: bool = True,
        code_start: str = WARM,
        soc: Soc | None = None,
    ) -> None:
        self.soc = soc or Soc(timing, cost_model, tracer or NullTracer(), code_start=code_start)
        given = schedule
        if self.soc.code_start != WARM and schedule.program.code is None:
            (schedule,) = placed_with_code(lambda _: [given], timing)
        check_program(schedule.program, schedule.plan)
        check_complete(schedule.program, schedule.graph, schedule.plan)
        self.schedule = schedule
        self.functional = functional
        self.watch: Watch | None = None
        self.record: Watch | None = None
        """Told as `watch` is, of what is to be kept beside what is checked."""
        self.change: Callable[[str, Array], None] | None = None
        """Called with what an op has left, where that lies in its home and nowhere else: it may change it."""
        self.not_finite: NotFiniteError | None = None
        self.ended: list[tuple[str, int]] = []
        """Ops of the iteration in the order in which they ended, and of how many results each has told."""
        self.losses: list[float] = []
        """What the ops of the losses have left in that iteration."""
        self.written: dict[str, bytes] = {}
        """What each op of that iteration has left of the tensors that live on, by what holds it."""
        self._losses = frozenset(schedule.graph.losses)
        self._updated = {updated: name for name, updated in schedule.graph.updates.items()}
        self._result: RunResult | None = None
        self._parts = parts_in_l2(schedule)

    def place(self, name: str) -> Place:
        """Where the tensor `name` lives in its home memory, L2 or L3 (an alias: where its target lives)."""
        tensor = self.schedule.graph.tensors[name]
        home = self.schedule.plan.home(name)
        return Place(home.level, home.address, tensor.shape, tensor.dtype, name)

    def load(self, values: Mapping[str, Array]) -> None:
        """Put tensors into the home memory. Raises `InputError` for an unknown name and for values that
        `trainlib.references.reference.check_values_of` refuses: another shape, or NaN.
        """
        for name in values:
            if name not in self.schedule.graph.tensors:
                raise InputError(
                    f"{self.schedule.graph.name} has no tensor {name!r}",
                    cure=f"remove {name!r} from the values",
                )
        check_values_of(self.schedule.graph, values)
        for name, array in values.items():
            self.soc.load(self.place(name), array)

    def fetch(self, name: str) -> Array:
        """A copy of a tensor as it lies in its home memory now."""
        return self.soc.fetch(self.place(name))

    def bytes_of(self, name: str) -> Array:
        """The bytes of a tensor in its home memory, as they are whenever one looks."""
        home, tensor = self.schedule.plan.home(name), self.schedule.graph.tensors[name]
        return self.soc.view(Place(home.level, home.address, (tensor.size_bytes,), "uint8", name))

    def simulate(self, *, logged: bool = True) -> RunResult:
        """Simulate one iteration in time, numbers included unless the executor was made non-functional.

        It can be replayed if it is `logged`.
        """
        self._begin()
        with np.errstate(all="ignore"):
            self._result = self.soc.run(self.schedule.program, effects=self.functional, logged=logged)
        return self._result

    def replay(self) -> None:
        """Compute one more iteration in the recorded order of effects, without simulating time."""
        if self._result is None:
            self.simulate()
        else:
            self._begin()
            with np.errstate(all="ignore"):
                self.soc.replay(self._result.effect_log)

    def _begin(self) -> None:
        self.not_finite = None
        self.ended, self.losses, self.written = [], [], {}
        self.soc.watch(self._op_ended)

    def _op_ended(self, action: Release, results: Sequence[Array]) -> None:
        op = f"{action.work.op}.{action.work.step}"
        for place, array in zip(action.results, results, strict=True):
            if self.change is not None and place == self.place(place.name):
                self.change(place.name, array)
        tensors = dict(zip([place.name for place in action.results], results, strict=True))
        self.ended.append((op, len(tensors)))
        for name, runs in self._parts.get(op, {}).items():
            if name in tensors:
                tensors[name] = _with_part(self.fetch(name), tensors[name], runs)
        for name, array in tensors.items():
            if name in self._updated:
                self.written[self._updated[name]] = array.tobytes()
            elif name in self._losses:
                self.losses.append(float(array.flat[0]))
        if self.not_finite is None:
            self.not_finite = not_finite(op, tensors)
        for told in (self.watch, self.record):
            if told is not None:
                told(op, {name: array.copy() for name, array in tensors.items()})


def parts_in_l2(schedule: Schedule) -> dict[str, dict[str, Runs]]:
    """Op -> results of which L2 has a part only: the bytes that are there; the others are in L3."""
    plan, parts = schedule.plan, dict[str, dict[str, Runs]]()
    copies = [stay for stay in plan.stays if stay.part_in]
    for number, op in enumerate(schedule.graph.ops if copies else ()):
        there = {stay.tensor: stay for stay in copies if stay.needed_op <= number <= stay.last_op}
        for name in op.outputs:
            if plan.owners[name] in there:
                parts.setdefault(op.name, {})[name] = there[plan.owners[name]].part_in
    return parts


def _with_part(whole: Array, part: Array, runs: Runs) -> Array:
    """`whole`, of which these bytes are those of `part`."""
    ours, theirs = (np.ascontiguousarray(array).reshape(-1).view(np.uint8) for array in (whole, part))
    for first, size_bytes in runs:
        ours[first : first + size_bytes] = theirs[first : first + size_bytes]
    return whole
