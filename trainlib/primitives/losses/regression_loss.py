"""What losses over all elements alike share: labels of the output's shape, value and gradient on one core."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from trainlib.graph import Op, Tensor
from trainlib.primitives.definition import LabelPlan
from trainlib.primitives.lowering.calls import NoMatmul, whole
from trainlib.primitives.lowering.kernel_call import Piece, kernel_call
from trainlib.steps import Extent, Function, KernelCall, KernelChoice, TileTask


def label_like_output(attributes: Mapping[str, Any], output: Tensor, where: str) -> LabelPlan:
    """Labels are fp32 of the shape of the output."""
    return LabelPlan(output.shape)


@dataclass(frozen=True, slots=True)
class RegressionLowering(NoMatmul):
    """Two loops on the master core, value then gradient, never cut: as PULP-TrainLib, which forks no loss.

    `value(op)` and `gradient(op)` take the output and the label of the whole batch.
    """

    forward_nest: str
    backward_nest: str
    value: Callable[[Op], Function]
    gradient: Callable[[Op], Function]

    def extents(self, op: Op, tensors: Mapping[str, Tensor]) -> Mapping[str, int]:
        """Nothing may be cut: the value reduces over all elements."""
        return {}

    def tile(
        self, op: Op, tensors: Mapping[str, Tensor], ranges: Mapping[str, Extent], choice: KernelChoice
    ) -> TileTask:
        """The whole step."""
        sizes = {"elements": prod(tensors[op["y"]].shape)}

        def call(nest: str, target: str, function: Function) -> KernelCall:
            roles = {"X": "y", "T": "label", "Y": target}
            arrays = {name: Piece(role, dtype=tensors[op[role]].dtype) for name, role in roles.items()}
            return kernel_call(choice, nest, sizes, arrays, ("y", "label"), (target,), function, fork=False)

        return TileTask(
            inputs=(whole(op, tensors, "y"), whole(op, tensors, "label")),
            outputs=(whole(op, tensors, "loss"), whole(op, tensors, "dy")),
            scratch=(),
            calls=(
                call(self.forward_nest, "loss", self.value(op)),
                call(self.backward_nest, "dy", self.gradient(op)),
            ),
        )
