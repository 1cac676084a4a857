# SPDX-License-Identifier: Apache-2.0
"""A job of a matrix-vector unit: the values of its registers, and the CSR writes that set them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

from barvinn.machine.behaviour import Behaviour
from configs.values import Struct, replace

JUMPS = 5
"""Jumps of an address generator: jump 4 of the innermost loop, jump 0 of the endless outer one."""

_SELECT = (1 << JUMPS) - 1

NO_JUMPS = (0, 0, 0, 0, 0)

MULTIPLY_UNSIGNED_BITS = 1
"""Multiply mode {0, +1}: a product of bits is their AND. Signs are those of the planes."""


class Loops(Struct, frozen=True):
    """Five nested loops of an address generator: `jumps` in words, `lengths` as trips minus one.

    The address moves by jump k when loop k+1 and all inside it end; `lengths[0]` has no register and is 0.
    """

    jumps: tuple[int, int, int, int, int] = NO_JUMPS
    lengths: tuple[int, int, int, int, int] = NO_JUMPS


class Job(Struct, frozen=True):
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
    destinations: int = 0
    extra_cycles: int = 0
    after_drain: bool = False
    """`destinations` is a mask of units, 0 for the unit itself. `extra_cycles` of the countdown come after
    the last product. `after_drain`: it may begin only when all results of the job before it are in memory.
    Neither these two nor `output_signed`, how its results are to be read, are registers: software knows."""

    @property
    def product_cycles(self) -> int:
        """Cycles until the last product that counts."""
        return self.countdown - self.extra_cycles


class CsrWrite(NamedTuple):
    """One write of a hart: CSR name, number, and 32 bits of which the register takes those that it has."""

    name: str
    address: int
    value: int

    @property
    def signed(self) -> int:
        """The number that software writes: a jump that is negative for its register is a negative number."""
        return _signed(self.value, _JUMP_BITS) if "jump_" in self.name else self.value


def _signed(value: int, bits: int) -> int:
    return value - (1 << bits) if value >> (bits - 1) else value


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

_JUMP_BITS = 32
"""What a write carries, in two's complement; the register takes the bits it has (mvu_pkg.sv BJUMP)."""

_PRECISION_BITS = 6
_COUNTDOWN_BITS, _SCALER_BITS = 29, 16
_WEIGHT_SIGN_BIT, _INPUT_SIGN_BIT, _COMPARE_BIT, _MODE_BIT = 24, 25, 29, 30


def csr_writes(job: Job, unit: int, rules: Behaviour) -> tuple[CsrWrite, ...]:
    """The registers of `job` on `unit` as `rules` have them, in the order of their numbers.

    Those without a shadow come behind the others, the command last.
    """
    values = dict(_values(job, unit, rules))
    command = job.countdown | int(job.compare) << _COMPARE_BIT | MULTIPLY_UNSIGNED_BITS << _MODE_BIT
    values[COMMAND] = command
    order = [name for name in CSR_ADDRESSES if name in values and name not in rules.live and name != COMMAND]
    return tuple(CsrWrite(name, CSR_ADDRESSES[name], values[name]) for name in (*order, *rules.live, COMMAND))


def _values(job: Job, unit: int, rules: Behaviour) -> Iterator[tuple[str, int]]:
    yield "mvuwbaseptr", job.weight_base
    yield "mvuibaseptr", job.input_base
    yield "mvusbaseptr", job.scaler_base
    yield "mvubbaseptr", job.bias_base
    yield "mvuobaseptr", job.output_base
    for kind, loops in (
        *(("w", job.weight), ("i", job.input), ("s", job.scaler_loops), ("b", job.bias_loops)),
        ("o", job.output),
    ):
        for level, jump in enumerate(loops.jumps):
            yield f"mvu{kind}jump_{level}", jump & ((1 << _JUMP_BITS) - 1)
        for level, length in enumerate(loops.lengths[1:], start=1):
            name = f"mvu{kind}length_{level}"
            if rules.register(name) == name:  # another's register would be written over
                yield name, length
    signs = int(job.weight_signed) << _WEIGHT_SIGN_BIT | int(job.input_signed) << _INPUT_SIGN_BIT
    bits = job.weight_bits | job.input_bits << _PRECISION_BITS | job.output_bits << 2 * _PRECISION_BITS
    yield "mvuprecision", bits | signs
    yield "mvuquant", job.msb_index
    yield "mvuscaler", job.scaler & ((1 << _SCALER_BITS) - 1)
    compare = 0 if rules.compare_bit is None else job.compare_select << rules.compare_bit
    yield "mvuconfig1", job.accumulate_select | job.zigzag_select << rules.zigzag_bit | compare
    yield "mvuomvusel", job.destinations or 1 << unit
    yield "mvuusescaler_mem", int(job.use_scaler_memory)
    yield "mvuusebias_mem", int(job.use_bias_memory)


def job_of(registers: Mapping[str, int], meant: Job, rules: Behaviour) -> Job:
    """The job that a unit which obeys `rules` makes of its registers; of `meant` only what is no register."""

    def loops(kind: str) -> Loops:
        jumps = [_signed(registers[f"mvu{kind}jump_{level}"], _JUMP_BITS) for level in range(JUMPS)]
        lengths = [registers.get(f"mvu{kind}length_{level}", 0) for level in range(1, JUMPS)]
        return Loops((*jumps,), (0, *lengths))  # type: ignore[arg-type]  # five of each

    precision, config, command = (registers[name] for name in ("mvuprecision", "mvuconfig1", COMMAND))
    weight_bits, input_bits, output_bits = (
        precision >> place * _PRECISION_BITS & ((1 << _PRECISION_BITS) - 1) for place in range(3)
    )
    accumulate_select = config & _SELECT
    has_comparator = rules.compare_bit is not None
    return replace(
        meant,
        countdown=command & ((1 << _COUNTDOWN_BITS) - 1),
        input_base=registers["mvuibaseptr"],
        weight_base=registers["mvuwbaseptr"],
        output_base=registers["mvuobaseptr"],
        input=loops("i"),
        weight=loops("w"),
        output=loops("o") if rules.output_jumps else Loops((1, 1, 1, 1, 1)),
        input_bits=input_bits,
        weight_bits=weight_bits,
        output_bits=output_bits,
        input_signed=bool(precision >> _INPUT_SIGN_BIT & 1),
        weight_signed=bool(precision >> _WEIGHT_SIGN_BIT & 1),
        msb_index=registers["mvuquant"],
        zigzag_select=config >> rules.zigzag_bit & _SELECT,
        accumulate_select=accumulate_select,
        compare_select=config >> (rules.compare_bit or 0) & _SELECT if has_comparator else accumulate_select,
        compare=has_comparator and bool(command >> _COMPARE_BIT & 1),
        scaler=_signed(registers["mvuscaler"], _SCALER_BITS),
        scaler_base=registers["mvusbaseptr"],
        bias_base=registers["mvubbaseptr"],
        scaler_loops=loops("s"),
        bias_loops=loops("b"),
        use_scaler_memory=bool(registers["mvuusescaler_mem"]),
        use_bias_memory=bool(registers["mvuusebias_mem"]),
        destinations=registers["mvuomvusel"],
    )


def write_instructions(value: int) -> int:
    """RV32I instructions that put `value` into a CSR: its immediate form, or 1 to 2 more to load it."""
    if 0 <= value < 1 << 5:
        return 1
    return 2 if -(1 << 11) <= value < 1 << 11 or value & 0xFFF == 0 else 3
