# SPDX-License-Identifier: Apache-2.0
"""A layer as it stands in a training graph that grows: its tensors by role, and names that go with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from configs.dtypes import DType
from configs.errors import ConfigError, ShapeError
from configs.model_file import LayerSpec
from configs.suggest import check_known
from trainlib.ir.graph import Tensor
from trainlib.ir.parameters import PARAMETER_NAMES
from trainlib.primitives.definition import LayerPlan, LayerPrimitive


def gradient_name(tensor: str) -> str:
    """Name of the gradient of a tensor."""
    return f"{tensor}.grad"


def where_of(spec: LayerSpec) -> str:
    """Where a layer stands, for messages."""
    return f"{spec.where}: layer {spec.name}"


def inserted(spec: LayerSpec, name: str, kind: str, attributes: Mapping[str, Any]) -> LayerSpec:
    """A layer that the builder puts in for another: a part of it, or a conversion before it."""
    return LayerSpec(
        f"{spec.name}.{name}",
        kind,
        attributes,
        spec.where,
        dtype=spec.dtype,
        layout=spec.layout,
        recompute=spec.recompute,
    )


@dataclass(slots=True)
class BuiltLayer:
    """One layer of the graph: its tensors by role, and what of it is trained."""

    spec: LayerSpec
    primitive: LayerPrimitive
    plan: LayerPlan
    dtype: DType
    roles: dict[str, str]
    inputs: tuple[str, ...]
    """Roles of the inputs."""
    outputs: tuple[str, ...]
    """Roles of the outputs."""
    trained: tuple[str, ...]
    """Roles of the parameters that are trained."""
    shared: frozenset[str] = frozenset()
    """Roles of the parameters that are another layer's."""

    @property
    def has_own_parameters(self) -> bool:
        """Whether it has parameters that are not another layer's."""
        return bool(self.plan.parameters.keys() - self.shared)


def expanded(declared: Sequence[str], layer: BuiltLayer, present: set[str]) -> tuple[str, ...]:
    """Roles of a declaration: ``*`` stands for all inputs, ``?`` drops what is not in `present`."""
    roles: list[str] = []
    for role in declared:
        if role == "x*":
            roles.extend(layer.inputs)
        elif role == "dx*":
            roles.extend(f"d{name}" for name in layer.inputs if f"d{name}" in present)
        elif role == "y*":
            roles.extend(layer.outputs)
        elif role == "dy*":
            roles.extend(f"d{name}" for name in layer.outputs if f"d{name}" in layer.roles)
        elif not role.endswith("?"):
            roles.append(role)
        elif role[:-1] in present:
            roles.append(role[:-1])
    return tuple(roles)


def shared_parameters(
    layer: BuiltLayer,
    before: Sequence[BuiltLayer],
    tensors: Mapping[str, Tensor],
    computed: Callable[[str, str], tuple[str, bool]],
) -> dict[str, tuple[str, bool]]:
    """Roles of the parameters that are another layer's: their tensors, and whether that layer trains them.

    `computed` says the same of a role that is what an earlier layer makes (``layer.out``). Raises ConfigError
    and ShapeError for a layer or a parameter that is not there, or cannot be shared.
    """
    spec, where = layer.spec, where_of(layer.spec)
    if spec.weights_of is None:
        return {}
    roles = {PARAMETER_NAMES.get(role, role): role for role in layer.plan.stored}
    words = {name: f"{spec.weights_of}.{name}" for name in roles}
    if not isinstance(spec.weights_of, str):
        words = {name: word if "." in word else f"{word}.{name}" for name, word in spec.weights_of.items()}
    shared: dict[str, tuple[str, bool]] = {}
    for name, word in words.items():
        check_known(name, roles, f"{spec.type} has no parameter '{name}'", where, error=ConfigError)
        role = roles[name]
        if name in spec.computed:
            shared[role] = computed(role, word)
            continue
        kind = "buffers" if role in layer.plan.buffers else "parameters"
        owner, its_role = _owner(word, before, kind, where)
        _check_shared(layer, role, owner, its_role, tensors)
        shared[role] = owner.roles[its_role], its_role in owner.trained
    return shared


def projected_name(weight: str) -> str:
    """Name of a weight once a layer has replaced it, in the same storage."""
    return f"{weight}_projected"


def last_version(name: str, tensors: Mapping[str, Tensor]) -> str:
    """Of running statistics that several layers move: what the last of them so far has left."""
    after = {tensor.alias_of: tensor.name for tensor in tensors.values() if tensor.kind == "buffer"}
    while name in after:
        name = after[name]
    return name


def _owner(word: str, before: Sequence[BuiltLayer], kind: str, where: str) -> tuple[BuiltLayer, str]:
    """The layer of ``layer.parameter``, and the role of the parameter, or of a buffer."""
    name, _, parameter = word.rpartition(".")
    layers = {layer.spec.name: layer for layer in before if getattr(layer.plan, kind)}
    unknown = f"'weights_of' names '{name}', which is not an earlier layer with parameters"
    check_known(name, layers, unknown, where, error=ConfigError)
    roles = {PARAMETER_NAMES.get(role, role): role for role in getattr(layers[name].plan, kind)}
    unknown = f"'weights_of' names layer {name}, which has no parameter '{parameter}'"
    check_known(parameter, roles, unknown, where, error=ConfigError)
    return layers[name], roles[parameter]


def _check_shared(
    layer: BuiltLayer, role: str, owner: BuiltLayer, its_role: str, tensors: Mapping[str, Tensor]
) -> None:
    spec, where, name = layer.spec, where_of(layer.spec), owner.spec.name
    weight = tensors[owner.roles[its_role]]
    if isinstance(spec.weights_of, str) and spec.type != owner.spec.type and not layer.primitive.overwrites:
        raise ConfigError(
            f"'weights_of' names layer {name}, whose type is {owner.spec.type}, not {spec.type}",
            where=where,
            cure=f"use weights_of: {{weight: {name}}}, to share one parameter",
        )
    if spec.update_channels is not None or owner.spec.update_channels is not None:
        raise ConfigError(
            f"two layers use the weights of layer {name}, so 'update_channels' does not apply",
            where=where,
            cure="remove 'update_channels' or 'weights_of'",
        )
    if projected_name(weight.name) in tensors:
        raise ConfigError(
            f"a layer before this one replaces {weight.name}",
            where=where,
            cure="use the output of that layer: weights_of: {weight: LAYER.out}",
        )
    parameter = layer.plan.stored[role]
    dtype = parameter.dtype or layer.dtype
    order = "sources_first"  # how conv2d and pointwise store the weights of images HWC
    transposed = layer.plan.attributes.get(order) != owner.plan.attributes.get(order)
    if (parameter.shape, dtype) != (weight.shape, weight.dtype) or transposed:
        needed, there = list(parameter.shape), list(weight.shape)
        stored = ", stored in another order" if transposed else ""
        raise ShapeError(
            f"the layer needs a weight of shape {needed} and dtype {dtype}, but the shared {weight.name} has "
            f"shape {there} and dtype {weight.dtype}{stored}",
            where=where,
            cure="share only between layers whose parameters have one shape, dtype and layout",
        )
