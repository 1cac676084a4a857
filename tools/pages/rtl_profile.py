# SPDX-License-Identifier: Apache-2.0
"""docs/rtl-profile.md: what the values measured on RTL changed of a training iteration, cause by cause."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor

from configs.library import list_names
from configs.values import replace
from pulptrain.inputs.settings import Settings
from pulptrain.running.session import run_model
from tools.pages.page import Page, golden, table

CAUSES: Mapping[str, tuple[str, ...]] = {
    "refills of code": (
        "icache.between_calls_lines=0",
        "icache.private_refill_stall_cycles=2",
        "icache.shared_refill_stall_cycles=24",
        "core.div_cycles=33",
    ),
    "bursts": (
        "dma.read_burst_gap_cycles=0",
        "dma.write_burst_gap_cycles=0",
        "dma.read_short_burst_beats=0",
        "dma.write_short_burst_beats=0",
        "dma.short_burst_saved_cycles=0",
    ),
    "queues": (
        "dma.core_queue_commands=2",
        "dma.global_queue_commands=16",
        "dma.queued_until_cut=false",
    ),
    "latency": (
        "dma.command_latency_cycles=6",
        "l2.dma_read_latency_cycles=20",
        "l2.dma_write_latency_cycles=20",
        "l2.core_access_cycles=15",
    ),
    "arbitration": ("l1.arbitration=rotating",),
    "synchronisation": (
        "event_unit.barrier_wake_cycles=5",
        "event_unit.event_load_cycles=4",
        "event_unit.fork_push_cycles=7",
        "event_unit.join_cycles=14",
    ),
}
"""Cause -> the values `pulp-open` had under the profile `rtl` before the RTL was measured (0.1.0)."""

SETTINGS = Settings(l2="8MiB", icache="warm")
"""Warm: 0.1.0 knew no code of a program."""


def cycles(model: str, *causes: str) -> int:
    """Cycles of an iteration with the values of old for these causes."""
    overrides = tuple(value for cause in causes for value in CAUSES[cause])
    settings = replace(SETTINGS, overrides=overrides)
    found: int = run_model(model, settings, functional=False).summary["cycles"]
    return found


def causes_table() -> str:
    """Every model: cycles with the old values, with those of today, and what each cause adds to the rest."""
    models = list_names("models")
    asked = [
        (model, each) for model in models for each in ((), *((cause,) for cause in CAUSES), tuple(CAUSES))
    ]
    with ProcessPoolExecutor(2) as pool:
        found = dict(zip(asked, pool.map(_cycles, asked), strict=True))
    rows = []
    for model in models:
        now, old = found[model, ()], found[model, tuple(CAUSES)]
        parts = [now - found[model, (cause,)] for cause in CAUSES]
        together = now - old - sum(parts)
        shares = (f"{100 * part / old:+.2f}" for part in (*parts, together))
        rows.append((model, f"{old:,}", f"{now:,}", f"{100 * (now - old) / old:+.2f} %", *shares))
    return table(("model", "before", "now", "change", *CAUSES, "together"), rows)


def _cycles(asked: tuple[str, tuple[str, ...]]) -> int:
    return cycles(asked[0], *asked[1])


PAGE = Page("docs/rtl-profile.md", {"causes": causes_table}, {"causes": lambda: (golden(), CAUSES)})
