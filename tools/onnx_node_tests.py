# SPDX-License-Identifier: Apache-2.0
"""ONNX's own tests of single nodes (`onnx.backend.test`): which pass, and why the others are refused.

Counted are the cases of ops we have a handler for, with float32 data. The first float input is the network's,
the others are constants. A case passes if our forward pass gives the stored outputs within its tolerance.
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from configs.errors import PulptrainError
from importers.graph.onnx_file import load_onnx
from importers.onnx.forward import HANDLERS, import_forward
from trainlib.references.reference import evaluate
from trainlib.training.phases import build_forward_graph, initial_weights

PASSED, REFUSED, WRONG = "passed", "refused", "wrong"


@dataclass(frozen=True, slots=True)
class NodeOutcome:
    """How one case ended; `reason` says why it is refused, or what is wrong."""

    name: str
    op: str
    status: str
    reason: str = ""


def outcomes() -> Iterator[NodeOutcome]:
    """All cases that count, in the order of their names."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from onnx.backend.test.loader import load_model_tests

        cases = sorted(load_model_tests(kind="node"), key=lambda case: str(case.name))
    with tempfile.TemporaryDirectory() as folder:
        for case in cases:
            outcome = _outcome(case, Path(folder) / "case.onnx")
            if outcome is not None:
                yield outcome


def _outcome(case: Any, path: Path) -> NodeOutcome | None:
    """None for a case that does not count: another op, another type of numbers."""
    from onnx import numpy_helper

    graph = case.model.graph
    if len(graph.node) != 1 or not case.data_sets:
        return None
    node = graph.node[0]
    op = f"{node.domain}:{node.op_type}" if node.domain not in ("", "ai.onnx") else node.op_type
    inputs, outputs = case.data_sets[0]
    arrays = [item for item in inputs if isinstance(item, np.ndarray)]
    if op not in HANDLERS or len(arrays) != len(inputs) or len(graph.input) != len(inputs):
        return None
    network = next((index for index, array in enumerate(arrays) if array.dtype == np.float32), None)
    if (
        network is None
        or not isinstance(outputs[0], np.ndarray)
        or outputs[0].dtype not in (np.float32, bool)
    ):
        return None
    model = type(case.model)()
    model.CopyFrom(case.model)
    for index, (value, array) in enumerate(zip(graph.input, arrays, strict=True)):
        if index != network:
            model.graph.initializer.append(numpy_helper.from_array(array, value.name))
    del model.graph.output[1:]
    path.write_bytes(model.SerializeToString())
    name = str(case.name).removeprefix("test_")
    try:
        with np.errstate(all="ignore"):
            computed = _computed(path, arrays[network])
    except PulptrainError as error:
        return NodeOutcome(name, op, REFUSED, _reason(error))
    wanted = outputs[0]
    if computed.size != wanted.size:
        return NodeOutcome(name, op, WRONG, f"{computed.size} elements, not {wanted.size}")
    near = np.allclose(computed.reshape(wanted.shape), wanted, rtol=case.rtol, atol=max(case.atol, 1e-6))
    return NodeOutcome(name, op, PASSED) if near else NodeOutcome(name, op, WRONG, "other numbers")


def _computed(path: Path, x: Any) -> Any:
    model = import_forward(load_onnx(path), trained=())
    graph = build_forward_graph(model.spec)
    values = {**initial_weights(graph, 0), **model.values, graph.input: model.sample(x)}
    for name, draw in graph.draws.items():
        values[name] = np.full(graph.tensors[name].shape, draw.inference, np.float32)
    return evaluate(graph, values)[graph.output]


def _reason(error: PulptrainError) -> str:
    """Why, without the name of the file and of the node."""
    lines = [line.strip() for line in error.message.splitlines()]
    if len(lines) < 2:
        return lines[0]
    return lines[1].partition("): ")[2].partition("; try: ")[0]
