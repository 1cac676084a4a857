"""What a primitive step tells the scheduler: how its result may be cut, and what one tile needs and does.

A step is described once, here, and is then costed, tiled, scheduled and traced like any other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from numpy.typing import NDArray

from arch.isa import TeamWork
from trainlib.graph import Op, Tensor

Array = NDArray[Any]

Extent = tuple[int, int]
"""Half-open interval [start, stop) of one dimension."""

Region = tuple[Extent, ...]
"""A box of a tensor, one interval per dimension."""


@dataclass(frozen=True, slots=True)
class Operand:
    """A box of a graph tensor that a tile moves between its home memory and L1."""

    tensor: str
    region: Region

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the box, which is also its shape in L1 (C-contiguous)."""
        return tuple(stop - start for start, stop in self.region)


@dataclass(frozen=True, slots=True)
class Scratch:
    """An L1 buffer that lives only while one tile is computed (im2col, transposed weights)."""

    name: str
    shape: tuple[int, ...]
    dtype: str = "float32"


@dataclass(frozen=True, slots=True)
class KernelCall:
    """One kernel on the team. `reads` and `writes` name operands (by tensor) or scratch buffers of the tile.

    `work` gives the loop nests for a number of cores, with the L1 addresses of the named buffers (so that
    banks are known). `function` maps the arrays of `reads` to the arrays of `writes` (shapes as in L1).
    `fork` is False for code the master core runs alone. `macs` counts multiply-accumulates.
    """

    kernel: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    work: Callable[[int, Mapping[str, int]], TeamWork]
    function: Callable[[Sequence[Array]], Sequence[Array]]
    macs: int = 0
    fork: bool = True


@dataclass(frozen=True, slots=True)
class TileTask:
    """Everything one tile does: boxes in, scratch, kernels in order, boxes out."""

    inputs: tuple[Operand, ...]
    outputs: tuple[Operand, ...]
    scratch: tuple[Scratch, ...]
    calls: tuple[KernelCall, ...]


@dataclass(frozen=True, slots=True)
class KernelChoice:
    """How the compute of a step is done: matmul kernel name and codegen profile."""

    kernel: str
    codegen: str


class StepLowering(Protocol):
    """How one op becomes tiles. One per primitive and step, registered by the primitive's file."""

    def extents(self, op: Op, tensors: Mapping[str, Tensor]) -> Mapping[str, int]:
        """Dimensions of the step's own result that may be cut, in loop order (outermost first), with sizes.

        An empty mapping means the step cannot be cut. No reduction dimension is listed.
        """

    def tile(
        self, op: Op, tensors: Mapping[str, Tensor], ranges: Mapping[str, Extent], choice: KernelChoice
    ) -> TileTask:
        """The task of the tile that covers `ranges` (one interval per entry of `extents`)."""

    def default_kernel(self, op: Op) -> str:
        """Matmul kernel used when the user names none; empty for steps without a matmul."""

    def macs(self, op: Op, tensors: Mapping[str, Tensor]) -> int:
        """Multiply-accumulates of the whole step (0 for elementwise steps)."""
