# SPDX-License-Identifier: Apache-2.0
"""The measured sets of the page and of the tests: which file each is in, and how far off it may be."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from scheduler.validation.rows import steps
from scheduler.validation.rows.cases import Case, Selection
from scheduler.validation.rows.kinds import MEASURE
from scheduler.validation.rows.statistics import Result


@dataclass(frozen=True, slots=True)
class MeasuredSet:
    """Rows of one file predicted by one KIND; `groups` are the columns its residuals are shown by.

    `measure` names the one of the KIND's measures the set is about, if it has several; `also` are further
    columns to show them by, one table each.
    """

    name: str
    kind: str
    file: str
    groups: tuple[str, ...]
    measure: str = ""
    also: tuple[tuple[str, ...], ...] = ()

    @property
    def selections(self) -> tuple[Selection, ...]:
        """What selects the cases of its measure."""
        return (Selection(MEASURE, (self.measure,)),) if self.measure else ()

    @property
    def picture(self) -> str:
        """File name of its picture."""
        return f"validation-{self.name.replace(', ', '-').replace(' ', '-')}.png"


def _measures(
    kind: str,
    file: str,
    groups: tuple[str, ...],
    measures: tuple[str, ...],
    also: tuple[tuple[str, ...], ...] = (),
) -> Iterator[MeasuredSet]:
    """A set for each measure of a file, named after it; a set of the RTL begins so."""
    name = f"rtl {kind.removesuffix('-rtl')}" if file.startswith("rtl-") else kind
    for measure in measures:
        yield MeasuredSet(f"{name}, {measure}", kind, file, groups, measure, also)


SETS = {
    item.name: item
    for item in (
        MeasuredSet(
            "rtl mm",
            "mm",
            "rtl-mm.csv.gz",
            ("dtype", "cores", "build"),
            also=(("kernel",), ("n", "k", "m")),
        ),
        MeasuredSet(
            "rtl loops", "loop", "rtl-loops.csv.gz", ("kernel", "cores"), also=(("kernel", "parameters"),)
        ),
        MeasuredSet(
            "rtl tiled",
            "tiled",
            "rtl-tiled.csv.gz",
            ("kernel", "buffering", "cores", "build"),
            also=(("n", "k", "m"),),
        ),
        *_measures(
            "overlap", "rtl-overlap.csv.gz", ("cores", "direction"), ("kernel", "transfers"), (("kernel",),)
        ),
        *_measures(
            "steps",
            "rtl-steps.csv.gz",
            ("model", "buffering", "cores"),
            ("later", "first", "counted", "warm"),
        ),
        *_measures("sequence", "rtl-sequence.csv.gz", ("buffering", "kernel_loop_cycles"), ("whole", "warm")),
        MeasuredSet("rtl refill", "refill", "rtl-refill.csv.gz", ("group", "state")),
        MeasuredSet("rtl dma", "dma", "rtl-dma.csv.gz", ("test", "direction")),
        *_measures(
            "dma-contention-rtl",
            "rtl-dma-contention.csv.gz",
            ("traffic", "n_traffic_cores"),
            ("transfer", "core"),
        ),
        *_measures("icache-rtl", "rtl-icache.csv.gz", ("cores",), ("cold", "warm")),
        MeasuredSet("rtl micro", "micro", "rtl-micro.csv.gz", ("group", "cores", "build")),
        MeasuredSet("mm", "mm", "mm.csv.gz", ("codegen", "cores", "fpus", "bank_conflicts")),
        MeasuredSet("loop", "loop", "loops.csv.gz", ("kernel", "cores", "bank_conflicts")),
        MeasuredSet("layer", "layer", "layer.csv.gz", ("primitive", "step", "cores")),
        MeasuredSet("tutorial-anchors", "layer", "tutorial-anchors.csv.gz", ("primitive", "step", "cores")),
        MeasuredSet("tiled", "tiled", "tiled.csv.gz", ("kernel", "buffering", "fpus", "bank_conflicts")),
        MeasuredSet("tiled-layers", "tiled-layers", "tiled-layers.csv.gz", ("workload", "buffering")),
        MeasuredSet("dma", "dma", "dma.csv.gz", ("test", "direction", "bank_conflicts")),
        *_measures("overlap", "overlap.csv.gz", ("cores", "fpus", "bank_conflicts"), ("kernel", "transfers")),
        MeasuredSet(
            "dma-contention", "dma-contention", "dma-contention.csv.gz", ("dir", "traffic", "bank_conflicts")
        ),
        *_measures("icache", "icache.csv.gz", ("cores",), ("cold", "warm")),
        MeasuredSet("micro", "micro", "micro.csv.gz", ("group", "cores")),
    )
}
"""Every set by its name, in the order of the page: first those of the RTL, which the profile rtl models."""


READ_OFF = {
    "rtl mm": "rows of 1 core: code around kernels",
    "rtl loops": "rows of 1 core: code around kernels (choice among equal fits)",
    "rtl dma": "all rows: DMA and L2",
    "rtl dma-contention, transfer": "all rows: order in which a bank serves requests",
    "rtl dma-contention, core": "dense rows: code of one loop iteration",
    "rtl overlap, transfers": "some rows: DMA queue, code of the benchmark",
    "rtl icache, cold": "all rows: cycles of a line refill",
    "rtl icache, warm": "all rows: cycles of a line refill",
    "rtl refill": "groups dma, jump, align: lines of code; two thirds of the rows: code of the benchmark",
    "rtl micro": "some rows: division, L2, event unit",
    "micro": "some rows: pipeline, FPU, event unit",
    "icache, cold": "all rows: cycles of a line refill",
    "dma": "short rows: DMA commands and waits",
    "loop": "2 rows: im2col with padding",
    "layer": "empty forks: fork wrapper; instnorm: its paths",
    "tiled-layers": "column cycles_program: address code around transfers",
}
"""Set -> which of its rows set which parameters (`FITTED` says where they are); the others are tests only."""

_CONTENTION = (
    "*traffic*: `n_traffic_cores` other cores load from L1. In `1of2` every second instruction is a load, in "
    "`dense` every one. The loads are of words in sequence (`seq`), of words 64 B apart (`stride64B`), or of "
    "one word (`same_word`)."
)
_MICRO = (
    "Groups: `cluster_pe0`, one core of the cluster; `multi_max` and `multi_min`, the slowest and the "
    "fastest core of a team; `sync`, fork, barrier and mutex; `offload`, start and end of a task of the "
    "cluster; `fc` and `fc_L2priv`, the fabric controller."
)
_SEQUENCE = "*kernel_loop_cycles* are the cycles of the loop of each kernel."
LEGENDS = {
    "rtl refill": (
        "*state*: the code was in L2 (`cold`), in the shared cache (`shared`) or in the private cache "
        "(`warm`); with `sync` and `skew` in L2, and the cores start together or one after the other. "
        "Groups: code without jumps (`straight`), with a jump per cache line (`jump`), that begins within a "
        "line (`align`); several passes over the code (`walk`, `loop`, `bigloop`); a team (`fork`); code "
        "during transfers (`dma`); core 0 programs transfers (`order`)."
    ),
    "rtl sequence, whole": _SEQUENCE,
    "rtl sequence, warm": _SEQUENCE,
    "rtl dma-contention, transfer": _CONTENTION,
    "rtl dma-contention, core": _CONTENTION,
    "dma-contention": _CONTENTION,
    "rtl micro": _MICRO,
    "micro": _MICRO,
}
"""Set -> what the words in its columns mean."""


@dataclass(frozen=True, slots=True)
class Goal:
    """Rows of a set and how far off they may be, in percent; None where nothing is asked."""

    title: str
    set: str
    holds: Callable[[Case], bool]
    mape_percent: float | None
    p95_percent: float | None = None
    bias_percent: float | None = None
    top1_regret_percent: float | None = None

    @property
    def is_asked(self) -> bool:
        """Whether anything is asked of them; if not, they are there for comparison."""
        asked = (self.mape_percent, self.p95_percent, self.bias_percent, self.top1_regret_percent)
        return any(limit is not None for limit in asked)


def cores_of(case: Case) -> int:
    """Size of the team."""
    return case.number("cores")


def undisturbed(case: Case) -> bool:
    """Private FPUs and no bank conflicts: cores cannot be in each other's way."""
    return case.text("fpus") == "private" and not case.number("bank_conflicts")


def _all(case: Case) -> bool:
    return True


def _one_core(case: Case) -> bool:
    return cores_of(case) == 1


def _disturbed(case: Case) -> bool:
    return cores_of(case) > 1 and not undisturbed(case)


def _computes(case: Case) -> bool:
    return not case.text("buffering").endswith("no_compute")


def _long(case: Case) -> bool:
    """An op of more than 2,000 cycles, measured."""
    return max(case.optional(column) or 0 for column in (steps.FIRST, steps.LATER)) > 2000


def _smallest(case: Case) -> bool:
    """A matmul of 4 x 4 x 4: mostly code that is executed once."""
    return (case.number("n"), case.number("k"), case.number("m")) == (4, 4, 4)


GOALS = (
    Goal(
        "RTL: mm, 1 core, larger than 4x4x4",
        "rtl mm",
        lambda row: _one_core(row) and not _smallest(row),
        0.7,
        2,
        0.3,
    ),
    Goal(
        "RTL: mm, 2 to 8 cores, larger than 4x4x4",
        "rtl mm",
        lambda row: not _one_core(row) and not _smallest(row),
        2.5,
        7,
        1,
    ),
    Goal("RTL: mm 4x4x4, 1 core", "rtl mm", lambda row: _one_core(row) and _smallest(row), 4, 10, 3),
    Goal(
        "RTL: mm 4x4x4, 2 to 8 cores", "rtl mm", lambda row: not _one_core(row) and _smallest(row), 6, 16, 4
    ),
    Goal("RTL: loops", "rtl loops", _all, 4, 10, 2),
    Goal("RTL: tiled, single and double buffered", "rtl tiled", _all, 4, 10, 2),
    Goal("RTL: overlap, the kernel", "rtl overlap, kernel", _all, 4, 10, 2),
    Goal("RTL: overlap, the transfers", "rtl overlap, transfers", _all, 4, 10, 2),
    Goal("RTL: ops of exported programs, longer than 2,000 cycles", "rtl steps, later", _long, 5, 15),
    Goal("RTL: ops of exported programs, first iteration", "rtl steps, first", _long, 5, 15),
    Goal(
        "RTL: ops of exported programs, predicted with the measured instruction counts",
        "rtl steps, counted",
        _long,
        5,
        15,
    ),
    Goal(
        "RTL: ops of exported programs, predicted with all code in the caches", "rtl steps, warm", _long, None
    ),
    Goal("RTL: sequences of ops", "rtl sequence, whole", _all, 2),
    Goal("RTL: sequences of ops, all code in the caches", "rtl sequence, warm", _all, 3),
    Goal("RTL: refills of code", "rtl refill", _all, 3),
    Goal("RTL: dma", "rtl dma", _all, 3, 8, 2),
    Goal("RTL: dma-contention, the transfer", "rtl dma-contention, transfer", _all, 6, 12),
    Goal("RTL: dma-contention, core 1, cycles a load", "rtl dma-contention, core", _all, 6, 12),
    Goal("RTL: icache, first pass", "rtl icache, cold", _all, 3, 8),
    Goal("RTL: icache, fourth pass", "rtl icache, warm", _all, 10, 25),
    Goal("RTL: micro", "rtl micro", _all, 5),
    Goal("mm cycles, 1 core", "mm", _one_core, 1.5, 4),
    Goal(
        "mm cycles, 8 cores, private FPUs, no conflicts",
        "mm",
        lambda row: cores_of(row) == 8 and undisturbed(row),
        2.5,
        6,
    ),
    Goal("mm cycles, 2 to 8 cores, shared FPUs or conflicts", "mm", _disturbed, 5, 14, 2),
    Goal(
        "mm choice of kernel, 1 core, and private FPUs without conflicts",
        "mm",
        lambda row: _one_core(row) or undisturbed(row),
        None,
        top1_regret_percent=0.5,
    ),
    Goal("mm choice of kernel, elsewhere", "mm", _disturbed, None, top1_regret_percent=2),
    Goal("dma", "dma", _all, 3, 8),
    Goal("loops", "loop", _all, 5, 12),
    Goal("layer steps", "layer", _all, 6, 15),
    Goal("tiled, single and double buffered", "tiled", _all, 5, 10),
    Goal("icache, first pass", "icache, cold", _all, 4, 10),
    Goal("icache, fourth pass", "icache, warm", _all, 4, 10),
    Goal("dma-contention", "dma-contention", _all, 4, 10),
    Goal("overlap, the kernel", "overlap, kernel", _all, 4, 10),
    Goal("overlap, the transfers", "overlap, transfers", _all, 4, 10),
    Goal("micro", "micro", _all, 4, 10),
    Goal("tiled-layers", "tiled-layers", _all, 6, 15),
    Goal("tiled-layers, only rows that compute", "tiled-layers", _computes, 6, 15),
    Goal(
        "tutorial-anchors, 1-core layers (fitted, no test)",
        "tutorial-anchors",
        lambda row: _one_core(row) and row.text("primitive") != "tutorial_step",
        8,
    ),
    Goal(
        "tutorial-anchors, 8 cores and whole step",
        "tutorial-anchors",
        lambda row: not _one_core(row) or row.text("primitive") == "tutorial_step",
        8,
    ),
)
"""What is asked of each set."""


@dataclass(frozen=True, slots=True)
class Gap:
    """Something the model leaves out, and the rows in which it shows."""

    title: str
    set: str
    holds: Callable[[Result], bool]
    text: str


GAPS = (
    Gap(
        "Start of the cores",
        "mm",
        lambda row: cores_of(row.case) == 8 and not undisturbed(row.case),
        "With shared FPUs or bank conflicts, the cycles of a kernel depend on the cycle in which each core "
        "starts. The model predicts a mean.",
    ),
    Gap(
        "First fetch of code",
        "mm",
        lambda row: cores_of(row.case) > 1 and row.measured < 1000,
        "The measurements repeat one kernel, so its predictions assume that all code is in the caches. On "
        "the hardware, fork and kernel evict each other's code from the private cache. This matters in "
        "kernels shorter than 1,000 cycles. (`run --icache steady` or `cold` do include code fetches.)",
    ),
    Gap(
        "Code of core 0 between kernels",
        "tiled-layers",
        lambda row: row.case.text("buffering") == "double" and row.case.text("workload") != "matmul",
        "In the model, the code of core 0 around a transfer takes a constant number of cycles. In double "
        "buffered loops it takes more (ReLU: 39 cycles a transfer instead of 20, 17 more for every wait, 25 "
        "more for every fork), probably because kernel and code together are larger than the private "
        "instruction cache. The effect is largest for short elementwise tiles.",
    ),
    Gap(
        "Stacks in L1",
        "dma",
        lambda row: row.case.text("test") == "multi_core_1_each" and bool(row.case.number("bank_conflicts")),
        "If several cores program the DMA at the same time, their stacks cause bank conflicts. In the model, "
        "only operands of kernels do.",
    ),
    Gap(
        "Short 2D transfers",
        "dma",
        lambda row: row.case.text("test") == "2d_stride1024" and row.case.number("bytes") < 1000,
        "The measured code does not compute addresses, so it is shorter than the code that the model "
        "assumes.",
    ),
    Gap(
        "Code around the kernels of a layer",
        "layer",
        lambda row: row.measured < 2000,
        "Of the code around the kernels of a layer step, the model includes only the call of a matmul. This "
        "matters in steps shorter than 2,000 cycles.",
    ),
)
"""What is not modelled, and where its cost can be read."""

FITTED = (
    (
        "Cycles to fetch a cache line of code from L2 and from the shared cache; how long it waits for DMA "
        "reads",
        "rtl-refill.csv: straight, jump, bigloop, dma",
        "configs/soc/pulp-open.yaml, icache and l2.code_*",
        "rtl-sequence.csv, rtl-steps.csv",
    ),
    (
        "Cache lines of the benchmark program of rtl-refill (20); cycles of its fork and of one of its DMA "
        "commands",
        "rtl-refill.csv: two thirds of groups straight, fork and loop; warm rows of group platform",
        "scheduler/validation/rows/refill.py, sequence.py",
        "the other third; rtl-sequence.csv",
    ),
    (
        "Bytes of code per statement of an op, of kernels and of the platform; up to how many bytes a loop "
        "is unrolled",
        "rtl-steps-symbols.csv and the exports compiled: sizes only, no cycle",
        "configs/kernels/code-sizes-0bac56ab.json, scheduler/tiles/code_sizes.py",
        "rtl-steps.csv",
    ),
    (
        "Event unit of the rtl profile",
        "rtl-micro.csv: barriers, mutexes, fork and join (group sync)",
        "configs/soc/pulp-open.yaml, event_unit, each value names its rows",
        "rtl-mm.csv, rtl-loops.csv, rtl-tiled.csv",
    ),
    (
        "Cache lines of code executed between two calls of a kernel (12) and in fork and join (8); fork and "
        "join without the SDK's wrapper (14 cycles less)",
        "rtl-mm.csv: all rows of one core",
        "configs/soc/pulp-open.yaml, icache; scheduler/validation/rows/measured_code.py",
        "rtl-loops.csv, rtl-tiled.csv, rtl-overlap.csv, rtl-mm.csv of 2 to 8 cores",
    ),
    (
        "Code of the bare tile loop and of its waits",
        "no rows: the assembly listing that was measured",
        "configs/listings/tile-loop.S, priced by scheduler/validation/rows/bare_loop.py",
        "rtl-tiled.csv",
    ),
    (
        "Cycles of the code of the benchmark rtl-overlap: before it programs the first transfer (22), "
        "around all transfers (32), for the wait (31)",
        "rtl-overlap.csv: columns cycles_dma_alone, cycles_issue, and cycles_dma_with_compute where the "
        "transfers end before the kernel",
        "scheduler/validation/rows/overlap.py",
        "the kernels, and transfers that last longer than theirs",
    ),
    (
        "Position of the cores in their loops in rtl-dma-contention",
        "no rows: mean over 16 start positions; from dense rows: code of a loop iteration (9 cycles)",
        "scheduler/validation/rows/contention.py",
        "all rows of the transfer",
    ),
    (
        "Pipeline, FPU, cache and event-unit timing of the gvsoc profile",
        "micro.csv (groups cluster_pe0, sync, offload), icache.csv (cold)",
        "configs/soc/pulp-open.yaml, each value names its micro-benchmark; GVSoC's code has most of them",
        "groups multi and fc of micro.csv, all other files",
    ),
    (
        "The second call of each operation of a team was timed",
        "assumed, as in mm.csv; the 1-core rows of multi_max and multi_min in micro.csv agree",
        "scheduler/validation/rows/micro.py",
        "multi_max and multi_min of 2 to 8 cores",
    ),
    (
        "Cycles to program a transfer and to wait for it",
        "dma.csv: 1d, 1d_queued, 1d_misaligned, 2d_stride1024, short rows",
        "configs/soc/pulp-open.yaml, dma",
        "long rows of dma.csv, multi_core_1_each, tiled.csv, tiled-layers.csv, overlap.csv",
    ),
    (
        "Cycles of each further wait in a series (12) and of the polling loop (14 and 6)",
        "dma.csv: 1d_queued, 1d_poll",
        "scheduler/validation/rows/dma.py and measured_code.py; properties of the measured programs",
        "tiled.csv",
    ),
    (
        "Which wait of bidir_simultaneous is timed",
        "dma.csv: bidir_simultaneous (4 rows)",
        "scheduler/validation/rows/dma.py",
        "none",
    ),
    (
        "Cycles of the address code around a transfer (20 in 1D, 87 in 2D)",
        "tiled-layers.csv: column cycles_program, mean of buffered rows",
        "configs/soc/pulp-open.yaml, dma",
        "column cycles of the same file: fetching, computing and their overlap",
    ),
    (
        "Order of transfers and waits in double buffered loops; an in-place SGD waits for its output at once",
        "tiled-layers.csv: double_no_compute; tiled.csv: sgd, double",
        "scheduler/programs/op_loop.py; for SGD scheduler/validation/rows/tiled.py",
        "the other rows of both files",
    ),
    (
        "Cycles to call the fork wrapper (14)",
        "layer.csv: empty fork",
        "scheduler/validation/rows/measured_code.py",
        "loops.csv, the other rows of layer.csv",
    ),
    (
        "Gap between tensors in L1 (16 B); cache lines of the caller (4)",
        "chosen: gaps of 3 to 12 words give the same errors of layer.csv; lines of the caller from "
        "icache.csv",
        "scheduler/validation/rows/measured_code.py, icache.py",
        "",
    ),
    (
        "Which paths of instance norm run; im2col with padding",
        "layer.csv: counters of the 1-core rows of instnorm FW and WG; loops.csv: im2col 8x8x3x1x1x0",
        "configs/kernels/clang-xpulp/instnorm_fw.yaml, instnorm_bw_param.yaml, clang-postinc/im2col.yaml",
        "cycles of the same rows, on all cores; of im2col none",
    ),
    (
        "Instructions of clang-rv32 per loop level",
        "mm.csv: instruction, load, store and branch columns of the 1-core rows of clang-rv32",
        "configs/kernels/clang-rv32, docs/codegen.md",
        "8-core rows of clang-rv32",
    ),
    (
        "pulp-gcc7: instructions of moves, of a row of blocks, of the first call, of ReLU, im2row and 16-bit "
        "outputs",
        "tutorial-anchors.csv: 1-core layers",
        "configs/kernels/pulp-gcc7, each marked fitted; docs/codegen.md",
        "8-core rows and the whole step of tutorial-anchors.csv",
    ),
)
"""(what, read off which rows, where it is, what tests it)."""
