# SPDX-License-Identifier: Apache-2.0
"""What every stall word means. Tables, JSON, pictures and Perfetto all say these words, and no others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from traces.events import STALLS

MEANINGS: Mapping[str, str] = {
    "load_use": "An instruction reads what the load just before it has not brought yet.",
    "multicycle": "An instruction reads the result of a slow one (FPU, multiplication, division) too early.",
    "misaligned": "A load or store crosses a word boundary and takes a second access.",
    "fpu": "Another core has the FPU this one shares with it, or the FPU has not the result yet.",
    "divider": "The divider is at work for another core, or has not the result yet.",
    "branch": "A taken branch or a jump fetches from elsewhere.",
    "icache": "The next instruction is in no instruction cache of the core and is fetched.",
    "bank_conflict": "Another core or the DMA has the L1 bank in this cycle.",
    "l2_access": "A load or store of the core itself goes to L2; the core stands still.",
    "dma_wait": "Core 0 waits for a transfer: for what it brings, or for room in L1 or in the DMA's queues.",
    "dma_program": "Core 0 writes commands to the DMA.",
    "barrier": "A core is done with its share of a kernel and waits for the slowest.",
    "fork": "Core 0 hands a kernel to the workers or returns from it; a worker starts on it.",
    "offload": "The fabric controller hands the task to the cluster, or is told of its end.",
    "idle": "A worker has nothing to do: core 0 waits, programs the DMA or computes alone.",
}
"""In the order of `traces.events.STALLS`."""


def every_stall(cycles: Iterable[tuple[str, int]]) -> dict[str, int]:
    """Cycles by stall word, all words in their order: one that nothing was lost to says 0."""
    given = dict(cycles)
    return {word: given.get(word, 0) for word in STALLS}


BUSY = "An instruction is issued. On every core, busy and all stalls add up to the cycles of the run."
"""What `busy` means."""
