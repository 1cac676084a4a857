# SPDX-License-Identifier: Apache-2.0
"""Losses, recurrent layers and accumulation in training graphs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from configs.model_file import LossSpec
from importers.graph.draft import CannotTakeError
from importers.graph.onnx_graph import OnnxNode
from importers.onnx.layers import check_recurrent
from importers.onnx.losses import class_options
from importers.ops import GATES
from importers.training.draft import Kept
from importers.training.elements import cut, is_read_once, joined, parts, turned
from importers.training.layers import ACCUMULATORS, ONE_UPDATE, Handler, TrainingNode, kind_of
from trainlib.primitives.definition import Shape
from trainlib.registry import PRIMITIVES, loss_primitive
from trainlib.training.options import loss_options

# Losses

LOSS = "loss"

LOSSES = {"SoftmaxCrossEntropyLoss": "cross_entropy", "MSELoss": "mse", "NegativeLogLikelihoodLoss": "nll"}
"""Op -> loss of ours."""


def _cross_entropy(item: TrainingNode) -> None:
    # Deeploy's form may have one output only: the logarithms of the probabilities.
    log_probabilities = item.out(1) or item.out(0)
    readers = item.draft.graph.readers.get(log_probabilities, [])
    if not readers and log_probabilities in item.draft.graph.outputs:
        item.draft.alias(
            log_probabilities, item.forward("log_softmax", (item.read(0),), {}, log_probabilities)
        )
    gradient = ""
    for reader in readers:
        if not reader.op.endswith("SoftmaxCrossEntropyLossGrad"):
            raise CannotTakeError(
                f"node {reader.name} reads the log-probabilities; only the gradient of the loss may do so",
                f"remove node {reader.name}",
            )
        _check_same(item, reader)
        gradient = reader.output(0)
    _loss(item, gradient)
    if item.out(1):
        item.give(LOSS)


def _two_inputs(item: TrainingNode) -> None:
    """A loss whose gradient reads the same two tensors, behind the gradient of the loss, before weights."""
    pair, name, gradient = item.node.inputs[:2], f"{item.kind}Grad", ""
    for node in item.draft.graph.nodes:
        if node.op.endswith(name) and pair in (node.inputs[:2], node.inputs[1:3]):
            _check_same(item, node)
            gradient = node.output(0)
    _loss(item, gradient)
    item.give(LOSS)


def _check_same(item: TrainingNode, gradient: OnnxNode) -> None:
    said = (node.attributes for node in (item.node, gradient))
    if len({(each.get("reduction", "mean"), each.get("ignore_index")) for each in said}) > 1:
        raise CannotTakeError("the options of loss and gradient differ", "use the same options for both")


def _loss(item: TrainingNode, gradient: str) -> None:
    draft, y, kind = item.draft, item.read(0), LOSSES[item.kind.removesuffix("Grad")]
    if LOSS in draft.builder.tensors:
        raise CannotTakeError("the graph has a second loss, which is not supported", "use one loss per graph")
    options: dict[str, Any] = {"labels": "hard"} if kind == "cross_entropy" else {}
    options |= {"reduction": item.text("reduction", "mean")} if kind == "mse" else class_options(item)
    loss, tensor = loss_primitive(kind), draft.tensor(y)
    checked = loss_options(LossSpec(kind, options, item.site), loss)
    plan = loss.plan(checked, tensor, item.site)
    label, wanted = item.read(1), plan.shape if plan is not None else ()
    labels = draft.tensor(label)
    if plan is not None and plan.hard and labels.dtype.is_float:
        raise CannotTakeError(
            f"the labels have type {labels.dtype}, but must be integers", "use int32 or int64"
        )
    if prod(labels.shape) != prod(wanted):
        raise CannotTakeError(
            f"the labels have shape {list(labels.shape)}, not {list(wanted)}",
            f"use labels of shape {list(wanted)}",
        )
    label = draft.view(label, wanted)
    seed = draft.add(gradient or f"{y}.grad", tensor.shape, "gradient")
    draft.gradients.add(seed)
    draft.alias(gradient, seed)
    draft.add(LOSS, (1,), "loss")
    roles = {"y": y, "label": label, "loss": LOSS, "dy": seed}
    draft.builder.emit(loss.step.op(item.site, kind, roles, checked))


def _loss_grad(item: TrainingNode) -> None:
    inputs = [name for name in item.node.inputs if name]
    # More than log-probabilities and labels are ONNX Runtime's; the weights of classes are last.
    if len(inputs) > 2 and item.only(0) != 1:
        raise CannotTakeError("the initial gradient of the loss is not 1", "use a constant 1")
    if item.out() not in item.draft.names and LOSS not in item.draft.builder.tensors:
        # Alone. The log-probabilities of log-probabilities are these themselves.
        _loss(item, item.out())
    if item.out() not in item.draft.names:
        raise CannotTakeError("the graph has the gradient, but not the loss", "put both in one graph")


# Recurrent layers: ONNX has the gates in another order, and in rows where ours are columns.

_GRAD_INPUTS = {"gru": (7, 8), "lstm": (8, 9)}
"""Where a gradient node has the gates of all steps, which name its forward node, and its first gradient.

That is of all states, behind it of the last, as ONNX Runtime has it (`GetGRUGradient`, `GetLSTMGradient`).
"""


def _kind(item: TrainingNode) -> str:
    return item.kind.removesuffix("Training").removesuffix("Grad").lower()


def _recurrent(item: TrainingNode) -> None:
    draft, x, kind = item.draft, item.read(0), _kind(item)
    length, batch, features = draft.shape(x)
    hidden = item.integer("hidden_size", item.shape(2)[2])
    check_recurrent(item, kind, length)
    if item.text("direction", "forward") != "forward":
        raise CannotTakeError("only direction forward is supported", "set direction forward")
    states = [item.node.input(index) for index in ((5, 6) if kind == "lstm" else (5,))]
    if any(name and (name not in draft.constants or draft.constants[name].any()) for name in states):
        raise CannotTakeError("the initial state of the node is not zero", "use no initial state, or zeros")
    roles = {"x": turned(item, x, (1, 0, 2), "_x")}
    roles["wx"], roles["wh"] = (
        _to_ours(item, kind, item.read(at), word) for at, word in ((1, "wx"), (2, "wh"))
    )
    if item.has(3):
        gates = prod(item.shape(3)) // 2
        halves = parts(item, draft.view(item.read(3), (2 * gates,)), 0, (gates, gates), "_b")
        for role, half in zip(("bx", "bh"), halves, strict=True):
            roles[role] = _to_ours(item, kind, half, role)
    plan = draft.plan(kind, {"hidden": hidden, "bias": item.has(3)}, [(batch, length, features)])
    roles["y"] = item.add_tensor(f"{item.site}.y", (batch, length, hidden))
    roles |= item.saved(plan, *(role for role in plan.saved if role not in _GRADIENTS))
    item.apply(kind, "FW", roles, plan)
    whole = turned(item, roles["y"], (1, 0, 2), "_y")
    item.give(whole, (length, 1, batch, hidden))
    for index, role in ((1, "y"), *([(2, "c")] if kind == "lstm" else [])):
        if item.out(index) and item.out(index) in draft.graph.readers:
            last = cut(item, roles[role], 1, length - 1, length, f"_last_{role}")
            item.give(last, (1, batch, hidden), index=index)
    draft.keep(item.node, item.node.output(4 if kind == "lstm" else 2), Kept(kind, plan, roles))


_GRADIENTS = ("g", "gh")
"""What the backward pass leaves for the gradients of the weights."""


def _to_ours(item: TrainingNode, kind: str, name: str, word: str) -> str:
    """Weights or biases of the file in our order of gates, weights transposed."""
    rows = item.draft.shape(name)[-2 if word.startswith("w") else -1 :]
    made = _reordered(item, item.draft.view(name, rows), GATES[kind], word)
    return turned(item, made, (1, 0), f"_{word}_turn") if word.startswith("w") else made


def _to_theirs(item: TrainingNode, kind: str, name: str, word: str) -> str:
    """A gradient of ours in the file's order of gates, as rows."""
    rows = turned(item, name, (1, 0), f"_{word}_turn") if word.startswith("w") else name
    return _reordered(item, rows, np.argsort(GATES[kind]).tolist(), word)


def _reordered(item: TrainingNode, rows: str, order: Sequence[int], word: str) -> str:
    size = item.draft.shape(rows)[0] // len(order)
    gates = parts(item, rows, 0, (size,) * len(order), f"_{word}_split")
    return joined(item, [gates[number] for number in order], 0, f"_{word}")


def _recurrent_grad(item: TrainingNode) -> None:
    draft, kind = item.draft, _kind(item)
    gates, arriving = _GRAD_INPUTS[kind]
    kept = draft.recall(kind, item.node.input(gates))
    if kept is None:
        raise CannotTakeError(
            f"the graph has no {item.kind.removesuffix('Grad')}Training node that computes the gates",
            "put the forward node in the same graph",
        )
    if item.has(arriving + 2) or any(map(item.out, range(4, 7))):
        raise CannotTakeError(
            "gradients of initial states and of the last cell state are not supported",
            "use gradients of outputs and of the last hidden state only",
        )
    plan, roles = kept.plan, dict(kept.roles)
    batch, length, hidden = draft.shape(roles["y"])
    roles["dy"] = _arriving(item, arriving, (length, batch, hidden))
    for role in filter(plan.saved.__contains__, _GRADIENTS):
        roles[role] = item.add_tensor(f"{item.site}.{role}", plan.saved[role].shape)
    item.apply(kind, "BPTT", roles, plan)
    for role in ("wx", "wh", "bx", "bh"):
        if role in roles:
            roles[f"d{role}"] = item.add_tensor(f"{item.site}.d{role}", draft.shape(roles[role]))
    item.apply(kind, "WG_X", roles, plan)
    item.apply(kind, "WG", roles, plan)
    if item.out(0):
        features = plan.attributes["features"]
        dx = item.add_tensor(f"{item.site}.dx", (batch, length, features))
        item.apply(kind, "IG", {**roles, "dx": dx}, plan)
        item.give(turned(item, dx, (1, 0, 2), "_dx"))
    for index, role in ((1, "wx"), (2, "wh")):
        if item.out(index):
            made = _to_theirs(item, kind, roles[f"d{role}"], role)
            item.give(made, (1, *draft.shape(made)), index=index)
    if item.out(3):
        halves = [_to_theirs(item, kind, roles[f"d{role}"], role) for role in ("bx", "bh")]
        both = joined(item, halves, 0, "_b")
        item.give(both, (1, *draft.shape(both)), index=3)


def _arriving(item: TrainingNode, index: int, shape: Shape) -> str:
    """The gradient of all states, [batch, length, hidden]: of the output, and of the last state."""
    draft, (length, batch, hidden), arrived = item.draft, shape, list[str]()
    if item.has(index):
        arrived.append(turned(item, draft.view(item.read(index), shape), (1, 0, 2), "_dy"))
    if item.has(index + 1):
        options = {"axis": 0, "start": length - 1, "stop": length}
        plan = draft.plan("slice", options, [(batch, length, hidden)])
        last = draft.view(item.read(index + 1), (batch, 1, hidden))
        arrived.append(item.add_tensor(f"{item.site}.dlast", (batch, length, hidden)))
        item.apply("slice", "IG", {"dy": last, "dx": arrived[-1]}, plan)
    if not arrived:
        raise CannotTakeError(
            "no output of the node has a gradient",
            "connect the gradient of all hidden states, or of the last one",
        )
    return arrived[0] if len(arrived) == 1 else item.forward("add", arrived, suffix="_dy_sum")


# Accumulation and update


def _accumulate(item: TrainingNode) -> None:
    """A gradient added to the total of its weight, with those of other uses that were before it."""
    draft, total, gradient = item.draft, item.read(0), item.read(1)
    shape = draft.shape(total)
    same = draft.view(gradient, shape)
    earlier = draft.partial.pop(total, "")
    if earlier:
        if item.kind == "InPlaceAccumulatorV2" and item.node.input(2):
            raise CannotTakeError("the node overwrites gradients from other uses of the weight", ONE_UPDATE)
        same = draft.add_to(earlier, same, f"{item.site}_uses", f"{gradient}.sum")
    if _another_follows(item):
        others = [
            node for node in draft.graph.readers.get(item.out(), ()) if kind_of(node) not in ACCUMULATORS
        ]
        if others or not (earlier or is_read_once(item, 1)):
            raise CannotTakeError("a node reads a weight's gradient before it is complete", ONE_UPDATE)
        draft.partial[total] = same
        item.give(total)
        return
    count = draft.add(f"{total}.count", (1,), "optimizer_state", "int32")
    updated = draft.add(f"{total}_updated", shape, "optimizer_state", alias_of=total)
    counted = draft.add(f"{count}_updated", (1,), "optimizer_state", "int32", count)
    roles = {
        "total": total,
        "dw": same,
        "count": count,
        "total_updated": updated,
        "count_updated": counted,
    }
    primitive = PRIMITIVES["gradient_accumulation"]
    attributes = {"steps": 1, "share": 1.0}
    draft.builder.emit(primitive.steps[0].op(item.site, "gradient_accumulation", roles, attributes))
    item.give(updated)


def _another_follows(item: TrainingNode) -> bool:
    """Whether a later accumulator adds to the same total."""
    nodes = iter(item.draft.graph.nodes)
    while next(nodes) is not item.node:
        pass
    same = (item.node.input(0), item.out())
    return any(kind_of(node) in ACCUMULATORS and node.input(0) in same for node in nodes)


HANDLERS: Mapping[str, Handler] = {
    **dict.fromkeys(LOSSES, _two_inputs),
    "SoftmaxCrossEntropyLoss": _cross_entropy,
    **dict.fromkeys((f"{loss}Grad" for loss in LOSSES), _loss_grad),
    **dict.fromkeys(("GRUTraining", "GRU", "LSTMTraining", "LSTM"), _recurrent),
    **dict.fromkeys(("GRUGrad", "LSTMGrad"), _recurrent_grad),
    **dict.fromkeys(ACCUMULATORS, _accumulate),
}
