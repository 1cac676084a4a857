# SPDX-License-Identifier: Apache-2.0
"""Reads the nests of cores into the blocks of `scoreboard`; nests that differ in numbers share one."""

from __future__ import annotations

from fractions import Fraction
from itertools import chain
from typing import Any, NamedTuple

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
from configs.values import Struct, replace

BODY_ENTRIES = 4_000
"""Bodies a reader recognises by identity."""

STEP_ENTRIES = 50_000
"""Steps a reader recognises by the identity of their instruction; all are dropped when there are more."""

RUN_ENTRIES = 20_000
"""Runs of instructions a reader recognises by the identity of these; all are dropped when there are more."""

_Access = tuple[int, int, int, Stream | None]
"""Number of its stream, loops around it, bytes, and where it goes if that is a word of the stack."""

_SlotKey = tuple[int, tuple[int, ...], int]
"""Stream, loops around it, bytes. The i-th access without a stream goes to word i of the frame (modulo
`STACK_WORDS`) and has stream -1 - i."""


class _Node(NamedTuple):
    """An instruction, which is kept so that its identity stays taken.

    `number` is that of its value, `use` stream or -1 and bytes of its access. Is it a load or a store, does
    its result come while the core goes on?
    """

    node: Instruction
    number: int
    use: tuple[int, int] | None
    memory: bool
    late: bool


class _Run(Struct, frozen=True, eq=False):
    """Instructions without a loop between them, and what of them is the same in every nest.

    `nodes` are kept so that their identities stay taken; `numbers` say which instructions they are. `uses`
    are (position, stream or -1 for the stack, bytes) of the accesses, `overlaps` tells what is followed by a
    load or a store. Registers: those that are `read`, and those that get results while the core goes on, of
    the FPU (`computed`) and of the divider (`divided`).
    """

    nodes: tuple[Instruction, ...]
    numbers: tuple[int, ...]
    uses: tuple[tuple[int, int, int], ...]
    overlaps: tuple[bool, ...]
    read: frozenset[int]
    computed: frozenset[int]
    divided: frozenset[int]


class _Inside(Struct, frozen=True, eq=False):
    """A loop: what it repeats, and whether a branch closes it."""

    body: tuple[_Run | _Inside, ...]
    closed: bool


class _Text(Struct, frozen=True, eq=False):
    """A body without alignments: nodes, slots, loops, branches that are taken in a share, instructions."""

    nodes: tuple[CodeBlock | LoopNode, ...]
    slots: tuple[_SlotKey, ...]
    loops: tuple[LoopNode, ...]
    branches: int
    instructions: int
    accesses: tuple[_Access, ...]
    """By slot."""
    shapes: dict[tuple[int, ...], Shape]
    """By the alignments of the slots."""


_Spelled = tuple[tuple[Instruction | Loop, ...], _Text, tuple[int, ...]]
"""A body, what it says, the trip counts of its loops."""


class NestReader:
    """Turns `CoreWork` into `CoreNest`, sharing the shape between works that differ in numbers only."""

    def __init__(self, core: CoreTiming, fpu: FpuTiming, word_bytes: int, l2: L2Timing) -> None:
        self._rules = issue_rules(core, fpu, l2)
        self._overlapped = overlapped_load(core)
        self._divider_cycles = fpu.divsqrt_interval_cycles
        self._word_bytes = word_bytes
        rules = self._rules
        self._goes_on = frozenset(
            [op for op in (*FPU_OPS, Op.FDIV) if rules[op].result_cycles > rules[op].occupancy_cycles]
        )
        self._numbers: dict[Instruction, int] = {}
        self._read: dict[int, _Node] = {}
        """By identity."""
        self._runs: dict[tuple[int, ...], _Run] = {}
        """By the identities of their instructions."""
        self._bodies: dict[int, _Spelled] = {}
        self._texts: dict[tuple[int, ...], _Text] = {}
        self._steps: dict[tuple[frozenset[int], frozenset[int]], _Steps] = {}
        """By the registers of which something may be under way."""
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
        _, text, trips = spelled
        numbers: list[int] = []
        for stream_index, depth, _, on_stack in text.accesses:
            base, strides = on_stack or _stream(work.streams, stream_index, depth)
            numbers.append(base)
            numbers += strides
        shape = self._shape(text, numbers)
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
            _, text, _ = self._spelled(skeleton.body)
            places = self._places.get(skeleton)
            if len(self._formed) >= BODY_ENTRIES:
                self._formed.clear()
                self._places.clear()
            if places is None:
                places = self._places[skeleton] = _places(skeleton, text.accesses, len(units), len(anchors))
            odd = any(key[1]) or any(key[2])
            numbers = places.bytes_of(*key[1:]) if odd else [row[1] for row in places.numbers]
            shape = self._shape(text, numbers)
            formed = self._formed[key] = shape, places
        shape, places = formed
        return CoreNest(shape, trips, places, units, anchors, skeleton.code_bytes, skeleton.layout)

    def _shape(self, text: _Text, numbers_bytes: list[int]) -> Shape:
        alignments = []
        word = self._word_bytes
        at = 0
        for _, depth, width, _ in text.accesses:
            bits = 0
            for number in numbers_bytes[at : at + 1 + depth]:
                bits |= number
            at += 1 + depth
            if width == word:
                alignments.append(CROSSING if bits & (word - 1) else WHOLE_WORDS)
            else:  # widths are powers of two, as words are
                inside = width < word and not bits & (width - 1)
                alignments.append(INSIDE_WORDS if inside else CROSSING)
        key = tuple(alignments)
        shape = text.shapes.get(key)
        if shape is None:
            slots = tuple([Slot(*slot, alignment) for slot, alignment in zip(text.slots, key, strict=True)])
            shape = text.shapes[key] = Shape(text.nodes, slots, text.loops, text.branches, text.instructions)
        return shape

    def _spelled(self, body: tuple[Instruction | Loop, ...]) -> _Spelled:
        numbers: list[int] = []
        trips: list[int] = []
        runs: list[_Run] = []
        tree = self._spell(body, numbers, trips, runs)
        key = tuple(numbers)
        text = self._texts.get(key)
        if text is None:
            text = self._texts[key] = self._resolved(key, tree, runs)
        if len(self._bodies) >= BODY_ENTRIES:
            self._bodies.clear()
        spelled = self._bodies[id(body)] = (body, text, tuple(trips))
        return spelled

    def _spell(
        self, body: tuple[Instruction | Loop, ...], numbers: list[int], trips: list[int], runs: list[_Run]
    ) -> tuple[_Run | _Inside, ...]:
        """The body by its runs; what it says goes to `numbers`, `trips` and `runs`, in order."""
        tree: list[_Run | _Inside] = []
        start = 0
        for place in [*[place for place, node in enumerate(body) if isinstance(node, Loop)], len(body)]:
            if start < place:
                run = self._run(body[start:place])
                numbers += run.numbers
                runs.append(run)
                tree.append(run)
            start = place + 1
            if place < len(body):
                node = body[place]
                assert isinstance(node, Loop)
                trips.append(node.trips)
                numbers.append(-1 if node.hardware else -2)
                inner = self._spell(node.body, numbers, trips, runs)
                numbers.append(-3)
                last = node.body[-1] if node.body else None
                closed = not node.hardware and isinstance(last, Instruction) and last.op is Op.BRANCH
                tree.append(_Inside(inner, closed))
        return tuple(tree)

    def _run(self, nodes: tuple[Any, ...]) -> _Run:
        """The run of these instructions. Generators reuse objects, so their identities are looked up."""
        key = tuple(map(id, nodes))
        run = self._runs.get(key)
        if run is None:
            if len(self._runs) >= RUN_ENTRIES:
                self._runs.clear()
                self._read.clear()
            # Runs differ in single instructions mostly: hashing one by value is slow.
            read = [
                self._read.get(number) or self._read_node(node)
                for number, node in zip(key, nodes, strict=True)
            ]
            uses = [(place, *one.use) for place, one in enumerate(read) if one.use]
            late = [one for one in read if one.late]
            overlaps = [one.memory for one in read]
            run = self._runs[key] = _Run(
                nodes,
                tuple([one.number for one in read]),
                tuple(uses),
                (*overlaps[1:], False),
                frozenset(chain.from_iterable([node.srcs for node in nodes])),
                frozenset([one.node.dst for one in late if one.node.op is not Op.FDIV]),
                frozenset([one.node.dst for one in late if one.node.op is Op.FDIV]),
            )
        return run

    def _read_node(self, node: Instruction) -> _Node:
        number = self._numbers.setdefault(node, len(self._numbers))
        memory = node.op in (Op.LOAD, Op.STORE)
        use = (max(node.stream, -1), node.width_bytes) if memory or node.stream >= 0 else None
        read = _Node(node, number, use, memory, node.op in self._goes_on and node.dst >= 0)
        self._read[id(node)] = read
        return read

    def _resolved(self, key: tuple[int, ...], tree: tuple[_Run | _Inside, ...], runs: list[_Run]) -> _Text:
        """A text that was not there before."""
        read = frozenset[int]().union(*[run.read for run in runs])
        computed = frozenset[int]().union(*[run.computed for run in runs])
        divided = frozenset[int]().union(*[run.divided for run in runs]) & read
        steps = self._steps.get((computed, divided))
        if steps is None:
            rules = self._rules, self._overlapped, self._divider_cycles
            steps = self._steps[computed, divided] = _Steps(*rules, computed, divided)
        resolver = _Resolver(steps)
        nodes = resolver.nodes(tree, ())
        slots = tuple(resolver.slots)
        accesses = tuple([(stream, len(path), width, self._frame(stream)) for stream, path, width in slots])
        loops = tuple([loop for loop in resolver.loops if loop is not None])
        instructions = sum([len(run.nodes) for run in runs])
        return _Text(nodes, slots, loops, resolver.branches, instructions, accesses, {})

    def _frame(self, stream: int) -> Stream | None:
        """A word of the stack frame; stacks lie whole turns of the banks apart, so only the word counts."""
        return Stream((-1 - stream) * self._word_bytes, ()) if stream < 0 else None


def _stream(streams: tuple[Stream, ...], index: int, depth: int) -> Stream:
    if not 0 <= index < len(streams):
        raise InputError(
            f"an instruction uses address stream {index}, but the kernel has {len(streams)} streams",
            where="CoreWork.streams",
            cure="add the stream, or use -1 for an access to the stack of the core",
        )
    stream = streams[index]
    if len(stream.strides_bytes) != depth:
        raise InputError(
            f"address stream {index} has {len(stream.strides_bytes)} strides, but its instruction is "
            f"inside {depth} loops",
            where="CoreWork.streams",
            cure="use one stride per enclosing loop, outermost first",
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


_Write = tuple[int, int, int]
"""Of `CodeStep.writes`."""


class _Resolver:
    """Numbers what the steps of one tree use: slots, loops, branches that are taken in a share."""

    def __init__(self, steps: _Steps) -> None:
        self._steps = steps
        self.slots: dict[_SlotKey, int] = {}
        self.loops: list[LoopNode | None] = []
        self.branches = 0
        self._stack = 0

    def nodes(
        self, tree: tuple[_Run | _Inside, ...], path: tuple[int, ...], closed: bool = False
    ) -> tuple[CodeBlock | LoopNode, ...]:
        """The nodes of a tree inside the loops `path`, the last of which a branch closes or not."""
        if len(path) > MAX_DEPTH:
            raise InputError(
                f"the loops of the kernel are nested more than {MAX_DEPTH} levels deep",
                where="CoreWork.body",
                cure="merge or unroll loops",
            )
        nodes: list[CodeBlock | LoopNode] = []
        for place, item in enumerate(tree):
            if isinstance(item, _Run):
                closes = closed and place == len(tree) - 1
                nodes.append(CodeBlock(self._block(item, path, closes), path))
                continue
            index = len(self.loops)
            self.loops.append(None)
            loop = LoopNode(index, self.nodes(item.body, (*path, index), item.closed), int(item.closed), path)
            self.loops[index] = loop
            nodes.append(loop)
        return tuple(nodes)

    def _block(self, run: _Run, path: tuple[int, ...], closes: bool) -> tuple[CodeStep, ...]:
        plain, branches = self._steps.of_run(run, closes)
        steps = list(plain)
        slots, placed = self.slots, self._steps.placed
        for place, stream, width in run.uses:
            if stream >= 0:
                slot = slots.setdefault((stream, path, width), len(slots))
            else:
                slot = slots.setdefault((-1 - self._stack, (), width), len(slots))
                self._stack = (self._stack + 1) % STACK_WORDS
            key = (id(steps[place]), slot)
            step = placed.get(key)
            if step is None:
                step = placed[key] = replace(steps[place], slot=slot)
            steps[place] = step
        for place in branches:
            steps[place] = replace(steps[place], branch=self.branches)
            self.branches += 1
        return tuple(steps)


class _Steps:
    """Steps of runs in nests of which the same is under way while their core goes on.

    `computed` and `divided` are registers that get results of the FPU and of the divider; those of divisions
    only if somebody reads them. For others the core waits, because where a text without registers uses them
    is not known.
    """

    def __init__(
        self,
        rules: dict[Op, Rule],
        overlapped: Rule,
        divider_cycles: int,
        computed: frozenset[int],
        divided: frozenset[int],
    ) -> None:
        self._rules = rules
        self._overlapped = overlapped
        self._divider_cycles = divider_cycles
        self._computed = computed
        self._divided = divided
        self._plain: dict[tuple[int, bool, bool], tuple[Instruction, CodeStep]] = {}
        """By the identity of an instruction, whether the next overlaps it, and whether it closes a loop."""
        self.placed: dict[tuple[int, int], CodeStep] = {}
        """Steps with a slot, by the identity of the one without and the slot."""

    def of_run(self, run: _Run, closes: bool) -> tuple[list[CodeStep], list[int]]:
        """Steps of a run without slots, and the places of branches that are taken in a share.

        `closes`: its last instruction is the branch that closes a loop.
        """
        if len(self._plain) >= STEP_ENTRIES or len(self.placed) >= STEP_ENTRIES:
            self._plain.clear()
            self.placed.clear()
        nodes, last = run.nodes, len(run.nodes) - 1
        steps = []
        branches = []
        for place, (node, overlaps) in enumerate(zip(nodes, run.overlaps, strict=True)):
            key = (id(node), overlaps, closes and place == last)
            kept = self._plain.get(key)
            if kept is None:
                kept = self._plain[key] = node, self._step(node, key[2], overlaps)
            steps.append(kept[1])
            if kept[1].branch >= 0:
                branches.append(place)
        return steps, branches

    def _step(self, node: Instruction, closes: bool, overlaps: bool) -> CodeStep:
        taken, branch = NEVER_TAKEN, -1
        if node.op is Op.BRANCH and not closes:
            branch = 0 if 0 < node.taken_fraction < 1 else -1
            share = Fraction(node.taken_fraction).limit_denominator(MAX_FRACTION_DENOMINATOR)
            taken = (share.numerator, share.denominator)
            if not 0 <= share <= 1:
                raise InputError(
                    f"taken_fraction is {node.taken_fraction}, but must be between 0 and 1",
                    where="CoreWork.body",
                    cure="use a number between 0 and 1",
                )
        rule = self._overlapped if overlaps and node.op is Op.LOAD else self._rules[node.op]
        if node.op is Op.FDIV and node.dst not in self._divided:
            rule = waited_for(rule)
        reads, writes = self._units(node, rule)
        srcs = tuple(dict.fromkeys(register for register in (*node.srcs, *reads) if register >= 0))
        if node.dst >= 0:
            writes = ((node.dst, rule.result_cycles, rule.result_cause), *writes)
        return CodeStep(rule, writes, srcs, -1, node.width_bytes, taken, branch)

    def _units(self, node: Instruction, rule: Rule) -> tuple[tuple[int, ...], tuple[_Write, ...]]:
        """What an instruction waits for and sets at the FPU of its own core, beside its operands."""
        computed, divided, cause = self._computed, self._divided, rule.result_cause
        if node.op is Op.FDIV:
            if node.dst not in divided:
                return (), ()
            # If the core went on, the result takes the port to the registers for a cycle.
            written_cycles = rule.result_cycles + min(1, rule.occupancy_cycles - 1)
            sets = ((FPU_BUSY, written_cycles, cause), (DIVIDER_BUSY, self._divider_cycles, cause))
            return (FPU_EMPTY, DIVIDER_BUSY), sets
        if node.op in FPU_OPS:
            return ((FPU_BUSY,), ((FPU_EMPTY, rule.result_cycles, cause),)) if divided else ((), ())
        # A register is written in order: not before what is under way has come.
        waits: tuple[int, ...] = (node.dst,) if node.dst in computed or node.dst in divided else ()
        if divided and node.op is Op.CSR:
            waits += (FPU_BUSY, FPU_EMPTY)
        return waits, ()
