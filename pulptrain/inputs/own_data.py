# SPDX-License-Identifier: Apache-2.0
"""Samples of the user's own: a file that the model names, or what a call of Python gives."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from configs.errors import InputError
from configs.model_file import OWN_DATA, ModelSpec
from pulptrain.inputs.npz_file import read_values
from trainlib.training.samples import Samples, own_samples

Data = Samples | Iterable[tuple[Any, Any]] | Mapping[str, Any] | str
"""What `data` may be: pairs (x, y), arrays by name (x, y, x_test, y_test), or the path of an .npz file.

Of several inputs or labels x or y of a pair is a tuple, or arrays by name; arrays by name are called as they
are.
"""


def data_of(spec: ModelSpec, given: Data | None) -> Samples | Iterable[tuple[Any, Any]] | None:
    """The samples of a run: `given`, or those of the file the model names; None for other data sets.

    Raises `InputError` for a file or arrays that are no samples.
    """
    if isinstance(given, str):
        return own_samples(read_values(given, "data"), given, *_names(spec))
    if isinstance(given, Mapping):
        arrays = {name: np.asarray(array) for name, array in given.items()}
        return own_samples(arrays, "data", *_names(spec))
    if given is not None:
        if isinstance(given, Samples):
            return given
        if not isinstance(given, Iterable):
            raise InputError(
                f"the samples must be pairs (x, y), not {given!r}",
                where="data",
                cure="pass a list of pairs (x, y), or a mapping of arrays: {'x': ..., 'y': ...}",
            )
        pairs: Iterable[tuple[Any, Any]] = given
        return pairs
    if spec.dataset.endswith(OWN_DATA):
        # From the folder of the model file, or else from the current one.
        path = Path(spec.where.rpartition(":")[0]).parent / spec.dataset
        path = path if path.is_file() else Path(spec.dataset)
        return own_samples(read_values(str(path), f"{spec.where}: dataset"), spec.dataset, *_names(spec))
    return None


def _names(spec: ModelSpec) -> tuple[list[str], list[str]]:
    """What arrays of the inputs and of the labels of a model may be called."""
    labels = dict.fromkeys(loss.label for loss in spec.losses if loss.label is not None)
    return [item.name for item in spec.inputs], [*labels]
