# SPDX-License-Identifier: Apache-2.0
"""KIND steps: the ops of whole training iterations, exported with `deploy` and executed on the RTL.

A row is one op of one run. Its prediction is what `run` says of this op in the whole iteration: the first one
from cold caches, the later ones as the iteration before left them, or with all code in the caches.

Kernels in C are not the nests that price them. With the instructions that were measured (`predict_counted`)
every kernel of an op is priced at as many: those of core 3, or of core 0 without the program's own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

from arch.blocks.soc import core_paths
from arch.pricing.code_caches import COLD, STEADY, WARM
from arch.pricing.cost_model import CoreCost, CostModel, TeamCost, Traffic
from arch.spec.isa import TeamWork
from arch.spec.program import Compute
from arch.spec.soc_config import READABLE, load_soc, with_values
from arch.spec.timing import SocTiming
from configs.errors import InputError
from configs.model_file import load_model
from configs.values import Struct
from scheduler.code_in_l2 import placed_with_code
from scheduler.counted_run import CountedRun
from scheduler.executor import Executor
from scheduler.options import ScheduleOptions, parse_buffering
from scheduler.planned import Schedule
from scheduler.programs.program_code import statements_of
from scheduler.schedule import build_schedule
from scheduler.tiles.code_sizes import EXECUTED, shipped_sizes
from scheduler.validation.rows.cases import CORES, Case, Column, read_cases
from scheduler.validation.rows.machines import RTL_MACHINE, cost_model_of, with_part
from scheduler.validation.rows.prediction import Prediction
from traces.metrics import OpMetrics
from trainlib.training.options import check_options
from trainlib.training.phases import build_training_phases

FIRST, LATER = "measured_iteration1", "measured_iteration2"

COLUMNS = (
    Column("model"),
    Column("buffering", choices=("single", "double")),
    CORES,
    Column("op"),
    Column(FIRST, 1),
    Column(LATER, 1, optional=True),
    Column("core0_instructions", 0),
    Column("core3_instructions", 0, optional=True),
)

CODEGEN = "clang-rv32"
"""What compiled the rows; a column ``codegen`` says otherwise."""

L1_BYTES = 52 << 10
"""What the export was given of the 64 KiB: stacks and arguments had the rest."""

L2_EARLIER_CYCLES = 2
"""By how much earlier the L2 of these rows, a memory of the bench, answers than that of `RTL_MACHINE`."""

WORKER = 3
"""The core whose instructions were counted beside those of core 0."""

PROGRAM_INSTRUCTIONS = {"transfer_1d": 25, "transfer_2d": 29, "wait": 16, "fork": 46}
"""Instructions of core 0 around kernels: rows of the group platform of rtl-refill, warm."""


def predict_first(case: Case) -> Prediction:
    """The op in the first iteration."""
    return _predict(case, COLD)


def predict_later(case: Case) -> Prediction:
    """The op in the second iteration, which is as all later ones."""
    return _predict(case, STEADY)


def predict_warm(case: Case) -> Prediction:
    """The op with all code in the caches."""
    return _predict(case, WARM)


def predict_counted(case: Case) -> Prediction:
    """The op in the second iteration, its kernels of as many instructions as were measured."""
    return _predict(case, STEADY, counted=True)


def _predict(case: Case, code_start: str, *, counted: bool = False) -> Prediction:
    run = Run(_model(case), case.text("buffering"), case.number("cores"), case.cells.get("codegen", CODEGEN))
    ops = _ops(run, code_start, case.where.rpartition(":")[0] if counted else "")
    found = ops.get(case.text("op"))
    if found is None:
        raise case.error(f"the model has no op '{case.text('op')}'", f"use one of {', '.join(ops)}")
    return Prediction(found.cycles, found.instructions)


def _model(case: Case) -> str:
    return model_beside(Path(case.where.rpartition(":")[0]), case.text("model"))


def model_beside(rows: Path, name: str) -> str:
    """The model of measured rows: a file beside them, or an installed model."""
    beside = rows.parent / f"{name}.yaml"
    return str(beside) if beside.is_file() else name


class Run(Struct, frozen=True):
    """What a run is of."""

    model: str
    buffering: str
    cores: int
    codegen: str


def rtl_of_the_bench() -> SocTiming:
    """The machine of rows whose L2 is a memory of the bench, on which ops were functions."""
    timing = with_values(load_soc(RTL_MACHINE, "rtl"), {"form": READABLE})
    icache = timing.icache
    return with_part(
        timing,
        "icache",
        line_from_l2_cycles=icache.line_from_l2_cycles - L2_EARLIER_CYCLES,
        jump_from_l2_cycles=icache.jump_from_l2_cycles - L2_EARLIER_CYCLES,
    )


@cache
def planned(run: Run) -> tuple[Schedule, SocTiming]:
    """The schedule of a run, with the code that was executed, and its machine."""
    timing = with_values(rtl_of_the_bench(), {"cores": run.cores, "l1.size_bytes": L1_BYTES})
    options = ScheduleOptions(buffer_depth=parse_buffering(run.buffering), codegen=run.codegen)
    graphs = build_training_phases(load_model(run.model, check_options)).graphs
    if len(graphs) > 1:
        raise InputError(
            f"{run.model} runs several programs per weight update, but validate supports only one",
            cure="use a model without gradient accumulation (accumulate: 1)",
        )
    graph = graphs[0]
    schedule = build_schedule(graph, timing, cost_model_of(timing), options)
    return placed_with_code(lambda _: [schedule], timing, sizes=shipped_sizes(EXECUTED))[0], timing


@cache
def _ops(run: Run, code_start: str, path: str) -> dict[str, OpMetrics]:
    """Every op of an iteration by its name, as the master core sees it; with the instructions of a file."""
    schedule, timing = planned(run)
    cost_model: CostModel = cost_model_of(timing)
    if path:
        cost_model = Counted(schedule, cost_model, measured_shares(run, path))
    counted = CountedRun(schedule.program, core_paths(timing), traced=False)
    executor = Executor(
        schedule, timing, cost_model, counted.recorder, functional=False, code_start=code_start
    )
    return {op.name: op for op in counted.metrics(executor.simulate().cycles).ops}


@cache
def _counts(run: Run, path: str) -> dict[str, int]:
    """The instructions of the kernels of every op on one core, as a file has them."""
    found: dict[str, int] = {}
    program = _program_instructions(planned(run)[0])
    for case in read_cases(path, COLUMNS, (), ("op",)):
        of_run = Run(
            _model(case), case.text("buffering"), case.number("cores"), case.cells.get("codegen", CODEGEN)
        )
        if of_run == run:
            op = case.text("op")
            alone = case.number("core0_instructions") - program.get(op, 0)
            found[op] = case.optional("core3_instructions") or max(1, alone)
    return found


def _program_instructions(schedule: Schedule) -> Mapping[str, int]:
    """By op the instructions of core 0 around kernels."""
    counts: dict[str, int] = defaultdict(int)
    for action in schedule.program.actions:
        op = f"{action.work.op}.{action.work.step}"
        if not isinstance(action, Compute) or action.fork:
            counts[op] += sum(PROGRAM_INSTRUCTIONS[word] for word in statements_of(action))
    return counts


def measured_shares(run: Run, path: str) -> dict[str, float]:
    """By op the instructions of its kernels that a file has, of those of its nests."""
    issued: dict[str, int] = defaultdict(int)
    for op, team in _teams(planned(run)[0]):
        issued[op] += team.issued[team.members.index(WORKER) if WORKER in team.members else 0]
    return {op: count / issued[op] for op, count in _counts(run, path).items() if issued.get(op)}


def _teams(schedule: Schedule) -> Iterator[tuple[str, TeamWork]]:
    for action in schedule.program.actions:
        if isinstance(action, Compute):
            yield f"{action.work.op}.{action.work.step}", action.team


class Counted:
    """A cost model that prices the kernels of an op at other counts of instructions; nothing else changes."""

    def __init__(self, schedule: Schedule, cost_model: CostModel, shares: Mapping[str, float]) -> None:
        """`shares`: by op the instructions there are, of those of its nests."""
        self._cost_model = cost_model
        self._shares = {id(team): shares.get(op, 1.0) for op, team in _teams(schedule)}
        self._known: dict[tuple[int, int], TeamCost] = {}

    def price(self, work: TeamWork, traffic: Traffic = Traffic.NONE) -> TeamCost:
        """That of the cost model, with more or fewer of everything but refills."""
        key = id(work), int(traffic)
        if key not in self._known:
            cost, share = self._cost_model.price(work, traffic), self._shares.get(id(work), 1.0)
            self._known[key] = TeamCost(tuple(_times(core, share) for core in cost.cores), cost.dma)
        return self._known[key]

    def least_cycles(self, work: TeamWork) -> int:
        """Nothing is known."""
        return 0


def _times(cost: CoreCost, share: float) -> CoreCost:
    instructions = round(cost.instructions * share)
    stalls = tuple(
        (word, cycles if word == "icache" else round(cycles * share)) for word, cycles in cost.stalls
    )
    return CoreCost(instructions + sum(cycles for _, cycles in stalls), instructions, stalls)
