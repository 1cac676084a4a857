# SPDX-License-Identifier: Apache-2.0
"""Gradient clipping as explicit ops: by value, and by the global norm of all gradients.

By value: every element into [-limit, limit]. By norm, as torch.nn.utils.clip_grad_norm_: every gradient times
min(1, limit / (norm + 1e-6)), norm the 2-norm of all gradients together. Three ops, so that no tile reduces
over more than one row: square sums of the rows of every gradient, one scale from all of them, the products.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import sqrt
from typing import Any

import numpy as np

from configs.dtypes import FP32
from trainlib.ir.graph import Op
from trainlib.ir.steps import Array, Tensors
from trainlib.primitives.definition import InternalPrimitive, Shape, Step, Values
from trainlib.primitives.formulas import in_float64
from trainlib.primitives.lowering.axes import LEADING, ONE, Axes, Form, Groups
from trainlib.primitives.lowering.elementwise import ElementwiseLowering, VectorLoop
from trainlib.primitives.lowering.forks import Fork, ForkLowering

NORM_GUARD = 1e-6
"""Added to the norm before the division (torch.nn.utils.clip_grad_norm_)."""

_SUM = "sum_of_squares"


def _clipped(op: Op, values: Values) -> Values:
    limit = op.attributes["limit"]
    return {"dw_clipped": np.clip(values["dw"], -limit, limit)}


_CLIPPING = VectorLoop("clip_by_value", ("dw", "dw_clipped"), ("dw",), ("dw_clipped",), _clipped)

VALUE = InternalPrimitive(
    name="clip_by_value",
    step=Step.of(
        "CLIP_VALUE",
        "dw -> dw_clipped",
        in_float64(_clipped),
        ElementwiseLowering(lambda op: (_CLIPPING,), batched=False),
        formula=True,
    ),
)


class _Squares(ForkLowering):
    """Square sums of the rows of a gradient, in fp32; rows may be cut."""

    kept = ("d0",)

    def axes_of(self, op: Op, tensors: Tensors, role: str) -> Axes:
        """Rows, and what they consist of."""
        return LEADING[1 : 1 + len(tensors[op[role]].shape)]

    def shapes(self, op: Op, values: Values) -> Mapping[str, Shape]:
        """A number a row."""
        return {"squares": values["dw"].shape[:1]}

    def kernels(self, form: Form) -> Sequence[Fork]:
        """One fork."""
        row, *elements = form.axes("dw")
        sizes = {"rows": (row,), "elements": tuple(elements)}
        return (
            Fork(
                "square_sum",
                "X:dw Y:squares",
                "dw -> squares",
                lambda x: (x * x).sum(axis=1),
                sizes,
                ("rows",),
                ("elements",),
                holds={"squares": ("rows",)},
            ),
        )


_SQUARES = _Squares()

SQUARES = InternalPrimitive(
    name="gradient_squares", step=Step.of("SQUARES", "dw -> squares", _SQUARES.reference, _SQUARES)
)


def _scale_reference(op: Op, values: Values) -> Values:
    rows = np.concatenate([values[role] for role in op.reads]).astype(np.float64)
    norm = sqrt(rows.sum())
    return {"scale": np.array([min(1.0, op.attributes["limit"] / (norm + NORM_GUARD))])}


def _added(squares: Array, before: Any = 0) -> Any:
    """The sum so far, of a row."""
    return before + squares.sum(axis=-1, dtype=np.float64)


def _scaled(squares: Array, before: Any = 0, *, limit: float) -> Any:
    """The scale, from the last of them."""
    norm = np.sqrt(_added(squares, before).astype(np.float32))
    return np.minimum(limit / (norm.astype(np.float64) + NORM_GUARD), 1)


class _Scale(ForkLowering):
    """One number from the square sums of all gradients, on the master core; never cut."""

    of_scratch = FP32

    def axes(self, role: str) -> Axes:
        """Everything is whole."""
        return (ONE,) if role == "scale" else (f"of {role}",)

    def scratch(self, form: Form) -> Mapping[str, Groups]:
        """The sum so far."""
        return {_SUM: ((ONE,),)} if len(form.op.reads) > 1 else {}

    def kernels(self, form: Form) -> Sequence[Fork]:
        """A running sum over the gradients; the last call makes the scale."""
        *first, last = form.op.reads
        made = [self._adding(form, role, _SUM, last=False) for role in first]
        return [*made, self._adding(form, last, "scale", last=True)]

    def _adding(self, form: Form, role: str, target: str, *, last: bool) -> Fork:
        before = _SUM if role != form.op.reads[0] else ""
        return Fork(
            "clip_scale",
            f"B:{before or target} X:{role} Y:{target}",
            f"{role} {before} -> {target}",
            _scaled if last else _added,
            {"elements": form.axes(role)},
            ("1",),
            ("elements",),
            {"limit": form.op.attributes["limit"]} if last else {},
            "_last" * last + "_first" * (not before),
            alone=True,
        )


SCALE = InternalPrimitive(
    name="clip_scale", step=Step.of("SCALE", "squares -> scale", _scale_reference, _Scale())
)

_PRODUCT = VectorLoop(
    "scale_by_norm",
    roles=("dw", "scale", "dw_clipped"),
    reads=("dw", "scale"),
    writes=("dw_clipped",),
    compute=lambda op, values: {"dw_clipped": values["dw"] * values["scale"]},
)

APPLY = InternalPrimitive(
    name="scale_gradient",
    step=Step.of(
        "CLIP_NORM",
        "dw scale -> dw_clipped",
        in_float64(_PRODUCT.compute),
        ElementwiseLowering(lambda op: (_PRODUCT,), numbers=("scale",), batched=False),
        formula=True,
    ),
)

PRIMITIVES = (VALUE, SQUARES, SCALE, APPLY)
