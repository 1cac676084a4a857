# SPDX-License-Identifier: Apache-2.0
"""`python -m tools.deployed.code_sizes EXPORT... --cc CC ...`: the bytes of functions of exported programs.

The C kernels, those made for the calls of some exports (folders of `pulptrain deploy`), and the platform file
of a PULP cluster are compiled by the command behind ``--cc`` (clang for riscv32). Writes
`configs/kernels/code-sizes.json`, which `scheduler.tiles.code_sizes` reads.
"""

from __future__ import annotations

import argparse
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
    *("-DPT_TEAM_IN_LINE", "-DPT_CORES=8", "-DNETWORK_CORES=8", "-I.", "-I..", "-I../kernels"),
)
"""Those of the project's Makefile for a cluster, and what clang needs to make what GCC makes."""

OPS = {"op": 10, "transfer_1d": 33, "transfer_2d": 54, "wait": 22, "fork": 53, "loop": 117}
"""Bytes of an op's function: once, and for each of its statements, of which 127 functions were compiled (R2
0.95). Today's are as large."""

PLATFORM = {
    "transfer_1d": "pt_dma_in",
    "transfer_2d": "pt_dma_in_2d",
    "wait": "pt_dma_wait",
    "fork": "pt_fork",
}
"""The function that an op calls for a statement."""

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


def compiled(compiler: list[str], exports: list[Path]) -> tuple[dict[str, int], dict[str, set[str]]]:
    """The bytes of kernels with a C source, of those of exports and of the platform; what each calls.

    A kernel of an export is as it is there, without the others of its file.
    """
    sizes: dict[str, int] = {}
    calls: dict[str, list[str]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for file, text in sources(kernel_sources()).items():
            (folder / file).write_text(text, encoding="utf-8")
        kernels = [path for export in exports for path in sorted((export.absolute() / "kernels").glob("*.c"))]
        platform = exports[0].absolute() / "platform" / "pulp_cluster.c"
        for path in (*sorted(folder.glob("*.c")), *kernels, platform):
            made = folder / "one.o"
            shared = f"-I{platform.parent}"
            subprocess.run([*compiler, *FLAGS, shared, path.name, "-o", made], cwd=path.parent, check=True)
            for function, size, called in functions_of(made.read_bytes()):
                sizes[function] = size
                calls[function] = called
    return sizes, {name: _reached(name, calls) for name in calls}


def _reached(function: str, calls: Mapping[str, list[str]]) -> set[str]:
    """All functions that are called by one, and by these, but other kernels, which do rests."""
    known = calls.keys() - set(kernel_sources())
    found, left = set[str](), [function]
    while left:
        more = {name for name in calls.get(left.pop(), ()) if name in known} - found
        found |= more
        left += more
    return found


def main() -> None:
    """Compile, write."""
    parser = argparse.ArgumentParser(description="Write configs/kernels/code-sizes.json.")
    parser.add_argument("exports", type=Path, nargs="+")
    parser.add_argument("--cc", nargs=argparse.REMAINDER, required=True)
    given = parser.parse_args()
    own, calls = compiled(given.cc, given.exports)
    shared = {name: sorted(other for other in calls[name] if other.startswith("pt_")) for name in own}
    sizes = {
        name: size + sum(own[other] for other in calls[name] if other not in shared[name])
        for name, size in sorted(own.items())
    }
    data = {
        "op": OPS,
        "platform": {word: own[name] for word, name in PLATFORM.items()},
        "kernels": sizes,
        "called": {name: others for name, others in sorted(shared.items()) if others},
    }
    STORED.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
