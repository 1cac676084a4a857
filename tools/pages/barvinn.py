# SPDX-License-Identifier: Apache-2.0
"""docs/barvinn.md: the plain ResNet-18 on BARVINN's units, corrected against published; parameters."""

from __future__ import annotations

from functools import cache

from arch.barvinn.hart import instructions_of
from arch.barvinn.job import csr_writes
from arch.barvinn.timing import LANES, MACHINE
from configs.parameters import load_parameters
from pulptrain.barvinn_run import BarvinnOutcome, barvinn
from scheduler.barvinn.layers import LayerShape
from scheduler.barvinn.network import RealLayer
from tools.pages.page import Page, table
from tools.plain_resnet18 import layers as plain_resnet18

BITS = 2
UNITS = (1, 2, 4, 8)


@cache
def simulated(units: int) -> BarvinnOutcome:
    """The network on so many units."""
    return barvinn(plain_resnet18(), aprec=BITS, wprec=BITS, oprec=BITS, units=units)


@cache
def published() -> BarvinnOutcome:
    """The table of the public tool."""
    return barvinn(plain_resnet18(), aprec=BITS, wprec=BITS, oprec=BITS, as_published=True)


def layers() -> str:
    """A row per run of layers that are alike, and the sum."""
    outcome = simulated(1)
    rows: list[list[object]] = []
    previous: tuple[object, ...] = ()
    names: list[str] = []
    for real, old, new, figures in zip(
        outcome.real_layers, published().rows, outcome.rows, outcome.summary["layers"], strict=True
    ):
        dense = dense_cycles(real.shape)
        cells = (
            *(
                f"{real.shape.ci} to {real.shape.co}",
                f"{real.shape.hi} x {real.shape.wi}",
                real.shape.strides[0],
            ),
            *(f"{old['total']:,}", f"{new['total']:,}", f"{100 * new['total'] / dense:.1f}"),
            *(new["jobs"], new["weight_words"], f"{new['useful_percent']:.1f}"),
            f"{figures['useful_percent']:.1f}",
        )
        names.append(real.shape.name)
        if cells[:-1] == previous[:-1]:
            continue  # the next block of a stage: only its cycles may differ, by the layer before it
        previous = cells
        rows.append([real.shape.name, *cells])
    total_dense = sum(dense_cycles(real.shape) for real in outcome.real_layers)
    products = outcome.summary["macs"] * BITS * BITS
    old_total, new_total = published().summary["total_countdown"], outcome.summary["total_countdown"]
    rows.append(
        [
            *(f"all {len(names)}", "", "", ""),
            *(f"{old_total:,}", f"{new_total:,}", f"{100 * new_total / total_dense:.1f}"),
            *(outcome.summary["jobs"], sum(row["weight_words"] for row in outcome.rows)),
            "",
            f"{100 * products / (outcome.summary['cycles'] * LANES * LANES):.1f}",
        ]
    )
    titles = (
        *("layer (and those like it)", "channels", "map", "stride", "published", "corrected", "valid %"),
        *("jobs", "weight words", "useful %", "busy and useful %"),
    )
    return table(titles, rows, numbers=True)


def dense_cycles(shape: LayerShape) -> int:
    """Cycles of all taps of all outputs, those in the padding too."""
    return shape.ho * shape.wo * shape.taps * shape.blocks_out * BITS * BITS


def times() -> str:
    """A row per number of units."""
    rows = []
    for units in UNITS:
        summary = simulated(units).summary
        shares = summary["utilisation"].values()
        rows.append(
            (
                units,
                f"{summary['cycles']:,}",
                f"{summary['seconds'] * 1e3:.3f}",
                f"{summary['frames_per_second']:,.0f}",
                f"{simulated(1).summary['cycles'] / summary['cycles']:.2f}",
                f"{100 * sum(shares) / len(shares):.0f}",
                summary["jobs"],
            )
        )
    titles = ("units", "cycles", "ms at 250 MHz", "frames/s", "speed-up", "cycles with products %", "jobs")
    return table(titles, rows, numbers=True)


def registers() -> str:
    """Lists that are others than published, of layers that are alike once."""
    rows: list[tuple[object, ...]] = []
    seen: set[tuple[str, ...]] = set()
    for old, new in zip(published().rows, simulated(1).rows, strict=True):
        changed = [key for key in ("ilength", "ijump", "wlength", "wjump") if old[key] != new[key]]
        for key in changed:
            cells = (key, _numbers(old[key]), _numbers(new[key]))
            if cells not in seen:
                seen.add(cells)
                rows.append((new["layer"], *cells))
    return table(("first layer", "register", "published", "corrected"), rows)


def _numbers(values: list[int]) -> str:
    return "[" + ", ".join(map(str, values)) + "]"


def job() -> str:
    """The first job of a network of one row, and its parts."""
    real = plain_resnet18()[1]
    shape = LayerShape("row", "conv", 64, 3, 32, 64, (3, 3))
    one = RealLayer(shape, real.weights, real.gain, real.offset, relu=True)
    outcome = barvinn([one], aprec=BITS, wprec=BITS, oprec=BITS)
    assert outcome.network is not None
    ((_, only),) = outcome.network.layers[0].jobs
    timing = outcome.timing
    instructions = sum(map(instructions_of, csr_writes(only, 0, timing.behaviour)))
    cycle = timing.hart.instruction_cycles
    parts = {
        f"registers: {instructions} instructions of {cycle} cycles": instructions * cycle,
        "command": cycle,
        "start": timing.launch.start_cycles,
        "countdown: 9 taps x 4 pairs of planes x 30 outputs": only.countdown,
        f"drain: stages, and {only.output_bits} planes": timing.drain.cycles(only.output_bits),
    }
    total = sum(parts.values())
    if total != outcome.summary["cycles"]:
        raise ValueError(f"the parts are {total} cycles, the run takes {outcome.summary['cycles']}")
    rows = [(name, f"{cycles:,}") for name, cycles in parts.items()]
    return table(("part", "cycles"), [*rows, ("simulated", f"{total:,}")], numbers=True)


def parameters() -> str:
    """All parameters of the machine."""
    tree = load_parameters(MACHINE, machine=MACHINE)
    rows = [
        (
            f"`{path}`",
            f"{each.value:,}" + (" (assumed)" if each.assumed else ""),
            each.unit,
            each.description,
            each.source,
        )
        for path, each in tree.items()
    ]
    return table(("parameter", "value", "unit", "meaning", "source"), rows)


PAGE = Page(
    "docs/barvinn.md",
    {"layers": layers, "times": times, "registers": registers, "job": job, "parameters": parameters},
)
