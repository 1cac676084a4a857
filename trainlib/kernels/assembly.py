# SPDX-License-Identifier: Apache-2.0
"""A kernel as an annotated assembly listing (RV32 with Xpulp), turned line by line into the nest language.

Annotations stand behind `#@`. On a line of their own: `#@ for i in 0..N step 2 branch {`, `#@ if (...) {`,
`#@ } else {`, `#@ }`. Behind an instruction: the element a load or store touches, `#@ A(i,k+1)` (none: stack
or argument), or, for a branch that closes no loop, `#@ taken (condition)` or `#@ taken 0.5`. Labels,
directives and other comments are ignored. Registers are those of the listing.
"""

from __future__ import annotations

import re

from configs.errors import ConfigError

_GROUPS = {
    "A": "add addi sub and andi or ori xor xori sll slli srl srli sra srai slt slti sltu sltiu nop c.nop neg "
    "not seqz snez auipc pv.shuffle.sci.h pv.shuffle2.h pv.pack "
    "p.add p.sub p.min p.max p.abs p.clip p.exths p.exthz p.extbs p.extbz",
    "V": "li mv lui la",
    "U": "mul p.mul p.mac",
    "Q": "div divu rem remu",
    "D": "fdiv.s fsqrt.s fdiv.h fsqrt.h",
    "F": "fmadd.s fmsub.s fnmadd.s fnmsub.s fmadd.h fmsub.h vfmac.h vfdotpex.s.h",
    "M": "fmul.s fmul.h vfmul.h",
    "f": "fadd.s fsub.s fadd.h fsub.h feq.s flt.s fle.s fmin.s fmax.s fsgnj.s fsgnjn.s fsgnjx.s fmv.w.x "
    "fmv.x.w fcvt.s.w fcvt.w.s fcvt.s.h fcvt.h.s vfadd.h vfsub.h vfcpka.h.s",
    "J": "j jal jalr jr call tail ret",
    "H": "lp.setup lp.setupi lp.starti lp.endi lp.count lp.counti",
    "C": "csrr csrw csrrs csrrw csrrc csrrwi",
}
_CODE_OF = {mnemonic: code for code, names in _GROUPS.items() for mnemonic in names.split()}
_LOAD = re.compile(r"(?:p\.|c\.)?f?l(w|h|hu|b|bu)$")
_STORE = re.compile(r"(?:p\.|c\.)?f?s(w|h|b)$")
_BRANCH = re.compile(r"(?:p\.)?b(?:eq|ne|lt|ge|gt|le)(?:u|z|imm)?$")
_REGISTER = re.compile(r"(?<![\w.])(ra|sp|gp|tp|zero|[tsa]\d+|f[tsa]\d+|[xf]\d+)(?!\w)")
_WIDTHS = {"w": "", "h": ".2", "hu": ".2", "b": ".1", "bu": ".1"}
_ACCUMULATES = ("vfmac.h", "vfdotpex.s.h", "p.mac")
_STRUCTURE = re.compile(r"(for\b.*\{|if\s*\(.*\)\s*\{|\}\s*else\s*\{|\})$")


def listing_to_nest(text: str, file: str, first_line: int) -> str:
    """The nest text of a listing, with the same line numbers. Raises ConfigError with ``file:line``."""
    return "\n".join(
        _line(line, f"{file}:{number}") for number, line in enumerate(text.split("\n"), start=first_line)
    )


def _line(line: str, where: str) -> str:
    code, _, note = (part.strip() for part in line.partition("#@"))
    code = code.split("#")[0].split("//")[0].strip()
    while (label := re.match(r"[.\w$]+:\s*", code)) is not None:
        code = code[label.end() :]
    if not code or (code.startswith(".") and not note):
        if note and not _STRUCTURE.match(note):
            cure = "use one of `for NAME in FIRST..END {`  `if (CONDITION) {`  `} else {`  `}`"
            raise ConfigError(f"invalid annotation '#@ {note}'", where=where, cure=cure)
        return note
    mnemonic, _, operands = code.partition(" ")
    return _instruction(mnemonic, operands, note, where)


def _instruction(mnemonic: str, operands: str, note: str, where: str) -> str:
    registers = _REGISTER.findall(operands)
    increment, address = "+" if "!" in operands else "", f":{note}" if note else ""
    if (match := _LOAD.match(mnemonic)) is not None:
        return f"L{increment}{_WIDTHS[match[1]]}{address}{_named(registers[:1], registers[1:])}"
    if (match := _STORE.match(mnemonic)) is not None:
        return f"S{increment}{_WIDTHS[match[1]]}{address}{_named([], registers)}"
    if _BRANCH.match(mnemonic):
        return f"B{_direction(note, where)}{_named([], registers)}"
    code = _CODE_OF.get(mnemonic)
    if code is None:
        raise ConfigError(
            f"unknown instruction '{mnemonic}'",
            where=where,
            cure="use RV32IMF, Xpulp loads, stores and loops, or 16-bit floating point",
        )
    if note:
        raise ConfigError(f"'{mnemonic}' takes no annotation", where=where, cure=f"remove '#@ {note}'")
    if code in "JH":
        return code + _named([], registers)
    sources = registers if mnemonic in _ACCUMULATES else registers[1:]
    return code + _named(registers[:1], sources)


def _direction(note: str, where: str) -> str:
    if not note:
        return ""
    match = re.fullmatch(r"taken\s+(?:(\(.*\))|([\d.]+))", note)
    if match is None:
        raise ConfigError(f"invalid annotation '#@ {note}'", where=where, cure="write #@ taken (CONDITION)")
    return f"?{match[1]}" if match[1] else f"%{match[2]}"


def _named(writes: list[str], reads: list[str]) -> str:
    written = [register for register in writes if register not in ("zero", "x0")]
    read = [register for register in dict.fromkeys(reads) if register not in ("zero", "x0")]
    return f"[{','.join(written)}<{','.join(read)}]"
