# SPDX-License-Identifier: Apache-2.0
"""How many stored results of kernels a result is made of, in an op's tiles: each is a rounding in 16 bit."""

from __future__ import annotations

from collections.abc import Mapping

from scheduler.tiles.tiling import Tiling
from trainlib.ir.steps import Region


def roundings_behind(tiling: Tiling) -> int:
    """Most kernels that together make a box of a tensor the op writes, the last one included.

    A kernel that only moves numbers counts as well. Sums that are cut count on from tile to tile: what is
    held in L1, and what was stored and is loaded again.
    """
    stored: dict[tuple[str, Region], int] = {}
    held: dict[str, int] = {}
    kernels, most = 0, 1
    for task in tiling.tiles:
        made_by = dict(held)
        """Kernels behind a buffer, or a part of one that is written or read by itself, a bit each."""
        for operand in task.inputs:
            made_by[operand.name] = stored.get((operand.tensor, operand.region), 0)
        for call in task.calls:
            behind = 1 << kernels
            kernels += 1
            for name in call.reads:
                behind |= _behind(made_by, name)
            made_by |= dict.fromkeys(call.writes, behind)
        for operand in task.written:
            behind = _behind(made_by, operand.name)
            stored[operand.tensor, operand.region] = held[operand.name] = behind
            most = max(most, behind.bit_count())
    return most


def _behind(made_by: Mapping[str, int], name: str) -> int:
    """Of a part that nobody wrote, what is behind its buffer; of a buffer, what is behind all its parts."""
    if "[" in name:
        return made_by.get(name, made_by.get(name.partition("[")[0], 0))
    behind = 0
    for other, kernels in made_by.items():
        if other.partition("[")[0] == name:
            behind |= kernels
    return behind
