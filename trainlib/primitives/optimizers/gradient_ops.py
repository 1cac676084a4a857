# SPDX-License-Identifier: Apache-2.0
"""Ops around updates, which `trainlib.primitives.optimizers.gradient_steps` and the builder put into a graph.

Sum of two gradients of one tensor, as PULP-TrainLib's sum node, where a tensor has several users; it takes
the place of the first where nothing else lies there. The library now runs it with its general loop for two
shapes, which is the variant as-published.

Gradient accumulation: total = share · dw on the first of `steps` mini-batches, total + share · dw after. The
reset is lazy, as in Deeploy's InPlaceAccumulatorV2: nothing zeroes the total after an update, the first
mini-batch that follows overwrites it. Which one that is tells a count kept next to the total (int32). The
total is fp32 whatever the dtype of the gradient.

Average of a weight over the updates: average = share · average + (1 - share) · w, at the first w itself. A
count (int32) tells the first, as in `torch.optim.swa_utils.AveragedModel`. The dtype is that of the
optimizer's states.

Clipping by value: every element into [-limit, limit]. By norm, as torch.nn.utils.clip_grad_norm_: every
gradient times min(1, limit / (norm + 1e-6)), norm the 2-norm of all gradients together. Three ops, so that
no tile reduces over more than one row: square sums of the rows of every gradient, one scale, the products.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import sqrt
from typing import Any

import numpy as np

from configs.dtypes import FP32
from trainlib.ir.graph import Op
from trainlib.ir.steps import Array, Tensors
from trainlib.primitives.definition import AS_PUBLISHED, InternalPrimitive, Shape, Step, Values, Variant
from trainlib.primitives.formulas import in_float64
from trainlib.primitives.lowering.axes import LEADING, ONE, Axes, Form, Groups
from trainlib.primitives.lowering.calls import BROADCAST_ADD, VECTOR_ADD
from trainlib.primitives.lowering.elementwise import Compute, ElementwiseLowering, VectorLoop
from trainlib.primitives.lowering.forks import Fork, ForkLowering

NORM_GUARD = 1e-6
"""Added to the norm before the division (torch.nn.utils.clip_grad_norm_)."""

_SUM = "sum_of_squares"


def _sum(nest: str) -> ElementwiseLowering:
    loop = VectorLoop(
        nest, ("a", "b", "sum"), ("a", "b"), ("sum",), lambda op, values: {"sum": values["a"] + values["b"]}
    )
    return ElementwiseLowering(lambda op: (loop,), takes_over=True)


ADDED = InternalPrimitive(
    name="accumulate",
    step=Step.of(
        "ACC",
        "a b -> sum",
        lambda op, values: {"sum": np.sum([values["a"], values["b"]], axis=0)},
        _sum(VECTOR_ADD),
        {AS_PUBLISHED: Variant(_sum(BROADCAST_ADD))},
    ),
)


def _looped(
    name: str,
    step: str,
    roles: str,
    nest: str,
    arrays: str,
    compute: Compute,
    numbers: tuple[str, ...] = (),
) -> InternalPrimitive:
    """An op of one loop, from `roles`: reads -> writes; `arrays` are those of the nest."""
    reads, writes = (tuple(side.split()) for side in roles.split(" -> "))
    loop = VectorLoop(nest, tuple(arrays.split()), reads, writes, compute)
    lowering = ElementwiseLowering(lambda op: (loop,), numbers=numbers, batched=False)
    made = Step.of(step, roles, in_float64(compute), lowering, formula=True)
    return InternalPrimitive(name=name, step=made)


def _accumulated(op: Op, values: Values) -> Values:
    count, term = values["count"], op.attributes["share"] * values["dw"]
    total = term if count[0] % op.attributes["steps"] == 0 else values["total"] + term
    return {"total_updated": total, "count_updated": count + np.int32(1)}


ACCUMULATION = _looped(
    "gradient_accumulation",
    "ACCUMULATE",
    "total dw count -> total_updated count_updated",
    "accumulate_gradient",
    "total dw total_updated count",
    _accumulated,
    ("count", "count_updated"),
)


def _averaged(op: Op, values: Values) -> Values:
    share, count = op.attributes["share"], values["count"]
    moved = share * values["average"] + (1 - share) * values["w"]
    return {"average_updated": moved if count[0] else values["w"], "count_updated": count + np.int32(1)}


AVERAGE = _looped(
    "weight_average",
    "UPD_AVERAGE",
    "average w count -> average_updated count_updated",
    "weight_average",
    "average w count",
    _averaged,
    ("count", "count_updated"),
)


def _clipped(op: Op, values: Values) -> Values:
    limit = op.attributes["limit"]
    return {"dw_clipped": np.clip(values["dw"], -limit, limit)}


VALUE = _looped("clip_by_value", "CLIP_VALUE", "dw -> dw_clipped", "clip_by_value", "dw dw_clipped", _clipped)


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

APPLY = _looped(
    "scale_gradient",
    "CLIP_NORM",
    "dw scale -> dw_clipped",
    "scale_by_norm",
    "dw scale dw_clipped",
    lambda op, values: {"dw_clipped": values["dw"] * values["scale"]},
    ("scale",),
)

PRIMITIVES = (ADDED, ACCUMULATION, AVERAGE, VALUE, SQUARES, SCALE, APPLY)
