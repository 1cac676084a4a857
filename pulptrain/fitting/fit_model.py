# SPDX-License-Identifier: Apache-2.0
"""`fit` as a Python call: what is kept, done again and moved to L3, searched, planned and simulated."""

from __future__ import annotations

import math
import resource
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from configs.errors import ConfigError, DoesNotFitError, InputError, PulptrainError, install_cure
from configs.limits import size_text
from configs.model_file import ModelSpec
from configs.suggest import check_known
from configs.values import replace
from configs.version import VERSION
from pulptrain.fitting.ways import Way, from_inputs, ways_of
from pulptrain.inputs.settings import Settings, schedule_options, soc_timing
from pulptrain.process.progress import NOBODY, Teller
from pulptrain.running.energy import chip_of
from pulptrain.running.session import RunOutcome, prepare, run_prepared, settled
from scheduler.addresses.optimal_placement import solver_installed
from scheduler.addresses.plan_options import ALL_OTHERS
from scheduler.explore.pareto import pareto_front
from scheduler.fit.descent import descended
from scheduler.fit.of_graph import as_planned, decisions_of, predicted, problem_of
from scheduler.fit.prices import UNITS_OF_JOULE, Price, Prices, StreamedOps, energy_prices
from scheduler.fit.problem import Decisions, Problem, evaluate
from scheduler.fit.solver import SECONDS, Solution, UndecidedError, solve
from scheduler.fit.streams import Streams
from scheduler.memory.host_memory import tensor_bytes
from scheduler.memory.memory_plan import least_l2_bytes, plan_memory
from scheduler.schedule import code_of_op_alone, streamer_of
from scheduler.search.cache import ResultCache
from scheduler.tuner.objective import CYCLES, ENERGY, Objective, objective_of
from traces.text_table import amount
from trainlib.training.phases import build_training_phases

OBJECTIVES = (CYCLES, ENERGY)

GAP = 0.001
"""Share of the cycles, or joules, by which an answer may be off for the search to end."""

ANSWER_SHARE = 0.5
"""Of the time, for the answer where points of the front are asked for, too."""

TRACED = 3.0
"""Times as long as a run without a trace the two runs with one and their picture take."""

HURRY = 2.0
"""Times as long as pricing took: with less time left a first plan takes addresses that are found at once."""

SMALLEST_SECONDS = 20.0
"""For the smallest peak, or a peak that fits, whatever it costs, where the planner has no plan."""

ROUNDS = 100
"""How often it is searched again with the prices of the ops that stream in the answers before."""

SHARE = 0.6
"""Of the time left, for each of these searches."""

TRIES = 8
"""How often the L2 of the search is made smaller where addresses leave more bytes unused, or copies add more
code, than it knows."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A way to train: the model with what was decided, predicted and simulated."""

    spec: ModelSpec
    problem: Problem
    decisions: Decisions
    predicted_cycles: int
    predicted_joules: float | None
    """None for a chip without coefficients."""
    predicted_bytes: int
    """Of L2, by the plan, before anything is simulated."""
    run: RunOutcome
    gap: float

    @property
    def cycles(self) -> int:
        """As simulated."""
        return int(self.run.summary["cycles"])

    @property
    def joules(self) -> float | None:
        """Of the simulated iteration; None for a chip without coefficients."""
        return joules_of(self.run)

    @property
    def peak_bytes(self) -> Mapping[str, int]:
        """Of every level, of the program that was simulated."""
        peaks: Mapping[str, int] = self.run.summary["peak_bytes"]
        return peaks


@dataclass(frozen=True, slots=True)
class FitOutcome:
    """What `fit` leaves: what `--json` prints, and the answer with what it was found by.

    `ends` is when the time is over (`time.perf_counter`).
    """

    summary: dict[str, Any]
    written: Fitting
    chosen: Fitting
    answer: Answer
    ends: float
    interrupted: bool

    @property
    def spec(self) -> ModelSpec:
        """The model with what was decided."""
        return self.answer.spec

    def traced(self) -> tuple[RunOutcome, RunOutcome]:
        """Runs with a trace: of the model as written, with everything in L2, and of the answer."""
        return self.written.all_in_l2(traced=True), self.chosen.run_of(self.spec, traced=True)


class Fitting:
    """A model on a machine: its ops priced once, with all its tensors in L2, for any number of answers.

    `objective` is what is made small, `deadline` the most cycles of an answer. Raises `InputError` for energy
    of a chip without coefficients.
    """

    def __init__(
        self,
        spec: ModelSpec,
        settings: Settings,
        cache: ResultCache | None = None,
        objective: str = CYCLES,
        deadline: int | None = None,
    ) -> None:
        started = time.perf_counter()
        self.settings, self.cache, self.objective, self.deadline = settings, cache, objective, deadline
        self.timing = soc_timing(settings)
        energy: Objective | None = None
        try:
            energy = objective_of(ENERGY, *chip_of(settings, self.timing), 0.0)
        except InputError:
            if objective == ENERGY:
                raise
        self.written = spec
        self.spec = as_immediate(spec)
        self.immediate = self.spec is not spec
        phases = build_training_phases(self.spec)
        self.graph, self.times = phases.mini_batch, phases.mini_batches
        self.before = self.all_in_l2()
        run_started = time.perf_counter()
        self.base = self._run(self.spec, self._roomy(spec)) if self.immediate else self.before
        self.run_seconds = time.perf_counter() - (run_started if self.immediate else started)
        rows = self.base.summary["ops"]
        ops = {op["name"]: _once(op) for op in rows}
        self._rest_cycles = int(self.base.summary["cycles"]) - sum(int(op["cycles"]) for op in rows)
        options = schedule_options(settings)
        options = replace(options, code_start=code_of_op_alone(self.graph, self.timing, options))
        streamed = StreamedOps(self.timing, options, energy or Objective())
        self.energy: Prices | None = None
        """What is priced in femtojoules, for a chip that has coefficients."""
        if energy is not None:
            self.energy = energy_prices(ops, energy, self.timing, streamed)
            self._rest_joules = (joules_of(self.base) or 0.0) - sum(op["joules"] for op in rows)
        plain = {name: Price(cycles) for name, (cycles, _) in ops.items()}
        self.cycles = Prices(plain, lambda graph, op, stream: replace(streamed(graph, op, stream), cost=0))
        self.pricing_seconds = time.perf_counter() - started
        self._planning_seconds = 0.0
        self.undecided = False
        """Whether a search ended before it had an answer, or knew that there is none."""

    def _roomy(self, spec: ModelSpec) -> Settings:
        """The machine with an L2 in which everything has room."""
        graphs = build_training_phases(spec).graphs
        bytes_needed = 2 * sum(tensor_bytes(graph) for graph in graphs) + (64 << 10)
        return sized(self.settings, l2=max(bytes_needed, self.timing.l2.size_bytes))

    def all_in_l2(self, *, traced: bool = False) -> RunOutcome:
        """A run of the model as it is written, with room for everything."""
        return self._run(self.written, self._roomy(self.written), traced=traced)

    def run_of(self, spec: ModelSpec, *, traced: bool = False) -> RunOutcome:
        """A run of a model with the memories of the settings."""
        return self._run(spec, self.settings, traced=traced)

    def _run(
        self, spec: ModelSpec, settings: Settings, *, traced: bool = False, advise: bool = True
    ) -> RunOutcome:
        # What would help takes longer to find than to search for another answer: asked only of the model.
        prepared = prepare(spec, settings, self.cache, traced=traced, advise=advise)
        return run_prepared(prepared, settings, functional=False)

    def with_l2(self, l2_bytes: int) -> Settings:
        """The machine with so much L2."""
        return sized(self.settings, l2=l2_bytes)

    def problem(self, l2_bytes: int) -> Problem:
        """What there is to decide with so much L2; what it takes to stream is the least it may."""
        return self._problem(self._streams(l2_bytes))

    def _streams(self, l2_bytes: int) -> Streams:
        # The machine with what the code of the model leaves of L2; an answer has more code.
        timing = soc_timing(self.with_l2(max(0, l2_bytes - self.code_bytes)))
        options = schedule_options(self.settings)
        return Streams(self.graph, timing, streamer_of(self.graph, timing, options), self.prices)

    def _problem(self, streams: Streams) -> Problem:
        layers = frozenset(layer.name for layer in self.spec.layers)
        problem = problem_of(self.graph, self.prices, streams.timing, streams, layers)
        if self.deadline is None or self.objective == CYCLES:
            return problem
        others_cycles = int(self.base.summary["cycles"]) - self.times * self._own(self.cycles)
        return replace(problem, most_cycles=(self.deadline - others_cycles) // self.times)

    def _own(self, prices: Prices) -> int:
        """What the ops of a mini-batch cost with all in L2."""
        found = [prices.of(op.name) for op in self.graph.ops]
        return sum(price.cost + prices.cycle_cost * price.cycles for price in found)

    @property
    def needed_bytes(self) -> int:
        """Of L2, for everything as the model is written."""
        return int(self.before.summary["peak_bytes"]["l2"])

    @property
    def code_bytes(self) -> int:
        """Of L2, for the code of the model as it is written."""
        return self.base.schedule.plan.code_bytes

    @property
    def prices(self) -> Prices:
        """By the objective."""
        return self.energy if self.objective == ENERGY and self.energy else self.cycles

    def cost(self, run: RunOutcome) -> float:
        """Of a simulated iteration, by the objective."""
        return joules_of(run) or 0.0 if self.objective == ENERGY else int(run.summary["cycles"])

    def decided(self, problem: Problem, decisions: Decisions) -> ModelSpec:
        """The model with what was decided."""
        again = {problem.groups[number] for number in decisions.again}
        homes = {problem.buffers[number].name: "l3" for number in sorted(decisions.moved)}
        ways = {problem.tasks[task].name: problem.tasks[task].way(way) for task, way in decisions.streams}
        streams = {
            name: tuple(sorted(problem.buffers[number].name for number in ways[name].buffers))
            for name in sorted(ways)
        }
        layers = tuple(
            replace(layer, recompute=layer.recompute or layer.name in again) for layer in self.spec.layers
        )
        return replace(
            self.spec,
            layers=layers,
            homes={ALL_OTHERS: "l2", **homes} if homes else {},
            streams=streams,
            slot_bytes={name: ways[name].slot_bytes for name in streams},
        )

    def planned(self, problem: Problem, *, hurried: bool = False) -> Decisions | None:
        """What the planner decides by itself, what may not move lying in L2; None if it cannot.

        `hurried` it takes addresses by first fit.
        """
        started = time.perf_counter()
        timing, options = soc_timing(self.with_l2(problem.l2_bytes)), schedule_options(self.settings)
        homes = {item.name: "l2" for item in problem.buffers if not item.movable}
        memory = replace(options.memory, homes=homes)
        if hurried:
            memory = replace(memory, placement="first-fit")
        try:
            plan = plan_memory(self.graph, timing, memory, streamer_of(self.graph, timing, options))
        except DoesNotFitError:
            return None
        finally:
            self._planning_seconds = max(self._planning_seconds, time.perf_counter() - started)
        return decisions_of(problem, self.graph, plan)

    def answer(
        self,
        l2_bytes: int,
        ends: float,
        better: Callable[[int, int], None] = lambda value, bound: None,
    ) -> tuple[Answer | None, bool]:
        """The best answer found for so much L2, simulated, and whether Ctrl-C ended the search.

        The search `ends` (`time.perf_counter`) early enough to simulate what it found. The planner's own way
        counts, too, if there is time for it; with room for everything nothing is searched.
        """
        if self.needed_bytes <= l2_bytes:
            run = self._run(self.written, self.with_l2(l2_bytes))
            cycles = int(run.summary["cycles"])
            problem = self.problem(l2_bytes)
            plain = Answer(
                self.written, problem, Decisions(), cycles, joules_of(run), self.needed_bytes, run, 0.0
            )
            return plain, False
        found: list[Answer] = []
        bound, interrupted = 0, False
        if self.code_bytes < l2_bytes:
            found, bound, interrupted = self._searched(l2_bytes, ends - self.run_seconds, better)
        answers = [replace(answer, gap=self._gap(bound, answer)) for answer in found]
        left_seconds = ends - time.perf_counter()
        has_time = not interrupted and left_seconds > self._planning_seconds + self.run_seconds
        if not answers or (has_time and min(answer.gap for answer in answers) > GAP):
            own = self._plain(l2_bytes)
            answers += [replace(own, gap=self._gap(bound, own))] if own is not None else []
        return min(answers, key=self.rank, default=None), interrupted

    def _searched(
        self, l2_bytes: int, ends: float, better: Callable[[int, int], None]
    ) -> tuple[list[Answer], int, bool]:
        """The best answers found, a bound below which none costs, and whether Ctrl-C ended the search."""
        streams = self._streams(l2_bytes)
        problem = self._problem(streams)
        bound = problem.cost
        found: list[Answer] = []
        interrupted = False
        for number in range(TRIES):
            limits = {"l2_bytes": problem.l2_bytes, "most_cycles": problem.most_cycles}
            problem, decisions, more, interrupted = self._rounds(streams, limits, ends, better)
            bound = bound if number else max(bound, more)
            if decisions is None:
                break
            try:
                answer = self._simulated(problem, decisions, l2_bytes)
            except DoesNotFitError as error:
                short_bytes = error.required_bytes - l2_bytes if error.level == "l2" else 0
            else:
                found.append(answer)
                late_cycles = answer.cycles - self.deadline if self.deadline is not None else 0
                if late_cycles <= 0 or problem.most_cycles is None:
                    break
                problem = replace(problem, most_cycles=problem.most_cycles - late_cycles)
                continue
            peak_bytes = min(problem.l2_bytes, evaluate(problem, decisions).peak_bytes)
            peak_bytes -= max(short_bytes, 256, l2_bytes * (number + 1) // 400)
            if interrupted or peak_bytes <= 0 or (found and time.perf_counter() >= ends):
                break
            problem = replace(problem, l2_bytes=peak_bytes)
        return found, bound, interrupted

    def _rounds(
        self,
        streams: Streams,
        limits: Mapping[str, Any],
        ends: float,
        better: Callable[[int, int], None],
    ) -> tuple[Problem, Decisions | None, int, bool]:
        """The problem with the prices of all that streams in its best decisions, and these.

        Prices of ops that stream are lower bounds until they are asked for, so that the bound holds.
        """
        problem = replace(self._problem(streams), **limits)
        hurried = ends - time.perf_counter() < HURRY * self.pricing_seconds
        decisions, bound, interrupted = self.planned(problem, hurried=hurried), 0, False
        best: Decisions | None = None
        try:
            if decisions is None:
                decisions, interrupted = _fitting(problem, ends)
            for number in range(ROUNDS):
                if decisions is None:
                    break
                # Without an answer so far all is priced, however long that takes.
                new = streams.price(problem, decisions, ends if best is not None else math.inf)
                if not streams.all_priced(decisions):
                    break
                problem = replace(self._problem(streams), **limits)
                best = _cheaper(problem, best, decisions)
                cost = evaluate(problem, best).cost
                better(cost, bound or problem.cost)
                if interrupted or cost * (1 - GAP) <= bound or (number and not new):
                    break
                left_seconds = ends - time.perf_counter()
                if left_seconds <= 0:
                    break
                seconds = left_seconds * (SHARE if any(task.streams for task in problem.tasks) else 1)
                solution = solve(problem, hint=best, seconds=max(1.0, seconds), gap=GAP)
                if solution is None:
                    break
                decisions, interrupted = solution.decisions, solution.interrupted
                bound = max(bound, solution.bound)
        except UndecidedError:
            self.undecided |= best is None
        except KeyboardInterrupt:
            interrupted = True
        return problem, best, bound, interrupted

    def rank(self, answer: Answer) -> tuple[bool, float]:
        """The less the better."""
        return self.deadline is not None and answer.cycles > self.deadline, self.cost(answer.run)

    def _plain(self, l2_bytes: int) -> Answer | None:
        """The planner's own way, in which ops may stream."""
        try:
            run = self._run(self.spec, self.with_l2(l2_bytes), advise=False)
        except DoesNotFitError:
            return None
        problem, plan = self.problem(l2_bytes), run.schedule.plan
        decisions = decisions_of(problem, self.graph, plan)
        return Answer(self.spec, problem, decisions, *self._predicted(run), plan.peak_bytes["l2"], run, 0.0)

    def _predicted(self, run: RunOutcome) -> tuple[int, float | None]:
        """Cycles and joules of an iteration, all its programs, by the prices."""
        prices = self.energy or self.cycles
        cycles, cost = (self.times * part for part in predicted(run.schedule, prices, self.timing))
        if run.update_schedule is not None:
            more = predicted(run.update_schedule, prices, self.timing)
            cycles, cost = cycles + more[0], cost + more[1]
        joules = cost / UNITS_OF_JOULE + self._rest_joules if self.energy is not None else None
        return self._rest_cycles + cycles, joules

    def _simulated(self, problem: Problem, decisions: Decisions, l2_bytes: int) -> Answer:
        """Raises `DoesNotFitError` where the plan, with its own code, has no room in so much L2."""
        spec = self.decided(problem, decisions)
        run = self._run(spec, self.with_l2(l2_bytes), advise=False)
        plan = run.schedule.plan
        decisions = as_planned(problem, decisions, plan)
        peak_bytes = max(
            plan.peak_bytes["l2"] if plan.code_bytes else evaluate(problem, decisions).peak_bytes,
            run.update_schedule.plan.peak_bytes["l2"] if run.update_schedule is not None else 0,
        )
        return Answer(spec, problem, decisions, *self._predicted(run), peak_bytes, run, 0.0)

    def _gap(self, bound: int, answer: Answer) -> float:
        """By how much of what is predicted an answer may be too large; the update may gain all it costs."""
        unit = UNITS_OF_JOULE if self.objective == ENERGY else 1
        others = self.cost(self.base) - self.times * self._own(self.prices) / unit
        predicted_cost = answer.predicted_joules if self.objective == ENERGY else answer.predicted_cycles
        return max(0.0, 1 - (self.times * bound / unit + others) / (predicted_cost or 1))

    def least_bytes(self, seconds: float) -> int:
        """The smallest L2 there is an answer for: with an L3 what one op needs, without the smallest peak."""
        options = schedule_options(self.settings)
        if self.timing.l3.size_bytes:
            streamer = streamer_of(self.graph, self.timing, options)
            least = least_l2_bytes(self.graph, self.timing, options.memory, streamer)
            return least + self.code_bytes
        problem = self.problem(self.timing.l2.size_bytes)
        found = smallest_of(problem, seconds=seconds)
        peak_bytes = found.value if found is not None else evaluate(problem, Decisions()).peak_bytes
        return peak_bytes + self.code_bytes


def smallest_of(problem: Problem, *, seconds: float, enough_bytes: int = 0) -> Solution | None:
    """The decisions of the smallest peak (bytes of L2) found in so many seconds, or of `enough_bytes`.

    What a ladder lists, and what `fit` begins with where the planner has no plan: a size that one of them
    names is one that the other finds. Doing nothing is a solution, too. None if nothing meets the deadline.
    """
    ends = time.perf_counter() + seconds
    decisions = descended(problem, enough_bytes=enough_bytes, ends=ends)
    outcome = evaluate(problem, decisions)
    late = problem.most_cycles is not None and outcome.cycles > problem.most_cycles
    found = Solution(decisions, outcome.peak_bytes, 0, proved=False)
    left_seconds = ends - time.perf_counter()
    if (found.value <= enough_bytes and not late) or left_seconds <= 0:
        return found
    with suppress(UndecidedError):
        solution = solve(problem, smallest=True, hint=decisions, seconds=left_seconds, enough=enough_bytes)
        if solution is None:
            return None
        peak_bytes = evaluate(problem, solution.decisions).peak_bytes
        if peak_bytes < found.value or late:
            decisions = solution.decisions
        else:
            peak_bytes = found.value
        proved = peak_bytes <= solution.bound
        found = replace(solution, decisions=decisions, value=peak_bytes, proved=proved)
    return found


def _fitting(problem: Problem, ends: float) -> tuple[Decisions | None, bool]:
    """Decisions that fit, at whatever cost, where the planner has none, None if there are none; and whether
    Ctrl-C ended the search.

    Raises `UndecidedError` where neither is known when the search `ends`, which has `SMALLEST_SECONDS` at
    least, and `KeyboardInterrupt` where Ctrl-C came before.
    """
    seconds = max(SMALLEST_SECONDS, ends - time.perf_counter())
    found = smallest_of(problem, seconds=seconds, enough_bytes=problem.l2_bytes)
    if found is None:
        return None, False
    if evaluate(problem, found.decisions).keeps(problem):
        return found.decisions, found.interrupted
    if found.bound > problem.l2_bytes:
        return None, found.interrupted
    if found.interrupted:
        raise KeyboardInterrupt
    raise UndecidedError


def _cheaper(problem: Problem, best: Decisions | None, decisions: Decisions) -> Decisions:
    """The decisions that keep to the problem, and of these those that cost less."""

    def rank(one: Decisions) -> tuple[bool, int]:
        outcome = evaluate(problem, one)
        return not outcome.keeps(problem), outcome.cost

    return min((one for one in (best, decisions) if one is not None), key=rank)


def sized(settings: Settings, **sizes: int) -> Settings:
    """The settings with memories of other sizes, `l2` and `l3` in bytes."""
    texts: dict[str, Any] = {level: f"{size_bytes}B" for level, size_bytes in sizes.items()}
    return replace(settings, **texts)


def _once(op: Mapping[str, Any]) -> tuple[int, float]:
    """Cycles and joules of an op each time it runs in an iteration."""
    times = op.get("runs_per_update", 1)
    return int(op["cycles"]) // times, (op["joules"] or 0.0) / times


def joules_of(run: RunOutcome) -> float | None:
    """Of an iteration; None for a chip without coefficients."""
    energy = run.summary["energy"]
    return float(energy["nominal_joules"]) if energy is not None else None


def as_immediate(spec: ModelSpec) -> ModelSpec:
    """The model with updates at once, itself if its optimizer section forbids that or says so already."""
    if spec.optimizer.options.get("immediate") or spec.optimizer.options.get("accumulate", 1) > 1:
        return spec
    options = {**spec.optimizer.options, "immediate": True}
    changed = replace(spec, optimizer=replace(spec.optimizer, options=options, node=None))
    try:
        build_training_phases(changed)
    except ConfigError:
        return spec
    return changed


def host_bytes() -> int:
    """Most memory this process has taken."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def check_solver() -> None:
    """Raise `InputError` without OR-tools."""
    if not solver_installed():
        raise InputError(
            "the Python package OR-Tools is not installed",
            where="pulptrain fit",
            cure=install_cure("solver"),
        )


def deadline_cycles(text: str | None) -> int | None:
    """A number of cycles from ``20Mcycles``, ``20M``, ``500k`` or ``20000000``. Raises `InputError`."""
    if text is None:
        return None
    number = text.strip().removesuffix("cycles").strip()
    factor = {"k": 10**3, "M": 10**6, "G": 10**9}.get(number[-1:], 1)
    try:
        cycles = round(float(number if factor == 1 else number[:-1]) * factor)
    except (ValueError, OverflowError):
        cycles = 0
    if cycles <= 0:
        raise InputError(
            f"{text!r} is not a number of cycles", where="--deadline", cure="write e.g. 20Mcycles or 500k"
        )
    return cycles


def check_objective(objective: str) -> None:
    """Raise `InputError` for one that is none."""
    check_known(objective, OBJECTIVES, f"unknown objective {objective!r}", "--objective")


def fit_model(
    model: str | ModelSpec,
    settings: Settings | None = None,
    *,
    deadline: int | None = None,
    objective: str = CYCLES,
    allowed: tuple[str, ...] = (),
    points: int = 0,
    pictures: bool = False,
    seconds: float = SECONDS,
    started: float | None = None,
    cache: ResultCache | None = None,
    teller: Teller = NOBODY,
    ladder_command: str = "pulptrain fit --ladder",
) -> FitOutcome:
    """The way to train a model that takes least cycles, or energy, with the memories of the settings.

    Every answer is simulated. `allowed` are changes of numbers that it may make (`pulptrain.fitting.ways`).
    So many `seconds` after it `started` (`time.perf_counter`; now, if not said) it ends with what it has; the
    simulations that price the ops, a first answer and the simulation that confirms it are not cut short. If
    `points` of the front are to follow (`add_points`), a half of the time is left for them, and if `pictures`
    are, what the runs for these take.
    Raises `DoesNotFitError` where L2 is too small whatever is decided (the report says what trains in it),
    `InputError` where the time is over before an answer is found or it is known that there is none,
    for a `deadline` (cycles) that cannot be met, and the errors of `configs.errors`.
    """
    from pulptrain.fitting.fit_summary import changed_rows
    from pulptrain.fitting.ladder import first_step

    settings = settings or Settings()
    check_objective(objective)
    started = time.perf_counter() if started is None else started
    ends = started + seconds
    spec, settings = settled(model, settings)
    l2_bytes = soc_timing(settings).l2.size_bytes
    teller.stage(f"pricing the ops of {spec.name} on {settings.soc}")
    fitting = Fitting(spec, settings, cache, objective, deadline)
    least_cycles = min(int(run.summary["cycles"]) for run in (fitting.before, fitting.base))
    if deadline is not None and least_cycles > deadline:
        raise InputError(
            f"an iteration takes {least_cycles:,} cycles even with all data in L2, "
            f"but the deadline is {deadline:,}",
            where="--deadline",
            cure=f"use --deadline {least_cycles}, more cores, or a faster schedule (`pulptrain tune`)",
        )
    search_started = time.perf_counter()
    answer_ends = started + seconds * (ANSWER_SHARE if points else 1)
    answer_ends -= TRACED * fitting.run_seconds if pictures else 0
    ways = ways_of(spec, allowed) if fitting.needed_bytes > l2_bytes else [Way(spec)]
    found: list[tuple[Way, Fitting, Answer]] = []
    undecided = False
    interrupted = False
    for number, way in enumerate(ways):
        teller.stage(" ".join((f"searching for {spec.name} in {size_text(l2_bytes)} of L2", *way.how)))
        now = time.perf_counter()
        if found and now >= answer_ends:
            break
        tried = Fitting(way.spec, settings, cache, objective, deadline) if number else fitting
        answer, interrupted = tried.answer(
            l2_bytes,
            now + (answer_ends - now) / (len(ways) - number),
            lambda value, bound: teller.count(1, 1, _better(value, bound, objective)),
        )
        found += [(way, tried, answer)] if answer is not None else []
        undecided |= tried.undecided
        if interrupted:
            break
        left_seconds = answer_ends - time.perf_counter()
        if not found and way is ways[-1] and fitting.pricing_seconds < max(left_seconds, seconds / 2):
            ways += from_inputs(way)
    search_seconds = time.perf_counter() - search_started
    if not found and undecided:
        raise InputError(
            f"the search ended after {seconds:g} s without a way to train {spec.name} in "
            f"{size_text(l2_bytes)} of L2; a longer search may find one",
            where="--time-limit",
            cure=f"use --time-limit {max(60.0, 4 * seconds):g}, or more L2; `{ladder_command}` lists the "
            "L2 needed for every choice of trained parameters",
        )
    if not found:
        raise first_step(fitting, l2_bytes, ladder_command, ends)
    way, chosen, best = min(found, key=lambda one: one[1].rank(one[2]))
    if deadline is not None and best.cycles > deadline:
        raise InputError(
            f"an iteration takes {best.cycles:,} cycles in {size_text(l2_bytes)} of L2, but the "
            f"deadline is {deadline:,}",
            where="--deadline",
            cure=f"use --deadline {best.cycles}, or more L2 ({least_cycles:,} cycles with all data in L2)",
        )
    summary = _summary(fitting, chosen, best)
    summary["decisions"] = [*changed_rows(way, fitting, chosen), *summary["decisions"]]
    summary["simulator"] = {
        "wall_seconds": time.perf_counter() - started,
        "search_seconds": search_seconds,
        "host_bytes": host_bytes(),
    }
    return FitOutcome(summary, fitting, chosen, best, ends, interrupted)


def add_points(outcome: FitOutcome, points: int, teller: Teller = NOBODY) -> FitOutcome:
    """The outcome with `points` other sizes of L2 in its front, each in its share of the time that is left.

    They lie evenly between the smallest L2 that will do and the peak with everything there. What goes wrong
    with one, and that there was no time for some, is a note of the summary. Ctrl-C ends them.
    """
    if not points or outcome.interrupted or outcome.answer.decisions == Decisions():
        return outcome
    started = time.perf_counter()
    fitting, ends = outcome.chosen, outcome.ends
    name = fitting.written.name
    front, notes, interrupted = [outcome.answer], list(outcome.summary["notes"]), False

    def share(number: int) -> float:
        """When the time of a point is over, of those from this number on."""
        now = time.perf_counter()
        return now + (ends - now) / (points - number)

    def point(number: int, l2_bytes: int) -> tuple[Answer | None, bool]:
        teller.stage(f"point {number + 1} of {points}: {name} in {size_text(l2_bytes)} of L2")
        return fitting.answer(
            l2_bytes,
            share(number),
            lambda value, bound: teller.count(number, points, _better(value, bound, fitting.objective)),
        )

    try:
        has_time = ends - started > fitting.run_seconds
        teller.stage(f"the smallest L2 for {name}")
        least = fitting.least_bytes(max(1.0, share(0) - started)) if has_time else 0
        most = int(fitting.base.summary["peak_bytes"]["l2"])
        for number in range(points):
            if not has_time or time.perf_counter() >= ends:
                notes.append(
                    f"the time limit left out {points - number} of {points} points; increase --time-limit"
                )
                break
            l2_bytes = -(-(least + (most - least) * number // max(1, points - 1)) // 1024) * 1024
            try:
                answer, interrupted = point(number, l2_bytes)
            except (PulptrainError, MemoryError) as error:
                what = error.message if isinstance(error, PulptrainError) else "out of memory"
                notes.append(f"no answer for {size_text(l2_bytes)} of L2: {what.splitlines()[0]}")
                continue
            front += [answer] if answer is not None else []
            if interrupted:
                break
    except KeyboardInterrupt:
        interrupted = True
    except (PulptrainError, MemoryError) as error:
        notes.append(f"could not compute the Pareto front: {error}")
    simulator = outcome.summary["simulator"]
    wall_seconds = simulator["wall_seconds"] + time.perf_counter() - started
    summary = {
        **outcome.summary,
        "points": points_of(front),
        "notes": notes,
        "simulator": {**simulator, "wall_seconds": wall_seconds, "host_bytes": host_bytes()},
    }
    return replace(outcome, summary=summary, interrupted=interrupted)


def _better(value: int, bound: int, objective: str) -> str:
    if objective == CYCLES:
        return f", {value:,} cycles*, lower bound {bound:,}"
    return f", {amount(value / UNITS_OF_JOULE, 'J')}*, lower bound {amount(bound / UNITS_OF_JOULE, 'J')}"


def _summary(asked: Fitting, fitting: Fitting, best: Answer) -> dict[str, Any]:
    """The object of ``--json``, but for the simulator; `before` is the model as it was `asked` for."""
    from pulptrain.fitting.fit_summary import decision_rows

    before = asked.before.summary
    return {
        "model": fitting.written.name,
        "soc": fitting.settings.soc,
        "objective": fitting.objective,
        "feasible": True,
        "budget_bytes": {**best.run.summary["capacity_bytes"], "l2": fitting.timing.l2.size_bytes},
        "peak_bytes": dict(best.peak_bytes),
        "cycles": best.cycles,
        "predicted_cycles": best.predicted_cycles,
        "predicted_bytes": best.predicted_bytes,
        "joules": best.joules,
        "predicted_joules": best.predicted_joules,
        "optimality_gap": round(best.gap, 6),
        "before": {
            "peak_bytes": dict(before["peak_bytes"]),
            "cycles": int(before["cycles"]),
            "joules": joules_of(asked.before),
        },
        "decisions": decision_rows(fitting, best),
        "points": points_of([best]),
        "ladder": [],
        "notes": [],
        "version": VERSION,
    }


def points_of(answers: Sequence[Answer]) -> list[dict[str, Any]]:
    """Answers as points by peak, each once and with whether it is on the front: bytes, cycles, energy."""
    from pulptrain.fitting.fit_summary import point_of

    different = {tuple(point.values()): point for point in map(point_of, answers)}
    ordered = sorted(different.values(), key=lambda point: (point["peak_l2_bytes"], point["cycles"]))
    rows = [(point["peak_l2_bytes"], point["cycles"], point["joules"] or 0.0) for point in ordered]
    front = set(pareto_front(rows))
    return [{**point, "on_front": number in front} for number, point in enumerate(ordered)]
