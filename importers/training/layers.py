# SPDX-License-Identifier: Apache-2.0
"""Nodes of training graphs as steps of our primitives: Deeploy's dialect and that of ONNX Runtime.

Where a graph has the gradient of an op as one node, that is one step of ours, or the two or three that
compute its results. Input orders: Deeploy (pull request 174), ONNX Runtime's training ops.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from types import MappingProxyType
from typing import Any

from configs.values import replace
from importers.graph.draft import CHECKED, CannotTakeError
from importers.graph.node import Attributes, Key
from importers.graph.onnx_graph import OnnxNode
from importers.onnx.layers import eps_of, groups_of, pool_of, window_of
from importers.place.convolution import Placed, convolution_of
from importers.place.pairs import common_shape
from importers.training.draft import Kept, TrainingDraft
from trainlib.primitives.definition import LayerPlan, Shape
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
        return (
            self.node.input(key) or default
            if isinstance(key, int)
            else self.node.attributes.get(key, default)
        )

    def values(self, index: int) -> Any:
        """The value of an input that is constant, else None."""
        return self.draft.constants.get(self.node.input(index))

    @property
    def kind(self) -> str:
        """Its op without the domain."""
        return kind_of(self.node)

    def read(self, index: int) -> str:
        """Our tensor of an input."""
        name = self.node.input(index)
        if not name:
            raise CannotTakeError(f"input {index} of the node is missing", CHECKED)
        return self.draft.read(name)

    def needed(self, index: int, what: str) -> Any:
        """The value of an input that must be constant."""
        value = self.values(index)
        if value is None:
            raise CannotTakeError(f"{what} of the node is not constant", "use an initializer or Constant")
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
        tensor = self.add_tensor(name, stored if stored is not None else shape)
        self.draft.alias(name, self.draft.view(tensor, shape))
        return tensor

    def give(self, tensor: str, shape: Sequence[int] | None = None, index: int = 0) -> None:
        """A tensor of ours, under a shape, is an output."""
        self.draft.alias(self.out(index), self.draft.view(tensor, shape) if shape is not None else tensor)

    def stated_shape(self, index: int = 0) -> Shape:
        """Shape the file says an output has."""
        tensor = self.draft.graph.tensor(self.out(index))
        if not tensor.is_static:
            raise CannotTakeError(f"the shape of '{tensor.name}' is missing", "add value_info for the tensor")
        return tensor.sizes

    def add_tensor(self, name: str, shape: Sequence[int]) -> str:
        """A new tensor of ours; `name` is its name in the file, or one of our own."""
        draft = self.draft
        backward = any(draft.names.get(read) in draft.gradients for read in self.node.inputs)
        tensor = draft.add(name, tuple(shape), "gradient" if backward else "activation")
        draft.gradients |= {tensor} if backward else set()
        return tensor

    def apply(
        self, kind: str, step: str, roles: Mapping[str, str], plan: LayerPlan, *, suffix: str = ""
    ) -> None:
        """One step of a primitive."""
        self.draft.step(self.site + suffix, kind, step, roles, plan)

    def forward(
        self,
        kind: str,
        inputs: Sequence[str],
        options: Mapping[str, Any] = MappingProxyType({}),
        name: str = "",
        parameters: Mapping[str, str] = MappingProxyType({}),
        *,
        suffix: str = "",
    ) -> str:
        """FW of a layer of one output on tensors with the batch first; its output, called `name` in the file.

        Raises `CannotTakeError`.
        """
        draft, site = self.draft, self.site + suffix
        plan = draft.plan(kind, options, [*map(draft.shape, inputs)], draft.tensor(inputs[0]).dtype)
        y = self.add_tensor(name or f"{site}.y", plan.results["y"].shape)
        roles = {f"x{index or ''}": tensor for index, tensor in enumerate(inputs)} | dict(parameters)
        self.apply(kind, "FW", {**roles, "y": y}, plan, suffix=suffix)
        return y

    def of_one(
        self,
        kind: str,
        inputs: Sequence[str],
        options: Mapping[str, Any],
        name: str = "",
        *,
        suffix: str = "",
    ) -> str:
        """FW of a layer on tensors as the only sample; what it makes of this."""
        made = self.forward(kind, [*map(self.draft.sample, inputs)], options, name, suffix=suffix)
        return self.draft.view(made, self.draft.shape(made)[1:])

    def saved(self, plan: LayerPlan, *roles: str) -> dict[str, str]:
        """New tensors for what a step of this plan leaves for others, by role."""
        plans = {role: plan.saved.get(role, plan.saved.get("mean")) for role in roles}
        return {
            role: self.draft.add(f"{self.site}.{role}", item.shape, "saved", item.dtype or "float32")
            for role, item in plans.items()
            if item is not None
        }


MICROSOFT = "com.microsoft:"
"""Domain of private ops, which are known without it as well."""

ACCUMULATORS = ("InPlaceAccumulatorV2", "InPlaceAccumulator")
SGD = ("SGD", "SGDOptimizerV2", "SGDOptimizer")

ONE_UPDATE = "add the gradients of all uses with Sum, then accumulate or update once"
"""The cure of a weight that is updated use by use."""


def kind_of(node: OnnxNode) -> str:
    """The op without its domain."""
    return node.op.rpartition(":")[2]


Handler = Callable[[TrainingNode], None]


# Products


def _product(item: TrainingNode) -> None:
    draft, left, right = item.draft, item.read(0), item.read(1)
    turns = bool(item.integer("transA", 0)), bool(item.integer("transB", 0))
    alpha, beta = item.real("alpha", 1.0), item.real("beta", 1.0)
    third = item.values(2)
    bias = item.read(2) if item.has(2) and beta and (third is None or third.any()) else ""
    if beta != 1 and bias:
        raise CannotTakeError(f"Gemm with beta {beta} is not supported", "set beta to 1")
    a, b = draft.shape(left), draft.shape(right)
    if len(a) < 2 or len(b) < 2 or (a[-2] if turns[0] else a[-1]) != (b[-1] if turns[1] else b[-2]):
        raise CannotTakeError(f"cannot multiply {list(a)} by {list(b)}", "make the inner dimensions equal")
    rows, columns = a[-1] if turns[0] else a[-2], b[-2] if turns[1] else b[-1]
    output = (*common_shape(a[:-2], b[:-2]), rows, columns)
    name = item.out() if alpha == 1 and not bias else f"{item.site}.product"
    if prod(b[:-2]) != 1 or (turns[0] and prod(a[:-2]) != 1):
        made = _stacked(item, (left, right), turns, output, name)
    elif item.node.op == "MatMul" and not any(turns):
        operands = draft.view(left, (1, prod(a[:-1]), a[-1])), draft.view(right, (1, *b[-2:]))
        made = item.forward("matmul", operands, name=name)
    else:
        fits = bool(bias) and turns == (False, True) and alpha == 1
        whole = bias if fits and prod(draft.shape(bias)) == columns else ""
        made = _linear_step(item, (left, right), turns, whole, item.out() if whole else name)
        bias = "" if whole else bias
    if alpha != 1:
        name = f"{item.site}.scaled" if bias else item.out()
        made = item.forward("scale", (made,), {"factor": alpha}, name, suffix="_alpha")
    if bias:
        made = _biased(item, made, bias, columns)
    item.give(made, output)


def _linear_step(
    item: TrainingNode, operands: tuple[str, str], turns: tuple[bool, bool], bias: str, name: str
) -> str:
    """A product of two matrices as a step of a linear layer: x Wᵀ is FW, dy W is IG, dyᵀ x is WG."""
    draft = item.draft
    shapes = [draft.shape(operand) for operand in operands]
    left, right = (
        draft.view(operand, (prod(shape[:-1]), shape[-1]))
        for operand, shape in zip(operands, shapes, strict=True)
    )
    if turns == (True, True):
        left = item.of_one("transpose", (left,), {"axes": [1, 0]}, suffix="_turn")
        turns = (False, True)
    a, b = draft.shape(left), draft.shape(right)
    if turns == (False, True):
        step, made, x, roles = "FW", (a[0], b[0]), a, ("x", "w", "y")
    elif turns == (False, False):
        step, made, x, roles = "IG", (a[0], b[1]), (a[0], b[1]), ("dy", "w", "dx")
    else:
        step, made, x, roles = "WG", (a[1], b[1]), b, ("dy", "x", "dw")
    outputs = a[1] if step == "WG" else b[0]
    plan = draft.plan("linear", {"out_features": outputs, "bias": bool(bias)}, [x])
    given = dict(zip(roles, (left, right, item.add_tensor(name, made)), strict=True))
    if bias:
        given["b"] = draft.view(bias, (b[0],))
    item.apply("linear", step, given, plan)
    return given[roles[2]]


def _stacked(
    item: TrainingNode, operands: tuple[str, str], turns: tuple[bool, bool], output: Shape, name: str
) -> str:
    """Products of stacks of matrices; the transposed left is the gradient of a product."""
    draft = item.draft
    left, right = (draft.sample(operand) for operand in operands)
    if not turns[0]:
        return item.forward("matmul", (left, right), {"transpose_b": True} if turns[1] else {}, name)
    if turns[1]:
        raise CannotTakeError("two transposed operands are not supported", "transpose one of the two")
    a, b = draft.shape(left), draft.shape(right)
    plan = draft.plan("matmul", {}, [a, (*a[:-2], a[-1], b[-1])])
    made = item.add_tensor(name, (1, *output))
    item.apply("matmul", "IG1", {"x": left, "dy": right, "dx1": made}, plan)
    return made


def _biased(item: TrainingNode, made: str, bias: str, columns: int) -> str:
    draft = item.draft
    shape, sizes = draft.shape(made), draft.shape(bias)
    if prod(sizes) == columns:
        rows = draft.view(made, (prod(shape) // columns, columns))
        weights = {"w": draft.view(bias, (columns,))}
        return item.forward("position", (rows,), {}, item.out(), weights, suffix="_bias")
    if prod(sizes) == prod(shape):
        return item.forward("add", (made, draft.view(bias, shape)), {}, item.out(), suffix="_bias")
    raise CannotTakeError(f"a bias of shape {list(sizes)} does not fit", f"use a bias of shape [{columns}]")


# Convolutions and pooling


def _convolution(item: TrainingNode, x: Shape, w: Shape) -> Placed:
    """The primitive for a convolution of these shapes."""
    if len(x) != len(w) or len(w) not in (3, 4):
        raise CannotTakeError(
            f"a convolution of {len(w) - 2} dimensions is not supported",
            "use a convolution of 1 or 2 dimensions",
        )
    return convolution_of(x, w, window_of(item, x[2:], w[2:]), groups_of(item))


def _conv(item: TrainingNode) -> None:
    draft, x, w = item.draft, item.read(0), item.read(1)
    placed = _convolution(item, draft.shape(x), draft.shape(w))
    parameters = {"w": draft.view(w, placed.weight)} | ({"b": item.read(2)} if item.has(2) else {})
    options = {**placed.options, "bias": item.has(2)}
    item.give(item.forward(placed.kind, (x,), options, item.out(), parameters))


_CONV_GRADIENTS = {
    "ConvGrad": (("dy", "x", "w"), ("dx", "dw", "db")),
    "ConvGradX": (("dy", "w"), ("dx",)),
    "ConvGradW": (("dy", "x"), ("dw",)),
}
"""Roles of what these read and write."""


def _conv_grad(item: TrainingNode) -> None:
    draft, (reads, writes) = item.draft, _CONV_GRADIENTS[item.kind]
    roles = {role: item.read(index) for index, role in enumerate(reads)}
    asked = {role: index for index, role in enumerate(writes) if item.out(index) or len(writes) == 1}
    x = draft.shape(roles["x"]) if "x" in roles else item.stated_shape()
    w = draft.shape(roles["w"]) if "w" in roles else _weight_shape(item, draft.shape(roles["dy"]), x)
    placed = _convolution(item, x, w)
    plan = draft.plan(placed.kind, {**placed.options, "bias": "db" in asked}, [x])
    if "dw" in asked or "db" in asked:
        made = {"dw": item.result(w, placed.weight, writes.index("dw"))}
        if "db" in asked:
            made["db"] = item.result(w[:1], index=asked["db"])
        item.apply(placed.kind, "WG", {"x": roles["x"], "dy": roles["dy"], **made}, plan)
    if "dx" in asked:
        weight = draft.view(roles["w"], placed.weight)
        dx = item.result(x, index=asked["dx"])
        item.apply(placed.kind, "IG", {"dy": roles["dy"], "w": weight, "dx": dx}, plan)


def _weight_shape(item: TrainingNode, dy: Shape, x: Shape) -> Shape:
    """Of the gradient of a weight, which nobody gives: by the kernel, else as the file says it."""
    kernel = item.sizes("kernel_shape")
    if not kernel or min(len(dy), len(x)) < 2:
        return item.stated_shape()
    return (dy[1], x[1] // groups_of(item), *kernel)


def _conv_grad_b(item: TrainingNode) -> None:
    draft, dy = item.draft, item.read(0)
    batch, channels, *space = draft.shape(dy)
    name = item.out() if batch == 1 else ""
    rows = draft.view(dy, (batch, channels, prod(space)))
    made = item.forward("reduce_sum", (rows,), {"axes": [1]}, name)
    if batch > 1:
        rows = draft.view(made, (1, batch, channels))
        made = item.forward("reduce_sum", (rows,), {"axes": [0]}, item.out(), suffix="_batch")
    item.give(made, (channels,))


def _pool_plan(item: TrainingNode, kind: str, shape: Shape) -> LayerPlan:
    """The plan of a pool over images of this shape."""
    kernel = item.sizes("kernel_shape")
    if len(kernel) != 2 or len(shape) != 4:
        raise CannotTakeError(f"a window of {len(kernel)} dimensions is not supported", "use 2 dimensions")
    _, options = pool_of(item, shape, counts=kind == "avg_pool2d")
    return item.draft.plan(kind, options, [shape])


def _max_pool(item: TrainingNode) -> None:
    kept = _pooled(item, item.read(0))
    item.give(kept.roles["y"])
    for key in (item.node.input(0), item.out(1)):
        item.draft.keep(item.node, key, kept)


def _pooled(item: TrainingNode, x: str, name: str = "") -> Kept:
    """FW of a largest element of windows over `x`, which leaves where they were."""
    plan = _pool_plan(item, "max_pool2d", item.draft.shape(x))
    y = item.add_tensor(name or item.out(), plan.results["y"].shape)
    roles = {"x": x, "y": y, **item.saved(plan, "argmax")}
    item.apply("max_pool2d", "FW", roles, plan)
    return Kept("max_pool2d", plan, roles)


def _max_pool_grad(item: TrainingNode) -> None:
    draft = item.draft
    kept = draft.recall("max_pool2d", *item.node.inputs[1:])
    if kept is None and draft.tensor(item.read(1)).dtype.is_float:  # alone: dY, X
        kept = _pooled(item, item.read(1), f"{item.site}.y")
    if kept is None:
        raise CannotTakeError("the graph of MaxPoolGrad has no MaxPool", "put both nodes in one graph")
    dx = item.result(draft.shape(kept.roles["x"]))
    item.apply("max_pool2d", "IG", {"argmax": kept.roles["argmax"], "dy": item.read(0), "dx": dx}, kept.plan)


def _average_pool(item: TrainingNode) -> None:
    x = item.read(0)
    plan = _pool_plan(item, "avg_pool2d", item.draft.shape(x))
    item.apply("avg_pool2d", "FW", {"x": x, "y": item.result(plan.results["y"].shape)}, plan)


def _average_pool_grad(item: TrainingNode) -> None:
    shape = item.stated_shape()
    plan = _pool_plan(item, "avg_pool2d", shape)
    item.apply("avg_pool2d", "IG", {"dy": item.read(0), "dx": item.result(shape)}, plan)


def _global_average(item: TrainingNode) -> None:
    made = item.forward("global_avg_pool", (item.read(0),), {}, item.out())
    item.give(made, (*item.shape(0)[:2], 1, 1))


def _global_average_grad(item: TrainingNode) -> None:
    draft, dy = item.draft, item.read(0)
    kernel = item.sizes("kernel_shape")
    shape = (*draft.shape(dy)[:2], *kernel) if kernel else item.stated_shape()
    plan = draft.plan("global_avg_pool", {}, [shape])
    gradient = draft.view(dy, plan.results["y"].shape)
    item.apply("global_avg_pool", "IG", {"dy": gradient, "dx": item.result(shape)}, plan)


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
    roles |= item.saved(plan, "mean", "inv_std", *(() if frozen else ("var",)))
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
        raise CannotTakeError(
            f"the first dimension of the input {list(shape)} is not the batch",
            "use an input of shape [batch, channels, ...]",
        )
    if running:
        options["momentum"] = round(1 - item.real("momentum", 0.9), 6)
    plan = item.draft.plan(kind, {"eps": eps_of(item, item.kind), **options}, [shape])
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
            roles[role] = item.add_tensor(f"{item.site}.{role}", channels)
    item.apply("batch_norm", "WG", roles, plan)
    if item.out(0):
        roles["dx"] = item.result(draft.shape(x))
        item.apply("batch_norm", "IG_APPLY", roles, plan)


def _rows(item: TrainingNode, shape: Shape) -> tuple[Shape, Shape]:
    """An input of a norm over its last dimensions as [1, rows, ...], and the row."""
    axis = item.axis(len(shape), -1)
    return (1, prod(shape[:axis]), *shape[axis:]), shape[axis:]


def _layer_norm(item: TrainingNode) -> None:
    draft, x = item.draft, item.read(0)
    shape, row = _rows(item, draft.shape(x))
    if not item.has(1):
        raise CannotTakeError("the node has no input 'scale'", "connect a scale to the input")
    kind, options, statistics = "rms_norm", {}, ["inv_std"]
    if item.kind == "LayerNormalization":
        kind, options, statistics = "layer_norm", {"bias": item.has(2)}, ["mean", "inv_std"]
    plan = _norm_plan(item, kind, shape, axes=len(row), **options)
    given = {role: index for role, index in (("w", 1), ("b", 2)) if item.has(index)}
    roles = {role: draft.view(item.read(at), row) for role, at in given.items()}
    roles |= {"x": draft.view(x, shape), **item.saved(plan, *statistics)}
    roles["y"] = item.result(draft.shape(x), shape)
    item.apply(kind, "FW", roles, plan)
    for index, role in enumerate(statistics, start=1):
        if item.out(index):
            item.give(roles[role], index=index)


def _layer_norm_grad(item: TrainingNode) -> None:
    draft, dy, x = item.draft, item.read(0), item.read(1)
    shape, row = _rows(item, draft.shape(x))
    plan = _norm_plan(item, "layer_norm", shape, axes=len(row))
    roles = {"x": draft.view(x, shape), "dy": draft.view(dy, shape), "w": draft.view(item.read(2), row)}
    if item.has(4):
        for role, index in (("mean", 3), ("inv_std", 4)):
            roles[role] = draft.view(item.read(index), plan.saved[role].shape)
    else:  # Deeploy's: dY, X, weight, bias
        if prod(item.shape(3)) != prod(row):
            raise CannotTakeError(
                f"the bias has shape {list(item.shape(3))}, not {list(row)}",
                f"use a bias of shape {list(row)}",
            )
        roles |= item.saved(plan, "mean", "var", "inv_std")
        for step in ("FW_MEAN", "FW_VAR", "FW_INV"):
            item.apply("layer_norm", step, roles, plan)
    roles |= {role: item.result(row, index=at) for role, at in (("dw", 1), ("db", 2)) if item.out(at)}
    if "dw" in roles or "db" in roles:
        item.apply("layer_norm", "WG", roles, plan)
    if item.out(0):
        roles["dx"] = item.result(draft.shape(x), shape)
        item.apply("layer_norm", "IG", roles, plan)


def _softmax(item: TrainingNode) -> None:
    """FW, or the gradient: of rows."""
    step, reads, result = ("IG", ("dy", "y"), "dx") if "Grad" in item.kind else ("FW", ("x",), "y")
    shape = item.shape(len(reads) - 1)
    axis = item.axis(len(shape), -1 if item.opset >= 13 else 1)
    if prod(shape[axis + 1 :]) != 1 and item.opset >= 13:
        raise CannotTakeError(
            f"softmax over dimension {axis} of {list(shape)} is not supported",
            "use softmax over the last dimension",
        )
    rows = (1, prod(shape[:axis]), prod(shape[axis:]))
    kind = "log_softmax" if item.kind.startswith("Log") else "softmax"
    plan = item.draft.plan(kind, {}, [rows])
    roles = {role: item.draft.view(item.read(index), rows) for index, role in enumerate(reads)}
    item.apply(kind, step, {**roles, result: item.result(shape, rows)}, plan)


HANDLERS: Mapping[str, Handler] = {
    **dict.fromkeys(("Gemm", "MatMul", "FusedMatMul"), _product),
    "Conv": _conv,
    **dict.fromkeys(_CONV_GRADIENTS, _conv_grad),
    "ConvGradB": _conv_grad_b,
    "MaxPool": _max_pool,
    "MaxPoolGrad": _max_pool_grad,
    "AveragePool": _average_pool,
    "AveragePoolGrad": _average_pool_grad,
    "GlobalAveragePool": _global_average,
    "GlobalAveragePoolGrad": _global_average_grad,
    **dict.fromkeys(("BatchNormInternal", "BatchNormalization"), _batch_norm),
    "BatchNormalizationGrad": _batch_norm_grad,
    **dict.fromkeys(
        ("LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization", "RMSNorm"), _layer_norm
    ),
    "LayerNormalizationGrad": _layer_norm_grad,
    **dict.fromkeys(
        (f"{log}Softmax{grad}" for log in ("", "Log") for grad in ("", "Grad", "Grad_13")), _softmax
    ),
}
