# SPDX-License-Identifier: Apache-2.0
"""What the array is given to do: layer by layer, for every unit, what to load and which jobs to run."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from barvinn.machine.behaviour import Behaviour
from barvinn.machine.job import Job
from configs.values import Struct

Words = NDArray[np.uint64]


class Segment(Struct, frozen=True):
    """Jobs that find their weights, scalers and biases in memory together; each memory is filled from word 0.

    `weights` is uint64 [words, 64], `scalers` and `biases` int64 [entries, 64].
    """

    weights: NDArray[np.uint64]
    scalers: NDArray[np.int64]
    biases: NDArray[np.int64]
    jobs: tuple[Job, ...]


class HostStep(Struct, frozen=True):
    """What the host computes behind a layer because the units cannot: `op` (of ONNX) on `values` numbers.

    It reads `read_words` words from `read_first` on, of any unit, and gives every unit the `words` words that
    `compute` makes of them, from the first word of the layer's map on.
    """

    op: str
    values: int
    read_first: int
    read_words: int
    words: int
    compute: Callable[[Words], Words]


class LayerProgram(Struct, frozen=True):
    """One layer: the segments of every unit, and the words of its output map.

    `owned` are the addresses of the words each unit writes; together they are the map, `words` words from
    `first_word` on. A `host` step makes the map of the layer of it.
    """

    name: str
    units: tuple[tuple[Segment, ...], ...]
    owned: tuple[NDArray[np.int64], ...]
    first_word: int
    words: int
    host: HostStep | None = None


class ArrayProgram(Struct, frozen=True):
    """Layers one after the other, their registers written for `behaviour`.

    The input map, uint64 [words], lies from `first_word` on in every unit that is used.
    """

    inputs: Words
    first_word: int
    layers: tuple[LayerProgram, ...]
    behaviour: Behaviour

    @property
    def units(self) -> int:
        """Units that are used."""
        return len(self.layers[0].units) if self.layers else 1
