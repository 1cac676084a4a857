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
from trainlib.primitives.contractions import conv_nests
from trainlib.primitives.contractions.conv_calls import (
    View,
    accumulated,
    bias_sum_call,
    forward_view,
    gradient_view,
)
from trainlib.primitives.contractions.conv_geometry import (
    ConvGeometry,
    block_transpose,
    owned_inputs,
    patches,
    segments,
)
from trainlib.primitives.contractions.conv_groups import channels_met, within_group
from trainlib.primitives.contractions.conv_nests import Direct
from trainlib.primitives.contractions.conv_ranges import (
    Cut,
    count,
    cut_of,
    interval,
    position_sums,
    result_extents,
    summed,
)
from trainlib.primitives.lowering.calls import BATCH, box
from trainlib.steps import Array, Extent, KernelCall, KernelChoice, Operand, Scratch, TileTask, part

PARTIAL = "dw_of_sample"
"""Name of the scratch buffer of the weight gradient of one further sample of a batch."""

_Pricing = Callable[[str, Direct, int, Mapping[str, int], str], TeamWork]


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
class _Nest:
    """A direct loop of one tile: what it costs and computes; called once per sample.

    Arrays of the nest are X (the side of ci), W, Y (the side of co) and D (the bias); it writes `result`.
    """

    kernel: str
    pricing: _Pricing
    loop: Direct
    result: str
    function: Callable[[Sequence[Array]], tuple[Array, ...]]
    choice: KernelChoice
    dtype: str

    def call(self, x: str, w: str, y: str) -> KernelCall:
        """The loop on these buffers."""
        buffers = {"X": x, "W": w, "Y": y} | ({"D": "b"} if self.loop.bias else {})

        def work(cores: int, addresses: Mapping[str, int]) -> TeamWork:
            places = {key: addresses[name] for key, name in buffers.items()}
            return self.pricing(self.choice.codegen, self.loop, cores, places, self.dtype)

        # The image stands before the weights, whichever side it is; the weight gradient reads both images.
        order = [key for key in "XYWD" if key in buffers and key != self.result]
        return KernelCall(
            self.kernel,
            tuple(buffers[key] for key in order),
            (buffers[self.result],),
            work,
            self.function,
            macs=self.loop.macs,
        )

    def task(
        self, op: Op, geometry: ConvGeometry, cut: Cut, operands: tuple[Operand, ...], x: str, y: str
    ) -> TileTask:
        """The tile `cut` of an image; `x` and `y` are the roles on the sides of ci and co."""
        if self.loop.bias:
            operands = (*operands, box(op, "b", cut.channels))
        calls = tuple(
            self.call(part(x, sample), "w", part(y, sample)) for sample in range(count(cut.samples))
        )
        image = geometry.image(cut.channels, cut.rows, cut.columns)
        role = {"X": x, "Y": y}[self.result]
        return TileTask(operands, (box(op, role, cut.samples, *image),), (), calls)


@dataclass(frozen=True, slots=True)
class DirectForward(_Direct):
    """`result` = convolution of `image` (+ bias `b`); a box of the result and part of the sum may be cut."""

    image: str = "x"
    result: str = "y"

    def extents(self, op: Op, tensors: Mapping[str, Tensor]) -> Mapping[str, int]:
        """Samples, output channels, output rows, output columns."""
        return result_extents(op, "co", "ho", "wo")

    def reductions(self, op: Op, tensors: Mapping[str, Tensor]) -> Mapping[str, int]:
        """Input channels of a group."""
        return summed(ci=ConvGeometry.of(op.attributes).ci_of_group)

    def tile(
        self, op: Op, tensors: Mapping[str, Tensor], ranges: Mapping[str, Extent], choice: KernelChoice
    ) -> TileTask:
        """An input box with its halo and the filters of some channels; one loop nest per sample."""
        geometry = ConvGeometry.of(op.attributes)
        cut = cut_of(op, ranges, ("co", "ho", "wo"), "ci", geometry.ci_of_group)
        samples, channels, outputs, columns, taken = cut
        parts = segments(channels, geometry.co_of_group, geometry.ci_of_group)
        sources, within = channels_met(parts, taken)
        view = forward_view(geometry, outputs, columns)
        dtype = tensors[op[self.result]].dtype
        bias = "b" in op and self.result == "y" and taken[0] == 0

        def function(arrays: Sequence[Array]) -> tuple[Array, ...]:
            image, weights = geometry.image_chw(arrays[0]), geometry.filters_chw(arrays[1])
            products = []
            for segment, met in zip(parts, within, strict=True):
                left = weights[segment.start - channels[0] : segment.stop - channels[0]]
                rows = patches(image[slice(*met)], view.reach.rows, view.reach.columns)
                products.append(_product(left.reshape(len(left), -1), rows, choice, dtype))
            return (_finished(geometry, products, view, arrays[2] if bias else None),)

        loop = Direct(geometry, view.reach, count(channels), count(taken), count(sources), bias)
        nest = _Nest("conv_direct_fw", conv_nests.direct_forward, loop, "Y", function, choice, dtype)
        operands = (
            box(op, self.image, samples, *view.region(geometry, sources)),
            box(op, "w", *geometry.filters(channels, taken)),
        )
        return nest.task(op, geometry, cut, operands, self.image, self.result)


@dataclass(frozen=True, slots=True)
class DirectInput(_Direct):
    """`result` = adjoint of the convolution of `gradient` (+ bias); a box and part of the sum may be cut.

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
        """Samples, input channels, input rows, input columns."""
        return result_extents(op, "ci", "hi", "wi")

    def reductions(self, op: Op, tensors: Mapping[str, Tensor]) -> Mapping[str, int]:
        """Output channels of a group."""
        return summed(co=ConvGeometry.of(op.attributes).co_of_group)

    def tile(
        self, op: Op, tensors: Mapping[str, Tensor], ranges: Mapping[str, Extent], choice: KernelChoice
    ) -> TileTask:
        """The box of the gradient that reaches this one and the filters of the groups; a nest per sample."""
        geometry = ConvGeometry.of(op.attributes)
        cut = cut_of(op, ranges, ("ci", "hi", "wi"), "co", geometry.co_of_group)
        samples, channels, inputs, columns, summed_over = cut
        parts = segments(channels, geometry.ci_of_group, geometry.co_of_group)
        targets, within = channels_met(parts, summed_over)
        # Several groups take all input channels of their filters along: the box has one range for all.
        own = [within_group(item, geometry.ci_of_group) for item in parts]
        taken = own[0] if len(parts) == 1 else (0, geometry.ci_of_group)
        view = gradient_view(geometry, inputs, columns)
        dtype = tensors[op[self.result]].dtype
        bias = "b" in op and self.result == "y" and summed_over[0] == 0

        def function(arrays: Sequence[Array]) -> tuple[Array, ...]:
            gradient, weights = geometry.image_chw(arrays[0]), geometry.filters_chw(arrays[1])
            products = []
            for met, (start, stop) in zip(within, own, strict=True):
                filters = weights[slice(*met), start - taken[0] : stop - taken[0]]
                rows = patches(gradient[slice(*met)], view.reach.rows, view.reach.columns)
                products.append(_product(block_transpose(filters), rows, choice, dtype))
            return (_finished(geometry, products, view, arrays[2] if bias else None),)

        loop = Direct(geometry, view.reach, count(channels), count(summed_over), count(targets), bias)
        name, pricing = "conv_direct_ig", conv_nests.direct_input
        if self.scattered:
            name, pricing = "conv_scatter_fw", conv_nests.scatter
        nest = _Nest(name, pricing, loop, "X", function, choice, dtype)
        operands = (
            box(op, self.gradient, samples, *view.region(geometry, targets)),
            box(op, "w", *geometry.filters(targets, taken)),
        )
        return nest.task(op, geometry, cut, operands, self.result, self.gradient)


@dataclass(frozen=True, slots=True)
class DirectWeights(_Direct):
    """dw from `image` and `gradient`, and db from the one of them that is the layer's dy.

    Output channels may be cut, input channels if there is one group, and the sum over all positions.
    """

    image: str = "x"
    gradient: str = "dy"

    def extents(self, op: Op, tensors: Mapping[str, Tensor]) -> Mapping[str, int]:
        """Output channels, then input channels."""
        geometry = ConvGeometry.of(op.attributes)
        return {"co": geometry.co} | ({"ci": geometry.ci} if geometry.groups == 1 else {})

    def reductions(self, op: Op, tensors: Mapping[str, Tensor]) -> Mapping[str, int]:
        """Samples, rows and columns of `gradient`."""
        return position_sums(op)

    def tile(
        self, op: Op, tensors: Mapping[str, Tensor], ranges: Mapping[str, Extent], choice: KernelChoice
    ) -> TileTask:
        """Some channels of both sides, of some samples and positions; a nest per sample, sums, db."""
        geometry = ConvGeometry.of(op.attributes)
        samples, channels = interval(op, ranges, BATCH), interval(op, ranges, "co")
        outputs, columns = interval(op, ranges, "ho"), interval(op, ranges, "wo")
        parts = segments(channels, geometry.co_of_group, geometry.ci_of_group)
        sources = ranges.get("ci", (parts[0].others[0], parts[-1].others[1]))
        taken = ranges.get("ci", (0, geometry.ci_of_group))
        # A bias gradient needs positions of the image that no kernel position reads, too.
        view = forward_view(geometry, outputs, columns, owned=self.image == "dy" and "db" in op)
        reach, dtype = view.reach, tensors[op["dw"]].dtype
        own, others = count(channels), count(taken)
        loop = Direct(geometry, reach, own, others, count(sources))

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

        nest = _Nest("conv_direct_wg", conv_nests.direct_weights, loop, "W", function, choice, dtype)
        terms = []
        for sample in range(count(samples)):
            image, gradient = part(self.image, sample), part(self.gradient, sample)
            terms.append(((), nest.call(image, "dw", gradient), nest.call(image, PARTIAL, gradient)))
        shape = geometry.filters_shape(own, others)
        calls = accumulated(
            choice, terms, total="dw", scratch=PARTIAL, elements=int(np.prod(shape)), dtype=dtype
        )
        written = [box(op, "dw", *geometry.filters(channels, taken))]
        if "db" in op:
            made = self._bias(op, geometry, choice, ranges, sources, view, dtype)
            if made is not None:
                calls.append(made[0])
                written.append(made[1])
        return TileTask(
            (
                box(op, self.image, samples, *view.region(geometry, sources)),
                box(op, self.gradient, samples, *geometry.image(channels, outputs, columns)),
            ),
            tuple(written),
            (Scratch(PARTIAL, shape, dtype),) if count(samples) > 1 else (),
            tuple(calls),
        )

    def _bias(
        self,
        op: Op,
        geometry: ConvGeometry,
        choice: KernelChoice,
        ranges: Mapping[str, Extent],
        sources: Extent,
        view: View,
        dtype: str,
    ) -> tuple[KernelCall, Operand] | None:
        """db by the tile that sees its channels of dy first; None for the others."""
        channels, first = interval(op, ranges, "co"), 0
        outputs, columns = interval(op, ranges, "ho"), interval(op, ranges, "wo")
        if self.gradient == "dy":
            if geometry.groups == 1 and sources[0] > 0:
                return None
            own, inside = channels, ((0, count(outputs)), (0, count(columns)))
        else:
            if geometry.groups == 1 and channels[0] > 0:
                return None
            # Of a group that another tile began, that tile sums the channels.
            begun = -(-channels[0] // geometry.co_of_group) * geometry.ci_of_group
            own = (max(begun, sources[0]), sources[1])
            if own[0] >= own[1]:
                return None
            first = own[0] - sources[0]
            # Boxes of the image overlap where windows do: each position counts in the part that owns it.
            inside = (
                _counted_from(view.rows.start, owned_inputs(geometry.height, outputs)),
                _counted_from(view.columns.start, owned_inputs(geometry.width, columns)),
            )
        call = bias_sum_call(
            geometry,
            choice,
            sources=[part("dy", sample) for sample in range(count(interval(op, ranges, BATCH)))],
            target="db",
            channels=count(own),
            positions=count(inside[0]) * count(inside[1]),
            dtype=dtype,
            first=first,
            inside=inside,
        )
        return call, box(op, "db", own)


def _counted_from(start: int, extent: Extent) -> Extent:
    return (extent[0] - start, extent[1] - start) if extent[0] < extent[1] else (0, 0)


def _product(left: Array, rows: Array, choice: KernelChoice, dtype: str) -> Array:
    """left [n, k] times rows [m, k] transposed, summed as the loop does."""
    return matmul(left, rows.T, dtype=dtype, accumulation=choice.accumulation)


def _finished(geometry: ConvGeometry, products: Sequence[Array], view: View, bias: Array | None) -> Array:
    """Channels [c, positions] of the groups as one image in the layout, with the bias."""
    planes = np.concatenate(products)
    if bias is not None:
        planes = planes + bias[:, None]
    return geometry.image_back(planes.reshape(len(planes), len(view.reach.rows), -1))
