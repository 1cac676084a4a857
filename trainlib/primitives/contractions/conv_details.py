# SPDX-License-Identifier: Apache-2.0
"""What C sources need of the tile of a convolution beyond the sizes its nests are priced with.

See `KernelCall.details`; `deploy/kernels/` has the sources.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from trainlib.ir.access import Taps
from trainlib.ir.steps import Extent
from trainlib.primitives.contractions.conv_geometry import ConvGeometry, Segment
from trainlib.primitives.contractions.conv_nests import Reach

NOWHERE = -(2**20)
"""A first row, or column, that no image reaches."""


def first_of(taps: Taps, step: int, inner: int, divisor: int) -> int:
    """f of taps[p, k] = (p * step + k * inner + f) / divisor, where that is a whole number in the image."""
    position, tap = np.unravel_index(int(np.argmax(taps)), taps.shape)
    last = int(taps[position, tap])
    return last * divisor - int(position) * step - int(tap) * inner if last >= 0 else NOWHERE


def of_window(geometry: ConvGeometry, reach: Reach, *, gathers: bool) -> dict[str, Any]:
    """Where the kernel positions of a tile lie: of the forward step, or (`gathers`) of an input gradient."""
    steps, divisors = ((1, 1), geometry.strides) if gathers else (geometry.strides, (1, 1))
    (down, along), (high, wide) = steps, divisors
    return {
        "row_first": partial(first_of, reach.rows, down, geometry.dilations[0], high),
        "column_first": partial(first_of, reach.columns, along, geometry.dilations[1], wide),
        "step_h": down,
        "step_w": along,
        "divisor_h": high,
        "divisor_w": wide,
        "dilation_h": geometry.dilations[0],
        "dilation_w": geometry.dilations[1],
        "height": reach.height,
        "width": reach.width,
    }


def of_groups(
    geometry: ConvGeometry, parts: Sequence[Segment], within: Sequence[Extent], *, gathers: bool, fetched: int
) -> dict[str, Any]:
    """Which channels those of a tile meet, and which filters of those fetched from `fetched` on are theirs.

    Channel c is of group (own_first + c) // own_group of the tile, which meets the channels from met_first +
    group * met_group on.
    """
    walked, met = geometry.co_of_group, geometry.ci_of_group
    if gathers:
        walked, met = met, walked
    return {
        "own_first": parts[0].start % walked,
        "own_group": walked,
        "met_first": within[0][0],
        "met_group": met,
        "fetched": fetched,
    }
