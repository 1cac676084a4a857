# SPDX-License-Identifier: Apache-2.0
"""Defects of the DMA: bursts, queues, and what programming it and waiting for it costs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from arch.blocks import course, dma_driver, l2
from arch.blocks.bursts import BurstRules
from arch.blocks.dma import Dma, DmaChannel
from arch.blocks.dma_driver import DmaDriver
from arch.spec.program import Command
from arch.spec.timing import DmaTiming
from configs.values import replace
from tools.timing_defects.change import Change, Replacement, around, registrar

DEFECTS: dict[str, Change] = {}
_defect = registrar(DEFECTS, "DMA")


def _rules(change: Callable[[BurstRules], Mapping[str, Any]]) -> list[Replacement]:
    """Both engines with other burst rules."""
    right = BurstRules.of
    return [(BurstRules, "of", staticmethod(lambda *args: replace(right(*args), **change(right(*args)))))]


def _driver(**wrong: Any) -> list[Replacement]:
    """The code that programs and waits, with other costs."""
    return around(
        DmaDriver,
        "__init__",
        lambda right, self, engine, timing: right(self, engine, replace(timing, **wrong)),
    )


def as_run(command: Command) -> Command:
    """The bytes of a command as one line."""
    return replace(command, line_bytes=command.size_bytes, lines=1, stride_bytes=0)


_defect("arch/blocks/bursts.py", "no gap between the bursts of a store")(
    lambda: _rules(lambda rules: {"write_gap_cycles": 0})
)
_defect("arch/blocks/bursts.py", "only one burst is in flight at a time")(
    lambda: _rules(lambda rules: {"outstanding": 1})
)
_defect("arch/blocks/bursts.py", "bursts of half the length")(
    lambda: _rules(lambda rules: {"burst_bytes": rules.burst_bytes // 2})
)
_defect("arch/blocks/bursts.py", "L1 takes one word a cycle")(
    lambda: _rules(lambda rules: {"words_per_cycle": 1})
)
_defect("arch/blocks/bursts.py", "the first beat comes a cycle early")(
    lambda: _rules(lambda rules: {"first_beat_cycles": rules.first_beat_cycles - 1})
)
_defect("arch/blocks/bursts.py", "the lines of a 2D command are moved one burst after another")(
    lambda: around(course, "bursts_of", lambda right, command, rules: right(as_run(command), rules))
)


@_defect("arch/blocks/l2.py", "the latency of L2 counts twice")
def _double_latency() -> Sequence[Replacement]:
    def wrong(right: Any, *args: Any) -> Any:
        return tuple(link._replace(latency_cycles=2 * link.latency_cycles) for link in right(*args))

    return around(l2, "shared_l2_links", wrong)


@_defect("arch/blocks/l2.py", "reads and writes of L2 share one channel")
def _half_duplex() -> Sequence[Replacement]:
    def wrong(right: Any, *args: Any, to_l1: bool) -> None:
        right(*args, to_l1=to_l1)
        right(*args, to_l1=not to_l1)

    return around(l2.ExternalMemory, "occupy", wrong)


@_defect("arch/blocks/dma_channel.py", "the latency of a command counts twice")
def _double_command_latency() -> Sequence[Replacement]:
    def wrong(right: Any, *args: Any, timing: DmaTiming, **more: Any) -> None:
        latency_cycles = 2 * timing.command_latency_cycles
        right(*args, timing=replace(timing, command_latency_cycles=latency_cycles), **more)

    return around(DmaChannel, "__init__", wrong)


_defect("arch/blocks/dma_channel.py", "the global queue holds one command")(
    lambda: [
        (DmaChannel, "has_room", property(lambda self: not self.queue)),
        (DmaChannel, "room_at", lambda self, cycles: None),
    ]
)


@_defect("arch/blocks/dma.py", "the queue of a core holds one command")
def _short_core_queue() -> Sequence[Replacement]:
    def wrong(right: Any, self: Dma, parent: Any, name: str, timing: DmaTiming, *args: Any) -> None:
        right(self, parent, name, replace(timing, core_queue_commands=1), *args)

    return around(Dma, "__init__", wrong)


_defect("arch/blocks/dma_channel.py", "kernels do not slow transfers down")(
    lambda: [(DmaChannel, "set_pace", lambda self, pace: None)]
)


@_defect("arch/blocks/dma_driver.py", "every command of a transfer but the first costs nothing")
def _further_commands() -> Sequence[Replacement]:
    def wrong(right: Any, command: Command, position: int, timing: DmaTiming) -> Any:
        return 0 if position else right(command, position, timing)

    return around(dma_driver, "programming_cycles", wrong)


@_defect("arch/blocks/dma_driver.py", "a 2D command costs what a 1D command does")
def _flat_price() -> Sequence[Replacement]:
    def wrong(right: Any, command: Command, *args: Any) -> Any:
        return right(replace(command, lines=1, stride_bytes=0), *args)

    return around(dma_driver, "programming_cycles", wrong)


_defect("arch/blocks/dma_driver.py", "waking up from a wait is free")(lambda: _driver(wait_wake_cycles=0))
_defect("arch/blocks/dma_driver.py", "a wait that sleeps has no minimum time")(
    lambda: _driver(wait_sleep_min_cycles=0)
)
_defect("arch/blocks/dma_driver.py", "a wait for a transfer that has ended costs nothing")(
    lambda: _driver(wait_done_cycles=0, wait_check_cycles=0)
)
