# SPDX-License-Identifier: Apache-2.0
"""Result folders: what may be written over, how their JSON is written, and of which format it may be."""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from configs.errors import InputError, cure_of
from configs.files import TEMPORARY_PREFIX, check_folder, refuse_foreign, write_text
from configs.limits import JSON_BYTES_PER_BYTE, check_file_size
from traces.csv_file import AGAIN
from traces.files.json_text import FORMAT, json_text, with_new_keys
from traces.pictures.drawing import ENDINGS, is_our_picture

SUMMARY_NAME, INFORMATION_NAME, PERFETTO_NAME = "summary.json", "run-info.json", "trace.pftrace"

EXPLORATION_FILES = ("points.json", "points.csv", "front.png", "front.svg", "grid.png", "grid.svg")
"""Files of an exploration; the points are the first to be written."""

_LARGEST_JSON_BYTES = 1 << 28


def prepare_folder(name: str, files: Sequence[str], option: str = "--out") -> Path:
    """Make the output folder, and refuse before any work is done what must not be written over.

    A folder that is there must hold nothing but empty files, or be one of ours: with a JSON file that says
    so, or nothing but pictures of ours. Of the `files` that will be written, one that is there already must
    be ours as well: a JSON file or picture that says so, or any of them beside a ``summary.json`` or
    ``points.json`` of ours. Raises `InputError`.
    """
    folder = check_folder(name, option)
    ours = any(is_our_json(folder / mark) for mark in (SUMMARY_NAME, EXPLORATION_FILES[0]))

    def is_ours(path: Path) -> bool:
        if path.suffix == ".json":
            return is_our_json(path)
        return ours or (path.suffix in (".png", ".svg") and is_our_picture(path))

    for file in files:
        refuse_foreign(folder / file, str(folder / file), option, is_ours)
    if not ours:
        _refuse_foreign_folder(folder, name, option)
    return folder


def _refuse_foreign_folder(folder: Path, name: str, option: str) -> None:
    there = [
        path
        for path in folder.iterdir()
        if not (path.name.startswith(TEMPORARY_PREFIX) or (path.is_file() and not path.stat().st_size))
    ]
    if any(is_our_json(path) for path in there if path.suffix == ".json"):
        return
    others = [path.name for path in sorted(there) if not (path.is_file() and _is_our_drawing(path))]
    if others:
        raise InputError(
            f"{name!r} has files that pulptrain did not write, e.g. {others[0]}; results need a separate "
            "folder",
            where=option,
            cure=f"use a new folder, e.g. {option} {Path(name) / 'new'}",
        )


def _is_our_drawing(path: Path) -> bool:
    return path.suffix.lower()[1:] in ENDINGS and is_our_picture(path)


def is_our_json(path: Path) -> bool:
    """Whether a file holds an object as pulptrain writes it, today or before there were format numbers."""
    try:
        if not path.is_file() or path.stat().st_size > _LARGEST_JSON_BYTES:
            return False
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return False
    if not isinstance(content, dict):
        return False
    simulated = "version" in content and ("cycles" in content or "objectives" in content)
    return simulated or ("simulator" in content and "command" in content)


def check_format(content: Mapping[str, Any], path: Path) -> None:
    """Raise `InputError` for a result file of a newer pulptrain; one without a number is of an older one."""
    number = content.get("format", 0)
    if type(number) is not int or not 0 <= number <= FORMAT:
        raise InputError(
            f"the file has the unknown format {number!r}; the installed pulptrain reads up to {FORMAT}",
            where=str(path),
            cure=f"use a newer pulptrain, or {AGAIN}",
        )


def write_json(path: Path, content: Mapping[str, Any]) -> Path:
    """Write a JSON file of a result folder, with its format number and units."""
    return write_text(path, json_text(content) + "\n")


def write_summary(path: Path, summary: Mapping[str, Any], **more: Any) -> Path:
    """Write a summary, and `more`, without what may differ from run to run."""
    return write_json(path, {**{key: item for key, item in summary.items() if key != "simulator"}, **more})


def write_information(folder: Path, simulator: Mapping[str, Any]) -> Path:
    """Write what may differ from run to run: how the `simulator` did, when, where and by which command."""
    information = {
        "simulator": simulator,
        "written": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "command": sys.argv,
    }
    return write_json(folder / INFORMATION_NAME, information)


def read_json(path: Path, again: str) -> dict[str, Any]:
    """The object of a JSON file of a result folder, with care: anybody may have changed it.

    Former keys have the names of today. Raises `InputError` for a file that is not there, too large, no
    object or of a newer format; `again` is what writes it.
    """
    check_file_size(path, JSON_BYTES_PER_BYTE)
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        cure = cure_of(error, f"use a folder written by `{again}`")
        raise InputError(f"cannot read {path}: {error.strerror}", cure=cure) from error
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"the file is not valid JSON: {str(error).partition(';')[0]}",
            where=str(path),
            cure=f"run `{again}` again",
        ) from error
    if not isinstance(content, dict):
        raise InputError("the file does not hold a JSON object", where=str(path), cure=f"run `{again}` again")
    check_format(content, path)
    if content.get("format", 0) < FORMAT:
        content = {key: item for key, item in content.items() if key not in ("format", "units")}
        return dict(with_new_keys(content))
    return content
