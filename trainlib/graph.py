"""The training graph: ops and tensors of one training iteration, in execution order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import networkx as nx

KINDS = ("input", "label", "weight", "activation", "gradient", "optimizer_state", "loss")


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor of the graph: C-contiguous; no batch dimension for batch 1 (CHW for images, (C,) for vectors).

    `kind` is one of `KINDS`. `alias_of` names the tensor whose storage this one takes over (the updated
    weight takes that of the weight; what flatten makes is a view of its input: same bytes, other shape, no
    op).
    """

    name: str
    shape: tuple[int, ...]
    kind: str
    dtype: str = "float32"
    alias_of: str | None = None

    @property
    def size_bytes(self) -> int:
        """Bytes of storage."""
        return int(np.prod(self.shape, dtype=np.int64)) * np.dtype(self.dtype).itemsize


@dataclass(frozen=True, slots=True)
class Op:
    """One primitive step: `name` is ``layer.step`` (``conv1.FW``), `step` one of FW, LOSS, IG, WG, UPD."""

    name: str
    layer: str
    primitive: str
    step: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TrainingGraph:
    """One training iteration: tensors by name and ops in execution order (a topological order of the DAG)."""

    name: str
    tensors: Mapping[str, Tensor]
    ops: tuple[Op, ...]
    input: str
    label: str
    output: str
    loss: str
    weights: tuple[str, ...]
    gradients: Mapping[str, str]
    """Weight name -> name of its gradient tensor."""

    def is_view(self, name: str) -> bool:
        """Whether the tensor is only another one in another shape: it has an alias and no op writes it."""
        if self.tensors[name].alias_of is None:
            return False
        return not any(name in op.outputs for op in self.ops)

    def storage_of(self, name: str) -> str:
        """Name of the tensor that owns the storage: the end of the chain of `alias_of`."""
        tensor = self.tensors[name]
        while tensor.alias_of is not None:
            tensor = self.tensors[tensor.alias_of]
        return tensor.name

    def digraph(self) -> nx.DiGraph:
        """Ops as nodes, an edge where one op reads what another wrote, views included (for analysis)."""
        import networkx as nx

        graph = nx.DiGraph(name=self.name)
        writer: dict[str, str] = {}
        for op in self.ops:
            graph.add_node(op.name, op=op)
            for tensor in op.inputs:
                source = tensor
                while source not in writer and self.is_view(source):
                    source = str(self.tensors[source].alias_of)
                if source in writer:
                    graph.add_edge(writer[source], op.name, tensor=tensor)
            for tensor in op.outputs:
                writer[tensor] = op.name
        return graph
