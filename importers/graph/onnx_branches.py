# SPDX-License-Identifier: Apache-2.0
"""An If whose condition is constant is the branch that it takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from importers.graph.onnx_graph import Array

if TYPE_CHECKING:
    import onnx


def has_branches(graph: onnx.GraphProto) -> bool:
    """Whether some node may be replaced by a branch of it."""
    return any(node.op_type == "If" for node in graph.node)


def take_branches(graph: onnx.GraphProto, constant: Callable[[str], Array | None]) -> bool:
    """Put branches in place of the Ifs whose condition `constant` knows, in place; whether there was one.

    A branch reads names of the graph around it, so its own get new ones where those are in use.
    """
    names = {*(item.name for item in (*graph.input, *graph.initializer))}
    names |= {name for node in graph.node for name in node.output}
    nodes, found = list(graph.node), False
    del graph.node[:]
    for node in nodes:
        value = constant(node.input[0]) if node.op_type == "If" and len(node.input) == 1 else None
        if value is None or value.size != 1:
            graph.node.append(node)
            continue
        said = "then_branch" if value.any() else "else_branch"
        branch = next((item.g for item in node.attribute if item.name == said), None)
        if branch is None or len(branch.output) != len(node.output):
            graph.node.append(node)
            continue
        found = True
        _put(graph, node, branch, names)
    return found


def _put(graph: onnx.GraphProto, node: onnx.NodeProto, branch: onnx.GraphProto, names: set[str]) -> None:
    """The nodes and weights of a branch behind those of a graph."""
    made = [name for inner in branch.node for name in inner.output if name]
    sparse = [item.values.name for item in branch.sparse_initializer]
    own = [*made, *(item.name for item in branch.initializer), *sparse]
    # The first result of a node is the only name that no other node has.
    words = {name: f"{node.output[0]}_{name}" if name in names else name for name in own}
    results = dict(zip([item.name for item in branch.output][::-1], node.output[::-1], strict=True))
    words |= {name: result for name, result in results.items() if name in made and result}
    names |= set(words.values())
    for item in branch.initializer:
        graph.initializer.add().CopyFrom(item)
        graph.initializer[-1].name = words[item.name]
    for sparse_item in branch.sparse_initializer:
        graph.sparse_initializer.add().CopyFrom(sparse_item)
        graph.sparse_initializer[-1].values.name = words[sparse_item.values.name]
    for inner in branch.node:
        graph.node.append(inner)
        _rename(graph.node[-1], words)
    for item, result in zip(branch.output, node.output, strict=True):
        source = words.get(item.name, item.name)
        if result and source != result:
            graph.node.add(op_type="Identity", input=[source], output=[result])


def _rename(node: onnx.NodeProto, words: Mapping[str, str]) -> None:
    """Other names for what a node reads and writes, in the graphs inside it too."""
    node.input[:] = [words.get(name, name) for name in node.input]
    node.output[:] = [words.get(name, name) for name in node.output]
    for item in node.attribute:
        for inner in item.g.node:
            _rename(inner, words)
        for result in item.g.output:
            result.name = words.get(result.name, result.name)
