# SPDX-License-Identifier: Apache-2.0
"""Writes `docs/validation.md` and its pictures: ``python -m tools.validation.page``.

Every figure on the page is computed from the measured files when it is written; only the sentences are ours.
"""

from __future__ import annotations

import argparse
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from configs.files import check_folder, write_text
from pulptrain.show.validation_report import in_number_order
from scheduler.validation.rows.statistics import (
    Result,
    farthest_off,
    figures,
    grouped,
    instruction_errors_percent,
    noise_percent,
    timed,
    top1_regret_percent,
)
from scheduler.validation.runner import Validation, validate
from tools.validation import as_published, micro_rows, signs
from tools.validation.causes import worst_on_rtl
from tools.validation.peak import peaks
from tools.validation.pictures import draw
from tools.validation.sets import FITTED, GAPS, GOALS, LEGENDS, READ_OFF, SETS, MeasuredSet

WORST_ROWS = 5
WORST_ON_RTL = 10
PEAK_PERCENT = 5
"""How far off the best MAC per cycle of a configuration may be, all codegens together."""
FORK_INSTRUCTIONS = (3, 4)
"""Instructions of a measured fork: these once, these per core. The rows of asm-xpulp give it exactly."""

TITLE = "# Validation: predicted against measured cycles"

QUESTION = """How far are predicted cycles from measured ones? This page shows it for every kind of kernel,
layer, transfer and program that was measured. Read the first table; the others are detailed evidence. What to
expect for your own run: [error bars](error-bars.md).

A *set* is a file of measurements (*rows*) of one kind: matmuls (`mm`), other loops, layer steps, transfers
(`dma`), double buffered tile loops (`tiled`, `tiled-layers`), a kernel during transfers (`overlap`), cores
and DMA on the same banks (`dma-contention`), instruction fetches (`icache`, `refill`), single operations
(`micro`), published layers (`tutorial-anchors`), ops of whole exported programs (`steps`, `sequence`). The
names of sets that were measured on the RTL of a whole cluster begin with RTL. The others were measured on
the instruction-set simulator GVSoC. A *goal* is the largest error we accept for a set or a part of it."""

READING = """Table columns:

| word | meaning |
| --- | --- |
| error | (predicted - measured) / measured, in cycles |
| mean, p95, max | mean, 95th percentile and largest absolute error |
| bias | mean of the signed error |
| noise | mean difference of two measurements of the same program; \
an error below it does not show that the model is that exact |
| regret | cycles lost (in %) by the kernel predicted fastest, compared with the one measured fastest |
| at most | the goal: the largest mean, p95, absolute bias or regret that we accept |
| sets parameters | rows that [set parameters](#which-rows-set-parameters), and which ones; \
the others only test the model |
| not predicted | rows that the model cannot predict; they are not in the figures |
| FPUs | `private`: one per core; `4-static`: 4 FPUs, each shared by fixed cores; \
`4-dynamic`: 4 FPUs, each free for any core |
| build | the measured RTL: private FPUs with a latency of 1 or 2 cycles \
(`private-lat1`, `private-lat2`), or 4 shared FPUs (`shared4`) |

Rows are named as in their files: kernel, sizes (NxKxM for a matmul), then `t1` (B stored transposed,
else `t0`), `T4` (4 tiles), `db0` or `db1` (single or double buffers), `c8` (8 cores) and the machine: a
build of the RTL, or on GVSoC `A` or `B` (shared FPUs without or with bank conflicts), `C` or `D`
(private FPUs, likewise).

The files are in `measured/`; its README describes how each was measured. For mm, loop, layer, tiled and
tiled-layers, the predictions come from the same programs that `run` and `primitive` simulate. `pulptrain
validate KIND FILE --keep-going` prints these tables; `make validation` writes this page. Pictures show
predicted over measured cycles, the error, and the distribution of its absolute value.
"""


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the measured files, predict them all, write the page and the pictures."""
    parser = argparse.ArgumentParser(description="Write docs/validation.md from the measured files.")
    parser.add_argument("--measured", type=Path, default=Path("measured"), help="folder of the CSV files")
    parser.add_argument("--out", type=Path, default=Path("docs"), help="folder of the page")
    parser.add_argument("--workers", type=int, default=None)
    options = parser.parse_args(arguments)
    done = {
        item.name: validate(
            item.kind,
            options.measured / item.file,
            workers=options.workers,
            selections=item.selections,
            keep_going=True,
        )
        for item in SETS.values()
    }
    check_folder(str(options.out), "--out")
    for name, validation in done.items():
        if timed(validation.results):
            noise = noise_percent(validation.results, validation.kind.name)
            draw(validation.results, name, options.out / SETS[name].picture, noise)
    write_text(options.out / "validation.md", page(done))


def page(done: Mapping[str, Validation]) -> str:
    """The text of the page. `done` maps the names of `SETS` to their validations."""
    goals = _targets(done)
    unmet = [line.split(" | ")[0].removeprefix("| ") for line in goals if line.endswith("| **no** |")]
    met = sum(line.endswith("| yes |") for line in goals)
    listed = "; ".join(unmet) or "none"
    verdict = (
        f"**{met} of {met + len(unmet)} sets or parts of sets meet all their goals.** These do not: {listed}."
    )
    parts = [TITLE, "", QUESTION, "", verdict, "", READING, "## Goals and results", "", *goals, ""]
    parts += _worst_on_rtl(done)
    matmuls = done["mm"].results
    if matmuls:
        parts += ["## Instructions of the matmuls", "", *_instructions(matmuls), ""]
        parts += ["## Best MAC per cycle on 8 cores", "", *_peaks(matmuls), ""]
    if "layer" in done and done["layer"].results:
        parts += [
            "## Nine layer steps, as published and by default",
            "",
            *as_published.section(done["layer"].results),
            "",
        ]
    if "rtl steps, later" in done:
        parts += signs.section(done["rtl steps, later"].results)
    parts += ["## Every set", ""]
    for name, validation in done.items():
        parts += _set(SETS[name], validation)
        if validation.kind.name == "micro":
            parts += [*_per_operation(validation.results), ""]
    parts += ["## Which rows set parameters", "", *_fitted(), ""]
    parts += ["## Effects that are not modelled", "", *_gaps(done), *_refused(done)]
    parts += [
        "",
        "Next: [error bars](error-bars.md) of your own run; [calibrate](calibrate.md) with your own "
        "measurements.",
    ]
    return "\n".join(parts) + "\n"


ASKED = {
    "mape_percent": "mean",
    "p95_percent": "p95",
    "bias_percent": "bias",
    "top1_regret_percent": "regret",
}


def _targets(done: Mapping[str, Validation]) -> list[str]:
    heads = [head for name in ASKED.values() for head in (f"{name} %", "at most")]
    lines = _head(("set", "rows", "sets parameters", "not predicted", *heads, "noise %", "met"))
    for target in GOALS:
        results = [row for row in done[target.set].results if target.holds(row.case)]
        refused = sum(row.case is None or target.holds(row.case) for row in done[target.set].refused)
        if not results and not refused:
            continue
        numbers = figures(results, done[target.set].kind.name)
        read_off = "all" if "fitted" in target.title else READ_OFF.get(target.set, "")
        title = f"[{target.title}](#{_anchor(target.set)})"
        cells = [title, f"{len(results):,}", read_off, f"{refused:,}" if refused else ""]
        reached = bool(results)
        for key in ASKED:
            limit: float | None = getattr(target, key)
            value: float | None = numbers.get(key)
            shown = limit is not None or (
                key != "top1_regret_percent" and (target.mape_percent is not None or not target.is_asked)
            )
            cells += [_number(value) if shown else "", "" if limit is None else f"{limit:g}"]
            reached &= limit is None or value is None or abs(value) <= limit
        cells.append(_number(numbers["noise_percent"]))
        met = "yes" if reached else "**no**"
        lines.append(_row((*cells, met if target.is_asked else "no goal")))
    return lines


def _anchor(name: str) -> str:
    """Where the heading of a set is."""
    return name.replace(",", "").replace(" ", "-")


def _worst_on_rtl(done: Mapping[str, Validation]) -> list[str]:
    """The rows of RTL farthest off, whatever their set, and why."""
    worst = worst_on_rtl({name: validation.results for name, validation in done.items()}, WORST_ON_RTL)
    if not worst:
        return []
    lines = [
        f"## The {len(worst)} rows of the RTL farthest off",
        "",
        "Which predictions are worst, and why? This table leaves out steps, sequence, refill and micro; "
        "their worst rows are in the sections of these sets.",
        "",
        *_head(("set", "row", "measured", "predicted", "error %", "why")),
    ]
    for name, row, why in worst:
        numbers = f"{row.measured:,}", f"{row.prediction.cycles:,}", f"{row.error_percent:+.1f}"
        lines.append(_row((name, f"`{row.case.id}`", *numbers, why)))
    return [*lines, ""]


def _instructions(results: Sequence[Result]) -> list[str]:
    """Per codegen: error of the counts; the prediction has no fork, the measured count has."""
    once, per_core = FORK_INSTRUCTIONS
    lines = [
        "Does the model execute as many instructions as the hardware? The table compares sums over all "
        f"cores. The measured count includes the fork ({once} + {per_core} instructions per core), the "
        "prediction does not. The goal for asm-xpulp, whose code is known exactly, is a difference of "
        "exactly the fork. The goal for the others is a mean error of 1 % and a 95th percentile of 3 %.",
        "",
        *_head(("codegen", "rows", "mean %", "p95 %", "off by exactly the fork")),
    ]
    for (codegen,), rows in sorted(grouped(results, ("codegen",)).items()):
        errors = instruction_errors_percent(rows)
        exact = sum(
            row.case.optional("instructions") == (row.prediction.instructions or 0) + once + per_core * cores
            for row in rows
            for cores in [row.case.number("cores")]
        )
        p95 = float(np.percentile(errors, 95))
        mean = sum(errors) / len(errors)
        lines.append(_row((codegen, f"{len(errors):,}", _number(mean), _number(p95), f"{exact:,}")))
    return lines


def _peaks(results: Sequence[Result]) -> list[str]:
    lines = [
        "How fast is the fastest matmul? *Measured* is the fastest measured row (mean of two measurements), "
        "*predicted* the fastest prediction, which may be another row. The goal is an error of at most "
        f"{PEAK_PERCENT} % for every configuration. [Compared with PULP-TrainLib](paper.md) has the "
        "published 4.39 MAC/cycle.",
        "",
        *_head(
            (
                "dtype",
                "FPUs",
                "bank conflicts",
                "codegen",
                "measured",
                "predicted",
                "error %",
                "met",
                "measured best",
            )
        ),
    ]
    for peak in peaks(results):
        dtype, fpus, conflicts = peak.configuration
        overall = peak.codegen == "all"
        codegen = f"**{peak.codegen}**" if overall else peak.codegen
        reached = ("yes" if abs(peak.error_percent) <= PEAK_PERCENT else "**no**") if overall else ""
        lines.append(
            _row(
                (
                    dtype,
                    fpus,
                    "yes" if conflicts == "1" else "no",
                    codegen,
                    _number(peak.measured),
                    _number(peak.predicted),
                    f"{peak.error_percent:+.1f}",
                    reached,
                    f"`{peak.row}`",
                )
            )
        )
    return lines


SHOWN = (
    "cases",
    "mape_percent",
    "median_percent",
    "p95_percent",
    "max_percent",
    "bias_percent",
    "noise_percent",
)


def _set(item: MeasuredSet, validation: Validation) -> list[str]:
    lines = [f"### {item.name}", ""]
    results = validation.results
    if not results:
        return [*lines, f"None of its {validation.asked} rows has a model.", ""]
    if validation.refused:
        lines += [
            f"{len(results):,} of {validation.asked:,} rows; the model cannot predict the others "
            "([reasons](#rows-without-a-model)).",
            "",
        ]
    untimed = len(results) - len(timed(results))
    if untimed:
        lines += [
            f"{untimed} rows are a baseline, which is subtracted from the others; they have no error.",
            "",
        ]
    if item.name in LEGENDS:
        lines += [LEGENDS[item.name], ""]
    lines += [f"![{item.name}, predicted against measured]({item.picture})", ""]
    kind = validation.kind.name
    total = figures(results, kind)
    shown = [key for key in SHOWN if total.get(key) is not None]
    regret = kind == "mm"
    heads = [key.removesuffix("_percent").replace("mape", "mean").replace("cases", "rows") for key in shown]
    lines += [f"<details><summary>Tables of {item.name}</summary>", ""]
    for columns in (item.groups, *item.also):
        lines += _head((*columns, *heads, *(["regret"] if regret else [])))
        groups = grouped(results, columns)
        for key in sorted(groups, key=in_number_order):
            lines.append(_row((*key, *_cells(groups[key], kind, shown, regret))))
        lines += [_row(("all", *[""] * (len(columns) - 1), *_cells(results, kind, shown, regret))), ""]
    lines.append("</details>")
    worst = farthest_off(results, WORST_ROWS)
    named = ", ".join(
        f"`{row.case.id}` ({row.measured:,} measured, {row.prediction.cycles:,} predicted, "
        f"{row.error_percent:+.1f} %)"
        for row in worst
    )
    return [*lines, "", f"Farthest off: {named}.", ""]


def _cells(results: Sequence[Result], kind: str, shown: Sequence[str], regret: bool) -> list[str]:
    numbers = figures(results, kind)
    return [_number(numbers[key]) for key in shown] + (
        [_number(top1_regret_percent(results))] if regret else []
    )


def _per_operation(results: Sequence[Result]) -> list[str]:
    """What percent hide of rows of a cycle or two."""
    results = timed(results)
    lines = [
        "Errors in cycles per operation. A row is *near* if its error is within "
        f"{100 * micro_rows.RELATIVE_TOLERANCE:g} % or {micro_rows.TOLERANCE_CYCLES} cycles, whichever is "
        "larger.",
        "",
        *_head(("group", "rows", "operations", "mean error, cycles", "largest", "near")),
    ]
    for (group,), part in grouped(results, ("group",)).items():
        errors = [abs(micro_rows.error_cycles(row)) for row in part]
        names = str(len({row.case.text("name") for row in part}))
        near = f"{sum(map(micro_rows.near, part))} of {len(part)}"
        mean = _number(sum(errors) / len(errors))
        lines.append(_row((group, str(len(part)), names, mean, _number(max(errors)), near)))
    far = Counter(
        (row.case.text("name"), micro_rows.cause(row.case)) for row in results if not micro_rows.near(row)
    )
    if far:
        lines += ["", "Rows that are not near, and why:", ""]
        lines += [f"- `{name}`, {count} rows: {cause}." for (name, cause), count in sorted(far.items())]
    return lines


def _fitted() -> list[str]:
    lines = [
        "Some parameters of the model were taken from measurements; these rows do not test the model. No "
        "parameter was fitted to a single row. [Evidence](evidence.md) lists all parameters.",
        "",
        *_head(("parameter", "from the rows", "stored in", "tested by")),
    ]
    return [*lines, *(_row(item) for item in FITTED)]


def _gaps(done: Mapping[str, Validation]) -> list[str]:
    lines = ["The errors are those of the rows in which the effect occurs.", ""]
    for gap in GAPS:
        results = [row for row in done[gap.set].results if gap.holds(row)]
        if not results:
            continue
        numbers = figures(results, done[gap.set].kind.name)
        cost = (
            f"Errors of {len(results):,} rows of {gap.set}: mean {_number(numbers['mape_percent'])} %, "
            f"95th percentile {_number(numbers['p95_percent'])} %, bias {_number(numbers['bias_percent'])} %"
        )
        if numbers["noise_percent"] is not None:
            cost += f"; two measurements differ by {_number(numbers['noise_percent'])} %"
        lines += [f"- **{gap.title}.** {gap.text} {cost}."]
    return lines


def _refused(done: Mapping[str, Validation]) -> list[str]:
    lines = []
    for name, validation in done.items():
        reasons = Counter(
            re.sub(
                r"\bcode '[^']*'",
                "some code",
                re.sub(r"^row '[^']*'(: cannot be predicted)?[:,] ", "", error.message),
            )
            for error in (row.error for row in validation.refused)
        )
        for reason, count in sorted(reasons.items()):
            lines.append(_row((name, str(count), reason)))
    return ["", "## Rows without a model", "", *_head(("set", "rows", "why")), *lines] if lines else []


def _number(value: Any) -> str:
    return "" if value is None else f"{value:,}" if isinstance(value, int) else f"{value:.2f}"


def _head(names: Sequence[str]) -> list[str]:
    return [_row(names), _row(["---"] * len(names))]


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


if __name__ == "__main__":
    main()
