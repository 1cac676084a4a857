# SPDX-License-Identifier: Apache-2.0
"""What a predictor answers for one measured row."""

from __future__ import annotations

from configs.values import Struct


class Prediction(Struct, frozen=True):
    """Predicted cycles, and instructions summed over the cores where the KIND measures them."""

    cycles: int
    instructions: int | None = None
