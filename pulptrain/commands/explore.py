# SPDX-License-Identifier: Apache-2.0
"""`pulptrain explore SPEC.yaml`: sweep parameters of SoC, schedule and model, and find the Pareto front."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from pulptrain.commands import options as common
from pulptrain.commands.parameters import takes
from pulptrain.inputs.option import RunOptions
from pulptrain.process.progress import StageMeter, telling


@takes(RunOptions, only_given=True)
@common.draws
def command(
    spec: Annotated[
        str,
        typer.Argument(
            metavar="SPEC.yaml",
            help="Exploration file: the model, the values to vary and the quantities to minimise; "
            "`pulptrain new SPEC.yaml --kind explore` writes a template.",
        ),
    ],
    workers: common.WorkerCount = None,
    executor: common.ExecutorAddress = None,
    cache: common.CacheFile = None,
    no_cache: common.NoCache = False,
    out: Annotated[
        str | None,
        common.option(
            "--out", "DIR", "Folder to write to: points.csv, points.json and pictures.", common.OUTPUT
        ),
    ] = None,
    paper: common.Paper | None = None,
    top: Annotated[
        int, common.option("--top", "N", "Design points to list, Pareto-optimal ones first.", common.OUTPUT)
    ] = 40,
    full: common.Full = False,
    as_json: common.Json = False,
    quiet: common.Quiet = False,
    **options: Any,
) -> None:
    """Simulate all points of SPEC.yaml and report those that are Pareto-optimal in its objectives.

    Options of machine, model and schedule apply to all points and override the settings of the file.
    """
    with telling(f"reading {spec}", show=not (quiet or as_json)) as teller:
        from pulptrain.commands.printing import end_interrupted, print_result
        from pulptrain.exploring.exploration import explore, write_exploration
        from pulptrain.exploring.exploration_report import exploration_lines
        from pulptrain.exploring.explore_spec import load_spec
        from pulptrain.running.result_cache import open_cache
        from scheduler.search.workers import open_workers
        from traces.files.result_folder import EXPLORATION_FILES, prepare_folder

        read = load_spec(spec, options)
        folder = prepare_folder(out, EXPLORATION_FILES) if out is not None else None
        teller.alone()
        with (
            # The first of all: workers are copies of this process as it is here.
            open_workers(workers, executor) as pool,
            open_cache(cache, no_cache) as kept,
        ):
            teller.stage(f"exploring {read.model}")
            result = explore(read, pool, kept, StageMeter(teller, "points"))
        teller.stage("writing points and pictures")
        written = write_exploration(result.summary, folder, paper) if folder is not None else []
        teller.end()
        print_result(
            result.summary,
            lambda width: exploration_lines(result.summary, width, top=top, full=full),
            as_json=as_json,
            quiet=quiet,
            written=written,
        )
    if result.interrupted:
        done, asked = len(result.summary["points"]), result.summary["points_requested"]
        end_interrupted(f" after {done} of {asked} points; the cache holds them")
