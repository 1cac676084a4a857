# SPDX-License-Identifier: Apache-2.0
"""Former names of options, JSON keys and objectives, and what they are called now.

An option, a keyword of Python or an objective with its former name is accepted for one release, with a note.
Result folders with former keys are read.
"""

from __future__ import annotations

import sys
from collections.abc import Container, Mapping, Sequence
from typing import Any, TypeVar

_T = TypeVar("_T")

OPTIONS: Mapping[str, Mapping[str, str]] = {
    "run": {"--by": "--group-by"},
    "tune": {
        "--cuts": "--tilings",
        "--budget": "--trials",
        "--lowerings": "--step-variants",
        "--im2col": "--step-variants",
        "--schedule": "--save-schedule",
    },
    "fit": {"--seconds": "--time-limit", "--file": "--save-model"},
    "kernel": {"--accumulate": "--add-to-c"},
    "primitive": {"--accumulation": "--accumulator"},
    "deploy": {"--accumulation": "--accumulator", "--kernels": "--kernel-library"},
    "replay": {"--n-accum": "--accumulate"},
    "new": {"--of": "--run", "--from": "--run"},
    "why": {"--critical": "--critical-path"},
}
"""By command."""

OBJECTIVES: Mapping[str, str] = {
    "l1_bytes": "peak_l1_bytes",
    "l2_bytes": "peak_l2_bytes",
    "l3_bytes": "peak_l3_bytes",
    "joule_seconds": "edp_joule_seconds",
}
"""Of `explore`."""

KEYS: Mapping[str, str] = {
    "iterations_asked": "iterations_requested",
    "asked": "points_requested",
    "tilings.by_size_rule": "pruned_by_size",
    "tilings.by_equal_loops": "pruned_by_loop_order",
    "tilings.by_l1": "pruned_by_l1",
    "tilings.kept": "estimated",
    "times": "runs_per_update",
    "coefficients_from": "energy_model",
    "energy_source": "energy_model",
    "joule_seconds": "edp_joule_seconds",
    "why": "reason",
    "short_bytes": "missing_bytes",
    "gap_bytes": "missing_bytes",
    **{f"points.{old}": new for old, new in OBJECTIVES.items()},
    **{f"socs.l{level}_bytes": f"l{level}_size_bytes" for level in (1, 2, 3)},
    "run_cycles": "tuned_cycles",
    "untuned_run_cycles": "untuned_cycles",
    "bounded": "truncated_ops",
    "gap": "optimality_gap",
    "saves_bytes": "saved_bytes",
    "costs_cycles": "added_cycles",
    "costs_joules": "added_joules",
    "at": "before_ops",
    "pareto": "points",
    "ladder.levers": "techniques",
    "levers": "tried_changes",
    "cure": "remedy",
    "try": "remedy",
    "loss_cycles": "max_saving_cycles",
    "on_path": "on_path_cycles",
    "without_op": "unmatched_rows",
    "without_measurement": "unmeasured_ops",
    "accumulate": "add_to_c",
}
"""Of JSON objects of format 1, some with the key they stand under."""


def new_key(name: str, parent: str) -> str:
    """What a key inside `parent` ("" at the top) of format 1 is called now."""
    return KEYS.get(f"{parent}.{name}") or KEYS.get(name, name)


def new_options(arguments: Sequence[str]) -> list[str]:
    """A command line with the options of today."""
    renamed = OPTIONS.get(next(iter(arguments), ""), {})
    new: list[str] = []
    used: dict[str, str] = {}
    for number, word in enumerate(arguments):
        if word == "--":
            return _noted([*new, *arguments[number:]], used)
        flag, separator, value = word.partition("=")
        if flag in renamed:
            used[flag] = renamed[flag]
        new.append(f"{renamed.get(flag, flag)}{separator}{value}")
    return _noted(new, used)


def new_keywords(call: str, keywords: Mapping[str, Any], known: Container[str]) -> dict[str, Any]:
    """Keywords of a call of Python, called as the options of today that it has (`known`)."""
    renamed = {_keyword(old): _keyword(new) for old, new in OPTIONS[call].items() if _keyword(new) in known}
    used = {name: renamed[name] for name in keywords if name in renamed}
    return _noted({used.get(name, name): value for name, value in keywords.items()}, used)


def new_objectives(names: Sequence[str]) -> list[str]:
    """Objectives of a file for `explore`, called as today."""
    used = {name: OBJECTIVES[name] for name in names if name in OBJECTIVES}
    return _noted([used.get(name, name) for name in names], used)


def _keyword(flag: str) -> str:
    return flag.removeprefix("--").replace("-", "_")


def _noted(result: _T, used: Mapping[str, str]) -> _T:
    if used:
        names = ", ".join(f"'{old}' is now '{new}'" for old, new in used.items())
        print(f"pulptrain: note: {names}; the next release will refuse the old name", file=sys.stderr)
    return result
