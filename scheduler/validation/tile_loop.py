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
    def __init__(self) -> None:
        self.all: list[Action] = []

    def push(self, command: Command) -> int:
        self.all.append(DmaStart(len(self.all), commands=(command,)))
        return len(self.all) - 1

    def wait(self, transfers: Sequence[int]) -> None:
        for transfer in transfers:
            self.all.append(DmaWait(len(self.all), transfer=transfer))

    def compute(self, team: TeamWork | None) -> None:
        if team is not None:
            self.all.append(Compute(len(self.all), team=team))


def tile_loop(tiles: Sequence[Tile], *, double: bool) -> list[Action]:
    """The actions of the loop.

    Single: push the inputs, wait for them, fork, push the output, wait for it. Double: the inputs of the next
    tile are pushed before the fork, the output of the previous tile is waited for after it. The caller gives
    tiles that lie in different buffers where `double` wants it.
    """
    actions = _Actions()
    if not double:
        for tile in tiles:
            actions.wait([actions.push(command) for command in tile.fetch])
            actions.compute(tile.team)
            actions.wait([actions.push(tile.store)])
        return actions.all
    fetched = [actions.push(command) for command in tiles[0].fetch]
    stored: list[int] = []
    for index, tile in enumerate(tiles):
        actions.wait(fetched)
        following = tiles[index + 1].fetch if index + 1 < len(tiles) else ()
        fetched = [actions.push(command) for command in following]
        actions.compute(tile.team)
        actions.wait(stored)
        stored = [actions.push(tile.store)]
    actions.wait(stored)
    return actions.all


def bare_pushes(timing: SocTiming) -> SocTiming:
    """The machine when the code around a push has its addresses and lock at hand.

    The micro-benchmarks push command after command with nothing between: each costs what the machine calls a
    further command of a series, also the first under its transfer ID.
    """
    cost_cycles = timing.dma.program_next_cycles
    dma = dataclasses.replace(timing.dma, program_1d_cycles=cost_cycles)
    return dataclasses.replace(timing, dma=dma)


def preparation(timing: SocTiming) -> list[Action]:
    """What the first push of a series costs more than the others, as instructions of the master."""
    extra_cycles = timing.dma.program_1d_cycles - timing.dma.program_next_cycles
    if extra_cycles <= 0:
        return []
    code = CoreWork((Instruction(Op.ALU),) * extra_cycles)
    return [Compute(0, team=TeamWork("DMA series prologue", (code,)), fork=False)]
