# SPDX-License-Identifier: Apache-2.0
"""One operation of a file or a capture as a dialect reads it: views of activations, constants, attributes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from importers.graph.arranging import Site
from importers.graph.draft import CHECKED, CannotTakeError, Problem
from importers.graph.onnx_graph import OnnxGraph, OnnxNode
from importers.graph.views import Shape, View
from importers.graph.weights import Constant
from trainlib.ir.steps import Array

Key = str | int
"""Of an argument: its name, or the number of an input that has none."""


class Unknown:
    """What a node makes that could not be read: whatever reads it says nothing more."""


def problem_of(graph: OnnxGraph, node: OnnxNode, error: CannotTakeError) -> Problem:
    """A node of a file that cannot be taken over."""
    result = graph.tensor(node.output(0))
    shape = result.sizes if result.is_static else None
    return Problem(node.name, node.op, shape, error.reason, error.nearest)


class Attributes:
    """Numbers and words that an operation says: the one place where a file may be wrong about their types."""

    def get(self, key: Key, default: Any = None) -> Any:
        """An argument, or `default` where it is missing or None."""
        raise NotImplementedError

    def values(self, index: int) -> Array | None:
        """An input that is constant; None if it is left out, or computed."""
        raise NotImplementedError

    def has(self, key: Key) -> bool:
        """Whether an argument is given."""
        return self.get(key) is not None

    def number(self, key: str, default: float) -> float:
        """An attribute as it was meant: 0.1, not what fp32 makes of it."""
        return meant(self.real(key, default))

    def real(self, key: str, default: float) -> float:
        """An attribute that is a number."""
        return float(_checked(key, self.get(key, default), (*WHOLE, float, np.number)))

    def integer(self, key: str, default: int) -> int:
        """An attribute that is an integer."""
        return int(_checked(key, self.get(key, default), WHOLE))

    def text(self, key: str, default: str) -> str:
        """An attribute that is a word."""
        return str(_checked(key, self.get(key, default), (str,)))

    def sizes(self, key: str, default: tuple[int, ...] = ()) -> tuple[int, ...]:
        """An attribute that is a list of integers."""
        return tuple(_checked(key, self.get(key, default), (tuple, list), WHOLE))

    def integers(self, key: str, index: int) -> tuple[int, ...] | None:
        """Integers that are an attribute in old opsets and an input in new ones; a bare one counts as one."""
        if not self.has(key):
            given = self.values(index)
            return None if given is None else tuple(int(item) for item in given.ravel())
        return (self.integer(key, 0),) if isinstance(self.get(key), WHOLE) else self.sizes(key)

    def axis(self, rank: int, default: int = 0, key: str = "axis") -> int:
        """An attribute that is a dimension, counted from the front."""
        return axis_of(self.integer(key, default), rank)


@dataclass(frozen=True)
class Node(Site, Attributes):
    """One operation. `arguments` are views, constants, numbers, texts and lists of these.

    `shapes` are those of its results as the original says them, `used` the numbers of those somebody reads.
    """

    op: str
    arguments: Mapping[Key, Any]
    shapes: tuple[Shape | None, ...]
    used: frozenset[int]
    opset: int = 0
    """Of ONNX's own ops."""
    dtypes: tuple[str, str] = ("", "")
    """Of its first argument and its first result, where the original says them."""
    into_softmax: bool = False
    """Whether its result goes into softmaxes over its last dimension, and nowhere else."""
    several: bool = False
    """Whether its result is a list."""
    moving: frozenset[Key] = frozenset()
    """Arguments through which a gradient goes to a trained parameter."""
    only_compared: bool = False
    """Whether its result is what outputs are compared with by losses, and nothing else."""
    first: Key = 0
    """Of what it works on."""
    held: Mapping[Key, Any] = field(default_factory=dict)
    """In arithmetic on weights, which are views there: the weights, for who needs a constant."""

    def __getitem__(self, key: Key) -> Any:
        return self.arguments[key]

    def get(self, key: Key, default: Any = None) -> Any:
        """An argument, or `default` where it is missing or None."""
        given = self.arguments.get(key)
        return default if given is None else given

    def values(self, index: int) -> Array | None:
        """An input that must be constant; None if it is left out."""
        constant = self.constant(index)
        return None if constant is None else constant.value

    @property
    def shape(self) -> Shape:
        """Shape of its first result."""
        return self.shapes[0] or ()

    @property
    def inputs(self) -> list[Any]:
        """Those without a name, in order, that are given."""
        return [self.arguments[key] for key in sorted(key for key in self.arguments if isinstance(key, int))]

    @property
    def x(self) -> View:
        """What it works on, which must be an activation."""
        return self.view(self.first)

    @property
    def rank(self) -> int:
        """Dimensions of what it works on."""
        return len(self.x.dims)

    def dims(self, key: str = "dim") -> list[int]:
        """An argument that is a dimension of what it works on, or several; counted from the front."""
        asked = self.get(key, [])
        return [dim % self.rank for dim in (asked if isinstance(asked, list) else [asked])]

    def dim(self, key: str = "dim") -> int:
        """An argument that is one dimension."""
        return self.dims(key)[0]

    def view(self, key: Key) -> View:
        """An argument that must be an activation."""
        return self.as_view(self.get(key), key)

    def as_view(self, argument: Any, key: Key = "") -> View:
        """`found`, which must be an activation."""
        if isinstance(argument, View):
            return argument
        if isinstance(key, int):
            raise CannotTakeError(
                f"input {key} is constant, but must be computed from the network's input",
                "swap the inputs, or if all are constant, store the result as a constant",
            )
        raise CannotTakeError("all inputs of the node are constant", "store the result as a constant")

    def constant(self, key: Key) -> Constant | None:
        """An argument that must be constant; None if it is left out."""
        given = self.get(key)
        return self.as_constant(self.held.get(key, given) if isinstance(given, View) else given, key)

    def as_constant(self, argument: Any, key: Key = "weight") -> Constant | None:
        """`found`, which must be constant or None."""
        if argument is None or isinstance(argument, Constant):
            return argument
        if isinstance(key, int):
            raise CannotTakeError(f"input {key} is computed, but must be a constant", "use a constant")
        raise CannotTakeError(f"{key} is computed, but must be a parameter", "use a module parameter")

    def needed(self, key: Key, what: str = "") -> Constant:
        """A constant that may not be left out; `what` it is, where its number says too little."""
        constant = self.constant(key)
        if constant is None:
            raise CannotTakeError(f"{what or f'input {key}'} of the node is missing", CHECKED)
        return constant


WHOLE = (int, np.integer)


def _checked(key: str, said: Any, types: tuple[Any, ...], items: tuple[Any, ...] = ()) -> Any:
    """An attribute of a type that the op takes; a list has such `items`."""
    if not isinstance(said, types) or (items and not all(isinstance(item, items) for item in said)):
        raise CannotTakeError(f"attribute {key} = {said!r} has a type that the op does not take", CHECKED)
    return said


def meant(value: float) -> float:
    """A number of fp32 as it was meant: 0.1, not what fp32 makes of it."""
    return float(np.format_float_positional(np.float32(value)))


def axis_of(axis: int, rank: int) -> int:
    """A dimension counted from the front. Raises `CannotTakeError` if there is none."""
    if not -rank <= axis < max(rank, 1):
        raise CannotTakeError(f"axis {axis} is outside the {rank} dimensions of the node's input", CHECKED)
    return axis % rank if rank else 0


Handler = Callable[[Node], Any]
"""What a node becomes: a view, a constant, or a list of them, one for each result."""
