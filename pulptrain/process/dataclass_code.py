# SPDX-License-Identifier: Apache-2.0
"""The code `dataclasses` writes for every class, compiled once per machine and kept like that of modules.

A command makes 300 dataclasses while it starts; compiling what `dataclasses` writes for them took a third
of a second run. Code is found by its text, so what is kept can't be that of another class.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import marshal
import os
import sys
from contextlib import suppress
from pathlib import Path
from types import CodeType
from typing import Any

MOST_KEPT = 20_000
"""Texts in the file; beyond, classes of former versions are among them, and it begins anew."""

_FILE = Path(importlib.util.cache_from_source(__file__)).with_name("dataclasses.code")
_codes: dict[str, CodeType] = {}
_read = 0


def install() -> None:
    """From now on take the code of dataclasses from the file, where it is there."""
    global _codes, _read
    with suppress(OSError, ValueError, EOFError, TypeError):
        magic, kept = marshal.loads(_FILE.read_bytes())
        if magic == importlib.util.MAGIC_NUMBER and len(kept) < MOST_KEPT:
            _codes, _read = kept, len(kept)
    dataclasses.exec = _exec  # type: ignore[attr-defined]


def keep() -> None:
    """Keep what had to be compiled, if Python keeps the code of modules too."""
    if len(_codes) == _read or sys.dont_write_bytecode:
        return
    with suppress(OSError):
        fresh = _FILE.with_suffix(f".{os.getpid()}")
        fresh.write_bytes(marshal.dumps((importlib.util.MAGIC_NUMBER, _codes)))
        fresh.replace(_FILE)


def _exec(text: str, *spaces: dict[str, Any]) -> None:
    code = _codes.get(text)
    if code is None:
        code = _codes[text] = compile(text, "<string>", "exec")
    exec(code, *spaces)
