"""Write docs/speechnet.md: where the cycles of a SpeechNet training step go, beside the published ones.

Run it after a change of the model: ``python tools/update_speechnet_page.py``. A test compares the committed
page with what this program would write.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from speechnet_trace import (
    BLOCKS,
    CORES,
    FORWARD_MACS,
    GRADIENT_MACS,
    Cost,
    Costs,
    Key,
    between_cycles,
    everything,
    our_costs,
    published_costs,
    published_tiles,
    structure_correlation,
    total,
)

from pulptrain.session import RunOutcome, run_model
from pulptrain.settings import Settings

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "speechnet.md"
SETTINGS = Settings(soc="siracusa", timing="gvsoc", buffering="single", l1="128000", l2="2000000")
COMMAND = "pulptrain run speechnet --soc siracusa --timing gvsoc --buffering single --l1 128000 --l2 2000000"
STEPS = ("FW", "IG", "WG")
WHO = ("published", "ours")


@dataclass(frozen=True, slots=True)
class Cause:
    """A group of layers, and why theirs takes other cycles than ours."""

    name: str
    holds: Callable[[Key], bool]
    why: str


CAUSES = (
    Cause(
        "`conv2d` FW, b0",
        lambda key: key[0] == "b0" and key[1:] == ("conv2d", "FW"),
        "tiles of 2 output channels there, and each core takes whole channels: 6 of 8 cores have none; here "
        "im2row shares input channels, of which b0 has one, and `mm` rows",
    ),
    Cause(
        "`conv2d` FW, b1 to b4",
        lambda key: key[0] != "b0" and key[1:] == ("conv2d", "FW"),
        "every core there unrolls the whole image for its own channels (below) and multiplies element by "
        "element; ours unrolls once in a team and multiplies with `mm`",
    ),
    Cause(
        "`conv2d` IG",
        lambda key: key[1:] == ("conv2d", "IG"),
        "theirs adds every product to dX in L1; ours gathers: im2col and `mm`, weights turned first",
    ),
    Cause(
        "`conv2d` WG",
        lambda key: key[1:] == ("conv2d", "WG"),
        "PULP-TrainLib's im2col and `mm` in both; other tiles and another compiler. With one input channel "
        "(b0) its im2row has work for one core: counted here, not known there",
    ),
    Cause("bias gradients", lambda key: key[1] == "bias", "one core there adds up all of it"),
    Cause(
        "`max_pool2d` FW",
        lambda key: key[1:] == ("max_pool2d", "FW"),
        "tiles of 2 channels in b0 there; HWC, so that neighbours in a window are not neighbours in memory",
    ),
    Cause(
        "`max_pool2d` IG",
        lambda key: key[1:] == ("max_pool2d", "IG"),
        "theirs clears dX and searches the window again, in b0 on tiles of one channel, so on one core; ours "
        "kept the positions",
    ),
    Cause(
        "`batch_norm` FW, backward",
        lambda key: key[1] == "batch_norm",
        "one channel per tile in b0 there, so one core; here known statistics let tiles be cut anywhere",
    ),
    Cause("`relu` FW, IG", lambda key: key[1] == "relu", "element by element in both"),
    Cause(
        "transposes",
        lambda key: key[1] == "transpose",
        "CHW to HWC and back around convolution and pooling, in b0 on one core; here CHW throughout",
    ),
    Cause(
        "gradient accumulation",
        lambda key: key[1] == "accumulate",
        "a copy of every gradient there, for micro-batches; here none is asked for",
    ),
    Cause("head and loss", lambda key: key[0] == "head" and key[1] != "accumulate", "small in both"),
)
"""Every layer of either step but the update is in exactly one."""


def speechnet_page(outcome: RunOutcome) -> str:
    """The whole page, in Markdown."""
    theirs, ours = published_costs(), our_costs(outcome)
    correlation = structure_correlation(theirs, ours)
    return "\n".join(
        (
            INTRODUCTION,
            _whole(theirs, ours, outcome),
            _shares(theirs, ours, outcome),
            BLOCKS_TEXT,
            _blocks(theirs, ours),
            CONVOLUTIONS_TEXT,
            _convolutions(theirs, ours),
            f"Rank correlation (Spearman) of the 14 cycle counts: {correlation['convolutions']:.2f}; of all "
            f"{correlation['pairs']:.0f} pairs of block, layer and step that both have: "
            f"{correlation['all']:.2f}.\n",
            DIFFERENCES_TEXT,
            _differences(theirs, ours, outcome),
            _forward_of_b1(),
            SAME,
        )
    )


def _whole(theirs: Costs, ours: Costs, outcome: RunOutcome) -> str:
    both = (theirs, ours)

    def cells(name: str, part: Callable[[Cost], float]) -> tuple[str, ...]:
        whole = [total(costs, everything) for costs in both]
        return (name, *(f"{part(cost):,.0f} ({part(cost) / cost.cycles:.1%})" for cost in whole))

    forward = [total(costs, lambda key: key[2] == "FW").cycles / total(costs).cycles for costs in both]
    rows = [
        ("tiles of all layers and SGD", *(f"{total(costs, everything).cycles:,.0f}" for costs in both)),
        cells("of it kernels", lambda cost: cost.kernel_cycles),
        cells("of it DMA in", lambda cost: cost.in_cycles),
        cells("of it DMA out", lambda cost: cost.out_cycles),
        cells("kernel cycles lost to cores without work", lambda cost: cost.idle_cycles),
        ("SGD", *(f"{total(costs, lambda key: key[2] == 'UPD').cycles:,.0f}" for costs in both)),
        ("forward and backward pass", *(f"{total(costs).cycles:,.0f}" for costs in both)),
        ("beside it, between the layers", f"{between_cycles(theirs):,.0f}", f"{_between(outcome):,.0f}"),
        ("share of the forward pass", *(f"{share:.0%}" for share in forward)),
    ]
    return "## The whole step\n\n" + _table(("", *WHO), rows)


def _between(outcome: RunOutcome) -> float:
    return float(outcome.summary["offload_cycles"])


def _shares(theirs: Costs, ours: Costs, outcome: RunOutcome) -> str:
    there, here = total(theirs, everything), total(ours, everything)
    rows = [
        (name, f"{dma / (dma + kernels):.1%}")
        for name, dma, kernels in (
            ("published", there.dma_cycles, there.kernel_cycles),
            ("ours", here.dma_cycles, here.kernel_cycles),
            ("our transfers beside the published kernels", here.dma_cycles, there.kernel_cycles),
            ("published transfers beside our kernels", there.dma_cycles, here.kernel_cycles),
            ("published, had all cores had work in every kernel", there.dma_cycles, there.work_cycles),
        )
    ]
    moved = outcome.summary["bytes_in"] + outcome.summary["bytes_out"]
    port = outcome.timing.dma.l1_bytes_per_cycle
    return (
        _table(("kernels and transfers", "share of the DMA"), rows)
        + f"\nOur transfers take {here.dma_cycles / there.dma_cycles:.2f} of the published cycles; that "
        "their share is larger is due to the kernels alone. Ours move "
        f"{moved / 1e6:.2f} MB in {here.dma_cycles / 1e6:.2f} M cycles, {moved / here.dma_cycles:.1f} B per "
        f"cycle. The trace has no bytes; at {port} B per cycle, the most the DMA moves one way, its "
        f"{there.dma_cycles / 1e6:.2f} M cycles are at most {port * there.dma_cycles / 1e6:.1f} MB.\n"
    )


def _blocks(theirs: Costs, ours: Costs) -> str:
    def share(costs: Costs, block: str, step: str) -> str:
        """Of the forward and backward pass."""
        wanted = total(
            costs,
            lambda key: key[2] != "UPD" and block in (key[0], "all") and step in (key[2], "all"),
        )
        return f"{wanted.cycles / total(costs).cycles:.1%}" if wanted.cycles else "-"

    rows = [
        (block, *(share(costs, block, step) for step in (*STEPS, "all") for costs in (theirs, ours)))
        for block in (*BLOCKS, "head", "all")
    ]
    return _table(("block", *(f"{step} {who}" for step in (*STEPS, "all") for who in WHO)), rows)


def _convolutions(theirs: Costs, ours: Costs) -> str:
    rows = []
    for step in STEPS:
        for block in BLOCKS:
            key = (block, "conv2d", step)
            if key not in theirs:
                continue  # the first layer needs no input gradient
            macs = (GRADIENT_MACS if step == "IG" else FORWARD_MACS)[block]
            cells = [f"{costs[key].cycles:,.0f} ({costs[key].cycles / macs:.2f})" for costs in (theirs, ours)]
            rows.append((f"{block} {step}", f"{macs:,}", *cells))
    return _table(("", "MAC", *WHO), rows) + "\nIn brackets: cycles per MAC.\n"


def differences(theirs: Costs, ours: Costs, outcome: RunOutcome) -> list[tuple[str, Cost, Cost, str]]:
    """Per cause its name, the published cost, ours, and why; together they are the whole of both steps."""

    def part(costs: Costs, cause: Cause) -> Cost:
        return total(costs, lambda key: key[2] != "UPD" and cause.holds(key))

    there, here = between_cycles(theirs), _between(outcome)
    found = [(cause.name, part(theirs, cause), part(ours, cause), cause.why) for cause in CAUSES]
    return [*found, ("between the layers", Cost(there, there), Cost(here, here), "launches")]


def _differences(theirs: Costs, ours: Costs, outcome: RunOutcome) -> str:
    found = differences(theirs, ours, outcome)
    everywhere = ("all", sum((row[1] for row in found), Cost()), sum((row[2] for row in found), Cost()), "")
    whole = everywhere[1].cycles - everywhere[2].cycles
    rows = []
    for name, there, here, why in (*found, everywhere):
        gap = there.cycles - here.cycles
        parts = (
            there.cycles,
            here.cycles,
            gap,
            there.idle_cycles - here.idle_cycles,
            there.work_cycles - here.work_cycles,
            there.dma_cycles - here.dma_cycles,
        )
        rows.append((name, *(f"{value / 1e6:.2f}" for value in parts), f"{gap / whole:.1%}", why))
    titles = (
        "layers",
        *WHO,
        "difference",
        "cores without work",
        "other work",
        "DMA",
        "of the whole",
        "cause",
    )
    return _table(titles, rows)


def _forward_of_b1() -> str:
    """What the two tiles of b1, of 13 and of 3 channels, say about the published convolution."""
    two, one = (
        int(tile["kernel_cycles"])
        for tile in published_tiles()
        if (tile["block"], tile["layer"], tile["step"]) == ("b1", "conv2d", "FW")
    )
    channel, unroll = two - one, 2 * one - two
    spread = (unroll + 16 * channel) / CORES
    return (
        f"The published convolution of b1 forward comes in a tile of 13 output channels and one of 3, so the "
        f"busiest core has 2 and 1. Their kernels take {two:,} and {one:,} cycles: a channel costs "
        f"{channel:,}, and unrolling the image, which each core does for itself in each tile, {unroll:,}. "
        f"Unrolled once and shared evenly, the same code would take {spread:,.0f} instead of {two + one:,}.\n"
    )


def _table(titles: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [titles, ["---"] * len(titles), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines) + "\n"


INTRODUCTION = f"""\
# A training step of SpeechNet on Siracusa

<!-- Written by tools/update_speechnet_page.py; do not edit. -->

A published training step whose cycles are known tile by tile: SpeechNet (five convolution blocks, 15,489
parameters) with one forward and backward pass and SGD in fp32 on 8 cores, single buffered, with 128000 bytes
of L1 and 2000000 of L2, compiled by Deeploy and simulated by GVSoC (github.com/TKCW-W/TrainDeeploy at
ca6b909, exp1_BP_argmax_off; not peer reviewed; `measured/speechnet-trace.csv.gz`). Ours is

    {COMMAND}

Layers, shapes, biases, frozen statistics and thereby multiply-accumulates are those of the trace; loops, code
and tiles are others. So the page compares the structure of the step and accounts for the difference
in cycles, without a goal of equal ones; how well this simulator predicts measured kernels is in
[validation.md](validation.md). Figures are cluster cycles.
"""

BLOCKS_TEXT = """\
## Blocks

Share of the forward and backward pass. The published kernel of a batch norm's backward pass does its sums and
dX together; both count as IG. WG has the bias gradients and, there, the accumulation of gradients.
"""

CONVOLUTIONS_TEXT = """\
## Convolutions

Their multiply-accumulates are equal in every step (a test holds the model to it).
"""

DIFFERENCES_TEXT = """\
## Where the difference comes from

In million cycles. The difference of each row is the sum of three: *cores without work*, the part of the
kernels lost because cores had none (there from the channels of a tile, which the cores share whole, in chunks
of the rounded-up eighth; here from the trace, forks and joins included); *other work*, kernels spread over
all cores; and *DMA*. Where the published trace does not tell how many cores had work, all count as busy.
"""

SAME = """\
Compiler: PULP's LLVM 15 there, the loops of `clang-xpulp` (LLVM 22) here. The same in both: fp32, nothing in
L3, cluster cycles. Two runs there differ by 0.3 % (order of generated code), here by nothing.
"""


def simulated(settings: Settings = SETTINGS) -> RunOutcome:
    """The run the page is about, in time alone."""
    return run_model("speechnet", settings, functional=False)


def main() -> int:
    """Write the page."""
    PAGE.write_text(speechnet_page(simulated()), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
