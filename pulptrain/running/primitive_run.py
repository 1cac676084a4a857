# SPDX-License-Identifier: Apache-2.0
"""One step of one primitive on the simulated SoC: inputs drawn and produced untimed, the step timed."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from arch.blocks.soc import core_paths
from arch.energy.activity import activity_of
from arch.pricing.team_cost_model import TeamCostModel
from configs.errors import InputError
from configs.limits import check_at_least_one
from configs.values import replace
from pulptrain.inputs.channel_order import channels_last, with_order
from pulptrain.inputs.own_values import replaced
from pulptrain.inputs.settings import Settings, code_start, schedule_options, soc_timing
from pulptrain.running.energy import with_energy
from pulptrain.running.error_bar import error_of
from pulptrain.running.evidence import evidence_of
from pulptrain.running.number_check import NumberCheck
from pulptrain.running.session import RunOutcome
from pulptrain.running.summary import run_summary, simulator_summary
from scheduler.counted_run import CountedRun
from scheduler.executor import Executor
from scheduler.memory.host_memory import HostUse
from scheduler.plan_figures import plan_figures
from scheduler.resident_search import schedules_for
from scheduler.schedule import multiplying
from scheduler.time_line import calls_of, kernels_of, time_line
from traces.stall_words import every_stall
from trainlib.ir.graph import Op, TrainingGraph
from trainlib.ir.steps import Array
from trainlib.primitives.definition import DrawnInput
from trainlib.references import reference
from trainlib.training.phases import only
from trainlib.training.single import Single, single
from truth.source import LAYER, LOSS, OPTIMIZER, alone, torch_available


def run_primitive(
    name: str,
    step: str,
    inputs: Sequence[DrawnInput],
    attributes: Mapping[str, Any] | None = None,
    *,
    batch: int = 1,
    dtype: str = "fp32",
    kernel: str | None = None,
    accumulation: str = "reference",
    settings: Settings | None = None,
    values: Mapping[str, Array] | None = None,
) -> RunOutcome:
    """Simulate one step (fw, ig, wg, loss, upd ... in any case) of a primitive on inputs of these shapes.

    A step that is made of several (FW_Q, FW_K ... FW of attention) is simulated as a whole; `step` may also
    name one of them.
    Inputs, parameters and output gradients are drawn from the seed of the settings, except those `values` has
    by tensor name; what an earlier step makes (a mask) is computed untimed. Results are checked as those of a
    network (`pulptrain.running.number_check`). Raises the errors of `configs.errors`; a wrong tensor is a
    `WrongNumbersError`, an infinity or a NaN that the step makes a `NotFiniteError`.
    """
    settings = settings or Settings()
    settings = replace(settings, accumulation=accumulation, icache=code_start(settings, alone=True))
    check_at_least_one(batch, "batch size", "--batch")
    started = time.perf_counter()
    options = attributes or {}
    order = channels_last(name, inputs[0].shape) if inputs else None
    where = f"primitive {name}"
    made = with_order(
        order,
        lambda: single(name, options, inputs, batch=batch, dtype=dtype, seed=settings.seed, where=where),
    )
    made = replace(made, values=replaced(made.graph, made.values, values or {}))
    ops = _ops_of(made.graph, step)
    evaluated = reference.evaluate(made.graph, made.values)
    graph = only(made.graph, ops)
    timing = soc_timing(settings)
    plan = schedule_options(settings)
    if kernel is not None:
        plan = replace(plan, kernels={op.name: kernel for op in multiplying(graph, plan.variants) or ops})
    cost_model = TeamCostModel(timing)
    schedule = schedules_for([graph], timing, cost_model, [plan], use=HostUse(True, torch_available()))[0]
    counted_run = CountedRun(schedule.program, core_paths(timing), traced=True)
    executor = Executor(schedule, timing, cost_model, counted_run.recorder, code_start=settings.icache)
    given = {name: evaluated[name] for name in graph.needed_values}
    executor.load(given)
    kind = LOSS if made.graph.loss else LAYER if made.graph.output else OPTIMIZER
    shapes = [(case.dtype, (batch, *case.shape)) for case in inputs]
    check = NumberCheck({}, [graph], given=alone(kind, name, options, dtype, shapes))
    follower = check.followed(executor, schedule.graph, given)
    simulation_started = time.perf_counter()
    result = executor.simulate()
    wall_seconds = time.perf_counter() - simulation_started
    follower.judge(confirm=False)
    _check_layer(made, evaluated, check, follower.left)
    written = {name for op in graph.ops for name in op.outputs}
    check.verdicts = {name: verdict for name, verdict in check.verdicts.items() if name in written}
    check.iterations = 1
    if executor.not_finite is not None and not check.wrong:
        raise executor.not_finite
    metrics = counted_run.metrics(result.cycles)
    summary = run_summary(
        plan_figures(schedule), timing, metrics, kernels_of(schedule.program), codegen=settings.codegen
    )
    lines = time_line(metrics.master, result.cycles, schedule.program, timing)
    summary |= {
        "primitive": name,
        "step": step.upper(),
        "dtype": dtype,
        "batch": batch,
        "kernel": summary["ops"][0]["kernel"],
        "inputs": [list(case.shape) for case in inputs],
        "options": dict(options),
        "accumulation": accumulation,
        "icache": settings.icache,
        "evidence": evidence_of(lines, settings),
        "error": error_of(
            lines, calls_of(metrics.master), settings, timing, [op.cycles for op in metrics.ops]
        ),
        "loss": None,
        "instructions": metrics.total.instructions,
        # No core is forked alone, so all take the whole time.
        "per_core": [
            {"cycles": result.cycles, "instructions": core.instructions, "stalls": every_stall(core.stalls)}
            for core in metrics.cores
        ],
        "functional": check.summary(),
    }
    counted = activity_of(schedule.program, metrics, timing, schedule.graph.formats)
    summary = with_energy(summary, counted, settings, timing)
    summary["notes"] += [order] if order is not None else []
    summary["simulator"] = simulator_summary(result.events, wall_seconds, result.cycles)
    summary["simulator"]["total_wall_seconds"] = time.perf_counter() - started
    recorder = counted_run.recorder
    outcome = RunOutcome(summary, recorder.slices, recorder.counters, schedule, timing, False)
    outcome.refuse_wrong_numbers()
    return outcome


def _ops_of(graph: TrainingGraph, step: str) -> list[Op]:
    wanted = step.upper()
    ops = [op for op in graph.ops if wanted in (op.step, op.step.partition("_")[0])]
    if ops and wanted == "LOSS":
        return list(graph.ops)  # with the casts a 16-bit output has around it
    if ops:
        return ops
    steps = ", ".join(op.step.lower() for op in graph.ops)
    raise InputError(
        f"{graph.name} has no step {step!r}",
        where="--step",
        cure=f"use one of {steps}"
        if steps
        else f"use another layer: {graph.name} only changes the shape and runs no code",
    )


def _check_layer(
    made: Single, values: Mapping[str, Array], check: NumberCheck, left: Mapping[str, Array]
) -> None:
    """Ask PyTorch about the whole layer, which has what lies before the step; forget what the step is not."""
    confirmation = check.confirmation(made.graph, made.values, {**values, **left})
    if confirmation is None:
        return
    for op in made.graph.ops:
        confirmation.add(op)
    others = {name for op in made.graph.ops for name in op.outputs} - left.keys()
    check.verdicts = {name: verdict for name, verdict in check.verdicts.items() if name not in others}
