# SPDX-License-Identifier: Apache-2.0
"""What the ops of a problem stream, and through how many bytes of L2."""

from __future__ import annotations

from scheduler.addresses.allocation import align
from scheduler.addresses.lifetimes import storage_lives
from scheduler.fit.prices import Price, Prices
from scheduler.tiles.l2_slots import NOT_STREAMED, OpStream
from scheduler.tiles.streaming_choice import Streamer
from trainlib.ir.graph import TrainingGraph

SMALL = 1 / 400
"""Share of L2 below which a buffer stays there: to move it saves nothing and makes the search longer."""


class Streams:
    """Chooses with the planner's `streamer`; what is small lies in L2 beside every op."""

    def __init__(self, graph: TrainingGraph, streamer: Streamer, prices: Prices, l2_bytes: int) -> None:
        self.graph, self.l2_bytes = graph, l2_bytes
        self._streamer, self._prices = streamer, prices
        lives = storage_lives(graph).values()
        self._small = [life for life in lives if life.size_bytes < SMALL * l2_bytes]

    def needed(self, room_bytes: int) -> frozenset[str]:
        """The storages that some op has to stream in so much L2; none if some op cannot do with it."""
        wanted: set[str] = set()
        for number in range(len(self.graph.ops)):
            stream = self._chosen(number, room_bytes)
            if stream is None:
                return frozenset()
            wanted.update(stream.storages)
        return frozenset(wanted)

    def of_op(self, number: int, room_bytes: int, wanted: frozenset[str]) -> tuple[OpStream, Price] | None:
        """What an op streams, `wanted` storages among it, with the slots that its tiles take, and its price.

        Its tiles are chosen by their price, and may take fewer slots than there is room for. With no more
        room than that another choice of storages may be the planner's.
        """
        stream = self._chosen(number, room_bytes, wanted)
        while stream is not None and stream.storages:
            price = self._prices.streamed(self.graph, self.graph.ops[number], stream)
            fewer = self._chosen(number, room_bytes, wanted, price.slot_bytes)
            if fewer is None or (fewer.storages, fewer.window_bytes) == (stream.storages, price.slot_bytes):
                return fewer or stream, price
            stream = fewer
        return None

    def _chosen(
        self,
        number: int,
        room_bytes: int,
        wanted: frozenset[str] = frozenset(),
        slot_bytes: int | None = None,
    ) -> OpStream | None:
        """`NOT_STREAMED` if all has room and nothing is wanted; None if there is no way."""
        op = self.graph.ops[number]
        owners = {name: self.graph.storage_of(name) for name in (*op.inputs, *op.outputs)}
        sizes = {owner: align(self.graph.tensors[owner].size_bytes) for owner in owners.values()}
        room_bytes -= sum(
            align(life.size_bytes)
            for life in self._small
            if life.first_op <= number <= life.last_op and life.name not in sizes
        )
        alone = {name: size for name, size in sizes.items() if name in wanted}
        if not alone and sum(sizes.values()) <= room_bytes:
            return NOT_STREAMED
        rest_bytes = sum(sizes.values()) - sum(alone.values())
        own = frozenset(alone)
        stream = None
        if alone:
            stream = self._streamer.choose(number, owners, alone, room_bytes - rest_bytes, own, slot_bytes)
        return stream or self._streamer.choose(number, owners, sizes, room_bytes, own, slot_bytes)
