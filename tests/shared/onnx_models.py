# SPDX-License-Identifier: Apache-2.0
"""Small ONNX files that tests build with onnx's own helpers; nothing is taken from files of others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

Shape = Sequence[int | str]


@dataclass(frozen=True)
class NodeText:
    """A node as a test writes it: made into one of onnx's when the model is, so that tables need no onnx."""

    op: str
    inputs: Sequence[str]
    outputs: Sequence[str]
    name: str = ""
    attributes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ValueText:
    """An input or output as a test writes it."""

    name: str
    shape: Shape | None
    dtype: str = "float32"


def node(
    op: str, inputs: Sequence[str], outputs: Sequence[str], *, name: str = "", **attributes: Any
) -> NodeText:
    """A node; ``com.microsoft:Gelu`` is one of that domain."""
    return NodeText(op, inputs, outputs, name, attributes)


def value(name: str, shape: Shape | None, dtype: str = "float32") -> ValueText:
    """The declaration of an input or output."""
    return ValueText(name, shape, dtype)


def _node(text: NodeText) -> Any:
    from onnx import helper, numpy_helper

    domain, _, kind = text.op.rpartition(":")
    attributes = {
        key: numpy_helper.from_array(given) if isinstance(given, np.ndarray) else given
        for key, given in text.attributes.items()
    }
    return helper.make_node(
        kind, list(text.inputs), list(text.outputs), name=text.name, domain=domain, **attributes
    )


def _value(text: ValueText) -> Any:
    from onnx import helper

    dtype = helper.np_dtype_to_tensor_dtype(np.dtype(text.dtype))
    return helper.make_tensor_value_info(text.name, dtype, text.shape)


def model(
    nodes: Sequence[NodeText],
    inputs: Sequence[ValueText],
    outputs: Sequence[ValueText],
    weights: Mapping[str, Any] | None = None,
    opset: int = 17,
) -> Any:
    """A model of these nodes, with initializers by name."""
    from onnx import helper, numpy_helper

    initializers = [
        numpy_helper.from_array(np.asarray(array), name) for name, array in (weights or {}).items()
    ]
    graph = helper.make_graph(
        [*map(_node, nodes)], "built", [*map(_value, inputs)], [*map(_value, outputs)], initializers
    )
    domains = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=domains, ir_version=8)


def saved(folder: Path, made: Any, name: str = "model.onnx") -> str:
    """The path of the model, written to a file."""
    path = folder / name
    path.write_bytes(made.SerializeToString())
    return str(path)
