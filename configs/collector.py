# SPDX-License-Identifier: Apache-2.0
"""Python's search for reference cycles, in processes of ours: commands, workers, tests."""

from __future__ import annotations

import gc

GARBAGE_THRESHOLD = 1_000_000
"""Objects made before Python looks for cycles among them (usually 700)."""


def rarely() -> None:
    """From now on search rarely, and never in what is there by now.

    A run builds a large graph of objects that lives to its end and leaves few cycles: searching it again and
    again takes a fifth of the time of a cold run of ResNet8. Who imports pulptrain into a process of his own
    keeps his settings.
    """
    gc.freeze()
    gc.set_threshold(GARBAGE_THRESHOLD, 20, 20)
