# SPDX-License-Identifier: Apache-2.0
"""A compute action that is several matmuls: one a group, or of a matrix that lies in several buffers."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from arch.spec.isa import NestCall
from arch.spec.program import Effect
from trainlib.ir.numerics import IN_ORDER, SumOrder

OneProduct = tuple[NestCall, tuple[int, ...]]
"""A matmul as it is called, and the addresses of A, B and C."""


def products(nest: NestCall, effect: Effect) -> list[OneProduct]:
    """The matmuls of an action, to be called in this order; empty where it is the one the nest says."""
    if "products" in effect.details:
        return list(_of_groups(nest, effect))
    return list(_of_buffers(nest, effect)) if "buffers_of_a" in effect.details else []


def _bytes(nest: NestCall) -> tuple[int, ...]:
    """Of an element of A, B and C."""
    return tuple(element_bytes for _, _, element_bytes in nest.forms)


def in_lanes(nest: NestCall, order: SumOrder | None) -> NestCall:
    """The matmul with the kernel of sums in two lanes, where its order has them; None: sums in fp32."""
    if order is None or order == IN_ORDER:
        return nest
    lanes = {"paired_rows": order.paired_rows, "paired_columns": order.paired_columns}
    sizes = (*nest.sizes, *lanes.items(), ("tail_apart", int(order.tail == "product")))
    return nest._replace(kernel="mm_lanes", sizes=sizes)


def _changed(nest: NestCall, c_row: int, **sizes: int) -> NestCall:
    a, b, (name, strides, element_bytes) = nest.forms
    return nest._replace(
        sizes=(*nest.sizes, *sizes.items()), forms=(a, b, (name, (c_row, *strides[1:]), element_bytes))
    )


def _of_groups(nest: NestCall, effect: Effect) -> Iterator[OneProduct]:
    a, b, c = (place.address for place in (*effect.reads, *effect.writes))
    for product, order in zip(effect.details["products"], effect.details["orders"], strict=True):
        starts = [start * each for start, each in zip(product.starts, _bytes(nest), strict=True)]
        yield (
            _changed(in_lanes(nest, order), product.row, N=product.n, M=product.m),
            (a + starts[0], b + starts[1], c + starts[2]),
        )


def _of_buffers(nest: NestCall, effect: Effect) -> Iterator[OneProduct]:
    """Rows of A give rows of C, of a transposed B columns; those of B as it is are terms of the sums."""
    sizes = dict(nest.sizes)
    count = effect.details["buffers_of_a"]
    rows, columns = effect.reads[:count], effect.reads[count:]
    k, m, done = sizes["K"], sizes["M"], 0
    of_a, _, of_c = _bytes(nest)
    for place in rows if count > 1 else columns:
        elements = prod(place.shape)
        a, b, c = rows[0].address, columns[0].address, effect.writes[0].address
        if count > 1:
            some = elements // k
            rest = max(sizes.get("paired_rows", 0) - done, 0)
            yield _changed(nest, m, N=some, paired_rows=rest), (place.address, b, c + of_c * done * m)
        elif sizes["trans_b"]:
            some = elements // k
            rest = max(sizes.get("paired_columns", 0) - done, 0)
            yield _changed(nest, m, M=some, paired_columns=rest), (a, place.address, c + of_c * done)
        else:
            some = elements // m
            part = _changed(nest, m, K=some)._replace(accumulates=nest.accumulates or done > 0)
            yield part, (a + of_a * done, place.address, c)
        done += some
