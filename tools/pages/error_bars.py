# SPDX-License-Identifier: Apache-2.0
"""docs/error-bars.md: classes of rows, how often bars hold of rows held out, the bars of the models."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from configs.library import list_names
from configs.parameters import PROFILES
from pulptrain.given.settings import Settings
from pulptrain.running.session import run_model
from scheduler.validation.error_bars import shipped_table
from tools.pages.page import Page, golden, table
from tools.validation.error_classes import ITERATIONS_ON_RTL, Held, held_out_today
from tools.validation.error_rows import STEPS
from traces.report import error_line

AGAIN = ("layer steps, by kernels and other layers",)
"""Groups of rows that another group has, too."""


def held() -> str:
    """How many rows of whole programs lie within bars they had no part in."""
    return _counts("programs", held_out_today())


def kinds() -> str:
    """The same by what the programs are."""
    groups: dict[str, list[Held]] = defaultdict(list)
    for title, rows in held_out_today().items():
        for item in rows:
            row = item.row
            words = row.what.split()
            what = words[0] if row.set == "layer" else f"{row.set}, {words[0]} {words[-1]}"
            if title not in AGAIN and row.set not in STEPS:
                groups[f"{what}, {'1 core' if row.team == '1 core' else 'several cores'}"].append(item)
    return _counts("what", dict(sorted(groups.items())))


def _counts(title: str, groups: Mapping[str, Sequence[Held]]) -> str:
    rows = []
    for name, items in groups.items():
        bars = [item.bar for item in items if item.bar is not None]
        errors = np.abs([item.row.error for item in items])
        inside = sum(item.within for item in items)
        rows.append(
            (
                name,
                f"{len(items):,}",
                f"{inside:,}",
                f"{100 * inside / len(items):.1f}",
                f"{100 * np.median([bar.within for bar in bars]):.1f}",
                f"{100 * np.median([bar.typical for bar in bars]):.1f}",
                f"{100 * errors.mean():.1f}",
                f"{100 * np.percentile(errors, 95):.1f}",
            )
        )
    heads = (title, "rows", "within", "%", "median bar, %", "median typical, %", "mean error, %", "95th, %")
    return table(heads, rows, numbers=True)


def iterations() -> str:
    """Iterations of exported programs on the RTL, predicted and measured."""
    rows = []
    for item in held_out_today()[ITERATIONS_ON_RTL]:
        row, bar = item.row, item.bar
        model, cores, _ = row.row.rpartition(":")[0].rsplit("-", 2)
        cycles = f"{row.predicted:,}", f"{row.measured:,}"
        error = f"{100 * (row.predicted - row.measured) / row.measured:+.1f}"
        rows.append((*model.rsplit("-", 1), cores, *cycles, error, f"{100 * bar.within:.0f}" if bar else ""))
    heads = ("model", "buffering", "cores", "predicted", "measured", "error, %", "bar by other models, %")
    return table(heads, rows)


def in_short() -> str:
    """The same in a sentence."""
    longer = sorted(item.row.error for item in held_out_today()[ITERATIONS_ON_RTL])
    return (
        f"{len(longer)} whole iterations were exported and executed on that RTL: their cycles lie "
        f"{100 * longer[0]:+.0f} to\n{100 * longer[-1]:+.0f} % from the predicted ones "
        "([table](docs/error-bars.md#whole-iterations-on-the-rtl))."
    )


def classes() -> str:
    """The classes of the table."""
    rows = [
        (*name.split(" / "), f"{found.count:,}", f"{100 * found.bias:+.2f}", f"{100 * found.spread:.2f}")
        for name, found in shipped_table().classes.items()
    ]
    heads = ("timing", "family", "codegen", "team", "cycles of a call", "rows", "bias, %", "spread, %")
    return table(heads, rows)


def models() -> str:
    """The bar of an iteration of every model of the zoo."""
    rows = []
    for name in list_names("models"):
        for timing in PROFILES:
            summary = run_model(name, Settings(timing=timing), functional=False).summary
            rows.append((name, timing, error_line(summary["error"])))
    return table(("model", "timing", "error"), rows)


PAGE = Page(
    "docs/error-bars.md",
    {"held": held, "kinds": kinds, "iterations": iterations, "classes": classes, "models": models},
    {"models": lambda: (golden(), shipped_table().digest, classes())},
)
