# SPDX-License-Identifier: Apache-2.0
"""`pulptrain run MODEL`: simulate a training iteration, train on, write files, print the table."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from configs.errors import InputError
from pulptrain.commands import options, search_options
from pulptrain.commands.printing import finish_run, told
from pulptrain.json_text import json_text
from pulptrain.npz_file import prepare_file, read_values, write_values
from pulptrain.outputs import prepare_folder
from pulptrain.program_text import program_lines, program_objects
from pulptrain.result_cache import open_cache
from pulptrain.session import RunOutcome, check_iterations, prepare, run_model
from pulptrain.settings import Settings
from scheduler.tuner.cache import ResultCache
from trainlib.steps import Array


def command(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="Model name (see `pulptrain list models`) or file.")
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
    if dump_program:
        prepared = prepare(model, settings)
        programs = [each.program for each in (prepared.schedule, prepared.update) if each is not None]
        if as_json:
            typer.echo(json_text({"programs": [program_objects(program) for program in programs]}))
        else:
            typer.echo("\n".join(line for program in programs for line in program_lines(program)))
        return
    folder = prepare_folder(out) if out is not None else None
    own = read_values(values) if values is not None else None
    if no_functional and save_values is not None:
        raise InputError("a run without numbers has none", where="--save-values", cure="no --no-functional")
    target = prepare_file(save_values) if save_values is not None else None
    show_progress = not (quiet or as_json)
    with open_cache(cache, no_cache) as kept:
        outcome = told(
            lambda: _run(
                model, settings, iterations, not no_functional, kept, own, show_progress=show_progress
            )
        )
    if target is not None:
        write_values(target, outcome.values)
    finish_run(outcome, folder, as_json=as_json, quiet=quiet)
    if outcome.interrupted:
        print("pulptrain: interrupted; the figures count the iterations completed", file=sys.stderr)
        raise typer.Exit(130)


def _run(
    model: str,
    settings: Settings,
    iterations: int,
    functional: bool,
    cache: ResultCache | None,
    values: Mapping[str, Array] | None,
    *,
    show_progress: bool,
) -> RunOutcome:
    if not show_progress or iterations == 1:
        return run_model(
            model, settings, iterations=iterations, functional=functional, cache=cache, values=values
        )
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

        return run_model(
            model,
            settings,
            iterations=iterations,
            functional=functional,
            progress=advance,
            cache=cache,
            values=values,
        )
