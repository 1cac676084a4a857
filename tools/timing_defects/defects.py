# SPDX-License-Identifier: Apache-2.0
"""All timing defects by name, part of the product after part, and why no row sees some of them."""

from __future__ import annotations

from tools.timing_defects import lowerings, prices, team, tile_loop, transfers
from tools.timing_defects.change import Change

DEFECTS: dict[str, Change] = {
    name: change
    for module in (lowerings, tile_loop, transfers, team, prices)
    for name, change in module.DEFECTS.items()
}
"""What is wrong -> how to make it so."""

NOT_SEEN = {
    "the bias of a convolution is added in two forks": "no measured layer has a bias",
    "partial sums of a cut K are added without a kernel": "no measured loop cuts K",
    "the queue of a core holds one command": (
        "the RTL holds one; in rows of GVSoC a command leaves the queue of its core before the next one is "
        "programmed"
    ),
    "every command of a transfer but the first costs nothing": "every measured transfer is one command",
    "a 2D command costs what a 1D command does": (
        "the measured programs use the 2D call for every tile, also for a tile of one line, and so does "
        "their prediction; no measurement depends on when a 1D command is chosen"
    ),
    "a rotating priority at the banks never rotates": (
        "no measured machine has such a priority: GVSoC serves the lowest core first, the RTL has a fair "
        "round robin"
    ),
    "stalls of iterations that are not simulated are left out": (
        "kernels of these rows are simulated completely; only kernels of more than 12 million instructions "
        "are not"
    ),
}
"""Defects that no figure notices, and why: what is not measured cannot be watched by measurements."""
