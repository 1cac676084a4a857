# SPDX-License-Identifier: Apache-2.0
"""The folder of an input: how it is made, and whether only what was asked for has changed in it."""

from __future__ import annotations

import os
import shutil
import socket
import stat
from collections.abc import Mapping, Sequence
from contextlib import chdir, suppress
from pathlib import Path

from pulptrain.running.outputs import RUN_FILES
from pulptrain.running.pictures import PICTURES, file_names
from tools.fuzz.subject import Subject, Thing
from traces.files.result_folder import EXPLORATION_FILES

FOLDER_OPTIONS = frozenset({"--out"})
FILE_OPTIONS = frozenset({"--save-schedule", "--save-values", "--save-model"})
CACHE_OPTIONS = frozenset({"--cache"})
OUTPUT_OPTIONS = FOLDER_OPTIONS | FILE_OPTIONS | CACHE_OPTIONS
"""Every option that names an output; ``--schedule`` is one of `tune` and an input of `run`."""

DEFAULT_SCHEDULE = "schedule.yaml"

BESIDE_A_CACHE = ("-wal", "-shm", "-journal", ".corrupt-")
"""How names go on that SQLite and the cache give to files beside it."""

State = Mapping[str, tuple[int, bytes]]
"""By path: mode, and what a file holds or where a link points."""


def place(item: Subject, folder: Path) -> None:
    """Empty the folder and put into it what an input has."""
    for parent, names, _ in os.walk(folder):
        for name in names:
            with suppress(OSError):
                os.chmod(os.path.join(parent, name), 0o700)  # else what is in it cannot be removed
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name, data in item.files.items():
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
    for thing in item.things:
        _put(thing, folder)


def _put(thing: Thing, folder: Path) -> None:
    path = folder / thing.path
    path.parent.mkdir(parents=True, exist_ok=True)
    match thing.kind:
        case "folder":
            path.mkdir(exist_ok=True)
        case "link":
            path.symlink_to(thing.to)
        case "fifo":
            os.mkfifo(path)
        case "socket":
            with chdir(path.parent), socket.socket(socket.AF_UNIX) as listening:
                listening.bind(path.name)  # a whole path may be too long for the name of a socket
        case "mode":
            path.chmod(thing.mode)
        case _:
            raise ValueError(thing.kind)


def state(folder: Path) -> State:
    """Everything in the folder, links not followed."""
    entries: dict[str, tuple[int, bytes]] = {}
    for parent, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = os.path.join(parent, name)
            try:
                mode = os.lstat(path).st_mode
                entries[path] = mode, _content(path, mode)
            except OSError:
                entries[path] = stat.S_IFREG, b"nobody may read it"
    return entries


def _content(path: str, mode: int) -> bytes:
    if stat.S_ISLNK(mode):
        return os.fsencode(os.readlink(path))
    return Path(path).read_bytes() if stat.S_ISREG(mode) else b""


_DRAWN = tuple(file for name in PICTURES for file in file_names(name))


class Asked:
    """What a command line asks to be written; to be made before it runs, as links are followed."""

    def __init__(self, item: Subject, arguments: Sequence[str], folder: Path) -> None:
        self._ours = {os.path.realpath(folder / name) for name in item.ours}
        self._before = state(folder)
        self.files: set[str] = set()
        self.caches: set[str] = set()
        self.folders: set[str] = set()
        for number, word in enumerate(arguments):
            name, separator, value = word.partition("=")
            if not separator:
                value = arguments[number + 1] if number + 1 < len(arguments) else ""
            place = os.path.realpath(os.path.join(folder, value))
            if name in FOLDER_OPTIONS:
                self.folders.add(place)
            elif name in CACHE_OPTIONS:
                self.caches.add(place)
            elif name in FILE_OPTIONS:
                self.files.add(place)
        if "tune" in arguments and not self.files:
            self.files.add(os.path.realpath(folder / DEFAULT_SCHEDULE))
        if "plot" in arguments and not self.folders:
            self.folders |= {os.path.realpath(os.path.join(folder, word)) for word in arguments}
        results = {
            os.path.join(each, name)
            for each in self.folders
            for name in (*RUN_FILES, *EXPLORATION_FILES, *_DRAWN)
        }
        self._results = results | {os.path.realpath(path) for path in results}
        pictures = PICTURES if "--window" in arguments else ()
        self._close_ups = tuple(os.path.join(each, f"{name}-") for each in self.folders for name in pictures)

    def unasked(self, folder: Path) -> list[str]:
        """What has changed in the folder although nobody asked for it."""
        after = state(folder)
        return [
            path
            for path in sorted({*self._before, *after})
            if self._before.get(path) != after.get(path)
            and not self._may_become(path, self._before.get(path), after.get(path))
        ]

    def _may_become(self, path: str, old: tuple[int, bytes] | None, new: tuple[int, bytes] | None) -> bool:
        if old is not None:
            mode, content = old
            if not stat.S_ISREG(mode) or (content and path not in self._ours):
                return False
            if new is not None and new[0] != mode:
                return False
        elif new is not None and stat.S_ISDIR(new[0]):
            below = f"{path}/"
            return any(f"{each}/".startswith(below) for each in (*self.folders, *self.caches))
        return (
            path in self.files
            or path in self.caches
            or path in self._results
            or (old is None and path.startswith(self._close_ups))
            or any(path.startswith(f"{cache}{end}") for cache in self.caches for end in BESIDE_A_CACHE)
        )

    def missing(self) -> list[str]:
        """Outputs that are not there."""
        files = [path for path in (*self.files, *self.caches) if not _has_content(path)]
        folders = [
            folder
            for folder in self.folders
            if not any(_has_content(path) for path in self._results if path.startswith(f"{folder}/"))
            and not any(str(path).startswith(self._close_ups) for path in Path(folder).glob("*"))
        ]
        return files + folders


def _has_content(path: str) -> bool:
    return os.path.isfile(path) and os.path.getsize(path) > 0
