"""One `run`: build the graph and its schedule, simulate an iteration, train on, check the numbers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import pulptrain
from arch.team_pricer import TeamPricer
from arch.timing import SocTiming
from configs.errors import InputError, PulptrainError
from configs.model_file import ModelSpec, load_model
from pulptrain.settings import Settings, schedule_options, soc_timing
from pulptrain.summary import functional_summary, run_summary, simulator_summary
from scheduler.executor import Executor
from scheduler.schedule import Schedule, build_schedule
from traces.events import Slice
from traces.metrics import check_tracks, measure
from traces.recorder import CounterSample, Recorder
from trainlib import oracle_torch, reference
from trainlib.graph import KEPT_KINDS, TrainingGraph
from trainlib.numerics import FP32_TOLERANCE
from trainlib.reference import graph_tolerance
from trainlib.steps import Array
from trainlib.training import build_training_graph, initial_weights
from trainlib.training_data import digits_split, sample_stream

TOLERANCE = FP32_TOLERANCE
"""Largest max|a - b| / max|b| of a tensor, fp32, between the simulated SoC and the check."""

Progress = Callable[[int, int, float], None]
"""Called with (iterations done, iterations in all, loss of the last one)."""


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """What one run leaves: the summary of the contract, the trace, and the schedule it came from."""

    summary: dict[str, Any]
    slices: Sequence[Slice]
    counters: Sequence[CounterSample]
    schedule: Schedule
    timing: SocTiming
    interrupted: bool


@dataclass(frozen=True, slots=True)
class Prepared:
    """A model on a SoC before time starts."""

    spec: ModelSpec
    timing: SocTiming
    schedule: Schedule
    pricer: TeamPricer


def prepare(model: str, settings: Settings) -> Prepared:
    """Everything before time starts: model, SoC, schedule and the pricer of kernels."""
    spec = load_model(model)
    timing = soc_timing(settings)
    pricer = TeamPricer(timing)
    schedule = build_schedule(build_training_graph(spec), timing, pricer, schedule_options(settings))
    return Prepared(spec, timing, schedule, pricer)


def run_model(
    model: str,
    settings: Settings | None = None,
    *,
    iterations: int = 1,
    functional: bool = True,
    progress: Progress | None = None,
) -> RunOutcome:
    """Simulate one training iteration of `model` and compute `iterations` of them.

    `model` is a name from ``pulptrain list models`` or a path to a model file. Timing is simulated once; all
    iterations are computed. The gradients, updated weights and loss of the first iteration are compared with
    PyTorch where it is installed, else with an untiled NumPy evaluation. Raises the errors of
    `configs.errors`; a difference beyond `TOLERANCE` is a `PulptrainError`. Ctrl-C during training ends it
    early: the outcome then says `interrupted` and counts the iterations that were completed.
    """
    settings = settings or Settings()
    if iterations < 1:
        raise InputError(f"{iterations} iterations", where="--iterations", cure="1 or more")
    started = time.perf_counter()
    prepared = prepare(model, settings)
    spec, timing, schedule, pricer = prepared.spec, prepared.timing, prepared.schedule, prepared.pricer
    graph = schedule.graph
    samples = sample_stream(graph, spec, settings.seed)
    values = {**initial_weights(graph, settings.seed), **next(samples)}
    recorder = Recorder()
    executor = Executor(schedule, timing, pricer, recorder, functional=functional)
    if functional:
        executor.load(values)
    simulation_started = time.perf_counter()
    result = executor.simulate()
    wall_seconds = time.perf_counter() - simulation_started
    slices = recorder.slices
    check_tracks(slices, result.cycles)
    metrics = measure(slices, result.cycles)
    summary = run_summary(schedule, timing, metrics, pulptrain.__version__, codegen=settings.codegen)
    interrupted = False
    if functional:
        summary["loss"] = float(executor.fetch(graph.loss).reshape(-1)[0])
        summary["functional"] = check_numbers(graph, values, executor)
        interrupted = _train(executor, spec, samples, iterations, summary, progress)
    else:
        summary["loss"] = None
        summary["functional"] = None
    summary["simulator"] = simulator_summary(result.events, wall_seconds, result.cycles)
    summary["simulator"]["total_wall_seconds"] = time.perf_counter() - started
    return RunOutcome(summary, slices, recorder.counters, schedule, timing, interrupted)


def check_numbers(graph: TrainingGraph, values: dict[str, Array], executor: Executor) -> dict[str, Any]:
    """Compare output, loss, all weight gradients and updated weights of the iteration just simulated."""
    if oracle_torch.torch_available():
        truth_name, truth = "PyTorch", oracle_torch.evaluate_torch(graph, values)
    else:
        truth_name, truth = "untiled NumPy (PyTorch is not installed)", reference.evaluate(graph, values)
    updated = [name for name in graph.updates.values() if name in truth]
    compared = [graph.output, graph.loss, *graph.gradients.values(), *updated]
    errors = reference.compare({name: executor.fetch(name) for name in compared}, truth, compared)
    tolerance = graph_tolerance(graph, executor.schedule.options.accumulation)
    result = functional_summary(truth_name, errors, tolerance)
    if not result["passed"]:
        raise PulptrainError(
            f"the simulated numbers differ from {truth_name}: {result['max_rel_error']:.2e} relative in "
            f"{result['worst_tensor']}, {tolerance:.1e} allowed",
            where=graph.name,
            cure="report this as a defect with the command you ran",
        )
    return result


def _train(
    executor: Executor,
    spec: ModelSpec,
    samples: Iterator[dict[str, Array]],
    iterations: int,
    summary: dict[str, Any],
    progress: Progress | None,
) -> bool:
    """Replay the remaining iterations; fill `summary["training"]`; True if Ctrl-C ended them early."""
    graph = executor.schedule.graph
    losses = [float(summary["loss"])]
    interrupted = False
    try:
        for done in range(2, iterations + 1):
            executor.load(next(samples))
            executor.replay()
            losses.append(float(executor.fetch(graph.loss).reshape(-1)[0]))
            if progress is not None:
                progress(done, iterations, losses[-1])
    except KeyboardInterrupt:
        interrupted = True
    weights = {name: executor.fetch(name) for name in graph.of_kind(*KEPT_KINDS)}
    window = min(len(losses), 100)
    summary["training"] = {
        "iterations": len(losses),
        "iterations_asked": iterations,
        "first_loss": losses[0],
        "last_loss": losses[-1],
        "mean_loss_first": float(np.mean(losses[:window])),
        "mean_loss_last": float(np.mean(losses[-window:])),
        "mean_window": window,
        "test_accuracy": None,
        "test_samples": 0,
        "cycles": summary["cycles"] * len(losses),
        "seconds": summary["seconds"] * len(losses),
    }
    if spec.dataset == "digits":
        split = digits_split()
        training = summary["training"]
        training["test_accuracy"] = reference.accuracy(graph, weights, split.test_images, split.test_classes)
        training["test_samples"] = len(split.test_classes)
    return interrupted
