"""Issue rules of the core per instruction class, and loop nests resolved into blocks the models can walk.

Mechanism shared by the pipeline model (`arch.pipeline`) and the window of the cluster micro-model
(`arch.window`). The word-level oracle deliberately does not use it.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from arch.isa import FPU_OPS, STACK_WORDS, CoreWork, Instruction, Loop, Op, Stream
from arch.timing import CoreTiming, FpuTiming
from configs.errors import InputError

STALL_WORDS = ("load_use", "multicycle", "misaligned", "fpu", "branch", "icache", "bank_conflict")
"""Stall words a kernel can produce, in the order every cost lists them."""

LOAD_USE, MULTICYCLE, MISALIGNED, FPU_STALL, BRANCH_STALL, ICACHE, BANK_CONFLICT = range(7)

NO_UNIT, MEMORY, FPU_UNIT, DIVSQRT_UNIT = range(4)

WHOLE_WORDS, INSIDE_WORDS, CROSSING = range(3)

MAX_FRACTION_DENOMINATOR = 64
"""A `taken_fraction` is rounded to the nearest fraction with at most this denominator."""

MAX_DEPTH = 8
"""Deepest loop nest the models accept."""


@dataclass(frozen=True, slots=True)
class Rule:
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


def overlapped_load(core: CoreTiming) -> Rule:
    """The rule of a load that a load or store follows in the same straight line of code."""
    return Rule(1, LOAD_USE, 1 + core.load_use_stall_cycles, LOAD_USE, MEMORY)


def issue_rules(core: CoreTiming, fpu: FpuTiming) -> dict[Op, Rule]:
    """One `Rule` per `Op`; every number comes from `core` and `fpu`."""
    simple = Rule(1, MULTICYCLE, 1, MULTICYCLE)
    rules = dict.fromkeys(Op, simple)
    usable = max(core.load_cycles, 1 + core.load_use_stall_cycles)
    rules[Op.LOAD] = Rule(core.load_cycles, LOAD_USE, usable, LOAD_USE, MEMORY)
    rules[Op.STORE] = Rule(1, LOAD_USE, 1, LOAD_USE, MEMORY)
    for op in FPU_OPS:
        blocks = fpu.fma_cycles if op is Op.FMA else 1
        rules[op] = Rule(blocks, FPU_STALL, max(blocks, fpu.latency_cycles), FPU_STALL, FPU_UNIT)
    for op, cycles in ((Op.MUL, core.mul_cycles), (Op.MULH, core.mulh_cycles)):
        rules[op] = Rule(cycles, MULTICYCLE, cycles + core.mul_dependent_stall_cycles, MULTICYCLE)
    rules[Op.DIV] = Rule(core.div_cycles, MULTICYCLE, core.div_cycles, MULTICYCLE)
    div_sqrt = fpu.divsqrt_latency_cycles
    rules[Op.FDIV] = Rule(div_sqrt, FPU_STALL, div_sqrt, FPU_STALL, DIVSQRT_UNIT)
    rules[Op.JUMP] = Rule(1 + core.jump_stall_cycles, BRANCH_STALL, 1, MULTICYCLE)
    rules[Op.HWLOOP] = Rule(max(1, core.hwloop_setup_cycles), MULTICYCLE, 1, MULTICYCLE)
    rules[Op.CSR] = Rule(core.csr_cycles, MULTICYCLE, core.csr_cycles, MULTICYCLE)
    return rules


@dataclass(frozen=True, slots=True)
class Step:
    """One instruction of a block: its rule, registers, address slot and how often it branches.

    `slot` is the index of its address in `Nest` (-1 for none). `taken` is (numerator, denominator): of
    every `denominator` executions `numerator` are taken, evenly spread, the first one late. `branch` is
    the index of its counter (-1 where the outcome is constant).
    """

    rule: Rule
    dst: int
    srcs: tuple[int, ...]
    slot: int
    width_bytes: int
    taken: tuple[int, int]
    branch: int


@dataclass(frozen=True, slots=True)
class Block:
    """Straight-line code inside the loops numbered `path`, outermost first."""

    steps: tuple[Step, ...]
    path: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LoopNode:
    """Loop number `index` (in order of appearance); `closing_stall` is 1 if a branch closes it, else 0."""

    index: int
    body: tuple[Block | LoopNode, ...]
    closing: int
    path: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Slot:
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


@dataclass(frozen=True, slots=True, eq=False)
class Shape:
    """A nest without its numbers: equal for all trip counts and addresses, so compiled code can be kept."""

    body: tuple[Block | LoopNode, ...]
    slots: tuple[Slot, ...]
    loops: tuple[LoopNode, ...]
    branches: int
    instructions: int

    def blocks(self) -> tuple[Block, ...]:
        """All blocks in program order."""
        found: list[Block] = []

        def walk(nodes: tuple[Block | LoopNode, ...]) -> None:
            for node in nodes:
                if isinstance(node, Block):
                    found.append(node)
                else:
                    walk(node.body)

        walk(self.body)
        return tuple(found)

    def uses(self, unit: int) -> bool:
        """Whether any instruction needs `unit`."""
        return any(step.rule.unit == unit for block in self.blocks() for step in block.steps)


@dataclass(frozen=True, slots=True)
class Nest:
    """One core's work: a shape, the trip counts of its loops, (base, strides) in bytes of its slots."""

    shape: Shape
    trips: tuple[int, ...]
    addresses: tuple[tuple[int, tuple[int, ...]], ...]
    code_bytes: int


BODY_ENTRIES = 1_000
"""Bodies a reader recognises by identity."""

_Spelled = tuple[
    tuple[Instruction | Loop, ...], tuple[int, ...], tuple[int, ...], tuple[tuple[int, int, int], ...]
]
"""A body, its text as numbers, the trip counts of its loops, its accesses."""


class NestReader:
    """Turns `CoreWork` into `Nest`, sharing the shape between works that differ in numbers only."""

    def __init__(self, core: CoreTiming, fpu: FpuTiming, word_bytes: int) -> None:
        self._rules = issue_rules(core, fpu)
        self._overlapped = overlapped_load(core)
        self._word_bytes = word_bytes
        self._numbers: dict[Instruction, int] = {}
        self._seen: dict[int, tuple[Instruction, int]] = {}
        self._bodies: dict[int, _Spelled] = {}
        self._accesses: dict[tuple[int, ...], tuple[tuple[int, int, int], ...]] = {}
        self._shapes: dict[tuple[tuple[int, ...], tuple[int, ...]], Shape] = {}

    def read(self, work: CoreWork) -> Nest:
        """Resolve `work`; `InputError` for a stream whose strides do not match the loops around its use."""
        # Cores of a team mostly share their body, so identity is tried first.
        spelled = self._bodies.get(id(work.body))
        if spelled is None or spelled[0] is not work.body:
            spelled = self._spelled(work.body)
        _, key, trips, accesses = spelled
        addresses = []
        alignments = []
        for stream_index, depth, width in accesses:
            stream = (
                _stream(work.streams, stream_index, depth) if stream_index >= 0 else self._frame(stream_index)
            )
            addresses.append((stream.base_bytes, stream.strides_bytes))
            alignments.append(self._alignment(width, stream))
        shape_key = (key, tuple(alignments))
        shape = self._shapes.get(shape_key)
        if shape is None:
            shape = self._shapes[shape_key] = _Resolver(self._rules, self._overlapped, shape_key[1]).resolve(
                work
            )
        return Nest(shape, trips, tuple(addresses), work.code_bytes)

    def _spelled(self, body: tuple[Instruction | Loop, ...]) -> _Spelled:
        text: list[int] = []
        trips: list[int] = []
        self._spell(body, text, trips)
        key = tuple(text)
        accesses = self._accesses.get(key)
        if accesses is None:
            accesses = self._accesses[key] = _accesses(body)
        if len(self._bodies) >= BODY_ENTRIES:
            self._bodies.clear()
        spelled = self._bodies[id(body)] = (body, key, tuple(trips), accesses)
        return spelled

    def _frame(self, stack_slot: int) -> Stream:
        """A word of the stack frame; stacks lie whole turns of the banks apart, so only the word counts."""
        return Stream((-1 - stack_slot) * self._word_bytes, ())

    def _alignment(self, width: int, stream: Stream) -> int:
        word = self._word_bytes
        numbers = stream.base_bytes
        for stride in stream.strides_bytes:
            numbers |= stride
        if width == word:
            return CROSSING if numbers & (word - 1) else WHOLE_WORDS
        # Widths are powers of two, as words are.
        return CROSSING if width > word or numbers & (width - 1) else INSIDE_WORDS

    def _spell(self, body: tuple[Instruction | Loop, ...], text: list[int], trips: list[int]) -> None:
        seen = self._seen
        for node in body:
            if isinstance(node, Loop):
                trips.append(node.trips)
                text.append(-1 if node.hardware else -2)
                self._spell(node.body, text, trips)
                text.append(-3)
                continue
            # Hashing an instruction by value is slow; generators reuse objects, so try identity first.
            known = seen.get(id(node))
            if known is None:
                number = self._numbers.setdefault(node, len(self._numbers))
                if len(seen) > 100_000:
                    seen.clear()
                seen[id(node)] = (node, number)
                text.append(number)
            else:
                text.append(known[1])


def _stream(streams: tuple[Stream, ...], index: int, depth: int) -> Stream:
    if not 0 <= index < len(streams):
        raise InputError(
            f"an instruction uses address stream {index}, but the nest has {len(streams)}",
            where="CoreWork.streams",
            cure="add the stream or use -1 for a private stack slot",
        )
    stream = streams[index]
    if len(stream.strides_bytes) != depth:
        raise InputError(
            f"stream {index} has {len(stream.strides_bytes)} strides but is used inside {depth} loops",
            where="CoreWork.streams",
            cure="give one stride per enclosing loop, outermost first",
        )
    return stream


def _accesses(body: tuple[Instruction | Loop, ...]) -> tuple[tuple[int, int, int], ...]:
    """(stream, depth, width) of every distinct address use, in the order `_Resolver` numbers the slots.

    The i-th access without a stream goes to word i of the frame (modulo `STACK_WORDS`) and has stream -1 - i.
    """
    found: dict[tuple[int, tuple[int, ...], int], None] = {}
    loops = stack = 0

    def walk(nodes: tuple[Instruction | Loop, ...], path: tuple[int, ...]) -> None:
        nonlocal loops, stack
        for node in nodes:
            if isinstance(node, Loop):
                index = loops
                loops += 1
                walk(node.body, (*path, index))
            elif node.stream >= 0:
                found.setdefault((node.stream, path, node.width_bytes))
            elif node.op in (Op.LOAD, Op.STORE):
                found.setdefault((-1 - stack, (), node.width_bytes))
                stack = (stack + 1) % STACK_WORDS

    walk(body, ())
    return tuple((stream, len(path), width) for stream, path, width in found)


class _Resolver:
    """Builds a `Shape` from a tree."""

    def __init__(self, rules: dict[Op, Rule], overlapped: Rule, alignments: tuple[int, ...]) -> None:
        self._rules = rules
        self._overlapped = overlapped
        self._alignments = alignments
        self._slots: dict[tuple[int, tuple[int, ...], int], int] = {}
        self._loops: list[LoopNode | None] = []
        self._branches = 0
        self._stack = 0
        self._instructions = 0

    def resolve(self, work: CoreWork) -> Shape:
        body = self._nodes(work.body, ())
        slots = tuple(
            Slot(stream, path, width, self._alignments[index])
            for index, (stream, path, width) in enumerate(self._slots)
        )
        loops = tuple(loop for loop in self._loops if loop is not None)
        return Shape(body, slots, loops, self._branches, self._instructions)

    def _nodes(
        self, body: tuple[Instruction | Loop, ...], path: tuple[int, ...], closed: bool = False
    ) -> tuple[Block | LoopNode, ...]:
        if len(path) > MAX_DEPTH:
            raise InputError(
                f"loop nest deeper than {MAX_DEPTH}", where="CoreWork.body", cure="merge or unroll loops"
            )
        nodes: list[Block | LoopNode] = []
        steps: list[Step] = []
        for position, node in enumerate(body):
            if isinstance(node, Instruction):
                following = body[position + 1] if position + 1 < len(body) else None
                overlaps = isinstance(following, Instruction) and following.op in (Op.LOAD, Op.STORE)
                closes = closed and position == len(body) - 1
                steps.append(self._step(node, path, closes=closes, overlaps=overlaps))
                continue
            if steps:
                nodes.append(Block(tuple(steps), path))
                steps = []
            index = len(self._loops)
            self._loops.append(None)
            last = node.body[-1] if node.body else None
            closing = not node.hardware and isinstance(last, Instruction) and last.op is Op.BRANCH
            inner = self._nodes(node.body, (*path, index), closing)
            loop = LoopNode(index, inner, int(closing), path)
            self._loops[index] = loop
            nodes.append(loop)
        if steps:
            nodes.append(Block(tuple(steps), path))
        return tuple(nodes)

    def _step(self, node: Instruction, path: tuple[int, ...], *, closes: bool, overlaps: bool) -> Step:
        self._instructions += 1
        slot = -1
        if node.stream >= 0:
            slot = self._slots.setdefault((node.stream, path, node.width_bytes), len(self._slots))
        elif node.op in (Op.LOAD, Op.STORE):
            slot = self._slots.setdefault((-1 - self._stack, (), node.width_bytes), len(self._slots))
            self._stack = (self._stack + 1) % STACK_WORDS
        taken = (0, 1)
        branch = -1
        if node.op is Op.BRANCH and not closes:
            share = Fraction(node.taken_fraction).limit_denominator(MAX_FRACTION_DENOMINATOR)
            taken = (share.numerator, share.denominator)
            if not 0 <= share <= 1:
                raise InputError(
                    f"taken_fraction {node.taken_fraction} is not a share",
                    where="CoreWork.body",
                    cure="give a number between 0 and 1",
                )
            if taken[1] > 1:
                branch = self._branches
                self._branches += 1
        srcs = tuple(dict.fromkeys(register for register in node.srcs if register >= 0))
        rule = self._overlapped if overlaps and node.op is Op.LOAD else self._rules[node.op]
        return Step(rule, node.dst, srcs, slot, node.width_bytes, taken, branch)
