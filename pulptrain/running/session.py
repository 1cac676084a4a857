# SPDX-License-Identifier: Apache-2.0
"""One `run`: build the graph and its schedule, simulate an iteration, train on, check the numbers."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import numpy as np

from arch.energy.activity import whole_activity
from arch.pricing.code_caches import WARM
from arch.spec.timing import SocTiming
from configs.errors import ConfigError, DoesNotFitError, InputError, WrongNumbersError
from configs.limits import check_at_least_one, require_host_memory
from configs.model_file import TRAIN_WORDS, ModelSpec, load_model
from configs.suggest import check_known, suggestion
from configs.values import Struct, replace
from importers.training_text import parse_schedule
from pulptrain.inputs.channel_order import channels_last, with_order
from pulptrain.inputs.own_data import Data, data_of
from pulptrain.inputs.own_values import with_own_values
from pulptrain.inputs.settings import (
    Settings,
    code_map,
    code_start,
    model_variant,
    requested_of,
    schedule_options,
    soc_timing,
)
from pulptrain.process.progress import NOBODY, Teller
from pulptrain.running.energy import asked_chip, with_energy
from pulptrain.running.error_bar import error_of, op_bars
from pulptrain.running.evidence import evidence_of
from pulptrain.running.machine import Machine, Prepared
from pulptrain.running.planning import planned
from pulptrain.running.summary import finite_or_none, run_summary, simulator_summary
from pulptrain.running.training import Progress, Training
from pulptrain.running.training_curve import CurvePoint
from pulptrain.running.update_summary import update_summary
from scheduler.addresses.plan_options import ALL_OTHERS
from scheduler.memory.host_memory import TIMING_ONLY, HostUse
from scheduler.options import AUTO, of_programs
from scheduler.planned import Schedule
from scheduler.search.cache import ResultCache
from scheduler.time_line import calls_of, whole_calls, whole_line
from traces.events import Slice, make_slice
from traces.recorder import CounterSample, LateSlices, Recorder, SortedSlices, sorted_slices
from trainlib.ir.graph import FED_KINDS, TrainingGraph
from trainlib.ir.numerics import dtype_named
from trainlib.ir.steps import Array
from trainlib.ir.varying import varying_of
from trainlib.training.options import check_options
from trainlib.training.phases import TrainingPhases, build_training_phases, initial_weights
from trainlib.training.samples import Samples, are_classes, by_name
from trainlib.training.step_choice import STEPS, parse_steps
from trainlib.training.training_data import label_plans, sample_stream, samples_of
from truth.source import Given, as_source_model, torch_available

if TYPE_CHECKING:
    from deploy.project.recorded import Recorded
    from scheduler.tuner.tuned_schedule import TunedSchedule
    from truth.samples import Fed


class RunOutcome(Struct, frozen=True):
    """What one run leaves: the summary of the contract, the trace, and the schedule it came from."""

    summary: dict[str, Any]
    slices: Sequence[Slice]
    counters: Sequence[CounterSample]
    schedule: Schedule
    timing: SocTiming
    interrupted: bool
    update_schedule: Schedule | None = None
    """That of the update, where it is a program of its own; `schedule` is then that of a mini-batch."""
    curve: Sequence[CurvePoint] = ()
    """Loss of every iteration computed, and accuracy where it was asked."""
    values: Mapping[str, Array] = {}
    """Weights, states, gradients, output and losses, by the names of
    `pulptrain.running.training.Training.values`."""

    @property
    def schedules(self) -> list[Schedule]:
        """Those of all programs, in order."""
        return [self.schedule, *([self.update_schedule] if self.update_schedule is not None else [])]

    def refuse_wrong_numbers(self) -> None:
        """Raise `WrongNumbersError` if a tensor of the run is not what it should be."""
        functional = self.summary["functional"]
        if functional is None or functional["passed"] is not False:
            return
        failed = [item for item in functional["tensors"] if item["verdict"] == "failed"]
        worst = next(item for item in failed if item["name"] == functional["worst_tensor"])
        allowed = worst["tolerance"]
        raise WrongNumbersError(
            f"{len(failed)} of {len(functional['tensors'])} simulated tensors differ from "
            f"{functional['checked_against']}; the worst is {worst['name']}: {worst['reason']}"
            + (f" (relative error {worst['error']:.2e}, allowed {allowed:.1e})" if allowed else ""),
            where=self.summary["model"],
            outcome=self,
        )


def model_of(model: str | ModelSpec, settings: Settings) -> ModelSpec:
    """The model, with what the settings replace of it. Raises `ConfigError` and `InputError`."""
    spec = load_model(model, check_options) if isinstance(model, str) else model
    if settings.dtype is not None:
        dtype_named(settings.dtype, "--dtype")
        spec = replace(spec, dtype=settings.dtype)
    if settings.batch is not None:
        check_at_least_one(settings.batch, "batch size", "--batch")
        spec = replace(spec, batch=settings.batch)
    variant = model_variant(settings)
    if variant is not None:
        spec = replace(spec, variant=variant)
    if settings.steps is not None:
        spec = replace(spec, steps=parse_steps(settings.steps))
    if settings.train is not None:
        spec = replace(spec, train=parse_train(settings.train, [layer.name for layer in spec.layers]))
    options = dict(spec.optimizer.options)
    if settings.accumulate is not None:
        check_at_least_one(settings.accumulate, "number of mini-batches per update", "--accumulate")
        options["accumulate"] = settings.accumulate
    if settings.lr_schedule is not None:
        from trainlib.training.schedules import schedule_of  # schemas that few models need

        options["schedule"] = parse_schedule(settings.lr_schedule)
        schedule_of(options["schedule"], "--lr-schedule")
    if settings.separate_update:
        options["separate"] = True
    if options != spec.optimizer.options:
        spec = replace(spec, optimizer=replace(spec.optimizer, options=options))
    return spec


def settled(model: str | ModelSpec, settings: Settings) -> tuple[ModelSpec, Settings]:
    """The model as the settings change it, and the settings without that. Raises as `model_of`."""
    return model_of(model, settings), replace(settings, batch=None, accumulate=None, train=None)


def parse_train(text: str, layers: Sequence[str]) -> str | tuple[str, ...] | None:
    """What ``--train`` says, as `ModelSpec.train` has it. Raises `InputError` for what is no layer."""
    if text.strip() in TRAIN_WORDS:
        return None if text.strip() == "all" else text.strip()
    names = tuple(name.strip() for name in text.split(","))
    for name in names:
        check_known(name, layers, f"unknown layer {name!r}", "--train")
    return names


def prepare(
    model: str | ModelSpec,
    settings: Settings,
    cache: ResultCache | None = None,
    use: HostUse = TIMING_ONLY,
    *,
    traced: bool = True,
    advise: bool = True,
) -> Prepared:
    """Everything before time starts: model, SoC, schedules and the cost model of kernels.

    `use` is what will be done with it: it decides how much of this computer's memory is needed. With a
    `cache` the tilings and prices of an earlier run of the same are taken from it, and its figures where no
    trace is asked for: without numbers schedules are then planned only if they are read. Raises the errors of
    `configs.errors`. If it is to `advise`, which takes more plans, a `DoesNotFitError` says what would help
    (`scheduler.levers`).
    """
    spec = model_of(model, settings)
    timing = soc_timing(settings)
    file = _schedule_file(settings)
    phases = with_order(_order_of(spec), lambda: build_training_phases(spec))
    written = phases.mini_batch
    _check_memory(spec, phases)
    if file is not None and file.layout:
        from scheduler.tuner.schedule_file import as_tuned

        spec = as_tuned(file, spec)
        phases = build_training_phases(spec)
    graphs = phases.graphs
    # The options of each program: what the command line says of its ops, then what a schedule file says.
    options = schedule_options(settings, spec)
    by_program = of_programs(options, graphs)
    if file is not None:
        from scheduler.tuner.schedule_file import options_from

        if settings.resident is not None:
            file = file.but(resident={})  # said on the command line, "off" too, goes first
        by_program = options_from(file, graphs, timing, options, written)
    start = code_start(settings)
    try:
        plan = planned(
            *(spec, phases, timing, by_program, cache, use, start, code_map(settings)),
            traced=traced,
            advise=advise,
        )
    except DoesNotFitError as error:
        if not advise or (error.level == "l1" and tuple(options.resident) not in ((), (AUTO,))):
            raise  # the latter says which resident tensors are in the way
        from scheduler.levers import with_levers

        raise with_levers(error, spec, timing, options) from None
    notes: tuple[str, ...] = ()
    if file is not None and file.icache != start:
        notes = (f"the schedule was tuned with --icache {file.icache}, this run is {start}",)
    return replace(plan, given=partial(_user_model, model, settings, file), notes=notes)


def _check_memory(spec: ModelSpec, phases: TrainingPhases) -> None:
    """Raise `ConfigError` where a model file says something of tensors or ops that there are not."""
    tensors = tuple(phases.mini_batch.tensors)
    uses = {
        op.name: tuple(
            {name: name for one in (*op.inputs, *op.outputs) for name in (one, graph.storage_of(one))}
        )
        for graph in phases.graphs
        for op in graph.ops
    }
    ops = tuple(uses)
    named = [("homes", name, tensors, "a tensor") for name in spec.homes if name != ALL_OTHERS]
    named += [(key, name, ops, "an op") for key in ("streams", "slot_bytes") for name in getattr(spec, key)]
    named += [
        ("streams", name, uses[op], f"a tensor of {op}")
        for op, names in spec.streams.items()
        if op in uses
        for name in names
    ]
    for key, name, known, what in named:
        if name not in known:
            cure = suggestion(name, known)
            raise ConfigError(f"{key!r} names {name!r}, which is not {what}", where=spec.where, cure=cure)


def _user_model(model: str | ModelSpec, settings: Settings, file: TunedSchedule | None) -> Given:
    """What the user gave, as it was given: `truth` reads it by itself."""
    return as_source_model(
        model,
        dtype=settings.dtype,
        batch=settings.batch,
        variant=model_variant(settings),
        accumulate=settings.accumulate,
        schedule=parse_schedule(settings.lr_schedule) if settings.lr_schedule is not None else None,
        separate=settings.separate_update,
        steps=settings.steps,
        train=settings.train,
        layouts=file.layout if file is not None else None,
    )


def _order_of(spec: ModelSpec) -> str | None:
    return channels_last(spec.layers[0].type, spec.input_shape)


def _schedule_file(settings: Settings) -> TunedSchedule | None:
    if settings.schedule is None:
        return None
    from scheduler.tuner.schedule_file import file_of, load_schedule

    if isinstance(settings.schedule, str):
        return load_schedule(settings.schedule)
    return file_of(settings.schedule)


ITERATION_BYTES = 64
"""What is kept of every iteration: its loss."""


def check_iterations(iterations: int) -> None:
    """Raise `InputError` for no iterations, and for more than this computer may keep the losses of."""
    check_at_least_one(iterations, "number of iterations", "--iterations")
    what, cure = f"{iterations} iterations take", "use fewer iterations"
    require_host_memory(iterations * ITERATION_BYTES, what, where="--iterations", cure=cure)


def _check_schedules(prepared: Prepared, iterations: int) -> None:
    """Raise `InputError` for a learning-rate schedule that ends before the iterations do."""
    steps = [item.steps for item in varying_of(prepared.phases.programs) if item.steps is not None]
    if steps and min(steps) < iterations:
        raise InputError(
            f"the learning-rate schedule has {min(steps)} steps, but the run has {iterations} iterations",
            where=prepared.spec.optimizer.where or prepared.spec.where,
            cure=f"use a longer schedule, or --iterations {min(steps)}",
        )


SAMPLE_BYTES = 1000
"""What a mini-batch that is kept takes beside its numbers; 1.5 KB were measured of one of 850 bytes."""


def _check_samples(graph: TrainingGraph, mini_batches: int) -> None:
    """Raise `InputError` for more mini-batches of one update than this computer may keep the samples of."""
    fed = sum(graph.tensors[name].size_bytes for name in graph.of_kind(*FED_KINDS))
    require_host_memory(
        mini_batches * (fed + SAMPLE_BYTES),
        f"the samples of {mini_batches:,} mini-batches of one update need",
        where="--accumulate",
        cure="use fewer mini-batches",
    )


def run_model(
    model: str | ModelSpec,
    settings: Settings | None = None,
    *,
    iterations: int = 1,
    functional: bool = True,
    progress: Progress | None = None,
    traced: bool = True,
    cache: ResultCache | None = None,
    values: Mapping[str, Array] | None = None,
    data: Data | None = None,
    teller: Teller = NOBODY,
    record: Recorded | None = None,
) -> RunOutcome:
    """Simulate one training iteration (one update) of `model` and compute `iterations` of them.

    `model` is a name from ``pulptrain list models``, the path of a model file, or a model that is read.
    Timing is simulated once; all iterations are computed. Every tensor of the first three iterations, of the
    last one and of one more is checked (`pulptrain.running.number_check`), against PyTorch where it is
    installed; ``summary["functional"]`` says what was found, and a wrong tensor is a `WrongNumbersError`,
    which has the outcome. An update over several mini-batches, or one that is a program of its own, is two
    programs; each is simulated once in time.
    `values` replace weights, buffers, states (at the start) and inputs, labels (in all iterations) by name,
    `data` the samples of the model's data set (`pulptrain.inputs.own_data`).
    Raises the errors of `configs.errors`. Ctrl-C during training ends it early: the outcome then says
    `interrupted` and counts the iterations that were completed; so does an infinity or a NaN
    (``summary["not_finite"]``). A `cache` saves the time of choosing tilings and pricing kernels the next
    time, and of a run that need not be `traced` that of counting, without numbers of simulating; it changes
    no figure. Such a run has no slices. `record` is given what every iteration began with and came to.
    """
    settings = settings or Settings()
    check_iterations(iterations)
    if values and not functional:
        raise InputError(
            "the option has no effect, because --no-functional computes no values",
            where="--values",
            cure="remove --no-functional",
        )
    started = time.perf_counter()
    name = model if isinstance(model, str) else model.name
    teller.stage(f"planning {name} on {settings.soc}: tiles, memory, kernels")
    use = HostUse(functional, functional and torch_available())
    prepared = prepare(model, settings, cache, use, traced=traced)
    outcome = run_prepared(
        prepared,
        settings,
        iterations=iterations,
        functional=functional,
        progress=progress,
        values=values,
        data=data,
        teller=teller,
        record=record,
    )
    outcome.summary["simulator"]["total_wall_seconds"] = time.perf_counter() - started
    outcome.summary["notes"] += [order] if (order := _order_of(prepared.spec)) is not None else []
    outcome.refuse_wrong_numbers()
    return outcome


def run_prepared(
    prepared: Prepared,
    settings: Settings,
    *,
    iterations: int = 1,
    functional: bool = True,
    progress: Progress | None = None,
    values: Mapping[str, Array] | None = None,
    samples: Iterator[Mapping[str, Array]] | None = None,
    data: Data | None = None,
    teller: Teller = NOBODY,
    record: Recorded | None = None,
) -> RunOutcome:
    """`run_model` from the point where everything is planned; wrong numbers are not raised, but told.

    `samples` are the values of each mini-batch, in place of those that the model's data set gives.
    """
    _check_schedules(prepared, iterations)
    asked_chip(settings, prepared.timing)
    machine = Machine(prepared, functional=functional, code_start=code_start(settings))
    # Of a run without numbers whose figures are kept nothing is planned: its schedule is not looked at.
    graph = prepared.schedule.graph if functional else prepared.phases.mini_batch
    kept = initial_weights(graph, settings.seed) if functional else {}
    users_own = data_of(prepared.spec, data) if functional and samples is None else None
    stream = samples or sample_stream(graph, prepared.spec, settings.seed, users_own)
    if values:
        kept, stream = with_own_values(graph, kept, stream, values)
    if functional:
        _check_samples(graph, prepared.phases.mini_batches)
    fed = _fed(machine.given, settings.seed, data, values or {}) if functional else None
    training = Training(machine, prepared.phases.mini_batches, stream, kept, fed, record, settings.seed)
    asked = (functional and iterations > 1) or users_own is not None
    tested = _tested(prepared, users_own) if asked else None
    if tested is not None:
        training.ask_accuracy(lambda: tested.accuracy(graph, machine.fetch_state()), iterations)
    del kept  # what training starts from is soon not needed any more
    teller.stage("simulating an iteration" + (" and checking its numbers" if functional else ""))
    training.first(iterations, check=functional)
    if values and training.not_finite is not None and not training.wrong:
        raise training.not_finite.error
    _store_figures(prepared, machine, settings)
    summary = _summary(machine, prepared, settings)
    has_loss = functional and bool(graph.losses)
    summary["notes"] += prepared.notes
    summary["steps"] = list(prepared.spec.steps or STEPS)
    summary["requested"] = requested_of(settings)
    if fed is not None and fed.skipped:
        summary["notes"].append(fed.skipped)
    summary["loss"] = finite_or_none(training.losses[0]) if has_loss else None
    if iterations > 1:
        teller.stage("training")
    interrupted = functional and training.go_on(iterations, progress)
    if len(training.terms) > 1:
        summary["loss_terms"] = {
            name: [finite_or_none(value) for value in values] for name, values in training.terms.items()
        }
    summary["not_finite"] = training.not_finite.as_dict() if training.not_finite else None
    summary["functional"] = None
    if has_loss:
        training.ask_at_the_end()
        summary["training"] = _training_summary(training, iterations, summary, tested)
    saved = training.values() if functional else {}
    if training.check is not None:
        training.check_summary(summary, saved)
        summary["functional"] = training.check.summary()
    phases = machine.phases
    summary["simulator"] = {
        **simulator_summary(
            sum(phase.figures.events for phase in phases if phase.figures is not None),
            sum(phase.wall_seconds for phase in phases),
            sum(phase.cycles for phase in phases),
        ),
        "cached": len(prepared.figures),
    }
    return RunOutcome(
        summary,
        LateSlices(partial(_one_after_the_other, [(phase.recorder, phase.cycles) for phase in phases])),
        machine.mini.recorder.counters,
        prepared.schedule,
        prepared.timing,
        interrupted,
        prepared.update,
        _curve(training, summary) if has_loss else (),
        saved,
    )


def _store_figures(prepared: Prepared, machine: Machine, settings: Settings) -> None:
    """Write the run cache, with what a run without a trace came to."""
    if prepared.run_cache is None:
        return
    prepared.run_cache.write()
    if not (prepared.traced or prepared.figures):
        figures = [phase.figures for phase in machine.phases if phase.figures is not None]
        prepared.run_cache.keep_figures(prepared.figures_key, figures)


def _fed(given: Given | None, seed: int, data: Data | None, values: Mapping[str, Array]) -> Fed | None:
    """What samples must be; None where there is no truth that says so."""
    if given is None or not torch_available():
        return None
    from truth.network import unknown
    from truth.samples import Fed

    return Fed(given, seed, data, values) if not unknown(given) else None


class _Tested(Struct, frozen=True):
    """The samples of which accuracy is asked: inputs by name, their classes, the output that tells them."""

    inputs: Mapping[str, Array]
    classes: Array
    output: str

    def accuracy(self, graph: TrainingGraph, weights: Mapping[str, Array]) -> float:
        """Share of the samples that a network with these weights classifies rightly."""
        from trainlib.references import reference

        fed = {name: array.astype(graph.tensors[name].dtype) for name, array in self.inputs.items()}
        return reference.accuracy(graph, weights, fed, self.classes, self.output)


def _tested(prepared: Prepared, own: Samples | Iterable[tuple[Any, Any]] | None) -> _Tested | None:
    """The samples accuracy is asked of; None where there are none, or not one loss that has classes."""
    samples = samples_of(prepared.spec, own if isinstance(own, Samples) else None)
    if samples is None or (own is not None and samples is not own) or not len(samples.test_inputs):
        return None
    graph, spec = prepared.schedule.graph, prepared.spec
    labels = by_name(samples.test_labels, [*label_plans(graph, spec)], samples.name)
    classified = [
        _Tested(by_name(samples.test_inputs, graph.inputs, samples.name), labels[loss.label], output)
        for loss, output in zip(spec.losses, graph.outputs, strict=True)
        if loss.label in labels and are_classes(labels[loss.label]) and len(graph.tensors[output].shape) == 2
    ]
    return classified[0] if len(classified) == 1 and len(classified[0].classes) else None


def _curve(training: Training, summary: Mapping[str, Any]) -> list[CurvePoint]:
    """A point per iteration computed."""
    return [
        CurvePoint(number, number * summary["seconds"], loss, training.accuracies.get(number))
        for number, loss in enumerate(training.losses, start=1)
    ]


def _summary(machine: Machine, prepared: Prepared, settings: Settings) -> dict[str, Any]:
    """Figures of one update: those of its only program, or of the mini-batches and the update together."""
    settings = replace(settings, icache=code_start(settings))
    summaries, lines, calls, activities = [], [], [], []
    for phase in machine.phases:
        figures = phase.figures
        assert figures is not None
        activities.append(figures.activity)
        lines.append(figures.line)
        calls.append(calls_of(figures.metrics.master))
        one = run_summary(
            figures.plan, prepared.timing, figures.metrics, figures.kernels, codegen=settings.codegen
        )
        code = {"code_bytes": figures.plan.code_bytes} if settings.icache != WARM else {}
        summaries.append({**one, "icache": settings.icache, **code})
    times = (1,) if len(lines) == 1 else (prepared.phases.mini_batches, 1)
    line = whole_line(zip(lines, times, strict=True))
    summary = summaries[0] if len(lines) == 1 else update_summary(summaries[0], summaries[1], times[0])
    whole = whole_calls(zip(calls, times, strict=True))
    ops = [op["cycles"] for op in summary["ops"]]
    error = error_of(line, whole, settings, prepared.timing, ops)
    bars = op_bars(summary["ops"], settings, prepared.timing)
    for op, bar in zip_longest(summary["ops"], bars):
        op["within_percent"] = bar
    activity = whole_activity(zip(activities, times, strict=True))
    summary = {**summary, "evidence": evidence_of(line, settings), "error": error}
    return with_energy(summary, activity, settings, prepared.timing)


def _one_after_the_other(traces: Sequence[tuple[Recorder, int]]) -> SortedSlices:
    """The traces of the programs in one, each once, the second beginning after the cycles of the first."""
    if len(traces) == 1:
        return traces[0][0].slices
    moved: list[Slice] = []
    start_cycles = 0
    for recorder, cycles in traces:
        for track, start, end, *rest in recorder.slices:
            moved.append(make_slice((track, start + start_cycles, end + start_cycles, *rest)))
        start_cycles += cycles
    return sorted_slices(moved)


def _training_summary(
    training: Training, iterations: int, summary: Mapping[str, Any], tested: _Tested | None
) -> dict[str, Any]:
    """What training came to: losses, and the accuracy on test samples where the data set has any."""
    losses = training.losses
    window = min(len(losses), 100)
    result = {
        "iterations": len(losses),
        "iterations_requested": iterations,
        "first_loss": finite_or_none(losses[0]),
        "last_loss": finite_or_none(losses[-1]),
        "mean_loss_first": finite_or_none(float(np.mean(losses[:window]))),
        "mean_loss_last": finite_or_none(float(np.mean(losses[-window:]))),
        "mean_window": window,
        "test_accuracy": None,
        "test_samples": 0,
        "cycles": summary["cycles"] * len(losses),
        "seconds": summary["seconds"] * len(losses),
    }
    if training.accuracies:
        result["test_accuracy"] = training.accuracies[max(training.accuracies)]
        result["test_samples"] = len(tested.classes) if tested is not None else 0
    return result
