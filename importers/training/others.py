# SPDX-License-Identifier: Apache-2.0
"""Losses, recurrent layers and accumulation in training graphs."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

from configs.model_file import LossSpec
from importers.graph.draft import CannotTakeError
from importers.training.draft import Kept
from importers.training.elements import cut, joined, parts, turned
from importers.training.layers import Handler, TrainingNode
from trainlib.registry import PRIMITIVES, loss_primitive
from trainlib.training.options import loss_options

# Losses

LABEL, LOSS = "label", "loss"


def _cross_entropy(item: TrainingNode) -> None:
    # Deeploy's form may have one output only: the logarithms of the probabilities.
    log_probabilities = item.out(1) or item.out(0)
    readers = item.draft.graph.readers.get(log_probabilities, [])
    gradient = ""
    for reader in readers:
        if not reader.op.endswith("SoftmaxCrossEntropyLossGrad"):
            raise CannotTakeError("its log-probabilities are used", "the loss and its gradient only")
        said = (node.attributes for node in (item.node, reader))
        if len({(own.get("reduction", "mean"), own.get("ignore_index")) for own in said}) > 1:
            raise CannotTakeError("its gradient is that of another loss", "the same options for both")
        gradient = reader.output(0)
    _loss(item, "cross_entropy", _class_options(item), gradient)
    if item.out(1):
        item.give(LOSS)


def _class_options(item: TrainingNode) -> dict[str, Any]:
    found: dict[str, Any] = {"labels": "hard", "reduction": item.text("reduction", "mean")}
    if found["reduction"] not in ("mean", "sum"):
        raise CannotTakeError("a loss for each sample", "reduction mean or sum")
    if item.has("ignore_index"):
        found["ignore_index"] = item.integer("ignore_index", 0)
    if item.has(2):
        found["class_weights"] = item.needed(2, "weight of the classes").ravel().tolist()
    return found


def _mse(item: TrainingNode) -> None:
    pair = item.node.inputs[:2]
    grads = [
        node
        for node in item.draft.graph.nodes
        if node.op.endswith("MSELossGrad") and node.inputs[-2:] == pair
    ]
    _loss(item, "mse", {}, grads[0].output(0) if grads else "")
    item.give(LOSS)


def _loss(item: TrainingNode, kind: str, options: dict[str, Any], gradient: str) -> None:
    draft, y = item.draft, item.read(0)
    if LOSS in draft.builder.tensors:
        raise CannotTakeError("a second loss", "one loss")
    loss, tensor = loss_primitive(kind), draft.tensor(y)
    own = loss_options(LossSpec(kind, options, item.site), loss)
    plan = loss.plan(own, tensor, item.site)
    label, wanted = item.read(1), plan.shape if plan is not None else ()
    found = draft.tensor(label)
    if plan is not None and plan.hard and found.dtype.is_float:
        raise CannotTakeError(f"labels of {found.dtype}", "integers")
    if prod(found.shape) != prod(wanted):
        raise CannotTakeError(
            f"labels of shape {list(found.shape)} for outputs of {list(tensor.shape)}",
            f"labels of shape {list(wanted)}",
        )
    label = draft.view(label, wanted)
    seed = draft.add(gradient or f"{y}.grad", tensor.shape, "gradient")
    draft.gradients.add(seed)
    draft.alias(gradient, seed)
    draft.add(LOSS, (1,), "loss")
    roles = {"y": y, "label": label, "loss": LOSS, "dy": seed}
    draft.builder.emit(item.site, kind, loss.step, roles, own)


def _loss_grad(item: TrainingNode) -> None:
    if item.out() not in item.draft.names:
        raise CannotTakeError("its loss is not in the graph", "the loss and its gradient together")
    inputs = [name for name in item.node.inputs if name]
    if len(inputs) > len(("log-probabilities", "label")):  # ONNX Runtime's; the weights of classes are last
        seed = item.only(0)
        if seed != 1:
            raise CannotTakeError("a gradient of the loss that is not 1", "1")


# Recurrent layers: ONNX has the gates z r h in [1, 3 hidden, features], ours r z n in [features, 3 hidden].


def _gru(item: TrainingNode) -> None:
    draft, x = item.draft, item.read(0)
    length, batch, features = draft.shape(x)
    hidden = item.integer("hidden_size", item.shape(2)[2])
    if item.text("direction", "forward") != "forward" or not item.integer("linear_before_reset", 0):
        raise CannotTakeError("another GRU than PyTorch's", "direction forward, linear_before_reset=1")
    start = item.node.input(5)
    if start and (start not in draft.constants or draft.constants[start].any()):
        raise CannotTakeError("an initial state that is not zeros", "zeros")
    roles = {"x": turned(item, x, (1, 0, 2), "_x")}
    roles["wx"], roles["wh"] = (
        _to_ours(item, item.read(at), hidden, word) for at, word in ((1, "wx"), (2, "wh"))
    )
    if item.has(3):
        halves = parts(item, draft.view(item.read(3), (6 * hidden,)), 0, (3 * hidden, 3 * hidden), "_b")
        for role, half in zip(("bx", "bh"), halves, strict=True):
            roles[role] = _to_ours(item, half, hidden, role)
    plan = draft.plan("gru", {"hidden": hidden, "bias": item.has(3)}, [(batch, length, features)])
    roles["y"] = draft.made(f"{item.site}.y", item.node, (batch, length, hidden))
    roles |= item.saved(plan, "gates", "hn")
    item.apply("gru", "FW", roles, plan)
    whole = turned(item, roles["y"], (1, 0, 2), "_y")
    item.give(whole, (length, 1, batch, hidden))
    if item.out(1) and item.out(1) in draft.graph.readers:
        last = cut(item, roles["y"], 1, length - 1, length, "_last")
        item.give(last, (1, batch, hidden), index=1)
    draft.keep(item.node, item.node.output(2), Kept("gru", plan, roles))


def _to_ours(item: TrainingNode, name: str, hidden: int, word: str) -> str:
    """Weights or biases of the file in our order of gates, weights transposed."""
    draft = item.draft
    columns = prod(draft.shape(name)) // (3 * hidden)
    z, r, n = parts(item, draft.view(name, (3 * hidden, columns)), 0, (hidden,) * 3, f"_{word}_split")
    whole = joined(item, (r, z, n), 0, f"_{word}")
    if word.startswith("b"):
        return draft.view(whole, (3 * hidden,))
    return turned(item, whole, (1, 0), f"_{word}_turn")


def _to_theirs(item: TrainingNode, name: str, hidden: int, word: str) -> str:
    """A gradient of ours in the file's order: [3 hidden, columns]."""
    draft = item.draft
    rows = (
        turned(item, name, (1, 0), f"_{word}_turn")
        if word.startswith("w")
        else draft.view(name, (3 * hidden, 1))
    )
    r, z, n = parts(item, rows, 0, (hidden,) * 3, f"_{word}_split")
    return joined(item, (z, r, n), 0, f"_{word}")


def _gru_grad(item: TrainingNode) -> None:
    draft = item.draft
    kept = draft.recall("gru", item.node.input(7))
    if kept is None:
        raise CannotTakeError("no GRUTraining has left what it reads", "its GRUTraining in the same graph")
    if item.has(9) or item.out(4):
        raise CannotTakeError("gradients of first or last states", "those of the output only")
    plan, roles = kept.plan, dict(kept.roles)
    batch, length, hidden = draft.shape(roles["y"])
    roles["dy"] = turned(item, draft.view(item.read(8), (length, batch, hidden)), (1, 0, 2), "_dy")
    for role in ("g", "gh"):
        roles[role] = draft.made(f"{item.site}.{role}", item.node, plan.saved[role].shape)
    item.apply("gru", "BPTT", roles, plan)
    for role in ("wx", "wh", "bx", "bh"):
        if role in roles:
            roles[f"d{role}"] = draft.made(f"{item.site}.d{role}", item.node, draft.shape(roles[role]))
    item.apply("gru", "WG_X", roles, plan)
    item.apply("gru", "WG", roles, plan)
    if item.out(0):
        features = plan.attributes["features"]
        dx = draft.made(f"{item.site}.dx", item.node, (batch, length, features))
        item.apply("gru", "IG", {**roles, "dx": dx}, plan)
        item.give(turned(item, dx, (1, 0, 2), "_dx"))
    for index, role in ((1, "wx"), (2, "wh")):
        if item.out(index):
            made = _to_theirs(item, roles[f"d{role}"], hidden, role)
            item.give(made, (1, *draft.shape(made)), index=index)
    if item.out(3):
        halves = [_to_theirs(item, roles[f"d{role}"], hidden, role) for role in ("bx", "bh")]
        item.give(joined(item, halves, 0, "_b"), (1, 6 * hidden), index=3)


# Accumulation and update


def _accumulate(item: TrainingNode) -> None:
    draft, total, gradient = item.draft, item.read(0), item.read(1)
    shape = draft.shape(total)
    same = draft.view(gradient, shape)
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
    draft.builder.emit(item.site, "gradient_accumulation", primitive.steps[0], roles, attributes)
    item.give(updated)


HANDLERS: Mapping[str, Handler] = {
    "SoftmaxCrossEntropyLoss": _cross_entropy,
    "MSELoss": _mse,
    **dict.fromkeys(("SoftmaxCrossEntropyLossGrad", "MSELossGrad"), _loss_grad),
    **dict.fromkeys(("GRUTraining", "GRU"), _gru),
    "GRUGrad": _gru_grad,
    **dict.fromkeys(("InPlaceAccumulatorV2", "InPlaceAccumulator"), _accumulate),
}
