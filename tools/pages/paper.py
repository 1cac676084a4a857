# SPDX-License-Identifier: Apache-2.0
"""docs/paper.md: claims of the SAMOS 2022 paper on PULP-TrainLib, published against ours.

Published numbers: the paper's abstract (doi:10.1007/978-3-031-15074-6_13) and the DATE 2024 tutorial.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import cache

import numpy as np

from arch.pricing.window_plan import START_OFFSETS_CYCLES, PricingWindow
from pulptrain.inputs.settings import Settings
from pulptrain.running.kernel_cost import kernel_cost
from scheduler.validation.rows import layer
from scheduler.validation.rows.statistics import Result
from scheduler.validation.runner import validate
from tools.kernel_regret import (
    Cell,
    KernelRegret,
    kernel_choices,
    share_repeated_within,
    share_within,
    sharing_agreements,
)
from tools.pages.page import ROOT, Page, accuracy, table
from trainlib.kernels.catalogue import kernel_names

Shape = tuple[int, int, int]
"""N, K, M of C[N,M] = A[N,K] B[K,M]."""

PEAK: tuple[str, Shape] = ("mm_M_unroll_4x2", (32, 256, 16))
"""First of the list of tools/gcc7_peak.py, run with 100 candidates."""
PUBLISHED_PEAK, PUBLISHED_GAIN, PUBLISHED_STM32 = 4.39, 2.4, 36.6
TALL: tuple[Shape, ...] = ((128, 64, 4), (256, 32, 2), (128, 128, 1))
WIDE: tuple[Shape, ...] = ((4, 64, 128), (2, 32, 256), (1, 128, 128))
SQUARE: tuple[Shape, ...] = ((32, 32, 32), (16, 16, 64), (64, 16, 16), (16, 144, 36))
RANDOM_STARTS = 30
GROUPS = (("1 core, or private FPUs without conflicts", True, 1, 97), ("others", False, 3, 90))
"""Title, whether two runs can hardly differ, bound in per cent, share asked in per cent."""
CONFLICTS = {"0": "off", "1": "on"}


@cache
def cycles_of(kernel: str, shape: Shape, cores: int = 8) -> int:
    """On the paper's platform: PULP GCC 7, private FPUs, bank conflicts, operands in L1; no fork and join."""
    settings = Settings(
        soc="pulp-open-private", timing="gvsoc", codegen="pulp-gcc7", bank_conflicts="on", cores=cores
    )
    return int(kernel_cost(kernel, *shape, settings=settings)["cycles"])


@cache
def stm32_cycles(kernel: str, shape: Shape) -> int:
    """The same on the preset `stm32l4`."""
    return int(kernel_cost(kernel, *shape, settings=Settings(soc="stm32l4"))["cycles"])


def kernels(codegen: str = "pulp-gcc7") -> list[str]:
    """The fp32 matmul kernels of a codegen."""
    return [name for name in kernel_names(codegen, "fp32") if name.startswith("mm")]


def fastest(shape: Shape) -> str:
    """The kernel with the fewest cycles on 8 cores."""
    return min(kernels(), key=lambda name: cycles_of(name, shape))


def peak() -> str:
    """Best MAC per cycle."""
    kernel, (n, k, m) = PEAK
    ours = n * k * m / cycles_of(*PEAK)
    row = (f"`{kernel}`", f"{n}x{k}x{m}", f"{PUBLISHED_PEAK}", f"{ours:.2f}")
    return table(
        ("kernel", "NxKxM", "paper, MAC/cycle", "ours", "difference"),
        [(*row, f"{100 * (ours / PUBLISHED_PEAK - 1):+.1f} %")],
    )


def gain() -> str:
    """The best of the 24 kernels over a fixed one; which wins for which shape."""
    rows = []
    for label, shapes in (("N >> M", TALL), ("M >> N", WIDE), ("other", SQUARE)):
        for shape in shapes:
            best = fastest(shape)
            over = [
                f"{cycles_of(name, shape) / cycles_of(best, shape):.2f}" for name in ("mm_unroll_2x4", "mm")
            ]
            rows.append((label, "x".join(map(str, shape)), f"`{best}`", f"{PUBLISHED_GAIN}", *over))
    return table(("shape", "NxKxM", "fastest", "paper, up to", "over `mm_unroll_2x4`", "over `mm`"), rows)


def stm32() -> str:
    """Cycles of one core of an STM32L4 per cycle of the cluster, at the shape of the peak."""
    kernel, shape = PEAK
    ours = cycles_of(kernel, shape)
    names = ["mm", "mm_unroll_2x4", min(kernels("cortex-m4f"), key=lambda name: stm32_cycles(name, shape))]
    rows = [(f"`{name}`", f"{PUBLISHED_STM32}", f"{stm32_cycles(name, shape) / ours:.1f}") for name in names]
    return table(("kernel on the STM32L4", "paper", "ours"), rows)


def cores() -> str:
    """Speed-up of kernels over 1 core."""
    rows = []
    for kernel in ("mm", "mm_unroll_2x4", PEAK[0]):
        one = cycles_of(kernel, PEAK[1], 1)
        rows.append((f"`{kernel}`", *(f"{one / cycles_of(kernel, PEAK[1], n):.2f}" for n in (1, 2, 4, 8))))
    return table(("kernel, 32x256x16", "1 core", "2", "4", "8"), rows)


def layers() -> str:
    """Speed-up of the published tutorial layers on 8 cores, and what the start of the cores does to it."""
    done = validate("layer", ROOT / "measured" / "tutorial-anchors.csv.gz", workers=1).results
    on_one = {_layer(row): row for row in done if row.case.number("cores") == 1}
    rows = []
    for row in done:
        one = on_one.get(_layer(row))
        if row.case.number("cores") != 8 or one is None:
            continue
        found = [layer.predict(row.case, PricingWindow(starts=(start,))).cycles for start in starts()]
        alone, measured = one.prediction.cycles, one.measured / row.measured
        low, high = alone / max(found), alone / min(found)
        rows.append(
            (
                " ".join(_layer(row)[:3]).strip(),
                f"{measured:.2f}",
                f"{alone / row.prediction.cycles:.2f}",
                f"{one.error_percent:+.1f} %",
                f"{row.error_percent:+.1f} %",
                f"{low:.2f} to {high:.2f}",
                "yes" if low <= measured <= high else f"{_beyond(measured, low, high):.1f} % outside",
            )
        )
    return table(
        (
            "layer",
            "published",
            "ours",
            "error, 1 core",
            "error, 8 cores",
            "ours by start",
            "published is in this range",
        ),
        rows,
    )


def starts() -> list[tuple[int, ...]]:
    """The starts a team is priced from, and `RANDOM_STARTS` more: up to 7 cycles late, core by core."""
    generator = np.random.default_rng(0)
    drawn = generator.integers(0, 8, size=(RANDOM_STARTS, 16)).tolist()
    return [*START_OFFSETS_CYCLES, *(tuple(start) for start in drawn)]


def _beyond(value: float, low: float, high: float) -> float:
    """How far outside a range, in per cent of its nearer end."""
    return 100 * max(low / value - 1, value / high - 1)


def _layer(row: Result) -> tuple[str, ...]:
    return tuple(row.case.cells[name] for name in ("primitive", "step", "kernel", "dtype", "ci", "co"))


def choice() -> str:
    """Kernel choice on all measured matmuls (about a minute)."""
    return _choice_table(measured_matmuls())


def cells() -> str:
    """Kernel choice by codegen, cores, FPUs and conflicts."""
    return _cell_table(measured_matmuls())


def sharing() -> str:
    """What sharing FPUs and banks costs on 8 cores, measured twice and predicted."""
    return _sharing_table(measured_matmuls())


@cache
def measured_matmuls() -> Sequence[Result]:
    """All rows of mm.csv, predicted."""
    return validate("mm", ROOT / "measured" / "mm.csv.gz", workers=1).results


def _choice_table(results: Sequence[Result]) -> str:
    """Shares of the choices that are near the best measured kernel."""
    found, rows = kernel_choices(results), []
    for title, quiet, percent, asked in GROUPS:
        part = [item for item in found if item.quiet == quiet]
        share = 100 * share_within(part, percent)
        worst = max(item.regret_percent for item in part)
        repeated = share_repeated_within(part, percent)
        assert repeated is not None
        rows.append(
            (
                title,
                str(len(part)),
                f"{percent} %",
                f"{asked} %",
                f"{share:.1f} %",
                f"{100 * repeated:.1f} %",
                f"{worst:.1f} %",
            )
        )
    titles = ("cores and FPUs", "groups", "bound", "goal", "within bound", "measured choice", "largest loss")
    return table(titles, rows)


def _cell_table(results: Sequence[Result]) -> str:
    """Shares per codegen, team and machine, the worst first."""
    by_cell: dict[Cell, list[KernelRegret]] = defaultdict(list)
    for item in kernel_choices(results):
        by_cell[item.cell].append(item)
    rows = []
    for cell, items in by_cell.items():
        percent = 1 if items[0].quiet else 3
        repeated = share_repeated_within(items, percent)
        worst = max(items, key=lambda item: item.regret_percent)
        named = f"{worst.shape}: `{worst.chosen}`, `{worst.best}`" if worst.regret_percent > percent else ""
        codegen, count, fpus, conflicts = cell
        share = share_within(items, percent)
        rows.append(
            (
                share,
                (
                    f"`{codegen}`",
                    count,
                    fpus,
                    CONFLICTS[conflicts],
                    str(len(items)),
                    f"{percent} %",
                    f"{share:.0%}",
                    "" if repeated is None else f"{repeated:.0%}",
                    f"{worst.regret_percent:.1f} %",
                    named,
                ),
            )
        )
    ordered = [row for _, row in sorted(rows)]
    titles = ("codegen", "cores", "FPUs", "conflicts", "groups", "bound", "within bound", "measured choice")
    return table((*titles, "largest loss", "where: chosen, fastest"), ordered)


def _sharing_table(results: Sequence[Result]) -> str:
    """Per cell of 8 cores: what sharing costs, and how well it repeats."""
    rows = [
        (
            f"`{item.cell[0]}`",
            item.cell[2],
            CONFLICTS[item.cell[3]],
            str(item.kernels),
            f"{item.measured:.3f}",
            f"{item.predicted:.3f}",
            f"{item.between_samples:.2f}",
            f"{item.with_prediction:.2f}",
        )
        for item in sharing_agreements(results)
        if item.cell[1] == "8"
    ]
    titles = ("codegen", "FPUs", "conflicts", "kernels", "measured ratio", "predicted ratio")
    correlations = ("two measurements", "measurement and prediction")
    return table((*titles, *(f"correlation of {pair}" for pair in correlations)), rows)


PAGE = Page(
    "docs/paper.md",
    {
        "peak": peak,
        "gain": gain,
        "stm32": stm32,
        "cores": cores,
        "layers": layers,
        "choice": choice,
        "cells": cells,
        "sharing": sharing,
    },
    {
        **dict.fromkeys(("choice", "cells", "sharing"), lambda: (accuracy("mm"), GROUPS)),
        "gain": lambda: (accuracy("mm"), TALL, WIDE, SQUARE),
        "layers": lambda: (accuracy("layer"), starts()),
    },
)
