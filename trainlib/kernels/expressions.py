# SPDX-License-Identifier: Apache-2.0
"""Arithmetic over named integers, as written in kernel files: parsed once, checked, never `eval`-ed."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from functools import lru_cache

from configs.errors import ConfigError
from configs.units import LARGEST_INTEGER
from configs.values import Struct

Names = Mapping[str, int]
Evaluator = Callable[[Names], int]


_BINARY: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_COMPARE: dict[type[ast.cmpop], Callable[[int, int], bool]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}
_FUNCTIONS: dict[str, Callable[..., int]] = {
    "min": min,
    "max": max,
    "ceildiv": lambda dividend, divisor: -(-dividend // divisor),
}
LONGEST = 400
"""Characters of an expression: few enough that it can be read and evaluated without end of stack."""

ALLOWED = "use only integers, names, + - * // %, comparisons, and/or/not, min, max, ceildiv"


class Expression(Struct, frozen=True):
    """An integer expression: its text, the names it uses and a function from their values to its own.

    Comparisons and and/or/not give 0 or 1.
    """

    text: str
    names: frozenset[str]
    evaluate: Evaluator


Term = tuple[str, int, Evaluator]
"""Text of a sub-expression without loop variables, its factor, and a function to its value."""


class Sum(Struct, frozen=True):
    """constant + sum of factor x sub-expression; `terms` are sorted by text and have no factor 0."""

    constant: int
    terms: tuple[Term, ...] = ()

    def evaluate(self, names: Names) -> int:
        """The value with the named sizes."""
        total = self.constant
        for _, factor, value in self.terms:
            total += factor * value(names)
        return total

    @property
    def form(self) -> tuple[tuple[str, int], ...]:
        """What the sum depends on: texts and factors. Sums with the same form differ by a constant."""
        return tuple((text, factor) for text, factor, _ in self.terms)


class Linear(Struct, frozen=True):
    """rest + sum of coefficient x loop variable; neither part depends on a loop variable."""

    coefficients: tuple[tuple[str, Sum], ...]
    rest: Sum


def add(first: Sum, second: Sum, factor: int = 1) -> Sum:
    """first + factor x second."""
    constant = first.constant + factor * second.constant
    if not second.terms or not factor:
        return Sum(constant, first.terms)
    terms = {text: (text, count, value) for text, count, value in first.terms}
    for text, count, value in second.terms:
        before = terms[text][1] if text in terms else 0
        terms[text] = (text, before + factor * count, value)
    return Sum(constant, tuple(terms[text] for text in sorted(terms) if terms[text][1]))


def evaluator(total: Sum) -> Evaluator:
    """The fastest function to the value of a sum."""
    constant = total.constant
    if not total.terms:
        return lambda names: constant
    (_, factor, value), *more = total.terms
    if not more and factor == 1:
        return value if not constant else lambda names: value(names) + constant
    return total.evaluate


def multiply(first: Sum, second: Sum) -> Sum:
    """Product of two sums, multiplied out."""
    total = add(Sum(first.constant * second.constant), Sum(0, second.terms), first.constant)
    total = add(total, Sum(0, first.terms), second.constant)
    for one, one_factor, one_value in first.terms:
        for two, two_factor, two_value in second.terms:
            text = " * ".join(sorted((f"({one})", f"({two})")))
            product = (text, one_factor * two_factor, _binary(operator.mul, one_value, two_value))
            total = add(total, Sum(0, (product,)))
    return total


def parse_expression(text: str, where: str) -> Expression:
    """Parse `text`; `where` is ``file:line``. Raises ConfigError on anything but plain integer arithmetic."""
    try:
        return _expression(text)
    except ConfigError as error:
        raise ConfigError(error.message, where=where, cure=error.cure) from None


def parse_linear(text: str, variables: frozenset[str], where: str) -> Linear:
    """Parse `text` as a sum in which loop `variables` only have factors free of loop variables.

    Raises ConfigError when it is not such a sum, because an address stream needs a constant stride.
    """
    try:
        return _linear(text, variables & _expression(text).names)
    except ConfigError as error:
        raise ConfigError(error.message, where=where, cure=error.cure) from None


# The same few texts (k, i + 1, M - M % 4) fill every kernel file, so each is parsed once.
@lru_cache(maxsize=4096)
def _expression(text: str) -> Expression:
    tree = _tree(text)
    return Expression(text, _names(tree) - _FUNCTIONS.keys(), _compile(tree, text))


@lru_cache(maxsize=4096)
def _linear(text: str, variables: frozenset[str]) -> Linear:
    coefficients: dict[str, Sum] = {}

    def walk(node: ast.expr, factor: Sum) -> Sum:  # noqa: PLR0911 - one return per node kind
        match node:
            case ast.Constant(value=value) if type(value) is int:
                return multiply(factor, Sum(value))
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                return add(walk(left, factor), walk(right, factor))
            case ast.BinOp(left=left, op=ast.Sub(), right=right):
                return add(walk(left, factor), walk(right, multiply(factor, Sum(-1))))
            case ast.BinOp(left=left, op=ast.Mult(), right=right) if not _names(left) & variables:
                return walk(right, multiply(factor, walk(left, Sum(1))))
            case ast.BinOp(left=left, op=ast.Mult(), right=right) if not _names(right) & variables:
                return walk(left, multiply(factor, walk(right, Sum(1))))
            case ast.Name(id=name) if name in variables:
                coefficients[name] = add(coefficients.get(name, Sum(0)), factor)
                return Sum(0)
            case _:
                if varying := _names(node) & variables:
                    raise ConfigError(
                        f"'{text}' is not linear in the loop variable '{min(varying)}'",
                        cure="write a sum of constant multiples of loop variables",
                    )
                return multiply(factor, Sum(0, ((ast.unparse(node), 1, _compile(node, text)),)))

    rest = walk(_tree(text), Sum(1))
    return Linear(tuple(sorted(coefficients.items(), key=lambda item: item[0])), rest)


def _names(node: ast.expr) -> frozenset[str]:
    return frozenset(name.id for name in ast.walk(node) if isinstance(name, ast.Name))


def _tree(text: str) -> ast.expr:
    if len(text) > LONGEST:
        raise ConfigError(
            f"the expression '{text[:30]}...' has {len(text)} characters, above the limit of {LONGEST}",
            cure=f"use at most {LONGEST} characters",
        )
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ConfigError(f"cannot read the expression '{text}'", cure=ALLOWED) from error
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and type(node.value) is int and node.value > LARGEST_INTEGER:
            raise ConfigError(
                f"'{text}' has a number above the limit of {LARGEST_INTEGER}",
                cure="use a smaller number",
            )
    return tree


def _binary(function: Callable[[int, int], int], first: Evaluator, second: Evaluator) -> Evaluator:
    return lambda names: function(first(names), second(names))


def _with_constant(function: Callable[[int, int], int], first: Evaluator, second: int) -> Evaluator:
    return lambda names: function(first(names), second)


def _compile(node: ast.expr, text: str) -> Evaluator:  # noqa: PLR0911, PLR0912 - one case per node kind
    match node:
        case ast.Constant(value=value) if type(value) is int:
            return lambda names: value
        case ast.Name(id=name) if name not in _FUNCTIONS:
            return operator.itemgetter(name)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            if isinstance(right, ast.Constant) and type(right.value) is int:
                return _with_constant(_BINARY[type(op)], _compile(left, text), right.value)
            return _binary(_BINARY[type(op)], _compile(left, text), _compile(right, text))
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            inner = _compile(operand, text)
            return lambda names: -inner(names)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            inner = _compile(operand, text)
            return lambda names: int(not inner(names))
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _COMPARE:
            return _binary(_COMPARE[type(op)], _compile(left, text), _compile(right, text))
        case ast.BoolOp(op=op, values=values):
            parts = [_compile(value, text) for value in values]
            if isinstance(op, ast.And):
                return lambda names: int(all(part(names) for part in parts))
            return lambda names: int(any(part(names) for part in parts))
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in _FUNCTIONS and args:
            function = _FUNCTIONS[name]
            if name == "ceildiv" and len(args) != 2:
                raise ConfigError(f"ceildiv has {len(args)} arguments in '{text}'", cure="use ceildiv(A, B)")
            parts = [_compile(arg, text) for arg in args]
            if len(parts) == 1:
                return parts[0]
            if len(parts) == 2:
                return _binary(function, *parts)
            return lambda names: function(*[part(names) for part in parts])
        case _:
            raise ConfigError(f"the expression '{text}' uses syntax that is not allowed", cure=ALLOWED)
