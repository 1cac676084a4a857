# SPDX-License-Identifier: Apache-2.0
"""docs/what-if.md: what `why --critical-path` and `what-if` print, and how good predictions are over the zoo.

    python -m tools.pages.what_if [--models NAME,NAME]

After every model its rows are put into docs/what-if.json, and the page is written of all rows there.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from statistics import median, quantiles
from textwrap import fill
from typing import Any

import pulptrain as pt
from configs.library import list_names
from tools.pages.page import ROOT, Page, golden, older_than_today, table
from traces.critical.path import path_lines

STORE = ROOT / "docs" / "what-if.json"
MODEL = "tutorial-cnn"
WIDTH = 108
OPTIONS = {"double": {}, "single": {"buffering": "single"}, "double, 1 FPU": {"fpus": "1-dynamic"}}
"""How models are run: options by name."""
WITH_ONE_FPU = ("simple-mlp", "tutorial-cnn", "digits-cnn", "tiny-transformer", "tiny-vit", "ds-cnn")
"""Models run with a single FPU as well: the four of the SoC are enough for the kernels of all."""
LEAST_SHARE = 0.02
"""Of the cycles of a run a simulated gain has to be for its prediction to count."""


def path() -> str:
    """`pulptrain why out/tutorial --critical-path --top 3`."""
    return _text(path_lines(pt.run(MODEL, functional=False).critical_path(), 3, WIDTH))


def gains() -> str:
    """`pulptrain what-if tutorial-cnn --verify`."""
    return _text(pt.what_if(MODEL, verify=True).lines(WIDTH))


def _text(lines: list[str]) -> str:
    return "\n".join(["```", *lines, "```"])


def measure(model: str, way: str) -> dict[str, Any]:
    """A row of docs/what-if.json: a run, and by what-if its cycles as predicted and as simulated."""
    options: Any = OPTIONS[way]
    found = pt.what_if(model, verify=True, **options)
    cycles = {gain.name: [gain.predicted_cycles, gain.simulated_cycles] for gain in found.gains}
    return {"model": model, "way": way, "cycles": found.cycles, "what_if": cycles}


def stored() -> list[dict[str, Any]]:
    """The rows of docs/what-if.json."""
    rows: list[dict[str, Any]] = json.loads(STORE.read_text(encoding="utf-8"))
    return rows


def store(rows: Sequence[dict[str, Any]]) -> None:
    """Put rows into docs/what-if.json in place of those of the same runs."""
    kept = {(row["model"], row["way"]): row for row in (*stored(), *rows)}
    lines = ",\n".join(json.dumps(kept[key]) for key in sorted(kept))
    STORE.write_text(f"[\n{lines}\n]\n", encoding="utf-8")


def counted() -> list[tuple[dict[str, Any], str, int, int, float]]:
    """What-ifs that gain more than `LEAST_SHARE`: run, name, gain predicted and simulated, error."""
    found = []
    for row in stored():
        for name, cycles in row["what_if"].items():
            predicted, simulated = (row["cycles"] - each for each in cycles)
            if simulated > LEAST_SHARE * row["cycles"]:
                found.append((row, name, predicted, simulated, abs(predicted - simulated) / simulated))
    return found


def score() -> str:
    """By what-if and over all: how many count, median, 90th percentile and most of the error."""
    errors: dict[str, list[float]] = {name: [] for row in stored() for name in row["what_if"]}
    for _, name, _, _, error in counted():
        errors[name].append(error)
    everything = [error for of_one in errors.values() for error in of_one]
    rows = [(name, len(of_one), *_spread(of_one)) for name, of_one in (*errors.items(), ("all", everything))]
    return table(("what if", "runs", "median error", "90 % within", "largest error"), rows, numbers=True)


def inaccurate() -> str:
    """Which predictions are less accurate, in words; figures of the what-ifs that count, as in `score`."""
    overlap = _ratios("perfect-overlap")
    double = [ratio for ratio, run in overlap if ", double" in run]
    most, where = max(overlap)
    row = next(row for row in stored() if (row["model"], row["way"]) == ("tiny-transformer", "double, 1 FPU"))
    predicted, simulated = (1 - each / row["cycles"] for each in row["what_if"]["no-bank-conflicts"])
    points = (
        f"`shared-code` is {_both_ways('shared-code')}: with the larger cache, code from L2 waits for other "
        "DMA loads than before.",
        "`perfect-overlap` is mostly too low: with double buffers the predicted gain is "
        f"{min(double):.2f} to {max(double):.2f} times the simulated one. A program without waits also has "
        "less code, which the prediction ignores. It can be too high if transfers slow down kernels "
        f"({where}: {most:.2f}).",
        f"`dma-width` is {_both_ways('dma-width')}: code waits for DMA loads, and the run does not show for "
        "which ones.",
        "`private-fpu`, and `no-bank-conflicts` with one FPU, are too high: where one shared unit delays the "
        "cores no longer, they wait more for another one. For `no-bank-conflicts` on `tiny-transformer` with "
        f"one FPU, {_percent(predicted)} is predicted and {_percent(simulated)} simulated.",
    )
    return "\n".join(
        fill(point, 120, break_on_hyphens=False, initial_indent="- ", subsequent_indent="  ")
        for point in points
    )


def _ratios(what_if: str) -> list[tuple[float, str]]:
    """Gain predicted / simulated of each run that counts, and the run in words."""
    return [
        (predicted / simulated, f"`{row['model']}`, {row['way']}")
        for row, name, predicted, simulated, _ in counted()
        if name == what_if
    ]


def _both_ways(what_if: str) -> str:
    """How far it is too high and too low at most, and in which run."""
    (low, lowest), (high, highest) = min(_ratios(what_if)), max(_ratios(what_if))
    return f"up to {_percent(high - 1)} too high ({highest}) and up to {_percent(1 - low)} too low ({lowest})"


def _spread(errors: list[float]) -> list[str]:
    if not errors:
        return ["", "", ""]
    ninetieth = quantiles(errors, n=10, method="inclusive")[-1] if len(errors) > 1 else errors[0]
    return [_percent(share) for share in (median(errors), ninetieth, max(errors))]


def verified() -> str:
    """A row for each that counts."""
    rows = [
        (
            f"{row['model']}, {row['way']}",
            name,
            f"{row['cycles']:,}",
            f"{predicted:,}",
            f"{simulated:,}",
            _percent(error),
        )
        for row, name, predicted, simulated, error in counted()
    ]
    titles = ("run", "what if", "cycles", "predicted gain", "simulated gain", "error")
    return older_than_today(older()) + table(titles, rows)


def older() -> dict[str, float]:
    """Today's cycles over those of rows, less 1, by model, where they differ; of the default run."""
    figures = golden()
    changes = {
        row["model"]: figures[row["model"]]["default_l2"]["cycles"] / row["cycles"] - 1
        for row in stored()
        if row["way"] == "double"
    }
    return {model: change for model, change in changes.items() if change}


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


PAGE = Page(
    "docs/what-if.md",
    {"path": path, "gains": gains, "score": score, "inaccurate": inaccurate, "verified": verified},
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the models one after another; write the page after each."""
    parser = argparse.ArgumentParser(description="Write docs/what-if.json and docs/what-if.md.")
    parser.add_argument("--models", default=",".join(list_names("models")), help="comma-separated")
    for model in parser.parse_args(arguments).models.split(","):
        ways = [way for way in OPTIONS if way != "double, 1 FPU" or model in WITH_ONE_FPU]
        store([measure(model, way) for way in ways])
        PAGE.write(PAGE.blocks)
    return 0


if __name__ == "__main__":
    sys.exit(main())
