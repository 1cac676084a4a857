# SPDX-License-Identifier: Apache-2.0
"""Steps that see only a part of some of their tensors: sparse updates, without a copy of the part.

A step with windows works as if they were whole tensors; here its boxes move to where the windows lie.
What it writes to one leaves the rest of the tensor as it was, so such a tensor takes over the storage of
another.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from configs.values import replace
from trainlib.ir.graph import Op, TensorWindow
from trainlib.ir.steps import KernelChoice, Operand, Ranges, StepLowering, Tensors, TileTask
from trainlib.primitives.definition import Reference, Step, Values


def windowed(step: Step) -> Step:
    """The step with a reference and a lowering that heed the windows of an op."""
    return replace(step, reference=_reference(step.reference), lowering=_Windowed(step.lowering))


def _reference(base: Reference) -> Reference:
    def reference(op: Op, values: Values) -> Values:
        seen = {
            role: array[op.windows[role].index] if role in op.windows else array
            for role, array in values.items()
        }
        results = dict(base(op, seen))
        for role, window in op.windows.items():
            if role in results:
                whole = np.array(values[role.removesuffix("_updated")])
                whole[window.index] = results[role]
                results[role] = whole
        return results

    return reference


def passed(name: str) -> Any:
    """A method of a `Passing` that answers what `base` answers about what is seen."""

    def answer(self: Passing, op: Op, tensors: Tensors, *more: Any) -> Any:
        return getattr(self.base, name)(*self.seen(op, tensors), *more)

    return answer


@dataclass(frozen=True)
class Passing(StepLowering):
    """A lowering of an op as `seen` shows it to another: the answers of that one hold."""

    base: StepLowering

    def seen(self, op: Op, tensors: Tensors) -> tuple[Op, Tensors]:
        """The op and the tensors that `base` is asked about."""
        raise NotImplementedError

    extents = passed("extents")
    reductions = passed("reductions")
    meeting = passed("meeting")
    macs = passed("macs")
    useful_macs = passed("useful_macs")

    def default_kernel(self, op: Op) -> str:
        """That of `base`."""
        return self.base.default_kernel(op)


class _Windowed(Passing):
    """A lowering on the parts, its boxes shifted to their places in the whole tensors."""

    def seen(self, op: Op, tensors: Tensors) -> tuple[Op, Tensors]:
        return op, _seen(op, tensors)

    def tile(self, op: Op, tensors: Tensors, ranges: Ranges, choice: KernelChoice) -> TileTask:
        """The tile of the step on the parts, its boxes where the parts lie."""
        task = self.base.tile(op, _seen(op, tensors), ranges, choice)
        windows = {op[role]: window for role, window in op.windows.items()}
        inputs, outputs = (
            [_moved(operand, windows) for operand in side] for side in (task.inputs, task.outputs)
        )
        return task.but(inputs=inputs, outputs=outputs)


def _seen(op: Op, tensors: Tensors) -> Tensors:
    seen = dict(tensors)
    for role, window in op.windows.items():
        tensor = tensors[op[role]]
        seen[op[role]] = replace(tensor, shape=window.shape(tensor.shape))
    return seen


def _moved(operand: Operand, windows: Mapping[str, TensorWindow]) -> Operand:
    window = windows.get(operand.tensor)
    if window is None:
        return operand
    region, pieces = list(operand.region), list(operand.pieces)
    start, stop = region[window.axis]
    region[window.axis] = (start + window.start, stop + window.start)
    if pieces:
        pieces[window.axis] = tuple((a + window.start, b + window.start) for a, b in pieces[window.axis])
    return replace(operand, region=tuple(region), pieces=tuple(pieces))
