# SPDX-License-Identifier: Apache-2.0
"""The critical path of a run from its trace and its summary, of a result folder as of a run just made."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from arch.spec.soc_config import load_soc
from arch.spec.timing import SocTiming
from configs.errors import ConfigError, InputError
from traces.critical.activities import Lags, WaitLags, graph_of
from traces.critical.path import CriticalPath, critical_path
from traces.csv_file import AGAIN
from traces.events import Slice, TraceError
from traces.metrics import check_tracks
from traces.recorder import sorted_slices
from traces.tracks import CORE, track_name


def path_of(slices: Iterable[Slice], summary: Mapping[str, Any], where: str = "trace") -> CriticalPath:
    """The path of a run, whose length is its makespan.

    Raises `InputError` for a trace that does not account for every cycle of every core: anybody may have
    changed it.
    """
    ordered = sorted_slices(slices)
    cycles = summary.get("trace_cycles", summary["cycles"])
    cores = {event.track for event in ordered if track_name(event.track).family == CORE}
    try:
        check_tracks(ordered, cycles)
        if len(cores) != summary.get("cores", len(cores)):
            raise TraceError(
                f"the trace has {len(cores)} cores, but the summary of the run has {summary['cores']}"
            )
        path = critical_path(graph_of(ordered, lags_of(_machine(summary))))
        if path.cycles != cycles:
            raise TraceError(
                f"the critical path must cover all {cycles:,} cycles, but covers {path.cycles:,}"
            )
    except TraceError as error:
        raise InputError(error.message, where=where, cure=AGAIN) from error
    return path


def _machine(summary: Mapping[str, Any]) -> SocTiming:
    """The SoC by its name, or the usual one: where its lags differ the trace goes before."""
    try:
        return load_soc(str(summary["soc"]), str(summary.get("timing")))
    except ConfigError:
        return load_soc()


def lags_of(timing: SocTiming) -> Lags:
    """What takes time on a machine without a slice of its own."""
    dma, l3 = timing.dma, timing.l3
    return Lags(
        dma.program_next_cycles,
        dma.command_latency_cycles,
        l3.program_cycles,
        l3.queued_transfers,
        WaitLags(
            dma.wait_check_cycles,
            max(dma.wait_done_cycles, dma.wait_check_cycles),
            dma.wait_sleep_min_cycles,
            dma.wait_wake_cycles,
        ),
        WaitLags(0, timing.event_unit.event_load_cycles, 0, l3.wake_cycles),
    )
