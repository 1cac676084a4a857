"""The measured tile loop as a Program: push inputs, wait, fork, push the output, wait, tile by tile."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from arch.isa import CoreWork, Instruction, Op, TeamWork
from arch.program import Action, Command, Compute, DmaStart, DmaWait
from arch.timing import SocTiming


@dataclass(frozen=True, slots=True)
class Tile:
    """One turn of the loop: commands that fetch what is not there yet, the kernel, the command that stores.

    `team` is None in a run that only moves data. Every command is a transfer of its own.
    """

    fetch: tuple[Command, ...]
    team: TeamWork | None
    store: Command


class _Actions:
    def __init__(self, code_cycles: int) -> None:
        self.all: list[Action] = []
        self._code_cycles = code_cycles

    def push(self, command: Command) -> int:
        self.all.append(DmaStart(len(self.all), commands=(command,), code_cycles=self._code_cycles))
        return len(self.all) - 1

    def fetch(self, tile: Tile) -> list[int]:
        return [self.push(command) for command in tile.fetch]

    def wait(self, transfers: Sequence[int]) -> None:
        for transfer in transfers:
            self.all.append(DmaWait(len(self.all), transfer=transfer))

    def compute(self, team: TeamWork | None) -> None:
        if team is not None:
            self.all.append(Compute(len(self.all), team=team))


def tile_loop(
    tiles: Sequence[Tile], *, double: bool, in_place: bool = False, code_cycles: int = 0
) -> list[Action]:
    """The actions of the loop.

    Single: push the inputs, wait for them, fork, push the output, wait for it. Double: the inputs of the next
    tile are pushed before the fork, then this output, and only then the previous output is waited for: with
    the wait before the push, the rows of tiled-layers.csv that do not compute are 4.9 % off, so 1.3 %. But
    `in_place` (the output leaves from a buffer the inputs after next come to) it is waited for as soon as it
    is pushed. The caller gives tiles that lie in different buffers where `double` wants it. `code_cycles` is
    what the master spends on the addresses of every transfer.
    """
    actions = _Actions(code_cycles)
    if not double:
        for tile in tiles:
            actions.wait(actions.fetch(tile))
            actions.compute(tile.team)
            actions.wait([actions.push(tile.store)])
        return actions.all
    fetched = actions.fetch(tiles[0])
    stored: list[int] = []
    for index, tile in enumerate(tiles):
        actions.wait(fetched)
        fetched = actions.fetch(tiles[index + 1]) if index + 1 < len(tiles) else []
        actions.compute(tile.team)
        pushed = [actions.push(tile.store)]
        actions.wait(stored)
        stored = pushed
        if in_place:
            actions.wait(stored)
            stored = []
    actions.wait(stored)
    return actions.all


FURTHER_WAIT_CYCLES = 12
"""A wait for a transfer that has ended, in a series of waits.

A property of the measured programs, whose waits are inlined into one loop, not of the machine: the same wait
as a call takes `wait_done_cycles`. Fitted: what each further small transfer of 1d_queued in dma.csv adds,
less its push.
"""


def bare_calls(timing: SocTiming) -> SocTiming:
    """The machine as the micro-benchmarks drive its DMA: call after call with nothing between.

    A push costs what the machine calls a further command of a series, also the first under its ID, and waits
    are shorter by the part of them that a lone wait pays once, see `lone_call`.
    """
    once_cycles = timing.dma.wait_done_cycles - FURTHER_WAIT_CYCLES
    dma = dataclasses.replace(
        timing.dma,
        program_1d_cycles=timing.dma.program_next_cycles,
        transfer_code_1d_cycles=0,
        transfer_code_2d_cycles=0,
        wait_done_cycles=timing.dma.wait_done_cycles - once_cycles,
        wait_sleep_min_cycles=max(0, timing.dma.wait_sleep_min_cycles - once_cycles),
        wait_wake_cycles=max(0, timing.dma.wait_wake_cycles - once_cycles),
    )
    return dataclasses.replace(timing, dma=dma)


def lone_call(timing: SocTiming) -> tuple[int, int]:
    """Cycles a lone push and a lone wait cost more than one in a series of them."""
    dma = timing.dma
    return (
        max(0, dma.program_1d_cycles - dma.program_next_cycles),
        max(0, dma.wait_done_cycles - FURTHER_WAIT_CYCLES),
    )


def master_code(number: int, cycles: int) -> list[Action]:
    """Action `number`: the master executes straight-line code for some cycles."""
    if cycles <= 0:
        return []
    code = CoreWork((Instruction(Op.ALU),) * cycles)
    return [Compute(number, team=TeamWork("code around the DMA", (code,)), fork=False)]
