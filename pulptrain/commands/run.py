# SPDX-License-Identifier: Apache-2.0
"""`pulptrain run MODEL`: simulate a training iteration, train on, write files, print the table."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from configs.errors import InputError
from importers.onnx_training import ImportedTraining
from pulptrain.commands import options, search_options
from pulptrain.commands.printing import finish_run, told
from pulptrain.foreign_model import (
    ForeignModel,
    ModelOptions,
    compare_with_module,
    open_foreign,
    refuse_other_gradients,
)
from pulptrain.graph_run import open_training_graph, prepare_phases, run_training_graph
from pulptrain.npz_file import prepare_file, read_values, write_values
from pulptrain.outputs import prepare_folder
from pulptrain.program_text import program_lines
from pulptrain.result_cache import open_cache
from pulptrain.session import RunOutcome, check_iterations, prepare, run_model
from pulptrain.settings import Settings
from scheduler.memory.host_memory import TIMING_ONLY


def command(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="Model name (see `pulptrain list models`) or file; net.py:Net runs net.py and takes the "
            "PyTorch module that its class or function Net makes; model.onnx is a network, or a training "
            "graph that is run as it is.",
        ),
    ],
    iterations: Annotated[
        int, typer.Option("--iterations", metavar="N", help="Training iterations; timing is simulated once.")
    ] = 1,
    soc: options.Soc = "pulp-open",
    timing: options.Timing = "rtl",
    codegen: options.Codegen = "",
    cores: options.Cores = None,
    l1: options.L1 = None,
    l2: options.L2 = None,
    l3: options.L3 = None,
    fpus: options.Fpus = None,
    bank_conflicts: options.BankConflicts = None,
    icache: options.Icache = "warm",
    buffering: options.Buffering = "double",
    placement: options.Placement = "first-fit",
    homes: options.Homes = None,
    overrides: options.Overrides = None,
    kernels: options.Kernels = None,
    im2col: options.Im2col = None,
    variant: options.Variant = None,
    tiles: options.Tiles = None,
    schedule: options.ScheduleFile = None,
    loop_orders: options.LoopOrders = None,
    prefetch: options.Prefetch = "on",
    resident: options.Resident = None,
    out: Annotated[
        str | None,
        typer.Option("--out", metavar="DIR", help="Write summary, trace, Perfetto file and pictures."),
    ] = None,
    learning_rate: options.LearningRate = None,
    model_input: options.ModelInput = None,
    loss: options.ModelLoss = None,
    optimizer: options.ModelOptimizer = None,
    seed: options.Seed = 0,
    dtype: options.Dtype = None,
    batch: options.Batch = None,
    accumulate: options.Accumulate = None,
    separate_update: options.SeparateUpdate = False,
    values: Annotated[
        str | None,
        typer.Option(
            "--values",
            metavar="FILE.npz",
            help="Weights, states, input or label by tensor name, in place of drawn ones; an input or label "
            "is that of every iteration. Takes what --save-values writes.",
        ),
    ] = None,
    save_values: Annotated[
        str | None,
        typer.Option(
            "--save-values",
            metavar="FILE.npz",
            help="Write weights and states (and before/ the last iteration), gradients, output, losses.",
        ),
    ] = None,
    no_functional: Annotated[
        bool, typer.Option("--no-functional", help="Timing only: no numbers are computed or checked.")
    ] = False,
    dump_program: Annotated[
        bool, typer.Option("--dump-program", help="Print the actions of the program in order and stop.")
    ] = False,
    cache: search_options.CacheFile = None,
    no_cache: search_options.NoCache = False,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Simulate one training iteration of MODEL in time and compute N of them."""
    settings = Settings(
        soc=soc,
        timing=timing,
        codegen=codegen,
        cores=cores,
        l1=l1,
        l2=l2,
        l3=l3,
        fpus=fpus,
        bank_conflicts=bank_conflicts,
        icache=icache,
        buffering=buffering,
        placement=placement,
        homes=tuple(homes or ()),
        overrides=tuple(overrides or ()),
        kernels=tuple(kernels or ()),
        im2col=tuple(im2col or ()),
        variants=tuple(variant or ()),
        tiles=tuple(tiles or ()),
        schedule=schedule,
        loop_orders=tuple(loop_orders or ()),
        prefetch=prefetch,
        resident=resident,
        seed=seed,
        dtype=dtype,
        batch=batch,
        accumulate=accumulate,
        separate_update=separate_update,
    )
    check_iterations(iterations)
    asked = ModelOptions(model_input, loss, optimizer)
    training, foreign = _opened(model, settings, asked, learning_rate)
    source = model if foreign is None else foreign.spec
    if dump_program:
        phases = training.phases if training is not None else None
        prepared = prepare_phases(phases, settings, TIMING_ONLY) if phases else prepare(source, settings)
        for program in (prepared.schedule, prepared.update):
            if program is not None:
                typer.echo("\n".join(program_lines(program.program)))
        return
    folder = prepare_folder(out) if out is not None else None
    own = read_values(values) if values is not None else None
    unchanged = own is None
    if foreign is not None and not no_functional:
        own = {**foreign.values, **(own or {})}
    if no_functional and save_values is not None:
        raise InputError("a run without numbers has none", where="--save-values", cure="no --no-functional")
    target = prepare_file(save_values) if save_values is not None else None
    show_progress = not (quiet or as_json)
    with open_cache(cache, no_cache) as kept:
        runner = partial(
            partial(run_model, source) if training is None else partial(run_training_graph, training),
            settings,
            iterations=iterations,
            functional=not no_functional,
            cache=kept,
            values=own,
        )
        outcome = told(lambda: _run(runner, iterations, show_progress=show_progress))
    if foreign is not None:
        outcome.summary["notes"] += foreign.notes
        if unchanged:
            compare_with_module(foreign, outcome, settings, iterations)
    if target is not None:
        write_values(target, outcome.values)
    finish_run(outcome, folder, as_json=as_json, quiet=quiet)
    if foreign is not None:
        refuse_other_gradients(foreign, outcome)
    if outcome.interrupted:
        print("pulptrain: interrupted; the figures count the iterations completed", file=sys.stderr)
        raise typer.Exit(130)


def _opened(
    model: str, settings: Settings, asked: ModelOptions, learning_rate: float | None
) -> tuple[ImportedTraining | None, ForeignModel | None]:
    """(a training graph, or a network from elsewhere): at most one; none of them for a model of ours."""
    training = open_training_graph(model, settings, learning_rate)
    if training is not None:
        asked.refuse(model)
        return training, None
    if learning_rate is not None:
        raise InputError(
            f"{model} is no training graph",
            where="--learning-rate",
            cure="'learning_rate:' in the model file, or --optimizer",
        )
    return None, open_foreign(model, settings, asked)


def _run(runner: Callable[..., RunOutcome], iterations: int, *, show_progress: bool) -> RunOutcome:
    if not show_progress or iterations == 1:
        return runner()
    columns = (
        TextColumn("training"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("loss {task.fields[loss]:.4f}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("training", total=iterations, loss=float("nan"))

        def advance(done: int, total: int, loss: float) -> None:
            if done % 20 == 0 or done == total:
                bar.update(task, completed=done, loss=loss)

        return runner(progress=advance)
