# SPDX-License-Identifier: Apache-2.0
"""One layer of ours as nodes of an ONNX graph: what a writer sees.

Weights are rearranged, never computed with, so that each element of an initializer is one of ours. A writer
may get numbers of places in place of weights: integers that it must pass on as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from configs.limits import require_host_memory
from importers.graph.draft import CannotTakeError
from importers.graph.onnx_graph import OnnxNode
from trainlib.ir.steps import Array
from trainlib.primitives.definition import LayerPlan

Shape = tuple[int, ...]


@dataclass
class OnnxDraft:
    """The graph so far. `weights` are made of ours, `constants` are numbers of the graph itself.

    `elements` says of a model that uses weights more than once which elements of ours a weight has, and how.
    """

    nodes: list[OnnxNode] = field(default_factory=list)
    weights: dict[str, Array] = field(default_factory=dict)
    constants: dict[str, Array] = field(default_factory=dict)
    elements: dict[tuple[Shape, bytes], str] = field(default_factory=dict)


@dataclass
class Layer:
    """One layer: options with defaults filled in, the tensors it reads with their shapes, batch first.

    `parameters` are its weights and buffers by role, `places` numbers of their elements if the model uses
    weights more than once. `results` are the tensors it must write.
    """

    draft: OnnxDraft
    name: str
    primitive: str
    options: Mapping[str, Any]
    plan: LayerPlan
    inputs: Sequence[str]
    shapes: Sequence[Shape]
    parameters: Mapping[str, Array]
    results: Sequence[str]
    output: Shape
    places: Mapping[str, Array]
    written: int = 0
    """Elements of its parameters that are in the graph."""

    @property
    def x(self) -> str:
        """The first input."""
        return self.inputs[0]

    def exact(self, option: str, word: str = "exact") -> None:
        """Refuse an approximation."""
        if self.options[option] != word:
            raise CannotTakeError(f"{option}: {self.options[option]} has no ONNX op", f"set {option}: {word}")

    def weight(self, role: str, name: str, how: Callable[[Array], Array] = lambda array: array) -> str:
        """An initializer of a parameter, rearranged; "" if the layer does not have it."""
        if role not in self.parameters:
            return ""
        return self.joined(name, lambda arrays: how(arrays[role]))

    def joined(self, name: str, how: Callable[[Mapping[str, Array]], Array]) -> str:
        """An initializer of this layer made of parameters, or what another layer has made of the same."""
        tensor, value = f"{self.name}.{name}", how(self.parameters)
        self.written += value.size
        if self.places:
            places, elements = how(self.places), self.draft.elements
            if (same := elements.get((places.shape, places.tobytes()))) is not None:
                return same
            if (same := elements.get((places.shape[::-1], places.T.tobytes()))) is not None:
                return self.node("Transpose", (same,), part=f"{name}_turned", perm=[1, 0])
            if any(np.isin(places, np.frombuffer(taken, places.dtype)).any() for _, taken in elements):
                raise CannotTakeError(
                    "the layer shares weights with another layer, but ONNX stores them in different orders",
                    "convert to a model file instead: NAME.yaml",
                )
            elements[places.shape, places.tobytes()] = tensor
        self.draft.weights[tensor] = value
        return tensor

    def constant(self, name: str, value: Any, dtype: str = "float32") -> str:
        """An initializer that is no weight."""
        tensor = f"{self.name}.{name}"
        self.draft.constants[tensor] = np.asarray(value, dtype)
        return tensor

    def filled(self, name: str, number: float, shape: Sequence[int]) -> str:
        """An initializer that is one number throughout. Raises InputError for more than the host memory."""
        require_host_memory(4 * prod(shape), "the tensor needs", where=f"{self.name}.{name}")
        return self.constant(name, np.full(shape, number, np.float32))

    def integers(self, name: str, values: Sequence[int]) -> str:
        """A shape, a list of axes."""
        return self.constant(name, list(values), "int64")

    def node(
        self,
        op: str,
        inputs: Sequence[str],
        *,
        part: str = "",
        outputs: Sequence[str] = (),
        **attributes: Any,
    ) -> str:
        """Add a node; without `part` it is the layer's own and writes its results. Returns output 0."""
        name = f"{self.name}_{part}" if part else self.name
        written = tuple(outputs) or ((f"{self.name}/{part}",) if part else tuple(self.results))
        given = list(inputs)
        while given and not given[-1]:
            given.pop()
        self.draft.nodes.append(OnnxNode(name, op, tuple(given), written, attributes))
        return written[0]

    def reshaped(self, tensor: str, shape: Sequence[int], part: str = "") -> str:
        """The tensor in another shape, as the result of the layer or a `part` of it."""
        target = self.integers(f"{part or 'result'}_shape", shape)
        return self.node("Reshape", (tensor, target), part=part)

    def wide(self, index: int) -> str:
        """An input with ones behind the batch, of as many dimensions as the output or the widest input."""
        batch, *sample = self.shapes[index]
        missing = max(map(len, (self.output, *self.shapes))) - 1 - len(sample)
        if not missing:
            return self.inputs[index]
        return self.reshaped(self.inputs[index], (batch, *(1,) * missing, *sample), f"wide{index}")


Writer = Callable[[Layer], Any]
"""Of layers of one type or a few."""
