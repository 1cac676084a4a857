# SPDX-License-Identifier: Apache-2.0
"""Nodes of training graphs as steps of our primitives: Deeploy's dialect and that of ONNX Runtime.

Where a graph has the gradient of an op as one node, that is one step of ours, or the two or three that
compute its results. Input orders: Deeploy (pull request 174), ONNX Runtime's training ops.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from importers.graph.draft import CHECKED, CannotTakeError
from importers.graph.node import Attributes, Key
from importers.graph.onnx_graph import OnnxNode
from importers.onnx.layers import groups_of, window_of
from importers.place.convolution import Placed, convolution_of
from importers.place.pairs import common_shape
from importers.place.pooling import pool_options
from importers.training.draft import Kept, TrainingDraft
from trainlib.primitives.definition import LayerPlan, Output, Shape
from trainlib.primitives.norms.norm import BIASED


@dataclass
class TrainingNode(Attributes):
    """One node: its op, what it reads as tensors of ours or constants, and where ops made of it go."""

    node: OnnxNode
    draft: TrainingDraft
    site: str
    opset: int

    def get(self, key: Key, default: Any = None) -> Any:
        """An attribute, or the name of an input; `default` where it is left out."""
        if isinstance(key, int):
            return self.node.input(key) or default
        return self.node.attributes.get(key, default)

    def values(self, index: int) -> Any:
        """The value of an input that is constant, else None."""
        return self.draft.constants.get(self.node.input(index))

    @property
    def kind(self) -> str:
        """Its op without the domain."""
        return self.node.op.rpartition(":")[2]

    def read(self, index: int) -> str:
        """Our tensor of an input."""
        name = self.node.input(index)
        if not name:
            raise CannotTakeError(f"its input {index} is missing", CHECKED)
        return self.draft.read(name)

    def needed(self, index: int, what: str) -> Any:
        """The value of an input that must be constant."""
        value = self.values(index)
        if value is None:
            raise CannotTakeError(f"its {what} is not constant", "a constant")
        return value

    def shape(self, index: int) -> Shape:
        """Shape of an input."""
        return self.draft.shape(self.read(index))

    def only(self, index: int) -> float | None:
        """An input that is one number, constant."""
        value = self.values(index)
        return float(value.reshape(-1)[0]) if value is not None and value.size == 1 else None

    def out(self, index: int = 0) -> str:
        """Name (in the file) of an output, "" if nobody wants it."""
        return self.node.output(index)

    def result(self, shape: Sequence[int], stored: Sequence[int] | None = None, index: int = 0) -> str:
        """A new tensor for an output: of `stored` shape for the op that writes it, of `shape` for readers."""
        name = self.out(index) or f"{self.site}.out{index}"
        tensor = self.draft.made(name, self.node, stored if stored is not None else shape)
        self.draft.alias(name, self.draft.view(tensor, shape))
        return tensor

    def give(self, tensor: str, shape: Sequence[int] | None = None, index: int = 0) -> None:
        """A tensor of ours, under a shape, is an output."""
        self.draft.alias(self.out(index), self.draft.view(tensor, shape) if shape is not None else tensor)

    def said(self, index: int = 0) -> Shape:
        """Shape the file says an output has."""
        tensor = self.draft.graph.tensor(self.out(index))
        if not tensor.is_static:
            raise CannotTakeError(f"the file does not say the shape of '{tensor.name}'", "value_info of it")
        return tensor.sizes

    def apply(
        self, kind: str, step: str, roles: Mapping[str, str], plan: LayerPlan, suffix: str = ""
    ) -> None:
        """One step of a primitive."""
        self.draft.check(kind, plan, roles)
        self.draft.step(self.site + suffix, kind, step, roles, plan.attributes)


MICROSOFT = "com.microsoft:"
"""Domain of private ops, which are known without it as well."""

Handler = Callable[[TrainingNode], None]


# Products


def _product(item: TrainingNode) -> None:
    left, right = item.read(0), item.read(1)
    turns = bool(item.integer("transA", 0)), bool(item.integer("transB", 0))
    alpha, beta = item.real("alpha", 1.0), item.real("beta", 1.0)
    bias = item.read(2) if item.has(2) and beta and not _is_zero(item, 2) else ""
    if beta != 1 and bias:
        raise CannotTakeError(f"beta {beta}", "beta 1")
    a, b = item.draft.shape(left), item.draft.shape(right)
    if len(a) < 2 or len(b) < 2 or (a[-2] if turns[0] else a[-1]) != (b[-1] if turns[1] else b[-2]):
        raise CannotTakeError(f"cannot multiply {list(a)} by {list(b)}", "matrices that fit")
    rows, columns = a[-1] if turns[0] else a[-2], b[-2] if turns[1] else b[-1]
    lead = common_shape(a[:-2], b[:-2])
    output = (*lead, rows, columns)
    name = item.out() if alpha == 1 and not bias else f"{item.site}.product"
    flat = prod(b[:-2]) == 1 and (not turns[0] or prod(a[:-2]) == 1)
    if not flat:
        made = _stacked(item, (left, right), turns, output, name)
    elif item.node.op == "MatMul" and not any(turns):
        made = _matrix_product(item, left, right, name)
    else:
        fits = bool(bias) and turns == (False, True) and alpha == 1
        whole = bias if fits and prod(item.draft.shape(bias)) == columns else ""
        name = item.out() if whole else name
        made = _linear_step(item, (left, right), turns, whole, name)
        bias = "" if whole else bias
    if alpha != 1:
        name = f"{item.site}.scaled" if bias else item.out()
        made = item.draft.forward(f"{item.site}_alpha", item.node, "scale", (made,), {"factor": alpha}, name)
    if bias:
        made = _biased(item, made, bias, columns)
    item.give(made, output)


def _is_zero(item: TrainingNode, index: int) -> bool:
    value = item.values(index)
    return value is not None and not value.any()


def _linear_step(
    item: TrainingNode, operands: tuple[str, str], turns: tuple[bool, bool], bias: str, name: str
) -> str:
    """A product of two matrices as a step of a linear layer: x Wᵀ is FW, dy W is IG, dyᵀ x is WG."""
    draft = item.draft
    left, right = (
        draft.view(operand, (prod(draft.shape(operand)[:-1]), draft.shape(operand)[-1]))
        for operand in operands
    )
    if turns == (True, True):
        turned = draft.forward(
            f"{item.site}_turn", item.node, "transpose", (draft.sample(left),), {"axes": [1, 0]}
        )
        left, turns = draft.view(turned, draft.shape(left)[::-1]), (False, True)
    a, b = draft.shape(left), draft.shape(right)
    if turns == (False, True):
        options = {"out_features": b[0], **({"bias": True} if bias else {})}
        plan = draft.plan("linear", options, [a])
        made = draft.made(name, item.node, (a[0], b[0]))
        roles = {"x": left, "w": right, "y": made}
        if bias:
            roles["b"] = draft.view(bias, (b[0],))
        item.apply("linear", "FW", roles, plan)
    elif turns == (False, False):
        plan = draft.plan("linear", {"out_features": b[0]}, [(a[0], b[1])])
        made = draft.made(name, item.node, (a[0], b[1]))
        item.apply("linear", "IG", {"dy": left, "w": right, "dx": made}, plan)
    else:
        plan = draft.plan("linear", {"out_features": a[1]}, [b])
        made = draft.made(name, item.node, (a[1], b[1]))
        item.apply("linear", "WG", {"dy": left, "x": right, "dw": made}, plan)
    return made


def _matrix_product(item: TrainingNode, left: str, right: str, name: str) -> str:
    draft = item.draft
    a, b = draft.shape(left), draft.shape(right)
    first, second = draft.view(left, (1, prod(a[:-1]), a[-1])), draft.view(right, (1, *b[-2:]))
    return draft.forward(item.site, item.node, "matmul", (first, second), {}, name)


def _stacked(
    item: TrainingNode, operands: tuple[str, str], turns: tuple[bool, bool], output: Shape, name: str
) -> str:
    """Products of stacks of matrices; the transposed left is the gradient of a product."""
    draft = item.draft
    left, right = (draft.sample(operand) for operand in operands)
    if turns[0]:
        if turns[1]:
            raise CannotTakeError("both stacks transposed", "one of them")
        a, b = draft.shape(left), draft.shape(right)
        plan = draft.plan("matmul", {}, [a, (*a[:-2], a[-1], b[-1])])
        made = draft.made(name, item.node, (1, *output))
        item.apply("matmul", "IG1", {"x": left, "dy": right, "dx1": made}, plan)
        return made
    options = {"transpose_b": True} if turns[1] else {}
    return draft.forward(item.site, item.node, "matmul", (left, right), options, name)


def _biased(item: TrainingNode, made: str, bias: str, columns: int) -> str:
    draft = item.draft
    shape, own = draft.shape(made), draft.shape(bias)
    if prod(own) == columns:
        rows = draft.view(made, (prod(shape) // columns, columns))
        weights = {"w": draft.view(bias, (columns,))}
        return draft.forward(f"{item.site}_bias", item.node, "position", (rows,), {}, item.out(), weights)
    if prod(own) == prod(shape):
        same = draft.view(bias, shape)
        return draft.forward(f"{item.site}_bias", item.node, "add", (made, same), {}, item.out())
    raise CannotTakeError(f"a bias of shape {list(own)}", f"[{columns}]")


# Convolutions and pooling


def _convolution(item: TrainingNode, x: Shape, w: Shape) -> Placed:
    """The primitive for a convolution of these shapes."""
    if len(x) != 4 or len(w) != 4:
        raise CannotTakeError(f"a convolution of {len(w) - 2} dimensions", "one of 2 dimensions")
    return convolution_of(x, w, window_of(item, x[2:], w[2:]), groups_of(item))


def _conv(item: TrainingNode) -> None:
    draft, x, w = item.draft, item.read(0), item.read(1)
    placed = _convolution(item, draft.shape(x), draft.shape(w))
    parameters = {"w": draft.view(w, placed.weight)} | ({"b": item.read(2)} if item.has(2) else {})
    options = {**placed.options, "bias": item.has(2)}
    item.give(draft.forward(item.site, item.node, placed.kind, (x,), options, item.out(), parameters))


def _conv_grad(item: TrainingNode) -> None:
    _gradients(item, dy=item.read(0), x=item.read(1), w=item.read(2), outputs={"dx": 0, "dw": 1, "db": 2})


def _conv_grad_x(item: TrainingNode) -> None:
    draft, dy, w = item.draft, item.read(0), item.read(1)
    x = item.said()
    placed = _convolution(item, x, draft.shape(w))
    plan = draft.plan(placed.kind, placed.options, [x])
    dx = item.result(x)
    item.apply(placed.kind, "IG", {"dy": dy, "w": draft.view(w, placed.weight), "dx": dx}, plan)


def _conv_grad_w(item: TrainingNode) -> None:
    draft, dy, x = item.draft, item.read(0), item.read(1)
    kernel, groups = item.sizes("kernel_shape"), groups_of(item)
    shape = (*draft.shape(dy)[1:2], *(size // groups for size in draft.shape(x)[1:2]), *kernel)
    shape = shape if kernel else item.said()
    placed = _convolution(item, draft.shape(x), shape)
    plan = draft.plan(placed.kind, placed.options, [draft.shape(x)])
    dw = item.result(shape, placed.weight)
    item.apply(placed.kind, "WG", {"x": x, "dy": dy, "dw": dw}, plan)


def _conv_grad_b(item: TrainingNode) -> None:
    draft, dy = item.draft, item.read(0)
    batch, channels, *space = draft.shape(dy)
    made = draft.forward(
        item.site,
        item.node,
        "reduce_sum",
        (draft.view(dy, (batch, channels, prod(space))),),
        {"axes": [1]},
        item.out() if batch == 1 else "",
    )
    if batch > 1:
        rows = draft.view(made, (1, batch, channels))
        made = draft.forward(
            f"{item.site}_batch", item.node, "reduce_sum", (rows,), {"axes": [0]}, item.out()
        )
    item.give(made, (channels,))


def _gradients(item: TrainingNode, *, dy: str, x: str, w: str, outputs: Mapping[str, int]) -> None:
    draft, biased = item.draft, bool(item.out(outputs["db"]))
    placed = _convolution(item, draft.shape(x), draft.shape(w))
    plan = draft.plan(placed.kind, {**placed.options, "bias": biased}, [draft.shape(x)])
    if item.out(outputs["dw"]) or biased:
        roles = {"x": x, "dy": dy, "dw": item.result(draft.shape(w), placed.weight, outputs["dw"])}
        if biased:
            roles["db"] = item.result((draft.shape(w)[0],), index=outputs["db"])
        item.apply(placed.kind, "WG", roles, plan)
    if item.out(outputs["dx"]):
        dx = item.result(draft.shape(x), index=outputs["dx"])
        item.apply(placed.kind, "IG", {"dy": dy, "w": draft.view(w, placed.weight), "dx": dx}, plan)


def _pool_plan(item: TrainingNode, kind: str, shape: Shape) -> LayerPlan:
    """The plan of a pool over images of this shape."""
    kernel = item.sizes("kernel_shape")
    if len(kernel) != 2 or len(shape) != 4:
        raise CannotTakeError(f"a window of {len(kernel)} dimensions", "a window of 2 dimensions")
    found, ceil = window_of(item, shape[2:], kernel), bool(item.integer("ceil_mode", 0))
    counted = kind == "max_pool2d" or bool(item.integer("count_include_pad", 0))
    return item.draft.plan(kind, pool_options(found, shape[2:], ceil=ceil, padded=counted), [shape])


def _max_pool(item: TrainingNode) -> None:
    draft, x = item.draft, item.read(0)
    plan = _pool_plan(item, "max_pool2d", draft.shape(x))
    y = item.result(_shape_of(plan))
    saved = plan.saved["argmax"]
    argmax = draft.add(f"{item.site}.argmax", saved.shape, "saved", saved.dtype or "float32")
    roles = {"x": x, "y": y, "argmax": argmax}
    item.apply("max_pool2d", "FW", roles, plan)
    for key in (item.node.input(0), item.out(1)):
        draft.keep(item.node, key, Kept("max_pool2d", plan, roles))


def _max_pool_grad(item: TrainingNode) -> None:
    draft = item.draft
    kept = draft.recall("max_pool2d", *item.node.inputs[1:])
    if kept is None:
        raise CannotTakeError("no MaxPool has read or written what it reads", "its MaxPool in the same graph")
    dx = item.result(draft.shape(kept.roles["x"]))
    item.apply("max_pool2d", "IG", {"argmax": kept.roles["argmax"], "dy": item.read(0), "dx": dx}, kept.plan)


def _average_pool(item: TrainingNode) -> None:
    x = item.read(0)
    plan = _pool_plan(item, "avg_pool2d", item.draft.shape(x))
    item.apply("avg_pool2d", "FW", {"x": x, "y": item.result(_shape_of(plan))}, plan)


def _average_pool_grad(item: TrainingNode) -> None:
    shape = item.said()
    plan = _pool_plan(item, "avg_pool2d", shape)
    item.apply("avg_pool2d", "IG", {"dy": item.read(0), "dx": item.result(shape)}, plan)


def _global_average(item: TrainingNode) -> None:
    _averaged(item, item.read(0), keep=True)


def _averaged(item: TrainingNode, x: str, *, keep: bool) -> None:
    batch, channels, *_ = item.draft.shape(x)
    made = item.draft.forward(item.site, item.node, "global_avg_pool", (x,), {}, item.out())
    item.give(made, (batch, channels, 1, 1) if keep else (batch, channels))


def _global_average_grad(item: TrainingNode) -> None:
    draft, dy = item.draft, item.read(0)
    kernel = item.sizes("kernel_shape")
    shape = (*draft.shape(dy)[:2], *kernel) if kernel else item.said()
    plan = draft.plan("global_avg_pool", {}, [shape])
    gradient = draft.view(dy, _shape_of(plan))
    item.apply("global_avg_pool", "IG", {"dy": gradient, "dx": item.result(shape)}, plan)


def _shape_of(plan: LayerPlan) -> Shape:
    return plan.output.shape if isinstance(plan.output, Output) else plan.output


# Norms


def _batch_norm(item: TrainingNode) -> None:
    draft, x = item.draft, item.read(0)
    frozen = item.node.op == "BatchNormalization" and not item.integer("training_mode", 0)
    # Results: y, running mean and variance, saved mean and inverse deviation. Of three, they are y and the
    # last two.
    count = len(item.node.outputs)
    running = frozen or count == 5 or item.node.op == "BatchNormalization"
    plan = _norm_plan(item, "batch_norm", draft.shape(x), fixed_statistics=frozen, running=running)
    roles = {"x": x, "w": item.read(1), "b": item.read(2)}
    for role in ("mean", "inv_std", *(() if frozen else ("var",))):
        roles[role] = draft.add(f"{item.site}.{role}", plan.saved[role].shape, "saved")
    for index, role in ((3, "running_mean"), (4, "running_var")) if running else ():
        roles[role] = draft.buffer(item.node.input(index))
        name = f"{roles[role]}_updated"
        roles[f"{role}_updated"] = draft.add(name, draft.shape(roles[role]), "buffer", alias_of=roles[role])
        if not frozen and item.out(index - 2):
            item.give(name, index=index - 2)
    roles["y"] = item.result(draft.shape(x))
    for step in ("FW_KNOWN", "FW_APPLY") if frozen else ("FW_MEAN", "FW_VAR", "FW_INV", "FW_APPLY"):
        item.apply("batch_norm", step, roles, plan)
    if not frozen and count in (3, 5) and not (count == 3 and running):
        item.give(roles["mean"], index=count - 2)
        item.give(roles["inv_std"], index=count - 1)


def _norm_plan(
    item: TrainingNode, kind: str, shape: Shape, *, running: bool = False, **options: Any
) -> LayerPlan:
    """The plan of a norm; statistics that a batch norm goes on averaging are ONNX Runtime's, biased."""
    if kind == "batch_norm" and len(shape) < 2:
        raise CannotTakeError(f"its input {list(shape)} has no batch in front", "[batch, channels, ...]")
    if running:
        options["momentum"] = round(1 - item.real("momentum", 0.9), 6)
    plan = item.draft.plan(kind, {"eps": item.number("epsilon", 1e-5), **options}, [shape])
    if kind != "batch_norm":
        return plan
    return replace(plan, attributes={**plan.attributes, "running": running, BIASED: True})


def _batch_norm_grad(item: TrainingNode) -> None:
    draft, dy, x = item.draft, item.read(0), item.read(1)
    plan = _norm_plan(item, "batch_norm", draft.shape(x), fixed_statistics=False)
    channels = draft.shape(x)[1:2]
    mean, inverse = (draft.view(item.read(index), channels) for index in (3, 4))
    roles = {"x": x, "dy": dy, "w": item.read(2), "mean": mean, "inv_std": inverse}
    roles |= {"dw": item.result(channels, index=1), "db": item.result(channels, index=2)}
    if item.out(0):
        for role in ("mean_g", "mean_gx"):
            roles[role] = draft.made(f"{item.site}.{role}", item.node, channels)
    item.apply("batch_norm", "WG", roles, plan)
    if item.out(0):
        roles["dx"] = item.result(draft.shape(x))
        item.apply("batch_norm", "IG_APPLY", roles, plan)


def _rows(item: TrainingNode, shape: Shape) -> tuple[Shape, Shape, int]:
    """An input of a norm over its last dimensions as [1, rows, ...], the row, and its dimensions."""
    axis = item.axis(len(shape), -1)
    row = shape[axis:]
    return (1, prod(shape[:axis]), *row), row, len(row)


def _layer_norm(item: TrainingNode) -> None:
    draft, x = item.draft, item.read(0)
    shape, row, count = _rows(item, draft.shape(x))
    given = {role: index for role, index in (("w", 1), ("b", 2)) if item.has(index)}
    if "w" not in given:
        raise CannotTakeError("no scale", "scale and bias")
    options: dict[str, Any] = {"axes": count} if count > 1 else {}
    if "b" not in given:
        options["bias"] = False
    plan = _norm_plan(item, "layer_norm", shape, **options)
    roles = {
        "x": draft.view(x, shape),
        **{role: draft.view(item.read(at), row) for role, at in given.items()},
    }
    for role in ("mean", "inv_std"):
        roles[role] = draft.add(f"{item.site}.{role}", plan.saved[role].shape, "saved")
    roles["y"] = item.result(draft.shape(x), shape)
    item.apply("layer_norm", "FW", roles, plan)
    for index, role in ((1, "mean"), (2, "inv_std")):
        if item.out(index):
            item.give(roles[role], index=index)


def _layer_norm_grad(item: TrainingNode) -> None:
    draft, dy, x = item.draft, item.read(0), item.read(1)
    shape, row, count = _rows(item, draft.shape(x))
    options: dict[str, Any] = {"axes": count} if count > 1 else {}
    plan = _norm_plan(item, "layer_norm", shape, **options)
    roles = {"x": draft.view(x, shape), "dy": draft.view(dy, shape), "w": draft.view(item.read(2), row)}
    if item.has(4):
        for role, index in (("mean", 3), ("inv_std", 4)):
            roles[role] = draft.view(item.read(index), plan.saved[role].shape)
    else:  # Deeploy's: dY, X, weight, bias
        if prod(item.shape(3)) != prod(row):
            raise CannotTakeError(f"a bias of shape {list(item.shape(3))}", f"of shape {list(row)}")
        for role in ("mean", "var", "inv_std"):
            roles[role] = draft.add(f"{item.site}.{role}", plan.saved["mean"].shape, "saved")
        for step in ("FW_MEAN", "FW_VAR", "FW_INV"):
            item.apply("layer_norm", step, roles, plan)
    roles |= {role: item.result(row, index=at) for role, at in (("dw", 1), ("db", 2)) if item.out(at)}
    if "dw" in roles or "db" in roles:
        item.apply("layer_norm", "WG", roles, plan)
    if item.out(0):
        roles["dx"] = item.result(draft.shape(x), shape)
        item.apply("layer_norm", "IG", roles, plan)


def _softmax(item: TrainingNode) -> None:
    draft, x = item.draft, item.read(0)
    shape = draft.shape(x)
    stored = _softmax_shape(item, shape)
    kind = "log_softmax" if item.node.op == "LogSoftmax" else "softmax"
    made = draft.forward(item.site, item.node, kind, (draft.view(x, stored),), {}, item.out())
    item.give(made, shape)


def _softmax_shape(item: TrainingNode, shape: Shape) -> Shape:
    axis = item.axis(len(shape), -1 if item.opset >= 13 else 1)
    if prod(shape[axis + 1 :]) != 1 and item.opset >= 13:
        raise CannotTakeError(f"a softmax over dimension {axis} of {list(shape)}", "over the last one")
    return (1, prod(shape[:axis]), prod(shape[axis:]))


def _softmax_grad(item: TrainingNode) -> None:
    draft, dy, y = item.draft, item.read(0), item.read(1)
    shape = draft.shape(y)
    stored = _softmax_shape(item, shape)
    kind = "log_softmax" if item.kind.startswith("Log") else "softmax"
    plan = draft.plan(kind, {}, [stored])
    dx = item.result(shape, stored)
    item.apply(kind, "IG", {"y": draft.view(y, stored), "dy": draft.view(dy, stored), "dx": dx}, plan)


HANDLERS: Mapping[str, Handler] = {
    **dict.fromkeys(("Gemm", "MatMul", "FusedMatMul"), _product),
    "Conv": _conv,
    "ConvGrad": _conv_grad,
    "ConvGradX": _conv_grad_x,
    "ConvGradW": _conv_grad_w,
    "ConvGradB": _conv_grad_b,
    "MaxPool": _max_pool,
    "MaxPoolGrad": _max_pool_grad,
    "AveragePool": _average_pool,
    "AveragePoolGrad": _average_pool_grad,
    "GlobalAveragePool": _global_average,
    "GlobalAveragePoolGrad": _global_average_grad,
    **dict.fromkeys(("BatchNormInternal", "BatchNormalization"), _batch_norm),
    "BatchNormalizationGrad": _batch_norm_grad,
    "LayerNormalization": _layer_norm,
    "LayerNormalizationGrad": _layer_norm_grad,
    **dict.fromkeys(("Softmax", "LogSoftmax"), _softmax),
    **dict.fromkeys(("SoftmaxGrad", "SoftmaxGrad_13", "LogSoftmaxGrad", "LogSoftmaxGrad_13"), _softmax_grad),
}
