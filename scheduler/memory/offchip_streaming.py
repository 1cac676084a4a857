# SPDX-License-Identifier: Apache-2.0
"""Which ops of a memory plan stream what: those whose tensors do not fit L2, and what is asked for."""

from __future__ import annotations

from collections.abc import Mapping

from configs.values import Struct
from scheduler.addresses.allocation import Interval, align
from scheduler.addresses.lifetimes import Life
from scheduler.memory.l2_staging import HomeChoice
from scheduler.tiles.l2_slots import NOT_STREAMED, OpStream
from scheduler.tiles.streaming_choice import Least, Streamer
from trainlib.ir.graph import TrainingGraph

OPS_NAMED = 4
"""Streaming ops the note names."""


class StreamingPlan(Struct, frozen=True):
    """Changes a choice of homes op by op; without a `streamer` nothing can be streamed.

    Storages that are `wanted` are streamed by every op that can, those `asked` for by the op of that name;
    `slot_bytes` are those of `PlanOptions`.
    """

    _graph: TrainingGraph
    _lives: Mapping[str, Life]
    _owners: Mapping[str, str]
    _choice: HomeChoice
    _streamer: Streamer | None
    _wanted: frozenset[str] = frozenset()
    _asked: Mapping[str, frozenset[str]] = {}
    _slot_bytes: Mapping[str, int] = {}

    def stream_requested(self, available_bytes: int) -> list[str]:
        """Stream what is wanted in all ops that use it; notes on what has to be whole for an op."""
        notes = []
        for number, op in enumerate(self._graph.ops if self._wanted or self._asked else ()):
            sizes = self._sizes(number)
            wanted = self._requested_of(number) & sizes.keys()
            if not wanted or self._streamer is None:
                continue
            room_bytes = available_bytes - self._pinned_bytes(number)
            alone = {name: sizes[name] for name in sorted(wanted)}
            rest_bytes = sum(align(size) for name, size in sizes.items() if name not in wanted)
            stream = self._chosen(number, alone, room_bytes - rest_bytes, wanted)
            stream = stream or self._chosen(number, sizes, room_bytes, wanted)
            if stream is not None:
                self._choice.stream(number, stream)
            notes += [
                f"{op.name} cannot stream {name} from L3: the whole tensor is copied to L2"
                for name in sorted(wanted)
                if stream is None or name not in stream.storages
            ]
        return notes

    def relieve(self, op: int, available_bytes: int, missing_bytes: int = 0) -> bool:
        """Stream something during `op`, or through fewer slots, so that it needs so many bytes less.

        It needs no more than L2 has then. False if there is no such way.
        """
        if self._streamer is None or op >= len(self._graph.ops):
            return False
        sizes = self._sizes(op)
        stream = self._choice.streams.get(op)
        used_bytes = sum(
            align(size) for name, size in sizes.items() if stream is None or name not in stream.storages
        )
        used_bytes += stream.window_bytes if stream is not None else 0
        room_bytes = min(available_bytes - self._pinned_bytes(op), used_bytes - missing_bytes)
        wanted = self._requested_of(op) & sizes.keys()
        streamed = self._chosen(op, sizes, room_bytes, wanted)
        if streamed is None:
            return False
        self._choice.stream(op, streamed)
        return True

    def _requested_of(self, op: int) -> frozenset[str]:
        return self._asked.get(self._graph.ops[op].name, self._wanted)

    def _chosen(
        self, op: int, sizes: Mapping[str, int], room_bytes: int, wanted: frozenset[str]
    ) -> OpStream | None:
        assert self._streamer is not None
        slot_bytes = self._slot_bytes.get(self._graph.ops[op].name)
        return self._streamer.choose(op, self._owners, sizes, room_bytes, wanted, slot_bytes)

    def least(self, op: int) -> Least | None:
        """The least L2 the tensors of an op can do with, if some are streamed."""
        if self._streamer is None or op >= len(self._graph.ops):
            return None
        return self._streamer.least(op, self._owners, self._sizes(op))

    def neediest(self) -> tuple[int, int]:
        """The op that needs most of L2 with everything in L3 that it can do without, and the bytes.

        Moves everything else out of L2: for a plan that has failed.
        """
        choice = self._choice
        for op in choice.streams:
            choice.stream(op, NOT_STREAMED)
        choice.fit(0)
        neediest, least_bytes = 0, -1
        most_bytes = choice.live_bytes.tolist()
        for op in sorted(range(len(most_bytes)), key=lambda op: -int(most_bytes[op])):
            if most_bytes[op] <= least_bytes:
                break
            while choice.relieve(op, int(choice.live_bytes[op])):
                pass
            op_bytes = int(choice.live_bytes[op])
            least = self.least(op)
            if least is not None:
                op_bytes = min(op_bytes, self._pinned_bytes(op) + least.size_bytes)
            if op_bytes > least_bytes:
                neediest, least_bytes = op, op_bytes
        return neediest, least_bytes

    def windows(self) -> list[Interval]:
        """The bytes of L2 for slots."""
        return [
            Interval(
                window_name(self._graph.ops[op].name), stream.window_bytes, op, op, "scratch", staged=True
            )
            for op, stream in self._choice.streams.items()
        ]

    def notes(self) -> tuple[str, ...]:
        """What the user should know of it."""
        streams = self._choice.streams
        if not streams:
            return ()
        listed = [
            f"{self._graph.ops[op].name} ({', '.join(stream.storages)})"
            for op, stream in list(streams.items())[:OPS_NAMED]
        ]
        if len(streams) > OPS_NAMED:
            listed.append(f"{len(streams) - OPS_NAMED} more")
        return (f"tensors streamed between L3 and L1, without a copy in L2: {', '.join(listed)}",)

    def _sizes(self, op: int) -> dict[str, int]:
        """Storages an op uses that need not be in L2 all their lives, with their bytes."""
        item = self._graph.ops[op]
        names = dict.fromkeys(self._owners[name] for name in (*item.inputs, *item.outputs))
        return {
            name: self._lives[name].size_bytes
            for name in names
            if self._lives[name].size_bytes > 0 and not self._choice.pinned(name)
        }

    def _pinned_bytes(self, op: int) -> int:
        return sum(
            align(life.size_bytes)
            for name, life in self._lives.items()
            if self._choice.pinned(name) and life.first_op <= op <= life.last_op
        )


def window_name(op: str) -> str:
    """What the bytes of L2 an op streams through are called before its tiles are known."""
    return f"{op}:slots"
