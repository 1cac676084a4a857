# SPDX-License-Identifier: Apache-2.0
"""`pulptrain new FILE`: a file to begin with, every key explained; or a table for measured cycles."""

from __future__ import annotations

import re
import shlex
from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer

from configs.errors import InputError
from configs.files import check_file, write_text
from configs.suggest import check_known
from pulptrain.commands import options as common

KINDS = ("model", "soc", "explore", "energy")
"""Kinds of files there is a template for and a JSON Schema (``configs/schemas``)."""


def command(
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE.yaml|FILE.csv",
            help="File to write: .yaml for a template (see --kind), .csv for a table to fill in with "
            "measured cycles. An existing file is never overwritten.",
        ),
    ],
    kind: Annotated[
        str, common.option("--kind", "|".join(KINDS), "Kind of file to create.", common.RUN)
    ] = "model",
    run: Annotated[
        str | None,
        common.option(
            "--run",
            "RUN",
            "Run folder to start from. With FILE.csv, the table gets one row per op of the run; with --kind "
            "energy, the energy model of the run is scaled to match --measured.",
            common.RUN,
        ),
    ] = None,
    measured: Annotated[
        str | None,
        common.option(
            "--measured",
            "WATT|JOULE",
            "With --kind energy: measured power, e.g. 57.6mW, or energy of an iteration, e.g. 0.8mJ.",
            common.RUN,
        ),
    ] = None,
    quiet: common.Quiet = False,
) -> None:
    """Write a template to edit: a model, a SoC, an exploration, an energy model, or a table of cycles.

    --kind energy copies the generic energy model, or scales the energy model of a run to a measurement.
    """
    from configs.library import SUFFIXES  # reads YAML, which is slow to import

    is_table = file.endswith(".csv")
    check_known(kind, KINDS, f"unknown kind of template {kind!r}", "--kind")
    if not file.endswith((*SUFFIXES, ".csv")):
        raise InputError(
            f"the name {file!r} does not end in .yaml, .yml or .csv", where="new", cure=f"use {file}.yaml"
        )
    is_energy = kind == "energy"
    if (run is None) != (measured is None) if is_energy else measured is not None:
        raise InputError(
            "the option needs --kind energy and --run RUN, the run that was measured",
            where="--measured",
            cure="use --kind energy --run RUN --measured 57.6mW",
        )
    if run is not None and not (is_table or is_energy):
        raise InputError(
            "the option applies only if FILE is a .csv file, or with --kind energy",
            where="--run",
            cure="use FILE.csv, or --kind energy",
        )
    if Path(file).exists():
        raise InputError(f"{file!r} already exists", where="new", cure="use another name")
    target = check_file(file, "new", lambda there: False)
    if is_energy:
        from pulptrain.running.energy_fit import model_text

        text = model_text(name_of(target), schema_path(kind), run, measured)
    else:
        text = table_of(run, file) if is_table else template(kind, target)
    write_text(target, text)
    if not quiet:
        made = "table" if is_table else kind
        typer.echo(f"wrote {file}; {_NEXT[made][0]}: {command_of(made, file, run)}")


_NEXT = {
    "model": ("run it", "run {file}"),
    "soc": ("use it", "run tutorial-cnn --soc {file}"),
    "explore": ("run it", "explore {file}"),
    "energy": ("use it", "run tutorial-cnn --energy {file}"),
    "table": ("fill in cycles, then", "compare {run} {file}"),
}
"""By what was written: what to do with it, and the command."""


def command_of(kind: str, file: str, run: str | None) -> str:
    """What takes a new file; `run` is the folder a table was made from."""
    return "pulptrain " + _NEXT[kind][1].format(file=shlex.quote(file), run=shlex.quote(run or "RUN"))


def table_of(folder: str | None, file: str) -> str:
    """A table for measured cycles, with a row an op of a run, if one is given. Raises `InputError`."""
    from pulptrain.running.stored_run import read_summary
    from traces.compared.log import TEMPLATE
    from traces.compared.residuals import known_names
    from traces.why import check_causes

    names = []
    if folder is not None:
        summary = read_summary(Path(folder))
        check_causes(summary, folder)
        names = known_names(summary)
    head = TEMPLATE.format(command=command_of("table", file, folder))
    return head + "".join(f"{name},\n" for name in names)


def template(kind: str, target: Path) -> str:
    """The text of a new file: named after it, and with the place of the schema for editors."""
    text = files("configs").joinpath("templates", f"{kind}.yaml").read_text(encoding="utf-8")
    name = name_of(target)
    text = text.replace("NAME.yaml", shlex.quote(target.as_posix()))
    return text.replace("$schema=SCHEMA", f"$schema={schema_path(kind)}").replace("NAME", name)


def name_of(target: Path) -> str:
    """What a new file describes is called after it."""
    return re.sub(r"^[^A-Za-z0-9]+|[^A-Za-z0-9_.-]", "", target.stem) or "mine"


def schema_path(kind: str) -> str:
    """Where the JSON Schema of a kind of file is installed."""
    return str(files("configs").joinpath("schemas", f"{kind}.json"))
