"""Kernel calls of convolutions around the matmul: im2row of both directions, and the block transpose."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from arch.isa import TeamWork
from trainlib.kernels import catalogue
from trainlib.primitives import nests
from trainlib.primitives.conv_geometry import (
    ConvGeometry,
    Pads,
    Span,
    block_transpose,
    im2row,
    im2row_of_gradient,
)
from trainlib.steps import Array, KernelCall, KernelChoice

ROWS = "im2row"
"""Name of the scratch buffer of the im2row matrix."""

TRANSPOSED = "weights_transposed"
"""Name of the scratch buffer of the block-transposed weights."""


def im2row_call(
    geometry: ConvGeometry,
    choice: KernelChoice,
    source: str,
    channels: int,
    span: Span,
    rows: int,
    dtype: str,
) -> KernelCall:
    """The im2row of `channels` x `span` rows of the input for `rows` output rows."""
    left, right = geometry.pads[2:]
    pads: Pads = (span.before, span.after, left, right)

    def work(cores: int, addresses: Mapping[str, int]) -> TeamWork:
        def build(places: Sequence[int]) -> TeamWork:
            return catalogue.im2row_work(
                choice.codegen,
                mode="FW",
                ci=channels,
                hi=span.count,
                wi=geometry.wi,
                hk=geometry.hk,
                wk=geometry.wk,
                ho=rows,
                wo=geometry.wo,
                stride=geometry.stride,
                pads=pads,
                cores=cores,
                source_address=places[0],
                target_address=places[1],
            )

        return nests.for_dtype(build, (addresses[source], addresses[ROWS]), dtype)

    def function(arrays: Sequence[Array]) -> tuple[Array, ...]:
        matrix = im2row(
            arrays[0],
            hk=geometry.hk,
            wk=geometry.wk,
            rows=rows,
            columns=geometry.wo,
            stride=geometry.stride,
            top=span.before,
            left=left,
        )
        return (matrix,)

    return KernelCall("im2row", (source,), (ROWS,), work, function)


def gradient_im2row_call(
    geometry: ConvGeometry, choice: KernelChoice, source: str, span: Span, rows: int, dtype: str
) -> KernelCall:
    """The im2row of `span` rows of the output gradient for `rows` input rows (mode 1 of the library)."""
    left = geometry.wk - 1 - geometry.pads[2]
    # The loop nest wants the padding of the forward convolution from these rows of dx to these rows of dy.
    up, down = geometry.hk - 1 - span.before, geometry.hk - 1 - span.after

    def work(cores: int, addresses: Mapping[str, int]) -> TeamWork:
        def build(places: Sequence[int]) -> TeamWork:
            return catalogue.im2row_work(
                choice.codegen,
                mode="IG",
                ci=geometry.co,
                hi=rows,
                wi=geometry.wi,
                hk=geometry.hk,
                wk=geometry.wk,
                ho=span.count,
                wo=geometry.wo,
                stride=geometry.stride,
                pads=(up, down, *geometry.pads[2:]),
                cores=cores,
                source_address=places[0],
                target_address=places[1],
            )

        return nests.for_dtype(build, (addresses[source], addresses[ROWS]), dtype)

    def function(arrays: Sequence[Array]) -> tuple[Array, ...]:
        matrix = im2row_of_gradient(
            arrays[0],
            hk=geometry.hk,
            wk=geometry.wk,
            rows=rows,
            columns=geometry.wi,
            stride=geometry.stride,
            top=span.before,
            left=left,
        )
        return (matrix,)

    return KernelCall("im2row", (source,), (ROWS,), work, function)


def block_transpose_call(
    geometry: ConvGeometry, choice: KernelChoice, channels: int, dtype: str
) -> KernelCall:
    """Weights [co, channels, hk, wk] to [channels, co·hk·wk], rotated."""

    def work(cores: int, addresses: Mapping[str, int]) -> TeamWork:
        def build(places: Sequence[int]) -> TeamWork:
            return catalogue.blocktransp_work(
                choice.codegen,
                co=geometry.co,
                ci=channels,
                hk=geometry.hk,
                wk=geometry.wk,
                cores=cores,
                source_address=places[0],
                target_address=places[1],
            )

        return nests.for_dtype(build, (addresses["w"], addresses[TRANSPOSED]), dtype)

    return KernelCall(
        "blocktransp", ("w",), (TRANSPOSED,), work, lambda arrays: (block_transpose(arrays[0]),)
    )
