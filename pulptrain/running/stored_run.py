# SPDX-License-Identifier: Apache-2.0
"""The summary in a result folder, read with care: anybody may have changed it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from configs.errors import InputError
from configs.limits import JSON_BYTES_PER_BYTE, check_file_size
from traces.csv_file import LARGEST
from traces.files.result_folder import check_format

_NEEDED = ("model", "soc", "cycles", "cluster_hz")
_NUMBERS = ("cycles", "cluster_hz", "trace_cycles")
_AGAIN = "run `pulptrain run MODEL --out DIR` again"


def read_summary(folder: Path) -> dict[str, Any]:
    """`summary.json` of a run. Raises `InputError` if it is missing, not JSON or lacks what pictures need."""
    path = folder / "summary.json"
    check_file_size(path, JSON_BYTES_PER_BYTE)
    try:
        summary = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(
            f"cannot read {path}: {error.strerror}",
            cure="a folder written by `pulptrain run MODEL --out DIR`",
        ) from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"not JSON: {error}", where=str(path), cure=_AGAIN) from error
    if not isinstance(summary, dict):
        raise InputError("not an object", where=str(path), cure=_AGAIN)
    check_format(summary, path)
    missing = [key for key in _NEEDED if key not in summary]
    if missing:
        raise InputError(f"no {', '.join(missing)} in it", where=str(path), cure=_AGAIN)
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
    return InputError(f"'{key}' is not {wanted}", where=str(path), cure=_AGAIN)
