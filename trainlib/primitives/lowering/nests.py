"""Loop nests of the catalogue for buffers of any dtype: the one place that decides what narrow code costs.

Where the codegen profile has a kernel of its own for 16-bit data (its name contains ``16``), it is used as it
is. Otherwise 16-bit data is priced with the fp32 nest, instruction for instruction, on addresses and strides
of 2 bytes: scalar 16-bit code, as PULP-TrainLib's scalar fp16 kernels are copies of the fp32 ones. 8-bit data
has no kernels; it is priced in the same way on bytes, with the conversions of `conversions`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from arch.isa import CoreWork, Instruction, Loop, Node, Stream, TeamWork
from configs.dtypes import DType, element_bytes, float_of
from configs.errors import InputError
from trainlib.kernels import catalogue
from trainlib.primitives.lowering.conversions import converting

VECTOR_ADD = "sgd"
"""Nest of y += x: the update loop, which has the same two loads, one floating-point instruction and store."""

_SPACING_BYTES = 1 << 40
"""Distance of the stand-in addresses: no array is longer, so an address tells which array it belongs to."""

_FP32_BYTES = 4


def elementwise(
    codegen: str, kernel: str, elements: int, cores: int, places: Sequence[int], dtype: str
) -> TeamWork:
    """`catalogue.elementwise_work` for buffers of `dtype` at `places`."""
    return for_dtype(
        lambda stand_in: catalogue.elementwise_work(codegen, kernel, elements, cores, tuple(stand_in)),
        places,
        dtype,
    )


def loss(codegen: str, kernel: str, elements: int, places: Sequence[int], dtype: str) -> TeamWork:
    """`catalogue.loss_work` for buffers of `dtype` at `places`."""
    return for_dtype(
        lambda stand_in: catalogue.loss_work(codegen, kernel, elements, tuple(stand_in)), places, dtype
    )


def for_dtype(build: Callable[[Sequence[int]], TeamWork], places: Sequence[int], dtype: str) -> TeamWork:
    """The work `build` gives for arrays at `places`, for elements of `dtype`.

    `build` is a call of the catalogue that takes the addresses of its arrays, all of one dtype, and knows
    fp32 only. Offsets and strides of every stream and the width of its accesses are scaled to the element.
    """
    kind = float_of(dtype)
    if kind is None or not kind.is_narrow:
        return build(places)
    team = build([_SPACING_BYTES * (1 + index) for index in range(len(places))])
    return replace(team, cores=tuple(_narrowed(core, places, kind) for core in team.cores))


def matmul(
    kernel: str,
    codegen: str,
    sizes: Mapping[str, int],
    trans_b: bool,
    cores: int,
    places: tuple[int, int, int],
    dtype: str,
) -> TeamWork:
    """`catalogue.matmul_work` of sizes n, k, m for A, B, C of `dtype` at `places`."""

    def build(addresses: Sequence[int]) -> TeamWork:
        a, b, c = addresses
        return catalogue.matmul_work(
            kernel,
            codegen,
            n=sizes["n"],
            k=sizes["k"],
            m=sizes["m"],
            trans_b=trans_b,
            cores=cores,
            a_address=a,
            b_address=b,
            c_address=c,
        )

    if "16" not in kernel:
        return for_dtype(build, places, dtype)
    if element_bytes(dtype) == 1:
        raise InputError(f"'{kernel}' is not for {dtype}", where="kernel", cure="a kernel for fp32")
    return build(places)


def _narrowed(core: CoreWork | None, places: Sequence[int], kind: DType) -> CoreWork | None:
    if core is None:
        return None
    streams = tuple(_narrowed_stream(stream, places, kind.bytes) for stream in core.streams)
    made = CoreWork(_narrowed_body(core.body, kind.bytes), streams, core.code_bytes)
    if not kind.is_storage_only:
        return made
    ours = (index for index, old in enumerate(core.streams) if old.base_bytes >= _SPACING_BYTES // 2)
    return converting(made, frozenset(ours))


def _narrowed_stream(stream: Stream, places: Sequence[int], narrow_bytes: int) -> Stream:
    if stream.base_bytes < _SPACING_BYTES // 2:
        return stream  # a stream the nest does not use
    index = round(stream.base_bytes / _SPACING_BYTES) - 1
    offset = stream.base_bytes - _SPACING_BYTES * (1 + index)
    strides = tuple(stride * narrow_bytes // _FP32_BYTES for stride in stream.strides_bytes)
    return Stream(places[index] + offset * narrow_bytes // _FP32_BYTES, strides)


@lru_cache(maxsize=4096)
def _narrowed_body(body: tuple[Node, ...], narrow_bytes: int) -> tuple[Node, ...]:
    """Accesses of a stream become as narrow; equal bodies give the same object, as the pricer likes."""
    return tuple(_narrowed_node(node, narrow_bytes) for node in body)


def _narrowed_node(node: Node, narrow_bytes: int) -> Node:
    if isinstance(node, Loop):
        return replace(node, body=tuple(_narrowed_node(item, narrow_bytes) for item in node.body))
    if isinstance(node, Instruction) and node.stream >= 0:
        return replace(node, width_bytes=narrow_bytes)
    return node
