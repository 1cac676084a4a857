# SPDX-License-Identifier: Apache-2.0
"""Changes one value of a parsed YAML file: what a sweep over the parameters of a model does."""

from __future__ import annotations

from collections.abc import Mapping

from configs.errors import ConfigError
from configs.suggest import suggestion
from configs.yaml_file import Node


def with_value(node: Node, path: str, value: Node) -> Node:
    """The tree with `value` in the place of `path`, which keeps the file and line of `value`.

    A path is keys joined by dots. An item of a list is named by its number from 0 or, where items are
    mappings with a ``name``, by that: ``layers.conv1.out_channels``. The last key of a mapping may be new:
    an option that is not written down has a default. Raises `ConfigError` at `value` for anything else.
    """
    return _with_value(node, path.split("."), value, path)


def _with_value(node: Node, steps: list[str], value: Node, path: str) -> Node:
    step, rest = steps[0], steps[1:]
    if node.is_mapping:
        children = dict(node.mapping(path))
        if rest and step not in children:
            raise _unknown(step, children, value, path)
        children[step] = _with_value(children[step], rest, value, path) if rest else value
        return Node(children, node.file, node.line)
    if node.is_sequence:
        items = list(node.sequence(path))
        names = {_name(item, number): number for number, item in enumerate(items)}
        if step not in names:
            raise _unknown(step, names, value, path)
        number = names[step]
        items[number] = _with_value(items[number], rest, value, path) if rest else value
        return Node(tuple(items), node.file, node.line)
    raise value.error(f"path '{path}' goes on after {node.kind}, which has no keys", "shorten the path")


def _name(item: Node, number: int) -> str:
    if item.is_mapping:
        name = item.mapping("").get("name")
        if name is not None and isinstance(name.value, str):
            return name.value
    return str(number)


def _unknown(step: str, known: Mapping[str, object], value: Node, path: str) -> ConfigError:
    return value.error(f"'{path}' has no '{step}'", suggestion(step, known))
