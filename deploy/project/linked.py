# SPDX-License-Identifier: Apache-2.0
"""Where a linked export has its code: functions in the map file of GNU ld or LLVM lld.

Exports are compiled with ``-ffunction-sections``, so that both write a line per function: its section, its
address, its bytes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from arch.spec.program import Compute
from configs.errors import InputError
from deploy.calls.call import c_calls, called_by, source_of
from deploy.program.buffers import Names
from scheduler.planned import Schedule
from scheduler.programs.program_code import LinkedCode, ops_of, platform_functions

_GNU = re.compile(r"^ \.text\.(\S+)\s+0x([0-9a-f]+)\s+0x([0-9a-f]+)\s+\S", re.MULTILINE)
_LLD = re.compile(r"^ *([0-9a-f]+) +[0-9a-f]+ +([0-9a-f]+) +\d+ +\S.*:\(\.text\.(\S+)\)$", re.MULTILINE)

CURE = "use the map file (-Map=FILE) of the exported program, linked by GNU ld or LLVM lld"

MOST_NAMED = 5
"""Functions a report names."""

APART_BYTES = 1 << 24
"""Functions of one program lie no further apart."""
CACHE_BYTES = 1 << 20
"""Addresses count from a multiple of this below the functions: lines keep their sets in any cache."""


def functions_of_map(text: str) -> dict[str, tuple[int, int]]:
    """Name -> address and bytes of every function a map file has; none of what was discarded."""
    found = {name: (int(address, 16), int(size, 16)) for name, address, size in _GNU.findall(text)}
    found |= {name: (int(address, 16), int(size, 16)) for address, size, name in _LLD.findall(text)}
    return {name: place for name, place in found.items() if all(place)}


def linked_code(text: str, where: str, schedules: Sequence[Schedule]) -> LinkedCode:
    """The code of the programs of an export, by the `text` of its map file.

    Raises `InputError` for a text that is no map file, for one of another export, and for what has no C.
    """
    functions = functions_of_map(text)
    if not functions:
        raise InputError(
            "the file lists no functions, so it is not the linker map of an exported program",
            where=where,
            cure=CURE,
        )
    kernels: dict[tuple[str, str], list[str]] = {}
    platform: dict[str, None] = {}
    functions_of_ops: list[str] = []
    for schedule in schedules:
        parts = ops_of(schedule.program.actions)
        functions_of_ops += [op.name for op in parts if not op.is_table]
        if any(op.is_table for op in parts):
            platform["network_walk"] = None
        ops = {(op.layer, op.step): op for op in schedule.graph.ops}
        for action in schedule.program.actions:
            platform |= dict.fromkeys(platform_functions(action))
            if isinstance(action, Compute):
                op = ops[action.work.op, action.work.step]
                if (op.name, action.team.kernel) not in kernels:
                    kernels[op.name, action.team.kernel] = [call.kernel for call in c_calls(action, op)]
    called = [name for names in kernels.values() for name in names]
    names = Names(name for kernel in called for name in source_of(kernel).kernels)
    named = {name: names.of(name) for name in functions_of_ops}
    _check([*named.values(), *called, *platform], functions, where)
    helping = {kernel: tuple(sorted(called_by(kernel) & functions.keys())) for kernel in called}
    whole = {
        key: tuple(dict.fromkeys(name for kernel in found for name in (kernel, *helping[kernel])))
        for key, found in kernels.items()
    }
    used = {*named.values(), *platform, *(name for names in whole.values() for name in names)}
    return LinkedCode(_near_zero({name: functions[name] for name in sorted(used)}, where), named, whole)


def _near_zero(functions: Mapping[str, tuple[int, int]], where: str) -> dict[str, tuple[int, int]]:
    """The functions with addresses that begin near 0, as caches see them."""
    lowest = min(address for address, _ in functions.values()) // CACHE_BYTES * CACHE_BYTES
    highest = max(address for address, _ in functions.values())
    if highest - lowest > APART_BYTES:
        raise InputError(
            f"the functions of the program are linked from {lowest:#x} to {highest:#x}, outside L2",
            where=where,
            cure="link the functions into L2",
        )
    return {name: (address - lowest, size_bytes) for name, (address, size_bytes) in functions.items()}


def _check(names: Iterable[str], functions: Mapping[str, object], where: str) -> None:
    """Raise `InputError` where functions of the program are not in the map."""
    missing = [name for name in dict.fromkeys(names) if name not in functions]
    if missing:
        more = f" and {len(missing) - MOST_NAMED} more" if len(missing) > MOST_NAMED else ""
        raise InputError(
            f"the linker map is of another program: it lacks {', '.join(missing[:MOST_NAMED])}{more}",
            where=where,
            cure=CURE,
        )
