# SPDX-License-Identifier: Apache-2.0
"""docs/speechnet.md: where the cycles of a SpeechNet training step go, beside the published ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from pulptrain.given.settings import Settings
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
            ("our transfers beside the published kernels", here.dma_cycles, there.kernel_cycles),
            ("published transfers beside our kernels", there.dma_cycles, here.kernel_cycles),
            ("published, had all cores had work in every kernel", there.dma_cycles, there.work_cycles),
        )
    ]
    moved = outcome.summary["bytes_in"] + outcome.summary["bytes_out"]
    port = outcome.timing.dma.l1_bytes_per_cycle
    return (
        table(("kernels and transfers", "share of the DMA"), rows)
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
        + f"\nRank correlation (Spearman) of the 14 cycle counts: {correlation['convolutions']:.2f}; of all "
        f"{correlation['pairs']:.0f} pairs of block, layer and step that both have: "
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
        f"The published convolution of b1 forward comes in a tile of 13 output channels and one of 3, so the "
        f"busiest core has 2 and 1. Their kernels take {two:,} and {one:,} cycles: a channel costs "
        f"{channel:,}, and unrolling the image, which each core does for itself in each tile, {unroll:,}. "
        f"Unrolled once and shared evenly, the same code would take {spread:,.0f} instead of {two + one:,}.\n"
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
