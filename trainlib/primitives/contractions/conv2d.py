"""2D convolution in CHW and HWC, every step with padding per side, strides, dilation, groups and bias.

With im2col, matmul extents per step and group as in PULP-TrainLib:

- CHW: FW (N=co, K=ci·hk·wk, M=ho·wo, B transposed), WG (N=co, K=ho·wo, M=ci·hk·wk), IG (N=ci, K=co·hk·wk,
  M=hi·wi, B transposed) over the im2row of the output gradient and the weights block-transposed and rotated;
- HWC, weights [co, hk, wk, ci]: FW (N=ho·wo, K, M=co, B transposed), WG on the transposed output gradient and
  the im2col (N=co, K=ho·wo, M=hk·wk·ci, B transposed), IG (N=hi·wi, K, M=ci, B transposed).

`im2col` is ``cores`` (an im2row kernel), ``dma`` (patches fetched by 2D transfers, see `conv_unroll`; HWC WG
then multiplies with the im2row matrix, B not transposed) or ``none`` (direct loops, see `conv_direct`). The
library's own WG ignores padding and its IG padding and stride (found by running it); here all three are what
the mathematics says. Kernels work on one sample at a time: a tile calls them once for each, and WG adds up
the samples of the batch. The groups of a sample share one fork (see `conv_groups`). The bias is a fork
behind the matmul, its gradient a sum of dy in WG.

Every step may be cut along all dimensions of its result and of its sum, the kernel window excepted (a tile
of one channel holds it at 4 B x window); a tile over part of the channels (FW, IG) or of the positions (WG)
unrolls only that part.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from configs.errors import ShapeError
from trainlib.graph import Op, Tensor
from trainlib.primitives.contractions import conv2d_reference as reference
from trainlib.primitives.contractions.conv_calls import (
    PARTIAL,
    TRANSPOSED,
    accumulated,
    bias_add_call,
    bias_sum_call,
    block_transpose_call,
    forward_view,
    gradient_view,
)
from trainlib.primitives.contractions.conv_direct import DirectForward, DirectInput, DirectWeights
from trainlib.primitives.contractions.conv_examples import CONV2D_EXAMPLES, CONV2D_REFUSED, conv2d_cases
from trainlib.primitives.contractions.conv_geometry import ConvGeometry, segments
from trainlib.primitives.contractions.conv_groups import (
    channels_met,
    filter_product,
    gradient_product,
    within_group,
)
from trainlib.primitives.contractions.conv_options import (
    ChannelSchema,
    convolution_attributes,
    convolution_parameters,
    image_shape,
    torch_convolution,
)
from trainlib.primitives.contractions.conv_ranges import (
    count,
    cut_of,
    interval,
    position_sums,
    result_extents,
    summed,
)
from trainlib.primitives.contractions.conv_unroll import unrolled
from trainlib.primitives.definition import LayerPlan, LayerPrimitive, Step
from trainlib.primitives.lowering.calls import BATCH, box, transpose_call
from trainlib.steps import CutsReductions, Extent, KernelCall, KernelChoice, Scratch, TileTask, part

GRADIENT_TRANSPOSED = "dy_transposed"
"""Name of the scratch buffer of dyᵀ in the WG of HWC."""


class _Schema(ChannelSchema):
    im2col: Literal["cores", "dma", "none"] = "cores"


def _plan(attributes: Mapping[str, Any], inputs: Sequence[Tensor], where: str) -> LayerPlan:
    co, groups = attributes["out_channels"], attributes["groups"]
    carried = convolution_attributes(attributes, inputs[0], co, groups, where, "conv2d")
    if attributes["im2col"] == "dma" and groups > 1:
        raise ShapeError(
            f"im2col by DMA knows one group, not {groups}", where=where, cure="im2col: cores, or groups: 1"
        )
    geometry = ConvGeometry.of(carried)
    weights = geometry.filters_shape(co, geometry.ci_of_group)
    return LayerPlan(
        image_shape(geometry.layout, carried["batch"], co, geometry.ho, geometry.wo),
        convolution_parameters(weights, co, attributes["bias"]),
        attributes={**carried, "im2col": attributes["im2col"]},
    )


class _Conv2d:
    """What the three steps share."""

    def default_kernel(self, op: Op) -> str:
        """The naive row-parallel kernel, PULP-TrainLib's own default."""
        return "mm"


class _Forward(_Conv2d):
    """FW: C = y; samples, channels, rows and columns of y may be cut, and the sum over input channels."""

    def extents(self, op: Op, tensors: Mapping[str, Tensor]) -> Mapping[str, int]:
        """Samples, output channels, output rows, output columns."""
        return result_extents(op, "co", "ho", "wo")

    def reductions(self, op: Op, tensors: Mapping[str, Tensor]) -> Mapping[str, int]:
        """Input channels of a group."""
        return summed(ci=ConvGeometry.of(op.attributes).ci_of_group)

    def macs(self, op: Op, tensors: Mapping[str, Tensor]) -> int:
        """One patch per output element."""
        return _forward_macs(op)

    def tile(
        self, op: Op, tensors: Mapping[str, Tensor], ranges: Mapping[str, Extent], choice: KernelChoice
    ) -> TileTask:
        """An input box with its halo, some filters; per sample and group im2row, matmul, bias."""
        geometry = ConvGeometry.of(op.attributes)
        samples, channels, outputs, columns, taken = cut_of(
            op, ranges, ("co", "ho", "wo"), "ci", geometry.ci_of_group
        )
        parts = segments(channels, geometry.co_of_group, geometry.ci_of_group)
        view = forward_view(geometry, outputs, columns)
        dtype = tensors[op["y"]].dtype
        sources, groups = channels_met(parts, taken)
        matrices = unrolled(op, "x", geometry, choice, view, samples, sources, groups, dtype)
        shape = geometry.image_shape(count(channels), count(outputs), count(columns))
        k = count(taken) * geometry.window
        # The bias counts once: it belongs to the first part of the sum.
        biased = "b" in op and taken[0] == 0
        calls: list[KernelCall] = []
        for sample, names in enumerate(matrices.names):
            target = part("y", sample)
            calls += matrices.calls[sample]
            calls.append(
                filter_product(geometry, choice, parts, "w", names, target, k, view.positions, shape, dtype)
            )
            if biased:
                calls.append(
                    bias_add_call(
                        geometry,
                        choice,
                        image=target,
                        bias="b",
                        channels=count(channels),
                        positions=view.positions,
                        dtype=dtype,
                    )
                )
        weights = box(op, "w", *geometry.filters(channels, taken))
        bias = (box(op, "b", channels),) if biased else ()
        result = box(op, "y", samples, *geometry.image(channels, outputs, columns))
        return TileTask((*matrices.operands, weights, *bias), (result,), matrices.scratch, tuple(calls))


class _WeightGradient(_Conv2d):
    """WG: C = dW, a sum over the batch of dy · im2row(x); everything may be cut but the kernel window."""

    def extents(self, op: Op, tensors: Mapping[str, Tensor]) -> Mapping[str, int]:
        """Output channels, then input channels of a group."""
        geometry = ConvGeometry.of(op.attributes)
        return {"co": geometry.co, "ci": geometry.ci_of_group}

    def reductions(self, op: Op, tensors: Mapping[str, Tensor]) -> Mapping[str, int]:
        """Samples, output rows, output columns."""
        return position_sums(op)

    def macs(self, op: Op, tensors: Mapping[str, Tensor]) -> int:
        """The same number as FW."""
        return _forward_macs(op)

    def tile(
        self, op: Op, tensors: Mapping[str, Tensor], ranges: Mapping[str, Extent], choice: KernelChoice
    ) -> TileTask:
        """Some input channels and some channels of dy, of some samples and rows; im2row, matmul, add; db."""
        geometry = ConvGeometry.of(op.attributes)
        samples = interval(op, ranges, BATCH)
        outputs, columns = interval(op, ranges, "ho"), interval(op, ranges, "wo")
        channels, taken = interval(op, ranges, "co"), ranges["ci"]
        n = count(channels)
        parts = segments(channels, geometry.co_of_group, geometry.ci_of_group)
        view = forward_view(geometry, outputs, columns)
        dtype = tensors[op["dw"]].dtype
        sources, groups = channels_met(parts, taken)
        as_columns = geometry.hwc and op.attributes["im2col"] == "cores"
        matrices = unrolled(
            op, "x", geometry, choice, view, samples, sources, groups, dtype, columns=as_columns
        )
        shape = geometry.filters_shape(n, count(taken))
        positions, width = view.positions, count(taken) * geometry.window
        terms = []
        for sample, names in enumerate(matrices.names):
            before, left = list(matrices.calls[sample]), part("dy", sample)
            if geometry.hwc:
                before.append(
                    transpose_call(
                        choice,
                        source=left,
                        target=GRADIENT_TRANSPOSED,
                        rows=positions,
                        columns=n,
                        dtype=dtype,
                    )
                )
                left = GRADIENT_TRANSPOSED
            first, further = (
                gradient_product(
                    choice, parts, left, names, target, positions, width, as_columns, shape, dtype
                )
                for target in ("dw", PARTIAL)
            )
            terms.append((before, first, further))
        calls = accumulated(
            choice, terms, total="dw", scratch=PARTIAL, elements=int(np.prod(shape)), dtype=dtype
        )
        outputs_written = [box(op, "dw", *geometry.filters(channels, taken))]
        if "db" in op and taken[0] == 0:
            outputs_written.append(box(op, "db", channels))
            calls.append(
                bias_sum_call(
                    geometry,
                    choice,
                    sources=[part("dy", sample) for sample in range(count(samples))],
                    target="db",
                    channels=n,
                    positions=positions,
                    dtype=dtype,
                )
            )
        scratch = list(matrices.scratch)
        if geometry.hwc:
            scratch.append(Scratch(GRADIENT_TRANSPOSED, (n, positions), dtype))
        if count(samples) > 1:
            scratch.append(Scratch(PARTIAL, shape, dtype))
        gradient = box(op, "dy", samples, *geometry.image(channels, outputs, columns))
        return TileTask((*matrices.operands, gradient), tuple(outputs_written), tuple(scratch), tuple(calls))


class _InputGradient(_Conv2d):
    """IG: C = dx = Wbt · im2row(dy)ᵀ; a box of dx may be cut, and the sum over output channels."""

    def extents(self, op: Op, tensors: Mapping[str, Tensor]) -> Mapping[str, int]:
        """Samples, input channels, input rows, input columns."""
        return result_extents(op, "ci", "hi", "wi")

    def reductions(self, op: Op, tensors: Mapping[str, Tensor]) -> Mapping[str, int]:
        """Output channels of a group."""
        return summed(co=ConvGeometry.of(op.attributes).co_of_group)

    def macs(self, op: Op, tensors: Mapping[str, Tensor]) -> int:
        """One patch of dy per input element, zeros of the virtual padding and dilation included."""
        geometry = ConvGeometry.of(op.attributes)
        per_sample = geometry.ci * geometry.hi * geometry.wi * geometry.co_of_group * geometry.window
        return int(op.attributes["batch"]) * per_sample

    def tile(
        self, op: Op, tensors: Mapping[str, Tensor], ranges: Mapping[str, Extent], choice: KernelChoice
    ) -> TileTask:
        """The box of dy that reaches this one, some channels of W; im2row, block transpose (once), matmul."""
        geometry = ConvGeometry.of(op.attributes)
        samples, channels, inputs, columns, summed_over = cut_of(
            op, ranges, ("ci", "hi", "wi"), "co", geometry.co_of_group
        )
        parts = segments(channels, geometry.ci_of_group, geometry.co_of_group)
        view = gradient_view(geometry, inputs, columns)
        dtype = tensors[op["dx"]].dtype
        targets, groups = channels_met(parts, summed_over)
        matrices = unrolled(op, "dy", geometry, choice, view, samples, targets, groups, dtype)
        # The box of the weights has one range of input channels: all of them if there are several groups.
        taken = [within_group(item, geometry.ci_of_group) for item in parts]
        fetched = taken[0] if len(parts) == 1 else (0, geometry.ci_of_group)
        wanted = [
            (of_group, (start - fetched[0], stop - fetched[0]))
            for of_group, (start, stop) in zip(groups, taken, strict=True)
        ]
        k = count(summed_over) * geometry.window
        shape = geometry.image_shape(count(channels), count(inputs), count(columns))
        calls: list[KernelCall] = []
        for sample, names in enumerate(matrices.names):
            calls += matrices.calls[sample]
            if sample == 0:
                calls.append(block_transpose_call(geometry, choice, groups=wanted, dtype=dtype))
            target = part("dx", sample)
            calls.append(
                filter_product(
                    geometry, choice, parts, TRANSPOSED, names, target, k, view.positions, shape, dtype
                )
            )
        return TileTask(
            (*matrices.operands, box(op, "w", *geometry.filters(targets, fetched))),
            (box(op, "dx", samples, *geometry.image(channels, inputs, columns)),),
            (*matrices.scratch, Scratch(TRANSPOSED, (count(channels), k), dtype)),
            tuple(calls),
        )


@dataclass(frozen=True, slots=True)
class _Chosen:
    """The lowering the layer's `im2col` asks for."""

    matrix: CutsReductions
    direct: CutsReductions

    def _of(self, op: Op) -> CutsReductions:
        return self.direct if op.attributes["im2col"] == "none" else self.matrix

    def extents(self, op: Op, tensors: Mapping[str, Tensor]) -> Mapping[str, int]:
        """Those of the chosen one."""
        return self._of(op).extents(op, tensors)

    def reductions(self, op: Op, tensors: Mapping[str, Tensor]) -> Mapping[str, int]:
        """Those of the chosen one."""
        return self._of(op).reductions(op, tensors)

    def tile(
        self, op: Op, tensors: Mapping[str, Tensor], ranges: Mapping[str, Extent], choice: KernelChoice
    ) -> TileTask:
        """That of the chosen one."""
        return self._of(op).tile(op, tensors, ranges, choice)

    def default_kernel(self, op: Op) -> str:
        """That of the chosen one."""
        return self._of(op).default_kernel(op)

    def macs(self, op: Op, tensors: Mapping[str, Tensor]) -> int:
        """Those of the chosen one."""
        return self._of(op).macs(op, tensors)


def _forward_macs(op: Op) -> int:
    geometry = ConvGeometry.of(op.attributes)
    outputs = int(op.attributes["batch"]) * geometry.co * geometry.ho * geometry.wo
    return outputs * geometry.ci_of_group * geometry.window


PRIMITIVE = LayerPrimitive(
    name="conv2d",
    schema=_Schema,
    plan=_plan,
    steps=(
        Step("FW", ("x", "w", "b?"), ("y",), reference.forward, _Chosen(_Forward(), DirectForward())),
        Step(
            "WG",
            ("x", "dy"),
            ("dw", "db?"),
            reference.weight_gradient,
            _Chosen(_WeightGradient(), DirectWeights()),
        ),
        Step("IG", ("dy", "w"), ("dx",), reference.input_gradient, _Chosen(_InputGradient(), DirectInput())),
    ),
    torch_forward=torch_convolution,
    examples=CONV2D_EXAMPLES,
    refused=CONV2D_REFUSED,
    cases=conv2d_cases,
    layouts=("CHW", "HWC"),
)
