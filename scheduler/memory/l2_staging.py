# SPDX-License-Identifier: Apache-2.0
"""Tensors whose home is L3: when they are copied to L2 and back, and which tensors must have it there.

An op finds all its tensors in L2. The copy of one that lives in L3 arrives during the op before (prefetch)
and goes back during the op after; with less room in L2 it arrives, or leaves, between two ops instead, and
the cluster waits. Copies needed by neighbouring ops stay. An op that streams a tensor (`tiles.l2_slots`)
has slots in L2 instead, and no copy of it is there then.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from configs.values import replace
from scheduler.addresses.allocation import Interval, align
from scheduler.addresses.lifetimes import Life, Runs
from scheduler.tiles.l2_slots import OpStream


class Stay(Interval, frozen=True, kw_only=True):
    """One stay of a tensor in L2: bytes are reserved from op `first_op` to `last_op` inclusive.

    With `loads` the copy from L3 starts before op `first_op` and is awaited before op `needed_op`, the first
    that uses it. A copy back, if any, starts after op `written_op` (-1: none) and is awaited after `last_op`.
    Where all ops of the stay see a part of the tensor only, just that is copied.
    """

    needed_op: int
    loads: bool
    written_op: int
    part_in: Runs = ()
    """The bytes that come from L3; () for all of them."""
    part_out: Runs = ()
    """The bytes that go back; () for all of them."""

    @property
    def runs_in(self) -> Runs:
        """The bytes that come from L3, a transfer each."""
        return (self.part_in or ((0, self.size_bytes),)) if self.loads else ()

    @property
    def runs_out(self) -> Runs:
        """The bytes that go back to L3, a transfer each."""
        return (self.part_out or ((0, self.size_bytes),)) if self.written_op >= 0 else ()


def spare_slots(life: Life, ops: int) -> frozenset[int]:
    """Ops beside its uses in which a copy would lie in L2 so that transfers overlap with computation.

    One before each use that needs the value from L3, one after each write that must get back there.
    """
    uses = set(life.uses)
    spare: set[int] = set()
    for use in life.uses:
        if use > 0 and (life.given or use > life.first_op):
            spare.add(use - 1)
        if use in life.writes and (life.kept or use < life.last_op) and use + 1 < ops:
            spare.add(use + 1)
    return frozenset(spare - uses - set(life.streamed))


def stays_of(life: Life, slots: Iterable[int], transfer_overhead_bytes: int = 0) -> list[Stay]:
    """The stays in L2 of a tensor whose copy is to lie there during these ops (its uses among them).

    Runs of a part with no more than `transfer_overhead_bytes` (`HomeChoice`) between them are one transfer:
    what lies between comes and goes back as it is.
    """
    runs: list[list[int]] = []
    for slot in sorted(slots):
        if runs and runs[-1][-1] == slot - 1:
            runs[-1].append(slot)
        else:
            runs.append([slot])
    stays = []
    for run in runs:
        uses = [use for use in life.uses if run[0] <= use <= run[-1]]
        if not uses:
            continue
        written = [use for use in uses if use in life.writes]
        needed_again = life.kept or uses[-1] < life.last_op
        loads = life.given or uses[0] > life.first_op
        gap_bytes = transfer_overhead_bytes if loads else 0
        stays.append(
            Stay(
                f"{life.name}@{uses[0]}",
                life.size_bytes,
                run[0],
                run[-1],
                life.kind,
                life.name,
                staged=True,
                needed_op=uses[0],
                loads=loads,
                written_op=written[-1] if written and needed_again else -1,
                part_in=_part(life, uses, gap_bytes),
                part_out=_part(life, written, gap_bytes),
            )
        )
    return stays


def _part(life: Life, ops: Iterable[int], gap_bytes: int) -> Runs:
    """The bytes that these ops see, runs with a smaller gap between them in one; () for the whole tensor."""
    if not all(op in life.parts for op in ops):
        return ()
    joined: list[tuple[int, int]] = []
    for first, size_bytes in sorted({run for op in ops for run in life.parts[op].listed()}):
        last, last_bytes = joined[-1] if joined else (0, 0)
        if joined and first - (last + last_bytes) <= gap_bytes:
            joined[-1] = last, max(last_bytes, first + size_bytes - last)
        else:
            joined.append((first, size_bytes))
    return tuple(joined)


@lru_cache(maxsize=1 << 16)  # planning asks again and again
def _moves(life: Life, op: int, ops: int) -> int:
    """Transfers of a tensor that is not in L2 during an op, and one more if one is no longer overlapped."""
    spare = spare_slots(life, ops)
    stays = stays_of(life, {*life.uses, *spare} - {op})
    return sum(stay.loads + (stay.written_op >= 0) for stay in stays) + (op in spare)


class HomeChoice:
    """Chooses which tensors move to L3 until no op needs more than `capacity_bytes` of L2.

    At the op that is furthest over, the cheapest of these for the bytes it frees: to move a tensor this op
    does not use, or to take the copy of a staged tensor out of L2 during this op (its transfer for the op
    beside then is not overlapped). Tensors named in `homes` stay there. `transfer_overhead_bytes` is what the
    bus could move while a transfer is set up.
    """

    def __init__(
        self,
        lives: Mapping[str, Life],
        ops: int,
        homes: Mapping[str, str],
        transfer_overhead_bytes: int = 0,
    ) -> None:
        self._given = lives
        self._lives = dict(lives)
        self._ops = ops
        self._overhead_bytes = transfer_overhead_bytes
        self._fixed = frozenset(homes)
        self._slots: dict[str, set[int]] = {}
        self._streams: dict[int, OpStream] = {}
        self._live: NDArray[np.int64] = np.zeros(ops + 1, dtype=np.int64)
        for life in lives.values():
            self._live[life.first_op : life.last_op + 1] += align(life.size_bytes)
        for name, level in homes.items():
            if level == "l3" and name in lives:
                self._move(name)

    @property
    def in_l3(self) -> frozenset[str]:
        """Tensors whose home is L3."""
        return frozenset(self._slots)

    @property
    def live_bytes(self) -> NDArray[np.int64]:
        """Bytes live in L2 during each op; the last entry is "after the iteration"."""
        return self._live

    @property
    def streams(self) -> dict[int, OpStream]:
        """What is streamed, by op."""
        return dict(sorted(self._streams.items()))

    def pinned(self, name: str) -> bool:
        """Whether a tensor has to be in L2 all its life."""
        return name in self._fixed and name not in self._slots

    def stream(self, op: int, stream: OpStream) -> None:
        """Let `op` stream what it is to stream, and nothing else, instead of finding it in L2."""
        before = self._streams.get(op)
        for name in before.storages if before is not None else ():
            if name not in stream.storages:
                self._make_whole(name, op)
        for name in stream.storages:
            if name not in self._slots:
                self._move(name)
            life = self._lives[name]
            self._lives[name] = replace(
                life,
                reads=tuple(use for use in life.reads if use != op),
                writes=tuple(use for use in life.writes if use != op),
                streamed=tuple(sorted({*life.streamed, op})),
            )
            self._drop(name, op)
        self._live[op] += stream.window_bytes - (before.window_bytes if before is not None else 0)
        self._streams[op] = stream

    def _make_whole(self, name: str, op: int) -> None:
        """A tensor that `op` streams is copied to L2 for it again."""
        given, life = self._given[name], self._lives[name]
        streamed = tuple(use for use in life.streamed if use != op)
        self._lives[name] = replace(
            life,
            reads=tuple(use for use in given.reads if use not in streamed),
            writes=tuple(use for use in given.writes if use not in streamed),
            streamed=streamed,
        )
        self._slots[name] = {*self._slots[name], op}
        self._live[op] += align(life.size_bytes)

    def stays(self) -> list[Stay]:
        """The stays in L2 of all tensors whose home is L3."""
        return [
            stay
            for name, slots in self._slots.items()
            for stay in stays_of(self._lives[name], slots, self._overhead_bytes)
        ]

    def fit(self, capacity_bytes: int) -> int | None:
        """Move tensors until every op fits; the op that cannot be made to fit, or None."""
        while True:
            worst = int(np.argmax(self._live))
            excess_bytes = int(self._live[worst]) - capacity_bytes
            if excess_bytes <= 0:
                self._restore(capacity_bytes)
                return None
            if not self.relieve(worst, excess_bytes):
                return worst

    def relieve(self, op: int, excess_bytes: int) -> bool:
        """Take bytes out of L2 during `op`; False when nothing is left that this op does not use."""
        found: list[tuple[int, int, int, str]] = []
        for name, life in self._lives.items():
            cost_bytes = self._cost_bytes(name, op, excess_bytes)
            if cost_bytes is not None:
                found.append((cost_bytes, life.first_op - life.last_op, -life.size_bytes, name))
        if not found:
            return False
        name = min(found)[-1]
        if name not in self._slots:
            self._move(name)
        if op in self._slots[name]:
            self._drop(name, op)
        return True

    def relieve_by(self, op: int, excess_bytes: int) -> bool:
        """Take so many bytes out of L2 during `op`, or what it does not use; False when that is nothing."""
        before_bytes = int(self._live[op])
        while (left_bytes := int(self._live[op]) - before_bytes + excess_bytes) > 0:
            if not self.relieve(op, left_bytes):
                break
        return int(self._live[op]) < before_bytes

    def _cost_bytes(self, name: str, op: int, excess_bytes: int) -> int | None:
        """Bytes to transfer, and not to overlap any more, if this tensor is not in L2 during `op`.

        A tensor smaller than what is missing is counted as often as it takes. None: it has to be there, or is
        not there anyway.
        """
        life = self._lives[name]
        if op in life.reads or op in life.writes:
            return None
        if name in self._slots:
            if op not in self._slots[name]:
                return None
            moves = 1
        else:
            if name in self._fixed or not life.first_op <= op <= life.last_op:
                return None
            moves = _moves(life, op, self._ops)
        pieces = -(-excess_bytes // max(life.size_bytes, 1))
        return moves * (max(life.size_bytes, excess_bytes) + pieces * self._overhead_bytes)

    def _restore(self, capacity_bytes: int) -> None:
        """Take back to L2, in the order they were moved, what later and larger moves made room for again."""
        for name in [name for name in self._slots if name not in self._fixed]:
            life = self._lives[name]
            if life.streamed:
                continue
            size_bytes, slots = align(life.size_bytes), sorted(self._slots[name])
            self._live[slots] -= size_bytes
            self._live[life.first_op : life.last_op + 1] += size_bytes
            if int(self._live.max()) <= capacity_bytes:
                del self._slots[name]
            else:
                self._live[life.first_op : life.last_op + 1] -= size_bytes
                self._live[slots] += size_bytes

    def _move(self, name: str) -> None:
        life = self._lives[name]
        self._live[life.first_op : life.last_op + 1] -= align(life.size_bytes)
        slots = {*life.uses, *spare_slots(life, self._ops)}
        self._slots[name] = {
            slot for stay in stays_of(life, slots) for slot in range(stay.first_op, stay.last_op + 1)
        }
        for slot in self._slots[name]:
            self._live[slot] += align(life.size_bytes)

    def _drop(self, name: str, op: int) -> None:
        life = self._lives[name]
        before = self._slots[name]
        after = {
            slot for stay in stays_of(life, before - {op}) for slot in range(stay.first_op, stay.last_op + 1)
        }
        for slot in before - after:
            self._live[slot] -= align(life.size_bytes)
        self._slots[name] = after
