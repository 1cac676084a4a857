# SPDX-License-Identifier: Apache-2.0
"""docs/results-and-units.md: files of a run, and their columns."""

from __future__ import annotations

from pulptrain.running.training_curve import CurvePoint
from tools.pages.page import Page, table
from traces import memory_table
from traces.events import STALLS
from traces.files import tables

TRACE = {
    "track": "module, as `soc.cluster.core3`; or a channel or port of one",
    "start_cycles": "first cycle of the slice",
    "end_cycles": "first cycle after it; slices of a track never overlap",
    "duration_cycles": "their difference",
    "kind": "`compute` (a core issues instructions), `transfer` (bytes move), or a stall word",
    "op": "name of the layer; `op` and `step` together name the op, as `conv1.FW`",
    "step": "FW, LOSS, IG, WG, UPD or another step",
    "tile": "number of the tile; -1: of the whole op",
    "what": "kernel or buffer",
    "busy_cycles": "cycles with an instruction issued, in a compute slice",
    "bytes": "moved by a transfer (B)",
    "instructions": "issued in a compute slice",
}
"""Meaning of the columns of a trace; of the columns of stalls see `STALL_COLUMN`."""

STALL_COLUMN = "stall cycles of this kind: within a compute slice, or the whole slice if it is this stall"

MEMORY = {
    "name": "tensor or buffer",
    "level": "l1, l2 or l3",
    "address": "first byte, from the start of the level (B)",
    "size_bytes": "size (B)",
    "first_op": "first op of its life",
    "last_op": "last op of its life",
    "start_cycle": "cluster cycle its life begins",
    "end_cycle": "cluster cycle its life ends",
    "kind": "what the bytes are for: weight, activation, gradient, buffer ...",
    "staged": "1: the copy in L2 of a tensor that lives in L3",
    "kept_for": "for an activation stored for the backward pass: the ops that read it",
}

CURVE = {
    "iteration": "number, from 1",
    "seconds": "simulated time at its end (s)",
    "loss": "mean loss of its samples",
    "accuracy": "share of test samples classified correctly after this iteration; empty if not requested",
}


def _columns(names: tuple[str, ...], meanings: dict[str, str]) -> str:
    return table(("column", "meaning"), ((f"`{name}`", meanings[name]) for name in names))


def trace() -> str:
    """Columns of trace.csv."""
    stalls = {f"{word}_cycles": STALL_COLUMN for word in STALLS}
    plain = tuple(name for name in tables.COLUMNS if name not in stalls)
    return table(
        ("column", "meaning"),
        [
            *((f"`{name}`", TRACE[name]) for name in plain),
            (", ".join(f"`{name}`" for name in stalls), STALL_COLUMN),
        ],
    )


def memory() -> str:
    """Columns of memory.csv."""
    return _columns(memory_table.COLUMNS, MEMORY)


def curve() -> str:
    """Columns of training.csv."""
    return _columns(CurvePoint._fields, CURVE)


PAGE = Page(
    "docs/results-and-units.md",
    {
        "trace": trace,
        "memory": memory,
        "curve": curve,
    },
)
