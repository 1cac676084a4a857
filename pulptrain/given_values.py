"""Values of the user's own for a primitive: an .npz file with an array per tensor."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from configs.errors import InputError
from configs.suggest import suggestion
from trainlib.graph import TrainingGraph
from trainlib.numerics import is_float, rounded
from trainlib.steps import Array

WHERE = "--values"


def read_values(path: str) -> dict[str, Array]:
    """The arrays of an .npz file by name. Raises InputError for a file that is none."""
    try:
        with np.load(Path(path), allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except (OSError, ValueError, AttributeError, TypeError, zipfile.BadZipFile) as error:
        raise InputError(
            f"cannot read '{path}': {error}", where=WHERE, cure="a file that numpy.savez has written"
        ) from None


def replaced(graph: TrainingGraph, values: Mapping[str, Array], own: Mapping[str, Array]) -> dict[str, Array]:
    """`values` with the user's own in their place, rounded to the dtype of the tensor.

    Raises InputError for a name that is no given tensor, another shape, or numbers the dtype cannot hold.
    """
    result = dict(values)
    for name, array in own.items():
        if name not in values:
            raise InputError(f"no given tensor '{name}'", where=WHERE, cure=suggestion(name, values))
        tensor = graph.tensors[name]
        if array.shape != tensor.shape:
            raise InputError(
                f"'{name}' has shape {array.shape}, the tensor {tensor.shape}",
                where=WHERE,
                cure="the batch comes first",
            )
        if is_float(tensor.dtype):
            if not np.issubdtype(array.dtype, np.number) or np.iscomplexobj(array):
                raise InputError(f"'{name}' holds {array.dtype}, not numbers", where=WHERE)
            result[name] = rounded(array.astype(np.float32), tensor.dtype)
        else:
            if not np.issubdtype(array.dtype, np.integer) or (array.astype(tensor.dtype) != array).any():
                raise InputError(f"'{name}' is of {tensor.dtype}: integers of its range", where=WHERE)
            result[name] = array.astype(tensor.dtype)
    return result
