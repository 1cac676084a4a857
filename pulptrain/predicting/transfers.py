# SPDX-License-Identifier: Apache-2.0
"""What the transfers of a run would take on another DMA, or with nobody in their way in L1."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Sequence

from arch.blocks.bursts import IDLE, BurstRules, bursts_of, run_command
from arch.blocks.l2 import shared_l2_links
from arch.spec.program import Command, DmaStart, Program
from arch.spec.timing import SocTiming
from arch.systemc.clock import Clock
from traces.critical.activities import Graph, durations
from traces.events import COMPUTE
from traces.tracks import INWARD, OUTWARD


class Engine:
    """The closed form of one command (`arch.blocks.bursts`), on an engine nobody else is in the way of."""

    def __init__(self, timing: SocTiming) -> None:
        self._rules = BurstRules.of(timing.dma, timing.l1.word_bytes)
        clocks = Clock("soc", timing.clock.soc_hz), Clock("cluster", timing.clock.cluster_hz)
        self._links = shared_l2_links(timing.l2, *clocks, timing.dma.burst_bytes)
        self._known: dict[Command, tuple[int, int]] = {}

    def cycles(self, command: Command, *, queued: bool) -> int:
        """From begin to end: of a command alone, or `queued` right behind another like it."""
        if command not in self._known:
            bursts, link = bursts_of(command, self._rules), self._links[not command.to_l1]
            alone, state = run_command(bursts, IDLE, self._rules, link, to_l1=command.to_l1)
            both, _ = run_command(bursts, state, self._rules, link, to_l1=command.to_l1)
            self._known[command] = max(1, alone), max(1, both - alone)
        return self._known[command][queued]


def transfer_cycles(
    graph: Graph,
    program: Program,
    kernels: Sequence[int],
    was: Engine,
    becomes: Engine,
    *,
    hindered: bool = True,
    all_queued: bool = False,
) -> list[int]:
    """What every activity takes when the engine `was` one and `becomes` another, kernels as `kernels` has it.

    What a transfer took beyond the closed form, because cores were in its way in L1, it takes still if it is
    `hindered`, less where the kernels of its op take less. `all_queued`: each begins right behind the one
    before.
    """
    cycles, activities = list(kernels), graph.activities
    busy = _busy_share(graph, kernels)
    commands = _commands(program)
    parts: dict[tuple[str, int], list[int]] = {}
    for number, activity in enumerate(activities):
        if activity.transfer >= 0 and activity.resource in commands:
            parts.setdefault((activity.resource, activity.transfer), []).append(number)
    ended: dict[str, int] = {}
    for (channel, place), numbers in parts.items():
        command, first = commands[channel][place], activities[numbers[0]]
        queued = ended.get(channel) == first.start_cycles
        ended[channel] = activities[numbers[-1]].end_cycles
        took = sum(cycles[number] for number in numbers)
        late = took - was.cycles(command, queued=queued) if hindered else 0
        late_cycles = late * busy.get((first.work.op, first.work.step), 1.0)
        takes = max(1, becomes.cycles(command, queued=queued or all_queued) + late_cycles)
        for number in numbers:
            cycles[number] = round(cycles[number] * takes / took)
    return cycles


def code_behind_loads(graph: Graph, share: float) -> list[int]:
    """What every activity takes when code waits for `share` of the time that it waits for loads.

    Core 0 that fetches code while a transfer into L1 runs waits for that: the bursts that are ordered before.
    """
    loads = [item for item in graph.activities if item.transfer >= 0 and item.resource == f"DMA {INWARD}"]
    starts_cycles = [load.start_cycles for load in loads]
    ends_cycles = [load.end_cycles for load in loads]
    cycles = durations(graph)
    for number, activity in enumerate(graph.activities):
        if activity.kind == "icache":
            first = bisect_right(ends_cycles, activity.start_cycles)
            last = bisect_left(starts_cycles, activity.end_cycles)
            waits = sum(
                min(load.end_cycles, activity.end_cycles) - max(load.start_cycles, activity.start_cycles)
                for load in loads[first:last]
            )
            cycles[number] -= round((1 - share) * waits)
    return cycles


def _busy_share(graph: Graph, kernels: Sequence[int]) -> dict[tuple[str, str], float]:
    """By op the core-cycles of its kernels, of what they were."""
    was: Counter[tuple[str, str]] = Counter()
    becomes: Counter[tuple[str, str]] = Counter()
    for activity, cycles in zip(graph.activities, kernels, strict=True):
        if activity.kind == COMPUTE:
            key = activity.work.op, activity.work.step
            was[key] += activity.cycles
            becomes[key] += cycles
    return {key: becomes[key] / cycles for key, cycles in was.items()}


def _commands(program: Program) -> dict[str, list[Command]]:
    """The commands of each channel, in order."""
    by_channel: dict[str, list[Command]] = {f"DMA {INWARD}": [], f"DMA {OUTWARD}": []}
    for action in program.actions:
        if isinstance(action, DmaStart):
            for command in action.commands:
                by_channel[f"DMA {INWARD if command.to_l1 else OUTWARD}"].append(command)
    return by_channel
