# SPDX-License-Identifier: Apache-2.0
"""`python -m tools.deployed.inner_loops CC ...`: inner loops compiled for RV32 beside those of our nests.

The C kernels are compiled by the command given (clang for riscv32; with F, as llvm-objdump 14 does not know
Zfinx: -mcpu=generic_rv32+m+f+c -mabi=ilp32f), disassembled, and every loop without a
loop in it is counted by instruction class; so are the innermost loops of the nests of the same names in
`clang-rv32`, the codegen of that compiler without Xpulp, without those that were read off this C. `--write`
keeps the table in docs/deploy-loops.json, which docs/deploy-kernels.md shows.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from deploy.calls.call import kernel_sources, sources
from tools.deployed.code_sizes import callers
from tools.deployed.counted import FLAGS
from tools.pages.page import ROOT
from trainlib.kernels.library import LIBRARY
from trainlib.kernels.nodes import CODES, Choice, Code, Counted, NestNode

STORED = ROOT / "docs" / "deploy-loops.json"

CODEGEN, OF_C = "clang-rv32", "export-rv32"

CLASSES: tuple[tuple[str, str], ...] = (
    ("F", r"fn?m(add|sub)\.s"),
    ("M", r"fmul\.s"),
    ("D", r"f(div|sqrt)\.s"),
    ("f", r"f(add|sub|min|max|eq|lt|le|sgnj|sgnjn|sgnjx|cvt|neg|abs|class)\S*|fmv\.(s|w\.x|x\.w)"),
    ("L", r"(f?lw|lb|lbu|lh|lhu)(sp)?"),
    ("S", r"(f?sw|sb|sh)(sp)?"),
    ("U", r"mulh?\S*"),
    ("Q", r"(div|rem)u?"),
    ("B", r"b(eq|ne|lt|ge|ltu|geu|gt|le|eqz|nez|ltz|gez|gtz|lez)\S*"),
    ("J", r"j|jr|jal|jalr|ret|call|tail"),
)
"""Letter of the nests -> mnemonics; everything else is integer arithmetic, moves included (A)."""

NUMBERS = "LSFMfD"
"""Classes that say what a loop does: of loops that agree in these the rest is compared."""


@dataclass(frozen=True, slots=True)
class Instruction:
    """One line of a disassembly."""

    address: int
    mnemonic: str
    target: int
    """Where it jumps to, or -1."""

    @property
    def letter(self) -> str:
        """Its class."""
        return next((letter for letter, names in CLASSES if re.fullmatch(names, self.mnemonic)), "A")


_FUNCTION = re.compile(r"^[0-9a-f]+ <([A-Za-z_]\w*)>:$")
_LINE = re.compile(r"^\s+([0-9a-f]+):\s+(\S+)(.*)$")
_TARGET = re.compile(r"0x([0-9a-f]+) <")


def functions(disassembly: str) -> dict[str, list[Instruction]]:
    """The instructions of every function."""
    found: dict[str, list[Instruction]] = {}
    current: list[Instruction] = []
    for line in disassembly.splitlines():
        if match := _FUNCTION.match(line):
            current = found.setdefault(match[1], [])
        elif match := _LINE.match(line):
            target = _TARGET.search(match[3])
            current.append(Instruction(int(match[1], 16), match[2], int(target[1], 16) if target else -1))
    return found


def innermost(code: Sequence[Instruction]) -> Iterator[list[Instruction]]:
    """The loops that have none in them: from the target of a jump back to the jump."""
    spans = [
        (item.target, item.address)
        for item in code
        if 0 <= item.target <= item.address and item.letter in "BJ"
    ]
    for first, last in dict.fromkeys(spans):
        if not any(first <= other and end <= last and (other, end) != (first, last) for other, end in spans):
            yield [item for item in code if first <= item.address <= last]


def counts(letters: Iterator[str]) -> Counter[str]:
    """How often each class occurs; moves count as integer arithmetic."""
    return Counter("A" if letter == "V" else letter for letter in letters)


def loops_of_nest(nodes: Sequence[NestNode]) -> Iterator[list[Code]]:
    """The innermost loops of a nest, whatever the sizes choose."""
    for node in nodes:
        if isinstance(node, Choice):
            yield from loops_of_nest(node.then)
            yield from loops_of_nest(node.otherwise)
        elif isinstance(node, Counted):
            inner = list(loops_of_nest(node.body))
            yield from inner
            if not inner and all(isinstance(item, Code) for item in node.body):
                yield [item for item in node.body if isinstance(item, Code)]


def rows(compiled: dict[str, list[Instruction]]) -> Iterator[dict[str, Any]]:
    """A row for every innermost loop of a nest: its counts, and those of the C loop of the same floats."""
    letter_of = {op: letter for letter, op in reversed(CODES.items())}
    own = set(LIBRARY.kernel_names(CODEGEN))
    for name in sorted(own & compiled.keys()):
        kernel = LIBRARY.kernel(CODEGEN, name, False)
        if f"/{OF_C}/" in kernel.header.section.file:
            continue
        in_c = [counts(item.letter for item in loop) for loop in innermost(compiled[name])]
        seen: list[Counter[str]] = []
        for loop in loops_of_nest(kernel.expander.nest.body):
            nest = counts(letter_of[item.instruction.op] for item in loop)
            if nest in seen:
                continue
            seen.append(nest)
            same = [item for item in in_c if all(item[letter] == nest[letter] for letter in NUMBERS)]
            best = min(same, key=lambda item: abs(item.total() - nest.total()), default=None)
            yield {
                "kernel": name,
                "nest": dict(sorted(nest.items())),
                "c": dict(sorted(best.items())) if best else None,
            }


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tools.deployed.inner_loops", description=__doc__)
    parser.add_argument("compiler", nargs="+", help="a clang for riscv32 with its -target, -mcpu and -mabi")
    parser.add_argument("--write", action="store_true", help=f"keep the table in {STORED.name}")
    arguments, more = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as folder:
        texts = sources({*kernel_sources(), *chain.from_iterable(callers().values())})
        for file, text in texts.items():
            (Path(folder) / file).write_text(text, encoding="utf-8")
        compiled: dict[str, list[Instruction]] = {}
        for file in texts:
            if not file.endswith(".c"):
                continue
            target = f"{file}.o"
            command = [*arguments.compiler, *more, *FLAGS.split(), "-DPT_CORES=8", "-c", file, "-o", target]
            subprocess.run(command, cwd=folder, check=True)
            text = subprocess.run(
                ["llvm-objdump", "-d", "--no-show-raw-insn", target],
                cwd=folder,
                check=True,
                capture_output=True,
                text=True,
            ).stdout
            compiled |= functions(text)
    table = list(rows(compiled))
    if arguments.write:
        STORED.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")
    for row in table:
        print(row["kernel"], row["nest"], row["c"])
    return 0


if __name__ == "__main__":
    sys.exit(main())
