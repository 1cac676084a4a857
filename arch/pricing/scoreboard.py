# SPDX-License-Identifier: Apache-2.0
"""Issue rules of the core per instruction class, and what a loop nest resolved by them looks like.

Mechanism shared by the pipeline model (`arch.pricing.pipeline`) and the window of the cluster micro-model
(`arch.pricing.window`). The word-level oracle deliberately does not use it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from operator import mul
from typing import NamedTuple

from arch.spec.isa import FPU_OPS, CodeLayout, Op
from arch.spec.timing import CoreTiming, FpuTiming, L2Timing
from configs.values import Struct, replace

STALL_WORDS = (
    *("load_use", "multicycle", "misaligned", "fpu", "divider", "branch", "icache", "bank_conflict"),
    "l2_access",
)
"""Stall words a kernel can produce, in the order every cost lists them."""

LOAD_USE, MULTICYCLE, MISALIGNED, FPU_STALL, DIVIDER = range(5)
BRANCH_STALL, ICACHE, BANK_CONFLICT, L2_ACCESS = range(5, 9)

NO_UNIT, MEMORY, FPU_UNIT, DIVSQRT_UNIT = range(4)

WHOLE_WORDS, INSIDE_WORDS, CROSSING = range(3)

MAX_FRACTION_DENOMINATOR = 64
"""A `taken_fraction` is rounded to the nearest fraction with at most this denominator."""

MAX_DEPTH = 8
"""Deepest loop nest the models accept."""


class Rule(Struct, frozen=True):
    """Timing of one instruction class, counted from the cycle in which the instruction gets its unit.

    The next instruction issues `occupancy_cycles` later; cycles beyond the first are a stall of word
    `occupancy_cause`. The result can be read by an instruction issued `result_cycles` later; a reader that
    comes too early stalls for `result_cause`.
    """

    occupancy_cycles: int
    occupancy_cause: int
    result_cycles: int
    result_cause: int
    unit: int = NO_UNIT


def waited_for(rule: Rule) -> Rule:
    """The rule of an operation whose result nobody is known to read: the core waits for it."""
    return replace(rule, occupancy_cycles=max(rule.occupancy_cycles, rule.result_cycles))


def overlapped_load(core: CoreTiming) -> Rule:
    """The rule of a load that a load or store follows in the same straight line of code."""
    return Rule(1, LOAD_USE, 1 + core.load_use_stall_cycles, LOAD_USE, MEMORY)


def issue_rules(core: CoreTiming, fpu: FpuTiming, l2: L2Timing) -> dict[Op, Rule]:
    """One `Rule` per `Op`."""
    simple = Rule(1, MULTICYCLE, 1, MULTICYCLE)
    rules = dict.fromkeys(Op, simple)
    usable = max(core.load_cycles, 1 + core.load_use_stall_cycles)
    rules[Op.LOAD] = Rule(core.load_cycles, LOAD_USE, usable, LOAD_USE, MEMORY)
    rules[Op.STORE] = Rule(1, LOAD_USE, 1, LOAD_USE, MEMORY)
    late = l2.core_access_cycles + core.load_use_stall_cycles
    rules[Op.LOAD_L2] = Rule(l2.core_access_cycles, L2_ACCESS, late, LOAD_USE)
    rules[Op.STORE_L2] = Rule(l2.core_access_cycles + l2.core_store_more_cycles, L2_ACCESS, 1, L2_ACCESS)
    for op in FPU_OPS:
        blocks = fpu.fma_cycles if op is Op.FMA else 1
        rules[op] = Rule(blocks, FPU_STALL, max(blocks, fpu.latency_cycles), FPU_STALL, FPU_UNIT)
    for op, cycles in ((Op.MUL, core.mul_cycles), (Op.MULH, core.mulh_cycles)):
        rules[op] = Rule(cycles, MULTICYCLE, cycles + core.mul_dependent_stall_cycles, MULTICYCLE)
    rules[Op.DIV] = Rule(core.div_cycles, MULTICYCLE, core.div_cycles, MULTICYCLE)
    div_sqrt = fpu.divsqrt_latency_cycles
    if fpu.divsqrt_count:
        issue = min(div_sqrt, fpu.divsqrt_issue_cycles)
        rules[Op.FDIV] = Rule(issue, DIVIDER, div_sqrt, DIVIDER, DIVSQRT_UNIT)
    else:  # a routine on the core itself: nobody to wait for
        rules[Op.FDIV] = Rule(div_sqrt, MULTICYCLE, div_sqrt, MULTICYCLE)
    rules[Op.JUMP] = Rule(1 + core.jump_stall_cycles, BRANCH_STALL, 1, MULTICYCLE)
    rules[Op.HWLOOP] = Rule(max(1, core.hwloop_setup_cycles), MULTICYCLE, 1, MULTICYCLE)
    rules[Op.CSR] = Rule(core.csr_cycles, MULTICYCLE, core.csr_cycles, MULTICYCLE)
    return rules


FPU_BUSY, DIVIDER_BUSY, FPU_EMPTY = range(1 << 30, (1 << 30) + 3)
"""Registers that stand for units of a core's own. Behind a division under way the FPU takes no operation
until the result has been written, and the divider none until it is through; a division waits for operations
under way, and an access to a status register for both (it may be that of the FPU)."""


NEVER_TAKEN = (0, 1)
"""`CodeStep.taken` of an instruction that is no branch, or one that falls through."""


class CodeStep(Struct, frozen=True):
    """One instruction of a block: its rule, registers, address slot and how often it branches.

    `writes` are (register, cycles until it can be read, stall of a reader that comes too early).
    `slot` is the index of its address in `CoreNest` (-1 for none). `taken` is (numerator, denominator): of
    every `denominator` executions `numerator` are taken, evenly spread, the first one late. `branch` is
    the index of its counter (-1 where the outcome is constant).
    """

    rule: Rule
    writes: tuple[tuple[int, int, int], ...]
    srcs: tuple[int, ...]
    slot: int
    width_bytes: int
    taken: tuple[int, int]
    branch: int


class CodeBlock(Struct, frozen=True):
    """Straight-line code inside the loops numbered `path`, outermost first."""

    steps: tuple[CodeStep, ...]
    path: tuple[int, ...]


class LoopNode(Struct, frozen=True):
    """Loop number `index` (in order of appearance); `closing_stall` is 1 if a branch closes it, else 0."""

    index: int
    body: tuple[CodeBlock | LoopNode, ...]
    closing: int
    path: tuple[int, ...]


class Slot(Struct, frozen=True):
    """An address used at one place of the nest: stream index, loops around it, width of the access.

    A negative stream -1 - i is word i of the core's stack frame.

    `alignment` is `WHOLE_WORDS` if base and strides are multiples of a word, `INSIDE_WORDS` if no access
    crosses a word border, else `CROSSING`.
    """

    stream: int
    path: tuple[int, ...]
    width_bytes: int
    alignment: int

    @property
    def crosses(self) -> bool:
        """Whether an access may cross a word border and then takes two bus cycles."""
        return self.alignment == CROSSING


class Shape(Struct, frozen=True, eq=False):
    """A nest without its numbers: equal for all trip counts and addresses, so compiled code can be kept."""

    body: tuple[CodeBlock | LoopNode, ...]
    slots: tuple[Slot, ...]
    loops: tuple[LoopNode, ...]
    branches: int
    instructions: int

    @property
    def crosses(self) -> bool:
        """Whether any access may cross a word border."""
        return any(slot.crosses for slot in self.slots)

    def blocks(self) -> tuple[CodeBlock, ...]:
        """All blocks in program order."""
        blocks: list[CodeBlock] = []

        def walk(nodes: tuple[CodeBlock | LoopNode, ...]) -> None:
            for node in nodes:
                if isinstance(node, CodeBlock):
                    blocks.append(node)
                else:
                    walk(node.body)

        walk(self.body)
        return tuple(blocks)

    def uses(self, unit: int) -> bool:
        """Whether any instruction needs `unit`."""
        return any(step.rule.unit == unit for block in self.blocks() for step in block.steps)


class Places(Struct, frozen=True, eq=False):
    """What the addresses of the slots of a nest are made of: who makes one shares it.

    A number is the base or a stride of a slot, base first, slot after slot. Of each: the number of its anchor
    or -1, a constant, and the coefficient of every unit.
    """

    numbers: tuple[tuple[int, ...], ...]
    units: int
    anchors: int

    def bytes_of(self, units_bytes: Sequence[int], anchors_bytes: Sequence[int]) -> list[int]:
        """The numbers."""
        anchors = (*anchors_bytes, 0)
        return [
            anchors[anchor] + constant + sum(map(mul, coefficients, units_bytes))
            for anchor, constant, *coefficients in self.numbers
        ]


class CoreNest(NamedTuple):
    """One core's work: a shape, trip counts of its loops, and what the addresses of its slots are made of.

    `units_bytes` and `anchors_bytes` are those `places` speaks of.
    """

    shape: Shape
    trips: tuple[int, ...]
    places: Places
    units_bytes: tuple[int, ...]
    anchors_bytes: tuple[int, ...]
    code_bytes: int
    layout: CodeLayout | None = None

    @property
    def addresses(self) -> list[tuple[int, tuple[int, ...]]]:
        """(base, strides) in bytes of the slots."""
        numbers = iter(self.places.bytes_of(self.units_bytes, self.anchors_bytes))
        return [(next(numbers), tuple(islice(numbers, len(slot.path)))) for slot in self.shape.slots]
