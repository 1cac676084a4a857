# SPDX-License-Identifier: Apache-2.0
"""The code of a program as `deploy` exports it: which bytes core 0 executes for every action, and where.

Each op is a function, with a loop for what repeats (`scheduler.programs.rolling`); it calls kernels and the
functions of a platform. Their sizes are those of exported programs that were compiled
(`configs/kernels/code-sizes.json`, made by `tools.deployed.code_sizes` of the C of 0bac56ab, which was
executed on the RTL); a kernel that has none there is as large as its nest. The functions lie one after the
other: ops, kernels, platform.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from arch.spec.program import (
    Action,
    CodePiece,
    Compute,
    DmaStart,
    DmaWait,
    Program,
    ProgramCode,
    Release,
    UdmaStart,
    UdmaWait,
)
from configs.errors import Contributor, DoesNotFitError
from scheduler.programs.rolling import Leaf, Loop, Node, rolled
from scheduler.tiles.code_cost import INSTRUCTION_BYTES, Sizes, shipped_sizes

CODE = "code of ops, kernels and platform"
"""What a report about L2 calls the bytes of a program's code."""


def with_code(program: Program) -> Program:
    """The program with its code."""
    if program.code is not None:
        return program
    return replace(program, code=code_of(program.actions, shipped_sizes()))


def check_room(code: ProgramCode, plan_bytes: int, l2_bytes: int) -> None:
    """Raise `DoesNotFitError` unless L2 holds the code beside the `plan_bytes` of tensors and buffers."""
    required_bytes = plan_bytes + code.size_bytes
    if required_bytes > l2_bytes:
        raise DoesNotFitError(
            "l2",
            required_bytes,
            l2_bytes,
            contributors=(
                Contributor("tensors and buffers", plan_bytes),
                Contributor(CODE, code.size_bytes),
            ),
            cure=f"--l2 {required_bytes}, more if a plan for it takes more; or tensors in L3 (--home)",
        )


def code_of(actions: Sequence[Action], sizes: Sizes) -> ProgramCode:
    """The code of the actions of a program."""
    own: dict[int, list[CodePiece]] = {action.id: [] for action in actions}
    address = 0
    for leaves in _ops(actions):
        address = _lay(rolled(leaves), address + sizes["op"]["op"], sizes["op"], own)
    kernels: dict[str, tuple[int, int]] = {}
    for action in actions:
        if isinstance(action, Compute) and action.team.kernel not in kernels:
            size_bytes = sizes["kernels"].get(action.team.kernel) or _bytes_of_nest(action)
            kernels[action.team.kernel] = address, size_bytes
            address += size_bytes
    platform: dict[str, tuple[int, int]] = {}
    for name, size_bytes in sizes["platform"].items():
        platform[name] = address, size_bytes
        address += size_bytes
    pieces = []
    for action in actions:
        called = [CodePiece(*platform[word], INSTRUCTION_BYTES) for word in statements_of(action)]
        if isinstance(action, Compute):
            called = called if action.fork else []
            called.append(CodePiece(*kernels[action.team.kernel], INSTRUCTION_BYTES, kernel=True))
        pieces.append((*own[action.id], *called))
    return ProgramCode(pieces, address)


def _ops(actions: Sequence[Action]) -> Iterator[list[Leaf]]:
    """The statements of every op: their forms, and the number of the action each belongs to."""
    leaves: list[Leaf] = []
    for action in actions:
        if isinstance(action, Release):
            yield leaves
            leaves = []
        leaves += [Leaf(form, np.array([action.id], np.int64)) for form in _forms(action)]
    yield leaves


def _forms(action: Action) -> Iterator[Hashable]:
    what = action.work.what
    if isinstance(action, DmaStart):
        yield from (
            (word, command.to_l1, what)
            for word, command in zip(statements_of(action), action.commands, strict=True)
        )
    elif isinstance(action, Compute):
        yield "fork", action.team.kernel, action.fork
    else:
        yield from ((word, what) for word in statements_of(action))


def statements_of(action: Action) -> list[str]:
    """The statements of an action, by their word in the sizes: two kinds of transfer, a wait, a fork."""
    match action:
        case DmaStart():
            return ["transfer_1d" if command.lines == 1 else "transfer_2d" for command in action.commands]
        case UdmaStart():
            return ["transfer_1d"] * len(action.commands)
        case DmaWait() | UdmaWait():
            return ["wait"]
        case Compute():
            return ["fork"]
    return []


def _lay(
    nodes: Sequence[Node], address: int, sizes: Mapping[str, int], own: Mapping[int, list[CodePiece]]
) -> int:
    """Lay the statements of an op, and loops around them, from an address on; returns where they end."""
    for node in nodes:
        if isinstance(node, Loop):
            first = _first(node)
            for action in dict.fromkeys(first.numbers.reshape(-1).tolist()):
                own[action].append(CodePiece(address, sizes["loop"], INSTRUCTION_BYTES))
            address = _lay(node.body, address + sizes["loop"], sizes, own)
            continue
        assert isinstance(node.form, tuple)
        size_bytes = sizes[node.form[0]]
        piece = CodePiece(address, size_bytes, INSTRUCTION_BYTES)
        for action in dict.fromkeys(node.numbers.reshape(-1).tolist()):
            own[action].append(piece)
        address += size_bytes
    return address


def _first(node: Node) -> Leaf:
    while isinstance(node, Loop):
        node = node.body[0]
    return node


def _bytes_of_nest(action: Compute) -> int:
    team = action.team
    return max((team.core(member).code_bytes for member in team.members[:1]), default=0) or 4
