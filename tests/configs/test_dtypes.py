# SPDX-License-Identifier: Apache-2.0
"""The table of float formats: what follows from the bits of an entry is what NumPy and PyTorch do."""

from __future__ import annotations

import copy
import json
import pickle

import ml_dtypes
import numpy as np
import pytest

from configs.dtypes import (
    BY_NAME,
    DTYPES,
    INT32,
    UINT8,
    DType,
    dtype_of,
    element_bytes,
    float_of,
    is_float,
    is_narrow,
)
from shared.paths import ROOT
from trainlib.ir.graph import Tensor
from trainlib.ir.numerics import rounded

EIGHT_BITS = [dtype for dtype in DTYPES if dtype.bits == 8]
SEVERAL = pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.word)
EIGHT = pytest.mark.parametrize("dtype", EIGHT_BITS, ids=lambda dtype: dtype.word)


@SEVERAL
def test_every_number_of_an_entry_is_that_of_the_format(dtype: DType) -> None:
    truth = ml_dtypes.finfo(np.dtype(dtype.name))
    assert (dtype.bits, element_bytes(dtype.name)) == (truth.bits, truth.bits // 8)
    assert dtype.unit_roundoff == float(truth.eps) / 2
    assert dtype.least_exponent == truth.minexp
    assert dtype.finest_step == float(truth.smallest_subnormal)
    assert dtype.largest == float(truth.max)
    with np.errstate(over="ignore"):
        beyond = rounded(np.array([4 * dtype.largest], np.float64), dtype.name).astype(np.float64)
    assert np.isinf(beyond[0]) == dtype.has_infinity
    assert not np.isfinite(beyond[0])


@SEVERAL
def test_poison_is_a_nan_of_every_format(dtype: DType) -> None:
    poison = np.frombuffer(dtype.poison.to_bytes(dtype.bytes), dtype.name)
    assert poison.shape == (1,)
    assert np.isnan(poison.astype(np.float64))[0]


@SEVERAL
def test_the_page_says_the_same(dtype: DType) -> None:
    page = ROOT / "docs" / "dtypes.md"
    (row,) = (line for line in page.read_text(encoding="utf-8").splitlines() if f"| `{dtype.word}` |" in line)
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[1] == str(dtype.bits)
    layout = f"1-{dtype.exponent_bits}-{dtype.fraction_bits}"
    assert cells[2] == layout + ("" if dtype.has_infinity else ", no infinities")
    assert float(cells[3]) == pytest.approx(dtype.largest, rel=0.01)
    assert cells[4] == f"2^{dtype.least_exponent}"
    assert cells[5] == f"2^{-dtype.fraction_bits - 1}"
    assert cells[6] == ("fp32, after conversion" if dtype.is_storage_only else dtype.word)
    assert cells[7] == BY_NAME[dtype.sums_in].word


@pytest.mark.parametrize("dtype", [*DTYPES, INT32, UINT8])
def test_a_format_is_its_name_where_text_is_wanted_and_itself_again(dtype: DType) -> None:
    assert json.loads(json.dumps(dtype)) == f"{dtype}" == np.dtype(dtype).name == dtype
    assert repr(dtype) == repr(dtype.name)
    assert (np.dtype(dtype).itemsize, np.zeros(1, dtype).dtype.kind in "iu") == (
        dtype.bytes,
        not dtype.is_float,
    )
    for again in (pickle.loads(pickle.dumps(dtype)), copy.deepcopy(dtype), dtype_of(np.dtype(dtype))):
        assert again is dtype
    assert Tensor("x", (3,), "input", dtype.name).dtype is dtype  # importers and tests name it


def test_integers_are_no_floats_but_have_a_size() -> None:
    assert [element_bytes(name) for name in ("uint8", "int32", "float64")] == [1, 4, 8]
    assert not any(is_float(name) or is_narrow(name) or float_of(name) for name in ("uint8", "int32", "x"))
    assert [dtype.word for dtype in DTYPES if not is_narrow(dtype.name)] == ["fp32"]
    assert is_narrow(np.dtype("float16"))
    assert {dtype.sums_in for dtype in DTYPES} <= BY_NAME.keys()
    assert not any(BY_NAME[dtype.sums_in].is_storage_only for dtype in DTYPES)


def codes(dtype: DType) -> np.ndarray:
    """All 256 numbers of an 8-bit format, as stored."""
    return np.arange(256, dtype=np.uint8).view(dtype.name)


def places(dtype: DType) -> np.ndarray:
    """float32 numbers around all decisions of rounding: numbers, middles of two, and their neighbours."""
    numbers = np.unique(codes(dtype).astype(np.float32))
    numbers = numbers[np.isfinite(numbers)]
    step = np.float32(dtype.largest * dtype.unit_roundoff)
    numbers = np.concatenate([[numbers[0] - 2 * step], numbers, [numbers[-1] + 2 * step]]).astype(np.float32)
    points = np.concatenate([numbers, (numbers[1:] + numbers[:-1]) / 2, [1e30, -1e30, np.inf, -np.inf]])
    points = points.astype(np.float32)
    around = [points, np.nextafter(points, np.float32(np.inf)), np.nextafter(points, np.float32(-np.inf))]
    return np.concatenate([*around, np.random.default_rng(0).normal(0, dtype.largest / 3, 5000)]).astype(
        np.float32
    )


def by_definition(value: float, dtype: DType) -> float:
    """The nearest number of the format, of two the one with an even last bit.

    Sizes stand in the order of their codes; behind the largest comes one that stands for all too large ones.
    """
    sizes = codes(dtype)[:128].astype(np.float64)
    sizes = sizes[np.isfinite(sizes)]
    sizes = np.append(sizes, 2 * sizes[-1] - sizes[-2])
    distances = np.abs(sizes - min(abs(value), sizes[-1]))
    code = min(np.flatnonzero(distances == distances.min()), key=lambda code: code % 2)
    if code < len(sizes) - 1:
        return float(np.copysign(sizes[code], value))
    return float(np.copysign(np.inf, value)) if dtype.has_infinity else float("nan")


@EIGHT
def test_all_256_codes_come_back_bit_by_bit(dtype: DType) -> None:
    stored = codes(dtype)
    wide = stored.astype(np.float32)
    back = rounded(wide, dtype.name)
    number = ~np.isnan(wide)
    assert number.sum() == (254 if not dtype.has_infinity else 250)
    assert np.array_equal(back.view(np.uint8)[number], stored.view(np.uint8)[number])
    assert np.isnan(back.astype(np.float32)[~number]).all()


@EIGHT
def test_rounding_is_to_nearest_even_and_does_not_saturate(dtype: DType) -> None:
    values = places(dtype)
    found = rounded(values, dtype.name).astype(np.float64)
    truth = np.array([by_definition(float(value), dtype) for value in values])
    assert np.array_equal(found, truth, equal_nan=True)


@pytest.mark.needs_torch
@EIGHT
def test_pytorch_rounds_to_the_same_bits(dtype: DType) -> None:
    import torch

    values = places(dtype)
    kind = getattr(torch, dtype.name)
    ours, theirs = rounded(values, dtype.name), torch.from_numpy(values).to(kind)
    number = ~np.isnan(ours.astype(np.float32))
    assert np.array_equal(ours.view(np.uint8)[number], theirs.view(torch.uint8).numpy()[number])
    if dtype.has_infinity:
        assert number.all()
    else:  # older versions of PyTorch make NaN of them as well, newer ones the largest number
        beyond = theirs.to(torch.float32)[torch.from_numpy(~number)]
        assert (torch.isnan(beyond) | (beyond.abs() == dtype.largest)).all()
    all_codes = torch.arange(256, dtype=torch.uint8).view(kind).to(torch.float32).numpy()
    assert np.array_equal(all_codes, codes(dtype).astype(np.float32), equal_nan=True)
