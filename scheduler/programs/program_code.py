# SPDX-License-Identifier: Apache-2.0
"""The code of a program as `deploy` exports it: which bytes core 0 executes for every action, and where.

Each op is a function, with a loop for what repeats (`scheduler.programs.rolling`) unless the compiler writes
it out; it calls kernels and the functions of a platform. Of a linked export its map file says where they lie.
Else they lie one after the other (ops, kernels, platform), with the sizes of the C of today, compiled by
clang for RV32 without Xpulp (`configs/kernels/code-sizes.json`, made by `tools.deployed.code_sizes`); so of
another codegen they are an estimate. A kernel that has none there is as large as its nest.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, chain, islice, pairwise

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
from scheduler.programs.rolling import Leaf, Loop, Node, rolled, table_nodes
from scheduler.tiles.code_sizes import (
    INSTRUCTION_BYTES,
    WRITTEN_OUT_BYTES,
    Sizes,
    kernel_sizes,
    shipped_sizes,
)
from traces.events import Work

CODE = "code of ops, kernels and platform"
"""What a report about L2 calls the bytes of a program's code."""

TABLE = "table"
"""What a transfer moves that brings the table of an op (`scheduler.table_form`)."""


def with_code(program: Program, ops: Sequence[OpActions] | None = None) -> Program:
    """The program with its code; by the rule where it has none yet. Its `ops`, if they are known."""
    if program.code is not None:
        return program
    known = ops if ops is not None else ops_of(program.actions)
    return replace(program, code=codes_of_ops([known], shipped_sizes())[0])


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
    return codes_of_ops([ops_of(actions) for actions in programs], sizes, linked)


def codes_of_ops(
    of_programs: Sequence[Sequence[OpActions]], sizes: Sizes, linked: LinkedCode | None = None
) -> list[ProgramCode]:
    """`codes_of` programs of which the ops are known."""
    layout = _Layout(sizes, linked)
    owns = [[layout.own_pieces(op) for op in ops] for ops in of_programs]
    layout.place_called(chain.from_iterable(of_programs))
    pieces = [
        [*chain.from_iterable(map(layout.all_pieces, ops, own))]
        for ops, own in zip(of_programs, owns, strict=True)
    ]
    return [ProgramCode(each, layout.size_bytes) for each in pieces]


class _Layout:
    """Where functions lie: `size_bytes` are those of all that were asked for."""

    def __init__(self, sizes: Sizes, linked: LinkedCode | None) -> None:
        self._sizes, self._linked = sizes, linked
        self._places: dict[str, tuple[int, int]] = {}
        self._kernel_sizes: dict[str, dict[str, int]] = {}
        self.size_bytes = 0

    def own_pieces(self, op: OpActions) -> list[tuple[CodePiece, ...]]:
        """By action the code of its op that is executed for it; what is equal is one object.

        That of an op that is a table is what carries tables out.
        """
        if op.is_table:
            return self._walked(op)
        executed, texts = _function(op, self._sizes["op"])
        ends = [*accumulate(texts, initial=self._sizes["op"]["op"])]
        name = self._linked.ops[op.name] if self._linked is not None else f"op {op.name}"
        address, size_bytes = self._place(name, ends[-1])
        share = size_bytes / ends[-1]
        borders = [address + round(end * share) for end in ends]
        text_pieces = [CodePiece(begin, end - begin, INSTRUCTION_BYTES) for begin, end in pairwise(borders)]
        pieces: dict[tuple[int, ...], tuple[CodePiece, ...]] = {}
        found = []
        for count in op.counts:
            # An action of several statements may be a loop itself, whose texts it has once.
            numbers = tuple(sorted({*chain.from_iterable(islice(executed, count))}))
            if numbers not in pieces:
                pieces[numbers] = tuple([text_pieces[number] for number in numbers])
            found.append(pieces[numbers])
        return found

    def _walked(self, op: OpActions) -> list[tuple[CodePiece, ...]]:
        """By action what is executed of the walk: its begin, or what all records share and what its have."""
        sizes = self._sizes["walk"]
        name = "network_walk" if self._linked is not None else "walk"
        address, size_bytes = self._place(name, sum(sizes.values()))
        share, ends = size_bytes / sum(sizes.values()), [*accumulate(sizes.values(), initial=0)]
        parts = {
            word: CodePiece(address + round(begin * share), round((end - begin) * share), INSTRUCTION_BYTES)
            for word, (begin, end) in zip(sizes, pairwise(ends), strict=True)
        }
        around = _lay(op.table_nodes, dict.fromkeys((*sizes, "loop"), 1), [])
        records = [
            ("record", str(form[0]), *(["loop"] if len(turns) > 1 else []))
            for form, turns in zip(op.forms, around, strict=True)
        ]
        pieces: dict[tuple[str, ...], tuple[CodePiece, ...]] = {}
        found, end = [], 0
        for action, count in zip(op.actions, op.counts, strict=True):
            words = tuple(dict.fromkeys(chain.from_iterable(records[end : end + count])))
            end += count
            if not words and statements_of(action):
                words = ("op",) if isinstance(action, DmaWait) else ("record", "fetch")
            if words not in pieces:
                pieces[words] = tuple([parts[word] for word in words])
            found.append(pieces[words])
        return found

    def place_called(self, ops: Iterable[OpActions]) -> None:
        """Kernels, and behind them the platform."""
        for op in ops:
            for action in op.actions:
                if isinstance(action, Compute):
                    self._kernels(action)
        if self._linked is None:
            for word, size_bytes in self._sizes["platform"].items():
                self._place(f"platform {word}", size_bytes)

    def all_pieces(self, op: OpActions, own: Sequence[tuple[CodePiece, ...]]) -> list[tuple[CodePiece, ...]]:
        """By action the code of its op, of the platform and of its kernel; equal ones are one object."""
        pieces: dict[object, tuple[CodePiece, ...]] = {}
        found = []
        for action, functions, of_op in zip(op.actions, op.functions, own, strict=True):
            kernel = action.team.kernel if isinstance(action, Compute) else ""
            alike = id(of_op), functions, kernel
            if alike not in pieces:
                kernels = self._kernels(action) if isinstance(action, Compute) else []
                pieces[alike] = *of_op, *map(self._called, functions), *kernels
            found.append(pieces[alike])
        return found

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

    def _called(self, function: str) -> CodePiece:
        """The code of a function of the platform."""
        name = function if self._linked is not None else f"platform {WORDS[function]}"
        return CodePiece(*self._place(name), INSTRUCTION_BYTES)

    def _place(self, name: str, size_bytes: int = 0) -> tuple[int, int]:
        """Address and bytes of a function: where it was linked, else behind those asked for before."""
        if name not in self._places:
            linked = self._linked
            place = (self.size_bytes, size_bytes) if linked is None else linked.functions[name]
            self._places[name] = place
            self.size_bytes += place[1]
        return self._places[name]


class OpActions:
    """The actions of an op, by action the functions of the platform it calls and the `counts` of its
    statements, and the `forms` of all statements, in order; `is_table` where it is no function."""

    def __init__(self, end: Work, actions: Sequence[Action]) -> None:
        self.name, self.actions = f"{end.op}.{end.step}", actions
        self.functions = [tuple(platform_functions(action)) for action in actions]
        ends = next((each.places for each in actions if isinstance(each, Release)), ())
        self.is_table = any(place.name == TABLE for place in ends)
        self.forms: list[tuple[Hashable, ...]] = []
        self.numbers: list[tuple[int, ...]] = []
        """By statement what may change from turn to turn of a loop: addresses and sizes."""
        self.counts: list[int] = []
        for action, functions in zip(actions, self.functions, strict=True):
            what, before = action.work.what, len(self.forms)
            if self.is_table and what == TABLE:
                pass  # no statement of the op
            elif isinstance(action, DmaStart):
                self.forms += [
                    (WORDS[name], command.to_l1, what)
                    for name, command in zip(functions, action.commands, strict=True)
                ]
            elif isinstance(action, Compute):
                self.forms.append(("fork", action.team.kernel, action.fork))
            else:
                self.forms += [(WORDS[name], what) for name in functions]
            self.counts.append(len(self.forms) - before)
            self.numbers += _numbers_of(action, self.counts[-1])
        self.nodes = rolled(self.forms)
        """The statements with loops for what repeats."""

    @cached_property
    def table_nodes(self) -> tuple[Node, ...]:
        """The statements with the loops that a table of them has."""
        return tuple(table_nodes(self.nodes))


def _numbers_of(action: Action, statements: int) -> list[tuple[int, ...]]:
    if isinstance(action, DmaStart) and statements:
        return [(one.l1_address, one.external_address, one.size_bytes) for one in action.commands]
    if isinstance(action, Compute) and action.team.origin is not None:
        origin = action.team.origin
        return [(*origin.addresses, *[size for _, size in origin.calls[0].sizes])]
    return [()] * statements


def ops_of(actions: Sequence[Action]) -> list[OpActions]:
    """Every op; what comes behind the last one is part of it."""
    releases = [action for action in actions if isinstance(action, Release)]
    borders = [*[action.id + 1 for action in releases[:-1]], len(actions)]
    return [
        OpActions(release.work, actions[begin:end])
        for release, begin, end in zip(releases, [0, *borders], borders, strict=False)
    ]


def code_by_part(programs: Sequence[Sequence[Action]]) -> dict[str, dict[str, int]]:
    """Bytes of the code of programs by the rule: functions of ops, kernels, the platform, the walk."""
    sizes = shipped_sizes()
    ops = [op for actions in programs for op in ops_of(actions)]
    computes = [each for op in ops for each in op.actions if isinstance(each, Compute)]
    teams = {each.team.kernel: each.team for each in computes}.values()
    return {
        "functions": {
            op.name: sizes["op"]["op"] + sum(_function(op, sizes["op"])[1]) for op in ops if not op.is_table
        },
        "kernels": {name: size for team in teams for name, size in kernel_sizes(team, sizes).items()},
        "platform": dict(sizes["platform"]),
        "walk": dict(sizes["walk"]) if any(op.is_table for op in ops) else {},
    }


def _function(op: OpActions, sizes: Mapping[str, int]) -> tuple[Iterator[tuple[int, ...]], list[int]]:
    """By statement of an op, as executed, the numbers of its texts, and the bytes of all texts."""
    texts: list[int] = []
    return iter(_lay([*_written_out(op.nodes, sizes)], sizes, texts)), texts


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
        else:
            yield from leaves * node.count


def _word(leaf: Leaf) -> str:
    """That of a statement in the sizes."""
    assert isinstance(leaf.form, tuple)
    return str(leaf.form[0])


def _lay(nodes: Sequence[Node], sizes: Mapping[str, int], texts: list[int]) -> list[tuple[int, ...]]:
    """By statement, as executed, the numbers of the `texts` it stands for, which get their bytes.

    That of a loop is executed whenever its first statement is.
    """
    executed: list[tuple[int, ...]] = []
    for node in nodes:
        number = len(texts)
        if isinstance(node, Loop):
            texts.append(sizes["loop"])
            turn = _lay(node.body, sizes, texts)
            first = turn[0][-1]
            executed += [(number, *item) if item[-1] == first else item for item in turn] * node.count
        else:
            texts.append(sizes[_word(node)])
            executed.append((number,))
    return executed
