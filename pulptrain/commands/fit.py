# SPDX-License-Identifier: Apache-2.0
"""`pulptrain fit MODEL`: the best way to train within a memory; writes a model file for `run` and `tune`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from pulptrain.commands import options as common
from pulptrain.commands.parameters import takes
from pulptrain.inputs.option import MODEL, SEARCH, FitOptions
from pulptrain.process.interrupts import command_begun_seconds
from pulptrain.process.progress import telling

Deadline = Annotated[
    str | None,
    common.option(
        "--deadline", "CYCLES", "Maximum cluster cycles of a training iteration, e.g. 20Mcycles.", SEARCH
    ),
]
Objective = Annotated[
    str,
    common.option(
        "--objective",
        "cycles|energy",
        "Quantity to minimise: cycles or energy of an iteration (docs/energy.md).",
        SEARCH,
    ),
]
Allow = Annotated[
    str | None,
    common.option(
        "--allow",
        "CHANGE,CHANGE",
        "Allow changes to the training that alter its numerical results: accumulate (smaller mini-batches, "
        "gradients averaged), fp16-states or bf16-states (optimizer states in 16 bits).",
        SEARCH,
    ),
]
Points = Annotated[
    int,
    common.option(
        "--points",
        "N",
        "Also search N other sizes of L2, for a Pareto front of cycles and L2; this takes half "
        "of --time-limit.",
        SEARCH,
        min=0,
    ),
]
TimeLimit = Annotated[
    float,
    common.option(
        "--time-limit",
        "S",
        "Time limit of the search in seconds, from the start of the command; the best solution found by "
        "then is used. One solution is always simulated, even after the time limit.",
        SEARCH,
        min=0.1,
    ),
]
Ladder = Annotated[
    bool,
    common.option(
        "--ladder",
        "",
        "List the minimum L1, L2 and L3 for inference and for each choice of trained parameters (last "
        "layer, biases, LoRA, ..., all layers).",
        SEARCH,
    ),
]
SaveModel = Annotated[
    str | None,
    common.option(
        "--save-model",
        "FILE",
        "Model file to write, with every setting chosen by `pulptrain fit` (default: NAME-fit.yaml, in "
        "--out DIR or else in the current folder). Its weights go to NAME-fit.npz next to it.",
        common.OUTPUT,
    ),
]
Out = Annotated[
    str | None,
    common.option(
        "--out",
        "DIR",
        "Folder to write to: the model, fit.json, a picture of the memory before and after fit, and the "
        "files and pictures of --points and --ladder.",
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
    """Choose which tensors to keep, recompute, page or stream so that MODEL fits in memory."""
    started = command_begun_seconds()
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
        from pulptrain.inputs.settings import Settings
        from pulptrain.running.result_cache import open_cache

        check_objective(objective)
        allowed = parse_changes(allow)
        settings = Settings(**options, seed=seed)
        if ladder:
            asked = {"deadline": deadline, "objective": objective, "allow": allow, "save_model": save_model}
            check_ladder(**asked, points=points, time_limit=time_limit)
        check_solver()
        source = open_source(model, settings)
        network, values = source.network(settings), source.brought
        files = prepare_fit(model, save_model, out, ladder=ladder, with_values=bool(values), paper=paper)
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
                    started=started,
                    cache=kept,
                    teller=teller,
                    ladder_command=next_command(context, "fit", add={"--ladder": True}),
                )
                add = {"--values": files.values}
                run_command = next_command(context, "run", files.model, add=add, drop=[MODEL])
                files.write_answer(outcome, run_command, values)
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
        end_interrupted("; best solution so far")
