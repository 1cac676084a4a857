# SPDX-License-Identifier: Apache-2.0
"""`python -m tools.deployed.code_sizes SYMBOLS.csv CC ...`: the bytes of the functions of exported programs.

The C kernels are compiled by the command given (clang for riscv32); what they call and what is made for one
call only is taken from the symbols of programs that were exported and linked (columns model, buffering,
function, bytes). Writes `configs/kernels/code-sizes.json`, which `scheduler.programs.program_code` reads.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import struct
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from deploy.calls.call import kernel_sources, sources
from tools.pages.page import ROOT

STORED = ROOT / "configs" / "kernels" / "code-sizes.json"

FLAGS = (
    *("-O3", "-ffunction-sections", "-ffp-contract=off", "-fno-vectorize", "-fno-slp-vectorize"),
    *("-mllvm", "-unroll-runtime=false", "-fomit-frame-pointer", "-fno-pic", "-fno-stack-protector", "-c"),
)

LIBRARY = ("expf", "logf", "log1pf", "tanhf")
"""Functions of a C library that kernels call."""

OPS = {"op": 10, "transfer_1d": 33, "transfer_2d": 54, "wait": 22, "fork": 53, "loop": 117}
"""Bytes of an op's function: once, and for each of its statements, of which 127 functions were compiled (R2
0.95)."""

PLATFORM = {"transfer_1d": 52, "transfer_2d": 64, "wait": 62, "fork": 90}
"""Bytes of the functions that an op calls: those of a lean platform file, with what they call."""

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


def compiled(compiler: list[str]) -> tuple[dict[str, int], dict[str, set[str]]]:
    """The bytes of all kernels that have a C source, and what each calls."""
    sizes: dict[str, int] = {}
    calls: dict[str, list[str]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        texts = {**sources(kernel_sources()), "platform.h": ""}
        texts["platform.h"] = (ROOT / "deploy" / "platforms" / "platform.h").read_text(encoding="utf-8")
        for file, text in texts.items():
            (folder / file).write_text(text, encoding="utf-8")
        for file in sorted(texts):
            if file.endswith(".c"):
                subprocess.run([*compiler, *FLAGS, file, "-o", "one.o"], cwd=folder, check=True)
                for function, size, called in functions_of((folder / "one.o").read_bytes()):
                    sizes[function] = size
                    calls[function] = called
    return sizes, {name: _reached(name, calls) for name in calls}


def _reached(function: str, calls: Mapping[str, list[str]]) -> set[str]:
    """All functions that are called by one, and by these, but other kernels, which do rests."""
    known = {*calls, *LIBRARY} - set(kernel_sources())
    found, left = set[str](), [function]
    while left:
        more = {name for name in calls.get(left.pop(), ()) if name in known} - found
        found |= more
        left += more
    return found


def linked(path: Path) -> Mapping[str, int]:
    """The largest bytes of every function of some linked programs."""
    with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8") as file:
        found: dict[str, int] = {}
        for row in csv.DictReader(file):
            found[row["function"]] = max(int(row["bytes"]), found.get(row["function"], 0))
    return found


def main() -> None:
    """Compile, read, write."""
    parser = argparse.ArgumentParser(description="Write configs/kernels/code-sizes.json.")
    parser.add_argument("symbols", type=Path)
    parser.add_argument("compiler", nargs="+")
    given, flags = parser.parse_known_args()
    sizes, calls = compiled([*given.compiler, *flags])
    symbols = linked(given.symbols)
    ours = {name for name in symbols if name.islower() and not name.startswith(("pt_", "start", "nothing"))}
    sizes |= {name: size for name, size in symbols.items() if name in ours}
    own = dict(sizes)
    for name, called in calls.items():
        # A linked function has its local ones in it.
        others = called & set(LIBRARY) if name in ours else called
        sizes[name] += sum(own.get(other, symbols.get(other, 0)) for other in others)
    data = {"op": OPS, "platform": PLATFORM, "kernels": dict(sorted(sizes.items()))}
    STORED.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
