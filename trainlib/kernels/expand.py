"""From a parsed nest and concrete sizes to the `CoreWork` of one core."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from arch.isa import CoreWork, Instruction, Loop, Node, Stream
from configs.errors import ConfigError
from trainlib.kernels.expressions import Names, value_of
from trainlib.kernels.nodes import Choice, Code, Nest, NestNode

BODY_CACHE_ENTRIES = 4096
"""Expanded bodies kept per nest; bodies are shared by cores and calls with equal trip counts."""

STRIDE_CACHE_ENTRIES = 4096
"""Strides kept per nest, by access and matrix extents; all cores of a team share them."""

_UNUSED = Stream(0, ())


@dataclass(frozen=True, slots=True)
class Array:
    """An array in L1: byte address of element 0 and the byte distance of neighbours in each dimension."""

    address: int
    strides_bytes: tuple[int, ...]


class Expander:
    """Turns one nest into `CoreWork`s; equal trip counts and conditions give the same body object."""

    def __init__(self, nest: Nest, where: str) -> None:
        self.nest = nest
        self.where = where
        self._strides: dict[tuple[int, tuple[int, ...]], tuple[int, ...]] = {}
        self._bodies: dict[tuple[int, ...], tuple[tuple[Node, ...], tuple[int, ...]]] = {}

    def core_work(self, names: Names, arrays: Mapping[str, Array], code_bytes: int) -> CoreWork:
        """The work of the core described by `names` (sizes, start, stop) on `arrays` (by name in the text).

        Raises ConfigError when the text names an array or a size the call does not have.
        """
        decisions: list[int] = []
        try:
            _decide(self.nest.body, names, decisions)
        except KeyError as error:
            raise ConfigError(f"the kernel text uses the unknown name {error}", where=self.where) from error
        key = tuple(decisions)
        cached = self._bodies.get(key)
        if cached is None:
            used: list[int] = []
            cached = (_build(self.nest.body, iter(key), used), tuple(used))
            if len(self._bodies) >= BODY_CACHE_ENTRIES:
                self._bodies.clear()
            self._bodies[key] = cached
        body, used_streams = cached
        streams = [_UNUSED] * len(self.nest.accesses)
        for index in used_streams:
            streams[index] = self._stream(index, names, arrays)
        return CoreWork(body, tuple(streams), code_bytes)

    def _stream(self, index: int, names: Names, arrays: Mapping[str, Array]) -> Stream:
        access = self.nest.accesses[index]
        array = arrays.get(access.array)
        if array is None or len(array.strides_bytes) != len(access.base):
            known = ", ".join(f"{name}({len(item.strides_bytes)})" for name, item in arrays.items())
            raise ConfigError(
                f"array {access.array} with {len(access.base)} indices is not known",
                where=self.where,
                cure=f"the arrays of this kernel (number of indices) are {known}",
            )
        base_bytes = array.address
        for unit, base in zip(array.strides_bytes, access.base, strict=True):
            base_bytes += unit * (base if isinstance(base, int) else base(names))
        key = (index, array.strides_bytes)
        strides_bytes = self._strides.get(key)
        if strides_bytes is None:
            strides_bytes = tuple(
                sum(
                    unit * value_of(stride, names)
                    for unit, stride in zip(array.strides_bytes, along, strict=True)
                )
                for along in zip(*access.strides, strict=True)
            )
            if all(isinstance(stride, int) for along in access.strides for stride in along):
                if len(self._strides) >= STRIDE_CACHE_ENTRIES:
                    self._strides.clear()
                self._strides[key] = strides_bytes
        return Stream(base_bytes, strides_bytes)


def _decide(nodes: tuple[NestNode, ...], names: Names, decisions: list[int]) -> None:
    for node in nodes:
        if isinstance(node, Code):
            if node.taken_if is not None:
                decisions.append(1 if node.taken_if.evaluate(names) else 0)
        elif isinstance(node, Choice):
            chosen = 1 if node.condition.evaluate(names) else 0
            decisions.append(chosen)
            _decide(node.then if chosen else node.otherwise, names, decisions)
        else:
            trips = node.trips(names)
            decisions.append(max(trips, 0))
            if trips > 0:
                _decide(node.body, names, decisions)


def _build(nodes: tuple[NestNode, ...], decisions: Iterator[int], used: list[int]) -> tuple[Node, ...]:
    result: list[Node] = []
    for node in nodes:
        if isinstance(node, Code):
            instruction = node.instruction
            if node.taken_if is not None:
                instruction = replace(instruction, taken_fraction=float(next(decisions)))
            _use(instruction, used)
            result.append(instruction)
        elif isinstance(node, Choice):
            chosen = next(decisions)
            result.extend(_build(node.then if chosen else node.otherwise, decisions, used))
        else:
            trips = next(decisions)
            if trips > 0:
                result.append(Loop(trips, _build(node.body, decisions, used), node.hardware))
    return tuple(result)


def _use(instruction: Instruction, used: list[int]) -> None:
    if instruction.stream >= 0:
        used.append(instruction.stream)
