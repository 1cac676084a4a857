# SPDX-License-Identifier: Apache-2.0
"""Core 0 fetches the code of a program: what each of its actions waits for lines that are in no cache."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil, floor

from arch.pricing.code_refills import shares_the_cache
from arch.pricing.line_caches import CodePath
from arch.spec.program import Action, CodePiece, Compute, DmaStart, DmaWait, Program, ProgramCode
from arch.spec.timing import L2Timing, SocTiming

Queued = Callable[[float, L2Timing], float]
"""What a line asked from L2 at a cycle waits for reads of the DMA (`arch.blocks.dma.Dma.queued_cycles`)."""


class CodeFetch:
    """The code of a program on its way through the instruction caches, action by action.

    Waits are expected ones; what is left of a cycle is owed to the next wait. What a core waits in a kernel
    for code all cores wait, as they ask for a line at about the same time and it is fetched once.
    """

    def __init__(self, program: Program, code: ProgramCode, timing: SocTiming, queued: Queued) -> None:
        self._pieces = code.pieces
        self._timing = timing
        self._path = CodePath(timing.icache, self._behind)
        self._queued = queued
        self._is_warming_up = False
        self._owed = 0.0
        self._lines: dict[CodePiece, range] = {}
        self._near_in_kernels = not shares_the_cache(timing.icache)
        self._program = program

    def warm_up(self) -> None:
        """Execute the program once without asking what it waits for."""
        self._is_warming_up = True
        for action in self._program.actions:
            self.before(action, 0)
            self.in_kernel(action, 0)
        self._is_warming_up = False
        self._owed = 0.0

    def before(self, action: Action, now: int) -> int:
        """What core 0 waits for the code of an action but for that of a kernel, in cycles."""
        pieces = [piece for piece in self._pieces[action.id] if not piece.kernel]
        if not pieces:
            return 0
        lines = [self._lines_of(piece) for piece in pieces]
        cycles = self._own_cycles(action) / max(1, sum(map(len, lines)))
        waits = 0.0
        for run in lines:
            waits += self._path.walk(run, cycles, now + waits)
        return self._whole(waits)

    def in_kernel(self, action: Action, now: int) -> int:
        """What a team waits for the code of the kernel it is called for, in cycles."""
        line_bytes, waits = self._timing.icache.line_bytes, 0.0
        for piece in self._pieces[action.id]:
            if piece.kernel:
                cycles = line_bytes / piece.instruction_bytes
                waits += self._path.walk(
                    self._lines_of(piece), cycles, now + waits, near=self._near_in_kernels
                )
        return self._whole(waits)

    def _behind(self, asked: float) -> float:
        return 0.0 if self._is_warming_up else self._queued(asked, self._timing.l2)

    def _whole(self, waits: float) -> int:
        whole = max(0, floor(waits + self._owed))
        self._owed += waits - whole
        return whole

    def _lines_of(self, piece: CodePiece) -> range:
        lines = self._lines.get(piece)
        if lines is None:
            line_bytes = self._timing.icache.line_bytes
            end = piece.address + piece.size_bytes
            lines = self._lines[piece] = range(piece.address // line_bytes, ceil(end / line_bytes))
        return lines

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
