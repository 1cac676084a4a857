# SPDX-License-Identifier: Apache-2.0
"""Core 0 fetches the code of a program: what each of its actions waits for lines that are in no cache."""

from __future__ import annotations

from collections.abc import Callable
from math import floor

from arch.pricing.code_refills import shares_the_cache
from arch.pricing.line_caches import CodePath, Reads, Walks
from arch.spec.program import Action, Compute, DmaStart, DmaWait, Program, ProgramCode
from arch.spec.timing import L2Timing, SocTiming

ACTIONS = 1024
"""Actions whose code is visited at once: what is known of their lines takes memory."""


class CodeFetch:
    """The code of a program on its way through the instruction caches.

    Which lines are missing depends on what was executed before, not on when, so it is worked out for many
    actions at once; `reads` says what lines come behind when they are asked for. Waits are expected ones;
    what is left of a cycle is owed to the next wait. What a core waits in a kernel for code all cores wait,
    as they ask for a line at about the same time and it is fetched once.
    """

    def __init__(
        self, program: Program, code: ProgramCode, timing: SocTiming, reads: Callable[[L2Timing], Reads]
    ) -> None:
        self._program, self._pieces, self._timing = program, code.pieces, timing
        self._path = CodePath(timing.icache)
        self._reads = lambda: reads(timing.l2)
        self._near_in_kernels = not shares_the_cache(timing.icache)
        self._owed = 0.0
        self._walks: Walks | None = None
        self._begin = self._end = 0

    def warm_up(self) -> None:
        """Execute the program once without asking what it waits for."""
        for begin in range(0, len(self._pieces), ACTIONS):
            self._path.visit(self._stretches(begin)[0])

    def before(self, action: Action, now: int) -> int:
        """What core 0 waits for the code of an action but for that of a kernel, in cycles."""
        return self._waits(action, 0, now)

    def in_kernel(self, action: Action, now: int) -> int:
        """What a team waits for the code of the kernel it is called for, in cycles."""
        return self._waits(action, 1, now)

    def _waits(self, action: Action, walk: int, now: int) -> int:
        if action.id >= self._end:
            self._begin, self._end = self._end, self._end + ACTIONS
            stretches, cycles, walk_of = self._stretches(self._begin)
            near = [not number % 2 or self._near_in_kernels for number in walk_of]
            counts = [count for _, count in stretches]
            misses = self._path.visit(stretches)
            self._walks = self._path.walks(misses, counts, cycles, near, walk_of, 2 * ACTIONS)
        assert self._walks is not None
        waits = self._walks.cycles(2 * (action.id - self._begin) + walk, now, self._reads) + self._owed
        whole = max(0, floor(waits))
        self._owed = waits - whole
        return whole

    def _stretches(self, begin: int) -> tuple[list[tuple[int, int]], list[float], list[int]]:
        """The code of `ACTIONS` actions: first line and number of lines, cycles of a line, and the walk: of
        each action a first one of what core 0 executes for it and a second one of what a team does."""
        line_bytes = self._timing.icache.line_bytes
        stretches, cycles, walk_of = list[tuple[int, int]](), list[float](), list[int]()
        for number, pieces in enumerate(self._pieces[begin : begin + ACTIONS]):
            in_kernels, lines = [], 0
            own = len(stretches)
            for piece in pieces:
                first = piece.address // line_bytes
                count = -(-(piece.address + piece.size_bytes) // line_bytes) - first
                if piece.kernel:
                    in_kernels.append((first, count, line_bytes / piece.instruction_bytes))
                else:
                    stretches.append((first, count))
                    lines += count
            if own < len(stretches):
                pace = self._own_cycles(self._program.actions[begin + number]) / max(1, lines)
                cycles += [pace] * (len(stretches) - own)
                walk_of += [2 * number] * (len(stretches) - own)
            for first, count, pace in in_kernels:
                stretches.append((first, count))
                cycles.append(pace)
                walk_of.append(2 * number + 1)
        return stretches, cycles, walk_of

    def _own_cycles(self, action: Action) -> int:
        """What core 0 takes for an action whose code is there."""
        dma, events = self._timing.dma, self._timing.event_unit
        match action:
            case DmaStart():
                flat = all(command.lines == 1 for command in action.commands)
                first = dma.program_1d_cycles if flat else dma.program_2d_cycles
                return action.code_cycles + first + dma.program_next_cycles * (len(action.commands) - 1)
            case DmaWait():
                return dma.wait_done_cycles
            case Compute():
                return max(events.fork_push_cycles, events.fork_master_cycles) + events.join_cycles
        return 0
