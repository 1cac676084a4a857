# SPDX-License-Identifier: Apache-2.0
"""`pulptrain deploy MODEL --out DIR`: the schedule of a run as a C project that checks itself."""

from __future__ import annotations

from typing import Annotated, Any

from pulptrain.commands import options as common
from pulptrain.commands.parameters import takes
from pulptrain.inputs.option import RunOptions
from pulptrain.process.progress import telling

Folder = Annotated[str, common.option("--out", "DIR", "Folder to write the C project to.", common.OUTPUT)]
Iterations = Annotated[
    int,
    common.option("--iterations", "N", "Training iterations that the exported C program runs.", common.RUN),
]
Arena = Annotated[
    str | None,
    common.option(
        "--arena",
        "SIZE",
        "L1 that the exported program may use, e.g. 60KiB; a program that needs more is not exported "
        "(default: all L1 that the SoC leaves free).",
    ),
]
Library = Annotated[
    str,
    common.option(
        "--kernel-library",
        "ours|trainlib=PATH",
        "C code for matrix products: of pulptrain (ours), or of a PULP-TrainLib checkout (trainlib=PATH).",
        common.RUN,
    ),
]


@takes(RunOptions)
def command(
    model: common.ModelName,
    out: Folder,
    iterations: Iterations = 2,
    arena: Arena = None,
    library: Library = "ours",
    accumulation: common.Accumulation = "reference",
    seed: common.Seed = 0,
    cache: common.CacheFile = None,
    no_cache: common.NoCache = False,
    as_json: common.Json = False,
    quiet: common.Quiet = False,
    **options: Any,
) -> None:
    """Export the schedule of MODEL as a C project: same tiles, kernels, buffers and DMA commands."""
    with telling(f"preparing {model}", show=not (quiet or as_json)) as teller:
        from configs.units import parse_size
        from deploy.calls.trainlib import trainlib_of
        from pulptrain.commands.printing import print_result
        from pulptrain.deploying.deployed import deploy, deploy_folder
        from pulptrain.foreign.model_source import open_source
        from pulptrain.inputs.settings import Settings
        from pulptrain.running.result_cache import open_cache
        from pulptrain.running.session import check_iterations

        settings = Settings(**options, seed=seed, accumulation=accumulation)
        check_iterations(iterations)
        arena_bytes = parse_size(arena, where="--arena") if arena is not None else None
        trainlib = trainlib_of(library)
        folder = deploy_folder(out)
        source = open_source(model, settings)

        with open_cache(cache, no_cache) as kept:
            deployed = deploy(
                lambda record: source.run(
                    settings,
                    iterations=iterations,
                    functional=True,
                    progress=teller.iterations,
                    traced=False,
                    cache=kept,
                    teller=teller,
                    record=record,
                ),
                folder,
                arena_bytes,
                trainlib,
            )
    print_result(deployed.as_dict(), lambda _: deployed.lines(), as_json=as_json, quiet=quiet)
