# SPDX-License-Identifier: Apache-2.0
"""What the hierarchical name of a track means: core, DMA channel or another, and its name for people."""

from __future__ import annotations

import functools
import re

from configs.values import Struct

CORE = "core"
DMA = "dma"
UDMA = "udma"
ITERATION = "iteration"
MEMORY = "memory"
OTHER = "other"

ITERATION_PATH, MEMORY_PATH = f"soc.{ITERATION}", f"soc.{MEMORY}"
"""Tracks that are no module: what the iteration is at, and below the second what lives in a memory."""

INWARD = "in"
OUTWARD = "out"

_CORE = re.compile(r"core(\d+)\Z")
_DMA = re.compile(r"(?:dma|mchan)\d*\Z")
_DIRECTION = re.compile(r"(in|read|rx|to_l1|out|write|tx|from_l1|to_ext)(?=\d|_|\Z)_?(\d*)\Z")
_NAMED = {
    ITERATION_PATH: (ITERATION, "phases, ops, tiles"),
    **{f"{MEMORY_PATH}.{level}": (MEMORY, level.upper()) for level in ("l1", "l2", "l3")},
    UDMA: (UDMA, "uDMA"),
}
"""Tracks by their path or by its last component: family and label."""
_INWARD_WORDS = frozenset({"in", "read", "rx", "to_l1"})
_CLASS_RANK = {ITERATION: 0, MEMORY: 0, DMA: 0, CORE: 1, UDMA: 2, OTHER: 2}
_DIRECTION_RANK = {INWARD: 0, OUTWARD: 1, "": 2}


class TrackName(Struct, frozen=True):
    """A track read from its path.

    `family` is `CORE`, `DMA`, `UDMA`, `ITERATION`, `MEMORY` or `OTHER`; `index` the number of the core or
    channel (-1 without one); `direction` is `INWARD` (to L1), `OUTWARD` or empty where the path does not say.
    """

    path: str
    family: str
    index: int
    direction: str
    label: str

    @property
    def order(self) -> tuple[int, int, int, str]:
        """Sort key: DMA in, DMA out, core 0, core 1, ..., then everything else by path."""
        return (_CLASS_RANK[self.family], _DIRECTION_RANK[self.direction], self.index, self.path)


@functools.lru_cache(maxsize=1024)  # a run asks for the same few tracks once per slice
def track_name(path: str) -> TrackName:
    """Read the path of a track.

    ``soc.cluster.core3`` is core 3; a component ``dma`` (or ``mchan``) makes a DMA track, and its last
    component may give direction and channel: ``soc.cluster.dma.in``, ``soc.cluster.dma.out2``.
    """
    parts = path.split(".")
    core = _CORE.fullmatch(parts[-1])
    if core:
        return TrackName(path, CORE, int(core[1]), "", f"core {int(core[1])}")
    named = _NAMED.get(path) or _NAMED.get(parts[-1])
    if named is not None:
        return TrackName(path, named[0], -1, "", named[1])
    if not any(_DMA.fullmatch(part) for part in parts):
        return TrackName(path, OTHER, -1, "", path.removeprefix("soc.").replace("_", " "))
    directed = _DIRECTION.fullmatch(parts[-1])
    if directed:
        direction = INWARD if directed[1] in _INWARD_WORDS else OUTWARD
        index = int(directed[2]) if directed[2] else -1
        label = f"DMA {direction}" + (f" {index}" if index >= 0 else "")
        return TrackName(path, DMA, index, direction, label)
    number = re.search(r"(\d+)\Z", parts[-1])
    index = int(number[1]) if number else -1
    tail = "" if _DMA.fullmatch(parts[-1]) else f" {parts[-1]}"
    return TrackName(path, DMA, index, "", f"DMA{tail}")


def op_label(op: str, step: str) -> str:
    """Name of an op for people and tables: ``layer.step``; `op` may or may not carry its step already."""
    if not step or op.endswith(f".{step}"):
        return op
    return f"{op}.{step}" if op else step
