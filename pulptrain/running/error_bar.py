# SPDX-License-Identifier: Apache-2.0
"""How far the cycles of a run may be off: the object `error` of a summary.

The cycles of the time line (`scheduler.time_line`) go to classes of measured rows, forks and joins with the
kernels, and `scheduler.validation.error_bars` combines what these say. Under `gvsoc` a kernel is held against
rows of its codegen. Under `rtl` whole programs were measured op by op: kernels in C that are not their nests,
and code that comes from L2 in every iteration. An op is held against these, whatever compiled it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from arch.pricing.code_caches import WARM
from arch.spec.timing import SocTiming
from configs.grades import MEASURED
from configs.parameters import GVSOC, RTL
from configs.values import replace
from pulptrain.inputs.settings import Settings, code_start
from scheduler.options import WHOLE_OPS, parse_buffers
from scheduler.time_line import DMA, TEAM, TimeLine
from scheduler.validation.error_bars import (
    ANY,
    BESIDE,
    OPS,
    ErrorTable,
    Key,
    combined,
    kernel_key,
    machine_key,
    op_key,
    shipped_table,
    team_on,
)
from trainlib.kernels.evidence import nest_evidence

MACHINES: Mapping[str, tuple[str, ...]] = {
    GVSOC: ("pulp-open", "pulp-open-private"),
    RTL: ("pulp-open", "pulp-open-private", "pulp-cluster-rtl", "pulp-cluster-2025"),
}
"""Timing profile -> SoCs with the cluster its rows were taken on, whatever its team, FPUs and memories."""

MACHINE = "machine"
"""The cause of an error: rows of a machine have all causes in one."""

Calls = Mapping[str, int]
"""How often each kernel of a time line was called, and as `DMA` the waits for transfers."""


def error_of(
    line: TimeLine, calls: Calls, settings: Settings, timing: SocTiming, ops: Iterable[float]
) -> dict[str, Any]:
    """The object `error`; `ops` are the cycles of every op. Raises `ConfigError`.

    The percentages are of the cycles that are compared, null with a `note` where none are.
    """
    table = shipped_table()
    note = _unlike(settings, timing)
    parts = _parts(line, calls, settings, timing, table)
    compared, left = _sorted_out(parts, table, none=note is not None)
    if timing.profile == RTL:
        compared = _by_ops(sum(compared.values()), ops, settings, timing, table)
    whole_cycles = max(sum(cycles for _, _, cycles in line), 1)
    left_share = sum(left.values()) / whole_cycles
    ordered = sorted(compared.items(), key=lambda item: (-item[1], item[0]))
    shares = [(cycles / whole_cycles / (1 - left_share), name) for name, cycles in ordered]
    bar = combined([(share, name, table.classes[name]) for share, name in shares]) if compared else None
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
                "class": name,
                "cause": MACHINE,
                "share": cycles / whole_cycles,
                "rows": table.classes[name].count,
                "bias_percent": 100 * table.classes[name].bias,
                "spread_percent": 100 * table.classes[name].spread,
            }
            for name, cycles in ordered
        ],
        "note": note if compared or note else f"no kernel of codegen {settings.codegen} was measured",
    }


def op_bars(ops: Iterable[Mapping[str, Any]], settings: Settings, timing: SocTiming) -> list[float | None]:
    """By op of a summary, within how many per cent 95 % of the measured cycles lie; None if nothing compares.

    Under `rtl` an op is held against ops of measured programs, under `gvsoc` against rows of its kernel.
    """
    table, team = shipped_table(), team_on(timing)
    bars: list[float | None] = []
    for op in ops if _unlike(settings, timing) is None else ():
        key: Key | None = op_key(timing.profile, team, op["cycles"], warm=code_start(settings) == WARM)
        if timing.profile != RTL:
            nest, tiles = str(op["kernel"]), max(int(op["tiles"]), 1)
            of_kernel = kernel_key(timing.profile, "", settings.codegen, team, op["cycles"], tiles)
            key = _with_family(table, of_kernel, nest) if nest else None
        nearest = table.nearest(key) if key is not None else None
        bars.append(100 * combined([(1.0, *nearest)]).within if nearest is not None else None)
    return bars


def _sorted_out(
    parts: Iterable[tuple[str, float, Key | None]], table: ErrorTable, *, none: bool
) -> tuple[Mapping[str, float], Mapping[str, float]]:
    """The cycles by class, and by name those that lack one, all if `none` compares."""
    compared: dict[str, float] = defaultdict(float)
    left: dict[str, float] = defaultdict(float)
    for name, cycles, key in parts:
        nearest = table.nearest(key) if key is not None and not none else None
        if nearest is None:
            left[name] += cycles
        else:
            compared[nearest[0]] += cycles
    return compared, left


def _by_ops(
    cycles: float, ops: Iterable[float], settings: Settings, timing: SocTiming, table: ErrorTable
) -> Mapping[str, float]:
    """So many cycles of a program by the classes of its ops."""
    compared: dict[str, float] = defaultdict(float)
    team, warm = team_on(timing), code_start(settings) == WARM
    for op_cycles in ops if cycles else ():
        nearest = table.nearest(op_key(timing.profile, team, op_cycles, warm=warm))
        assert nearest is not None, "the shipped table has ops of all sizes"
        compared[nearest[0]] += op_cycles
    whole_cycles = sum(compared.values())
    return {name: cycles * op_cycles / whole_cycles for name, op_cycles in compared.items()}


def _unlike(settings: Settings, timing: SocTiming) -> str | None:
    """Why nothing measured compares with the machine of a run, None if rows were taken on its like."""
    if settings.overrides:
        return "no cycles were measured with the parameters of --set"
    if timing.name not in MACHINES[timing.profile]:
        return f"no cycles were measured on {timing.name} under {timing.profile}"
    return None


def _parts(
    line: TimeLine, calls: Calls, settings: Settings, timing: SocTiming, table: ErrorTable
) -> Iterator[tuple[str, float, Key | None]]:
    """The parts of a time line with their cycles, and the class of each that has one."""
    forks = sum(calls.get(name, 0) for is_kernel, name, _ in line if is_kernel)
    team_cycles = sum(cycles for _, name, cycles in line if name == TEAM)
    team, profile = team_on(timing), timing.profile
    transfers = DMA if parse_buffers(settings.buffering)[0] in (WHOLE_OPS, 1) else BESIDE
    for is_kernel, name, cycles in line:
        times = calls.get(name, 0)
        if is_kernel:
            whole_cycles = cycles + team_cycles * times / max(forks, 1)
            key = kernel_key(profile, "", settings.codegen, team, whole_cycles, times)
            yield name, whole_cycles, _with_family(table, key, name)
        elif name == DMA:
            yield name, cycles, machine_key(profile, transfers, cycles, times)
        elif name != TEAM or not forks:
            yield name, cycles, machine_key(profile, name, cycles, times)


def _with_family(table: ErrorTable, key: Key, nest: str) -> Key | None:
    """The class of a kernel, None if it has no rows; under `RTL` any that has is an op of a program.

    `key` has all of it but the family.
    """
    if key.profile == RTL and table.in_ops(nest):
        return replace(key, family=OPS, codegen=ANY)
    evidence = nest_evidence(key.codegen, nest)
    if evidence.label != MEASURED:
        return None
    families = (table.family(profile, evidence.rows_of, nest) for profile in (key.profile, GVSOC))
    family = next((family for family in families if family is not None), None)
    if family is None:
        return None
    if key.profile == RTL:
        return replace(key, family=OPS, codegen=ANY)
    return replace(key, family=family, codegen=evidence.rows_of)
