"""Arithmetic over named integers, as written in kernel files: parsed once, checked, never `eval`-ed."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from configs.errors import ConfigError

Names = Mapping[str, int]
Evaluator = Callable[[Names], int]


def _ceildiv(dividend: int, divisor: int) -> int:
    return -(-dividend // divisor)


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
_FUNCTIONS: dict[str, Callable[..., int]] = {"min": min, "max": max, "ceildiv": _ceildiv}
_ALLOWED = "integers, names, + - * // %, comparisons, and/or/not, min, max, ceildiv"


@dataclass(frozen=True, slots=True)
class Expression:
    """An integer expression: its text, the names it uses and a function from their values to its own.

    Comparisons and and/or/not give 0 or 1.
    """

    text: str
    names: frozenset[str]
    evaluate: Evaluator


Coefficient = int | Evaluator
"""A factor known while parsing, or one that depends on the named sizes."""


@dataclass(frozen=True, slots=True)
class Linear:
    """rest + sum of coefficient x loop variable; neither part depends on a loop variable."""

    coefficients: tuple[tuple[str, Coefficient], ...]
    rest: Coefficient


def value_of(coefficient: Coefficient, names: Names) -> int:
    """The integer behind a coefficient."""
    return coefficient if isinstance(coefficient, int) else coefficient(names)


def add(first: Coefficient, second: Coefficient) -> Coefficient:
    """Sum of two coefficients, folded when both are known."""
    if isinstance(first, int) and isinstance(second, int):
        return first + second
    if first == 0:
        return second
    if second == 0:
        return first
    return lambda names: value_of(first, names) + value_of(second, names)


def multiply(first: Coefficient, second: Coefficient) -> Coefficient:
    """Product of two coefficients, folded when it is known."""
    if isinstance(first, int) and isinstance(second, int):
        return first * second
    if 0 in (first, second):
        return 0
    if first == 1:
        return second
    if second == 1:
        return first
    return lambda names: value_of(first, names) * value_of(second, names)


def parse_expression(text: str, where: str) -> Expression:
    """Parse `text`; `where` is ``file:line``. Raises ConfigError on anything but plain integer arithmetic."""
    tree = _tree(text, where)
    names = frozenset(
        node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id not in _FUNCTIONS
    )
    return Expression(text, names, _compile(tree, text, where))


def parse_linear(text: str, variables: frozenset[str], where: str) -> Linear:
    """Parse `text` as a sum in which loop `variables` only have factors free of loop variables.

    Raises ConfigError when it is not such a sum, because an address stream needs a constant stride.
    """

    def uses(node: ast.expr) -> set[str]:
        return {name.id for name in ast.walk(node) if isinstance(name, ast.Name)} & variables

    coefficients: dict[str, Coefficient] = {}
    rest: Coefficient = 0

    def walk(node: ast.expr, factor: Coefficient) -> None:
        nonlocal rest
        match node:
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                walk(left, factor)
                walk(right, factor)
            case ast.BinOp(left=left, op=ast.Sub(), right=right):
                walk(left, factor)
                walk(right, multiply(factor, -1))
            case ast.BinOp(left=left, op=ast.Mult(), right=right) if not (uses(left) and uses(right)):
                scale, scaled = (right, left) if uses(left) else (left, right)
                walk(scaled, multiply(factor, _coefficient(scale, text, where)))
            case ast.Name(id=name) if name in variables:
                coefficients[name] = add(coefficients.get(name, 0), factor)
            case _:
                if uses(node):
                    raise ConfigError(
                        f"'{text}' is not linear in the loop variable '{min(uses(node))}'",
                        where=where,
                        cure="write it as a sum of constant multiples of loop variables",
                    )
                rest = add(rest, multiply(factor, _coefficient(node, text, where)))

    walk(_tree(text, where), 1)
    return Linear(tuple(sorted(coefficients.items(), key=lambda item: item[0])), rest)


def _coefficient(node: ast.expr, text: str, where: str) -> Coefficient:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    return _compile(node, text, where)


def _tree(text: str, where: str) -> ast.expr:
    try:
        return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError) as error:
        raise ConfigError(f"cannot read the expression '{text}'", where=where, cure=_ALLOWED) from error


def _compile(node: ast.expr, text: str, where: str) -> Evaluator:  # noqa: PLR0911 - one return per node kind
    match node:
        case ast.Constant(value=value) if type(value) is int:
            return lambda names: value
        case ast.Name(id=name) if name not in _FUNCTIONS:
            return operator.itemgetter(name)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            binary = _BINARY[type(op)]
            first, second = _compile(left, text, where), _compile(right, text, where)
            return lambda names: binary(first(names), second(names))
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            inner = _compile(operand, text, where)
            return lambda names: -inner(names)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            inner = _compile(operand, text, where)
            return lambda names: int(not inner(names))
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _COMPARE:
            compare = _COMPARE[type(op)]
            first, second = _compile(left, text, where), _compile(right, text, where)
            return lambda names: int(compare(first(names), second(names)))
        case ast.BoolOp(op=op, values=values):
            parts = [_compile(value, text, where) for value in values]
            if isinstance(op, ast.And):
                return lambda names: int(all(part(names) for part in parts))
            return lambda names: int(any(part(names) for part in parts))
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in _FUNCTIONS and args:
            function = _FUNCTIONS[name]
            if name == "ceildiv" and len(args) != 2:
                raise ConfigError(f"ceildiv takes two arguments in '{text}'", where=where)
            parts = [_compile(arg, text, where) for arg in args]
            if name != "ceildiv" and len(parts) == 1:
                return parts[0]
            return lambda names: function(*[part(names) for part in parts])
        case _:
            raise ConfigError(f"'{text}' uses something not allowed", where=where, cure=_ALLOWED)
