# SPDX-License-Identifier: Apache-2.0
"""Race detection by byte intervals: compares every new access with those still under way."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from arch.spec.program import Effect, Move, Place, Release, UdmaCommand
from configs.errors import RaceError
from traces.events import Work, constructor_of


class Span(NamedTuple):
    """Bytes of one memory touched by one access: `lines` lines of `line_bytes`, `stride_bytes` apart.

    `end` is the address behind the last byte. Made by `span_of`.
    """

    level: str
    address: int
    end: int
    line_bytes: int
    lines: int
    stride_bytes: int

    def overlaps(self, other: Span) -> bool:
        """Whether the two share a byte; lines are compared one by one where the hulls overlap."""
        if self.level != other.level or self.end <= other.address or other.end <= self.address:
            return False
        if self.lines == 1 and other.lines == 1:
            return True
        # Of the lines of `other` that start before one of ours ends, the last one reaches furthest.
        ours, theirs = self._starts(), other._starts()
        last = np.searchsorted(theirs, ours + self.line_bytes, side="left") - 1
        return bool(np.any((last >= 0) & (theirs[np.maximum(last, 0)] + other.line_bytes > ours)))

    def _starts(self) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        return self.address + self.stride_bytes * np.arange(self.lines, dtype=np.int64)


_make_span = constructor_of(Span)


def span_of(level: str, address: int, line_bytes: int, lines: int = 1, stride_bytes: int = 0) -> Span:
    """The bytes of `lines` lines of `line_bytes`, `stride_bytes` apart, from `address` on."""
    end = address + (lines - 1) * stride_bytes + line_bytes
    return Span(level, address, end, line_bytes, lines, stride_bytes)


def place_span(place: Place) -> Span:
    """The bytes of a place."""
    size_bytes, address = place.size_bytes, place.address
    return _make_span((place.level, address, address + size_bytes, size_bytes, 1, 0))


def move_spans(command: Move) -> tuple[Span, Span]:
    """(bytes read, bytes written) of a command of the DMA or of the uDMA."""
    if isinstance(command, UdmaCommand):
        l2 = span_of("l2", command.l2_address, command.size_bytes)
        l3 = span_of("l3", command.l3_address, command.size_bytes)
        return (l3, l2) if command.to_l2 else (l2, l3)
    # Without `span_of`: this is asked for every command of a run.
    line_bytes, lines, start = command.line_bytes, command.lines, command.l1_address
    size_bytes = line_bytes * lines
    near = _make_span(("l1", start, start + size_bytes, size_bytes, 1, 0))
    far_start = command.external_address
    stride_bytes = command.stride_bytes if lines > 1 else 0
    far_end = far_start + (lines - 1) * stride_bytes + line_bytes
    far = _make_span((command.external_level, far_start, far_end, line_bytes, lines, stride_bytes))
    return (far, near) if command.to_l1 else (near, far)


Subject = Move | Effect | Release


class Access:
    """What a command, a kernel or a release reads and writes from its start to its end.

    `kernel` is the name of a kernel. Its spans are made when it is first compared with another.
    """

    __slots__ = ("_spans", "kernel", "start_cycles", "subject", "work")

    def __init__(self, subject: Subject, work: Work, start_cycles: int, kernel: str = "") -> None:
        self.subject = subject
        self.work = work
        self.start_cycles = start_cycles
        self.kernel = kernel
        self._spans: tuple[tuple[Span, ...], tuple[Span, ...]] | None = None

    @property
    def spans(self) -> tuple[tuple[Span, ...], tuple[Span, ...]]:
        """(those read, those written)."""
        if self._spans is None:
            subject = self.subject
            if isinstance(subject, Effect):
                self._spans = (
                    tuple([place_span(place) for place in subject.reads]),
                    tuple([place_span(place) for place in subject.writes]),
                )
            elif isinstance(subject, Release):
                self._spans = (), tuple([place_span(place) for place in subject.places])
            else:
                source, destination = move_spans(subject)
                self._spans = (source,), (destination,)
        return self._spans

    @property
    def party_name(self) -> str:
        """Who it is, for people."""
        if isinstance(self.subject, Effect):
            return f"kernel {self.kernel}"
        if isinstance(self.subject, Release):
            return "the release of buffers"
        if isinstance(self.subject, UdmaCommand):
            return "uDMA in" if self.subject.to_l2 else "uDMA out"
        return "DMA in" if self.subject.to_l1 else "DMA out"


class RaceDetector:
    """Holds the accesses under way; only those are compared with a new one."""

    def __init__(self) -> None:
        self._live: dict[int, Access] = {}

    @property
    def any_live(self) -> bool:
        """Whether any access is under way."""
        return bool(self._live)

    def clear(self) -> None:
        """Forget everything, at the start of a run."""
        self._live.clear()

    def begin(self, key: int, access: Access) -> None:
        """An access starts. Raises `RaceError` when it shares bytes with a live one and one writes them."""
        if self._live:
            reads, writes = access.spans
            for other in self._live.values():
                others_reads, others_writes = other.spans
                span = (
                    _shared(writes, others_reads)
                    or _shared(writes, others_writes)
                    or _shared(reads, others_writes)
                )
                if span is not None:
                    raise _race(access, other, span)
        self._live[key] = access

    def end(self, key: int) -> None:
        """The access that began under `key` is over."""
        del self._live[key]


def _shared(ours: tuple[Span, ...], theirs: tuple[Span, ...]) -> Span | None:
    for span in ours:
        level, address, end = span.level, span.address, span.end
        for other in theirs:
            # The test of the hulls comes first: it is asked for every pair of accesses under way.
            if address < other.end and other.address < end and level == other.level and span.overlaps(other):
                return span
    return None


def _race(new: Access, old: Access, span: Span) -> RaceError:
    return RaceError(
        f"race at cycle {new.start_cycles}: {new.party_name} ({_label(new.work)}) touches "
        f"{span.level} bytes {span.address} to {span.end}, which {old.party_name} "
        f"({_label(old.work)}) has used since cycle {old.start_cycles}; at least one of the two "
        "writes",
        where=_label(new.work),
        cure="wait for the transfer before the kernel uses its buffer, or use different buffers",
    )


def _label(work: Work) -> str:
    tile = f" tile {work.tile}" if work.tile >= 0 else ""
    return f"op {work.op or '?'} {work.step}".rstrip() + tile + (f", {work.what}" if work.what else "")
