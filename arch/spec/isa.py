# SPDX-License-Identifier: Apache-2.0
"""Instruction classes and loop nests: the common language of kernels and the pipeline model.

A kernel running on one core is a `CoreWork`: a tree of instructions and counted loops with concrete trip
counts, plus the address streams its loads and stores walk. It is data; it computes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property
from typing import NamedTuple

from configs.values import Struct


class Op(IntEnum):
    """Class of an instruction; the pipeline's timing is given per class."""

    ALU = 0
    """Integer arithmetic, logic, address computation (order code A)."""
    MOVE = 1
    """Register move or constant (V)."""
    LOAD = 2
    """Load, with or without post-increment (L)."""
    STORE = 3
    """Store, with or without post-increment (S)."""
    FMA = 4
    """Fused multiply-add, scalar or SIMD (F)."""
    FMUL = 5
    """Floating-point multiply (M)."""
    FP = 6
    """Other single-cycle floating-point instruction: add, compare, convert, pack (f)."""
    MUL = 7
    """32-bit integer multiply, low word (U)."""
    MULH = 8
    """32-bit integer multiply, high word."""
    DIV = 9
    """Integer division or remainder."""
    FDIV = 10
    """Floating-point division or square root (on the shared iterative unit)."""
    BRANCH = 11
    """Conditional branch (B)."""
    JUMP = 12
    """Unconditional jump, call or return (J)."""
    HWLOOP = 13
    """Set-up of a hardware loop (H)."""
    CSR = 14
    """Control and status register access (C)."""
    LOAD_L2 = 15
    """Load from beyond the cluster: L2 (R). The core stands still until the answer is there."""
    STORE_L2 = 16
    """Store beyond the cluster: L2 (W)."""


FPU_OPS = frozenset({Op.FMA, Op.FMUL, Op.FP})
"""Classes that occupy an FPU for its initiation interval."""


STACK_WORDS = 16
"""Words of its stack frame that the accesses of a nest without a stream go through, in the order of the text.

Which word of the stack such an access meets is not known. All stacks lie whole turns of the banks apart, so
the same access of two cores meets the same bank.
"""


class Instruction(Struct, frozen=True):
    """One instruction.

    `dst` is the register it writes and `srcs` those it reads (small integers, local to the nest; -1 and ()
    where nothing is known or needed). A load or store names its address stream by index, or -1 for a
    word of its own stack. `taken_fraction` is, for a branch that does not close a loop, the share of
    executions in which it is taken. `width_bytes` is the size of a memory access.
    """

    op: Op
    dst: int = -1
    srcs: tuple[int, ...] = ()
    stream: int = -1
    taken_fraction: float = 0.0
    width_bytes: int = 4


class Loop(Struct, frozen=True):
    """`trips` executions of `body`.

    A hardware loop costs nothing per iteration (its set-up is an explicit HWLOOP instruction before it). For
    a loop closed by a branch the closing BRANCH is the last instruction of the body: it is taken
    `trips` - 1 times and falls through once. `trips` of 0 means the body is skipped.
    """

    trips: int
    body: tuple[Instruction | Loop, ...]
    hardware: bool = False


Node = Instruction | Loop


class Stream(NamedTuple):
    """Addresses of one load or store: base + sum over enclosing loops of index x stride.

    `base_bytes` is an L1 byte address, `strides_bytes` has one entry per enclosing loop, outermost first.
    """

    base_bytes: int
    strides_bytes: tuple[int, ...]


class CodeLayout(Struct, frozen=True, eq=False):
    """Where the instructions of a body lie in the code of their kernel, of which the sizes skip parts.

    `runs` are (place of the first instruction in the text, instructions), in the order of the body;
    `instructions` those of the whole text. Layouts are compared by identity: who makes one shares it.
    """

    runs: tuple[tuple[int, int], ...]
    instructions: int


class CoreWork(Struct, frozen=True):
    """What one core executes between fork and join: loop nest, address streams and static code size.

    Without a `layout` the instructions of the body lie one behind the other and are all of the code.
    """

    body: tuple[Node, ...]
    streams: tuple[Stream, ...] = ()
    code_bytes: int = 0
    layout: CodeLayout | None = None


class Skeleton(Struct, frozen=True, eq=False):
    """What works have in common that differ in trip counts and addresses alone; who makes one shares it.

    The loops of `body` turn once. Of a stream that is used `streams` has a row for its base and one for each
    stride: the number of its anchor or -1, a constant, and the coefficients of the units of a `CoreForm`.
    """

    body: tuple[Node, ...]
    streams: Mapping[int, tuple[tuple[int, ...], ...]]
    code_bytes: int
    layout: CodeLayout | None = None
    arrays: tuple[str, ...] = ()
    """Of each anchor the name of its array, if anybody wants to move it."""


class CoreForm(NamedTuple):
    """A `CoreWork` by its numbers: trips of the loops of its skeleton (in the order of the text, none of them
    0), units of addresses and addresses of anchors in bytes.
    """

    skeleton: Skeleton
    trips: tuple[int, ...]
    units_bytes: tuple[int, ...]
    anchors_bytes: tuple[int, ...]


class NestCall(NamedTuple):
    """A nest as it was called: its file, the sizes of all cores and of each, its arrays but for addresses.

    A form is name, strides in elements and bytes of an element.
    """

    codegen: str
    kernel: str
    accumulates: bool
    cores: int
    sizes: tuple[tuple[str, int], ...]
    per_core: tuple[tuple[tuple[str, int], ...], ...]
    forms: tuple[tuple[str, tuple[int, ...], int], ...]


@dataclass(frozen=True, slots=True)
class Origin:
    """What a work was made from, a text and the addresses of arrays: works of equal ones are equal.

    `calls` are the nests in the text, in the order of their arrays in `addresses`.
    """

    text: str
    addresses: tuple[int, ...]
    calls: tuple[NestCall, ...] = field(default=(), compare=False, repr=False)


@dataclass(frozen=True)
class TeamWork:
    """What a team executes: one `CoreWork` per core, core 0 first, `None` if it is not in the team.

    Who needs one core or a number asks for that: others may be lowered when they are asked for.
    """

    kernel: str
    cores: tuple[CoreWork | None, ...]
    macs: int = 0
    origin: Origin | None = field(default=None, compare=False, repr=False)
    """None where that cannot be told, as of kernels that do not come with the simulator."""

    @cached_property
    def members(self) -> tuple[int, ...]:
        """The cores in the team."""
        return tuple([core for core, work in enumerate(self.cores) if work is not None])

    @cached_property
    def size(self) -> int:
        """Cores up to the last one, in the team or not."""
        return len(self.cores)

    @cached_property
    def issued(self) -> tuple[int, ...]:
        """Instructions each of the `members` issues, whatever it waits for."""
        return tuple([_issued(self.core(member).body) for member in self.members])

    def core(self, member: int) -> CoreWork:
        """The work of one of the `members`."""
        work = self.cores[member]
        assert work is not None, "a core that is not in the team"
        return work

    def form(self, member: int) -> CoreForm | None:  # noqa: ARG002, RUF100 - others have one
        """The work of one of the `members` by its numbers, if whoever made it knows these."""
        return None


KEPT_COUNTS = 10_000
"""Bodies whose instructions are known."""


def _issued(body: tuple[Node, ...]) -> int:
    """Instructions a core issues in a loop nest. Cores and calls share bodies, so each is counted once."""
    known = _COUNTS.get(id(body))
    if known is None or known[0] is not body:
        loops = [node for node in body if isinstance(node, Loop)]
        count = len(body) - len(loops) + sum([loop.trips * _issued(loop.body) for loop in loops])
        if len(_COUNTS) >= KEPT_COUNTS:
            _COUNTS.clear()
        known = _COUNTS[id(body)] = body, count
    return known[1]


_COUNTS: dict[int, tuple[tuple[Node, ...], int]] = {}
"""By identity of the body, which is kept alive."""
