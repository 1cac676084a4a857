# SPDX-License-Identifier: Apache-2.0
"""Transfer IDs, depths of single operands, whole ops in L1, loads for the next op, and broken programs."""

from __future__ import annotations

import json

import pytest

from arch.blocks.soc import Soc
from arch.pricing.team_cost_model import TeamCostModel
from arch.spec.program import Compute, DmaStart, DmaWait
from arch.spec.soc_config import READABLE, load_soc, with_values
from configs.errors import DoesNotFitError, InputError, RaceError
from configs.model_file import load_model
from configs.values import replace
from pulptrain.__main__ import run
from pulptrain.inputs.settings import Settings
from pulptrain.running.primitive_run import run_primitive
from scheduler.addresses.allocation import Interval
from scheduler.options import ScheduleOptions, parse_buffers
from scheduler.schedule import build_schedule
from scheduler.tiles.l1_layout import lay_out, lay_out_ops
from scheduler.tiles.tiling import Buffer, Tiling
from shared.kept_plans import run_model
from shared.printed import refused
from trainlib.ir.steps import Operand, TileTask
from trainlib.primitives.definition import DrawnInput
from trainlib.training.phases import build_training_graph

TIMING = with_values(load_soc("pulp-open", "rtl"), {"form": READABLE})


def schedule_of(options, model="digits-cnn", timing=TIMING):
    return build_schedule(build_training_graph(load_model(model)), timing, TeamCostModel(timing), options)


def most_ids_taken(actions) -> int:
    """IDs are taken by a push and given back by its wait."""
    taken = most = 0
    for action in actions:
        taken += isinstance(action, DmaStart)
        taken -= isinstance(action, DmaWait)
        most = max(most, taken)
    assert taken == 0
    return most


@pytest.mark.parametrize("step", ["fw", "ig"])
@pytest.mark.parametrize("buffering", ["single", "double", "12"])
def test_more_boxes_than_transfer_ids(step: str, buffering: str) -> None:
    """A tile of this concat moves 20 boxes, while there are 16 IDs."""
    settings = Settings(buffering=buffering, tiles=("concat.FW=d1:3",) if step == "fw" else ())
    outcome = run_primitive("concat", step, [DrawnInput((2, 8))] * 20, {"axis": 0}, settings=settings)
    assert outcome.summary["functional"]["passed"]
    program = outcome.schedule.program
    assert most_ids_taken(program.actions) <= TIMING.dma.transfer_ids
    starts = [action for action in program.actions if isinstance(action, DmaStart)]
    assert max(len(start.commands) for start in starts) > 1


def test_few_ids_are_enough_for_any_depth() -> None:
    ids = {}
    many = 1 << 30
    for count in (1, 2, 16, many):
        timing = replace(TIMING, dma=replace(TIMING.dma, transfer_ids=count))
        schedule = schedule_of(ScheduleOptions(buffer_depth=12), timing=timing)
        ids[count] = most_ids_taken(schedule.program.actions)
        Soc(timing, TeamCostModel(timing)).run(schedule.program, effects=False)
    assert ids[1] == 1
    assert ids[2] == 2
    assert ids[16] <= 16 < ids[many]


def test_a_single_buffered_operand_is_loaded_just_before_its_tile() -> None:
    sizes = {"fc.FW": {"co": 2}}
    words = {}
    for depth in (1, 2):
        options = ScheduleOptions(2, tile_sizes=sizes, buffers={"fc.FW": {"w": depth}}, prefetch=False)
        schedule = schedule_of(options)
        op = next(item for item in schedule.ops if item.op.name == "fc.FW")
        slots = {buffer.name: buffer.slots for buffer in op.tiling.buffers}
        assert slots["w"] == depth
        own = [a for a in schedule.program.actions if a.work.op == "fc" and a.work.step == "FW"]
        words[depth] = [
            f"{type(action).__name__}{action.work.tile}"
            for action in own
            if action.work.what == "fc.weight" or isinstance(action, Compute)
        ][:6]
    assert words[1] == ["DmaStart0", "DmaWait0", "Compute0", "DmaStart1", "DmaWait1", "Compute1"]
    assert words[2] == ["DmaStart0", "DmaWait0", "DmaStart1", "Compute0", "DmaWait1", "DmaStart2"]


def test_depths_of_operands_are_read_from_text() -> None:
    assert parse_buffers("double") == (2, {})
    assert parse_buffers("none") == (0, {})
    assert parse_buffers("3, conv2.FW.w=1,conv2.FW.x=double") == (3, {"conv2.FW": {"w": 1, "x": 2}})
    assert parse_buffers("conv2.FW.w=1") == (2, {"conv2.FW": {"w": 1}})
    for text in ("triple", "0", "double,w=1", "double,conv2.FW.w=none", "double,conv2.FW.w"):
        with pytest.raises(InputError):
            parse_buffers(text)
    with pytest.raises(InputError, match="no operand 'q'"):
        schedule_of(ScheduleOptions(buffers={"fc.FW": {"q": 1}}))
    with pytest.raises(InputError, match=r"--buffering: model \S+ has no op 'fc9\.FW'"):
        schedule_of(ScheduleOptions(buffers={"fc9.FW": {"w": 1}}))


def test_without_tiles_every_op_is_one_tile_or_does_not_fit() -> None:
    roomy = replace(TIMING, l1=replace(TIMING.l1, size_bytes=512 * 1024))
    schedule = schedule_of(ScheduleOptions(buffer_depth=0), timing=roomy)
    assert {len(item.tiling.tiles) for item in schedule.ops} == {1}
    with pytest.raises(DoesNotFitError, match="69120 B required") as raised:
        schedule_of(ScheduleOptions(buffer_depth=0))
    assert raised.value.where is not None
    assert raised.value.where.startswith("fc.UPD")


def test_first_loads_of_an_op_are_pushed_before_the_last_kernel_of_the_op_before() -> None:
    """The weights of fc do not depend on relu2; what relu2 writes is loaded after it has been stored."""
    actions = schedule_of(ScheduleOptions()).program.actions
    last_relu = max(
        a.id for a in actions if isinstance(a, Compute) and a.work.op == "relu2" and a.work.step == "FW"
    )
    fc = [a for a in actions if a.work.op == "fc" and a.work.step == "FW" and isinstance(a, DmaStart)]
    first = {name: min(a.id for a in fc if a.work.what == name) for name in {a.work.what for a in fc}}
    assert first["fc.weight"] < last_relu
    assert all(number > last_relu for name, number in first.items() if name != "fc.weight")
    without = schedule_of(ScheduleOptions(prefetch=False)).program.actions
    assert min(a.id for a in without if a.work.op == "fc") > max(
        a.id for a in without if a.work.op == "relu2" and a.work.step == "FW"
    )


@pytest.mark.parametrize("l1", ["64KiB", "32KiB"])
def test_prefetch_across_ops_saves_cycles_and_changes_no_number(l1: str) -> None:
    """At equal tiles: those chosen may differ, because they are chosen for what will be there early."""
    on = run_model("digits-cnn", Settings(l1=l1, form="readable")).summary  # tables differ in bytes
    cut = [op for op in on["ops"] if op["tile"]]
    tiles = [f"{op['name']}=" + ",".join(f"{d}:{size}" for d, size in op["tile"].items()) for op in cut]
    orders = [f"{op['name']}=" + ",".join(op["loop_order"]) for op in cut]
    same = Settings(l1=l1, form="readable", prefetch="off", tiles=tuple(tiles), loop_orders=tuple(orders))
    off = run_model("digits-cnn", same).summary
    assert on["cycles"] < off["cycles"]
    assert on["loss"] == off["loss"]
    assert on["bytes_in"] == off["bytes_in"]


def two_tilings(first_bytes: int, second_bytes: int) -> list[Tiling]:
    """Two ops of one tile with one input each."""
    tilings = []
    for name, size_bytes in (("a", first_bytes), ("b", second_bytes)):
        task = TileTask((Operand(name, ((0, size_bytes // 4),)),), (), (), ())
        tilings.append(Tiling(name, (), (task,), (Buffer(name, "in", size_bytes, 1),)))
    return tilings


def test_buffers_of_the_next_op_lie_beside_those_of_this_one_where_there_is_room() -> None:
    first, second = lay_out_ops(two_tilings(400, 576), [set(), {"b"}], 1024, 64)
    assert first.allocations == (Interval("a:a.in", 400, 0, 0).at("l1", 0),)
    # At the remainder modulo the turn of the banks that it would have anyway; live from op 0 on.
    assert second.allocations == (Interval("b:b.in", 576, 0, 1).at("l1", 448),)
    assert second.early == {"b"}
    too_large = two_tilings(400, 580)
    assert lay_out_ops(too_large, [set(), {"b"}], 1024, 64)[1] == lay_out(too_large[1], 1)
    assert lay_out_ops(two_tilings(400, 576), [set(), set()], 1024, 64)[1].early == frozenset()


def test_a_kernel_that_reads_what_the_dma_still_writes_is_a_race() -> None:
    """Without the wait for its input the kernel meets the transfer: who, where and when are named."""
    schedule = schedule_of(ScheduleOptions(buffer_depth=1, prefetch=False))
    actions = list(schedule.program.actions)
    kernel = next(a for a in actions if isinstance(a, Compute) and a.work.op == "fc" and a.work.step == "FW")
    wait = next(a for a in actions if isinstance(a, DmaWait) and a.work.what == "fc.weight")
    assert wait.id < kernel.id
    # The wait is put behind the kernel; numbers and dependencies follow.
    order = [a.id for a in actions if a.id != wait.id]
    order.insert(order.index(kernel.id) + 1, wait.id)
    number = {old: new for new, old in enumerate(order)}
    broken = []
    for old in order:
        action = actions[old]
        deps = tuple(sorted(number[dep] for dep in action.deps if not (old == kernel.id and dep == wait.id)))
        action = replace(action, id=number[old], deps=deps)
        if isinstance(action, DmaWait):
            action = replace(action, transfer=number[action.transfer])
        broken.append(action)
    program = replace(schedule.program, actions=tuple(broken))
    with pytest.raises(RaceError) as raised:
        Soc(TIMING, TeamCostModel(TIMING)).run(program, effects=False)
    assert raised.value.exit_code == 4
    message = str(raised.value)
    assert "race at cycle" in message
    assert "kernel mm (op fc FW tile 0" in message
    assert "DMA in (op fc FW tile 0, fc.weight)" in message
    assert "has used since cycle" in message


def test_tiles_over_sums_and_loop_orders_from_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    line = ["primitive", "linear", "--shape", "40", "--option", "out_features=12", "--json"]
    assert run([*line, "--tile", "co:6,ci:10", "--loop-order", "ci,co"]) == 0
    op = json.loads(capsys.readouterr().out)["ops"][0]
    assert (op["tile"], op["loop_order"], op["tiles"]) == ({"co": 6, "ci": 10}, ["ci", "co"], 8)
    # x once per part of the sum, W once, and y three times back; out: y four times.
    assert op["bytes_in"] == 4 * (40 + 12 * 40 + 3 * 12)
    assert op["bytes_out"] == 4 * 4 * 12
    assert run([*line, "--tile", "co:6,ci:10", "--loop-order", "co,ci"]) == 0
    op = json.loads(capsys.readouterr().out)["ops"][0]
    # W once, x for both halves of y, y out once.
    assert op["bytes_in"] == 4 * (2 * 40 + 12 * 40)
    assert op["bytes_out"] == 4 * 12
    for wrong, cure in (("k", "one of co, ci"), ("co,co", "twice"), ("co,", "no tile dimension ''")):
        assert cure in refused(capsys, *line, "--loop-order", wrong)
