"""`pulptrain list KIND`: what there is to choose from."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from arch.soc_config import load_soc
from configs.errors import InputError
from configs.library import list_names
from configs.model_file import load_model
from configs.suggest import suggestion
from pulptrain.commands import options
from trainlib.kernels.catalogue import codegen_names, kernel_names
from trainlib.registry import PRIMITIVES


def command(
    kind: Annotated[str, typer.Argument(metavar="socs|models|kernels|primitives", help="What to list.")],
    as_json: options.Json = False,
) -> None:
    """List the SoC presets, models, kernels per codegen profile, or primitives with their steps."""
    listings = {"socs": _socs, "models": _models, "kernels": _kernels, "primitives": _primitives}
    if kind not in listings:
        raise InputError(f"nothing called {kind!r} to list", where="list", cure=suggestion(kind, listings))
    rows = listings[kind]()
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
        return
    table = Table(box=None, pad_edge=False)
    for column in rows[0] if rows else ():
        table.add_column(column.replace("_", " "), overflow="fold")
    for row in rows:
        table.add_row(*(str(value) for value in row.values()))
    Console().print(table)


def _socs() -> list[dict[str, Any]]:
    rows = []
    for name in list_names("soc"):
        timing = load_soc(name)
        rows.append(
            {
                "name": name,
                "cores": timing.cores,
                "fpus": f"{timing.fpu.count} {timing.fpu.mapping}",
                "l1": f"{timing.l1.size_bytes // 1024} KiB / {timing.l1.banks} banks",
                "l2": f"{timing.l2.size_bytes // 1024} KiB",
                "cluster_mhz": timing.clock.cluster_hz / 1e6,
            }
        )
    return rows


def _models() -> list[dict[str, Any]]:
    rows = []
    for name in list_names("models"):
        spec = load_model(name)
        rows.append(
            {
                "name": name,
                "input": "x".join(map(str, spec.input_shape)),
                "layers": len(spec.layers),
                "loss": spec.loss,
                "description": spec.description,
            }
        )
    return rows


def _kernels() -> list[dict[str, Any]]:
    return [
        {"codegen": codegen, "kernel": name} for codegen in codegen_names() for name in kernel_names(codegen)
    ]


def _primitives() -> list[dict[str, Any]]:
    return [{"name": primitive.name, "steps": " ".join(primitive.steps)} for primitive in PRIMITIVES.values()]
