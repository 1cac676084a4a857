# SPDX-License-Identifier: Apache-2.0
"""The files that ship with pulptrain, by kind and name, and the user's own files by path."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from os.path import isfile
from pathlib import Path

from configs.errors import ConfigError
from configs.suggest import check_known, suggestion
from configs.yaml_file import Node, installed_yaml, load_yaml

KINDS: Mapping[str, str] = {"soc": "SoC", "models": "model", "energy": "energy model"}
"""Kinds of files (names of the folders under ``configs``) and what one of them is called in messages."""

SUFFIXES = (".yaml", ".yml")

PULP = "pulp"
"""Kind of machine that a SoC file describes unless it says ``machine: ...``."""

_SWAPPED: Mapping[str, str] = {
    "models": "use a model (`pulptrain list models`), e.g. `pulptrain run tutorial-cnn --soc {name}`",
    "soc": "use --soc with a SoC (`pulptrain list socs`), and write the model after the command",
    "energy": "use the name of an energy model, e.g. gap9, or a file (docs/energy.md)",
}
"""By the kind that is asked for: what to write where a name of the other kind was given."""

_MACHINE = re.compile(r"^machine: *([\w-]+) *$", re.MULTILINE)


def list_names(kind: str, machine: str = PULP) -> tuple[str, ...]:
    """Return the sorted names of the installed files of a kind; raises `ConfigError` if not in `KINDS`.

    Of SoC files those that describe this kind of `machine`.
    """
    names = _all_names(kind)
    if kind != "soc":
        return names
    return tuple(name for name in names if _machine_of(name) == machine)


@cache
def _machine_of(soc: str) -> str:
    text = files("configs").joinpath("soc", f"{soc}.yaml").read_text(encoding="utf-8")
    match = _MACHINE.search(text)
    return match[1] if match else PULP


def _all_names(kind: str) -> tuple[str, ...]:
    check_known(kind, KINDS, f"unknown kind of configuration '{kind}'", error=ConfigError)
    folder = files("configs").joinpath(kind)
    if not folder.is_dir():
        return ()
    names = (entry.name for entry in folder.iterdir())
    return tuple(sorted(name.removesuffix(".yaml") for name in names if name.endswith(".yaml")))


def is_path(name_or_path: str | Path) -> bool:
    """Whether the text is meant as a path: it has a folder separator or ends in .yaml or .yml."""
    text = str(name_or_path)
    return isinstance(name_or_path, Path) or "/" in text or "\\" in text or text.endswith(SUFFIXES)


def open_config(kind: str, name_or_path: str | Path, *, folder: Path | None = None) -> Node:
    """Read an installed file by name or a user's file by path, as a YAML tree.

    A relative path is taken from `folder` (default: the current one). Installed files are labelled
    ``configs/<kind>/<name>.yaml`` in messages. Raises `ConfigError` for an unknown name, listing the known
    ones and the closest, for a file that cannot be read, and for broken YAML.
    """
    if is_path(name_or_path):
        path = Path(name_or_path)
        return load_yaml(folder / path if folder and not path.is_absolute() else path)
    name = str(name_or_path)
    names = _all_names(kind)
    if name not in names:
        other = next((each for each in KINDS if each != kind and name in _all_names(each)), None)
        if other is not None:
            what = f"'{name}' is a {KINDS[other]}, not a {KINDS[kind]}".replace("a energy", "an energy")
            raise ConfigError(what, cure=_SWAPPED[kind].format(name=name))
        files_here = [f"use '{name}{suffix}'" for suffix in SUFFIXES if isfile(f"{name}{suffix}")]
        file = (
            "a file: model.yaml, model.onnx, net.py:Net" if kind == "models" else "the path of a .yaml file"
        )
        cure = next(iter(files_here), f"{suggestion(name, list_names(kind))}, or {file}")
        raise ConfigError(f"unknown {KINDS[kind]} '{name}'", cure=cure)
    resource = files("configs").joinpath(kind, f"{name}.yaml")
    return installed_yaml(resource.read_text(encoding="utf-8"), f"configs/{kind}/{name}.yaml")
