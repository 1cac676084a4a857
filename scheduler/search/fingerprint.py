# SPDX-License-Identifier: Apache-2.0
"""Content hashes: what a simulated figure depends on, as a text that is equal for equal questions only."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Mapping
from functools import lru_cache
from importlib.util import find_spec
from typing import Any

from msgspec import structs

from configs.values import Struct

MODEL_SOURCES = ("arch", "trainlib", "scheduler", "configs/kernels")
"""Folders whose files decide what a simulation says: mechanisms, primitives, kernels, program and loop nests.

SoC files are not among them: their values are part of every question.
"""

NO_INFLUENCE = ("scheduler/validation", "scheduler/search/", "scheduler/tuner/", "scheduler/explore/")
"""Below those folders: code that asks for simulations and does not take part in them ..."""

INFLUENCE = tuple(
    f"scheduler/tuner/{name}.py"
    for name in ("evaluate", "task", "search_space", "cut_programs", "tuned_residents")
)
"""... apart from these files, which define what is simulated."""

_SUFFIXES = (".py", ".yaml", ".json", ".S")


def fingerprint(content: Any) -> str:
    """SHA-256 (64 hex digits) of a value made of dataclasses, mappings, sequences and scalars."""
    text = json.dumps(_plain(content), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


@lru_cache
def model_version(sources: tuple[str, ...] = MODEL_SOURCES) -> str:
    """Hash of the source of everything a simulation goes through, SimPy's included."""
    digest = hashlib.sha256()
    for source in ("simpy", *sources):
        package, _, inner = source.partition("/")
        spec = find_spec(package)  # imports nothing: SimPy's own source is read faster than its version asked
        assert spec is not None
        assert spec.origin is not None
        _add(digest, os.path.join(os.path.dirname(spec.origin), inner), source)
    return digest.hexdigest()


def _add(digest: Any, folder: str, path: str) -> None:
    """Files by name; without `pathlib`, which takes as long as reading them."""
    with os.scandir(folder) as entries:
        children = sorted(entries, key=lambda child: child.name)
    for child in children:
        name = f"{path}/{child.name}"
        asked_only = name.startswith(NO_INFLUENCE) and name not in INFLUENCE
        if name.endswith(_SUFFIXES) and not asked_only:
            with open(child.path, "rb", buffering=0) as stream:
                digest.update(name.encode() + b"\0" + stream.read() + b"\0")
        elif child.is_dir():
            _add(digest, child.path, name)


def _plain(value: Any) -> Any:
    """JSON with the names of classes kept, so that two types with equal fields differ."""
    if isinstance(value, Struct):
        return {"": type(value).__name__, **_plain(structs.asdict(value))}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {
            field.name: _plain(getattr(value, field.name))
            for field in dataclasses.fields(value)
            if field.compare
        }
        return {"": type(value).__name__, **fields}
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, str | int | float | bool):
        return value
    raise TypeError(f"no fingerprint of a {type(value).__name__}")
