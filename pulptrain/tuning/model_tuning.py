# SPDX-License-Identifier: Apache-2.0
"""`tune` as a Python call: a model by name, settings as on the command line, a schedule and a summary."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import asdict

from arch.spec.timing import SocTiming
from configs.errors import InputError
from configs.model_file import ModelSpec
from configs.suggest import check_known
from configs.values import Struct, replace
from configs.version import VERSION
from pulptrain.inputs.settings import Settings, schedule_options, soc_timing
from pulptrain.process.progress import NOBODY, Teller
from pulptrain.running.energy import chip_of
from pulptrain.running.evidence import evidence_of
from pulptrain.running.session import RunOutcome, model_of, run_model
from scheduler.memory.host_memory import check_host_memory
from scheduler.schedule import code_of_op_alone
from scheduler.search.cache import ResultCache
from scheduler.search.progress import Meter
from scheduler.search.workers import Workers
from scheduler.tuner.iteration_tuning import Tuning, tune_iteration
from scheduler.tuner.layout_search import KEEP, SEARCH, programs_of, search_layouts
from scheduler.tuner.objective import CYCLES, EDP, OBJECTIVES, Objective, objective_of
from scheduler.tuner.op_tuner import OpTuner
from scheduler.tuner.schedule_file import as_tuned, check_model, load_schedule
from scheduler.tuner.search_space import SpaceRules
from scheduler.tuner.strategies import StrategyOptions
from scheduler.tuner.tuned_schedule import Named, TunedSchedule, model_content
from trainlib.ir.graph import LAYOUTS
from trainlib.training.layouts import layers_with_choice, with_layouts


class TuneOutcome(Struct, frozen=True):
    """What tuning leaves: the object `tune --json` prints (without the path), the schedule for a file, and
    whether Ctrl-C ended it early."""

    summary: dict[str, Any]
    schedule: TunedSchedule
    interrupted: bool
    tuned: RunOutcome | None = None
    """A run with the schedule, in time only; None if the search was interrupted."""


def tune_model(
    model: str | ModelSpec,
    workers: Workers,
    settings: Settings | None = None,
    *,
    strategy: StrategyOptions | None = None,
    rules: SpaceRules | None = None,
    start: str | None = None,
    cache: ResultCache | None = None,
    meter: Meter | None = None,
    layout: str = KEEP,
    objective: str = CYCLES,
    teller: Teller = NOBODY,
) -> TuneOutcome:
    """Tune a model for a SoC; `start` is a schedule file of the same model whose choices are tried first.

    `layout` of the images is ``keep`` (as the model says), CHW or HWC for all layers with a choice, or
    ``search``: by layer what takes the fewest cycles, or as the model says if the iteration is faster so.
    `objective` is one of `scheduler.tuner.objective.OBJECTIVES`.
    `schedule_file.write_schedule` writes the result. Raises the errors of `configs.errors`.
    """
    settings = settings or Settings()
    started = time.perf_counter()
    spec = model_of(model, settings)
    asked = _asked(spec, layout)
    written = programs_of(spec)
    first = None
    if start is not None:
        file = load_schedule(start)
        check_model(file, [graph for graph, _ in programs_of(as_tuned(file, spec))], written[0][0])
        first = file.chosen
    options, timing = schedule_options(settings, spec), soc_timing(settings)
    # Before anything is simulated: every op is, on memories of full size.
    for graph, _ in written:
        check_host_memory(graph, timing)
    tuner = OpTuner(
        timing,
        options.codegen,
        workers,
        rules=rules,
        strategy=strategy,
        cache=cache,
        meter=meter,
        start=first,
        objective=_objective(objective, spec, settings, timing, cache),
        code_start=code_of_op_alone(written[0][0], timing, options),
    )
    tried = [asked]
    if layout == SEARCH:
        layouts_found = search_layouts(spec, tuner)
        tried += [layouts_found] if layouts_found else []
    tunings = []
    for layouts in tried:
        programs = programs_of(with_layouts(spec, layouts))
        tuner.search([programs])
        tunings.append(tune_iteration(programs, options, tuner, version=VERSION))
    # Ops at their best by themselves are not yet a whole iteration: the model as it is may still be faster.
    best = min(range(len(tried)), key=lambda number: tunings[number].cost)
    programs, tuning = programs_of(with_layouts(spec, tried[best])), tunings[best]
    schedule = tuning.schedule.but(
        model=Named(name=written[0][0].name, content=model_content(written[0][0])),
        layout=tried[best],
        icache=options.code_start,
    )
    interrupted = any(item.interrupted for item in tunings)
    tuned: RunOutcome | None = None
    untuned_cycles = tunings[0].untuned_cycles
    in_runs: dict[str, dict[str, int]] = {}
    energies: tuple[Any, Any] = (None, None)
    if not interrupted and schedule.cycles is not None:
        teller.stage("simulating an iteration without and with the schedule")
        untuned, tuned, in_runs = _in_runs(spec, settings, schedule, cache)
        energies = untuned.summary["energy"], tuned.summary["energy"]
    wall_seconds = time.perf_counter() - started
    steps = {op.name: (op.primitive, op.step) for graph, _ in programs for op in graph.ops}
    choices = [
        {
            **{"op": choice.op, "primitive": steps[choice.op][0], "step": steps[choice.op][1]},
            **choice.model_dump(exclude={"op", "im2col"}),
            **in_runs.get(choice.op, {}),
        }
        for choice in schedule.choices
    ]
    evidence = evidence_of(tuning.line, settings) if tuning.line else None
    error = tuned.summary["error"] if tuned is not None else None
    summary = _summary(schedule, tuning, untuned_cycles, evidence, error, choices, wall_seconds)
    summary |= {"objective": objective, "untuned_energy": energies[0], "energy": energies[1]}
    return TuneOutcome(summary, schedule, interrupted, tuned)


def base_variant(variant: str | None) -> tuple[str, ...]:
    """What ``--variant`` says of all layers, for `Settings`. Raises `InputError` for one of a single op."""
    if variant is not None and "=" in variant:
        raise InputError(
            "`pulptrain tune` chooses the variant of each op, so --variant cannot set that of one op",
            where="--variant",
            cure="use --step-variants with those to choose from, or --variant default or as-published",
        )
    return (variant,) if variant is not None else ()


def _summary(
    schedule: TunedSchedule,
    tuning: Tuning,
    untuned_cycles: int | None,
    evidence: Mapping[str, Any] | None,
    error: Mapping[str, Any] | None,
    choices: Sequence[Mapping[str, Any]],
    wall_seconds: float,
) -> dict[str, Any]:
    """The object of ``--json``."""
    return {
        "model": schedule.model.name,
        "soc": schedule.soc.name,
        "timing": schedule.soc.timing,
        "codegen": schedule.codegen,
        "cycles": schedule.cycles,
        "untuned_cycles": untuned_cycles,
        "evidence": evidence,
        "error": error,
        "layout": dict(schedule.layout),
        "resident": [asdict(item) for item in tuning.residents],
        "candidates": schedule.candidates,
        "evaluated": schedule.evaluated,
        "pruned": schedule.candidates - schedule.evaluated,
        "strategy": schedule.strategy,
        "truncated_ops": list(tuning.bounded),
        "choices": list(choices),
        "version": schedule.pulptrain,
        "simulator": {
            "wall_seconds": wall_seconds,
            "cached": tuning.cached,
            "simulated": schedule.evaluated - tuning.cached,
            "candidates_per_second": schedule.candidates / wall_seconds,
        },
    }


def _in_runs(
    spec: ModelSpec, settings: Settings, schedule: TunedSchedule, cache: ResultCache | None
) -> tuple[RunOutcome, RunOutcome, dict[str, dict[str, int]]]:
    """Runs without and with the schedule, and by op its cycles in them.

    The cycles a search compares are those of an op alone; in an iteration ops overlap their neighbours.
    """
    plain = replace(settings, resident=None)
    untuned = run_model(spec, plain, functional=False, traced=False, cache=cache)
    tuned = run_model(spec, replace(plain, schedule=schedule), functional=False, cache=cache)
    before = {op["name"]: op["cycles"] for op in untuned.summary["ops"]}
    by_op = {
        op["name"]: {"untuned_cycles": before.get(op["name"], 0), "tuned_cycles": op["cycles"]}
        for op in tuned.summary["ops"]
    }
    return untuned, tuned, by_op


def _asked(spec: ModelSpec, layout: str) -> dict[str, str]:
    """Layer -> layout where ``--layout`` asks for another than the model says."""
    check_known(layout, (KEEP, SEARCH, *LAYOUTS), f"unknown layout {layout!r}", "--layout")
    if layout in (KEEP, SEARCH):
        return {}
    return {name: layout for name, written in layers_with_choice(spec).items() if written != layout}


def _objective(
    name: str, spec: ModelSpec, settings: Settings, timing: SocTiming, cache: ResultCache | None
) -> Objective:
    """What is made small. Raises `InputError` for another word, and for a chip without coefficients."""
    check_known(name, OBJECTIVES, f"unknown objective {name!r}", "--objective")
    if name == CYCLES:
        return Objective()
    chip = chip_of(settings, timing)
    watts = 0.0
    if name == EDP:
        plain = replace(settings, resident=None)
        watts = run_model(spec, plain, functional=False, traced=False, cache=cache).summary["energy"][
            "average_watts"
        ]
    return objective_of(name, *chip, watts)
