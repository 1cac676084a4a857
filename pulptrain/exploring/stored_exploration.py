# SPDX-License-Identifier: Apache-2.0
"""The points in a result folder, read with care: anybody may have changed them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from configs.errors import InputError
from configs.old_names import OBJECTIVES
from traces.files.result_folder import EXPLORATION_FILES, read_json

_NEEDED = ("name", "model", "objectives", "axes", "points")
_COMMAND = "pulptrain explore SPEC --out DIR"
_AGAIN = f"run `{_COMMAND}` again"


def read_exploration(folder: Path) -> dict[str, Any]:
    """``points.json`` of an exploration. Raises `InputError` if it is not as it was written."""
    path = folder / EXPLORATION_FILES[0]
    exploration = read_json(path, _COMMAND)
    if any(key not in exploration for key in _NEEDED):
        raise InputError("the file does not hold the points of an exploration", where=str(path), cure=_AGAIN)
    exploration["objectives"] = [OBJECTIVES.get(name, name) for name in exploration["objectives"]]
    points = exploration["points"]
    if not isinstance(points, list) or not all(
        isinstance(point, dict) and {"number", "values", "on_front", "reason"} <= point.keys()
        for point in points
    ):
        raise InputError("the entry 'points' is not as pulptrain wrote it", where=str(path), cure=_AGAIN)
    return exploration
