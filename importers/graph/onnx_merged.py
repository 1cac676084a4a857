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
    import onnx

_SCOPES = "pkg.torch.onnx.name_scopes"
_BACKWARD = re.compile("Grad|Accumulator|^SGD|^Adam")
"""Ops of a graph that trains, whose weights are what it says they are."""


Merged = dict[str, tuple[str, tuple[int, ...]]]
"""An initializer that the file has not -> the one it is merged with, the nodes that read it, by number."""


def taken_apart(graph: onnx.GraphProto, values: dict[str, Array]) -> Merged:
    """Give every module its own initializer of those that only a merge explains, in place.

    That is one of floats, the same number throughout, which nodes of another module read than the one it is
    named after. If the file does not say modules, one that several nodes read is taken apart, unless nodes
    share other weights too: then modules are used twice.
    """
    if any(_BACKWARD.search(node.op_type) for node in graph.node):
        return {}
    readers: dict[str, list[int]] = {}
    for number, node in enumerate(graph.node):
        for name in dict.fromkeys(node.input):
            if name in values and values[name].dtype.kind == "f" and values[name].size > 1:
                readers.setdefault(name, []).append(number)
    alike = {name: items for name, items in readers.items() if (values[name] == values[name].flat[0]).all()}
    sharing = any(len(items) > 1 for name, items in readers.items() if name not in alike)
    made: Merged = {}
    for name, numbers in alike.items():
        module, _, last = name.rpartition(".")
        owners = [_module(graph.node[number], module) for number in numbers]
        if module and all(owner is not None for owner in owners):
            wanted = {owner: f"{owner}.{last}" for owner in owners if owner != module}
        elif sharing:
            continue
        else:
            owners = [str(number) for number in numbers]
            wanted = {owner: f"{name}_{count}" for count, owner in enumerate(owners[1:], 1)}
        for owner, new in wanted.items():
            if new in values:
                continue
            values[new] = values[name].copy()
            nodes = tuple(number for number, its in zip(numbers, owners, strict=True) if its == owner)
            made[new] = name, nodes
            for node in (graph.node[number] for number in nodes):
                node.input[:] = [new if item == name else item for item in node.input]
    return made


def _module(node: onnx.NodeProto, expected: str) -> str | None:
    """The module that a node is from, as exporters of PyTorch say it; None if nothing does.

    The older exporter numbers calls of a module: ``norm_1`` is the second of ``norm``.
    """
    for item in node.metadata_props:
        if item.key == _SCOPES:
            return ".".join(part for part in re.findall(r"'([^']*)'", item.value)[:-1] if part)
    if not node.name.startswith("/"):
        return None
    said = ".".join(node.name.strip("/").split("/")[:-1])
    return expected if re.sub(r"_\d+(?=\.|$)", "", said) == expected else said
