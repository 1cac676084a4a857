# SPDX-License-Identifier: Apache-2.0
"""What a parsed kernel text consists of, and how its instructions get their registers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from arch.spec.isa import Instruction, Op
from configs.values import Struct
from trainlib.kernels.expressions import Evaluator, Expression, Sum

CODES: dict[str, Op] = {
    "A": Op.ALU,
    "V": Op.MOVE,
    "L": Op.LOAD,
    "S": Op.STORE,
    "F": Op.FMA,
    "M": Op.FMUL,
    "f": Op.FP,
    "U": Op.MUL,
    "D": Op.FDIV,
    "Q": Op.DIV,
    "B": Op.BRANCH,
    "J": Op.JUMP,
    "H": Op.HWLOOP,
    "C": Op.CSR,
    "R": Op.LOAD_L2,
    "W": Op.STORE_L2,
}
_FP_RESULT = frozenset({Op.FMUL, Op.FP, Op.FDIV})
_READS_FP = frozenset({Op.FMUL, Op.FP, Op.FDIV, Op.FMA, Op.STORE, Op.STORE_L2})
_WRITES = frozenset({Op.LOAD, Op.LOAD_L2, Op.MUL, Op.DIV, Op.FMUL, Op.FP, Op.FDIV, Op.FMA})


class Access(Struct, frozen=True):
    """The element of an array that one load or store touches, as coefficients of the loop counters.

    Per dimension of the array: value with all counters at 0, and the change per counter, outermost first.
    """

    array: str
    base: tuple[Sum, ...]
    strides: tuple[tuple[Sum, ...], ...]


class Code(Struct, frozen=True):
    """One instruction; `taken_if` decides a branch whose direction depends on the sizes.

    `increments` tells that a load or store moves its pointer on: free on Xpulp, see `transform`.
    """

    instruction: Instruction
    taken_if: Expression | None = None
    increments: bool = False


class Counted(Struct, frozen=True):
    """A loop; `trips` may come out negative, which means none."""

    trips: Evaluator
    hardware: bool
    body: tuple[NestNode, ...]


class Choice(Struct, frozen=True):
    """Two alternatives, decided by the sizes before the kernel runs."""

    condition: Expression
    then: tuple[NestNode, ...]
    otherwise: tuple[NestNode, ...]


NestNode = Code | Counted | Choice


class Nest(Struct, frozen=True):
    """A parsed kernel text: nodes in program order and the accesses that `Instruction.stream` counts."""

    body: tuple[NestNode, ...]
    accesses: tuple[Access, ...]
    names: frozenset[str]
    """Every size or condition name the text uses."""


def codes(nodes: Iterable[NestNode]) -> Iterator[Code]:
    """All instructions of a text, those of loops and of both sides of conditions among them."""
    for node in nodes:
        if isinstance(node, Code):
            yield node
        else:
            yield from codes(node.body if isinstance(node, Counted) else (*node.then, *node.otherwise))


_SIMPLE = {op: Code(Instruction(op)) for op in CODES.values() if op not in _WRITES | _READS_FP}
"""Codes that neither write nor read a register under the rule: one object for all of them."""


@dataclass(slots=True)
class Registers:
    """Hands out registers under the rule in the docstring of `trainlib.kernels.nest`."""

    count: int = 0
    previous: Instruction | None = None
    names: dict[str, int] = field(default_factory=dict)

    def fresh(self) -> int:
        """A register no other instruction writes."""
        self.count += 1
        return self.count - 1

    def named(self, name: str) -> int:
        """The register of a name in the text."""
        if name not in self.names:
            self.names[name] = self.fresh()
        return self.names[name]

    def plain(self, op: Op, repeats: int) -> list[Code]:
        """`repeats` instructions without marks, one after another."""
        if op in _SIMPLE:
            self.previous = _SIMPLE[op].instruction
            return [_SIMPLE[op]] * repeats
        return [Code(self.instruction(op, False, 4, -1)) for _ in range(repeats)]

    def instruction(
        self,
        op: Op,
        uses_load: bool,
        width_bytes: int,
        stream: int,
        registers: tuple[str, tuple[str, ...]] | None = None,
    ) -> Instruction:
        """The next instruction; `uses_load` is its `'` mark, `registers` the names it writes and reads."""
        before = self.previous
        if registers is not None:
            written, read = registers
            uses = [self.named(name) for name in read]
            dst = self.named(written) if written else -1
        else:
            chained = before is not None and before.op in _FP_RESULT and op in _READS_FP
            uses = [before.dst] if before is not None and (uses_load or chained) else []
            dst = self.fresh() if op in _WRITES else -1
            uses += [dst] if op == Op.FMA else []
        self.previous = Instruction(op, dst, tuple(uses), stream, 0.0, width_bytes)
        return self.previous
