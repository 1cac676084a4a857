# SPDX-License-Identifier: Apache-2.0
"""Formulas of the tables as C: a `Symbol` stands for an array and records what NumPy is asked to do with it.

What NumPy computes in float32 is computed in the same order and with the same constants in C, so that results
agree bit for bit (`Trace.exact`). What NumPy does in float64, and Python with numbers known only at run time
(a bias correction), is done in float: PULP's FPU has nothing else. Arithmetic on options alone is done when
exporting, in float64 as in the formula; its result is a field of the kernel's arguments.
A formula that asks for the truth of a number known at run time is traced once for each answer (`branches`).
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from math import log
from typing import Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from configs.dtypes import is_float
from configs.errors import InputError
from trainlib.ir.varying import Varying

EXPORT, TEAM, ROW, SEGMENT, CHANNEL, ELEMENT = range(6)
"""When a value is known: at export, to the team before its loop, to each row, run of it, channel, element."""

REDUCTIONS: dict[str, tuple[str, str]] = {
    "sum": ("0.0f", "{0} += {1};"),
    "number": ("0", "{0} += {1};"),
    "largest": ("-INFINITY", "{0} = pt_maximum({0}, {1});"),
    "smallest": ("INFINITY", "{0} = pt_minimum({0}, {1});"),
}
"""What a reduction of a row begins with, and what an element does to it."""

_ATOM, _UNARY, _PRODUCT, _SUM, COMPARE, _AND, _OR, _CHOICE = range(8)
"""Precedences, the tightest first."""

_OPERATORS: dict[np.ufunc, tuple[str, int, Callable[..., Any] | None]] = {
    np.add: ("+", _SUM, operator.add),
    np.subtract: ("-", _SUM, operator.sub),
    np.multiply: ("*", _PRODUCT, operator.mul),
    np.divide: ("/", _PRODUCT, operator.truediv),
    np.remainder: ("%", _PRODUCT, None),
    np.greater: (">", COMPARE, operator.gt),
    np.greater_equal: (">=", COMPARE, operator.ge),
    np.less: ("<", COMPARE, operator.lt),
    np.less_equal: ("<=", COMPARE, operator.le),
    np.equal: ("==", COMPARE, operator.eq),
    np.not_equal: ("!=", COMPARE, operator.ne),
    np.bitwise_and: ("&&", _AND, None),
    np.bitwise_or: ("||", _OR, None),
}
"""In C, its precedence, and what numbers known at export are computed with."""
_ROUNDED = (np.sqrt, np.trunc, np.floor, np.ceil, np.rint, np.fmax)
_EXACT: dict[np.ufunc, str] = {
    np.absolute: "fabsf",
    **{function: f"{function.__name__}f" for function in _ROUNDED},
    **{function: f"pt_{function.__name__}" for function in (np.sign, np.maximum, np.minimum)},
}
"""Functions with one right result."""
_BOUNDS = {"pt_maximum": "pt_at_least", "pt_minimum": "pt_at_most"}
"""What they are where the second number is an option."""

_OF_LIBM = (np.exp, np.expm1, np.log, np.log1p, np.sin, np.cos, np.sinh, np.cosh, np.tanh)
_ELEMENTARY: dict[np.ufunc, str] = {
    np.power: "powf",
    np.logaddexp: "pt_logaddexp",
    **{function: f"{function.__name__}f" for function in _OF_LIBM},
}
_INFIX = {text: binds for text, binds, _ in _OPERATORS.values()}
_IN_C = {**{ufunc: text for ufunc, (text, *_) in _OPERATORS.items()}, **_EXACT, **_ELEMENTARY}
_AT_EXPORT = {"powf": operator.pow, **{text: compute for text, _, compute in _OPERATORS.values() if compute}}
_SIMPLE_POWERS = ("2", "0.5", "-0.5", "-1")
"""Exponents that need no logarithm."""

LONGEST = 84
"""Characters of an expression; a longer one is taken apart."""

Numbers = Callable[[Varying], float]
"""What a number that varies is, in the iteration asked for."""


class Symbol(NDArrayOperatorsMixin):
    """A value of a formula: an operation of others, an array of the kernel, an option or a number.

    `kind` is float, int, byte or bool, `known` one of `EXPORT` ..., `weak` that NumPy takes it for a Python
    number. `value` gives it where it is known at export. It behaves like an array of one element.
    """

    size = 0
    ndim = 0
    shape = ()

    def __init__(
        self,
        trace: Trace,
        op: str,
        args: tuple[Symbol, ...] = (),
        *,
        kind: str = "float",
        known: int = ELEMENT,
        value: Callable[[Numbers], Any] | None = None,
        weak: bool = False,
    ) -> None:
        self.trace, self.op, self.args = trace, op, args
        self.kind, self.known, self.value, self.weak = kind, known, value, weak

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of the array it stands for."""
        return np.dtype({"float": np.float32, "int": np.int32, "byte": np.uint8, "bool": np.bool_}[self.kind])

    @property
    def now(self) -> Any:
        """Its value at export."""
        assert self.value is not None
        return self.value(lambda varying: varying.now)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        """The operation, recorded."""
        if method != "__call__" or options:
            raise _refused(f"{ufunc.__name__}.{method}")
        return self.trace.applied(ufunc, [self.trace.symbol(item) for item in inputs])

    def __array_function__(
        self, function: Callable[..., Any], types: Sequence[type], args: Sequence[Any], options: Any
    ) -> Any:
        """``where``, ``clip``, ``full_like``; ``isclose`` of equal ones only."""
        if function is np.where:
            return self.trace.choice(*(self.trace.symbol(item) for item in args))
        if function is np.clip:
            x, low, high = args
            above = x if low is None else np.maximum(x, low)
            return above if high is None else np.minimum(above, high)
        if function is np.full_like:
            return self.trace.symbol(args[1])
        if function is np.isclose and options["rtol"] < np.finfo(np.float32).epsneg and not options["atol"]:
            return args[0] == args[1]
        raise _refused(function.__name__)

    def __getitem__(self, index: Any) -> Symbol:
        """The first element, or a row's number beside its elements.

        Of a selection only its size is asked, by checks of labels that C leaves out.
        """
        if not isinstance(index, Symbol) and index not in (0, (slice(None), None)):
            raise _refused("an index")
        return self

    def __bool__(self) -> bool:
        """Known at export, or one of the two after the other (`branches`)."""
        return self.trace.decided(self)

    def sum(self, axis: Any, **_: Any) -> Symbol:
        """Of a row; of a condition the number of elements."""
        if self.kind == "bool":
            return self.trace.new_symbol("number", (self,), kind="int", known=ROW)
        self.trace.exact = False
        return self.trace.new_symbol("sum", (self,), known=ROW)

    def max(self, axis: int | None = None, **_: Any) -> Symbol:
        """Of a row."""
        return self.trace.new_symbol("largest", (self,), known=ROW)

    def min(self, axis: int, **_: Any) -> Symbol:
        """Of a row."""
        return self.trace.new_symbol("smallest", (self,), known=ROW)

    def item(self) -> Symbol:
        """The first element as a Python number."""
        return self.trace.new_symbol("item", (self,), kind=self.kind, weak=True)

    def astype(self, dtype: Any, **_: Any) -> Symbol:
        """Itself, or cut to an unsigned integer of which only the bits are asked for."""
        target = np.dtype(dtype)
        if target == np.uint32:
            return self.trace.new_symbol("(uint32_t)", (self,), kind="int")
        if target.kind != "f":
            raise _refused(f"a conversion to {target}")
        self.trace.exact &= target == np.float32
        return self

    def view(self, dtype: Any) -> Symbol:
        """Bits as a float."""
        return self.trace.new_symbol("pt_float_of_bits", (self,))

    def elementary(self, function: Callable[..., Any], slope: Callable[..., Any]) -> Symbol:
        """A function with a slope of its own (`trainlib.primitives.derivative.elementary`)."""
        if function.__name__ == "first":
            return self.trace.new_symbol("first", (self,), kind="bool")
        if function.__name__ != "normal":
            return function(self)  # type: ignore[no-any-return]
        self.trace.exact = False
        return 0.5 * self.trace.new_symbol("erfcf", (self * -(0.5**0.5),))  # type: ignore[no-any-return]


def _refused(what: str) -> InputError:
    return InputError(
        f"deploy cannot translate a formula with {what} to C",
        cure="use another layer, or add the function to deploy/calls/expression.py",
    )


class _UndecidedError(Exception):
    """The truth of a number known at run time was asked for, and not yet answered."""


class Trace:
    """One formula under way: values made so far, fields asked for, answers given."""

    def __init__(self, answers: Sequence[bool] = ()) -> None:
        self.exact = True
        """Whether C gives what NumPy does, bit for bit."""
        self.fields: dict[str, Symbol] = {}
        """Numbers that the kernel's arguments hold, by name."""
        self.asked: list[Symbol] = []
        """Conditions that were decided, in order; `answers` are theirs."""
        self.answers = list(answers)
        self.truths: dict[str, bool] = {}
        """Options whose truth the formula depends on."""
        self._known: dict[tuple[Any, ...], Symbol] = {}

    def array(self, name: str, dtype: str = "float32", *, known: int = ELEMENT) -> Symbol:
        """An array of the kernel: one element of it, or its only one."""
        kind = "float" if is_float(dtype) else "byte" if dtype == "uint8" else "int"
        return self.new_symbol(f"@{name}", (), kind=kind, known=known)

    def option(self, name: str, value: Any) -> Any:
        """An option: a number, or one for each channel, as a symbol, everything else as it is."""
        if isinstance(value, list):
            return self.new_symbol(f"@{name}", (), known=CHANNEL)
        if isinstance(value, Varying):
            return self.new_symbol(f"${name}", (), known=EXPORT, value=lambda at: at(value), weak=True)
        if type(value) in (int, float):
            kind = type(value).__name__
            return self.new_symbol(f"${name}", (), kind=kind, known=EXPORT, value=lambda at: value, weak=True)
        return value

    def symbol(self, item: Any) -> Symbol:
        """What a formula combines with a symbol."""
        if isinstance(item, Symbol):
            return item
        array = np.asarray(item)
        if array.size != 1:
            raise _refused("an option of several numbers")
        number = array.item()
        kind = "bool" if isinstance(number, bool) else "int" if isinstance(number, int) else "float"
        strong = isinstance(item, np.generic | np.ndarray) and array.dtype == np.float64
        return self.new_symbol(
            repr(number), (), kind=kind, known=EXPORT, value=lambda at: number, weak=not strong
        )

    def new_symbol(self, op: str, args: tuple[Symbol, ...], **more: Any) -> Symbol:
        """The symbol of an operation; equal ones are one."""
        when = more.get("known", max((item.known for item in args), default=ELEMENT))
        key = (op, *map(id, args), more.get("kind"), more.get("weak"))
        if key not in self._known:
            self._known[key] = Symbol(self, op, args, **{**more, "known": when})
        return self._known[key]

    def applied(self, ufunc: np.ufunc, args: list[Symbol]) -> Symbol:
        """A function of symbols."""
        simpler = self._simpler(ufunc, args)
        if simpler is not None:
            return simpler
        op = _IN_C.get(ufunc)
        if op is None:
            raise _refused(ufunc.__name__)
        if all(item.value is not None for item in args) and op in _AT_EXPORT:
            return self._at_export(op, args)
        correction = self._bias_correction(op, args)
        return self._operation(ufunc, op, args) if correction is None else correction

    def _simpler(self, ufunc: np.ufunc, args: list[Symbol]) -> Symbol | None:
        """What is no operation of C, or a cheaper one with the same result."""
        if ufunc is np.square:
            return self.applied(np.multiply, args * 2)
        if ufunc is np.negative:
            return self._negated(args[0])
        if ufunc is np.power and args[0].value is None and args[1].op in _SIMPLE_POWERS:
            return self._simple_power(args[0], args[1].now)
        if ufunc is np.multiply and {"1", "1.0"} & {args[0].op, args[1].op}:
            self.exact &= all(item.value is None or item.weak for item in args)
            return args[args[0].op in ("1", "1.0")]
        return None

    def _operation(self, ufunc: np.ufunc, op: str, args: list[Symbol]) -> Symbol:
        kind = "bool" if _INFIX.get(op, 0) >= COMPARE else "float"
        if op in "+-*%" and all(item.kind == "int" for item in args):
            kind = "int"
        weak = all(item.weak for item in args)
        rounds = kind == "float" and ufunc not in (np.sign, np.absolute, np.maximum, np.minimum)
        wide = any(not item.weak if item.value is not None else item.kind == "int" for item in args)
        self.exact &= ufunc not in _ELEMENTARY and not (rounds and (weak or wide))
        return self.new_symbol(op, tuple(self.placed(item) for item in args), kind=kind, weak=weak)

    def choice(self, condition: Symbol, first: Symbol, second: Symbol) -> Symbol:
        """One or the other."""
        if condition.value is not None:
            return first if self.decided(condition) else second
        kind = first.kind if first.kind == second.kind else "float"
        placed = tuple(self.placed(item) for item in (condition, first, second))
        return self.new_symbol("?", placed, kind=kind)

    def placed(self, item: Symbol) -> Symbol:
        """A symbol as C has it: arithmetic on options alone becomes a field."""
        if item.value is None or not _of_options(item):
            return item
        name = identifier(label(item))
        if name in self.fields and self.fields[name] is not item:
            name = f"{name}_{len(self.fields)}"
        self.fields[name] = item
        return self.new_symbol(f".{name}", (), kind=item.kind, known=TEAM)

    def decided(self, condition: Symbol) -> bool:
        """The answer to a condition."""
        if condition.value is not None:
            if _of_options(condition):
                self.truths[label(condition)] = bool(condition.now)
            return bool(condition.now)
        for asked, answer in zip(self.asked, self.answers, strict=False):
            if asked is condition:
                return answer
        self.asked.append(condition)
        if len(self.asked) > len(self.answers):
            raise _UndecidedError
        return self.answers[len(self.asked) - 1]

    def _negated(self, item: Symbol) -> Symbol:
        if item.value is not None:
            return self._at_export("-", [self.symbol(0), item])
        return self.new_symbol("neg", (item,), kind=item.kind, weak=item.weak)

    def _simple_power(self, base: Symbol, exponent: float) -> Symbol:
        if exponent == 2:
            return self.applied(np.multiply, [base, base])
        root = base if exponent == -1 else self.applied(np.sqrt, [base])
        self.exact &= not base.weak
        return root if exponent > 0 else self.applied(np.divide, [self.symbol(1), root])

    def _at_export(self, op: str, args: list[Symbol]) -> Symbol:
        compute, parts = _AT_EXPORT[op], [item.value for item in args]

        def value(at: Numbers) -> Any:
            return compute(*(part(at) for part in parts if part is not None))

        result = value(lambda varying: varying.now)
        kind = "bool" if isinstance(result, bool) else "int" if isinstance(result, int) else "float"
        weak = all(item.weak for item in args)
        return self.new_symbol(op, tuple(args), kind=kind, known=EXPORT, value=value, weak=weak)

    def _bias_correction(self, op: str, args: list[Symbol]) -> Symbol | None:
        """1 - beta^t, of which a float power would leave few digits, as -(exp(t · log beta) - 1)."""
        power = args[-1]
        if op != "-" or power.op != "powf" or args[0].value is None or args[0].now != 1:
            return None
        base, exponent = power.args
        origin = self.fields.get(base.op[1:])
        if origin is None or origin.value is None:
            return None
        given = origin.value

        def logarithm(at: Numbers) -> float:
            return log(max(given(at), 1e-38))

        rate = self.new_symbol("log", (origin,), known=EXPORT, value=logarithm, weak=True)
        self.exact = False
        return self._negated(
            self.new_symbol("expm1f", (self.applied(np.multiply, [exponent, rate]),), weak=True)
        )


def _of_options(item: Symbol) -> bool:
    """Whether a value known at export depends on an option: others are written as numbers."""
    return any(map(_of_options, item.args)) if item.args else item.op[0] == "$"


def label(item: Symbol) -> str:
    """What is known at export, in the words of the formula."""
    if not item.args:
        return item.op.removeprefix("$")
    parts = [f"({label(part)})" if part.args else label(part) for part in item.args]
    if item.op == "log":
        return f"log({label(item.args[0])})"
    return f" {'**' if item.op == 'powf' else item.op} ".join(parts)


_WORDS = {"+": "plus", "-": "minus", "*": "times", "/": "by", "**": "to", "1": "one", "2": "two", "0": "zero"}


def identifier(text: str) -> str:
    """A C name for a label."""
    words = text.replace("(", " ").replace(")", " ").split()
    name = "_".join(_WORDS.get(word, word) for word in words)
    return name if name.isidentifier() and len(name) < 48 else f"number_{sum(map(ord, text))}"


Outcome = tuple[Trace, dict[str, Any]]
"""A formula under some answers: its trace, and its results by name."""


def branches(run: Callable[[Trace], dict[str, Any]]) -> Iterator[Outcome]:
    """A formula traced under all answers to what it asks, true before false."""
    waiting: list[list[bool]] = [[]]
    while waiting:
        answers = waiting.pop()
        trace = Trace(answers)
        try:
            results = run(trace)
        except _UndecidedError:
            waiting += [[*answers, False], [*answers, True]]
            continue
        yield trace, {name: trace.placed(trace.symbol(item)) for name, item in results.items()}


class Writer:
    """Statements of one loop: values used twice, results and long expressions get names."""

    def __init__(self, results: Mapping[str, Symbol], load: Callable[[str, int], str]) -> None:
        """`load` is how an array is read, by name and `known`."""
        self.before: list[str] = []
        """Statements ahead of the loop."""
        self.inside: list[str] = []
        """Statements in the loop."""
        self._load = load
        self._names: dict[int, str] = {}
        self._uses: Counter[int] = Counter()
        self._several = len(results) > 1
        for item in results.values():
            self._count(item)
        # Of several results all are there before the first is stored: it may lie where another array is read.
        fresh = {id(item): f"new_{name.removesuffix('_updated')}" for name, item in results.items()}
        self._fresh = fresh if self._several else {}
        self.results = {name: self.text(item) for name, item in results.items()}

    def _count(self, item: Symbol) -> None:
        self._uses[id(item)] += 1
        if self._uses[id(item)] == 1:
            for part in item.args:
                self._count(part)

    def _named(self, item: Symbol, text: str) -> str:
        """A name for a value, declared where it is known."""
        name = self._leaf(item) if item.op[0] in "@." else self._fresh.get(id(item)) or self._unused("t")
        kind = "float" if item.kind == "float" else "int"
        self._lines(item.known).append(f"const {kind} {name} = {text};")
        self._names[id(item)] = name
        return name

    def _lines(self, known: int) -> list[str]:
        """Where a value that is known then is declared."""
        return self.before if known <= TEAM else self.inside

    def _leaf(self, item: Symbol) -> str:
        """A name for what is read."""
        return item.op[1:]

    def _unused(self, stem: str) -> str:
        """A name that nothing has."""
        taken = {*self._names.values()}
        return next(name for name in map(f"{stem}{{}}".format, count(1)) if name not in taken)

    def text(self, item: Symbol, room: int = _CHOICE, like: str = "", user: int = TEAM) -> str:
        """The value as C, in brackets where it binds less than `room`; `user` is when its user is known."""
        if id(item) in self._names:
            return self._names[id(item)]
        if item.value is not None:
            return _number(item.now, like or item.kind)
        if item.op in ("item", "each"):
            return self.text(item.args[0], room, like, user)
        text, binds = self._written(item)
        often = self._uses[id(item)] > 1 or (item.op[0] == "@" and self._several) or item.op == "first"
        hoisted = item.known in (TEAM, ROW, SEGMENT) and user > item.known
        if often or hoisted or len(text) > LONGEST or id(item) in self._fresh:
            return self._named(item, text)
        return f"({text})" if binds > room else text

    def _written(self, item: Symbol) -> tuple[str, int]:
        """The operation of a symbol, and how it binds."""
        op, args = item.op, item.args
        kinds = {part.kind for part in args if part.value is None}
        like = "float" if "float" in kinds or op == "/" or item.kind == "float" else ""

        def part(index: int, room: int, kind: str = like) -> str:
            return self.text(args[index], room, kind, item.known)

        if op in _INFIX:
            return self._infix(item, like, kinds)
        simple = {
            "@": lambda: (self._load(op[1:], item.known), _ATOM),
            ".": lambda: (f"arg->{op[1:]}", _ATOM),
            "neg": lambda: (f"-{part(0, _ATOM)}", _UNARY),
            "?": lambda: (f"{part(0, _OR, '')} ? {part(1, _OR)} : {part(2, _OR)}", _CHOICE),
            "(uint32_t)": lambda: (f"(uint32_t){part(0, _ATOM)}", _UNARY),
        }
        simple_text = simple.get(op) or simple.get(op[0])
        if simple_text is not None:
            return simple_text()
        if op in _BOUNDS and (args[1].value is not None or args[1].op[0] == "."):
            op = _BOUNDS[op]
        cast = [value.value is None and value.kind != "float" for value in args]
        texts = ("(float)" * c + part(at, _ATOM if c else _CHOICE, "float") for at, c in enumerate(cast))
        return f"{op}({', '.join(texts)})", _ATOM

    def _infix(self, item: Symbol, like: str, kinds: set[str]) -> tuple[str, int]:
        """Left, operator, right; the longer side has a name where both would be too long."""
        op, args, binds = item.op, item.args, _INFIX[item.op]
        room = COMPARE if op == "||" else binds

        def sides() -> list[str]:
            return [self.text(args[side], room - side * (room == binds), like, item.known) for side in (0, 1)]

        texts = sides()
        if sum(map(len, texts)) > LONGEST:
            longer = len(texts[1]) > len(texts[0])
            self._named(args[longer], self.text(args[longer], _CHOICE, like, item.known))
            texts = sides()
        if op == "/" and kinds == {"int"}:
            texts[0] = f"(float){texts[0]}"
        return f" {op} ".join(texts), binds


def _number(value: Any, kind: str) -> str:
    """A literal: a float as float32 rounds it."""
    return float_text(value, str) if kind == "float" else str(int(value))


def float_text(value: float, digits: Callable[[np.float32], str] = "{:.9g}".format) -> str:
    """The nearest fp32 number as a C constant, exactly; `digits` are nine, or with ``str`` as few as do."""
    single = np.float32(value)
    if not np.isfinite(single):
        return "NAN" if np.isnan(single) else "INFINITY" if single > 0 else "-INFINITY"
    text = digits(single)
    return f"{text}f" if "." in text or "e" in text else f"{text}.0f"
