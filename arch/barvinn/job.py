# SPDX-License-Identifier: Apache-2.0
"""A job of a matrix-vector unit: the values of its registers, and the CSR writes that set them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

JUMPS = 5
"""Jumps of an address generator: jump 4 of the innermost loop, jump 0 of the endless outer one."""

NO_JUMPS = (0, 0, 0, 0, 0)

MULTIPLY_UNSIGNED_BITS = 1
"""Multiply mode {0, +1}: a product of bits is their AND. Signs are those of the planes."""


@dataclass(frozen=True, slots=True)
class Loops:
    """Five nested loops of an address generator: `jumps` in words, `lengths` as trips minus one.

    The address moves by jump k when loop k+1 and all inside it end; `lengths[0]` has no register and is 0.
    """

    jumps: tuple[int, int, int, int, int] = NO_JUMPS
    lengths: tuple[int, int, int, int, int] = NO_JUMPS


@dataclass(frozen=True, slots=True)
class Job:
    """The registers of one job; addresses in words of their memories, `countdown` in cycles.

    `zigzag_select`, `accumulate_select` and `compare_select` are masks of weight jumps: at which the next
    pair of bit planes is taken, a new sum begins, and the comparator hands over what it holds.
    `layer` and `what` say for people what the job does.
    """

    layer: str
    what: str
    countdown: int
    input_base: int
    weight_base: int
    output_base: int
    input: Loops
    weight: Loops
    output: Loops
    input_bits: int
    weight_bits: int
    output_bits: int
    input_signed: bool
    weight_signed: bool
    msb_index: int
    zigzag_select: int
    accumulate_select: int
    compare_select: int
    compare: bool
    output_signed: bool = False
    scaler: int = 1
    scaler_base: int = 0
    bias_base: int = 0
    scaler_loops: Loops = Loops()
    bias_loops: Loops = Loops()
    use_scaler_memory: bool = False
    use_bias_memory: bool = False
    after_drain: bool = False
    """`after_drain`: it may begin only when all results of the job before it are in memory. Neither this nor
    `output_signed`, how its results are to be read, is a register: software knows."""


class CsrWrite(NamedTuple):
    """One write of a hart: CSR name, number, and the value as the register takes it."""

    name: str
    address: int
    value: int

    @property
    def signed(self) -> int:
        """The number that software writes: a jump that is negative for its register is a negative number."""
        bits = _REGISTER_BITS[self.name[3]] if "jump_" in self.name else 64
        return self.value - (1 << bits) if self.value >> (bits - 1) else self.value


_NAMES = (
    *("mvuwbaseptr", "mvuibaseptr", "mvusbaseptr", "mvubbaseptr", "mvuobaseptr"),
    *(f"mvu{kind}jump_{level}" for kind in "wisbo" for level in range(JUMPS)),
    *("mvuwlength_0", *(f"mvuwlength_{level}" for level in range(1, JUMPS))),
    *(f"mvu{kind}length_{level}" for kind in "isbo" for level in range(1, JUMPS)),
    *("mvuprecision", "mvustatus", "mvucommand", "mvuquant", "mvuscaler", "mvuconfig1", "mvuomvusel"),
    *("mvuihpbaseaddr", "mvuohpbaseaddr", "mvuohpmvusel"),
    *(f"mvuhpjump_{level}" for level in range(JUMPS)),
    *(f"mvuhplength_{level}" for level in range(1, JUMPS)),
    *("mvuusescaler_mem", "mvuusebias_mem", "mvuusepooler4hpout", "mvuusehpadder"),
)

CSR_ADDRESSES: Mapping[str, int] = MappingProxyType({name: 0xF20 + at for at, name in enumerate(_NAMES)})
"""Numbers of the CSRs in the order of mvu_pkg.sv (obilaniu/MVU, develop): 0xF20 to 0xF69."""

COMMAND = "mvucommand"
"""Writing it starts the unit."""

_REGISTER_BITS = {"w": 15, "i": 15, "o": 15, "s": 6, "b": 6}
"""Width of jump and length registers by memory; weight jumps are 15 bits wide of which 9 are used."""

_COMPARE_SELECT_BIT = 16
"""Where `Job.compare_select` goes in mvuconfig1: the published maps have accumulate and zigzag selects only
(bits 0 and 8), a select of the comparator is named in the documentation but not in the RTL we know."""


def csr_writes(job: Job, unit: int) -> tuple[CsrWrite, ...]:
    """Every register of `job` on `unit`, in the order of their numbers, the command last."""
    values = dict(_values(job, unit))
    command = job.countdown | int(job.compare) << 29 | MULTIPLY_UNSIGNED_BITS << 30
    ordered = sorted(values, key=lambda name: CSR_ADDRESSES[name])
    writes = [CsrWrite(name, CSR_ADDRESSES[name], values[name]) for name in ordered]
    return (*writes, CsrWrite(COMMAND, CSR_ADDRESSES[COMMAND], command))


def _values(job: Job, unit: int) -> Iterator[tuple[str, int]]:
    yield "mvuwbaseptr", job.weight_base
    yield "mvuibaseptr", job.input_base
    yield "mvusbaseptr", job.scaler_base
    yield "mvubbaseptr", job.bias_base
    yield "mvuobaseptr", job.output_base
    for kind, loops in (
        *(("w", job.weight), ("i", job.input), ("s", job.scaler_loops), ("b", job.bias_loops)),
        ("o", job.output),
    ):
        mask = (1 << _REGISTER_BITS[kind]) - 1
        for level, jump in enumerate(loops.jumps):
            yield f"mvu{kind}jump_{level}", jump & mask
        for level, length in enumerate(loops.lengths[1:], start=1):
            yield f"mvu{kind}length_{level}", length
    signs = int(job.weight_signed) << 24 | int(job.input_signed) << 25
    yield "mvuprecision", job.weight_bits | job.input_bits << 6 | job.output_bits << 12 | signs
    yield "mvuquant", job.msb_index
    yield "mvuscaler", job.scaler & 0xFFFF
    selects = job.accumulate_select | job.zigzag_select << 8
    yield "mvuconfig1", selects | job.compare_select << _COMPARE_SELECT_BIT
    yield "mvuomvusel", 1 << unit
    yield "mvuusescaler_mem", int(job.use_scaler_memory)
    yield "mvuusebias_mem", int(job.use_bias_memory)


def write_instructions(value: int) -> int:
    """RV32I instructions that put `value` into a CSR: its immediate form, or 1 to 2 more to load it."""
    if 0 <= value < 1 << 5:
        return 1
    return 2 if -(1 << 11) <= value < 1 << 11 or value & 0xFFF == 0 else 3
