# SPDX-License-Identifier: Apache-2.0
"""`pulptrain tune MODEL`: the AutoTuner; writes a schedule file for `run --schedule`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from pulptrain.commands import options as common
from pulptrain.commands.parameters import takes
from pulptrain.inputs.option import SEARCH, TuneOptions
from pulptrain.process.progress import StageMeter, telling

Strategy = Annotated[
    str,
    common.option(
        "--strategy",
        "pruned|exhaustive|paper|optuna",
        "How to search tiles and kernels: pruned (skip those that cannot be best), exhaustive (try all), "
        "paper (only the largest tiles, as in the paper of PULP-TrainLib) or optuna (sample).",
        SEARCH,
    ),
]
Tilings = Annotated[
    int | None,
    common.option(
        "--tilings",
        "N",
        "Number of tilings (tile sizes with a loop order) to try per op, each with single and with double "
        "buffering; those with the least overhead of transfers and forks first (default: 16; 0: all).",
        SEARCH,
    ),
]
LargestTiles = Annotated[
    int,
    common.option(
        "--largest-tiles",
        "N",
        "Number of tilings per op, largest first, that --strategy paper tries.",
        SEARCH,
    ),
]
Trials = Annotated[
    int, common.option("--trials", "N", "Number of tilings per op that --strategy optuna tries.", SEARCH)
]
StepVariants = Annotated[
    str,
    common.option(
        "--step-variants",
        "search|keep|NAME,...",
        "Implementations to try for each step: search (all), keep (only the one that the model sets), or a "
        "comma-separated list. For steps that can use im2col: cores (the cores do im2col), dma (the DMA does "
        "im2col), none (no im2col). For all other steps: default (pulptrain's own code), as-published "
        "(PULP-TrainLib's code), direct (1x1 convolutions without a transpose).",
        SEARCH,
    ),
]
Variant = Annotated[
    str | None,
    common.option(
        "--variant",
        "default|as-published",
        "Implementation of layers whose variant the model does not set: default (pulptrain's own) or "
        "as-published (PULP-TrainLib's code).",
        SEARCH,
    ),
]
Layout = Annotated[
    str,
    common.option(
        "--layout",
        "keep|search|CHW|HWC",
        "Memory layout of images: as in the model (keep), the fastest for each layer (search), "
        "or one for all layers.",
        SEARCH,
    ),
]
Goal = Annotated[
    str,
    common.option(
        "--objective",
        "cycles|energy|edp",
        "Quantity to minimise: cycles, energy or energy-delay product of an iteration (docs/energy.md).",
        SEARCH,
    ),
]
Start = Annotated[
    str | None,
    common.option(
        "--start", "FILE", "Start the search from this schedule file of an earlier `tune`.", SEARCH
    ),
]
SaveSchedule = Annotated[
    str | None,
    common.option(
        "--save-schedule",
        "FILE",
        "File to write the schedule to. Default: schedule.yaml in the folder of --out; without --out, in the "
        "current folder, or schedule-2.yaml ... if schedule.yaml exists.",
        common.OUTPUT,
    ),
]
Out = Annotated[
    str | None,
    common.option(
        "--out",
        "DIR",
        "Folder to write to: the schedule, tune.json, tune.csv, a picture of the gains, and the "
        "files of a run with the schedule.",
        common.OUTPUT,
    ),
]


@takes(TuneOptions, resident="auto")
@common.draws
def command(
    context: typer.Context,
    model: common.ModelName,
    objective: Goal = "cycles",
    strategy: Strategy = "pruned",
    tilings: Tilings = None,
    largest_tiles: LargestTiles = 5,
    trials: Trials = 200,
    step_variants: StepVariants = "search",
    variant: Variant = None,
    layout: Layout = "keep",
    start: Start = None,
    workers: common.WorkerCount = None,
    executor: common.ExecutorAddress = None,
    seed: common.Seed = 0,
    cache: common.CacheFile = None,
    no_cache: common.NoCache = False,
    save_schedule: SaveSchedule = None,
    out: Out = None,
    paper: common.Paper | None = None,
    top: common.Top = 10,
    full: common.Full = False,
    evidence: common.Evidence = False,
    as_json: common.Json = False,
    quiet: common.Quiet = False,
    **options: Any,
) -> None:
    """Find the best tile, loop order, buffering, kernel and variant for every op of MODEL."""
    with telling(f"preparing {model}", show=not (quiet or as_json)) as teller:
        from configs.limits import check_seed
        from pulptrain.commands.printing import end_interrupted, print_result
        from pulptrain.commands.typed import commands_after_run, next_command
        from pulptrain.foreign.model_source import open_source
        from pulptrain.inputs.settings import Settings
        from pulptrain.running.result_cache import open_cache
        from pulptrain.tuning.model_tuning import base_variant, tune_model
        from pulptrain.tuning.tuning_files import prepare_tuning, write_tuning
        from pulptrain.tuning.tuning_report import tuning_lines
        from scheduler.search.workers import open_workers
        from scheduler.tuner.search_space import space_rules
        from scheduler.tuner.strategies import StrategyOptions

        check_seed(seed)
        settings = Settings(**options, variants=base_variant(variant), seed=seed)
        files = prepare_tuning(save_schedule, out, paper)
        teller.alone()
        with (
            # The first of all: workers are copies of this process as it is here.
            open_workers(workers, executor) as pool,
            open_cache(cache, no_cache) as kept,
        ):
            network = open_source(model, settings).network(settings)
            teller.stage(f"tuning {model}")
            outcome = tune_model(
                network,
                pool,
                settings,
                strategy=StrategyOptions(strategy, largest_tiles, trials, seed),
                rules=space_rules(tilings, step_variants),
                start=start,
                cache=kept,
                meter=StageMeter(teller, "candidates"),
                layout=layout,
                objective=objective,
                teller=teller,
            )
        # What stays in L1 is what the schedule says.
        how: dict[str, Any] = {"add": {"--schedule": files.schedule}, "drop": ("--resident",)}
        command = next_command(context, "run", **how)
        written = write_tuning(outcome, files, command, commands_after_run(context, ["tune"], **how), teller)
        summary = {**outcome.summary, "schedule": str(files.schedule), "command": command}
        teller.end()
        print_result(
            summary,
            lambda width: tuning_lines(summary, width, top=top, full=full, evidence=evidence),
            as_json=as_json,
            quiet=quiet,
            written=written,
        )
    if outcome.interrupted:
        end_interrupted(f"; best schedule so far: {files.schedule}")
