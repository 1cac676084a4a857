# SPDX-License-Identifier: Apache-2.0
"""docs/tuned.md and docs/tuned.png: zoo models tuned, against one fixed kernel and single buffering.

    python -m tools.pages.tuned --cache FILE [--models NAME,NAME]

One process. What is in the cache is not computed again, so a run that was stopped goes on where it was: after
every model the page is written with the models done so far, the others listed as not run.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from configs.library import list_names
from pulptrain.model_tuning import tune_model
from pulptrain.result_cache import open_cache
from pulptrain.session import run_model
from pulptrain.settings import Settings
from scheduler.tuner.cache import ResultCache
from scheduler.tuner.search_space import SpaceRules
from scheduler.tuner.workers import open_workers
from tools.pages.page import ROOT, Page, table

PICTURE = ROOT / "docs" / "tuned.png"

CUTS = {
    "simple-mlp": 16,
    "tutorial-cnn": 16,
    "digits-cnn": 16,
    "deep-autoencoder": 16,
    "tiny-transformer": 8,
    "resnet8": 8,
    "gru-keywords": 4,
    "ds-cnn": 8,
    "tiny-vit": 4,
    "speechnet": 4,
    "trainlib-resnet-cifar10": 8,
    "cct": 3,
    "mobilenet-v1": 8,
}
"""`--cuts` of each model in the order they are run; a model that is not here is listed as not run."""

STEPS = ("FW", "WG", "IG")
FIXED = ("mm", "mm_unroll_2x4")
"""Kernels used for every matmul; the second is what the SAMOS paper calls 2x4."""


@dataclass(frozen=True, slots=True)
class Row:
    """Cycles of one iteration of a model; `fixed` by (kernel, buffering)."""

    model: str
    cuts: int
    fixed: dict[tuple[str, str], int]
    tuned_single_cycles: int
    tuned_off_cycles: int
    tuned_cycles: int


def measure(model: str, cuts: int, cache: ResultCache | None) -> Row:
    """Run a model with each fixed kernel and buffering, and tune it. Raises those of `configs.errors`."""
    fixed = {}
    for kernel in FIXED:
        for buffering in ("single", "double"):
            settings = Settings(buffering=buffering, kernels=tuple(f"{step}={kernel}" for step in STEPS))
            fixed[kernel, buffering] = int(
                run_model(model, settings, functional=False, cache=cache).summary["cycles"]
            )
    tuned = [
        _tuned_cycles(model, SpaceRules(depths=depths, cuts=cuts), resident, cache)
        for depths, resident in (((1,), "off"), ((1, 2), "off"), ((1, 2), "auto"))
    ]
    return Row(model, cuts, fixed, *tuned)


def _tuned_cycles(model: str, rules: SpaceRules, resident: str, cache: ResultCache | None) -> int:
    with open_workers(1, None) as workers:
        outcome = tune_model(model, workers, Settings(resident=resident), rules=rules, cache=cache)
    if outcome.interrupted:
        raise KeyboardInterrupt
    return int(outcome.summary["cycles"])


def cycles_table(rows: Sequence[Row]) -> str:
    """Cycles of every way."""
    fixed = ("model", "cuts", "mm, single", "mm, double", "2x4, single", "2x4, double")
    titles = (*fixed, "tuned, single", "tuned, off", "**tuned**")
    lines = []
    for row in rows:
        cycles = [row.fixed[kernel, way] for kernel in FIXED for way in ("single", "double")]
        cycles += [row.tuned_single_cycles, row.tuned_off_cycles, row.tuned_cycles]
        lines.append((row.model, row.cuts, *(f"{number:,}" for number in cycles)))
    return table(titles, lines, numbers=True)


def gains_table(rows: Sequence[Row]) -> str:
    """What tuning and double buffering bring, and which models are missing."""
    lines = []
    for row in rows:
        over = [f"{row.fixed[kernel, 'double'] / row.tuned_cycles:.2f}" for kernel in FIXED]
        pairs = [(row.fixed[kernel, "single"], row.fixed[kernel, "double"]) for kernel in FIXED]
        pairs.append((row.tuned_single_cycles, row.tuned_off_cycles))
        saved = [f"{100 * (1 - double / single):.1f} %" for single, double in pairs]
        lines.append((row.model, *over, *saved))
    titles = ("model", "tuned over mm", "tuned over 2x4", "double saves with mm", "with 2x4", "tuned")
    text = table(titles, lines, numbers=True)
    slower = [row.model for row in rows if row.tuned_cycles > min(row.fixed.values())]
    if slower:
        text += (
            f"\n**Tuned is slower than a fixed kernel: {', '.join(slower)}.** A fixed kernel keeps the tiles "
            "the scheduler picks unasked, the tuner saw only the *cuts* named; whether more cuts close "
            "the gap was not tried.\n"
        )
    left = sorted(set(list_names("models")) - {row.model for row in rows})
    return text + (f"\nNot run: {', '.join(left)}.\n" if left else "")


def page_of(rows: Sequence[Row]) -> Page:
    """The page with what has been measured."""
    return Page("docs/tuned.md", {"cycles": partial(cycles_table, rows), "gains": partial(gains_table, rows)})


def draw(rows: Sequence[Row]) -> None:
    """The bar chart: cycles relative to `mm` with double buffering, one group of bars per model."""
    import matplotlib  # Takes a second; the table does not need it.

    matplotlib.use("Agg")
    from matplotlib import pyplot

    bars: list[tuple[str, str, Callable[[Row], int]]] = [
        ("mm, single buffering", "#bbbbbb", lambda row: row.fixed["mm", "single"]),
        ("mm, double", "#777777", lambda row: row.fixed["mm", "double"]),
        ("2x4, single", "#a6cee3", lambda row: row.fixed["mm_unroll_2x4", "single"]),
        ("2x4, double", "#1f78b4", lambda row: row.fixed["mm_unroll_2x4", "double"]),
        ("tuned, single, nothing resident", "#fdbf6f", lambda row: row.tuned_single_cycles),
        ("tuned, nothing resident", "#ff7f00", lambda row: row.tuned_off_cycles),
        ("tuned", "#33a02c", lambda row: row.tuned_cycles),
    ]
    figure, axes = pyplot.subplots(figsize=(1.6 * len(rows) + 3, 4.8), layout="constrained")
    width = 0.8 / len(bars)
    for number, (label, colour, cycles) in enumerate(bars):
        places = [place + (number - (len(bars) - 1) / 2) * width for place in range(len(rows))]
        heights = [cycles(row) / row.fixed["mm", "double"] for row in rows]
        axes.bar(places, heights, width, label=label, color=colour)
    axes.set_xticks(range(len(rows)), [row.model for row in rows])
    axes.set_ylabel("cycles relative to mm, double buffering")
    axes.set_title("One training iteration on pulp-open, 8 cores")
    axes.grid(axis="y", alpha=0.3)
    axes.set_axisbelow(True)
    figure.legend(loc="outside lower center", ncols=4, frameon=False)
    figure.savefig(PICTURE, dpi=100, metadata={"Software": None})
    pyplot.close(figure)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the models one after another; write page and picture after each."""
    parser = argparse.ArgumentParser(description="Write docs/tuned.md and docs/tuned.png.")
    parser.add_argument("--cache", help="cache of the tuner; the user's if not given")
    parser.add_argument("--models", default=",".join(CUTS), help="comma-separated, of those with cuts here")
    options = parser.parse_args(arguments)
    names = options.models.split(",")
    unknown = sorted(set(names) - set(CUTS))
    if unknown:
        parser.error(f"no cuts are set for {', '.join(unknown)}; known: {', '.join(CUTS)}")
    rows: list[Row] = []
    with open_cache(options.cache, False) as cache:
        for name in names:
            rows.append(measure(name, CUTS[name], cache))
            print(dataclasses.asdict(rows[-1]), flush=True)
            page = page_of(rows)
            page.write(page.blocks)
            draw(rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
