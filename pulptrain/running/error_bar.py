# SPDX-License-Identifier: Apache-2.0
"""How far the cycles of a run may be off: the object `error` of a summary.

The cycles of the time line (`scheduler.time_line`) go to classes of measured rows, forks and joins with the
kernels, and `scheduler.validation.error_bars` combines what these say. Under `gvsoc` a kernel is held against
rows of its codegen. Under `rtl` one that was measured there, hand-written, has rows of its own; a compiled
one has two causes of error: its instructions, from the rows of its codegen under `gvsoc`, and the machine,
from the rows of all kernels of its family under `rtl`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from arch.spec.timing import SocTiming
from configs.grades import MEASURED
from pulptrain.given.settings import Settings
from scheduler.options import WHOLE_OPS, parse_buffers
from scheduler.time_line import DMA, TEAM, TimeLine
from scheduler.validation.error_bars import (
    ANY,
    BESIDE,
    ErrorClass,
    ErrorTable,
    Key,
    combined,
    kernel_key,
    machine_key,
    shipped_table,
    team_on,
)
from trainlib.kernels.evidence import nest_evidence

GVSOC, RTL = "gvsoc", "rtl"

MACHINES: Mapping[str, tuple[str, ...]] = {
    GVSOC: ("pulp-open", "pulp-open-private"),
    RTL: ("pulp-open", "pulp-open-private", "pulp-cluster-rtl", "pulp-cluster-2025"),
}
"""Timing profile -> SoCs with the cluster its rows were taken on, whatever its team, FPUs and memories."""

INSTRUCTIONS, MACHINE = "instructions", "machine"
"""Causes of an error; rows of the same code on the same machine have both, and count as `MACHINE`."""

Calls = Mapping[str, int]
"""How often each kernel of a time line was called, and as `DMA` the waits for transfers."""


def error_of(line: TimeLine, calls: Calls, settings: Settings, timing: SocTiming) -> dict[str, Any]:
    """The object `error`. Raises `ConfigError`.

    The percentages are of the cycles that are compared, null with a `note` where none are.
    """
    table = shipped_table()
    note = _unlike(settings, timing)
    compared, left = _sorted_out(_parts(line, calls, settings, timing, table), table, none=note is not None)
    whole_cycles = max(sum(cycles for _, _, cycles in line), 1)
    left_share = sum(left.values()) / whole_cycles
    ordered = sorted(compared.items(), key=lambda item: (-item[1], item[0]))
    by_cause: dict[str, list[tuple[float, str, ErrorClass]]] = {INSTRUCTIONS: [], MACHINE: []}
    for (cause, text), cycles in ordered:
        by_cause[cause].append((cycles / whole_cycles / (1 - left_share), text, table.classes[text]))
    bar = combined(*by_cause.values()) if compared else None
    return {
        "typical_percent": 100 * bar.typical if bar else None,
        "within_percent": 100 * bar.within if bar else None,
        "no_measurement_share": left_share,
        "no_measurement": [
            {"kernel": name, "share": cycles / whole_cycles}
            for name, cycles in sorted(left.items(), key=lambda item: (-item[1], item[0]))
        ],
        "by_class": [
            {
                "class": text,
                "cause": cause,
                "share": cycles / whole_cycles,
                "rows": table.classes[text].count,
                "bias_percent": 100 * table.classes[text].bias,
                "spread_percent": 100 * table.classes[text].spread,
            }
            for (cause, text), cycles in ordered
        ],
        "note": note if compared or note else f"no kernel of codegen {settings.codegen} was measured",
    }


def _sorted_out(
    parts: Iterable[tuple[str, float, Mapping[str, Key]]], table: ErrorTable, *, none: bool
) -> tuple[Mapping[tuple[str, str], float], Mapping[str, float]]:
    """The cycles by cause and class, and by name those that lack a class, all if `none` compares."""
    compared: dict[tuple[str, str], float] = defaultdict(float)
    left: dict[str, float] = defaultdict(float)
    for name, cycles, keys in parts:
        nearest = [(cause, table.nearest(key)) for cause, key in keys.items()]
        classes = [(cause, item[0]) for cause, item in nearest if item is not None]
        if none or not classes or len(classes) < len(nearest):
            left[name] += cycles
            continue
        for cause_and_class in classes:
            compared[cause_and_class] += cycles
    return compared, left


def _unlike(settings: Settings, timing: SocTiming) -> str | None:
    """Why nothing measured compares with the machine of a run, None if rows were taken on its like."""
    if settings.overrides:
        return "no cycles were measured with the parameters of --set"
    if timing.name not in MACHINES[timing.profile]:
        return f"no cycles were measured on {timing.name} under {timing.profile}"
    return None


def _parts(
    line: TimeLine, calls: Calls, settings: Settings, timing: SocTiming, table: ErrorTable
) -> Iterator[tuple[str, float, Mapping[str, Key]]]:
    """The parts of a time line with their cycles, and what each is held against by cause."""
    forks = sum(calls.get(name, 0) for is_kernel, name, _ in line if is_kernel)
    team_cycles = sum(cycles for _, name, cycles in line if name == TEAM)
    team, profile = team_on(timing), timing.profile
    transfers = DMA if parse_buffers(settings.buffering)[0] in (WHOLE_OPS, 1) else BESIDE
    for is_kernel, name, cycles in line:
        times = calls.get(name, 0)
        if is_kernel:
            whole_cycles = cycles + team_cycles * times / max(forks, 1)
            key = kernel_key(profile, "", settings.codegen, team, whole_cycles, times)
            yield name, whole_cycles, _keys(table, key, name)
        elif name == DMA:
            yield name, cycles, {MACHINE: machine_key(profile, transfers, cycles, times)}
        elif name != TEAM or not forks:
            yield name, cycles, {MACHINE: machine_key(profile, name, cycles, times)}


def _keys(table: ErrorTable, key: Key, nest: str) -> Mapping[str, Key]:
    """The classes of a kernel by cause; `key` has all of them but the family."""
    evidence = nest_evidence(key.codegen, nest)
    key = replace(key, codegen=evidence.rows_of)
    if evidence.label != MEASURED:
        return {}
    if (family := table.family(key.profile, key.codegen, nest)) is not None:
        return {MACHINE: replace(key, family=family)}
    if (family := table.family(GVSOC, key.codegen, nest)) is None:
        return {}
    return {
        INSTRUCTIONS: replace(key, profile=GVSOC, family=family),
        MACHINE: replace(key, family=family, codegen=ANY),
    }
