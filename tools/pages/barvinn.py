# SPDX-License-Identifier: Apache-2.0
"""docs/barvinn.md: the plain ResNet-18 on BARVINN's units, corrected against published; its parts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from pathlib import Path

from barvinn.machine.behaviour import BEHAVIOURS, Behaviour
from barvinn.machine.hart import instructions_of
from barvinn.machine.job import csr_writes
from barvinn.machine.timing import LANES, MACHINE
from barvinn.mapping.layers import LayerShape
from barvinn.mapping.network import RealLayer
from barvinn.run import BarvinnOutcome, barvinn
from configs.parameters import load_parameters
from tools.barvinn_jobs import load_barvinn, predict, read_cases
from tools.pages.page import Page, sources, table
from tools.plain_resnet18 import layers as plain_resnet18

BITS = 2
ROOT = Path(__file__).parents[2]


@cache
def simulated(behaviour: str = "rtl") -> BarvinnOutcome:
    """The network on one unit that behaves so."""
    return barvinn(plain_resnet18(), aprec=BITS, wprec=BITS, oprec=BITS, behaviour=behaviour)


@cache
def published() -> BarvinnOutcome:
    """The table of the public tool."""
    return barvinn(plain_resnet18(), aprec=BITS, wprec=BITS, oprec=BITS, as_published=True)


def layers() -> str:
    """A row per run of layers that are alike, and the sum."""
    outcome, documented = simulated(), simulated("documented")
    rows: list[list[object]] = []
    previous: tuple[object, ...] = ()
    names: list[str] = []
    for real, old, new, free, figures in zip(
        *(outcome.real_layers, published().rows, outcome.rows, documented.rows, outcome.summary["layers"]),
        strict=True,
    ):
        dense = dense_cycles(real.shape)
        cells = (
            *(
                f"{real.shape.ci} to {real.shape.co}",
                f"{real.shape.hi} x {real.shape.wi}",
                real.shape.strides[0],
            ),
            *(f"{old['total']:,}", f"{new['total']:,}", f"{100 * new['total'] / dense:.1f}"),
            *(new["jobs"], free["jobs"], new["weight_words"], f"{new['useful_percent']:.1f}"),
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
            *(outcome.summary["jobs"], documented.summary["jobs"]),
            *(sum(row["weight_words"] for row in outcome.rows), ""),
            f"{100 * products / (outcome.summary['cycles'] * LANES * LANES):.1f}",
        ]
    )
    titles = (
        *("layer (and those like it)", "channels", "map", "stride", "published", "corrected", "valid %"),
        *("jobs", "documented", "weight words", "useful %", "busy and useful %"),
    )
    return table(titles, rows, numbers=True)


def dense_cycles(shape: LayerShape) -> int:
    """Cycles of all taps of all outputs, those in the padding too."""
    return shape.ho * shape.wo * shape.taps * shape.blocks_out * BITS * BITS


def times() -> str:
    """A row per behaviour, control program and number of units."""
    rows = []
    for name in BEHAVIOURS:
        outcome = simulated(name)
        timing = outcome.timing
        for rate in outcome.summary["frame_rates"]:
            cycles, handler = rate["cycles"], rate["handler_instructions"]
            control = f"{handler * timing.hart.instruction_cycles} cycles" if handler else "polls"
            milliseconds = f"{cycles / timing.clock.hz * 1e3:.3f}"
            frames = f"{rate['frames_per_second']:,.0f}"
            rows.append((name, control, rate["units"], f"{cycles:,}", milliseconds, frames))
    titles = ("behaviour", "interrupt to command", "units", "cycles", "ms at 250 MHz", "frames/s")
    return table(titles, rows, numbers=True)


def behaviour() -> str:
    """Every rule, its two values and its source."""
    rows = []
    for rule in fields(Behaviour):
        if rule.metadata:
            values = [_value(getattr(each, rule.name)) for each in BEHAVIOURS.values()]
            rows.append((rule.metadata["about"], *values, rule.metadata["source"]))
    return table(("rule", *BEHAVIOURS, "source"), rows)


def _value(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"`{name}` {cycles}" for name, cycles in value.items()) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value).lower()


def measured() -> str:
    """Every measured case beside its prediction."""
    timing = load_barvinn("barvinn", {"hart.handler_instructions": 0})
    columns = ("run_cycles", "command_to_interrupt", "last_product_to_last_plane_written", "words_written")
    rows = []
    for case in read_cases(ROOT / "measured" / "barvinn-jobs.csv.gz"):
        found = predict(case, timing)
        cells: list[object] = [case.label, len(case.rows)]
        for column in columns:
            given = sorted({int(row[column]) for row in case.rows})
            said = sorted(set(getattr(found, column)))
            wrong = sum(
                int(row[column]) != value
                for row, value in zip(case.rows, getattr(found, column), strict=True)
            )
            cells.append(f"{_range(given)} / {_range(said)}" + (f" ({wrong} off)" if wrong else ""))
        wrong_words = int(case.rows[0]["words_wrong"])
        cells.append(f"{wrong_words} / {found.words_wrong} of {found.words}")
        rows.append(tuple(cells))
    titles = (
        "case",
        "jobs",
        "job, cycles",
        "command to interrupt, cycles",
        "last product to last plane, cycles",
        "words per job",
        "words wrong",
    )
    return table(titles, rows)


def _range(values: list[int]) -> str:
    return str(values[0]) if len(values) == 1 else f"{values[0]}-{values[-1]}"


def registers() -> str:
    """Lists that are others than published, of layers that are alike once."""
    rows: list[tuple[object, ...]] = []
    seen: set[tuple[str, ...]] = set()
    for old, new in zip(published().rows, simulated().rows, strict=True):
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
    one = RealLayer(shape, real.weights, real.gain, real.offset, relu=False)
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
        "products: 9 taps x 4 pairs of planes x 30 outputs": only.product_cycles,
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
    {"layers": layers, "times": times},
    dict.fromkeys(("layers", "times"), lambda: sources("barvinn")),
)
