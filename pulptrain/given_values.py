"""Values of the user's own for a primitive: an .npz file with an array per tensor."""

from __future__ import annotations

import lzma
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Mapping
from math import prod
from pathlib import Path

import numpy as np

from configs.errors import InputError
from configs.limits import require_host_memory
from configs.suggest import suggestion
from trainlib.graph import TrainingGraph
from trainlib.numerics import is_float, rounded
from trainlib.steps import Array

WHERE = "--values"

COPIES = 4
"""Bytes an array takes per byte of its member: read, converted, rounded."""

ENCRYPTED = 1
"""Flag of an archive's member."""

_HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}

_UNREADABLE = (
    OSError,
    EOFError,
    ValueError,
    TypeError,
    AttributeError,
    ArithmeticError,
    LookupError,
    SyntaxError,
    RuntimeError,
    struct.error,
    tokenize.TokenError,
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
)
"""What the readers of zip and .npy raise for damaged files; nothing of ours runs in between."""


def read_values(path: str) -> dict[str, Array]:
    """The arrays of an .npz file by name. Raises InputError for a file that is none, or too large.

    What the archive says of its members is looked at before any is read: a small file may hold a large one.
    """
    file = Path(path)
    try:
        if not file.is_file():
            raise InputError(
                f"cannot read '{path}': it is no file",
                where=WHERE,
                cure="a file that numpy.savez has written",
            )
        with zipfile.ZipFile(file) as archive:
            members = archive.infolist()
            sizes_bytes = sum(member.file_size for member in members)
            require_host_memory(COPIES * sizes_bytes, f"the arrays of '{path}' need", where=WHERE)
            if not members:
                raise InputError(f"'{path}' holds no array", where=WHERE, cure="numpy.savez(FILE, x=...)")
            return dict(_array(archive, member, path) for member in members)
    except _UNREADABLE as error:
        raise InputError(
            f"cannot read '{path}': {error or type(error).__name__}",
            where=WHERE,
            cure="a file that numpy.savez has written",
        ) from None


def _array(archive: zipfile.ZipFile, member: zipfile.ZipInfo, path: str) -> tuple[str, Array]:
    """Name and values of one member. Raises InputError for one that is no array, or not as it says."""
    where = f"{WHERE} {path}: {member.filename!r}"
    if member.flag_bits & ENCRYPTED:
        raise InputError("is encrypted", where=where, cure="an archive without a password")
    if not member.filename.endswith(".npy"):
        raise InputError("is no .npy member", where=where, cure="arrays only, as numpy.savez writes them")
    with archive.open(member) as stream:
        version = np.lib.format.read_magic(stream)
        read_header = _HEADERS.get(version)
        if read_header is None:
            raise InputError(f"has the unknown .npy version {version}", where=where)
        shape, _, dtype = read_header(stream)
        data_bytes = prod(shape) * dtype.itemsize
        if dtype.hasobject:
            raise InputError("holds Python objects, not numbers", where=where)
        if min(shape, default=0) < 0 or data_bytes > member.file_size:
            raise InputError(
                f"says it has shape {shape} of {dtype} ({data_bytes} B), but has {member.file_size} B",
                where=where,
                cure="a file that is whole",
            )
    with archive.open(member) as stream:
        values: Array = np.lib.format.read_array(stream, allow_pickle=False)
    return member.filename.removesuffix(".npy"), values


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
