# SPDX-License-Identifier: Apache-2.0
"""Reads the nests of cores into the blocks of `scoreboard`; nests that differ in numbers share one."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from itertools import repeat

from arch.pricing.scoreboard import (
    CROSSING,
    DIVIDER_BUSY,
    FPU_BUSY,
    FPU_EMPTY,
    INSIDE_WORDS,
    MAX_DEPTH,
    MAX_FRACTION_DENOMINATOR,
    NEVER_TAKEN,
    WHOLE_WORDS,
    CodeBlock,
    CodeStep,
    CoreNest,
    LoopNode,
    Places,
    Rule,
    Shape,
    Slot,
    issue_rules,
    overlapped_load,
    waited_for,
)
from arch.spec.isa import (
    FPU_OPS,
    STACK_WORDS,
    CoreForm,
    CoreWork,
    Instruction,
    Loop,
    Op,
    Skeleton,
    Stream,
)
from arch.spec.timing import CoreTiming, FpuTiming, L2Timing
from configs.errors import InputError

BODY_ENTRIES = 4_000
"""Bodies a reader recognises by identity."""

STEP_ENTRIES = 50_000
"""Steps a reader recognises by the identity of their instruction."""

_UNSEEN = -9
"""In place of the number of an instruction that has none yet, and of a loop."""

_Spelled = tuple[tuple[Instruction | Loop, ...], tuple[int, ...], tuple[int, ...], tuple["_Access", ...]]
"""A body, its text as numbers, the trip counts of its loops, its accesses."""

_Access = tuple[int, int, int, Stream | None]
"""Number of its stream, loops around it, bytes, and where it goes if that is a word of the stack."""


class NestReader:
    """Turns `CoreWork` into `CoreNest`, sharing the shape between works that differ in numbers only."""

    def __init__(self, core: CoreTiming, fpu: FpuTiming, word_bytes: int, l2: L2Timing) -> None:
        self._rules = issue_rules(core, fpu, l2)
        self._overlapped = overlapped_load(core)
        self._divider_cycles = fpu.divsqrt_interval_cycles
        self._word_bytes = word_bytes
        self._numbers: dict[Instruction, int] = {}
        self._number_of: dict[int, int] = {}
        """By identity; `_kept` keeps those objects alive."""
        self._kept: list[Instruction] = []
        self._bodies: dict[int, _Spelled] = {}
        self._inner: dict[int, tuple[tuple[Instruction | Loop, ...], tuple[int, ...], tuple[int, ...]]] = {}
        self._steps: dict[_Late, _Steps] = {}
        self._accesses: dict[tuple[int, ...], tuple[_Access, ...]] = {}
        self._shapes: dict[tuple[tuple[int, ...], tuple[int, ...]], Shape] = {}
        self._listed: dict[int, Places] = {}
        """Of works whose addresses are given one by one, by how many there are."""
        self._places: dict[Skeleton, Places] = {}
        self._formed: dict[tuple[Skeleton, tuple[int, ...], tuple[int, ...]], tuple[Shape, Places]] = {}
        """By skeleton, and by units and anchors as far as they decide what is aligned."""

    def read(self, work: CoreWork) -> CoreNest:
        """Resolve `work`; `InputError` for a stream whose strides do not match the loops around its use."""
        # Cores of a team mostly share their body, so identity is tried first.
        spelled = self._bodies.get(id(work.body))
        if spelled is None or spelled[0] is not work.body:
            spelled = self._spelled(work.body)
        _, key, trips, accesses = spelled
        numbers: list[int] = []
        for stream_index, depth, _, on_stack in accesses:
            base, strides = on_stack or _stream(work.streams, stream_index, depth)
            numbers.append(base)
            numbers += strides
        shape = self._shape(key, accesses, numbers, work.body)
        places = self._listed.get(len(numbers))
        if places is None:
            rows = tuple([(index, 0) for index in range(len(numbers))])
            places = self._listed[len(numbers)] = Places(rows, 0, len(numbers))
        return CoreNest(shape, trips, places, (), tuple(numbers), work.code_bytes, work.layout)

    def read_form(self, form: CoreForm) -> CoreNest:
        """Resolve a work by its numbers: as `read`, but nothing is read again that its skeleton decides."""
        skeleton, trips, units, anchors = form
        word_bits = self._word_bytes - 1
        key = (
            skeleton,
            tuple([unit & word_bits for unit in units]),
            tuple([anchor & word_bits for anchor in anchors]),
        )
        formed = self._formed.get(key)
        if formed is None:
            _, text, _, accesses = self._spelled(skeleton.body)
            places = self._places.get(skeleton)
            if len(self._formed) >= BODY_ENTRIES:
                self._formed.clear()
                self._places.clear()
            if places is None:
                places = self._places[skeleton] = _places(skeleton, accesses, len(units), len(anchors))
            odd = any(key[1]) or any(key[2])
            numbers = places.bytes_of(*key[1:]) if odd else [row[1] for row in places.numbers]
            shape = self._shape(text, accesses, numbers, skeleton.body)
            formed = self._formed[key] = shape, places
        shape, places = formed
        return CoreNest(shape, trips, places, units, anchors, skeleton.code_bytes, skeleton.layout)

    def _shape(
        self,
        key: tuple[int, ...],
        accesses: tuple[_Access, ...],
        numbers_bytes: list[int],
        body: tuple[Instruction | Loop, ...],
    ) -> Shape:
        alignments = []
        word = self._word_bytes
        at = 0
        for _, depth, width, _ in accesses:
            bits = 0
            for number in numbers_bytes[at : at + 1 + depth]:
                bits |= number
            at += 1 + depth
            if width == word:
                alignments.append(CROSSING if bits & (word - 1) else WHOLE_WORDS)
            else:  # widths are powers of two, as words are
                inside = width < word and not bits & (width - 1)
                alignments.append(INSIDE_WORDS if inside else CROSSING)
        shape_key = (key, tuple(alignments))
        shape = self._shapes.get(shape_key)
        if shape is None:
            late = _late(body, self._rules)
            steps = self._steps.setdefault(late, {})
            resolver = _Resolver(
                self._rules, self._overlapped, self._divider_cycles, late, shape_key[1], steps
            )
            shape = self._shapes[shape_key] = resolver.resolve(body)
        return shape

    def _spelled(self, body: tuple[Instruction | Loop, ...]) -> _Spelled:
        text: list[int] = []
        trips: list[int] = []
        self._spell(body, text, trips)
        key = tuple(text)
        accesses = self._accesses.get(key)
        if accesses is None:
            accesses = self._accesses[key] = tuple(
                (stream, depth, width, None if stream >= 0 else self._frame(stream))
                for stream, depth, width in _accesses(body)
            )
        if len(self._bodies) >= BODY_ENTRIES:
            self._bodies.clear()
        spelled = self._bodies[id(body)] = (body, key, tuple(trips), accesses)
        return spelled

    def _frame(self, stack_slot: int) -> Stream:
        """A word of the stack frame; stacks lie whole turns of the banks apart, so only the word counts."""
        return Stream((-1 - stack_slot) * self._word_bytes, ())

    def _spell(self, body: tuple[Instruction | Loop, ...], text: list[int], trips: list[int]) -> None:
        # Hashing an instruction by value is slow; generators reuse objects, so identity is tried first.
        numbers = list(map(self._number_of.get, map(id, body), repeat(_UNSEEN)))
        start = 0
        while _UNSEEN in numbers[start:]:
            place = numbers.index(_UNSEEN, start)
            node = body[place]
            if isinstance(node, Instruction):
                numbers[place] = self._number(node)
                continue
            text += numbers[start:place]
            start = place + 1
            trips.append(node.trips)
            text.append(-1 if node.hardware else -2)
            # Loops of many nests share their body: what it says is kept with it.
            spelt = self._inner.get(id(node.body))
            if spelt is None or spelt[0] is not node.body:
                inner: list[int] = []
                inner_trips: list[int] = []
                self._spell(node.body, inner, inner_trips)
                if len(self._inner) >= BODY_ENTRIES:
                    self._inner.clear()
                spelt = self._inner[id(node.body)] = (node.body, tuple(inner), tuple(inner_trips))
            text += spelt[1]
            trips += spelt[2]
            text.append(-3)
        text += numbers[start:]

    def _number(self, node: Instruction) -> int:
        """The number of an instruction among all that differ."""
        number = self._numbers.setdefault(node, len(self._numbers))
        if len(self._kept) > 100_000:
            self._kept.clear()
            self._number_of.clear()
        self._kept.append(node)
        self._number_of[id(node)] = number
        return number


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


def _places(skeleton: Skeleton, accesses: tuple[_Access, ...], units: int, anchors: int) -> Places:
    """Where the slots of a skeleton lie."""
    numbers: list[tuple[int, ...]] = []
    for stream, _, _, on_stack in accesses:
        if on_stack is not None:
            numbers.append((-1, on_stack.base_bytes, *(0,) * units))
            continue
        numbers += skeleton.streams[stream]
    return Places(tuple(numbers), units, anchors)


def _accesses(body: tuple[Instruction | Loop, ...]) -> tuple[tuple[int, int, int], ...]:
    """(stream, depth, width) of every distinct address use, in the order `_Resolver` numbers the slots.

    The i-th access without a stream goes to word i of the frame (modulo `STACK_WORDS`) and has stream -1 - i.
    """
    accesses: dict[tuple[int, tuple[int, ...], int], None] = {}
    loops = stack = 0

    def walk(nodes: tuple[Instruction | Loop, ...], path: tuple[int, ...]) -> None:
        nonlocal loops, stack
        for node in nodes:
            if isinstance(node, Loop):
                index = loops
                loops += 1
                walk(node.body, (*path, index))
            elif node.stream >= 0:
                accesses.setdefault((node.stream, path, node.width_bytes))
            elif node.op in (Op.LOAD, Op.STORE):
                accesses.setdefault((-1 - stack, (), node.width_bytes))
                stack = (stack + 1) % STACK_WORDS

    walk(body, ())
    return tuple((stream, len(path), width) for stream, path, width in accesses)


_Write = tuple[int, int, int]
"""Of `CodeStep.writes`."""

_Steps = dict[tuple[int, int, int, bool, bool], tuple[Instruction, CodeStep]]
"""By the identity of an instruction, slot, branch, whether it closes a loop or overlaps the next."""


@dataclass(frozen=True, slots=True)
class _Late:
    """What of a nest is under way while its core goes on: results of the FPU and of the divider, by register.

    `divided` are those of divisions that are read somewhere; for others the core waits, because where a text
    without registers uses them is not known.
    """

    computed: frozenset[int] = frozenset()
    divided: frozenset[int] = frozenset()


_NOTHING_LATE = _Late()


def _late(body: tuple[Instruction | Loop, ...], rules: dict[Op, Rule]) -> _Late:
    goes_on = {op for op in (*FPU_OPS, Op.FDIV) if rules[op].result_cycles > rules[op].occupancy_cycles}
    if not goes_on:
        return _NOTHING_LATE
    computed: set[int] = set()
    divided: set[int] = set()
    read: set[int] = set()

    def walk(nodes: tuple[Instruction | Loop, ...]) -> None:
        for node in nodes:
            if isinstance(node, Loop):
                walk(node.body)
                continue
            read.update(node.srcs)
            if node.op in goes_on and node.dst >= 0:
                (divided if node.op is Op.FDIV else computed).add(node.dst)

    walk(body)
    return _Late(frozenset(computed), frozenset(divided & read))


class _Resolver:
    """Builds a `Shape` from a tree."""

    def __init__(
        self,
        rules: dict[Op, Rule],
        overlapped: Rule,
        divider_cycles: int,
        late: _Late,
        alignments: tuple[int, ...],
        steps: _Steps,
    ) -> None:
        self._rules = rules
        self._kept = steps
        self._overlapped = overlapped
        self._divider_cycles = divider_cycles
        self._late = late
        self._alignments = alignments
        self._slots: dict[tuple[int, tuple[int, ...], int], int] = {}
        self._loops: list[LoopNode | None] = []
        self._branches = 0
        self._stack = 0
        self._instructions = 0

    def resolve(self, nodes: tuple[Instruction | Loop, ...]) -> Shape:
        body = self._nodes(nodes, ())
        slots = tuple(
            Slot(stream, path, width, self._alignments[index])
            for index, (stream, path, width) in enumerate(self._slots)
        )
        loops = tuple(loop for loop in self._loops if loop is not None)
        return Shape(body, slots, loops, self._branches, self._instructions)

    def _nodes(
        self, body: tuple[Instruction | Loop, ...], path: tuple[int, ...], closed: bool = False
    ) -> tuple[CodeBlock | LoopNode, ...]:
        if len(path) > MAX_DEPTH:
            raise InputError(
                f"loop nest deeper than {MAX_DEPTH}", where="CoreWork.body", cure="merge or unroll loops"
            )
        nodes: list[CodeBlock | LoopNode] = []
        steps: list[CodeStep] = []
        for position, node in enumerate(body):
            if isinstance(node, Instruction):
                following = body[position + 1] if position + 1 < len(body) else None
                overlaps = isinstance(following, Instruction) and following.op in (Op.LOAD, Op.STORE)
                closes = closed and position == len(body) - 1
                steps.append(self._step(node, path, closes=closes, overlaps=overlaps))
                continue
            if steps:
                nodes.append(CodeBlock(tuple(steps), path))
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
            nodes.append(CodeBlock(tuple(steps), path))
        return tuple(nodes)

    def _step(self, node: Instruction, path: tuple[int, ...], *, closes: bool, overlaps: bool) -> CodeStep:
        self._instructions += 1
        slot = -1
        if node.stream >= 0:
            slot = self._slots.setdefault((node.stream, path, node.width_bytes), len(self._slots))
        elif node.op in (Op.LOAD, Op.STORE):
            slot = self._slots.setdefault((-1 - self._stack, (), node.width_bytes), len(self._slots))
            self._stack = (self._stack + 1) % STACK_WORDS
        branch = -1
        if node.op is Op.BRANCH and not closes and 0 < node.taken_fraction < 1:
            branch = self._branches
            self._branches += 1
        # Most steps have been built before, for another nest.
        key = (id(node), slot, branch, closes, overlaps)
        kept = self._kept.get(key)
        if kept is not None and kept[0] is node:
            return kept[1]
        taken = NEVER_TAKEN
        if node.op is Op.BRANCH and not closes:
            share = Fraction(node.taken_fraction).limit_denominator(MAX_FRACTION_DENOMINATOR)
            taken = (share.numerator, share.denominator)
            if not 0 <= share <= 1:
                raise InputError(
                    f"taken_fraction {node.taken_fraction} is not a share",
                    where="CoreWork.body",
                    cure="give a number between 0 and 1",
                )
        rule = self._overlapped if overlaps and node.op is Op.LOAD else self._rules[node.op]
        if node.op is Op.FDIV and node.dst not in self._late.divided:
            rule = waited_for(rule)
        reads, writes = self._units(node, rule)
        srcs = tuple(dict.fromkeys(register for register in (*node.srcs, *reads) if register >= 0))
        if node.dst >= 0:
            writes = ((node.dst, rule.result_cycles, rule.result_cause), *writes)
        step = CodeStep(rule, writes, srcs, slot, node.width_bytes, taken, branch)
        if len(self._kept) >= STEP_ENTRIES:
            self._kept.clear()
        self._kept[key] = (node, step)
        return step

    def _units(self, node: Instruction, rule: Rule) -> tuple[tuple[int, ...], tuple[_Write, ...]]:
        """What an instruction waits for and sets at the FPU of its own core, beside its operands."""
        late, cause = self._late, rule.result_cause
        if node.op is Op.FDIV:
            if node.dst not in late.divided:
                return (), ()
            written_cycles = rule.result_cycles + rule.occupancy_cycles - 1
            sets = ((FPU_BUSY, written_cycles, cause), (DIVIDER_BUSY, self._divider_cycles, cause))
            return (FPU_EMPTY, DIVIDER_BUSY), sets
        if node.op in FPU_OPS:
            return ((FPU_BUSY,), ((FPU_EMPTY, rule.result_cycles, cause),)) if late.divided else ((), ())
        # A register is written in order: not before what is under way has come.
        waits: tuple[int, ...] = (node.dst,) if node.dst in late.computed or node.dst in late.divided else ()
        if late.divided and node.op is Op.CSR:
            waits += (FPU_BUSY, FPU_EMPTY)
        return waits, ()
