# SPDX-License-Identifier: Apache-2.0
"""Streamed tensors: boxes go L3 -> slot in L2 -> L1 and back, in which order, in how much of L2, how fast."""

from __future__ import annotations

from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arch.blocks.soc import Soc
from arch.spec.program import Compute, DmaStart, DmaWait, Place, Program, Release, UdmaStart, UdmaWait
from arch.spec.soc_config import load_soc
from configs.errors import DoesNotFitError, RaceError
from configs.model_file import load_model
from configs.values import replace
from pulptrain.inputs.settings import Settings, with_options
from pulptrain.running import session
from pulptrain.running.program_text import program_lines
from scheduler.addresses.allocation import Interval, check_no_overlap
from scheduler.addresses.plan_options import PlanOptions
from scheduler.memory.memory_plan import least_l2_bytes, plan_memory
from scheduler.options import ScheduleOptions
from scheduler.planned import Schedule
from scheduler.programs.program import ProgramBuilder
from scheduler.schedule import streamer_of, tiler_of
from scheduler.tiles.l1_layout import lay_out
from scheduler.tiles.l2_slots import OpSlots, OpStream, slot_bytes, slots_of
from scheduler.tiles.tiling import Tiler, Tiling
from scheduler.tiles.tiling_candidates import enumerate_tilings
from scheduler.tiles.transfer_cost import UdmaCost
from scheduler.tiles.transfers import lines_of
from shared.kept_plans import prepare, run_model
from shared.soc_fixture import (
    COMPLETION,
    DMA,
    L3_BURST,
    OFFLOAD,
    SETUP,
    UDMA_PROGRAM,
    UDMA_WAKE,
    FixedCostModel,
    Recorder,
    soc_timing,
)
from shared.tiers import examples, sweep_nine_of_ten
from shared.touched_spans import spans
from traces.events import TRANSFER
from trainlib.ir.graph import Op, Tensor, TrainingGraph
from trainlib.ir.steps import KernelChoice
from trainlib.registry import lowering_of
from trainlib.training.phases import build_training_graph

SIZE = 300
"""Elements of the vectors of `tiny`: one op, x and dx in L3, y in L2."""

TENSORS = {
    "y": Tensor("y", (1, SIZE), "input"),
    "dy": Tensor("dy", (1, SIZE), "input"),
    "dx": Tensor("dx", (1, SIZE), "gradient"),
}
OP = Op("relu.IG", "relu", "relu", "IG", ("y", "dy"), ("dx",), reads=("x", "dy"), writes=("dx",))
STREAM = OpStream(("dy", "dx"), frozenset({"dy", "dx"}), 4 * SIZE)
Y_L2, SLOTS_L2, DY_L3, DX_L3 = 8192, 0, 0, 4096
GRAPH = TrainingGraph("tiny", TENSORS, (OP,), ("y",), ("dy",), ("dx",), ("dx",), (), {})


HOMES = {"y": Interval("y", 4 * SIZE, 0, 0).at("l2", Y_L2)}
"""y lies in L2; of the others only boxes do."""


def tiny(depth: int, tile: int, slots: int) -> tuple[Tiling, Program]:
    """dx = dy where y > 0, `tile` elements at a time, dy and dx through so many slots in L2."""
    tiling = Tiler(OP, TENSORS, lowering_of(OP), KernelChoice("", "clang-xpulp"), depth).build({"d0": tile})
    stream = replace(STREAM, most_slots=slots)
    places: dict[tuple[str, str], tuple[int, ...]] = {}
    address = SLOTS_L2
    for key, (size_bytes, count) in slots_of(tiling, stream).items():
        places[key] = tuple(address + size_bytes * index for index in range(count))
        address += size_bytes * count
    builder = ProgramBuilder(GRAPH, HOMES.__getitem__, cores=8, dma=DMA)
    layout = lay_out(tiling, 0)
    builder.add_op(OP, tiling, layout, slots=OpSlots(places, {"dy": DY_L3, "dx": DX_L3}))
    return tiling, builder.program()


def verb(action: DmaStart | UdmaStart) -> str:
    if isinstance(action, DmaStart):
        return "load" if action.commands[0].to_l1 else "store"
    return "fetch" if action.commands[0].to_l2 else "send"


OVER = {"fetch": "fetched", "load": "loaded", "store": "stored", "send": "sent"}


def words(program: Program) -> list[str]:
    """A program in words: fetch (L3 to L2), load (L2 to L1), store (L1 to L2), send (L2 to L3), and waits."""
    found = []
    for action in program.actions:
        label = f"{action.work.what}{action.work.tile}"
        assert all(dep < action.id for dep in action.deps)
        if isinstance(action, Compute):
            found.append(f"compute {action.work.tile}")
        elif isinstance(action, DmaStart | UdmaStart):
            found.append(f"{verb(action)} {label}")
        elif isinstance(action, DmaWait | UdmaWait):
            start = program.actions[action.transfer]
            assert isinstance(start, DmaStart | UdmaStart)
            found.append(f"{OVER[verb(start)]} {label}")
    return found


def test_two_slots_fetch_a_box_while_the_one_before_is_loaded() -> None:
    _, program = tiny(depth=2, tile=100, slots=2)
    assert words(program) == [
        *("fetch dy0", "fetch dy1"),
        *("load y0", "fetched dy0", "load dy0"),
        # Tile 0 is in L1: its slot takes the box of tile 2. Its kernel does not wait for the box of tile 1.
        *("loaded y0", "loaded dy0", "fetch dy2", "load y1", "compute 0", "store dx0"),
        *("fetched dy1", "load dy1", "loaded y1", "loaded dy1"),
        # From now on the next box comes from L2 beside the kernel, and the one after it from L3.
        *("load y2", "fetched dy2", "load dy2", "compute 1"),
        *("store dx1", "stored dx0", "send dx0"),
        *("loaded y2", "loaded dy2", "compute 2"),
        # The slot of dx0 is free when that is in L3.
        *("sent dx0", "store dx2", "stored dx1", "send dx1"),
        *("stored dx2", "send dx2", "sent dx1", "sent dx2"),
    ]


def test_with_one_slot_l3_still_overlaps_with_the_kernel() -> None:
    """L1 has two buffers, but only one box at a time is in L2: fetched beside the kernel, loaded after it."""
    _, program = tiny(depth=2, tile=100, slots=1)
    assert words(program) == [
        "fetch dy0",
        *("load y0", "fetched dy0", "load dy0", "loaded y0", "loaded dy0", "fetch dy1", "load y1"),
        *("compute 0", "store dx0", "stored dx0", "send dx0"),
        *("fetched dy1", "load dy1", "loaded y1", "loaded dy1", "fetch dy2", "load y2"),
        *("compute 1", "sent dx0", "store dx1", "stored dx1", "send dx1"),
        *("fetched dy2", "load dy2", "loaded y2", "loaded dy2"),
        *("compute 2", "sent dx1", "store dx2", "stored dx2", "send dx2", "sent dx2"),
    ]


def bus(size_bytes: int) -> int:
    """Cycles of the fixture's bus: a set-up per burst, a byte per cycle."""
    return -(-size_bytes // L3_BURST) * SETUP + size_bytes


def simulated(program: Program, tiling: Tiling, kernel_cycles: int) -> tuple[int, Recorder, Soc]:
    """(cycles, trace, SoC with dx in L3) of a tiny program, on y and dy of `values`."""
    kernel = tiling.tiles[0].calls[0].kernel
    tracer = Recorder()
    soc = Soc(soc_timing(), FixedCostModel({kernel: kernel_cycles}), tracer)
    y, dy = values()
    soc.load(Place("l2", Y_L2, y.shape), y)
    soc.load(Place("l3", DY_L3, dy.shape), dy)
    return soc.run(program).cycles, tracer, soc


def values() -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(0)
    y, dy = (generator.standard_normal((1, SIZE)).astype(np.float32) for _ in range(2))
    return y, dy


def test_the_events_of_a_streamed_loop() -> None:
    """Three boxes of 400 B: fetched one behind the other, sent while later tiles are computed."""
    tiling, program = tiny(depth=2, tile=100, slots=2)
    cycles, tracer, _ = simulated(program, tiling, kernel_cycles=4000)
    first = OFFLOAD + UDMA_PROGRAM
    kernels = [(item.start_cycles, item.end_cycles) for item in tracer.compute("soc.cluster.core0")]
    transfers = [
        (item.work.what, item.work.tile, item.start_cycles, item.end_cycles)
        for item in tracer.slices
        if item.track == "soc.udma"
    ]
    box = bus(400)
    assert transfers[:3] == [("dy", n, first + n * box, first + (n + 1) * box) for n in range(3)]
    assert [(what, tile) for what, tile, _, _ in transfers[3:]] == [("dx", 0), ("dx", 1), ("dx", 2)]
    # The fetches of dy1 and dy2 and the send of dx0 are hidden behind kernels.
    assert kernels[0][0] < transfers[1][3] < transfers[2][3] < kernels[0][1]
    assert kernels[1][1] < transfers[3][2] < transfers[3][3] < kernels[2][1]
    # The last two boxes leave one behind the other when all is computed.
    assert kernels[2][1] < transfers[4][2]
    assert transfers[4][3] == transfers[5][2]
    assert cycles == transfers[5][3] + UDMA_WAKE + COMPLETION


@examples(120)
@given(st.integers(1, 4), st.integers(20, SIZE), st.integers(1, 4), st.integers(1, 3000))
def test_any_depth_tile_and_number_of_slots_gives_the_same_numbers(
    depth: int, tile: int, slots: int, kernel_cycles: int
) -> None:
    tiling, program = tiny(depth, tile, slots)
    _, tracer, soc = simulated(program, tiling, kernel_cycles)
    y, dy = values()
    assert np.array_equal(soc.fetch(Place("l3", DX_L3, (1, SIZE))), np.where(y > 0, dy, 0))
    moved = [item for item in tracer.slices if item.track == "soc.udma" and item.kind == TRANSFER]
    for name in ("dy", "dx"):  # each byte crosses the bus once
        assert sum(item.bytes for item in moved if item.work.what == name) == 4 * SIZE


@examples(120)
@given(st.integers(20, SIZE // 5), st.integers(1, 3000))
def test_a_second_slot_is_not_slower(tile: int, kernel_cycles: int) -> None:
    """At equal tiles, from five on. Of fewer the last result leaves later: it waits for the one before."""
    one, two = (tiny(2, tile, slots) for slots in (1, 2))
    assert simulated(two[1], two[0], kernel_cycles)[0] <= simulated(one[1], one[0], kernel_cycles)[0]


@pytest.mark.parametrize("transfer", ["fetch dy1", "send dx0"])
def test_a_missing_wait_is_a_race(transfer: str) -> None:
    """Without the wait a box is loaded while it is fetched, or stored over while it is sent."""
    tiling, program = tiny(depth=1, tile=100, slots=1)
    start = words(program).index(transfer)
    actions = [
        Release(action.id, (), action.work)
        if isinstance(action, UdmaWait) and action.transfer == start
        else action
        for action in program.actions
    ]
    kept = [replace(a, deps=tuple(d for d in a.deps if not isinstance(actions[d], Release))) for a in actions]
    with pytest.raises(RaceError, match="uDMA"):
        simulated(Program("without", tuple(kept)), tiling, kernel_cycles=1)


@pytest.mark.parametrize(
    "case",
    sweep_nine_of_ten(
        list(product(["20KiB", "8KiB", "2KiB"], ["single", "double", "3", "best"])),
        lambda case: case[0],
        lambda case: case[1],
    ),
)
def test_numbers_agree_with_pytorch(case: tuple[str, str]) -> None:
    l2, buffering = case
    summary = run_model("digits-cnn", Settings(l2=l2, icache="warm", buffering=buffering)).summary
    assert summary["functional"]["passed"]
    assert summary["peak_bytes"]["l2"] <= summary["capacity_bytes"]["l2"]
    assert any(op["streamed"] for op in summary["ops"])


def test_sixteen_bits_and_tensors_in_l1_beside_streams() -> None:
    assert run_model("digits-cnn", Settings(l2="6KiB", icache="warm", dtype="bf16")).summary["functional"][
        "passed"
    ]
    resident = "conv2.weight,fc.weight@fc.FW..fc.IG"
    summary = run_model("digits-cnn", Settings(l2="20KiB", icache="warm", resident=resident)).summary
    assert summary["functional"]["passed"]
    assert any("fc.weight does not stay in L1: fc.FW streams it from L3" in note for note in summary["notes"])
    assert summary["resident"] == ["conv2.weight"]


@pytest.mark.slow
@pytest.mark.parametrize("model", ["deep-autoencoder", "resnet8"])
def test_models_far_larger_than_l2(model: str) -> None:
    summary = run_model(model, Settings(l2="64KiB", icache="warm", l3="8MiB")).summary
    assert summary["functional"]["passed"]
    largest = max(tensor.size_bytes for tensor in build_training_graph(load_model(model)).tensors.values())
    assert largest > 65536 >= summary["peak_bytes"]["l2"]


def test_a_program_of_its_own_for_the_update_streams_too() -> None:
    settings = Settings(l2="12KiB", icache="warm", accumulate=2, separate_update=True)
    summary = run_model("digits-cnn", settings, iterations=2).summary
    assert summary["functional"]["passed"]
    ample = run_model("digits-cnn", replace(settings, l2=None), iterations=2).summary
    assert summary["training"]["last_loss"] == pytest.approx(ample["training"]["last_loss"], rel=1e-5)


def moved_bytes(schedule: Schedule) -> dict[str, int]:
    """Bytes of all transfers of the uDMA in a program."""
    found = {"in": 0, "out": 0}
    for action in schedule.program.actions:
        for command in action.commands if isinstance(action, UdmaStart) else ():
            found["in" if command.to_l2 else "out"] += command.size_bytes
    return found


def test_the_plan_has_every_slot_with_level_address_size_and_life() -> None:
    prepared = prepare("digits-cnn", Settings(l2="20KiB", icache="warm"))
    schedule, plan = prepared.schedule, prepared.schedule.plan
    check_no_overlap(plan.allocations)
    number = next(n for n, item in enumerate(schedule.ops) if item.op.name == "fc.UPD")
    slots = [item for item in plan.allocations if item.name.startswith("fc.UPD:") and item.level == "l2"]
    tiling = schedule.ops[number].tiling
    (w,) = [buffer for buffer in tiling.buffers if (buffer.role, buffer.name) == ("in", "w")]
    lives = {
        (item.first_op, item.last_op, item.size_bytes, item.staged) for item in slots if ":w." in item.name
    }
    assert lives == {(number, number, w.slot_bytes, True)}
    assert {item.tensor for item in slots} == {"fc.weight", "fc.weight.grad", "fc.weight_updated"}
    assert {item.kind for item in slots} == {"weight", "gradient"}
    assert sum(item.size_bytes for item in slots) <= plan.streams[number].window_bytes
    # What the uDMA moves is what the plan says, and every touched byte of L2 is below its peak.
    assert moved_bytes(schedule) == plan.staged_bytes
    highest = max(span.end for _, span in spans(schedule) if span.level == "l2")  # type: ignore[attr-defined]
    assert highest <= plan.peak_bytes["l2"] <= 20 * 1024


def test_the_same_question_has_the_same_answer() -> None:
    first, second = (
        session.prepare("digits-cnn", Settings(l2="8KiB", icache="warm")).schedule for _ in range(2)
    )
    assert program_lines(first.program) == program_lines(second.program)
    assert first.plan.streams == second.plan.streams


def exact_cycles(tiler: Tiler, tiling: Tiling, streamed: set[str], udma: UdmaCost) -> int:
    """The uDMA for streamed tensors, counted box by box and line by line."""
    total, last = 0, {}
    for task in tiling.tiles:
        fresh = [item for item in task.inputs if last.get(item.name) != item]
        last |= {item.name: item for item in task.inputs}
        for item in (*fresh, *task.outputs):
            if item.tensor in streamed:
                sizes = [size for _, size in lines_of(tiler.tensors[item.tensor].shape, 4, item.region)]
                total += sum(udma.bus_cycles(size) + udma.timing.l3.program_cycles for size in sizes)
                total += udma.timing.l3.wake_cycles
    return total


def test_what_is_streamed_keeps_the_udma_busy_for_the_shortest_time() -> None:
    """All sets of operands and all tilings of one op, counted by brute force for every size of L2."""
    graph, timing = build_training_graph(load_model("digits-cnn")), load_soc()
    number = next(n for n, op in enumerate(graph.ops) if op.name == "relu1.IG")
    op = graph.ops[number]
    tiler = tiler_of(op, graph, timing, ScheduleOptions())
    streamer, udma = streamer_of(graph, timing, ScheduleOptions()), UdmaCost(timing)
    owners = {name: graph.storage_of(name) for name in graph.tensors}
    sizes = {name: graph.tensors[name].size_bytes for name in (*op.inputs, *op.outputs)}
    found = enumerate_tilings(tiler, timing.l1_usable_bytes)
    tilings = [found.tiling(index) for index in range(len(found))]
    whole = {name: udma.lines_cycles([size]) for name, size in sizes.items()}
    sets = [set(some) for count in (1, 2, 3) for some in combinations(sizes, count)]
    table = []
    for streamed in sets:
        rest = [name for name in sizes if name not in streamed]
        for tiling in tilings:
            slots = slot_bytes(tiling, OpStream((), frozenset(streamed), 0))
            cycles = exact_cycles(tiler, tiling, streamed, udma) + sum(whole[name] for name in rest)
            table.append((streamed, slots, cycles, sum(sizes[name] for name in rest)))
    for room_bytes in (200, 1000, 2048, 3000, 4096, 5000):
        stream = streamer.choose(number, owners, sizes, room_bytes)
        fitting = [cycles for _, slots, cycles, kept in table if slots + kept <= room_bytes]
        assert stream is not None
        chosen = [
            cycles
            for streamed, slots, cycles, kept in table
            if streamed == set(stream.storages) and slots <= stream.window_bytes
        ]
        assert min(chosen) == min(fitting)
    least = streamer.least(number, owners, sizes)
    singles = [
        sum(size for size, _ in slots_of(tiling, OpStream((), frozenset(streamed), 0)).values()) + kept
        for (streamed, _, _, kept), tiling in zip(table, [*tilings] * len(sets), strict=True)
    ]
    assert least is not None
    assert least.size_bytes == min(singles)


def test_not_even_the_slots_fit() -> None:
    """The loss cannot be cut: 10 results, labels and gradients, and the loss itself."""
    graph = build_training_graph(load_model("digits-cnn"))
    timing = with_options(load_soc(), l2="120 B")
    streamer = streamer_of(graph, timing, ScheduleOptions())
    with pytest.raises(DoesNotFitError, match=r"for op loss\.LOSS") as raised:
        plan_memory(graph, timing, PlanOptions(), streamer)
    assert raised.value.required_bytes == 4 * 31 == least_l2_bytes(graph, timing, PlanOptions(), streamer)
    assert sum(item.size_bytes for item in raised.value.contributors) == 4 * 31
    plan_memory(graph, with_options(timing, l2="124 B"), PlanOptions(), streamer)


def test_a_tensor_is_streamed_because_the_user_says_so() -> None:
    """L2 is ample: only what is asked for is streamed, and by every op that uses it."""
    summary = run_model("digits-cnn", Settings(homes=("fc.weight=streamed",))).summary
    assert summary["functional"]["passed"]
    streaming = {op["name"]: op["streamed"] for op in summary["ops"] if op["streamed"]}
    assert streaming == {name: ["fc.weight"] for name in ("fc.FW", "fc.IG", "fc.UPD")}
    assert summary["staged_bytes"] == {"in": 3 * 23040, "out": 23040}
    assert any("fc.FW (fc.weight)" in note for note in summary["notes"])


def test_a_larger_l2_is_not_slower_for_the_same_tiles_and_streams() -> None:
    """What else the ops use stays in L2 longer; the streamed boxes move as before."""
    homes = ("fc.weight=streamed", "fc.weight.grad=streamed")
    small = prepare("digits-cnn", Settings(l2="8KiB", icache="warm", homes=homes)).schedule
    cut = [item for item in small.ops if item.tiling.sizes]
    tiles = tuple(f"{item.op.name}=" + ",".join(f"{d}:{n}" for d, n in item.tiling.sizes) for item in cut)
    orders = tuple(f"{item.op.name}=" + ",".join(item.tiling.order) for item in cut)
    same = Settings(icache="warm", homes=homes, tiles=tiles, loop_orders=orders)
    cycles = [
        run_model("digits-cnn", replace(same, l2=l2), functional=False).summary["cycles"]
        for l2 in ("8KiB", "16KiB", "24KiB", "64KiB")
    ]
    assert cycles == sorted(cycles, reverse=True)
    assert cycles[0] > cycles[-1]
