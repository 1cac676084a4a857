# SPDX-License-Identifier: Apache-2.0
"""The matmuls of convolutions, all groups in one fork: a loop over the groups around the matmul's nest.

PULP-TrainLib has no grouped convolution. One fork per group would cost its overhead for every group, and one
buffer per group a DMA transfer for each; so a tile keeps the channels of all its groups side by side, and one
call multiplies group after group.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby

import numpy as np

from arch.spec.isa import CoreWork, Instruction, Loop, Node, Op, Origin, Stream, TeamWork
from configs.values import Struct, replace
from trainlib.ir.steps import Array, Extent, KernelCall
from trainlib.primitives.contractions.contraction import LoopTile
from trainlib.primitives.contractions.conv_calls import product_call
from trainlib.primitives.contractions.conv_geometry import ConvGeometry, Segment, segments
from trainlib.primitives.lowering.calls import factors, matmul_call
from trainlib.primitives.lowering.kernel_call import Piece

_BETWEEN = (Instruction(Op.ALU), Instruction(Op.ALU), Instruction(Op.ALU), Instruction(Op.BRANCH))
"""From one group to the next: three pointers move on, and the loop closes."""


class Product(Struct, frozen=True):
    """The matmul of one group: sizes n and m, and where A, B and C begin in their buffers, in elements.

    `row` is the distance of the rows of C; they are priced as if they lay one behind the other.
    """

    n: int
    m: int
    starts: tuple[int, int, int]
    row: int


def _products_call(
    tile: LoopTile,
    products: Sequence[Product],
    a: Sequence[str],
    b: Sequence[str],
    target: Piece,
    k: int,
    *,
    trans_b: bool,
) -> KernelCall:
    """C = A·B of every group, one after the other; of a single group A or B may lie in several buffers."""
    choice, dtype = tile.choice, tile.dtype
    if len(products) == 1:
        sizes = (products[0].n, k, products[0].m)
        return product_call(choice, a, b, target, sizes, dtype, trans_b=trans_b)
    calls = [
        matmul_call(
            choice,
            *factors("a", "b", item.n, k, item.m, trans_b=trans_b),
            Piece("c", (item.n, item.m)),
            dtype,
            trans_b=trans_b,
        )
        for item in products
    ]
    buffers, side_by_side = (a[0], b[0], target.name), products[0].row > products[0].m

    def work(cores: int, addresses: Mapping[str, int]) -> TeamWork:
        return _in_turn(calls, products, cores, [addresses[name] for name in buffers], dtype.bytes)

    def function(arrays: Sequence[Array]) -> tuple[Array, ...]:
        left, right = (array.reshape(-1) for array in arrays)
        results = list[Array]()
        for item, call in zip(products, calls, strict=True):
            of_a, of_b, _ = item.starts
            results += call.function([left[of_a : of_a + item.n * k], right[of_b : of_b + k * item.m]])
        return (np.concatenate(results, axis=int(side_by_side)).reshape(target.shape),)

    macs = sum(call.macs for call in calls)
    details = {"products": products, "orders": [call.details.get("order") for call in calls]}
    return KernelCall(choice.kernel, buffers[:2], buffers[2:], work, function, macs, details=details)


def channels_met(tile: LoopTile, image: str, over: str) -> tuple[list[Segment], Extent, list[Extent]]:
    """The groups of a tile's own channels, and the channels of `image` they meet.

    The image is fetched from the first to the last channel any group meets; of each group those the tile
    takes, counted from there. `over` is the loop over the channels of a group that are met.
    """
    geometry = ConvGeometry.of(tile.op.attributes)
    written, met = geometry.co_of_group, geometry.ci_of_group
    loop, axis = "co", "ci"
    if image == "dy":
        loop, axis, written, met = "ci", "co", met, written
    parts = segments(tile.extents[loop], written, met)
    sources = tile.span(image, axis).extent
    taken = tile.extents[over]
    within = [
        (item.others[0] + taken[0] - sources[0], item.others[0] + taken[1] - sources[0]) for item in parts
    ]
    return parts, sources, within


def within_group(segment: Segment, of_group: int) -> Extent:
    """Channels of a segment, counted from the first of its group."""
    offset = segment.group * of_group
    return (segment.start - offset, segment.stop - offset)


def filter_product(
    tile: LoopTile,
    parts: Sequence[Segment],
    weights: str,
    matrix: Sequence[str],
    target: Piece,
    k: int,
    positions: int,
) -> KernelCall:
    """weights [channels, k] · matrix [positions, k]ᵀ in CHW, matrix · weightsᵀ in HWC, group by group."""
    hwc, products = ConvGeometry.of(tile.op.attributes).hwc, []
    for group, item in enumerate(parts):
        start, of_matrix = item.start - parts[0].start, group * positions * k
        if hwc:
            row = parts[-1].stop - parts[0].start
            products.append(Product(positions, item.count, (of_matrix, start * k, start), row))
        else:
            places = (start * k, of_matrix, start * positions)
            products.append(Product(item.count, positions, places, positions))
    a, b = (matrix, [weights]) if hwc else ([weights], matrix)
    return _products_call(tile, products, a, b, target, k, trans_b=True)


def gradient_product(
    tile: LoopTile,
    parts: Sequence[Segment],
    gradient: str,
    matrix: Sequence[str],
    target: Piece,
    positions: int,
    width: int,
    *,
    trans_b: bool,
) -> KernelCall:
    """gradient [channels, positions] · matrix [positions, width] (or its transpose), group by group."""
    starts = [item.start - parts[0].start for item in parts]
    products = [
        Product(item.count, width, (start * positions, group * positions * width, start * width), width)
        for group, (start, item) in enumerate(zip(starts, parts, strict=True))
    ]
    return _products_call(tile, products, [gradient], matrix, target, positions, trans_b=trans_b)


def _in_turn(
    calls: Sequence[KernelCall],
    products: Sequence[Product],
    cores: int,
    places: Sequence[int],
    itemsize_bytes: int,
) -> TeamWork:
    """The nests of all products; runs of equal ones are a loop whose addresses move on."""

    def team(index: int) -> TeamWork:
        starts = zip("abc", places, products[index].starts, strict=True)
        addresses = {name: place + start * itemsize_bytes for name, place, start in starts}
        return calls[index].work(cores, addresses)

    teams: list[TeamWork] = []
    for _, run in groupby(range(len(products)), key=lambda index: (products[index].n, products[index].m)):
        members = list(run)
        first = team(members[0])
        if len(members) > 1:
            second = team(members[1])
            pairs = zip(first.cores, second.cores, strict=True)
            works = tuple(_repeated(len(members), core, following) for core, following in pairs)
            origin = _joined(f"{len(members)} times", [first, second])
            first = TeamWork(first.kernel, works, first.macs * len(members), origin)
        teams.append(first)
    joined = tuple(_chained([team.cores[core] for team in teams]) for core in range(cores))
    macs = sum(team.macs for team in teams)
    return TeamWork(teams[0].kernel, joined, macs, _joined("in turn", teams))


def _joined(how: str, teams: Sequence[TeamWork]) -> Origin | None:
    """What a work made of others was made from."""
    origins = [team.origin for team in teams if team.origin is not None]
    if len(origins) < len(teams):
        return None
    texts = [how, *(origin.text for origin in origins)]
    addresses = tuple(address for origin in origins for address in origin.addresses)
    return Origin(repr(texts), addresses, tuple(call for origin in origins for call in origin.calls))


def _repeated(count: int, first: CoreWork | None, second: CoreWork | None) -> CoreWork | None:
    """`count` executions of one body; the addresses move on as from the first to the second."""
    if first is None or second is None:
        return first
    streams = tuple(
        before
        if before is after  # an access the nest does not make
        else Stream(before.base_bytes, (after.base_bytes - before.base_bytes, *before.strides_bytes))
        for before, after in zip(first.streams, second.streams, strict=True)
    )
    return CoreWork((Loop(count, (*first.body, *_BETWEEN)),), streams, first.code_bytes)


def _chained(works: Sequence[CoreWork | None]) -> CoreWork | None:
    """One after the other; the streams of each get numbers of their own."""
    busy = [work for work in works if work is not None]
    if len(busy) < 2:
        return busy[0] if busy else None
    body: list[Node] = []
    streams: list[Stream] = []
    for work in busy:
        body += [_renumbered(node, len(streams)) for node in work.body]
        streams += work.streams
    return CoreWork(tuple(body), tuple(streams), max(work.code_bytes for work in busy))


def _renumbered(node: Node, offset: int) -> Node:
    if isinstance(node, Loop):
        return replace(node, body=tuple(_renumbered(item, offset) for item in node.body))
    return replace(node, stream=node.stream + offset) if node.stream >= 0 else node
