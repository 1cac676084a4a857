# SPDX-License-Identifier: Apache-2.0
"""Puts gradient accumulation and clipping into a training graph, between the backward pass and the updates,
and averages of weights behind these.

Each function takes a graph and gives a new one with explicit ops, which are costed, tiled, scheduled and
traced like any other; the graph taken is left as it is. `TrainingGraph.gradients` keeps naming the gradients
of the backward pass.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from configs.dtypes import BY_WORD, FP32, INT32, DType
from configs.values import replace
from trainlib.ir.graph import Op, Tensor, TrainingGraph
from trainlib.primitives.optimizers import gradient_ops


def clip_gradients_by_value(graph: TrainingGraph, limit: float) -> TrainingGraph:
    """Every element of every gradient that an update reads is clipped to [-limit, limit]."""
    tensors, ops, names = dict(graph.tensors), [], {}
    for update in _updates(graph):
        names[update["dw"]] = _clipped(tensors, update)
        roles = {"dw": update["dw"], "dw_clipped": names[update["dw"]]}
        ops.append(gradient_ops.VALUE.op(update.layer, roles, {"limit": limit}))
    return _inserted(graph, tensors, ops, names)


def clip_gradients_by_norm(graph: TrainingGraph, limit: float) -> TrainingGraph:
    """All gradients are scaled so that their common 2-norm is at most `limit`."""
    tensors, ops, products, names, sums = dict(graph.tensors), [], [], {}, {}
    tensors["clip.scale"] = Tensor("clip.scale", (1,), "gradient")
    for number, update in enumerate(_updates(graph)):
        gradient = update["dw"]
        squares = f"{gradient}.squares"
        tensors[squares] = Tensor(squares, tensors[gradient].shape[:1], "gradient")
        sums[f"squares{number or ''}"] = squares
        ops.append(gradient_ops.SQUARES.op(update.layer, {"dw": gradient, "squares": squares}, {}))
        names[gradient] = _clipped(tensors, update)
        roles = {"dw": gradient, "scale": "clip.scale", "dw_clipped": names[gradient]}
        products.append(gradient_ops.APPLY.op(update.layer, roles, {}))
    roles = {**sums, "scale": "clip.scale"}
    ops.append(gradient_ops.SCALE.op("clip", roles, {"limit": limit}, reads=tuple(sums)))
    return _inserted(graph, tensors, [*ops, *products], names)


def accumulate_gradients(graph: TrainingGraph, steps: int) -> tuple[TrainingGraph, TrainingGraph]:
    """(graph of a mini-batch, graph of the update): run the first `steps` times, then the second once.

    The first adds a share of 1 / steps of every gradient to a total kept from one mini-batch to the next, so
    that `steps` batches of N train as one of steps·N does (batch statistics apart); the second updates the
    weights from the totals.
    """
    tensors, ops, names = dict(graph.tensors), [], {}
    attributes = {"steps": steps, "share": 1 / steps}
    for update in _updates(graph):
        gradient = update["dw"]
        roles = {"dw": gradient, **_add_state(tensors, gradient, "total", "count", FP32)}
        names[gradient] = roles["total"]
        ops.append(gradient_ops.ACCUMULATION.op(update.layer, roles, attributes))
    updates = [_renamed(update, names) for update in _updates(graph)]
    before = [op for op in graph.ops if op.step != "UPD"]
    graph = replace(graph, tensors=tensors)
    return graph.of_ops([*before, *ops]), replace(graph.of_ops(updates), outputs=())


def average_weights(graph: TrainingGraph, share: float) -> TrainingGraph:
    """Every trained weight has an average beside it, in `state_dtype`; an update leaves `share` of it."""
    tensors, ops = dict(graph.tensors), []
    for update in _updates(graph):
        dtype = BY_WORD[update.attributes["state_dtype"]]
        kept = _add_state(tensors, graph.storage_of(update["w"]), "average", "average_count", dtype)
        roles = {"w": update["w_updated"], **kept}
        ops.append(gradient_ops.AVERAGE.op(update.layer, roles, {"share": share}))
    return replace(graph, tensors=tensors, ops=(*graph.ops, *ops))


def _add_state(tensors: dict[str, Tensor], of: str, state: str, count: str, dtype: DType) -> dict[str, str]:
    """Adds a state of the shape of tensor `of` and a count, and what updates make of them; their roles."""
    roles: dict[str, str] = {}
    for role, word, shape, kind in (
        (state, state, tensors[of].shape, dtype),
        ("count", count, (1,), INT32),
    ):
        kept = tensors[f"{of}.{word}"] = Tensor(f"{of}.{word}", shape, "optimizer_state", kind)
        updated = replace(kept, name=f"{kept.name}_updated", alias_of=kept.name)
        tensors[updated.name] = updated
        roles |= {role: kept.name, f"{role}_updated": updated.name}
    return roles


def _updates(graph: TrainingGraph) -> list[Op]:
    return [op for op in graph.ops if op.step == "UPD"]


def _clipped(tensors: dict[str, Tensor], update: Op) -> str:
    gradient = tensors[update["dw"]]
    name = f"{gradient.name}.clipped"
    tensors[name] = replace(gradient, name=name, kind="gradient", alias_of=None)
    return name


def _renamed(update: Op, names: Mapping[str, str]) -> Op:
    """The update with the gradient it reads replaced."""
    inputs = tuple(
        names[name] if role == "dw" else name for role, name in zip(update.reads, update.inputs, strict=True)
    )
    return replace(update, inputs=inputs)


def _inserted(
    graph: TrainingGraph, tensors: Mapping[str, Tensor], ops: Sequence[Op], names: Mapping[str, str]
) -> TrainingGraph:
    """All other ops, the new ones, and the updates on the new gradients."""
    before = [op for op in graph.ops if op.step != "UPD"]
    updates = [_renamed(update, names) for update in _updates(graph)]
    return replace(graph, tensors=dict(tensors), ops=(*before, *ops, *updates))
