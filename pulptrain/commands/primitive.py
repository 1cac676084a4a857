# SPDX-License-Identifier: Apache-2.0
"""`pulptrain primitive NAME`: one step of one layer, loss or optimizer, alone on the SoC."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from configs.dtypes import WORDS
from configs.errors import InputError
from configs.yaml_file import parse_yaml
from pulptrain.commands import options
from pulptrain.commands.printing import finish_run, told
from pulptrain.npz_file import read_values
from pulptrain.outputs import prepare_folder
from pulptrain.primitive_run import run_primitive
from pulptrain.settings import Settings
from trainlib.primitives.definition import VARIANT, InputCase


def command(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Primitive (see `pulptrain list primitives`).")],
    shape: Annotated[
        list[str],
        typer.Option(
            "--shape",
            metavar="CxHxW[:DTYPE:HIGH]",
            help="Shape of an input without batch, e.g. 8x8x8; once per input. int32:10 makes integers 0..9.",
        ),
    ],
    step: Annotated[str, typer.Option("--step", metavar="fw|ig|wg|loss|upd", help="Which step.")] = "fw",
    option: Annotated[
        list[str] | None,
        typer.Option("--option", metavar="KEY=VALUE", help="Option as in a model file, e.g. kernel=3."),
    ] = None,
    dtype: Annotated[str, typer.Option("--dtype", metavar=WORDS, help="Element type.")] = "fp32",
    batch: Annotated[int, typer.Option("--batch", metavar="N", help="Samples.")] = 1,
    kernel: Annotated[str | None, typer.Option("--kernel", metavar="NAME", help="Matmul kernel.")] = None,
    accumulation: Annotated[
        str,
        typer.Option(
            "--accumulation", metavar="reference|kernel", help="Sums in fp32, or rounded as the kernel does."
        ),
    ] = "reference",
    values: Annotated[
        str | None,
        typer.Option("--values", metavar="FILE.npz", help="Arrays by tensor name in place of drawn ones."),
    ] = None,
    variant: Annotated[
        str | None,
        typer.Option(
            "--variant",
            metavar="NAME",
            help="How the layer is lowered: as-published is PULP-TrainLib's own way (`list primitives`).",
        ),
    ] = None,
    tile: Annotated[
        str | None, typer.Option("--tile", metavar="DIM:SIZE,...", help="Tile sizes, e.g. co:8,ho:3.")
    ] = None,
    loop_order: Annotated[
        str | None, typer.Option("--loop-order", metavar="DIM,...", help="Loops, outermost first: co,ho,ci.")
    ] = None,
    soc: options.Soc = "pulp-open",
    timing: options.Timing = "rtl",
    codegen: options.Codegen = "",
    cores: options.Cores = None,
    l1: options.L1 = None,
    l2: options.L2 = None,
    fpus: options.Fpus = None,
    bank_conflicts: options.BankConflicts = None,
    icache: options.Icache = "warm",
    buffering: options.Buffering = "double",
    overrides: options.Overrides = None,
    out: Annotated[
        str | None, typer.Option("--out", metavar="DIR", help="Write summary, trace and pictures.")
    ] = None,
    seed: options.Seed = 0,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Simulate one step of a primitive, check its numbers, and say where its cycles go."""
    settings = Settings(
        soc=soc,
        timing=timing,
        codegen=codegen,
        cores=cores,
        l1=l1,
        l2=l2,
        fpus=fpus,
        bank_conflicts=bank_conflicts,
        icache=icache,
        buffering=buffering,
        overrides=tuple(overrides or ()),
        loop_orders=(f"{name}.{step.upper()}={loop_order}",) if loop_order is not None else (),
        tiles=(f"{name}.{step.upper()}={tile}",) if tile is not None else (),
        seed=seed,
    )
    folder = prepare_folder(out) if out is not None else None
    own = read_values(values) if values is not None else None
    outcome = told(
        lambda: run_primitive(
            name,
            step,
            [parse_shape(text) for text in shape],
            dict(parse_option(text) for text in option or ()) | ({VARIANT: variant} if variant else {}),
            batch=batch,
            dtype=dtype,
            kernel=kernel,
            accumulation=accumulation,
            settings=settings,
            values=own,
        )
    )
    finish_run(outcome, folder, as_json=as_json, quiet=quiet)


def parse_shape(text: str) -> InputCase:
    """``8x8x8``, or ``5:int32:10`` for integers below 10. Raises `InputError`."""
    sizes, _, rest = text.partition(":")
    dtype, _, high = rest.partition(":")
    parts = sizes.split("x")
    if not all(_is_size(part) for part in parts) or (dtype and not _is_size(high)):
        raise InputError(
            f"cannot read {text!r}", where="--shape", cure="write it as 8x8x8, or 5:int32:10 for integers"
        )
    shape = tuple(int(part) for part in parts)
    if not dtype:
        return InputCase(shape)
    if dtype not in ("int32", "uint8"):
        raise InputError(f"no input of dtype {dtype!r}", where="--shape", cure="int32 or uint8")
    return InputCase(shape, dtype, 0, int(high))


def _is_size(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 19 and int(text) >= 1


def parse_option(text: str) -> tuple[str, Any]:
    """``key=value`` with the value as in a model file (YAML 1.2). Raises `InputError`."""
    key, separator, value = text.partition("=")
    if not separator or not key.strip() or not value.strip():
        raise InputError(f"cannot read {text!r}", where="--option", cure="write it as kernel=3")
    return key.strip(), parse_yaml(value, f"--option {key.strip()}").plain()
