"""Convolutions by direct loops, without im2row: naive Conv2D, depthwise and transposed convolution.

One kernel call per sample computes all channels of a tile, in parallel over them in every step.
PULP-TrainLib's depthwise WG and IG let every core do every channel and know neither stride nor padding, its
naive IG is wrong for a 5x5 kernel; here all steps of all geometries are what the mathematics says. Sums run
over channels, then kernel rows, then kernel columns, as the loops do.

A transposed convolution is the adjoint of a convolution from its output to its input, so that the same three
lowerings serve it with other roles.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from arch.isa import TeamWork
from trainlib.graph import Op, Tensor
from trainlib.numerics import matmul
from trainlib.primitives import conv_nests, nests
from trainlib.primitives.calls import batch_extent, batch_range, box
from trainlib.primitives.conv_calls import (
    accumulated,
    bias_sum_call,
    forward_view,
    gradient_view,
)
from trainlib.primitives.conv_geometry import ConvGeometry, block_transpose, patches, segments
from trainlib.primitives.conv_nests import Direct
from trainlib.steps import Array, Extent, KernelCall, KernelChoice, Operand, Scratch, TileTask, part

PARTIAL = "dw_of_sample"
"""Name of the scratch buffer of the weight gradient of one further sample of a batch."""

_Pricing = Callable[[str, Direct, int, Mapping[str, int]], TeamWork]


class _Direct:
    """What the direct steps share: no matmul kernel to choose, one MAC per output and kernel position."""

    def default_kernel(self, op: Op) -> str:
        """No matmul, so no choice."""
        return ""

    def macs(self, op: Op, tensors: Mapping[str, Tensor]) -> int:
        """Positions of the result times the kernel positions behind each, zeros included."""
        geometry = ConvGeometry.of(op.attributes)
        per_sample = geometry.co * geometry.ho * geometry.wo * geometry.ci_of_group
        return int(op.attributes["batch"]) * per_sample * geometry.window


@dataclass(frozen=True, slots=True)
class DirectForward(_Direct):
    """`result` = convolution of `image` (+ bias `b`); samples, channels and rows of the result may be cut."""

    image: str = "x"
    result: str = "y"

    def extents(self, op: Op, tensors: Mapping[str, Tensor]) -> Mapping[str, int]:
        """Samples, output channels, output rows."""
        attributes = op.attributes
        return {**batch_extent(attributes["batch"]), "co": attributes["co"], "ho": attributes["ho"]}

    def tile(
        self, op: Op, tensors: Mapping[str, Tensor], ranges: Mapping[str, Extent], choice: KernelChoice
    ) -> TileTask:
        """Input rows with their halo and the filters of some channels; one loop nest per sample."""
        geometry = ConvGeometry.of(op.attributes)
        samples = batch_range(ranges, op.attributes["batch"])
        channels, outputs = ranges["co"], ranges["ho"]
        parts = segments(channels, geometry.co_of_group, geometry.ci_of_group)
        sources = (parts[0].others[0], parts[-1].others[1])
        view = forward_view(geometry, outputs)
        reach, dtype = view.reach, tensors[op[self.result]].dtype
        bias = "b" in op and self.result == "y"
        loop = Direct(
            geometry,
            reach,
            channels[1] - channels[0],
            geometry.ci_of_group,
            sources[1] - sources[0],
            bias,
        )

        def function(arrays: Sequence[Array]) -> tuple[Array, ...]:
            image, weights = geometry.image_chw(arrays[0]), geometry.filters_chw(arrays[1])
            pairs = [
                (
                    weights[segment.start - channels[0] : segment.stop - channels[0]],
                    image[segment.others[0] - sources[0] : segment.others[1] - sources[0]],
                )
                for segment in parts
            ]
            products = [
                _product(
                    left.reshape(len(left), -1), patches(right, reach.rows, reach.columns), choice, dtype
                )
                for left, right in pairs
            ]
            return (_finished(geometry, products, len(reach.rows), arrays[2] if bias else None),)

        operands = [
            box(op, self.image, samples, *geometry.image(sources, view.rows.rows, view.columns)),
            box(op, "w", *geometry.filters(channels, (0, geometry.ci_of_group))),
        ]
        if bias:
            operands.append(box(op, "b", channels))
        calls = [
            _call(
                "conv_direct_fw",
                conv_nests.direct_forward,
                loop,
                choice,
                dtype,
                {"X": part(self.image, sample), "W": "w", "Y": part(self.result, sample)},
                "Y",
                function,
            )
            for sample in range(samples[1] - samples[0])
        ]
        result = box(op, self.result, samples, *geometry.image(channels, outputs, (0, geometry.wo)))
        return TileTask(tuple(operands), (result,), (), tuple(calls))


@dataclass(frozen=True, slots=True)
class DirectInput(_Direct):
    """`result` = adjoint of the convolution of `gradient` (+ bias); samples, channels and rows may be cut.

    `scattered` prices the loop that adds each product to the result in memory, as transposed convolutions do.
    """

    gradient: str = "dy"
    result: str = "dx"
    scattered: bool = False

    def macs(self, op: Op, tensors: Mapping[str, Tensor]) -> int:
        """One patch of the gradient per position of the result, zeros between and around it included."""
        geometry = ConvGeometry.of(op.attributes)
        per_sample = geometry.ci * geometry.hi * geometry.wi * geometry.co_of_group
        return int(op.attributes["batch"]) * per_sample * geometry.window

    def extents(self, op: Op, tensors: Mapping[str, Tensor]) -> Mapping[str, int]:
        """Samples, input channels, input rows."""
        attributes = op.attributes
        return {**batch_extent(attributes["batch"]), "ci": attributes["ci"], "hi": attributes["hi"]}

    def tile(
        self, op: Op, tensors: Mapping[str, Tensor], ranges: Mapping[str, Extent], choice: KernelChoice
    ) -> TileTask:
        """Rows of the gradient that reach these rows and the filters of the groups; one nest per sample."""
        geometry = ConvGeometry.of(op.attributes)
        samples = batch_range(ranges, op.attributes["batch"])
        channels, inputs = ranges["ci"], ranges["hi"]
        parts = segments(channels, geometry.ci_of_group, geometry.co_of_group)
        targets = (parts[0].others[0], parts[-1].others[1])
        # Several groups take all input channels of their filters along: the box has one range for all.
        taken = (0, geometry.ci_of_group)
        if len(parts) == 1:
            offset = parts[0].group * geometry.ci_of_group
            taken = (channels[0] - offset, channels[1] - offset)
        view = gradient_view(geometry, inputs)
        reach, dtype = view.reach, tensors[op[self.result]].dtype
        bias = "b" in op and self.result == "y"
        loop = Direct(
            geometry,
            reach,
            channels[1] - channels[0],
            geometry.co_of_group,
            targets[1] - targets[0],
            bias,
        )

        def function(arrays: Sequence[Array]) -> tuple[Array, ...]:
            gradient, weights = geometry.image_chw(arrays[0]), geometry.filters_chw(arrays[1])
            products = []
            for segment in parts:
                of_group = slice(segment.others[0] - targets[0], segment.others[1] - targets[0])
                offset = segment.group * geometry.ci_of_group + taken[0]
                filters = weights[of_group, segment.start - offset : segment.stop - offset]
                rows = patches(gradient[of_group], reach.rows, reach.columns)
                products.append(_product(block_transpose(filters), rows, choice, dtype))
            return (_finished(geometry, products, len(reach.rows), arrays[2] if bias else None),)

        operands = [
            box(op, self.gradient, samples, *geometry.image(targets, view.rows.rows, view.columns)),
            box(op, "w", *geometry.filters(targets, taken)),
        ]
        if bias:
            operands.append(box(op, "b", channels))
        name = "conv_scatter_fw" if self.scattered else "conv_direct_ig"
        calls = [
            _call(
                name,
                conv_nests.scatter if self.scattered else conv_nests.direct_input,
                loop,
                choice,
                dtype,
                {"Y": part(self.gradient, sample), "W": "w", "X": part(self.result, sample)},
                "X",
                function,
            )
            for sample in range(samples[1] - samples[0])
        ]
        result = box(op, self.result, samples, *geometry.image(channels, inputs, (0, geometry.wi)))
        return TileTask(tuple(operands), (result,), (), tuple(calls))


@dataclass(frozen=True, slots=True)
class DirectWeights(_Direct):
    """dw from `image` and `gradient`, and db from the one of them that is the layer's dy; batch summed.

    Output channels may be cut, and input channels if there is one group.
    """

    image: str = "x"
    gradient: str = "dy"

    def extents(self, op: Op, tensors: Mapping[str, Tensor]) -> Mapping[str, int]:
        """Output channels, then input channels."""
        geometry = ConvGeometry.of(op.attributes)
        return {"co": geometry.co} | ({"ci": geometry.ci} if geometry.groups == 1 else {})

    def tile(
        self, op: Op, tensors: Mapping[str, Tensor], ranges: Mapping[str, Extent], choice: KernelChoice
    ) -> TileTask:
        """Some channels of both sides of all samples, all rows; a nest per sample, sums, db."""
        geometry = ConvGeometry.of(op.attributes)
        batch, channels = op.attributes["batch"], ranges["co"]
        parts = segments(channels, geometry.co_of_group, geometry.ci_of_group)
        sources = ranges.get("ci", (parts[0].others[0], parts[-1].others[1]))
        taken = ranges.get("ci", (0, geometry.ci_of_group))
        # A bias gradient needs rows of the image that no kernel position reads, too.
        view = forward_view(geometry, (0, geometry.ho), whole=self.image == "dy")
        reach, dtype = view.reach, tensors[op["dw"]].dtype
        own, others = channels[1] - channels[0], taken[1] - taken[0]
        loop = Direct(geometry, reach, own, others, sources[1] - sources[0])

        def function(arrays: Sequence[Array]) -> tuple[Array, ...]:
            image, gradient = geometry.image_chw(arrays[0]), geometry.image_chw(arrays[1])
            products = []
            for segment in parts:
                first = segment.others[0] - sources[0] if geometry.groups > 1 else 0
                rows = patches(image[first : first + others], reach.rows, reach.columns)
                left = gradient[segment.start - channels[0] : segment.stop - channels[0]]
                product = _product(left.reshape(len(left), -1), rows.T, choice, dtype)
                products.append(product.reshape(-1, others, geometry.hk, geometry.wk))
            return (geometry.filters_back(np.concatenate(products)),)

        def call(sample: int, target: str) -> KernelCall:
            names = {"X": part(self.image, sample), "Y": part(self.gradient, sample), "W": target}
            return _call(
                "conv_direct_wg",
                conv_nests.direct_weights,
                loop,
                choice,
                dtype,
                names,
                "W",
                function,
            )

        shape = geometry.filters_shape(own, others)
        terms = [((), call(sample, "dw"), call(sample, PARTIAL)) for sample in range(batch)]
        calls = accumulated(
            choice, terms, total="dw", scratch=PARTIAL, elements=int(np.prod(shape)), dtype=dtype
        )
        outputs = [box(op, "dw", *geometry.filters(channels, taken))]
        if "db" in op:
            made = self._bias(op, geometry, choice, ranges, sources, dtype)
            if made is not None:
                calls.append(made[0])
                outputs.append(made[1])
        return TileTask(
            (
                box(op, self.image, (0, batch), *geometry.image(sources, view.rows.rows, view.columns)),
                box(
                    op,
                    self.gradient,
                    (0, batch),
                    *geometry.image(channels, (0, geometry.ho), (0, geometry.wo)),
                ),
            ),
            tuple(outputs),
            (Scratch(PARTIAL, shape, dtype),) if batch > 1 else (),
            tuple(calls),
        )

    def _bias(
        self,
        op: Op,
        geometry: ConvGeometry,
        choice: KernelChoice,
        ranges: Mapping[str, Extent],
        sources: Extent,
        dtype: str,
    ) -> tuple[KernelCall, Operand] | None:
        """db by the tile that sees its channels of dy first; None for the others."""
        channels, first = ranges["co"], 0
        if self.gradient == "dy":
            if geometry.groups == 1 and sources[0] > 0:
                return None
            own, positions = channels, geometry.ho * geometry.wo
        else:
            if geometry.groups == 1 and channels[0] > 0:
                return None
            # Of a group that another tile began, that tile sums the channels.
            begun = -(-channels[0] // geometry.co_of_group) * geometry.ci_of_group
            own = (max(begun, sources[0]), sources[1])
            if own[0] >= own[1]:
                return None
            first, positions = own[0] - sources[0], geometry.hi * geometry.wi
        call = bias_sum_call(
            geometry,
            choice,
            sources=[part("dy", sample) for sample in range(op.attributes["batch"])],
            target="db",
            channels=own[1] - own[0],
            positions=positions,
            dtype=dtype,
            first=first,
        )
        return call, box(op, "db", own)


def _product(left: Array, rows: Array, choice: KernelChoice, dtype: str) -> Array:
    """left [n, k] times rows [m, k] transposed, summed as the loop does."""
    return matmul(left, rows.T, dtype=dtype, accumulation=choice.accumulation)


def _finished(geometry: ConvGeometry, products: Sequence[Array], rows: int, bias: Array | None) -> Array:
    """Channels [c, positions] of the groups as one image in the layout, with the bias."""
    planes = np.concatenate(products)
    if bias is not None:
        planes = planes + bias[:, None]
    return geometry.image_back(planes.reshape(len(planes), rows, -1))


def _call(
    kernel: str,
    pricing: _Pricing,
    loop: Direct,
    choice: KernelChoice,
    dtype: str,
    names: Mapping[str, str],
    result: str,
    function: Callable[[Sequence[Array]], tuple[Array, ...]],
) -> KernelCall:
    """A direct loop on buffers `names` (array of the nest to buffer), writing the array `result`."""
    roles = {**names, "D": "b"} if loop.bias else dict(names)
    image = next(key for key in ("X", "Y") if key != result and key in roles)
    order = (image, "W", *(("D",) if loop.bias else ())) if result != "W" else ("X", "Y")

    def work(cores: int, addresses: Mapping[str, int]) -> TeamWork:
        def build(places: Sequence[int]) -> TeamWork:
            return pricing(choice.codegen, loop, cores, dict(zip(roles, places, strict=True)))

        return nests.for_dtype(build, [addresses[name] for name in roles.values()], dtype)

    return KernelCall(
        kernel, tuple(roles[key] for key in order), (roles[result],), work, function, macs=loop.macs
    )
