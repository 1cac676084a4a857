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
    "a further command of a transfer costs nothing": "every measured transfer is one command",
    "a 2D command costs what a 1D command does": (
        "the measured programs pushed every box with the 2D call, also one of a line, and so are predicted: "
        "which of two prices a command takes is not compared"
    ),
    "a priority at the banks that goes round stands still": (
        "no measured machine has one: GVSoC serves the lowest core first, the RTL has a fair round robin"
    ),
    "stalls in front of the measured turns are not extrapolated": (
        "kernels of these rows are executed whole; the first of 12 million instructions or more is cut"
    ),
}
"""Defects that no figure notices, and why: what is not measured cannot be watched by measurements."""
