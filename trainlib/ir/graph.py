# SPDX-License-Identifier: Apache-2.0
"""The training graph: ops and tensors of one training iteration, in execution order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, Literal

from msgspec import structs

from configs.dtypes import FP32, DType, dtype_of
from configs.values import Struct, replace

FED_KINDS = ("input", "label", "random")
"""New values in every iteration: the sample, and random numbers (dropout masks)."""

KEPT_KINDS = ("weight", "buffer", "optimizer_state")
"""Live from one iteration to the next."""

GIVEN_KINDS = (*FED_KINDS, *KEPT_KINDS)

LAYOUTS = ("CHW", "HWC")
"""Order of the dimensions of an image behind the batch dimension."""


class Initial(Struct, frozen=True):
    """How a kept tensor starts: `rule` uniform (in ±`scale`), normal (standard deviation `scale`), or
    constant (the value `scale`).
    """

    rule: Literal["uniform", "normal", "constant"] = "constant"
    scale: float = 0.0


class Tensor(Struct, frozen=True):
    """A tensor of the graph: C-contiguous; activations and their gradients have the batch first.

    `kind` is one of `GIVEN_KINDS`, "activation", "saved", "gradient" or "loss".
    `alias_of` names the tensor whose storage this one takes over (the updated weight takes that of the
    weight; what flatten makes is a view of its input: same bytes, other shape, no op). `layout` is that of an
    image [N, ...], `initial` the start of a kept tensor.
    """

    name: str
    shape: tuple[int, ...]
    kind: str
    dtype: DType = FP32
    alias_of: str | None = None
    layout: str = "CHW"
    initial: Initial = Initial()

    def __post_init__(self) -> None:
        """Take a dtype by its name as well."""
        if type(self.dtype) is str:
            structs.force_setattr(self, "dtype", dtype_of(self.dtype))

    @property
    def size_bytes(self) -> int:
        """Bytes of storage."""
        return prod(self.shape) * self.dtype.bytes


class ByteRuns(Struct, frozen=True):
    """`count` runs of `size_bytes` each, their starts `step_bytes` apart; a large batch has millions."""

    first_bytes: int
    size_bytes: int
    step_bytes: int
    count: int

    def listed(self) -> list[tuple[int, int]]:
        """(first byte, how many) of each run."""
        return [
            (self.first_bytes + number * self.step_bytes, self.size_bytes) for number in range(self.count)
        ]


class TensorWindow(Struct, frozen=True):
    """Elements [start, stop) of one dimension of a tensor, all of the others."""

    axis: int
    start: int
    stop: int

    def shape(self, whole: tuple[int, ...]) -> tuple[int, ...]:
        """Shape of the part of a tensor of shape `whole`."""
        return (*whole[: self.axis], self.stop - self.start, *whole[self.axis + 1 :])

    def runs(self, tensor: Tensor) -> ByteRuns:
        """The bytes of the part of a tensor."""
        inner_bytes = prod(tensor.shape[self.axis + 1 :]) * tensor.dtype.bytes
        size_bytes = (self.stop - self.start) * inner_bytes
        return ByteRuns(
            self.start * inner_bytes,
            size_bytes,
            tensor.shape[self.axis] * inner_bytes,
            prod(tensor.shape[: self.axis]),
        )

    @property
    def index(self) -> tuple[slice, ...]:
        """What cuts the part out of an array."""
        return (*(slice(None),) * self.axis, slice(self.start, self.stop))


@dataclass(frozen=True, slots=True)
class Op:
    """One primitive step: `name` is ``layer.step`` (``conv1.FW``), `step` one of FW, LOSS, IG, WG, UPD ...

    `inputs` and `outputs` are tensor names; `roles` maps the primitive's own names of them (x, w, dy ...) to
    tensor names: ``op["w"]`` is the weight tensor's name, ``"b" in op`` says whether there is a bias.
    `windows` maps a role to the only part of its tensor the step sees: the step works as if that were all.
    """

    name: str
    layer: str
    primitive: str
    step: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    reads: tuple[str, ...] = ()
    """Roles of `inputs`, in the same order."""
    writes: tuple[str, ...] = ()
    """Roles of `outputs`, in the same order."""
    windows: Mapping[str, TensorWindow] = field(default_factory=dict)
    roles: Mapping[str, str] = field(init=False, repr=False, compare=False)
    """Role -> tensor name of everything the op reads or writes."""

    def __post_init__(self) -> None:
        """Put names to roles once: planning asks hundreds of thousands of times."""
        read = zip(self.reads, self.inputs, strict=False)
        object.__setattr__(
            self, "roles", {**dict(read), **dict(zip(self.writes, self.outputs, strict=False))}
        )

    def __getitem__(self, role: str) -> str:
        return self.roles[role]

    def __contains__(self, role: object) -> bool:
        return role in self.reads or role in self.writes


class TrainingGraph(Struct, frozen=True):
    """One training iteration: tensors by name and ops in execution order (a topological order of the DAG).

    The graph of a layer alone has neither `labels` nor `losses`.
    """

    name: str
    tensors: Mapping[str, Tensor]
    ops: tuple[Op, ...]
    inputs: tuple[str, ...]
    labels: tuple[str, ...]
    outputs: tuple[str, ...]
    """What each loss is of; of a layer alone what it makes."""
    losses: tuple[str, ...]
    """The network is trained on their sum."""
    weights: tuple[str, ...]
    """All parameters, frozen ones included."""
    gradients: Mapping[str, str]
    """Trained weight -> its gradient tensor."""
    backward: Mapping[str, str] = {}
    """Activation or input -> its (whole) gradient tensor, where there is one."""
    draws: Mapping[str, Any] = {}
    """Random tensor -> `trainlib.primitives.definition.Random`."""

    kept: tuple[str, ...] = ()
    """Further tensors that are read after the iteration."""

    parts: Mapping[str, TensorWindow] = {}
    """Weight -> the only part of it that is trained; its gradient has the shape of that part."""

    fleeting: tuple[str, ...] = ()
    """Gradients that are given up after the update, and cannot be read after the iteration."""

    @property
    def input(self) -> str:
        """The first input; "" without one."""
        return next(iter(self.inputs), "")

    @property
    def label(self) -> str:
        """The first label; "" without one."""
        return next(iter(self.labels), "")

    @property
    def output(self) -> str:
        """The first output; "" without one."""
        return next(iter(self.outputs), "")

    @property
    def loss(self) -> str:
        """The first loss; "" without one."""
        return next(iter(self.losses), "")

    def of_kind(self, *kinds: str) -> tuple[str, ...]:
        """Names of the tensors of these kinds that have storage of their own, in graph order."""
        return tuple(
            name for name, tensor in self.tensors.items() if tensor.kind in kinds and tensor.alias_of is None
        )

    @property
    def needed_values(self) -> tuple[str, ...]:
        """Names of all tensors that need a value before an iteration."""
        return self.of_kind(*GIVEN_KINDS)

    @property
    def formats(self) -> dict[str, DType]:
        """Op -> the narrowest format it computes in; fp32 if it has no floats."""
        narrowest: dict[str, DType] = {}
        for op in self.ops:
            dtypes = [self.tensors[name].dtype for name in (*op.inputs, *op.outputs)]
            sums = [dtype.sums_in for dtype in dtypes if dtype.is_float]
            narrowest[op.name] = min(sums, key=lambda dtype: dtype.bits, default=FP32)
        return narrowest

    @property
    def updates(self) -> dict[str, str]:
        """Kept tensor -> tensor that holds its value after the iteration, for those an op updates."""
        written = {name for op in self.ops for name in op.outputs}
        return {
            self.storage_of(name): name
            for name, tensor in self.tensors.items()
            if tensor.alias_of is not None and tensor.kind in KEPT_KINDS and name in written
        }

    @property
    def results(self) -> tuple[str, ...]:
        """Tensors that live to the end of the iteration, to be read: losses, outputs, weight gradients."""
        gradients = (name for name in self.gradients.values() if name not in self.fleeting)
        names = (*self.losses, *self.outputs, *gradients, *self.kept)
        return tuple(dict.fromkeys(names))

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

    def of_ops(self, ops: Sequence[Op], beside: Sequence[str] = ()) -> TrainingGraph:
        """Some of the ops, the tensors they touch, those `beside`, and what all of these are views of."""
        written = {name for op in ops for name in op.outputs}
        touched = [*written, *(name for op in ops for name in op.inputs), *beside]
        for name in touched:
            source = self.tensors[name].alias_of
            touched += [source] if source is not None else []
        used = set(touched)
        return replace(
            self,
            tensors={name: tensor for name, tensor in self.tensors.items() if name in used},
            ops=tuple(ops),
            labels=tuple(name for name in self.labels if name in used),
            losses=tuple(name for name in self.losses if name in written),
            weights=tuple(name for name in self.weights if name in used),
            gradients={weight: name for weight, name in self.gradients.items() if name in written},
            backward={name: gradient for name, gradient in self.backward.items() if gradient in used},
            draws={name: draw for name, draw in self.draws.items() if name in used},
            kept=tuple(name for name in self.kept if name in used),
            parts={name: part for name, part in self.parts.items() if name in used},
        )
