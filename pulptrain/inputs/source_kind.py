# SPDX-License-Identifier: Apache-2.0
"""What a name or path that was typed is, and the command that takes it: for words in the wrong place."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from os.path import isdir, isfile
from pathlib import Path

from configs.errors import InputError
from configs.files import start_of
from configs.library import SUFFIXES, list_names
from traces.files.result_folder import EXPLORATION_FILES, SUMMARY_NAME, read_json

MODEL, RUN, SPEC = "model", "run", "exploration"

_COMMANDS: Mapping[str, tuple[str, str]] = {
    MODEL: ("a model", "run `pulptrain run {0}`"),
    RUN: ("a folder of results", "to look at the results, run `pulptrain why {0}` or `pulptrain plot {0}`"),
    "explored": ("a folder of an exploration", "read it in Python with `pulptrain.load('{0}')`"),
    "folder": ("a folder", ""),
    SPEC: ("an exploration", "run `pulptrain explore {0}`"),
    "soc": ("a SoC", "use it with --soc {0}"),
    "energy": ("an energy model", "use it with --energy {0}"),
    "schedule": ("a schedule", "use it with --schedule {0}"),
    "npz": ("a file of values", "use it with --values {0}"),
    "csv": ("a table of measured rows", "run `pulptrain compare RUN {0}` or `pulptrain validate KIND {0}`"),
}
"""By kind: what it is, and where it belongs."""

WANTED: Mapping[str, tuple[str, str]] = {
    MODEL: ("a model", "use a name (`pulptrain list models`), model.yaml, model.onnx or net.py:Net"),
    RUN: ("a folder of results", "run `pulptrain run {model} --out DIR`, and use DIR"),
    SPEC: (
        "an exploration file",
        "run `pulptrain new spec.yaml --kind explore`, add 'model: {model}', and use spec.yaml",
    ),
    "soc": ("a SoC", "use a name (`pulptrain list socs`) or the path of a SoC file"),
    "kernel": ("a kernel", "use a name that `pulptrain list kernels` prints"),
    "primitive": ("a layer, loss or optimizer", "use a name that `pulptrain list primitives` prints"),
    "rows": ("a kind of measured rows", "use e.g. `pulptrain validate mm measured/mm.csv.gz`"),
    "cases": ("a folder that contains cases", "use a folder with inputs.npz, outputs.npz and an .onnx file"),
}
"""What commands take, and how one comes by it."""

_KEYS: Mapping[str, tuple[str, ...]] = {
    MODEL: ("layers",),
    "energy": ("coefficients",),
    SPEC: ("sweep", "points"),
    "schedule": ("choices",),
    "soc": ("parameters", "base"),
}
"""Keys at the top of a file that tell what it is."""


def kind_of(text: str) -> str:
    """The kind of `_COMMANDS` that a name or path is of; "" if it is of none, or cannot be told."""
    path = Path(text)
    if isdir(path):
        marks = {SUMMARY_NAME: RUN, EXPLORATION_FILES[0]: "explored"}
        return next((kind for mark, kind in marks.items() if (path / mark).is_file()), "folder")
    if re.search(r"\.(onnx|py(:[A-Za-z_]\w*)?)$", text) or text in list_names("models"):
        return MODEL
    if text.endswith(SUFFIXES):
        keys = re.findall(rb"^(\w+):", start_of(path), re.MULTILINE) if isfile(path) else []
        names = {key.decode() for key in keys}
        return next((kind for kind, those in _KEYS.items() if names & {*those}), "")
    endings = {".npz": "npz", ".csv": "csv", ".csv.gz": "csv"}
    return next((kind for ending, kind in endings.items() if text.endswith(ending)), "")


def refuse_others(text: str, wanted: str, where: str | None = None) -> None:
    """Raise `InputError` if `text` is something else than is `wanted` (of `WANTED`), with what to type."""
    kind = kind_of(text)
    if kind in ("", wanted) or (kind, wanted) == ("folder", RUN):
        return
    (what, command), (name, how) = _COMMANDS[kind], WANTED[wanted]
    typed = shlex.quote(text)
    cures = [how.format(model=typed if kind == MODEL else "MODEL"), command.format(typed)]
    if kind == MODEL and wanted in (RUN, SPEC):
        cures = cures[:1]
    elif kind == RUN and wanted == MODEL:
        summary = read_json(Path(text) / SUMMARY_NAME, "pulptrain run MODEL --out DIR")
        cures[0] = f"use the model of that run, {summary.get('model')}"
    raise InputError(
        f"{text} is {what}, not {name}", where=where, cure="; or ".join(cure for cure in cures if cure)
    )
