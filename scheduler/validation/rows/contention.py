# SPDX-License-Identifier: Apache-2.0
"""KIND dma-contention: one transfer while other cores load from L1 without end."""

from __future__ import annotations

from arch.pricing.cost_model import Traffic
from arch.pricing.window_plan import PricingWindow
from arch.spec.isa import CoreWork, Instruction, Loop, Node, Op, Stream, TeamWork
from arch.spec.program import Action, Command, Compute, DmaStart, DmaWait
from arch.spec.soc_config import MAX_CORES
from arch.spec.timing import SocTiming
from scheduler.validation.rows.cases import MACHINE_COLUMNS, Case, Column
from scheduler.validation.rows.machines import (
    cost_model_of,
    machine_of,
    program_cycles,
    transfer_cycles,
    with_part,
)
from scheduler.validation.rows.measured_code import BARE_LEAVE_CYCLES, measured_on_rtl, registers_only
from scheduler.validation.rows.prediction import Prediction

TRAFFIC = {"seq_1of2": (4, 256), "same_word_1of2": (0, 0), "stride64B_1of2": (64, 0), "seq_dense": (4, 256)}
"""Stride of the loads of one core, and distance of the first loads of two cores, in bytes.

The strides are those of the names. The distances are not documented: assumed.
"""

DENSE = "seq_dense"
"""Traffic whose every instruction is a load, where others load in every second one."""

TURN_LOADS = 64
"""Loads of a turn of the loop measured on RTL: column `core1_loads` counts whole turns."""

TURN_CODE_CYCLES = 9
"""What such a turn takes beside its loads: pointer, flag, branch. Fitted on seq_dense of 4 cores and 8 KiB of
rtl-dma-contention.csv, whose core 1 takes 73 cycles a turn.
"""

STARTS = 16
"""Starts the loads measured on RTL are priced from, see `_scattered`."""


def _scattered(starts: int) -> PricingWindow:
    """Starts whose cores are anywhere in their loops.

    Cores that load without end have run for hundreds of cycles when the transfer begins, and each waited for
    its code before. Those offsets are not known, and in lock-step they decide: so a price is the mean over
    starts that scatter all cores over a turn (multiples of the golden ratio, the same in every run).
    """
    turn_cycles = 2 * TURN_LOADS
    golden = 0.6180339887498949

    def offset(start: int, core: int) -> int:
        return int((start * MAX_CORES + core) * golden % 1 * turn_cycles)

    return PricingWindow(
        starts=tuple(tuple(offset(start, core) for core in range(MAX_CORES)) for start in range(starts))
    )


SCATTERED = _scattered(STARTS)

COVER_BYTES = 1024
"""A transfer in front, so that the loads are under way when the one that counts begins."""

COLUMNS = (
    *MACHINE_COLUMNS,
    Column("test", choices=("dma_vs_core_loads",)),
    Column("dir", choices=("L2toL1", "L1toL2")),
    Column("bytes", 4),
    Column("traffic", choices=tuple(TRAFFIC)),
    Column("n_traffic_cores", 0, most=MAX_CORES - 1),
    Column("dma_total_cycles", 1),
)


CORE_COLUMNS = (*COLUMNS, Column("core1_loads", 0), Column("core1_cycles_in_traffic_loop", 0))
"""Those of rows measured on RTL, which also time the loads of core 1."""


def predict(case: Case) -> Prediction:
    """A bare push and a wait around the transfer, and what the loads add to the transfer.

    The machine runs no kernel beside its master, so the transfer is timed behind another one, while the
    master has forked the loads; without loads the same program gives what to subtract.
    """
    to_l1, size_bytes = case.text("dir") == "L2toL1", case.number("bytes")
    cores = case.number("n_traffic_cores")
    moved_bytes = COVER_BYTES + size_bytes
    timing = machine_of(case, l1_bytes=moved_bytes, l2_bytes=moved_bytes)
    if cores >= timing.cores:
        raise case.error(
            f"{cores} cores of traffic are too many: the cluster has {timing.cores}, one of them the master",
            f"use at most {timing.cores - 1}",
        )
    alone: list[Action] = [
        DmaStart(0, commands=(Command(to_l1, 0, "l2", 0, size_bytes),)),
        DmaWait(1, transfer=0),
    ]
    if measured_on_rtl(case):
        total_cycles = program_cycles(registers_only(timing), case.id, alone) + BARE_LEAVE_CYCLES
    else:
        bare = with_part(timing, "dma", program_1d_cycles=timing.dma.program_next_cycles)
        total_cycles = program_cycles(bare, case.id, alone)
    if cores:
        loads, window = _loads_of(case), SCATTERED if measured_on_rtl(case) else None
        total_cycles += _behind_another(timing, case.id, to_l1, size_bytes, loads, window)
        total_cycles -= _behind_another(timing, case.id, to_l1, size_bytes, None)
    return Prediction(total_cycles)


def predict_core(case: Case) -> Prediction:
    """What core 1 takes for its `core1_loads`, a part of them beside the transfer; rows of RTL only."""
    total = case.number("core1_loads")
    if not total:
        return Prediction(0)
    if not case.number("n_traffic_cores"):
        raise case.error(f"core 1 loads {total} words, but n_traffic_cores is 0", "set n_traffic_cores to 1")
    timing = machine_of(case)
    team = _loads_of(case)
    executed = max(1, case.number("bytes") // TURN_LOADS) * TURN_LOADS
    beside, after = (
        cost_model_of(timing, SCATTERED).price(team, traffic).cores[1].cycles / executed
        for traffic in (Traffic.IN if case.text("dir") == "L2toL1" else Traffic.OUT, Traffic.NONE)
    )
    transfer_cycles = min(predict(case).cycles, round(total * beside))
    return Prediction(round(transfer_cycles + (total - transfer_cycles / beside) * after))


def _loads_of(case: Case) -> TeamWork:
    """More loads than a transfer lasts."""
    cores, size_bytes = case.number("n_traffic_cores"), case.number("bytes")
    if measured_on_rtl(case):
        return _turns(cores, case.text("traffic"), max(1, size_bytes // TURN_LOADS))
    return _loads(cores, case.text("traffic"), size_bytes // 4)


def _turns(cores: int, traffic: str, turns: int) -> TeamWork:
    """The loop measured on RTL: straight loads, and code that begins them anew."""
    stride, apart = TRAFFIC[traffic]
    load = Instruction(Op.LOAD, dst=1, stream=0)
    body: tuple[Node, ...] = (load,) if traffic == DENSE else (load, Instruction(Op.ALU))
    turn: tuple[Node, ...] = (
        Loop(TURN_LOADS, body, hardware=True),
        *[Instruction(Op.ALU)] * TURN_CODE_CYCLES,
    )
    loop = (Loop(turns, turn, hardware=True),)
    works = [CoreWork(loop, (Stream(apart * core, (0, stride)),)) for core in range(1, cores + 1)]
    return TeamWork(traffic, (None, *works))


def _loads(cores: int, traffic: str, trips: int) -> TeamWork:
    """Cores 1 to `cores` load a word every other instruction."""
    stride, apart = TRAFFIC[traffic]
    body = (Instruction(Op.LOAD, dst=1, stream=0), Instruction(Op.ALU))
    loop = (Instruction(Op.HWLOOP), Loop(trips, body, hardware=True))
    works = [CoreWork(loop, (Stream(apart * core, (stride,)),)) for core in range(1, cores + 1)]
    return TeamWork(traffic, (None, *works))


def _behind_another(
    timing: SocTiming,
    name: str,
    to_l1: bool,
    size_bytes: int,
    team: TeamWork | None,
    window: PricingWindow | None = None,
) -> int:
    actions: list[Action] = [
        DmaStart(0, commands=(Command(to_l1, 0, "l2", 0, COVER_BYTES),)),
        DmaStart(1, commands=(Command(to_l1, COVER_BYTES, "l2", COVER_BYTES, size_bytes),)),
    ]
    if team is not None:
        actions.append(Compute(2, team=team))
    actions += [DmaWait(len(actions), transfer=0), DmaWait(len(actions) + 1, transfer=1)]
    return transfer_cycles(timing, name, actions, 1, window)
