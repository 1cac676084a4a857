"""The same training iteration by PyTorch autograd: an oracle that knows nothing of our backward rules.

PyTorch is imported only here and only when asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from types import MappingProxyType
from typing import Any

import numpy as np

from configs.dtypes import is_float, is_narrow
from trainlib.graph import Op, TrainingGraph
from trainlib.primitives.definition import is_forward
from trainlib.registry import layer_primitive, loss_primitive, optimizer_primitive
from trainlib.steps import Array


def torch_available() -> bool:
    """Whether PyTorch can be imported."""
    return find_spec("torch") is not None


class TorchUpdates:
    """Optimizers of `torch.optim` that go on from update to update, on weights and states of their own.

    They start at the weights of the first update they see, with states at their start.
    """

    def __init__(self) -> None:
        self._known: dict[str, tuple[Any, Any]] = {}

    def stepped(self, torch: Any, op: Op, weight: Array, gradient: Array, precision: Any) -> Array:
        """The weight (or its trained part) after one more update with this gradient."""
        if op["w"] not in self._known:
            parameter = torch.tensor(weight, dtype=precision, requires_grad=True)
            make = optimizer_primitive(op.primitive).torch_optimizer
            self._known[op["w"]] = parameter, make(torch, [parameter], op.attributes)
        parameter, optimizer = self._known[op["w"]]
        parameter.grad = torch.tensor(gradient, dtype=precision)
        optimizer.step()
        updated: Array = parameter.detach().numpy().copy()
        return updated


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
    run = _Run(graph, values, dtype, forced, updates or TorchUpdates())
    for op in graph.ops:
        if is_forward(op.step) and "y" in op.writes:
            run.forward(op)
        elif op.step == "LOSS":
            run.loss(op)
    run.backward()
    result = run.gradients()
    for op in graph.ops:
        run.gradient_step(op, result)
        if op.step == "UPD":
            run.update(op, result)
    for name in graph.tensors:
        run.add_view(name, result)
    return result


class _Run:
    """Tensors of one evaluation."""

    def __init__(
        self,
        graph: TrainingGraph,
        values: Mapping[str, Array],
        dtype: str,
        forced: Mapping[str, Array],
        updates: TorchUpdates,
    ) -> None:
        self.forced = forced
        self.updates = updates
        self.made: dict[str, Array] = {}
        """What PyTorch made of forced tensors."""
        self.torch: Any = import_module("torch")
        self.graph = graph
        self.dtype = dtype
        self.precision = getattr(self.torch, dtype)
        self.tensors: dict[str, Any] = {}
        self.known: dict[str, Array] = {}
        wanted = {*graph.backward, *graph.gradients}
        for name in graph.given:
            if is_float(graph.tensors[name].dtype):
                given = self.torch.tensor(values[name].astype(dtype), dtype=self.precision)
                trained = name in wanted or (
                    graph.tensors[name].kind == "input" and name not in self._seeds()
                )
                self.tensors[name] = given.requires_grad_() if trained else given
                self.known[name] = values[name].astype(dtype)
            else:
                self.tensors[name] = self.torch.tensor(values[name].astype(np.int64))
                self.known[name] = values[name]

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
            self.made[name] = tensor.detach().numpy().copy()
            tensor = self._given(name) + (tensor - tensor.detach())  # exact, so that no tie breaks
        elif is_narrow(dtype):
            tensor = tensor + (self._rounded(tensor.detach(), dtype) - tensor.detach())
        if tensor.requires_grad:
            gradient = self.graph.backward.get(name)
            if gradient is not None and gradient in self.forced:
                tensor.register_hook(partial(self._go_on_with, gradient))
            elif gradient is not None and is_narrow(self.graph.tensors[gradient].dtype):
                kind = self.graph.tensors[gradient].dtype
                tensor.register_hook(lambda value: self._rounded(value, kind))
            tensor.retain_grad()
        self.tensors[name] = tensor

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
        results = layer_primitive(op.primitive).torch_forward(self.torch, op.attributes, arguments)
        if not isinstance(results, Mapping):
            results = {"y": results}
        for role, tensor in results.items():
            if role in written:
                self._keep(written[role], tensor)

    def loss(self, op: Op) -> None:
        """LOSS, from which everything goes back."""
        output, label = self.of(op["y"]), self.tensors[op["label"]]
        value = loss_primitive(op.primitive).torch_loss(self.torch, op.attributes, output, label)
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

    def gradients(self) -> dict[str, Array]:
        """Values of all tensors and their gradients."""
        result = dict(self.known)
        for name, tensor in self.tensors.items():
            if name not in result:
                result[name] = tensor.detach().numpy().copy()
            gradient = self.graph.backward.get(name) or self.graph.gradients.get(name)
            if gradient is not None and tensor.requires_grad and gradient not in result:
                whole = tensor.grad if tensor.grad is not None else self.torch.zeros_like(tensor)
                if name in self.graph.parts:
                    whole = whole[self.graph.parts[name].index]
                if not self.forced and is_narrow(self.graph.tensors[gradient].dtype):
                    whole = self._rounded(whole, self.graph.tensors[gradient].dtype)
                result[gradient] = whole.numpy().copy()
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
            parameter = self.torch.zeros(result[before].shape, dtype=self.precision, requires_grad=True)
            parameter.grad = self._found(before, result)
            parameters.append(parameter)
        clip(parameters, limit)
        for after, parameter in zip(pairs.values(), parameters, strict=True):
            kind = self.graph.tensors[after].dtype
            narrow = is_narrow(kind) and not self.forced
            gradient = self._rounded(parameter.grad, kind) if narrow else parameter.grad
            result[after] = gradient.numpy().copy()

    def update(self, op: Op, result: dict[str, Array]) -> None:
        """UPD of one weight, or of its trained part, by torch.optim."""
        whole = result[op["w"]].copy()
        part = op.windows["w"].index if "w" in op.windows else ...
        gradient = self._found(op["dw"], result).numpy()
        whole[part] = self.updates.stepped(self.torch, op, whole[part], gradient, self.precision)
        result[op["w_updated"]] = whole

    def _found(self, name: str, result: Mapping[str, Array]) -> Any:
        """A gradient to go on with: the forced one, or what was made."""
        return self._given(name) if name in self.forced else self.torch.tensor(result[name])

    def add_view(self, name: str, result: dict[str, Array]) -> None:
        """A tensor not known yet that is only another one in another shape."""
        if name not in result and self.graph.is_view(name):
            source = result.get(str(self.graph.tensors[name].alias_of))
            if source is not None:
                result[name] = source.reshape(self.graph.tensors[name].shape)
