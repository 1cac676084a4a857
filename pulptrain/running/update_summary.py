# SPDX-License-Identifier: Apache-2.0
"""The summary of an update made of several mini-batches and a program for the update."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from traces.totals import summed

_SUMMED = (
    "cycles",
    "seconds",
    "macs",
    "useful_macs",
    "offload_cycles",
    "busy_cycles",
    "bytes_in",
    "bytes_out",
)
_SUMMED_OF_OP = (
    "cycles",
    "macs",
    "useful_macs",
    "instructions",
    "bytes_in",
    "bytes_out",
    "busy_cycles",
    "core_cycles",
    "tiles",
)
_BY_WORD = ("stalls", "causes")
"""Core-cycles by word, of a run and of an op."""


def update_summary(
    mini_batch: Mapping[str, Any], update: Mapping[str, Any], mini_batches: int
) -> dict[str, Any]:
    """Figures per update, from those of one mini-batch and of the update
    (`pulptrain.running.summary.run_summary`).

    Cycles, bytes and the like are those of all mini-batches together and of the update; each op says how many
    `times` it runs. Peak memory is that of the larger program. `update` breaks the cycles down.
    """
    result = dict(mini_batch)
    for key in _SUMMED:
        result[key] = mini_batches * mini_batch[key] + update[key]
    result["mac_per_cycle"] = result["macs"] / result["cycles"]
    for key in ("staged_bytes", *_BY_WORD):
        result[key] = {
            word: mini_batches * mini_batch[key].get(word, 0) + update[key].get(word, 0)
            for word in {**mini_batch[key], **update[key]}
        }
    result["utilisation"] = {
        name: (
            mini_batches * mini_batch["cycles"] * share
            + update["cycles"] * update["utilisation"].get(name, 0)
        )
        / result["cycles"]
        for name, share in mini_batch["utilisation"].items()
    }
    for key in ("peak_bytes", "lower_bound_bytes"):
        result[key] = {level: max(size, update[key].get(level, 0)) for level, size in mini_batch[key].items()}
    result["ops"] = [
        *(_times(op, mini_batches) for op in mini_batch["ops"]),
        *(_times(op, 1) for op in update["ops"]),
    ]
    result["notes"] = [*mini_batch["notes"], *update["notes"]]
    result["unmeasured_kernels"] = sorted({*mini_batch["unmeasured_kernels"], *update["unmeasured_kernels"]})
    result["trace_cycles"] = mini_batch["cycles"] + update["cycles"]
    result["update"] = {
        "mini_batches": mini_batches,
        "mini_batch_cycles": mini_batch["cycles"],
        "update_cycles": update["cycles"],
        "cycles_per_update": result["cycles"],
        "mini_batch": _breakdown(mini_batch),
        "update": _breakdown(update),
    }
    return result


def update_line(update: Mapping[str, Any]) -> str:
    """The breakdown of an update's cycles for people."""
    count = update["mini_batches"]
    return (
        f"{count} x {update['mini_batch_cycles']:,} cycles per mini-batch + {update['update_cycles']:,} = "
        f"{update['cycles_per_update']:,} cycles; the trace shows each program once"
    )


def _times(op: Mapping[str, Any], times: int) -> dict[str, Any]:
    result = {**op, "runs_per_update": times}
    for key in _SUMMED_OF_OP:
        result[key] = times * op[key]
    for key in _BY_WORD:
        result[key] = {word: times * cycles for word, cycles in op[key].items()}
    return result


def _breakdown(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Cycles per step of one program run once."""
    return {
        "cycles": summary["cycles"],
        "macs": summary["macs"],
        "useful_macs": summary["useful_macs"],
        "bytes_in": summary["bytes_in"],
        "bytes_out": summary["bytes_out"],
        "peak_bytes": dict(summary["peak_bytes"]),
        "steps_cycles": summed((op["step"], op["cycles"]) for op in summary["ops"]),
        "offload_cycles": summary["offload_cycles"],
    }
