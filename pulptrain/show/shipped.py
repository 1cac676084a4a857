# SPDX-License-Identifier: Apache-2.0
"""Examples, notebooks and measured data that come with pulptrain: in its repository, or inside the wheel."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path

from configs.suggest import check_known

FOLDERS: Mapping[str, str] = {
    "examples": "model, SoC and exploration files, a script",
    "notebooks": "first run; explore a chip; tune and understand (extra `docs`)",
    "measured": "measured cycles for `pulptrain validate KIND FILE`; measured/README.md says how they were "
    "measured",
}
"""Folders that can be written out, and what is in them; setup.py puts them into the wheel."""

SOURCES: Mapping[str, str] = {"examples": "examples", "notebooks": "docs/notebooks", "measured": "measured"}
"""Where they lie in the repository."""


def folder_of(name: str) -> Path:
    """Where a folder of `FOLDERS` lies."""
    installed = Path(str(files("pulptrain"))) / "shipped_files" / name
    return installed if installed.is_dir() else Path(__file__).resolve().parents[2] / SOURCES[name]


def shipped_files(name: str) -> dict[str, Path]:
    """The files a name stands for, by the path they are written to: a folder of `FOLDERS`, or one file of it.

    A file is named with or without its ending. Raises `InputError` with the nearest name.
    """
    everything = {
        f"{folder}/{path.name}": path
        for folder in FOLDERS
        for path in sorted(folder_of(folder).iterdir())
        if path.is_file()
    }
    if name in FOLDERS:
        return {place: path for place, path in everything.items() if place.startswith(f"{name}/")}
    files = {
        place: path
        for place, path in everything.items()
        if name in (place, path.name, path.name.partition(".")[0])
    }
    if not files:
        names = (*FOLDERS, *sorted(path.name.partition(".")[0] for path in everything.values()))
        check_known(name, names, f"unknown example {name!r}", "example")
    return files
