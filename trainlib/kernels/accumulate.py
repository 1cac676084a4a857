# SPDX-License-Identifier: Apache-2.0
"""The form of a matmul kernel that adds to C: C += A . B, made from the form that overwrites C.

One rule for all kernels. In a block with a loop over k (an innermost loop with multiply-adds):

- every element of C the block stores afterwards is loaded before the loop, into the accumulator;
- each of these loads takes the place of one instruction that set an accumulator to zero (a move or
  constant), as long as there are such instructions; a kernel that keeps several partial sums per element
  loads C into the first and clears the others;
- a product stored at once (the K = 1 loops) becomes a load of C and a multiply-add;
- a loop that only stores zeros (C cleared before a leftover pass) is left out;
- an element that the block loads by itself before it stores it (a leftover pass) is left as it is.

So a tile of U x V costs U x V loads instead of as many constants: the same number of instructions, plus what
the memory adds. Not compared with measurements.
"""

from __future__ import annotations

from itertools import chain

from arch.spec.isa import Instruction, Op
from configs.errors import ConfigError
from configs.values import replace
from trainlib.kernels.nodes import Access, Choice, Code, Counted, Nest, NestNode

RESULT = "C"
"""Name of the array that is added to."""


def accumulating(nest: Nest, where: str) -> Nest:
    """The nest that adds to C. Raises ConfigError for a kernel with no accumulation to be found."""
    rewriter = _Rewriter(nest)
    body = rewriter.block(nest.body)
    if not rewriter.loads and any(access.array == RESULT for access in nest.accesses):
        raise ConfigError(
            "--add-to-c needs a kernel that sums products in a loop over k and then stores the sum to C; "
            "this kernel does not",
            where=where,
            cure="remove --add-to-c, or use another kernel",
        )
    return Nest(body, tuple(rewriter.accesses), nest.names)


class _Rewriter:
    def __init__(self, nest: Nest) -> None:
        self.accesses: list[Access] = list(nest.accesses)
        self.loads = 0

    def block(self, nodes: tuple[NestNode, ...]) -> tuple[NestNode, ...]:
        result: list[NestNode] = []
        for node in nodes:
            if isinstance(node, Counted):
                if not self._only_clears(node):
                    result.append(replace(node, body=self.block(node.body)))
            elif isinstance(node, Choice):
                then, otherwise = self.block(node.then), self.block(node.otherwise)
                result.append(replace(node, then=then, otherwise=otherwise))
            else:
                result.append(node)
        at = next((i for i, node in enumerate(result) if _over_k(node)), None)
        if at is not None:
            stores = self._stores(result[at + 1 :])
            return tuple(self._preloaded(result, at, stores))
        return tuple(self._products(result))

    def _only_clears(self, loop: Counted) -> bool:
        codes = [node.instruction for node in loop.body if isinstance(node, Code)]
        quiet = all(code.op in (Op.STORE, Op.ALU, Op.BRANCH) for code in codes)
        return quiet and len(codes) == len(loop.body) and any(self._is_result(code) for code in codes)

    def _is_result(self, code: Instruction) -> bool:
        return code.op == Op.STORE and code.stream >= 0 and self.accesses[code.stream].array == RESULT

    def _stores(self, nodes: list[NestNode]) -> list[Instruction]:
        """Stores of C in the block itself: not in loops of their own, and once for alternatives."""
        stores: list[Instruction] = []
        for node in nodes:
            if isinstance(node, Code) and self._is_result(node.instruction):
                stores.append(node.instruction)
            elif isinstance(node, Choice):
                stores += self._stores(list(node.then)) or self._stores(list(node.otherwise))
        return stores

    def _preloaded(self, nodes: list[NestNode], at: int, stores: list[Instruction]) -> list[NestNode]:
        sums = _accumulators(nodes[at])
        free = [
            i for i in range(at) if isinstance(node := nodes[i], Code) and _clears(node.instruction, sums)
        ]
        taken = free[max(0, len(free) - len(stores)) :]
        result = list(nodes)
        loads = [
            self._load(store, sums[min(index, len(sums) - 1)] if sums else -1)
            for index, store in enumerate(stores)
        ]
        for place, load in zip(taken, loads, strict=False):
            cleared = result[place]
            into = cleared.instruction.dst if isinstance(cleared, Code) else -1
            result[place] = (
                replace(load, instruction=replace(load.instruction, dst=into)) if into >= 0 else load
            )
        result[at:at] = loads[len(taken) :]
        return result

    def _load(self, store: Instruction, register: int) -> Code:
        self.loads += 1
        return Code(Instruction(Op.LOAD, register, (), store.stream, 0.0, store.width_bytes))

    def _products(self, nodes: list[NestNode]) -> list[NestNode]:
        """Products stored at once become a load of C and a multiply-add."""
        result: list[NestNode] = []
        for index, node in enumerate(nodes):
            after = nodes[index + 1] if index + 1 < len(nodes) else None
            if (
                isinstance(node, Code)
                and node.instruction.op == Op.FMUL
                and isinstance(after, Code)
                and self._is_result(after.instruction)
            ):
                product = node.instruction
                result.insert(len(result) - 1, self._load(after.instruction, product.dst))
                fused = replace(product, op=Op.FMA, srcs=(*product.srcs, product.dst))
                result.append(replace(node, instruction=fused))
            else:
                result.append(node)
        return result


def _over_k(node: NestNode) -> bool:
    if isinstance(node, Choice):
        return any(_over_k(item) for item in (*node.then, *node.otherwise))
    return isinstance(node, Counted) and bool(_accumulators(node))


def _accumulators(node: NestNode) -> list[int]:
    """Registers of the multiply-adds directly in a loop (alternatives included), in order, each once."""
    if isinstance(node, Code):
        return [node.instruction.dst] if node.instruction.op == Op.FMA else []
    parts = (*node.then, *node.otherwise) if isinstance(node, Choice) else node.body
    registers = [_accumulators(part) for part in parts if not isinstance(part, Counted)]
    return list(dict.fromkeys(chain.from_iterable(registers)))


def _clears(instruction: Instruction, sums: list[int]) -> bool:
    """Whether a move may be the clearing of an accumulator; with registers given, whether it is."""
    return instruction.op == Op.MOVE and (instruction.dst < 0 or instruction.dst in sums)
