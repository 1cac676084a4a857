# SPDX-License-Identifier: Apache-2.0
"""What a candidate takes: the op alone, tensors in L2, simulated by the event model without numbers."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from arch.blocks.soc import Soc, core_paths
from arch.energy.activity import activity_of, counts_of
from arch.pricing.code_caches import WARM
from arch.pricing.team_cost_model import TeamCostModel
from arch.spec.program import Program
from arch.spec.timing import SocTiming
from configs.errors import PulptrainError
from configs.values import Struct
from scheduler.counted_run import CountedRun
from scheduler.search.workers import PerThread
from scheduler.table_form import alone_with_code
from scheduler.tuner.cut_programs import CutPrograms, Form, Tiles
from scheduler.tuner.lower_bound import LowerBound, Timeline
from scheduler.tuner.search_space import Cut, Question, list_cuts
from traces.recorder import Recorder

MACHINES_KEPT = 2
"""SoCs a worker keeps built, each with the kernels it has priced."""

CUTS_KEPT = 8
"""Cuts whose programs a machine remembers; the kernels of a cut come one after another."""

FLOORS_KEPT = 50_000
"""Lower bounds of kernels a machine remembers."""


class Evaluation(Struct, frozen=True):
    """Cycles of the op from its first action to its last, hand-over to the cluster excluded; tiles; L1 bytes.

    `refused` says why the candidate is impossible (a kernel without this transposition); empty if it is not.
    """

    cycles: int
    tiles: int = 0
    l1_bytes: int = 0
    refused: str = ""
    cost: int = 0
    """What the objective makes small; 0 where that is the cycles."""

    @property
    def rank(self) -> int:
        """The less the better."""
        return self.cost or self.cycles


class _Ear:
    """A tracer that tells each candidate to a recorder of its own."""

    def __init__(self) -> None:
        self.listen_for(Recorder())

    def listen_for(self, recorder: Recorder) -> None:
        """From now on `recorder` is told."""
        self.slice, self.team, self.counter = recorder.slice, recorder.team, recorder.counter


class CandidateSimulator:
    """A SoC that evaluates candidates one after another and remembers what kernels cost.

    It looks for no races: the tiles and buffers of a candidate are those of a schedule, which are checked
    whenever one is run.
    """

    def __init__(self, timing: SocTiming) -> None:
        self.timing = timing
        self._cost_model = TeamCostModel(timing)
        self._ear = _Ear()
        self._socs: dict[tuple[str, bool], Soc] = {}
        """By what the instruction caches hold, and whether somebody listens."""
        self._floor = LowerBound(timing, self._cost_model)
        self._floors: dict[tuple[tuple[str, str], str, Form], int] = {}
        self._cuts: OrderedDict[tuple[str, str, object], CutPrograms] = OrderedDict()
        self._tiles: tuple[tuple[str, str], Tiles] | None = None
        """Those of the question asked last."""
        self.hand_over_cycles = self._soc().run(Program("nothing", ()), effects=False).cycles
        """What an offload takes in which nothing is done."""

    def _soc(self, code_start: str = WARM, *, heard: bool = False) -> Soc:
        """`heard` it is listened to: what an objective counts is in its slices."""
        key = code_start, heard
        if key not in self._socs:
            ear = self._ear if heard else None
            self._socs[key] = Soc(
                self.timing, self._cost_model, ear, detect_races=False, code_start=code_start
            )
        return self._socs[key]

    def evaluate(self, question: Question, candidate: Cut) -> Evaluation:
        """Simulate one candidate."""
        counted: CountedRun | None = None
        try:
            programs = self._programs(question, candidate)
            schedule, program = programs.under(candidate.kernel)
            program, start = alone_with_code(program, self.timing, question.code_start)
            soc = self._soc(start, heard=question.objective.counts)
            if question.objective.counts:
                counted = CountedRun(program, core_paths(soc.timing), traced=False)
                self._ear.listen_for(counted.recorder)
            cycles = soc.run(program, effects=False, logged=False).cycles
        except PulptrainError as error:
            return Evaluation(0, refused=str(error).splitlines()[0])
        tiling, cost = schedule.ops[0].tiling, 0
        if counted is not None:
            metrics = counted.metrics(cycles)
            activity = activity_of(program, metrics, self.timing, question.task.graph.formats)
            cost = question.objective.cost(activity.total, cycles)
        return Evaluation(cycles - self.hand_over_cycles, len(tiling.tiles), tiling.l1_bytes, cost=cost)

    def bounds(self, question: Question, candidates: Sequence[Cut]) -> list[int]:
        """What the candidates cost at least (`scheduler.tuner.lower_bound`); 0 if one is impossible."""
        timelines: dict[object, Timeline] = {}
        counted, formats = question.objective.counts, question.task.graph.formats
        result = []
        for candidate in candidates:
            try:
                programs = self._programs(question, candidate)
                kernels = self._floors_of(question, programs, candidate.kernel)
                if kernels is None or counted:
                    _, program = programs.under(candidate.kernel)
                if kernels is None:
                    cycles = self._floor.cycles(program)
                else:
                    if candidate.tiling not in timelines:
                        timelines[candidate.tiling] = self._floor.timeline(programs.schedule.program)
                    cycles = timelines[candidate.tiling].cycles(kernels)
                if counted:
                    cycles = question.objective.cost(counts_of(program, self.timing, formats), cycles)
                result.append(cycles)
            except PulptrainError:
                result.append(0)
        return result

    def _floors_of(self, question: Question, programs: CutPrograms, kernel: str) -> list[int] | None:
        """The least each kernel of a program takes, in order; None if `kernel` needs another program.

        Cuts of other orders and depths have calls in common, so those of a question are remembered by what
        they are under the usual kernel.
        """
        content = question.task.content, question.codegen
        asked = [(content, kernel if form.exchanged else "", form) for form in programs.forms]
        if any(key not in self._floors for key in asked):
            teams = programs.teams(kernel)
            if teams is None:
                return None
            if len(self._floors) > FLOORS_KEPT:
                self._floors.clear()
            for key, team in zip(asked, teams, strict=True):
                if key not in self._floors:
                    self._floors[key] = self._floor.kernel_cycles(team, fork=key[2].fork)
        return [self._floors[key] for key in asked]

    def _programs(self, question: Question, cut: Cut) -> CutPrograms:
        key = question.task.content, question.codegen, cut.tiling
        if key not in self._cuts:
            if self._tiles is None or self._tiles[0] != key[:2]:
                self._tiles = key[:2], Tiles(question)
            self._cuts[key] = CutPrograms(question, cut, self._cost_model, self._tiles[1])
            if len(self._cuts) > CUTS_KEPT:
                self._cuts.popitem(last=False)
        self._cuts.move_to_end(key)
        return self._cuts[key]


def evaluate_candidates(question: Question, candidates: Sequence[Cut]) -> list[Evaluation]:
    """Evaluations in the order of the candidates; runs in a worker."""
    machine = _machines.of(question.timing)
    return [machine.evaluate(question, candidate) for candidate in candidates]


def bound_candidates(question: Question, candidates: Sequence[Cut]) -> list[int]:
    """Lower bounds in the order of the candidates; runs in a worker."""
    return _machines.of(question.timing).bounds(question, candidates)


def cuts_of(question: Question) -> list[Cut]:
    """`list_cuts`; runs in a worker."""
    return list_cuts(question)


_machines = PerThread(CandidateSimulator, MACHINES_KEPT)
