# SPDX-License-Identifier: Apache-2.0
"""Average of a weight over the updates: average = share · average + (1 - share) · w, at the first w itself.

A count beside it (int32) tells the first, as in `torch.optim.swa_utils.AveragedModel`. The dtype is that of
the optimizer's states. `trainlib.primitives.optimizers.gradient_steps` puts it behind the updates.
"""

from __future__ import annotations

import numpy as np

from trainlib.ir.graph import Op
from trainlib.primitives.definition import InternalPrimitive, Step, Values
from trainlib.primitives.formulas import in_float64
from trainlib.primitives.lowering.elementwise import ElementwiseLowering, VectorLoop


def _tile(op: Op, values: Values) -> Values:
    share, count = op.attributes["share"], values["count"]
    moved = share * values["average"] + (1 - share) * values["w"]
    return {"average_updated": moved if count[0] else values["w"], "count_updated": count + np.int32(1)}


_LOOP = VectorLoop(
    "weight_average",
    roles=("average", "w", "count"),
    reads=("average", "w", "count"),
    writes=("average_updated", "count_updated"),
    compute=_tile,
)

PRIMITIVE = InternalPrimitive(
    name="weight_average",
    step=Step.of(
        "UPD_AVERAGE",
        "average w count -> average_updated count_updated",
        in_float64(_tile),
        ElementwiseLowering(lambda op: (_LOOP,), numbers=("count", "count_updated"), batched=False),
        formula=True,
    ),
)
