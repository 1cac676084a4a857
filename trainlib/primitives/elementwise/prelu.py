# SPDX-License-Identifier: Apache-2.0
"""ReLU with a trained slope: y = x where x > 0, else w x, one w for all or one per channel (He et al. 2015).

dx = dy where x > 0, else w dy; dw = sum of x dy where x <= 0, over all that has the slope.
Slopes start at 0.25, as in PyTorch. PULP-TrainLib has none: its nests are estimates. A single slope's dw is
summed row by row over the cores, the rows then by one core.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from configs.dtypes import FP32
from configs.errors import ShapeError
from configs.model_file import LayerSchema
from trainlib.ir.graph import Initial, Op, Tensor
from trainlib.ir.steps import Array, KernelChoice, Ranges, Region, Scratch, Tensors, TileTask
from trainlib.primitives.definition import (
    DrawnInput,
    Example,
    LayerPlan,
    LayerPrimitive,
    Parameter,
    Step,
    Values,
)
from trainlib.primitives.lowering.boxes import LeadingBoxes, leading_region, sizes_of
from trainlib.primitives.lowering.calls import NoMatmul, batch_extent, box
from trainlib.primitives.lowering.kernel_call import Piece, kernel_call
from trainlib.primitives.lowering.pieces import TileBuilder

START = Initial("constant", 0.25)

ROWS = "dw_of_rows"
"""Name of the scratch buffer of the sums of rows."""


class _Schema(LayerSchema):
    per_channel: bool = False
    """A slope per channel (the first dimension behind the batch) in place of one for all."""


def _plan(attributes: Mapping[str, Any], inputs: Sequence[Tensor], where: str) -> LayerPlan:
    shape, per_channel = inputs[0].shape, attributes["per_channel"]
    if len(shape) < 2:
        raise ShapeError(f"prelu needs an input with channels, but its shape is {shape}", where=where)
    slopes = shape[1] if per_channel else 1
    return LayerPlan(shape, {"w": Parameter((slopes,), START)}, attributes={"per_channel": per_channel})


def _sizes(op: Op, shape: tuple[int, ...]) -> dict[str, int]:
    """Samples, channels with a slope of their own, and elements behind each, of a box."""
    if not op.attributes["per_channel"]:
        return {"samples": 1, "channels": 1, "elements": prod(shape)}
    return {"samples": shape[0], "channels": shape[1], "elements": prod(shape[2:])}


def _slopes(op: Op, region: Region) -> Region:
    """The box of w that belongs to a box of x."""
    return (region[1],) if op.attributes["per_channel"] else ((0, 1),)


def _spread(w: Array, rank: int) -> Array:
    """w as it is multiplied with x."""
    return w.reshape(1, -1, *(1,) * (rank - 2))


class _Elementwise(LeadingBoxes):
    """FW and IG: any box; `source` is what is passed on, or multiplied with the slope."""

    def __init__(self, nest: str, source: str, result: str) -> None:
        self.nest, self.source, self.result = nest, source, result

    def tile(self, op: Op, tensors: Tensors, ranges: Ranges, choice: KernelChoice) -> TileTask:
        region = leading_region(tensors[op["x"]].shape, ranges)
        sizes, kinds = _sizes(op, sizes_of(region)), {role: tensors[op[role]].dtype for role in op.roles}
        shape = tuple(sizes.values())
        roles = tuple(dict.fromkeys(("x", self.source)))

        def function(arrays: Sequence[Array]) -> tuple[Array, ...]:
            x, source, w = arrays[0], arrays[-2], arrays[-1]
            return (np.where(x > 0, source, _spread(w, x.ndim) * source),)

        placed = {"X": "x", "Y": self.result, **({"G": self.source} if self.source != "x" else {})}
        arrays = {name: Piece(role, shape, dtype=kinds[role]) for name, role in placed.items()}
        arrays["W"] = Piece("w", dtype=kinds["w"])
        dtype = kinds[self.result]
        call = kernel_call(choice, self.nest, sizes, arrays, (*roles, "w"), (self.result,), function, dtype)
        inputs = (*(box(op, role, *region) for role in roles), box(op, "w", *_slopes(op, region)))
        return TileTask(inputs, (box(op, self.result, *region),), (), (call,))


class _SlopeGradient(NoMatmul):
    """WG: some channels of dw; samples and the dimension behind the channels are summed and may be cut."""

    def extents(self, op: Op, tensors: Tensors) -> Mapping[str, int]:
        return {"d0": tensors[op["x"]].shape[1]} if op.attributes["per_channel"] else {}

    def reductions(self, op: Op, tensors: Tensors) -> Mapping[str, int]:
        """Samples, channels of one slope, and the next dimension."""
        shape = tensors[op["x"]].shape
        cut = {} if op.attributes["per_channel"] else {"d0": shape[1]}
        return {**batch_extent(shape[0]), **cut, **({"d1": shape[2]} if len(shape) > 2 else {})}

    def tile(self, op: Op, tensors: Tensors, ranges: Ranges, choice: KernelChoice) -> TileTask:
        """One fork; of a single slope a second one, on the sums of rows."""
        region = leading_region(tensors[op["x"]].shape, ranges)
        shape, build = sizes_of(region), TileBuilder(choice, tensors[op["dw"]].dtype)
        kinds = {role: tensors[op[role]].dtype for role in ("x", "dy")}

        def sums(target: Piece, sizes: tuple[int, int, int], *axes: int) -> None:
            def function(x: Array, dy: Array) -> Array:
                terms = np.where(x > 0, 0, x.astype(np.float64) * dy)
                return np.asarray(terms.sum(axis=axes).astype(np.float32)).reshape(-1)

            x, dy = (Piece(role, sizes, dtype=kind) for role, kind in kinds.items())
            named = dict(zip(("samples", "channels", "elements"), sizes, strict=True))
            arrays = {"X": x, "G": dy, "Y": target}
            build.run("prelu_wg", arrays, ("x", "dy"), (target.name,), function, **named)

        inner = range(2, len(shape))
        if op.attributes["per_channel"]:
            sums(Piece("dw", shape[1:2]), (shape[0], shape[1], prod(shape[2:])), 0, *inner)
        else:
            rows = prod(shape[:2])
            build.scratch.append(Scratch(ROWS, (rows,)))
            sums(Piece(ROWS, (rows,), dtype=FP32), (1, rows, prod(shape[2:])), *inner)
            arrays = {"X": Piece(ROWS, (1, 1, rows), dtype=FP32), "Y": Piece("dw", (1,))}
            build.run(
                "row_sum",
                arrays,
                (ROWS,),
                ("dw",),
                lambda x: x.sum(dtype=np.float64).astype(np.float32).reshape(1),
                **{"P": 1, "N": 1, "M": rows},
            )
        boxes = [box(op, role, *region) for role in ("x", "dy")]
        return build.task(boxes, (box(op, "dw", *_slopes(op, region)),))


def _forward(op: Op, values: Values) -> Values:
    x = values["x"]
    return {"y": np.maximum(x, 0) + _spread(values["w"], x.ndim) * np.minimum(x, 0)}


def _backward(op: Op, values: Values) -> Values:
    right = np.greater(values["x"], 0)
    return {"dx": values["dy"] * (right + _spread(values["w"], right.ndim) * ~right)}


def _weights(op: Op, values: Values) -> Values:
    terms = np.minimum(values["x"], 0) * values["dy"]
    if not op.attributes["per_channel"]:
        return {"dw": np.sum(terms).reshape(1)}
    return {"dw": np.moveaxis(terms, 1, 0).reshape(terms.shape[1], -1).sum(axis=1)}


PRIMITIVE = LayerPrimitive(
    name="prelu",
    schema=_Schema,
    plan=_plan,
    steps=(
        Step.of("FW", "x w -> y", _forward, _Elementwise("prelu_fw", "x", "y")),
        Step.of("WG", "x dy -> dw", _weights, _SlopeGradient()),
        Step.of("IG", "x w dy -> dx", _backward, _Elementwise("prelu_bw", "dy", "dx")),
    ),
    examples=(
        Example(inputs=((7,),)),
        Example(inputs=((3, 4, 5),)),
        Example({"per_channel": True}, ((3, 4, 5),)),
        Example({"per_channel": True}, (DrawnInput((9,), low=-0.5, high=0.2),)),
        Example({"per_channel": True}, ((3, 2, 3, 2),)),
    ),
)
