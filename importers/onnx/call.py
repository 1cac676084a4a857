# SPDX-License-Identifier: Apache-2.0
"""One node of a forward graph as a handler sees it: views of activations, constants, attributes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from importers.graph.arranging import Site
from importers.graph.draft import CHECKED, CannotTakeError, Draft, Given
from importers.graph.onnx_graph import OnnxNode
from importers.graph.views import Shape, View
from importers.handlers import registrar
from trainlib.steps import Array


@dataclass(frozen=True, slots=True)
class Constant:
    """A tensor that does not depend on the input.

    `places` numbers its elements over all weights of the file, if every element is one of a weight's
    (`WeightPlaces`). `trained`: a weight, not a number somebody wrote into the graph.
    """

    value: Array
    places: Array | None = None
    trained: bool = False

    @property
    def number(self) -> float | None:
        """Its value if it is the same throughout and no weight."""
        if not self.value.size or (self.trained and self.value.size > 1):
            return None
        first = self.value.flat[0]
        return float(first) if bool((self.value == first).all()) else None


class Unknown:
    """What a node makes that could not be read: whatever reads it says nothing more."""


@dataclass
class WeightPlaces:
    """Numbers of the elements of all weights of a file."""

    names: tuple[str, ...]
    starts: Array
    shapes: tuple[Shape, ...]

    @classmethod
    def of(cls, weights: Mapping[str, Array]) -> WeightPlaces:
        """One number after the other, weight by weight."""
        sizes = [array.size for array in weights.values()]
        starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        return cls(tuple(weights), starts, tuple(array.shape for array in weights.values()))

    @property
    def ranges(self) -> Iterator[tuple[str, Shape, int, int]]:
        """(name, shape, first number, number behind the last) of every weight."""
        for name, shape, start, end in zip(
            self.names, self.shapes, self.starts[:-1], self.starts[1:], strict=True
        ):
            yield name, shape, int(start), int(end)

    def constant(self, name: str, value: Array) -> Constant:
        """The weight of this name."""
        start = self.starts[self.names.index(name)]
        return Constant(value, start + np.arange(value.size).reshape(value.shape), True)

    def given(self, constant: Constant) -> Given:
        """As the start of one of our parameters: of one weight, of several, or of none."""
        value = constant.value.astype(np.float32) if constant.value.dtype != np.float32 else constant.value
        if constant.places is None or not constant.places.size:
            return Given(value, "", None, constant.trained)
        owners = np.unique(np.searchsorted(self.starts, constant.places.ravel(), side="right") - 1)
        if owners.size > 1:
            names = " + ".join(self.names[owner] for owner in owners)
            return Given(value, names, constant.places, constant.trained)
        owner = int(owners[0])
        return Given(value, self.names[owner], constant.places - self.starts[owner], constant.trained)

    def numbers(self, given: Given) -> Array:
        """Which elements, counted over all weights, one of our parameters is made of (flat)."""
        assert given.places is not None
        start = self.starts[self.names.index(given.source)] if given.source in self.names else 0
        found: Array = given.places.ravel() + start
        return found


@dataclass
class Call(Site):
    """One node: what it reads as views and constants, and where layers made of it go."""

    node: OnnxNode
    draft: Draft
    arguments: Sequence[Any]
    name: str
    where: str
    opset: int
    places: WeightPlaces
    used: frozenset[int]
    """Numbers of the outputs that somebody reads."""

    def attribute(self, name: str, default: Any = None) -> Any:
        """An attribute, or what ONNX takes without it."""
        return self.node.attributes.get(name, default)

    def has(self, index: int) -> bool:
        """Whether an input is given."""
        return index < len(self.arguments) and self.arguments[index] is not None

    def view(self, index: int = 0) -> View:
        """An input that must be an activation."""
        found = self.arguments[index] if self.has(index) else None
        if not isinstance(found, View):
            raise CannotTakeError(
                f"its input {index} does not depend on the network's input",
                "the node folded into a constant, or its inputs the other way round",
            )
        return found

    def constant(self, index: int) -> Constant | None:
        """An input that must be constant; None if it is left out."""
        if not self.has(index):
            return None
        found = self.arguments[index]
        if not isinstance(found, Constant):
            raise CannotTakeError(f"its input {index} is computed from the input", "a constant")
        return found

    def weight(self, index: int) -> Given | None:
        """An input that must be a weight; None if it is left out."""
        found = self.constant(index)
        return None if found is None else self.places.given(found)

    def needed(self, index: int) -> Given:
        """A weight that may not be left out."""
        found = self.weight(index)
        if found is None:
            raise CannotTakeError(f"its input {index} is missing", CHECKED)
        return found

    def integers(self, name: str, index: int) -> tuple[int, ...] | None:
        """Integers that are an attribute in old opsets and an input in new ones; a bare one counts as one."""
        found = self.attribute(name)
        if found is None:
            given = self.constant(index)
            if given is None:
                return None
            found = given.value.ravel().tolist()
        return tuple(int(item) for item in (found if isinstance(found, (tuple, list)) else (found,)))

    def axis(self, rank: int, default: int = 0) -> int:
        """The attribute `axis`, counted from the front."""
        return axis_of(int(self.attribute("axis", default)), rank)

    def like(self, view: View, kind: str, options: Mapping[str, Any] | None = None, suffix: str = "") -> View:
        """A layer of one input that works on every element alone, whatever their order."""
        made = self.layer(kind, (view.word,), options, suffix=suffix)
        return replace(view, word=made.word)


def axis_of(axis: int, rank: int) -> int:
    """A dimension counted from the front. Raises `CannotTakeError` if there is none."""
    if not -rank <= axis < max(rank, 1):
        raise CannotTakeError(f"axis {axis} of {rank} dimensions", CHECKED)
    return axis % rank if rank else 0


Handler = Callable[[Call], Any]
HANDLERS: dict[str, Handler] = {}
"""By op, private ones behind their domain: `register` fills it. The result is that of output 0, or a list."""

NEAREST: dict[str, str] = {}
"""Op that cannot be taken -> what would do."""

register = registrar(HANDLERS)


def short(values: Sequence[int]) -> int | list[int]:
    """One number where all are the same."""
    return int(values[0]) if len(set(values)) == 1 else [int(value) for value in values]
