# SPDX-License-Identifier: Apache-2.0
"""Two programs of one training, a mini-batch and the update, in one memory: what both use lies where it lies.

The update finds weights, gradients or their totals, and optimizer states where the mini-batches leave them,
and leaves everything else alone that the next mini-batch needs.
"""

from __future__ import annotations

from collections.abc import Iterator

from arch.spec.timing import SocTiming
from configs.errors import DoesNotFitError
from configs.values import replace
from scheduler.addresses.allocation import Allocation
from scheduler.addresses.plan_options import STREAMED, PlanOptions
from scheduler.memory.memory_plan import MemoryPlan, plan_memory
from scheduler.tiles.streaming_choice import Streamer
from trainlib.ir.graph import KEPT_KINDS, TrainingGraph


def shared_places(before: TrainingGraph, plan: MemoryPlan, after: TrainingGraph) -> dict[str, Allocation]:
    """Where the program of `before` has what outlives it, by tensor name.

    That is what keeps its value from iteration to iteration, and what `after` is given.
    """
    names = dict.fromkeys([*before.of_kind(*KEPT_KINDS), *after.needed_values])
    return {name: plan.home(name) for name in names if name in before.tensors}


def plans_beside(
    before: TrainingGraph,
    after: TrainingGraph,
    timing: SocTiming,
    options: PlanOptions,
    streamers: tuple[Streamer | None, Streamer | None] = (None, None),
) -> tuple[PlanOptions, PlanOptions]:
    """Options under which both programs can be planned for one memory, each with its streamer.

    The first one places what both use. Where the second then does not fit L2 (its ops may use more tensors at
    once than those of the first), what it would have in L3 by itself lies there for both, and if need be all
    that outlives a program. Raises `DoesNotFitError` when that does not help either, and `InputError` for
    unknown tensors in `options`.
    """
    refused: DoesNotFitError | None = None
    streamed = {
        name: level for name, level in options.homes.items() if level == STREAMED and name in after.tensors
    }
    for homes in _homes_to_try(before, after, timing, options, streamers[1]):
        first = replace(options, homes={**homes, **options.homes})
        plan = plan_memory(before, timing, first, streamers[0])
        second = replace(options, homes=streamed, shared=shared_places(before, plan, after))
        try:
            plan_memory(after, timing, second, streamers[1])
        except DoesNotFitError as error:
            refused = error
        else:
            return first, second
    assert refused is not None
    raise refused


def _homes_to_try(
    before: TrainingGraph,
    after: TrainingGraph,
    timing: SocTiming,
    options: PlanOptions,
    streamer: Streamer | None,
) -> Iterator[dict[str, str]]:
    """What is in L3 whatever the first program needs: nothing, what the second needs there, everything."""
    yield {}
    if timing.l3.size_bytes == 0:
        return
    homes = {name: level for name, level in options.homes.items() if name in after.tensors}
    alone = plan_memory(after, timing, replace(options, homes=homes), streamer)
    both = [name for name in after.needed_values if name in before.tensors]
    yield {name: "l3" for name in both if alone.home(name).level == "l3"}
    yield dict.fromkeys([*both, *before.of_kind(*KEPT_KINDS)], "l3")
