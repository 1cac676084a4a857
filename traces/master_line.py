# SPDX-License-Identifier: Apache-2.0
"""The time line of the master core: whose each cycle is, and what a core without work waits for in it.

The attribution rule is that of `traces.metrics`. Slices come in order, some at a time; what is decided is
handed out, and what no other core can ask for any more is forgotten.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from traces.causes import DMA_IN, DMA_OUT, L3, cause_for_workers
from traces.events import Slice, TraceError, Work
from traces.tracks import OUTWARD, UDMA, TrackName, op_label

EITHER = ""
"""Of what is moved both ways, or by the uDMA and by the DMA: what a wait for it is for is told at the end."""


class OpenWait(NamedTuple):
    """A wait in place of its cause, which `Moves` tells once all transfers are known."""

    work: Work
    start_cycles: int
    end_cycles: int


Cause = str | OpenWait


class Moves:
    """What waits are for: by what something is moved for `DMA_IN`, `DMA_OUT`, `L3` or `EITHER`."""

    def __init__(self, directions: Mapping[Work, str]) -> None:
        self._directions = directions
        self._begun: dict[Work, tuple[int, tuple[object, ...], str]] = {}
        self._from_l3: dict[Work, int] = {}
        self._some_open = EITHER in directions.values()

    def add(self, event: Slice, name: TrackName) -> None:
        """A transfer of the DMA or of the uDMA."""
        if not self._some_open or self._directions.get(event.work) != EITHER:
            return
        if name.family == UDMA:
            self._from_l3[event.work] = max(self._from_l3.get(event.work, 0), event.end_cycles)
        else:
            begun = event.start_cycles, name.order, direction_of(name)
            self._begun[event.work] = min(self._begun.get(event.work, begun), begun)

    def cause(self, event: Slice) -> Cause:
        """What a slice `dma_wait` waits for, L3 if nothing is moved for it."""
        direction = self._directions.get(event.work, L3)
        return direction or OpenWait(event.work, event.start_cycles, event.end_cycles)

    def name_of(self, cause: Cause) -> str:
        """The cause itself at the end: L3 if the uDMA was still at it and the DMA had not begun."""
        if isinstance(cause, str):
            return cause
        begun_cycles, _, direction = self._begun.get(cause.work, (cause.end_cycles, (), L3))
        over_cycles = self._from_l3.get(cause.work, 0)
        return L3 if over_cycles > cause.start_cycles and begun_cycles >= cause.end_cycles else direction


def direction_of(name: TrackName) -> str:
    """The cause of a wait for a transfer on a track of the DMA."""
    return DMA_OUT if name.direction == OUTWARD else DMA_IN


class Piece(NamedTuple):
    """Cycles of the master between two ends of its slices: the op they belong to ("" for none), the op that
    waits in them count for, which differs where nothing is told of the master, and their cause."""

    op: str
    waiting_op: str
    cause: Cause


NOBODY = Piece("", "", "")


@dataclass(slots=True)
class Span:
    """All cycles of an op, from its first to its last."""

    step: str
    start_cycles: int
    end_cycles: int
    cycles: int = 0


class MasterLine:
    """Pieces of the master's time, in order, as far as they are decided (`until_cycles`)."""

    def __init__(self, moves: Moves) -> None:
        self.spans: dict[str, Span] = {}
        """By op, in the order in which they come first."""
        self.until_cycles = 0
        self._moves = moves
        self._held: list[Slice] = []
        self._before: Slice | None = None
        self._op = ""
        self._step = ""
        self._ends = array("q")
        self._pieces: list[Piece] = []
        self._same: dict[tuple[str, Cause], Piece] = {}
        self._named = "", "", ""
        self._forgotten_cycles = 0

    def extend(self, events: Sequence[Slice], *, over: bool) -> list[tuple[Slice, Piece]]:
        """The next slices, and with `over` the last; returns those that are decided now.

        Whose a slice is is decided by the next one that names an op, its cause by the one after it.
        """
        held = self._held
        held += events
        named = next((number for number in range(len(held) - 1, -1, -1) if held[number][4].op), -1)
        ready = len(held) if over else named if self._op or named >= 0 else len(held) - 1
        decided = []
        for number in range(max(0, ready)):
            event = held[number]
            before = held[number - 1] if number else self._before
            after = held[number + 1] if number + 1 < len(held) else None
            decided.append((event, self._decide(before, event, after, named=number <= named)))
        if ready > 0:
            self._before = held[ready - 1]
            del held[:ready]
        return decided

    def _decide(self, before: Slice | None, event: Slice, after: Slice | None, *, named: bool) -> Piece:
        """`named` says that this slice or one after it names an op."""
        _, start, end, kind, work, _, _, _ = event
        gap_op, gap_step = (self._op, self._step) if named else ("", "")
        if work.op and (kind != "offload" or not self._op):
            self._op, self._step = self._label(work), work.step
        elif not named:
            self._op = ""
        op = self._op if kind != "offload" else ""
        cause = self._moves.cause(event) if kind == "dma_wait" else cause_for_workers(before, event, after)
        if start > self.until_cycles:
            self._add(start, Piece(gap_op, op, cause), gap_step)
        piece = self._same.get((op, cause))
        if piece is None:
            piece = Piece(op, op, cause)
            if isinstance(cause, str):
                self._same[op, cause] = piece
        self._add(end, piece, self._step)
        return piece

    def _label(self, work: Work) -> str:
        if work.op != self._named[0] or work.step != self._named[1]:
            self._named = work.op, work.step, op_label(work.op, work.step)
        return self._named[2]

    def _add(self, end_cycles: int, piece: Piece, step: str) -> None:
        start_cycles = self.until_cycles
        if end_cycles <= start_cycles:
            return
        self._ends.append(end_cycles)
        self._pieces.append(piece)
        self.until_cycles = end_cycles
        if piece.op:
            span = self.spans.get(piece.op)
            if span is None:
                span = self.spans[piece.op] = Span(step, start_cycles, end_cycles)
            span.end_cycles = end_cycles
            span.cycles += end_cycles - start_cycles

    def pieces(self, start_cycles: int, end_cycles: int) -> list[tuple[Piece, int]]:
        """The pieces of an interval and the cycles in each; `NOBODY` has those after the last."""
        if start_cycles < self._forgotten_cycles:
            raise TraceError(
                f"a slice that starts at cycle {start_cycles} was reported too late, after cycle "
                f"{self._forgotten_cycles}"
            )
        ends, pieces = self._ends, self._pieces
        at = bisect_right(ends, start_cycles)
        parts = []
        while start_cycles < end_cycles:
            piece, until_cycles = (pieces[at], ends[at]) if at < len(ends) else (NOBODY, end_cycles)
            until_cycles = min(until_cycles, end_cycles)
            parts.append((piece, until_cycles - start_cycles))
            start_cycles = until_cycles
            at += 1
        return parts

    def op_of(self, start_cycles: int, end_cycles: int) -> str | None:
        """The op an interval belongs to, None if to several, or in part or all to what is not told."""
        at = bisect_right(self._ends, start_cycles)
        while at < len(self._ends):
            op = self._pieces[at].op
            if self._ends[at] >= end_cycles:
                return op
            at += 1
            if at < len(self._ends) and self._pieces[at].op != op:
                return None
        return None

    def forget(self, before_cycles: int) -> None:
        """No other core asks for a cycle before."""
        count = bisect_right(self._ends, before_cycles)
        if count:
            self._forgotten_cycles = before_cycles
            del self._ends[:count]
            del self._pieces[:count]
