# SPDX-License-Identifier: Apache-2.0
"""`pulptrain fit MODEL`: the best way to train within a memory; writes a model file for `run` and `tune`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from pulptrain.commands import options as common
from pulptrain.commands.parameters import takes
from pulptrain.given.option import MODEL, SEARCH, FitOptions
from pulptrain.process.progress import telling

Deadline = Annotated[
    str | None, common.option("--deadline", "CYCLES", "Most cycles of an iteration, e.g. 20Mcycles.", SEARCH)
]
Objective = Annotated[
    str,
    common.option(
        "--objective",
        "cycles|energy",
        "What is made small: time, or energy of an iteration (docs/energy.md).",
        SEARCH,
    ),
]
Allow = Annotated[
    str | None,
    common.option(
        "--allow",
        "CHANGE,CHANGE",
        "What may be changed although numbers change with it: accumulate (smaller mini-batches of which "
        "gradients are summed), fp16-states, bf16-states (of the optimizer).",
        SEARCH,
    ),
]
Points = Annotated[
    int,
    common.option(
        "--points",
        "N",
        "Search N other sizes of L2, too, for a Pareto front; they take half of --time-limit.",
        SEARCH,
        min=0,
    ),
]
TimeLimit = Annotated[
    float,
    common.option(
        "--time-limit",
        "S",
        "Time limit of the search; reading the model and the last simulation come on top.",
        SEARCH,
        min=0.1,
    ),
]
Ladder = Annotated[
    bool,
    common.option(
        "--ladder", "", "The smallest memories for each form of training, from inference on.", SEARCH
    ),
]
SaveModel = Annotated[
    str | None,
    common.option(
        "--save-model",
        "FILE",
        "Where the model is written with what was decided: NAME-fit.yaml in --out DIR, or here.",
        common.OUTPUT,
    ),
]
Out = Annotated[
    str | None,
    common.option(
        "--out",
        "DIR",
        "Write the model, fit.json, and pictures: memory before and after, the front, the ladder.",
        common.OUTPUT,
    ),
]


@takes(FitOptions, placement="optimal")
@common.draws
def command(
    context: typer.Context,
    model: common.ModelName,
    deadline: Deadline = None,
    objective: Objective = "cycles",
    allow: Allow = None,
    points: Points = 0,
    time_limit: TimeLimit = 300.0,
    ladder: Ladder = False,
    cache: common.CacheFile = None,
    no_cache: common.NoCache = False,
    save_model: SaveModel = None,
    out: Out = None,
    paper: common.Paper | None = None,
    top: common.Top = 10,
    full: common.Full = False,
    as_json: common.Json = False,
    quiet: common.Quiet = False,
    seed: common.Seed = 0,
    **options: Any,
) -> None:
    """Decide what of MODEL is kept, computed again, paged to L3 or streamed to fit the memories given."""
    with telling(f"preparing {model}", show=not (quiet or as_json)) as teller:
        from pulptrain.commands.printing import end_interrupted, print_result
        from pulptrain.commands.typed import next_command
        from pulptrain.fitting.fit_files import prepare_fit
        from pulptrain.fitting.fit_model import (
            add_points,
            check_objective,
            check_solver,
            deadline_cycles,
            fit_model,
        )
        from pulptrain.fitting.fit_summary import fit_lines, front_lines
        from pulptrain.fitting.ladder import check_ladder, ladder_summary
        from pulptrain.fitting.ways import parse_changes
        from pulptrain.foreign.model_source import open_source
        from pulptrain.given.settings import Settings
        from pulptrain.running.result_cache import open_cache

        check_objective(objective)
        allowed = parse_changes(allow)
        settings = Settings(**options, seed=seed)
        if ladder:
            asked = {"deadline": deadline, "objective": objective, "allow": allow, "save_model": save_model}
            check_ladder(**asked, points=points, time_limit=time_limit)
        check_solver()
        network = open_source(model, settings).network(settings)
        files = prepare_fit(model, save_model, out, ladder=ladder, paper=paper)
        printing: dict[str, Any] = {"as_json": as_json, "quiet": quiet}
        with open_cache(cache, no_cache) as kept:
            if ladder:
                summary, interrupted = ladder_summary(network, settings, cache=kept, teller=teller)
                files.write_ladder(summary)
                teller.end()
                print_result(
                    summary, lambda width: fit_lines(summary, width), **printing, written=files.written
                )
            else:
                outcome = fit_model(
                    network,
                    settings,
                    deadline=deadline_cycles(deadline),
                    objective=objective,
                    allowed=allowed,
                    points=points,
                    pictures=out is not None,
                    seconds=time_limit,
                    cache=kept,
                    teller=teller,
                    ladder_command=next_command(context, "fit", add={"--ladder": True}),
                )
                files.write_answer(outcome, next_command(context, "run", files.model, drop=[MODEL]))
                if not as_json:
                    teller.end()
                    print_result(
                        outcome.summary,
                        lambda width: fit_lines(outcome.summary, width, top=top, full=full),
                        **printing,
                    )
                files.draw_answer(outcome, teller)
                more = add_points(outcome, points, teller)
                files.write_points(more)
                teller.end()
                print_result(
                    more.summary,
                    lambda width: front_lines(more.summary, width),
                    **printing,
                    written=files.written,
                )
                interrupted = more.interrupted
    if interrupted:
        end_interrupted("; this is the best so far")
