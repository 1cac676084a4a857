# SPDX-License-Identifier: Apache-2.0
"""docs/speechnet.md: where the cycles of a SpeechNet training step go, beside the published ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from pulptrain.inputs.settings import Settings
from pulptrain.running.session import RunOutcome, run_model
from tools.pages.page import Page, table
from tools.pages.speechnet_trace import (
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

SETTINGS = Settings(soc="siracusa", timing="gvsoc", buffering="single", l1="128000", l2="2000000")
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
        "published: tiles of 2 output channels, one core per channel, so 6 of 8 cores are idle; ours: "
        "cores share input channels in im2row (b0 has one) and rows in `mm`",
    ),
    Cause(
        "`conv2d` FW, b1 to b4",
        lambda key: key[0] != "b0" and key[1:] == ("conv2d", "FW"),
        "published: every core unrolls the whole image (below) and multiplies element by element; ours: "
        "the cores unroll it once together and multiply with `mm`",
    ),
    Cause(
        "`conv2d` IG",
        lambda key: key[1:] == ("conv2d", "IG"),
        "published: adds every product to dX in L1; ours: im2col and `mm`, after transposing the weights",
    ),
    Cause(
        "`conv2d` WG",
        lambda key: key[1:] == ("conv2d", "WG"),
        "both: im2col and `mm` of PULP-TrainLib, with different tiles and compilers. With one input "
        "channel (b0) one core does im2row: counted as idle cores for ours, unknown for the published "
        "step",
    ),
    Cause("bias gradients", lambda key: key[1] == "bias", "published: one core computes all sums"),
    Cause(
        "`max_pool2d` FW",
        lambda key: key[1:] == ("max_pool2d", "FW"),
        "published: tiles of 2 channels in b0, and HWC, so a window is not contiguous in memory",
    ),
    Cause(
        "`max_pool2d` IG",
        lambda key: key[1:] == ("max_pool2d", "IG"),
        "published: clears dX and searches the window again, in b0 with one channel per tile on one core; "
        "ours: stored the positions",
    ),
    Cause(
        "`batch_norm` FW, backward",
        lambda key: key[1] == "batch_norm",
        "published: one channel per tile in b0, so one core works; ours: tiles may have any shape, "
        "because the statistics are known",
    ),
    Cause("`relu` FW, IG", lambda key: key[1] == "relu", "element by element in both"),
    Cause(
        "transposes",
        lambda key: key[1] == "transpose",
        "published: CHW to HWC and back around convolution and pooling, in b0 on one core; ours: CHW "
        "throughout",
    ),
    Cause(
        "gradient accumulation",
        lambda key: key[1] == "accumulate",
        "published: copies every gradient, for micro-batches; ours: no accumulation",
    ),
    Cause("head and loss", lambda key: key[0] == "head" and key[1] != "accumulate", "small in both"),
)
"""Every layer of either step but the update is in exactly one."""


def _whole(theirs: Costs, ours: Costs, outcome: RunOutcome) -> str:
    both = (theirs, ours)

    def cells(name: str, part: Callable[[Cost], float]) -> tuple[str, ...]:
        whole = [total(costs, everything) for costs in both]
        return (name, *(f"{part(cost):,.0f} ({part(cost) / cost.cycles:.1%})" for cost in whole))

    forward = [total(costs, lambda key: key[2] == "FW").cycles / total(costs).cycles for costs in both]
    rows = [
        ("tiles of all layers and SGD", *(f"{total(costs, everything).cycles:,.0f}" for costs in both)),
        cells("of these, kernels", lambda cost: cost.kernel_cycles),
        cells("of these, DMA in", lambda cost: cost.in_cycles),
        cells("of these, DMA out", lambda cost: cost.out_cycles),
        cells("kernel cycles lost to idle cores", lambda cost: cost.idle_cycles),
        ("SGD", *(f"{total(costs, lambda key: key[2] == 'UPD').cycles:,.0f}" for costs in both)),
        ("forward and backward pass", *(f"{total(costs).cycles:,.0f}" for costs in both)),
        ("between the layers", f"{between_cycles(theirs):,.0f}", f"{_between(outcome):,.0f}"),
        ("share of the forward pass", *(f"{share:.0%}" for share in forward)),
    ]
    return table(("", *WHO), rows)


def _between(outcome: RunOutcome) -> float:
    return float(outcome.summary["offload_cycles"])


def _shares(theirs: Costs, ours: Costs, outcome: RunOutcome) -> str:
    there, here = total(theirs, everything), total(ours, everything)
    rows = [
        (name, f"{dma / (dma + kernels):.1%}")
        for name, dma, kernels in (
            ("published", there.dma_cycles, there.kernel_cycles),
            ("ours", here.dma_cycles, here.kernel_cycles),
            ("our transfers with the published kernels", here.dma_cycles, there.kernel_cycles),
            ("published transfers with our kernels", there.dma_cycles, here.kernel_cycles),
            ("published, if all cores had work in every kernel", there.dma_cycles, there.work_cycles),
        )
    ]
    moved = outcome.summary["bytes_in"] + outcome.summary["bytes_out"]
    port = outcome.timing.dma.l1_bytes_per_cycle
    return (
        table(("kernels and transfers", "share of the DMA"), rows)
        + f"\nOur transfers take {here.dma_cycles / there.dma_cycles:.2f} of the published cycles. "
        "Their share is larger only because our kernels are shorter. Ours move "
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
    return table(("block", *(f"{step} {who}" for step in (*STEPS, "all") for who in WHO)), rows)


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
    correlation = structure_correlation(theirs, ours)
    return (
        table(("", "MAC", *WHO), rows)
        + "\nIn brackets: cycles per MAC.\n"
        + f"\nRank correlation (Spearman) of the 14 cycle counts: {correlation['convolutions']:.2f}; over "
        f"all {correlation['pairs']:.0f} combinations of block, layer and step that both have: "
        f"{correlation['all']:.2f}.\n"
    )


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
    return table(titles, rows)


def forward_of_b1() -> str:
    """What the two tiles of b1, of 13 and of 3 channels, say about the published convolution."""
    two, one = (
        int(tile["kernel_cycles"])
        for tile in published_tiles()
        if (tile["block"], tile["layer"], tile["step"]) == ("b1", "conv2d", "FW")
    )
    channel, unroll = two - one, 2 * one - two
    spread = (unroll + 16 * channel) / CORES
    return (
        "The published convolution of b1 forward has a tile of 13 output channels and one of 3, so the "
        f"busiest core has 2 and 1 channels. Their kernels take {two:,} and {one:,} cycles: {channel:,} per "
        f"channel, and {unroll:,} to unroll the image, which each core does in each tile. If the cores "
        "unrolled it once and shared the work evenly, the same code would take "
        f"{spread:,.0f} instead of {two + one:,}.\n"
    )


@cache
def simulated() -> RunOutcome:
    """The run the page is about, in time alone."""
    return run_model("speechnet", SETTINGS, functional=False)


def _of_run(block: Callable[[Costs, Costs, RunOutcome], str]) -> Callable[[], str]:
    return lambda: block(published_costs(), our_costs(simulated()), simulated())


PAGE = Page(
    "docs/speechnet.md",
    {
        "whole": _of_run(_whole),
        "shares": _of_run(_shares),
        "blocks": _of_run(lambda theirs, ours, _: _blocks(theirs, ours)),
        "convolutions": _of_run(lambda theirs, ours, _: _convolutions(theirs, ours)),
        "differences": _of_run(_differences),
        "channels": forward_of_b1,
    },
)
