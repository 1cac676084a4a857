"""2D convolution without bias, CHW, as matmul over an im2row matrix, every step with padding and stride.

Matmul extents per step as in PULP-TrainLib: FW (N=co, K=ci·hk·wk, M=ho·wo, B transposed), WG (N=co, K=ho·wo,
M=ci·hk·wk), IG (N=ci, K=co·hk·wk, M=hi·wi, B transposed) over the im2row of the output gradient and the
weights block-transposed and rotated. The library's own WG ignores padding and its IG padding and stride
(found by running it); here all three are what the mathematics says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from arch.isa import TeamWork
from configs.errors import ShapeError
from trainlib.graph import Op, Tensor
from trainlib.kernels import catalogue
from trainlib.primitives import conv2d_reference as reference
from trainlib.primitives.calls import matmul_call
from trainlib.primitives.conv_geometry import (
    ConvGeometry,
    Pads,
    Span,
    block_transpose,
    forward_span,
    gradient_span,
    im2row,
    im2row_of_gradient,
)
from trainlib.primitives.definition import LayerPrimitive, LayerShapes, Shape, Step
from trainlib.steps import Array, Extent, KernelCall, KernelChoice, Operand, Scratch, TileTask

ROWS = "im2row"
"""Name of the scratch buffer of the im2row matrix."""

TRANSPOSED = "weights_transposed"
"""Name of the scratch buffer of the block-transposed weights."""


def _shapes(attributes: Mapping[str, Any], input_shape: Shape, where: str) -> LayerShapes:
    if len(input_shape) != 3:
        raise ShapeError(
            f"conv2d needs an image (channels, height, width), its input has shape {input_shape}",
            where=where,
            cure="put it before flatten and linear",
        )
    ci, hi, wi = input_shape
    co, stride, padding = (
        attributes["out_channels"],
        attributes.get("stride", 1),
        attributes.get("padding", 0),
    )
    hk = wk = attributes["kernel"]
    if co < 1 or hk < 1 or stride < 1 or padding < 0:
        raise ShapeError(
            f"out_channels {co}, kernel {hk}, stride {stride} must be at least 1, padding {padding} "
            "at least 0",
            where=where,
        )
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
    return LayerShapes(
        output=(co, ho, wo),
        weight=(co, ci, hk, wk),
        attributes={**resolved, "stride": stride, "pads": (padding,) * 4},
    )


def _forward_rows(geometry: ConvGeometry, outputs: Extent) -> Span:
    return forward_span(
        outputs, stride=geometry.stride, before=geometry.pads[0], kernel=geometry.hk, size=geometry.hi
    )


def _im2row_call(
    geometry: ConvGeometry, choice: KernelChoice, source: str, channels: int, span: Span, rows: int
) -> KernelCall:
    """The im2row of `channels` x `span` rows of the input for `rows` output rows."""
    left, right = geometry.pads[2:]
    pads: Pads = (span.before, span.after, left, right)

    def work(cores: int, addresses: Mapping[str, int]) -> TeamWork:
        return catalogue.im2row_work(
            choice.codegen,
            mode="FW",
            ci=channels,
            hi=span.count,
            wi=geometry.wi,
            hk=geometry.hk,
            wk=geometry.wk,
            ho=rows,
            wo=geometry.wo,
            stride=geometry.stride,
            pads=pads,
            cores=cores,
            source_address=addresses[source],
            target_address=addresses[ROWS],
        )

    def function(arrays: Sequence[Array]) -> tuple[Array, ...]:
        matrix = im2row(
            arrays[0],
            hk=geometry.hk,
            wk=geometry.wk,
            rows=rows,
            columns=geometry.wo,
            stride=geometry.stride,
            top=span.before,
            left=left,
        )
        return (matrix,)

    return KernelCall("im2row", (source,), (ROWS,), work, function)


class _Conv2d:
    """What the three steps share."""

    def default_kernel(self, op: Op) -> str:
        """The naive row-parallel kernel, PULP-TrainLib's own default."""
        return "mm"


class _Forward(_Conv2d):
    """FW: C = y [co x ho·wo] = W · im2row(x)ᵀ; channels and image rows of y may be cut."""

    def extents(self, op: Op, tensors: Mapping[str, Tensor]) -> Mapping[str, int]:
        """Output channels, then output rows."""
        return {"co": op.attributes["co"], "ho": op.attributes["ho"]}

    def macs(self, op: Op, tensors: Mapping[str, Tensor]) -> int:
        """One patch per output element."""
        geometry = ConvGeometry.of(op.attributes)
        return geometry.co * geometry.ho * geometry.wo * geometry.forward_k

    def tile(
        self, op: Op, tensors: Mapping[str, Tensor], ranges: Mapping[str, Extent], choice: KernelChoice
    ) -> TileTask:
        """Input rows with their halo, some filters; im2row, matmul."""
        geometry = ConvGeometry.of(op.attributes)
        x, w = op.inputs
        (y,) = op.outputs
        channels, outputs = ranges["co"], ranges["ho"]
        n, rows = channels[1] - channels[0], outputs[1] - outputs[0]
        span = _forward_rows(geometry, outputs)
        k, m = geometry.forward_k, rows * geometry.wo
        product = matmul_call(
            choice, a=w, b=ROWS, c=y, n=n, k=k, m=m, trans_b=True, c_shape=(n, rows, geometry.wo)
        )
        return TileTask(
            inputs=(
                Operand(x, ((0, geometry.ci), span.rows, (0, geometry.wi))),
                Operand(w, (channels, (0, geometry.ci), (0, geometry.hk), (0, geometry.wk))),
            ),
            outputs=(Operand(y, (channels, outputs, (0, geometry.wo))),),
            scratch=(Scratch(ROWS, (m, k)),),
            calls=(_im2row_call(geometry, choice, x, geometry.ci, span, rows), product),
        )


class _WeightGradient(_Conv2d):
    """WG: C = dW [co x ci·hk·wk] = dy · im2row(x); output and input channels may be cut."""

    def extents(self, op: Op, tensors: Mapping[str, Tensor]) -> Mapping[str, int]:
        """Output channels, then input channels."""
        return {"co": op.attributes["co"], "ci": op.attributes["ci"]}

    def macs(self, op: Op, tensors: Mapping[str, Tensor]) -> int:
        """The same number as FW."""
        geometry = ConvGeometry.of(op.attributes)
        return geometry.co * geometry.ho * geometry.wo * geometry.forward_k

    def tile(
        self, op: Op, tensors: Mapping[str, Tensor], ranges: Mapping[str, Extent], choice: KernelChoice
    ) -> TileTask:
        """Some input channels and some channels of dy, all rows of both; im2row, matmul."""
        geometry = ConvGeometry.of(op.attributes)
        x, dy = op.inputs
        (dw,) = op.outputs
        targets, sources = ranges["co"], ranges["ci"]
        n, channels = targets[1] - targets[0], sources[1] - sources[0]
        span = _forward_rows(geometry, (0, geometry.ho))
        k, m = geometry.ho * geometry.wo, channels * geometry.hk * geometry.wk
        product = matmul_call(
            choice,
            a=dy,
            b=ROWS,
            c=dw,
            n=n,
            k=k,
            m=m,
            trans_b=False,
            c_shape=(n, channels, geometry.hk, geometry.wk),
        )
        return TileTask(
            inputs=(
                Operand(x, (sources, span.rows, (0, geometry.wi))),
                Operand(dy, (targets, (0, geometry.ho), (0, geometry.wo))),
            ),
            outputs=(Operand(dw, (targets, sources, (0, geometry.hk), (0, geometry.wk))),),
            scratch=(Scratch(ROWS, (k, m)),),
            calls=(_im2row_call(geometry, choice, x, channels, span, geometry.ho), product),
        )


class _InputGradient(_Conv2d):
    """IG: C = dx [ci x hi·wi] = Wbt · im2row(dy)ᵀ; input channels and image rows of dx may be cut."""

    def extents(self, op: Op, tensors: Mapping[str, Tensor]) -> Mapping[str, int]:
        """Input channels, then input rows."""
        return {"ci": op.attributes["ci"], "hi": op.attributes["hi"]}

    def macs(self, op: Op, tensors: Mapping[str, Tensor]) -> int:
        """One patch of dy per input element, zeros of the virtual padding and dilation included."""
        geometry = ConvGeometry.of(op.attributes)
        return geometry.ci * geometry.hi * geometry.wi * geometry.gradient_k

    def tile(
        self, op: Op, tensors: Mapping[str, Tensor], ranges: Mapping[str, Extent], choice: KernelChoice
    ) -> TileTask:
        """Rows of dy that reach these rows, some channels of W; im2row, block transpose, matmul."""
        geometry = ConvGeometry.of(op.attributes)
        dy, w = op.inputs
        (dx,) = op.outputs
        sources, inputs = ranges["ci"], ranges["hi"]
        n, rows = sources[1] - sources[0], inputs[1] - inputs[0]
        span = gradient_span(
            inputs, stride=geometry.stride, before=geometry.pads[0], kernel=geometry.hk, size=geometry.ho
        )
        k, m = geometry.gradient_k, rows * geometry.wi
        product = matmul_call(
            choice, a=TRANSPOSED, b=ROWS, c=dx, n=n, k=k, m=m, trans_b=True, c_shape=(n, rows, geometry.wi)
        )
        return TileTask(
            inputs=(
                Operand(dy, ((0, geometry.co), span.rows, (0, geometry.wo))),
                Operand(w, ((0, geometry.co), sources, (0, geometry.hk), (0, geometry.wk))),
            ),
            outputs=(Operand(dx, (sources, inputs, (0, geometry.wi))),),
            scratch=(Scratch(ROWS, (m, k)), Scratch(TRANSPOSED, (n, k))),
            calls=(
                _gradient_im2row_call(geometry, choice, dy, span, rows),
                _transpose_call(geometry, choice, w, n),
                product,
            ),
        )


def _gradient_im2row_call(
    geometry: ConvGeometry, choice: KernelChoice, source: str, span: Span, rows: int
) -> KernelCall:
    """The im2row of `span` rows of the output gradient for `rows` input rows (mode 1 of the library)."""
    left = geometry.wk - 1 - geometry.pads[2]
    # The loop nest wants the padding of the forward convolution from these rows of dx to these rows of dy.
    up, down = geometry.hk - 1 - span.before, geometry.hk - 1 - span.after

    def work(cores: int, addresses: Mapping[str, int]) -> TeamWork:
        return catalogue.im2row_work(
            choice.codegen,
            mode="IG",
            ci=geometry.co,
            hi=rows,
            wi=geometry.wi,
            hk=geometry.hk,
            wk=geometry.wk,
            ho=span.count,
            wo=geometry.wo,
            stride=geometry.stride,
            pads=(up, down, *geometry.pads[2:]),
            cores=cores,
            source_address=addresses[source],
            target_address=addresses[ROWS],
        )

    def function(arrays: Sequence[Array]) -> tuple[Array, ...]:
        matrix = im2row_of_gradient(
            arrays[0],
            hk=geometry.hk,
            wk=geometry.wk,
            rows=rows,
            columns=geometry.wi,
            stride=geometry.stride,
            top=span.before,
            left=left,
        )
        return (matrix,)

    return KernelCall("im2row", (source,), (ROWS,), work, function)


def _transpose_call(geometry: ConvGeometry, choice: KernelChoice, source: str, channels: int) -> KernelCall:
    """Weights [co, channels, hk, wk] to [channels, co·hk·wk], rotated."""

    def work(cores: int, addresses: Mapping[str, int]) -> TeamWork:
        return catalogue.blocktransp_work(
            choice.codegen,
            co=geometry.co,
            ci=channels,
            hk=geometry.hk,
            wk=geometry.wk,
            cores=cores,
            source_address=addresses[source],
            target_address=addresses[TRANSPOSED],
        )

    return KernelCall(
        "blocktransp", (source,), (TRANSPOSED,), work, lambda arrays: (block_transpose(arrays[0]),)
    )


def _torch_forward(torch: Any, attributes: Mapping[str, Any], x: Any, w: Any) -> Any:
    padding = (attributes["pads"][0], attributes["pads"][2])
    return torch.nn.functional.conv2d(x, w, stride=attributes["stride"], padding=padding)


PRIMITIVE = LayerPrimitive(
    name="conv2d",
    shapes=_shapes,
    batched=reference.batched,
    torch_forward=_torch_forward,
    forward=Step(("x", "w"), ("y",), reference.forward, _Forward()),
    weight_gradient=Step(("x", "dy"), ("dw",), reference.weight_gradient, _WeightGradient()),
    input_gradient=Step(("dy", "w"), ("dx",), reference.input_gradient, _InputGradient()),
)
