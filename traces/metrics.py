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

from collections import defaultdict
from collections.abc import Iterable, Mapping

from configs.values import Struct
from traces.causes import CAUSES, causes_of
from traces.events import STALLS, TRANSFER, Slice
from traces.master_line import Span
from traces.parts import BUSY
from traces.recorder import Recorder, sorted_records
from traces.tally import Tally, Who, cores_of, directions_of
from traces.totals import summed
from traces.tracks import INWARD, OUTWARD, track_name

_NO_UNKNOWN = {*STALLS, BUSY}


class CoreMetrics(Struct, frozen=True):
    """One core (or all of them): busy cycles, cycles lost per stall word and by cause, instructions."""

    name: str
    busy_cycles: int
    stalls: tuple[tuple[str, int], ...]
    instructions: int
    causes: Mapping[str, int] = {}

    @property
    def stall_cycles(self) -> int:
        """All cycles in which nothing was issued."""
        return sum(cycles for _, cycles in self.stalls)


class OpMetrics(Struct, frozen=True):
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
    causes: Mapping[str, int] = {}

    @property
    def layer(self) -> str:
        """Name of the layer: `name` without its step."""
        return self.name.removesuffix(f".{self.step}")


class MasterTime(Struct, frozen=True):
    """Cycles of the master's slices of one kind and kernel or buffer (`Slice.kind`, `Work.what`)."""

    kind: str
    what: str
    cycles: int
    slices: int


class Metrics(Struct, frozen=True):
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


def measure(slices: Iterable[Slice] | Recorder, makespan_cycles: int | None = None) -> Metrics:
    """Count everything; the makespan is the end of the last core slice when not given.

    Raises TraceError for a slice whose inner stalls exceed its duration. `check_tracks` checks the rest.
    """
    return metrics_of(_counted(slices), makespan_cycles)


def check_tracks(slices: Iterable[Slice] | Recorder, makespan_cycles: int) -> None:
    """Raise TraceError unless no track has overlapping slices and busy + stalls = makespan on every core."""
    _counted(slices).check(makespan_cycles)


def _counted(slices: Iterable[Slice] | Recorder) -> Tally:
    records = sorted_records(slices)
    tracks: set[str] = set()
    for record in records:
        tracks.update([record[0]] if isinstance(record, Slice) else record.tracks)
    transfers = (item for item in records if isinstance(item, Slice) and item.kind == TRANSFER)
    tally = Tally(cores_of(tracks), directions_of(transfers))
    tally.add(records)
    tally.close()
    return tally


def metrics_of(tally: Tally, makespan_cycles: int | None = None) -> Metrics:
    """The figures of what was counted, once it is closed."""
    if makespan_cycles is None:
        makespan_cycles = max((tally.last_cycles[core] for core in tally.cores), default=0)
    cores = _core_metrics(tally)
    ops = _op_metrics(tally, len(cores))
    span_cycles = max(makespan_cycles, 1)
    utilisation = {core.name: core.busy_cycles / span_cycles for core in cores}
    utilisation["dma"] = tally.covered_cycles(makespan_cycles) / span_cycles
    moved_bytes = summed((way, size_bytes) for (_, way), size_bytes in tally.moved_bytes.items())
    return Metrics(
        makespan_cycles=makespan_cycles,
        master=tuple(MasterTime(*key, *account) for key, account in sorted(tally.master_times.items())),
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
        bytes_in=moved_bytes.get(INWARD, 0),
        bytes_out=moved_bytes.get(OUTWARD, 0),
        utilisation=utilisation,
    )


def _core_metrics(tally: Tally) -> tuple[CoreMetrics, ...]:
    words, waits = _by_core(tally.cycles), _by_core(tally.waits)
    instructions = summed((track, count) for (_, who), count in tally.issued.items() for track in who)
    return tuple(
        CoreMetrics(
            f"core{track_name(track).index}",
            words[track].get(BUSY, 0),
            _in_order(words[track]),
            instructions.get(track, 0),
            causes_of(words[track], waits[track]),
        )
        for track in tally.cores
    )


def _op_metrics(tally: Tally, cores: int) -> tuple[OpMetrics, ...]:
    """Ops in the order in which cycles come to belong to them, then those to which none do."""
    words, waits = _by_op(tally.cycles), _by_op(tally.waits)
    instructions = summed((op, count * len(who)) for (op, who), count in tally.issued.items())
    moved_bytes = tally.moved_bytes
    steps = {op: span.step for op, span in tally.line.spans.items()}
    for op, step in tally.steps.items():
        steps.setdefault(op, step)
    metrics = []
    for op, step in steps.items():
        span = tally.line.spans.get(op, Span(step, 0, 0))
        metrics.append(
            OpMetrics(
                name=op,
                step=step,
                start_cycles=span.start_cycles,
                end_cycles=span.end_cycles,
                cycles=span.cycles,
                core_cycles=span.cycles * cores,
                busy_cycles=words[op].get(BUSY, 0),
                stalls=_in_order(words[op]),
                bytes_in=moved_bytes.get((op, INWARD), 0),
                bytes_out=moved_bytes.get((op, OUTWARD), 0),
                tiles=len(tally.tiles.get(op, set()) - {-1}),
                instructions=instructions.get(op, 0),
                causes=causes_of(words[op], waits[op]),
            )
        )
    return tuple(metrics)


def _by_core(sums: Mapping[tuple[str, Who, str], int]) -> dict[str, dict[str, int]]:
    by_core: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for (_, who, word), cycles in sums.items():
        for track in who:
            by_core[track][word] += cycles
    return by_core


def _by_op(sums: Mapping[tuple[str, Who, str], int]) -> dict[str, dict[str, int]]:
    by_op: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for (op, who, word), cycles in sums.items():
        by_op[op][word] += len(who) * cycles
    return by_op


def _in_order(cycles: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    """Stall words in the order of `STALLS`, zeros left out, unknown words last."""
    in_order = [(word, cycles[word]) for word in STALLS if cycles.get(word)]
    unknown = [(word, count) for word, count in cycles.items() if word not in _NO_UNKNOWN and count]
    return (*in_order, *sorted(unknown))
