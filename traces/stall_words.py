# SPDX-License-Identifier: Apache-2.0
"""What every stall word means. Tables, JSON, pictures and Perfetto all say these words, and no others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

MEANINGS: Mapping[str, str] = {
    "load_use": "An instruction needs the result of the load just before it, which has not arrived.",
    "multicycle": "An instruction waits for a slow integer instruction before it (multiplication, division).",
    "misaligned": "A load or store crosses a word boundary and needs a second access.",
    "fpu": "Another core uses the shared FPU, or the FPU has no result yet.",
    "divider": "Another core uses the shared divider, or the divider has no result yet.",
    "branch": "A taken branch or a jump refills the pipeline.",
    "icache": "The next instruction misses in the instruction caches.",
    "bank_conflict": "Another core or the DMA accesses the same L1 bank in this cycle.",
    "l2_access": "The core itself loads from or stores to L2 and waits for the access.",
    "dma_wait": "Core 0 waits for data of a transfer, for free space in L1, or for a free DMA queue.",
    "dma_program": "Core 0 writes commands to the DMA.",
    "barrier": "A core has finished its share of a kernel and waits for the slowest core.",
    "fork": "Core 0 starts a kernel on the workers or returns from it; a worker starts it.",
    "offload": "The fabric controller starts the task on the cluster, or receives its end.",
    "idle": "A worker has no work: core 0 waits, programs the DMA or computes alone.",
}


def every_stall(cycles: Iterable[tuple[str, int]]) -> dict[str, int]:
    """Cycles by stall word, all words in their order: one that nothing was lost to says 0."""
    given = dict(cycles)
    return {word: given.get(word, 0) for word in MEANINGS}


BUSY = "The core issues an instruction. On every core, busy and all stalls add up to the cycles of the run."
"""What `busy` means."""
