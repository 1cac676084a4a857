# SPDX-License-Identifier: Apache-2.0
"""One input: what is typed, what lies in its folder, and how it may end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

FOLDER = "@"
"""Stands in arguments for the folder of an input."""

FINE = frozenset({0, 2, 3, 4})
"""Exit codes an input may end with: done, bad input, does not fit, deadlock or race."""


@dataclass(frozen=True, slots=True)
class Thing:
    """Something in the folder of an input that is no plain file.

    `kind` is folder, link (to `to`, as it is written into the link), fifo, socket, or mode: then what is
    there already gets the permissions `mode`.
    """

    path: str
    kind: str
    to: str = ""
    mode: int = 0o777


@dataclass(frozen=True, slots=True)
class Subject:
    """One input: what is typed, and what lies in its folder, by path.

    Of the files only those in `ours`, and empty ones, may be written over. If `exit_codes` allows nothing but
    0, the outputs that are asked for must be there in the end. `stdout` is where standard output goes, the
    log of the worker if it is empty.
    """

    kind: str
    arguments: tuple[str, ...]
    files: Mapping[str, bytes] = field(default_factory=dict)
    things: tuple[Thing, ...] = ()
    ours: frozenset[str] = frozenset()
    exit_codes: frozenset[int] = FINE
    stdout: str = ""
