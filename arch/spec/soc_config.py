# SPDX-License-Identifier: Apache-2.0
"""Turns a parameter tree of `configs` into the `SocTiming` the modules are built from, and checks it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from operator import attrgetter
from pathlib import Path
from typing import Any, get_type_hints

from arch.spec.timing import SocTiming
from configs.errors import ConfigError, Contributor, DoesNotFitError
from configs.parameters import Parameter, ParameterTree, last_set, load_parameters
from configs.suggest import path_suggestion, suggestion
from configs.units import parse_bytes, parse_hz, parse_size
from configs.values import Struct, replace

FPU_MAPPINGS = ("private", "static", "dynamic")
"""How cores reach FPUs: one each, by core id modulo count, or allocated each cycle."""

ARBITRATIONS = ("in_order", "rotating")
"""Who of several requesters of one cycle is served first."""

BANK_ARBITRATIONS = (*ARBITRATIONS, "round_robin")
"""The same at the banks, after all older requests; or in turn, whoever came first."""

CHOICES: Mapping[str, tuple[str, ...]] = {
    "fpu.mapping": FPU_MAPPINGS,
    "fpu.arbitration": ARBITRATIONS,
    "l1.arbitration": BANK_ARBITRATIONS,
}
"""Legal values of the parameters that are words."""

HEADER_FIELDS = ("name", "profile")
"""Fields of `SocTiming` that name the tree and are not parameters."""

MAX_CORES = 16
"""Largest team the team mask, the barriers and the trace tracks are meant for."""

ADDRESS_SPACE_BYTES = 2**32
"""No memory can be larger than what a 32-bit core can address."""

MINIMUM_BY_UNIT: Mapping[str, int] = {
    "cycles": 0,
    "peripheral cycles": 0,
    "count": 1,
    "B": 1,
    "Hz": 1,
    "B/cycle": 1,
}
"""Smallest legal value of a parameter, by its unit."""

MINIMUM_BY_PATH: Mapping[str, int] = {
    # Cycles that an instruction or operation takes in all, its issue included.
    "core.load_cycles": 1,
    "core.mul_cycles": 1,
    "core.mulh_cycles": 1,
    "core.div_cycles": 1,
    "core.hwloop_setup_cycles": 1,
    "core.csr_cycles": 1,
    "fpu.fma_cycles": 1,
    "fpu.latency_cycles": 1,
    "fpu.interval_cycles": 1,
    # 0 stands for no unit: the cores divide in software.
    "fpu.divsqrt_count": 0,
    "fpu.divsqrt_latency_cycles": 1,
    "fpu.divsqrt_interval_cycles": 1,
    "fpu.divsqrt_issue_cycles": 1,
    "l2.core_access_cycles": 1,
    "l2.core_store_more_cycles": 0,
    # 0 stands for a link without limit.
    "l2.link_bytes_per_cycle": 0,
    # 0 stands for code that stays in the cache, and for a core that waits for every line.
    "icache.between_calls_lines": 0,
    "icache.call_lines": 0,
    "icache.fetch_bytes_per_cycle": 0,
    # 0 stands for no L3 at all.
    "l3.size_bytes": 0,
    # 0 stands for no burst that is short.
    "dma.read_short_burst_beats": 0,
    "dma.write_short_burst_beats": 0,
    "l1.master_stack_bytes": 0,
    "l1.worker_stack_bytes": 0,
    # 0 stands for ops that are functions.
    "l1.tables_bytes": 0,
}
"""Smallest legal value where it is not that of the unit."""

SLOWEST_BUS = 0.001
"""Bytes per peripheral cycle; 0 would never end."""

MAXIMUM_BY_PATH: Mapping[str, int] = {
    "dma.burst_bytes": 65_536,
    "l3.burst_bytes": 65_536,
    "icache.line_bytes": 65_536,
    "l1.word_bytes": 65_536,
    # A bank and what else a core asks for is a code of 16 bits in the pricing of teams.
    "l1.banks": 32_768,
}
"""Largest legal value where it is not that of the unit: of bytes there are tables with an entry for each."""

MAXIMUM_BY_UNIT: Mapping[str, int] = {
    "cycles": 100_000,
    "peripheral cycles": 100_000,
    "count": 65_536,
    "B/cycle": 65_536,
    "B/peripheral cycle": 65_536,
    "Hz": 10**12,
}
"""Largest legal value of a parameter, by its unit: beyond any chip, and few enough to be simulated."""

UNIT_BY_ENDING: Mapping[str, str] = {"_bytes": "B", "_cycles": "cycles", "_hz": "Hz"}
"""Units of parameters as their names say them; all other numbers are counts."""

READABLE, TABLES = FORMS = ("readable", "tables")
"""Of a program: a function for each op, or tables that a small loop walks."""

TABLES_BYTES = 2048
"""L1 for tables where the SoC says nothing: of the zoo most ops have room in half of it."""

STACKS = (
    *("l1.size_bytes", "l1.master_stack_bytes", "l1.worker_stack_bytes", "l1.tables_bytes"),
    *("form", "cores"),
)
"""What decides whether L1 holds the stacks and tables."""

POWERS_OF_TWO = frozenset({"l1.banks", "l1.word_bytes", "icache.line_bytes"})
"""Values that select bits of an address."""


def load_soc(
    name_or_path: str | Path = "pulp-open",
    profile: str = "rtl",
    overrides: Mapping[str, str | int | float] | None = None,
) -> SocTiming:
    """Load a SoC by installed name or path of a YAML file, under a timing profile (rtl or gvsoc).

    `overrides` maps dotted parameter paths (``l1.size_bytes``) to values. Raises `ConfigError` with the
    place for unknown, missing or illegal parameters, `DoesNotFitError` when L1 cannot hold the stacks.
    """
    return soc_from_parameters(load_parameters(name_or_path, profile, overrides))


def soc_from_parameters(tree: ParameterTree) -> SocTiming:
    """Build a `SocTiming` from a tree that has exactly its fields; raises like `load_soc`.

    With private FPUs `fpu.count` follows the number of cores, whatever the file says.
    """
    wanted = parameter_types()
    for path, parameter in tree.items():
        if path not in wanted:
            raise ConfigError(
                f"unknown parameter '{path}'", where=parameter.where, cure=path_suggestion(path, wanted)
            )
    for path, kind in wanted.items():
        if path not in tree:
            raise ConfigError(
                f"parameter '{path}' is missing", where=tree.file, cure=f"add '{path}' to the file"
            )
        _check_type(tree[path], kind)
    values = {
        path: float(parameter.value) if wanted[path] is float else parameter.value
        for path, parameter in tree.items()
    }
    if values["fpu.mapping"] == "private":
        values["fpu.count"] = values["cores"]
    for path, parameter in tree.items():
        _check_value(path, values[path], parameter.unit, parameter.where)
    types: Mapping[str, Any] = get_type_hints(SocTiming)
    groups: dict[str, dict[str, Any]] = {}
    fields: dict[str, Any] = {}
    for path, value in values.items():
        group, _, name = path.rpartition(".")
        (groups.setdefault(group, {}) if group else fields)[name] = value
    fields.update({group: types[group](**inner) for group, inner in groups.items()})
    soc = SocTiming(name=tree.name, profile=tree.profile, **fields)
    places = {path: parameter.where for path, parameter in tree.items()}
    _check_relations(soc, places, tree.file)
    check_stacks(soc, last_set(STACKS, places, tree.file))
    return soc


@cache
def parameter_types() -> Mapping[str, type]:
    """Return the dotted path and type of every parameter a `SocTiming` needs, in the order of its fields."""
    types: dict[str, type] = {}
    for name, block in get_type_hints(SocTiming).items():
        if name in HEADER_FIELDS:
            continue
        if issubclass(block, Struct):
            types.update({f"{name}.{inner}": kind for inner, kind in get_type_hints(block).items()})
        else:
            types[name] = block
    return types


def with_values(
    soc: SocTiming, values: Mapping[str, object], where: Mapping[str, str] | None = None
) -> SocTiming:
    """Return `soc` with other values by path, or texts of them.

    A size is bytes or text like ``32KiB``, a flag a bool or ``on``/``off``; ``fpu`` is ``private``,
    ``N-static`` or ``N-dynamic``. `where` says by path what gave a value. Raises `ConfigError` that names it
    for a value out of range, and `DoesNotFitError` when L1 cannot hold the stacks.
    """
    where = where or {}
    for path, value in values.items():
        given = {path: value}
        if path in ("freq", "form"):
            given = (_clocks if path == "freq" else _form)(soc, value, where.get(path, path))
        for each, part in given.items():
            for name, read in _read(each, part, where.get(path, path)).items():
                soc = _replaced(soc, name, read)
    if soc.fpu.mapping == "private":
        soc = _replaced(soc, "fpu.count", soc.cores)
    places = {path: where.get(path, path) for path in values}
    _check_relations(soc, places)
    check_stacks(soc, last_set(STACKS, places))
    return soc


def _clocks(soc: SocTiming, value: object, where: str) -> dict[str, object]:
    """The on-chip clocks of a cluster at `value`, in the ratio they have."""
    cluster_hz = parse_hz(str(value), where=where)
    soc_hz = round(cluster_hz * soc.clock.soc_hz / soc.clock.cluster_hz)
    return {"clock.cluster_hz": cluster_hz, "clock.soc_hz": soc_hz}


def _replaced(soc: SocTiming, path: str, value: object) -> SocTiming:
    group, _, name = path.rpartition(".")
    changes: dict[str, Any] = {name: value}
    return replace(soc, **({group: replace(getattr(soc, group), **changes)} if group else changes))


def _form(soc: SocTiming, value: object, where: str) -> dict[str, object]:
    """What the form of a program takes of L1."""
    if value not in FORMS:
        raise ConfigError(f"unknown form {value!r}", where=where, cure=suggestion(str(value), FORMS))
    return {"l1.tables_bytes": (soc.l1.tables_bytes or TABLES_BYTES) if value == TABLES else 0}


def _read(path: str, value: Any, where: str) -> dict[str, object]:
    """The values by path that `value` stands for. Raises `ConfigError` at `where`."""
    if path == "fpu":
        return _parse_fpus(value, where)
    if parameter_types()[path] is bool:
        return {path: _parse_switch(value, where)}
    unit = next((unit for ending, unit in UNIT_BY_ENDING.items() if path.endswith(ending)), "count")
    parse = parse_size if path.endswith(".size_bytes") else parse_bytes
    read = parse(value, where=where) if unit == "B" else value
    _check_value(path, read, unit, where)
    return {path: read}


def _check_relations(soc: SocTiming, places: Mapping[str, str], file: str = "") -> None:
    """Raise `ConfigError` for values that are legal alone and not together.

    It is raised where the last of them was set: by an option, in `file`, or in one of its bases.
    """

    def refused(path: str, others: tuple[str, ...], problem: str, cure: str) -> ConfigError:
        message = f"{path} = {attrgetter(path)(soc)} {problem}"
        return ConfigError(message, where=last_set((path, *others), places, file), cure=cure)

    for cache_name in ("private", "shared"):
        of_bytes, of_ways = f"icache.{cache_name}_bytes", f"icache.{cache_name}_ways"
        size_bytes, ways = attrgetter(of_bytes)(soc), attrgetter(of_ways)(soc)
        way_bytes = soc.icache.line_bytes * ways
        sets, rest = divmod(size_bytes, way_bytes)
        if rest or not sets or sets & (sets - 1):
            below = way_bytes << max(0, sets.bit_length() - 1)
            sizes = f"{below} or {2 * below}" if sets else f"{way_bytes}"
            raise refused(
                of_bytes,
                (of_ways, "icache.line_bytes"),
                f"must be {soc.icache.line_bytes} (icache.line_bytes) x {ways} ({of_ways}) x a power of two",
                f"use {of_bytes} of {sizes}, or {'another' if sets else 'a smaller'} {of_ways}"
                + ("" if sets else " and icache.line_bytes"),
            )
    if soc.l1.tables_bytes and not soc.l2.holds_code:
        raise refused(
            "l1.tables_bytes",
            ("l2.holds_code", "form"),
            "must be 0: the tables of the program lie in flash, which the DMA of this chip cannot read",
            f"use --form {READABLE}",
        )
    if soc.l1.tables_bytes and soc.dma.transfer_ids < 2:
        raise refused(
            "dma.transfer_ids",
            ("l1.tables_bytes", "form"),
            f"must be 2 or more with --form {TABLES}: one ID for tables, one for all other transfers",
            f"use --form {READABLE}",
        )
    if soc.dma.l1_bytes_per_cycle % soc.l1.word_bytes:
        raise refused(
            "dma.l1_bytes_per_cycle",
            ("l1.word_bytes",),
            f"must be a multiple of l1.word_bytes = {soc.l1.word_bytes}: the ports move whole words",
            f"use a multiple of {soc.l1.word_bytes} B/cycle",
        )


def check_stacks(soc: SocTiming, where: str | None = None) -> None:
    """Raise `DoesNotFitError` unless L1 holds the stacks of all cores and one word of data."""
    if soc.l1_usable_bytes >= soc.l1.word_bytes:
        return
    needed_bytes = soc.l1.size_bytes - soc.l1_usable_bytes + soc.l1.word_bytes
    raise DoesNotFitError(
        "l1",
        needed_bytes,
        soc.l1.size_bytes,
        where=where,
        contributors=(
            Contributor("stack of the master core", soc.l1.master_stack_bytes),
            Contributor("stacks of the worker cores", (soc.cores - 1) * soc.l1.worker_stack_bytes),
            *([Contributor("tables of two ops", soc.l1.tables_bytes)] if soc.l1.tables_bytes else []),
        ),
        cure=f"use --l1 {-(-needed_bytes // 1024)}KiB, fewer --cores, "
        + (f"--form {READABLE}, " if soc.l1.tables_bytes else "")
        + "or smaller l1.master_stack_bytes and l1.worker_stack_bytes",
    )


def _parse_fpus(text: str, where: str) -> dict[str, object]:
    if text == "private":
        return {"fpu.mapping": text}
    match = re.fullmatch(r"(\d{1,3})-(static|dynamic)", text)
    if match is None:
        forms = ("private", "4-static", "4-dynamic")
        shared = f"use {text}-static (by core number), {text}-dynamic (per cycle), or private"
        cure = shared if re.fullmatch(r"\d{1,3}", text) else suggestion(text, forms)
        raise ConfigError(f"unknown FPU arrangement '{text}'", where=where, cure=cure)
    count = int(match[1])
    _check_value("fpu.count", count, "count", where)
    return {"fpu.mapping": match[2], "fpu.count": count}


def _parse_switch(value: bool | str, where: str) -> bool:
    if isinstance(value, bool):
        return value
    if value not in ("on", "off"):
        raise ConfigError(f"'{value}' must be on or off", where=where, cure="write on or off")
    return value == "on"


_KINDS = {bool: "on or off", int: "a whole number", float: "a number", str: "a word"}


def _check_type(parameter: Parameter, kind: type) -> None:
    value = parameter.value
    fits = isinstance(value, kind) or (kind is float and isinstance(value, int))
    if not fits or (isinstance(value, bool) and kind is not bool):
        in_unit = f", in the unit {parameter.unit}" if kind in (int, float) else ""
        raise ConfigError(
            f"parameter '{parameter.path}' is '{value}', but must be {_KINDS[kind]}",
            where=parameter.where,
            cure=f"write {_KINDS[kind]}{in_unit}",
        )


def _check_value(path: str, value: Any, unit: str, where: str | None) -> None:
    """Raise `ConfigError` unless `value` is legal for the parameter at `path`."""
    problem, cure, of_unit = None, "", "" if unit == "count" else f" {unit}"
    largest = MAXIMUM_BY_PATH.get(path, MAXIMUM_BY_UNIT.get(unit))
    smallest = MINIMUM_BY_PATH.get(path, MINIMUM_BY_UNIT.get(unit))
    if path in CHOICES:
        if value not in CHOICES[path]:
            problem, cure = "is unknown", suggestion(str(value), CHOICES[path])
    elif path in ("cores", "fpu.count") and not 1 <= value <= MAX_CORES:
        problem, cure = f"must be between 1 and {MAX_CORES}", f"use a number from 1 to {MAX_CORES}"
    elif unit == "B/peripheral cycle" and not value >= SLOWEST_BUS:
        problem, cure = f"must be {SLOWEST_BUS} or more", f"use {SLOWEST_BUS} {unit} or more"
    elif smallest is not None and value < smallest:
        of_unit = of_unit.removesuffix("s") if smallest == 1 else of_unit
        problem, cure = f"must be at least {smallest}", f"use {smallest}{of_unit} or more"
        if unit == "Hz":
            cure = "use a frequency, e.g. 50 MHz"
        elif path.endswith(".size_bytes"):
            cure = "use a size, e.g. 64 KiB"
    elif largest is not None and value > largest:
        problem, cure = f"must be at most {largest}", f"use {largest}{of_unit} or less"
    elif unit == "B" and value > ADDRESS_SPACE_BYTES:
        problem, cure = f"is beyond the address space of {ADDRESS_SPACE_BYTES} B", "use a smaller size"
    elif path in POWERS_OF_TWO and value & (value - 1):
        below = 1 << (value.bit_length() - 1)
        problem, cure = "must be a power of two", f"use {below} or {2 * below}"
    if problem:
        raise ConfigError(f"{path} = {value} {problem}", where=where, cure=cure)
