# SPDX-License-Identifier: Apache-2.0
"""Weights that an exporter has merged because they began equal: each module gets its own back.

Exporters of PyTorch keep one of several initializers of the same numbers. Fresh norms and biases are all ones
or all zeros: two of them then share a weight, which a training would train as one.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from importers.graph.onnx_graph import Array

if TYPE_CHECKING:
    from collections.abc import Mapping

    import onnx

_SCOPES = "pkg.torch.onnx.name_scopes"
_BACKWARD = re.compile("Grad|Accumulator|^SGD|^Adam")
"""Ops of a graph that trains, whose weights are what it says they are."""


def taken_apart(graph: onnx.GraphProto, values: dict[str, Array]) -> tuple[str, ...]:
    """Give every module its own initializer of those that only a merge explains, in place; their names.

    That is one of floats, the same number throughout, which nodes of another module read than the one it is
    named after. If the file does not say modules, one that several nodes read is taken apart, unless nodes
    share other weights too: then modules are used twice.
    """
    if any(_BACKWARD.search(node.op_type) for node in graph.node):
        return ()
    readers: dict[str, list[onnx.NodeProto]] = {}
    for node in graph.node:
        for name in dict.fromkeys(node.input):
            if name in values and values[name].dtype.kind == "f" and values[name].size > 1:
                readers.setdefault(name, []).append(node)
    alike = {name: items for name, items in readers.items() if (values[name] == values[name].flat[0]).all()}
    sharing = any(len(items) > 1 for name, items in readers.items() if name not in alike)
    made: list[str] = []
    for name, nodes in alike.items():
        module, _, last = name.rpartition(".")
        owners = [_module(node) for node in nodes]
        if module and all(owner is not None for owner in owners):
            wanted = {owner: f"{owner}.{last}" for owner in owners if owner != module}
        elif sharing:
            continue
        else:
            wanted = {str(number): f"{name}_{number}" for number in range(1, len(nodes))}
            owners = [str(number) for number in range(len(nodes))]
        for node, owner in zip(nodes, owners, strict=True):
            if owner not in wanted:
                continue
            new = wanted[owner]
            if new not in values:
                values[new] = values[name].copy()
                made.append(new)
            node.input[:] = [new if item == name else item for item in node.input]
    return tuple(made)


def _module(node: onnx.NodeProto) -> str | None:
    """The module that a node is from, as exporters of PyTorch say it; None if nothing does."""
    for item in node.metadata_props:
        if item.key == _SCOPES:
            return ".".join(part for part in re.findall(r"'([^']*)'", item.value)[:-1] if part)
    return ".".join(node.name.strip("/").split("/")[:-1]) if node.name.startswith("/") else None
