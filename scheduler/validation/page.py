"""Writes `docs/validation.md` and its picture: ``python -m scheduler.validation.page``.

Every figure on the page is computed from the measured files when it is written; only the sentences are ours.
"""

from __future__ import annotations

import argparse
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scheduler.validation.runner import Validation, validate
from scheduler.validation.statistics import Result, figures, grouped

FILES = {
    "mm": "mm.csv.gz",
    "loop": "loops.csv.gz",
    "layer": "layer.csv.gz",
    "tiled": "tiled.csv.gz",
    "tiled-layers": "tiled-layers.csv.gz",
    "dma": "dma.csv.gz",
}
"""The measured file of each KIND."""

ANCHORS = "tutorial-anchors.csv.gz"
"""Published cycles, read as KIND layer."""

WORST_ROWS = 5


@dataclass(frozen=True, slots=True)
class Target:
    """A set of rows and how far off it may be, in percent; None where nothing is asked."""

    title: str
    file: str
    holds: Callable[[Result], bool]
    mape_percent: float
    p95_percent: float | None = None
    bias_percent: float | None = None
    top1_regret_percent: float | None = None


def _cores(result: Result) -> int:
    return result.case.number("cores")


def _clean(result: Result) -> bool:
    """Private FPUs and no bank conflicts: cores cannot be in each other's way."""
    return result.case.text("fpus") == "private" and not result.case.number("bank_conflicts")


def _all(result: Result) -> bool:
    return True


def _undisturbed(result: Result) -> bool:
    return _cores(result) == 8 and _clean(result)


def _disturbed(result: Result) -> bool:
    return _cores(result) > 1 and not _clean(result)


def _computes(result: Result) -> bool:
    """Not one of the rows the address code of a tile was fitted on."""
    return not result.case.text("buffering").endswith("no_compute")


TARGETS = (
    Target("mm, 1 core", "mm", lambda row: _cores(row) == 1, 1.5, 4, None, 0.5),
    Target("mm, 8 cores, private FPUs, no conflicts", "mm", _undisturbed, 2.5, 6, None, 0.5),
    Target("mm, 2 to 8 cores, shared FPUs or conflicts", "mm", _disturbed, 5, 14, 2, 2),
    Target("dma", "dma", _all, 3, 8),
    Target("loops", "loop", _all, 5, 12),
    Target("layer steps", "layer", _all, 6, 15),
    Target("tiled", "tiled", _all, 5, 10),
    Target("tiled-layers", "tiled-layers", _all, 6, 15),
    Target("tiled-layers, only rows that compute", "tiled-layers", _computes, 6, 15),
    Target("tutorial, published", ANCHORS, _all, 8),
)


@dataclass(frozen=True, slots=True)
class Gap:
    """Something the model leaves out, and the rows in which it shows."""

    title: str
    file: str
    holds: Callable[[Result], bool]
    text: str


GAPS = (
    Gap(
        "Phase of the cores",
        "mm",
        lambda row: _cores(row) == 8 and not _clean(row),
        "With shared FPUs or bank conflicts the time of a kernel depends on the cycle in which each core "
        "happens to start. The model knows one start, that of the fork.",
    ),
    Gap(
        "Several cores that program the DMA",
        "dma",
        lambda row: row.case.text("test") == "multi_core_1_each",
        "Only the master core programs transfers in the model; what cores lose to each other at the control "
        "port of the DMA is left out.",
    ),
    Gap(
        "Address arithmetic around a tile",
        "tiled-layers",
        lambda row: row.case.text("buffering").endswith("no_compute"),
        "The code that works out the boxes of a tile is one constant per kind of loop, whatever was at "
        "hand already. These rows move data and compute nothing, so it shows most here.",
    ),
    Gap(
        "Glue of a layer",
        "layer",
        lambda row: row.measured < 2000,
        "Argument structs and calls around the forks of a layer step are not modelled; they show in steps "
        "shorter than 2,000 cycles.",
    ),
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the measured files, predict them all, write the page and the picture."""
    parser = argparse.ArgumentParser(description="Write docs/validation.md from the measured files.")
    parser.add_argument("--measured", type=Path, default=Path("measured"), help="folder of the CSV files")
    parser.add_argument("--out", type=Path, default=Path("docs"), help="folder of the page")
    parser.add_argument("--workers", type=int, default=None)
    options = parser.parse_args(arguments)
    done = {
        kind: validate(kind, options.measured / name, workers=options.workers, keep_going=True)
        for kind, name in FILES.items()
    }
    done[ANCHORS] = validate("layer", options.measured / ANCHORS, workers=options.workers, keep_going=True)
    options.out.mkdir(parents=True, exist_ok=True)
    draw(done, options.out / "validation.png")
    (options.out / "validation.md").write_text(page(done), encoding="utf-8")


def page(done: dict[str, Validation]) -> str:
    """The text of the page. `done` maps the KINDs of `FILES`, and `ANCHORS`, to their validations."""
    parts = [
        "# Predicted against measured cycles",
        "",
        "Written by `python -m scheduler.validation.page`; do not edit. The measured files are in "
        "`measured/`, with a note on how they were taken. Errors are signed, (predicted - measured) / "
        "measured, on cycles; *noise* is how far two measurements of the same case lie apart.",
        "",
        "![predicted against measured](validation.png)",
        "",
        "## Targets",
        "",
        *_targets(done),
        "",
        "Some rows are no test, because constants were read off them: most of `dma` (push, wait and polling "
        "costs) and the rows of `tiled-layers` that do not compute (address code of a tile).",
        "",
        "## Every set",
        "",
    ]
    for name, validation in done.items():
        parts += _set(name, validation)
    parts += ["## What is not modelled, and what it costs", "", *_gaps(done), *_refused(done)]
    return "\n".join(parts) + "\n"


ASKED = {
    "mape_percent": "mean",
    "p95_percent": "p95",
    "bias_percent": "bias",
    "top1_regret_percent": "regret",
}


def _targets(done: dict[str, Validation]) -> list[str]:
    heads = [head for name in ASKED.values() for head in (f"{name} %", "asked")]
    lines = _head(("set", "rows", *heads, "reached"))
    for target in TARGETS:
        results = [row for row in done[target.file].results if target.holds(row)]
        if not results:
            continue
        numbers = figures(results, done[target.file].kind.name)
        cells, reached = [target.title, str(len(results))], True
        for key in ASKED:
            limit: float | None = getattr(target, key)
            value: float | None = numbers.get(key)
            cells += [_number(value), "" if limit is None else f"{limit:g}"]
            reached &= limit is None or value is None or abs(value) <= limit
        lines.append(_row((*cells, "yes" if reached else "**no**")))
    return lines


def _set(name: str, validation: Validation) -> list[str]:
    kind = validation.kind
    title = name if name in FILES else name.removesuffix(".csv.gz")
    lines = [f"### {title}", ""]
    if not validation.results:
        return [*lines, f"None of its {validation.asked} rows has a model yet.", ""]
    if validation.refused:
        lines += [f"{len(validation.results)} of {validation.asked} rows; the others have no model yet.", ""]
    shown = ["cases", "mape_percent", "median_percent", "p95_percent", "max_percent", "bias_percent"]
    shown += ["noise_percent", "instructions_mape_percent", "top1_regret_percent"]
    total = figures(validation.results, kind.name)
    shown = [key for key in shown if total.get(key) is not None]
    lines += _head((*kind.groups, *(key.removesuffix("_percent").replace("_", " ") for key in shown)))
    groups = grouped(validation.results, kind.groups)
    for key in sorted(groups, key=_natural):
        numbers = figures(groups[key], kind.name)
        lines.append(_row((*key, *(_number(numbers[item]) for item in shown))))
    lines.append(_row(("all", *[""] * (len(kind.groups) - 1), *(_number(total[item]) for item in shown))))
    worst = sorted(validation.results, key=lambda row: -abs(row.error_percent))[:WORST_ROWS]
    named = ", ".join(f"`{row.case.id}` ({row.error_percent:+.1f} %)" for row in worst)
    return [*lines, "", f"Farthest off: {named}.", ""]


def _gaps(done: dict[str, Validation]) -> list[str]:
    lines = []
    for gap in GAPS:
        results = [row for row in done[gap.file].results if gap.holds(row)]
        if not results:
            continue
        numbers = figures(results, done[gap.file].kind.name)
        cost = (
            f"{len(results)} rows of {gap.file}: mean {_number(numbers['mape_percent'])} %, "
            f"95th percentile {_number(numbers['p95_percent'])} %, bias {_number(numbers['bias_percent'])} %"
        )
        if numbers["noise_percent"] is not None:
            cost += f"; two measurements differ by {_number(numbers['noise_percent'])} %"
        lines += [f"- **{gap.title}.** {gap.text} {cost}."]
    return lines


def _refused(done: dict[str, Validation]) -> list[str]:
    lines = []
    for name, validation in done.items():
        reasons = Counter(re.sub(r"^row '[^']*': ", "", error.message) for error in validation.refused)
        for reason, count in sorted(reasons.items()):
            lines.append(_row((name, str(count), reason)))
    return ["", "Rows without a model:", "", *_head(("set", "rows", "why")), *lines] if lines else []


def _natural(key: Sequence[str]) -> tuple[tuple[int, str], ...]:
    return tuple((int(text), "") if text.isdigit() else (-1, text) for text in key)


def _number(value: Any) -> str:
    return "" if value is None else str(value) if isinstance(value, int) else f"{value:.2f}"


def _head(names: Sequence[str]) -> list[str]:
    return [_row(names), _row(["---"] * len(names))]


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def draw(done: dict[str, Validation], path: Path) -> None:
    """One panel per set: predicted over measured cycles, the diagonal, and 10 % to either side."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    shown = {name: validation for name, validation in done.items() if validation.results}
    columns = 3
    rows = max(1, -(-len(shown) // columns))
    figure, axes = pyplot.subplots(rows, columns, figsize=(11, 3.6 * rows), squeeze=False)
    for panel in axes.flat[len(shown) :]:
        panel.axis("off")
    for panel, (name, validation) in zip(axes.flat, shown.items(), strict=False):
        for conflicts, colour in (("0", "#2a6f97"), ("1", "#c8553d")):
            part = [row for row in validation.results if row.case.cells["bank_conflicts"] == conflicts]
            panel.scatter(
                [row.measured for row in part],
                [row.prediction.cycles for row in part],
                s=5,
                linewidths=0,
                alpha=0.5,
                color=colour,
                label="bank conflicts" if conflicts == "1" else "no bank conflicts",
            )
        low = min(row.measured for row in validation.results) / 1.5
        high = max(row.measured for row in validation.results) * 1.5
        panel.plot((low, high), (low, high), color="black", linewidth=0.7)
        for factor in (0.9, 1.1):
            panel.plot((low, high), (factor * low, factor * high), color="grey", linewidth=0.5, linestyle=":")
        panel.set(xscale="log", yscale="log", xlim=(low, high), ylim=(low, high))
        panel.set_title(f"{name.removesuffix('.csv.gz')} ({len(validation.results):,} rows)", fontsize=10)
        panel.set_xlabel("measured cycles", fontsize=8)
        panel.set_ylabel("predicted cycles", fontsize=8)
        panel.tick_params(labelsize=7)
        panel.set_aspect("equal")
    if shown:
        axes.flat[0].legend(fontsize=7, loc="upper left", frameon=False)
    figure.tight_layout()
    figure.savefig(path, dpi=110, metadata={"Software": None})
    pyplot.close(figure)


if __name__ == "__main__":
    main()
