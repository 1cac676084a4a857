# SPDX-License-Identifier: Apache-2.0
"""What the user may choose about a schedule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from arch.pricing.code_caches import WARM
from configs.errors import InputError
from configs.values import Struct, replace
from scheduler.addresses.plan_options import PlanOptions
from scheduler.tiles.resident_tensors import SPAN
from trainlib.ir.graph import TrainingGraph

WHOLE_OPS = 0
"""Buffer depth that stands for: no tiles, everything an op needs lies in L1 while it runs."""

BEST_DEPTH = -1
"""Buffer depth that stands for: double or single, per op, what is estimated to take fewer cycles."""

AUTO = "auto"
"""In place of resident tensors: `scheduler.resident_search` chooses them."""

MOST_BUFFERS = 1000
"""Buffers one operand may have: L1 holds fewer boxes that are worth a transfer."""

_NAMED_DEPTHS = {"none": WHOLE_OPS, "single": 1, "double": 2, "best": BEST_DEPTH}


def parse_buffering(text: str) -> int:
    """Buffer depth from ``none`` (`WHOLE_OPS`), ``single``, ``double``, ``best`` (`BEST_DEPTH`) or a number.

    Raises `InputError` for anything else.
    """
    if text in _NAMED_DEPTHS:
        return _NAMED_DEPTHS[text]
    if text.isascii() and text.isdigit() and len(text) <= 4 and 1 <= int(text) <= MOST_BUFFERS:
        return int(text)
    raise InputError(
        f"unknown buffering {text!r}",
        where="--buffering",
        cure=f"use none, single, double, best or a number of buffers from 1 to {MOST_BUFFERS}; for one "
        "operand, e.g. conv2.FW.w=1",
    )


def parse_buffers(text: str) -> tuple[int, dict[str, dict[str, int]]]:
    """(depth of all, depths by op and operand) from texts like ``double`` or ``3,conv2.FW.w=1,fc.WG.dw=2``.

    The depth of all is 2 if the text begins with an operand. Raises `InputError`.
    """
    parts = [part.strip() for part in text.split(",")]
    depth = parse_buffering(parts.pop(0)) if "=" not in parts[0] else 2
    named: dict[str, dict[str, int]] = {}
    for part in parts:
        path, _, value = part.partition("=")
        op, _, operand = path.strip().rpartition(".")
        if not op or not operand or parse_buffering(value.strip()) < 1:
            raise InputError(
                f"{part!r} must have an op, its operand and a number of buffers",
                where="--buffering",
                cure="write OP.OPERAND=NUMBER, e.g. conv2.FW.w=1",
            )
        named.setdefault(op, {})[operand] = parse_buffering(value.strip())
    return depth, named


def parse_resident(text: str) -> tuple[str, ...]:
    """Resident tensors from ``off``, ``auto`` (`AUTO`) or ``conv1.out,fc.weight@fc.FW..fc.IG``.

    Raises `InputError` for what cannot be read.
    """
    if text.strip() == "off":
        return ()
    names = tuple(part.strip() for part in text.split(","))
    if not all(names) or (AUTO in names and len(names) > 1):
        what = f"{AUTO} cannot be combined with names" if AUTO in names else f"a name in {text!r} is empty"
        raise InputError(
            what if text.strip() else "the value is empty",
            where="--resident",
            cure=f"use auto, off, or names of tensors: {SPAN}",
        )
    return names


class ScheduleOptions(Struct, frozen=True):
    """Choices of one schedule.

    `buffer_depth` is the number of L1 buffers per moved operand (1 single, 2 double, `WHOLE_OPS` no tiles,
    `BEST_DEPTH` 1 or 2 per op), `buffers` that of single operands per op (``{"conv2.FW": {"w": 1}}``).
    `codegen` names the compiler profile of all kernels, `kernels` the matmul kernel per op name
    (``conv2.WG``) or step (``WG``); an op not named there takes its primitive's default. `tile_sizes` fixes
    the tile of an op by dimension (``{"conv2.FW": {"co": 8, "ho": 3}}``); dimensions not named stay whole.
    `loop_orders` gives the loops of an op, outermost first; dimensions not named follow. `variants` gives
    the variant of an op or step (`trainlib.training.variants`) where it is not as its layer says.
    `accumulation` is how matmuls round (`trainlib.ir.numerics.ACCUMULATIONS`).
    """

    buffer_depth: int = 2
    codegen: str = "clang-xpulp"
    accumulation: str = "reference"
    kernels: Mapping[str, str] = {}
    variants: Mapping[str, str] = {}
    tile_sizes: Mapping[str, Mapping[str, int]] = {}
    loop_orders: Mapping[str, Sequence[str]] = {}
    buffers: Mapping[str, Mapping[str, int]] = {}
    buffer_gap_bytes: int = 0
    """Bytes left free behind every L1 buffer: arrays a turn of the banks long then begin in other banks."""
    prefetch: bool = True
    """Whether the first loads of an op are pushed while the op before it computes, where L1 has room."""
    resident: Sequence[str] = ()
    """Tensors that stay in L1 between ops (`tiles.resident_tensors.residents_of` says how they are written).

    (`AUTO`,) leaves them to `scheduler.resident_search.schedules_for`.
    """
    memory: PlanOptions = PlanOptions()
    code_start: str = WARM
    """What the instruction caches hold when the program begins (`arch.pricing.code_caches`): choices count
    the code that is fetched then."""
    code_beside_bytes: int = 0
    """Code of the other program of an iteration, if its ops are functions."""


def of_programs(options: ScheduleOptions, graphs: Sequence[TrainingGraph]) -> list[ScheduleOptions]:
    """The options for each program of an iteration, without what they say of ops only another one has.

    What no program knows stays, for `scheduler.schedule.build_schedule` to refuse.
    """
    names = [{name for op in graph.ops for name in (op.name, op.step)} for graph in graphs]
    return [_without(options, set().union(*names) - mine) for mine in names]


def _without(options: ScheduleOptions, names: set[str]) -> ScheduleOptions:
    by_op: dict[str, Any] = {
        field: {name: choice for name, choice in getattr(options, field).items() if name not in names}
        for field in ("kernels", "variants", "tile_sizes", "loop_orders", "buffers")
    }
    return replace(options, **by_op)
