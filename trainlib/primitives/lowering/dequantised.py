# SPDX-License-Identifier: Apache-2.0
"""Frozen weights stored as 8-bit integers: a step loads them with their scales and converts them in L1.

One scale per output channel, symmetric about 0: weight = scale · code, scale = max |weight| / 127 of the
channel. Source: R. Krishnamoorthi, Quantizing deep convolutional networks for efficient inference, arXiv
1806.08342 (symmetric and per channel, for weights). Storing the frozen weights beside adapters in another
format than that of the arithmetic: T. Dettmers et al., QLoRA, arXiv 2305.14314 (4 bits, blocks of 64).

Every tile converts the box of the weight that it loads, into a scratch buffer of the format it computes in.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from configs.dtypes import FP32, INT8, DType, dtype_of
from configs.values import replace
from trainlib.ir.graph import Op, Tensor
from trainlib.ir.numerics import rounded, widened
from trainlib.ir.steps import Array, KernelCall, KernelChoice, Operand, Ranges, Scratch, Tensors, TileTask
from trainlib.primitives.definition import Reference, Step, Values
from trainlib.primitives.lowering.kernel_call import Piece, kernel_call
from trainlib.primitives.lowering.row_loop import RowLoop
from trainlib.primitives.lowering.windows import Passing, passed

SCALE = ".scale"
"""What the scales of a weight are called behind its name, as tensor and as role."""

WEIGHTS_IN = "weights_in"
"""Attribute of an op: the format its weights are converted to."""

LARGEST_CODE = 127

MOST_OPS = 1024
"""Ops of which the one without scales is kept."""

_BARE: dict[int, tuple[Op, Op]] = {}


def is_stored(tensor: Tensor) -> bool:
    """Whether it is a weight in 8 bits, which has scales."""
    return tensor.kind == "weight" and tensor.dtype == INT8


def quantised(weight: Array, scales_shape: Sequence[int]) -> tuple[Array, Array]:
    """Codes (int8) and scales (fp32) of a weight; the scales have 1 along all axes but the channels'."""
    others = tuple(axis for axis, size in enumerate(scales_shape) if size == 1)
    largest = np.abs(weight).max(axis=others, keepdims=True).astype(np.float32)
    scales = np.where(largest > 0, largest / np.float32(LARGEST_CODE), np.float32(1))
    codes = np.clip(np.rint(weight / scales), -LARGEST_CODE, LARGEST_CODE)
    return codes.astype(np.int8), scales.astype(np.float32)


def in_floats(codes: Array, scales: Array) -> Array:
    """The weight of codes and scales, fp32."""
    product: Array = codes.astype(np.float32) * scales.astype(np.float32)
    return product


def dequantised(step: Step) -> Step:
    """The step with a reference and a lowering that convert its weights first."""
    return replace(step, reference=_reference(step.reference), lowering=_Dequantised(step.lowering))


def reads_scales(op: Op) -> bool:
    """Whether an op reads a weight in 8 bits."""
    return any(role.endswith(SCALE) for role in op.reads)


def _bare(op: Op) -> Op:
    """The op as if its weights were numbers of the format it computes in; always the same object."""
    kept, bare = _BARE.get(id(op), (None, None))
    if kept is not op or bare is None:
        if len(_BARE) >= MOST_OPS:
            _BARE.clear()
        pairs = [pair for pair in zip(op.reads, op.inputs, strict=True) if not pair[0].endswith(SCALE)]
        reads, inputs = zip(*pairs, strict=True)
        bare = replace(op, reads=reads, inputs=inputs)
        _BARE[id(op)] = op, bare
    return bare


def _reference(base: Reference) -> Reference:
    def reference(op: Op, values: Values) -> Values:
        plain = {role: array for role, array in values.items() if not role.endswith(SCALE)}
        for role in plain.keys() & {role.removesuffix(SCALE) for role in values if role.endswith(SCALE)}:
            scales = values[role + SCALE]
            stored = rounded(in_floats(plain[role], scales), dtype_of(op.attributes[WEIGHTS_IN]))
            plain[role] = widened(stored).astype(scales.dtype)
        return base(_bare(op), plain)

    return reference


class _Dequantised(Passing):
    """A lowering whose boxes of weights are scratch that the tile fills."""

    def seen(self, op: Op, tensors: Tensors) -> tuple[Op, Tensors]:
        return _bare(op), tensors

    even = passed("even")
    mark = passed("mark")

    def tile(self, op: Op, tensors: Tensors, ranges: Ranges, choice: KernelChoice) -> TileTask:
        """The tile of the step, which converts its weights first."""
        task = self.base.tile(_bare(op), tensors, ranges, choice)
        dtype = dtype_of(op.attributes[WEIGHTS_IN])
        inputs: list[Operand] = []
        scratch, boxes = list(task.scratch), []
        for operand in task.inputs:
            if not is_stored(tensors[operand.tensor]):
                inputs.append(operand)
                continue
            scales = tensors[operand.tensor + SCALE]
            region = tuple(
                (0, 1) if size == 1 else extent
                for size, extent in zip(scales.shape, operand.region, strict=True)
            )
            inputs.append(replace(operand, buffer=f"{operand.name}.codes"))
            inputs.append(Operand(scales.name, region, operand.name + SCALE))
            scratch.append(Scratch(operand.name, operand.shape, dtype))
            boxes.append((operand, [stop - start for start, stop in region]))
        return task.but(
            inputs=inputs,
            scratch=scratch,
            calls=lambda: (*(_conversion(choice, box, scales, dtype) for box, scales in boxes), *task.calls),
        )


def _conversion(choice: KernelChoice, box: Operand, scales: Sequence[int], dtype: DType) -> KernelCall:
    """weight = scale · code, channels over the cores."""
    channels = prod(scales)
    each = prod(box.shape) // channels
    strides = (each, 1) if channels == 1 or scales[0] == channels else (1, channels)
    codes = Piece(f"{box.name}.codes", box.shape, strides=strides, dtype=INT8)
    factors = Piece(box.name + SCALE, tuple(scales), dtype=FP32)
    weight = Piece(box.name, box.shape, strides=strides)

    def function(arrays: Sequence[Array]) -> tuple[Array, ...]:
        return (in_floats(*arrays),)

    image = "r*M + i" if strides[1] == 1 else "i*N + r"
    loop = RowLoop(
        lambda codes, scales: codes * scales,
        "XG",
        "Y",
        {"X": image, "G": "r", "Y": image},
        rows=("N",),
        elements=("M",),
        mark="" if strides[1] == 1 else "_columns",
    )
    return kernel_call(
        choice,
        "dequantise",
        {"N": channels, "M": each},
        {"X": codes, "G": factors, "Y": weight},
        (codes, factors),
        (weight,),
        function,
        dtype,
        details={"rows": loop},
    )
