# SPDX-License-Identifier: Apache-2.0
"""A training graph by PyTorch autograd: an oracle of our backward rules, which reads the graph's attributes.

What a run is held against reads the model instead: `truth`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from importlib import import_module
from types import MappingProxyType
from typing import Any

import numpy as np

from configs.dtypes import is_float, is_narrow
from shared.oracle_layers import forward, known_of
from trainlib.ir.graph import Op, TrainingGraph
from trainlib.ir.steps import Array
from trainlib.primitives.definition import is_forward
from trainlib.primitives.formulas import present

UPDATED_TOGETHER = 1 << 20
"""Elements of a weight that one optimizer of `torch.optim` updates."""


def optimizer_of(op: Op, parameter: Any) -> Any:
    """The optimizer of `torch.optim` that an update is, with the options it has now."""
    steps = import_module("truth.steps")
    keys = op.attributes.keys() - set(steps.GRADIENT_KEYS)
    return steps.OPTIMIZERS[op.primitive]([parameter], **{key: present(op.attributes[key]) for key in keys})


class TorchUpdates:
    """Optimizers of `torch.optim` that go on from update to update, on weights and states of their own.

    They start at the weights of the first update they see, with states at their start. These optimizers work
    element by element, so a large weight is updated in parts, each by an optimizer of its own.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[str, int], tuple[Any, Any]] = {}

    def stepped(
        self, torch: Any, op: Op, weight: Array, gradient: Array, precision: Any, *, keep: bool = True
    ) -> Array:
        """The weight (or its trained part) after one more update with this gradient.

        With `keep` False it is the last one: nothing is remembered of it.
        """
        before, slope = weight.reshape(-1), gradient.reshape(-1)
        after = np.empty_like(before)
        for first in range(0, before.size, UPDATED_TOGETHER):
            some, key = slice(first, first + UPDATED_TOGETHER), (op["w"], first)
            if key not in self._known:
                parameter = torch.tensor(before[some], dtype=precision, requires_grad=True)
                self._known[key] = parameter, optimizer_of(op, parameter)
            parameter, optimizer = self._known[key] if keep else self._known.pop(key)
            parameter.grad = torch.tensor(slope[some], dtype=precision)
            optimizer.step()
            parameter.grad = None
            after[some] = parameter.detach().numpy()
        return after.reshape(weight.shape)


def evaluate_torch(
    graph: TrainingGraph,
    values: Mapping[str, Array],
    dtype: str = "float64",
    forced: Mapping[str, Array] = MappingProxyType({}),
    updates: TorchUpdates | None = None,
) -> dict[str, Array]:
    """The tensors of the graph, as `reference.evaluate`, but gradients by autograd, update by torch.optim.

    Only the forward ops, the loss and the optimizer of the graph are used. `values` needs all given tensors,
    shapes as in the graph. What PyTorch has no counterpart of is left out: saved tensors, the parts of a
    gradient before they are summed, optimizer states. `dtype` is that of the whole computation and of the
    result; where the graph has 16-bit tensors, values and gradients are rounded to them on the way.
    float64 measures our rounding alone; in float32 the gradient softmax - target of a confident network
    (loss below 1e-4) is off by 1e-3 and more in PyTorch itself.

    Of the activations and gradients in `forced` the result holds what PyTorch makes, but what comes after
    them goes on with the forced value (unrounded): each tensor is then the truth for what it was made from.
    `updates` keep weights and optimizer states from one call to the next; without them both start anew.
    """
    iteration = TorchIteration(graph, values, dtype, forced)
    result = {name: iteration.given(name) for name in graph.needed_values} | iteration.made
    updates = updates or TorchUpdates()
    for op in graph.ops:
        if op.step == "UPD":
            result[op["w_updated"]] = iteration.updated(op, updates)
    for name in graph.tensors:
        if name in iteration.names and name not in result:
            result[name] = result[str(graph.tensors[name].alias_of)].reshape(graph.tensors[name].shape)
    return result


class TorchIteration:
    """What `evaluate_torch` finds, tensor by tensor, so that not all of it lies in memory at a time.

    `made` holds what the forward and the backward pass have made, in the dtype of the computation; who does
    not need a tensor any more may take it out. Weights are updated when that is asked for.
    """

    def __init__(
        self,
        graph: TrainingGraph,
        values: Mapping[str, Array],
        dtype: str = "float64",
        forced: Mapping[str, Array] = MappingProxyType({}),
    ) -> None:
        self._graph, self._values, self._dtype, self._forced = graph, values, dtype, forced
        run = _Run(graph, values, dtype, forced)
        for op in graph.ops:
            if is_forward(op.step) and "y" in op.writes:
                run.forward(op)
            elif op.step == "LOSS":
                run.loss(op)
        run.backward()
        self._torch, self._precision = run.torch, run.precision
        self.made = run.results()
        for op in graph.ops:
            run.gradient_step(op, self.made)
        names = {*graph.needed_values, *self.made, *(op["w_updated"] for op in graph.ops if op.step == "UPD")}
        for name, tensor in graph.tensors.items():
            if tensor.alias_of in names and graph.is_view(name):
                names.add(name)
        self.names = frozenset(names)
        """All tensors PyTorch knows: given ones, those made or updated, and views of them."""

    def given(self, name: str) -> Array:
        """A given tensor in the dtype of the computation."""
        value = self._values[name]
        return value.astype(self._dtype) if is_float(self._graph.tensors[name].dtype) else value

    def updated(self, op: Op, updates: TorchUpdates, *, keep: bool = True) -> Array:
        """UPD of one weight, or of its trained part, by torch.optim; `keep` is that of `TorchUpdates`."""
        whole = self.given(op["w"])
        part = op.windows["w"].index if "w" in op.windows else ...
        sources = (self._forced, self.made, self._values)
        gradient = next(known[op["dw"]] for known in sources if op["dw"] in known)
        whole[part] = updates.stepped(
            self._torch, op, whole[part], gradient.astype(self._dtype), self._precision, keep=keep
        )
        return whole


class _Run:
    """Tensors of one evaluation."""

    def __init__(
        self,
        graph: TrainingGraph,
        values: Mapping[str, Array],
        dtype: str,
        forced: Mapping[str, Array],
    ) -> None:
        self.forced = forced
        self.made: dict[str, Array] = {}
        """What PyTorch made of forced tensors."""
        self.torch: Any = import_module("torch")
        self.graph = graph
        self.values = values
        self.dtype = dtype
        self.precision = getattr(self.torch, dtype)
        self.tensors: dict[str, Any] = {}
        wanted = {*graph.backward, *graph.gradients}
        for name in graph.needed_values:
            if graph.tensors[name].kind == "optimizer_state":
                continue
            if is_float(graph.tensors[name].dtype):
                given = self.torch.from_numpy(values[name].astype(dtype, order="C"))
                trained = name in wanted or (
                    graph.tensors[name].kind == "input" and name not in self._seeds()
                )
                self.tensors[name] = given.requires_grad_() if trained else given
            else:
                self.tensors[name] = self.torch.tensor(values[name].astype(np.int64))

    def _seeds(self) -> set[str]:
        tensors = self.graph.tensors
        return {grad for grad in self.graph.backward.values() if tensors[grad].kind == "input"}

    def of(self, name: str) -> Any:
        """The tensor, or the view of the one that flatten (or another view) takes its bytes from."""
        if name not in self.tensors:
            tensor = self.graph.tensors[name]
            self._keep(name, self.of(str(tensor.alias_of)).reshape(tensor.shape))
        return self.tensors[name]

    def _keep(self, name: str, tensor: Any) -> None:
        """Remember a result, rounded to the dtype it has in the graph, its gradient too."""
        dtype = self.graph.tensors[name].dtype
        if name in self.forced:
            self.made[name] = tensor.detach().numpy()
            tensor = self._in_place_of(tensor, self._given(name))
        elif is_narrow(dtype):
            tensor = self._in_place_of(tensor, self._rounded(tensor.detach(), dtype))
        if tensor.requires_grad:
            gradient = self.graph.backward.get(name)
            if gradient is not None and gradient in self.forced:
                tensor.register_hook(partial(self._go_on_with, gradient))
            elif gradient is not None and is_narrow(self.graph.tensors[gradient].dtype):
                kind = self.graph.tensors[gradient].dtype
                tensor.register_hook(lambda value: self._rounded(value, kind))
            tensor.retain_grad()
        self.tensors[name] = tensor

    def _in_place_of(self, tensor: Any, value: Any) -> Any:
        """A tensor of this value, to the bit and NaN or not, whose gradient is that of `tensor`."""
        held = tensor.clone()
        with self.torch.no_grad():
            return held.copy_(value)

    def _given(self, name: str) -> Any:
        """The forced value of a tensor."""
        return self.torch.tensor(self.forced[name].astype(self.dtype), dtype=self.precision)

    def _go_on_with(self, name: str, gradient: Any) -> Any:
        """Remember the gradient autograd has made; what lies before is made of the forced one."""
        self.made[name] = gradient.detach().numpy().copy()
        return self._given(name).reshape(gradient.shape)

    def _rounded(self, tensor: Any, dtype: str) -> Any:
        return tensor.to(getattr(self.torch, dtype)).to(self.precision)

    def forward(self, op: Op) -> None:
        """FW of a layer, the last of its forward steps; what they save for each other is not looked at."""
        steps = [step for step in self.graph.ops if step.layer == op.layer and is_forward(step.step)]
        arguments = {
            role: self.of(name)
            for step in steps
            for role, name in zip(step.reads, step.inputs, strict=True)
            if self.graph.tensors[name].kind != "saved"
        }
        written = {role: name for step in steps for role, name in zip(step.writes, step.outputs, strict=True)}
        arguments |= {
            role.removesuffix("_updated"): self.of(old)
            for role, name in written.items()
            if role.endswith("_updated") and (old := self.graph.tensors[name].alias_of) is not None
        }
        for role, tensor in forward(op, arguments).items():
            if role in written:
                self._keep(written[role], tensor)

    def loss(self, op: Op) -> None:
        """LOSS, from which everything goes back."""
        output, label = self.of(op["y"]), self.tensors[op["label"]] if "label" in op else None
        loss = import_module("truth.steps").LOSSES[op.primitive]
        value = loss(output, label, **known_of(loss, op.attributes))
        self.tensors[op["loss"]] = value.reshape(1)

    def backward(self) -> None:
        """Autograd from the loss, or from the outputs whose gradients are given."""
        if self.graph.loss:
            self.tensors[self.graph.loss].sum().backward()
            return
        seeds = self._seeds()
        pairs = [
            (self.of(name), self.tensors[grad]) for name, grad in self.graph.backward.items() if grad in seeds
        ]
        pairs = [(output, grad) for output, grad in pairs if output.requires_grad]
        if pairs:
            self.torch.autograd.backward([output for output, _ in pairs], [grad for _, grad in pairs])

    def results(self) -> dict[str, Array]:
        """What was made of all tensors, and their gradients; what autograd has kept for that is let go."""
        result: dict[str, Array] = {}
        known = {*self.graph.needed_values, *self.made}
        for name in list(self.tensors):
            tensor = self.tensors.pop(name)
            if name not in known:
                result[name] = tensor.detach().numpy()
            gradient = self.graph.backward.get(name) or self.graph.gradients.get(name)
            if gradient is None or gradient in known or gradient in result or not tensor.requires_grad:
                continue
            whole = tensor.grad if tensor.grad is not None else self.torch.zeros_like(tensor)
            if name in self.graph.parts:
                whole = whole[self.graph.parts[name].index].clone()
            if not self.forced and is_narrow(self.graph.tensors[gradient].dtype):
                whole = self._rounded(whole, self.graph.tensors[gradient].dtype)
            result[gradient] = whole.detach().numpy()
        return result | self.made

    def gradient_step(self, op: Op, result: dict[str, Array]) -> None:
        """Clipping of gradients by torch.nn.utils, all of them at the first op that applies a norm."""
        if op.step == "CLIP_VALUE":
            pairs, limit = {op["dw"]: op["dw_clipped"]}, op.attributes["limit"]
            self._clip(pairs, limit, result, self.torch.nn.utils.clip_grad_value_)
        elif op.step == "SCALE":
            pairs = {item["dw"]: item["dw_clipped"] for item in self.graph.ops if op["scale"] in item.inputs}
            self._clip(pairs, op.attributes["limit"], result, self.torch.nn.utils.clip_grad_norm_)

    def _clip(self, pairs: Mapping[str, str], limit: float, result: dict[str, Array], clip: Any) -> None:
        parameters = []
        for before in pairs:
            gradient = self._found(before, result)
            parameter = self.torch.zeros(gradient.shape, dtype=self.precision, requires_grad=True)
            parameter.grad = gradient
            parameters.append(parameter)
        clip(parameters, limit)
        for after, parameter in zip(pairs.values(), parameters, strict=True):
            kind = self.graph.tensors[after].dtype
            narrow = is_narrow(kind) and not self.forced
            gradient = self._rounded(parameter.grad, kind) if narrow else parameter.grad
            result[after] = gradient.numpy().copy()

    def _found(self, name: str, result: Mapping[str, Array]) -> Any:
        """A gradient to go on with: the forced one, what was made, or (a sum of earlier ones) a given one."""
        if name in self.forced:
            return self._given(name)
        found = result[name] if name in result else self.values[name].astype(self.dtype)
        return self.torch.tensor(found)
