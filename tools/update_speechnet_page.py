"""Write docs/speechnet.md: where the cycles of a SpeechNet training step go, beside the published ones.

Run it after a change of the model: ``python tools/update_speechnet_page.py``. A test compares the committed
page with what this program would write.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pulptrain.session import RunOutcome, run_model
from pulptrain.settings import Settings
from scheduler.validation.statistics import rank_correlation

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "speechnet.md"
SETTINGS = Settings(soc="siracusa", timing="gvsoc", buffering="single", l1="128000", l2="2000000")
COMMAND = "pulptrain run speechnet --soc siracusa --timing gvsoc --buffering single --l1 128000 --l2 2000000"
BLOCKS = ("b0", "b1", "b2", "b3", "b4")
STEPS = ("FW", "IG", "WG", "UPD")

# Published figures: github.com/TKCW-W/TrainDeeploy at ca6b909, DeeployTest/experiments/deliverable,
# exp1_BP_argmax_off. Cycles of the cluster; those of a step include its transfers.
PUBLISHED_TOTAL_CYCLES = 34_084_097
PUBLISHED_UPDATE_CYCLES = 61_480
PUBLISHED_PARTS_CYCLES = {"kernels": 32_353_106, "DMA in": 989_231, "DMA out": 753_182}
PUBLISHED_MACS = {"b0": 314_048, "b1": 2_523_136, "b2": 659_456, "b3": 143_360, "b4": 71_680}
"""Of the forward pass, from the shapes of the tiles in the published trace."""

PUBLISHED_CONVOLUTIONS_CYCLES = {
    ("b0", "FW"): 7_405_374,
    ("b0", "WG"): 1_093_044,
    ("b1", "FW"): 6_121_186,
    ("b1", "IG"): 3_402_803,
    ("b1", "WG"): 2_642_291,
    ("b2", "FW"): 922_827,
    ("b2", "IG"): 954_448,
    ("b2", "WG"): 782_108,
    ("b3", "FW"): 175_772,
    ("b3", "IG"): 434_761,
    ("b3", "WG"): 181_157,
    ("b4", "FW"): 90_059,
    ("b4", "IG"): 203_149,
    ("b4", "WG"): 146_955,
}
PUBLISHED_KINDS_CYCLES = {
    ("conv2d", "FW"): 14_720_000,
    ("conv2d", "backward"): 10_360_000,
    ("max_pool2d", "backward"): 4_250_000,
    ("batch_norm", "backward"): 1_320_000,
    ("max_pool2d", "FW"): 910_000,
    ("batch_norm", "FW"): 710_000,
    ("relu", "backward"): 360_000,
    ("relu", "FW"): 240_000,
}
"""Sums over the step by kind of layer; those of the backward pass of convolutions include their biases."""

INTRODUCTION = f"""\
# A training step of SpeechNet on Siracusa

<!-- Written by tools/update_speechnet_page.py; do not edit. -->

A published training step whose cycles are known kernel by kernel: SpeechNet (five convolution blocks, 15 k
parameters) with one forward and backward pass and SGD in fp32 on 8 cores, single buffered, with 128000 bytes
of L1 and 2000000 of L2, compiled by Deeploy and simulated by GVSoC (github.com/TKCW-W/TrainDeeploy at
ca6b909, exp1_BP_argmax_off; not peer reviewed). Ours is

    {COMMAND}

which is another implementation of the same layers: other loops, other code, other tiles. So the page compares
the structure of the step, not cycles with a goal of equality; how well this simulator predicts measured
kernels is in [validation.md](validation.md). Figures are cluster cycles.
"""

DIFFERENCES = (
    (
        "convolution forward",
        "Deeploy's own im2col loop; ours is PULP-TrainLib's im2col and `mm`. Either is worst per MAC with "
        "one input channel and a kernel of 4 (b0): the work around a sum of 4 products costs more.",
    ),
    (
        "input gradient",
        "theirs scatters every output gradient over dX; ours gathers: im2col and `mm` as in the forward "
        "pass, weights transposed first",
    ),
    (
        "weight gradient",
        "PULP-TrainLib's im2col and `mm` in both: the step that agrees best (b0, b1)",
    ),
    ("compiler", "PULP's LLVM there, the loops of `clang-xpulp` here"),
    (
        "bias gradients",
        "491,626 cycles there; here a batch norm follows each convolution, subtracts a bias again, and the "
        "model has none",
    ),
    (
        "max pooling backward",
        "theirs searches the window again and scatters on whole channels; ours keeps positions in the "
        "forward pass",
    ),
    (
        "batch norm",
        "Deeploy, too, has it taken apart into sums and elements (WelfordReduce, ChannelNormalize, "
        "BNGradReduce, BNGradNormalize); ours finds mean and variance in two passes",
    ),
    ("transposes", "1.09 M cycles of layout changes (CHW to HWC and back) there; here CHW throughout"),
    (
        "padding",
        "the trace has b3 and b4 without padding (8 and 2 rows of 14) and one column more in b0 to b2; the "
        "model keeps 14 rows, so b3 has 1.75 and b4 7 times the MACs",
    ),
    ("dtype, L3, clock", "the same: fp32, nothing in L3, everything in cluster cycles"),
    (
        "DMA",
        "fewer cycles here (no transposes, no bias gradients), and a larger share, because the kernels are "
        "faster",
    ),
    ("run-to-run noise", "0.3 % there (order of generated code); none here"),
)
"""Cause, and what it does."""


@dataclass(frozen=True, slots=True)
class Op:
    """One op of our run: cycles in all, and of these waiting for (and programming) the DMA on core 0."""

    layer: str
    primitive: str
    step: str
    cycles: int
    macs: int
    in_cycles: int
    out_cycles: int

    @property
    def block(self) -> str:
        """b0 to b4, or the layers behind them."""
        return self.layer[:2] if self.layer[:2] in BLOCKS else "head"

    @property
    def phase(self) -> str:
        """FW, IG, WG or UPD: the step, of several of a layer that which they are part of."""
        return "FW" if self.step == "LOSS" else self.step.partition("_")[0]


def ops_of(outcome: RunOutcome) -> list[Op]:
    """All ops in the order of execution. Waits count as inward unless they are for a result."""
    graph = outcome.schedule.graph
    written = {op.name: set(op.outputs) for op in graph.ops}
    waits: Counter[tuple[str, bool]] = Counter()
    for event in outcome.slices:
        if event.track.endswith("core0") and event.kind in ("dma_wait", "dma_program"):
            name = f"{event.work.op}.{event.work.step}"
            waits[name, event.work.what in written.get(name, ())] += event.end_cycles - event.start_cycles
    return [
        Op(
            op["name"].rpartition(".")[0],
            op["primitive"],
            op["step"],
            op["cycles"],
            op["macs"],
            waits[op["name"], False],
            waits[op["name"], True],
        )
        for op in outcome.summary["ops"]
    ]


def parts_cycles(ops: Iterable[Op]) -> dict[str, int]:
    """Cycles of kernels (forks and joins included), and of waiting for transfers, inward and outward."""
    parts = {"kernels": 0, "DMA in": 0, "DMA out": 0}
    for op in ops:
        parts["DMA in"] += op.in_cycles
        parts["DMA out"] += op.out_cycles
        parts["kernels"] += op.cycles - op.in_cycles - op.out_cycles
    return parts


def convolutions_cycles(ops: Iterable[Op]) -> dict[tuple[str, str], int]:
    """Cycles of the convolutions by block and step, as published ones."""
    return {
        (op.block, op.phase): op.cycles for op in ops if op.primitive == "conv2d" and op.phase in STEPS[:3]
    }


def structure_correlation(ops: Sequence[Op]) -> float:
    """Spearman's rank correlation between published and our cycles of the convolutions' steps."""
    ours = convolutions_cycles(ops)
    pairs = [(cycles, ours[key]) for key, cycles in PUBLISHED_CONVOLUTIONS_CYCLES.items()]
    found = rank_correlation([a for a, _ in pairs], [b for _, b in pairs])
    assert found is not None
    return found


def speechnet_page(outcome: RunOutcome) -> str:
    """The whole page, in Markdown."""
    ops = ops_of(outcome)
    parts = (
        (INTRODUCTION, _whole(ops), "## Blocks\n"),
        ("Ours: cycles per block and step, and their share of the iteration.\n", _blocks(ops)),
        ("## Convolutions\n", _convolutions(ops)),
        (
            f"Rank correlation of the {len(PUBLISHED_CONVOLUTIONS_CYCLES)} cycle counts: "
            f"{structure_correlation(ops):.2f}.\n",
        ),
        ("## Kinds of layers\n", _kinds(ops)),
        ("## Why they differ\n", _table(("cause", "effect"), DIFFERENCES)),
    )
    return "\n".join(text for group in parts for text in group)


def _whole(ops: Sequence[Op]) -> str:
    step = [op for op in ops if op.phase != "UPD"]
    ours, theirs = parts_cycles(step), PUBLISHED_PARTS_CYCLES
    total, published = sum(ours.values()), sum(theirs.values())
    forward = sum(op.cycles for op in step if op.phase == "FW")
    rows = [
        ("forward and backward pass", f"{PUBLISHED_TOTAL_CYCLES:,}", f"{total:,}"),
        *(
            (
                f"of it {name}",
                f"{theirs[name]:,} ({theirs[name] / published:.1%})",
                f"{ours[name]:,} ({ours[name] / total:.1%})",
            )
            for name in theirs
        ),
        ("share of the forward pass", "52 %", f"{forward / total:.0%}".replace("%", " %")),
        ("SGD", f"{PUBLISHED_UPDATE_CYCLES:,}", f"{sum(op.cycles for op in ops) - total:,}"),
    ]
    return "## The whole step\n\n" + _table(("", "published", "ours"), rows)


def _blocks(ops: Sequence[Op]) -> str:
    total = sum(op.cycles for op in ops)
    rows = []
    for block in (*BLOCKS, "head", "all"):
        own = [op for op in ops if block in (op.block, "all")]
        cycles = [sum(op.cycles for op in own if op.phase == step) for step in STEPS]
        parts = parts_cycles(own)
        row = [block, *(f"{count:,} ({count / total:.1%})" if count else "-" for count in cycles)]
        waits = (parts["DMA in"] + parts["DMA out"]) / sum(parts.values())
        rows.append((*row, f"{sum(cycles):,} ({sum(cycles) / total:.1%})", f"{waits:.1%}"))
    return _table(("block", *STEPS, "all", "DMA share"), rows)


def _convolutions(ops: Sequence[Op]) -> str:
    ours = convolutions_cycles(ops)
    macs = {op.block: op.macs for op in ops if op.primitive == "conv2d" and op.phase == "FW"}
    rows = []
    for block in BLOCKS:
        row = [block, f"{PUBLISHED_MACS[block]:,}", f"{macs[block]:,}"]
        for step in STEPS[:3]:
            published, own = PUBLISHED_CONVOLUTIONS_CYCLES.get((block, step)), ours.get((block, step))
            if published is None or own is None:
                row += ["-", "-"]  # the first layer needs no input gradient
                continue
            row.append(f"{published:,} ({published / PUBLISHED_MACS[block]:.2f})")
            row.append(f"{own:,} ({own / macs[block]:.2f})")
        rows.append(tuple(row))
    columns = (f"{what} {who}" for what in ("MAC", *STEPS[:3]) for who in ("published", "ours"))
    titles = ("block", *columns)
    return _table(titles, rows) + "\nIn brackets: cycles per MAC.\n"


def _kinds(ops: Sequence[Op]) -> str:
    found: Counter[tuple[str, str]] = Counter()
    for op in ops:
        if op.phase != "UPD":
            found[op.primitive, "FW" if op.phase == "FW" else "backward"] += op.cycles
    total = sum(found.values())
    rows = [
        (
            f"`{kind}` {what}",
            f"{published / 1e6:.2f} M ({published / PUBLISHED_TOTAL_CYCLES:.1%})",
            f"{found[kind, what] / 1e6:.2f} M ({found[kind, what] / total:.1%})",
        )
        for (kind, what), published in PUBLISHED_KINDS_CYCLES.items()
    ]
    rest = total - sum(found[key] for key in PUBLISHED_KINDS_CYCLES)
    published = PUBLISHED_TOTAL_CYCLES - sum(PUBLISHED_KINDS_CYCLES.values())
    rows.append(
        (
            "the rest (there with transposes)",
            f"{published / 1e6:.2f} M ({published / PUBLISHED_TOTAL_CYCLES:.1%})",
            f"{rest / 1e6:.2f} M ({rest / total:.1%})",
        )
    )
    return _table(("kind", "published", "ours"), rows)


def _table(titles: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [titles, ["---"] * len(titles), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines) + "\n"


def simulated(settings: Settings = SETTINGS) -> RunOutcome:
    """The run the page is about, in time alone."""
    return run_model("speechnet", settings, functional=False)


def published_shares() -> Mapping[str, float]:
    """Share of kernels and of transfers in the published step."""
    total = sum(PUBLISHED_PARTS_CYCLES.values())
    return {name: cycles / total for name, cycles in PUBLISHED_PARTS_CYCLES.items()}


def main() -> int:
    """Write the page."""
    PAGE.write_text(speechnet_page(simulated()), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
