# SPDX-License-Identifier: Apache-2.0
"""Numbers that do not depend on the input, and which element of which weight each of them is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from importers.graph.views import Shape, View
from trainlib.ir.steps import Array


@dataclass(frozen=True, slots=True)
class Given:
    """Numbers a layer starts with. `source` names the tensor of the original model they are from.

    `places` says for each number which element of that tensor it is (None: no single one). Of several tensors
    `source` has the names, and `places` counts over all (`WeightNumbers.numbers`).
    """

    value: Array
    source: str = ""
    places: Array | None = None
    trained: bool = False


@dataclass(frozen=True, slots=True)
class Constant:
    """A tensor that does not depend on the input.

    `places` numbers its elements over all weights of the original, if every element is one of a weight's
    (`WeightNumbers`). `trained`: a weight, not a number somebody wrote into the graph. `made`: what layers
    compute of weights, as a tensor of one sample, whose elements `places` then counts as they are seen.
    """

    value: Array
    places: Array | None = None
    trained: bool = False
    made: View | None = None

    @classmethod
    def of(cls, made: View, value: Array) -> Constant:
        """What layers compute of weights, all of it."""
        return cls(value, np.arange(value.size).reshape(value.shape), True, made)

    @property
    def shape(self) -> Shape:
        """Its shape."""
        return self.value.shape

    @property
    def alike(self) -> float | None:
        """Its value if it is the same throughout; of a weight, its only one."""
        several = (self.trained and self.value.size > 1) or self.made is not None
        if not self.value.size or self.value.dtype.kind == "c" or several:
            return None
        first = self.value.flat[0]
        return float(first) if bool((self.value == first).all()) else None

    @property
    def number(self) -> float | None:
        """Its value if it is the same throughout, and nobody trains it."""
        return None if self.trained else self.alike

    def moved(self, how: Any) -> Constant:
        """The numbers rearranged: `how` is a function of arrays that only moves elements."""
        places = None if self.places is None else how(self.places)
        return Constant(how(self.value), places, self.trained, self.made)


@dataclass(frozen=True, slots=True, eq=False)
class WeightNumbers:
    """Numbers of the elements of all weights of a file or a module."""

    names: tuple[str, ...]
    starts: Array
    shapes: tuple[Shape, ...]

    @classmethod
    def of(cls, shapes: Mapping[str, Shape]) -> WeightNumbers:
        """One number after the other, weight by weight."""
        starts = np.concatenate([[0], np.cumsum([prod(shape) for shape in shapes.values()])])
        return cls(tuple(shapes), starts.astype(np.int64), tuple(shapes.values()))

    @property
    def ranges(self) -> Iterator[tuple[str, Shape, int, int]]:
        """(name, shape, first number, number behind the last) of every weight."""
        for name, shape, start, end in zip(
            self.names, self.shapes, self.starts[:-1], self.starts[1:], strict=True
        ):
            yield name, shape, int(start), int(end)

    def places(self, name: str) -> Array:
        """The numbers of the elements of a weight."""
        index = self.names.index(name)
        return np.arange(self.starts[index], self.starts[index + 1]).reshape(self.shapes[index])

    def as_start(self, constant: Constant) -> Given:
        """As the start of one of our parameters: of one weight, of several, or of none."""
        value = constant.value.astype(np.float32) if constant.value.dtype != np.float32 else constant.value
        places = constant.places
        if places is None or not places.size or constant.made is not None:
            return Given(value, "", None, constant.trained)
        first, last = (self._owner(number) for number in (places.min(), places.max()))
        if first == last:
            return Given(value, self.names[first], places - self.starts[first], constant.trained)
        owners = np.unique(np.searchsorted(self.starts, places.ravel(), side="right") - 1)
        return Given(value, " + ".join(self.names[owner] for owner in owners), places, constant.trained)

    def _owner(self, number: Any) -> int:
        return int(np.searchsorted(self.starts, number, side="right")) - 1

    def numbers(self, given: Given) -> Array:
        """Which elements, counted over all weights, one of our parameters is made of (flat)."""
        assert given.places is not None
        start = self.starts[self.names.index(given.source)] if given.source in self.names else 0
        counted: Array = given.places.ravel() + start
        return counted


NOTHING = WeightNumbers.of({})
"""Of a draft whose original has no weights."""
