# SPDX-License-Identifier: Apache-2.0
"""Figures of a run, counted from its slices: per core, per op (layer and step), and in total.

Attribution rule. The master is the core with the lowest number. Every cycle from its first to its last slice
that names an op belongs to the op named by its slice at that cycle; a slice in between that names no op
belongs to the op before it. What is left belongs to no op: the hand-over before the first op and after the
last one, and `offload` slices. The cycle counts on all cores, so that an op has exactly cycles x cores
core-cycles, and the cycles of all ops plus the hand-over are the makespan. Bytes, tiles and instructions go
to the op their own slice names.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from traces.causes import BUSY, CAUSES, Waits, causes_of
from traces.errors import TraceError
from traces.events import COMPUTE, STALLS, TRANSFER, Slice
from traces.recorder import tracks_of, transfer_direction
from traces.totals import summed
from traces.tracks import CORE, DMA, INWARD, OUTWARD, UDMA, op_label, track_name

_STALLS = frozenset(STALLS)
Stalls = tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class CoreMetrics:
    """One core (or all of them): busy cycles, cycles lost per stall word and by cause, instructions."""

    name: str
    busy_cycles: int
    stalls: tuple[tuple[str, int], ...]
    instructions: int
    causes: Mapping[str, int] = field(default_factory=dict)

    @property
    def stall_cycles(self) -> int:
        """All cycles in which nothing was issued."""
        return sum(cycles for _, cycles in self.stalls)


@dataclass(frozen=True, slots=True)
class OpMetrics:
    """One op (layer and step): wall cycles, what the cores did in them, bytes moved to and from L1.

    `name` is ``layer.step``, as `trainlib.ir.graph.Op.name`, whether or not the slices' op carries its step.
    `start_cycles` and `end_cycles` are the master's first and last activity for it. `stalls` holds
    core-cycles: `busy_cycles` + all stalls = `core_cycles` = `cycles` x cores. So does `causes`
    (`traces.causes`), which holds the busy cycles as well.
    """

    name: str
    step: str
    start_cycles: int
    end_cycles: int
    cycles: int
    core_cycles: int
    busy_cycles: int
    stalls: tuple[tuple[str, int], ...]
    bytes_in: int
    bytes_out: int
    tiles: int
    instructions: int
    causes: Mapping[str, int] = field(default_factory=dict)

    @property
    def layer(self) -> str:
        """Name of the layer: `name` without its step."""
        return self.name.removesuffix(f".{self.step}")

    def as_dict(self) -> dict[str, object]:
        """The measured part of an entry of `ops` in ``run --json``; `stalls` in core-cycles."""
        return {
            "name": self.name,
            "step": self.step,
            "tiles": self.tiles,
            "cycles": self.cycles,
            "instructions": self.instructions,
            "bytes_in": self.bytes_in,
            "bytes_out": self.bytes_out,
            "stalls": dict(self.stalls),
        }


@dataclass(frozen=True, slots=True)
class MasterTime:
    """Cycles of the master's slices of one kind and kernel or buffer (`Slice.kind`, `Work.what`)."""

    kind: str
    what: str
    cycles: int
    slices: int


@dataclass(frozen=True, slots=True)
class Metrics:
    """All figures of a run. `master` has every cycle of the core with the lowest number.

    `offload_cycles` belong to no op: the hand-over from and back to the fabric controller. `utilisation` is
    busy / makespan per core, and the share of the makespan with a transfer under way for `dma`.
    """

    makespan_cycles: int
    offload_cycles: int
    master: tuple[MasterTime, ...]
    cores: tuple[CoreMetrics, ...]
    total: CoreMetrics
    ops: tuple[OpMetrics, ...]
    bytes_in: int
    bytes_out: int
    utilisation: Mapping[str, float]


def measure(slices: Iterable[Slice], makespan_cycles: int | None = None) -> Metrics:
    """Count everything; the makespan is the end of the last core slice when not given.

    Raises TraceError for a slice whose inner stalls exceed its duration. `check_tracks` checks the rest.
    """
    tracks = tracks_of(slices)
    names = [track_name(track) for track in tracks]
    on_cores = [name for name in names if name.family == CORE]
    transfers, off_chip = (
        [
            event
            for name in names
            if name.family == kind
            for event in tracks[name.path]
            if event.kind == TRANSFER
        ]
        for kind in (DMA, UDMA)
    )
    if makespan_cycles is None:
        ends_cycles = (event.end_cycles for name in on_cores for event in tracks[name.path])
        makespan_cycles = max(ends_cycles, default=0)

    master = tracks[on_cores[0].path] if on_cores else ()
    owned = _owners(master)
    waits = Waits(master, _owner_names(master, owned), (*transfers, *off_chip))
    accounts = _Accounts(owned)
    of_cores = []
    for name in on_cores:
        # One core after the other, so that only its slices are there at a time.
        run = tracks[name.path]
        of_cores.append(_core_metrics(f"core{name.index}", run, waits.count(run)))
        accounts.add_core(run)
    cores = tuple(of_cores)
    ops = accounts.metrics(transfers, len(cores), waits)
    span_cycles = max(makespan_cycles, 1)
    utilisation = {core.name: core.busy_cycles / span_cycles for core in cores}
    utilisation["dma"] = _covered_cycles(transfers, makespan_cycles) / span_cycles
    return Metrics(
        makespan_cycles=makespan_cycles,
        master=_master_times(master),
        offload_cycles=makespan_cycles - sum(op.cycles for op in ops),
        cores=cores,
        total=CoreMetrics(
            "total",
            sum(core.busy_cycles for core in cores),
            _in_order(summed(stall for core in cores for stall in core.stalls)),
            sum(core.instructions for core in cores),
            {cause: sum(core.causes[cause] for core in cores) for cause in CAUSES},
        ),
        ops=ops,
        bytes_in=sum(event.bytes for event in transfers if transfer_direction(event) == INWARD),
        bytes_out=sum(event.bytes for event in transfers if transfer_direction(event) == OUTWARD),
        utilisation=utilisation,
    )


def check_tracks(slices: Iterable[Slice], makespan_cycles: int) -> None:
    """Raise TraceError unless no track has overlapping slices and busy + stalls = makespan on every core."""
    accounted: dict[str, int] = {}
    cycles_of: dict[tuple[str, Stalls], int] = {}
    for name, run in tracks_of(slices).items():
        check_overlap(run)
        if track_name(name).family == CORE:
            accounted[name] = _accounted(run, makespan_cycles, cycles_of)
    for track, cycles in accounted.items():
        if cycles != makespan_cycles:
            raise TraceError(
                f"busy + stalls = {cycles} cycles, but the makespan is {makespan_cycles}", where=track
            )


def _accounted(run: Iterable[Slice], makespan_cycles: int, known: dict[tuple[str, Stalls], int]) -> int:
    """Cycles of all slices of a core; `known` are those lost inside, by what was found right before."""
    accounted_cycles = 0
    for event in run:
        track, start_cycles, end_cycles, kind, _, stalls, _, _ = event
        inner_cycles = known.get((kind, stalls))
        if inner_cycles is None:
            _check_words(event)
            inner_cycles = known[kind, stalls] = sum(cycles for _, cycles in stalls) if kind == COMPUTE else 0
        if end_cycles > makespan_cycles:
            raise TraceError(
                f"{kind} ends at cycle {end_cycles}, after the makespan {makespan_cycles}", where=track
            )
        if end_cycles - start_cycles < inner_cycles:
            slice_parts(event)  # says what is wrong
        accounted_cycles += end_cycles - start_cycles
    return accounted_cycles


def check_overlap(slices: Sequence[Slice]) -> None:
    """Raise TraceError if two slices of one track overlap; `slices` in the order of `sorted_slices`."""
    for previous, event in itertools.pairwise(slices):
        _check_overlap(previous, event)


def slice_parts(event: Slice) -> tuple[tuple[str, int], ...]:
    """Cycles of a slice on a core by word: busy and inner stalls of a compute slice, or its stall word."""
    if event.kind != COMPUTE:
        return ((event.kind, event.duration_cycles),)
    busy_cycles = event.busy_cycles
    if busy_cycles < 0:
        raise TraceError(
            f"compute slice at cycle {event.start_cycles} lasts {event.duration_cycles} cycles, "
            f"its stalls {event.duration_cycles - busy_cycles}",
            where=event.track,
        )
    return ((BUSY, busy_cycles), *event.stalls)


def _check_overlap(previous: Slice | None, event: Slice) -> None:
    start_cycles, end_cycles = event[1], event[2]  # by number, which is faster: there are very many
    if end_cycles < start_cycles:
        raise TraceError(f"slice at cycle {event.start_cycles} ends at {event.end_cycles}", where=event.track)
    if previous is not None and start_cycles < previous[2] and previous[0] == event[0]:
        raise TraceError(
            f"{event.kind} starts at cycle {event.start_cycles} while {previous.kind} lasts until "
            f"{previous.end_cycles}",
            where=event.track,
        )


def _check_words(event: Slice) -> None:
    words = {word for word, _ in event.stalls} if event.kind == COMPUTE else {event.kind}
    if not words <= _STALLS:
        unknown = sorted(words - _STALLS)
        raise TraceError(f"{unknown[0]!r} is not a word for lost time", where=event.track)


class _Parts:
    """Running sums by word of slices on cores; compute slices of equal stalls are shared out together."""

    __slots__ = ("_alike", "_words")

    def __init__(self) -> None:
        self._words: dict[str, int] = {}
        self._alike: dict[Stalls, list[int]] = {}
        """Of compute slices by their stalls: cycles of these, slices, cycles of the slices."""

    def add(self, event: Slice) -> None:
        """A whole slice. Raises TraceError if its inner stalls exceed its duration."""
        _, start_cycles, end_cycles, kind, _, stalls, _, _ = event
        if kind != COMPUTE:
            self._words[kind] = self._words.get(kind, 0) + end_cycles - start_cycles
            return
        alike = self._alike.get(stalls)
        if alike is None:
            alike = self._alike[stalls] = [sum(cycles for _, cycles in stalls), 0, 0]
        if end_cycles - start_cycles < alike[0]:
            slice_parts(event)  # says what is wrong
        alike[1] += 1
        alike[2] += end_cycles - start_cycles

    def add_parts(self, parts: Iterable[tuple[str, int]], times: int = 1) -> None:
        """So many times these cycles by word."""
        for word, cycles in parts:
            self._words[word] = self._words.get(word, 0) + times * cycles

    def sums(self) -> dict[str, int]:
        """All there is so far."""
        for stalls, (inner_cycles, slices, cycles) in self._alike.items():
            self.add_parts(((BUSY, cycles - slices * inner_cycles),))
            self.add_parts(stalls, slices)
        self._alike = {}
        return self._words


def _core_metrics(name: str, run: Iterable[Slice], waits: Mapping[str, int]) -> CoreMetrics:
    parts = _Parts()
    instructions = 0
    for event in run:
        parts.add(event)
        if event[3] == COMPUTE:
            instructions += event[7]
    cycles = parts.sums()
    causes = causes_of(cycles, waits)
    return CoreMetrics(name, cycles.pop(BUSY, 0), _in_order(cycles), instructions, causes)


def _master_times(master: Iterable[Slice]) -> tuple[MasterTime, ...]:
    """In order of kind and name."""
    times: dict[tuple[str, str], list[int]] = {}
    for _, start_cycles, end_cycles, kind, work, *_ in master:
        account = times.setdefault((kind, work.what), [0, 0])
        account[0] += end_cycles - start_cycles
        account[1] += 1
    return tuple(MasterTime(*key, *account) for key, account in sorted(times.items()))


@dataclass(frozen=True, slots=True)
class _Owned:
    """Cycles [start, end) of the makespan that belong to `op`."""

    start_cycles: int
    end_cycles: int
    op: str
    step: str


def _owners(master: Sequence[Slice]) -> list[_Owned]:
    """Apply the attribution rule to the master's slices; in order of time, cycles of no op left out."""
    named = [index for index, event in enumerate(master) if event.work.op]
    if not named:
        return []
    owned: list[_Owned] = []
    current = master[named[0]].work
    time_cycles = master[named[0]].start_cycles

    def own(until_cycles: int) -> None:
        nonlocal time_cycles
        if until_cycles > time_cycles:
            label = op_label(current.op, current.step)
            start_cycles = time_cycles
            if owned and owned[-1].end_cycles == start_cycles and owned[-1].op == label:
                start_cycles = owned.pop().start_cycles
            owned.append(_Owned(start_cycles, until_cycles, label, current.step))
            time_cycles = until_cycles

    for event in master[named[0] : named[-1] + 1]:
        own(event.start_cycles)
        if event.kind == "offload":
            time_cycles = event.end_cycles
            continue
        current = event.work if event.work.op else current
        own(event.end_cycles)
    return owned


def _owner_names(master: Sequence[Slice], owned: Sequence[_Owned]) -> list[str]:
    """By slice of the master the op it belongs to, "" for none; owners change where slices end."""
    names, number = [], 0
    for event in master:
        while number < len(owned) and owned[number].end_cycles <= event.start_cycles:
            number += 1
        is_owned = number < len(owned) and owned[number].start_cycles <= event.start_cycles
        names.append(owned[number].op if is_owned else "")
    return names


@dataclass(slots=True)
class _Account:
    """Running sums of one op."""

    step: str
    start_cycles: int = -1
    end_cycles: int = 0
    cycles: int = 0
    parts: _Parts = field(default_factory=_Parts)
    bytes_in: int = 0
    bytes_out: int = 0
    tiles: set[int] = field(default_factory=set)
    instructions: int = 0


class _Accounts:
    """The accounts of all ops: cores are added one after the other, the slices of each in order."""

    def __init__(self, owned: Sequence[_Owned]) -> None:
        self._owned = owned
        self._accounts: dict[str, _Account] = {}
        for span in owned:
            account = self._accounts.setdefault(span.op, _Account(span.step, span.start_cycles))
            account.cycles += span.end_cycles - span.start_cycles
            account.end_cycles = span.end_cycles
        self._by_label: dict[tuple[str, str], _Account | None] = {("", ""): None}

    def _own(self, event: Slice) -> _Account | None:
        by_label, op, step = self._by_label, event.work.op, event.work.step
        if (op, step) not in by_label:
            by_label[op, step] = self._accounts.setdefault(op_label(op, step), _Account(step)) if op else None
        return by_label[op, step]

    def add_core(self, run: Sequence[Slice]) -> None:
        """Add what a core did."""
        for span, event, parts in _cut(run, self._owned):
            if parts is None:
                self._accounts[span.op].parts.add(event)
            else:
                self._accounts[span.op].parts.add_parts(parts)
        for event in run:
            account = self._own(event) if event[3] == COMPUTE else None
            if account:
                account.instructions += event[7]
                account.tiles.add(event[4].tile)

    def metrics(self, transfers: Iterable[Slice], cores: int, waits: Waits) -> tuple[OpMetrics, ...]:
        """What all ops came to, after all `cores`, with what was moved for them."""
        for event in transfers:
            account_of_event = self._own(event)
            direction = transfer_direction(event)
            if account_of_event and direction == INWARD:
                account_of_event.bytes_in += event.bytes
            elif account_of_event and direction == OUTWARD:
                account_of_event.bytes_out += event.bytes
        return tuple(
            OpMetrics(
                name=name,
                step=account.step,
                start_cycles=max(account.start_cycles, 0),
                end_cycles=account.end_cycles,
                cycles=account.cycles,
                core_cycles=account.cycles * cores,
                busy_cycles=(sums := account.parts.sums()).get(BUSY, 0),
                stalls=_in_order({word: cycles for word, cycles in sums.items() if word != BUSY}),
                bytes_in=account.bytes_in,
                bytes_out=account.bytes_out,
                tiles=len(account.tiles - {-1}),
                instructions=account.instructions,
                causes=causes_of(sums, waits.by_op.get(name, {})),
            )
            for name, account in self._accounts.items()
        )


def _cut(
    run: Sequence[Slice], owned: Sequence[_Owned]
) -> Iterator[tuple[_Owned, Slice, Sequence[tuple[str, int]] | None]]:
    """Cut a core's slices where the owner changes; inner stalls are shared out in whole cycles.

    Gives the owner, the slice, and of what is the owner's the cycles by word; None of a slice that is all.
    """
    first = 0
    for event in run:
        start_cycles, end_cycles = event[1], event[2]
        while first < len(owned) and owned[first].end_cycles <= start_cycles:
            first += 1
        span = owned[first] if first < len(owned) else None
        if span and span.start_cycles <= start_cycles < end_cycles <= span.end_cycles:
            yield span, event, None  # by far the most: nothing to cut
            continue
        left = slice_parts(event)
        at = first
        while at < len(owned) and owned[at].start_cycles < event.end_cycles:
            span = owned[at]
            cycles = min(span.end_cycles, event.end_cycles) - max(span.start_cycles, event.start_cycles)
            if cycles == event.duration_cycles:
                yield span, event, left
            else:
                taken = share_out(cycles, [count for _, count in left])
                yield span, event, [(word, part) for (word, _), part in zip(left, taken, strict=True)]
                left = tuple((word, n - part) for (word, n), part in zip(left, taken, strict=True))
            at += 1


def share_out(cycles: int, weights: Sequence[int]) -> list[int]:
    """Split `cycles` in proportion to `weights` in integers (largest remainders first); sums are exact."""
    whole = sum(weights)
    if whole == 0:
        return [0] * len(weights)
    parts = [cycles * weight // whole for weight in weights]
    by_remainder = sorted(range(len(weights)), key=lambda i: (-(cycles * weights[i] % whole), i))
    for index in by_remainder[: cycles - sum(parts)]:
        parts[index] += 1
    return parts


def _covered_cycles(transfers: Iterable[Slice], makespan_cycles: int) -> int:
    """Cycles of the makespan in which at least one transfer is under way (the last may outlive the run)."""
    covered = end_cycles = 0
    for start, end in sorted((event.start_cycles, event.end_cycles) for event in transfers):
        covered += max(min(end, makespan_cycles) - max(start, end_cycles), 0)
        end_cycles = max(end_cycles, end)
    return covered


def _in_order(cycles: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    """Stall words in the order of `STALLS`, zeros left out, unknown words last."""
    in_order = [(word, cycles[word]) for word in STALLS if cycles.get(word)]
    return (
        *in_order,
        *sorted((word, count) for word, count in cycles.items() if word not in _STALLS and count),
    )
