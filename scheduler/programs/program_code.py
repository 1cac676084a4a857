# SPDX-License-Identifier: Apache-2.0
"""The code of a program as `deploy` exports it: which bytes core 0 executes for every action, and where.

Each op is a function, with a loop for what repeats (`scheduler.programs.rolling`) unless the compiler writes
it out; it calls kernels and the functions of a platform. Of a linked export its map file says where they lie.
Else they lie one after the other (ops, kernels, platform), with the sizes of the C of today, compiled by
clang for RV32 without Xpulp (`configs/kernels/code-sizes.json`, made by `tools.deployed.code_sizes`); so of
another codegen they are an estimate. A kernel that has none there is as large as its nest.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass

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
from configs.values import replace
from scheduler.programs.rolling import Leaf, Loop, Node, rolled
from scheduler.tiles.code_sizes import (
    INSTRUCTION_BYTES,
    WRITTEN_OUT_BYTES,
    Sizes,
    kernel_sizes,
    shipped_sizes,
)

CODE = "code of ops, kernels and platform"
"""What a report about L2 calls the bytes of a program's code."""


def with_code(program: Program) -> Program:
    """The program with its code; by the rule where it has none yet."""
    if program.code is not None:
        return program
    return replace(program, code=codes_of([program.actions], shipped_sizes())[0])


@dataclass(frozen=True, slots=True)
class LinkedCode:
    """What a linked export says of the code of its programs."""

    functions: Mapping[str, tuple[int, int]]
    """Address and bytes of every function."""
    ops: Mapping[str, str]
    """Op -> its function."""
    kernels: Mapping[tuple[str, str], Sequence[str]]
    """Op and kernel of its nest -> the function, and those that only the kernel calls."""


def codes_of(
    programs: Sequence[Sequence[Action]], sizes: Sizes, linked: LinkedCode | None = None
) -> list[ProgramCode]:
    """The code of the actions of programs that are linked together; `size_bytes` is that of all of them.

    Without what was `linked` ops, kernels and platform follow each other. With it they lie where it says; the
    bytes of an op are shared among its statements as the sizes are.
    """
    layout = _Layout(sizes, linked)
    owns = [layout.own_pieces(actions) for actions in programs]
    layout.place_called([action for actions in programs for action in actions])
    pieces = [layout.all_pieces(actions, own) for actions, own in zip(programs, owns, strict=True)]
    return [ProgramCode(each, layout.size_bytes) for each in pieces]


class _Layout:
    """Where functions lie: `size_bytes` are those of all that were asked for."""

    def __init__(self, sizes: Sizes, linked: LinkedCode | None) -> None:
        self._sizes, self._linked = sizes, linked
        self._places: dict[str, tuple[int, int]] = {}
        self._kernel_sizes: dict[str, dict[str, int]] = {}
        self.size_bytes = 0

    def own_pieces(self, actions: Sequence[Action]) -> dict[int, list[CodePiece]]:
        """By action the code of its op that is executed for it."""
        own: dict[int, list[CodePiece]] = {action.id: [] for action in actions}
        for op, leaves in _ops(actions):
            nodes = [*_written_out(rolled(leaves), self._sizes["op"])]
            ruled_bytes = _lay(nodes, self._sizes["op"]["op"], self._sizes["op"], {})
            name = self._linked.ops[op] if self._linked is not None else f"op {op}"
            address, size_bytes = self._place(name, ruled_bytes)
            share = size_bytes / ruled_bytes
            _lay(nodes, self._sizes["op"]["op"], self._sizes["op"], own, address, share)
        return own

    def place_called(self, actions: Sequence[Action]) -> None:
        """Kernels, and behind them the platform."""
        for action in actions:
            if isinstance(action, Compute):
                self._kernels(action)
        if self._linked is None:
            for word, size_bytes in self._sizes["platform"].items():
                self._place(f"platform {word}", size_bytes)

    def all_pieces(
        self, actions: Sequence[Action], own: Mapping[int, list[CodePiece]]
    ) -> list[tuple[CodePiece, ...]]:
        """By action the code of its op, of the platform and of its kernel."""
        pieces = []
        for action in actions:
            kernels = self._kernels(action) if isinstance(action, Compute) else []
            pieces.append((*own[action.id], *self._called(action), *kernels))
        return pieces

    def _kernels(self, action: Compute) -> list[CodePiece]:
        kernel = action.team.kernel
        if self._linked is not None:
            op = f"{action.work.op}.{action.work.step}"
            places = [self._place(name) for name in self._linked.kernels[op, kernel]]
        else:
            if kernel not in self._kernel_sizes:
                self._kernel_sizes[kernel] = kernel_sizes(action.team, self._sizes)
            functions = self._kernel_sizes[kernel].items()
            places = [self._place(f"kernel {name}", size_bytes) for name, size_bytes in functions]
        return [CodePiece(*place, INSTRUCTION_BYTES, kernel=True) for place in places]

    def _called(self, action: Action) -> list[CodePiece]:
        if self._linked is None:
            names = [f"platform {word}" for word in statements_of(action)]
        else:
            names = platform_functions(action)
        return [CodePiece(*self._place(name), INSTRUCTION_BYTES) for name in names]

    def _place(self, name: str, size_bytes: int = 0) -> tuple[int, int]:
        """Address and bytes of a function: where it was linked, else behind those asked for before."""
        if name not in self._places:
            linked = self._linked
            place = (self.size_bytes, size_bytes) if linked is None else linked.functions[name]
            self._places[name] = place
            self.size_bytes += place[1]
        return self._places[name]


def _ops(actions: Sequence[Action]) -> list[tuple[str, list[Leaf]]]:
    """Every op: its name, and its statements, their forms and the number of the action each belongs to."""
    ops: list[tuple[str, list[Leaf]]] = []
    leaves: list[Leaf] = []
    for action in actions:
        leaves += [Leaf(form, np.array([action.id], np.int64)) for form in _forms(action)]
        if isinstance(action, Release):
            ops.append((f"{action.work.op}.{action.work.step}", leaves))
            leaves = []
    if leaves and ops:
        ops[-1][1].extend(leaves)
    return ops


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


WORDS = {
    **dict.fromkeys(("pt_dma_in", "pt_dma_out", "pt_l3_in", "pt_l3_out"), "transfer_1d"),
    **dict.fromkeys(("pt_dma_in_2d", "pt_dma_out_2d"), "transfer_2d"),
    **dict.fromkeys(("pt_dma_wait", "pt_l3_wait"), "wait"),
    "pt_fork": "fork",
}
"""Functions of a platform (`deploy/platforms/platform.h`) -> the word of their statement in the sizes."""


def statements_of(action: Action) -> list[str]:
    """The statements of an action, by their word in the sizes: two kinds of transfer, a wait, a fork."""
    return [WORDS[name] for name in platform_functions(action)]


def platform_functions(action: Action) -> list[str]:
    """The functions of a platform that the statements of an action call."""
    match action:
        case DmaStart():
            return [
                f"pt_dma_{'in' if command.to_l1 else 'out'}{'_2d' if command.lines > 1 else ''}"
                for command in action.commands
            ]
        case UdmaStart():
            return [f"pt_l3_{'in' if command.to_l2 else 'out'}" for command in action.commands]
        case DmaWait():
            return ["pt_dma_wait"]
        case UdmaWait():
            return ["pt_l3_wait"]
        case Compute(fork=True):
            return ["pt_fork"]
    return []


def _written_out(nodes: Sequence[Node], sizes: Mapping[str, int]) -> Iterator[Node]:
    """The statements as they are compiled, small loops turn by turn."""
    for node in nodes:
        if isinstance(node, Leaf):
            yield node
            continue
        body = [*_written_out(node.body, sizes)]
        leaves = [each for each in body if isinstance(each, Leaf)]
        turn_bytes = sum(sizes[_word(leaf)] for leaf in leaves)
        if len(leaves) < len(body) or node.count * turn_bytes > WRITTEN_OUT_BYTES:
            yield Loop(node.count, tuple(body))
            continue
        for turn in range(node.count):
            yield from (Leaf(leaf.form, leaf.numbers[..., turn]) for leaf in leaves)


def _lay(
    nodes: Sequence[Node],
    place: int,
    sizes: Mapping[str, int],
    own: Mapping[int, list[CodePiece]],
    address: int = 0,
    share: float = 1.0,
) -> int:
    """Lay the statements of an op, and loops around them, from a place on; returns where they end.

    The function begins at `address` and has `share` of the bytes that the sizes say.
    """
    for node in nodes:
        is_loop = isinstance(node, Loop)
        leaf = _first(node)
        size_bytes = sizes["loop" if is_loop else _word(leaf)]
        if own:
            begin, end = round(place * share), round((place + size_bytes) * share)
            piece = CodePiece(address + begin, end - begin, INSTRUCTION_BYTES)
            for action in dict.fromkeys(leaf.numbers.reshape(-1).tolist()):
                own[action].append(piece)
        place += size_bytes
        if isinstance(node, Loop):
            place = _lay(node.body, place, sizes, own, address, share)
    return place


def _first(node: Node) -> Leaf:
    while isinstance(node, Loop):
        node = node.body[0]
    return node


def _word(leaf: Leaf) -> str:
    """That of a statement in the sizes."""
    assert isinstance(leaf.form, tuple)
    return str(leaf.form[0])
