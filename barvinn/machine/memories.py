# SPDX-License-Identifier: Apache-2.0
"""The memories of one unit; a word that nobody has written cannot be read unnoticed."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from barvinn.machine.timing import LANES, MemorySizes
from configs.errors import RaceError

Words = NDArray[Any]


def packed_lanes(ones: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Zeros and ones of 64 lanes, [..., 64], as words, [...]: lane i in bit i."""
    octets = np.packbits(ones.astype(np.uint8), axis=-1, bitorder="little")
    words: NDArray[np.uint64] = np.ascontiguousarray(octets).view("<u8")[..., 0]
    return words


class WordMemory:
    """`words` words of any shape, and which of them hold something.

    Reading a word that was never written, or any access beyond the end, raises `RaceError`: the jobs are
    wrong. If it is not strict, unwritten words are zeros, as in a RAM after power-up.
    """

    def __init__(self, path: str, words: int, shape: tuple[int, ...], dtype: type[np.generic]) -> None:
        self.path = path
        self._values = np.zeros((words, *shape), dtype)
        self._written = np.zeros(words, bool)
        self.is_strict = True

    def __len__(self) -> int:
        return len(self._values)

    @property
    def word_bytes(self) -> int:
        """Bytes of one word."""
        return self._values[:1].nbytes

    def clear(self) -> None:
        """Forget everything."""
        self._written[:] = False

    def forget(self, first: int, count: int) -> None:
        """End the life of some words: reading them is an error again."""
        self._written[first : first + count] = False

    def write(self, addresses: NDArray[np.int64] | slice, values: Words) -> None:
        """Write words; raises `RaceError` beyond the end."""
        self._check(addresses)
        self._values[addresses] = values
        self._written[addresses] = True

    def read(self, addresses: NDArray[np.int64] | slice) -> Words:
        """Read words; raises `RaceError` beyond the end and for words never written."""
        self._check(addresses)
        written = self._written[addresses]
        if not written.all():
            if not self.is_strict:
                kept = written.reshape(-1, *[1] * (self._values.ndim - 1))
                return np.where(kept, self._values[addresses], self._values.dtype.type(0))
            first = np.arange(len(self))[addresses][~written][0]
            raise RaceError(
                f"word {first} of this memory is read before anything was written to it",
                where=self.path,
                cure="write the input to this address first",
            )
        return self._values[addresses]

    def held(self, address: int) -> Any:
        """What lies in a word, zeros if nobody has written it."""
        return self._values[address] if self._written[address] else self._values.dtype.type(0)

    def _check(self, addresses: NDArray[np.int64] | slice) -> None:
        if isinstance(addresses, slice):
            last = int(addresses.stop)
        else:
            last = int(addresses.max()) + 1 if addresses.size else 0
        if last > len(self):
            raise RaceError(
                f"the access reaches word {last - 1}, but this memory has {len(self)} words", where=self.path
            )


class UnitMemories:
    """Activations [words] uint64, lane c in bit c; weights [words, 64] uint64, a row of input bits per output
    lane; scalers [words, 64] int64 and biases [words, 64] int64, as their widths allow."""

    def __init__(self, path: str, sizes: MemorySizes) -> None:
        self.activations = WordMemory(f"{path}.activations", sizes.activation_words, (), np.uint64)
        self.weights = WordMemory(f"{path}.weights", sizes.weight_words, (LANES,), np.uint64)
        self.scalers = WordMemory(f"{path}.scalers", sizes.scaler_words, (LANES,), np.int64)
        self.biases = WordMemory(f"{path}.biases", sizes.bias_words, (LANES,), np.int64)

    def clear(self) -> None:
        """Forget everything."""
        for memory in self.all():
            memory.clear()

    def all(self) -> tuple[WordMemory, ...]:
        """The four memories."""
        return (self.activations, self.weights, self.scalers, self.biases)
