# SPDX-License-Identifier: Apache-2.0
"""The points in a result folder, read with care: anybody may have changed them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from configs.errors import InputError
from configs.limits import JSON_BYTES_PER_BYTE, check_file_size
from traces.files.result_folder import EXPLORATION_FILES, check_format

_NEEDED = ("name", "model", "objectives", "axes", "points")
_AGAIN = "run `pulptrain explore SPEC --out DIR` again"


def read_exploration(folder: Path) -> dict[str, Any]:
    """``points.json`` of an exploration. Raises `InputError` if it is not as it was written."""
    path = folder / EXPLORATION_FILES[0]
    check_file_size(path, JSON_BYTES_PER_BYTE)
    try:
        exploration = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}", cure=_AGAIN) from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"not JSON: {error}", where=str(path), cure=_AGAIN) from error
    if not isinstance(exploration, dict) or any(key not in exploration for key in _NEEDED):
        raise InputError("not the points of an exploration", where=str(path), cure=_AGAIN)
    check_format(exploration, path)
    points = exploration["points"]
    if not isinstance(points, list) or not all(_is_point(point) for point in points):
        raise InputError("'points' are not as they were written", where=str(path), cure=_AGAIN)
    return exploration


def _is_point(point: object) -> bool:
    return isinstance(point, dict) and {"number", "values", "on_front", "why"} <= point.keys()
