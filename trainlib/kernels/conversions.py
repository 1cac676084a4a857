# SPDX-License-Identifier: Apache-2.0
"""Loop nests on arrays of a format that nothing computes in: its numbers are converted on their way.

Described, never measured. A core loads the byte, converts it to the format its FPU computes in with one
instruction, and converts back with one before it stores: `fcvt.s.b` and `fcvt.b.s` (or those of fp16) of the
smallFloat extensions Xf8 (Tagliavini et al., "Design and Evaluation of SmallFloat SIMD Extensions to the
RISC-V ISA", DATE 2019), class FP of `arch.spec.isa.Op`, which takes the FPU for a cycle. SIMD would halve
them (`vfcpka.b.s` packs two) and is not described. PULP's Xf8 is E5M2; E4M3 is taken to cost the same.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import lru_cache

from arch.spec.isa import FPU_OPS, CoreWork, Instruction, Loop, Node, Op
from configs.values import replace

_INSTRUCTION_BYTES = 4
_LEAVING = frozenset({Op.BRANCH, Op.JUMP})


def converting(core: CoreWork, streams: frozenset[int]) -> CoreWork:
    """The work with a conversion for each load and before each store of these streams.

    A nest without floating-point instructions only moves numbers, and those stay as they are.
    """
    body, added = _converting(core.body, streams)
    return replace(core, body=body, code_bytes=core.code_bytes + added * _INSTRUCTION_BYTES)


@lru_cache(maxsize=4096)
def _converting(body: tuple[Node, ...], streams: frozenset[int]) -> tuple[tuple[Node, ...], int]:
    """The body and the number of conversions in its text; equal bodies give the same object."""
    instructions = list(_instructions(body))
    if not streams or not any(item.op in FPU_OPS or item.op == Op.FDIV for item in instructions):
        return body, 0
    converted = 1 + max(register for item in instructions for register in (-1, item.dst, *item.srcs))
    added = sum(item.stream in streams for item in instructions)
    return _nodes(body, streams, converted), added


def _instructions(body: tuple[Node, ...]) -> Iterator[Instruction]:
    for node in body:
        if isinstance(node, Loop):
            yield from _instructions(node.body)
        else:
            yield node


def _nodes(body: tuple[Node, ...], streams: frozenset[int], converted: int) -> tuple[Node, ...]:
    """`converted` is the register that holds a number on its way to a store.

    A loaded number is converted just before it is used, as a compiler would have it, or where the straight
    line of code ends.
    """
    result: list[Node] = []
    loaded: list[int] = []

    def convert(registers: Collection[int]) -> None:
        result.extend(Instruction(Op.FP, item, (item,)) for item in loaded if item in registers)
        loaded[:] = [item for item in loaded if item not in registers]

    for node in body:
        if isinstance(node, Loop):
            convert(tuple(loaded))
            result.append(replace(node, body=_nodes(node.body, streams, converted)))
            continue
        convert(tuple(loaded) if node.op in _LEAVING else (*node.srcs, node.dst))
        if node.stream not in streams:
            result.append(node)
        elif node.op == Op.LOAD:
            result.append(node)
            loaded.append(node.dst)
        else:
            result += [Instruction(Op.FP, converted, node.srcs), replace(node, srcs=(converted,))]
    convert(tuple(loaded))
    return tuple(result)
