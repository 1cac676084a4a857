# SPDX-License-Identifier: Apache-2.0
"""Changes a codegen profile makes to every kernel of the profile it is based on."""

from __future__ import annotations

from collections.abc import Callable

from arch.spec.isa import Instruction, Op
from configs.values import replace
from trainlib.kernels.nodes import Choice, Code, Counted, Nest, NestNode

Transform = Callable[[Nest], Nest]


def _loads_early(nest: Nest) -> Nest:
    """In innermost hardware loops, move a load in front of the instruction before it.

    Only where the next instruction uses the load, so that a load-use pair disappears. An address reloaded
    from the stack passes any instruction that does not touch memory. An operand of a multiply-add passes only
    a multiply-add that does not use the load before it, because that frees the register the load needs; one
    whose result is spilled next stays.
    """
    return replace(nest, body=_scheduled(nest.body, innermost=False))


def _scheduled(nodes: tuple[NestNode, ...], innermost: bool) -> tuple[NestNode, ...]:
    result: list[NestNode] = []
    for node in nodes:
        if isinstance(node, Counted):
            leaf = node.hardware and all(isinstance(item, Code) for item in node.body)
            node = replace(node, body=_scheduled(node.body, leaf))  # noqa: PLW2901
        elif isinstance(node, Choice):
            then, otherwise = (_scheduled(part, innermost) for part in (node.then, node.otherwise))
            node = replace(node, then=then, otherwise=otherwise)  # noqa: PLW2901
        result.append(node)
    if innermost:
        loaded = {item.dst for item in map(_instruction, result) if item and item.op == Op.LOAD}
        for at in range(1, len(result) - 1):
            before, load, after = (_instruction(node) for node in result[at - 1 : at + 2])
            if load is None or before is None or after is None or load.dst not in after.srcs:
                continue
            following = _instruction(result[at + 2]) if at + 2 < len(result) else None
            if load.op == Op.LOAD and _may_pass(before, after, following, loaded):
                result[at - 1], result[at] = result[at], result[at - 1]
    return tuple(result)


def _may_pass(
    before: Instruction, after: Instruction, following: Instruction | None, loaded: set[int]
) -> bool:
    if after.op == Op.ALU:
        return before.op in (Op.FMA, Op.ALU, Op.MOVE)
    spilled = following is not None and following.op == Op.STORE
    return before.op == Op.FMA and not spilled and not loaded & set(before.srcs)


def _instruction(node: NestNode) -> Instruction | None:
    return node.instruction if isinstance(node, Code) else None


def _plain_core(nest: Nest) -> Nest:
    """For a core without hardware loops and without post-increment: every loop branches, every step is paid.

    - A hardware loop becomes a loop closed by a branch: its set-up H goes, and so does one integer
      instruction or move in front of it that only prepared it; the body gets one A for the counter.
    - A load or store that moved its pointer on leaves an A for that.
    - The A's of a body stand where they part a load from the instruction that uses it, one each, the rest in
      front of what closes the body (of a body with loops inside: in front of the first of them).

    It is what `tools/derive_rv32_kernels.py` expects of the same sources without Xpulp, and what the
    measured inner loops of clang-rv32 confirm (7 instructions a step of `mm`, 9 of `mm_unroll_1x2`).
    """
    return replace(nest, body=_branching(nest.body, 0, free_steps=False))


def _branch_loops(nest: Nest) -> Nest:
    """Every hardware loop closed by a branch, as `_plain_core` does it; post-increment stays free.

    The update loop of clang-xpulp becomes the measured one of clang-postinc: 6 instructions an element, its
    counter between the load and the multiply-add.
    """
    return replace(nest, body=_branching(nest.body, 0, free_steps=True))


_STEP = Code(Instruction(Op.ALU))


def _branching(nodes: tuple[NestNode, ...], counters: int, *, free_steps: bool) -> tuple[NestNode, ...]:
    result: list[NestNode] = []
    added = counters
    for node in nodes:
        if isinstance(node, Counted):
            body = _branching(node.body, int(node.hardware), free_steps=free_steps)
            if node.hardware:
                body = (*body, Code(Instruction(Op.BRANCH)))
                _drop_preparation(result)
            result.append(Counted(node.trips, False, body))
        elif isinstance(node, Choice):
            then = _branching(node.then, 0, free_steps=free_steps)
            otherwise = _branching(node.otherwise, 0, free_steps=free_steps)
            result.append(Choice(node.condition, then, otherwise))
        elif node.instruction.op != Op.HWLOOP:
            if node.increments and not free_steps:
                added += 1
                node = replace(node, increments=False)  # noqa: PLW2901
            result.append(node)
    return _with_steps(result, added)


def _drop_preparation(before: list[NestNode]) -> None:
    """Remove the last integer instruction or move, if the straight line in front of a loop ends with some."""
    for position in range(len(before) - 1, -1, -1):
        instruction = _instruction(before[position])
        if instruction is None:
            return
        if instruction.op in (Op.ALU, Op.MOVE) and not instruction.srcs and instruction.dst < 0:
            del before[position]
            return


def _with_steps(nodes: list[NestNode], steps: int) -> tuple[NestNode, ...]:
    loops = any(not isinstance(node, Code) for node in nodes)
    result: list[NestNode] = []
    previous: Instruction | None = None
    for node in nodes:
        instruction = _instruction(node)
        if steps and not loops and _used_at_once(previous, instruction):
            result.append(_STEP)
            steps -= 1
        result.append(node)
        previous = instruction
    at = len(result)
    if loops:
        at = next(index for index, node in enumerate(result) if not isinstance(node, Code))
    elif previous is not None and previous.op in (Op.BRANCH, Op.JUMP):
        at -= 1
    return (*result[:at], *[_STEP] * steps, *result[at:])


def _used_at_once(load: Instruction | None, user: Instruction | None) -> bool:
    return load is not None and user is not None and load.op == Op.LOAD and load.dst in user.srcs


def narrowed(element_bytes: int) -> Transform:
    """For narrower elements: every access to an array is as wide as they are; no instruction changes.

    That is scalar code: one multiply-add per element, as PULP-TrainLib's scalar fp16 kernels are copies of
    the fp32 ones. It describes a core that computes in the narrow format at the rate of fp32; no compiled
    code of this kind was ever measured. Of bytes, in which no FPU computes, it is the accesses alone: the
    conversions are those of `trainlib.kernels.conversions`.
    """

    def transform(nest: Nest) -> Nest:
        return replace(nest, body=_narrowed(nest.body, element_bytes))

    return transform


def _narrowed(nodes: tuple[NestNode, ...], element_bytes: int) -> tuple[NestNode, ...]:
    result: list[NestNode] = []
    for node in nodes:
        if isinstance(node, Counted):
            result.append(replace(node, body=_narrowed(node.body, element_bytes)))
        elif isinstance(node, Choice):
            then, otherwise = (_narrowed(part, element_bytes) for part in (node.then, node.otherwise))
            result.append(replace(node, then=then, otherwise=otherwise))
        elif node.instruction.stream >= 0:
            width_bytes = min(node.instruction.width_bytes, element_bytes)
            result.append(replace(node, instruction=replace(node.instruction, width_bytes=width_bytes)))
        else:
            result.append(node)
    return tuple(result)


TRANSFORMS: dict[str, Transform] = {
    "none": lambda nest: nest,
    "loads_early": _loads_early,
    "plain_core": _plain_core,
    "branch_loops": _branch_loops,
}
"""Transforms by the name used in `codegen.yaml`."""
