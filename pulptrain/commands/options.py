# SPDX-License-Identifier: Apache-2.0
"""Options that several commands share, with their help texts."""

from __future__ import annotations

from typing import Annotated

import typer

from configs.dtypes import WORDS

Soc = Annotated[str, typer.Option("--soc", metavar="NAME|FILE", help="SoC preset or YAML file.")]
Timing = Annotated[
    str,
    typer.Option("--timing", metavar="rtl|gvsoc", help="Timing profile: hardware, or the GVSoC simulator."),
]
Codegen = Annotated[
    str,
    typer.Option(
        "--codegen",
        metavar="NAME",
        help="What the compiler makes of the kernels; that of the SoC file if not given.",
        show_default=False,
    ),
]
Cores = Annotated[int | None, typer.Option("--cores", metavar="N", help="Cores of the cluster, 1 to 16.")]
L1 = Annotated[str | None, typer.Option("--l1", metavar="SIZE", help="L1 size, e.g. 64KiB.")]
L2 = Annotated[str | None, typer.Option("--l2", metavar="SIZE", help="L2 size, e.g. 1536KiB.")]
L3 = Annotated[str | None, typer.Option("--l3", metavar="SIZE", help="L3 size, e.g. 8MiB; 0 for none.")]
Placement = Annotated[
    str,
    typer.Option(
        "--placement", metavar="first-fit|best-fit|optimal", help="How addresses in L2 and L3 are chosen."
    ),
]
Homes = Annotated[
    list[str] | None,
    typer.Option(
        "--home",
        metavar="TENSOR=l2|l3|streamed",
        help="Memory a tensor lives in, e.g. fc.weight=l3; streamed: in L3, moved tile by tile.",
    ),
]
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
Icache = Annotated[
    str,
    typer.Option(
        "--icache",
        metavar="warm|steady|cold",
        help="Kernels find their code in the caches, as an earlier iteration left them, or cold caches.",
    ),
]
Buffering = Annotated[
    str,
    typer.Option(
        "--buffering",
        metavar="none|single|double|best|N[,OP.OPERAND=N]",
        help="L1 buffers per moved operand, e.g. double,conv2.FW.w=1; best: the faster of single and double "
        "per op; none: no tiles, whole ops in L1.",
    ),
]
LoopOrders = Annotated[
    list[str] | None,
    typer.Option(
        "--loop-order", metavar="OP=DIM,...", help="Loops of an op, outermost first, e.g. conv2.FW=co,ho,ci."
    ),
]
Prefetch = Annotated[
    str, typer.Option("--prefetch", metavar="on|off", help="Load for the next op while this one computes.")
]
Resident = Annotated[
    str | None,
    typer.Option(
        "--resident",
        metavar="off|auto|TENSOR[@OP..OP],...",
        help="Tensors that stay in L1 between ops, e.g. fc.weight@fc.FW..fc.IG; auto: what saves cycles.",
    ),
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
Im2col = Annotated[
    list[str] | None,
    typer.Option(
        "--im2col",
        metavar="OP|STEP=cores|dma|none",
        help="How a convolution's op or step unrolls its images, e.g. WG=dma; what the layer says otherwise.",
    ),
]
Variant = Annotated[
    list[str] | None,
    typer.Option(
        "--variant",
        metavar="[OP|STEP=]NAME",
        help="How steps are lowered: as-published is PULP-TrainLib's own way, of all layers that have one; "
        "OP=NAME or STEP=NAME chooses for some (WG=as-published, conv1.IG=none).",
    ),
]
Tiles = Annotated[
    list[str] | None,
    typer.Option("--tile", metavar="OP=DIM:SIZE,...", help="Tile of an op, e.g. conv2.FW=co:8,ho:3."),
]
ScheduleFile = Annotated[
    str | None, typer.Option("--schedule", metavar="FILE", help="Choices per op, as `pulptrain tune` writes.")
]
Seed = Annotated[int, typer.Option("--seed", metavar="N", help="Seed of weights, data and sample order.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object for machines.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress, no tables.")]
Dtype = Annotated[
    str | None,
    typer.Option("--dtype", metavar=WORDS, help="Format of layers that do not say otherwise."),
]
Batch = Annotated[int | None, typer.Option("--batch", metavar="N", help="Samples of a mini-batch.")]
Accumulate = Annotated[
    int | None, typer.Option("--accumulate", metavar="N", help="Mini-batches of one update.")
]
SeparateUpdate = Annotated[
    bool, typer.Option("--separate-update", help="The update is a program of its own.")
]
LearningRate = Annotated[
    float | None,
    typer.Option(
        "--learning-rate",
        metavar="RATE",
        min=0.0,
        help="Of a training graph that says none; 0.001 if this says none either.",
    ),
]
ModelInput = Annotated[
    str | None,
    typer.Option(
        "--input",
        metavar="[int:]N,...",
        help="Shape of the input of net.py:Net or model.onnx, the batch first, e.g. 1,3,32,32; int:1,16 for "
        "words.",
    ),
]
ModelLoss = Annotated[
    str | None,
    typer.Option(
        "--loss",
        metavar="'NAME [KEY=VALUE ...]'",
        help="Loss of net.py:Net or model.onnx; default cross_entropy for outputs [batch, classes], else "
        "mse.",
    ),
]
ModelOptimizer = Annotated[
    str | None,
    typer.Option(
        "--optimizer",
        metavar="'NAME KEY=VALUE ...'",
        help="Optimizer of net.py:Net or model.onnx, e.g. 'adam lr=0.001'; default 'sgd lr=0.01'.",
    ),
]
