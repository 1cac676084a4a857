# SPDX-License-Identifier: Apache-2.0
"""Perfect overlap: core 0 never waits for a transfer, and the run lasts as long as the longest of core 0 and
the channels, which have no pause."""

from __future__ import annotations

from collections.abc import Sequence

from arch.spec.program import Action, DmaStart, DmaWait, Program, UdmaStart, UdmaWait
from arch.spec.timing import SocTiming
from configs.values import replace
from traces.critical.activities import START_UP, Activity, Graph

_UNBOUNDED = 1 << 30


def overlapped_cycles(graph: Graph, cycles: Sequence[int]) -> int:
    """When the graph ends if every wait finds its transfer over and queues have room."""
    activities = graph.activities
    wakes = {wait.wake for wait in graph.waits.values()}
    ends: list[int] = []
    for number, activity in enumerate(activities):
        after: Sequence[int] = activity.after
        if not _moves(activity):
            after = [other for other in after if not _moves(activities[other]) and other not in wakes]
        wait = graph.waits.get(number)
        takes = cycles[number] if wait is None else wait.lags.done_cycles
        ends.append(max([ends[other] for other in after], default=0) + takes)
    moved = [end for end, activity in zip(ends, activities, strict=True) if _moves(activity)]
    return max(ends[-1], max(moved, default=0) + activities[-1].cycles)


def _moves(activity: Activity) -> bool:
    return activity.transfer >= 0 or activity.kind == START_UP


def without_waits(program: Program, timing: SocTiming) -> Program:
    """The program whose waits take what they take when all is over; at the end it waits for every channel."""
    actions: list[Action] = []
    last: dict[object, Action] = {}
    code_cycles = 0
    for action in program.actions:
        if isinstance(action, DmaWait):
            code_cycles += timing.dma.wait_done_cycles
        elif isinstance(action, UdmaWait):
            code_cycles += timing.event_unit.event_load_cycles
        else:
            kept = replace(action, id=len(actions), deps=())
            if isinstance(kept, DmaStart):
                kept = replace(kept, code_cycles=kept.code_cycles + code_cycles)
                code_cycles = 0
                last[kept.commands[0].to_l1] = kept
            elif isinstance(kept, UdmaStart):
                last[UdmaStart] = kept
            actions.append(kept)
    for start in last.values():
        kind = UdmaWait if isinstance(start, UdmaStart) else DmaWait
        actions.append(kind(len(actions), (), start.work, start.id))
    return Program(program.name, tuple(actions))


def with_room(timing: SocTiming) -> SocTiming:
    """The machine whose queues take everything."""
    dma = replace(
        timing.dma,
        transfer_ids=_UNBOUNDED,
        core_queue_commands=_UNBOUNDED,
        global_queue_commands=_UNBOUNDED,
        queued_until_cut=False,
    )
    return replace(timing, dma=dma, l3=replace(timing.l3, queued_transfers=_UNBOUNDED))
