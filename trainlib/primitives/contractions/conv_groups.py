# SPDX-License-Identifier: Apache-2.0
"""The matmuls of convolutions, all groups in one fork: a loop over the groups around the matmul's nest.

PULP-TrainLib has no grouped convolution. One fork per group would cost its overhead for every group, and one
buffer per group a DMA transfer for each; so a tile keeps the channels of all its groups side by side, and one
call multiplies group after group.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby

import numpy as np

from arch.spec.isa import CoreWork, Instruction, Loop, Node, Op, Origin, Stream, TeamWork
from configs.dtypes import DType
from configs.values import Struct, replace
from trainlib.ir.steps import Array, Extent, KernelCall, KernelChoice
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


def grouped_product_call(
    choice: KernelChoice,
    products: Sequence[Product],
    *,
    buffers: tuple[str, str, str],
    k: int,
    trans_b: bool,
    dtype: DType,
    pick: Callable[[Array, Array, int], tuple[Array, Array]],
    join: Callable[[Sequence[Array]], Array],
) -> KernelCall:
    """C = A·B of every group, one after the other; `buffers` names A, B and C.

    `pick` gives A [n, k] and B of a group from the two buffers, `join` makes the array of the buffer of C
    from the products [n, m] of all groups.
    """
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
    a, b, c = buffers

    def work(cores: int, addresses: Mapping[str, int]) -> TeamWork:
        places = (addresses[a], addresses[b], addresses[c])
        return _in_turn(calls, products, cores, places, dtype.bytes)

    def function(arrays: Sequence[Array]) -> tuple[Array, ...]:
        results = [call.function(pick(arrays[0], arrays[1], group))[0] for group, call in enumerate(calls)]
        return (join(results),)

    macs = sum(call.macs for call in calls)
    details = {"products": products, "orders": [call.details.get("order") for call in calls]}
    return KernelCall(choice.kernel, (a, b), (c,), work, function, macs, details=details)


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
    choice, dtype, hwc = tile.choice, tile.dtype, ConvGeometry.of(tile.op.attributes).hwc
    starts = [item.start - parts[0].start for item in parts]
    counts = [item.count for item in parts]
    if len(parts) == 1:
        (a, n), (b, m) = ([weights], counts[0]), (list(matrix), positions)
        if hwc:
            a, b, n, m = b, a, m, n
        return product_call(choice, a, b, target, (n, k, m), dtype, trans_b=True)
    products = []
    for group, (start, count) in enumerate(zip(starts, counts, strict=True)):
        of_weights, of_matrix = start * k, group * positions * k
        if hwc:
            products.append(Product(positions, count, (of_matrix, of_weights, start), sum(counts)))
        else:
            places = (of_weights, of_matrix, start * positions)
            products.append(Product(count, positions, places, positions))

    def pick(left: Array, right: Array, group: int) -> tuple[Array, Array]:
        filters, matrices = (right, left) if hwc else (left, right)
        of_group = filters[starts[group] : starts[group] + counts[group]].reshape(counts[group], k)
        return (matrices[group], of_group) if hwc else (of_group, matrices[group])

    def join(results: Sequence[Array]) -> Array:
        return np.concatenate(results, axis=1 if hwc else 0).reshape(target.shape)

    buffers = (matrix[0], weights, target.name) if hwc else (weights, matrix[0], target.name)
    return grouped_product_call(
        choice, products, buffers=buffers, k=k, trans_b=True, dtype=dtype, pick=pick, join=join
    )


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
    choice, dtype = tile.choice, tile.dtype
    if len(parts) == 1:
        sizes = (parts[0].count, positions, width)
        return product_call(choice, [gradient], matrix, target, sizes, dtype, trans_b=trans_b)
    starts = [item.start - parts[0].start for item in parts]
    products = [
        Product(item.count, width, (start * positions, group * positions * width, start * width), width)
        for group, (start, item) in enumerate(zip(starts, parts, strict=True))
    ]

    def pick(left: Array, right: Array, group: int) -> tuple[Array, Array]:
        start, count = starts[group], parts[group].count
        return left[start : start + count].reshape(count, positions), right[group]

    return grouped_product_call(
        choice,
        products,
        buffers=(gradient, matrix[0], target.name),
        k=positions,
        trans_b=trans_b,
        dtype=dtype,
        pick=pick,
        join=lambda results: np.concatenate(results).reshape(target.shape),
    )


def _in_turn(
    calls: Sequence[KernelCall],
    products: Sequence[Product],
    cores: int,
    places: tuple[int, int, int],
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
