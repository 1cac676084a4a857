# SPDX-License-Identifier: Apache-2.0
"""Functions of deploy/kernels/elementary.c against NumPy in float64."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from shared.c_kernels import library

FUNCTIONS = {"expf": np.exp, "logf": np.log, "log1pf": np.log1p, "tanhf": np.tanh}

ULPS = 1.5
"""Units in the last place, of which rounding alone takes a half."""


def in_c(name: str, values: np.ndarray) -> np.ndarray:
    function = getattr(library(), f"pt_{name}")
    function.restype, function.argtypes = ctypes.c_float, [ctypes.c_float]
    return np.array([function(value) for value in values.tolist()], np.float32)


def all_sizes(step: int) -> np.ndarray:
    """Floats of every exponent and sign, infinities and NaN among them, and many around 1."""
    bits = np.arange(0, 2**32, step, dtype=np.uint64).astype(np.uint32).view(np.float32)
    return np.concatenate([bits, np.linspace(-2, 2, 5_001, dtype=np.float32), SPECIAL])


SPECIAL = np.array(
    [0.0, -0.0, np.inf, -np.inf, np.nan, -1.0, 1.0, 88.72, 88.73, -87.4, -103.9, -104.1, 1e-45, 1e-39],
    np.float32,
)


@pytest.mark.needs_gcc
@pytest.mark.parametrize("name", FUNCTIONS)
@np.errstate(all="ignore")
def test_a_function_is_right_to_a_few_units_in_the_last_place(name: str) -> None:
    values = all_sizes(187_011)
    found, truth = in_c(name, values), FUNCTIONS[name](values.astype(np.float64))
    rounded = truth.astype(np.float32)
    finite = np.isfinite(rounded)
    ulp = np.spacing(np.abs(rounded[finite])).astype(np.float64)
    assert np.max(np.abs(found[finite] - truth[finite]) / ulp) <= ULPS
    np.testing.assert_array_equal(found[~finite], rounded[~finite])
    number = ~np.isnan(rounded)
    np.testing.assert_array_equal(np.signbit(found[number]), np.signbit(rounded[number]))
