# SPDX-License-Identifier: Apache-2.0
"""Which rows of KIND micro are near, and why the others are farther off than asked."""

from __future__ import annotations

from collections.abc import Mapping

from scheduler.validation.rows.cases import BUILD, Case
from scheduler.validation.rows.statistics import Result

RELATIVE_TOLERANCE = 0.05
TOLERANCE_CYCLES = 0.5
"""Of a row, per operation; the larger of the two counts."""

_REFILLS = (
    "the second call refills lines of the private cache: 6 or 7 of its 16 lines of code, 2 cycles each; the "
    "model refills 2 or 3 on average"
)
_LINES = (
    "28 cycles more than the instructions take: a line of code from L2 (18), the others from the shared "
    "cache (2 each)"
)
_PHASE = (
    "all cores begin in one bank, and the cycle in which each starts decides how fast they spread over the "
    "banks; in the model all start at once"
)

Deviations = Mapping[tuple[str, str, int, str, bool], tuple[float, str]]

DEVIATIONS: Deviations = {
    ("multi_max", "fmadd_1of4", 2, "4-static", False): (-0.562, _REFILLS),
    ("multi_max", "fmadd_1of4", 4, "4-static", False): (-0.562, _REFILLS),
    ("multi_max", "fmadd_1of4", 2, "4-static", True): (-0.562, _REFILLS),
    ("multi_max", "fmadd_1of4", 4, "4-static", True): (-0.562, _REFILLS),
    ("multi_max", "lw_use_seq_off_0", 2, "4-static", True): (-0.719, _LINES),
    ("multi_max", "copy_lw_sw_off_256B", 5, "4-static", True): (0.625, _PHASE),
    ("multi_max", "copy_lw_sw_off_256B", 8, "4-static", True): (0.844, _PHASE),
    ("multi_max", "fmadd_1of4", 2, "private", False): (-0.562, _REFILLS),
    ("multi_max", "fmadd_1of4", 4, "private", False): (-0.562, _REFILLS),
    ("multi_max", "fmadd_1of4", 2, "private", True): (-0.562, _REFILLS),
    ("multi_max", "fmadd_1of4", 4, "private", True): (-0.562, _REFILLS),
    ("multi_max", "copy_lw_sw_off_256B", 4, "private", True): (0.562, _PHASE),
    ("multi_max", "copy_lw_sw_off_256B", 8, "private", True): (0.938, _PHASE),
}
"""(group, name, cores, FPUs, bank conflicts) -> error in cycles per operation, cause: rows beyond tolerance.

Which lines of code a core found in its cache hangs on the program around it, which the file does not have.
"""

SYNC_CAUSES = {
    "team_fork_empty(core0 view incl barrier)": "on two cores the code that only workers run came from L2",
    "fork_core0_entry_delay": "a cache line of code came from L2",
    "fork_slave_entry_delay_min": "on two cores the code that only workers run came from L2",
    "fork_slave_entry_delay_max": "on two cores the code that only workers run came from L2",
    "team_config(3 EU writes)": "these rows took 5 cycles, all other teams 7",
    "mutex_lock_unlock_max(all cores contend)": "the second core takes 6 cycles more, every further core 5",
    "core0_L2flag_write_cost": "16 or 18 cycles, because the polling controller accesses the same memory",
    "core0_L2flag_write_to_fc_poll_seen": "6 to 11 cycles, depending on the state of the polling loop",
}
"""The same for rows of the event unit and of the offload, by name."""

RTL_CAUSES = {
    "auipc_jalr": "a jump to a register that was just written waits one cycle, which the model ignores "
    "(kernels have no such jump)",
    "fdiv_fadd_indep": "a core stands still while it divides; hardware goes on until the FPU is needed",
    "fmadd_2of3": "depends on which core the shared FPUs serve first",
    "hwloop_n4_body4": "one cycle of the set-up, in four iterations",
    "lw_DMA_demux_status": (
        "the control port of the DMA is busy in the cycle after a read; a single read takes one cycle"
    ),
    "mutex_lock_unlock_all_cores_then_barrier": "one cycle of the first lock",
    "mutex_lock_unlock_all_cores_then_barrier(10 nops held)": "one cycle of the first lock",
    "sw_L2": "19 cycles, a load 18; the model has one figure for both",
}
"""The same for rows measured on RTL, by name."""


def key_of(case: Case) -> tuple[str, str, int, str, bool]:
    """What names a row in `DEVIATIONS`."""
    machine = case.text("fpus"), bool(case.number("bank_conflicts"))
    return case.text("group"), case.text("name"), case.number("cores"), *machine


def cause(case: Case) -> str:
    """Why a row is farther off than asked."""
    if case.cells.get(BUILD) and case.text("name") in RTL_CAUSES:
        return RTL_CAUSES[case.text("name")]
    return DEVIATIONS.get(key_of(case), (0.0, SYNC_CAUSES.get(case.text("name"), "unknown")))[1]


def error_cycles(result: Result) -> float:
    """Predicted less measured, in cycles per operation."""
    return (result.prediction.cycles - result.measured) / result.case.number("n")


def near(result: Result) -> bool:
    """Whether a row is as near as asked; no allowance for cache noise."""
    measured = result.measured / result.case.number("n")
    return abs(error_cycles(result)) <= max(RELATIVE_TOLERANCE * measured, TOLERANCE_CYCLES)
