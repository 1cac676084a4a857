# SPDX-License-Identifier: Apache-2.0
"""pulptrain: how many cycles one DNN training iteration takes on a PULP SoC, and where they go."""

from __future__ import annotations

import sys

from pulptrain import interrupts

if interrupts.is_command():
    interrupts.begin()  # before anything else is imported

from pulptrain.environment import check_own_packages

__version__ = "0.2.0"

try:
    check_own_packages()
except ImportError as error:
    if interrupts.is_command():
        sys.exit(f"pulptrain: {error}")
    raise
