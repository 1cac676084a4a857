# SPDX-License-Identifier: Apache-2.0
"""docs/how-time-is-modelled.md: cycles added up by hand, what cores and DMA cost each other, a timeline."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from arch.pricing.cost_model import TeamCost, Traffic
from arch.pricing.team_cost_model import TeamCostModel
from arch.pricing.window_plan import START_OFFSETS_CYCLES, PricingWindow
from arch.spec.isa import TeamWork
from arch.spec.program import Compute
from arch.spec.timing import IcacheTiming, SocTiming
from pulptrain.inputs.settings import Settings
from pulptrain.running.primitive_run import run_primitive
from pulptrain.running.session import RunOutcome
from tools.pages.page import ROOT, Page, table
from traces.events import COMPUTE, TRANSFER, Slice
from traces.pictures.drawing import RC, empty_figure, save_figure
from traces.pictures.palette import BUSY_STYLE, MOVING_STYLE, STALL_STYLES, Style, ink_on
from trainlib.kernels.catalogue import matmul_work
from trainlib.primitives.definition import DrawnInput

ELEMENTS = 64
"""Of the ReLU that is added up by hand."""
FP32_BYTES = 4
RELU_LINES = 7
"""Lines of its code: 112 B (`relu_fw.yaml`) in lines of 16 B."""
TWO_TILES = Settings(cores=2, tiles=("relu.FW=d0:256",))
PICTURE = "time-two-tiles.png"
CORE_0 = "soc.cluster.core0"
MATMUL = ("mm_unroll_2x4", 32, 32, 32)
"""Kernel, N, K and M that are priced under every class of DMA traffic."""


@cache
def relu(cores: int) -> RunOutcome:
    """`pulptrain primitive relu --shape 64 --cores CORES`."""
    return run_primitive("relu", "fw", [DrawnInput((ELEMENTS,))], settings=Settings(cores=cores))


@cache
def two_tiles() -> RunOutcome:
    """`pulptrain primitive relu --shape 512 --cores 2 --tile d0:256`."""
    return run_primitive("relu", "fw", [DrawnInput((512,))], settings=TWO_TILES)


@dataclass(frozen=True, slots=True)
class Term:
    """One addend: what it is (a parameter of the SoC file, or a count), and its cycles."""

    what: str
    cycles: int


@dataclass(frozen=True, slots=True)
class Stretch:
    """One stretch of core 0: what happens, the kind of its slice, and the addends of its cycles."""

    what: str
    kind: str
    terms: tuple[Term, ...]

    @property
    def cycles(self) -> int:
        """Their sum."""
        return sum(term.cycles for term in self.terms)


def relu_refills(icache: IcacheTiming) -> float:
    """Lines that a call of the ReLU waits for, fork and join included; no two of its own share a set."""
    sets = icache.private_bytes // (icache.line_bytes * icache.private_ways)
    others = icache.between_calls_lines + icache.call_lines
    refills = 0.0
    for own in range(sets):
        counted = [line >= icache.between_calls_lines for line in range(own, others, sets)]
        counted += [True] * (own < RELU_LINES)
        there = [0.0] * len(counted)
        for call in (1, 2):
            for line, counts in enumerate(counted):
                missing = 1 - there[line]
                refills += missing * (counts and call == 2)
                there = [share * (1 - missing / icache.private_ways) for share in there]
                there[line] = 1.0
    return refills


def by_hand(timing: SocTiming) -> tuple[Stretch, ...]:
    """All cycles of the ReLU on one core, from the parameters of the SoC and the text of `relu_fw.yaml`."""
    core, dma, unit, l2 = timing.core, timing.dma, timing.event_unit, timing.l2
    beats = ELEMENTS * FP32_BYTES // min(dma.l1_bytes_per_cycle, l2.link_bytes_per_cycle)
    latency = Term("`dma.command_latency_cycles`", dma.command_latency_cycles)
    first = Term("`dma.first_beat_cycles`", dma.first_beat_cycles)
    moved = Term(f"{beats} beats, the first of them counted already", beats - 1)
    gap = Term("`dma.read_burst_gap_cycles`", dma.read_burst_gap_cycles)
    wake = Term("`dma.wait_wake_cycles`", dma.wait_wake_cycles)
    program = (
        Term("`dma.transfer_code_1d_cycles`", dma.transfer_code_1d_cycles),
        Term("`dma.program_1d_cycles`", dma.program_1d_cycles),
    )
    read = Term("`l2.dma_read_latency_cycles`", l2.dma_read_latency_cycles)
    write = Term("`l2.dma_write_latency_cycles`", l2.dma_write_latency_cycles)
    load_use = core.load_use_stall_cycles
    refills = round(relu_refills(timing.icache) * timing.icache.private_refill_stall_cycles)
    kernel = (
        Term("instructions before the loop", 14 + 9),
        Term(f"{ELEMENTS} turns of 3 instructions", ELEMENTS * 3),
        Term("instructions after it", 2),
        Term(f"1 + {ELEMENTS} times `core.load_use_stall_cycles`", (1 + ELEMENTS) * load_use),
        Term("`core.jump_stall_cycles`", core.jump_stall_cycles),
        Term("refills of code, see below", refills),
    )
    offload = Term("`fc.offload_cycles`", timing.fc.offload_cycles)
    fork = Term("`event_unit.fork_master_cycles`", unit.fork_master_cycles)
    barrier = Term("`event_unit.barrier_wake_cycles`", unit.barrier_wake_cycles)
    join = Term("`event_unit.join_cycles`", unit.join_cycles)
    completion = Term("`fc.completion_cycles`", timing.fc.completion_cycles)
    return (
        Stretch("task from the fabric controller", "offload", (offload,)),
        Stretch("program the load of `x`", "dma_program", program),
        Stretch("wait for it", "dma_wait", (latency, read, first, moved, gap, wake)),
        Stretch("fork", "fork", (fork,)),
        Stretch("kernel `relu_fw`", COMPUTE, kernel),
        Stretch("join barrier", "barrier", (barrier,)),
        Stretch("back to the caller", "fork", (join,)),
        Stretch("program the store of `y`", "dma_program", program),
        Stretch("wait for it", "dma_wait", (latency, first, moved, write, wake)),
        Stretch("the end is reported", "offload", (completion,)),
    )


def one_core() -> str:
    """The sum by hand."""
    rows, until = [], 0
    for stretch in by_hand(relu(1).timing):
        until += stretch.cycles
        terms = " + ".join(f"{term.cycles} ({term.what})" for term in stretch.terms)
        rows.append((stretch.what, f"`{stretch.kind}`", terms, stretch.cycles, until))
    return table(("core 0", "slice", "addends", "cycles", "until"), rows)


def team_of(outcome: RunOutcome) -> TeamWork:
    """The work of the only kernel of a run."""
    (compute,) = [action for action in outcome.schedule.program.actions if isinstance(action, Compute)]
    return compute.team


def priced_from(outcome: RunOutcome, offsets: tuple[int, ...]) -> TeamCost:
    """Price of its kernel from one start alone."""
    return TeamCostModel(outcome.timing, PricingWindow(starts=(offsets,))).price(team_of(outcome))


def eight_cores() -> str:
    """What the cores of the team wait for one another, from either start and on the mean."""
    outcome = relu(8)
    starts = [priced_from(outcome, offsets) for offsets in START_OFFSETS_CYCLES]
    rows = []
    for number, event in enumerate(kernel_slices(outcome)):
        stalls = dict(event.stalls)
        conflicts = [dict(cost.cores[number].stalls).get("bank_conflict", 0) for cost in starts]
        rows.append(
            (
                f"core {number}",
                event.start_cycles,
                event.instructions,
                stalls.get("load_use", 0),
                stalls.get("branch", 0),
                *conflicts,
                stalls.get("bank_conflict", 0),
                event.end_cycles,
            )
        )
    conflicts_of = ("conflicts, start 1", "start 2", "mean")
    titles = ("", "begins", "instructions", "load_use", "branch", *conflicts_of, "ends")
    return table(titles, rows, numbers=True)


def kernel_slices(outcome: RunOutcome) -> list[Slice]:
    """The compute slices of a run, by core."""
    return [event for event in outcome.slices if event.kind == COMPUTE]


def traffic() -> str:
    """One kernel under the four classes of DMA traffic, and what it leaves to the DMA."""
    timing = relu(8).timing
    kernel, n, k, m = MATMUL
    a_bytes, b_bytes = FP32_BYTES * n * k, FP32_BYTES * k * m
    work = matmul_work(kernel, "clang-xpulp", n, k, m, False, timing.cores, 0, a_bytes, a_bytes + b_bytes)
    model = TeamCostModel(timing)
    rows = []
    for traffic_class in (Traffic.NONE, Traffic.IN, Traffic.OUT, Traffic.BOTH):
        cost = model.price(work, traffic_class)
        conflicts = sum(dict(core.stalls).get("bank_conflict", 0) for core in cost.cores)
        paces = (cost.dma.inward, cost.dma.outward) if cost.dma is not None else (None, None)
        shown = [f"{FP32_BYTES * pace[0] / pace[1]:.2f}" if pace else "-" for pace in paces]
        rows.append((str(traffic_class.name).lower(), f"{cost.cycles:,}", f"{conflicts:,}", *shown))
    titles = ("DMA traffic", "cycles", "bank_conflict, all cores", "B/cycle in", "B/cycle out")
    return table(titles, rows, numbers=True)


@dataclass(frozen=True, slots=True)
class Mark:
    """A letter of the picture: the slices it stands for, their look, and the text below."""

    letter: str
    look: Style
    text: str


_MARKS = {
    "offload": Mark("A", STALL_STYLES["offload"], "offload, completion (arch.blocks.fabric_controller)"),
    "dma_program": Mark(
        "B", STALL_STYLES["dma_program"], "core 0 programs a transfer (arch.blocks.dma_driver)"
    ),
    "dma_wait": Mark("C", STALL_STYLES["dma_wait"], "core 0 waits for a transfer (arch.blocks.dma_driver)"),
    "fork": Mark("D", STALL_STYLES["fork"], "fork, and return from the join (arch.blocks.master)"),
    COMPUTE: Mark("E", BUSY_STYLE, "kernel, priced by arch.pricing.team_cost_model"),
    "barrier": Mark("F", STALL_STYLES["barrier"], "join barrier (arch.blocks.event_unit)"),
    "idle": Mark("G", STALL_STYLES["idle"], "no work (accounted at the join, arch.blocks.core)"),
    TRANSFER: Mark("H", MOVING_STYLE, "one DMA command (arch.blocks.dma, arch.blocks.bursts)"),
}
_ROWS = {
    "soc.fc": "FC",
    "soc.cluster.core0": "core 0",
    "soc.cluster.core1": "core 1",
    "soc.cluster.dma.in": "DMA in",
    "soc.cluster.dma.out": "DMA out",
}
WIDTH_INCHES, HEIGHT_INCHES = 11.0, 4.3
BAR = 0.44
LETTER_POINTS = 7.0
PAPER = {"facecolor": "white", "edgecolor": "none", "pad": 0.8}
"""Behind a letter on hatching."""


def draw(outcome: RunOutcome) -> Any:
    """The timeline of a run, every slice with the letter of its mechanism."""
    import matplotlib as mpl  # slow to import

    end = max(event.end_cycles for event in outcome.slices)
    with mpl.rc_context(RC):
        figure = empty_figure(WIDTH_INCHES, HEIGHT_INCHES)
        chart = figure.add_axes((0.06, 0.27, 0.925, 0.71))
        for row, track in enumerate(_ROWS):
            events = [event for event in outcome.slices if event.track == track]
            for event in events:
                look = _MARKS[event.kind].look
                width = event.duration_cycles
                edge = "#8A8A8A" if look.hatch else "white"
                chart.barh(row, width, BAR, event.start_cycles, align="center", color=look.colour,
                           hatch=look.hatch or None, edgecolor=edge, linewidth=0.4)  # fmt: skip
            _letter(chart, row, events, end)
        chart.set_ylim(len(_ROWS) - 0.5, -0.75)
        chart.set_xlim(0, end)
        chart.set_yticks(range(len(_ROWS)), list(_ROWS.values()))
        chart.tick_params(axis="y", length=0)
        chart.set_xlabel("cycles of the cluster clock")
        for number, mark in enumerate(_MARKS.values()):
            column, line = divmod(number, 4)
            figure.text(0.06 + 0.5 * column, 0.13 - 0.037 * line, f"{mark.letter}  {mark.text}", fontsize=8)
    return figure


def _letter(chart: Any, row: int, events: Sequence[Slice], end: int) -> None:
    """Letters in wide bars; those of narrow ones above, as far apart as they need, with a line to the bar."""
    cycles_per_point = end / (WIDTH_INCHES * 0.925 * 72)
    room = 1.1 * LETTER_POINTS * cycles_per_point
    narrow = [event for event in events if event.duration_cycles < 2 * room]
    for event in events:
        if event not in narrow:
            mark, tile = _MARKS[event.kind], event.work.tile
            text = mark.letter + (f"  tile {tile}" if tile >= 0 and event.duration_cycles > 7 * room else "")
            dark = event.kind in (COMPUTE, TRANSFER)
            how: dict[str, Any] = {"color": ink_on("FW")} if dark else {"bbox": PAPER}
            chart.text(_middle(event), row, text, ha="center", va="center", fontsize=LETTER_POINTS, **how)
    for event, place in zip(narrow, _apart([_middle(event) for event in narrow], room), strict=True):
        mark = _MARKS[event.kind]
        top = row - BAR / 2
        chart.plot((_middle(event), place), (top, top - 0.13), color="#555555", linewidth=0.5)
        chart.text(place, top - 0.15, mark.letter, ha="center", va="bottom", fontsize=LETTER_POINTS)


def _middle(event: Slice) -> float:
    return (event.start_cycles + event.end_cycles) / 2


def _apart(places: Iterable[float], room: float) -> list[float]:
    """Places at least `room` apart: those that are too close are spread about their common middle."""
    groups: list[list[float]] = []
    for place in places:
        groups.append([place])
        while len(groups) > 1 and _spread(groups[-1], room)[0] - _spread(groups[-2], room)[-1] < room:
            last = groups.pop()
            groups[-1] += last
    return [place for group in groups for place in _spread(group, room)]


def _spread(group: Sequence[float], room: float) -> list[float]:
    middle, half = sum(group) / len(group), (len(group) - 1) / 2
    return [middle + (number - half) * room for number in range(len(group))]


class TimePage(Page):
    """The page with its picture."""

    def write(self, names: Iterable[str]) -> None:
        """Write the blocks, and the picture."""
        super().write(names)
        save_figure(draw(two_tiles()), ROOT / "docs" / PICTURE, None)


PAGE = TimePage(
    "docs/how-time-is-modelled.md", {"one_core": one_core, "eight_cores": eight_cores, "traffic": traffic}
)
