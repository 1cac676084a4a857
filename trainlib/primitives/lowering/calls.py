"""Kernel calls and lowerings that primitives share: matmul, transpose, vector add, elementwise loops, losses.

Buffers are named by role (``x``, ``w``, ``dy``) or by `trainlib.steps.part` of one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from arch.isa import TeamWork
from trainlib.graph import Op, Tensor
from trainlib.kernels import catalogue
from trainlib.kernels.library import LIBRARY
from trainlib.numerics import matmul, sum_order
from trainlib.primitives.lowering.kernel_call import Piece, kernel_call
from trainlib.steps import Array, Extent, Function, KernelCall, KernelChoice, Operand, Region, TileTask, part

VECTOR_ADD = "vect_sum"
"""Nest of the sum Y of two vectors X and G, elements over the cores; measured (KIND layer, vect_sum)."""

BATCH = "n"
"""Name of the dimension that cuts the batch, in extents and tile sizes."""


def whole(op: Op, tensors: Mapping[str, Tensor], role: str) -> Operand:
    """The box that covers the whole tensor of a role, in the buffer of that name."""
    return Operand(op[role], tuple((0, size) for size in tensors[op[role]].shape), role)


def box(op: Op, role: str, *region: Extent) -> Operand:
    """A box of the tensor of a role, one interval per dimension, in the buffer of that name."""
    return Operand(op[role], region, role)


def region_elements(region: Region) -> int:
    """Number of elements of a box."""
    return prod(stop - start for start, stop in region)


def batch_extent(count: int) -> dict[str, int]:
    """The batch dimension as the outermost extent of a step; nothing for a batch of 1."""
    return {BATCH: count} if count > 1 else {}


def batch_range(ranges: Mapping[str, Extent], count: int) -> Extent:
    """The samples of a tile."""
    return ranges.get(BATCH, (0, count))


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
    dtype: str = "float32",
) -> KernelCall:
    """C[N,M] = A[N,K] · B[K,M] in `dtype`, B stored [M,K] if `trans_b`; `a`, `b`, `c` name buffers or parts.

    `c_shape` is the shape the box of C has in L1; it holds N·M elements in row-major order. Numbers follow
    `choice.accumulation` (see `trainlib.numerics.matmul`).
    """
    order = sum_order(choice.kernel, n=n, k=k, m=m, trans_b=trans_b, cores=choice.cores)

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
            element_bytes=np.dtype(dtype).itemsize,
        )

    def function(arrays: Sequence[Array]) -> tuple[Array, ...]:
        left, right = arrays
        right = right.reshape(m, k).T if trans_b else right.reshape(k, m)
        product = matmul(
            left.reshape(n, k),
            right,
            dtype=dtype,
            accumulation=choice.accumulation,
            order=order,
        )
        return (product.reshape(c_shape),)

    return KernelCall(choice.kernel, (a, b), (c,), work, function, macs=n * k * m)


def vector_add_call(
    choice: KernelChoice, *, total: str, term: str, elements: int, dtype: str = "float32"
) -> KernelCall:
    """total += term, forked; a `term` shorter than `total` repeats (a bias added to each row).

    A shorter term costs what one as long as the total does.
    """
    arrays = {"X": total, "G": term, "Y": total}
    return kernel_call(
        choice,
        VECTOR_ADD,
        {"elements": elements},
        arrays,
        (total, term),
        (total,),
        lambda values: (np.add(values[0], values[1]),),
        dtype,
    )


def transpose_call(
    choice: KernelChoice,
    *,
    source: str,
    target: str,
    rows: int,
    columns: int,
    dtype: str = "float32",
    target_shape: tuple[int, ...] | None = None,
) -> KernelCall:
    """target[columns, rows] = source[rows, columns] transposed.

    `target_shape` is the shape of the target's buffer if it is another one of as many elements.
    """
    pieces = Piece(source, (rows, columns)), Piece(target, target_shape or (columns, rows))
    return transpose_piece_call(choice, *pieces, dtype)


def transpose_piece_call(choice: KernelChoice, source: Piece, target: Piece, dtype: str) -> KernelCall:
    """target[m, n] = source[n, m], larger dimension over the cores; measured (KIND layer, transpose_matrix).

    The target may be a buffer of another shape with as many elements.
    """
    rows, columns = source.shape
    return kernel_call(
        choice,
        "transpose_matrix",
        {"N": rows, "M": columns},
        {"X": replace(source, strides=(columns, 1)), "Y": replace(target, strides=(rows, 1))},
        (source,),
        (target,),
        lambda arrays: (np.ascontiguousarray(arrays[0].T),),
        dtype,
    )


class NoMatmul:
    """Base of lowerings without a matmul."""

    def default_kernel(self, op: Op) -> str:
        """No matmul, so no choice."""
        return ""

    def macs(self, op: Op, tensors: Mapping[str, Tensor]) -> int:
        """No multiply-accumulates are counted."""
        return 0


@dataclass(frozen=True, slots=True)
class ElementwiseLowering(NoMatmul):
    """Tiles of a step whose result element i depends on element i of each input, all of one shape.

    The batch (if `batched`) and the next two dimensions may be cut, so that a sample's box is at most a 2D
    transfer of contiguous rows. `kernel` names the loop; `function(op)` gives what it computes, arrays in the
    order of `op.reads`. The arrays of the loop are what is read, then what is written, in its own order.
    """

    kernel: str
    function: Callable[[Op], Function]
    batched: bool = True

    def extents(self, op: Op, tensors: Mapping[str, Tensor]) -> Mapping[str, int]:
        """``n``, then leading dimensions ``d0``, ``d1`` of a sample (of the tensor, if there is no batch)."""
        shape = tensors[op.outputs[0]].shape
        sample = shape[1:] if self.batched else shape
        batch = batch_extent(shape[0]) if self.batched else {}
        return {**batch, **{f"d{axis}": size for axis, size in enumerate(sample[:2])}}

    def tile(
        self, op: Op, tensors: Mapping[str, Tensor], ranges: Mapping[str, Extent], choice: KernelChoice
    ) -> TileTask:
        """The same box of every input and of the output, one fork."""
        shape = tensors[op.outputs[0]].shape
        sample = shape[1:] if self.batched else shape
        inner = tuple(ranges[f"d{axis}"] if axis < 2 else (0, size) for axis, size in enumerate(sample))
        region = (batch_range(ranges, shape[0]), *inner) if self.batched else inner
        elements = region_elements(region)
        dtype = tensors[op.outputs[0]].dtype
        roles = (*op.reads, *op.writes)
        kernel = self.kernel

        names = LIBRARY.header(choice.codegen, kernel).arrays
        arrays = dict(zip(names, roles, strict=True))
        sizes, function = {"elements": elements}, self.function(op)
        return TileTask(
            inputs=tuple(box(op, role, *region) for role in op.reads),
            outputs=tuple(box(op, role, *region) for role in op.writes),
            scratch=(),
            calls=(kernel_call(choice, kernel, sizes, arrays, op.reads, op.writes, function, dtype),),
        )


@dataclass(frozen=True, slots=True)
class LossLowering(NoMatmul):
    """A loss: two loops on the master core, value then gradient, never cut and never forked.

    Roles read are (y, label), written (loss, dy). PULP-TrainLib computes losses on one core without a fork.
    `value(op)` and `gradient(op)` compute the whole batch at once. A loss that is `per_sample` calls its
    loops once per sample (the value then adds up); one over all elements alike (MSE) calls them once.
    """

    forward_kernel: str
    backward_kernel: str
    value: Callable[[Op], Function]
    gradient: Callable[[Op], Function]
    per_sample: bool = True

    def extents(self, op: Op, tensors: Mapping[str, Tensor]) -> Mapping[str, int]:
        """Nothing may be cut: the value reduces over all elements."""
        return {}

    def tile(
        self, op: Op, tensors: Mapping[str, Tensor], ranges: Mapping[str, Extent], choice: KernelChoice
    ) -> TileTask:
        """The whole step."""
        shape = tensors[op["y"]].shape
        samples = shape[0] if self.per_sample else 1
        elements = prod(shape) // samples
        share = 1 / samples
        dtype = tensors[op["y"]].dtype
        calls: list[KernelCall] = []

        def call(kernel: str, reads: tuple[str, ...], target: str, function: Function) -> KernelCall:
            arrays = dict(zip("XTY", (*reads[:2], target), strict=True))
            sizes = {"elements": elements}
            return kernel_call(choice, kernel, sizes, arrays, reads, (target,), function, dtype, fork=False)

        value, gradient = self.value(op), self.gradient(op)
        for number in range(samples):
            names = ("y", "label")
            if samples > 1:
                names = (part("y", number, number + 1), part("label", number, number + 1))
            reads = (*names, "loss") if number else names
            calls.append(call(self.forward_kernel, reads, "loss", _scaled_sum(value, share)))
        for number in range(samples):
            names, target = ("y", "label"), "dy"
            if samples > 1:
                names = (part("y", number, number + 1), part("label", number, number + 1))
                target = part("dy", number, number + 1)
            calls.append(call(self.backward_kernel, names, target, _scaled(gradient, share)))
        return TileTask(
            inputs=(whole(op, tensors, "y"), whole(op, tensors, "label")),
            outputs=(whole(op, tensors, "loss"), whole(op, tensors, "dy")),
            scratch=(),
            calls=tuple(calls),
        )


def _scaled(function: Function, share: float) -> Function:
    if share == 1:
        return function
    return lambda arrays: tuple(array * np.float32(share) for array in function(arrays))


def _scaled_sum(function: Function, share: float) -> Function:
    """The value of some samples times their share of the batch, added to the sum so far (a third input)."""
    if share == 1:
        return function
    scaled = _scaled(function, share)
    return lambda arrays: tuple(sum(arrays[2:], term) for term in scaled(arrays[:2]))
