# SPDX-License-Identifier: Apache-2.0
"""The options of every weight's update: those of the optimizer section, of its groups, and of schedules."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from configs.errors import ConfigError
from configs.model_file import OptimizerSpec
from configs.suggest import check_known, suggestion
from configs.values import replace
from configs.yaml_file import Node
from trainlib.primitives.definition import OptimizerPrimitive
from trainlib.training.options import GRADIENT_KEYS, optimizer_options

MEMBERS = ("layers", "parameters")
"""Keys of a group that say what is in it."""


def options_by_weight(
    spec: OptimizerSpec,
    primitive: OptimizerPrimitive,
    options: Mapping[str, Any],
    weights: Sequence[str],
    layers: Sequence[str],
) -> dict[str, dict[str, Any]]:
    """The options of the update of each of these `weights`; `options` are those of the section.

    Raises ConfigError, with the line of the group, for a name that is none, for a weight in two groups and
    for an unknown option.
    """
    rest = _scheduled(spec, options)
    by_weight = dict.fromkeys(weights, rest)
    owner: dict[str, str] = {}
    for group, where in _groups(spec):
        members = _members(group, where, weights, layers)
        twice = next((name for name in members if name in owner), None)
        if twice is not None:
            raise ConfigError(
                f"'{twice}' is in this group of parameters and in that of {owner[twice]}",
                where=where,
                cure=f"name '{twice}' in one group only",
            )
        merged = _merged(spec, group, where)
        by_weight |= dict.fromkeys(members, _scheduled(merged, optimizer_options(merged, primitive)))
        owner |= dict.fromkeys(members, where)
    return by_weight


def check_groups(spec: OptimizerSpec, primitive: OptimizerPrimitive) -> None:
    """Everything that can be said before weights are known. Raises as `options_by_weight`."""
    _scheduled(spec, optimizer_options(spec, primitive))
    for group, where in _groups(spec):
        if not any(group.get(key) for key in MEMBERS):
            raise ConfigError(
                "the parameter group names no layers and no parameters",
                where=where,
                cure="add layers: [...] or parameters: [...]",
            )
        merged = _merged(spec, group, where)
        _scheduled(merged, optimizer_options(merged, primitive))


def _node(spec: OptimizerSpec, key: str) -> Node | None:
    """The lines of a key of the section, if the section is still as it was written."""
    node = spec.node.mapping("").get(key) if spec.node is not None else None
    return node if node is not None and node.plain() == spec.options.get(key) else None


def _groups(spec: OptimizerSpec) -> Iterator[tuple[Mapping[str, Any], str]]:
    """Every group and its place."""
    node, given = _node(spec, "groups"), spec.options.get("groups")
    for number, group in enumerate(given if isinstance(given, list) else ()):
        if isinstance(group, Mapping):  # of others the schema tells
            yield group, node.sequence("'groups'")[number].where if node is not None else spec.where


def _merged(spec: OptimizerSpec, group: Mapping[str, Any], where: str) -> OptimizerSpec:
    """The section as a group has it."""
    shared = next((key for key in group if key in GRADIENT_KEYS and key != "schedule"), None)
    if shared is not None:
        raise ConfigError(
            f"'{shared}' must be the same for all groups",
            where=where,
            cure=f"set '{shared}' once, outside 'groups'",
        )
    changed = {key: value for key, value in group.items() if key not in MEMBERS}
    options = {key: value for key, value in spec.options.items() if key not in GRADIENT_KEYS}
    if "schedule" in spec.options:
        options["schedule"] = spec.options["schedule"]
    return replace(spec, options={**options, **changed}, where=where, node=None)


def _scheduled(spec: OptimizerSpec, options: Mapping[str, Any]) -> dict[str, Any]:
    given = spec.options.get("schedule")
    if given is None:
        return dict(options)
    from trainlib.training.schedules import schedule_of, scheduled  # schemas that few models need

    return scheduled(options, schedule_of(_node(spec, "schedule") or given, spec.where), spec.where)


def _members(
    group: Mapping[str, Any], where: str, weights: Sequence[str], layers: Sequence[str]
) -> list[str]:
    """The weights of a group: of its layers, and those whose names are or match its parameters."""
    members: dict[str, None] = {}
    for layer in _texts(group, "layers", where):
        check_known(layer, layers, f"unknown layer '{layer}'", where, error=ConfigError)
        of_layer = [name for name in weights if name.startswith(f"{layer}.")]
        if not of_layer:
            raise ConfigError(
                f"layer '{layer}' of the parameter group has no parameters",
                where=where,
                cure=f"remove '{layer}' from the group",
            )
        members |= dict.fromkeys(of_layer)
    for pattern in _texts(group, "parameters", where):
        of_layer = [name for name in weights if fnmatchcase(name, pattern)]
        if not of_layer:
            raise ConfigError(
                f"unknown parameter '{pattern}'", where=where, cure=suggestion(pattern, weights)
            )
        members |= dict.fromkeys(of_layer)
    return list(members)


def _texts(group: Mapping[str, Any], key: str, where: str) -> list[str]:
    given = group.get(key, [])
    names = [given] if isinstance(given, str) else given
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ConfigError(
            f"'{key}' in 'groups' must be a list of names", where=where, cure=f"write {key}: [NAME, NAME]"
        )
    return names
