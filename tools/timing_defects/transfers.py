# SPDX-License-Identifier: Apache-2.0
"""Defects of the DMA: bursts, queues, and what programming it and waiting for it costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from arch.blocks import dma_channel, dma_driver, l2
from arch.blocks.bursts import BurstRules
from arch.blocks.dma import Dma, DmaChannel
from arch.blocks.dma_driver import DmaDriver
from arch.spec.program import Command
from arch.spec.timing import DmaTiming
from tools.timing_defects.change import Change, Replacement, registrar

DEFECTS: dict[str, Change] = {}
_defect = registrar(DEFECTS, "DMA")


def _rules(**wrong: Any) -> list[Replacement]:
    """Both engines with other burst rules."""
    right = BurstRules.of
    return [(BurstRules, "of", staticmethod(lambda *args: replace(right(*args), **wrong)))]


def _driver(**wrong: Any) -> list[Replacement]:
    """The code that programs and waits, with other costs."""
    right = DmaDriver.__init__

    def changed(self: DmaDriver, engine: Dma, timing: DmaTiming) -> None:
        right(self, engine, replace(timing, **wrong))

    return [(DmaDriver, "__init__", changed)]


@_defect("arch/blocks/bursts.py", "no gap between the bursts of a store")
def _no_gap() -> Sequence[Replacement]:
    return _rules(write_gap_cycles=0)


@_defect("arch/blocks/bursts.py", "one burst under way at a time")
def _one_burst() -> Sequence[Replacement]:
    return _rules(outstanding=1)


@_defect("arch/blocks/bursts.py", "bursts of half the length")
def _short_bursts() -> Sequence[Replacement]:
    right = BurstRules.of

    def wrong(*args: Any) -> BurstRules:
        rules = right(*args)
        return replace(rules, burst_bytes=rules.burst_bytes // 2)

    return [(BurstRules, "of", staticmethod(wrong))]


@_defect("arch/blocks/bursts.py", "L1 takes one word a cycle")
def _one_word() -> Sequence[Replacement]:
    return _rules(words_per_cycle=1)


@_defect("arch/blocks/bursts.py", "the first beat comes a cycle early")
def _first_beat() -> Sequence[Replacement]:
    right = BurstRules.of

    def wrong(*args: Any) -> BurstRules:
        rules = right(*args)
        return replace(rules, first_beat_cycles=rules.first_beat_cycles - 1)

    return [(BurstRules, "of", staticmethod(wrong))]


@_defect("arch/blocks/bursts.py", "the lines of a 2D command are one burst after another")
def _lines_joined() -> Sequence[Replacement]:
    right = dma_channel.bursts_of

    def wrong(command: Command, rules: BurstRules) -> Any:
        return right(replace(command, line_bytes=command.size_bytes, lines=1, stride_bytes=0), rules)

    return [(dma_channel, "bursts_of", wrong)]


@_defect("arch/blocks/l2.py", "the latency of L2 counts twice")
def _double_latency() -> Sequence[Replacement]:
    right = l2.shared_l2_links

    def wrong(*args: Any) -> Any:
        return tuple(link._replace(latency_cycles=2 * link.latency_cycles) for link in right(*args))

    return [(l2, "shared_l2_links", wrong)]


@_defect("arch/blocks/l2.py", "reads and writes of L2 share one channel")
def _half_duplex() -> Sequence[Replacement]:
    right = l2.ExternalMemory.occupy

    def wrong(self: l2.ExternalMemory, until_cycles: int, *, to_l1: bool) -> None:
        right(self, until_cycles, to_l1=to_l1)
        right(self, until_cycles, to_l1=not to_l1)

    return [(l2.ExternalMemory, "occupy", wrong)]


@_defect("arch/blocks/dma_channel.py", "the latency of a command counts twice")
def _double_command_latency() -> Sequence[Replacement]:
    right = DmaChannel.__init__

    def wrong(self: DmaChannel, *args: Any, timing: DmaTiming, **more: Any) -> None:
        latency_cycles = 2 * timing.command_latency_cycles
        right(self, *args, timing=replace(timing, command_latency_cycles=latency_cycles), **more)

    return [(DmaChannel, "__init__", wrong)]


@_defect("arch/blocks/dma_channel.py", "the global queue holds one command")
def _short_queue() -> Sequence[Replacement]:
    return [
        (DmaChannel, "has_room", property(lambda self: not self.queue)),
        (DmaChannel, "room_at", lambda self, cycles: None),
    ]


@_defect("arch/blocks/dma.py", "the queue of a core holds one command")
def _short_core_queue() -> Sequence[Replacement]:
    right = Dma.__init__

    def wrong(self: Dma, parent: Any, name: str, timing: DmaTiming, *args: Any) -> None:
        right(self, parent, name, replace(timing, core_queue_commands=1), *args)

    return [(Dma, "__init__", wrong)]


@_defect("arch/blocks/dma_channel.py", "kernels do not slow transfers down")
def _no_pace() -> Sequence[Replacement]:
    return [(DmaChannel, "set_pace", lambda self, pace: None)]


@_defect("arch/blocks/dma_driver.py", "a further command of a transfer costs nothing")
def _further_commands() -> Sequence[Replacement]:
    right = dma_driver.programming_cycles

    def wrong(command: Command, position: int, timing: DmaTiming) -> int:
        return 0 if position else right(command, position, timing)

    return [(dma_driver, "programming_cycles", wrong)]


@_defect("arch/blocks/dma_driver.py", "a 2D command costs what a 1D command does")
def _flat_price() -> Sequence[Replacement]:
    right = dma_driver.programming_cycles

    def wrong(command: Command, position: int, timing: DmaTiming) -> int:
        return right(replace(command, lines=1, stride_bytes=0), position, timing)

    return [(dma_driver, "programming_cycles", wrong)]


@_defect("arch/blocks/dma_driver.py", "waking up from a wait is free")
def _free_wake() -> Sequence[Replacement]:
    return _driver(wait_wake_cycles=0)


@_defect("arch/blocks/dma_driver.py", "a wait that sleeps may be as short as it likes")
def _short_sleep() -> Sequence[Replacement]:
    return _driver(wait_sleep_min_cycles=0)


@_defect("arch/blocks/dma_driver.py", "a wait for what is over costs nothing")
def _free_wait() -> Sequence[Replacement]:
    return _driver(wait_done_cycles=0, wait_check_cycles=0)
