# SPDX-License-Identifier: Apache-2.0
"""Arrays by name in .npz files: read with care, since anybody may have made them, and written."""

from __future__ import annotations

import contextlib
import lzma
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Mapping
from math import prod
from pathlib import Path

import numpy as np

from configs.errors import InputError, cure_of
from configs.files import check_file, replacing
from configs.limits import require_host_memory
from trainlib.ir.numerics import widened
from trainlib.ir.steps import Array

WHERE = "--values"

LOSSES = "results/losses"
"""Mean loss of every iteration; every file of ``--save-values`` has it."""

_WEIGHTS = b"weights, written by pulptrain"
"""Comment of an archive that lies beside a model file."""

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


def read_values(path: str, where: str = WHERE) -> dict[str, Array]:
    """The arrays of an .npz file by name. Raises InputError for a file that is none, or too large.

    What the archive says of its members is looked at before any is read: a small file may hold a large one.
    """
    file = Path(path)
    try:
        if not file.is_file():
            raise InputError(
                f"the file '{path}' does not exist", where=where, cure="use a file written by numpy.savez"
            )
        with zipfile.ZipFile(file) as archive:
            members = archive.infolist()
            sizes_bytes = sum(member.file_size for member in members)
            require_host_memory(COPIES * sizes_bytes, f"the arrays of '{path}' need", where=where)
            if not members:
                raise InputError(
                    f"the archive '{path}' holds no array",
                    where=where,
                    cure="write arrays with numpy.savez(FILE, x=...)",
                )
            return dict(_array(archive, member, path) for member in members)
    except _UNREADABLE as error:
        raise InputError(
            f"cannot read '{path}' as NumPy arrays: {error.args[0] if error.args else type(error).__name__}",
            where=where,
            cure=cure_of(error, "use a file written by numpy.savez"),
        ) from None


def _array(archive: zipfile.ZipFile, member: zipfile.ZipInfo, path: str) -> tuple[str, Array]:
    """Name and values of one member. Raises InputError for one that is no array, or not as it says."""
    where = f"{WHERE} {path}: {member.filename!r}"
    if member.flag_bits & ENCRYPTED:
        raise InputError("the archive is encrypted", where=where, cure="use an archive without a password")
    if not member.filename.endswith(".npy"):
        raise InputError(
            "the archive holds a file that is not an array (.npy)",
            where=where,
            cure="store arrays only, as numpy.savez does",
        )
    with archive.open(member) as stream:
        version = np.lib.format.read_magic(stream)
        read_header = _HEADERS.get(version)
        if read_header is None:
            what = f"the array has the unknown .npy version {version}"
            raise InputError(what, where=where, cure="write the file with numpy.savez")
        shape, _, dtype = read_header(stream)
        data_bytes = prod(shape) * dtype.itemsize
        if dtype.hasobject:
            raise InputError("the array holds Python objects", where=where, cure="store numbers")
        if min(shape, default=0) < 0 or data_bytes > member.file_size:
            raise InputError(
                f"an array declares shape {shape} of {dtype} ({data_bytes} B), but the file holds "
                f"{member.file_size} B of it",
                where=where,
                cure="use a complete file",
            )
    with archive.open(member) as stream:
        values: Array = np.lib.format.read_array(stream, allow_pickle=False)
    return member.filename.removesuffix(".npy"), values


def prepare_file(name: str) -> Path:
    """The file of ``--save-values``, refused before any work (`configs.files.check_file`)."""
    return check_file(name, "--save-values", _is_ours)


def check_weights(model_file: Path, option: str) -> Path:
    """The file of weights beside a model file, refused before any work if it is there and not ours.

    One that ``--save-values`` has written is the user's.
    """

    def is_ours(path: Path) -> bool:
        with contextlib.suppress(zipfile.BadZipFile), zipfile.ZipFile(path) as archive:
            return archive.comment == _WEIGHTS
        return False

    return check_file(str(model_file.with_suffix(".npz")), option, is_ours)


def write_weights(path: Path, values: Mapping[str, Array]) -> None:
    """Write what a model of others begins with to the file beside its model file."""
    write_values(path, values, _WEIGHTS)


def write_values(path: Path, values: Mapping[str, Array], comment: bytes = b"") -> None:
    """Write arrays to an .npz file; floats narrower than float32 become float32."""
    arrays: dict[str, Array] = {name: widened(array) for name, array in values.items()}
    with replacing(path) as temporary:
        with temporary.open("wb") as stream:
            np.savez(stream, allow_pickle=False, **arrays)
        if comment:
            with zipfile.ZipFile(temporary, "a") as archive:
                archive.comment = comment


def _is_ours(path: Path) -> bool:
    try:
        with zipfile.ZipFile(path) as archive:
            return f"{LOSSES}.npy" in archive.namelist()
    except zipfile.BadZipFile:
        return False
