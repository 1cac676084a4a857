# SPDX-License-Identifier: Apache-2.0
"""A training graph that grows node by node while that of somebody else is read: ops are steps of primitives.

Tensors keep the shapes and names of the file. A primitive wants the batch first and a certain rank; it gets
views, which cost nothing: a matrix is [1, n, m] to a layer that works on samples.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from configs.dtypes import dtype_of
from configs.model_file import LayerSpec
from configs.values import replace
from importers.graph.draft import CannotTakeError, planned
from importers.graph.onnx_graph import OnnxGraph, OnnxNode
from trainlib.ir.graph import Op, Tensor
from trainlib.ir.steps import Array
from trainlib.primitives.definition import LayerPlan, Shape
from trainlib.primitives.optimizers import gradient_ops
from trainlib.registry import PRIMITIVES
from trainlib.training.builder import GraphBuilder


@dataclass(frozen=True, slots=True)
class Kept:
    """What a forward node leaves for a backward one: its plan and its tensors by role."""

    primitive: str
    plan: LayerPlan
    roles: Mapping[str, str]


@dataclass
class TrainingDraft:
    """Tensors and ops so far. `names` says which tensor of ours one of the file is, `constants` their values.

    `values` are those of the kept tensors: weights and constants. `kept` is what forward nodes leave, by the
    name (in the file) of a tensor that the backward node reads too.
    """

    graph: OnnxGraph
    builder: GraphBuilder = field(default_factory=GraphBuilder)
    names: dict[str, str] = field(default_factory=dict)
    constants: dict[str, Array] = field(default_factory=dict)
    values: dict[str, Array] = field(default_factory=dict)
    kept: dict[tuple[str, str], Kept] = field(default_factory=dict)
    partial: dict[str, str] = field(default_factory=dict)
    """Total of a weight's gradients -> sum of those of its uses so far."""
    gradients: set[str] = field(default_factory=set)
    """Tensors (of ours) that depend on the gradient of the loss."""

    def tensor(self, name: str) -> Tensor:
        """Our tensor of this name."""
        return self.builder.tensors[name]

    def shape(self, name: str) -> Shape:
        """Shape of our tensor of this name."""
        return self.builder.tensors[name].shape

    def add(
        self, name: str, shape: Shape, kind: str, dtype: str = "float32", alias_of: str | None = None
    ) -> str:
        """Add a tensor."""
        return self.builder.add(Tensor(name, tuple(shape), kind, dtype_of(dtype), alias_of))

    def read(self, name: str) -> str:
        """Our tensor for one of the file that a node reads; a constant becomes a frozen weight."""
        if name in self.names:
            return self.names[name]
        if name not in self.constants:
            raise CannotTakeError(f"input '{name}' comes from an unsupported node", "correct that node first")
        value = self.constants[name]
        array = np.ascontiguousarray(value, np.float32 if value.dtype != np.int64 else np.int32)
        shape = array.shape or (1,)
        self.names[name] = self.add(name, shape, "weight", array.dtype.name)
        self.values[name] = array.reshape(shape)
        return self.names[name]

    def buffer(self, name: str) -> str:
        """Our tensor for one that a node reads and changes, kept from one iteration to the next."""
        tensor = self.tensor(self.read(name))
        if tensor.kind != "buffer":
            if any(tensor.name in op.inputs for op in self.builder.ops):
                raise CannotTakeError(
                    f"the node overwrites '{name}', which others read",
                    "give the output of the node another name",
                )
            self.builder.tensors[tensor.name] = replace(tensor, kind="buffer")
        return tensor.name

    def view(self, tensor: str, shape: Sequence[int]) -> str:
        """The tensor under another shape of as many elements: no op."""
        wanted = tuple(int(size) for size in shape)
        source = self.tensor(tensor)
        if source.shape == wanted:
            return tensor
        if prod(wanted) != prod(source.shape):
            raise CannotTakeError(
                f"cannot view {list(source.shape)} as {list(wanted)}",
                f"use {prod(wanted)} elements, e.g. export the graph with the batch size of the run",
            )
        while source.alias_of is not None and "~" in source.name:
            source = self.tensor(source.alias_of)
            if source.shape == wanted:
                return source.name
        name = f"{source.name}~{'x'.join(str(size) for size in wanted) or '1'}"
        if name not in self.builder.tensors:
            self.add(name, wanted, source.kind, source.dtype, source.name)
        if tensor in self.gradients:
            self.gradients.add(name)
        return name

    def sample(self, tensor: str) -> str:
        """The tensor as the only sample of a batch: [1, ...]."""
        return self.view(tensor, (1, *self.shape(tensor)))

    def alias(self, name: str, tensor: str) -> None:
        """A tensor of the file is that of ours."""
        if name:
            self.names[name] = tensor

    def plan(
        self, kind: str, options: Mapping[str, Any], inputs: Sequence[Shape], dtype: str = "float32"
    ) -> LayerPlan:
        """The plan of a layer on inputs of these shapes. Raises `CannotTakeError` if the layer refuses."""
        tensors = [
            Tensor(f"x{index}", tuple(shape), "activation", dtype_of(dtype))
            for index, shape in enumerate(inputs)
        ]
        return planned(LayerSpec("node", kind, options, self.graph.path), tensors)[1]

    def _check(self, kind: str, plan: LayerPlan, roles: Mapping[str, str]) -> None:
        """Raise `CannotTakeError` for a tensor of another shape than its role has in the plan."""
        shapes = {"y": plan.results["y"].shape} | {role: item.shape for role, item in plan.parameters.items()}
        for role, name in roles.items():
            wanted = shapes.get(role, shapes.get(role.removeprefix("d")))
            if wanted is not None and self.shape(name) != wanted:
                raise CannotTakeError(
                    f"{role} of {kind} must have shape {list(wanted)}, not {list(self.shape(name))}",
                    "export the training graph again, with the required shape",
                )

    def step(self, site: str, kind: str, step: str, roles: Mapping[str, str], plan: LayerPlan) -> None:
        """Append one step of a primitive: the op reads and writes those of its roles that are given."""
        self._check(kind, plan, roles)
        declared_step = next(item for item in PRIMITIVES[kind].steps if item.name == step)

        def present(declared: Sequence[str]) -> tuple[str, ...]:
            names: list[str] = []
            for role in declared:
                if role.endswith("*"):
                    stem = role[:-1]
                    names += [item for item in roles if item.rstrip("0123456789") == stem]
                elif role.rstrip("?") in roles:
                    names.append(role.rstrip("?"))
                elif not role.endswith("?"):
                    raise CannotTakeError(
                        f"step {step} of {kind} needs tensor {role}, which the node does not have",
                        f"connect the input or output of the node for tensor {role}",
                    )
            return tuple(names)

        reads, writes = present(declared_step.reads), present(declared_step.writes)
        if any(roles[role] in self.gradients for role in reads):
            self.gradients |= {roles[role] for role in writes}
        self.builder.emit(declared_step.op(site, kind, roles, plan.attributes, reads=reads, writes=writes))

    def has_other_names(self, name: str) -> bool:
        """Whether another tensor of the file lies where this one does."""
        places = [self.lies_in(tensor)[-1] for tensor in self.names.values()]
        return places.count(self.lies_in(self.names[name])[-1]) > 1

    def lies_in(self, name: str) -> list[str]:
        """A tensor, and those whose storage it is a view of."""
        source = self.tensor(name).alias_of
        return [name, *(self.lies_in(source) if source is not None else ())]

    def add_to(self, total: str, gradient: str, site: str, name: str) -> str:
        """Add a gradient of a weight to that of its other uses, which the sum, `name`, overwrites."""
        self.names = {theirs: ours for theirs, ours in self.names.items() if ours != total}
        self.add(name, self.shape(total), "gradient", alias_of=total)
        self.gradients.add(name)
        roles = {"a": total, "b": gradient, "sum": name}
        self.builder.emit(gradient_ops.ADDED.op(site, roles, {}))
        return name

    def keep(self, node: OnnxNode, key: str, kept: Kept) -> None:
        """Leave something for the backward node that reads the tensor `key` of the file."""
        if key:
            self.kept[kept.primitive, key] = kept

    def recall(self, kind: str, *keys: str) -> Kept | None:
        """What the forward node of a primitive has left under one of these names."""
        return next((self.kept[kind, key] for key in keys if (kind, key) in self.kept), None)

    def without_unused(self, named: Iterable[str]) -> None:
        """Drop tensors that no op touches, nothing is a view of, and that are not `named`."""
        self.builder.tensors = self.touched(self.builder.ops, named, ("input", "label"))
        self.values = {name: value for name, value in self.values.items() if name in self.builder.tensors}

    def touched(self, ops: Iterable[Op], named: Iterable[str], kinds: Sequence[str]) -> dict[str, Tensor]:
        """The tensors of some ops, those that are `named` or of these kinds, and the storage behind them."""
        names = {*named, *(name for op in ops for name in (*op.inputs, *op.outputs))}
        used = {source for name in names for source in self.lies_in(name)}
        tensors = self.builder.tensors.items()
        return {name: tensor for name, tensor in tensors if name in used or tensor.kind in kinds}
