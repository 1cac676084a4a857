# SPDX-License-Identifier: Apache-2.0
"""The error of this room: a trace that contradicts itself."""

from __future__ import annotations

from configs.errors import PulptrainError


class TraceError(PulptrainError):
    """Slices overlap on a track, end before they start, or do not account for every cycle of a core.

    Such a trace is a fault of the simulator, not of its user, so the exit code is that of an internal error.
    """
