# SPDX-License-Identifier: Apache-2.0
"""`python -m tools.speed.growth`: user CPU and memory of `run` as layers, iterations, tiles, cores grow.

Writes the table of docs/speed.md and its picture. An exponent is the slope of log(user CPU beyond that of the
smallest model) over log(what grows), from the middle point to the largest; 1 is linear.
"""

from __future__ import annotations

import math
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from tools.pages.page import table
from tools.speed.measure import Measured, once
from tools.speed.page import write_block
from tools.speed.rows import SMALLEST, TIMING_ONLY, WARM_UP, Row
from tools.speed.versions import ROOT, Version, present

MIB = 1 << 20
PICTURE = ROOT / "docs" / "speed-growth.png"


@dataclass(frozen=True)
class Growth:
    """Commands of growing size: `command(value)` says the model file, "" for none, and the arguments.

    `size(summary)` is how large it came to be, in `unit`; the values themselves without it.
    """

    unit: str
    values: tuple[int, ...]
    command: Callable[[int], tuple[str, tuple[str, ...]]]
    size: Callable[[Mapping[str, Any]], int] | None = None


HEAD = """\
name: growing
description: d
source: s
dataset: random
loss: mse
optimizer: {name: sgd, learning_rate: 0.001}
"""
POOLED = """\
  - {name: pool, type: global_avg_pool}
  - {name: flat, type: flatten}
"""
"""A loss is not cut, so a large image does not fit L1 with it."""


def _chain(layers: int) -> tuple[str, tuple[str, ...]]:
    """Convolutions of 37 widths, so that few have the same shape."""
    text = HEAD + "input: {shape: [8, 12, 12]}\nlayers:\n"
    for number in range(layers):
        channels = 4 + 5 * number % 37
        text += f"  - {{name: conv{number}, type: conv2d, out_channels: {channels}, kernel: 3, padding: 1}}\n"
    return text + POOLED, ("run", "model.yaml", *TIMING_ONLY, "--l2", "64MiB")


def _iterations(count: int) -> tuple[str, tuple[str, ...]]:
    return "", ("run", "digits-cnn", "--iterations", str(count))


def _tiles(l1_kib: int) -> tuple[str, tuple[str, ...]]:
    text = HEAD + "input: {shape: [16, 32, 32]}\nlayers:\n"
    text += "  - {name: conv, type: conv2d, out_channels: 32, kernel: 3, padding: 1}\n"
    return text + POOLED, ("run", "model.yaml", *TIMING_ONLY, "--l1", f"{l1_kib}KiB", "--l2", "64MiB")


def _cores(count: int) -> tuple[str, tuple[str, ...]]:
    return "", ("run", "digits-cnn", *TIMING_ONLY, "--cores", str(count))


def _candidates(cuts: int) -> tuple[str, tuple[str, ...]]:
    options = ("--strategy", "exhaustive", "--resident", "off", "--workers", "1")
    return "", ("tune", "digits-cnn", "--tilings", str(cuts), *options)


def _all_tiles(summary: Mapping[str, Any]) -> int:
    return sum(op["tiles"] or 0 for op in summary["ops"])


GROWTHS = (
    Growth("layers", (25, 50, 100, 200, 400), _chain),
    Growth("iterations with numbers", (10, 100, 1000, 10000), _iterations),
    Growth("tiles (L1 of 512 to 12 KiB)", (512, 256, 128, 64, 32, 16, 12), _tiles, _all_tiles),
    Growth("cores", (1, 2, 4, 8, 16), _cores),
    Growth("candidates of a search", (1, 2, 4, 8), _candidates, lambda summary: int(summary["evaluated"])),
)


def _one(version: Version, growth: Growth, value: int) -> tuple[int, Measured]:
    text, arguments = growth.command(value)
    files = {"model.yaml": text} if text else {}
    run = once(version, Row(growth.unit, arguments, files=files))
    if run.exit_code:
        raise SystemExit(f"{growth.unit} {value}: {' '.join(arguments)} ended with {run.exit_code}")
    return (value if growth.size is None else growth.size(run.summary)), run


def exponent(sizes: Sequence[float], seconds: Sequence[float]) -> float:
    """Slope in logarithms from the middle point to the last."""
    middle = len(sizes) // 2
    return math.log(seconds[-1] / seconds[middle]) / math.log(sizes[-1] / sizes[middle])


def draw(found: Mapping[str, Sequence[tuple[int, float]]]) -> None:
    """The picture of the page: by what grows, (size, user CPU in seconds)."""
    figure = Figure(figsize=(12, 2.6), layout="constrained")
    for axes, (unit, points) in zip(figure.subplots(1, len(found)), found.items(), strict=True):
        sizes, seconds = zip(*points, strict=True)
        axes.loglog(sizes, seconds, "o-")
        axes.set_xlabel(unit)
        axes.minorticks_off()
        ends = (sizes[0], sizes[-1])
        axes.set_xticks(ends, [f"{size:,}" for size in ends])
        heights = (min(seconds), max(seconds))
        axes.set_yticks(heights, [f"{height:.1f}" for height in heights])
        axes.grid(True, alpha=0.3)
    figure.axes[0].set_ylabel("user CPU, s")
    figure.savefig(PICTURE, dpi=120, metadata={"Software": None})


def main() -> None:
    """Measure, and write table and picture."""
    found: dict[str, list[tuple[int, float]]] = {}
    with tempfile.TemporaryDirectory() as name:
        version = present(Path(name))
        once(version, WARM_UP)
        start = min(once(version, SMALLEST).user_seconds for _ in range(3))
        rows = []
        for growth in GROWTHS:
            runs = [_one(version, growth, value) for value in growth.values]
            found[growth.unit] = [(size, run.user_seconds) for size, run in runs]
            sizes = [size for size, _ in runs]
            beyond = [max(0.01, run.user_seconds - start) for _, run in runs]
            rows.append(
                [
                    growth.unit,
                    ", ".join(f"{size:,}" for size in sizes),
                    ", ".join(f"{run.user_seconds:.1f}" for _, run in runs),
                    ", ".join(f"{run.peak_bytes / MIB:.0f}" for _, run in runs),
                    f"{exponent(sizes, beyond):.2f}",
                ]
            )
            print("  ".join(rows[-1]), file=sys.stderr, flush=True)
    write_block("growth", table(("what grows", "to", "user CPU, s", "peak MiB", "exponent"), rows))
    draw(found)


if __name__ == "__main__":
    main()
