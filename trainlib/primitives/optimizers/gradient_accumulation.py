# SPDX-License-Identifier: Apache-2.0
"""Gradient accumulation: total = share · dw on the first of `steps` mini-batches, total + share · dw after.

The reset is lazy, as in Deeploy's InPlaceAccumulatorV2: nothing zeroes the total after an update, the first
mini-batch that follows overwrites it. Which one that is tells a count kept next to the total (int32). The
total is fp32 whatever the dtype of the gradient. `trainlib.primitives.optimizers.gradient_steps` puts it into
a graph.
"""

from __future__ import annotations

import numpy as np

from trainlib.ir.graph import Op
from trainlib.primitives.definition import InternalPrimitive, Step, Values
from trainlib.primitives.formulas import in_float64
from trainlib.primitives.lowering.elementwise import ElementwiseLowering, VectorLoop


def _tile(op: Op, values: Values) -> Values:
    count, term = values["count"], op.attributes["share"] * values["dw"]
    total = term if count[0] % op.attributes["steps"] == 0 else values["total"] + term
    return {"total_updated": total, "count_updated": count + np.int32(1)}


_LOOP = VectorLoop(
    "accumulate_gradient",
    roles=("total", "dw", "total_updated", "count"),
    reads=("total", "dw", "count"),
    writes=("total_updated", "count_updated"),
    compute=_tile,
)

PRIMITIVE = InternalPrimitive(
    name="gradient_accumulation",
    step=Step.of(
        "ACCUMULATE",
        "total dw count -> total_updated count_updated",
        in_float64(_tile),
        ElementwiseLowering(lambda op: (_LOOP,), numbers=("count", "count_updated"), batched=False),
        formula=True,
    ),
)
