# SPDX-License-Identifier: Apache-2.0
"""Nodes of training graphs on elements, and those that move them; losses, recurrent layers, accumulation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from importers.graph.draft import CHECKED, CannotTakeError
from importers.graph.views import neighbours
from importers.onnx.call import axis_of
from importers.onnx.moves import target_shape
from importers.training.draft import Kept
from importers.training.layers import TrainingNode, register
from trainlib.primitives.definition import Shape
from trainlib.registry import PRIMITIVES, loss_primitive

# Activations

_FORWARD: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "Relu": ("relu", {}),
    "Gelu": ("gelu", {}),
    "FastGelu": ("gelu", {"form": "tanh"}),
    "Sigmoid": ("sigmoid", {}),
    "Tanh": ("tanh", {}),
    "Sqrt": ("square_root", {}),
    "Exp": ("exponential", {}),
    "Log": ("logarithm", {}),
    "Reciprocal": ("reciprocal", {}),
    "Erf": ("error_function", {}),
    "Abs": ("absolute", {}),
    "Neg": ("scale", {"factor": -1.0}),
    "HardSwish": ("hard_swish", {}),
    "Softplus": ("softplus", {}),
    "Mish": ("mish", {}),
}


@register(*_FORWARD)
def _forward(item: TrainingNode) -> None:
    kind, options = _FORWARD[item.node.op.rpartition(":")[2]]
    item.give(item.draft.forward(item.site, item.node, kind, (item.read(0),), options, item.out()))


_BACKWARD: Mapping[str, tuple[str, Mapping[str, Any], tuple[str, ...]]] = {
    "ReluGrad": ("relu", {}, ("dy", "x")),  # x or y: both are positive together
    "GeluGrad": ("gelu", {}, ("dy", "x")),
    "FastGeluGrad": ("gelu", {"form": "tanh"}, ("dy", "x")),
    "SigmoidGrad": ("sigmoid", {}, ("y", "dy")),
    "TanhGrad": ("tanh", {}, ("y", "dy")),
}
"""Gradients of activations: layer, options, and the roles of their inputs."""


@register(*_BACKWARD)
def _backward(item: TrainingNode) -> None:
    kind, options, reads = _BACKWARD[item.node.op.rpartition(":")[2]]
    roles = {role: item.read(index) for index, role in enumerate(reads)}
    shape = item.draft.shape(roles["dy"])
    if any(item.draft.shape(name) != shape for name in roles.values()):
        raise CannotTakeError("inputs of different shapes", "inputs of one shape: Expand before it")
    plan = item.draft.plan(kind, options, [shape])
    item.apply(kind, "IG", {**roles, "dx": item.result(shape)}, plan)


@register("BiasGelu", "BiasGeluGrad_dX")
def _bias_gelu(item: TrainingNode) -> None:
    gradient = item.node.op.endswith("Grad_dX")
    draft, x, bias = item.draft, item.read(int(gradient)), item.read(1 + int(gradient))
    shape = draft.shape(x)
    total = _plus_row(item, x, bias, f"{item.site}.sum", "_bias")
    if not gradient:
        item.give(draft.forward(item.site, item.node, "gelu", (draft.view(total, shape),), {}, item.out()))
        return
    plan = draft.plan("gelu", {}, [shape])
    roles = {"x": draft.view(total, shape), "dy": item.read(0), "dx": item.result(shape)}
    item.apply("gelu", "IG", roles, plan)


def _plus_row(item: TrainingNode, x: str, row: str, name: str, suffix: str = "") -> str:
    """A tensor plus a vector along its last dimension."""
    draft = item.draft
    shape, columns = draft.shape(x), prod(draft.shape(row))
    rows = draft.view(x, (prod(shape) // columns, columns))
    weights = {"w": draft.view(row, (columns,))}
    return draft.forward(f"{item.site}{suffix}", item.node, "position", (rows,), {}, name, weights)


@register("Clip")
def _clip(item: TrainingNode) -> None:
    options = {}
    for index, (name, option) in enumerate((("min", "low"), ("max", "high")), start=1):
        bound = item.attribute(name) if not item.has(index) else item.number(index)
        if item.has(index) and bound is None:
            raise CannotTakeError("bounds that are no constant numbers", "a number for each bound")
        if bound is not None and abs(bound) < 3e38:
            options[option] = float(bound)
    if not options:
        item.give(item.read(0))
        return
    item.give(item.draft.forward(item.site, item.node, "clip", (item.read(0),), options, item.out()))


# Arithmetic


@register("Add", "Sum")
def _add(item: TrainingNode) -> None:
    total = item.read(0)
    count = sum(bool(name) for name in item.node.inputs)
    for index in range(1, count):
        last = index == count - 1
        name = item.out() if last else f"{item.site}.sum{index}"
        suffix = "" if last else f"_{index}"
        total = _sum(item, total, item.read(index), name, suffix)
    item.give(total)


def _sum(item: TrainingNode, left: str, right: str, name: str, suffix: str) -> str:
    draft = item.draft
    a, b = draft.shape(left), draft.shape(right)
    shape = _broadcast(a, b)
    if prod(a) == prod(b):
        operands = draft.view(left, shape), draft.view(right, shape)
        return draft.forward(item.site + suffix, item.node, "add", operands, {}, name)
    for large, small in ((left, right), (right, left)):
        own = draft.shape(small)
        if draft.shape(large) == shape and prod(own) == shape[-1] == own[-1]:
            made = _plus_row(item, large, small, f"{name}.rows", suffix)
            return draft.view(made, shape)
    made = draft.forward(
        item.site + suffix,
        item.node,
        "broadcast_add",
        (draft.sample(left), draft.sample(right)),
        {},
        f"{name}.sum",
    )
    return draft.view(made, shape)


def _broadcast(a: Shape, b: Shape) -> Shape:
    try:
        return tuple(np.broadcast_shapes(a, b))
    except ValueError:
        raise CannotTakeError(f"shapes {list(a)} and {list(b)} cannot be broadcast", CHECKED) from None


@register("Mul", "Div", "Sub", "Scale", "And")
def _times(item: TrainingNode) -> None:
    op = item.node.op.rpartition(":")[2]
    draft = item.draft
    if op == "Scale":
        factor = item.number(1)
        if factor is None:
            raise CannotTakeError("a factor that is not constant", "a constant")
        _scaled(item, item.read(0), 1 / factor if item.attribute("scale_down", 0) else factor)
        return
    for own, other in ((1, 0), (0, 1)):
        number = item.number(own)
        if number is None or (op != "Mul" and own == 0):
            continue
        if op == "Mul":
            _scaled(item, item.read(other), number)
        elif op == "Div" and number:
            _scaled(item, item.read(other), 1 / number)
        elif op == "Sub":
            made = draft.forward(
                item.site, item.node, "shift", (item.read(other),), {"offset": -number}, item.out()
            )
            item.give(made)
        else:
            continue
        return
    left, right = item.read(0), item.read(1)
    shape = _broadcast(draft.shape(left), draft.shape(right))
    kind = {"Mul": "multiply", "And": "multiply", "Div": "divide", "Sub": "subtract"}[op]
    operands = [_expanded(item, name, shape, f"_expand{number}") for number, name in enumerate((left, right))]
    item.give(draft.forward(item.site, item.node, kind, operands, {}, item.out()))


def _scaled(item: TrainingNode, x: str, factor: float) -> None:
    if factor == 1:
        item.give(x)
        return
    item.give(item.draft.forward(item.site, item.node, "scale", (x,), {"factor": factor}, item.out()))


def _expanded(item: TrainingNode, name: str, shape: Shape, suffix: str) -> str:
    draft = item.draft
    own = draft.shape(name)
    if prod(own) == prod(shape):
        return draft.view(name, shape)
    made = draft.forward(
        item.site + suffix, item.node, "expand", (draft.sample(name),), {"shape": list(shape)}
    )
    return draft.view(made, shape)


@register("Pow")
def _power(item: TrainingNode) -> None:
    exponent = item.number(1)
    if exponent is None:
        raise CannotTakeError("an exponent that is no number", "one number")
    simple = {2.0: "square", 0.5: "square_root", -1.0: "reciprocal"}
    kind = simple.get(exponent, "power")
    options = {} if exponent in simple else {"exponent": exponent}
    item.give(item.draft.forward(item.site, item.node, kind, (item.read(0),), options, item.out()))


_RELATIONS = {
    "GreaterOrEqual": "ge",
    "Greater": "gt",
    "LessOrEqual": "le",
    "Less": "lt",
    "Equal": "eq",
}


@register(*_RELATIONS)
def _compare(item: TrainingNode) -> None:
    value = item.number(1)
    if value is None:
        raise CannotTakeError("compares two tensors", "a comparison with a number")
    options = {"form": _RELATIONS[item.node.op.rpartition(":")[2]], "value": value}
    item.give(item.draft.forward(item.site, item.node, "compare", (item.read(0),), options, item.out()))


@register("Expand")
def _expand(item: TrainingNode) -> None:
    shape = tuple(int(size) for size in item.needed(1, "shape").ravel())
    item.give(_expanded(item, item.read(0), _broadcast(item.shape(0), shape), ""))


@register("ReduceSum", "ReduceMean")
def _reduce(item: TrainingNode) -> None:
    draft, x = item.draft, item.read(0)
    shape = draft.shape(x)
    asked = item.integers("axes", 1)
    if not asked and item.attribute("noop_with_empty_axes", 0):
        item.give(x)
        return
    axes = sorted({axis_of(axis, len(shape)) for axis in (asked or range(len(shape)))})
    keep = bool(item.attribute("keepdims", 1))
    kept = tuple(1 if axis in axes else size for axis, size in enumerate(shape))
    final = kept if keep else tuple(size for axis, size in enumerate(shape) if axis not in axes)
    mean = item.node.op == "ReduceMean"
    real = [axis for axis in axes if shape[axis] > 1]
    if mean and len(shape) == 4 and axes == [2, 3] and real:
        made = draft.forward(item.site, item.node, "global_avg_pool", (x,), {}, item.out())
        item.give(made, final or (1,))
        return
    groups = neighbours(real)
    result = x
    for number, group in enumerate(groups):
        last = number == len(groups) - 1
        result = draft.forward(
            f"{item.site}{'' if last else f'_{number}'}",
            item.node,
            "reduce_mean" if mean else "reduce_sum",
            (draft.sample(result),),
            {"axes": group, "keep_dims": True},
            f"{item.out()}.kept" if last else "",
        )
        result = draft.view(result, draft.shape(result)[1:])
    item.give(result, final or (1,))


# What moves elements


@register("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Cast", "PassThrough")
def _view(item: TrainingNode) -> None:
    op, shape = item.node.op, item.shape(0)
    if op == "Reshape":
        wanted = item.integers("shape", 1)
        if wanted is None:
            raise CannotTakeError("its shape is not constant", "a constant shape")
        shape = target_shape(shape, wanted, zero_is_zero=bool(item.attribute("allowzero", 0)))
    elif op == "Flatten":
        axis = int(item.attribute("axis", 1)) % (len(shape) + 1)
        shape = (prod(shape[:axis]), prod(shape[axis:]))
    elif op == "Squeeze":
        asked = item.integers("axes", 1)
        axes = {axis_of(axis, len(shape)) for axis in asked} if asked is not None else set(range(len(shape)))
        if asked is not None and any(shape[axis] != 1 for axis in axes):
            raise CannotTakeError(f"squeezes {list(asked)} of {list(shape)}", "Reshape")
        shape = tuple(size for axis, size in enumerate(shape) if axis not in axes or size != 1)
    elif op == "Unsqueeze":
        axes_of = item.integers("axes", 1) or ()
        rank = len(shape) + len(axes_of)
        places = {axis_of(axis, rank) for axis in axes_of}
        rest = iter(shape)
        shape = tuple(1 if axis in places else next(rest) for axis in range(rank))
    item.give(item.read(0), shape or (1,))


@register("Transpose")
def _transpose(item: TrainingNode) -> None:
    shape = item.shape(0)
    order = tuple(item.attribute("perm", tuple(reversed(range(len(shape))))))
    if sorted(order) != list(range(len(shape))):
        raise CannotTakeError(f"perm {list(order)} of {len(shape)} dimensions", CHECKED)
    item.give(_turned(item, item.read(0), order), [shape[axis] for axis in order])


def _turned(item: TrainingNode, name: str, order: Sequence[int], suffix: str = "") -> str:
    """A tensor with its dimensions in another order: a view where only those of size 1 move."""
    draft = item.draft
    shape = draft.shape(name)
    after = tuple(shape[axis] for axis in order)
    moving = [axis for axis in order if shape[axis] > 1]
    if moving == sorted(moving):
        return draft.view(name, after)
    # Dimensions of size 1 are left out: a transposition is cut along its first two.
    axes = sorted(moving)
    source = draft.view(name, (1, *(shape[axis] for axis in axes)))
    turned = {"axes": [axes.index(axis) for axis in moving]}
    made = draft.forward(item.site + suffix, item.node, "transpose", (source,), turned)
    return draft.view(made, after)


@register("Concat", "ConcatTraining")
def _concat(item: TrainingNode) -> None:
    draft = item.draft
    inputs = [item.read(index) for index in range(len(item.node.inputs))]
    axis = axis_of(int(item.attribute("axis", 0)), len(draft.shape(inputs[0])))
    item.give(_joined(item, inputs, axis))
    if item.out(1):  # how long each of them is
        lengths = [draft.shape(name)[axis] for name in inputs]
        draft.constants[item.out(1)] = np.array(lengths, np.int64)


def _joined(item: TrainingNode, inputs: Sequence[str], axis: int, suffix: str = "") -> str:
    draft = item.draft
    made = draft.forward(
        item.site + suffix,
        item.node,
        "concat",
        [draft.sample(name) for name in inputs],
        {"axis": axis},
        f"{item.site}{suffix}.joined",
    )
    return draft.view(made, draft.shape(made)[1:])


@register("Split", "SplitTraining")
def _split(item: TrainingNode) -> None:
    shape, count = item.shape(0), len(item.node.outputs)
    axis = axis_of(int(item.attribute("axis", 0)), len(shape))
    sizes = item.integers("split", 1)
    if sizes is None:
        part = -(-shape[axis] // count)
        sizes = tuple(min(part, shape[axis] - start) for start in range(0, shape[axis], part))
    if len(sizes) != count or sum(sizes) != shape[axis]:
        raise CannotTakeError(
            f"sizes {list(sizes)} of {shape[axis]} elements, {count} outputs",
            "sizes that add up to the dimension, one for each output",
        )
    for index, part_of in enumerate(_parts(item, item.read(0), axis, sizes)):
        item.give(part_of, index=index)


def _parts(item: TrainingNode, name: str, axis: int, sizes: Sequence[int], suffix: str = "") -> list[str]:
    """A tensor cut along a dimension: one split."""
    draft = item.draft
    if len(sizes) == 1:
        return [name]
    source = draft.sample(name)
    plan = draft.plan("split", {"axis": axis, "sizes": list(sizes)}, [draft.shape(source)])
    shapes = (plan.output, *plan.outputs.values())
    roles = {"x": source}
    for index, shape in enumerate(shapes):
        assert isinstance(shape, tuple)
        roles[f"y{index or ''}"] = draft.made(f"{item.site}{suffix}.part{index}", item.node, shape)
    draft.step(item.site + suffix, "split", "FW", roles, plan.attributes)
    return [draft.view(roles[f"y{index or ''}"], shape[1:]) for index, shape in enumerate(shapes)]  # type: ignore[index]


@register("Slice")
def _slice(item: TrainingNode) -> None:
    draft, name = item.draft, item.read(0)
    shape = draft.shape(name)
    starts, ends = item.integers("starts", 1), item.integers("ends", 2)
    if starts is None or ends is None:
        raise CannotTakeError("its starts or ends are not constant", "constants")
    axes = item.integers("axes", 3) or tuple(range(len(starts)))
    steps = item.integers("steps", 4) or (1,) * len(starts)
    for number, (axis, start, end, step) in enumerate(zip(axes, starts, ends, steps, strict=True)):
        place = axis_of(axis, len(shape))
        taken = range(shape[place])[slice(start, end, step)] if step else range(0)
        if step != 1 or not len(taken):
            raise CannotTakeError(f"a step of {step}", "a step of 1")
        name = _cut(item, name, place, taken[0], taken[-1] + 1, f"_{number}")
    item.give(name)


def _cut(item: TrainingNode, name: str, axis: int, start: int, stop: int, suffix: str = "") -> str:
    draft = item.draft
    if (start, stop) == (0, draft.shape(name)[axis]):
        return name
    options = {"axis": axis, "start": start, "stop": stop}
    made = draft.forward(item.site + suffix, item.node, "slice", (draft.sample(name),), options)
    return draft.view(made, draft.shape(made)[1:])


def _only_index(item: TrainingNode, index: int, size: int) -> int:
    number = item.needed(index, "index")
    if number.size != 1:
        raise CannotTakeError("several indices", "one index, or Slice")
    found = int(number.reshape(-1)[0])
    found = found + size if found < 0 else found
    if not 0 <= found < size:
        raise CannotTakeError(f"index {found} of {size} elements", CHECKED)
    return found


@register("Gather")
def _gather(item: TrainingNode) -> None:
    shape = item.shape(0)
    axis = axis_of(int(item.attribute("axis", 0)), len(shape))
    number = _only_index(item, 1, shape[axis])
    made = _cut(item, item.read(0), axis, number, number + 1)
    rank = item.needed(1, "index").ndim
    item.give(made, (*shape[:axis], *(1,) * rank, *shape[axis + 1 :]) or (1,))


@register("GatherGrad")
def _gather_grad(item: TrainingNode) -> None:
    draft = item.draft
    shape = tuple(int(size) for size in item.needed(0, "shape").ravel())
    axis = axis_of(int(item.attribute("axis", 0)), len(shape))
    number = _only_index(item, 1, shape[axis])
    plan = draft.plan("slice", {"axis": axis, "start": number, "stop": number + 1}, [(1, *shape)])
    assert isinstance(plan.output, tuple)
    dy = draft.view(item.read(2), plan.output)
    item.apply("slice", "IG", {"dy": dy, "dx": item.result(shape, (1, *shape))}, plan)


# Losses

LABEL, LOSS = "label", "loss"


@register("SoftmaxCrossEntropyLoss")
def _cross_entropy(item: TrainingNode) -> None:
    if item.has(2) or item.attribute("reduction", "mean") != "mean":
        raise CannotTakeError("weights of classes, or another reduction than the mean", "reduction mean")
    if item.attribute("ignore_index") is not None:
        raise CannotTakeError("a class that does not count", "all classes")
    # Deeploy's form may have one output only: the logarithms of the probabilities.
    log_probabilities = item.out(1) or item.out(0)
    readers = item.draft.graph.readers.get(log_probabilities, [])
    gradient = ""
    for reader in readers:
        if not reader.op.endswith("SoftmaxCrossEntropyLossGrad"):
            raise CannotTakeError("its log-probabilities are used", "the loss and its gradient only")
        gradient = reader.output(0)
    _loss(item, "cross_entropy", {"labels": "hard"}, gradient)
    if item.out(1):
        item.give(LOSS)


@register("MSELoss")
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
    label = item.read(1)
    wanted = draft.shape(y)[:1] if options else draft.shape(y)
    if prod(draft.shape(label)) != prod(wanted):
        raise CannotTakeError(
            f"labels of shape {list(draft.shape(label))} for outputs of {list(draft.shape(y))}",
            f"labels of shape {list(wanted)}",
        )
    loss = loss_primitive(kind)
    seed = draft.add(gradient or f"{y}.grad", draft.shape(y), "gradient")
    draft.gradients.add(seed)
    draft.alias(gradient, seed)
    draft.add(LOSS, (1,), "loss")
    roles = {"y": y, "label": label, "loss": LOSS, "dy": seed}
    draft.builder.emit(item.site, kind, loss.step, roles, options)


@register("SoftmaxCrossEntropyLossGrad", "MSELossGrad")
def _loss_grad(item: TrainingNode) -> None:
    if item.out() not in item.draft.names:
        raise CannotTakeError("its loss is not in the graph", "the loss and its gradient together")
    inputs = [name for name in item.node.inputs if name]
    if len(inputs) == 3:
        seed = item.number(0)
        if seed != 1:
            raise CannotTakeError("a gradient of the loss that is not 1", "1")


# Recurrent layers: ONNX has the gates z r h in [1, 3 hidden, features], ours r z n in [features, 3 hidden].


@register("GRUTraining", "GRU")
def _gru(item: TrainingNode) -> None:
    draft, x = item.draft, item.read(0)
    length, batch, features = draft.shape(x)
    hidden = int(item.attribute("hidden_size", item.shape(2)[2]))
    if item.attribute("direction", "forward") != "forward" or not item.attribute("linear_before_reset", 0):
        raise CannotTakeError("another GRU than PyTorch's", "direction forward, linear_before_reset=1")
    start = item.node.input(5)
    if start and (start not in draft.constants or draft.constants[start].any()):
        raise CannotTakeError("an initial state that is not zeros", "zeros")
    roles = {"x": _turned(item, x, (1, 0, 2), "_x")}
    roles["wx"], roles["wh"] = (
        _to_ours(item, item.read(at), hidden, word) for at, word in ((1, "wx"), (2, "wh"))
    )
    if item.has(3):
        halves = _parts(item, draft.view(item.read(3), (6 * hidden,)), 0, (3 * hidden, 3 * hidden), "_b")
        for role, half in zip(("bx", "bh"), halves, strict=True):
            roles[role] = _to_ours(item, half, hidden, role)
    plan = draft.plan("gru", {"hidden": hidden, "bias": item.has(3)}, [(batch, length, features)])
    roles["y"] = draft.made(f"{item.site}.y", item.node, (batch, length, hidden))
    for role in ("gates", "hn"):
        roles[role] = draft.add(f"{item.site}.{role}", plan.saved[role].shape, "saved")
    item.apply("gru", "FW", roles, plan)
    whole = _turned(item, roles["y"], (1, 0, 2), "_y")
    item.give(whole, (length, 1, batch, hidden))
    if item.out(1) and item.out(1) in draft.graph.readers:
        last = _cut(item, roles["y"], 1, length - 1, length, "_last")
        item.give(last, (1, batch, hidden), index=1)
    draft.keep(item.node, item.node.output(2), Kept("gru", plan, roles))


def _to_ours(item: TrainingNode, name: str, hidden: int, word: str) -> str:
    """Weights or biases of the file in our order of gates, weights transposed."""
    draft = item.draft
    columns = prod(draft.shape(name)) // (3 * hidden)
    z, r, n = _parts(item, draft.view(name, (3 * hidden, columns)), 0, (hidden,) * 3, f"_{word}_split")
    joined = _joined(item, (r, z, n), 0, f"_{word}")
    if word.startswith("b"):
        return draft.view(joined, (3 * hidden,))
    return _turned(item, joined, (1, 0), f"_{word}_turn")


def _to_theirs(item: TrainingNode, name: str, hidden: int, word: str) -> str:
    """A gradient of ours in the file's order: [3 hidden, columns]."""
    draft = item.draft
    rows = (
        _turned(item, name, (1, 0), f"_{word}_turn")
        if word.startswith("w")
        else draft.view(name, (3 * hidden, 1))
    )
    r, z, n = _parts(item, rows, 0, (hidden,) * 3, f"_{word}_split")
    return _joined(item, (z, r, n), 0, f"_{word}")


@register("GRUGrad")
def _gru_grad(item: TrainingNode) -> None:
    draft = item.draft
    kept = draft.recall("gru", item.node.input(7))
    if kept is None:
        raise CannotTakeError("no GRUTraining has left what it reads", "its GRUTraining in the same graph")
    if item.has(9) or item.out(4):
        raise CannotTakeError("gradients of first or last states", "those of the output only")
    plan, roles = kept.plan, dict(kept.roles)
    batch, length, hidden = draft.shape(roles["y"])
    roles["dy"] = _turned(item, draft.view(item.read(8), (length, batch, hidden)), (1, 0, 2), "_dy")
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
        item.give(_turned(item, dx, (1, 0, 2), "_dx"))
    for index, role in ((1, "wx"), (2, "wh")):
        if item.out(index):
            made = _to_theirs(item, roles[f"d{role}"], hidden, role)
            item.give(made, (1, *draft.shape(made)), index=index)
    if item.out(3):
        halves = [_to_theirs(item, roles[f"d{role}"], hidden, role) for role in ("bx", "bh")]
        item.give(_joined(item, halves, 0, "_b"), (1, 6 * hidden), index=3)


# Accumulation and update


@register("InPlaceAccumulatorV2", "InPlaceAccumulator")
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
