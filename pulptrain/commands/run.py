# SPDX-License-Identifier: Apache-2.0
"""`pulptrain run MODEL`: simulate a training iteration, train on, write files, print the table."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from pulptrain.commands import options as common
from pulptrain.commands.parameters import takes
from pulptrain.inputs.option import LinkedRunOptions
from pulptrain.process.progress import telling

Iterations = Annotated[
    int,
    common.option(
        "--iterations",
        "N",
        "Training iterations to compute; the timing of one is simulated, because all take the same cycles.",
        common.RUN,
    ),
]
SaveValues = Annotated[
    str | None,
    common.option(
        "--save-values",
        "FILE.npz",
        "Write weights and states (before and after the last iteration), gradients, outputs and losses.",
        common.OUTPUT,
    ),
]
NoFunctional = Annotated[
    bool,
    common.option(
        "--no-functional",
        "",
        "Simulate the timing only, which is faster; compute and check no numbers.",
        common.RUN,
    ),
]
DumpProgram = Annotated[
    bool,
    common.option(
        "--dump-program",
        "",
        "Print the transfers and kernels that the simulator would execute, and stop.",
        common.OUTPUT,
    ),
]


@takes(LinkedRunOptions)
@common.draws
def command(
    context: typer.Context,
    model: common.ModelName,
    iterations: Iterations = 1,
    seed: common.Seed = 0,
    save_values: SaveValues = None,
    no_functional: NoFunctional = False,
    dump_program: DumpProgram = False,
    cache: common.CacheFile = None,
    no_cache: common.NoCache = False,
    out: common.Out = None,
    paper: common.Paper | None = None,
    top: common.Top = 10,
    by: common.By = None,
    full: common.Full = False,
    why: common.Why = False,
    evidence: common.Evidence = False,
    as_json: common.Json = False,
    quiet: common.Quiet = False,
    **options: Any,
) -> None:
    """Simulate the timing of one training iteration of MODEL, and compute N iterations."""
    with telling(f"preparing {model}", show=not (quiet or as_json or dump_program)) as teller:
        from configs.errors import InputError
        from pulptrain.commands.printing import end_interrupted, finish_run, outcome_of, run_folder
        from pulptrain.commands.typed import commands_after_run
        from pulptrain.foreign.model_source import open_source
        from pulptrain.inputs.npz_file import prepare_file, write_values
        from pulptrain.inputs.settings import Settings
        from pulptrain.running.program_text import print_program
        from pulptrain.running.result_cache import open_cache
        from pulptrain.running.session import check_iterations
        from traces.report import Detail

        settings = Settings(**options, seed=seed)
        check_iterations(iterations)
        detail = Detail(top, by, full, why, evidence)
        source = open_source(model, settings)
        if dump_program:
            print_program(source.prepared(settings), as_json=as_json)
            return
        folder = run_folder(out) if out is not None else None
        if no_functional and save_values is not None:
            raise InputError(
                "the option needs computed values, which --no-functional switches off",
                where="--save-values",
                cure="remove --no-functional",
            )
        target = prepare_file(save_values) if save_values is not None else None

        with open_cache(cache, no_cache) as kept:
            outcome = outcome_of(
                lambda: source.run(
                    settings,
                    iterations=iterations,
                    functional=not no_functional,
                    progress=teller.iterations,
                    traced=folder is not None,
                    cache=kept,
                    teller=teller,
                )
            )
        outcome.summary["commands"] = commands_after_run(context, ["tune"] if source.training else ())
        if target is not None:
            write_values(target, outcome.values)
        finish_run(outcome, folder, as_json=as_json, quiet=quiet, detail=detail, teller=teller, paper=paper)
        source.refuse_other_gradients(outcome)
    if outcome.interrupted:
        end_interrupted("; the figures cover the completed iterations")
