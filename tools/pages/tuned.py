# SPDX-License-Identifier: Apache-2.0
"""docs/tuned.md and docs/tuned.png: zoo models tuned, against the run nobody tuned and against fixed kernels.

    python -m tools.pages.tuned --cache FILE [--models NAME,NAME]

A process per core; after every model its row is put into docs/tuned.json, and the page is written of all rows
there. What is in the cache is not computed again: a run that was stopped goes on where it was. A row is of
today as long as its default is what tests/golden-metrics.json says; a test fails for one that is not, and the
next run takes it out.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from configs.library import list_names
from pulptrain.inputs.settings import Settings
from pulptrain.running.result_cache import open_cache
from pulptrain.running.session import run_model
from pulptrain.tuning.model_tuning import tune_model
from scheduler.search.cache import ResultCache
from scheduler.search.workers import open_workers
from scheduler.tuner.search_space import SpaceRules
from tools.pages.page import ROOT, Page, golden, older_than_today, table

PICTURE = ROOT / "docs" / "tuned.png"
STORE = ROOT / "docs" / "tuned.json"

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
"""`--tilings` of each model in the order they are run; a model that is not here is listed as not run."""

STEPS = ("FW", "WG", "IG")
FIXED = ("mm", "mm_unroll_2x4")
"""Kernels used for every matmul; the second is what the SAMOS paper calls 2x4."""


@dataclass(frozen=True, slots=True)
class Row:
    """Cycles of one iteration of a model; `fixed` by kernel and buffering, as in ``mm, double``."""

    model: str
    cuts: int
    default_cycles: int
    fixed: dict[str, int]
    tuned_single_cycles: int
    tuned_off_cycles: int
    tuned_cycles: int


def measure(model: str, cuts: int, cache: ResultCache | None) -> Row:
    """Run a model with each fixed kernel and buffering, and tune it. Raises those of `configs.errors`."""

    def cycles(settings: Settings) -> int:
        outcome = run_model(model, settings, functional=False, traced=False, cache=cache)
        return int(outcome.summary["cycles"])

    fixed = {
        f"{kernel}, {buffering}": cycles(
            Settings(buffering=buffering, kernels=tuple(f"{step}={kernel}" for step in STEPS))
        )
        for kernel in FIXED
        for buffering in ("single", "double")
    }
    tuned = [
        _tuned_cycles(model, SpaceRules(depths=depths, cuts=cuts), resident, cache)
        for depths, resident in (((1,), "off"), ((1, 2), "off"), ((1, 2), "auto"))
    ]
    return Row(model, cuts, cycles(Settings()), fixed, *tuned)


def stored_rows() -> list[Row]:
    """The rows of docs/tuned.json, in the order of `CUTS`."""
    rows = {item["model"]: Row(**item) for item in json.loads(STORE.read_text(encoding="utf-8"))}
    return [rows[name] for name in CUTS if name in rows]


def is_of_today(row: Row) -> bool:
    """Whether its default is what the model takes today, as tests/golden-metrics.json has it."""
    return bool(golden(row.model)[row.model]["default_l2"]["cycles"] == row.default_cycles)


def store(rows: Sequence[Row]) -> None:
    """Put rows into docs/tuned.json in place of those of the same models."""
    kept = {row.model: row for row in (*stored_rows(), *rows)}
    text = json.dumps([dataclasses.asdict(kept[name]) for name in CUTS if name in kept], indent=1)
    STORE.write_text(text + "\n", encoding="utf-8")


def _tuned_cycles(model: str, rules: SpaceRules, resident: str, cache: ResultCache | None) -> int:
    with open_workers() as workers:
        outcome = tune_model(model, workers, Settings(resident=resident), rules=rules, cache=cache)
    if outcome.interrupted:
        raise KeyboardInterrupt
    return int(outcome.summary["cycles"])


def cycles_table(rows: Sequence[Row]) -> str:
    """Cycles of every way."""
    titles = ["model", "N of --tilings", "default", "**tuned**", "tuned, no residents"]
    titles += ["tuned, single, no residents"]
    titles += ["mm, single", "mm, double", "2x4, single", "2x4, double"]
    lines = []
    for row in rows:
        cycles = [row.default_cycles, row.tuned_cycles, row.tuned_off_cycles, row.tuned_single_cycles]
        cycles += [row.fixed[f"{kernel}, {way}"] for kernel in FIXED for way in ("single", "double")]
        lines.append((row.model, row.cuts, *(f"{number:,}" for number in cycles)))
    changes = {
        row.model: golden(row.model)[row.model]["default_l2"]["cycles"] / row.default_cycles - 1
        for row in rows
        if not is_of_today(row)
    }
    return older_than_today(changes) + table(titles, lines, numbers=True)


def gains_table(rows: Sequence[Row]) -> str:
    """What tuning and double buffering bring, and which models are missing."""
    lines = []
    for row in rows:
        slow = [row.default_cycles, *(row.fixed[f"{kernel}, double"] for kernel in FIXED)]
        over = [f"{cycles / row.tuned_cycles:.2f}" for cycles in slow]
        pairs = [(row.fixed[f"{kernel}, single"], row.fixed[f"{kernel}, double"]) for kernel in FIXED]
        pairs.append((row.tuned_single_cycles, row.tuned_off_cycles))
        saved = [f"{100 * (1 - double / single):.1f} %" for single, double in pairs]
        lines.append((row.model, *over, *saved))
    titles = ["model", "**tuned over default**", "over mm", "over 2x4"]
    titles += [f"double saves, {schedule}" for schedule in ("mm", "2x4", "tuned")]
    text = table(titles, lines, numbers=True)
    slower = [row.model for row in rows if row.tuned_cycles > min(row.fixed.values())]
    if slower:
        text += (
            f"\n**Tuned is slower than a fixed kernel: {', '.join(slower)}.** The scheduler picks the "
            "tiles of a fixed kernel; the tuner compared only N of them. A larger N may close the gap.\n"
        )
    left = sorted(set(list_names("models")) - {row.model for row in rows})
    return text + (f"\nNot run: {', '.join(left)}.\n" if left else "")


def gains_range(rows: Sequence[Row]) -> str:
    """The smallest and the largest speed-up."""
    gains = [row.default_cycles / row.tuned_cycles for row in rows]
    return f"It becomes {min(gains):.2f} to {max(gains):.2f} times as fast as with the default schedule.\n"


PAGE = Page(
    "docs/tuned.md",
    {
        "range": lambda: gains_range(stored_rows()),
        "cycles": lambda: cycles_table(stored_rows()),
        "gains": lambda: gains_table(stored_rows()),
    },
)


def draw(rows: Sequence[Row]) -> None:
    """The bar chart: cycles relative to the run nobody tuned, one group of bars per model."""
    import matplotlib  # Takes a second; the table does not need it.

    matplotlib.use("Agg")
    from matplotlib import pyplot

    bars: list[tuple[str, str, Callable[[Row], int]]] = [
        ("default", "#000000", lambda row: row.default_cycles),
        ("mm, single buffering", "#bbbbbb", lambda row: row.fixed["mm, single"]),
        ("mm, double", "#777777", lambda row: row.fixed["mm, double"]),
        ("2x4, single", "#a6cee3", lambda row: row.fixed["mm_unroll_2x4, single"]),
        ("2x4, double", "#1f78b4", lambda row: row.fixed["mm_unroll_2x4, double"]),
        ("tuned, single, no residents", "#fdbf6f", lambda row: row.tuned_single_cycles),
        ("tuned, no residents", "#ff7f00", lambda row: row.tuned_off_cycles),
        ("tuned", "#33a02c", lambda row: row.tuned_cycles),
    ]
    figure, axes = pyplot.subplots(figsize=(1.6 * len(rows) + 3, 4.8), layout="constrained")
    width = 0.8 / len(bars)
    for number, (label, colour, cycles) in enumerate(bars):
        places = [place + (number - (len(bars) - 1) / 2) * width for place in range(len(rows))]
        heights = [cycles(row) / row.default_cycles for row in rows]
        axes.bar(places, heights, width, label=label, color=colour)
    axes.set_xticks(range(len(rows)), [row.model for row in rows])
    axes.set_ylabel("cycles relative to the default")
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
    with open_cache(options.cache, False) as cache:
        for name in names:
            store([measure(name, CUTS[name], cache)])
            PAGE.write(PAGE.blocks)
            draw(stored_rows())
    return 0


if __name__ == "__main__":
    sys.exit(main())
