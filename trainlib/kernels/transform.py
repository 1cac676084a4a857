"""Changes a codegen profile makes to every kernel of the profile it is based on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from arch.isa import Instruction, Op
from trainlib.kernels.nodes import Choice, Code, Counted, Nest, NestNode

Transform = Callable[[Nest], Nest]


def _none(nest: Nest) -> Nest:
    return nest


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
            node = replace(  # noqa: PLW2901
                node,
                then=_scheduled(node.then, innermost),
                otherwise=_scheduled(node.otherwise, innermost),
            )
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


TRANSFORMS: dict[str, Transform] = {"none": _none, "loads_early": _loads_early}
"""Transforms by the name used in `codegen.yaml`."""
