# SPDX-License-Identifier: Apache-2.0
"""KIND micro: single instructions, loops, shared FPUs, bank patterns, forks, barriers and mutexes.

Rows that run instructions are predicted by the cost model: on cluster cores, and on the fabric controller,
which has the pipeline of a cluster core and an FPU of its own and for which the memory next to it is what L1
is to them. Rows of several cores also wait for code (`CALLS`). Rows of the event unit and of the offload are
in `scheduler.validation.rows.micro_sync`. `NOT_MODELLED` says which rows have no model, and why.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from arch.pricing.fetch_oracle import pass_stall_cycles
from arch.pricing.team_cost_model import TeamCostModel
from arch.spec.isa import CoreWork, Instruction, Loop, Node, Op, Stream, TeamWork
from arch.spec.soc_config import with_values
from arch.spec.timing import IcacheTiming, SocTiming
from configs.suggest import suggestion
from configs.values import Struct, replace
from scheduler.validation.rows import micro_sync
from scheduler.validation.rows.cases import CORES, MACHINE_COLUMNS, Case, Column
from scheduler.validation.rows.icache import SEEDS
from scheduler.validation.rows.machines import machine_of, with_part
from scheduler.validation.rows.measured_code import code_at_hand
from scheduler.validation.rows.prediction import Prediction

MEASURED = "cycles_minus_base"
"""Cycles of all operations of a row, less what reading the counter twice takes."""

COLUMNS = (
    *MACHINE_COLUMNS,
    Column("group"),
    Column("name"),
    CORES,
    Column("n", 1),
    Column(MEASURED, 0),
)

MAX_OPERATIONS = 1 << 14
"""Operations of a row, each an instruction or more that is priced; measured ones have 64."""


def _ins(op: Op, dst: int = -1, *srcs: int, stream: int = -1, taken: float = 0.0) -> Instruction:
    return Instruction(op, dst, srcs, stream, taken)


_ALU, _LOAD, _STORE, _FMA, _FP = Op.ALU, Op.LOAD, Op.STORE, Op.FMA, Op.FP
_DIV = _ins(Op.FDIV, 1, 1)
"""Each reads the one before, which its divider has finished by then; nobody would read the last one else."""
_READ = _ins(_LOAD, 1, stream=0)
_USE = _ins(_ALU, 2, 1)
_POST = _ins(_LOAD, 1, 2, stream=0)
_TAKEN = _ins(Op.BRANCH, taken=1.0)
_READ_L2 = _ins(Op.LOAD_L2, 1)
_WRITE_L2 = _ins(Op.STORE_L2, -1, 1)

OPERATIONS: dict[str, tuple[Instruction, ...]] = {
    "nop": (_ins(_ALU),),
    "addi_dep": (_ins(_ALU, 1, 1),),
    "mul_dep": (_ins(Op.MUL, 1, 1),),
    "mul_indep": (_ins(Op.MUL, 1),),
    "mulh": (_ins(Op.MULH, 1),),
    "div": (_ins(Op.DIV, 1),),
    "csrr_mcycle": (_ins(Op.CSR, 1),),
    "fadd_dep": (_ins(_FP, 1, 1),),
    "fadd_indep": (_ins(_FP, 1),),
    "fmul_dep": (_ins(Op.FMUL, 1, 1),),
    "fmadd_dep": (_ins(_FMA, 1, 2, 3, 1),),
    "fmadd_indep": (_ins(_FMA, 1, 2, 3),),
    "fdiv_dep": (_DIV,),
    "fdiv_indep": (_DIV,),
    "fsqrt": (_DIV,),
    "fmax": (_ins(_FP, 1),),
    "flt": (_ins(_FP, 1),),
    "fcvt_s_w": (_ins(_FP, 1),),
    "fcvt_w_s": (_ins(_FP, 1),),
    "vfmac_h_dep": (_ins(_FMA, 1, 2, 3, 1),),
    "vfadd_h": (_ins(_FP, 1),),
    "beq_not_taken": (_ins(Op.BRANCH),),
    "beq_taken_next": (_TAKEN,),
    "beq_taken_skip1": (_TAKEN,),
    "j_next": (_ins(Op.JUMP),),
    "jal_ra": (_ins(Op.JUMP, 1),),
    "auipc_jalr": (_ins(_ALU, 1), _ins(Op.JUMP, 2)),
    "pair_lw_use_L1 (lw+add)": (_READ, _USE),
    "lw_indep_L1": (_READ,),
    "lw_chase_L1": (_ins(_LOAD, 1, 1, stream=0),),
    "plw_postinc_L1": (_POST,),
    "plw_use_addr (p.lw;p.lw same ptr)": (_POST, _POST),
    "sw_L1": (_ins(_STORE, -1, 1, stream=0),),
    "lw_sw_copy_L1 (lw;sw dep)": (_READ, _ins(_STORE, -1, 1, stream=0)),
    "lw_nop_use_L1": (_READ, _ins(_ALU), _USE),
    "lw_misaligned_L1": (_ins(_LOAD, 1, stream=1),),
    "lw_indep_L2": (_READ_L2,),
    "lw_chase_L2": (_ins(Op.LOAD_L2, 1, 1),),
    "lw_use_L2 (lw+add)": (_READ_L2, _USE),
    "sw_L2": (_WRITE_L2,),
    "lw_EU_demux_status": (_READ,),
    "sw_EU_demux_mask_or": (_ins(_STORE, -1, 1, stream=0),),
    "lw_DMA_demux_status": (_READ,),
    # Those below were measured on RTL only.
    "mulhu_dep": (_ins(Op.MULH, 1, 1),),
    "csrr_mhartid": (_ins(Op.CSR, 1),),
    "csrw_mscratch": (_ins(Op.CSR, -1, 1),),
    "csrr_use": (_ins(Op.CSR, 1), _USE),
    "pmac_dep": (_ins(Op.MUL, 1, 1),),
    "fadd_indep_4dst": (_ins(_FP, 1),),
    "fmul_indep": (_ins(Op.FMUL, 1),),
    "fmul_indep_4dst": (_ins(Op.FMUL, 1),),
    "fmadd_dep_mulop": (_ins(_FMA, 1, 1, 3, 4),),
    "fmadd_2acc": (_ins(_FMA, 1, 2, 3),),
    "fmadd_3acc": (_ins(_FMA, 1, 2, 3),),
    "fmadd_dep_nop1": (_ins(_FMA, 1, 2, 3, 1), _ins(_ALU)),
    "fmadd_then_int_use": (_ins(_FMA, 1, 2, 3), _ins(_ALU, 4, 1)),
    "fmadd_nop_int_use": (_ins(_FMA, 1, 2, 3), _ins(_ALU), _ins(_ALU, 4, 1)),
    "fmadd_alu_indep": (_ins(_FMA, 1, 2, 3), _ins(_ALU)),
    "fmadd_lw_indep": (_ins(_FMA, 4, 2, 3), _READ),
    "lw_fmadd_indep_2dst": (_READ, _ins(_FMA, 4, 2, 3)),
    "fmadd_lw_lw_indep": (_ins(_FMA, 4, 2, 3), _READ, _READ),
    "fmadd_fmadd_lw_lw_indep": (_ins(_FMA, 4, 2, 3), _ins(_FMA, 5, 2, 3), _READ, _READ),
    "fmadd_sw_indep": (_ins(_FMA, 4, 2, 3), _ins(_STORE, -1, 1, stream=0)),
    "fmadd_sw_result": (_ins(_FMA, 4, 2, 3), _ins(_STORE, -1, 4, stream=0)),
    "fmadd_nop_sw_result": (_ins(_FMA, 4, 2, 3), _ins(_ALU), _ins(_STORE, -1, 4, stream=0)),
    "lw_fmadd_use": (_READ, _ins(_FMA, 4, 1, 3)),
    "lw_nop_fmadd_use": (_READ, _ins(_ALU), _ins(_FMA, 4, 1, 3)),
    "lw_lw_fmadd_use": (_READ, _ins(_LOAD, 2, stream=0), _ins(_FMA, 4, 1, 2)),
    "fmadd_mul_indep": (_ins(_FMA, 4, 2, 3), _ins(Op.MUL, 5)),
    "fmadd_branch_nt": (_ins(_FMA, 4, 2, 3), _ins(Op.BRANCH)),
    "fdiv_fadd_indep": (_DIV, _ins(_FP, 2)),
    "fdiv_then_15nop": (_DIV, *[_ins(_ALU)] * 15),
    "fmadd_waw_li": (_ins(_FMA, 1, 2, 3), _ins(_ALU, 1)),
    "fmax_dep": (_ins(_FP, 1, 1),),
    "flt_branch": (_ins(_FP, 1), _ins(Op.BRANCH, -1, 1)),
    "fsgnj": (_ins(_FP, 1),),
    "fadd_fmax_alt": (_ins(_FP, 1),),
    "fadd_fcvt_alt": (_ins(_FP, 1),),
    "vfmac_h_indep": (_ins(_FMA, 1, 2, 3),),
    "fadd_h_dep": (_ins(_FP, 1, 1),),
    "auipc_nop_jalr": (_ins(_ALU, 1), _ins(_ALU), _ins(Op.JUMP, 2)),
    "addi_beq_dep_nt": (_ins(_ALU, 1), _ins(Op.BRANCH, -1, 1)),
    "lw_beq_dep_nt": (_READ, _ins(Op.BRANCH, -1, 1)),
    "plw_reg_postinc_L1": (_POST,),
    "psw_postinc_L1": (_ins(_STORE, -1, 1, stream=0),),
    "plw_use_next": (_POST, _USE),
    "sb_L1": (_ins(_STORE, -1, 1, stream=0),),
    "sw_misaligned_L1": (_ins(_STORE, -1, 1, stream=1),),
    "lh_cross_L1": (_ins(_LOAD, 1, stream=1),),
    "lw_misaligned_use_L1": (_ins(_LOAD, 1, stream=1), _USE),
    "sw_L2_then_15nop": (_WRITE_L2, *[_ins(_ALU)] * 15),
    "lw_EU_status_use": (_READ, _USE),
}
"""Group cluster_pe0: the operation, repeated n times on one core. A core reaches event unit and DMA through a
port of its own, in the time of L1."""


def _hardware_loop(trips: int, *body: Instruction) -> tuple[Node, ...]:
    return _ins(Op.HWLOOP), Loop(trips, body, hardware=True)


LOOPS: dict[str, tuple[Node, ...]] = {
    "hwloop_n4_body4": _hardware_loop(4, *[_ins(_ALU)] * 4),
    "hwloop_n16_body4": _hardware_loop(16, *[_ins(_ALU)] * 4),
    "hwloop_n64_body4": _hardware_loop(64, *[_ins(_ALU)] * 4),
    "hwloop_n64_body3": _hardware_loop(64, *[_ins(_ALU)] * 3),
    "hwloop_n64_body12": _hardware_loop(64, *[_ins(_ALU)] * 12),
    "bneloop_n64_body3nop+addi+bne": (Loop(64, (*[_ins(_ALU)] * 4, _ins(Op.BRANCH))),),
    "hwloop_n64_dotprod(plw plw fmadd)": _hardware_loop(
        64, _READ, _ins(_LOAD, 2, stream=0), _ins(_FMA, 3, 1, 2, 3)
    ),
    "hwloop_n64_body2": _hardware_loop(64, *[_ins(_ALU)] * 2),
    "hwloop_n64_dotprod2(plw plw fmadd fmadd 2acc)": _hardware_loop(
        64, _READ, _ins(_LOAD, 2, stream=0), _ins(_FMA, 3, 1, 2, 3), _ins(_FMA, 4, 1, 2, 4)
    ),
}
"""Group cluster_pe0: a loop of n iterations on one core."""

FABRIC_CONTROLLER = ("fc", "fc_L2priv")
"""Groups of the fabric controller. Names that say L2 are its own memory, names that say L1 are the cluster's
in group fc, and its own again in group fc_L2priv."""

GROUPS = ("cluster_pe0", "multi_max", "multi_min", *FABRIC_CONTROLLER)
"""Groups whose rows run instructions."""

BASE = "empty"
"""The row that is subtracted from the others: no operation."""


class Shared(Struct, frozen=True):
    """One operation of several cores: its instructions, bytes between cores and between operations."""

    operation: tuple[Instruction, ...]
    core_bytes: int = 0
    step_bytes: int = 0


_WRITE = _ins(_STORE, -1, 1, stream=0)
_ONE_FMA = _ins(_FMA, 1, 2, 3)

SHARED: dict[str, Shared] = {
    "fmadd_indep": Shared((_ONE_FMA,)),
    "fmadd_dep": Shared((_ins(_FMA, 1, 2, 3, 1),)),
    "fmadd_1of2": Shared((_ONE_FMA, _ins(_ALU))),
    "fmadd_1of4": Shared((_ONE_FMA, *[_ins(_ALU)] * 3)),
    "fdiv": Shared((_DIV,)),
    "fsqrt": Shared((_DIV,)),
    "lw_same_word": Shared((_READ,)),
    "lw_seq_same_start_bank(off 0)": Shared((_READ,), 0, 4),
    "lw_seq_off_4B": Shared((_READ,), 4, 4),
    "lw_seq_off_8B": Shared((_READ,), 8, 4),
    "lw_seq_off_36B": Shared((_READ,), 36, 4),
    "lw_seq_off_64B": Shared((_READ,), 64, 4),
    "lw_seq_off_1024B": Shared((_READ,), 1024, 4),
    "lw_1of2_off_0": Shared((_READ, _ins(_ALU)), 0, 4),
    "lw_1of2_off_64B": Shared((_READ, _ins(_ALU)), 64, 4),
    "lw_stride8B_off_0": Shared((_READ,), 0, 8),
    "lw_stride16B_off_0": Shared((_READ,), 0, 16),
    "lw_stride32B_off_0": Shared((_READ,), 0, 32),
    "lw_stride64B_off_0": Shared((_READ,), 0, 64),
    "lw_stride64B_off_4B": Shared((_READ,), 4, 64),
    "lw_use_seq_off_0": Shared((_READ, _USE), 0, 4),
    "lw_use_seq_off_1024B": Shared((_READ, _USE), 1024, 4),
    "sw_seq_off_0": Shared((_WRITE,), 0, 4),
    "sw_seq_off_1024B": Shared((_WRITE,), 1024, 4),
    "copy_lw_sw_off_256B": Shared((_READ, _ins(_STORE, -1, 1, stream=1)), 256, 4),
    "L2_lw_same": Shared((_READ_L2,)),
    "L2_lw_off_4B": Shared((_READ_L2,)),
    "L2_lw_off_64B": Shared((_READ_L2,)),
    "L2_sw_off_4B": Shared((_WRITE_L2,)),
    "nop": Shared((_ins(_ALU),)),
    "fadd_indep": Shared((_ins(_FP, 1),)),
    "fmadd_2of3": Shared((_ONE_FMA, _ONE_FMA, _ins(_ALU))),
    "lw_same_bank_64B_apart": Shared((_READ,), 64, 0),
    "lw_use_same_word": Shared((_READ, _USE)),
}
"""Groups multi_max and multi_min: the slowest and the fastest core."""

_BY_OPERAND = "division time depends on operands; the model assumes a small divisor"
_ALIGNMENT = "measures the alignment of branch targets and loop bodies, which the simulator does not model"

NOT_MODELLED = {
    "lw_cl_timer_periph": "the simulator does not model reads of the cluster timer",
    **dict.fromkeys(
        ("div_by_1", "divu_by_0x40000000", "divu_by_1000", "rem_by_minus7", "div_by_0"), _BY_OPERAND
    ),
    **dict.fromkeys(("fdiv_indep_by1", "fsqrt_of_1"), _BY_OPERAND),
    "csrr_mstatus": "the simulator does not model reads of mstatus, which take 4 cycles",
    **dict.fromkeys(
        ("beq_taken_next_unaligned", "j_next_unaligned", "hwloop_n64_body4_unaligned"), _ALIGNMENT
    ),
    **micro_sync.NOT_MODELLED,
}
"""Name of a row -> why it has no model."""

INSTRUCTION_BYTES = 4
"""Straight code of the measured operations is not compressed: `code_bytes` of icache.csv, 4 a nop."""

TEAM_SIZES = (1, 2, 4, 5, 8)
"""Teams a shared operation was measured with, one after the other: a core of the first has called it before.

The order of the rows of micro.csv.
"""

RTL_CALLS = 4
"""The same where a row has a build: what is left of the refills is 0.15 cycle an operation. Assumed."""

CALLS = 2
"""Calls of an operation by a team of a size, the last of which was timed. Assumed, as in mm.csv.

The replacement of the private cache takes any line, also while others are empty, so that a second call still
waits for some lines it had fetched: icache.csv has the same in `iter1_max`.
"""


def predict(case: Case) -> Prediction:
    """Cycles of all operations of a row, on the slowest core; in group multi_min on the fastest."""
    group, name, cores = case.text("group"), case.text("name"), case.number("cores")
    if name in NOT_MODELLED:
        raise case.not_modelled(NOT_MODELLED[name])
    timing = machine_of(case)
    if group in micro_sync.GROUPS:
        return Prediction(micro_sync.predict(case, timing))
    if name == BASE:
        return Prediction(0)
    operations: Mapping[str, object] = SHARED if group.startswith("multi") else {**OPERATIONS, **LOOPS}
    if group not in GROUPS or name not in operations:
        raise case.error(
            f"group '{group}' has no operation '{name}' in pulptrain's timing model",
            suggestion(name, operations),
        )
    if case.number("n") > MAX_OPERATIONS:
        raise case.error(
            f"{case.number('n')} operations are too many", f"use at most {MAX_OPERATIONS} per row"
        )
    costs = _cycles(timing, group, name, cores, case.number("n"))
    if not group.startswith("multi"):
        return Prediction(max(costs))
    instructions = len(SHARED[name].operation) * case.number("n")
    lines = -(-instructions * INSTRUCTION_BYTES // timing.icache.line_bytes)
    once = RTL_CALLS if case.cells.get("build") else CALLS
    if group == "multi_max":
        return Prediction(max(costs) + _refill_cycles(timing.icache, lines, once))
    calls = once * sum(size <= cores for size in TEAM_SIZES)
    return Prediction(min(costs) + _refill_cycles(timing.icache, lines, calls))


@cache
def _refill_cycles(icache: IcacheTiming, lines: int, calls: int) -> int:
    """What a core waits for lines of straight code in its call number `calls`, mean over the seeds."""
    runs = [pass_stall_cycles([range(lines)] * calls, icache, seed)[-1] for seed in SEEDS]
    return round(sum(runs) / len(runs))


@cache
def _cost_model(timing: SocTiming) -> TeamCostModel:
    """All cores start together, and code is warm; what a call waits for code is added after."""
    forked = {"fork_master_cycles": 0, "fork_push_cycles": 0, "fork_worker_cycles": 0}
    return TeamCostModel(with_part(code_at_hand(timing), "event_unit", **forked))


@cache
def _cycles(timing: SocTiming, group: str, name: str, cores: int, operations: int) -> tuple[int, ...]:
    if group in FABRIC_CONTROLLER:
        team, timing = _one(name, operations, group), with_values(timing, {"fpu": "private"})
    else:
        team = _several(name, cores, operations) if group.startswith("multi") else _one(name, operations)
    works = [work for work in team.cores if work is not None]
    end = len(_end(works[0].body)) * timing.core.csr_cycles
    return tuple(core.cycles - end for core in _cost_model(timing).price(team).cores)


def _end(body: tuple[Node, ...]) -> tuple[Instruction, ...]:
    """Reading the counter behind divisions waits for the last of them; a row is less this instruction."""
    divides = any(isinstance(node, Instruction) and node.op is Op.FDIV for node in body)
    return (_ins(Op.CSR, 3),) if divides else ()


def _one(name: str, operations: int, group: str = "") -> TeamWork:
    """An aligned and a misaligned word, used directly or inside the loop."""
    loop = LOOPS.get(name)
    strides = () if loop is None else (0,)
    body: tuple[Node, ...] = OPERATIONS[name] * operations if loop is None else loop
    body += _end(body)
    if group in FABRIC_CONTROLLER:
        far = group == "fc" and "_L2" not in name
        body = tuple(moved for node in body for moved in _on_fabric_controller(node, far=far))
    return TeamWork(name, (CoreWork(body, (Stream(64, strides), Stream(66, strides))),))


def _on_fabric_controller(node: Node, *, far: bool) -> tuple[Node, ...]:
    """The node where L2 is near and L1, if `far`, behind the cluster's port: one bus access per word."""
    if isinstance(node, Loop):
        body = tuple(moved for item in node.body for moved in _on_fabric_controller(item, far=far))
        return (replace(node, body=body),)
    if node.op in (Op.LOAD_L2, Op.STORE_L2):
        near = Op.LOAD if node.op is Op.LOAD_L2 else Op.STORE
        return (replace(node, op=near, stream=0),)
    if far and node.op in (Op.LOAD, Op.STORE):
        words = 1 + (node.stream == 1 and node.op is Op.LOAD)
        distant = Op.LOAD_L2 if node.op is Op.LOAD else Op.STORE_L2
        return (replace(node, op=distant, stream=-1),) * words
    return (node,)


def _several(name: str, cores: int, operations: int) -> TeamWork:
    """Every core repeats the operation at its own place; what is stored lies half the banks away."""
    shared = SHARED[name]
    body = tuple(
        replace(item, stream=2 * index + item.stream) if item.stream >= 0 else item
        for index in range(operations)
        for item in shared.operation
    )
    body += _end(body)
    works = []
    for core in range(cores):
        bases = [
            core * shared.core_bytes + index * shared.step_bytes + half
            for index in range(operations)
            for half in (0, 4096)
        ]
        works.append(CoreWork(body, tuple(Stream(base, ()) for base in bases)))
    return TeamWork(name, tuple(works))
