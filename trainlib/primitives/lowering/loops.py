"""Kernel calls priced by a loop nest named by its file, with arrays of different dtypes in one nest.

`nests.for_dtype` scales all arrays of a nest alike; a norm in 16 bit keeps its statistics in fp32 and a
max-pooling its positions as integers, so here every array has a dtype of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from arch.isa import CoreWork, Instruction, Loop, Node, Stream, TeamWork
from configs.dtypes import float_of
from trainlib.graph import Op, Tensor
from trainlib.kernels.catalogue import LIBRARY
from trainlib.kernels.expand import Array as Layout
from trainlib.primitives.definition import Values
from trainlib.primitives.lowering.calls import NoMatmul, box, region_elements, whole
from trainlib.primitives.lowering.conversions import converting
from trainlib.steps import Array, Extent, KernelCall, KernelChoice, Operand, TileTask

Function = Callable[[Sequence[Array]], Sequence[Array]]


_SPACING_BYTES = 1 << 40
"""Distance of the stand-in addresses: no array is longer, so an address tells which array it belongs to."""


@dataclass(frozen=True, slots=True)
class Placed:
    """An array of a nest: the buffer (or part of one) it lies in, and its strides in elements."""

    buffer: str
    strides: tuple[int, ...] = (1,)
    dtype: str = "float32"


def loop_call(
    choice: KernelChoice,
    nest: str,
    sizes: Mapping[str, int],
    arrays: Mapping[str, Placed],
    reads: Sequence[str],
    writes: Sequence[str],
    function: Function,
    *,
    fork: bool = True,
) -> KernelCall:
    """A call of the nest `nest`.yaml; `sizes` are what the nest names, `arrays` what it touches."""

    def work(cores: int, addresses: Mapping[str, int]) -> TeamWork:
        places = {name: addresses[placed.buffer] for name, placed in arrays.items()}
        return loop_work(choice.codegen, nest, sizes, arrays, places, cores)

    return KernelCall(nest, tuple(reads), tuple(writes), work, function, fork=fork)


def loop_work(
    codegen: str,
    nest: str,
    sizes: Mapping[str, int],
    arrays: Mapping[str, Placed],
    places: Mapping[str, int],
    cores: int,
) -> TeamWork:
    """The nest on `cores` cores, array `name` at L1 byte address ``places[name]``.

    Accesses to arrays narrower than 4 bytes become as narrow, with conversions where nothing computes in
    their format. Raises InputError for an unknown nest.
    """
    kernel = LIBRARY.kernel(codegen, nest)
    names_of = list(arrays)
    bytes_of = [np.dtype(arrays[name].dtype).itemsize for name in names_of]
    layouts = {
        name: Layout(
            _SPACING_BYTES * (1 + index), tuple(bytes_of[index] * stride for stride in arrays[name].strides)
        )
        for index, name in enumerate(names_of)
    }

    def work(core: int) -> CoreWork:
        names = {**sizes, "cores": cores, "core": core}
        for key, expression in kernel.names:
            names[key] = expression.evaluate(names)
        made = kernel.expander.core_work(names, layouts, kernel.code_bytes)
        streams: list[Stream] = []
        widths: list[int] = []
        converted: list[int] = []
        for stream in made.streams:
            index = round(stream.base_bytes / _SPACING_BYTES) - 1
            if index < 0:  # an access the nest has but this call does not make
                streams.append(stream)
                widths.append(4)
                continue
            offset = stream.base_bytes - _SPACING_BYTES * (1 + index)
            streams.append(Stream(places[names_of[index]] + offset, stream.strides_bytes))
            widths.append(min(4, bytes_of[index]))
            kind = float_of(arrays[names_of[index]].dtype)
            if kind is not None and kind.is_storage_only:
                converted.append(len(streams) - 1)
        body = made.body if min(widths, default=4) == 4 else _narrowed(made.body, tuple(widths))
        return converting(CoreWork(body, tuple(streams), made.code_bytes), frozenset(converted))

    return TeamWork(nest, tuple(work(core) for core in range(cores)))


@lru_cache(maxsize=4096)
def _narrowed(body: tuple[Node, ...], widths: tuple[int, ...]) -> tuple[Node, ...]:
    """Accesses of stream i are ``widths[i]`` bytes wide; equal bodies give the same object."""
    return tuple(_narrowed_node(node, widths) for node in body)


def _narrowed_node(node: Node, widths: tuple[int, ...]) -> Node:
    if isinstance(node, Loop):
        return replace(node, body=tuple(_narrowed_node(item, widths) for item in node.body))
    if isinstance(node, Instruction) and node.stream >= 0:
        return replace(node, width_bytes=min(node.width_bytes, widths[node.stream]))
    return node


@dataclass(frozen=True, slots=True)
class ElementwiseLoop(NoMatmul):
    """Tiles of a step on weights or gradients: results of one shape, element i from elements i.

    `nest(op)` names the loop, `streams` its arrays and the roles they lie in. The first two dimensions may be
    cut. Roles in `numbers` have shape (1,): every tile reads them whole, and the last tile writes those that
    are written, so that no tile reads one that a tile before it has changed.
    `function(op, values)` maps arrays by role to arrays by role.
    """

    nest: Callable[[Op], str]
    streams: Mapping[str, str]
    function: Callable[[Op, Values], Values]
    numbers: tuple[str, ...] = ()

    def extents(self, op: Op, tensors: Mapping[str, Tensor]) -> Mapping[str, int]:
        """The first two dimensions of the result."""
        shape = tensors[op.outputs[0]].shape
        return {f"d{axis}": size for axis, size in enumerate(shape[:2])}

    def tile(
        self, op: Op, tensors: Mapping[str, Tensor], ranges: Mapping[str, Extent], choice: KernelChoice
    ) -> TileTask:
        """The same box of every tensor, one fork."""
        shape = tensors[op.outputs[0]].shape
        region = tuple(ranges[f"d{axis}"] if axis < 2 else (0, size) for axis, size in enumerate(shape))
        last = all(stop == size for (_, stop), size in zip(region, shape, strict=True))
        writes = [role for role in op.writes if role not in self.numbers or last]
        roles = {**op.roles}
        arrays = {
            name: Placed(role, dtype=tensors[roles[role]].dtype)
            for name, role in self.streams.items()
            if role in roles
        }

        def compute(values: Sequence[Array]) -> tuple[Array, ...]:
            results = self.function(op, dict(zip(op.reads, values, strict=True)))
            return tuple(results[role] for role in writes)

        def operand(role: str) -> Operand:
            return whole(op, tensors, role) if role in self.numbers else box(op, role, *region)

        sizes = {"elements": region_elements(region)}
        return TileTask(
            inputs=tuple(operand(role) for role in op.reads),
            outputs=tuple(operand(role) for role in writes),
            scratch=(),
            calls=(loop_call(choice, self.nest(op), sizes, arrays, op.reads, writes, compute),),
        )
