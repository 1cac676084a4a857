"""Pointwise (1x1) convolution as a matmul on the image itself, without im2row; bias, CHW and HWC.

Arrangements as in PULP-TrainLib, positions = h·w:

- CHW, weights [co, ci]: FW (A=w, B=x), WG (A=dy, B=x transposed), IG (A=wᵀ by a transpose, B=dy);
- HWC in fp32, weights [ci, co]: FW (A=x, B=w), WG (A=xᵀ by a transpose, B=dy), IG (A=dy, B=wᵀ by a
  transpose);
- HWC in 16 bit, weights [co, ci]: FW (A=x, B=w transposed), WG (A=dyᵀ, B=xᵀ by two transposes, B
  transposed), IG (A=dy, B=wᵀ by a transpose, B transposed).

The library's fp32 IG exchanges rows and columns in its transpose, right only for ci = co, and it has no bias.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from configs.dtypes import is_narrow
from configs.model_file import LayerSchema
from trainlib.graph import Initial, Op, Tensor
from trainlib.primitives.contractions import conv2d_reference as reference
from trainlib.primitives.contractions.conv_calls import accumulated, bias_add_call, bias_sum_call
from trainlib.primitives.contractions.conv_direct import PARTIAL
from trainlib.primitives.contractions.conv_examples import pointwise_cases
from trainlib.primitives.contractions.conv_geometry import ConvGeometry
from trainlib.primitives.contractions.conv_options import image_extents, image_shape
from trainlib.primitives.contractions.conv_ranges import (
    Cut,
    count,
    cut_of,
    interval,
    position_sums,
    result_extents,
    summed,
)
from trainlib.primitives.definition import (
    ZEROS,
    Example,
    LayerPlan,
    LayerPrimitive,
    Parameter,
    Positive,
    Refused,
    Step,
    Values,
)
from trainlib.primitives.lowering.calls import BATCH, box, matmul_call, transpose_call
from trainlib.steps import Extent, KernelCall, KernelChoice, Scratch, TileTask, part

WEIGHTS_TRANSPOSED, X_TRANSPOSED, DY_TRANSPOSED = "w_transposed", "x_transposed", "dy_transposed"
"""Names of the scratch buffers of the pre-passes."""


class _Schema(LayerSchema):
    out_channels: Positive
    bias: bool = False


def _plan(attributes: Mapping[str, Any], inputs: Sequence[Tensor], where: str) -> LayerPlan:
    batch, ci, height, width = image_extents("pointwise", inputs[0], where)
    co, layout = attributes["out_channels"], inputs[0].layout
    sources_first = layout == "HWC" and not is_narrow(inputs[0].dtype)
    start = Initial("uniform", float((6 / ci) ** 0.5))
    parameters = {"w": Parameter((ci, co) if sources_first else (co, ci), start)}
    if attributes["bias"]:
        parameters["b"] = Parameter((co,), ZEROS)
    carried = {
        **{"ci": ci, "hi": height, "wi": width, "co": co, "ho": height, "wo": width, "hk": 1, "wk": 1},
        **{"strides": (1, 1), "dilations": (1, 1), "pads": (0, 0, 0, 0), "groups": 1, "layout": layout},
    }
    return LayerPlan(
        image_shape(layout, batch, co, height, width),
        parameters,
        attributes={**carried, "batch": batch, "sources_first": sources_first},
    )


class _Pointwise:
    """What the three steps share."""

    def default_kernel(self, op: Op) -> str:
        """The naive row-parallel kernel, PULP-TrainLib's own default."""
        return "mm"

    def macs(self, op: Op, tensors: Mapping[str, Tensor]) -> int:
        """batch · ci · co · positions in every step."""
        geometry = ConvGeometry.of(op.attributes)
        return int(op.attributes["batch"]) * geometry.ci * geometry.co * geometry.hi * geometry.wi


class _Forward(_Pointwise):
    """FW; samples, output channels and positions may be cut, and the sum over input channels."""

    def extents(self, op: Op, tensors: Mapping[str, Tensor]) -> Mapping[str, int]:
        """Samples, output channels, rows, columns."""
        return result_extents(op, "co", "ho", "wo")

    def reductions(self, op: Op, tensors: Mapping[str, Tensor]) -> Mapping[str, int]:
        """Input channels."""
        return summed(ci=op.attributes["ci"])

    def tile(
        self, op: Op, tensors: Mapping[str, Tensor], ranges: Mapping[str, Extent], choice: KernelChoice
    ) -> TileTask:
        """Input channels of some positions, their weights for some outputs; per sample a matmul, the bias."""
        geometry = ConvGeometry.of(op.attributes)
        cut = cut_of(op, ranges, ("co", "ho", "wo"), "ci", op.attributes["ci"])
        samples, channels, rows, columns, sources = cut
        dtype = tensors[op["y"]].dtype
        biased = "b" in op and sources[0] == 0
        calls: list[KernelCall] = []
        for sample in range(count(samples)):
            target = part("y", sample)
            calls.append(_product(op, choice, cut, "w", part("x", sample), target, dtype))
            if biased:
                calls.append(
                    bias_add_call(
                        geometry,
                        choice,
                        image=target,
                        bias="b",
                        channels=count(channels),
                        positions=count(rows) * count(columns),
                        dtype=dtype,
                    )
                )
        inputs = [
            box(op, "x", samples, *geometry.image(sources, rows, columns)),
            box(op, "w", *_weights(op, channels, sources)),
        ]
        if biased:
            inputs.append(box(op, "b", channels))
        result = box(op, "y", samples, *geometry.image(channels, rows, columns))
        return TileTask(tuple(inputs), (result,), (), tuple(calls))


class _WeightGradient(_Pointwise):
    """WG; both kinds of channels may be cut, and the sum over samples and positions."""

    def extents(self, op: Op, tensors: Mapping[str, Tensor]) -> Mapping[str, int]:
        """Output channels, then input channels."""
        return {"co": op.attributes["co"], "ci": op.attributes["ci"]}

    def reductions(self, op: Op, tensors: Mapping[str, Tensor]) -> Mapping[str, int]:
        """Samples, rows, columns."""
        return position_sums(op)

    def tile(
        self, op: Op, tensors: Mapping[str, Tensor], ranges: Mapping[str, Extent], choice: KernelChoice
    ) -> TileTask:
        """Some channels of x and dy of some samples; per sample transposes, matmul, add; db."""
        geometry = ConvGeometry.of(op.attributes)
        samples = interval(op, ranges, BATCH)
        targets, sources = interval(op, ranges, "co"), interval(op, ranges, "ci")
        rows, columns = interval(op, ranges, "ho"), interval(op, ranges, "wo")
        co, ci, positions = count(targets), count(sources), count(rows) * count(columns)
        dtype = tensors[op["dw"]].dtype
        sources_first = op.attributes["sources_first"]
        shape = (ci, co) if sources_first else (co, ci)
        terms = []
        for sample in range(count(samples)):
            x, dy = part("x", sample), part("dy", sample)
            before: list[KernelCall] = []
            if geometry.hwc:
                before.append(_transposed(choice, x, X_TRANSPOSED, positions, ci, dtype))
            if geometry.hwc and not sources_first:
                before.insert(0, _transposed(choice, dy, DY_TRANSPOSED, positions, co, dtype))
            if not geometry.hwc:
                left, right = dy, x
            elif sources_first:
                left, right = X_TRANSPOSED, dy
            else:
                left, right = DY_TRANSPOSED, X_TRANSPOSED
            first, further = (
                matmul_call(
                    choice,
                    a=left,
                    b=right,
                    c=target,
                    n=shape[0],
                    k=positions,
                    m=shape[1],
                    trans_b=not sources_first,
                    c_shape=shape,
                    dtype=dtype,
                )
                for target in ("dw", PARTIAL)
            )
            terms.append((before, first, further))
        calls = accumulated(
            choice, terms, total="dw", scratch=PARTIAL, elements=int(np.prod(shape)), dtype=dtype
        )
        outputs = [box(op, "dw", *_weights(op, targets, sources))]
        if "db" in op and sources[0] == 0:
            outputs.append(box(op, "db", targets))
            calls.append(
                bias_sum_call(
                    geometry,
                    choice,
                    sources=[part("dy", sample) for sample in range(count(samples))],
                    target="db",
                    channels=co,
                    positions=positions,
                    dtype=dtype,
                )
            )
        scratch: list[Scratch] = []
        if geometry.hwc:
            scratch.append(Scratch(X_TRANSPOSED, (ci, positions), dtype))
        if geometry.hwc and not sources_first:
            scratch.append(Scratch(DY_TRANSPOSED, (co, positions), dtype))
        if count(samples) > 1:
            scratch.append(Scratch(PARTIAL, shape, dtype))
        return TileTask(
            (
                box(op, "x", samples, *geometry.image(sources, rows, columns)),
                box(op, "dy", samples, *geometry.image(targets, rows, columns)),
            ),
            tuple(outputs),
            tuple(scratch),
            tuple(calls),
        )


class _InputGradient(_Pointwise):
    """IG; samples, input channels and positions may be cut, and the sum over output channels."""

    def extents(self, op: Op, tensors: Mapping[str, Tensor]) -> Mapping[str, int]:
        """Samples, input channels, rows, columns."""
        return result_extents(op, "ci", "hi", "wi")

    def reductions(self, op: Op, tensors: Mapping[str, Tensor]) -> Mapping[str, int]:
        """Output channels."""
        return summed(co=op.attributes["co"])

    def tile(
        self, op: Op, tensors: Mapping[str, Tensor], ranges: Mapping[str, Extent], choice: KernelChoice
    ) -> TileTask:
        """Channels of dy of some positions, their weights of some inputs; a transpose, then matmuls."""
        geometry = ConvGeometry.of(op.attributes)
        cut = cut_of(op, ranges, ("ci", "hi", "wi"), "co", op.attributes["co"])
        samples, channels, rows, columns, targets = cut
        dtype = tensors[op["dx"]].dtype
        before, after = (count(targets), count(channels)), (count(channels), count(targets))
        if op.attributes["sources_first"]:
            before, after = after, before
        calls = [_transposed(choice, "w", WEIGHTS_TRANSPOSED, *before, dtype)]
        calls += [
            _product(op, choice, cut, WEIGHTS_TRANSPOSED, part("dy", sample), part("dx", sample), dtype)
            for sample in range(count(samples))
        ]
        return TileTask(
            (
                box(op, "dy", samples, *geometry.image(targets, rows, columns)),
                box(op, "w", *_weights(op, targets, channels)),
            ),
            (box(op, "dx", samples, *geometry.image(channels, rows, columns)),),
            (Scratch(WEIGHTS_TRANSPOSED, after, dtype),),
            tuple(calls),
        )


def _product(
    op: Op, choice: KernelChoice, cut: Cut, weights: str, image: str, target: str, dtype: str
) -> KernelCall:
    """The tile `cut` of one sample of `target`: weights times image, in HWC image times weights."""
    geometry = ConvGeometry.of(op.attributes)
    channels, rows, columns = count(cut.channels), count(cut.rows), count(cut.columns)
    left, right, n, m = (weights, image, channels, rows * columns)
    if geometry.hwc:
        left, right, n, m = (image, weights, rows * columns, channels)
    return matmul_call(
        choice,
        a=left,
        b=right,
        c=target,
        n=n,
        k=count(cut.summed),
        m=m,
        trans_b=geometry.hwc and not op.attributes["sources_first"],
        c_shape=geometry.image_shape(channels, rows, columns),
        dtype=dtype,
    )


def _weights(op: Op, targets: Extent, sources: Extent) -> tuple[Extent, Extent]:
    """A box of the weights, in their order."""
    return (sources, targets) if op.attributes["sources_first"] else (targets, sources)


def _transposed(
    choice: KernelChoice, source: str, target: str, rows: int, columns: int, dtype: str
) -> KernelCall:
    return transpose_call(choice, source=source, target=target, rows=rows, columns=columns, dtype=dtype)


def _reference(op: Op, values: Values) -> dict[str, Any]:
    """The values with weights as those of a 1x1 convolution in the layout."""
    result = dict(values)
    if "w" in values:
        weights = values["w"].T if op.attributes["sources_first"] else values["w"]
        hwc = op.attributes["layout"] == "HWC"
        result["w"] = weights[:, None, None, :] if hwc else weights[:, :, None, None]
    return result


def _weight_gradient(op: Op, values: Values) -> Values:
    results = dict(reference.weight_gradient(op, values))
    gradient = results["dw"].reshape(op.attributes["co"], op.attributes["ci"])
    results["dw"] = np.ascontiguousarray(gradient.T) if op.attributes["sources_first"] else gradient
    return results


def _torch_forward(torch: Any, attributes: Mapping[str, Any], tensors: Mapping[str, Any]) -> Any:
    weights = tensors["w"].T if attributes["sources_first"] else tensors["w"]
    if attributes["layout"] == "HWC":
        return torch.nn.functional.linear(tensors["x"], weights, tensors.get("b"))
    return torch.nn.functional.conv2d(tensors["x"], weights[:, :, None, None], tensors.get("b"))


PRIMITIVE = LayerPrimitive(
    name="pointwise",
    schema=_Schema,
    plan=_plan,
    steps=(
        Step(
            "FW",
            ("x", "w", "b?"),
            ("y",),
            lambda op, values: reference.forward(op, _reference(op, values)),
            _Forward(),
        ),
        Step("WG", ("x", "dy"), ("dw", "db?"), _weight_gradient, _WeightGradient()),
        Step(
            "IG",
            ("dy", "w"),
            ("dx",),
            lambda op, values: reference.input_gradient(op, _reference(op, values)),
            _InputGradient(),
        ),
    ),
    torch_forward=_torch_forward,
    examples=(
        Example({"out_channels": 3}, ((5, 4, 3),), kernels=("mm_M", "mm_unroll_2x4")),
        Example({"out_channels": 4, "bias": True}, ((2, 3, 5),)),
        Example({"layout": "HWC", "out_channels": 3}, ((4, 3, 5),), kernels=("mm_M",)),
        Example({"layout": "HWC", "out_channels": 5, "bias": True}, ((3, 2, 4),)),
    ),
    refused=(
        Refused({"out_channels": 2}, ((8,),), "pointwise needs an image"),
        Refused({"out_channels": 0}, ((1, 8, 8),), "out_channels"),
        Refused({"out_channels": 2, "kernel": 3}, ((1, 8, 8),), "unknown key 'kernel'"),
    ),
    cases=pointwise_cases,
    layouts=("CHW", "HWC"),
)
