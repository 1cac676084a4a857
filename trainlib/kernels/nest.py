# SPDX-License-Identifier: Apache-2.0
"""The nest language: instruction classes, loops and conditions of a kernel, as text, and its strict parser.

    for i in start..stop branch {
      V U A A V
      for j in 0..M branch {
        V*4 H  for k in 0..K hw { L+:A(i,k) L+:B(k,j) F' }  V A*3 S:C(i,j) A B
      }
      A A B
    }

Codes: A integer ALU, V move or constant, L load, S store, F fused multiply-add, M fp multiply, f other fp,
U integer multiply, D fp division or square root, Q integer division, B branch, J jump, H hardware-loop
set-up, C CSR, R load from L2, W store to L2. Behind a code: `+` post-increment (free; a core without it
pays, see `transform`), `.2` access width in bytes, `:array(index,...)` the element a load or store touches
(without it: a stack slot or an argument), `'` uses the result of the load or multiply just before,
`[t0<t1,t2]` names the registers (written < read) instead of the rule below, `*n` repeats.

A branch that closes no loop is not taken unless it says `B!` (taken), `B?(condition)` (taken if) or `B%0.5`
(share of executions in which it is taken). `if (condition) { } else { }` is resolved before the kernel runs.
A loop `for [variable in] start..stop [step n] branch|hw|jump` runs ceil((stop - start) / step) times:
`branch` loops end with the B that closes them (taken in all but the last trip), `hw` loops close
themselves, `jump` loops contain whatever instructions lead back (usually a J); the branch that leaves
them counts as not taken, one taken branch too few per execution of the loop. `#` starts a comment.

The one rule for registers (see `Registers`): every load and every multiply, division or fp result goes to a
register of its own; F adds to an accumulator of its own (one per F in the text), carried around the loop; `'`
reads the result of the L or U just before; M, f, D, and F or S right after M, f or D, read that result.
Everything else is independent.
"""

from __future__ import annotations

import re

from arch.spec.isa import Op
from configs.errors import ConfigError
from configs.values import Struct, replace
from trainlib.kernels.expressions import (
    Evaluator,
    Expression,
    Linear,
    Sum,
    add,
    evaluator,
    multiply,
    parse_expression,
    parse_linear,
)
from trainlib.kernels.nodes import CODES, Access, Choice, Code, Counted, Nest, NestNode, Registers

_CODE = re.compile(r"([A-Za-z])(\+?)(?:\.(\d))?(')?")
_PLAIN = re.compile(r"([AVLSFMfUDQBJHC])(?:\*([1-9]\d*))?(?=[\s}])")
_WORD = re.compile(r"[A-Za-z_]\w*")
_NAMED = re.compile(r"\[(\w*)<((?:\w+(?:,\w+)*)?)\]")
_SPACE = re.compile(r"(?:\s+|#[^\n]*)*")
_ZERO = Sum(0)
_NUMBER = re.compile(r"\d+(\.\d+)?")

MOST_INSTRUCTIONS = 65_536
"""Instructions of one kernel text, repeats counted out: 256 KiB of code."""

DEEPEST = 32
"""Loops and conditions inside each other."""


class _OpenLoop(Struct, frozen=True):
    variable: str
    counters: tuple[tuple[int, Sum], ...]
    """The variable as a sum: loop depth, coefficient of that loop's counter."""
    start: Sum


class _Parser:
    def __init__(self, text: str, file: str, first_line: int) -> None:
        self.text = text
        self.file = file
        self.first_line = first_line
        self.position = 0
        self.loops: list[_OpenLoop] = []
        self.registers = Registers()
        self.accesses: list[Access] = []
        self.names: set[str] = set()
        self.indices: dict[str, tuple[Sum, tuple[Sum, ...]]] = {}
        self.instructions = 0
        self.depth = 0

    @property
    def where(self) -> str:
        return f"{self.file}:{self.first_line + self.text.count(chr(10), 0, self.position)}"

    def fail(self, message: str, cure: str | None = None) -> ConfigError:
        return ConfigError(message, where=self.where, cure=cure)

    def skip(self) -> None:
        match = _SPACE.match(self.text, self.position)
        if match:
            self.position = match.end()

    def accept(self, token: str) -> bool:
        if self.text.startswith(token, self.position):
            self.position += len(token)
            return True
        return False

    def expect(self, token: str) -> None:
        self.skip()
        if not self.accept(token):
            rest = self.text[self.position : self.position + 12].split("\n")[0] or "the end of the text"
            raise self.fail(f"expected '{token}', found '{rest}'", f"write '{token}' there")

    def word(self) -> str:
        self.skip()
        match = _WORD.match(self.text, self.position)
        return match.group() if match else ""

    def nodes(self, closing: str) -> tuple[NestNode, ...]:
        """Everything up to `closing` ("}" or "" for the end of the text)."""
        self.depth += 1
        if self.depth > DEEPEST:
            raise self.fail(f"more than {DEEPEST} nested loops and conditions", "use fewer levels")
        result = self.sequence(closing)
        self.depth -= 1
        return result

    def repeats(self, digits: str) -> int:
        """How often an instruction is repeated; counts it."""
        count = int(digits) if len(digits) < 10 else MOST_INSTRUCTIONS
        self.instructions += count
        if self.instructions > MOST_INSTRUCTIONS or len(digits) >= 10:
            raise self.fail(
                f"the code has more than {MOST_INSTRUCTIONS:,} instructions", "write repeated code as a loop"
            )
        return count

    def sequence(self, closing: str) -> tuple[NestNode, ...]:
        """The nodes of `nodes`."""
        result: list[NestNode] = []
        while True:
            self.skip()
            if self.position >= len(self.text):
                if closing:
                    raise self.fail("a '{' is never closed", "add the missing '}'")
                return tuple(result)
            if closing and self.accept(closing):
                return tuple(result)
            # Most of a text is plain codes without marks; they are taken here, everything else step by step.
            plain = _PLAIN.match(self.text, self.position)
            if plain is not None:
                self.position = plain.end()
                result.extend(self.registers.plain(CODES[plain[1]], self.repeats(plain[2] or "1")))
                continue
            word = self.word()
            if word == "for":
                result.append(self.loop())
            elif word == "if":
                result.append(self.choice())
            else:
                result.extend(self.code())

    def balanced(self, stops: str) -> str:
        """Text up to the first of `stops` outside parentheses; the stop itself is not consumed."""
        depth, start = 0, self.position
        while self.position < len(self.text):
            character = self.text[self.position]
            if depth == 0 and (character in stops or ("." in stops and character == ".")):
                break
            depth += (character == "(") - (character == ")")
            if depth < 0 or character in "{}":
                break
            self.position += 1
        else:
            raise self.fail("the loops of the kernel end too early", f"add one of '{stops}'")
        return " ".join(self.text[start : self.position].split())

    def expression(self, text: str) -> Expression:
        expression = parse_expression(text, self.where)
        variables = {loop.variable for loop in self.loops}
        self.names |= expression.names - variables
        return expression

    def linear(self, text: str) -> Linear:
        self.expression(text)
        return parse_linear(text, frozenset(loop.variable for loop in self.loops), self.where)

    def in_counters(self, form: Linear) -> tuple[Sum, dict[int, Sum]]:
        """A sum of loop variables as a sum of loop counters: constant part and coefficient per depth."""
        constant, counters = form.rest, dict[int, Sum]()
        for variable, factor in form.coefficients:
            loop = next(item for item in reversed(self.loops) if item.variable == variable)
            constant = add(constant, multiply(factor, loop.start))
            for depth, coefficient in loop.counters:
                counters[depth] = add(counters.get(depth, _ZERO), multiply(factor, coefficient))
        return constant, counters

    def loop(self) -> Counted:
        self.position += len("for")
        variable = self.word()
        rest = self.text[self.position + len(variable) :].lstrip()
        if re.match(r"in\b", rest):
            self.position += len(variable)
            self.expect("in")
        else:
            variable = ""
        if variable and any(loop.variable == variable for loop in self.loops):
            raise self.fail(f"an outer loop has the variable '{variable}', too", "rename one of the two")
        start_text = self.balanced(".")
        self.expect("..")
        stop_text = re.match(r"[^{]*?(?=\s+(?:step\b|branch\b|hw\b|jump\b))", self.text[self.position :])
        if stop_text is None:
            raise self.fail("a loop lacks its kind before '{'", "write branch, hw or jump")
        stop = stop_text.group().strip()
        self.position += stop_text.end()
        step = 1
        if self.word() == "step":
            self.expect("step")
            self.skip()
            number = _NUMBER.match(self.text, self.position)
            if number is None or not number.group().isdigit() or not 0 < len(number.group().lstrip("0")) < 19:
                raise self.fail("no number after 'step'", "write a whole number from 1, at most 18 digits")
            self.position = number.end()
            step = int(number.group())
        kind = self.word()
        if kind not in ("branch", "hw", "jump"):
            raise self.fail(f"unknown kind of loop '{kind}'", "write branch, hw or jump")
        self.expect(kind)
        self.expect("{")
        first, last = self.linear(start_text), self.linear(stop)
        length = self.difference(first, last)
        constant, counters = self.in_counters(first)
        depth = len(self.loops)
        counters[depth] = Sum(step)
        self.registers.previous = None
        self.loops.append(_OpenLoop(variable, tuple(counters.items()), constant))
        outside, self.indices = self.indices, {}
        body = self.nodes("}")
        self.indices = outside
        self.loops.pop()
        self.registers.previous = None
        if kind == "branch" and not (body and isinstance(body[-1], Code) and _is_branch(body[-1])):
            raise self.fail(
                "a loop of kind 'branch' must end with B, its branch instruction",
                "add B at the end of the body, or use kind 'hw' (hardware loop)",
            )
        return Counted(_trips(length, step), kind != "branch", body)

    def difference(self, first: Linear, last: Linear) -> Sum:
        start, start_counters = self.in_counters(first)
        stop, stop_counters = self.in_counters(last)
        for depth in start_counters.keys() | stop_counters.keys():
            if add(stop_counters.get(depth, _ZERO), start_counters.get(depth, _ZERO), -1) != _ZERO:
                raise self.fail("the trips depend on the variable of another loop", "use a constant number")
        return add(stop, start, -1)

    def choice(self) -> Choice:
        self.position += len("if")
        self.expect("(")
        condition = self.expression(self.balanced(")"))
        self.expect(")")
        self.expect("{")
        self.registers.previous = None
        then = self.nodes("}")
        self.registers.previous = None
        otherwise: tuple[NestNode, ...] = ()
        if self.word() == "else":
            self.expect("else")
            if self.word() == "if":
                otherwise = (self.choice(),)
            else:
                self.expect("{")
                otherwise = self.nodes("}")
        self.registers.previous = None
        return Choice(condition, then, otherwise)

    def code(self) -> list[Code]:
        match = _CODE.match(self.text, self.position)
        if match is None or match.group(1) not in CODES:
            bad = self.text[self.position : self.position + 8].split()[0]
            listed = ", ".join(f"{letter} ({op.name.lower()})" for letter, op in CODES.items())
            raise self.fail(
                f"unknown instruction code '{bad[0]}' in '{bad}'", f"use one of {listed}; docs/kernels.md"
            )
        letter, increment, width, uses_load = match.groups()
        op = CODES[letter]
        self.position = match.end()
        self.repeats("1")
        memory = op in (Op.LOAD, Op.STORE)
        if (increment or width) and not memory:
            raise self.fail(
                f"'{match.group()}' has a + (next address) or a width, but does not access memory",
                f"write '{letter}', or use L (load) or S (store)",
            )
        if width and int(width) not in (1, 2, 4):
            raise self.fail(f"'{match.group()}' accesses {width} bytes", "use a width of 1, 2 or 4")
        stream = self.access() if memory and self.accept(":") else -1
        uses_load = uses_load or ("'" if self.accept("'") else None)
        before = self.registers.previous
        if uses_load and (before is None or before.op not in (Op.LOAD, Op.LOAD_L2, Op.MUL)):
            raise self.fail(
                f"the mark ' of '{letter}'' needs a load or multiply right before", "remove the mark '"
            )
        taken, taken_if = self.direction(op)
        named = self.named_registers()
        instruction = self.registers.instruction(op, bool(uses_load), int(width or 4), stream, named)
        code = Code(instruction, taken_if, bool(increment))
        if taken:
            code = replace(code, instruction=replace(code.instruction, taken_fraction=taken))
        codes = [code]
        if self.accept("*"):
            number = _NUMBER.match(self.text, self.position)
            if number is None or not number.group().isdigit() or not number.group().strip("0"):
                raise self.fail("no number after '*'", "write how often to repeat, 1 or more")
            if stream >= 0:
                raise self.fail("'*' cannot repeat an access to A, B or C", "write each access on its own")
            self.position = number.end()
            codes += [
                Code(self.registers.instruction(op, False, int(width or 4), -1))
                for _ in range(self.repeats(number.group().lstrip("0")) - 1)
            ]
        if self.position < len(self.text) and not re.match(r"[\s}#]", self.text[self.position]):
            raise self.fail(f"unexpected '{self.text[self.position]}' after '{letter}'", "write a space")
        return codes

    def named_registers(self) -> tuple[str, tuple[str, ...]] | None:
        """`[written<read,read]` behind an instruction, if it is there."""
        match = _NAMED.match(self.text, self.position)
        if match is None:
            return None
        self.position = match.end()
        return match[1], tuple(name for name in match[2].split(",") if name)

    def direction(self, op: Op) -> tuple[float, Expression | None]:
        if op != Op.BRANCH:
            return 0.0, None
        if self.accept("!"):
            return 1.0, None
        if self.accept("?"):
            self.expect("(")
            condition = self.expression(self.balanced(")"))
            self.expect(")")
            return 0.0, condition
        if self.accept("%"):
            number = _NUMBER.match(self.text, self.position)
            if number is None or not 0 <= float(number.group()) <= 1:
                raise self.fail("no share after 'B%'", "write a number from 0 to 1: the share that is taken")
            self.position = number.end()
            return float(number.group()), None
        return 0.0, None

    def access(self) -> int:
        array = self.word()
        if not array:
            raise self.fail("no array after ':'", "write the name of an array after ':'")
        self.position += len(array)
        self.expect("(")
        base: list[Sum] = []
        strides: list[tuple[Sum, ...]] = []
        while True:
            constant, along = self.index(self.balanced(",)"))
            base.append(constant)
            strides.append(along)
            if not self.accept(","):
                break
        self.expect(")")
        self.accesses.append(Access(array, tuple(base), tuple(strides)))
        return len(self.accesses) - 1

    def index(self, text: str) -> tuple[Sum, tuple[Sum, ...]]:
        """One index of an access: its value with all counters at 0, and its change per counter."""
        parsed = self.indices.get(text)
        if parsed is None:
            constant, counters = self.in_counters(self.linear(text))
            along = tuple(counters.get(depth, _ZERO) for depth in range(len(self.loops)))
            parsed = self.indices[text] = (constant, along)
        return parsed


def _is_branch(code: Code) -> bool:
    return code.instruction.op == Op.BRANCH and code.taken_if is None


def _trips(length: Sum, step: int) -> Evaluator:
    value = evaluator(length)
    return value if step == 1 else lambda names: -(-value(names) // step)


def parse_nest(text: str, file: str = "<text>", first_line: int = 1) -> Nest:
    """Parse a kernel text; errors are ConfigError with ``file:line``."""
    parser = _Parser(text, file, first_line)
    body = parser.nodes("")
    return Nest(body, tuple(parser.accesses), frozenset(parser.names))
