"""2D convolution without bias, CHW, as matmul over an im2row matrix, every step with padding and stride.

Matmul extents per step as in PULP-TrainLib: FW (N=co, K=ci·hk·wk, M=ho·wo, B transposed), WG (N=co, K=ho·wo,
M=ci·hk·wk), IG (N=ci, K=co·hk·wk, M=hi·wi, B transposed) over the im2row of the output gradient and the
weights block-transposed and rotated. The library's own WG ignores padding and its IG padding and stride
(found by running it); here all three are what the mathematics says. Kernels work on one sample at a time: a
tile calls them once per sample, and WG adds up the samples of the batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from configs.errors import ShapeError
from configs.model_file import LayerSchema
from trainlib.graph import Op, Tensor
from trainlib.primitives import conv2d_reference as reference
from trainlib.primitives.calls import (
    accumulated_matmul_calls,
    batch_extent,
    batch_range,
    box,
    matmul_call,
)
from trainlib.primitives.conv_calls import (
    ROWS,
    TRANSPOSED,
    block_transpose_call,
    gradient_im2row_call,
    im2row_call,
)
from trainlib.primitives.conv_geometry import ConvGeometry, Span, forward_span, gradient_span
from trainlib.primitives.definition import (
    Example,
    LayerPlan,
    LayerPrimitive,
    NotNegative,
    Parameter,
    Positive,
    Refused,
    Step,
    he_uniform,
)
from trainlib.steps import Extent, KernelCall, KernelChoice, Scratch, TileTask, part

PARTIAL = "dw_of_sample"
"""Name of the scratch buffer of the weight gradient of one further sample of a batch."""


class _Schema(LayerSchema):
    out_channels: Positive
    kernel: Positive
    padding: NotNegative = 0
    stride: Positive = 1


def _plan(attributes: Mapping[str, Any], inputs: Sequence[Tensor], where: str) -> LayerPlan:
    shape = inputs[0].shape
    if len(shape) != 4:
        raise ShapeError(
            f"conv2d needs an image (channels, height, width), its input has shape {shape[1:]}",
            where=where,
            cure="put it before flatten and linear",
        )
    batch, ci, hi, wi = shape
    co, stride, padding = attributes["out_channels"], attributes["stride"], attributes["padding"]
    hk = wk = attributes["kernel"]
    if padding >= hk:
        raise ShapeError(
            f"padding {padding} is not smaller than the kernel {hk}x{wk}: some outputs would see only zeros",
            where=where,
            cure=f"padding of at most {hk - 1}",
        )
    if hk > hi + 2 * padding or wk > wi + 2 * padding:
        raise ShapeError(
            f"kernel {hk}x{wk} is larger than the padded input {hi + 2 * padding}x{wi + 2 * padding}",
            where=where,
            cure="a smaller kernel, more padding, or less stride in the layers before it",
        )
    ho, wo = (hi + 2 * padding - hk) // stride + 1, (wi + 2 * padding - wk) // stride + 1
    resolved = {"ci": ci, "hi": hi, "wi": wi, "co": co, "ho": ho, "wo": wo, "hk": hk, "wk": wk}
    weight = (co, ci, hk, wk)
    return LayerPlan(
        (batch, co, ho, wo),
        {"w": Parameter(weight, he_uniform(weight))},
        attributes={**resolved, "batch": batch, "stride": stride, "pads": (padding,) * 4},
    )


def _forward_rows(geometry: ConvGeometry, outputs: Extent) -> Span:
    return forward_span(
        outputs, stride=geometry.stride, before=geometry.pads[0], kernel=geometry.hk, size=geometry.hi
    )


class _Conv2d:
    """What the three steps share."""

    def default_kernel(self, op: Op) -> str:
        """The naive row-parallel kernel, PULP-TrainLib's own default."""
        return "mm"


class _Forward(_Conv2d):
    """FW: C = y [co x ho·wo] = W · im2row(x)ᵀ; samples, channels and image rows of y may be cut."""

    def extents(self, op: Op, tensors: Mapping[str, Tensor]) -> Mapping[str, int]:
        """Samples, output channels, output rows."""
        attributes = op.attributes
        return {**batch_extent(attributes["batch"]), "co": attributes["co"], "ho": attributes["ho"]}

    def macs(self, op: Op, tensors: Mapping[str, Tensor]) -> int:
        """One patch per output element."""
        geometry = ConvGeometry.of(op.attributes)
        return int(op.attributes["batch"]) * geometry.co * geometry.ho * geometry.wo * geometry.forward_k

    def tile(
        self, op: Op, tensors: Mapping[str, Tensor], ranges: Mapping[str, Extent], choice: KernelChoice
    ) -> TileTask:
        """Input rows with their halo, some filters; per sample im2row, matmul."""
        geometry = ConvGeometry.of(op.attributes)
        samples = batch_range(ranges, op.attributes["batch"])
        channels, outputs = ranges["co"], ranges["ho"]
        n, rows = channels[1] - channels[0], outputs[1] - outputs[0]
        span = _forward_rows(geometry, outputs)
        k, m = geometry.forward_k, rows * geometry.wo
        dtype = tensors[op["y"]].dtype
        calls: list[KernelCall] = []
        for sample in range(samples[1] - samples[0]):
            calls.append(im2row_call(geometry, choice, part("x", sample), geometry.ci, span, rows, dtype))
            calls.append(
                matmul_call(
                    choice,
                    a="w",
                    b=ROWS,
                    c=part("y", sample),
                    n=n,
                    k=k,
                    m=m,
                    trans_b=True,
                    c_shape=(n, rows, geometry.wo),
                    dtype=dtype,
                )
            )
        return TileTask(
            inputs=(
                box(op, "x", samples, (0, geometry.ci), span.rows, (0, geometry.wi)),
                box(op, "w", channels, (0, geometry.ci), (0, geometry.hk), (0, geometry.wk)),
            ),
            outputs=(box(op, "y", samples, channels, outputs, (0, geometry.wo)),),
            scratch=(Scratch(ROWS, (m, k), dtype),),
            calls=tuple(calls),
        )


class _WeightGradient(_Conv2d):
    """WG: C = dW [co x ci·hk·wk] = sum over the batch of dy · im2row(x); both channels may be cut."""

    def extents(self, op: Op, tensors: Mapping[str, Tensor]) -> Mapping[str, int]:
        """Output channels, then input channels."""
        return {"co": op.attributes["co"], "ci": op.attributes["ci"]}

    def macs(self, op: Op, tensors: Mapping[str, Tensor]) -> int:
        """The same number as FW."""
        geometry = ConvGeometry.of(op.attributes)
        return int(op.attributes["batch"]) * geometry.co * geometry.ho * geometry.wo * geometry.forward_k

    def tile(
        self, op: Op, tensors: Mapping[str, Tensor], ranges: Mapping[str, Extent], choice: KernelChoice
    ) -> TileTask:
        """Some input channels and some channels of dy of all samples, all rows; im2row, matmul, add."""
        geometry = ConvGeometry.of(op.attributes)
        batch = op.attributes["batch"]
        targets, sources = ranges["co"], ranges["ci"]
        n, channels = targets[1] - targets[0], sources[1] - sources[0]
        span = _forward_rows(geometry, (0, geometry.ho))
        k, m = geometry.ho * geometry.wo, channels * geometry.hk * geometry.wk
        shape = (n, channels, geometry.hk, geometry.wk)
        dtype = tensors[op["dw"]].dtype
        terms = [
            (
                (im2row_call(geometry, choice, part("x", sample), channels, span, geometry.ho, dtype),),
                part("dy", sample),
                ROWS,
            )
            for sample in range(batch)
        ]
        scratch: tuple[Scratch, ...] = (Scratch(ROWS, (k, m), dtype),)
        if batch > 1:
            scratch = (*scratch, Scratch(PARTIAL, shape, dtype))
        return TileTask(
            inputs=(
                box(op, "x", (0, batch), sources, span.rows, (0, geometry.wi)),
                box(op, "dy", (0, batch), targets, (0, geometry.ho), (0, geometry.wo)),
            ),
            outputs=(box(op, "dw", targets, sources, (0, geometry.hk), (0, geometry.wk)),),
            scratch=scratch,
            calls=accumulated_matmul_calls(
                choice,
                terms,
                c="dw",
                scratch=PARTIAL,
                n=n,
                k=k,
                m=m,
                trans_b=False,
                c_shape=shape,
                dtype=dtype,
            ),
        )


class _InputGradient(_Conv2d):
    """IG: C = dx [ci x hi·wi] = Wbt · im2row(dy)ᵀ; samples, channels and image rows of dx may be cut."""

    def extents(self, op: Op, tensors: Mapping[str, Tensor]) -> Mapping[str, int]:
        """Samples, input channels, input rows."""
        attributes = op.attributes
        return {**batch_extent(attributes["batch"]), "ci": attributes["ci"], "hi": attributes["hi"]}

    def macs(self, op: Op, tensors: Mapping[str, Tensor]) -> int:
        """One patch of dy per input element, zeros of the virtual padding and dilation included."""
        geometry = ConvGeometry.of(op.attributes)
        return int(op.attributes["batch"]) * geometry.ci * geometry.hi * geometry.wi * geometry.gradient_k

    def tile(
        self, op: Op, tensors: Mapping[str, Tensor], ranges: Mapping[str, Extent], choice: KernelChoice
    ) -> TileTask:
        """Rows of dy that reach these rows, some channels of W; im2row, block transpose (once), matmul."""
        geometry = ConvGeometry.of(op.attributes)
        samples = batch_range(ranges, op.attributes["batch"])
        sources, inputs = ranges["ci"], ranges["hi"]
        n, rows = sources[1] - sources[0], inputs[1] - inputs[0]
        span = gradient_span(
            inputs, stride=geometry.stride, before=geometry.pads[0], kernel=geometry.hk, size=geometry.ho
        )
        k, m = geometry.gradient_k, rows * geometry.wi
        dtype = tensors[op["dx"]].dtype
        calls: list[KernelCall] = []
        for sample in range(samples[1] - samples[0]):
            calls.append(gradient_im2row_call(geometry, choice, part("dy", sample), span, rows, dtype))
            if sample == 0:
                calls.append(block_transpose_call(geometry, choice, n, dtype))
            calls.append(
                matmul_call(
                    choice,
                    a=TRANSPOSED,
                    b=ROWS,
                    c=part("dx", sample),
                    n=n,
                    k=k,
                    m=m,
                    trans_b=True,
                    c_shape=(n, rows, geometry.wi),
                    dtype=dtype,
                )
            )
        return TileTask(
            inputs=(
                box(op, "dy", samples, (0, geometry.co), span.rows, (0, geometry.wo)),
                box(op, "w", (0, geometry.co), sources, (0, geometry.hk), (0, geometry.wk)),
            ),
            outputs=(box(op, "dx", samples, sources, inputs, (0, geometry.wi)),),
            scratch=(Scratch(ROWS, (m, k), dtype), Scratch(TRANSPOSED, (n, k), dtype)),
            calls=tuple(calls),
        )


def _torch_forward(torch: Any, attributes: Mapping[str, Any], tensors: Mapping[str, Any]) -> Any:
    padding = (attributes["pads"][0], attributes["pads"][2])
    return torch.nn.functional.conv2d(
        tensors["x"], tensors["w"], stride=attributes["stride"], padding=padding
    )


PRIMITIVE = LayerPrimitive(
    name="conv2d",
    schema=_Schema,
    plan=_plan,
    steps=(
        Step("FW", ("x", "w"), ("y",), reference.forward, _Forward()),
        Step("WG", ("x", "dy"), ("dw",), reference.weight_gradient, _WeightGradient()),
        Step("IG", ("dy", "w"), ("dx",), reference.input_gradient, _InputGradient()),
    ),
    torch_forward=_torch_forward,
    examples=(
        Example({"out_channels": 3, "kernel": 3}, ((2, 6, 5),)),
        Example({"out_channels": 2, "kernel": 3, "padding": 1, "stride": 2}, ((3, 7, 6),)),
        Example({"out_channels": 2, "kernel": 5, "padding": 2}, ((1, 6, 7),)),
        Example({"out_channels": 2, "kernel": 1, "stride": 3}, ((2, 6, 6),)),
    ),
    refused=(
        Refused({"out_channels": 2, "kernel": 9}, ((1, 8, 8),), "kernel 9x9 is larger than the padded input"),
        Refused({"out_channels": 2, "kernel": 3, "padding": 3}, ((1, 8, 8),), "padding 3 is not smaller"),
        Refused({"out_channels": 0, "kernel": 3}, ((1, 8, 8),), "out_channels"),
        Refused({"out_channels": 2, "kernel": 3, "stride": 0}, ((1, 8, 8),), "stride"),
        Refused({"out_channels": 2, "kernel": 3}, ((8,),), "needs an image"),
    ),
)
