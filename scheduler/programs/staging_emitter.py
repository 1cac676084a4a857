# SPDX-License-Identifier: Apache-2.0
"""The uDMA actions of a memory plan: copies from L3 before the ops that need them, copies back after."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from arch.spec.program import Action, Place, UdmaCommand, UdmaStart, UdmaWait
from scheduler.addresses.allocation import Allocation
from scheduler.memory.l2_staging import Stay
from scheduler.memory.memory_plan import MemoryPlan
from scheduler.tiles.resident_tensors import InPlace
from traces.events import Work
from trainlib.ir.graph import TrainingGraph


class StagingEmitter:
    """Appends the transfers between L2 and L3 around each op to the actions of a program.

    Before an op: the copies that arrive during it or are needed by it are started, those needed by it first
    and small ones before large ones, because the queue of the uDMA is short and a full one blocks the master;
    then the op waits for its own. After an op: what it has written last is sent back, then every copy whose
    bytes are given up is waited for. A tensor has at most one copy in L2 at a time, so a copy from L3 never
    overtakes a copy back. A copy that no op reads or writes, because the tensor is in L1 all that time, is
    not made. `in_place` has for every op the tensors it finds in L1.
    """

    def __init__(
        self,
        plan: MemoryPlan,
        graph: TrainingGraph,
        actions: list[Action],
        in_place: Sequence[Mapping[str, InPlace]],
    ) -> None:
        self._plan = plan
        self._graph = graph
        self._in_place = in_place
        self._actions = actions
        self._started: dict[str, int] = {}
        self._loads: dict[int, list[Stay]] = {}
        self._needed: dict[int, list[Stay]] = {}
        self._stores: dict[int, list[Stay]] = {}
        self._ends: dict[int, list[Stay]] = {}
        for stay in sorted(plan.stays, key=lambda stay: (stay.needed_op, stay.size_bytes, stay.tensor)):
            if stay.loads and self._is_read(stay):
                self._loads.setdefault(stay.first_op, []).append(stay)
                self._needed.setdefault(stay.needed_op, []).append(stay)
            if stay.written_op >= 0 and self._is_written(stay):
                self._stores.setdefault(stay.written_op, []).append(stay)
                self._ends.setdefault(stay.last_op, []).append(stay)

    def before(self, op_number: int) -> None:
        """What goes before the actions of an op."""
        for stay in self._loads.get(op_number, ()):
            self._start(stay, stay.needed_op, to_l2=True)
        self._wait(self._needed.get(op_number, ()), op_number)

    def after(self, op_number: int) -> None:
        """What goes after the actions of an op."""
        for stay in self._stores.get(op_number, ()):
            self._start(stay, op_number, to_l2=False)
        self._wait(self._ends.get(op_number, ()), op_number)

    def _is_read(self, stay: Stay) -> bool:
        """Whether an op asks L2 for the copy."""
        uses = self._uses(stay, range(stay.needed_op, stay.last_op + 1), inputs=True)
        return any(item is None or item.loads or item.stores for item in uses)

    def _is_written(self, stay: Stay) -> bool:
        """Whether the last op that writes the tensor stores it to the copy, and not to L1 alone."""
        return any(item is None or item.stores for item in self._uses(stay, [stay.written_op], inputs=False))

    def _uses(self, stay: Stay, ops: Iterable[int], *, inputs: bool) -> Iterator[InPlace | None]:
        """How ops find the tensor of a stay in L1, as an output or input; None where one does not."""
        for number in ops:
            op = self._graph.ops[number]
            for name in (*op.inputs, *op.outputs) if inputs else op.outputs:
                if self._plan.owners[name] == stay.tensor:
                    yield self._in_place[number].get(name)

    def _start(self, stay: Stay, op_number: int, *, to_l2: bool) -> None:
        copy = self._plan.place(stay.needed_op, stay.tensor)
        home = self._plan.home(stay.tensor)
        commands = tuple(
            UdmaCommand(to_l2, copy.address + first, home.address + first, size_bytes)
            for first, size_bytes in (stay.runs_in if to_l2 else stay.runs_out)
        )
        self._started[stay.name] = len(self._actions)
        work = self._work(op_number, stay.tensor)
        self._actions.append(UdmaStart(len(self._actions), (), work, commands))

    def _wait(self, stays: Iterable[Stay], op_number: int) -> None:
        for stay in stays:
            start = self._started[stay.name]
            work = self._work(op_number, stay.tensor)
            self._actions.append(UdmaWait(len(self._actions), (start,), work, start))

    def _work(self, op_number: int, tensor: str) -> Work:
        op = self._graph.ops[op_number]
        return Work(op.layer, op.step, what=tensor)


def places_of(allocations: Iterable[Allocation]) -> tuple[Place, ...]:
    """The bytes of some allocations, as a release names them."""
    return tuple(
        Place(item.level, item.address, (item.size_bytes,), "uint8", item.name) for item in allocations
    )
