# SPDX-License-Identifier: Apache-2.0
"""Grows a training graph layer by layer: forward ops, then the backward ops somebody needs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from types import MappingProxyType
from typing import Any

from configs.dtypes import INT8, DType
from configs.errors import ConfigError, ShapeError, UnsupportedLayerError
from configs.limits import MOST_ELEMENTS, require_host_memory
from configs.model_file import LayerSpec
from configs.suggest import check_known, suggestion
from configs.values import replace
from trainlib.ir.graph import LAYOUTS, Op, Tensor, TensorWindow
from trainlib.ir.numerics import dtype_named
from trainlib.ir.parameters import PARAMETER_NAMES, trained_roles
from trainlib.primitives.definition import (
    AS_PUBLISHED,
    DEFAULT,
    VARIANT,
    LayerPlan,
    LayerPrimitive,
    OptimizerPrimitive,
    Random,
    Step,
)
from trainlib.primitives.lowering.dequantised import SCALE, WEIGHTS_IN
from trainlib.primitives.shapes.reshape import AS_PARAMETER
from trainlib.registry import layer_primitive
from trainlib.training.built_layer import (
    BuiltLayer,
    expanded,
    gradient_name,
    inserted,
    last_version,
    projected_name,
    shared_parameters,
    where_of,
)
from trainlib.training.options import layer_options
from trainlib.training.stored_weights import scales_of

OP_BYTES = 100_000
"""What an op and its schedule take of this computer's memory, about."""


@dataclass(slots=True)
class GraphBuilder:
    """Tensors and ops collected so far.

    `dtype`, `layout` and `variant` hold for layers that do not say otherwise; a variant for those that have
    it.
    """

    dtype: str = "fp32"
    layout: str = "CHW"
    variant: str = DEFAULT
    frozen_weights: str | None = None
    tensors: dict[str, Tensor] = field(default_factory=dict)
    ops: list[Op] = field(default_factory=list)
    layers: list[BuiltLayer] = field(default_factory=list)
    draws: dict[str, Random] = field(default_factory=dict)
    differentiable: set[str] = field(default_factory=set)
    """Tensors whose gradient somebody before them needs."""
    backward: dict[str, str] = field(default_factory=dict)
    _converted: dict[tuple[str, str], str] = field(default_factory=dict)

    def add(self, tensor: Tensor) -> str:
        """Add a tensor; ShapeError if the name is taken, or for more elements than any memory holds."""
        if prod(tensor.shape) > MOST_ELEMENTS:
            shape = "x".join(str(size) for size in tensor.shape)
            raise ShapeError(
                f"tensor {tensor.name} of shape {shape} has more than {MOST_ELEMENTS:,} elements, the limit",
                cure="use a smaller batch or shape",
            )
        if tensor.name in self.tensors:
            raise ShapeError(f"two tensors have the name '{tensor.name}'", cure="rename one of the layers")
        self.tensors[tensor.name] = tensor
        return tensor.name

    def emit(self, op: Op) -> None:
        """Append an op."""
        require_host_memory(len(self.ops) * OP_BYTES, f"more than {len(self.ops):,} ops need")
        self.ops.append(op)

    # Forward

    def add_layer(self, spec: LayerSpec, inputs: Sequence[str]) -> tuple[str, ...]:
        """Plan a layer on these tensors and emit its FW; returns its output tensors.

        Casts and layout conversions are inserted where an input has another format. Raises the errors of the
        schema and of the plan, with the layer's place.
        """
        where = where_of(spec)
        primitive = layer_primitive(spec.type, where)
        variant = self._variant_of(spec, primitive, where)
        options = layer_options(spec, primitive)
        if variant == AS_PUBLISHED and primitive.published is not None:
            unsaid = primitive.published.options.keys() - spec.attributes.keys()
            options |= {key: primitive.published.options[key] for key in unsaid}
        if spec.adapter is not None:
            options["adapter"] = spec.adapter
        least, most = primitive.inputs
        if not least <= len(inputs) <= most:
            wanted = str(least) if least == most else f"{least} to {most}"
            message = f"{spec.type} takes {wanted} inputs, but has {len(inputs)}"
            raise ShapeError(message, where=where, cure=f"name {wanted} layers in 'inputs'")
        batches = {self.tensors[name].shape[0]: name for name in inputs}
        if len(batches) > 1:
            words = " and ".join(f"{name} has {samples}" for samples, name in sorted(batches.items()))
            raise ShapeError(
                f"all inputs of a layer must have the same number of samples, but {words}",
                where=where,
                cure="remove 'once' from the `parameter` that is not a weight of another layer",
            )
        dtype = dtype_named(spec.dtype or self.dtype, where)
        if not primitive.internal:
            layout = self._layout_of(spec, primitive, where) or self._common_layout(inputs)
            inputs = [self._in_layout(spec, self.cast(spec, name, dtype), layout) for name in inputs]
        plan = primitive.plan(options, [self.tensors[name] for name in inputs], where)
        if variant != DEFAULT and primitive.in_variant(variant, plan.attributes):
            plan = replace(plan, attributes={**plan.attributes, VARIANT: variant})
        elif spec.variant not in (None, DEFAULT):
            needs = primitive.needs_of(variant)
            raise UnsupportedLayerError(
                f"variant {variant} of {spec.type} needs {needs}",
                where=where,
                cure=f"use {needs}, or variant: {DEFAULT}",
            )
        roles = {f"x{number or ''}": name for number, name in enumerate(inputs)}
        layer = BuiltLayer(spec, primitive, plan, dtype, roles, tuple(roles), (), ())
        self._add_tensors(layer)
        if primitive.overwrites:
            self._overwrite(layer)
        self.layers.append(layer)
        for step in primitive.steps_of(plan):
            if step.forward:
                present = set(layer.roles)
                self._emit_step(layer, step, present, present)
        if primitive.counts_only or primitive.overwrites:
            layer.inputs = ()
        outputs = tuple(layer.roles[role] for role in layer.outputs)
        if layer.trained or any(layer.roles[role] in self.differentiable for role in layer.inputs):
            self.differentiable |= {name for name in outputs if self.tensors[name].dtype.is_float}
        return outputs

    def _layout_of(self, spec: LayerSpec, primitive: LayerPrimitive, where: str) -> str | None:
        asked = spec.layout or self.layout
        check_known(asked, LAYOUTS, f"unknown layout '{asked}'", where, error=UnsupportedLayerError)
        if primitive.layouts is None or asked in primitive.layouts:
            return None if primitive.layouts is None else asked
        if spec.layout is not None:
            raise UnsupportedLayerError(
                f"{spec.type} does not support layout {asked}",
                where=where,
                cure=f"use {' or '.join(primitive.layouts)}",
            )
        return primitive.layouts[0]

    def _variant_of(self, spec: LayerSpec, primitive: LayerPrimitive, where: str) -> str:
        """What the layer says, or the model of all layers that have it."""
        if spec.variant is None:
            return self.variant
        variants = (DEFAULT, *primitive.variant_names)
        unknown = f"{spec.type} has no variant '{spec.variant}'"
        check_known(spec.variant, variants, unknown, where, error=UnsupportedLayerError)
        return spec.variant

    def _common_layout(self, inputs: Sequence[str]) -> str | None:
        """That of the first image, for a layer that takes images as they come, but all of them alike."""
        images = [self.tensors[name].layout for name in inputs if len(self.tensors[name].shape) == 4]
        return images[0] if images else None

    def cast(self, spec: LayerSpec, name: str, dtype: DType) -> str:
        """The tensor in another float format, by a cast op if it is not in it already."""
        if not self.tensors[name].dtype.is_float or self.tensors[name].dtype == dtype:
            return name
        return self._convert(spec, name, "cast", dtype)

    def _in_layout(self, spec: LayerSpec, name: str, layout: str | None) -> str:
        tensor = self.tensors[name]
        if layout is None or len(tensor.shape) != 4 or tensor.layout == layout:
            return name
        return self._convert(spec, name, "layout", layout)

    def _convert(self, spec: LayerSpec, name: str, kind: str, to: str) -> str:
        """A conversion layer before `spec`; a tensor is converted to one format only once."""
        if (name, to) not in self._converted:
            number = sum(layer.spec.name.startswith(f"{spec.name}.{kind}") for layer in self.layers)
            new = inserted(spec, f"{kind}{number or ''}", kind, {"to": to})
            (self._converted[name, to],) = self.add_layer(new, [name])
        return self._converted[name, to]

    def _add_tensors(self, layer: BuiltLayer) -> None:
        spec, plan, roles = layer.spec, layer.plan, layer.roles
        source = self.tensors[roles["x"]]
        layer.outputs = tuple(plan.results)
        for number, (role, given) in enumerate(plan.results.items()):
            dtype = given.dtype or layer.dtype
            name = f"{spec.name}.out{number or ''}"
            layout = given.layout or source.layout
            if layer.primitive.is_view:
                if prod(source.shape) != prod(given.shape):
                    raise ShapeError(
                        f"cannot view shape {source.shape} as {given.shape}",
                        where=where_of(spec),
                        cure=f"use a shape of {prod(source.shape)} elements",
                    )
                tensor = Tensor(name, given.shape, source.kind, source.dtype, source.name, layout)
            else:
                tensor = Tensor(name, given.shape, "activation", dtype, layout=layout)
            roles[role] = self.add(tensor)
        shared = shared_parameters(
            layer, self.layers, self.tensors, lambda role, word: self._computed(layer, role, word)
        )
        layer.shared = frozenset(shared)
        possible = {
            role: parameter.trainable and shared.get(role, ("", True))[1]
            for role, parameter in plan.parameters.items()
        }
        layer.trained = trained_roles(spec, possible, where_of(spec))
        scales = scales_of(layer, self.frozen_weights)
        for role, parameter in plan.parameters.items():
            if role in shared:
                roles[role] = shared[role][0]
                continue
            name = f"{spec.name}.{PARAMETER_NAMES.get(role, role)}"
            dtype = INT8 if role in scales else parameter.dtype or layer.dtype
            roles[role] = self.add(Tensor(name, parameter.shape, "weight", dtype, initial=parameter.initial))
            if role in scales:
                roles[role + SCALE] = self.add(Tensor(name + SCALE, scales[role], "buffer"))
        for role, buffer in plan.buffers.items():
            name = f"{spec.name}.{role}"
            tensor = Tensor(name, buffer.shape, "buffer", buffer.dtype, initial=buffer.initial)
            lent = last_version(shared[role][0], self.tensors) if role in shared else ""
            roles[role] = lent or self.add(tensor)
            roles[f"{role}_updated"] = f"{name}_updated"
        for role, random in plan.randoms.items():
            name = f"{spec.name}.{role}"
            roles[role] = self.add(Tensor(name, random.shape, "random", random.dtype or layer.dtype))
            self.draws[name] = random
        for role in plan.saved:
            roles[role] = f"{spec.name}.{role}"

    def _overwrite(self, layer: BuiltLayer) -> None:
        """Name what a layer puts into the place of a weight, which no other layer may have used."""
        weight = layer.roles[layer.primitive.overwrites]
        layer.roles[f"{layer.primitive.overwrites}_updated"] = projected_name(weight)
        for other in [*self.layers, layer]:
            if weight in other.roles.values() and other.spec.recompute:
                raise ConfigError(
                    f"'recompute' does not apply to {weight}, which layer {layer.spec.name} replaces",
                    where=where_of(other.spec),
                    cure="remove 'recompute'",
                )
            if weight in other.roles.values() and not other.primitive.counts_only and other is not layer:
                raise ConfigError(
                    f"layer {other.spec.name} uses {weight}, which this layer replaces",
                    where=where_of(layer.spec),
                    cure="put the weight into a `parameter` with `once`; let layers use what this one makes",
                )

    def _computed(self, layer: BuiltLayer, role: str, word: str) -> tuple[str, bool]:
        """A parameter that an earlier layer computes: a view of its output, and whether it is trained."""
        name, parameter = PARAMETER_NAMES.get(role, role), layer.plan.parameters[role]
        where, dtype = where_of(layer.spec), parameter.dtype or layer.dtype
        if word not in self.tensors or word == layer.roles["y"]:
            raise ConfigError(
                f"weights_of: '{word}' is not the output of an earlier layer",
                where=where,
                cure=suggestion(word, [other.roles["y"] for other in self.layers]),
            )
        if layer.spec.update_channels is not None:
            raise ConfigError(
                f"'update_channels' does not apply to {name}, because another layer computes it ({word})",
                where=where,
                cure="remove 'update_channels'",
            )
        source = self.tensors[self.cast(layer.spec, word, dtype)]
        turned = source.layout != "CHW" or layer.plan.attributes.get("sources_first")
        if (source.shape, source.dtype) != ((1, *parameter.shape), dtype) or turned:
            raise ShapeError(
                f"the layer needs a {name} of shape {list(parameter.shape)} and dtype {dtype}, but {word} "
                f"has shape {list(source.shape)} and dtype {source.dtype}{', in HWC' if turned else ''}",
                where=where,
                cure=f"use one sample {[1, *parameter.shape]} (a `parameter` with `once`), and layout: CHW",
            )
        spec = inserted(layer.spec, name, AS_PARAMETER.name, {})
        view = BuiltLayer(
            spec, AS_PARAMETER, LayerPlan(parameter.shape), dtype, {"x": source.name}, ("x",), (), ()
        )
        self._add_tensors(view)
        self.layers.append(view)
        if source.name in self.differentiable:
            self.differentiable.add(view.roles["y"])
        return view.roles["y"], source.name in self.differentiable

    def _emit_step(self, layer: BuiltLayer, step: Step, present: set[str], needed: set[str]) -> None:
        """Emit a step with the roles it really has; tensors it is the first to write are added."""
        reads = expanded(step.reads, layer, present)
        writes = expanded(step.writes, layer, needed)
        for role in (*reads, *writes):
            if role not in layer.roles and role.removeprefix("d") in layer.plan.parameters:
                name = PARAMETER_NAMES.get(role[1:], role[1:])
                raise UnsupportedLayerError(
                    f"{step.name} of {layer.spec.type} computes the gradients of all its parameters, "
                    f"so '{name}' must be trained as well",
                    where=where_of(layer.spec),
                    cure=f"add '{name}' to the list of trained parameters",
                )
            if role not in layer.roles:
                raise ShapeError(
                    f"step {step.name} needs the tensor '{role}', which the layer does not have",
                    where=where_of(layer.spec),
                    cure="use all outputs of the layer: an unused output has no gradient",
                )
        for role in writes:
            self._add_written(layer, role)
        scales = tuple(role + SCALE for role in reads if role + SCALE in layer.roles)
        attributes = _attributes_of(layer, step)
        if scales:
            attributes = {**attributes, WEIGHTS_IN: layer.dtype.name}
        name, primitive, read = layer.spec.name, layer.primitive.name, (*reads, *scales)
        self.emit(step.op(name, primitive, layer.roles, attributes, reads=read, writes=writes))

    def _add_written(self, layer: BuiltLayer, role: str) -> None:
        name = layer.roles[role]
        if name in self.tensors:
            return
        base = role.removesuffix("_updated")
        if role in layer.plan.saved:
            saved = layer.plan.saved[role]
            self.add(Tensor(name, saved.shape, "saved", saved.dtype or layer.dtype))
        elif role != base and base in layer.plan.stored:
            source = self.tensors[layer.roles[base]]
            self.add(replace(source, name=name, alias_of=source.name))
        else:
            source = self.tensors[layer.roles[role.removeprefix("d")]]
            self.add(Tensor(name, source.shape, "gradient", source.dtype, layout=source.layout))

    # Backward

    def propagate(self, seeds: Mapping[str, str]) -> dict[str, str]:
        """Emit the backward ops, last layer first; `seeds` are gradient tensors and the outputs they are of.

        Returns trained weight -> gradient. A layer gets a step only if one of its results is needed: input
        gradients by a trained parameter (or an input marked differentiable) before it, weight gradients where
        the parameter is trained. Gradients of a tensor or a weight with several users are summed by explicit
        ops.
        """
        expected = self.contributions(seeds.values())
        arrived: dict[str, list[str]] = {name: [] for name in expected}
        for seed, output in seeds.items():
            arrived[output].append(seed)
            self._collect(output, arrived[output], expected[output], self.backward)
        gradients: dict[str, str] = {}
        for layer in reversed(self.layers):
            if not any(layer.roles[role] in self.backward for role in layer.outputs):
                continue
            for role in layer.outputs:
                if layer.roles[role] in self.backward:
                    layer.roles[f"d{role}"] = self.backward[layer.roles[role]]
            wanted = [role for role in layer.inputs if layer.roles[role] in self.differentiable]
            wanted += layer.trained
            for role in wanted:
                layer.roles[f"d{role}"] = _own_gradient(layer, role, expected)
            self._emit_backward(layer, {f"d{role}" for role in wanted})
            for role in wanted:
                tensor = layer.roles[role]
                arrived[tensor].append(layer.roles[f"d{role}"])
                complete = gradients if self.tensors[tensor].kind == "weight" else self.backward
                self._collect(tensor, arrived[tensor], expected[tensor], complete)
        return {name: gradients[name] for name in self.of_kind("weight") if name in gradients}

    def of_kind(self, kind: str) -> tuple[str, ...]:
        """Names of the tensors of a kind that have storage of their own, in graph order."""
        tensors = self.tensors.items()
        return tuple(name for name, tensor in tensors if tensor.kind == kind and tensor.alias_of is None)

    def contributions(self, outputs: Iterable[str]) -> dict[str, int]:
        """How many gradients each tensor and weight receives, from losses of `outputs` and from layers."""
        expected = Counter(outputs)
        for layer in reversed(self.layers):
            if any(layer.roles[role] in expected for role in layer.outputs):
                inputs = [layer.roles[role] for role in layer.inputs]
                expected.update(name for name in inputs if name in self.differentiable)
                expected.update(layer.roles[role] for role in layer.trained)
        return expected

    def _emit_backward(self, layer: BuiltLayer, needed: set[str]) -> None:
        wanted = set(needed)
        steps: list[Step] = []
        for step in reversed([step for step in layer.primitive.steps_of(layer.plan) if not step.forward]):
            if wanted & set(expanded(step.writes, layer, wanted)):
                steps.append(step)
                wanted |= set(expanded(step.reads, layer, set(layer.roles)))
        for step in reversed(steps):
            self._emit_step(layer, step, set(layer.roles), wanted)
        for role in sorted(needed):
            name = layer.roles[role]
            if name in self.tensors:
                continue
            source, gradient = self.tensors[layer.roles[role[1:]]], layer.roles["dy"]
            if role[1:] not in layer.inputs or prod(source.shape) != prod(self.tensors[gradient].shape):
                raise UnsupportedLayerError(
                    f"{layer.spec.type} cannot compute the gradient of its input {role[1:]}",
                    where=where_of(layer.spec),
                    cure=f"freeze the layers before the {layer.spec.type} layer: trainable: false",
                )
            self.add(
                Tensor(name, source.shape, "gradient", self.tensors[gradient].dtype, gradient, source.layout)
            )

    def _collect(self, tensor: str, parts: list[str], expected: int, complete: dict[str, str]) -> None:
        """Sum the gradients of a tensor as they arrive: in place of the first if nothing else shares it.

        The sum of all goes into `complete`.
        """
        if len(parts) == 1:
            if expected == 1:
                complete[tensor] = parts[0]
            return
        from trainlib.primitives.optimizers import gradient_ops

        number = expected - len(parts)
        first, second = parts[0], parts[-1]
        if self.tensors[first].alias_of is not None and "+" not in first:
            first, second = second, first
        total = gradient_name(tensor) + (f"+{number}" if number else "")
        shared = self.tensors[first].alias_of is not None and "+" not in first
        source = self.tensors[first]
        self.add(replace(source, name=total, alias_of=None if shared else first))
        added, roles = gradient_ops.ADDED, {"a": first, "b": second, "sum": total}
        layer = tensor.removesuffix(".out") + (f".{number}" if number else "")
        options = {VARIANT: self.variant} if self.variant in added.variant_names else {}
        self.emit(added.op(layer, roles, options))
        parts[0] = total
        if number == 0:
            complete[tensor] = total

    # Update

    def update(
        self,
        optimizer: OptimizerPrimitive,
        options: Mapping[str, Mapping[str, Any]],
        gradients: Mapping[str, str],
        parts: Mapping[str, TensorWindow] = MappingProxyType({}),
    ) -> None:
        """Emit an update op per trained weight with its `options`; the states become kept tensors.

        Of a weight in `parts` only that part is updated, and has states.
        """
        for weight, gradient in gradients.items():
            attributes, tensor = options[weight], self.tensors[weight]
            now = projected_name(weight) if projected_name(weight) in self.tensors else weight
            roles = {"w": now, "dw": gradient, "w_updated": f"{weight}_updated"}
            self.add(replace(tensor, name=roles["w_updated"], alias_of=now))
            trained, windows = tensor, {}
            if weight in parts:
                trained = replace(tensor, shape=parts[weight].shape(tensor.shape))
                windows = {"w": parts[weight], "w_updated": parts[weight]}
            for role, state in optimizer.states(attributes, trained).items():
                name = f"{weight}.{role}"
                stored = Tensor(name, state.shape, "optimizer_state", state.dtype, initial=state.initial)
                roles[role] = self.add(stored)
                roles[f"{role}_updated"] = self.add(replace(stored, name=f"{name}_updated", alias_of=name))
            layer = weight.removesuffix(".weight")
            reads, writes = (
                tuple(role.rstrip("?") for role in declared if role.rstrip("?") in roles)
                for declared in (optimizer.step.reads, optimizer.step.writes)
            )
            self.emit(optimizer.op(layer, roles, attributes, reads=reads, writes=writes, windows=windows))


def _own_gradient(layer: BuiltLayer, role: str, expected: Mapping[str, int]) -> str:
    """The tensor into which a layer writes the gradient of one of its roles, alone or to be summed."""
    tensor = layer.roles[role]
    suffix = f"@{layer.spec.name}{'' if role in ('x', 'w') else f'.{role}'}"
    return gradient_name(tensor) + (suffix if expected[tensor] > 1 else "")


def _attributes_of(layer: BuiltLayer, step: Step) -> Mapping[str, Any]:
    """What the ops of a layer carry; the variant only those that it makes other ones."""
    attributes = layer.plan.attributes
    published = layer.primitive.published
    if VARIANT not in attributes or attributes[VARIANT] in step.offered(attributes):
        return attributes
    if published is not None and step in published.steps:
        return attributes
    return {key: value for key, value in attributes.items() if key != VARIANT}
