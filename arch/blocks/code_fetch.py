# SPDX-License-Identifier: Apache-2.0
"""Core 0 fetches the code of a program: what each of its actions waits for lines that are in no cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import floor

import numpy as np

from arch.pricing.code_refills import shares_the_cache
from arch.pricing.line_caches import CodePath, Ints, Reads, Walks
from arch.spec.program import Action, CodePiece, Compute, DmaStart, DmaWait, Program, ProgramCode
from arch.spec.timing import L2Timing, SocTiming

ACTIONS = 1024
"""Actions whose code is visited at once: what is known of their lines takes memory."""


class _Table:
    """The stretches of the code of actions: first line and number of lines, whether they are of a kernel, and
    then the cycles of a line. Actions with the same pieces share their rows, those of kernels last."""

    def __init__(self, code: Sequence[tuple[CodePiece, ...]], line_bytes: int) -> None:
        different = {id(pieces): pieces for pieces in code}
        number_of = {identity: number for number, identity in enumerate(different)}
        self._numbers = np.array([number_of[id(pieces)] for pieces in code], np.int64)
        self._counts = np.array([len(pieces) for pieces in different.values()], np.int64)
        self._firsts = np.cumsum(self._counts) - self._counts
        ordered = [
            piece for pieces in different.values() for piece in sorted(pieces, key=lambda piece: piece.kernel)
        ]
        address = np.array([piece.address for piece in ordered], np.int64)
        size_bytes = np.array([piece.size_bytes for piece in ordered], np.int64)
        first = address // line_bytes
        self.stretches = np.stack([first, -(-(address + size_bytes) // line_bytes) - first], axis=1)
        self.in_kernel = np.array([piece.kernel for piece in ordered], np.bool_)
        self.pace = np.array([line_bytes / piece.instruction_bytes for piece in ordered], np.float64)

    def rows(self, begin: int, end: int) -> tuple[Ints, Ints]:
        """Those of some actions in order, and which of the actions each belongs to."""
        numbers = self._numbers[begin:end]
        counts = self._counts[numbers]
        of_action = np.repeat(np.arange(len(numbers)), counts)
        within = np.arange(len(of_action)) - (np.cumsum(counts) - counts)[of_action]
        return self._firsts[numbers][of_action] + within, of_action


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
        self._timing = timing
        self._table = _Table(code.pieces, timing.icache.line_bytes)
        self._own_cycles = np.array([self._cycles(action) for action in program.actions], np.float64)
        self._path = CodePath(timing.icache)
        self._reads = lambda: reads(timing.l2)
        self._near_in_kernels = not shares_the_cache(timing.icache)
        self._owed = 0.0
        self._walks: Walks | None = None
        self._begin = self._end = 0

    def warm_up(self) -> None:
        """Execute the program once without asking what it waits for."""
        for begin in range(0, len(self._own_cycles), ACTIONS):
            rows, _ = self._table.rows(begin, begin + ACTIONS)
            self._path.visit(self._table.stretches[rows])

    def before(self, action: Action, now: int) -> int:
        """What core 0 waits for the code of an action but for that of a kernel, in cycles."""
        return self._waits(action, 0, now)

    def in_kernel(self, action: Action, now: int) -> int:
        """What a team waits for the code of the kernel it is called for, in cycles."""
        return self._waits(action, 1, now)

    def _waits(self, action: Action, walk: int, now: int) -> int:
        if action.id >= self._end:
            self._begin, self._end = self._end, self._end + ACTIONS
            self._walks = self._visited(self._begin, self._end)
        assert self._walks is not None
        waits = self._walks.cycles(2 * (action.id - self._begin) + walk, now, self._reads) + self._owed
        whole = max(0, floor(waits))
        self._owed = waits - whole
        return whole

    def _visited(self, begin: int, end: int) -> Walks:
        """The code of some actions, executed: of each a first walk of what core 0 does for it and a second
        one of what a team does."""
        table, own_cycles = self._table, self._own_cycles[begin:end]
        rows, of_action = table.rows(begin, end)
        stretches, in_kernel = table.stretches[rows], table.in_kernel[rows]
        counts = stretches[:, 1]
        own_lines = np.bincount(of_action, counts * ~in_kernel, len(own_cycles))
        own_pace = own_cycles / np.maximum(1, own_lines)
        return self._path.walks(
            self._path.visit(stretches),
            counts,
            np.where(in_kernel, table.pace[rows], own_pace[of_action]),
            ~in_kernel | self._near_in_kernels,
            2 * of_action + in_kernel,
            2 * ACTIONS,
        )

    def _cycles(self, action: Action) -> int:
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
                pushed_cycles = max(events.fork_push_cycles, events.fork_master_cycles)
                return action.code_cycles + pushed_cycles + events.join_cycles
        return 0
