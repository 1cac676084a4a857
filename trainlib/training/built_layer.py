# SPDX-License-Identifier: Apache-2.0
"""A layer as it stands in a training graph that grows: its tensors by role, and names that go with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from configs.dtypes import DType
from configs.model_file import LayerSpec
from trainlib.primitives.definition import LayerPlan, LayerPrimitive


def gradient_name(tensor: str) -> str:
    """Name of the gradient of a tensor."""
    return f"{tensor}.grad"


def where_of(spec: LayerSpec) -> str:
    """Where a layer stands, for messages."""
    return f"{spec.where}: layer {spec.name}"


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
