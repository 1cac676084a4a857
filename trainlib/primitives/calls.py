"""Kernel calls shared by primitives: the matmul and the elementwise loops, with their loop nests."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from arch.isa import TeamWork
from trainlib.graph import Op, Tensor
from trainlib.kernels import catalogue
from trainlib.steps import Array, Extent, KernelCall, KernelChoice, Operand, Region, TileTask


def whole(tensor: Tensor) -> Operand:
    """The box that covers a whole tensor."""
    return Operand(tensor.name, tuple((0, size) for size in tensor.shape))


def region_elements(region: Region) -> int:
    """Number of elements of a box."""
    elements = 1
    for start, stop in region:
        elements *= stop - start
    return elements


def matmul_call(
    choice: KernelChoice,
    *,
    a: str,
    b: str,
    c: str,
    n: int,
    k: int,
    m: int,
    trans_b: bool,
    c_shape: tuple[int, ...],
) -> KernelCall:
    """C[N,M] = A[N,K] · B[K,M] in fp32, B stored [M,K] if `trans_b`; `a`, `b`, `c` name buffers of the tile.

    `c_shape` is the shape the box of C has in L1; it holds N·M elements in row-major order.
    """

    def work(cores: int, addresses: Mapping[str, int]) -> TeamWork:
        return catalogue.matmul_work(
            choice.kernel,
            choice.codegen,
            n=n,
            k=k,
            m=m,
            trans_b=trans_b,
            cores=cores,
            a_address=addresses[a],
            b_address=addresses[b],
            c_address=addresses[c],
        )

    def function(arrays: Sequence[Array]) -> tuple[Array, ...]:
        left, right = arrays
        right = right.reshape(m, k).T if trans_b else right.reshape(k, m)
        return (np.matmul(left.reshape(n, k), right).reshape(c_shape),)

    return KernelCall(choice.kernel, (a, b), (c,), work, function, macs=n * k * m)


@dataclass(frozen=True, slots=True)
class ElementwiseLowering:
    """Tiles of a step whose result element i depends on element i of each input, all of one shape.

    The first two dimensions may be cut, so that a box is at most a 2D transfer of contiguous rows.
    `kernel` names the loop; `function(op)` gives what it computes. A loop that is `in_place` in PULP-TrainLib
    has no address for its result: the model lets it store where its first input lies.
    """

    kernel: str
    function: Callable[[Op], Callable[[Sequence[Array]], Sequence[Array]]]
    in_place: bool = False

    def extents(self, op: Op, tensors: Mapping[str, Tensor]) -> Mapping[str, int]:
        """Leading dimensions ``d0``, ``d1`` of the result."""
        return {f"d{axis}": size for axis, size in enumerate(tensors[op.outputs[0]].shape[:2])}

    def tile(
        self, op: Op, tensors: Mapping[str, Tensor], ranges: Mapping[str, Extent], choice: KernelChoice
    ) -> TileTask:
        """The same box of every input and of the output, one fork."""
        shape = tensors[op.outputs[0]].shape
        region = tuple(ranges[f"d{axis}"] if axis < 2 else (0, size) for axis, size in enumerate(shape))
        elements = region_elements(region)
        names = op.inputs if self.in_place else (*op.inputs, *op.outputs)
        kernel = self.kernel

        def work(cores: int, addresses: Mapping[str, int]) -> TeamWork:
            places = tuple(addresses[name] for name in names)
            return catalogue.elementwise_work(choice.codegen, kernel, elements, cores, places)

        return TileTask(
            inputs=tuple(Operand(name, region) for name in op.inputs),
            outputs=tuple(Operand(name, region) for name in op.outputs),
            scratch=(),
            calls=(KernelCall(kernel, op.inputs, op.outputs, work, self.function(op)),),
        )

    def default_kernel(self, op: Op) -> str:
        """No matmul, so no choice."""
        return ""

    def macs(self, op: Op, tensors: Mapping[str, Tensor]) -> int:
        """Elementwise steps count no multiply-accumulate."""
        return 0


@dataclass(frozen=True, slots=True)
class LossLowering:
    """A loss: two loops on the master core, value then gradient, never cut and never forked.

    Inputs of the op are (output, label), its outputs (loss, gradient of the output). PULP-TrainLib computes
    losses on one core without a fork.
    """

    forward_kernel: str
    backward_kernel: str
    value: Callable[[Sequence[Array]], Sequence[Array]]
    gradient: Callable[[Sequence[Array]], Sequence[Array]]

    def extents(self, op: Op, tensors: Mapping[str, Tensor]) -> Mapping[str, int]:
        """Nothing may be cut: the value reduces over all elements."""
        return {}

    def tile(
        self, op: Op, tensors: Mapping[str, Tensor], ranges: Mapping[str, Extent], choice: KernelChoice
    ) -> TileTask:
        """The whole step."""
        output, label = op.inputs
        loss, gradient = op.outputs
        elements = region_elements(whole(tensors[output]).region)

        def call(
            kernel: str, target: str, function: Callable[[Sequence[Array]], Sequence[Array]]
        ) -> KernelCall:
            def work(cores: int, addresses: Mapping[str, int]) -> TeamWork:
                places = (addresses[output], addresses[label], addresses[target])
                return catalogue.loss_work(choice.codegen, kernel, elements, places)

            return KernelCall(kernel, (output, label), (target,), work, function, fork=False)

        return TileTask(
            inputs=(whole(tensors[output]), whole(tensors[label])),
            outputs=(whole(tensors[loss]), whole(tensors[gradient])),
            scratch=(),
            calls=(
                call(self.forward_kernel, loss, self.value),
                call(self.backward_kernel, gradient, self.gradient),
            ),
        )

    def default_kernel(self, op: Op) -> str:
        """No matmul, so no choice."""
        return ""

    def macs(self, op: Op, tensors: Mapping[str, Tensor]) -> int:
        """Losses count no multiply-accumulate."""
        return 0
