# SPDX-License-Identifier: Apache-2.0
"""docs/error-bars.md: classes of rows, how often bars hold of rows held out, the bars of the models."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np

from configs.library import list_names
from configs.parameters import PROFILES
from pulptrain.inputs.settings import Settings
from pulptrain.running.session import run_model
from scheduler.validation.error_bars import SIZES, shipped_table
from tools.pages.page import Page, golden, table
from tools.validation.error_classes import ITERATIONS_ON_RTL, Held, held_out_today
from traces.report import error_line

AGAIN = ("layer steps, bars from kernels and other layers",)
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
            if title not in AGAIN and not row.set.startswith("rtl steps"):
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
    heads = (
        *(title, "rows", "within their bar", "within, %", "median bar, %", "median typical, %"),
        *("mean error, %", "95th percentile of the error, %"),
    )
    return table(heads, rows, numbers=True)


def _exported() -> list[tuple[Held, Held | None]]:
    """Iterations of exported programs on the RTL, with the code they fetch and with all in the caches."""
    held, names = held_out_today(), (ITERATIONS_ON_RTL, f"{ITERATIONS_ON_RTL}, warm")
    later, warm = ({_run_of(item): item for item in held[name]} for name in names)
    return [(item, warm.get(name)) for name, item in later.items()]


def _run_of(item: Held) -> str:
    return item.row.row.rpartition(":")[0]


def iterations() -> str:
    """Iterations of exported programs on the RTL, predicted and measured."""
    rows = []
    for item, warm in _exported():
        row, bar = item.row, item.bar
        model, cores, _ = _run_of(item).rsplit("-", 2)
        cycles = f"{warm.row.predicted:,}" if warm else "-", f"{row.predicted:,}", f"{row.measured:,}"
        error = f"{100 * (row.predicted - row.measured) / row.measured:+.1f}"
        rows.append((*model.rsplit("-", 1), cores, *cycles, error, f"{100 * bar.within:.0f}" if bar else ""))
    ways = (f"predicted, `--icache {state}`" for state in ("warm", "steady"))
    return table(("model", "buffering", "cores", *ways, "measured", "error, %", "error bar, %"), rows)


def in_short() -> str:
    """The same in a sentence."""
    pairs = _exported()
    steady, warm = (
        sorted(100 * item.row.error for item in items)
        for items in ([item for item, _ in pairs], [item for _, item in pairs if item is not None])
    )
    return (
        f"{len(pairs)} whole iterations were exported as C and executed on that RTL. "
        f"They took {steady[0]:.0f} to {steady[-1]:.0f} % more\n"
        "cycles than a run predicts by default (`--icache steady`, which includes the fetching of code), "
        f"and {warm[0]:.0f} to {warm[-1]:.0f} %\nmore than predicted with all code in the caches\n"
        "([table](docs/error-bars.md#whole-iterations-on-the-rtl))."
    )


def classes() -> str:
    """The classes of the table."""
    rows = [
        (
            *map(_cell, name.split(" / ")),
            f"{found.count:,}",
            f"{100 * found.bias:+.2f}",
            f"{100 * found.spread:.2f}",
        )
        for name, found in shipped_table().classes.items()
    ]
    heads = ("timing", "family", "codegen", "team", "cycles of a call", "rows", "bias, %", "spread, %")
    return table(heads, rows)


def _cell(word: str) -> str:
    """A word of a class as a cell: a size with both of its limits."""
    limits = {f"below {above}": f"{least:,} to {above - 1:,}" for least, above in pairwise((0, *SIZES))} | {
        f"{SIZES[-1]} and more": f"{SIZES[-1]:,} and more"
    }
    return limits.get(word, word)


@cache
def _bars() -> list[tuple[str, str, Mapping[str, Any]]]:
    """Model, timing and error bar of an iteration of every model of the zoo."""
    return [
        (name, timing, run_model(name, Settings(timing=timing), functional=False).summary["error"])
        for name in list_names("models")
        for timing in PROFILES
    ]


def models() -> str:
    """The bar of an iteration of every model of the zoo."""
    return table(
        ("model", "timing", "error"), [(name, timing, error_line(bar)) for name, timing, bar in _bars()]
    )


def span() -> str:
    """The smallest and largest bar by timing, in a sentence each."""
    sentences = []
    for timing in PROFILES:
        bars = [bar for _, of, bar in _bars() if of == timing]
        typical, within = ([bar[word] for bar in bars] for word in ("typical_percent", "within_percent"))
        sentences.append(
            f"**With `--timing {timing}` typically {min(typical):.0f} to {max(typical):.0f} %, 95 % within "
            f"{min(within):.0f} to {max(within):.0f} %.**"
        )
    return "\n".join(sentences)


PAGE = Page(
    "docs/error-bars.md",
    {
        "held": held,
        "kinds": kinds,
        "iterations": iterations,
        "classes": classes,
        "models": models,
        "span": span,
    },
    dict.fromkeys(("models", "span"), lambda: (golden(), shipped_table().digest, classes())),
)
