# SPDX-License-Identifier: Apache-2.0
"""When the bursts of one DMA command run: the closed-form part of the DMA model.

A direction engine works through its commands strictly in order, so nothing that arrives later can change the
timing of a command that has begun. Its end is therefore computed at once from the state its predecessors
left, and SimPy sees one event per command instead of one per burst or word.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from arch.spec.program import Command
from arch.spec.timing import DmaTiming
from configs.values import Struct
from traces.events import constructor_of


class Link(NamedTuple):
    """What the external memory and the way to it cost, in cluster cycles."""

    latency_cycles: int
    """Read: request to first beat. Write: last beat to response."""
    occupancy_cycles: tuple[int, ...]
    """Cycles the link is busy with a burst of i bytes, i = 0 .. largest burst."""


class EngineState(NamedTuple):
    """What earlier commands of one direction left behind; times in cluster cycles from some origin."""

    next_request: int = 0
    """Earliest cycle of the next burst request (read) or gathering from L1 (write)."""
    next_word: int = 0
    """First free word slot of the L1 ports: cycle x words per cycle + words already moved in it."""
    link_free: int = 0
    """First cycle in which the external link is free."""
    in_flight: tuple[int, ...] = ()
    """Ends of the newest bursts, oldest first; at most as many as may be outstanding."""
    issued: int = 0
    """Cycle in which the last burst was requested (read) or begun (write)."""
    cut: int = 0
    """Cycle in which the last command was all cut into bursts: its last one then waits to be issued."""

    def seen_from(self, origin: int, words_per_cycle: int) -> EngineState:
        """The same state with times counted from `origin`, and those before it 0: idle engines are equal."""
        request, word, link_free, in_flight, issued, _ = self
        word_origin = origin * words_per_cycle
        over = not in_flight or max(in_flight) <= origin
        if over and request <= origin and word <= word_origin and link_free <= origin and issued <= origin:
            return IDLE
        return _make_state(
            (
                request - origin if request > origin else 0,
                word - word_origin if word > word_origin else 0,
                link_free - origin if link_free > origin else 0,
                () if over else tuple([end - origin if end > origin else 0 for end in in_flight]),
                issued - origin if issued > origin else 0,
                0,
            )
        )


_make_state = constructor_of(EngineState)
IDLE = EngineState()
"""An engine nothing is left to do for."""


class BurstRules(Struct, frozen=True):
    """Parameters of one direction engine."""

    burst_bytes: int
    outstanding: int
    words_per_cycle: int
    word_bytes: int
    first_beat_cycles: int
    aligned: bool
    """Whether bursts end at multiples of `burst_bytes` of the external address."""
    read_gap_cycles: int
    write_gap_cycles: int
    """Idle L1 cycles behind a burst."""
    read_short_bytes: int
    write_short_bytes: int
    """Bursts of at most so many bytes are short."""
    read_short_gap_cycles: int
    write_short_gap_cycles: int
    """Idle L1 cycles behind a short burst."""

    @staticmethod
    def of(timing: DmaTiming, word_bytes: int) -> BurstRules:
        """Rules from the DMA's timing and the width of an L1 word."""
        return BurstRules(
            timing.burst_bytes,
            timing.outstanding_bursts,
            max(1, timing.l1_bytes_per_cycle // word_bytes),
            word_bytes,
            timing.first_beat_cycles,
            timing.bursts_aligned,
            timing.read_burst_gap_cycles,
            timing.write_burst_gap_cycles,
            timing.read_short_burst_beats * timing.l1_bytes_per_cycle,
            timing.write_short_burst_beats * timing.l1_bytes_per_cycle,
            max(0, timing.read_burst_gap_cycles - timing.short_burst_saved_cycles),
            max(0, timing.write_burst_gap_cycles - timing.short_burst_saved_cycles),
        )


Pace = tuple[int, int]
"""Words and cycles: how fast L1 takes or gives the words of one direction."""


class Bursts:
    """(bytes, aligned L1 words) of every burst of a command. Commands with equal ones share one object, so
    that it is enough to compare which it is."""

    __slots__ = ("sizes",)

    def __init__(self, sizes: tuple[tuple[int, int], ...]) -> None:
        self.sizes = sizes


def shape_of(command: Command, rules: BurstRules) -> tuple[int, ...]:
    """What of a command its bursts follow from: those of commands of one shape are equal."""
    shape = command.line_bytes, command.lines, command.l1_address % rules.word_bytes
    if not rules.aligned:
        return shape
    return *shape, command.external_address % rules.burst_bytes, command.stride_bytes


def bursts_of(command: Command, rules: BurstRules) -> list[tuple[int, int]]:
    """(bytes, aligned L1 words touched) of every burst.

    A line is cut every `burst_bytes`, counted from its start or, where bursts are aligned, from the last
    multiple of it in the external memory; a burst never covers two lines.
    """
    bursts = []
    word = rules.word_bytes
    for line in range(command.lines):
        first = command.l1_address + line * command.line_bytes
        end = first + command.line_bytes
        external = command.external_address + line * command.stride_bytes
        room = rules.burst_bytes - (external % rules.burst_bytes if rules.aligned else 0)
        while first < end:
            size_bytes = min(room, end - first)
            bursts.append((size_bytes, -(-(first + size_bytes) // word) - first // word))
            first += size_bytes
            room = rules.burst_bytes
    return bursts


def run_command(
    bursts: Sequence[tuple[int, int]],
    state: EngineState,
    rules: BurstRules,
    link: Link,
    *,
    to_l1: bool,
    pace: Pace | None = None,
) -> tuple[int, EngineState]:
    """(cycle in which the last byte has arrived, state left behind) for a command that may start at cycle 0.

    Read: one request per cycle while fewer than `outstanding` bursts are under way; data comes
    `latency_cycles` later over the link and moves into L1 at `words_per_cycle`. Without a gap words of
    neighbouring bursts share a cycle; with one the engine is idle for `read_gap_cycles` behind every burst,
    and behind the last one until it reports the end. An isolated read of w words hence ends
    `first_beat_cycles` - 1 + ceil(w / words per cycle) + gap after its request. Write: bursts are gathered
    from L1 one at a time with `write_gap_cycles` between them. With `pace` L1 is slower than its ports,
    because cores are in the way: in the mean over many bursts, so that parts of a cycle add up from burst to
    burst. Without it a burst takes whole beats.

    Source: mchan_v7_impl.cpp:791-1080 of gvsoc-pulp (read), confirmed by cycles measured on it
    (`tests/arch/blocks/test_dma.py` has the rows); gaps by rows measured on RTL
    (`tests/arch/blocks/test_dma_rtl.py`); `pace` by those of `tests/arch/blocks/test_overlap.py`.
    """
    engine = _read if to_l1 else _write
    return engine(bursts, state, rules, link, pace or (rules.words_per_cycle, 1))


def _read(
    bursts: Sequence[tuple[int, int]], state: EngineState, rules: BurstRules, link: Link, pace: Pace
) -> tuple[int, EngineState]:
    request, next_word, link_free, _, issued, _ = state
    cut = issued
    # Positions of words are counted in steps, `steps` to a cycle; a word takes `slot` of them.
    steps, slot = pace
    word = -(-next_word * steps // rules.words_per_cycle)
    flight = list(state.in_flight)
    outstanding, first_beat_cycles = rules.outstanding, rules.first_beat_cycles
    words_per_cycle = rules.words_per_cycle
    latency_cycles, occupancy_cycles = link.latency_cycles, link.occupancy_cycles
    gap_cycles, short_bytes, short_gap_cycles = (
        rules.read_gap_cycles,
        rules.read_short_bytes,
        rules.read_short_gap_cycles,
    )
    end = 0
    for size_bytes, words in bursts:
        # Comparisons in place of max(): this loop runs for every burst of a program.
        if len(flight) >= outstanding and flight[-outstanding] > request:
            request = flight[-outstanding]
        cut, issued = issued, request
        response = request + latency_cycles
        if link_free > response:  # noqa: PLR1730
            response = link_free
        link_free = response + occupancy_cycles[size_bytes]
        there = (response + first_beat_cycles) * steps
        length = words * slot
        beats = -(-words // words_per_cycle) * steps
        if gap_cycles and beats > length:
            length = beats
        word = (there if there > word else word) + length
        last = (word - 1) // steps
        # A link slower than the L1 ports delivers the last word of the burst in its last beat.
        beat = link_free - 1 + first_beat_cycles
        if beat > last:
            last = beat
            word = last * steps + 1
        if gap_cycles:
            gap = short_gap_cycles if size_bytes <= short_bytes else gap_cycles
            last += gap
            word += gap * steps
        flight.append(last)
        request += 1
        end = last
    word = -(-word * rules.words_per_cycle // steps)
    return end, EngineState(request, word, link_free, tuple(flight[-rules.outstanding :]), issued, cut)


def _write(
    bursts: Sequence[tuple[int, int]], state: EngineState, rules: BurstRules, link: Link, pace: Pace
) -> tuple[int, EngineState]:
    steps, slot = pace
    gather, _, link_free, _, issued, _ = state
    cut = issued
    flight = list(state.in_flight)
    end = 0
    # Parts of a cycle that the bursts so far took.
    over = 0
    for size_bytes, words in bursts:
        if len(flight) >= rules.outstanding:
            gather = max(gather, flight[-rules.outstanding])
        cut, issued = issued, gather
        first = gather + rules.first_beat_cycles
        length = max(words * slot, -(-words // rules.words_per_cycle) * steps) + over
        taken, over = divmod(length, steps)
        last = first + taken - 1
        occupied = link.occupancy_cycles[size_bytes]
        # The link carries the burst while it is gathered, but not faster than one burst after the other.
        link_free = max(max(link_free, first) + occupied, last + 1)
        end = max(last, link_free - 1) + link.latency_cycles
        flight.append(end)
        short = size_bytes <= rules.write_short_bytes
        gap_cycles = rules.write_short_gap_cycles if short else rules.write_gap_cycles
        gather = last + 1 + gap_cycles - rules.first_beat_cycles
    if over:
        gather, end = gather + 1, end + 1
    return end, EngineState(gather, 0, link_free, tuple(flight[-rules.outstanding :]), issued, cut)
