# SPDX-License-Identifier: Apache-2.0
"""A trained token before a sequence: y = (w, x_0, x_1, ...), the class token of a vision transformer.

dw is the first token of dy summed over the batch, dx the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from configs.model_file import LayerSchema
from trainlib.ir.access import Index, Term
from trainlib.ir.graph import Op, Tensor
from trainlib.ir.steps import Tensors
from trainlib.primitives.definition import Example, LayerPlan, LayerPrimitive, Parameter, Step, Values
from trainlib.primitives.elementwise.trained import START
from trainlib.primitives.lowering.axes import ONE, Area, Axes, AxesLowering, Form
from trainlib.primitives.lowering.boxes import sequence_of
from trainlib.primitives.lowering.calls import BATCH
from trainlib.primitives.lowering.forks import Fork, column_sum
from trainlib.primitives.shapes.box_copies import SHIFTED_BACK, Copy


def _plan(attributes: Mapping[str, Any], inputs: Sequence[Tensor], where: str) -> LayerPlan:
    batch, length, features = sequence_of(inputs[0], "class_token", where)
    pads = ((1, 0), (0, 0))  # of x in y
    return LayerPlan(
        (batch, length + 1, features), {"w": Parameter((features,), START)}, attributes={"pads": pads}
    )


class _Forward(AxesLowering):
    """FW: samples, tokens and features may be cut; the first tokens of a sample hold w."""

    kept = (BATCH, "tokens", "features")
    roles: Mapping[str, Axes] = {"y": kept, "x": (BATCH, "earlier", "features"), "w": ("features",)}

    def maps(self, op: Op, tensors: Tensors) -> Mapping[str, Index]:
        """Tokens of x come one earlier."""
        return {"earlier": Index("earlier", tensors[op["x"]].shape[1], (Term("tokens"),), -1)}

    def loaded(self, area: Area) -> Sequence[str]:
        """What there is of both."""
        return [role for role in area.op.reads if _JOINED.walk(area, role)]

    def kernels(self, form: Form) -> Sequence[Copy]:
        """Two copies for each sample."""
        return (_JOINED,)


_JOINED = Copy("y", ("w", "x"), only={"w": {"tokens": (0, 1)}}, each=True)


class _WeightGradient(AxesLowering):
    """WG: features may be cut, and the sum over the batch."""

    kept, summed = ("features",), (BATCH,)
    roles: Mapping[str, Axes] = {"dy": (BATCH, ONE, "features"), "dw": kept}

    def kernels(self, form: Form) -> Sequence[Fork]:
        return (column_sum("dy", "dw", (BATCH,), self.kept),)


def _reference(op: Op, values: Values) -> Values:
    x, w = values["x"], values["w"]
    return {"y": np.concatenate([np.broadcast_to(w, (len(x), 1, len(w))), x], axis=1)}


PRIMITIVE = LayerPrimitive(
    name="class_token",
    schema=LayerSchema,
    plan=_plan,
    steps=(
        Step.of("FW", "x w -> y", _reference, _Forward()),
        Step.of(
            "WG", "dy -> dw", lambda op, values: {"dw": values["dy"][:, 0].sum(axis=0)}, _WeightGradient()
        ),
        SHIFTED_BACK,
    ),
    examples=(Example(inputs=((5, 4),), batches=(1, 3)), Example(inputs=((1, 1),))),
    layouts=None,
)
