# SPDX-License-Identifier: Apache-2.0
"""Timing and size parameters of every block, as frozen dataclasses filled from `configs/soc/*.yaml`.

Field names are the keys of the YAML file; unit, description and source of every value live there. No
defaults here: a parameter that is missing in the file is an error.
"""

from __future__ import annotations

from configs.values import Struct


class CoreTiming(Struct, frozen=True):
    """Pipeline of one RI5CY-class core, in cycles."""

    load_cycles: int
    """Load, issue included, unless a load or store follows it: then the two overlap and it takes one."""
    load_use_stall_cycles: int
    mul_cycles: int
    mul_dependent_stall_cycles: int
    mulh_cycles: int
    div_cycles: int
    branch_taken_stall_cycles: int
    jump_stall_cycles: int
    hwloop_setup_cycles: int
    misaligned_stall_cycles: int
    csr_cycles: int


class FpuTiming(Struct, frozen=True):
    """Floating-point units of the cluster and how cores reach them."""

    count: int
    """Number of FPUs; equal to the number of cores when `mapping` is private."""
    mapping: str
    """private, static (core id modulo count) or dynamic (allocated per cycle)."""
    arbitration: str
    """Who of several requesters of one cycle is served first, see `L1Timing.arbitration`."""
    fma_cycles: int
    """Fused multiply-add, issue included: cycles in which the core issues nothing else."""
    latency_cycles: int
    interval_cycles: int
    divsqrt_count: int
    """Iterative units of the cluster; 0 if there is none and each core divides in software."""
    divsqrt_latency_cycles: int
    divsqrt_interval_cycles: int
    divsqrt_issue_cycles: int
    """Of the latency, cycles in which the core issues nothing else; in the rest it goes on until it needs the
    result or the FPU."""


class IcacheTiming(Struct, frozen=True):
    """Private L0 and shared L1.5 instruction caches."""

    line_bytes: int
    private_bytes: int
    private_ways: int
    private_refill_stall_cycles: int
    shared_bytes: int
    shared_ways: int
    shared_refill_stall_cycles: int
    between_calls_lines: int
    """Lines of other code a core executes between two calls of a kernel, in the same cache."""
    call_lines: int
    """Lines of the code of fork and join, whose own refills are part of a call; both 0: all stays."""
    fetch_bytes_per_cycle: int
    """What the prefetcher of a core takes from a line that is there; 0: it does not run ahead."""
    line_from_shared_cycles: int
    """From the start of one line of straight-line code to that of the next, which is in the shared cache."""
    line_from_l2_cycles: int
    """The same if the next line comes from L2 and nothing is before it."""
    jump_from_shared_cycles: int
    """From a jump to the first instruction of a line that the shared cache has."""
    jump_from_l2_cycles: int
    """The same if the line comes from L2."""
    jump_cycles: int
    """The same if the private cache has the line."""


class L1Timing(Struct, frozen=True):
    """TCDM: word-interleaved banks, one access per bank and cycle when `bank_conflicts` is on."""

    size_bytes: int
    banks: int
    word_bytes: int
    bank_conflicts: bool
    arbitration: str
    """Oldest request first, and of one cycle in_order (lowest core) or rotating (the first moves on); or
    round_robin, over cores and DMA ports, whose beats then need all their words."""
    master_stack_bytes: int
    worker_stack_bytes: int
    tables_bytes: int
    """For the tables of two ops, which a program walks; 0: each op is a function."""


class L2Timing(Struct, frozen=True):
    """Shared L2 and the AXI link to it, in cluster cycles at equal clocks."""

    size_bytes: int
    core_access_cycles: int
    core_store_more_cycles: int
    """A store of a core takes so many cycles more than a load."""
    dma_read_latency_cycles: int
    dma_write_latency_cycles: int
    link_bytes_per_cycle: int
    """Width of the link in each direction; 0 when the model puts no limit (GVSoC)."""
    code_behind_cycles: int
    """A line of code waits for all bursts but one that the DMA may have outstanding, less so many cycles."""
    code_ahead_cycles: int
    """A line of code that waits behind reads of the DMA has waited so many cycles before the last of these
    has ended in L1."""
    holds_code: bool
    """Whether the code of programs lies here; else in a memory that holds nothing else (flash)."""


class L3Timing(Struct, frozen=True):
    """External HyperRAM behind the uDMA."""

    size_bytes: int
    bytes_per_peripheral_cycle: float
    burst_setup_peripheral_cycles: int
    burst_bytes: int
    """Largest burst of the uDMA; the memory must be deselected from time to time."""
    queued_transfers: int
    """Transfers that wait in each direction of the uDMA."""
    program_cycles: int
    """Issuing core: start one transfer between L2 and L3."""
    wake_cycles: int
    """Issuing core: from the end of a transfer to its next instruction, when it slept."""


class DmaTiming(Struct, frozen=True):
    """Cluster DMA (mchan): queues, bursts, L1 ports, and what programming and waiting cost the core."""

    core_queue_commands: int
    global_queue_commands: int
    queued_until_cut: bool
    """Whether a command leaves the global queue once it is cut into bursts, or when its transfer begins."""
    transfer_ids: int
    burst_bytes: int
    bursts_aligned: bool
    """Whether bursts end at multiples of `burst_bytes` of the external address, or are cut from its start."""
    outstanding_bursts: int
    l1_bytes_per_cycle: int
    command_latency_cycles: int
    """From the last command word to the first external request."""
    first_beat_cycles: int
    """From an external response to the first L1 beat."""
    read_burst_gap_cycles: int
    """External to L1: idle L1 cycles behind a burst; the last of a transfer delays its end."""
    write_burst_gap_cycles: int
    """L1 to external: idle L1 cycles between two bursts, because one burst is gathered at a time."""
    read_short_burst_beats: int
    """External to L1: a burst of at most so many beats is a short one, whose gap is shorter."""
    write_short_burst_beats: int
    """L1 to external: the same."""
    short_burst_saved_cycles: int
    """By how much the gap behind a short burst is shorter, in either direction."""
    max_command_1d_bytes: int
    """Largest 1D command: what the size of the call that programs it can hold."""
    max_command_2d_bytes: int
    """Largest 2D command, all lines together: what the length field of the DMA can hold."""
    program_1d_cycles: int
    """Issuing core: allocate an ID and push a 1D command, mutex and address arithmetic included."""
    program_2d_cycles: int
    program_next_cycles: int
    """Each further command under the same transfer ID."""
    transfer_code_1d_cycles: int
    """Issuing core: code of a tile loop around one transfer of a range, on top of programming it."""
    transfer_code_2d_cycles: int
    """The same for a transfer of a box of a matrix."""
    wait_check_cycles: int
    """Issuing core: from the wait call to the instant its status read decides whether it will sleep."""
    wait_done_cycles: int
    """Issuing core: whole wait for a transfer that had ended at the status read, freeing the ID included."""
    wait_sleep_min_cycles: int
    """Issuing core: least duration of a wait that found the transfer under way, even if it ends at once."""
    wait_wake_cycles: int
    """Issuing core: from the DMA event to the next instruction of the program, when it slept."""


class EventUnitTiming(Struct, frozen=True):
    """Barrier, mutex and team fork, in cycles."""

    barrier_wake_cycles: int
    """All cores resume this long after the last arrival."""
    event_load_cycles: int
    """Load from the event unit that returns at once, such as taking a free mutex."""
    event_store_cycles: int
    """Store to the event unit, such as freeing a mutex or raising a software event."""
    event_wake_cycles: int
    """From such a store to the next instruction of the core it wakes."""
    fork_master_cycles: int
    """Master: from the fork call to the first instruction of its own share."""
    fork_worker_cycles: int
    """Worker: from the master's dispatch push to the first instruction of its share."""
    fork_push_cycles: int
    """Master: from the fork call to the dispatch push the workers wait for."""
    join_cycles: int
    """Master: from the release of the join barrier to the first instruction after the fork call."""


class FcTiming(Struct, frozen=True):
    """Fabric controller: cost of handing a task to the cluster and of hearing its end."""

    offload_cycles: int
    completion_cycles: int


class ClockTiming(Struct, frozen=True):
    """Frequencies of the clock domains."""

    cluster_hz: int
    soc_hz: int
    peripheral_hz: int


class SocTiming(Struct, frozen=True):
    """A whole SoC: everything the simulator knows about the hardware."""

    name: str
    profile: str
    """rtl or gvsoc."""
    cores: int
    core: CoreTiming
    fpu: FpuTiming
    icache: IcacheTiming
    l1: L1Timing
    l2: L2Timing
    l3: L3Timing
    dma: DmaTiming
    event_unit: EventUnitTiming
    fc: FcTiming
    clock: ClockTiming

    @property
    def l1_usable_bytes(self) -> int:
        """L1 left for data once the stacks of master and workers are taken, and the tables of ops."""
        stacks = self.l1.master_stack_bytes + (self.cores - 1) * self.l1.worker_stack_bytes
        return self.l1.size_bytes - stacks - self.l1.tables_bytes
