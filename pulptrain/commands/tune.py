# SPDX-License-Identifier: Apache-2.0
"""`pulptrain tune MODEL`: the AutoTuner; writes a schedule file for `run --schedule`."""

from __future__ import annotations

import os
import sys
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from configs.errors import InputError
from configs.files import check_file
from pulptrain.commands import options, search_options
from pulptrain.commands.printing import print_paths, table_console
from pulptrain.json_text import json_text
from pulptrain.model_tuning import tune_model
from pulptrain.result_cache import open_cache
from pulptrain.settings import Settings, check_seed
from scheduler.tuner.progress import meter
from scheduler.tuner.schedule_file import is_schedule, write_schedule
from scheduler.tuner.search_space import CUTS_PER_DEPTH, MOST_CUTS, SpaceRules, parse_variants
from scheduler.tuner.strategies import STRATEGIES, StrategyOptions
from scheduler.tuner.workers import open_workers
from traces.report import evidence_line

_Strategy = Annotated[
    str, typer.Option("--strategy", metavar="|".join(STRATEGIES), help="How the candidates are searched.")
]


def command(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="Model name (see `pulptrain list models`) or file.")
    ],
    strategy: _Strategy = "pruned",
    cuts: Annotated[
        int, typer.Option("--cuts", metavar="N", help="Tilings per op and buffer depth; 0 for all of them.")
    ] = CUTS_PER_DEPTH,
    largest_tiles: Annotated[
        int,
        typer.Option("--largest-tiles", metavar="N", help="Tiles that the strategy paper looks at (K_T)."),
    ] = 5,
    budget: Annotated[
        int, typer.Option("--budget", metavar="N", help="Evaluations per op of the strategy optuna.")
    ] = 200,
    lowerings: Annotated[
        str,
        typer.Option(
            "--lowerings",
            "--im2col",
            metavar="search|keep|NAME,...",
            help="Variants of a step that are searched: all it has, that of its layer, or some "
            "(cores, dma, none: how images are unrolled; default, as-published).",
        ),
    ] = "search",
    variant: Annotated[
        str | None,
        typer.Option(
            "--variant",
            metavar="default|as-published",
            help="How layers are built that do not say: as-published is PULP-TrainLib's own way.",
        ),
    ] = None,
    layout: Annotated[
        str,
        typer.Option(
            "--layout",
            metavar="keep|search|CHW|HWC",
            help="Layout of images: as the model says, the fastest for every layer, or one for all.",
        ),
    ] = "keep",
    start: Annotated[
        str | None,
        typer.Option("--start", metavar="FILE", help="Schedule file whose choices are tried first."),
    ] = None,
    schedule: Annotated[
        str, typer.Option("--schedule", metavar="FILE", help="Where the schedule is written.")
    ] = "schedule.yaml",
    workers: search_options.WorkerCount = None,
    executor: search_options.ExecutorAddress = None,
    cache: search_options.CacheFile = None,
    no_cache: search_options.NoCache = False,
    soc: options.Soc = "pulp-open",
    timing: options.Timing = "rtl",
    codegen: options.Codegen = "",
    cores: options.Cores = None,
    l1: options.L1 = None,
    l2: options.L2 = None,
    fpus: options.Fpus = None,
    bank_conflicts: options.BankConflicts = None,
    overrides: options.Overrides = None,
    resident: options.Resident = "auto",
    seed: Annotated[int, typer.Option("--seed", metavar="N", help="Seed of the strategy optuna.")] = 0,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Find the fastest tile, loop order, buffering, kernel and variant of every layer and step of MODEL."""
    if variant is not None and "=" in variant:
        raise InputError(
            f"{variant!r} is about single ops, which tune chooses for",
            where="--variant",
            cure="default or as-published; --lowerings says which variants are searched",
        )
    settings = Settings(
        soc=soc,
        timing=timing,
        codegen=codegen,
        cores=cores,
        l1=l1,
        l2=l2,
        fpus=fpus,
        bank_conflicts=bank_conflicts,
        overrides=tuple(overrides or ()),
        variants=(variant,) if variant is not None else (),
        resident=resident,
    )
    check_seed(seed)
    show = not (quiet or as_json)
    target = check_file(schedule, "--schedule", is_schedule)
    with (
        # The first of all: workers are copies of this process as it is here.
        open_workers(workers if workers is not None else os.cpu_count() or 1, executor) as pool,
        open_cache(cache, no_cache) as kept,
        meter(f"tuning {model}", "candidates", show=show) as progress,
    ):
        outcome = tune_model(
            model,
            pool,
            settings,
            strategy=StrategyOptions(strategy, largest_tiles, budget, seed),
            rules=SpaceRules(cuts=cuts, variants=parse_variants(lowerings)),
            start=start,
            cache=kept,
            meter=progress,
            layout=layout,
        )
    write_schedule(outcome.schedule, target)
    summary = {**outcome.summary, "schedule": schedule}
    if as_json:
        typer.echo(json_text(summary))
    elif not quiet:
        _print(summary, table_console())
    if outcome.interrupted:
        print(f"pulptrain: interrupted; the best so far is in {schedule}", file=sys.stderr)
        raise typer.Exit(130)


def _print(summary: dict[str, Any], console: Console) -> None:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("op", "kernel", "variant", "tile in its loops", "buffers", "cycles", "runner-up", "of"):
        left = name in ("op", "kernel", "variant", "tile in its loops")
        table.add_column(name, justify="left" if left else "right")
    for choice in summary["choices"]:
        second, sizes = choice["runner_up"], choice["tile"]
        slower = f"+{100 * (second['cycles'] / choice['cycles'] - 1):.1f} %" if second else ""
        table.add_row(
            choice["op"],
            choice["kernel"],
            choice["variant"],
            " ".join(f"{name} {sizes[name]}" for name in choice["loop_order"] if name in sizes),
            str(choice["buffering"]),
            f"{choice['cycles']:,}",
            slower,
            f"{choice['evaluated']}/{choice['candidates']}",
        )
    console.print(table)
    if summary["cycles"] is not None:
        before = summary["untuned_cycles"]
        gain = f", untuned {before:,} ({before / summary['cycles']:.2f} times as many)" if before else ""
        console.print(f"{summary['model']}: {summary['cycles']:,} cycles{gain}", highlight=False)
        console.print(f"evidence: {evidence_line(summary['evidence'])}", highlight=False)
    if summary["layout"]:
        names = ", ".join(f"{name} {layout}" for name, layout in summary["layout"].items())
        console.print(f"layout: {names}", highlight=False)
    for stay in summary["resident"]:
        before, after = stay["before_cycles"], stay["after_cycles"]
        saved = f": {before:,} cycles become {after:,} (-{100 * (1 - after / before):.1f} %)"
        names = ", ".join(stay["resident"]) + saved if stay["resident"] else "nothing"
        console.print(f"in L1 between ops of the {stay['program']}: {names}", highlight=False)
    console.print(
        f"{summary['candidates']:,} candidates, {summary['evaluated']:,} evaluated ({summary['strategy']}), "
        f"{summary['simulator']['cached']:,} of them from the cache; "
        f"{summary['simulator']['wall_seconds']:.1f} s",
        highlight=False,
    )
    if summary["bounded"]:
        console.print(
            f"bounded: {', '.join(summary['bounded'])} can be cut in more ways than are searched: those "
            f"of least overhead are, {MOST_CUTS:,} for each number of buffers",
            highlight=False,
        )
    print_paths([summary["schedule"]], console)
