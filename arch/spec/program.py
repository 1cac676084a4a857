# SPDX-License-Identifier: Apache-2.0
"""The action types of a Program: what the cluster's master core does, in order, with dependencies."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from arch.spec.isa import TeamWork
from configs.dtypes import element_bytes
from configs.values import Struct
from traces.events import NO_WORK, Work

Array = NDArray[np.generic]


class Place(Struct, frozen=True):
    """A contiguous array in a modelled memory: level (l1, l2, l3), byte address, shape, dtype and a name."""

    level: str
    address: int
    shape: tuple[int, ...]
    dtype: str = "float32"
    name: str = ""

    @property
    def size_bytes(self) -> int:
        """Bytes the array occupies."""
        return prod(self.shape) * element_bytes(self.dtype)


@dataclass(frozen=True, slots=True)
class Effect:
    """The numbers behind a compute action: `function` maps the arrays read to the arrays written.

    The arrays of `reads` are sampled when the action starts; the results are written to `writes`, in order,
    when it ends. `function` must not keep or change its arguments. `details` are for those who write it in C.
    """

    reads: tuple[Place, ...]
    writes: tuple[Place, ...]
    function: Callable[[Sequence[Array]], Sequence[Array]]
    details: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)


class Command(Struct, frozen=True):
    """One DMA command: `lines` lines of `line_bytes`, contiguous in L1, strided in the external memory.

    `to_l1` gives the direction. `stride_bytes` is the distance between line starts in the external memory
    (ignored when `lines` is 1, which is a 1D command).
    """

    to_l1: bool
    l1_address: int
    external_level: str
    external_address: int
    line_bytes: int
    lines: int = 1
    stride_bytes: int = 0

    @property
    def size_bytes(self) -> int:
        """Bytes moved."""
        return self.line_bytes * self.lines

    @property
    def contiguous(self) -> bool:
        """Whether the external side is one range of bytes as well, be it cut into lines."""
        return self.lines == 1 or self.stride_bytes == self.line_bytes


class UdmaCommand(Struct, frozen=True):
    """One transfer of the uDMA between L2 and the external L3; both sides are contiguous.

    `to_l2` gives the direction.
    """

    to_l2: bool
    l2_address: int
    l3_address: int
    size_bytes: int


Move = Command | UdmaCommand
"""Whatever copies bytes from one memory to another."""


class Action(Struct, frozen=True):
    """Common part of all actions: `id` is its index in the program, `deps` the ids that must have ended."""

    id: int
    deps: tuple[int, ...] = ()
    work: Work = NO_WORK


class DmaStart(Action, frozen=True):
    """The master programs one transfer (one transfer ID) of one or more commands and goes on.

    `code_cycles` is what its program spends before on working out the addresses.
    """

    commands: tuple[Command, ...] = ()
    code_cycles: int = 0


class DmaWait(Action, frozen=True):
    """The master waits until the transfer begun by action `transfer` has ended, and frees its ID."""

    transfer: int = -1


class TeamTransfer(Action, frozen=True):
    """Every core of a team moves data by itself: entry i of `commands` is what core i programs and waits for,
    one command after the other. The master forks the team and joins it."""

    commands: tuple[tuple[Command, ...], ...] = ()


class UdmaStart(Action, frozen=True):
    """The master starts a series of transfers between L2 and L3 and goes on."""

    commands: tuple[UdmaCommand, ...] = ()


class UdmaWait(Action, frozen=True):
    """The master waits until the transfers begun by action `transfer` have ended."""

    transfer: int = -1


class Compute(Action, frozen=True):
    """A kernel. With `fork` the master forks the team and joins it; without, the master runs it alone.

    `code_cycles` is what its program spends before on working out the call.
    """

    team: TeamWork = TeamWork("", ())
    fork: bool = True
    effect: Effect | None = None
    code_cycles: int = 0


class Release(Action, frozen=True):
    """The life of some buffers ends: costs no time, and their bytes become poison (NaN).

    `results` is where the work that ends here has left what it made. The hardware has no use for it; a probe
    (`Soc.watch`) reads the numbers there before any byte is poisoned.
    """

    places: tuple[Place, ...] = ()
    results: tuple[Place, ...] = ()


class CodePiece(Struct, frozen=True):
    """Straight code that is jumped to: its place in the code of a program, its size, and that of a mean
    instruction, in bytes. `kernel` says that all cores of a team execute it."""

    address: int
    size_bytes: int
    instruction_bytes: float
    kernel: bool = False


class ProgramCode(Struct, frozen=True):
    """The code core 0 executes for the actions of a program, piece by piece, and the bytes of all code."""

    pieces: Sequence[tuple[CodePiece, ...]]
    size_bytes: int


class Program(Struct, frozen=True):
    """One offload to the cluster: the actions of the master core in program order.

    Without `code` only kernels have code, see `arch.pricing.code_caches`.
    """

    name: str
    actions: tuple[Action, ...]
    code: ProgramCode | None = None
