# SPDX-License-Identifier: Apache-2.0
"""`pulptrain replay FOLDER...`: graphs with goldens, imported, simulated, compared."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer
from msgspec.structs import asdict

from configs.errors import InputError
from configs.limits import check_at_least_one
from pulptrain.commands import options
from pulptrain.commands.parameters import takes
from pulptrain.inputs.option import ChipOptions
from pulptrain.process.progress import telling

if TYPE_CHECKING:
    from pulptrain.foreign.replay import ReplayRow


@takes(ChipOptions)
def command(
    folders: Annotated[
        list[str],
        typer.Argument(
            metavar="FOLDER...",
            help="Folders with inputs.npz, outputs.npz and an .onnx file, or folders that contain such "
            "folders.",
        ),
    ],
    learning_rate: options.LearningRate = None,
    mini_batches: Annotated[
        int | None,
        options.option(
            "--accumulate",
            "N",
            "Mini-batches per weight update (default: the number stored in inputs.npz; if none is stored, "
            "it is derived from the losses in outputs.npz).",
        ),
    ] = None,
    seed: options.Seed = 0,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
    **machine: Any,
) -> None:
    """Run ONNX training graphs that come with golden values, and compare losses, weights and gradients.

    Exit code 0: all graphs are right, or not decidable (rounding could hide a defect). 5: a value is wrong.
    1: the simulation of a graph stopped. 2: a graph cannot be read or imported. 3: a graph does not fit into
    the memories.
    """
    if learning_rate is not None and not 0 < learning_rate < float("inf"):
        raise InputError(
            f"the learning rate is {learning_rate}, but must be a finite number above 0",
            where="--learning-rate",
            cure="use a number above 0",
        )
    if mini_batches is not None:
        check_at_least_one(mini_batches, "number of mini-batches per update", "--accumulate")
    with telling("looking for cases", show=not (quiet or as_json)) as teller:
        from pulptrain.foreign.replay import exit_code, find_cases, replay
        from pulptrain.inputs.settings import Settings

        settings = Settings(**machine, seed=seed)
        cases, notes = find_cases(folders)
        rows: list[ReplayRow] = []
        for number, case in enumerate(cases):
            teller.stage(f"replaying {case.name}, {number + 1} of {len(cases)}")
            row = replay(case, settings, learning_rate=learning_rate, mini_batches=mini_batches)
            rows.append(row)
    _print(rows, notes, as_json=as_json, quiet=quiet)
    code = exit_code(rows)
    if code:
        raise typer.Exit(code)


def _print(rows: Sequence[ReplayRow], notes: Sequence[str], *, as_json: bool, quiet: bool) -> None:
    if as_json:
        typer.echo(json.dumps([asdict(row) for row in rows], indent=2))
        return
    if quiet:
        return
    from pulptrain.commands.printing import table_width
    from traces.text_table import table_lines

    heads = (
        *("case", "status", "cycles", "loss error", "value error", "of update", "of gradient"),
        *("tensors", "open", "n_accum", "nodes", "ms"),
    )
    cells = [
        (
            row.name,
            row.status,
            _cell(row.cycles, "{:,}"),
            _cell(row.loss_error, "{:.1e}"),
            _cell(row.value_error, "{:.1e}"),
            _cell(row.update_error, "{:.1e}"),
            _cell(row.gradient_error, "{:.1e}"),
            _cell(row.tensors, "{}"),
            _cell(row.not_decidable, "{}"),
            _cell(row.n_accum, "{}"),
            _cell(row.nodes, "{}"),
            _cell(None if row.seconds is None else row.seconds * 1e3, "{:.3f}"),
        )
        for row in rows
    ]
    for line in table_lines(heads, cells, table_width(), left=("status",)):
        typer.echo(line)
    for row in rows:
        if row.reason:
            typer.echo(f"{row.name}: {row.reason}")
    for note in notes:
        typer.echo(note)


def _cell(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)
