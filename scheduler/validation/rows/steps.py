# SPDX-License-Identifier: Apache-2.0
"""KIND steps: the ops of whole training iterations, exported with `deploy` and executed on the RTL.

A row is one op of one run. Its prediction is what `run` says of this op in the whole iteration: the first one
from cold caches, the later ones as the iteration before left them.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from arch.blocks.soc import core_paths
from arch.pricing.code_caches import COLD, STEADY
from arch.spec.soc_config import load_soc, with_values
from configs.model_file import load_model
from scheduler.counted_run import CountedRun
from scheduler.executor import Executor
from scheduler.options import ScheduleOptions, parse_buffering
from scheduler.schedule import build_schedule
from scheduler.validation.rows.cases import CORES, Case, Column
from scheduler.validation.rows.machines import RTL_MACHINE, cost_model_of
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
)

CODEGEN = "clang-rv32"
"""What compiled the rows; a column ``codegen`` says otherwise."""

L1_BYTES = 52 << 10
"""What the export was given of the 64 KiB: stacks and arguments had the rest."""


def predict_first(case: Case) -> Prediction:
    """The op in the first iteration."""
    return _predict(case, COLD)


def predict_later(case: Case) -> Prediction:
    """The op in the second iteration, which is as all later ones."""
    return _predict(case, STEADY)


def _predict(case: Case, code_start: str) -> Prediction:
    ops = _ops(
        _model(case),
        case.text("buffering"),
        case.number("cores"),
        case.cells.get("codegen", CODEGEN),
        code_start,
    )
    found = ops.get(case.text("op"))
    if found is None:
        raise case.error(f"the model has no op '{case.text('op')}'", f"its ops are {', '.join(ops)}")
    return Prediction(found.cycles, found.instructions)


def _model(case: Case) -> str:
    """The model of a row: a file beside the measured one, or an installed model."""
    name = case.text("model")
    beside = Path(case.where.rpartition(":")[0]).parent / f"{name}.yaml"
    return str(beside) if beside.is_file() else name


@cache
def _ops(model: str, buffering: str, cores: int, codegen: str, code_start: str) -> dict[str, OpMetrics]:
    """Every op of an iteration by its name, as the master core sees it."""
    spec = load_model(model, check_options)
    timing = with_values(load_soc(RTL_MACHINE, "rtl"), {"cores": cores, "l1.size_bytes": L1_BYTES})
    options = ScheduleOptions(buffer_depth=parse_buffering(buffering), codegen=codegen)
    (graph,) = build_training_phases(spec).graphs
    cost_model = cost_model_of(timing)
    schedule = build_schedule(graph, timing, cost_model, options)
    counted = CountedRun(schedule.program, core_paths(timing), traced=False)
    executor = Executor(
        schedule, timing, cost_model, counted.recorder, functional=False, code_start=code_start
    )
    return {op.name: op for op in counted.metrics(executor.simulate().cycles).ops}
