# SPDX-License-Identifier: Apache-2.0
"""Texts of a run that depend on the processor: BLAS adds in an order of its own."""

from __future__ import annotations

import re


def without_rounding(text: str) -> str:
    """The text without its lines of numbers and loss."""
    return re.sub(r"^(numbers|loss)  .*\n(?: .*\n)*", r"\1\n", text, flags=re.MULTILINE)
