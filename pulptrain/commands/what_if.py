# SPDX-License-Identifier: Apache-2.0
"""`pulptrain what-if MODEL`: what changes of the machine, the kernels or the schedule would gain."""

from __future__ import annotations

from typing import Annotated, Any

from pulptrain.commands import options as common
from pulptrain.commands.parameters import takes
from pulptrain.inputs.option import RunOptions
from pulptrain.process.progress import telling

Verify = Annotated[
    bool,
    common.option(
        "--verify", "", "Also simulate every predicted change, and show the error of the prediction."
    ),
]
MoreL1 = Annotated[
    str | None,
    common.option(
        "--more-l1",
        "SIZE",
        "L1 size to add for the prediction more-l1, e.g. 64KiB (default: as much as the SoC has).",
    ),
]


@takes(RunOptions)
def command(
    model: common.ModelName,
    verify: Verify = False,
    more_l1: MoreL1 = None,
    as_json: common.Json = False,
    quiet: common.Quiet = False,
    seed: common.Seed = 0,
    **options: Any,
) -> None:
    """Predict from one run of MODEL how many cycles a wider DMA, more L1 ... would save."""
    with telling(f"preparing {model}", show=not (quiet or as_json)) as teller:
        from pulptrain.commands.printing import print_result
        from pulptrain.foreign.model_source import open_source
        from pulptrain.inputs.settings import Settings
        from pulptrain.predicting.gains import gains_of

        settings = Settings(**options, seed=seed)
        source = open_source(model, settings)
        gains = gains_of(source.prepared, settings, more_l1=more_l1, verify=verify, teller=teller)
    print_result(gains.as_dict(), gains.lines, as_json=as_json, quiet=quiet)
