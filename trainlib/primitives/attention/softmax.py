# SPDX-License-Identifier: Apache-2.0
"""Softmax over the last axis: e = exp(x - max), y = e / sum(e); dx = (dy - sum(dy · y)) · y.

`exponential` says which exp: ``exact``, or one of PULP-TrainLib's: ``schraudolph`` (its bit trick, what the
library always uses, and a layer in the variant as-published) and ``taylor`` (its polynomial for powers of
two, zero from 2^-3.14 on; scaled here by log2 e, so that it approximates e^x). IG is the formula above on the
y there is, as in the library.

Passes as in the library: row maxima, exponentials with their row sums, division; and row sums, scaling. Rows
are split over the cores. Maxima and sums are kept in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any, Literal

import numpy as np

from configs.dtypes import DType
from configs.errors import ShapeError
from configs.model_file import LayerSchema
from trainlib.graph import Op, Tensor
from trainlib.primitives.definition import (
    AsPublished,
    Example,
    InputCase,
    LayerPlan,
    LayerPrimitive,
    Refused,
    Step,
    Values,
)
from trainlib.primitives.elementwise.functions import schraudolph, taylor
from trainlib.primitives.lowering.boxes import leading_extents, leading_region, sizes_of
from trainlib.primitives.lowering.calls import NoMatmul, box
from trainlib.primitives.lowering.kernel_call import Piece, kernel_call
from trainlib.steps import Array, Extent, KernelCall, KernelChoice, Scratch, TileTask

MAXIMA, SUMS = "maxima", "sums"
"""Names of the scratch buffers of one number per row."""

_EXPONENTIALS: Mapping[str, tuple[str, Callable[[Array], Array]]] = {
    "exact": ("exp_sum_exact", np.exp),
    "schraudolph": ("exp_sum", schraudolph),
    "taylor": ("exp_sum_taylor", taylor),
}
"""Nest and function of each kind of exponential."""

_ARRAYS: Mapping[str, Mapping[str, int]] = {
    "row_max": {"X": 2, "R": 1},
    "exp_sum": {"X": 2, "Y": 2, "R": 1, "Z": 1},
    "row_div": {"X": 2, "Z": 1},
    "softmax_bw_sum": {"X": 2, "G": 2, "Z": 1},
    "softmax_bw_scale": {"X": 2, "G": 2, "Z": 1, "Y": 2},
}
"""Arrays of each pass, and their number of indices: matrices, and vectors of one number per row."""


class _Schema(LayerSchema):
    exponential: Literal["exact", "schraudolph", "taylor"] = "exact"
    """How e^x is computed: exactly, by the bits of the exponent (PULP-TrainLib), or by a Taylor series."""


def _plan(attributes: Mapping[str, Any], inputs: Sequence[Tensor], where: str) -> LayerPlan:
    shape = inputs[0].shape
    if len(shape) < 2:
        raise ShapeError("softmax needs a last axis behind the batch", where=where)
    return LayerPlan(shape, attributes={"exponential": attributes["exponential"]})


class Rows(NoMatmul):
    """What FW and IG share: tiles are some rows of everything."""

    def extents(self, op: Op, tensors: Mapping[str, Tensor]) -> Mapping[str, int]:
        """``n`` and up to two dimensions before the last, which is reduced over."""
        shape = tensors[op.outputs[0]].shape
        return leading_extents(shape, range(len(shape) - 2))

    def tile(
        self, op: Op, tensors: Mapping[str, Tensor], ranges: Mapping[str, Extent], choice: KernelChoice
    ) -> TileTask:
        """The same box of everything, and the passes of the step."""
        tensor = tensors[op.outputs[0]]
        region = leading_region(tensor.shape, ranges)
        shape = sizes_of(region)
        scratch, calls = self.passes(op, shape, tensor.dtype, choice)
        return TileTask(
            tuple(box(op, role, *region) for role in op.reads),
            tuple(box(op, role, *region) for role in op.writes),
            scratch,
            calls,
        )

    def passes(
        self, op: Op, shape: tuple[int, ...], dtype: DType, choice: KernelChoice
    ) -> tuple[tuple[Scratch, ...], tuple[KernelCall, ...]]:
        """Scratch buffers and calls on boxes of this shape."""
        raise NotImplementedError


def row_call(
    choice: KernelChoice,
    kernel: str,
    arrays: Mapping[str, int],
    places: Sequence[str],
    shape: tuple[int, ...],
    dtype: DType,
    reads: Sequence[str],
    writes: Sequence[str],
    function: Callable[..., tuple[Array, ...]],
) -> KernelCall:
    """A pass over the rows of a box; `places` are the buffers of the nest's `arrays`."""
    rows, columns = prod(shape[:-1]), shape[-1]
    pieces = {
        name: Piece(place, (rows, columns) if indices == 2 else (rows,))
        for (name, indices), place in zip(arrays.items(), places, strict=True)
    }
    sizes = {"N": rows, "M": columns}
    return kernel_call(choice, kernel, sizes, pieces, reads, writes, lambda values: function(*values), dtype)


def row_maxima(choice: KernelChoice, shape: tuple[int, ...], dtype: DType) -> KernelCall:
    """The largest element of every row of x, into `MAXIMA`."""

    def maxima(x: Array) -> tuple[Array, ...]:
        return (x.reshape(-1, shape[-1]).max(axis=1),)

    arrays = _ARRAYS["row_max"]
    return row_call(choice, "row_max", arrays, ("x", MAXIMA), shape, dtype, ("x",), (MAXIMA,), maxima)


class _Forward(Rows):
    def passes(
        self, op: Op, shape: tuple[int, ...], dtype: DType, choice: KernelChoice
    ) -> tuple[tuple[Scratch, ...], tuple[KernelCall, ...]]:
        """Row maxima; exponentials into y, and their sums; y divided by the sums."""
        kernel, exponential = _EXPONENTIALS[op.attributes["exponential"]]
        rows = prod(shape[:-1])

        def exponentials(x: Array, highest: Array) -> tuple[Array, ...]:
            values = exponential(x.reshape(rows, -1) - highest[:, None])
            return values.reshape(shape), values.sum(axis=1)

        def quotients(y: Array, sums: Array) -> tuple[Array, ...]:
            return ((y.reshape(rows, -1) / sums[:, None]).reshape(shape),)

        places = ("x", "y", MAXIMA, SUMS)
        return (
            (Scratch(MAXIMA, (rows,)), Scratch(SUMS, (rows,))),
            (
                row_maxima(choice, shape, dtype),
                row_call(
                    choice,
                    kernel,
                    _ARRAYS["exp_sum"],
                    places,
                    shape,
                    dtype,
                    ("x", MAXIMA),
                    ("y", SUMS),
                    exponentials,
                ),
                row_call(
                    choice,
                    "row_div",
                    _ARRAYS["row_div"],
                    ("y", SUMS),
                    shape,
                    dtype,
                    ("y", SUMS),
                    ("y",),
                    quotients,
                ),
            ),
        )


class _InputGradient(Rows):
    def passes(
        self, op: Op, shape: tuple[int, ...], dtype: DType, choice: KernelChoice
    ) -> tuple[tuple[Scratch, ...], tuple[KernelCall, ...]]:
        """Row sums of dy · y; then (dy - sum) · y."""

        def sums(y: Array, dy: Array) -> tuple[Array, ...]:
            return ((y * dy).reshape(-1, shape[-1]).sum(axis=1),)

        def scaled(y: Array, dy: Array, totals: Array) -> tuple[Array, ...]:
            return ((dy - totals.reshape(*shape[:-1], 1)) * y,)

        first, second = "softmax_bw_sum", "softmax_bw_scale"
        return (
            (Scratch(SUMS, (prod(shape[:-1]),)),),
            (
                row_call(
                    choice,
                    first,
                    _ARRAYS[first],
                    ("y", "dy", SUMS),
                    shape,
                    dtype,
                    ("y", "dy"),
                    (SUMS,),
                    sums,
                ),
                row_call(
                    choice,
                    second,
                    _ARRAYS[second],
                    ("y", "dy", SUMS, "dx"),
                    shape,
                    dtype,
                    ("y", "dy", SUMS),
                    ("dx",),
                    scaled,
                ),
            ),
        )


def _forward(op: Op, values: Values) -> Values:
    kind = op.attributes["exponential"]
    x = values["x"]
    if kind == "exact":
        shifted = x.astype(np.float64)
        shifted -= shifted.max(
            axis=-1, keepdims=True
        )  # beside large x the logarithm of the sum would be lost
        return {"y": np.exp(shifted - np.logaddexp.reduce(shifted, axis=-1, keepdims=True))}
    below = x - np.amax(x, axis=-1, keepdims=True)
    weights = _EXPONENTIALS[kind][1](below).astype(np.float64)
    return {"y": weights / np.sum(weights, axis=-1, keepdims=True)}


def _backward(op: Op, values: Values) -> Values:
    y, dy = values["y"].astype(np.float64), values["dy"].astype(np.float64)
    inner = np.einsum("...i,...i->...", y, dy)
    return {"dx": y * dy - y * inner[..., None]}


def _cases() -> Any:
    """Rows of any length and number, any exponential."""
    from hypothesis import strategies as st

    def example(shape: list[int], kind: str, high: float) -> Example:
        return Example({"exponential": kind}, (InputCase(tuple(shape), low=-high, high=high),))

    return st.builds(
        example,
        st.lists(st.integers(1, 7), min_size=1, max_size=4),
        st.sampled_from(tuple(_EXPONENTIALS)),
        st.sampled_from((0.5, 2.0)),
    )


PRIMITIVE = LayerPrimitive(
    name="softmax",
    schema=_Schema,
    plan=_plan,
    steps=(
        Step("FW", ("x",), ("y",), _forward, _Forward()),
        Step("IG", ("y", "dy"), ("dx",), _backward, _InputGradient()),
    ),
    published=AsPublished(options={"exponential": "schraudolph"}),
    examples=(
        Example(inputs=((7,),)),
        Example(inputs=(InputCase((3, 4, 5), low=-9, high=9),)),
        Example(inputs=(InputCase((2, 9), low=-4, high=4),)),
        Example({"exponential": "schraudolph"}, (InputCase((3, 8), low=-4, high=4),)),
        Example({"exponential": "taylor"}, (InputCase((2, 3, 6), low=-2, high=2),)),
        Example({"variant": "as-published"}, (InputCase((2, 5), low=-4, high=4),)),
    ),
    refused=(Refused({"exponential": "fast"}, ((3,),), "exponential"),),
    cases=_cases,
)
