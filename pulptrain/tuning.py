"""`tune` as a Python call: a model by name, settings as on the command line, a schedule and a summary."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import pulptrain
from pulptrain.session import model_of
from pulptrain.settings import Settings, schedule_options, soc_timing
from scheduler.tuner.cache import ResultCache
from scheduler.tuner.candidates import SpaceRules
from scheduler.tuner.choices import OpChoice, Timed, TunedSchedule, cut_fields
from scheduler.tuner.progress import Meter
from scheduler.tuner.schedule_file import check_model, load_schedule
from scheduler.tuner.strategies import StrategyOptions
from scheduler.tuner.tune import tune
from scheduler.tuner.workers import Workers
from trainlib.training import build_training_phases


@dataclass(frozen=True, slots=True)
class TuneOutcome:
    """What tuning leaves: the object `tune --json` prints (without the path), the schedule for a file, and
    whether Ctrl-C ended it early."""

    summary: dict[str, Any]
    schedule: TunedSchedule
    interrupted: bool


def tune_model(
    model: str,
    workers: Workers,
    settings: Settings | None = None,
    *,
    strategy: StrategyOptions | None = None,
    rules: SpaceRules | None = None,
    start: str | None = None,
    cache: ResultCache | None = None,
    meter: Meter | None = None,
) -> TuneOutcome:
    """Tune a model for a SoC; `start` is a schedule file of the same model whose choices are tried first.

    `schedule_file.write_schedule` writes the result. Raises the errors of `configs.errors`.
    """
    settings = settings or Settings()
    started = time.perf_counter()
    phases = build_training_phases(model_of(model, settings))
    programs = [(phases.mini_batch, phases.mini_batches)]
    if phases.update is not None:
        programs.append((phases.update, 1))
    first = None
    if start is not None:
        file = load_schedule(start)
        check_model(file, [graph for graph, _ in programs])
        first = file.candidates
    tuning = tune(
        programs,
        soc_timing(settings),
        schedule_options(settings),
        workers,
        rules=rules,
        strategy=strategy,
        cache=cache,
        meter=meter,
        start=first,
        version=pulptrain.__version__,
    )
    schedule = tuning.schedule
    wall_seconds = time.perf_counter() - started
    steps = {op.name: (op.primitive, op.step) for graph, _ in programs for op in graph.ops}
    summary = {
        "model": schedule.model,
        "soc": schedule.soc,
        "timing": schedule.timing,
        "codegen": schedule.codegen,
        "cycles": schedule.cycles,
        "untuned_cycles": tuning.untuned_cycles,
        "resident": [asdict(stay) for stay in tuning.stays],
        "candidates": schedule.candidates,
        "evaluated": schedule.evaluated,
        "pruned": schedule.candidates - schedule.evaluated,
        "strategy": schedule.strategy,
        "choices": [_choice(choice, *steps[choice.op]) for choice in schedule.choices],
        "version": schedule.version,
        "simulator": {
            "wall_seconds": wall_seconds,
            "cached": tuning.cached,
            "simulated": schedule.evaluated - tuning.cached,
            "candidates_per_second": schedule.candidates / wall_seconds,
        },
    }
    return TuneOutcome(summary, schedule, tuning.interrupted)


def _choice(choice: OpChoice, primitive: str, step: str) -> Mapping[str, Any]:
    cut = choice.best.candidate.cut
    return {
        "op": choice.op,
        "primitive": primitive,
        "step": step,
        **_timed(choice.best),
        "tiles": cut.tiles,
        "l1_bytes": cut.l1_bytes,
        "candidates": choice.candidates,
        "evaluated": choice.evaluated,
        "runner_up": _timed(choice.runner_up) if choice.runner_up is not None else None,
    }


def _timed(timed: Timed) -> dict[str, Any]:
    return {"kernel": timed.candidate.kernel, **cut_fields(timed.candidate.cut), "cycles": timed.cycles}
