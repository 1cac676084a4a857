"""Measured set micro: single instructions, loops, shared FPUs and bank patterns, per operation.

Rows that run instructions are predicted by the cost model: on cluster cores, and on the fabric controller,
which has the pipeline of a cluster core and an FPU of its own and for which the memory next to it is what L1
is to them. Rows of the event unit and of the offload are tested event by event with their modules
(tests/test_arch_sync.py), not here. `NOT_MODELLED` says which rows have no model, and why; every row of the
file is in exactly one of the three. `DEVIATIONS` are the rows that are farther off than asked.
"""

from __future__ import annotations

import csv
import dataclasses
import gzip
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from arch.isa import CoreWork, Instruction, Loop, Node, Op, Stream, TeamWork
from arch.soc_config import load_soc, with_options
from arch.team_cost_model import TeamCostModel

RELATIVE_TOLERANCE = 0.05
TOLERANCE_CYCLES = 0.5
"""Of a row, per operation; the larger of the two counts."""

TESTED_ELSEWHERE = ("sync", "offload")
"""Groups whose rows are tested with the event unit and the fabric controller."""


def _ins(op: Op, dst: int = -1, *srcs: int, stream: int = -1, taken: float = 0.0) -> Instruction:
    return Instruction(op, dst, srcs, stream, taken)


_ALU, _LOAD, _STORE, _FMA, _FP = Op.ALU, Op.LOAD, Op.STORE, Op.FMA, Op.FP
_DIV = _ins(Op.FDIV, 1)
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
    "fdiv_dep": (_ins(Op.FDIV, 1, 1),),
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
}
"""Group cluster_pe0: a loop of n iterations on one core."""

FABRIC_CONTROLLER = ("fc", "fc_L2priv")
"""Groups of the fabric controller. Names that say L2 are its own memory, names that say L1 are the cluster's
in group fc, and its own again in group fc_L2priv."""


@dataclass(frozen=True, slots=True)
class Shared:
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
}
"""Groups multi_max and multi_min: the slowest and the fastest core."""

NOT_MODELLED: dict[str, tuple[str, ...]] = {
    "the timer of the cluster, which no modelled code reads": ("lw_cl_timer_periph",),
    "the base that is subtracted from the others": ("empty",),
}
"""Why -> names of rows."""

_REFILLS = (
    "refills of the private cache: 12 or 14 cycles more than the instructions take, 6 or 7 of the 16 lines "
    "of code at 2 cycles each; a single core without any rival has them, and conflicts do not change them"
)
_LINE_FROM_L2 = "exactly 18 cycles more than the instructions take: one line of code came from L2"
_LINES = "28 cycles more than the instructions take: code from L2 (18) and from the shared cache (2 a line)"
_PHASE = (
    "phase of the cores: all begin in one bank, and how fast they spread over the banks hangs on the cycle "
    "in which each begins; the model begins with all at once"
)

Deviations = Mapping[tuple[str, str, int, str, bool], tuple[float, str]]

DEVIATIONS: Deviations = {
    ("multi_max", "fmadd_1of4", 1, "4-static", False): (-0.750, _REFILLS),
    ("multi_min", "fmadd_1of4", 1, "4-static", False): (-0.750, _REFILLS),
    ("multi_max", "fmadd_1of4", 2, "4-static", False): (-0.875, _REFILLS),
    ("multi_max", "fmadd_1of4", 4, "4-static", False): (-0.875, _REFILLS),
    ("multi_max", "copy_lw_sw_off_256B", 8, "4-static", False): (-0.562, _LINE_FROM_L2),
    ("multi_max", "fmadd_1of4", 1, "4-static", True): (-0.750, _REFILLS),
    ("multi_min", "fmadd_1of4", 1, "4-static", True): (-0.750, _REFILLS),
    ("multi_max", "fmadd_1of4", 2, "4-static", True): (-0.875, _REFILLS),
    ("multi_max", "fmadd_1of4", 4, "4-static", True): (-0.875, _REFILLS),
    ("multi_max", "lw_use_seq_off_0", 2, "4-static", True): (-0.875, _LINES),
    ("multi_max", "copy_lw_sw_off_256B", 8, "4-static", True): (0.688, _PHASE),
    ("multi_max", "fmadd_1of4", 2, "private", False): (-0.875, _REFILLS),
    ("multi_max", "fmadd_1of4", 4, "private", False): (-0.875, _REFILLS),
    ("multi_max", "fmadd_1of4", 2, "private", True): (-0.875, _REFILLS),
    ("multi_max", "fmadd_1of4", 4, "private", True): (-0.875, _REFILLS),
    ("multi_max", "copy_lw_sw_off_256B", 8, "private", True): (0.782, _PHASE),
}
"""(group, name, cores, FPUs, bank conflicts) -> error in cycles per operation, cause: rows beyond tolerance.

Which lines of code a measured loop found in the caches hangs on the program around it, which the file does
not have: the rows are priced warm.
"""


@dataclass(frozen=True, slots=True)
class MicroRow:
    """One predicted row, in cycles per operation."""

    group: str
    name: str
    cores: int
    fpus: str
    bank_conflicts: bool
    operations: int
    measured: float
    predicted: float

    @property
    def key(self) -> tuple[str, str, int, str, bool]:
        """What names the row."""
        return self.group, self.name, self.cores, self.fpus, self.bank_conflicts

    @property
    def error_cycles(self) -> float:
        """Signed, per operation."""
        return self.predicted - self.measured

    @property
    def within(self) -> bool:
        """Whether it is as near as asked; no allowance for cache noise."""
        return abs(self.error_cycles) <= max(RELATIVE_TOLERANCE * self.measured, TOLERANCE_CYCLES)


def read_rows(path: Path) -> list[dict[str, str]]:
    """All rows of the file."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def not_modelled(row: dict[str, str]) -> str | None:
    """Why a row has no model, None if it has one or is tested elsewhere."""
    for why, names in NOT_MODELLED.items():
        if row["name"] in names:
            return why
    return None


def predict(rows: Sequence[dict[str, str]]) -> list[MicroRow]:
    """The rows that are priced here, in file order. Raises KeyError for a row no table knows."""
    found = []
    for row in rows:
        if row["group"] in TESTED_ELSEWHERE or not_modelled(row) is not None:
            continue
        operations = int(row["n"])
        costs = _cycles(
            row["fpus"],
            row["bank_conflicts"] == "1",
            row["group"],
            row["name"],
            int(row["cores"]),
            operations,
        )
        cycles = min(costs) if row["group"] == "multi_min" else max(costs)
        found.append(
            MicroRow(
                row["group"],
                row["name"],
                int(row["cores"]),
                row["fpus"],
                row["bank_conflicts"] == "1",
                operations,
                float(row["cycles_per_op"]),
                cycles / operations,
            )
        )
    return found


@cache
def _cost_model(fpus: str, conflicts: bool) -> TeamCostModel:
    """All cores start together, and the code, which only just fits the caches, is warm."""
    timing = with_options(load_soc("pulp-open", "gvsoc"), bank_conflicts=conflicts, fpus=fpus)
    unit = dataclasses.replace(
        timing.event_unit, fork_master_cycles=0, fork_push_cycles=0, fork_worker_cycles=0
    )
    icache = dataclasses.replace(timing.icache, private_bytes=1 << 16)
    return TeamCostModel(dataclasses.replace(timing, event_unit=unit, icache=icache))


@cache
def _cycles(
    fpus: str, conflicts: bool, group: str, name: str, cores: int, operations: int
) -> tuple[int, ...]:
    if group in FABRIC_CONTROLLER:
        team, fpus = _one(name, operations, group), "private"
    else:
        team = _several(name, cores, operations) if group.startswith("multi") else _one(name, operations)
    return tuple(core.cycles for core in _cost_model(fpus, conflicts).price(team).cores)


def _one(name: str, operations: int, group: str = "") -> TeamWork:
    """An aligned and a misaligned word, used directly or inside the loop."""
    loop = LOOPS.get(name)
    strides = () if loop is None else (0,)
    body: tuple[Node, ...] = OPERATIONS[name] * operations if loop is None else loop
    if group in FABRIC_CONTROLLER:
        far = group == "fc" and "_L2" not in name
        body = tuple(moved for node in body for moved in _on_fabric_controller(node, far=far))
    return TeamWork(name, (CoreWork(body, (Stream(64, strides), Stream(66, strides))),))


def _on_fabric_controller(node: Node, *, far: bool) -> tuple[Node, ...]:
    """The node where L2 is near and L1, if `far`, behind the cluster's port: one bus access per word."""
    if isinstance(node, Loop):
        body = tuple(moved for item in node.body for moved in _on_fabric_controller(item, far=far))
        return (dataclasses.replace(node, body=body),)
    if node.op in (Op.LOAD_L2, Op.STORE_L2):
        near = Op.LOAD if node.op is Op.LOAD_L2 else Op.STORE
        return (dataclasses.replace(node, op=near, stream=0),)
    if far and node.op in (Op.LOAD, Op.STORE):
        words = 1 + (node.stream == 1 and node.op is Op.LOAD)
        distant = Op.LOAD_L2 if node.op is Op.LOAD else Op.STORE_L2
        return (dataclasses.replace(node, op=distant, stream=-1),) * words
    return (node,)


def _several(name: str, cores: int, operations: int) -> TeamWork:
    """Every core repeats the operation at its own place; what is stored lies half the banks away."""
    shared = SHARED[name]
    body = tuple(
        dataclasses.replace(item, stream=2 * index + item.stream) if item.stream >= 0 else item
        for index in range(operations)
        for item in shared.operation
    )
    works = []
    for core in range(cores):
        bases = [
            core * shared.core_bytes + index * shared.step_bytes + half
            for index in range(operations)
            for half in (0, 4096)
        ]
        works.append(CoreWork(body, tuple(Stream(base, ()) for base in bases)))
    return TeamWork(name, tuple(works))
