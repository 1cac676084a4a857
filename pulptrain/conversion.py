# SPDX-License-Identifier: Apache-2.0
"""Networks from ONNX, PyTorch or ours into a model file with its weights beside it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from configs.errors import InputError
from configs.files import check_file, replacing, start_of, write_text
from configs.model_text import model_text
from pulptrain.foreign_model import ModelOptions, open_foreign
from pulptrain.given_values import replaced
from pulptrain.npz_file import read_values
from pulptrain.session import model_of
from pulptrain.settings import Settings
from trainlib.graph import KEPT_KINDS, TrainingGraph
from trainlib.steps import Array
from trainlib.training import build_training_phases, initial_weights

MADE_BY = "made by pulptrain convert from "
"""Begins the comment of a model file that `convert` has written."""


def convert(
    source: str, target: str, settings: Settings, options: ModelOptions, values: str | None = None
) -> list[Path]:
    """Write `source` in the form that the suffix of `target` names; returns the files written.

    ``.yaml`` writes a model file and, beside it, its weights and statistics as ``.npz``. `values` are weights
    of a model file. Raises InputError for another suffix, for files that are there and not ours, and what
    reading `source` raises.
    """
    path = Path(target)
    if path.suffix != ".yaml":
        raise InputError(f"cannot write {target!r}", where="OUT", cure="NAME.yaml")
    weights_path = path.with_suffix(".npz")
    check_file(target, "OUT", _is_ours)
    check_file(str(weights_path), "OUT", _is_archive)
    foreign = open_foreign(source, settings, options)
    spec = foreign.spec if foreign is not None else model_of(source, settings)
    graph = build_training_phases(spec).mini_batch
    start = {**initial_weights(graph, settings.seed), **_weights(graph, foreign.values if foreign else {})}
    if values is not None:
        start = replaced(graph, start, read_values(values))
    start = {name: array for name, array in start.items() if name in graph.of_kind("weight", "buffer")}
    write_text(path, model_text(spec, f"{MADE_BY}{source}"))
    with replacing(weights_path) as temporary, temporary.open("wb") as stream:
        np.savez(
            stream,
            allow_pickle=False,
            **{name: np.asarray(array, np.float32) for name, array in start.items()},
        )
    return [path, weights_path]


def _weights(graph: TrainingGraph, values: Mapping[str, Array]) -> dict[str, Array]:
    kept = graph.of_kind(*KEPT_KINDS)
    return {name: array for name, array in values.items() if name in kept}


def _is_ours(path: Path) -> bool:
    return MADE_BY.encode() in start_of(path)


def _is_archive(path: Path) -> bool:
    return start_of(path, 2) == b"PK"
