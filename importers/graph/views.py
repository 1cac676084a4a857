# SPDX-License-Identifier: Apache-2.0
"""Tensors as a module sees them, laid over tensors as our layers store them.

Our tensors have the batch first and work on samples. A module may put the batch anywhere and merge or split
dimensions. A `View` says which pieces of the stored tensor make up each dimension, so that transposing and
viewing cost nothing until a layer needs the numbers in another order than they are stored in.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from math import prod

from configs.values import replace

Shape = tuple[int, ...]

BATCH = 0
"""The piece that counts samples."""


@dataclass(frozen=True, slots=True)
class View:
    """`word` names a tensor of the network of shape `stored` (batch first), `pieces` cut it further.

    `pieces` are sizes whose product in order is that of `stored`: the batch, then pieces larger than 1.
    `dims` has the numbers of the pieces of each dimension the module sees; none for a dimension of size 1. A
    batch of 1 may be in none.
    """

    word: str
    stored: Shape
    pieces: Shape
    dims: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, word: str, stored: Shape) -> View:
        """All of a stored tensor, as it is."""
        numbers = count(1)
        dims = ((next(numbers),) if size > 1 else () for size in stored[1:])
        pieces = (size for size in stored[1:] if size > 1)
        return cls(word, stored, (stored[0], *pieces), ((BATCH,), *dims))

    @property
    def shape(self) -> Shape:
        """What the module sees."""
        return tuple(self.size(dim) for dim in self.dims)

    @property
    def order(self) -> tuple[int, ...]:
        """The pieces of all dimensions."""
        return tuple(piece for dim in self.dims for piece in dim)

    @property
    def batch(self) -> int:
        """Samples."""
        return self.pieces[BATCH]

    @property
    def batch_dim(self) -> int | None:
        """The dimension that counts samples, or samples among others; None for a batch of 1 in none."""
        return next((index for index, dim in enumerate(self.dims) if BATCH in dim), None)

    @property
    def batch_leads(self) -> bool:
        """Whether the first dimension counts samples and nothing else, or none counts the only one."""
        return self.batch_dim is None or self.samples_only(0)

    def size(self, dim: Sequence[int]) -> int:
        """Elements of a group of pieces."""
        return prod(self.pieces[piece] for piece in dim)

    def samples_only(self, index: int) -> bool:
        """Whether a dimension counts samples and nothing else."""
        return self.dims[index] == (BATCH,)

    def permuted(self, order: Sequence[int]) -> View:
        """Dimensions in another order."""
        return replace(self, dims=tuple(self.dims[index] for index in order))

    def swapped(self, first: int, second: int) -> View:
        """Two dimensions exchanged."""
        order = list(range(len(self.dims)))
        order[first], order[second] = order[second], order[first]
        return self.permuted(order)

    def with_dim(self, index: int) -> View:
        """A further dimension of size 1 before `index`."""
        return replace(self, dims=(*self.dims[:index], (), *self.dims[index:]))

    def without_dim(self, index: int) -> View:
        """Without a dimension of size 1."""
        return replace(self, dims=(*self.dims[:index], *self.dims[index + 1 :]))

    def settled(self) -> View:
        """With a single sample that is in no dimension counted by the first dimension of size 1."""
        free = next((index for index, dim in enumerate(self.dims) if not dim), None)
        if self.batch > 1 or free is None or self.batch_dim is not None:
            return self
        return replace(self, dims=(*self.dims[:free], (BATCH,), *self.dims[free + 1 :]))

    def split_piece(self, piece: int, *sizes: int) -> View:
        """One piece as several, the outermost first."""
        numbers = [[item + (len(sizes) - 1) * (item > piece)] for item in range(len(self.pieces))]
        numbers[piece] = list(range(piece, piece + len(sizes)))
        pieces = (*self.pieces[:piece], *sizes, *self.pieces[piece + 1 :])
        dims = (tuple(number for item in dim for number in numbers[item]) for dim in self.dims)
        return replace(self, pieces=pieces, dims=tuple(dims))

    def without_piece(self, piece: int) -> View:
        """Without a piece of size 1, which leaves the dimension it is in."""
        pieces = (*self.pieces[:piece], *self.pieces[piece + 1 :])
        dims = tuple(tuple(item - (item > piece) for item in dim if item != piece) for dim in self.dims)
        return replace(self, pieces=pieces, dims=dims)

    def viewed(self, shape: Sequence[int]) -> View | None:
        """The same elements in the same order under another shape; None if a piece cannot be cut so.

        Then the elements have to be stored in this order first.
        """
        view, end, bounds = self, 0, list[tuple[int, int]]()
        for wanted in shape:
            left, start = wanted, end
            while end < len(view.order):
                piece = view.order[end]
                size = view.pieces[piece]
                if left < 2 and (end > start or size > 1):
                    break
                if left % size:
                    if size % left or piece == BATCH:
                        return None
                    # What is left of the dimension is the outer part of the piece.
                    view, size = view.split_piece(piece, left, size // left), left
                left //= size
                end += 1
            if left > 1:
                return None
            bounds.append((start, end))
        if view.size(view.order[end:]) > 1:
            return None
        groups = [view.order[start:end] for start, end in bounds]
        # A single sample among other things is not told apart from them.
        dims = (g if len(g) == 1 else tuple(p for p in g if view.pieces[p] > 1) for g in groups)
        return replace(view, dims=tuple(dims))


def neighbours(dims: Sequence[int]) -> list[list[int]]:
    """Dimensions in order, those side by side in one group."""
    groups: list[list[int]] = []
    for dim in dims:
        if groups and dim == groups[-1][-1] + 1:
            groups[-1].append(dim)
        else:
            groups.append([dim])
    return groups
