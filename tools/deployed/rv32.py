# SPDX-License-Identifier: Apache-2.0
"""Instructions of RV32IMC with floats in integer registers (Zfinx): class, registers, what they access.

The classes are those of the nests (`trainlib.kernels.nest`). `llvm-objdump` of today's distributions does not
know Zfinx.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from struct import iter_unpack, unpack_from

SYMBOL_TABLE, FUNCTION = 2, 2
"""SHT_SYMTAB and STT_FUNC of ELF."""

HALF_BYTES = 2
"""Of an instruction, or all of it."""

PAGE_BYTES = 4096
"""Of the memory of qemu's machine."""

STACK_POINTER = 2

_FP_CLASSES = {2: "M", 3: "D", 11: "D"}
_ONE_SOURCE = frozenset({0x0B, 0x18, 0x1A, 0x1C, 0x1E})
"""funct5 of square root, conversions, classification, moves: the second field is no register."""


@dataclass(frozen=True, slots=True)
class Decoded:
    """One instruction: its letter, its bytes, the register it writes (0: none) and those it reads.

    `width_bytes` and `base` are those of a load or store.
    """

    letter: str
    size_bytes: int
    written: int = 0
    read: tuple[int, ...] = ()
    width_bytes: int = 4
    base: int = 0


def decode(code: bytes, at: int) -> Decoded:
    """The instruction that begins at byte `at`. Raises ValueError for one that compilers do not make here."""
    half = int.from_bytes(code[at : at + 2], "little")
    return _wide(int.from_bytes(code[at : at + 4], "little")) if half & 3 == 3 else _short(half)


def _short(half: int) -> Decoded:  # noqa: PLR0911, PLR0912 - one return per format
    kind, wide_d, wide_s = (half & 3, half >> 13), half >> 7 & 31, half >> 2 & 31
    short_1, short_2 = 8 + (half >> 7 & 7), 8 + (half >> 2 & 7)
    match kind:
        case 0, 0:
            return Decoded("A", 2, short_2, (STACK_POINTER,))
        case 0, 2:
            return Decoded("L", 2, short_2, (short_1,), base=short_1)
        case 0, 6:
            return Decoded("S", 2, 0, (short_2, short_1), base=short_1)
        case (1, 0) | (2, 0):
            return Decoded("A", 2, wide_d, (wide_d,))
        case 1, 2:
            return Decoded("V", 2, wide_d)
        case 1, 3:
            return Decoded("V", 2, wide_d) if wide_d != STACK_POINTER else Decoded("A", 2, wide_d, (wide_d,))
        case 1, 4:
            return Decoded("A", 2, short_1, (short_1, short_2) if half >> 10 & 3 == 3 else (short_1,))
        case (1, 1) | (1, 5):
            return Decoded("J", 2)
        case (1, 6) | (1, 7):
            return Decoded("B", 2, 0, (short_1,))
        case 2, 2:
            return Decoded("L", 2, wide_d, (STACK_POINTER,), base=STACK_POINTER)
        case 2, 6:
            return Decoded("S", 2, 0, (wide_s, STACK_POINTER), base=STACK_POINTER)
        case 2, 4 if not wide_s:
            return Decoded("J", 2, 0, (wide_d,))
        case 2, 4:
            moves = not half >> 12 & 1
            return Decoded("V" if moves else "A", 2, wide_d, (wide_s,) if moves else (wide_d, wide_s))
    raise ValueError(f"unknown instruction {half:04x}")


def _wide(word: int) -> Decoded:  # noqa: PLR0911 - one return per format
    first, second, third, written = word >> 15 & 31, word >> 20 & 31, word >> 27, word >> 7 & 31
    function, width_bytes = word >> 12 & 7, 1 << (word >> 12 & 3)
    match word & 0x7F:
        case 0x37:
            return Decoded("V", 4, written)
        case 0x17:
            return Decoded("A", 4, written)
        case 0x6F:
            return Decoded("J", 4)
        case 0x67:
            return Decoded("J", 4, 0, (first,))
        case 0x63:
            return Decoded("B", 4, 0, (first, second))
        case 0x03:
            return Decoded("L", 4, written, (first,), width_bytes, first)
        case 0x23:
            return Decoded("S", 4, 0, (second, first), width_bytes, first)
        case 0x13:
            moves = function == 0 and (not first or not word >> 20)
            return Decoded("V" if moves else "A", 4, written, (first,))
        case 0x33:
            letter = "A" if word >> 25 != 1 else "U" if function < 4 else "Q"
            return Decoded(letter, 4, written, (first, second))
        case 0x53:
            sources = (first,) if third in _ONE_SOURCE else (first, second)
            return Decoded(_FP_CLASSES.get(third, "f"), 4, written, sources)
        case 0x43 | 0x47 | 0x4B | 0x4F:
            return Decoded("F", 4, written, (first, second, third))
        case 0x73:
            return Decoded("C", 4, written)
    raise ValueError(f"unknown instruction {word:08x}")


def symbols_of(elf: bytes, *kinds: int) -> Iterator[tuple[str, int, int]]:
    """Name, address and bytes of the symbols of an ELF file of 32 bits that are of these kinds, or of all."""
    sections, count = int.from_bytes(elf[32:36], "little"), int.from_bytes(elf[48:50], "little")
    headers = [unpack_from("<10I", elf, sections + 40 * number) for number in range(count)]
    for _, kind, _, _, offset, size, link, *_ in headers:
        if kind == SYMBOL_TABLE:
            names = headers[link][4]
            for name, value, size_bytes, info, _, _ in iter_unpack("<IIIBBH", elf[offset : offset + size]):
                if not kinds or info & 15 in kinds:
                    first = names + name
                    yield elf[first : elf.index(b"\0", first)].decode(), value, size_bytes


class Program:
    """The compiled program: its instructions by address."""

    def __init__(self, network: Path) -> None:
        self.elf = network.read_bytes()
        found = symbols_of(self.elf, FUNCTION)
        self.functions = {name: (start, size) for name, start, size in found if name != "main" and size}
        spans = sorted((start, start + size, name) for name, (start, size) in self.functions.items())
        self.starts, self.spans = [start for start, _, _ in spans], spans
        self.loaded = self._segments()
        self._known: dict[int, Decoded] = {}

    def _segments(self) -> list[tuple[int, int, int]]:
        start = int.from_bytes(self.elf[28:32], "little")
        count = int.from_bytes(self.elf[44:46], "little")
        found = []
        for number in range(count):
            words = [
                int.from_bytes(self.elf[start + 32 * number + at : start + 32 * number + at + 4], "little")
                for at in range(0, 32, 4)
            ]
            if words[0] == 1:
                found.append((words[2], words[1], words[4]))
        return found

    def function(self, at: int) -> str:
        """The function an address is in, or nothing."""
        number = bisect_right(self.starts, at) - 1
        if number < 0:
            return ""
        _, end, name = self.spans[number]
        return name if at < end else ""

    def holds(self, at: int) -> bool:
        """Whether an address is in a kernel or what kernels call."""
        return bool(name := self.function(at)) and not name.startswith("bench_")

    def straight(self, at: int, then: int) -> list[tuple[int, int]]:
        """Every instruction from `at` to where qemu goes on at `then`, with the address of the next one.

        That is behind a branch or jump, where a page ends, and before an instruction that may be on two.
        None where qemu began again (`then` is `at`).
        """
        steps, start = list[tuple[int, int]](), at
        while self.holds(at):
            code = self.code(at)
            behind = at + code.size_bytes
            if code.letter in "BJ":
                return [*steps, (at, then)]
            steps.append((at, behind))
            if behind // PAGE_BYTES != at // PAGE_BYTES or (
                then == behind and -behind % PAGE_BYTES == HALF_BYTES
            ):
                assert then in (behind, start), f"from {start:#x} on at {then:#x}"
                return steps if then == behind else []
            at = behind
        return steps

    def code(self, at: int) -> Decoded:
        """The instruction at an address."""
        if at not in self._known:
            address, offset, _ = next(item for item in self.loaded if item[0] <= at < item[0] + item[2])
            self._known[at] = decode(self.elf, offset + at - address)
        return self._known[at]
