# SPDX-License-Identifier: Apache-2.0
# Written by `python -m tools.layer_stubs` from the registry of primitives.
import inspect
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic.fields import FieldInfo

from configs.yaml_file import Node
from trainlib.primitives.definition import Primitive

class Part:
    primitive: Primitive
    options: dict[str, Any]
    where: str
    def node(self, **more: object) -> Node: ...

class Layer(Part): ...
class Loss(Part): ...
class Optimizer(Part): ...

CLASSES: Mapping[str, type[Part]]

def class_name(name: str) -> str: ...
def option_keys(primitive: Primitive) -> list[tuple[str, bool]]: ...
def keyword_fields(primitive: Primitive) -> dict[str, FieldInfo]: ...
def signature_of(primitive: Primitive) -> inspect.Signature: ...
def node_of(value: object, file: str, line: int) -> Node: ...
def caller_of(module: str) -> tuple[str, int, str]: ...

__all__ = [  # noqa: RUF022
    "Layer",
    "Loss",
    "Optimizer",
    "Conv1d",
    "Conv2d",
    "Pointwise",
    "Depthwise",
    "ConvTranspose2d",
    "Linear",
    "ReLU",
    "LeakyReLU",
    "Sigmoid",
    "Tanh",
    "SiLU",
    "GELU",
    "SwiGLU",
    "Scale",
    "Add",
    "Dropout",
    "Floor",
    "Ceil",
    "Round",
    "Multiply",
    "Subtract",
    "Divide",
    "Maximum",
    "Minimum",
    "Where",
    "Compare",
    "Clip",
    "HardSigmoid",
    "HardSwish",
    "Elu",
    "Softplus",
    "Mish",
    "Shift",
    "Exponential",
    "Logarithm",
    "SquareRoot",
    "Reciprocal",
    "Square",
    "Power",
    "ErrorFunction",
    "Sine",
    "Absolute",
    "Prelu",
    "Flatten",
    "BroadcastAdd",
    "Expand",
    "Parameter",
    "Position",
    "Projected",
    "ClassToken",
    "RNN",
    "GRU",
    "LSTM",
    "Embedding",
    "Matmul",
    "MHSA",
    "Softmax",
    "LogSoftmax",
    "Concat",
    "Split",
    "Slice",
    "Flip",
    "Reshape",
    "Transpose",
    "Pad",
    "ReduceMean",
    "ReduceSum",
    "ReduceMax",
    "ReduceMin",
    "Interpolation",
    "AvgPool2d",
    "MaxPool2d",
    "GlobalAvgPool",
    "BatchNorm",
    "InstanceNorm",
    "GroupNorm",
    "LayerNorm",
    "RMSNorm",
    "CrossEntropy",
    "MSE",
    "L1",
    "BerHu",
    "Huber",
    "SmoothL1",
    "BCE",
    "BCEWithLogits",
    "KLDiv",
    "PoissonNLL",
    "NLL",
    "HingeEmbedding",
    "SoftMargin",
    "MultiMargin",
    "Cosine",
    "Output",
    "SGD",
    "SGDMomentum",
    "Adam",
    "AdamW",
    "Adamax",
    "NAdam",
    "RAdam",
    "Lion",
    "RMSprop",
    "Adagrad",
    "Adadelta",
    "Rprop",
    "ASGD",
]

class Conv1d(Layer):
    def __init__(
        self,
        out_channels: int,
        kernel: int,
        stride: int = 1,
        padding: int | Sequence[int] = 0,
        dilation: int = 1,
        groups: int = 1,
        bias: bool = False,
        im2col: Literal["cores", "none"] = "cores",
        *,
        name: str | None = None,
        inputs: Sequence[str | Layer] | None = None,
        dtype: str | None = None,
        layout: str | None = None,
        trainable: bool | Sequence[str] = True,
        update_channels: int | Sequence[int] | None = None,
        adapter: Mapping[str, Any] | None = None,
        frozen_weights: Literal["int8"] | None = None,
        recompute: bool = False,
        backward_reads: Literal["input", "output", "mask"] | None = None,
        variant: str | None = None,
        weights_of: str | Layer | Mapping[str, str | Layer] | None = None,
    ) -> None: ...

class Conv2d(Layer):
    def __init__(
        self,
        out_channels: int,
        kernel: int | Sequence[int],
        stride: int | Sequence[int] = 1,
        padding: int | Sequence[int] = 0,
        dilation: int | Sequence[int] = 1,
        bias: bool = False,
        groups: int = 1,
        im2col: Literal["cores", "dma", "none"] = "cores",
        *,
        name: str | None = None,
        inputs: Sequence[str | Layer] | None = None,
        dtype: str | None = None,
        layout: str | None = None,
        trainable: bool | Sequence[str] = True,
        update_channels: int | Sequence[int] | None = None,
        adapter: Mapping[str, Any] | None = None,
        frozen_weights: Literal["int8"] | None = None,
        recompute: bool = False,
        backward_reads: Literal["input", "output", "mask"] | None = None,
        variant: str | None = None,
        weights_of: str | Layer | Mapping[str, str | Layer] | None = None,
    ) -> None: ...

class Pointwise(Layer):
    def __init__(
        self,
        out_channels: int,
        bias: bool = False,
        *,
        name: str | None = None,
        inputs: Sequence[str | Layer] | None = None,
        dtype: str | None = None,
        layout: str | None = None,
        trainable: bool | Sequence[str] = True,
        update_channels: int | Sequence[int] | None = None,
        adapter: Mapping[str, Any] | None = None,
        frozen_weights: Literal["int8"] | None = None,
        recompute: bool = False,
        backward_reads: Literal["input", "output", "mask"] | None = None,
        variant: str | None = None,
        weights_of: str | Layer | Mapping[str, str | Layer] | None = None,
    ) -> None: ...

class Depthwise(Layer):
    def __init__(
        self,
        kernel: int | Sequence[int],
        stride: int | Sequence[int] = 1,
        padding: int | Sequence[int] = 0,
        dilation: int | Sequence[int] = 1,
        bias: bool = False,
        *,
        name: str | None = None,
        inputs: Sequence[str | Layer] | None = None,
        dtype: str | None = None,
        layout: str | None = None,
        trainable: bool | Sequence[str] = True,
        update_channels: int | Sequence[int] | None = None,
        adapter: Mapping[str, Any] | None = None,
        frozen_weights: Literal["int8"] | None = None,
        recompute: bool = False,
        backward_reads: Literal["input", "output", "mask"] | None = None,
        variant: str | None = None,
        weights_of: str | Layer | Mapping[str, str | Layer] | None = None,
    ) -> None: ...

class ConvTranspose2d(Layer):
    def __init__(
        self,
        out_channels: int,
        kernel: int | Sequence[int],
        stride: int | Sequence[int] = 1,
        padding: int | Sequence[int] = 0,
        dilation: int | Sequence[int] = 1,
        bias: bool = False,
        groups: int = 1,
        output_padding: int | Sequence[int] = 0,
        *,
        name: str | None = None,
        inputs: Sequence[str | Layer] | None = None,
        dtype: str | None = None,
        layout: str | None = None,
        trainable: bool | Sequence[str] = True,
        update_channels: int | Sequence[int] | None = None,
        adapter: Mapping[str, Any] | None = None,
        frozen_weights: Literal["int8"] | None = None,
        recompute: bool = False,
        backward_reads: Literal["input", "output", "mask"] | None = None,
        variant: str | None = None,
        weights_of: str | Layer | Mapping[str, str | Layer] | None = None,
    ) -> None: ...

class Linear(Layer):
    def __init__(
        self,
        out_features: int,
        bias: bool = False,
        *,
        name: str | None = None,
        inputs: Sequence[str | Layer] | None = None,
        dtype: str | None = None,
        layout: str | None = None,
        trainable: bool | Sequence[str] = True,
        update_channels: int | Sequence[int] | None = None,
        adapter: Mapping[str, Any] | None = None,
        frozen_weights: Literal["int8"] | None = None,
        recompute: bool = False,
        backward_reads: Literal["input", "output", "mask"] | None = None,
        variant: str | None = None,
        weights_of: str | Layer | Mapping[str, str | Layer] | None = None,
    ) -> None: ...

class ReLU(Layer):
    def __init__(
        self,
        *,
        name: str | None = None,
        inputs: Sequence[str | Layer] | None = None,
        dtype: str | None = None,
        layout: str | None = None,
        trainable: bool | Sequence[str] = True,
        update_channels: int | Sequence[int] | None = None,
        adapter: Mapping[str, Any] | None = None,
        frozen_weights: Literal["int8"] | None = None,
        recompute: bool = False,
        backward_reads: Literal["input", "output", "mask"] | None = None,
        variant: str | None = None,
        weights_of: str | Layer | Mapping[str, str | Layer] | None = None,
    ) -> None: ...

class LeakyReLU(Layer):
    def __init__(
        self,
        slope: float = 0.01,
        *,
        name: str | None = None,
        inputs: Sequence[str | Layer] | None = None,
        dtype: str | None = None,
        layout: str | None = None,
        trainable: bool | Sequence[str] = True,
        update_channels: int | Sequence[int] | None = None,
        adapter: Mapping[str, Any] | None = None,
        frozen_weights: Literal["int8"] | None = None,
        recompute: bool = False,
        backward_reads: Literal["input", "output", "mask"] | None = None,
        variant: str | None = None,
        weights_of: str | Layer | Mapping[str, str | Layer] | None = None,
    ) -> None: ...

class Sigmoid(Layer):
    def __init__(
        self,
        *,
        name: str | None = None,
        inputs: Sequence[str | Layer] | None = None,
        dtype: str | None = None,
        layout: str | None = None,
        trainable: bool | Sequence[str] = True,
        update_channels: int | Sequence[int] | None = None,
        adapter: Mapping[str, Any] | None = None,
        frozen_weights: Literal["int8"] | None = None,
        recompute: bool = False,
        backward_reads: Literal["input", "output", "mask"] | None = None,
        variant: str | None = None,
        weights_of: str | Layer | Mapping[str, str | Layer] | None = None,
    ) -> None: ...

class Tanh(Layer):
    def __init__(
        self,
        form: Literal["exact", "pulp_fastexp"] = "exact",
        *,
        name: str | None = None,
        inputs: Sequence[str | Layer] | None = None,
        dtype: str | None = None,
        layout: str | None = None,
        trainable: bool | Sequence[str] = True,
        update_channels: int | Sequence[int] | None = None,
        adapter: Mapping[str, Any] | None = None,
        frozen_weights: Literal["int8"] | None = None,
        recompute: bool = False,
        backward_reads: Literal["input", "output", "mask"] | None = None,
        variant: str | None = None,
        weights_of: str | Layer | Mapping[str, str | Layer] | None = None,
    ) -> None: ...

class SiLU(Layer):
    def __init__(
        self,
        *,
        name: str | None = None,
        inputs: Sequence[str | Layer] | None = None,
        dtype: str | None = None,
        layout: str | None = None,
        trainable: bool | Sequence[str] = True,
        update_channels: int | Sequence[int] | None = None,
        adapter: Mapping[str, Any] | None = None,
        frozen_weights: Literal["int8"] | None = None,
        recompute: bool = False,
        backward_reads: Literal["input", "output", "mask"] | None = None,
        variant: str | None = None,
        weights_of: str | Layer | Mapping[str, str | Layer] | None = None,
    ) -> None: ...

class GELU(Layer):
    def __init__(
        self,
        form: Literal["erf", "tanh", "pulp_rational"] = "erf",
        *,
        name: str | None = None,
        inputs: Sequence[str | Layer] | None = None,
        dtype: str | None = None,
        layout: str | None = None,
        trainable: bool | Sequence[str] = True,
        update_channels: int | Sequence[int] | None = None,
        adapter: Mapping[str, Any] | None = None,
        frozen_weights: Literal["int8"] | None = None,
        recompute: bool = False,
        backward_reads: Literal["input", "output", "mask"] | None = None,
        variant: str | None = None,
        weights_of: str | Layer | Mapping[str, str | Layer] | None = None,
    ) -> None: ...

class SwiGLU(Layer):
    def __init__(
        self,
        *,
        name: str | None = None,
        inputs: Sequence[str | Layer] | None = None,
        dtype: str | None = None,
        layout: str | None = None,
        trainable: bool | Sequence[str] = True,
        update_channels: int | Sequence[int] | None = None,
        adapter: Mapping[str, Any] | None = None,
        frozen_weights: Literal["int8"] | None = None,
        recompute: bool = False,
        backward_reads: Literal["input", "output", "mask"] | None = None,
        variant: str | None = None,
        weights_of: str | Layer | Mapping[str, str | Layer] | None = None,
    ) -> None: ...

class Scale(Layer):
    def __init__(
        self,
        factor: float,
        *,
        name: str | None = None,
        inputs: Sequence[str | Layer] | None = None,
        dtype: str | None = None,
        layout: str | None = None,
        trainable: bool | Sequence[str] = True,
        update_channels: int | Sequence[int] | None = None,
        adapter: Mapping[str, Any] | None = None,
        frozen_weights: Literal["int8"] | None = None,
        recompute: bool = False,
        backward_reads: Literal["input", "output", "mask"] | None = None,
        variant: str | None = None,
        weights_of: str | Layer | Mapping[str, str | Layer] | None = None,
    ) -> None: ...

class Add(Layer):
    def __init__(
        self,
        *,
        name: str | None = None,
        inputs: Sequence[str | Layer] | None = None,
        dtype: str | None = None,
        layout: str | None = None,
        trainable: bool | Sequence[str] = True,
        update_channels: int | Sequence[int] | None = None,
        adapter: Mapping[str, Any] | None = None,
        frozen_weights: Literal["int8"] | None = None,
        recompute: bool = False,
        backward_reads: Literal["input", "output", "mask"] | None = None,
        variant: str | None = None,
        weights_of: str | Layer | Mapping[str, str | Layer] | None = None,
    ) -> None: ...

class Dropout(Layer):
    def __init__(
        self,
        p: float = 0.5,
        *,
        name: str | None = None,
        inputs: Sequence[str | Layer] | None = None,
        dtype: str | None = None,
        layout: str | None = None,
        trainable: bool | Sequence[str] = True,
        update_channels: int | Sequence[int] | None = None,
        adapter: Mapping[str, Any] | None = None,
        frozen_weights: Literal["int8"] | None = None,
        recompute: bool = False,
        backward_reads: Literal["input", "output", "mask"] | None = None,
        variant: str | None = None,
        weights_of: str | Layer | Mapping[str, str | Layer] | None = None,
    ) -> None: ...

class Floor(Layer):
    def __init__(
        self,
        straight_through: bool = False,
        *,
        name: str | None = None,
        inputs: Sequence[str | Layer] | None = None,
        dtype: str | None = None,
        layout: str | None = None,
        trainable: bool | Sequence[str] = True,
        update_channels: int | Sequence[int] | None = None,
        adapter: Mapping[str, Any] | None = None,
        frozen_weights: Literal["int8"] | None = None,
        recompute: bool = False,
        backward_reads: Literal["input", "output", "mask"] | None = None,
        variant: str | None = None,
        weights_of: str | Layer | Mapping[str, str | Layer] | None = None,
    ) -> None: ...

class Ceil(Layer):
    def __init__(
        self,
        straight_through: bool = False,
        *,
        name: str | None = None,
        inputs: Sequence[str | Layer] | None = None,
        dtype: str | None = None,
        layout: str | None = None,
        trainable: bool | Sequence[str] = True,
        update_channels: int | Sequence[int] | None = None,
        adapter: Mapping[str, Any] | None = None,
        frozen_weights: Literal["int8"] | None = None,
        recompute: bool = False,
        backward_reads: Literal["input", "output", "mask"] | None = None,
        variant: str | None = None,
        weights_of: str | Layer | Mapping[str, str | Layer] | None = None,
    ) -> None: ...

class Round(Layer):
    def __init__(
        self,
        straight_through: bool = False,
        *,
        name: str | None = None,
        inputs: Sequence[str | Layer] | None = None,
        dtype: str | None = None,
        layout: str | None = None,
        trainable: bool | Sequence[str] = True,
        update_channels: int | Sequence[int] | None = None,
        adapter: Mapping[str, Any] | None = None,
        frozen_weights: Literal["int8"] | None = None,
        recompute: bool = False,
        backward_reads: Literal["input", "output", "mask"] | None = None,
        variant: str | None = None,
        weights_of: str | Layer | Mapping[str, str | Layer] | None = None,
    ) -> None: ...

class Multiply(Layer):
    def __init__(
        self,
        *,
        name: str | None = None,
        inputs: Sequence[str | Layer] | None = None,
        dtype: str | None = None,
        layout: str | None = None,
        trainable: bool | Sequence[str] = True,
        update_channels: int | Sequence[int] | None = None,
        adapter: Mapping[str, Any] | None = None,
        frozen_weights: Literal["int8"] | None = None,
        recompute: bool = False,
        backward_reads: Literal["input", "output", "mask"] | None = None,
        variant: str | None = None,
        weights_of: str | Layer | Mapping[str, str | Layer] | None = None,
    ) -> None: ...

class Subtract(Layer):
    def __init__(
        self,
        *,
        name: str | None = None,
        inputs: Sequence[str | Layer] | None = None,
        dtype: str | None = None,
        layout: str | None = None,
        trainable: bool | Sequence[str] = True,
        update_channels: int | Sequence[int] | None = None,
        adapter: Mapping[str, Any] | None = None,
        frozen_weights: Literal["int8"] | None = None,
        recompute: bool = False,
        backward_reads: Literal["input", "output", "mask"] | None = None,
        variant: str | None = None,
        weights_of: str | Layer | Mapping[str, str | Layer] | None = None,
    ) -> None: ...

class Divide(Layer):
    def __init__(
        self,
        *,
        name: str | None = None,
        inputs: Sequence[str | Layer] | None = None,
        dtype: str | None = None,
        layout: str | None = None,
        trainable: bool | Sequence[str] = True,
        update_channels: int | Sequence[int] | None = None,
        adapter: Mapping[str, Any] | None = None,
        frozen_weights: Literal["int8"] | None = None,
        recompute: bool = False,
        backward_reads: Literal["input", "output", "mask"] | None = None,
        variant: str | None = None,
        weights_of: str | Layer | Mapping[str, str | Layer] | None = None,
    ) -> None: ...

class Maximum(Layer):
    def __init__(
        self,
        *,
        name: str | None = None,
        inputs: Sequence[str | Layer] | None = None,
        dtype: str | None = None,
        layout: str | None = None,
        trainable: bool | Sequence[str] = True,
        update_channels: int | Sequence[int] | None = None,
        adapter: Mapping[str, Any] | None = None,
        frozen_weights: Literal["int8"] | None = None,
        recompute: bool = False,
        backward_reads: Literal["input", "output", "mask"] | None = None,
        variant: str | None = None,
        weights_of: str | Layer | Mapping[str, str | Layer] | None = None,
    ) -> None: ...

class Minimum(Layer):
    def __init__(
        self,
        *,
        name: str | None = None,
        inputs: Sequence[str | Layer] | None = None,
        dtype: str | None = None,
        layout: str | None = None,
        trainable: bool | Sequence[str] = True,
        update_channels: int | Sequence[int] | None = None,
        adapter: Mapping[str, Any] | None = None,
        frozen_weights: Literal["int8"] | None = None,
        recompute: bool = False,
        backward_reads: Literal["input", "output", "mask"] | None = None,
        variant: str | None = None,
        weights_of: str | Layer | Mapping[str, str | Layer] | None = None,
    ) -> None: ...

class Where(Layer):
    def __init__(
        self,
        *,
        name: str | None = None,
        inputs: Sequence[str | Layer] | None = None,
        dtype: str | None = None,
        layout: str | None = None,
        trainable: bool | Sequence[str] = True,
        update_channels: int | Sequence[int] | None = None,
        adapter: Mapping[str, Any] | None = None,
        frozen_weights: Literal["int8"] | None = None,
        recompute: bool = False,
        backward_reads: Literal["input", "output", "mask"] | None = None,
        variant: str | None = None,
        weights_of: str | Layer | Mapping[str, str | Layer] | None = None,
    ) -> None: ...

class Compare(Layer):
    def __init__(
        self,
        form: Literal["ge", "gt", "le", "lt", "eq"],
        value: float = 0.0,
        *,
        name: str | None = None,
        inputs: Sequence[str | Layer] | None = None,
        dtype: str | None = None,
        layout: str | None = None,
        trainable: bool | Sequence[str] = True,
        update_channels: int | Sequence[int] | None = None,
        adapter: Mapping[str, Any] | None = None,
        frozen_weights: Literal["int8"] | None = None,
        recompute: bool = False,
        backward_reads: Literal["input", "output", "mask"] | None = None,
        variant: str | None = None,
        weights_of: str | Layer | Mapping[str, str | Layer] | None = None,
    ) -> None: ...

class Clip(Layer):
    def __init__(
        self,
        low: float | None = None,
        high: float | None = None,
        slope_at_bounds: bool = True,
        *,
        name: str | None = None,
        inputs: Sequence[str | Layer] | None = None,
        dtype: str | None = None,
        layout: str | None = None,
        trainable: bool | Sequence[str] = True,
        update_channels: int | Sequence[int] | None = None,
        adapter: Mapping[str, Any] | None = None,
        frozen_weights: Literal["int8"] | None = None,
        recompute: bool = False,
        backward_reads: Literal["input", "output", "mask"] | None = None,
        variant: str | None = None,
        weights_of: str | Layer | Mapping[str, str | Layer] | None = None,
    ) -> None: ...

class HardSigmoid(Layer):
    def __init__(
        self,
        alpha: float = 0.16666666666666666,
        beta: float = 0.5,
        *,
        name: str | None = None,
        inputs: Sequence[str | Layer] | None = None,
        dtype: str | None = None,
        layout: str | None = None,
        trainable: bool | Sequence[str] = True,
        update_channels: int | Sequence[int] | None = None,
        adapter: Mapping[str, Any] | None = None,
        frozen_weights: Literal["int8"] | None = None,
        recompute: bool = False,
        backward_reads: Literal["input", "output", "mask"] | None = None,
        variant: str | None = None,
        weights_of: str | Layer | Mapping[str, str | Layer] | None = None,
    ) -> None: ...

class HardSwish(Layer):
    def __init__(
        self,
        *,
        name: str | None = None,
        inputs: Sequence[str | Layer] | None = None,
        dtype: str | None = None,
        layout: str | None = None,
        trainable: bool | Sequence[str] = True,
        update_channels: int | Sequence[int] | None = None,
        adapter: Mapping[str, Any] | None = None,
        frozen_weights: Literal["int8"] | None = None,
        recompute: bool = False,
        backward_reads: Literal["input", "output", "mask"] | None = None,
        variant: str | None = None,
        weights_of: str | Layer | Mapping[str, str | Layer] | None = None,
    ) -> None: ...

class Elu(Layer):
    def __init__(
        self,
        alpha: float = 1.0,
        *,
        name: str | None = None,
        inputs: Sequence[str | Layer] | None = None,
        dtype: str | None = None,
        layout: str | None = None,
        trainable: bool | Sequence[str] = True,
        update_channels: int | Sequence[int] | None = None,
        adapter: Mapping[str, Any] | None = None,
        frozen_weights: Literal["int8"] | None = None,
        recompute: bool = False,
        backward_reads: Literal["input", "output", "mask"] | None = None,
        variant: str | None = None,
        weights_of: str | Layer | Mapping[str, str | Layer] | None = None,
    ) -> None: ...

class Softplus(Layer):
    def __init__(
        self,
        *,
        name: str | None = None,
        inputs: Sequence[str | Layer] | None = None,
        dtype: str | None = None,
        layout: str | None = None,
        trainable: bool | Sequence[str] = True,
        update_channels: int | Sequence[int] | None = None,
        adapter: Mapping[str, Any] | None = None,
        frozen_weights: Literal["int8"] | None = None,
        recompute: bool = False,
        backward_reads: Literal["input", "output", "mask"] | None = None,
        variant: str | None = None,
        weights_of: str | Layer | Mapping[str, str | Layer] | None = None,
    ) -> None: ...

class Mish(Layer):
    def __init__(
        self,
        *,
        name: str | None = None,
        inputs: Sequence[str | Layer] | None = None,
        dtype: str | None = None,
        layout: str | None = None,
        trainable: bool | Sequence[str] = True,
        update_channels: int | Sequence[int] | None = None,
        adapter: Mapping[str, Any] | None = None,
        frozen_weights: Literal["int8"] | None = None,
        recompute: bool = False,
        backward_reads: Literal["input", "output", "mask"] | None = None,
        variant: str | None = None,
        weights_of: str | Layer | Mapping[str, str | Layer] | None = None,
    ) -> None: ...

class Shift(Layer):
    def __init__(
        self,
        offset: float,
        *,
        name: str | None = None,
        inputs: Sequence[str | Layer] | None = None,
        dtype: str | None = None,
        layout: str | None = None,
        trainable: bool | Sequence[str] = True,
        update_channels: int | Sequence[int] | None = None,
        adapter: Mapping[str, Any] | None = None,
        frozen_weights: Literal["int8"] | None = None,
        recompute: bool = False,
        backward_reads: Literal["input", "output", "mask"] | None = None,
        variant: str | None = None,
        weights_of: str | Layer | Mapping[str, str | Layer] | None = None,
    ) -> None: ...

class Exponential(Layer):
    def __init__(
        self,
        *,
        name: str | None = None,
        inputs: Sequence[str | Layer] | None = None,
        dtype: str | None = None,
        layout: str | None = None,
        trainable: bool | Sequence[str] = True,
        update_channels: int | Sequence[int] | None = None,
        adapter: Mapping[str, Any] | None = None,
        frozen_weights: Literal["int8"] | None = None,
        recompute: bool = False,
        backward_reads: Literal["input", "output", "mask"] | None = None,
        variant: str | None = None,
        weights_of: str | Layer | Mapping[str, str | Layer] | None = None,
    ) -> None: ...

class Logarithm(Layer):
    def __init__(
        self,
        *,
        name: str | None = None,
        inputs: Sequence[str | Layer] | None = None,
        dtype: str | None = None,
        layout: str | None = None,
        trainable: bool | Sequence[str] = True,
        update_channels: int | Sequence[int] | None = None,
        adapter: Mapping[str, Any] | None = None,
        frozen_weights: Literal["int8"] | None = None,
        recompute: bool = False,
        backward_reads: Literal["input", "output", "mask"] | None = None,
        variant: str | None = None,
        weights_of: str | Layer | Mapping[str, str | Layer] | None = None,
    ) -> None: ...

class SquareRoot(Layer):
    def __init__(
        self,
        *,
        name: str | None = None,
        inputs: Sequence[str | Layer] | None = None,
        dtype: str | None = None,
        layout: str | None = None,
        trainable: bool | Sequence[str] = True,
        update_channels: int | Sequence[int] | None = None,
        adapter: Mapping[str, Any] | None = None,
        frozen_weights: Literal["int8"] | None = None,
        recompute: bool = False,
        backward_reads: Literal["input", "output", "mask"] | None = None,
        variant: str | None = None,
        weights_of: str | Layer | Mapping[str, str | Layer] | None = None,
    ) -> None: ...

class Reciprocal(Layer):
    def __init__(
        self,
        *,
        name: str | None = None,
        inputs: Sequence[str | Layer] | None = None,
        dtype: str | None = None,
        layout: str | None = None,
        trainable: bool | Sequence[str] = True,
        update_channels: int | Sequence[int] | None = None,
        adapter: Mapping[str, Any] | None = None,
        frozen_weights: Literal["int8"] | None = None,
        recompute: bool = False,
        backward_reads: Literal["input", "output", "mask"] | None = None,
        variant: str | None = None,
        weights_of: str | Layer | Mapping[str, str | Layer] | None = None,
    ) -> None: ...

class Square(Layer):
    def __init__(
        self,
        *,
        name: str | None = None,
        inputs: Sequence[str | Layer] | None = None,
        dtype: str | None = None,
        layout: str | None = None,
        trainable: bool | Sequence[str] = True,
        update_channels: int | Sequence[int] | None = None,
        adapter: Mapping[str, Any] | None = None,
        frozen_weights: Literal["int8"] | None = None,
        recompute: bool = False,
        backward_reads: Literal["input", "output", "mask"] | None = None,
        variant: str | None = None,
        weights_of: str | Layer | Mapping[str, str | Layer] | None = None,
    ) -> None: ...

class Power(Layer):
    def __init__(
        self,
        exponent: float,
        *,
        name: str | None = None,
        inputs: Sequence[str | Layer] | None = None,
        dtype: str | None = None,
        layout: str | None = None,
        trainable: bool | Sequence[str] = True,
        update_channels: int | Sequence[int] | None = None,
        adapter: Mapping[str, Any] | None = None,
        frozen_weights: Literal["int8"] | None = None,
        recompute: bool = False,
        backward_reads: Literal["input", "output", "mask"] | None = None,
        variant: str | None = None,
        weights_of: str | Layer | Mapping[str, str | Layer] | None = None,
    ) -> None: ...

class ErrorFunction(Layer):
    def __init__(
        self,
        *,
        name: str | None = None,
        inputs: Sequence[str | Layer] | None = None,
        dtype: str | None = None,
        layout: str | None = None,
        trainable: bool | Sequence[str] = True,
        update_channels: int | Sequence[int] | None = None,
        adapter: Mapping[str, Any] | None = None,
        frozen_weights: Literal["int8"] | None = None,
        recompute: bool = False,
        backward_reads: Literal["input", "output", "mask"] | None = None,
        variant: str | None = None,
        weights_of: str | Layer | Mapping[str, str | Layer] | None = None,
    ) -> None: ...

class Sine(Layer):
    def __init__(
        self,
        *,
        name: str | None = None,
        inputs: Sequence[str | Layer] | None = None,
        dtype: str | None = None,
        layout: str | None = None,
        trainable: bool | Sequence[str] = True,
        update_channels: int | Sequence[int] | None = None,
        adapter: Mapping[str, Any] | None = None,
        frozen_weights: Literal["int8"] | None = None,
        recompute: bool = False,
        backward_reads: Literal["input", "output", "mask"] | None = None,
        variant: str | None = None,
        weights_of: str | Layer | Mapping[str, str | Layer] | None = None,
    ) -> None: ...

class Absolute(Layer):
    def __init__(
        self,
        *,
        name: str | None = None,
        inputs: Sequence[str | Layer] | None = None,
        dtype: str | None = None,
        layout: str | None = None,
        trainable: bool | Sequence[str] = True,
        update_channels: int | Sequence[int] | None = None,
        adapter: Mapping[str, Any] | None = None,
        frozen_weights: Literal["int8"] | None = None,
        recompute: bool = False,
        backward_reads: Literal["input", "output", "mask"] | None = None,
        variant: str | None = None,
        weights_of: str | Layer | Mapping[str, str | Layer] | None = None,
    ) -> None: ...

class Prelu(Layer):
    def __init__(
        self,
        per_channel: bool = False,
        *,
        name: str | None = None,
        inputs: Sequence[str | Layer] | None = None,
        dtype: str | None = None,
        layout: str | None = None,
        trainable: bool | Sequence[str] = True,
        update_channels: int | Sequence[int] | None = None,
        adapter: Mapping[str, Any] | None = None,
        frozen_weights: Literal["int8"] | None = None,
        recompute: bool = False,
        backward_reads: Literal["input", "output", "mask"] | None = None,
        variant: str | None = None,
        weights_of: str | Layer | Mapping[str, str | Layer] | None = None,
    ) -> None: ...

class Flatten(Layer):
    def __init__(
        self,
        *,
        name: str | None = None,
        inputs: Sequence[str | Layer] | None = None,
        dtype: str | None = None,
        layout: str | None = None,
        trainable: bool | Sequence[str] = True,
        update_channels: int | Sequence[int] | None = None,
        adapter: Mapping[str, Any] | None = None,
        frozen_weights: Literal["int8"] | None = None,
        recompute: bool = False,
        backward_reads: Literal["input", "output", "mask"] | None = None,
        variant: str | None = None,
        weights_of: str | Layer | Mapping[str, str | Layer] | None = None,
    ) -> None: ...

class BroadcastAdd(Layer):
    def __init__(
        self,
        *,
        name: str | None = None,
        inputs: Sequence[str | Layer] | None = None,
        dtype: str | None = None,
        layout: str | None = None,
        trainable: bool | Sequence[str] = True,
        update_channels: int | Sequence[int] | None = None,
        adapter: Mapping[str, Any] | None = None,
        frozen_weights: Literal["int8"] | None = None,
        recompute: bool = False,
        backward_reads: Literal["input", "output", "mask"] | None = None,
        variant: str | None = None,
        weights_of: str | Layer | Mapping[str, str | Layer] | None = None,
    ) -> None: ...

class Expand(Layer):
    def __init__(
        self,
        shape: Sequence[int],
        *,
        name: str | None = None,
        inputs: Sequence[str | Layer] | None = None,
        dtype: str | None = None,
        layout: str | None = None,
        trainable: bool | Sequence[str] = True,
        update_channels: int | Sequence[int] | None = None,
        adapter: Mapping[str, Any] | None = None,
        frozen_weights: Literal["int8"] | None = None,
        recompute: bool = False,
        backward_reads: Literal["input", "output", "mask"] | None = None,
        variant: str | None = None,
        weights_of: str | Layer | Mapping[str, str | Layer] | None = None,
    ) -> None: ...

class Parameter(Layer):
    def __init__(
        self,
        shape: Sequence[int],
        once: bool = False,
        integers: bool = False,
        *,
        name: str | None = None,
        inputs: Sequence[str | Layer] | None = None,
        dtype: str | None = None,
        layout: str | None = None,
        trainable: bool | Sequence[str] = True,
        update_channels: int | Sequence[int] | None = None,
        adapter: Mapping[str, Any] | None = None,
        frozen_weights: Literal["int8"] | None = None,
        recompute: bool = False,
        backward_reads: Literal["input", "output", "mask"] | None = None,
        variant: str | None = None,
        weights_of: str | Layer | Mapping[str, str | Layer] | None = None,
    ) -> None: ...

class Position(Layer):
    def __init__(
        self,
        *,
        name: str | None = None,
        inputs: Sequence[str | Layer] | None = None,
        dtype: str | None = None,
        layout: str | None = None,
        trainable: bool | Sequence[str] = True,
        update_channels: int | Sequence[int] | None = None,
        adapter: Mapping[str, Any] | None = None,
        frozen_weights: Literal["int8"] | None = None,
        recompute: bool = False,
        backward_reads: Literal["input", "output", "mask"] | None = None,
        variant: str | None = None,
        weights_of: str | Layer | Mapping[str, str | Layer] | None = None,
    ) -> None: ...

class Projected(Layer):
    def __init__(
        self,
        *,
        name: str | None = None,
        inputs: Sequence[str | Layer] | None = None,
        dtype: str | None = None,
        layout: str | None = None,
        trainable: bool | Sequence[str] = True,
        update_channels: int | Sequence[int] | None = None,
        adapter: Mapping[str, Any] | None = None,
        frozen_weights: Literal["int8"] | None = None,
        recompute: bool = False,
        backward_reads: Literal["input", "output", "mask"] | None = None,
        variant: str | None = None,
        weights_of: str | Layer | Mapping[str, str | Layer] | None = None,
    ) -> None: ...

class ClassToken(Layer):
    def __init__(
        self,
        *,
        name: str | None = None,
        inputs: Sequence[str | Layer] | None = None,
        dtype: str | None = None,
        layout: str | None = None,
        trainable: bool | Sequence[str] = True,
        update_channels: int | Sequence[int] | None = None,
        adapter: Mapping[str, Any] | None = None,
        frozen_weights: Literal["int8"] | None = None,
        recompute: bool = False,
        backward_reads: Literal["input", "output", "mask"] | None = None,
        variant: str | None = None,
        weights_of: str | Layer | Mapping[str, str | Layer] | None = None,
    ) -> None: ...

class RNN(Layer):
    def __init__(
        self,
        hidden: int,
        bias: bool = True,
        stepwise: bool = False,
        *,
        name: str | None = None,
        inputs: Sequence[str | Layer] | None = None,
        dtype: str | None = None,
        layout: str | None = None,
        trainable: bool | Sequence[str] = True,
        update_channels: int | Sequence[int] | None = None,
        adapter: Mapping[str, Any] | None = None,
        frozen_weights: Literal["int8"] | None = None,
        recompute: bool = False,
        backward_reads: Literal["input", "output", "mask"] | None = None,
        variant: str | None = None,
        weights_of: str | Layer | Mapping[str, str | Layer] | None = None,
    ) -> None: ...

class GRU(Layer):
    def __init__(
        self,
        hidden: int,
        bias: bool = True,
        stepwise: bool = False,
        *,
        name: str | None = None,
        inputs: Sequence[str | Layer] | None = None,
        dtype: str | None = None,
        layout: str | None = None,
        trainable: bool | Sequence[str] = True,
        update_channels: int | Sequence[int] | None = None,
        adapter: Mapping[str, Any] | None = None,
        frozen_weights: Literal["int8"] | None = None,
        recompute: bool = False,
        backward_reads: Literal["input", "output", "mask"] | None = None,
        variant: str | None = None,
        weights_of: str | Layer | Mapping[str, str | Layer] | None = None,
    ) -> None: ...

class LSTM(Layer):
    def __init__(
        self,
        hidden: int,
        bias: bool = True,
        stepwise: bool = False,
        *,
        name: str | None = None,
        inputs: Sequence[str | Layer] | None = None,
        dtype: str | None = None,
        layout: str | None = None,
        trainable: bool | Sequence[str] = True,
        update_channels: int | Sequence[int] | None = None,
        adapter: Mapping[str, Any] | None = None,
        frozen_weights: Literal["int8"] | None = None,
        recompute: bool = False,
        backward_reads: Literal["input", "output", "mask"] | None = None,
        variant: str | None = None,
        weights_of: str | Layer | Mapping[str, str | Layer] | None = None,
    ) -> None: ...

class Embedding(Layer):
    def __init__(
        self,
        vocabulary: int,
        features: int,
        padding_id: int | None = None,
        *,
        name: str | None = None,
        inputs: Sequence[str | Layer] | None = None,
        dtype: str | None = None,
        layout: str | None = None,
        trainable: bool | Sequence[str] = True,
        update_channels: int | Sequence[int] | None = None,
        adapter: Mapping[str, Any] | None = None,
        frozen_weights: Literal["int8"] | None = None,
        recompute: bool = False,
        backward_reads: Literal["input", "output", "mask"] | None = None,
        variant: str | None = None,
        weights_of: str | Layer | Mapping[str, str | Layer] | None = None,
    ) -> None: ...

class Matmul(Layer):
    def __init__(
        self,
        transpose_b: bool = False,
        *,
        name: str | None = None,
        inputs: Sequence[str | Layer] | None = None,
        dtype: str | None = None,
        layout: str | None = None,
        trainable: bool | Sequence[str] = True,
        update_channels: int | Sequence[int] | None = None,
        adapter: Mapping[str, Any] | None = None,
        frozen_weights: Literal["int8"] | None = None,
        recompute: bool = False,
        backward_reads: Literal["input", "output", "mask"] | None = None,
        variant: str | None = None,
        weights_of: str | Layer | Mapping[str, str | Layer] | None = None,
    ) -> None: ...

class MHSA(Layer):
    def __init__(
        self,
        heads: int,
        features: int | None = None,
        bias: bool = False,
        *,
        name: str | None = None,
        inputs: Sequence[str | Layer] | None = None,
        dtype: str | None = None,
        layout: str | None = None,
        trainable: bool | Sequence[str] = True,
        update_channels: int | Sequence[int] | None = None,
        adapter: Mapping[str, Any] | None = None,
        frozen_weights: Literal["int8"] | None = None,
        recompute: bool = False,
        backward_reads: Literal["input", "output", "mask"] | None = None,
        variant: str | None = None,
        weights_of: str | Layer | Mapping[str, str | Layer] | None = None,
    ) -> None: ...

class Softmax(Layer):
    def __init__(
        self,
        exponential: Literal["exact", "schraudolph", "taylor"] = "exact",
        *,
        name: str | None = None,
        inputs: Sequence[str | Layer] | None = None,
        dtype: str | None = None,
        layout: str | None = None,
        trainable: bool | Sequence[str] = True,
        update_channels: int | Sequence[int] | None = None,
        adapter: Mapping[str, Any] | None = None,
        frozen_weights: Literal["int8"] | None = None,
        recompute: bool = False,
        backward_reads: Literal["input", "output", "mask"] | None = None,
        variant: str | None = None,
        weights_of: str | Layer | Mapping[str, str | Layer] | None = None,
    ) -> None: ...

class LogSoftmax(Layer):
    def __init__(
        self,
        *,
        name: str | None = None,
        inputs: Sequence[str | Layer] | None = None,
        dtype: str | None = None,
        layout: str | None = None,
        trainable: bool | Sequence[str] = True,
        update_channels: int | Sequence[int] | None = None,
        adapter: Mapping[str, Any] | None = None,
        frozen_weights: Literal["int8"] | None = None,
        recompute: bool = False,
        backward_reads: Literal["input", "output", "mask"] | None = None,
        variant: str | None = None,
        weights_of: str | Layer | Mapping[str, str | Layer] | None = None,
    ) -> None: ...

class Concat(Layer):
    def __init__(
        self,
        axis: int = 0,
        *,
        name: str | None = None,
        inputs: Sequence[str | Layer] | None = None,
        dtype: str | None = None,
        layout: str | None = None,
        trainable: bool | Sequence[str] = True,
        update_channels: int | Sequence[int] | None = None,
        adapter: Mapping[str, Any] | None = None,
        frozen_weights: Literal["int8"] | None = None,
        recompute: bool = False,
        backward_reads: Literal["input", "output", "mask"] | None = None,
        variant: str | None = None,
        weights_of: str | Layer | Mapping[str, str | Layer] | None = None,
    ) -> None: ...

class Split(Layer):
    def __init__(
        self,
        sizes: Sequence[int],
        axis: int = 0,
        *,
        name: str | None = None,
        inputs: Sequence[str | Layer] | None = None,
        dtype: str | None = None,
        layout: str | None = None,
        trainable: bool | Sequence[str] = True,
        update_channels: int | Sequence[int] | None = None,
        adapter: Mapping[str, Any] | None = None,
        frozen_weights: Literal["int8"] | None = None,
        recompute: bool = False,
        backward_reads: Literal["input", "output", "mask"] | None = None,
        variant: str | None = None,
        weights_of: str | Layer | Mapping[str, str | Layer] | None = None,
    ) -> None: ...

class Slice(Layer):
    def __init__(
        self,
        stop: int,
        axis: int = 0,
        start: int = 0,
        *,
        name: str | None = None,
        inputs: Sequence[str | Layer] | None = None,
        dtype: str | None = None,
        layout: str | None = None,
        trainable: bool | Sequence[str] = True,
        update_channels: int | Sequence[int] | None = None,
        adapter: Mapping[str, Any] | None = None,
        frozen_weights: Literal["int8"] | None = None,
        recompute: bool = False,
        backward_reads: Literal["input", "output", "mask"] | None = None,
        variant: str | None = None,
        weights_of: str | Layer | Mapping[str, str | Layer] | None = None,
    ) -> None: ...

class Flip(Layer):
    def __init__(
        self,
        axes: Sequence[int],
        *,
        name: str | None = None,
        inputs: Sequence[str | Layer] | None = None,
        dtype: str | None = None,
        layout: str | None = None,
        trainable: bool | Sequence[str] = True,
        update_channels: int | Sequence[int] | None = None,
        adapter: Mapping[str, Any] | None = None,
        frozen_weights: Literal["int8"] | None = None,
        recompute: bool = False,
        backward_reads: Literal["input", "output", "mask"] | None = None,
        variant: str | None = None,
        weights_of: str | Layer | Mapping[str, str | Layer] | None = None,
    ) -> None: ...

class Reshape(Layer):
    def __init__(
        self,
        shape: Sequence[int],
        *,
        name: str | None = None,
        inputs: Sequence[str | Layer] | None = None,
        dtype: str | None = None,
        layout: str | None = None,
        trainable: bool | Sequence[str] = True,
        update_channels: int | Sequence[int] | None = None,
        adapter: Mapping[str, Any] | None = None,
        frozen_weights: Literal["int8"] | None = None,
        recompute: bool = False,
        backward_reads: Literal["input", "output", "mask"] | None = None,
        variant: str | None = None,
        weights_of: str | Layer | Mapping[str, str | Layer] | None = None,
    ) -> None: ...

class Transpose(Layer):
    def __init__(
        self,
        axes: Sequence[int],
        *,
        name: str | None = None,
        inputs: Sequence[str | Layer] | None = None,
        dtype: str | None = None,
        layout: str | None = None,
        trainable: bool | Sequence[str] = True,
        update_channels: int | Sequence[int] | None = None,
        adapter: Mapping[str, Any] | None = None,
        frozen_weights: Literal["int8"] | None = None,
        recompute: bool = False,
        backward_reads: Literal["input", "output", "mask"] | None = None,
        variant: str | None = None,
        weights_of: str | Layer | Mapping[str, str | Layer] | None = None,
    ) -> None: ...

class Pad(Layer):
    def __init__(
        self,
        pads: Sequence[Sequence[int]],
        value: float = 0.0,
        *,
        name: str | None = None,
        inputs: Sequence[str | Layer] | None = None,
        dtype: str | None = None,
        layout: str | None = None,
        trainable: bool | Sequence[str] = True,
        update_channels: int | Sequence[int] | None = None,
        adapter: Mapping[str, Any] | None = None,
        frozen_weights: Literal["int8"] | None = None,
        recompute: bool = False,
        backward_reads: Literal["input", "output", "mask"] | None = None,
        variant: str | None = None,
        weights_of: str | Layer | Mapping[str, str | Layer] | None = None,
    ) -> None: ...

class ReduceMean(Layer):
    def __init__(
        self,
        axes: Sequence[int],
        keep_dims: bool = False,
        *,
        name: str | None = None,
        inputs: Sequence[str | Layer] | None = None,
        dtype: str | None = None,
        layout: str | None = None,
        trainable: bool | Sequence[str] = True,
        update_channels: int | Sequence[int] | None = None,
        adapter: Mapping[str, Any] | None = None,
        frozen_weights: Literal["int8"] | None = None,
        recompute: bool = False,
        backward_reads: Literal["input", "output", "mask"] | None = None,
        variant: str | None = None,
        weights_of: str | Layer | Mapping[str, str | Layer] | None = None,
    ) -> None: ...

class ReduceSum(Layer):
    def __init__(
        self,
        axes: Sequence[int],
        keep_dims: bool = False,
        *,
        name: str | None = None,
        inputs: Sequence[str | Layer] | None = None,
        dtype: str | None = None,
        layout: str | None = None,
        trainable: bool | Sequence[str] = True,
        update_channels: int | Sequence[int] | None = None,
        adapter: Mapping[str, Any] | None = None,
        frozen_weights: Literal["int8"] | None = None,
        recompute: bool = False,
        backward_reads: Literal["input", "output", "mask"] | None = None,
        variant: str | None = None,
        weights_of: str | Layer | Mapping[str, str | Layer] | None = None,
    ) -> None: ...

class ReduceMax(Layer):
    def __init__(
        self,
        axes: Sequence[int],
        keep_dims: bool = False,
        ties: Literal["shared", "first"] = "shared",
        *,
        name: str | None = None,
        inputs: Sequence[str | Layer] | None = None,
        dtype: str | None = None,
        layout: str | None = None,
        trainable: bool | Sequence[str] = True,
        update_channels: int | Sequence[int] | None = None,
        adapter: Mapping[str, Any] | None = None,
        frozen_weights: Literal["int8"] | None = None,
        recompute: bool = False,
        backward_reads: Literal["input", "output", "mask"] | None = None,
        variant: str | None = None,
        weights_of: str | Layer | Mapping[str, str | Layer] | None = None,
    ) -> None: ...

class ReduceMin(Layer):
    def __init__(
        self,
        axes: Sequence[int],
        keep_dims: bool = False,
        ties: Literal["shared", "first"] = "shared",
        *,
        name: str | None = None,
        inputs: Sequence[str | Layer] | None = None,
        dtype: str | None = None,
        layout: str | None = None,
        trainable: bool | Sequence[str] = True,
        update_channels: int | Sequence[int] | None = None,
        adapter: Mapping[str, Any] | None = None,
        frozen_weights: Literal["int8"] | None = None,
        recompute: bool = False,
        backward_reads: Literal["input", "output", "mask"] | None = None,
        variant: str | None = None,
        weights_of: str | Layer | Mapping[str, str | Layer] | None = None,
    ) -> None: ...

class Interpolation(Layer):
    def __init__(
        self,
        mode: Literal["nearest", "bilinear"] = "nearest",
        size: Sequence[int] | None = None,
        scale: float | None = None,
        *,
        name: str | None = None,
        inputs: Sequence[str | Layer] | None = None,
        dtype: str | None = None,
        layout: str | None = None,
        trainable: bool | Sequence[str] = True,
        update_channels: int | Sequence[int] | None = None,
        adapter: Mapping[str, Any] | None = None,
        frozen_weights: Literal["int8"] | None = None,
        recompute: bool = False,
        backward_reads: Literal["input", "output", "mask"] | None = None,
        variant: str | None = None,
        weights_of: str | Layer | Mapping[str, str | Layer] | None = None,
    ) -> None: ...

class AvgPool2d(Layer):
    def __init__(
        self,
        kernel: int | Sequence[int],
        stride: int | Sequence[int] | None = None,
        padding: int | Sequence[int] = 0,
        count_include_pad: bool = True,
        *,
        name: str | None = None,
        inputs: Sequence[str | Layer] | None = None,
        dtype: str | None = None,
        layout: str | None = None,
        trainable: bool | Sequence[str] = True,
        update_channels: int | Sequence[int] | None = None,
        adapter: Mapping[str, Any] | None = None,
        frozen_weights: Literal["int8"] | None = None,
        recompute: bool = False,
        backward_reads: Literal["input", "output", "mask"] | None = None,
        variant: str | None = None,
        weights_of: str | Layer | Mapping[str, str | Layer] | None = None,
    ) -> None: ...

class MaxPool2d(Layer):
    def __init__(
        self,
        kernel: int | Sequence[int],
        stride: int | Sequence[int] | None = None,
        padding: int | Sequence[int] = 0,
        *,
        name: str | None = None,
        inputs: Sequence[str | Layer] | None = None,
        dtype: str | None = None,
        layout: str | None = None,
        trainable: bool | Sequence[str] = True,
        update_channels: int | Sequence[int] | None = None,
        adapter: Mapping[str, Any] | None = None,
        frozen_weights: Literal["int8"] | None = None,
        recompute: bool = False,
        backward_reads: Literal["input", "output", "mask"] | None = None,
        variant: str | None = None,
        weights_of: str | Layer | Mapping[str, str | Layer] | None = None,
    ) -> None: ...

class GlobalAvgPool(Layer):
    def __init__(
        self,
        *,
        name: str | None = None,
        inputs: Sequence[str | Layer] | None = None,
        dtype: str | None = None,
        layout: str | None = None,
        trainable: bool | Sequence[str] = True,
        update_channels: int | Sequence[int] | None = None,
        adapter: Mapping[str, Any] | None = None,
        frozen_weights: Literal["int8"] | None = None,
        recompute: bool = False,
        backward_reads: Literal["input", "output", "mask"] | None = None,
        variant: str | None = None,
        weights_of: str | Layer | Mapping[str, str | Layer] | None = None,
    ) -> None: ...

class BatchNorm(Layer):
    def __init__(
        self,
        affine: bool = True,
        eps: float = 1e-05,
        momentum: float = 0.1,
        fixed_statistics: bool = False,
        *,
        name: str | None = None,
        inputs: Sequence[str | Layer] | None = None,
        dtype: str | None = None,
        layout: str | None = None,
        trainable: bool | Sequence[str] = True,
        update_channels: int | Sequence[int] | None = None,
        adapter: Mapping[str, Any] | None = None,
        frozen_weights: Literal["int8"] | None = None,
        recompute: bool = False,
        backward_reads: Literal["input", "output", "mask"] | None = None,
        variant: str | None = None,
        weights_of: str | Layer | Mapping[str, str | Layer] | None = None,
    ) -> None: ...

class InstanceNorm(Layer):
    def __init__(
        self,
        affine: bool = True,
        eps: float = 1e-05,
        stepwise: bool = False,
        momentum: float = 0.1,
        fixed_statistics: bool = False,
        running: bool = False,
        *,
        name: str | None = None,
        inputs: Sequence[str | Layer] | None = None,
        dtype: str | None = None,
        layout: str | None = None,
        trainable: bool | Sequence[str] = True,
        update_channels: int | Sequence[int] | None = None,
        adapter: Mapping[str, Any] | None = None,
        frozen_weights: Literal["int8"] | None = None,
        recompute: bool = False,
        backward_reads: Literal["input", "output", "mask"] | None = None,
        variant: str | None = None,
        weights_of: str | Layer | Mapping[str, str | Layer] | None = None,
    ) -> None: ...

class GroupNorm(Layer):
    def __init__(
        self,
        groups: int,
        affine: bool = True,
        eps: float = 1e-05,
        stepwise: bool = False,
        *,
        name: str | None = None,
        inputs: Sequence[str | Layer] | None = None,
        dtype: str | None = None,
        layout: str | None = None,
        trainable: bool | Sequence[str] = True,
        update_channels: int | Sequence[int] | None = None,
        adapter: Mapping[str, Any] | None = None,
        frozen_weights: Literal["int8"] | None = None,
        recompute: bool = False,
        backward_reads: Literal["input", "output", "mask"] | None = None,
        variant: str | None = None,
        weights_of: str | Layer | Mapping[str, str | Layer] | None = None,
    ) -> None: ...

class LayerNorm(Layer):
    def __init__(
        self,
        affine: bool = True,
        eps: float = 1e-05,
        stepwise: bool = False,
        axes: int = 1,
        bias: bool = True,
        *,
        name: str | None = None,
        inputs: Sequence[str | Layer] | None = None,
        dtype: str | None = None,
        layout: str | None = None,
        trainable: bool | Sequence[str] = True,
        update_channels: int | Sequence[int] | None = None,
        adapter: Mapping[str, Any] | None = None,
        frozen_weights: Literal["int8"] | None = None,
        recompute: bool = False,
        backward_reads: Literal["input", "output", "mask"] | None = None,
        variant: str | None = None,
        weights_of: str | Layer | Mapping[str, str | Layer] | None = None,
    ) -> None: ...

class RMSNorm(Layer):
    def __init__(
        self,
        affine: bool = True,
        eps: float = 1e-05,
        stepwise: bool = False,
        axes: int = 1,
        *,
        name: str | None = None,
        inputs: Sequence[str | Layer] | None = None,
        dtype: str | None = None,
        layout: str | None = None,
        trainable: bool | Sequence[str] = True,
        update_channels: int | Sequence[int] | None = None,
        adapter: Mapping[str, Any] | None = None,
        frozen_weights: Literal["int8"] | None = None,
        recompute: bool = False,
        backward_reads: Literal["input", "output", "mask"] | None = None,
        variant: str | None = None,
        weights_of: str | Layer | Mapping[str, str | Layer] | None = None,
    ) -> None: ...

class CrossEntropy(Loss):
    def __init__(
        self,
        labels: Literal["soft", "hard"] = "soft",
        class_weights: Sequence[float] | None = None,
        ignore_index: int | None = None,
        label_smoothing: float = 0.0,
        *,
        weight: float = 1.0,
        reduction: Literal["mean", "sum", "batchmean"] = "mean",
        of: str | Layer | None = None,
        target: str | Layer | None = None,
        label: str | None = None,
    ) -> None: ...

class MSE(Loss):
    def __init__(
        self,
        *,
        weight: float = 1.0,
        reduction: Literal["mean", "sum", "batchmean"] = "mean",
        of: str | Layer | None = None,
        target: str | Layer | None = None,
        label: str | None = None,
    ) -> None: ...

class L1(Loss):
    def __init__(
        self,
        *,
        weight: float = 1.0,
        reduction: Literal["mean", "sum", "batchmean"] = "mean",
        of: str | Layer | None = None,
        target: str | Layer | None = None,
        label: str | None = None,
    ) -> None: ...

class BerHu(Loss):
    def __init__(
        self,
        alpha: float = 0.2,
        *,
        weight: float = 1.0,
        reduction: Literal["mean", "sum", "batchmean"] = "mean",
        of: str | Layer | None = None,
        target: str | Layer | None = None,
        label: str | None = None,
    ) -> None: ...

class Huber(Loss):
    def __init__(
        self,
        delta: float = 1.0,
        *,
        weight: float = 1.0,
        reduction: Literal["mean", "sum", "batchmean"] = "mean",
        of: str | Layer | None = None,
        target: str | Layer | None = None,
        label: str | None = None,
    ) -> None: ...

class SmoothL1(Loss):
    def __init__(
        self,
        beta: float = 1.0,
        *,
        weight: float = 1.0,
        reduction: Literal["mean", "sum", "batchmean"] = "mean",
        of: str | Layer | None = None,
        target: str | Layer | None = None,
        label: str | None = None,
    ) -> None: ...

class BCE(Loss):
    def __init__(
        self,
        element_weights: float | Sequence[float] = 1.0,
        *,
        weight: float = 1.0,
        reduction: Literal["mean", "sum", "batchmean"] = "mean",
        of: str | Layer | None = None,
        target: str | Layer | None = None,
        label: str | None = None,
    ) -> None: ...

class BCEWithLogits(Loss):
    def __init__(
        self,
        element_weights: float | Sequence[float] = 1.0,
        pos_weight: float | Sequence[float] = 1.0,
        *,
        weight: float = 1.0,
        reduction: Literal["mean", "sum", "batchmean"] = "mean",
        of: str | Layer | None = None,
        target: str | Layer | None = None,
        label: str | None = None,
    ) -> None: ...

class KLDiv(Loss):
    def __init__(
        self,
        log_target: bool = False,
        *,
        weight: float = 1.0,
        reduction: Literal["mean", "sum", "batchmean"] = "mean",
        of: str | Layer | None = None,
        target: str | Layer | None = None,
        label: str | None = None,
    ) -> None: ...

class PoissonNLL(Loss):
    def __init__(
        self,
        log_input: bool = True,
        full: bool = False,
        eps: float = 1e-08,
        *,
        weight: float = 1.0,
        reduction: Literal["mean", "sum", "batchmean"] = "mean",
        of: str | Layer | None = None,
        target: str | Layer | None = None,
        label: str | None = None,
    ) -> None: ...

class NLL(Loss):
    def __init__(
        self,
        class_weights: Sequence[float] | None = None,
        ignore_index: int | None = None,
        *,
        weight: float = 1.0,
        reduction: Literal["mean", "sum", "batchmean"] = "mean",
        of: str | Layer | None = None,
        target: str | Layer | None = None,
        label: str | None = None,
    ) -> None: ...

class HingeEmbedding(Loss):
    def __init__(
        self,
        margin: float = 1.0,
        *,
        weight: float = 1.0,
        reduction: Literal["mean", "sum", "batchmean"] = "mean",
        of: str | Layer | None = None,
        target: str | Layer | None = None,
        label: str | None = None,
    ) -> None: ...

class SoftMargin(Loss):
    def __init__(
        self,
        *,
        weight: float = 1.0,
        reduction: Literal["mean", "sum", "batchmean"] = "mean",
        of: str | Layer | None = None,
        target: str | Layer | None = None,
        label: str | None = None,
    ) -> None: ...

class MultiMargin(Loss):
    def __init__(
        self,
        p: Literal[1, 2] = 1,
        margin: float = 1.0,
        class_weights: Sequence[float] | None = None,
        *,
        weight: float = 1.0,
        reduction: Literal["mean", "sum", "batchmean"] = "mean",
        of: str | Layer | None = None,
        target: str | Layer | None = None,
        label: str | None = None,
    ) -> None: ...

class Cosine(Loss):
    def __init__(
        self,
        *,
        weight: float = 1.0,
        reduction: Literal["mean", "sum", "batchmean"] = "mean",
        of: str | Layer | None = None,
        target: str | Layer | None = None,
        label: str | None = None,
    ) -> None: ...

class Output(Loss):
    def __init__(
        self,
        *,
        weight: float = 1.0,
        reduction: Literal["mean", "sum", "batchmean"] = "mean",
        of: str | Layer | None = None,
        target: str | Layer | None = None,
        label: str | None = None,
    ) -> None: ...

class SGD(Optimizer):
    def __init__(
        self,
        learning_rate: float,
        momentum: float = 0.0,
        nesterov: bool = False,
        weight_decay: float = 0.0,
        dampening: float = 0.0,
        *,
        maximize: bool = False,
        state_dtype: Literal["fp32", "fp16", "bf16"] = "fp32",
        accumulate: int = 1,
        clip_value: float | None = None,
        clip_norm: float | None = None,
        separate: bool = False,
        immediate: bool = False,
        average: float | None = None,
        schedule: Mapping[str, Any] | None = None,
        groups: Sequence[Mapping[str, Any]] | None = None,
    ) -> None: ...

class SGDMomentum(Optimizer):
    def __init__(
        self,
        learning_rate: float,
        momentum: float = 0.9,
        nesterov: bool = False,
        weight_decay: float = 0.0,
        dampening: float = 0.0,
        *,
        maximize: bool = False,
        state_dtype: Literal["fp32", "fp16", "bf16"] = "fp32",
        accumulate: int = 1,
        clip_value: float | None = None,
        clip_norm: float | None = None,
        separate: bool = False,
        immediate: bool = False,
        average: float | None = None,
        schedule: Mapping[str, Any] | None = None,
        groups: Sequence[Mapping[str, Any]] | None = None,
    ) -> None: ...

class Adam(Optimizer):
    def __init__(
        self,
        learning_rate: float,
        beta1: float = 0.9,
        beta2: float = 0.999,
        eps: float = 1e-08,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
        state_dtype: Literal["fp32", "fp16", "bf16"] = "fp32",
        accumulate: int = 1,
        clip_value: float | None = None,
        clip_norm: float | None = None,
        separate: bool = False,
        immediate: bool = False,
        average: float | None = None,
        schedule: Mapping[str, Any] | None = None,
        groups: Sequence[Mapping[str, Any]] | None = None,
    ) -> None: ...

class AdamW(Optimizer):
    def __init__(
        self,
        learning_rate: float,
        beta1: float = 0.9,
        beta2: float = 0.999,
        eps: float = 1e-08,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
        state_dtype: Literal["fp32", "fp16", "bf16"] = "fp32",
        accumulate: int = 1,
        clip_value: float | None = None,
        clip_norm: float | None = None,
        separate: bool = False,
        immediate: bool = False,
        average: float | None = None,
        schedule: Mapping[str, Any] | None = None,
        groups: Sequence[Mapping[str, Any]] | None = None,
    ) -> None: ...

class Adamax(Optimizer):
    def __init__(
        self,
        learning_rate: float,
        beta1: float = 0.9,
        beta2: float = 0.999,
        eps: float = 1e-08,
        weight_decay: float = 0.0,
        *,
        maximize: bool = False,
        state_dtype: Literal["fp32", "fp16", "bf16"] = "fp32",
        accumulate: int = 1,
        clip_value: float | None = None,
        clip_norm: float | None = None,
        separate: bool = False,
        immediate: bool = False,
        average: float | None = None,
        schedule: Mapping[str, Any] | None = None,
        groups: Sequence[Mapping[str, Any]] | None = None,
    ) -> None: ...

class NAdam(Optimizer):
    def __init__(
        self,
        learning_rate: float,
        beta1: float = 0.9,
        beta2: float = 0.999,
        eps: float = 1e-08,
        weight_decay: float = 0.0,
        decoupled_weight_decay: bool = False,
        momentum_decay: float = 0.004,
        *,
        maximize: bool = False,
        state_dtype: Literal["fp32", "fp16", "bf16"] = "fp32",
        accumulate: int = 1,
        clip_value: float | None = None,
        clip_norm: float | None = None,
        separate: bool = False,
        immediate: bool = False,
        average: float | None = None,
        schedule: Mapping[str, Any] | None = None,
        groups: Sequence[Mapping[str, Any]] | None = None,
    ) -> None: ...

class RAdam(Optimizer):
    def __init__(
        self,
        learning_rate: float,
        beta1: float = 0.9,
        beta2: float = 0.999,
        eps: float = 1e-08,
        weight_decay: float = 0.0,
        decoupled_weight_decay: bool = False,
        *,
        maximize: bool = False,
        state_dtype: Literal["fp32", "fp16", "bf16"] = "fp32",
        accumulate: int = 1,
        clip_value: float | None = None,
        clip_norm: float | None = None,
        separate: bool = False,
        immediate: bool = False,
        average: float | None = None,
        schedule: Mapping[str, Any] | None = None,
        groups: Sequence[Mapping[str, Any]] | None = None,
    ) -> None: ...

class Lion(Optimizer):
    def __init__(
        self,
        learning_rate: float,
        weight_decay: float = 0.0,
        beta1: float = 0.9,
        beta2: float = 0.99,
        *,
        maximize: bool = False,
        state_dtype: Literal["fp32", "fp16", "bf16"] = "fp32",
        accumulate: int = 1,
        clip_value: float | None = None,
        clip_norm: float | None = None,
        separate: bool = False,
        immediate: bool = False,
        average: float | None = None,
        schedule: Mapping[str, Any] | None = None,
        groups: Sequence[Mapping[str, Any]] | None = None,
    ) -> None: ...

class RMSprop(Optimizer):
    def __init__(
        self,
        learning_rate: float,
        weight_decay: float = 0.0,
        alpha: float = 0.99,
        eps: float = 1e-08,
        momentum: float = 0.0,
        centered: bool = False,
        *,
        maximize: bool = False,
        state_dtype: Literal["fp32", "fp16", "bf16"] = "fp32",
        accumulate: int = 1,
        clip_value: float | None = None,
        clip_norm: float | None = None,
        separate: bool = False,
        immediate: bool = False,
        average: float | None = None,
        schedule: Mapping[str, Any] | None = None,
        groups: Sequence[Mapping[str, Any]] | None = None,
    ) -> None: ...

class Adagrad(Optimizer):
    def __init__(
        self,
        learning_rate: float,
        weight_decay: float = 0.0,
        lr_decay: float = 0.0,
        initial_accumulator_value: float = 0.0,
        eps: float = 1e-10,
        *,
        maximize: bool = False,
        state_dtype: Literal["fp32", "fp16", "bf16"] = "fp32",
        accumulate: int = 1,
        clip_value: float | None = None,
        clip_norm: float | None = None,
        separate: bool = False,
        immediate: bool = False,
        average: float | None = None,
        schedule: Mapping[str, Any] | None = None,
        groups: Sequence[Mapping[str, Any]] | None = None,
    ) -> None: ...

class Adadelta(Optimizer):
    def __init__(
        self,
        learning_rate: float,
        weight_decay: float = 0.0,
        rho: float = 0.9,
        eps: float = 1e-06,
        *,
        maximize: bool = False,
        state_dtype: Literal["fp32", "fp16", "bf16"] = "fp32",
        accumulate: int = 1,
        clip_value: float | None = None,
        clip_norm: float | None = None,
        separate: bool = False,
        immediate: bool = False,
        average: float | None = None,
        schedule: Mapping[str, Any] | None = None,
        groups: Sequence[Mapping[str, Any]] | None = None,
    ) -> None: ...

class Rprop(Optimizer):
    def __init__(
        self,
        learning_rate: float,
        eta_minus: float = 0.5,
        eta_plus: float = 1.2,
        size_min: float = 1e-06,
        size_max: float = 50.0,
        *,
        maximize: bool = False,
        state_dtype: Literal["fp32", "fp16", "bf16"] = "fp32",
        accumulate: int = 1,
        clip_value: float | None = None,
        clip_norm: float | None = None,
        separate: bool = False,
        immediate: bool = False,
        average: float | None = None,
        schedule: Mapping[str, Any] | None = None,
        groups: Sequence[Mapping[str, Any]] | None = None,
    ) -> None: ...

class ASGD(Optimizer):
    def __init__(
        self,
        learning_rate: float,
        weight_decay: float = 0.0,
        lambd: float = 0.0001,
        alpha: float = 0.75,
        t0: float = 1000000.0,
        *,
        maximize: bool = False,
        state_dtype: Literal["fp32", "fp16", "bf16"] = "fp32",
        accumulate: int = 1,
        clip_value: float | None = None,
        clip_norm: float | None = None,
        separate: bool = False,
        immediate: bool = False,
        average: float | None = None,
        schedule: Mapping[str, Any] | None = None,
        groups: Sequence[Mapping[str, Any]] | None = None,
    ) -> None: ...
