"""Options that several commands share, with their help texts."""

from __future__ import annotations

from typing import Annotated

import typer

Soc = Annotated[str, typer.Option("--soc", metavar="NAME|FILE", help="SoC preset or YAML file.")]
Timing = Annotated[
    str,
    typer.Option("--timing", metavar="rtl|gvsoc", help="Timing profile: hardware, or the GVSoC simulator."),
]
Codegen = Annotated[
    str, typer.Option("--codegen", metavar="NAME", help="What the compiler makes of the kernels.")
]
Cores = Annotated[int | None, typer.Option("--cores", metavar="N", help="Cores of the cluster, 1 to 16.")]
L1 = Annotated[str | None, typer.Option("--l1", metavar="SIZE", help="L1 size, e.g. 64KiB.")]
L2 = Annotated[str | None, typer.Option("--l2", metavar="SIZE", help="L2 size, e.g. 1536KiB.")]
Fpus = Annotated[
    str | None,
    typer.Option(
        "--fpus",
        metavar="private|N-static|N-dynamic",
        help="One FPU per core, or N shared by core number or per cycle.",
    ),
]
BankConflicts = Annotated[
    str | None,
    typer.Option(
        "--bank-conflicts", metavar="on|off", help="One access per L1 bank and cycle, or no L1 contention."
    ),
]
Buffering = Annotated[
    str, typer.Option("--buffering", metavar="single|double|N", help="L1 buffers per moved operand.")
]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="PATH=VALUE", help="Change one parameter of the SoC, e.g. dma.burst_bytes=64."
    ),
]
Kernels = Annotated[
    list[str] | None,
    typer.Option("--kernel", metavar="OP|STEP=NAME", help="Matmul kernel of an op or of a step, e.g. IG=mm."),
]
Tiles = Annotated[
    list[str] | None,
    typer.Option("--tile", metavar="OP=DIM:SIZE,...", help="Tile of an op, e.g. conv2.FW=co:8,ho:3."),
]
Seed = Annotated[int, typer.Option("--seed", metavar="N", help="Seed of weights, data and sample order.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object for machines.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress, no tables.")]
