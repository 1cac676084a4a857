# SPDX-License-Identifier: Apache-2.0
"""What the array is given to do: layer by layer, for every unit, what to load and which jobs to run."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from arch.barvinn.job import Job


@dataclass(frozen=True, slots=True)
class Segment:
    """Jobs that find their weights, scalers and biases in memory together; each memory is filled from word 0.

    `weights` is uint64 [words, 64], `scalers` and `biases` int64 [entries, 64].
    """

    weights: NDArray[np.uint64]
    scalers: NDArray[np.int64]
    biases: NDArray[np.int64]
    jobs: tuple[Job, ...]


@dataclass(frozen=True, slots=True)
class LayerProgram:
    """One layer: the segments of every unit, and the words of its output map.

    `owned` are the addresses of the words each unit writes; together they are the map, `words` words from
    `first_word` on.
    """

    name: str
    units: tuple[tuple[Segment, ...], ...]
    owned: tuple[NDArray[np.int64], ...]
    first_word: int
    words: int


@dataclass(frozen=True, slots=True)
class ArrayProgram:
    """Layers one after the other; the input map lies at word 0 of every unit that is used, uint64 [words]."""

    inputs: NDArray[np.uint64]
    layers: tuple[LayerProgram, ...]

    @property
    def units(self) -> int:
        """Units that are used."""
        return len(self.layers[0].units) if self.layers else 1
