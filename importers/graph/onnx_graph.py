# SPDX-License-Identifier: Apache-2.0
"""An ONNX graph as frozen dataclasses of plain Python and NumPy: what is left once the file has been read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class OnnxTensor:
    """One value of the graph: `dtype` is a NumPy name (``float32``, ``bfloat16``), "" if not known.

    `shape` is None if not even the rank is known; a dimension is an int, a name, or "" if it has neither.
    """

    name: str
    shape: tuple[int | str, ...] | None = None
    dtype: str = ""

    @property
    def is_static(self) -> bool:
        """Whether every dimension is a number."""
        return self.shape is not None and all(isinstance(size, int) for size in self.shape)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The shape of a tensor whose dimensions are all numbers; ValueError for any other."""
        if not self.is_static:
            raise ValueError(
                f"{self.name} has sizes that are not fixed ({self.shape_text}); set --input, e.g. 1,3,32,32"
            )
        return tuple(size for size in self.shape or () if isinstance(size, int))

    @property
    def shape_text(self) -> str:
        """The shape for people: ``[1, 3, 32, 32]``, ``[?, 16]``."""
        if self.shape is None:
            return "unknown shape"
        return "[" + ", ".join(str(size) if size != "" else "?" for size in self.shape) + "]"


@dataclass(frozen=True, slots=True)
class OnnxNode:
    """One node: `op` is its type, behind its domain if that is not ONNX's own (``com.microsoft:Gelu``).

    `inputs` and `outputs` are names of tensors, "" for one left out. Values of `attributes` are int, float,
    str, tuples of these, arrays (tensors), or `Subgraph`.
    """

    name: str
    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)

    def input(self, index: int) -> str:
        """Name of an input, "" if it is left out."""
        return self.inputs[index] if index < len(self.inputs) else ""

    def output(self, index: int) -> str:
        """Name of an output, "" if it is left out."""
        return self.outputs[index] if index < len(self.outputs) else ""


@dataclass(frozen=True, slots=True)
class Subgraph:
    """A graph in an attribute (the body of Loop, Scan, If): known to be there, not read."""

    name: str


@dataclass(frozen=True, slots=True)
class OnnxGraph:
    """A graph: nodes in a topological order, tensors by name, the values of those that are constant.

    `inputs` are those the caller feeds (an initializer that is listed as an input too is none of them).
    `initializers` come from the file; `folded` are results of nodes that follow from constants alone: these
    nodes are no longer among `nodes`. `trainable` names the initializers of floats, in the order of the file.
    `opset` is the version of ONNX's own ops. `path` is the file, for messages.
    """

    name: str
    path: str
    opset: int
    nodes: tuple[OnnxNode, ...]
    tensors: Mapping[str, OnnxTensor]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    initializers: Mapping[str, Array]
    folded: Mapping[str, Array] = field(default_factory=dict)
    merged: Mapping[str, tuple[str, tuple[int, ...]]] = field(default_factory=dict)
    """Initializers that the file has not -> the one it has, and who reads it (`onnx_merged`)."""

    def constant(self, name: str) -> Array | None:
        """The value of a tensor that does not depend on any input; None for others and for ""."""
        value = self.initializers.get(name)
        return value if value is not None else self.folded.get(name)

    def tensor(self, name: str) -> OnnxTensor:
        """The tensor; one of which the file says nothing has neither shape nor dtype."""
        return self.tensors.get(name, OnnxTensor(name))

    @property
    def trainable(self) -> tuple[str, ...]:
        """Initializers of floats, in the order of the file."""
        return tuple(
            name for name, value in self.initializers.items() if np.issubdtype(value.dtype, np.floating)
        )

    @property
    def writer(self) -> dict[str, OnnxNode]:
        """Tensor -> the node that writes it."""
        return {name: node for node in self.nodes for name in node.outputs if name}

    @property
    def readers(self) -> dict[str, list[OnnxNode]]:
        """Tensor -> the nodes that read it, in order; each once."""
        readers: dict[str, list[OnnxNode]] = {}
        for node in self.nodes:
            for name in dict.fromkeys(node.inputs):
                if name:
                    readers.setdefault(name, []).append(node)
        return readers
