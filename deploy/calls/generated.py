# SPDX-License-Identifier: Apache-2.0
"""C kernels made from the tables of elementwise layers, losses, optimizers: formulas in the loops of nests.

A layer's kernel is named ``relu_fw``, ``relu_bw`` (``_bw1`` for the gradient of a second input), an update's
after its nest; what else decides on the text (a form, an option that is true) stands behind. Its arrays have
the names of the roles. Numbers beside a vector (the count of Adam's steps) are read by all cores before their
loops and stored by one behind a barrier.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from itertools import groupby
from math import prod
from typing import Any

import numpy as np

from arch.spec.program import Compute, Effect, Place
from configs.dtypes import FP32, INT32, DType, dtype_of, is_float, is_narrow
from configs.errors import InputError
from configs.values import Struct, replace
from deploy.calls.expression import (
    CHANNEL,
    ELEMENT,
    TEAM,
    Outcome,
    Symbol,
    Trace,
    Writer,
    branches,
    identifier,
    label,
)
from deploy.calls.row_loops import RowWriter, body, indented, load, over_own, pointers, store, traced
from trainlib.ir.graph import Op
from trainlib.ir.varying import Varying
from trainlib.primitives.lowering.elementwise import VectorLoop, update_name
from trainlib.primitives.lowering.row_loop import RowLoop
from trainlib.registry import step_of

C_TYPES: Mapping[str, str] = {
    **{"float32": "float", "float16": "pt_fp16", "bfloat16": "pt_bf16"},
    **{"int32": "int32_t", "uint8": "uint8_t", "int8": "int8_t"},
}
"""dtype of a buffer -> type of its elements in C."""


class Kernel(Struct, frozen=True):
    """A kernel made of an entry: its source, and the numbers its struct ends with.

    `exact`: C gives what NumPy does, bit for bit.
    """

    name: str
    source: str
    numbers: tuple[tuple[str, int | float | Varying], ...]
    exact: bool


class Generated(Struct, frozen=True):
    """A kernel, and the arguments of one call by the names of its fields.

    Arrays are places in L1, numbers of an option for each channel a tuple.
    """

    kernel: Kernel
    fields: tuple[tuple[str, int | float | Varying | Place | tuple[float, ...]], ...]


def generated(action: Compute, op: Op, name: str = "") -> Generated | None:
    """The kernel of an action that is an entry of a table, `name` that of its nest; None for others.

    Raises InputError for a formula there is no C for.
    """
    effect, nest = action.effect, name or action.team.kernel
    assert effect is not None
    try:
        if "loop" in effect.details:
            return _of_loop(effect, op, nest)
        if "rows" in effect.details:
            return _of_rows(action, effect, op, nest)
        return _of_loss(action, effect, op, nest) if "formula" in effect.details else None
    except (InputError, AttributeError, IndexError, TypeError) as error:  # what arrays can and symbols cannot
        what = f"no C source for kernel {nest}: {getattr(error, 'message', error)}"
        raise InputError(what, where=op.name, cure="use a layer that docs/deploy.md lists") from None


_KEPT: dict[tuple[int, str, str], tuple[Op, Kernel]] = {}
"""Kernels by op, nest and first result."""


def _cached(op: Op, nest: str, result: str, make: Callable[[], Kernel]) -> Kernel:
    """What `make` gives, made once for all tiles of an op."""
    kept_op, kernel = _KEPT.get((id(op), nest, result), (None, None))
    if kept_op is not op or kernel is None:
        kernel = make()
        _KEPT[id(op), nest, result] = op, kernel
    return kernel


def _of_loop(effect: Effect, op: Op, nest: str) -> Generated:
    loop: VectorLoop = effect.details["loop"]
    numbers = effect.details["numbers"]
    read = dict(zip(effect.details["reads"], effect.reads, strict=True))
    written = dict(zip(effect.details["writes"], effect.writes, strict=True))
    # A tile that does not store a number has the old one in the place of the new.
    made = {
        role: written.get(role) or read[role.removesuffix("_updated")]
        for role in loop.writes
        if role in op.writes
    }
    places = {**read, **made}
    kernel = _cached(op, nest, next(iter(made)), lambda: _loop(op, nest, loop, read, made, numbers))
    elements = next(prod(place.shape) for role, place in places.items() if role not in numbers)
    last = {} if made.keys().isdisjoint(numbers) else {"last": int(made.keys() <= written.keys())}
    return Generated(kernel, (*places.items(), ("elements", elements), *last.items(), *kernel.numbers))


def _loop(
    op: Op,
    nest: str,
    loop: VectorLoop,
    read: Mapping[str, Place],
    made: Mapping[str, Place],
    numbers: Collection[str],
) -> Kernel:
    """Elements over the cores; numbers beside the vectors are stored behind a barrier."""

    def formula(trace: Trace, symbolic: Op) -> dict[str, Any]:
        arrays: Any = {
            role: trace.array(role, place.dtype, known=TEAM if role in numbers else ELEMENT)
            for role, place in read.items()
        }
        results = loop.compute(symbolic, arrays)
        return {role: results[role] for role in made}

    integers = [role for role, place in read.items() if place.dtype == "int32" and role not in numbers]
    name, outcomes = _traced(op, "_int_".join((_stem(op, nest, next(iter(made))), *integers)), formula)
    name += _mark({**read, **made})
    counts = ["elements"] if made.keys().isdisjoint(numbers) else ["elements", "last"]
    fields = _fields(outcomes)
    lines = [f"/* {name}: elements over the cores. */", *_struct(name, read, made, counts, fields)]
    narrow = {role for role, place in {**read, **made}.items() if is_narrow(place.dtype)}
    source = _source(name, lines, _branch(outcomes, 0, numbers, narrow), narrow=bool(narrow))
    return Kernel(name, source, _numbers(fields), all(trace.exact for trace, _ in outcomes))


def dtype_at(effect: Effect, address: int) -> DType:
    """Of the buffer that an address lies in; fp32 where there is none."""
    for place in (*effect.reads, *effect.writes):
        if place.address <= address < place.address + max(place.size_bytes, 1):
            return dtype_of(place.dtype)
    return FP32


def _mark(places: Mapping[str, Place]) -> str:
    """What a name says of formats other than fp32: one of all arrays, or one of each that has it."""
    words = {role: dtype_of(place.dtype).word for role, place in places.items() if is_float(place.dtype)}
    if len(set(words.values())) == 1:
        return "".join(f"_{word}" for word in set(words.values()) if word != FP32.word)
    return "".join(f"_{role}_{word}" for role, word in words.items() if word != FP32.word)


def _of_rows(action: Compute, effect: Effect, op: Op, name: str) -> Generated:
    """A row program; it has the name of its nest, and arrays where the nest has them, else whole buffers."""
    assert action.team.origin is not None
    (nest,), addresses = action.team.origin.calls, action.team.origin.addresses
    loop: RowLoop = effect.details["rows"]
    name, sizes = f"{name}{loop.mark}", loop.sizes or dict(nest.sizes)
    places = {
        form: Place("l1", address, (), dtype_at(effect, address), form)
        for (form, *_), address in zip(nest.forms, addresses, strict=True)
    }
    for letters, buffers in (loop.reads, effect.reads), (loop.writes, effect.writes):
        places = {**dict(zip(letters, buffers, strict=False)), **places}
    narrow = any(is_narrow(place.dtype) for place in places.values())
    name += _mark(places) + "".join(f"_{role}_int" for role in places if places[role].dtype == INT32.name)
    made = {array: places[array] for array in loop.writes}
    read = {array: places[array] for array in loop.reads if array not in made}

    def kernel() -> Kernel:
        trace, results = traced(loop)
        fields = _fields([(trace, results)])
        lines = [f"/* {name}: {' and '.join(loop.writes)} from {', '.join(loop.reads)}. */"]
        lines += _struct(name, read, made, list(sizes), fields)
        source = _source(name, lines, body(loop, results, narrow=narrow), narrow=narrow)
        return Kernel(name, source, _numbers(fields), trace.exact and not loop.wide)

    kept = _cached(op, name, "", kernel)
    return Generated(kept, (*read.items(), *made.items(), *sizes.items(), *kept.numbers))


def _stem(op: Op, nest: str, result: str) -> str:
    if op.step == "UPD":
        return update_name(op, nest)
    if op.step not in ("FW", "IG"):
        return op.primitive
    stem = f"{op.primitive}_{result.replace('dx', 'bw') if op.step == 'IG' else 'fw'}"
    usual = step_of(replace(op, reads=()))
    if usual.like(op) is usual:
        return stem
    return f"{stem}_{'from' if op.step == 'IG' else 'with'}_{'mask' if 'mask' in op else 'y'}"


def _of_loss(action: Compute, effect: Effect, op: Op, nest: str) -> Generated:
    assert action.team.origin is not None
    read, target = dict(zip(op.reads, effect.reads, strict=False)), effect.details["target"]
    made, shape = {target: effect.writes[0]}, effect.reads[0].shape
    lists = {name: tuple(value) for name, value in op.attributes.items() if isinstance(value, list)}
    sizes = {"elements": prod(shape)}
    if "features" in dict(action.team.origin.calls[0].sizes):
        sizes = {"samples": shape[0], "features": shape[1]}
    sizes |= {"channels": shape[1], "places": prod(shape[2:])} if lists else {}
    formula = effect.details["formula"]
    kernel = _cached(op, nest, target, lambda: _loss(op, formula, read, made, [*sizes], [*lists]))
    scale = float(np.float32(effect.details["scale"]()))
    fields = {**read, **made, **sizes, **lists, **dict(kernel.numbers), "scale": scale}
    return Generated(kernel, tuple(fields.items()))


class _LossWriter(RowWriter):
    """Statements of a loss; a number for each channel lies in an array of its own."""

    def _place(self, name: str, known: int) -> str:
        if name == "term":
            return "const float term"
        if known == CHANNEL:
            return f"arg->{name}[i / arg->places % arg->channels]"
        return f"arg->{name}" if known == TEAM else super()._place(name, known)


def _loss(
    op: Op,
    formula: Callable[[Op, Any], Any],
    read: Mapping[str, Place],
    made: Mapping[str, Place],
    counts: Sequence[str],
    each: Sequence[str],
) -> Kernel:
    """A sum of terms, of elements or of rows of features, or their slopes, by one core alone."""
    (target,), of_rows = made, "features" in counts

    def scaled(trace: Trace, symbolic: Op) -> dict[str, Any]:
        arrays = {role: trace.array(role, place.dtype) for role, place in read.items()}
        result = trace.symbol(formula(symbolic, arrays))
        if target == "loss":
            return {
                "term": result if of_rows else trace.new_symbol("each", (result,), known=ELEMENT).sum(None)
            }
        return {target: trace.new_symbol("each", (result * trace.array("scale", known=TEAM),), known=ELEMENT)}

    name, outcomes = _traced(op, f"{op.primitive}_{'fw' if target == 'loss' else 'bw'}", scaled)
    fields = _fields(outcomes)
    places = dict.fromkeys((*read, target), "r*features + i" if of_rows else "i")
    loop = RowLoop(formula, "", "", places, ("samples",), ("features" if of_rows else "elements",))
    writer = _LossWriter(loop, outcomes[0][1], narrow=False)
    body, total = [*pointers(loop, writer.used, ""), *writer.row], "term"
    if of_rows:
        body += ["total += term;"] * (target == "loss")
        body, total = ["for (int r = 0; r < arg->samples; r++) {", *indented(body), "}"], "total"
    if target == "loss":
        body = [*["float total = 0.0f;"] * of_rows, *body, f"arg->loss[0] = {total} * arg->scale;"]
    what = "terms" if target == "loss" else "slopes"
    lines = [f"/* {name}: {what} of {op.primitive}, by one core alone. */"]
    lines += _struct(name, read, made, counts, {**fields, "scale": None}, each)
    return Kernel(name, _source(name, lines, [*writer.before, *body]), _numbers(fields), exact=False)


class _Options(dict[str, Any]):
    """Attributes of an op as symbols; those that were asked for are kept in `asked`."""

    def __init__(self, items: Mapping[str, Any]) -> None:
        super().__init__(items)
        self.asked: dict[str, None] = {}

    def __getitem__(self, name: str) -> Any:
        self.asked[name] = None
        return super().__getitem__(name)


def _traced(op: Op, stem: str, formula: Callable[[Trace, Op], dict[str, Any]]) -> tuple[str, list[Outcome]]:
    """A formula under all answers, and the name of its kernel: a stem and what decides on the text."""
    symbolic: list[_Options] = []

    def run(trace: Trace) -> dict[str, Any]:
        symbolic.append(_Options({name: trace.option(name, value) for name, value in op.attributes.items()}))
        return formula(trace, replace(op, attributes=symbolic[-1]))

    outcomes, marks = [*branches(run)], list[str]()
    for options in symbolic:
        marks += [options["form"]] if "form" in options else []
        for name in options.asked:
            if options[name] is None:
                marks.append(f"no_{name}")
            elif options[name] is True:
                marks.append(name)
            elif isinstance(options[name], Symbol) and options[name].known == CHANNEL:
                marks.append(f"{name}_each")
    marks += [name for trace, _ in outcomes for name, truth in trace.truths.items() if truth]
    said = {"exact", *stem.split("_")}
    return "_".join((stem, *(mark for mark in dict.fromkeys(marks) if mark not in said))), outcomes


def _fields(outcomes: Sequence[Outcome]) -> dict[str, Symbol]:
    """Numbers that any result or condition needs, by name."""
    fields: dict[str, Symbol] = {}
    for trace, results in outcomes:
        used = set[str]()
        waiting = [*results.values(), *trace.asked]
        seen = set(map(id, waiting))
        for item in waiting:
            used |= {item.op[1:]} if item.op[0] == "." else set()
            waiting += [part for part in item.args if id(part) not in seen]
            seen |= set(map(id, item.args))
        fields |= {name: symbol for name, symbol in trace.fields.items() if name in used}
    return fields


def _numbers(fields: Mapping[str, Symbol]) -> tuple[tuple[str, int | float | Varying], ...]:
    return tuple((name, _value(symbol)) for name, symbol in fields.items())


_DERIVED: dict[tuple[str, tuple[int, ...]], tuple[list[Varying], Varying]] = {}
"""Numbers made from numbers that vary, by label and identity of these."""


def _value(item: Symbol) -> int | float | Varying:
    """The number of a field; one that varies if an option in it does, and always the same one."""
    value = item.value
    assert value is not None
    varying: list[Varying] = []

    def noted(one: Varying) -> float:
        varying.append(one)
        return one.now

    now = value(noted)
    if not varying:
        return int(now) if item.kind == "int" else float(np.float32(now))
    if not item.args:
        return varying[0]

    def rule(number: int, losses: Sequence[float]) -> float:
        return float(value(lambda one: one.rule(number, losses)))

    key = label(item), tuple(map(id, varying))
    if key not in _DERIVED:
        steps = [one.steps for one in varying if one.steps is not None]
        _DERIVED[key] = varying, Varying(f"{key[0]} of {varying[0].text}", rule, min(steps, default=None))
    return _DERIVED[key][1]


def _struct(
    name: str,
    read: Mapping[str, Place],
    made: Mapping[str, Place],
    counts: Sequence[str],
    fields: Mapping[str, Symbol | None],
    each: Sequence[str] = (),
) -> list[str]:
    """The declaration of the arguments."""
    lines = ["/* arguments */", f"struct {name} {{"]
    for qualifier, places in (("const ", read), ("", made)):
        for ctype, roles in groupby(places, lambda role: C_TYPES[{**read, **made}[role].dtype]):
            lines.append(f"    {qualifier}{ctype} {', '.join(f'*{role}' for role in roles)};")
    lines.append(f"    int {', '.join(counts)};")
    lines += [f"    const float *{name};" for name in each]
    for key, symbol in fields.items():
        ctype = "int" if symbol is not None and symbol.kind == "int" else "float"
        said = label(symbol) if symbol is not None else key
        lines.append(f"    {ctype} {key};" + ("" if identifier(said) == key else f" /* {said} */"))
    return [*lines, "};", "/* end */"]


def _source(name: str, head: Sequence[str], body: Sequence[str], *, narrow: bool = False) -> str:
    lines = [
        "/* SPDX-License-Identifier: Apache-2.0 */",
        *(["#define PT_NARROW"] if narrow else []),
        '#include "kernels.h"',
        '#include "elementary.h"',
        "",
        *head,
        f"void {name}(const void *args)",
        "{",
        f"    PT_ARGUMENTS({name}, arg);",
        *indented(body),
        "}",
    ]
    return "\n".join(lines) + "\n"


def _place(narrow: Collection[str], array: str, when: int) -> str:
    return load(f"arg->{array}", "0" if when == TEAM else "i", array in narrow)


def _branch(
    outcomes: Sequence[Outcome], depth: int, numbers: Collection[str], narrow: Collection[str]
) -> list[str]:
    """The loop, or one under each answer to what the formula asked."""
    trace, results = outcomes[0]
    if depth == len(trace.asked):
        return _vector_loop(results, numbers, narrow)
    condition = trace.asked[depth]
    writer = Writer({"": condition}, partial(_place, narrow))
    sides = [[item for item in outcomes if item[0].answers[depth] == answer] for answer in (True, False)]
    holds, fails = (indented(_branch(side, depth + 1, numbers, narrow)) for side in sides)
    return [*writer.before, f"if ({writer.results['']}) {{", *holds, "} else {", *fails, "}"]


def _vector_loop(
    results: Mapping[str, Symbol], numbers: Collection[str], narrow: Collection[str]
) -> list[str]:
    writer = Writer(dict(results), partial(_place, narrow))
    texts = writer.results
    of_element = [store(_place(narrow, name, ELEMENT), texts[name]) for name in texts if name not in numbers]
    stored = [store(_place(narrow, name, TEAM), texts[name]) for name in texts if name in numbers]
    lines = over_own(writer, "elements", of_element)
    if stored:
        lines += ["pt_barrier(); /* all have read them */", "if (pt_core() == 0 && arg->last) {"]
        lines += [*indented(stored), "}"]
    return lines
