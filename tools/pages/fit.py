# SPDX-License-Identifier: Apache-2.0
"""docs/fit.md: ladders of models of the zoo, and each in half the L2 it needs.

    python -m tools.pages.fit [--models NAME,NAME] [--socs NAME,NAME] [--no-ladder]

After every model its rows are put into docs/fit.json, and the page is written of all rows there. Every fit is
a process of its own, so that its memory on this computer can be told.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pulptrain.fitting.fit_summary import ladder_bytes
from tools.pages.page import ROOT, Page, golden, older_than_today, table
from traces.pictures.searches import draw_ladder

STORE = ROOT / "docs" / "fit.json"
MODELS = ("resnet8", "mobilenet-v1", "ds-cnn", "deep-autoencoder", "cct")
SOCS = ("pulp-open", "vega")
SECONDS = 120
"""For each search."""

ROOM = "64MiB"
"""An L2 in which each of them has room as it is."""

PLACEMENT = 0.001
"""Share of the cycles that other addresses than those of the golden metrics may make."""

PICTURE = "resnet8"
"""Its memory before and after, and its ladder, are drawn."""


def fitted(*words: str) -> dict[str, Any]:
    """What ``pulptrain fit`` prints with these words."""
    command = [sys.executable, "-m", "pulptrain", "fit", *words, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def measure(model: str, soc: str, *, ladder: bool = True) -> dict[str, Any]:
    """A row of docs/fit.json: the ladder, and the model in half the L2 that it needs as it is."""
    steps = fitted(model, "--soc", soc, "--ladder")["ladder"] if ladder else []
    with tempfile.TemporaryDirectory() as folder:
        roomy = fitted(model, "--soc", soc, "--l2", ROOM, "--save-model", str(Path(folder) / "roomy.yaml"))
        l2_kib = roomy["before"]["peak_bytes"]["l2"] // 2 // 1024
        words = (model, "--soc", soc, "--l2", f"{l2_kib}KiB", "--time-limit", str(SECONDS), "--points", "0")
        half = fitted(*words, "--out", folder)
        if (model, soc) == (PICTURE, SOCS[0]):
            for ending in ("png",):
                picture = ROOT / "docs" / f"fit-memory.{ending}"
                picture.write_bytes((Path(folder) / f"memory-before-after.{ending}").read_bytes())
        numbers = _numbers(Path(folder) / f"{model}-fit.yaml", soc, l2_kib)
    keys = (
        "peak_bytes",
        "cycles",
        "predicted_cycles",
        "predicted_bytes",
        "joules",
        "optimality_gap",
        "before",
    )
    counts = dict.fromkeys(("recompute", "page", "stream"), 0)
    for row in half["decisions"]:
        counts[row["action"]] = counts.get(row["action"], 0) + 1
    chosen = {key: half[key] for key in keys}
    simulator = half["simulator"]
    return {
        "model": model,
        "soc": soc,
        "ladder": steps,
        "half": {
            **chosen,
            "l2_kib": l2_kib,
            "counts": counts,
            "numbers": numbers,
            "search_seconds": round(simulator["search_seconds"], 1),
            "host_mib": round(simulator["host_bytes"] / 2**20),
        },
    }


def _numbers(path: Path, soc: str, l2_kib: int) -> bool | None:
    """Whether the numbers of the model that was written are right."""
    words = [str(path), "--soc", soc, "--l2", f"{l2_kib}KiB", "--placement", "optimal", "--json"]
    command = [sys.executable, "-m", "pulptrain", "run", *words]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True)
    passed: bool | None = json.loads(done.stdout)["functional"]["passed"]
    return passed


def stored() -> list[dict[str, Any]]:
    """The rows of docs/fit.json."""
    if not STORE.is_file():
        return []
    rows: list[dict[str, Any]] = json.loads(STORE.read_text(encoding="utf-8"))
    return rows


def is_of_today(row: dict[str, Any]) -> bool:
    """Whether with everything in L2 it takes what tests/golden-metrics.json has, but for the placement."""
    cycles = golden(row["model"])[row["model"]]["cycles"]
    return bool(abs(row["half"]["before"]["cycles"] / cycles - 1) < PLACEMENT)


def store(row: dict[str, Any]) -> None:
    """Put a row into docs/fit.json in place of that of the same model and SoC, whose ladder may stay."""
    kept = {(one["model"], one["soc"]): one for one in stored()}
    key = row["model"], row["soc"]
    kept[key] = {**row, "ladder": row["ladder"] or kept.get(key, row)["ladder"]}
    lines = ",\n".join(json.dumps(kept[key]) for key in sorted(kept))
    STORE.write_text(f"[\n{lines}\n]\n", encoding="utf-8")


def half() -> str:
    """A row per model and SoC in half its L2."""
    rows = []
    for row in stored():
        found = row["half"]
        before, counts = found["before"], found["counts"]
        error = found["cycles"] / found["predicted_cycles"] - 1
        rows.append(
            (
                f"{row['model']}, {row['soc']}",
                f"{before['peak_bytes']['l2']:,}",
                f"{before['cycles']:,}",
                f"{found['predicted_bytes']:,}",
                f"{found['peak_bytes']['l2']:,}",
                f"{found['cycles']:,}",
                f"{100 * (found['cycles'] / before['cycles'] - 1):+.1f} %",
                f"{100 * error:+.2f} %",
                _energy(found),
                f"{100 * found['optimality_gap']:.2f} %",
                f"{counts['recompute']} / {counts['page']} / {counts['stream']}",
                {True: "right", False: "wrong", None: "not decidable"}[found["numbers"]],
                f"{found['search_seconds']:.0f} s, {found['host_mib']:,} MiB",
            )
        )
    heads = [
        *("model, SoC", "peak before (B)", "cycles before", "predicted (B)", "peak (B)", "cycles", "more")
    ]
    heads += ["simulated against predicted", "energy", "gap", "again / paged / streamed", "numbers", "search"]
    changes = {
        row["model"]: golden(row["model"])[row["model"]]["cycles"] / row["half"]["before"]["cycles"] - 1
        for row in stored()
        if row["soc"] == "pulp-open" and not is_of_today(row)
    }
    return older_than_today(changes, ", computed with `--icache warm`") + table(heads, rows, numbers=True)


def _energy(half: dict[str, Any]) -> str:
    """How much more of it, with everything in L2 and in half of it."""
    joules, before = half.get("joules"), half["before"].get("joules")
    return f"{100 * (joules / before - 1):+.0f} %" if joules and before else "-"


def ladders() -> str:
    """The ladders, one table after the other."""
    parts = []
    for row in filter(lambda row: row["ladder"], stored()):
        rows = [
            (
                step["form"],
                ", ".join(step["techniques"]) or "as it is",
                *ladder_bytes(step),
                f"{step['cycles']:,}",
            )
            for step in row["ladder"]
        ]
        heads = ("form", "techniques", "L1 (B)", "L2 (B)", "L3 (B)", "cycles")
        parts.append(f"**{row['model']} on {row['soc']}**\n\n{table(heads, rows)}")
    return "\n\n".join(parts)


PAGE = Page("docs/fit.md", {"half": half, "ladders": ladders})


def draw() -> None:
    """The picture of a ladder."""
    for row in stored():
        if (row["model"], row["soc"]) == (PICTURE, SOCS[0]):
            with tempfile.TemporaryDirectory() as folder:
                title = f"{row['model']} on {row['soc']}"
                png = ROOT / "docs" / "fit-ladder.png"
                draw_ladder(row["ladder"], title, png, Path(folder) / "ladder.svg")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the models asked for and write the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", default=",".join(MODELS), help="comma-separated")
    parser.add_argument("--socs", default=",".join(SOCS), help="comma-separated")
    parser.add_argument("--no-ladder", action="store_true", help="only in half of the L2")
    asked = parser.parse_args(arguments)
    for soc in filter(None, asked.socs.split(",")):
        for model in filter(None, asked.models.split(",")):
            store(measure(model, soc, ladder=not asked.no_ladder))
            print(f"{model} on {soc}", flush=True)
    draw()
    PAGE.write(list(PAGE.blocks))
    return 0


if __name__ == "__main__":
    sys.exit(main())
