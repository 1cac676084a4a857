# SPDX-License-Identifier: Apache-2.0
"""What is compared: runs, or a run with a log of measured cycles. A folder is a run, a file is a log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from configs.errors import InputError
from pulptrain.inputs.source_kind import RUN, refuse_others
from pulptrain.running.stored_run import read_summary
from traces.compared.comparison import Comparison, compared
from traces.compared.log import read_log
from traces.compared.residuals import Residuals, residuals


def compare_runs(
    runs: Sequence[Mapping[str, Any] | Path], names: Sequence[str], *, in_l1: bool = False
) -> Comparison | Residuals:
    """Runs, as summaries or folders, by the names they are shown with; or a run and the file of a log.

    `in_l1` is for a log, see `residuals`. Raises InputError for what cannot be compared or read.
    """
    for run in runs:
        if isinstance(run, Path) and not run.exists():
            refuse_others(str(run), RUN, "compare")
            cure = "use a run folder (`pulptrain run MODEL --out DIR`), or a file of measured cycles"
            raise InputError(f"the file or folder '{run}' does not exist", where="compare", cure=cure)
    logs = [run for run in runs if isinstance(run, Path) and run.is_file()]
    if logs and (len(runs) != 2 or runs[1] is not logs[0]):
        raise InputError(
            "a measured log is compared with one run, whose folder comes first",
            where=str(logs[0]),
            cure="run `pulptrain compare RUN LOG`",
        )
    if in_l1 and not logs:
        raise InputError(
            "the option applies to the comparison with a measured log only",
            where="--in-l1",
            cure="run `pulptrain compare RUN LOG --in-l1`",
        )
    summaries = [read_summary(run) if isinstance(run, Path) else run for run in runs if run not in logs]
    if logs:
        return residuals(summaries[0], read_log(logs[0]), names[0], str(logs[0]), in_l1=in_l1)
    return compared(summaries, names)
