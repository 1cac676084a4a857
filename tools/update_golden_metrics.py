# SPDX-License-Identifier: Apache-2.0
"""Writes tests/golden-metrics.json: what one training iteration of every zoo model takes.

    .venv/bin/python tools/update_golden_metrics.py [--workers N] [MODEL...]

Run it when a change of cycles, bytes, peaks or events is meant; the diff of the file shows what it did.
`tests/test_golden_metrics.py` compares.
"""

from __future__ import annotations

import argparse
import json
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from configs.library import list_names
from pulptrain.inputs.settings import Settings
from pulptrain.running.session import run_model
from traces.totals import summed

GOLDEN = Path(__file__).parents[1] / "tests" / "golden-metrics.json"
_OF_DEFAULT_L2 = partial(Settings, l1="64KiB", buffering="double", dtype="fp32")
SETTINGS = _OF_DEFAULT_L2(l2="8MiB")
"""Everything lies in L2."""

DEFAULT_L2 = "default_l2"
"""Beside these figures of a model, those with the L2 of its SoC: some are staged or streamed from L3 then."""


def golden_metrics(model: str, settings: Settings = SETTINGS) -> dict[str, Any]:
    """Cycles, bytes moved, peaks and events of one iteration, timing only."""
    outcome = run_model(model, settings, functional=False)
    summary = outcome.summary
    return {
        "cycles": summary["cycles"],
        "cycles_by_step": summed((op["step"], op["cycles"]) for op in summary["ops"]),
        "bytes_in": summary["bytes_in"],
        "bytes_out": summary["bytes_out"],
        "peak_bytes": dict(summary["peak_bytes"]),
        "events": summary["simulator"]["events"],
        "tiles": sum(op["tiles"] for op in summary["ops"]),
    }


def of_default_l2(model: str) -> dict[str, Any]:
    """The same with the L2 that a run has unless it says otherwise."""
    return golden_metrics(model, _OF_DEFAULT_L2())


def all_metrics(model: str) -> dict[str, Any]:
    """What the file says of a model."""
    return {**golden_metrics(model), DEFAULT_L2: of_default_l2(model)}


def text_of(metrics: dict[str, dict[str, Any]]) -> str:
    """The file: one figure per line, so that a change is a readable diff."""
    return json.dumps(dict(sorted(metrics.items())), indent=1) + "\n"


def main() -> None:
    """Update the figures of the models named, or of all."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="*", metavar="MODEL", default=list_names("models"))
    parser.add_argument("--workers", type=int, default=1, metavar="N")
    asked = parser.parse_args()
    metrics = json.loads(GOLDEN.read_text(encoding="utf-8")) if GOLDEN.exists() else {}
    with ProcessPoolExecutor(asked.workers) as pool:
        measured = dict(zip(asked.models, pool.map(all_metrics, asked.models), strict=True))
    metrics = {name: value for name, value in (metrics | measured).items() if name in list_names("models")}
    GOLDEN.write_text(text_of(metrics), encoding="utf-8")
    for name, value in measured.items():
        print(
            f"{name:24} {value['cycles']:14,} cycles {value['events']:10,} events"
            f"{value[DEFAULT_L2]['cycles']:14,} with the default L2"
        )


if __name__ == "__main__":
    main()
