# SPDX-License-Identifier: Apache-2.0
"""Data sets that ship with pulptrain."""

from __future__ import annotations

from importlib.resources import as_file, files

import numpy as np
from numpy.typing import NDArray

DIGITS_PIXEL_MAX = 16
"""Largest pixel value of the digits; 0 is blank paper."""


def load_digits_arrays() -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Return images (1797, 8, 8) uint8 with values 0..16 and labels (1797,) uint8 with values 0..9.

    Source: UCI Optical Recognition of Handwritten Digits, test part (see configs/data/README.md).
    """
    with (
        as_file(files("configs").joinpath("data", "digits.npz")) as path,
        np.load(path, allow_pickle=False) as archive,
    ):
        return archive["images"], archive["labels"]
