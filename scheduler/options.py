"""What the user may choose about a schedule."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from configs.errors import InputError

_NAMED_DEPTHS = {"single": 1, "double": 2}


def parse_buffering(text: str) -> int:
    """Buffer depth from ``single``, ``double`` or a number of buffers per operand.

    Raises `InputError` for anything else, ``none`` (whole layers resident in L1) included: it is not
    available yet.
    """
    if text in _NAMED_DEPTHS:
        return _NAMED_DEPTHS[text]
    if text.isascii() and text.isdigit() and int(text) >= 1:
        return int(text)
    raise InputError(
        f"unknown buffering {text!r}", where="--buffering", cure="single, double or a number of buffers, 1 up"
    )


@dataclass(frozen=True, slots=True)
class ScheduleOptions:
    """Choices of one schedule.

    `buffer_depth` is the number of L1 buffers per moved operand (1 single, 2 double). `codegen` names the
    compiler profile of all kernels, `kernels` the matmul kernel per op name (``conv2.WG``) or step (``WG``);
    an op not named there takes its primitive's default. `tile_sizes` fixes the tile of an op by dimension
    (``{"conv2.FW": {"co": 8, "ho": 3}}``); dimensions not named stay whole. `accumulation` is how matmuls
    round (`trainlib.numerics.ACCUMULATIONS`).
    """

    buffer_depth: int = 2
    codegen: str = "clang-xpulp"
    accumulation: str = "reference"
    kernels: Mapping[str, str] = field(default_factory=dict)
    tile_sizes: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
