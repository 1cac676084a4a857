# SPDX-License-Identifier: Apache-2.0
"""What the measured programs did around the hardware and the kernels, where `run` does otherwise.

Properties of those programs and not of a machine: without them a row would be compared with a program that
was not measured.
"""

from __future__ import annotations

from collections.abc import Sequence

from arch.spec.isa import CoreWork, Instruction, Loop, Op, TeamWork
from arch.spec.program import Action, Compute
from arch.spec.timing import SocTiming
from configs.values import replace
from scheduler.validation.rows.cases import Case
from scheduler.validation.rows.machines import with_part
from trainlib.kernels.team import team_work

FORK_WRAPPER_CYCLES = 14
"""Part of a modelled fork that is the call of a wrapper: 40 cycles (layer.csv, empty fork through a wrapper,
8 cores) less 26 (micro.csv, empty fork). Activations and the loops of loops.csv fork without it.
"""


GAP_BYTES = 16
"""Distance between the tensors of a layer in L1, assumed: how the layer programs placed them is not known.

Without a gap, vectors a multiple of the banks long would begin in one bank and collide in every iteration;
the measured ones did not. Any gap of 3 to 12 words gives the same errors.
"""

PUBLISHED_CODEGEN = "pulp-gcc7"
PUBLISHED_GAP_BYTES = 0
"""The published programs declare their tensors as static arrays, one after another. All sizes of the tutorial
network are multiples of 64 B, so every tensor begins in bank 0.
"""


def gap_bytes(codegen: str) -> int:
    """Distance between the tensors of a measured layer in L1."""
    return PUBLISHED_GAP_BYTES if codegen == PUBLISHED_CODEGEN else GAP_BYTES


def without_wrapper(timing: SocTiming) -> SocTiming:
    """The machine where a fork is not called through a wrapper."""
    join_cycles = max(0, timing.event_unit.join_cycles - FORK_WRAPPER_CYCLES)
    return with_part(timing, "event_unit", join_cycles=join_cycles)


def code_at_hand(timing: SocTiming) -> SocTiming:
    """The machine whose private caches hold all code: nothing between two calls puts any of it out."""
    return with_part(timing, "icache", private_bytes=1 << 16, between_calls_lines=0, call_lines=0)


def with_layer_calls(kernels: Sequence[Compute], codegen: str) -> list[Compute]:
    """The kernels as a layer function of PULP-TrainLib calls them.

    Before every matmul the master executes the call of the layer (argument structs, choice of the kernel).
    The tile loops of `run`, like the measured ones, call kernels directly.
    """
    called: list[Compute] = []
    for kernel in kernels:
        if kernel.team.macs:
            call = team_work(codegen, "layer_call", {}, {}, 1)
            called.append(Compute(len(called), team=call, fork=False))
        called.append(replace(kernel, id=len(called)))
    return called


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
    return with_part(
        timing,
        "dma",
        program_1d_cycles=timing.dma.program_next_cycles,
        transfer_code_1d_cycles=0,
        transfer_code_2d_cycles=0,
        wait_done_cycles=timing.dma.wait_done_cycles - once_cycles,
        wait_sleep_min_cycles=max(0, timing.dma.wait_sleep_min_cycles - once_cycles),
        wait_wake_cycles=max(0, timing.dma.wait_wake_cycles - once_cycles),
    )


BARE_PUSH_CYCLES = 4
BARE_PUSH_2D_CYCLES = 6
BARE_PUSH_NEXT_CYCLES = 8
"""A push in the programs measured on RTL: the identifier is read and 3 words are stored, 5 in 2D, operands at
hand; further ones of a series in a loop. Column `cycles_program` of rtl-dma.csv.
"""

BARE_LEAVE_CYCLES = 6
"""From the status read that finds all transfers over to the end of such a program: the test, the identifiers
freed. One loop of status read and sleep waits for all of them, so only the last wait has it.

Fitted on `bidirectional` of 64 B of rtl-dma.csv (52 cycles; the first of both transfers ends after 38 and
wakes the core), which is therefore no test of it.
"""


def registers_only(timing: SocTiming) -> SocTiming:
    """The machine as the programs measured on RTL drive its DMA: stores and status reads, no call of the SDK.

    A core that slept comes back as far as the status read; what follows is `BARE_LEAVE_CYCLES`, once.
    """
    return with_part(
        timing,
        "dma",
        program_1d_cycles=BARE_PUSH_CYCLES,
        program_2d_cycles=BARE_PUSH_2D_CYCLES,
        program_next_cycles=BARE_PUSH_NEXT_CYCLES,
        transfer_code_1d_cycles=0,
        transfer_code_2d_cycles=0,
        wait_check_cycles=0,
        wait_done_cycles=0,
        wait_sleep_min_cycles=0,
        wait_wake_cycles=max(0, timing.dma.wait_wake_cycles - BARE_LEAVE_CYCLES),
    )


def measured_on_rtl(case: Case) -> bool:
    """Whether a row was measured on RTL, by the programs that came with it."""
    return bool(case.cells.get("build"))


def lone_call(timing: SocTiming) -> tuple[int, int]:
    """Cycles a lone push and a lone wait cost more than one in a series of them."""
    dma = timing.dma
    return (
        max(0, dma.program_1d_cycles - dma.program_next_cycles),
        max(0, dma.wait_done_cycles - FURTHER_WAIT_CYCLES),
    )


def master_code(number: int, cycles: int) -> list[Action]:
    """Action `number`: the master executes code for some cycles."""
    if cycles <= 0:
        return []
    code = CoreWork((Loop(cycles, (Instruction(Op.ALU),), hardware=True),))
    return [Compute(number, team=TeamWork("code around the DMA", (code,)), fork=False)]


def dma_patch_cycles(timing: SocTiming, active_cores: int) -> int:
    """Cycles of one blocking 2D transfer of a patch of im2col, while `active_cores` do the same.

    Program, sleep, wake up. A patch is so small that the wait has its least duration. The DMA event goes to
    every core, so the end of each transfer of another core wakes this one, which looks and sleeps again.
    """
    dma = timing.dma
    own_cycles = dma.program_1d_cycles + dma.program_2d_cycles + dma.wait_sleep_min_cycles
    return own_cycles + (active_cores - 1) * (dma.wait_check_cycles + dma.wait_wake_cycles)


def all_as_boxes(timing: SocTiming) -> SocTiming:
    """The machine for a program that moves every operand as a box, also one whose rows touch."""
    dma = timing.dma
    return with_part(
        timing,
        "dma",
        program_1d_cycles=dma.program_2d_cycles,
        transfer_code_1d_cycles=dma.transfer_code_2d_cycles,
    )
