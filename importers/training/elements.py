# SPDX-License-Identifier: Apache-2.0
"""Nodes of training graphs on elements, and those that move them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from importers.graph.draft import CannotTakeError
from importers.graph.views import neighbours
from importers.onnx.elements import clip_options, options_of, reduced_axes
from importers.onnx.moves import gone_axes, indexed, new_axes, new_shape, order_of, part_sizes, slices
from importers.ops import ALONE, PAIRS, REDUCTIONS, RELATIONS, by_onnx, with_own
from importers.place.pairs import common_shape, power_of
from importers.training.layers import ACCUMULATORS, MICROSOFT, SGD, Handler, TrainingNode, kind_of
from trainlib.primitives.definition import LayerPlan, Shape

_ALONE = {name.removeprefix(MICROSOFT): op for name, op in by_onnx(ALONE).items() if "importer" not in name}
_GRADIENTS = {op.gradient.split()[0]: op for op in ALONE if op.gradient}
_PAIRS = {**by_onnx(PAIRS), "And": by_onnx(PAIRS)["Mul"]}
_RELATIONS = by_onnx(RELATIONS)
_REDUCTIONS = by_onnx(REDUCTIONS)
"""No dialect has a gradient of extremes as one node: it is made of Equal, Cast, Mul."""


def _written(item: TrainingNode, kind: str, inputs: Sequence[str], options: Mapping[str, Any]) -> None:
    """A layer whose output is that of the node."""
    item.give(item.forward(kind, inputs, options, item.out()))


def _forward(item: TrainingNode) -> None:
    op = _ALONE[item.kind]
    _written(item, op.ours, (item.read(0),), options_of(item, op))


def _backward(item: TrainingNode) -> None:
    op = _GRADIENTS[item.kind]
    roles = {role: item.read(index) for index, role in enumerate(op.gradient.split()[1:])}
    shape = item.draft.shape(roles["dy"])
    if any(item.draft.shape(name) != shape for name in roles.values()):
        raise CannotTakeError("the inputs have different shapes", "make the shapes equal by Expand")
    plan = item.draft.plan(op.ours, options_of(item, op), [shape])
    item.apply(op.ours, "IG", {**roles, "dx": item.result(shape)}, plan)


def _bias_gelu(item: TrainingNode) -> None:
    gradient = item.node.op.endswith("Grad_dX")
    draft, x, bias = item.draft, item.read(int(gradient)), item.read(1 + int(gradient))
    shape = draft.shape(x)
    total = _plus_row(item, x, bias, f"{item.site}.sum", "_bias")
    if not gradient:
        item.give(item.forward("gelu", (draft.view(total, shape),), {}, item.out()))
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
    return item.forward("position", (rows,), {}, name, weights, suffix=suffix)


def _clip(item: TrainingNode) -> None:
    options = clip_options(item)
    if options:
        _written(item, "clip", (item.read(0),), options)
    else:
        item.give(item.read(0))


# Arithmetic


def _add(item: TrainingNode) -> None:
    total, in_place = item.read(0), _is_gradient_of_a_weight(item)
    count = sum(bool(name) for name in item.node.inputs)
    for index in range(1, count):
        last = index == count - 1
        name = item.out() if last else f"{item.site}.sum{index}"
        suffix = "" if last else f"_{index}"
        other = item.read(index)
        if in_place and item.draft.shape(total) == item.draft.shape(other):
            total = item.draft.add_to(total, other, item.site + suffix, name)
        else:
            total = _sum(item, total, other, name, suffix)
    item.give(total)


def _is_gradient_of_a_weight(item: TrainingNode) -> bool:
    """Whether only updates read the sum, which may then take the place of its first operand."""
    readers = item.draft.graph.readers

    def is_updating(name: str) -> bool:
        users = readers.get(name, [])
        return bool(users) and all(
            is_updating(node.output(0))
            if node.op in ("Add", "Sum")
            else kind_of(node) in (*ACCUMULATORS, *SGD) and name == node.input(1)
            for node in users
        )

    return is_updating(item.out()) and is_read_once(item, 0)


def is_read_once(item: TrainingNode, index: int) -> bool:
    """Whether an input is a gradient that this node reads once and nobody else, by whatever name."""
    draft, name = item.draft, item.node.input(index)
    return (
        draft.read(name) in draft.gradients
        and draft.graph.readers[name] == [item.node]
        and item.node.inputs.count(name) == 1
        and name not in draft.graph.outputs
        and not draft.has_other_names(name)
    )


def _sum(item: TrainingNode, left: str, right: str, name: str, suffix: str) -> str:
    draft = item.draft
    a, b = draft.shape(left), draft.shape(right)
    shape = common_shape(a, b)
    if prod(a) == prod(b):
        operands = draft.view(left, shape), draft.view(right, shape)
        return item.forward("add", operands, {}, name, suffix=suffix)
    for large, small in ((left, right), (right, left)):
        row = draft.shape(small)
        if draft.shape(large) == shape and prod(row) == shape[-1] == row[-1]:
            return draft.view(_plus_row(item, large, small, f"{name}.rows", suffix), shape)
    return item.of_one("broadcast_add", (left, right), {}, f"{name}.sum", suffix=suffix)


def _scale(item: TrainingNode) -> None:
    factor, down = item.only(1), item.integer("scale_down", 0)
    if factor is None or (down and not factor):
        raise CannotTakeError("the factor is not a constant other than 0", "use one number as initializer")
    _scaled(item, item.read(0), 1 / factor if down else factor)


def _scaled(item: TrainingNode, x: str, factor: float) -> None:
    if factor == 1:
        item.give(x)
    else:
        _written(item, "scale", (x,), {"factor": factor})


def _pair(item: TrainingNode) -> None:
    """Two operands, of which one may be a number."""
    op, count = item.kind, len(item.node.inputs)
    if count != 2:
        raise CannotTakeError(f"{count} inputs are not supported", "use a chain of nodes with two inputs")
    second = item.only(1)
    number, other = (item.only(0), 1) if second is None else (second, 0)
    if op == "Mul" and number is not None:
        _scaled(item, item.read(other), number)
    elif op == "Div" and second:
        _scaled(item, item.read(0), 1 / second)
    elif op == "Sub" and second is not None:
        _written(item, "shift", (item.read(0),), {"offset": -second})
    else:
        _written(item, _PAIRS[op].ours, _together(item, 2), {})


def _together(item: TrainingNode, count: int) -> list[str]:
    """The first inputs, all of the same shape."""
    names = [item.read(index) for index in range(count)]
    shape = common_shape(*map(item.draft.shape, names))
    return [_expanded(item, name, shape, f"_expand{index}") for index, name in enumerate(names)]


def _prelu(item: TrainingNode) -> None:
    draft, shape, slope = item.draft, item.shape(0), item.read(1)
    sizes = tuple(size for size in draft.shape(slope) if size > 1)
    behind = draft.shape(slope)[-len(shape[2:]) :] if shape[2:] else ()
    if prod(sizes) != 1 and (sizes != shape[1:2] or prod(behind) != 1):
        raise CannotTakeError(
            f"slopes of shape {list(draft.shape(slope))} are not supported", "use one slope per channel"
        )
    parameters = {"w": draft.view(slope, sizes or (1,))}
    options = {"per_channel": bool(sizes)}
    item.give(item.forward("prelu", (item.read(0),), options, item.out(), parameters))


def _sign(item: TrainingNode) -> None:
    sides = [
        item.forward("compare", (item.read(0),), {"form": form, "value": 0.0}, suffix=f"_{form}")
        for form in ("gt", "lt")
    ]
    _written(item, "subtract", sides, {})


def _expanded(item: TrainingNode, name: str, shape: Shape, suffix: str) -> str:
    draft = item.draft
    if prod(draft.shape(name)) == prod(shape):
        return draft.view(name, shape)
    return item.of_one("expand", (name,), {"shape": list(shape)}, suffix=suffix)


def _power(item: TrainingNode) -> None:
    exponent = item.only(1)
    if exponent is None:
        raise CannotTakeError("the exponent must be a single number", "use one number as exponent")
    kind, options = power_of(exponent)
    _written(item, kind, (item.read(0),), options)


def _compare(item: TrainingNode) -> None:
    value, compared = item.only(1), item.read(0)
    if value is None:
        value, compared = 0.0, item.forward("subtract", _together(item, 2), suffix="_difference")
    _written(item, "compare", (compared,), {"form": _RELATIONS[item.kind].ours, "value": value})


def _expand(item: TrainingNode) -> None:
    shape = tuple(int(size) for size in item.needed(1, "shape").ravel())
    item.give(_expanded(item, item.read(0), common_shape(item.shape(0), shape), ""))


def _reduce(item: TrainingNode) -> None:
    draft, result = item.draft, item.read(0)
    shape, kind = draft.shape(result), _REDUCTIONS[item.kind].ours
    axes, keep = reduced_axes(item, len(shape)), bool(item.integer("keepdims", 1))
    final = [1 if axis in axes else size for axis, size in enumerate(shape) if keep or axis not in axes]
    real = [axis for axis in axes if shape[axis] > 1]
    if kind == "reduce_mean" and len(shape) == 4 and axes == [2, 3] and real:
        made = item.forward("global_avg_pool", (result,), {}, item.out())
        item.give(made, final)
        return
    groups = neighbours(real)
    for number, group in enumerate(groups):
        last = number == len(groups) - 1
        suffix, name = ("", f"{item.out()}.kept") if last else (f"_{number}", "")
        result = item.of_one(kind, (result,), {"axes": group, "keep_dims": True}, name, suffix=suffix)
    item.give(result, final or (1,))


# What moves elements


def _view(item: TrainingNode) -> None:
    op, shape = item.node.op, item.shape(0)
    if op in ("Reshape", "Flatten"):
        shape = new_shape(item, shape, op)
    elif op == "Squeeze":
        gone = gone_axes(item, shape)
        shape = tuple(size for axis, size in enumerate(shape) if axis not in gone)
    elif op == "Unsqueeze":
        for axis in new_axes(item, len(shape)):
            shape = (*shape[:axis], 1, *shape[axis:])
    item.give(item.read(0), shape or (1,))


def _transpose(item: TrainingNode) -> None:
    shape = item.shape(0)
    order = order_of(item, len(shape))
    item.give(turned(item, item.read(0), order), [shape[axis] for axis in order])


def turned(item: TrainingNode, name: str, order: Sequence[int], suffix: str = "") -> str:
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
    made = item.forward("transpose", (source,), turned, suffix=suffix)
    return draft.view(made, after)


def _concat(item: TrainingNode) -> None:
    draft = item.draft
    inputs = [item.read(index) for index in range(len(item.node.inputs))]
    axis = item.axis(len(draft.shape(inputs[0])))
    item.give(joined(item, inputs, axis))
    if item.out(1):  # how long each of them is
        lengths = [draft.shape(name)[axis] for name in inputs]
        draft.constants[item.out(1)] = np.array(lengths, np.int64)


def joined(item: TrainingNode, inputs: Sequence[str], axis: int, suffix: str = "") -> str:
    """Tensors side by side along a dimension."""
    return item.of_one("concat", inputs, {"axis": axis}, f"{item.site}{suffix}.joined", suffix=suffix)


def _split(item: TrainingNode) -> None:
    shape = item.shape(0)
    axis = item.axis(len(shape))
    sizes = part_sizes(item, shape[axis], len(item.node.outputs))
    if sum(sizes) != shape[axis]:
        raise CannotTakeError(
            f"the sizes {list(sizes)} add up to {sum(sizes)}", f"use sizes that add up to {shape[axis]}"
        )
    for index, part in enumerate(parts(item, item.read(0), axis, sizes)):
        item.give(part, index=index)


def parts(item: TrainingNode, name: str, axis: int, sizes: Sequence[int], suffix: str = "") -> list[str]:
    """A tensor cut along a dimension: one split."""
    draft = item.draft
    if len(sizes) == 1:
        return [name]
    source = draft.sample(name)
    plan = draft.plan("split", {"axis": axis, "sizes": list(sizes)}, [draft.shape(source)])
    shape, parts = draft.shape(name), list[str]()
    for index, size in enumerate(sizes):
        stored = (1, *shape[:axis], size, *shape[axis + 1 :])
        parts.append(item.add_tensor(f"{item.site}{suffix}.part{index}", stored))
    roles = {f"y{index or ''}": part for index, part in enumerate(parts)}
    item.apply("split", "FW", {"x": source, **roles}, plan, suffix=suffix)
    return [draft.view(part, draft.shape(part)[1:]) for part in parts]


def _slice(item: TrainingNode) -> None:
    name = item.read(0)
    for number, (axis, taken) in enumerate(slices(item, item.shape(0))):
        if taken.step != 1 or not taken:
            raise CannotTakeError(f"a slice with step {taken.step} is not supported", "use a step of 1")
        name = cut(item, name, axis, taken[0], taken[-1] + 1, f"_{number}")
    item.give(name)


def cut(item: TrainingNode, name: str, axis: int, start: int, stop: int, suffix: str = "") -> str:
    """Elements [start, stop) of a dimension."""
    if (start, stop) == (0, item.draft.shape(name)[axis]):
        return name
    options = {"axis": axis, "start": start, "stop": stop}
    return item.of_one("slice", (name,), options, suffix=suffix)


def _only_index(item: TrainingNode, size: int) -> int:
    number = item.needed(1, "index")
    if number.size != 1:
        raise CannotTakeError("several indices are not supported", "use one index, or Slice")
    return indexed(int(number.reshape(-1)[0]), size)


def _table(item: TrainingNode, table: Shape) -> tuple[LayerPlan, str]:
    """The plan of a table [words, features] whose rows are looked up, and their numbers [batch, ...]."""
    draft, shape = item.draft, item.shape(1)
    if len(table) != 2 or item.axis(2) or not shape:
        raise CannotTakeError(
            f"indexing a tensor of shape {list(table)} with several indices is not supported",
            "index the rows of a two-dimensional tensor, or use one index",
        )
    numbers = item.read(1) if len(shape) > 1 else draft.sample(item.read(1))
    options = {"vocabulary": table[0], "features": table[1]}
    return draft.plan("embedding", options, [draft.shape(numbers)], draft.tensor(numbers).dtype), numbers


def _gather(item: TrainingNode) -> None:
    shape = item.shape(0)
    if item.values(1) is None:
        plan, numbers = _table(item, shape)
        y = item.result((*item.shape(1), shape[1]), plan.results["y"].shape)
        item.apply("embedding", "FW", {"x": numbers, "w": item.read(0), "y": y}, plan)
        return
    axis = item.axis(len(shape))
    number = _only_index(item, shape[axis])
    made = cut(item, item.read(0), axis, number, number + 1)
    rank = item.needed(1, "index").ndim
    item.give(made, (*shape[:axis], *(1,) * rank, *shape[axis + 1 :]) or (1,))


def _gather_grad(item: TrainingNode) -> None:
    shape = tuple(int(size) for size in item.needed(0, "shape").ravel())
    if item.values(1) is None:
        plan, numbers = _table(item, shape)
        dy = item.draft.view(item.read(2), plan.results["y"].shape)
        item.apply("embedding", "WG", {"x": numbers, "dy": dy, "dw": item.result(shape)}, plan)
        return
    axis = item.axis(len(shape))
    number = _only_index(item, shape[axis])
    options = {"axis": axis, "start": number, "stop": number + 1}
    plan = item.draft.plan("slice", options, [(1, *shape)])
    dy = item.draft.view(item.read(2), (1, *shape[:axis], 1, *shape[axis + 1 :]))
    item.apply("slice", "IG", {"dy": dy, "dx": item.result(shape, (1, *shape))}, plan)


HANDLERS: Mapping[str, Handler] = with_own(
    {
        **dict.fromkeys(_ALONE, _forward),
        **dict.fromkeys(_GRADIENTS, _backward),
        **dict.fromkeys(_RELATIONS, _compare),
        **dict.fromkeys(_REDUCTIONS, _reduce),
    },
    {
        **dict.fromkeys(("BiasGelu", "BiasGeluGrad_dX"), _bias_gelu),
        "Clip": _clip,
        **dict.fromkeys(("Add", "Sum"), _add),
        "Scale": _scale,
        **dict.fromkeys(("Mul", "Div", "Sub", "And", "Max", "Min"), _pair),
        "Pow": _power,
        "PRelu": _prelu,
        "Sign": _sign,
        "Not": lambda item: _written(item, "compare", (item.read(0),), {"form": "eq", "value": 0.0}),
        "Where": lambda item: _written(item, "where", _together(item, 3), {}),
        "Expand": _expand,
        **dict.fromkeys(
            ("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Cast", "PassThrough"), _view
        ),
        "Transpose": _transpose,
        **dict.fromkeys(("Concat", "ConcatTraining"), _concat),
        **dict.fromkeys(("Split", "SplitTraining"), _split),
        "Slice": _slice,
        "Gather": _gather,
        "GatherGrad": _gather_grad,
    },
)
