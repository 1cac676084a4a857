# SPDX-License-Identifier: Apache-2.0
"""What lies in result folders, read with care: anybody may have changed it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from configs.errors import InputError
from configs.old_names import OBJECTIVES
from pulptrain.inputs.source_kind import RUN, refuse_others
from traces.csv_file import AGAIN, LARGEST
from traces.files.result_folder import EXPLORATION_FILES, SUMMARY_NAME, read_json

_NEEDED = ("model", "soc", "cycles", "cluster_hz")
_NUMBERS = ("cycles", "cluster_hz", "trace_cycles")
_COMMAND = "pulptrain run MODEL --out DIR"


def read_summary(folder: Path) -> dict[str, Any]:
    """`summary.json` of a run. Raises `InputError` if it is missing, not JSON or lacks what pictures need."""
    refuse_others(str(folder), RUN)
    path = folder / SUMMARY_NAME
    summary = read_json(path, _COMMAND)
    missing = [key for key in _NEEDED if key not in summary]
    if missing:
        what = f"keys are missing: {', '.join(map(repr, missing))}"
        raise InputError(what, where=str(path), cure=AGAIN)
    for key in _NUMBERS:
        value = summary.get(key, 1)
        if type(value) is not int or not 0 < value <= LARGEST:
            raise _wrong(key, f"a whole number from 1 to {LARGEST}", path)
    sizes = summary.get("capacity_bytes", {})
    if not isinstance(sizes, dict) or not all(
        type(size) is int and 0 <= size <= LARGEST for size in sizes.values()
    ):
        raise _wrong("capacity_bytes", "a whole number of bytes per memory", path)
    return {**summary, "model": str(summary["model"])[:200], "soc": str(summary["soc"])[:200]}


def _wrong(key: str, wanted: str, path: Path) -> InputError:
    return InputError(f"'{key}' in the summary of the run must be {wanted}", where=str(path), cure=AGAIN)


def read_exploration(folder: Path) -> dict[str, Any]:
    """``points.json`` of an exploration. Raises `InputError` if it is not as it was written."""
    path, command = folder / EXPLORATION_FILES[0], "pulptrain explore SPEC --out DIR"
    again = f"run `{command}` again"
    exploration = read_json(path, command)
    if any(key not in exploration for key in ("name", "model", "objectives", "axes", "points")):
        raise InputError("the file is not a result of `pulptrain explore`", where=str(path), cure=again)
    exploration["objectives"] = [OBJECTIVES.get(name, name) for name in exploration["objectives"]]
    points = exploration["points"]
    if not isinstance(points, list) or not all(
        isinstance(point, dict) and {"number", "values", "on_front", "reason"} <= point.keys()
        for point in points
    ):
        raise InputError("'points' is not the list that pulptrain wrote", where=str(path), cure=again)
    return exploration
