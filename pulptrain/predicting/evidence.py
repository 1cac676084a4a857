# SPDX-License-Identifier: Apache-2.0
"""One run as the ground of predictions: its programs, what each executed, and simulations of them changed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from arch.blocks.soc import Soc
from arch.pricing.code_caches import WARM
from arch.pricing.cost_model import CostModel
from arch.spec.program import Program
from arch.spec.timing import SocTiming
from pulptrain.running.critical import lags_of
from pulptrain.running.machine import Machine, Prepared
from scheduler.planned import Schedule
from scheduler.programs.program_code import with_code
from traces.critical.activities import Graph, graph_of


@dataclass(frozen=True, slots=True)
class Executed:
    """A program, the graph of what it executed, and how often it is carried out in an update."""

    schedule: Schedule
    graph: Graph
    times: int


class Evidence:
    """An update, simulated in time without numbers.

    `code_start` is that of `arch.blocks.soc.Soc`; `plan` prepares the same model for `more_l1_bytes`
    more of L1.
    """

    def __init__(
        self, prepared: Prepared, code_start: str, plan: Callable[[], Prepared], more_l1_bytes: int
    ) -> None:
        self.prepared = prepared
        self.timing = prepared.timing
        self.more_l1_bytes = more_l1_bytes
        self.code_start = code_start
        self._plan = plan
        lags = lags_of(prepared.timing)
        machine = Machine(prepared, functional=False, code_start=code_start)
        machine.iterate([{}])
        self.programs = tuple(
            Executed(phase.schedule, graph_of(phase.recorder.slices, lags), times)
            for phase, times in zip(machine.phases, (prepared.phases.mini_batches, 1), strict=False)
        )

    @cached_property
    def larger(self) -> Prepared:
        """The model prepared for more L1."""
        return self._plan()

    @property
    def cycles(self) -> int:
        """Cycles of the update."""
        return self.of_all(lambda item: item.graph.cycles)

    def of_all(self, cycles: Callable[[Executed], int]) -> int:
        """Cycles of the update, given those of each program."""
        return sum(cycles(item) * item.times for item in self.programs)

    def simulated(
        self,
        timing: SocTiming,
        prices: CostModel,
        change: Callable[[Program], Program] = lambda program: program,
    ) -> int:
        """Cycles of the update with the same programs, or what `change` makes of them, on a machine."""

        def cycles(item: Executed) -> int:
            soc = Soc(timing, prices, detect_races=False, code_start=self.code_start)
            program = change(item.schedule.program)
            if self.code_start != WARM:
                program = with_code(program)
            return soc.run(program, effects=False).cycles

        return self.of_all(cycles)

    def simulated_larger(self) -> int:
        """Cycles of the update as it is planned for more L1."""
        return Evidence(self.larger, self.code_start, self._plan, 0).cycles
