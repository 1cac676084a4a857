"""The table of float formats: what follows from the bits of an entry is what NumPy and PyTorch do."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from configs.dtypes import BY_NAME, DTYPES, DType, element_bytes, float_of, is_float, is_narrow
from trainlib.numerics import rounded

SEVERAL = pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.word)


@SEVERAL
def test_every_number_of_an_entry_is_that_of_the_format(dtype: DType) -> None:
    truth = ml_dtypes.finfo(np.dtype(dtype.name))
    assert (dtype.bits, element_bytes(dtype.name)) == (truth.bits, truth.bits // 8)
    assert dtype.unit_roundoff == float(truth.eps) / 2
    assert dtype.least_exponent == truth.minexp
    assert dtype.smallest_normal == float(truth.smallest_normal)
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


def test_integers_are_no_floats_but_have_a_size() -> None:
    assert [element_bytes(name) for name in ("uint8", "int32", "float64")] == [1, 4, 8]
    assert not any(is_float(name) or is_narrow(name) or float_of(name) for name in ("uint8", "int32", "x"))
    assert [dtype.word for dtype in DTYPES if not is_narrow(dtype.name)] == ["fp32"]
    assert is_narrow(np.dtype("float16"))
    assert {dtype.sums_in for dtype in DTYPES} <= BY_NAME.keys()
    assert not any(BY_NAME[dtype.sums_in].is_storage_only for dtype in DTYPES)
