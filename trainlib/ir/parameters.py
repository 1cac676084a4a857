# SPDX-License-Identifier: Apache-2.0
"""The parameters of a layer: what they are called, and which of them are trained."""

from __future__ import annotations

from collections.abc import Mapping

from configs.errors import ConfigError
from configs.model_file import LayerSpec
from configs.suggest import suggestion

PARAMETER_NAMES = {"w": "weight", "b": "bias"}
"""Long names of common parameter roles, for tensor names; other roles are names as they are."""


def trained_roles(spec: LayerSpec, parameters: Mapping[str, bool], where: str) -> tuple[str, ...]:
    """Roles of the parameters of a layer that are trained; `parameters` says of each whether it can be.

    Raises ConfigError for the name of a parameter the layer does not have.
    """
    if isinstance(spec.trainable, bool):
        return tuple(role for role, possible in parameters.items() if possible and spec.trainable)
    roles = {PARAMETER_NAMES.get(role, role): role for role in parameters}
    for name in spec.trainable:
        if name not in roles:
            raise ConfigError(
                f"'trainable' names '{name}', which is not a parameter of the layer",
                where=where,
                cure=suggestion(name, roles) if roles else "write trainable: true or false",
            )
    wanted = {roles[name] for name in spec.trainable}
    return tuple(role for role, possible in parameters.items() if possible and role in wanted)
