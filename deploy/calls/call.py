# SPDX-License-Identifier: Apache-2.0
"""From a compute action to the call of a C function: its name, and the fields of its struct of arguments.

A C file of `deploy/kernels/` declares the structs of its kernels between the lines ``/* arguments */`` and
``/* end */``; a kernel begins with ``PT_ARGUMENTS(NAME, g);``, and ``PT_KERNEL(KERNEL, NAME, STATEMENT)`` is
a kernel of that statement alone. A field is what its name says:

- ``A``, ``A_s[n]``: array A of the nest, its L1 address and its strides in elements; ``A_n``, ``A_d[n]``:
  elements and shape of what the call cuts out of a buffer for it
- a size the nest is called with (``N``, ``stride``); ``accumulate``: 1 if a product is added to C;
  ``has_w``: 1 if the op has the role w
- ``read_0``, ``read_0_n``, ``read_0_d[n]``, ``write_0`` ...: whole buffers: address, elements, shape
- a detail of the call (`trainlib.ir.steps.KernelCall.details`), an attribute of the op
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from functools import cache
from importlib.resources import files
from math import prod
from typing import Any

from arch.spec.isa import NestCall
from arch.spec.program import Compute, Effect, Place
from configs.dtypes import FP32, INT32, DType
from configs.errors import REPORT, ConfigError, InputError
from configs.values import Struct, replace
from deploy.calls.generated import C_TYPES, Generated, dtype_at, generated
from deploy.calls.products import in_lanes, products
from trainlib.ir.graph import Op
from trainlib.ir.varying import Varying

_BLOCK = re.compile(r"^/\* arguments \*/\n(.*?)^/\* end \*/\n", re.MULTILINE | re.DOTALL)
_STRUCT = re.compile(r"struct (\w+)\s*\{(.*?)\};", re.DOTALL)
_FUNCTION = re.compile(r"^void (\w+)\(const void \*args\)\n\{\n    PT_ARGUMENTS\((\w+), \w+\);", re.MULTILINE)
_OF_ONE_STATEMENT = re.compile(r"^PT_KERNEL\((\w+), (\w+), (.*)\)$(\n(?=PT_KERNEL))?", re.MULTILINE)
_WRITTEN_OUT = r"void \1(const void *args)\n{\n    PT_ARGUMENTS(\2, g);\n    \3;\n}\4\4"
_BODY = re.compile(
    r"(?:^/\*(?:(?!\*/).)*\*/\n)?^(?:void|static(?! inline)[\w \*]*?)\s?\*?(\w+)\([^{;]*\)\n\{\n.*?^\}\n\n?",
    re.MULTILINE | re.DOTALL,
)
"""A function that stands on its own, with the comment above it."""
_FIELD = re.compile(r"(?P<pointer>\*?)\s*(?P<name>\w+)\s*(?:\[(?P<count>\d+)\])?")
_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)


class Pointer(Struct, frozen=True):
    """An L1 byte address, and what is there: one of `C_TYPES`."""

    address: int
    ctype: str


class Table(Struct, frozen=True):
    """Numbers of an option, constants of the program; a null pointer where the option is not given."""

    values: tuple[float, ...]


Value = int | float | Pointer | tuple[int, ...] | Varying | Table


class CCall(Struct, frozen=True):
    """A call of the function `kernel` with a struct `struct` of these fields, in its order."""

    kernel: str
    struct: str
    fields: tuple[tuple[str, Value], ...]


class Field(Struct, frozen=True):
    """One field of a struct: type without ``const``, whether it is a pointer, length of an array or 0."""

    ctype: str
    name: str
    pointer: bool = False
    count: int = 0


class Source(Struct, frozen=True):
    """A C file: its text without structs, that of the structs, their fields, its kernels with structs."""

    file: str
    text: str
    declared: str
    structs: Mapping[str, tuple[Field, ...]]
    kernels: Mapping[str, str]


def read_source(file: str, text: str) -> Source:
    """A C file. Raises ConfigError where the struct of a kernel is not declared."""
    block = _BLOCK.search(text)
    declared = block[1] if block else ""
    structs = {name: _fields(body, file) for name, body in _STRUCT.findall(_COMMENT.sub("", declared))}
    kernels = dict(_FUNCTION.findall(text))
    missing = sorted(name for name, struct in kernels.items() if struct not in structs)
    if missing:
        cure = "declare the struct between /* arguments */ and /* end */"
        raise ConfigError(
            f"the struct of arguments of {', '.join(missing)} is missing", where=file, cure=cure
        )
    return Source(file, _BLOCK.sub("", text), declared, structs, kernels)


def _fields(body: str, file: str) -> tuple[Field, ...]:
    fields = []
    for declaration in filter(None, map(str.strip, body.split(";"))):
        ctype, _, names = declaration.removeprefix("const ").partition(" ")
        for item in names.split(","):
            match = _FIELD.fullmatch(item.strip())
            if match is None or ctype not in ("int", *C_TYPES.values()):
                what = f"cannot read the struct field '{ctype} {item.strip()}'"
                raise ConfigError(what, where=file, cure="write int NAME or TYPE *NAME")
            fields.append(Field(ctype, match["name"], bool(match["pointer"]), int(match["count"] or 0)))
    return tuple(fields)


FUNCTIONS = "elementary.c"
"""What kernels call instead of functions of the C library."""

HEADERS = ("kernel.h", "narrow.h", "elementary.h")
"""What they include."""


def shipped(folder: str, file: str) -> str:
    """The text of a file that lies in the package."""
    return (files("deploy") / folder / file).read_text(encoding="utf-8")


def _text(file: str) -> str:
    return shipped("kernels", file)


_POINTERS = re.compile(r"(const )?float (\*\w+(?:, \*\w+)*);")
_ELEMENT = re.compile(r"\bpt_([A-Z])\b(?= )")


def in_format(
    text: str, file: str, narrow: DType | None = None, wide: Collection[str] = (), *, summed: bool = False
) -> Source:
    """A C file whose arrays are `narrow`, but for the arguments `wide`, which are fp32.

    The names of its kernels and structs say so behind their own: ``norm_fw_bf16_M_R``. `summed`: sums are
    rounded to `narrow` after every term.
    """
    text = _OF_ONE_STATEMENT.sub(_WRITTEN_OUT, text)
    if narrow is None:
        return read_source(file, _ELEMENT.sub("float", text))

    def ctype(name: str) -> str:
        return "float" if name in wide else C_TYPES[narrow]

    def declared(match: re.Match[str]) -> str:
        const = match[1] or ""
        return " ".join(f"{const}{ctype(name[1:])} {name};" for name in match[2].split(", "))

    mark = "_".join(("", narrow.word, *sorted(wide), *["sums"] * summed))
    word = narrow.word
    sums = f"#define PT_SUMS(x) pt_from_{word}(pt_to_{word}(x))\n" if summed else ""
    plain = read_source(file, text)
    own = re.compile(rf"\b({'|'.join((*plain.kernels, *plain.structs))})\b(?!:)")
    text = _BLOCK.sub(lambda block: _POINTERS.sub(declared, block[0]), text)
    text = _ELEMENT.sub(lambda match: ctype(match[1]), own.sub(rf"\1{mark}", text))
    return read_source(
        file.replace(".c", f"{mark}.c"), text.replace("#include", f"#define PT_NARROW\n{sums}#include", 1)
    )


@cache
def kernel_sources() -> Mapping[str, Source]:
    """Kernel -> the file it is in."""
    names = sorted(item.name for item in (files("deploy") / "kernels").iterdir())
    found = [in_format(_text(name), name) for name in names if name.endswith(".c") and name != FUNCTIONS]
    return {kernel: source for source in found for kernel in source.kernels}


def sources(kernels: Iterable[str]) -> dict[str, str]:
    """File name -> text: the C files of these kernels, what they include, and `FUNCTIONS`."""
    called: dict[str, set[str]] = {}
    for kernel in kernels:
        called.setdefault(source_of(kernel).file, set()).add(kernel)
    used = [_only(source_of(min(names)), names) for _, names in sorted(called.items())]
    parts = ['#ifndef PT_KERNELS_H\n#define PT_KERNELS_H\n\n#include "kernel.h"\n']
    for source in used:
        prototypes = "".join(f"void {kernel}(const void *args);\n" for kernel in source.kernels)
        parts.append(f"/* {source.file} */\n{source.declared}{prototypes}")
    texts = {source.file: source.text for source in used} | {"kernels.h": "\n".join([*parts, "#endif\n"])}
    return texts | {name: _text(name) for name in (*HEADERS, FUNCTIONS)}


def _only(source: Source, kernels: Collection[str]) -> Source:
    """A file with these kernels and what they call, without its other functions."""
    kept = _reached(_bodies(source.text), kernels)
    text = _BODY.sub(lambda body: body[0] if body[1] in kept else "", source.text).rstrip() + "\n"
    kernels_kept = {name: struct for name, struct in source.kernels.items() if name in kept}
    return replace(source, text=text, kernels=kernels_kept)


def _bodies(text: str) -> dict[str, str]:
    return {body[1]: body[0] for body in _BODY.finditer(text)}


def _reached(bodies: Mapping[str, str], names: Iterable[str]) -> set[str]:
    """Functions of these names, and all that they call."""
    waiting, kept = set(names), set[str]()
    while waiting:
        name = waiting.pop()
        kept.add(name)
        waiting |= {word for word in re.findall(r"\w+", bodies[name]) if word in bodies and word not in kept}
    return kept


def called_by(kernel: str) -> set[str]:
    """The functions that a kernel calls, `FUNCTIONS` too, but other kernels, which do rests."""
    source, bodies = source_of(kernel), _bodies(source_of(kernel).text)
    reached = _reached(bodies, [kernel])
    words = {f"pt_{word}" for name in reached for word in re.findall(r"\w+", bodies[name])}
    elementary = set(re.findall(r"^float (\w+)\(", _text(FUNCTIONS), re.MULTILINE))
    return reached - set(source.kernels) | words & elementary


NOTHING = frozenset({"layer_call"})
"""Nests without numbers: what a call costs beyond the kernel it calls, which the C compiler makes itself."""


def c_calls(action: Compute, op: Op) -> tuple[CCall, ...]:
    """The C functions that do what the action does, one after the other in one fork, no barrier between them.

    None for a kernel that computes nothing. Raises InputError for a kernel without C source and ConfigError
    for a field nothing is known of.
    """
    team, effect = action.team, action.effect
    if team.kernel in NOTHING:
        return ()
    kernel = scalar(str(effect.details.get("source", team.kernel)) if effect is not None else team.kernel)
    if team.origin is None or effect is None:
        raise InputError(f"kernel {kernel} has no C source", cure="use a kernel that comes with pulptrain")
    nest = team.origin.calls[0]
    refuse(nest.codegen, kernel, (*effect.reads, *effect.writes))
    # A loop of an elementwise table computes what its entry says; its nest is the price.
    by_hand = kernel in kernel_sources() and "loop" not in effect.details
    if not by_hand and (made := generated(action, op, kernel)) is not None:
        return (_generated_call(made),)
    if kernel not in kernel_sources():
        what = f"codegen {nest.codegen} has no C source for kernel {kernel}"
        raise InputError(what, cure="use another kernel or codegen")
    nest = in_lanes(nest._replace(kernel=kernel), effect.details.get("order"))
    called = products(nest, effect) or [(nest, team.origin.addresses)]
    return tuple(_call(one, addresses, effect, op) for one, addresses in called)


def scalar(kernel: str) -> str:
    """The kernel whose loops the C of a 16-bit one has: blocks of the same size, numbers one by one."""
    if kernel in kernel_sources():
        return kernel
    name = kernel.replace("asm16_T_", "mm_unroll_").replace("asm16_", "asm_")
    return name.replace("_SIMD_4x8", "_SIMD_4x4").replace("_fp16_SIMD_", "_unroll_").replace("_fp16", "")


def refuse(codegen: str, kernel: str, places: Iterable[Place]) -> None:
    """Raise InputError for numbers that there is no C for."""
    unknown = {place.dtype for place in places if place.dtype not in C_TYPES}
    if unknown:
        raise InputError(
            f"kernel {kernel} has no C source for dtype {', '.join(sorted(unknown))}",
            where=codegen,
            cure="use dtype fp32, fp16 or bf16",
        )


_MADE: dict[str, Source] = {}
"""Files of kernels that have been called for, and generated or put into another format."""


def _generated_call(call: Generated) -> CCall:
    """The call of a generated kernel. Raises ConfigError where its name stands for two texts."""
    name = call.kernel.name
    source = read_source(f"{name}.c", call.kernel.source)
    if _MADE.setdefault(name, source) != source:
        raise ConfigError(f"deploy generated two different kernels with the name {name}", cure=REPORT)

    def argument(value: int | float | Varying | Place | tuple[float, ...]) -> Value:
        if isinstance(value, Place):
            return Pointer(value.address, C_TYPES[value.dtype])
        return Table(value) if isinstance(value, tuple) else value

    return CCall(name, name, tuple((key, argument(value)) for key, value in call.fields))


def source_of(kernel: str) -> Source:
    """The file of a kernel, written by hand or generated for a call before."""
    return kernel_sources().get(kernel) or _MADE[kernel]


def _call(nest: NestCall, addresses: tuple[int, ...], effect: Effect, op: Op) -> CCall:
    source, kernel = kernel_sources()[nest.kernel], nest.kernel
    values = _Known(nest, dict(zip((name for name, *_ in nest.forms), addresses, strict=True)), effect, op)
    struct = source.kernels[kernel]
    given = {field: values.value(field) for field in source.structs[struct]}
    pointers = {field: value for field, value in given.items() if isinstance(value, Pointer)}
    # What another field views as integers is no float.
    seen = {value.address for field, value in pointers.items() if field.ctype != C_TYPES[FP32]}
    arrays = {
        field.name: FP32
        if field not in pointers or pointers[field].address in seen
        else dtype_at(effect, pointers[field].address)
        for field in given
        if field.pointer and field.ctype == C_TYPES[FP32]
    }
    formats = {*arrays.values()}  # integers beside floats are converted, alone they are moved
    narrow = sorted(dtype for dtype in formats if dtype.is_narrow) or [INT32] * ({FP32, INT32} <= formats)
    if len(narrow) > 1:
        words = " and ".join(dtype.word for dtype in narrow)
        what = f"kernel {kernel} has no C source for {words} in one call"
        raise InputError(what, where=op.name, cure="use one dtype")
    if narrow:
        wide = sorted(name for name, dtype in arrays.items() if dtype != narrow[0])
        summed = any((effect.details.get("order"), *effect.details.get("orders", ())))
        source = _in_format(source.file, narrow[0], tuple(wide), summed)
        mark = source.file.removesuffix(".c").removeprefix(kernel_sources()[kernel].file.removesuffix(".c"))
        kernel, struct = kernel + mark, struct + mark
        _MADE.setdefault(kernel, source)
    return CCall(kernel, struct, tuple((field.name, value) for field, value in given.items()))


@cache
def _in_format(file: str, narrow: DType, wide: tuple[str, ...], summed: bool) -> Source:
    return in_format(_text(file), file, narrow, wide, summed=summed)


class _Known(Struct, frozen=True):
    """All that names of fields can mean."""

    nest: NestCall
    addresses: Mapping[str, int]
    effect: Effect
    op: Op

    def value(self, field: Field) -> Value:
        """The value of a field, of its type."""
        number = self._pointer(field) if field.pointer else self._number(field.name)
        if number is None:
            where = f"{self.nest.kernel}, {self.op.name}"
            raise ConfigError(f"unknown field '{field.name}'", where=where, cure="remove the field")
        if isinstance(number, bool):
            return int(number)
        return tuple(number) if isinstance(number, list) else number

    def _number(self, name: str) -> Any:
        if name == "accumulate" or name.startswith("has_"):
            return self.nest.accumulates if name == "accumulate" else name.removeprefix("has_") in self.op
        array, _, what = name.rpartition("_")
        if array in self.addresses and what == "s":
            return next(strides for form, strides, _ in self.nest.forms if form == array)
        if array and what in ("n", "d"):
            shape = self._shape(array)
            if shape is not None:
                return prod(shape) if what == "n" else shape
        for names in (dict(self.nest.sizes), self.effect.details, self.op.attributes):
            if name in names:
                number = names[name]
                return number() if callable(number) and not isinstance(number, Varying) else number
        return None

    def _pointer(self, field: Field) -> Pointer | Table | None:
        place = self._place(field.name)
        address = self.addresses.get(field.name, place.address if place else None)
        if address is None and field.name in self.op.attributes:
            return Table(tuple(self.op.attributes[field.name] or ()))
        if address == 0 and all(place.address for place in (*self.effect.reads, *self.effect.writes)):
            return Table(())  # an array that this call is not given
        return None if address is None else Pointer(address, field.ctype)

    def _place(self, name: str) -> Place | None:
        """Buffer ``read_0``, ``write_1`` ... of the action."""
        way, _, number = name.rpartition("_")
        if way not in ("read", "write") or not number.isdecimal():
            return None
        places = self.effect.reads if way == "read" else self.effect.writes
        return places[int(number)] if int(number) < len(places) else None

    def _shape(self, name: str) -> tuple[int, ...] | None:
        place = self._place(name)
        if place is not None:
            return place.shape
        piece = self.effect.details.get("arrays", {}).get(name)
        shape = getattr(piece, "shape", ())
        if shape:
            return tuple(shape)
        address = self.addresses.get(name)
        places = [*self.effect.reads, *self.effect.writes]
        return next((place.shape for place in places if place.address == address), None)
