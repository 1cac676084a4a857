# SPDX-License-Identifier: Apache-2.0
"""The files of a run as a testbench of the RTL takes them: writes by number, a unit cycle by cycle.

Written from the sources (obilaniu/MVU: mvutop_wrapper.sv, mvutop.sv, agu.sv, zigzagu.v, quantser.v),
not from `barvinn/machine`, of which it imports nothing.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

MOST = 1 << 15
_AT = {"w": 0xF25, "i": 0xF2A, "s": 0xF2F, "b": 0xF34}
_LENGTHS = {"w": 0xF3F, "i": 0xF43, "s": 0xF47, "b": 0xF4B}


def bits(text: str, width: int) -> np.ndarray:
    """Lanes of a line of binary digits, the first on the right."""
    ones = np.array([int(digit) for digit in text[::-1]], np.int64)
    return ones.reshape(-1, width) if len(ones) > width else ones


class Generator:
    """Five jumps, four down-counters of agu.sv; lengths of scalers and biases other than 1 cannot be set."""

    def __init__(self, registers: dict[int, int], kind: str) -> None:
        jumps = [registers[_AT[kind] + level] & (MOST - 1) for level in range(5)]
        self.jumps = [jump - MOST if jump >= MOST // 2 else jump for jump in jumps]
        lengths = [registers.get(_LENGTHS[kind] + level, 0) for level in range(4)]
        self.lengths = [0, lengths[0], 0, 0, 0] if kind in "sb" else [0, *lengths]
        self.left, self.address = list(self.lengths), 0

    def step(self) -> int:
        """The jump that is taken."""
        level = 4
        while level and not self.left[level]:
            self.left[level] = self.lengths[level]
            level -= 1
        if level:
            self.left[level] -= 1
        self.address += self.jumps[level]
        return level


class Unit:
    """Memories from the images, and what the writes of csr.txt do to them."""

    def __init__(self, folder: Path) -> None:
        def lines(name: str) -> list[str]:
            (file,) = folder.glob(name)
            return file.read_text().split()

        self.weights = [bits(line, 64) for line in lines("*-weights.txt")]
        nothing = [np.zeros(64, np.int64)] * 64
        self.scalers = [*(self._numbers(line, 16) for line in lines("*-scalers.txt")), *nothing]
        self.biases = [*(self._numbers(line, 32) for line in lines("*-biases.txt")), *nothing]
        csr = (folder / "csr.txt").read_text()
        first = int(re.findall(r"maps begin at word (\d+)", csr)[0])
        self.data: dict[int, np.ndarray] = {
            first + number: bits(line, 64) for number, line in enumerate(lines("input.txt"))
        }
        self.written: dict[int, np.ndarray] = {}
        registers: dict[int, int] = {}
        for number, value in re.findall(r"^csrw 0x(\w+) 0x(\w+)", csr, re.MULTILINE):
            at = int(number, 16)
            if _LENGTHS["s"] <= at < _LENGTHS["s"] + 8:  # slength_1..4, then blength_1..4
                at = _LENGTHS["s"] + (at - _LENGTHS["s"]) // 4 * 4
            registers[at] = int(value, 16)
            if at == 0xF55:
                self.run(registers)

    @staticmethod
    def _numbers(line: str, width: int) -> np.ndarray:
        digits = width // 4
        found = [int(line[at : at + digits], 16) for at in range(0, len(line), digits)][::-1]
        return np.array([each - (1 << width) if each >> (width - 1) else each for each in found])

    def run(self, registers: dict[int, int]) -> None:
        """One job."""
        countdown = registers[0xF55] & ((1 << 29) - 1)
        precision, config, top = registers[0xF53], registers[0xF58], registers[0xF56]
        w_bits, d_bits, o_bits = precision & 63, precision >> 6 & 63, precision >> 12 & 63
        select, zigzag = config & 31, config >> 5 & 31
        assert registers[0xF59] == 1
        walks = {kind: Generator(registers, kind) for kind in "wisb"}
        w = d = 0
        shift = False
        total, place = np.zeros(64, np.int64), registers[0xF24]
        for cycle in range(countdown):
            data = self.data.get((registers[0xF21] + walks["i"].address + d) % MOST, np.zeros(64, np.int64))
            weight = self.weights[(registers[0xF20] + walks["w"].address + w) % 512 % len(self.weights)]
            negative = (precision >> 24 & 1 and w == 0) != (precision >> 25 & 1 and d == 0)
            total = total * (2 if shift else 1) + (weight @ data) * (-1 if negative else 1)
            shift = False
            walks["i"].step()
            jump = walks["w"].step()
            if zigzag >> jump & 1:
                shift = w == 0 or d == d_bits - 1
                d, w = d + 1, w - 1
                if shift:
                    w, d = w + d + 1, 0
                    if w >= w_bits:
                        d = w - w_bits + 1
                        w -= d
                if w == w_bits or d == d_bits or (w, d) == (w_bits - 1, d_bits):
                    w = d = 0
            if select >> jump & 1:
                seen = cycle < countdown - 5
                scaler = self.scalers[(registers[0xF22] + walks["s"].address) % 64] * seen
                bias = self.biases[(registers[0xF23] + walks["b"].address) % 64] * seen
                value = total * (scaler if registers[0xF66] else registers[0xF57])
                value = value + (bias if registers[0xF67] else 0)
                for plane in range(top, top - o_bits, -1):
                    word = value >> plane & 1 if plane >= 0 else 0 * value
                    self.written[place % MOST] = word
                    place += 1
                walks["s"].step()
                walks["b"].step()
                total, shift, w, d = 0 * total, False, 0, 0
