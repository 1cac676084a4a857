# SPDX-License-Identifier: Apache-2.0
"""What the master does from one instant at which all is still to the next: run once, then passed over.

When nothing is queued or under way and no engine or link is taken any more, the machine is as at its start.
So what follows takes the same cycles whenever the same actions come, and it leaves transfers that are over
and transfer IDs that are taken. A search, to which nobody listens, simulates thousands of programs of few
such stretches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from arch.blocks.bursts import BurstRules, shape_of
from arch.blocks.dma import Dma, Transfer
from arch.spec.program import Action, Command, Compute, DmaStart, DmaWait, Program, Release
from arch.spec.timing import SocTiming
from configs.errors import InputError

MOST_KEPT = 50_000
"""Different pieces, actions with their commands, and teams that are remembered; then all is forgotten."""


class _Piece(NamedTuple):
    """Actions between two looks: a kernel, or what stands between two.

    `number` is equal for what takes equally long after equal pieces; `begins` and `waits` are the actions
    that begin transfers, and the transfers waited for.
    """

    first: int
    number: int
    begins: Sequence[Action]
    waits: Sequence[int]


class _Node:
    """Pieces one after the other from an instant at which all was still; `cycles` if it is again behind them,
    -1 if it is not or nobody knows."""

    __slots__ = ("cycles", "then")

    def __init__(self) -> None:
        self.cycles = -1
        self.then: dict[int, _Node] = {}


class Stretches:
    """The stretches a machine has run, by how many transfer IDs are taken when they begin."""

    def __init__(self, dma: Dma, timing: SocTiming) -> None:
        self._dma = dma
        self._rules = BurstRules.of(timing.dma, timing.l1.word_bytes)
        self._forget()

    def _forget(self) -> None:
        self._roots: dict[int, _Node] = {}
        self._numbers: dict[object, int] = {}
        self._of_objects: dict[int, tuple[object, object | None]] = {}
        """By identity an action or a team, kept so that no other takes it, and what it comes to wherever it
        stands: the same action may be part of several programs."""
        self._commands = 0
        """Those of actions that are kept."""

    def walk(self, program: Program) -> Walk | None:
        """The way through a program; None if it does what is not passed over."""
        if len(self._numbers) + len(self._of_objects) + self._commands > MOST_KEPT:
            self._forget()
        actions = program.actions
        pieces: list[_Piece] = []
        content: list[object] = []
        begins: list[Action] = []
        waits: list[int] = []
        waited: set[int] = set()
        first = 0
        for position, action in enumerate(actions):
            said = self._key_of(action, actions) if action.id == position else None
            if said is None:
                return None
            if isinstance(action, Compute):
                if content:
                    pieces.append(self._piece(first, content, begins, waits))
                    content, begins, waits = [], [], []
                pieces.append(self._piece(action.id, [said], [], []))
                first = action.id + 1
                continue
            content.append(said)
            if isinstance(action, DmaStart):
                begins.append(action)
            elif isinstance(action, DmaWait):
                if action.transfer in waited or not isinstance(actions[action.transfer], DmaStart):
                    return None  # its ID may be another's by now; what has not begun never ends
                waited.add(action.transfer)
                waits.append(action.transfer)
        if content:
            pieces.append(self._piece(first, content, begins, waits))
        return Walk(self._dma, self._roots, pieces, len(actions))

    def _piece(
        self, first: int, content: Sequence[object], begins: Sequence[Action], waits: Sequence[int]
    ) -> _Piece:
        return _Piece(first, self._numbers.setdefault(tuple(content), len(self._numbers)), begins, waits)

    def _key_of(self, action: Action, actions: Sequence[Action]) -> object | None:
        """What decides how long an action takes after those before it; None if that is not all."""
        if isinstance(action, Compute):
            team = action.team
            self._of_objects.setdefault(id(team), (team, None))
            transfers = _transfers_before(action, actions)
            return None if transfers is None else (id(team), action.fork, action.code_cycles, transfers)
        kept = self._of_objects.get(id(action))
        if kept is None:
            kept = self._of_objects[id(action)] = action, self._content(action)
        return kept[1]

    def _content(self, action: Action) -> object | None:
        """That of an action which is no kernel, whatever stands before it."""
        back = tuple([action.id - dep for dep in action.deps])
        if not all(0 < steps <= action.id for steps in back):
            return None
        if isinstance(action, DmaWait):
            steps = action.id - action.transfer
            return (DmaWait, steps, back) if 0 < steps <= action.id else None
        if isinstance(action, DmaStart):
            self._commands += len(action.commands)
            if any(command.external_level != "l2" for command in action.commands):
                return None
            try:
                self._dma.check(action.commands)
            except InputError:
                return None  # it is refused when its turn comes
            return DmaStart, action.code_cycles, back, self._shapes(action.commands)
        return (Release, back) if isinstance(action, Release) else None

    def _shapes(self, commands: Sequence[Command]) -> tuple[tuple[object, ...], ...]:
        """By direction; what it takes to program a command follows from its lines, which are in its shape."""
        return tuple([(command.to_l1, shape_of(command, self._rules)) for command in commands])


def _transfers_before(action: Compute, actions: Sequence[Action]) -> tuple[int, ...] | None:
    """How far before a kernel the transfers begin that it depends on; all else it depends on is over then.

    None if one comes later.
    """
    transfers = []
    for dep in action.deps:
        if not 0 <= dep < action.id:
            return None
        before = actions[dep]
        if isinstance(before, DmaStart):
            transfers.append(action.id - dep)
    return tuple(transfers)


class Walk:
    """One run of a program: which pieces are passed over, and what the others take."""

    def __init__(self, dma: Dma, roots: dict[int, _Node], pieces: Sequence[_Piece], end: int) -> None:
        self._dma, self._roots, self._pieces, self._end = dma, roots, pieces, end
        self._next = 0
        self._node: _Node | None = None
        self._since = 0
        self.border = 0
        """The action at which to `go_on` next."""

    def go_on(
        self, now: int, transfers: dict[int, Transfer], begin: Callable[[Action], Transfer]
    ) -> tuple[int, int]:
        """The master has come to `border`: the action that is to be run next, and in how many cycles."""
        dma, pieces = self._dma, self._pieces
        passed = 0
        if dma.settled:
            if self._node is not None:
                self._node.cycles = now - self._since
            while True:
                root = self._roots.get(dma.taken)
                if root is None:
                    root = self._roots[dma.taken] = _Node()
                node, behind = root, self._next
                while node.cycles < 0 and behind < len(pieces):
                    following = node.then.get(pieces[behind].number)
                    if following is None:
                        break
                    node, behind = following, behind + 1
                if node.cycles < 0:
                    break
                passed += node.cycles
                self._pass_over(pieces[self._next : behind], transfers, begin)
                self._next = behind
            self._node, self._since = root, now + passed
        if self._next == len(pieces):
            self._node = None
            return self._end, passed
        piece = pieces[self._next]
        self._next += 1
        if self._node is not None:
            following = self._node.then.get(piece.number)
            if following is None:
                following = self._node.then[piece.number] = _Node()
            self._node = following
        self.border = pieces[self._next].first if self._next < len(pieces) else self._end
        return piece.first, passed

    def _pass_over(
        self, pieces: Sequence[_Piece], transfers: dict[int, Transfer], begin: Callable[[Action], Transfer]
    ) -> None:
        """Leave the transfers and their IDs as these pieces do."""
        begun = {action.id: action for piece in pieces for action in piece.begins}
        for piece in pieces:
            for transfer in piece.waits:
                if transfer in begun:
                    del begun[transfer]
                else:
                    self._dma.free(transfers[transfer])
        for action in begun.values():
            transfers[action.id] = begin(action)
