# SPDX-License-Identifier: Apache-2.0
"""What others call our layers: ONNX, ATen, and the ops of training graphs that compute their gradients.

The one table that readers, the writer and docs/onnx.md take these names from. A layer of one or two inputs
that is one op everywhere needs a row here and nothing else; ops that have to be told apart by their weights,
windows or axes are read by a function of their own in the dialects.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

_Handler = TypeVar("_Handler")


@dataclass(frozen=True, slots=True)
class Number:
    """An option that is a number: the attribute that says it, and what it is where nothing says it."""

    option: str
    onnx: str
    aten: str
    default: float


@dataclass(frozen=True, slots=True)
class Op:
    """A layer of ours as one op of others. Names are separated by spaces; the first of `onnx` is written.

    `gradient` is an op of training graphs, then the roles it reads, in order. `options` are those that these
    names say, `numbers` those that an attribute says.
    """

    ours: str
    onnx: str = ""
    aten: str = ""
    gradient: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    numbers: Sequence[Number] = ()

    @property
    def written(self) -> str:
        """The op of ONNX that this layer becomes."""
        return self.onnx.split()[0]


ALONE = (
    Op("relu", "Relu", "relu", "ReluGrad dy x"),  # x or y: both are positive together
    Op("sigmoid", "Sigmoid", "sigmoid", "SigmoidGrad y dy"),
    Op("tanh", "Tanh", "tanh", "TanhGrad y dy"),
    Op("silu", "importer:Silu", "silu"),
    Op("exponential", "Exp", "exp"),
    Op("logarithm", "Log", "log"),
    Op("square_root", "Sqrt", "sqrt"),
    Op("reciprocal", "Reciprocal", "reciprocal"),
    Op("square", "", "square"),
    Op("error_function", "Erf", "erf special_erf"),
    Op("sine", "Sin", "sin"),
    Op("absolute", "Abs", "abs"),
    Op("floor", "Floor", "floor"),
    Op("ceil", "Ceil", "ceil"),
    Op("round", "Round", "round"),
    Op("hard_swish", "HardSwish", "hardswish"),
    Op("softplus", "Softplus"),
    Op("mish", "Mish", "mish"),
    Op("scale", "Neg", "neg", options={"factor": -1.0}),
    Op("clip", "", "relu6", options={"low": 0.0, "high": 6.0, "slope_at_bounds": False}),
    Op("gelu", "Gelu com.microsoft:Gelu", "gelu", "GeluGrad dy x"),
    Op("gelu", "com.microsoft:FastGelu", "", "FastGeluGrad dy x", {"form": "tanh"}),
    Op(
        "leaky_relu",
        "LeakyRelu",
        "leaky_relu",
        "LeakyReluGrad dy x",  # y, which is positive where x is
        numbers=[Number("slope", "alpha", "negative_slope", 0.01)],
    ),
    Op("elu", "Elu", "elu", numbers=[Number("alpha", "alpha", "alpha", 1.0)]),
    Op(
        "hard_sigmoid",
        "HardSigmoid",
        numbers=[Number("alpha", "alpha", "", 0.2), Number("beta", "beta", "", 0.5)],
    ),
    Op("hard_sigmoid", "", "hardsigmoid"),
)
"""Layers of one input, whatever its shape."""

PAIRS = (
    Op("add", "Add"),
    Op("subtract", "Sub"),
    Op("multiply", "Mul"),
    Op("divide", "Div"),
    Op("maximum", "Max"),
    Op("minimum", "Min"),
)
"""Layers of two inputs. They are written so; who reads them has to look at constants among their inputs."""

RELATIONS = (
    Op("ge", "GreaterOrEqual", "ge"),
    Op("gt", "Greater", "gt"),
    Op("le", "LessOrEqual", "le"),
    Op("lt", "Less", "lt"),
    Op("eq", "Equal", "eq"),
)
"""Forms of the layer compare."""

REDUCTIONS = (
    Op("reduce_mean", "ReduceMean", "mean"),
    Op("reduce_sum", "ReduceSum", "sum"),
    Op("reduce_max", "ReduceMax", "amax"),
    Op("reduce_min", "ReduceMin", "amin"),
)

WITH_NUMBER = {"scale": ("Mul", "factor"), "shift": ("Add", "offset"), "power": ("Pow", "exponent")}
"""Layer -> op of ONNX and the option that is its second input."""

POWERS = {2.0: "square", 0.5: "square_root", -1.0: "reciprocal"}
"""Exponents that are layers of their own."""

GATES = {"gru": (1, 0, 2), "lstm": (0, 2, 3, 1), "rnn": (0,)}
"""Where ONNX has the gate that is the first, second ... of ours: z r h as r z n, i o f c as i f g o."""

SELU = (1.6732632423543772, 1.0507009873554805)
"""Slope and scale of SELU (Klambauer et al. 2017)."""


def by_onnx(table: Sequence[Op]) -> dict[str, Op]:
    """Rows by the names ONNX has for them."""
    return _once(table, lambda op: op.onnx)


def by_aten(table: Sequence[Op]) -> dict[str, Op]:
    """Rows by the names ATen has for them."""
    return _once(table, lambda op: op.aten)


def _once(table: Sequence[Op], names: Callable[[Op], str]) -> dict[str, Op]:
    found: dict[str, Op] = {}
    for op in table:
        for name in names(op).split():
            if name in found:
                raise ValueError(
                    f"two rows of importers/ops.py have {name}: {found[name].ours} and {op.ours}"
                )
            found[name] = op
    return found


def with_own(
    rows: Mapping[str, _Handler], own: Mapping[str, _Handler], *, instead: Sequence[str] = ()
) -> dict[str, _Handler]:
    """Handlers of the rows above, and those of a module itself; `instead` names rows that it reads itself.

    Raises `ValueError` for a row that a handler would hide without that, naming both.
    """
    for name in sorted((rows.keys() & own.keys()) ^ set(instead)):
        if name not in instead:
            code = getattr(own[name], "__code__", None)
            at = f"{own[name].__module__}:{code.co_firstlineno}" if code is not None else repr(own[name])
            raise ValueError(
                f"{name} has a row in importers/ops.py and a handler at {at}: remove one of them, or name it "
                "in `instead` there"
            )
        raise ValueError(f"`instead` names {name}, which does not have both a row and a handler")
    return {**rows, **own}


NEAREST_ONNX = {
    "ConvInteger": "use Conv of float32",
    "QLinearConv": "use Conv of float32",
    "MatMulInteger": "use MatMul of float32",
    "MaxUnpool": "use Resize",
    "DeformConv": "use Conv",
    "Attention": "use MatMul, Softmax, MatMul",
    "com.microsoft:Attention": "use MatMul, Softmax, MatMul",
    "ArgMax": "end the network before ArgMax",
    "ReduceProd": "use Mul",
    "QuantizeLinear": "use float32, or run with --dtype",
    "DequantizeLinear": "use float32, or run with --dtype",
    "TopK": "use MaxPool",
    "NonZero": "use Where",
    "OneHot": "use Gather of a table",
    "If": "use the branch that runs, or a constant condition",
    "Loop": "repeat the nodes of the loop body",
    "Scan": "use GRU or LSTM, or repeat the nodes of the loop body",
    "Compress": "use Slice",
    "ReverseSequence": "use sequences in forward order",
}
"""Ops of ONNX that no layer is -> what would do."""

NEAREST_ATEN = {
    "conv3d": "use conv2d",
    "conv_transpose3d": "use conv_transpose2d",
    "max_pool3d": "use max_pool2d",
    "avg_pool3d": "use avg_pool2d",
    "embedding_bag": "use embedding and mean",
    "rnn_relu": "use nonlinearity='tanh'",
    "fractional_max_pool2d": "use max_pool2d",
    "max_unpool2d": "use interpolate",
    "logical_and": "multiply masks",
    "index": "use slice, select or chunk",
    "grid_sampler": "use interpolate",
    "topk": "use max, if only the largest value is needed",
    "sort": "use max, if only the largest value is needed",
}
"""Ops of ATen that no layer is -> what would do."""
