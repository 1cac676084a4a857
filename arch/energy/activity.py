# SPDX-License-Identifier: Apache-2.0
"""What every block did in a run: counts by op and by core, from the program and what was measured of it.

Instructions, words and bytes are counted in the program: what is executed and moved does not depend on time.
Cycles of the cores come from the slices (`traces.metrics`). A load or store is an access of L1 and counts the
words it touches, two where it crosses a word. An FPU instruction works on as many bytes as the load or store
before it in the text of its nest, so on a word of two 16-bit numbers after a load of a word (SIMD).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from arch.spec.isa import FPU_OPS, Loop, Node, Op, TeamWork
from arch.spec.program import Command, Compute, DmaStart, Program, TeamTransfer, UdmaCommand, UdmaStart
from arch.spec.timing import SocTiming
from configs.dtypes import FP32, DType
from configs.values import Struct
from traces.metrics import Metrics
from traces.tracks import op_label

Counts = Mapping[str, int]
"""Counters by name (`COUNTERS`); one that is not there is 0."""

NO_OP = ""
"""What belongs to no op: the hand-over of the task."""

ASLEEP = ("barrier", "dma_wait", "idle", "offload")
"""Stall words in which a core sleeps in the event unit, its clock gated."""

_CALCULATING = FPU_OPS | {Op.FDIV}
_ACCESSES = frozenset({Op.LOAD, Op.STORE})

RUNTIME = ("dma_program", "fork")
"""Stall words in which a core executes code of the runtime, which has no nest."""

COUNTERS: Mapping[str, str] = {
    "cycles": "cluster cycles",
    "instructions": "instructions of kernels, all classes",
    **{f"instructions_{op.name.lower()}": f"instructions of class {op.name}" for op in Op},
    "stalled_cycles": "core-cycles in which a clocked core issues no instruction",
    "runtime_cycles": "core-cycles in code that programs the DMA, forks and joins",
    "asleep_cycles": "clock-gated core-cycles: barrier, transfer, no task",
    "l1_reads": "loads of cores from L1",
    "l1_writes": "stores of cores into L1",
    "l1_words": "words of L1 that these loads and stores access",
    "l1_dma_words": "words of L1 that the DMA reads or writes",
    "icache_fetches": "fetched instructions, including one per runtime cycle",
    "icache_refills": "cache lines refilled while cores wait",
    "l2_read_bytes": "bytes read from L2 by DMA, uDMA and cores",
    "l2_written_bytes": "bytes written into L2 by them",
    "l3_read_bytes": "bytes read off-chip",
    "l3_written_bytes": "bytes written off-chip",
    "dma_commands": "commands of the DMA",
    "dma_bytes_in": "bytes the DMA moves into L1",
    "dma_bytes_out": "bytes the DMA moves out of L1",
    "udma_commands": "transfers between L2 and L3",
    "udma_bytes": "bytes moved between L2 and L3",
    "barriers": "joins of the cores that execute a kernel",
    "fc_cycles": "cycles in which the fabric controller starts the task and receives its end",
}
"""All counters but those of the FPU: ``fpu_fp16x2`` are instructions on two fp16 numbers each."""


class Activity(Struct, frozen=True):
    """Counts by op (``layer.step``, and `NO_OP`), and of cores by core; a counter of 0 is left out."""

    by_op: Mapping[str, Counts]
    by_core: Mapping[str, Counts]

    @property
    def total(self) -> dict[str, int]:
        """Of all ops."""
        return sum_of((counts, 1) for counts in self.by_op.values())


def whole_activity(parts: Iterable[tuple[Activity, int]]) -> Activity:
    """That of several programs, each run so many times."""
    listed = list(parts)
    return Activity(
        _summed((activity.by_op, times) for activity, times in listed),
        _summed((activity.by_core, times) for activity, times in listed),
    )


def activity_of(
    program: Program, metrics: Metrics, timing: SocTiming, formats: Mapping[str, DType]
) -> Activity:
    """The activity of one run of `program` that `metrics` has measured.

    `formats` has by op the format its FPU instructions compute in, fp32 where it has none.
    """
    by_op: dict[str, Counter[str]] = {op.name: Counter() for op in metrics.ops}
    by_core: dict[str, Counter[str]] = {core.name: Counter() for core in metrics.cores}
    _count_program(program, timing, formats, by_op, by_core)
    _count_cycles(by_op, by_core, metrics, timing)
    return Activity(
        {op: _present(counts) for op, counts in by_op.items()},
        {core: _present(counts) for core, counts in by_core.items()},
    )


def counts_of(program: Program, timing: SocTiming, formats: Mapping[str, DType]) -> dict[str, int]:
    """What a program certainly does, however long it takes: all counters but those of cycles."""
    by_op: dict[str, Counter[str]] = {}
    _count_program(program, timing, formats, by_op, {})
    return sum_of((counts, 1) for counts in by_op.values())


def _count_program(
    program: Program,
    timing: SocTiming,
    formats: Mapping[str, DType],
    by_op: dict[str, Counter[str]],
    by_core: dict[str, Counter[str]],
) -> None:
    """Add what is executed and moved."""
    teams: dict[tuple[str, object], tuple[TeamWork, int]] = {}
    moved: dict[tuple[str, str, bool], list[int]] = {}
    labels: dict[tuple[str, str], str] = {}
    for action in program.actions:
        named = action.work.op, action.work.step
        op = labels.get(named)
        if op is None:
            op = labels[named] = op_label(*named) if named[0] else NO_OP
            by_op.setdefault(op, Counter())
        if isinstance(action, Compute):
            # Works of one text issue the same: the cores of one of them are lowered, of the others none.
            team = action.team
            key = op, team.origin.text if team.origin is not None else id(team)
            teams[key] = team, teams.get(key, (team, 0))[1] + 1
            by_op[op]["barriers"] += action.fork
        elif isinstance(action, TeamTransfer):
            by_op[op]["barriers"] += 1
            _add_commands(moved, op, [each for one in action.commands for each in one], timing)
        elif isinstance(action, DmaStart):
            _add_commands(moved, op, action.commands, timing)
        elif isinstance(action, UdmaStart):
            _count_off_chip(by_op[op], action.commands)
    for (op, level, to_l1), (commands, words, size_bytes) in moved.items():
        counts = by_op[op]
        counts["dma_commands"] += commands
        counts["l1_dma_words"] += words
        counts["dma_bytes_in" if to_l1 else "dma_bytes_out"] += size_bytes
        counts[f"{level}_{'read' if to_l1 else 'written'}_bytes"] += size_bytes
    _count_kernels(teams, formats, by_op, by_core)


def _count_kernels(
    teams: Mapping[tuple[str, object], tuple[TeamWork, int]],
    formats: Mapping[str, DType],
    by_op: dict[str, Counter[str]],
    by_core: dict[str, Counter[str]],
) -> None:
    """Add what is executed by kernels, each so many times. Cores mostly share their body, and so do calls."""
    bodies: dict[tuple[int, DType], tuple[Node, ...]] = {}
    times_of: dict[tuple[bool, str, tuple[int, DType]], int] = {}
    for (op, _), (team, times) in teams.items():
        form = formats.get(op, FP32)
        for member in team.members:
            body = team.core(member).body
            key = id(body), form
            bodies[key] = body  # keeps it alive, as others might take its identity
            for where in ((True, op, key), (False, f"core{member}", key)):
                times_of[where] = times_of.get(where, 0) + times
    counted = {key: _of_kernel(body, key[1]) for key, body in bodies.items()}
    for (is_op, name, key), times in times_of.items():
        counts = by_op[name] if is_op else by_core.setdefault(name, Counter())
        for counter, count in counted[key].items():
            counts[counter] += times * count


def _add_commands(
    moved: dict[tuple[str, str, bool], list[int]], op: str, commands: Sequence[Command], timing: SocTiming
) -> None:
    """Add commands, words of L1 and bytes, by op, memory beyond and direction."""
    word_bytes = timing.l1.word_bytes
    for command in commands:
        size_bytes, first = command.line_bytes * command.lines, command.l1_address
        key = op, command.external_level, command.to_l1
        sums = moved.get(key)
        if sums is None:
            sums = moved[key] = [0, 0, 0]
        sums[0] += 1
        sums[1] += -(-(first + size_bytes) // word_bytes) - first // word_bytes
        sums[2] += size_bytes


def _count_off_chip(counts: Counter[str], commands: Sequence[UdmaCommand]) -> None:
    for move in commands:
        source, target = ("l3", "l2") if move.to_l2 else ("l2", "l3")
        counts[f"{source}_read_bytes"] += move.size_bytes
        counts[f"{target}_written_bytes"] += move.size_bytes
        counts["udma_bytes"] += move.size_bytes
    counts["udma_commands"] += len(commands)


def _of_kernel(body: tuple[Node, ...], form: DType) -> Counter[str]:
    """Counters of one core in one call of a kernel."""
    counts: Counter[str] = Counter()
    for (op, width_bytes), count in _classes(body).items():
        counts["instructions"] += count
        counts[f"instructions_{op.name.lower()}"] += count
        if op in _CALCULATING:
            counts[f"fpu_{form.word}x{max(1, width_bytes // form.bytes)}"] += count
        elif op is Op.LOAD_L2:
            counts["l2_read_bytes"] += count * width_bytes
        elif op is Op.STORE_L2:
            counts["l2_written_bytes"] += count * width_bytes
    counts["l1_reads"] = counts["instructions_load"]
    counts["l1_writes"] = counts["instructions_store"]
    counts["l1_words"] = counts["l1_reads"] + counts["l1_writes"]
    counts["icache_fetches"] = counts["instructions"]
    return counts


def _classes(body: tuple[Node, ...]) -> dict[tuple[Op, int], int]:
    """Instructions by class and bytes: of the access, or of the one before an FPU instruction in the text."""
    counts: dict[tuple[Op, int], int] = defaultdict(int)
    _add_classes(counts, body, 1, 0)
    return counts


def _add_classes(
    counts: dict[tuple[Op, int], int], body: tuple[Node, ...], times: int, width_bytes: int
) -> int:
    """Add a nest executed `times`; `width_bytes` is that of the access before it, returned of its last."""
    for node in body:
        if isinstance(node, Loop):
            width_bytes = _add_classes(counts, node.body, times * max(0, node.trips), width_bytes)
            continue
        op = node.op
        if op in _CALCULATING:
            counts[op, width_bytes] += times
        else:
            counts[op, node.width_bytes] += times
            if op in _ACCESSES:
                width_bytes = node.width_bytes
    return width_bytes


def _count_cycles(
    by_op: dict[str, Counter[str]], by_core: dict[str, Counter[str]], metrics: Metrics, timing: SocTiming
) -> None:
    """Add what the slices tell: of ops, of what belongs to none, of cores."""
    left = Counter(dict(metrics.total.stalls))
    for op in metrics.ops:
        _add_stalls(by_op[op.name], dict(op.stalls), timing)
        by_op[op.name]["cycles"] += op.cycles
        left.subtract(dict(op.stalls))
    none = by_op.setdefault(NO_OP, Counter())
    _add_stalls(none, left, timing)
    none["cycles"] += metrics.offload_cycles
    none["fc_cycles"] += metrics.offload_cycles
    for core in metrics.cores:
        _add_stalls(by_core[core.name], dict(core.stalls), timing)
        by_core[core.name]["cycles"] += metrics.makespan_cycles


def _add_stalls(counts: Counter[str], stalls: Mapping[str, int], timing: SocTiming) -> None:
    runtime_cycles = sum(stalls.get(word, 0) for word in RUNTIME)
    asleep_cycles = sum(stalls.get(word, 0) for word in ASLEEP)
    counts["runtime_cycles"] += runtime_cycles
    counts["asleep_cycles"] += asleep_cycles
    counts["stalled_cycles"] += sum(stalls.values()) - runtime_cycles - asleep_cycles
    counts["icache_fetches"] += runtime_cycles
    counts["icache_refills"] += stalls.get("icache", 0) // max(1, timing.icache.private_refill_stall_cycles)
    counts["l1_words"] += stalls.get("misaligned", 0) // max(1, timing.core.misaligned_stall_cycles)


def sum_of(parts: Iterable[tuple[Counts, int]]) -> dict[str, int]:
    """Counts, each so many times, together."""
    total: Counter[str] = Counter()
    for counts, times in parts:
        for name, count in counts.items():
            total[name] += times * count
    return _present(total)


def _summed(parts: Iterable[tuple[Mapping[str, Counts], int]]) -> dict[str, Counts]:
    found: dict[str, list[tuple[Counts, int]]] = {}
    for by_name, times in parts:
        for name, counts in by_name.items():
            found.setdefault(name, []).append((counts, times))
    return {name: sum_of(listed) for name, listed in found.items()}


def _present(counts: Mapping[str, int]) -> dict[str, int]:
    """In one order, zeros left out: counters as in `COUNTERS`, then those of the FPU."""
    known = [name for name in COUNTERS if counts.get(name)]
    return {
        name: counts[name]
        for name in (*known, *sorted(key for key in counts if key not in COUNTERS and counts[key]))
    }
