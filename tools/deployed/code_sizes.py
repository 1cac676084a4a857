# SPDX-License-Identifier: Apache-2.0
"""`python -m tools.deployed.code_sizes`: bytes of compiled kernels and of a platform of PULP clusters.

Every kernel is compiled alone (clang of the package ziglang): those that have a C source, and those made from
the tables for the examples of all primitives. Writes `configs/kernels/code-sizes.json`, by the names of the
nests, which `scheduler.tiles.code_sizes` reads. What calls functions of the C library, which are not compiled
here, is at least as large as its nest, which may have them in line.
"""

from __future__ import annotations

import json
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from itertools import chain
from pathlib import Path
from statistics import mean
from typing import Any

from configs.errors import InputError
from deploy.calls.call import FUNCTIONS, c_calls, kernel_sources, source_of, sources
from tools.kernel_sources import actions
from tools.pages.page import ROOT

STORED = ROOT / "configs" / "kernels" / "code-sizes.json"

COMPILER = (
    *(sys.executable, "-m", "ziglang", "cc", "-target", "riscv32-linux-musl"),
    *("-mcpu=generic_rv32+m+c+zfinx", "-mabi=ilp32"),
)

FLAGS = (
    *("-O3", "-ffunction-sections", "-ffp-contract=off", "-fno-vectorize", "-fno-slp-vectorize"),
    *("-mllvm", "-unroll-runtime=false", "-fomit-frame-pointer", "-fno-pic", "-fno-stack-protector", "-c"),
    *("-DPT_TEAM_IN_LINE", "-DPT_CORES=8", "-DNETWORK_CORES=8", "-I."),
)
"""Those of the project's Makefile for a cluster, and what clang needs to make what GCC makes."""

OPS = {"op": 10, "transfer_1d": 33, "transfer_2d": 54, "wait": 22, "fork": 53, "loop": 117}
"""Bytes of an op's function: once, and for each of its statements, of which 127 functions were compiled (R2
0.95). Of the C of today 207 functions of nine exports have 66,158 bytes, by this rule 66,774."""

TABLE = {
    **{"op": 4, "fetch": 16, "transfer_1d": 16, "transfer_2d": 24, "wait": 4, "fork": 8, "loop": 20},
    "arguments": 20,
}
"""Bytes of a table (`deploy/project/tables.c`): once, for each record, for the fetch of later tables; and
words of the arguments of a kernel that is not known."""

WALK = {
    **{"op": 74, "record": 14, "wait": 22, "transfer_1d": 42, "fork": 36, "loop": 176, "fetch": 60},
    "transfer_2d": 178,
}
"""Bytes of what walks tables: its begin and end, what all records execute, and those of each kind."""

WALK_CYCLES = {
    **{"op": 36, "fetch": 33, "wait": 12, "waits": 2, "fork": 7, "alone": 14},
    **{"transfer_1d": 19, "transfer_2d": 38, "loop": 33, "changed": 12},
}
"""What core 0 executes for a record of a table, in cycles: of fetches, transfers, turns of a loop and words
that these change all of it, in place of the code of a tile loop (`dma.transfer_code_1d_cycles`); of others
what they take more than the statements of a function (bytes of `OPS` by `INSTRUCTION_BYTES`), `waits` of each
wait of a record, `alone` of a call of core 0 alone more than of a fork. The best fit to what `qemu-riscv32`
executed of exports (`tools.deployed.walked`), where few tables have loops: of these, instructions of the
compiled walk, 2 cycles more for a jump and 1 for a load that is waited for."""

PLATFORM = {
    "transfer_1d": "pt_dma_in",
    "transfer_2d": "pt_dma_in_2d",
    "wait": "pt_dma_wait",
    "fork": "pt_fork",
}
"""The function that an op calls for a statement."""

LIBRARY = {"erfcf", "expm1f", "powf", "sinf", "cosf", "tanf"}
"""Functions of the C library that kernels call."""

PLATFORM_FILES = "pulp_cluster.c", "platform.h", "pulp_team.h"

_FUNCTION, _SYMBOLS, _RELOCATIONS = 2, 2, 4


def functions_of(code: bytes) -> Iterator[tuple[str, int, list[str]]]:
    """Of every function of an object file (ELF, 32 bit) its name, its bytes and what it calls."""
    (start,) = struct.unpack_from("<I", code, 32)
    entry, count, _ = struct.unpack_from("<HHH", code, 46)
    sections = [struct.unpack_from("<10I", code, start + number * entry) for number in range(count)]
    table = next(section for section in sections if section[1] == _SYMBOLS)
    texts = sections[table[6]][4]

    def name_at(offset: int) -> str:
        return code[texts + offset : code.index(b"\0", texts + offset)].decode()

    symbols = list(struct.iter_unpack("<IIIBBH", code[table[4] : table[4] + table[5]]))
    names = [name_at(symbol[0]) for symbol in symbols]
    for name, (_, _, size, info, _, section) in zip(names, symbols, strict=True):
        if info & 15 == _FUNCTION and size:
            calls = [
                names[kind >> 8]
                for other in sections
                if other[1] == _RELOCATIONS and other[7] == section
                for _, kind, _ in struct.iter_unpack("<IIi", code[other[4] : other[4] + other[5]])
            ]
            yield name, size, calls


def compiled(kernels: Iterable[str]) -> tuple[dict[str, int], dict[str, list[str]]]:
    """Bytes of the functions of C kernels and of the platform, and what each calls.

    A kernel is compiled without the others of its file.
    """
    sizes: dict[str, int] = {}
    calls: dict[str, list[str]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for file in PLATFORM_FILES:
            shutil.copy(ROOT / "deploy" / "platforms" / file, folder)
        (folder / "network.h").touch()
        for kernel in sorted({*kernels}):
            for file, text in sources([kernel]).items():
                (folder / file).write_text(text, encoding="utf-8")
            _compile(folder, source_of(kernel).file, sizes, calls)
        _compile(folder, FUNCTIONS, sizes, calls)
        _compile(folder, PLATFORM_FILES[0], sizes, calls)
    return sizes, calls


def _compile(folder: Path, file: str, sizes: dict[str, int], calls: dict[str, list[str]]) -> None:
    subprocess.run([*COMPILER, *FLAGS, file, "-o", "one.o"], cwd=folder, check=True)
    for function, size, called in functions_of((folder / "one.o").read_bytes()):
        sizes[function], calls[function] = size, called


@cache
def callers() -> Mapping[str, Collection[str]]:
    """By nest the C kernels that examples of primitives call for it."""
    found: dict[str, set[str]] = {}
    for op, action in actions():
        with suppress(InputError):  # a number format without C
            found.setdefault(action.team.kernel, set()).update(call.kernel for call in c_calls(action, op))
    return found


def nest_bytes() -> Mapping[str, int]:
    """By nest the largest code that it says."""
    found: dict[str, int] = {}
    for _, action in actions():
        name, work = action.team.kernel, action.team.core(action.team.members[0])
        found[name] = max(found.get(name, 0), work.code_bytes)
    return found


def argument_words() -> dict[str, int]:
    """By nest the words of arguments of the C kernels that examples of primitives call for it, the most."""
    found: dict[str, int] = {}
    for nest, names in callers().items():
        for name in names:
            source = source_of(name)
            words = sum(field.count or 1 for field in source.structs[source.kernels[name]])
            found[nest] = max(found.get(nest, 0), words)
    return dict(sorted(found.items()))


def _reached(function: str, calls: Mapping[str, list[str]]) -> set[str]:
    """All functions that are called by one, and by these, but other kernels, which do rests."""
    known = calls.keys() - set(kernel_sources())
    found, left = set[str](), [function]
    while left:
        more = {name for name in calls.get(left.pop(), ()) if name in known} - found
        found |= more
        left += more
    return found


@cache
def c_kernels() -> Mapping[str, Collection[str]]:
    """By nest its C kernels: that of its name; without one, all that examples call for it."""
    known = {*kernel_sources(), *chain.from_iterable(callers().values())}
    nests = {**dict.fromkeys(kernel_sources(), ()), **callers()}
    return {nest: [nest] if nest in known else sorted(names) for nest, names in sorted(nests.items())}


def data_of(nests: Iterable[str]) -> dict[str, dict[str, Any]]:
    """What is compiled for some nests: the bytes of the `platform`, of `kernels` and the functions `called`.

    A nest has as many bytes as its C kernels have in the mean.
    """
    made = {nest: c_kernels()[nest] for nest in nests}
    own, calls = compiled(chain.from_iterable(made.values()))
    reached = {name: _reached(name, calls) for name in calls}
    called = {
        name: {other for other in reached[name] if other in own and other.startswith("pt_")} for name in own
    }
    whole = {name: own[name] + sum(own[other] for other in reached[name] - called[name]) for name in own}
    sizes = {nest: round(mean(whole[name] for name in names)) for nest, names in made.items() if names}
    shared = {
        nest: sorted(set[str]().union(*(called[name] for name in names))) for nest, names in made.items()
    }
    for nest, size_bytes in nest_bytes().items():
        if any(LIBRARY & {*calls[name]} for name in made.get(nest, ())):
            sizes[nest] = max(sizes[nest], size_bytes)
    functions = sorted({name for names in shared.values() for name in names})
    return {
        "platform": {word: own[name] for word, name in PLATFORM.items()},
        "kernels": dict(sorted({**sizes, **{name: own[name] for name in functions}}.items())),
        "called": {nest: names for nest, names in sorted(shared.items()) if names},
    }


def rules() -> dict[str, dict[str, int]]:
    """What is not compiled: the bytes of statements and records, and the words of arguments."""
    known = {"op": OPS, "table": TABLE, "walk": WALK, "walk_cycles": WALK_CYCLES}
    return {**known, "arguments": argument_words()}


def main() -> None:
    """Compile, write."""
    data = {**rules(), **data_of(c_kernels())}
    STORED.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
