# SPDX-License-Identifier: Apache-2.0
"""`pulptrain barvinn MODEL.onnx`: jobs for BARVINN's matrix-vector units, and the units that execute them."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from configs.errors import InputError
from pulptrain.commands import options
from pulptrain.inputs.option import pair
from pulptrain.process.progress import telling

if TYPE_CHECKING:
    from barvinn.run import BarvinnOutcome


Network = Annotated[
    str,
    typer.Argument(
        metavar="MODEL.onnx", help="Quantised network as ONNX file: a chain of Conv, Gemm and MatMul."
    ),
]
Units = Annotated[
    int,
    options.option(
        "--units",
        "N",
        "Number of matrix-vector units, 1 to 8; the output rows of every layer are divided among them.",
    ),
]

OVERRIDE = "memory.weight_words=512"


def command(
    model: Network,
    aprec: Annotated[int, options.option("--aprec", "BITS", "Bits per activation, 1 to 16.")] = 8,
    wprec: Annotated[int, options.option("--wprec", "BITS", "Bits per weight, 1 to 16.")] = 8,
    oprec: Annotated[
        int,
        options.option(
            "--oprec",
            "BITS",
            "Bits of the last layer's output, 1 to 16; outputs of other layers have --aprec bits.",
        ),
    ] = 8,
    input_shape: Annotated[
        str | None,
        options.option("--input", "C,H,W", "Input shape to check the model file against, e.g. 3,32,32."),
    ] = None,
    behaviour: Annotated[
        str,
        options.option(
            "--behaviour",
            "rtl|documented",
            "Behave as the published BARVINN RTL, or as its documentation says.",
        ),
    ] = "rtl",
    host_ops: Annotated[
        bool,
        options.option(
            "--host-ops/--no-host-ops",
            "",
            "Let the host compute layers that the matrix-vector units do not support (with --behaviour rtl: "
            "ReLU and max-pool). With --no-host-ops, models with such layers are refused.",
        ),
    ] = True,
    as_published: Annotated[
        bool,
        options.option(
            "--as-published",
            "",
            "Print the jobs (commands to the matrix-vector units) that the published BARVINN code generator "
            "writes for the model, and stop.",
        ),
    ] = False,
    units: Units = 1,
    soc: Annotated[
        str, options.option("--soc", "NAME|FILE", "BARVINN chip: a preset by name, or a YAML file.")
    ] = "barvinn",
    overrides: Annotated[
        list[str] | None,
        options.option("--set", "PATH=VALUE", "Change one hardware parameter, e.g. host.bytes_per_cycle=64."),
    ] = None,
    out: Annotated[
        str | None,
        options.option(
            "--out",
            "DIR",
            "Folder to write to: tables of jobs and registers, memory images, test data, trace and picture.",
        ),
    ] = None,
    seed: Annotated[int, options.option("--seed", "N", "Seed of the random input.")] = 0,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Compile a quantised ONNX model for BARVINN (matrix-vector units), run it and compare with NumPy."""
    with telling(f"executing {model}", show=not (quiet or as_json)) as teller:

        def progress(done: int, jobs: int) -> None:
            if not done:
                teller.stage(f"executing {jobs:,} jobs")
            teller.count(done, jobs, " jobs")

        from barvinn.outputs import prepare_barvinn_folder, write_barvinn_outputs
        from barvinn.run import barvinn

        folder = prepare_barvinn_folder(out) if out is not None else None
        outcome = barvinn(
            model,
            aprec=aprec,
            wprec=wprec,
            oprec=oprec,
            input_shape=parse_input(input_shape) if input_shape is not None else None,
            behaviour=behaviour,
            host_ops=host_ops,
            as_published=as_published,
            units=units,
            soc=soc,
            overrides=dict(pair(text, "--set", OVERRIDE) for text in overrides or ()),
            seed=seed,
            progress=progress,
        )
        written = write_barvinn_outputs(outcome, folder) if folder is not None else []
    if as_json:
        typer.echo(json.dumps(outcome.summary, indent=2))
    elif not quiet:
        print_outcome(outcome)
        _print_files(written)
    warn_of_overflow(outcome.summary)


def _print_files(written: Sequence[Path]) -> None:
    images = [path for path in written if path.name[:2].isdigit()]
    for path in written:
        if path not in images:
            typer.echo(f"  {path}")
    if images:
        typer.echo(f"  and {len(images)} memory images, NN-LAYER-weights.txt ...")


def parse_input(text: str) -> tuple[int, ...]:
    """``3,32,32`` as integers. Raises `InputError`."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and 0 < len(part) < 10 and int(part) for part in parts):
        raise InputError(f"{text!r} is not a shape", where="--input", cure="write e.g. 3,32,32")
    return tuple(map(int, parts))


def print_outcome(outcome: BarvinnOutcome) -> None:
    """The job table with what differs from the published one and why, and the figures of the run."""
    from barvinn.mapping.table import table_text

    summary = outcome.summary
    typer.echo(table_text(outcome.rows), nl=False)
    typer.echo(f"Total countdown: {summary['total_countdown']}")
    if summary["as_published"]:
        return
    lines = {
        "time": f"{summary['cycles']:,} cycles = {summary['seconds'] * 1e3:.3f} ms at "
        f"{summary['cluster_hz'] / 1e6:g} MHz, {summary['frames_per_second']:,.1f} frames/s",
        "units": f"{summary['units']} of {outcome.timing.units}; {summary['jobs']} jobs; products in "
        + ", ".join(f"{share:.0%}" for share in summary["utilisation"].values())
        + " of the cycles",
        "numbers": "output equals the integer reference, bit for bit",
    }
    if summary["host_ops"]:
        by_op = Counter(step["op"] for step in summary["host_ops"])
        values = sum(step["values"] for step in summary["host_ops"])
        ops = ", ".join(f"{op} of {count} layers" for op, count in by_op.items())
        lines["host"] = f"{ops}, {values:,} values: the published RTL has no comparator"
    typer.echo("")
    for key, text in lines.items():
        typer.echo(f"{key:<9}{text}")
    typer.echo("\n" + frame_rates_text(outcome), nl=False)


def frame_rates_text(outcome: BarvinnOutcome) -> str:
    """Frames per second and what they rest on."""
    summary, hart = outcome.summary, outcome.timing.hart
    rate = outcome.timing.host.bytes_per_cycle
    host = f"at {rate} B/cycle" if rate else "in zero cycles (host.bytes_per_cycle 0, assumed)"
    lines = [
        f"frames/s, if the host moves {summary['host_bytes']:,} bytes {host} and computes in zero cycles:"
    ]
    for each in summary["frame_rates"]:
        handler = each["handler_instructions"]
        control = (
            f"control program: {handler * hart.instruction_cycles} cycles from interrupt to command"
            if handler
            else f"ideal control program, polling every {hart.poll_cycles} cycles"
        )
        lines.append(
            f"  {each['units']} of {outcome.timing.units} units "
            f"{each['frames_per_second']:>10,.1f}  {control}"
        )
    return "\n".join(lines) + "\n"


def warn_of_overflow(summary: dict[str, Any] | Any) -> None:
    """Say on standard error that sums were cut to the width of their register."""
    overflows = summary.get("overflows")
    if not overflows:
        return
    counts = {key: overflows[key] for key in ("accumulator", "scaled", "quantiser") if overflows[key]}
    if counts:
        text = " and ".join(f"{count} values of the {key}" for key, count in counts.items())
        layers = overflows["layers"]
        listed = ", ".join(layers) if len(layers) <= 3 else f"{layers[0]} and {len(layers) - 1} others"
        what = f"layers with overflow ({listed}): {text} lost their leading bits"
        cure = "use fewer bits (--aprec, --wprec) or smaller scales"
        print(f"pulptrain: warning: {what}, so the results differ\n  try: {cure}", file=sys.stderr)
