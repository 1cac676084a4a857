"""Values of the user's own, and values for the user: .npz files with an array per tensor."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from configs.errors import InputError
from configs.files import check_file, replacing
from configs.suggest import suggestion
from trainlib.graph import FED_KINDS, TrainingGraph
from trainlib.numerics import is_float, rounded, widened
from trainlib.steps import Array

WHERE = "--values"

RESULT_FOLDERS = ("before/", "results/")
"""What a file of ``--save-values`` has beside the tensors that training goes on from."""

LOSSES = "results/losses"
"""Mean loss of every iteration; every file of ``--save-values`` has it."""


def read_values(path: str) -> dict[str, Array]:
    """The arrays of an .npz file by name. Raises InputError for a file that is none."""
    try:
        with np.load(Path(path), allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except (OSError, ValueError, AttributeError, TypeError, zipfile.BadZipFile) as error:
        raise InputError(
            f"cannot read '{path}': {error}", where=WHERE, cure="a file that numpy.savez has written"
        ) from None


def prepare_file(name: str) -> Path:
    """The file of ``--save-values``, refused before any work (`configs.files.check_file`)."""
    return check_file(name, "--save-values", _is_ours)


def write_values(path: Path, values: Mapping[str, Array]) -> None:
    """Write arrays to an .npz file; 16-bit floats, which NumPy's format does not have, as float32."""
    arrays: dict[str, Array] = {name: widened(array) for name, array in values.items()}
    with replacing(path) as temporary, temporary.open("wb") as stream:
        np.savez(stream, allow_pickle=False, **arrays)


def _is_ours(path: Path) -> bool:
    try:
        with zipfile.ZipFile(path) as archive:
            return f"{LOSSES}.npy" in archive.namelist()
    except zipfile.BadZipFile:
        return False


def with_own_values(
    graph: TrainingGraph,
    kept: Mapping[str, Array],
    stream: Iterator[Mapping[str, Array]],
    own: Mapping[str, Array],
) -> tuple[dict[str, Array], Iterator[Mapping[str, Array]]]:
    """(kept tensors at the start, values of every iteration) with the user's own in their places.

    What `write_values` has written can be given: its results are passed over. Raises as `replaced`.
    """
    wanted = {name: array for name, array in own.items() if not name.startswith(RESULT_FOLDERS)}
    fed = graph.of_kind(*FED_KINDS)
    first = next(stream)
    known = replaced(graph, {**kept, **first}, wanted)
    fixed = {name: known[name] for name in wanted if name in fed}

    def samples() -> Iterator[Mapping[str, Array]]:
        yield {**first, **fixed}
        for sample in stream:
            yield {**sample, **fixed}

    return {name: known[name] for name in kept}, samples()


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
            with np.errstate(over="ignore"):
                result[name] = rounded(array.astype(np.float32), tensor.dtype)
            if np.isfinite(array).all() and not np.isfinite(widened(result[name])).all():
                raise InputError(f"'{name}' holds numbers that {tensor.dtype} cannot", where=WHERE)
        else:
            if not np.issubdtype(array.dtype, np.integer) or (array.astype(tensor.dtype) != array).any():
                raise InputError(f"'{name}' is of {tensor.dtype}: integers of its range", where=WHERE)
            result[name] = array.astype(tensor.dtype)
    return result
