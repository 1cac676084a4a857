# SPDX-License-Identifier: Apache-2.0
"""One iteration of a given model by autograd and `torch.optim`, in float64.

Truth and machine know tensors by the same names. Of every output and gradient that the machine has made the
truth is what PyTorch makes of the machine's numbers before it, and it goes on from the machine's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from configs.dtypes import is_float
from configs.values import Struct, replace
from truth.layers import BOTH
from truth.network import SCALE, Network, NetworkLayer
from truth.rates import group_of, options_of
from truth.source import DisagreementError, Given, Source
from truth.steps import LOSS_KEYS, LOSSES, OPTIMIZERS, STATES, UNLABELLED, updated

Array = NDArray[Any]

UPDATED_TOGETHER = 1 << 20
"""Elements of a weight that one optimizer of `torch.optim` updates."""

IMAGE_AXES = 4
"""Of a batch of images."""

CONVERSIONS = ("cast", "layout")
"""Types that take a tensor as it comes."""

AGAIN = ".again"
"""What the name of a tensor ends in that is computed a second time."""


PROJECTED = "_projected"
"""What the name of a weight ends in once a layer has replaced it."""

NOT_MADE = "the model computes it, but no op does"


class Updates:
    """Optimizers of `torch.optim` that go on from update to update, on weights and states of their own.

    They start at the weights and states of the first update they see. These optimizers work element by
    element, so a large weight is updated in parts, each by an optimizer of its own.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[str, int], tuple[Any, Any]] = {}

    def stepped(
        self,
        given: Given,
        name: str,
        weight: Array,
        gradient: Array,
        states: Mapping[str, Array],
        losses: Sequence[float],
        *,
        keep: bool = True,
    ) -> Array:
        """The weight (or its trained part) after one more update with this gradient.

        `states` are those of the machine, by the ends of their names, from which the first one starts;
        `losses` those of the iterations before, which schedules count and one looks at. With `keep` False it
        is the last one: nothing is remembered of it, nor of states that are narrower than fp32, where the
        machine's last digit may be another: each update begins with the machine's.
        """
        before, slope = weight.reshape(-1), gradient.reshape(-1)
        keep = keep and group_of(given.optimizer, name).get("state_dtype", "fp32") == "fp32"
        after = np.empty_like(before)
        for first in range(0, before.size, UPDATED_TOGETHER):
            some, key = slice(first, first + UPDATED_TOGETHER), (name, first)
            if key not in self._known:
                parameter = torch.tensor(before[some], requires_grad=True)
                optimizer = _optimizer_of(given, parameter, name, losses)
                self._known[key] = parameter, optimizer
                words = STATES[given.optimizer["name"]]
                _start(optimizer, parameter, {words[end]: _state(item, some) for end, item in states.items()})
            parameter, optimizer = self._known[key] if keep else self._known.pop(key)
            now = _optimizer_of(given, parameter, name, losses).param_groups[0]
            optimizer.param_groups[0].update({key: item for key, item in now.items() if key != "params"})
            parameter.grad = torch.tensor(slope[some])
            updated(optimizer)
            parameter.grad = None
            after[some] = parameter.detach().numpy()
        return after.reshape(weight.shape)


def _states_of(given: Given, weight: str) -> tuple[str, ...]:
    """The states that the model's optimizer has of a weight, as an update of a number shows."""
    number = torch.zeros(1, requires_grad=True)
    number.grad = torch.zeros(1)
    optimizer = _optimizer_of(given, number, weight, ())
    updated(optimizer)
    states = optimizer.state[number]
    return tuple(end for end, word in STATES[given.optimizer["name"]].items() if states.get(word) is not None)


def _optimizer_of(given: Given, parameter: Any, weight: str, losses: Sequence[float]) -> Any:
    said = given.optimizer
    return OPTIMIZERS[said["name"]]([parameter], **options_of(said, weight, losses))


def _start(optimizer: Any, parameter: Any, states: Mapping[str, Any]) -> None:
    """Let an optimizer begin with these states: it makes its own at its first update, of nothing."""
    before = parameter.detach().clone()
    parameter.grad = torch.zeros_like(parameter)
    updated(optimizer)
    with torch.no_grad():
        parameter.copy_(before)
    state = optimizer.state[parameter]
    if "step" in state:
        state["step"] = torch.tensor(0.0)
    state.update(states)
    if "mu" in state:  # of ASGD, which follows from the count
        state["mu"] = torch.tensor(1 / max(1, float(state["step"]) - optimizer.param_groups[0]["t0"]))


def _state(array: Array, some: slice) -> Any:
    """A state of the machine for `torch.optim`; a count of steps is one number."""
    if not is_float(str(array.dtype)):
        return torch.tensor(float(array.reshape(-1)[0]))
    flat = array.reshape(-1).astype(np.float64)
    return torch.tensor(flat if flat.size == 1 else flat[some])


class _Flow(Struct, frozen=True):
    """A tensor on its way through the network: the machine's name of it, and how it is stored there."""

    name: str
    tensor: Any
    dtype: str
    layout: str
    again: Any = None
    """What the machine has when it has computed it again, if it has: other tiles may change the last bits."""


class Iteration:
    """What a program of the model makes: `values` are the machine's given tensors, `seen` those it has made.

    `made` is the truth of what was seen, by name; who does not need a tensor any more may take it out.
    `updated` are the weights that this program trains, `output_shapes` those of what the losses are of,
    `losses` those of the iterations before this one. Raises `DisagreementError` where the machine's tensors
    are not those of the model.
    """

    def __init__(
        self,
        given: Given,
        values: Mapping[str, Array],
        seen: Mapping[str, Array],
        losses: Sequence[float] = (),
    ) -> None:
        self._given, self._values, self._seen, self._losses = given, values, seen, losses
        self._network = Network(given)
        self._trained = frozenset(self._network.updated)
        self.made: dict[str, Array] = {}
        self.output_shapes: tuple[tuple[int, ...], ...] = ()
        self._expected: set[str] = set()
        self._leaves: dict[str, Any] = {}
        """Parameters and inputs."""
        self._flows: dict[tuple[str, int], _Flow] = {}
        self._converted: dict[tuple[str, str], _Flow] = {}
        self._moved: dict[str, Any] = {}
        """Running statistics as the layers so far have left them."""
        fed = bool(given.inputs) and all(source.name in values for source in given.inputs)
        if fed:
            self._compute()
        whole = given.optimizer and "upd" in given.steps
        updates = whole and not (fed and given.separate)
        self.updated = frozenset(self._network.updated if updates else ())
        """Weights."""
        self._slopes = {name: f"{name}.grad" for name in self._network.updated}
        """What the update of a weight reads."""
        if given.mini_batches > 1 and whole:
            self._accumulate(adding=fed)
        if updates:
            self._clip()
        for name in self.updated:
            ends = ("", *(f".{end}" for end in _states_of(given, name)))
            self._expected |= {f"{name}{end}_updated" for end in ends}
        if updates and given.optimizer.get("average") is not None:
            self._average(given.optimizer["average"])
        for name in self.updated:
            self._value(name)
            self._known(self._slopes[name])
        for name in self.made.keys() & seen.keys():
            self._check_shape(name, self.made[name].shape)

    def _check_shape(self, name: str, shape: Sequence[int]) -> None:
        if tuple(shape) != self._seen[name].shape:
            shapes = f"{list(self._seen[name].shape)}, the model says {list(shape)}"
            raise DisagreementError(name, f"has shape {shapes}")

    def step(self, name: str, updates: Updates, *, keep: bool = True) -> Array:
        """The weight `name` after its update; `keep` is that of `Updates`."""
        replaced = {
            item.places[item.entry.overwrites] for item in self._network.parts if item.entry.overwrites
        }
        keep = keep and name not in replaced  # torch.optim goes on from what the layer has left
        whole = self._seen.get(f"{name}{PROJECTED}", self._value(name)).astype(np.float64)
        part = self._network.part_of(name)
        gradient = self._gradient(self._slopes[name])
        ends = (end for end in STATES[self._given.optimizer["name"]] if f"{name}.{end}" in self._values)
        borrowed = {end: self._values[f"{name}.{end}"] for end in ends}
        whole[part] = updates.stepped(
            self._given, name, whole[part], gradient, borrowed, self._losses, keep=keep
        )
        return whole

    def _value(self, name: str) -> Array:
        if name not in self._values:
            raise DisagreementError(name, "the simulated program has no such tensor")
        return self._values[name]

    def differences(self) -> dict[str, str]:
        """What the machine has not made of the iteration, and what it has made beside it: why, by tensor."""
        network, updated = self._network, self._network.updated
        reasons = {name: NOT_MADE for name in self._expected if name not in self._seen}
        surplus = {f"{name}_updated" for name in network.parameters} - self._expected
        surplus |= {f"{name}.grad" for name in set(network.parameters) - set(updated)}
        reasons |= dict.fromkeys(surplus & self._seen.keys(), "the model does not change it")
        if not self._given.alone:
            named = {*(source.name for source in self._given.inputs), *network.parameters}
            named |= {loss["label"] for loss in self._given.losses if "label" in loss}
            named |= {*network.buffers, *network.masks}
            stored = (part.places[end] for part in network.parts for end in part.stored)
            named |= {f"{name}{SCALE}" for name in stored}
            prefixes = tuple(f"{name}." for name in updated)
            reasons |= {
                name: "the model has no such tensor"
                for name in self._values
                if name not in named and not name.startswith(prefixes)
            }
        return reasons

    # Forward

    def _compute(self) -> None:
        given = self._given
        for source in given.inputs:
            self._flows[source.name, 0] = self._source(source)
        for part in self._network.parts:
            self._run(part)
        losses = [(said, self._flows[self._place(said.get("of"))]) for said in given.losses]
        self.output_shapes = tuple(tuple(output.tensor.shape) for _, output in losses)
        if losses and "loss" in given.steps:
            converted = [self._converted_for(said, output) for said, output in losses]
            terms = [self._loss(number, *term) for number, term in enumerate(converted)]
            loss = sum(terms[1:], start=terms[0])
            if {"ig", "wg"} & set(given.steps) and loss.requires_grad:
                loss.backward()
        elif given.alone:
            self._backward_of_outputs()
        if {"ig", "wg"} & set(given.steps):
            for name, leaf in self._leaves.items():
                whole = leaf.grad if leaf.grad is not None else torch.zeros_like(leaf)
                self.made[f"{name}.grad"] = whole[self._network.part_of(name)].detach().numpy()
        if "wg" in given.steps:
            self._expected |= {f"{name}.grad" for name in self._network.updated}
        self._flows.clear()
        self._converted.clear()
        self._leaves.clear()

    def _source(self, source: Source) -> _Flow:
        shape = self._values[source.name].shape
        if shape != source.shape:
            raise DisagreementError(
                source.name, f"has shape {list(shape)}, but the model specifies {list(source.shape)}"
            )
        layouts = self._network.parts[0].entry.layouts if self._given.alone and self._network.parts else None
        fits = len(shape) == IMAGE_AXES and (layouts is None or source.layout in layouts)
        tensor = self._leaf(source.name, source.differentiable)
        return _Flow(source.name, tensor, source.dtype, source.layout if fits else "CHW")

    def _leaf(self, name: str, differentiable: bool) -> Any:
        if name in self._leaves:
            return self._leaves[name]
        array = self._value(name)
        if not is_float(str(array.dtype)):
            return torch.tensor(array.astype(np.int64))
        tensor = torch.from_numpy(array.astype(np.float64, order="C"))
        if differentiable:
            self._leaves[name] = tensor.requires_grad_()
        return tensor

    def _dequantised(self, part: NetworkLayer, end: str) -> Any:
        """A weight of 8-bit integers, each times the scale of its output channel, in the layer's format."""
        name = part.places[end]
        codes, scales = self._value(name), self._value(name + SCALE)
        last = part.inputs_first and part.layout == "HWC"
        shape = [1] * codes.ndim
        shape[-1 if last else 0] = codes.shape[-1 if last else 0]
        if codes.dtype != np.int8 or scales.shape != tuple(shape):
            raise DisagreementError(name, "is not stored as 8-bit integers with a scale per output channel")
        whole = torch.from_numpy(codes).float() * torch.from_numpy(scales)
        return whole.to(getattr(torch, part.dtype)).double()

    def _run(self, part: NetworkLayer) -> None:
        entry = part.entry
        flows = [self._flows[word] for word in part.inputs]
        if part.type not in CONVERSIONS:
            flows = [self._cast(part.name, flow, part.dtype) for flow in flows]
            wanted = self._layout_of(part, flows)
            flows = [self._laid_out(part.name, flow, wanted) for flow in flows]
        parameters = {
            end: self._leaf(name, name in self._trained)
            if part.trains(end)
            else self._leaf(name, False).detach()
            for end, name in part.places.items()
            if end not in part.stored
        }
        parameters |= {end: self._dequantised(part, end) for end in part.stored}
        parameters |= {end: self._parameter(part, end) for end in part.computed}
        masks = {name.removeprefix(f"{part.name}."): name for name in part.names(entry.masks)}
        fixed = {**part.statistics, **masks}
        parameters |= {
            end: self._moved[name] if name in self._moved else self._leaf(name, False)
            for end, name in fixed.items()
        }
        results = self._results(part, flows[0].layout, [flow.tensor for flow in flows], parameters)
        repeated: dict[str, Any] = {}
        if any(flow.again is not None for flow in flows):
            with torch.no_grad():
                tensors = [flow.tensor if flow.again is None else flow.again for flow in flows]
                repeated = self._results(part, flows[0].layout, tensors, parameters)
        for end, tensor in results.items():
            name = f"{part.name}.{end}"
            if not end.startswith("out"):
                self.made[name] = tensor.detach().numpy()
                if end.endswith("_updated"):
                    left = self._seen.get(name, self.made[name]).astype(np.float64)
                    self._moved[part.statistics[end.removesuffix("_updated")]] = torch.from_numpy(left)
                if end.endswith("_updated") and not part.options.get("fixed_statistics"):
                    self._expected.add(name)
                continue
            if entry.overwrites:
                name_of_weight = f"{part.places[entry.overwrites]}{PROJECTED}"
                self.made[name_of_weight] = tensor.detach().numpy()[0]
                self._expected.add(name_of_weight)
            dtype = flows[0].dtype if entry.view else part.dtype
            number = int(end.removeprefix("out") or 0)
            flow = _Flow(name, tensor, dtype, flows[0].layout, repeated.get(end))
            self._flows[part.name, number] = self._remember(flow, view=entry.view)

    def _parameter(self, part: NetworkLayer, end: str) -> Any:
        """A parameter that another layer makes, of one sample."""
        flow = self._cast(part.name, self._flows[part.computed[end]], part.dtype)
        made = self._remember(replace(flow, name=f"{part.name}.{end}.out", tensor=flow.tensor[0]), view=True)
        return made.tensor if part.trains(end) else made.tensor.detach()

    def _results(
        self, part: NetworkLayer, layout: str, tensors: Sequence[Any], parameters: Mapping[str, Any]
    ) -> dict[str, Any]:
        """What a layer makes, by the end of its name, in the layout of what it is made of."""
        entry = part.entry
        channels_last = layout == "HWC" and entry.layouts == BOTH
        if channels_last:
            tensors = [tensor.permute(0, 3, 1, 2) for tensor in tensors]
            parameters = {**parameters, "weight": _weight_first(parameters["weight"], part)}
        try:
            results = _by_end(entry.forward(tensors, parameters, **part.options))
        except DisagreementError as error:
            raise DisagreementError(f"{part.name}.{error.tensor}", error.why) from None
        except RuntimeError as error:
            why = f"PyTorch cannot compute it from the machine's tensors: {str(error).splitlines()[0]}"
            raise DisagreementError(f"{part.name}.out", why) from None
        turned = [end for end in results if channels_last and end.startswith("out")]
        return results | {end: results[end].permute(0, 2, 3, 1) for end in turned}

    def _layout_of(self, part: NetworkLayer, flows: Sequence[_Flow]) -> str | None:
        layouts = part.entry.layouts
        if layouts is not None:
            return part.layout if part.layout in layouts else layouts[0]
        return next((flow.layout for flow in flows if flow.tensor.ndim == IMAGE_AXES), None)

    def _cast(self, layer: str, flow: _Flow, dtype: str) -> _Flow:
        """The same numbers in another format: what a layer reads is of its own format."""
        if not is_float(flow.dtype) or flow.dtype == dtype:
            return flow
        return self._conversion(layer, "cast", replace(flow, dtype=dtype), flow.name, dtype)

    def _laid_out(self, layer: str, flow: _Flow, layout: str | None) -> _Flow:
        if layout is None or flow.tensor.ndim != IMAGE_AXES or flow.layout == layout:
            return flow
        order = (0, 2, 3, 1) if layout == "HWC" else (0, 3, 1, 2)
        again = flow.again.permute(*order) if flow.again is not None else None
        turned = replace(flow, tensor=flow.tensor.permute(*order), layout=layout, again=again)
        return self._conversion(layer, "layout", turned, flow.name, layout)

    def _conversion(self, layer: str, kind: str, made: _Flow, of: str, to: str) -> _Flow:
        """A tensor is converted once, by the first layer that wants it so."""
        if (of, to) not in self._converted:
            start = f"{layer}.{kind}"
            number = sum(flow.name.startswith(start) for flow in self._converted.values())
            self._converted[of, to] = self._remember(replace(made, name=f"{start}{number or ''}.out"))
        return self._converted[of, to]

    def _remember(self, flow: _Flow, *, view: bool = False) -> _Flow:
        """Remember what PyTorch has made; what comes after it goes on with what the machine has."""
        name, tensor, again = flow.name, flow.tensor, flow.again if view else None
        if not view:
            self._expected.add(name)
        if name in self._seen:
            self.made[name] = tensor.detach().numpy()
            if (second := f"{name}{AGAIN}") in self._seen:
                self.made[second] = (tensor if flow.again is None else flow.again).detach().numpy()
                again = self._machine(second)
            tensor = self._in_place_of(name, tensor)
        if tensor.requires_grad and f"{name}.grad" in self._seen:
            tensor = tensor.view_as(tensor) if tensor is flow.tensor else tensor
            tensor.register_hook(partial(self._go_on_with, f"{name}.grad"))
        return replace(flow, tensor=tensor, again=again)

    def _in_place_of(self, name: str, tensor: Any) -> Any:
        """A tensor of the machine's value, to the bit and NaN or not, whose gradient is that of `tensor`."""
        self._check_shape(name, tensor.shape)
        held = tensor.clone()
        with torch.no_grad():
            return held.copy_(self._machine(name))

    def _machine(self, name: str) -> Any:
        return torch.from_numpy(self._seen[name].astype(np.float64))

    def _go_on_with(self, name: str, gradient: Any) -> Any:
        """Remember the gradient autograd has made; what lies before is made of the machine's."""
        self.made[name] = gradient.detach().numpy().copy()
        self._check_shape(name, gradient.shape)
        return self._machine(name)

    # Backward

    def _place(self, word: str | None) -> tuple[str, int]:
        """Where the layer of a loss has its output; the last one's, if it says none."""
        return self._network.output if word is None else self._network.found(word)

    def _converted_for(
        self, said: Mapping[str, Any], output: _Flow
    ) -> tuple[Mapping[str, Any], _Flow, _Flow | None]:
        """What a loss says, what it is of and what its target is: losses are computed in float32."""
        target = said.get("target")
        layers = [str(word or self._network.last).partition(".")[0] for word in (said.get("of"), target)]
        output = self._cast(self._given.alone or f"{layers[0]}.loss", output, "float32")
        if target is None:
            return said, output, None
        return said, output, self._cast(f"{layers[1]}.loss", self._flows[self._place(target)], "float32")

    def _loss(self, number: int, said: Mapping[str, Any], output: _Flow, target: _Flow | None) -> Any:
        name = f"loss_{number + 1}" if number else "loss"
        options = {key: value for key, value in said.items() if key not in ("name", *LOSS_KEYS)}
        label = None
        if target is not None:
            label = target.tensor.detach()
        elif said["name"] not in UNLABELLED:
            label = self._label(said["label"], output)
        value = LOSSES[said["name"]](output.tensor, label, **options)
        self.made[name] = value.detach().numpy().reshape(1)
        self._expected.add(name)
        return value

    def _label(self, name: str, output: _Flow) -> Any:
        label = self._leaf(name, False)
        if label.is_floating_point() and label.shape != output.tensor.shape:
            shapes = f"{list(label.shape)}, the output {list(output.tensor.shape)}"
            raise DisagreementError(name, f"has shape {shapes}")
        return label

    def _backward_of_outputs(self) -> None:
        """Of a layer alone, whose output gradients are given."""
        pairs = [
            (flow.tensor, torch.from_numpy(self._values[f"{flow.name}.grad"].astype(np.float64)))
            for flow in self._flows.values()
            if f"{flow.name}.grad" in self._values and flow.tensor.requires_grad
        ]
        if pairs:
            torch.autograd.backward([output for output, _ in pairs], [gradient for _, gradient in pairs])

    # Between gradients and update

    def _gradient(self, name: str) -> Array:
        return self._known(name).astype(np.float64)

    def _known(self, name: str) -> Array:
        """The machine's of this program, what was made here, or the machine's from before it."""
        for values in (self._seen, self.made, self._values):
            if name in values:
                return values[name]
        raise DisagreementError(name, NOT_MADE)

    def _accumulate(self, *, adding: bool) -> None:
        """The mean over the mini-batches, to which each adds its share; the first begins anew."""
        count = self._given.mini_batches
        for weight, name in self._slopes.items():
            total = self._slopes[weight] = f"{name}.total"
            if not adding:
                continue
            term = self._gradient(name) / count
            if int(self._value(f"{name}.count")[0]) % count:
                term += self._value(total).astype(np.float64)
            self.made[f"{total}_updated"] = term
            self._expected.add(f"{total}_updated")

    def _clip(self) -> None:
        """Every element by itself, then all gradients by their common norm."""
        said, utils = self._given.optimizer, torch.nn.utils
        for key, clip in (("clip_value", utils.clip_grad_value_), ("clip_norm", utils.clip_grad_norm_)):
            if said.get(key) is None:
                continue
            parameters = []
            for name in self._slopes.values():
                gradient = torch.tensor(self._gradient(name))
                parameters.append(torch.zeros_like(gradient).requires_grad_())
                parameters[-1].grad = gradient
            clip(parameters, said[key])
            self._slopes = {weight: f"{name}.clipped" for weight, name in self._slopes.items()}
            for name, parameter in zip(self._slopes.values(), parameters, strict=True):
                self.made[name] = parameter.grad.numpy()
                self._expected.add(name)

    def _average(self, share: float) -> None:
        """Of every weight as the machine has updated it, as `torch.optim.swa_utils` averages models."""
        mean = torch.optim.swa_utils.get_ema_avg_fn(share)
        for name in self.updated:
            average, count = f"{name}.average", f"{name}.average_count"
            self._expected |= {f"{average}_updated", f"{count}_updated"}
            if f"{name}_updated" in self._seen:
                new = self._machine(f"{name}_updated")
                average_before = torch.from_numpy(self._value(average).astype(np.float64))
                first = not int(self._value(count)[0])
                self.made[f"{average}_updated"] = (new if first else mean(average_before, new, 0)).numpy()


def _weight_first(weight: Any, part: NetworkLayer) -> Any:
    """A weight in the order CHW, of a layer whose images are HWC."""
    if weight.ndim == IMAGE_AXES:
        return weight.permute(0, 3, 1, 2)
    return weight.T if part.inputs_first else weight


def _by_end(results: Any) -> dict[str, Any]:
    """Tensors by the ends of their names: ``out``, ``out1`` ..."""
    if isinstance(results, Mapping):
        return dict(results)
    several = results if isinstance(results, tuple | list) else (results,)
    return {f"out{number or ''}": result for number, result in enumerate(several)}
