# SPDX-License-Identifier: Apache-2.0
"""Files of arrays: nearly right ones, so that most get past the door, and archives that lie."""

from __future__ import annotations

import io
import struct
import warnings
import zipfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from random import Random
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from tools.fuzz.cases import cases
from tools.fuzz.mutate import mutated_bytes
from tools.fuzz.subject import FOLDER, Subject

Array = npt.NDArray[Any]
Change = Callable[[Array, Random], Array]

LARGE_BYTES = 40_000_000
"""Of a member that is small in its archive: what the door lets pass."""


def archive_subject(generator: Random, base: Callable[[], Mapping[str, bytes]]) -> Subject:
    """A run with weights and inputs of its own; `base` has what ``--save-values`` has written."""
    if generator.random() < 0.35:
        with np.load(io.BytesIO(base()["values.npz"])) as saved:
            arrays: dict[str, Array] = {name: saved[name] for name in saved.files}
        if generator.random() < 0.5:
            arrays = {name: array for name, array in arrays.items() if "/" not in name}
        words: tuple[str, ...] = ("run", "simple-mlp", "--cores", "2", "--no-cache")
    else:
        case = generator.choice(cases())
        arrays = {name: np.asarray(array) for name, array in case.single.values.items()}
        words = tuple(case.words(generator))
    for _ in range(generator.choice((1, 1, 1, 2, 2, 3))):
        _change(arrays, generator)
    data = _archive(arrays, generator)
    return Subject("npz", (*words, "--values", f"{FOLDER}/v.npz", "-q"), {"v.npz": data})


def _change(arrays: dict[str, Array], generator: Random) -> None:
    """Change one array, or which there are."""
    if not arrays:
        return
    name = generator.choice(sorted(arrays))
    match generator.choices(("value", "kept", "type", "shape", "names"), (8, 8, 1, 1, 2))[0]:
        case "value":
            arrays[name] = _changed(generator.choice(_VALUES), arrays[name], generator)
        case "kept":
            arrays[name] = _changed(generator.choice(_KEPT), arrays[name], generator)
        case "type":
            arrays[name] = _changed(generator.choice(_TYPES), arrays[name], generator)
        case "shape":
            arrays[name] = _changed(generator.choice(_SHAPES), arrays[name], generator)
        case _:
            _rename(arrays, name, generator)


def _changed(change: Change, array: Array, generator: Random) -> Array:
    """The array changed; as it is, if an earlier change has left nothing that this one can be made to."""
    with (
        suppress(ValueError, TypeError, ArithmeticError),
        np.errstate(all="ignore"),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        return change(array.copy(), generator)
    return array


def _rename(arrays: dict[str, Array], name: str, generator: Random) -> None:
    match generator.randrange(6):
        case 0 | 1:
            del arrays[name]
        case 2:
            arrays[name + generator.choice((".grad", "1", " ", "\u00e9"))] = arrays.pop(name)
        case 3:
            arrays[name.upper()] = arrays.pop(name)
        case 4:
            arrays[generator.choice(("results/x", "before/y", "results/", "before/../x"))] = arrays[name]
        case _:
            arrays[generator.choice(("", "x1", "../x", "a/b", "/x", "\u00fc", "n" * 3000))] = arrays[name]


def _one(value: float) -> Change:
    """One element becomes the value, if the dtype has it."""

    def change(array: Array, generator: Random) -> Array:
        if array.size and (array.dtype.kind == "f" or (array.dtype.kind in "iu" and -1 <= value < 100)):
            array.flat[generator.randrange(array.size)] = value
        return array

    return change


def _all(value: float) -> Change:
    def change(array: Array, generator: Random) -> Array:
        del generator
        return np.full_like(
            array, value if array.dtype.kind == "f" else int(np.clip(np.nan_to_num(value), 0, 99))
        )

    return change


_VALUES: Sequence[Change] = (
    *(_one(value) for value in (np.nan, np.inf, -np.inf, 3e38, -3e38, 1e-45, -0.0)),
    *(_one(value) for value in (0.0, 65_504.0, 1e10, 7.0, -1.0)),
    *(_all(value) for value in (0.0, -0.0, 1.0, 1e-45, 1e-20, 1e6, 1e20, 3e38, np.nan, np.inf)),
    lambda array, _: array[::-1].copy(),
    lambda array, _: -array if array.dtype.kind in "fci" else array,
    lambda array, _: np.sort(array, axis=None).reshape(array.shape),
)  # fmt: skip
"""Other numbers of the same dtype and shape."""

_KEPT: Sequence[Change] = (
    lambda array, _: np.asfortranarray(array),
    lambda array, _: array.astype(array.dtype.newbyteorder(">")),
    lambda array, _: np.asfortranarray(array.astype(array.dtype.newbyteorder(">"))),
    lambda array, _: array.astype(np.float64),
    lambda array, _: array.astype(np.longdouble),
    lambda array, _: array.astype(np.float16),
    lambda array, _: array.astype(np.int64),
    lambda array, _: array.astype(np.int8),
    lambda array, _: array.astype(np.uint64),
    lambda array, _: array.astype(np.float64) * 1e39,
    lambda array, _: array.astype(np.uint64) + np.uint64(2**63),
    lambda array, _: np.full(array.shape, np.iinfo(np.int64).min),
    lambda array, _: array[..., ::-1] if array.ndim else array,
)
"""The same shape in another dtype or order; most of it can be taken."""

_TYPES: Sequence[Change] = (
    lambda array, _: array.astype(bool),
    lambda array, _: array.astype(np.complex64),
    lambda array, _: array.astype(object),
    lambda array, _: np.array([None, "x"], dtype=object),
    lambda array, _: array.astype("U8"),
    lambda array, _: array.astype("S8"),
    lambda array, _: array.astype(np.int64).astype("datetime64[s]"),
    lambda array, _: array.astype(np.int64).astype("timedelta64[s]"),
    lambda array, _: np.full(array.shape, "NaT", "timedelta64[ns]"),
    lambda array, _: np.zeros(array.shape, np.dtype([("a", "f4")])),
    lambda array, _: np.zeros(array.shape, "V2"),
    lambda array, _: np.zeros(array.shape, "V0"),
    lambda array, _: np.zeros(array.shape, "S0"),
    lambda array, _: np.zeros(array.shape, np.dtype(("f4", (2,)))),
)
"""Types that are no numbers, or not real ones."""

_SHAPES: Sequence[Change] = (
    lambda array, _: array.T,
    lambda array, _: array[np.newaxis],
    lambda array, _: array[..., np.newaxis],
    lambda array, _: array.reshape(-1),
    lambda array, _: np.squeeze(array),
    lambda array, _: array[:0] if array.ndim else array,
    lambda array, _: array[:-1] if array.ndim else array,
    lambda array, _: np.concatenate([array, array[:1]]) if array.ndim and len(array) else array,
    lambda array, _: np.pad(array, [(0, 1)] * array.ndim),
    lambda array, _: np.zeros((0, *array.shape), array.dtype),
    lambda array, _: np.array(3, array.dtype),
    lambda array, _: np.zeros((1,) * 32, array.dtype),
    lambda array, _: np.zeros((2**40, 0, 2**20), array.dtype),
)
"""The same numbers in another shape, one element more or less, none at all."""


def _archive(arrays: Mapping[str, Array], generator: Random) -> bytes:
    drawn = generator.random()
    if drawn < 0.92:
        data = _sound(arrays, generator)
        return mutated_bytes(data, generator) if drawn < 0.05 else data
    return _lying(arrays, generator)


def padded(array: Array) -> Array:
    """The array; of 80-bit floats the bytes beside the number are zero: NumPy leaves what was there."""
    if array.dtype.char != "g":
        return array
    order: Literal["C", "F"] = "C" if array.flags.c_contiguous else "F"
    raw = np.frombuffer(array.tobytes(order), np.uint8).reshape(-1, array.itemsize).copy()
    raw[:, slice(6) if array.dtype.byteorder == ">" else slice(10, None)] = 0
    return np.ndarray(array.shape, array.dtype, raw.tobytes(), order=order)


def _sound(arrays: Mapping[str, Array], generator: Random) -> bytes:
    """An archive as `numpy.savez` makes it, or as it might, now and then with something beside the arrays."""
    buffer = io.BytesIO()
    if generator.random() < 0.1:
        buffer.write(b"#!/bin/sh\n")  # an archive may follow something else
    kind = generator.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA))
    with warnings.catch_warnings(), zipfile.ZipFile(buffer, "w", kind) as archive:
        warnings.simplefilter("ignore")  # of names that are there already
        version = generator.choices(((1, 0), (2, 0), (3, 0)), (20, 5, 1))[0]
        names = list(arrays)
        if generator.random() < 0.1:
            generator.shuffle(names)
        for name in names:
            _member(archive, name, arrays[name], version)
        match generator.randrange(30):
            case 0 if names:
                double = generator.choice(names)
                _member(
                    archive,
                    double,
                    arrays[double] * 0 if arrays[double].dtype.kind == "f" else arrays[double],
                )
            case 1:
                large = zipfile.ZipInfo("results/large.npy")
                large.compress_type = zipfile.ZIP_DEFLATED  # the others take seconds
                with archive.open(large, "w") as stream:
                    np.lib.format.write_array(stream, np.zeros(LARGE_BYTES, np.int8))
            case 2:
                archive.writestr(zipfile.ZipInfo(generator.choice(("folder/", "notes.txt", "x"))), b"", kind)
            case 3:
                archive.comment = b"PK\5\6" * generator.choice((1, 100, 10_000))
            case _:
                pass
    return buffer.getvalue()


def _member(archive: zipfile.ZipFile, name: str, array: Array, version: tuple[int, int] = (1, 0)) -> None:
    with archive.open(f"{name}.npy", "w", force_zip64=True) as stream, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of versions that older NumPys cannot read
        np.lib.format.write_array(stream, padded(array), version=version, allow_pickle=True)


def _lying(arrays: Mapping[str, Array], generator: Random) -> bytes:
    """An archive with a header that lies, or with a member that is none."""
    buffer = io.BytesIO()
    kind = generator.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))
    liar = generator.choice(sorted(arrays) or ["x"])
    with zipfile.ZipFile(buffer, "w", kind) as archive:
        for name in arrays:
            if name != liar:
                _member(archive, name, arrays[name])
        name = liar + generator.choice((".npy", ".npy", ".npy", ".", ".txt"))
        archive.writestr(zipfile.ZipInfo(name), _headed(generator), kind)  # by name it had today's date
    return buffer.getvalue()


def _headed(generator: Random) -> bytes:
    shape = generator.choice(
        ("(1, 4, 4)", "(1000000000000,)", "(-1,)", "(4, 4", "()", "(1e3,)", "(True,)", "(4L,)")
    )
    descr = generator.choice(("<f4", "<f8", "|O", "<i4", "V9999999", "x", "|S0", "<U9", "f4,f4", ">f2"))
    order = generator.choice(("True", "False", "0", "None"))
    header = f"{{'descr': '{descr}', 'fortran_order': {order}, 'shape': {shape}, }}".ljust(117) + "\n"
    version = generator.choice((1, 1, 2, 3, 9))
    length = struct.pack(
        "<H" if version == 1 else "<I", len(header) + generator.choice((0, 0, 0, 1, -1, 60_000))
    )
    body = bytes(generator.choice((0, 10, 64, 1000, 1_000_000)))
    return b"\x93NUMPY" + bytes((version, 0)) + length + header.encode() + body
