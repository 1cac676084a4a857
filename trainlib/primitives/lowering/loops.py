"""Lowering of steps that are one loop over weights or gradients, by a nest named by its file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from trainlib.graph import Op, Tensor
from trainlib.primitives.definition import Values
from trainlib.primitives.lowering.calls import NoMatmul, box, region_elements, whole
from trainlib.primitives.lowering.kernel_call import Piece, kernel_call
from trainlib.steps import Array, Extent, KernelChoice, Operand, TileTask


@dataclass(frozen=True, slots=True)
class ElementwiseLoop(NoMatmul):
    """Tiles of a step on weights or gradients: results of one shape, element i from elements i.

    `nest(op)` names the loop, `streams` its arrays and the roles they lie in. The first two dimensions may be
    cut. Roles in `numbers` have shape (1,): every tile reads them whole, and the last tile writes those that
    are written, so that no tile reads one that a tile before it has changed.
    `function(op, values)` maps arrays by role to arrays by role.
    """

    nest: Callable[[Op], str]
    streams: Mapping[str, str]
    function: Callable[[Op, Values], Values]
    numbers: tuple[str, ...] = ()

    def extents(self, op: Op, tensors: Mapping[str, Tensor]) -> Mapping[str, int]:
        """The first two dimensions of the result."""
        shape = tensors[op.outputs[0]].shape
        return {f"d{axis}": size for axis, size in enumerate(shape[:2])}

    def tile(
        self, op: Op, tensors: Mapping[str, Tensor], ranges: Mapping[str, Extent], choice: KernelChoice
    ) -> TileTask:
        """The same box of every tensor, one fork."""
        shape = tensors[op.outputs[0]].shape
        region = tuple(ranges[f"d{axis}"] if axis < 2 else (0, size) for axis, size in enumerate(shape))
        last = all(stop == size for (_, stop), size in zip(region, shape, strict=True))
        writes = [role for role in op.writes if role not in self.numbers or last]
        roles = {**op.roles}
        arrays = {
            name: Piece(role, dtype=tensors[roles[role]].dtype)
            for name, role in self.streams.items()
            if role in roles
        }

        def compute(values: Sequence[Array]) -> tuple[Array, ...]:
            results = self.function(op, dict(zip(op.reads, values, strict=True)))
            return tuple(results[role] for role in writes)

        def operand(role: str) -> Operand:
            return whole(op, tensors, role) if role in self.numbers else box(op, role, *region)

        sizes = {"elements": region_elements(region)}
        return TileTask(
            inputs=tuple(operand(role) for role in op.reads),
            outputs=tuple(operand(role) for role in writes),
            scratch=(),
            calls=(kernel_call(choice, self.nest(op), sizes, arrays, op.reads, writes, compute),),
        )
