# SPDX-License-Identifier: Apache-2.0
"""Why tensors do not fit L2 or L3: what lives when it is worst, and what the least would be."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from configs.errors import Contributor, DoesNotFitError
from scheduler.addresses.allocation import Interval, align
from scheduler.addresses.lifetimes import Life
from scheduler.memory.l2_staging import HomeChoice
from scheduler.tiles.streaming_choice import Least
from trainlib.ir.graph import TrainingGraph

SLOTS_OF = "buffers for pieces of "
"""What stands before the name of a tensor of which only slots are in L2."""


def op_too_large(
    graph: TrainingGraph,
    lives: Mapping[str, Life],
    choice: HomeChoice,
    op: int,
    available_bytes: int,
    least: Least | None = None,
) -> DoesNotFitError:
    """The report for an op that L2 is too small for, everything it can do without being in L3.

    With `least` some of its tensors are streamed.
    """
    held = [*(life for life in lives.values() if life.name not in choice.in_l3), *choice.stays()]
    during = [item for item in held if item.first_op <= op <= item.last_op]
    slots = dict(least.streamed) if least is not None else {}
    whole = [lives[item.tensor] for item in during if item.tensor not in slots]
    required_bytes = sum(align(item.size_bytes) for item in whole) + sum(slots.values())
    parts = [
        Interval(SLOTS_OF + name, size_bytes, op, op, lives[name].kind) for name, size_bytes in slots.items()
    ]
    return too_small(graph, "l2", required_bytes, available_bytes, [*whole, *parts], op)


def too_small(
    graph: TrainingGraph,
    level: str,
    required_bytes: int,
    available_bytes: int,
    during: Iterable[Interval],
    op: int | None = None,
) -> DoesNotFitError:
    """The report for a level, with what lives `during` the worst op; `op` if that is to blame alone."""
    names = [*(item.name for item in graph.ops), "the end"]
    what = "the tensors of the model"
    if op is not None:
        what = f"op {names[op]}, even if every other tensor that may be in L3 is there"
    return DoesNotFitError(
        level,
        required_bytes,
        available_bytes,
        where=graph.name,
        what=what,
        contributors=tuple(
            Contributor(item.tensor or item.name, item.size_bytes, names[item.first_op], names[item.last_op])
            for item in during
        ),
        cure=f"use --{level} {required_bytes}B or a smaller model"
        + ("" if op is None else f", or remove --home TENSOR={level} of other tensors"),
    )
