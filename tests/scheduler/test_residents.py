# SPDX-License-Identifier: Apache-2.0
"""Tensors that stay in L1 between ops: what still moves, where they lie, what the search of them takes."""

from __future__ import annotations

from math import prod
from pathlib import Path

import numpy as np
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from arch.pricing.team_cost_model import TeamCostModel
from arch.spec.program import Compute, DmaStart, UdmaStart
from configs.errors import DoesNotFitError, InputError
from configs.model_file import load_model
from configs.values import replace
from pulptrain.inputs.settings import Settings, with_options
from scheduler.addresses.allocation import PlanError
from scheduler.executor import Executor
from scheduler.memory.plan_check import check_program
from scheduler.options import ScheduleOptions, parse_resident
from scheduler.resident_search import choose_resident
from scheduler.schedule import build_schedule, tiler_of
from scheduler.tiles.resident_tensors import box_bytes, missing, names_known, residents_of, tensor_and_ops
from shared.kept_plans import run_model
from shared.printed import printed, refused
from shared.random_schedules import (
    STACK_BYTES,
    TIMING,
    Fixed,
    check_numbers,
    check_report,
    planned,
    schedules,
)
from shared.tiers import examples
from trainlib.ir.graph import Tensor
from trainlib.training.phases import build_training_graph

DIGITS = load_model("digits-cnn")
ROOMY = with_options(TIMING, l1="1MiB")


def schedule_of(model, resident, timing=TIMING, **options):
    graph = build_training_graph(load_model(model))
    return build_schedule(graph, timing, Fixed(40), ScheduleOptions(resident=tuple(resident), **options))


def used_tensors(graph) -> list[str]:
    return [name for name in graph.tensors if any(name in (*op.inputs, *op.outputs) for op in graph.ops)]


def moved_bytes(schedule, to_l1: bool, op: str | None = None) -> int:
    starts = [action for action in schedule.program.actions if isinstance(action, DmaStart)]
    return sum(
        command.size_bytes
        for action in starts
        for command in action.commands
        if command.to_l1 == to_l1 and op in (None, f"{action.work.op}.{action.work.step}")
    )


@pytest.mark.parametrize("model", ["tutorial-cnn", "digits-cnn"])
def test_with_everything_in_l1_only_first_loads_and_last_stores_remain(model: str) -> None:
    """In: what the iteration is given, each byte once. Out: loss, output, gradients and new weights, once."""
    spec = load_model(model)
    graph = build_training_graph(spec)
    schedule = schedule_of(model, used_tensors(graph), ROOMY)
    assert schedule.notes == ()
    sizes = {name: tensor.size_bytes for name, tensor in graph.tensors.items()}
    assert moved_bytes(schedule, to_l1=True) == sum(sizes[name] for name in graph.needed_values)
    left = {*graph.results, *graph.updates.values()}
    assert moved_bytes(schedule, to_l1=False) == sum(sizes[name] for name in left)
    usual = schedule_of(model, (), ROOMY)
    cost_model = Fixed(40)
    assert check_numbers(schedule, spec, ROOMY, cost_model, 3) < check_numbers(
        usual, spec, ROOMY, cost_model, 3
    )


def test_an_op_whose_tensors_are_all_resident_moves_nothing() -> None:
    """conv1.out lies in L1, relu1.out in its bytes: relu1 is a fork alone, conv2 loads its weights."""
    schedule = schedule_of("digits-cnn", ["conv1.out@conv1.FW..conv2.FW"])
    relu = [a for a in schedule.program.actions if (a.work.op, a.work.step) == ("relu1", "FW")]
    own = [a for a in relu if a.work.what not in ("conv2.weight", "conv1.out", "relu1.out")]
    assert {type(action).__name__ for action in own} == {"Compute", "Release"}
    assert moved_bytes(schedule, to_l1=True, op="relu1.FW") == 0
    # The backward pass needs the output of relu1 alone, and the span ends before it: it goes to L2 once.
    assert moved_bytes(schedule, to_l1=False, op="conv1.FW") == 0
    relu_bytes = schedule.graph.tensors["relu1.out"].size_bytes
    assert moved_bytes(schedule, to_l1=False, op="relu1.FW") == relu_bytes
    weight_bytes = schedule.graph.tensors["conv2.weight"].size_bytes
    assert moved_bytes(schedule, to_l1=True, op="conv2.FW") == weight_bytes


def test_kernels_read_and_write_the_tensor_where_it_lies() -> None:
    schedule = schedule_of("digits-cnn", ["conv2.out"])
    item = next(item for item in schedule.plan.allocations if item.name == "resident:conv2.out")
    assert (item.level, item.tensor, item.size_bytes) == ("l1", "conv2.out", 16 * 6 * 6 * 4)
    assert schedule.plan.ops[item.first_op] == "conv2.FW"
    used = [
        place
        for action in schedule.program.actions
        if isinstance(action, Compute) and action.effect is not None
        for place in (*action.effect.reads, *action.effect.writes)
        if place.name.partition("[")[0] == "conv2.out"
    ]
    assert used
    assert all(item.address <= place.address < item.end_address for place in used)
    assert all(place.address + place.size_bytes <= item.end_address for place in used)


def test_a_byte_that_two_tiles_ask_for_is_loaded_once() -> None:
    """Rows of conv2's input overlap by the height of the kernel less one; the slices load what is new."""
    tiles = {"conv2.FW": {"ho": 1}, "relu1.FW": {}}
    alone = schedule_of("digits-cnn", (), tile_sizes=tiles, prefetch=False)
    kept = schedule_of(
        "digits-cnn", ["relu1.out@conv2.FW"], tile_sizes={"conv2.FW": {"co": 4}}, prefetch=False
    )
    graph = kept.graph
    both = graph.tensors["relu1.out"].size_bytes + graph.tensors["conv2.weight"].size_bytes
    assert moved_bytes(kept, to_l1=True, op="conv2.FW") == both
    assert moved_bytes(alone, to_l1=True, op="conv2.FW") > both


def test_a_batch_is_loaded_slice_by_slice() -> None:
    """Samples are slices of the leading dimension: the second is loaded while the first is computed."""
    spec = replace(DIGITS, batch=3)
    graph = build_training_graph(spec)
    options = ScheduleOptions(tile_sizes={"conv1.FW": {"n": 1}}, resident=("input",))
    schedule = build_schedule(graph, TIMING, Fixed(40), options)
    loads = [
        sum(command.size_bytes for command in action.commands)
        for action in schedule.program.actions
        if isinstance(action, DmaStart) and action.work.what == "input"
    ]
    assert loads == [graph.tensors["input"].size_bytes // 3] * 3
    check_numbers(schedule, spec, TIMING, Fixed(40), 1)


def test_what_is_not_one_run_of_bytes_is_moved_and_a_note_says_why() -> None:
    """Tiles over the rows of the output take some rows of every channel of the input."""
    tiles = {"conv2.FW": {"ho": 2}}
    kept = schedule_of("digits-cnn", ["relu1.out"], tile_sizes=tiles)
    alone = schedule_of("digits-cnn", (), tile_sizes=tiles)
    assert kept.resident == ()
    assert kept.notes[0] == (
        "conv1.out does not stay in L1: tiles of conv2.FW use parts of it that are not contiguous words"
    )
    assert len(kept.program.actions) == len(alone.program.actions)
    assert moved_bytes(kept, to_l1=True) == moved_bytes(alone, to_l1=True)


def test_the_plan_checker_knows_the_resident_place() -> None:
    schedule = schedule_of("digits-cnn", ["conv2.out"])
    check_program(schedule.program, schedule.plan)
    others = tuple(item for item in schedule.plan.allocations if not item.name.startswith("resident:"))
    with pytest.raises(PlanError, match=r"where the memory plan has no buffer during conv2\.FW"):
        check_program(schedule.program, replace(schedule.plan, allocations=others))
    short = tuple(
        replace(item, last_op=item.first_op) if item.name.startswith("resident:") else item
        for item in schedule.plan.allocations
    )
    with pytest.raises(PlanError, match=r"has no buffer during relu2\.FW"):
        check_program(schedule.program, replace(schedule.plan, allocations=short))


def test_what_does_not_fit_is_reported_with_the_tensors_in_the_way(capsys) -> None:
    graph = build_training_graph(DIGITS)
    with pytest.raises(DoesNotFitError) as raised:
        schedule_of("digits-cnn", used_tensors(graph), with_options(TIMING, l1="32KiB"))
    check_report(raised.value, with_options(TIMING, l1="32KiB"))
    # These fit by themselves, but leave too little for the buffers of an op.
    timing = replace(TIMING, l1=replace(TIMING.l1, size_bytes=STACK_BYTES + 23040 + 64))
    with pytest.raises(DoesNotFitError, match="next to the resident tensors") as raised:
        schedule_of("digits-cnn", ["fc.weight@fc.FW..fc.IG"], timing)
    check_report(raised.value, timing)
    assert any(item.name == "fc.weight@fc.FW..fc.IG (resident)" for item in raised.value.contributors)
    assert "L1 is too small" in refused(
        capsys, "run", "digits-cnn", "--l1", "32KiB", "--resident", "fc.weight,fc.weight.grad", code=3
    )


@pytest.mark.parametrize(
    ("resident", "message"),
    [
        (["nothing"], "no tensor 'nothing'"),
        (["fc.weight@fc.GI"], "no op 'fc.GI'"),
        (["fc.weight@conv1.FW"], "tensor fc.weight is not used in conv1.FW"),
        (["fc.weight@fc.FW..fc.IG", "fc.weight@fc.IG..fc.UPD"], "the same bytes of L1 at the same time"),
    ],
)
def test_what_cannot_be_resident(resident, message: str) -> None:
    with pytest.raises(InputError, match=message):
        schedule_of("digits-cnn", resident)


def test_residents_are_read_from_text() -> None:
    assert parse_resident("off") == ()
    assert parse_resident("auto") == ("auto",)
    assert parse_resident(" fc.weight, conv1.out@conv1.FW..relu1.FW") == (
        "fc.weight",
        "conv1.out@conv1.FW..relu1.FW",
    )
    for text in ("", "auto,fc.weight", "fc.weight,"):
        with pytest.raises(InputError):
            parse_resident(text)


def test_spans_name_the_ops_that_use_the_storage() -> None:
    """The new weight takes the place of the old one: either name means the same bytes."""
    graph = build_training_graph(DIGITS)
    plan = build_schedule(graph, TIMING, Fixed(1), ScheduleOptions()).plan
    found = residents_of(graph, plan.owners, ["fc.weight", "fc.weight_updated"], 1 << 20)
    assert found.texts == ("fc.weight",)
    number = plan.ops.index("fc.UPD")
    assert found.of_op(number)["fc.weight_updated"].stores
    assert not found.of_op(number)["fc.weight"].loads
    spans = residents_of(graph, plan.owners, ["fc.weight@fc.FW..relu2.IG"], 1 << 20)
    assert spans.texts == ("fc.weight@fc.FW..fc.IG",)
    assert not any(use.stores for number in range(len(graph.ops)) for use in spans.of_op(number).values())


def test_a_tensor_may_have_the_sign_of_a_span_in_its_name() -> None:
    """Gradients of a tensor that two layers use have one; a schedule file that names them must be read."""
    graph = build_training_graph(load_model("resnet8"))
    partial = [name for name in graph.tensors if "@" in name]
    assert partial
    op = graph.ops[3].name
    for name in partial:
        assert tensor_and_ops(graph, name) == (name, [])
        assert tensor_and_ops(graph, f"{name}@{op}") == (name, [op])
        assert names_known(graph, f"{name}@{op}..{op}")


@given(
    wanted=st.tuples(st.integers(0, 60), st.integers(0, 60)).map(sorted).map(tuple),
    there=st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)).map(sorted).map(tuple), max_size=5),
)
@settings(derandomize=True, deadline=None)
def test_missing_parts_are_exactly_the_bytes_that_are_not_there(wanted, there) -> None:
    found = [byte for first, last in missing(wanted, there) for byte in range(first, last)]
    held = {byte for first, last in there for byte in range(first, last)}
    assert found == [byte for byte in range(*wanted) if byte not in held]


@given(data=st.data(), shape=st.lists(st.integers(1, 4), max_size=4).map(tuple))
@settings(derandomize=True, deadline=None)
def test_a_box_is_one_run_if_its_elements_follow_each_other(data, shape) -> None:
    region = tuple(
        tuple(sorted(data.draw(st.lists(st.integers(0, size), min_size=2, max_size=2, unique=True))))
        for size in shape
    )
    numbers = np.arange(int(np.prod(shape, dtype=int))).reshape(shape)
    box = numbers[tuple(slice(*extent) for extent in region)].reshape(-1)
    found = box_bytes(Tensor("t", shape, "activation"), region)
    if np.all(np.diff(box) == 1):
        assert found == (4 * box[0], 4 * box[-1] + 4)
    else:
        assert found is None


@st.composite
def resident_sets(draw):
    """A case of the property test of schedules, with a forced set of residents, some for a few ops only."""
    spec, timing, options = draw(schedules())
    graph = build_training_graph(spec)
    timing = replace(
        timing,
        l1=replace(timing.l1, size_bytes=timing.l1.size_bytes + draw(st.sampled_from([0, 2000, 20000]))),
    )
    texts = []
    for name in draw(st.lists(st.sampled_from(used_tensors(graph)), min_size=1, max_size=6, unique=True)):
        ops = [op.name for op in graph.ops if name in (*op.inputs, *op.outputs)]
        if draw(st.booleans()):
            first = draw(st.integers(0, len(ops) - 1))
            last = draw(st.integers(first, len(ops) - 1))
            texts.append(f"{name}@{ops[first]}..{ops[last]}")
        else:
            texts.append(name)
    return spec, timing, replace(options, resident=tuple(texts))


@examples(240)
@given(case=resident_sets(), kernel_cycles=st.integers(1, 400), seed=st.integers(0, 1000))
def test_numbers_are_right_with_any_residents_or_the_set_is_refused(case, kernel_cycles, seed) -> None:
    """The run itself refuses races, reads of poison, and transfers that leave the plan."""
    spec, timing, _ = case
    cost_model = Fixed(kernel_cycles)
    try:
        schedule = planned(case, cost_model)
    except InputError as error:
        event("refused")
        if "the same bytes of L1 at the same time" not in error.message:
            raise
        return
    if schedule is None:
        return
    event(f"runs with {len(schedule.resident)} resident, {len(schedule.notes)} notes")
    check_numbers(schedule, spec, timing, cost_model, seed)


@pytest.mark.parametrize("l1", ["64KiB", pytest.param("128KiB", marks=pytest.mark.slow)])
def test_the_network_pass_makes_the_iteration_faster_and_says_by_how_much(l1: str) -> None:
    start = Settings(l1=l1, icache="warm")
    outcomes = {word: run_model("digits-cnn", replace(start, resident=word)) for word in ("off", "auto")}
    off, auto = (outcome.summary for outcome in outcomes.values())
    assert auto["functional"]["passed"]
    assert auto["cycles"] < off["cycles"]
    assert auto["bytes_in"] < off["bytes_in"]
    assert auto["resident"]
    timing = with_options(TIMING, l1=l1)
    graph = build_training_graph(DIGITS)
    found = choose_resident(graph, timing, TeamCostModel(timing), ScheduleOptions())
    assert list(found.resident) == auto["resident"]
    assert (found.before_cycles, found.after_cycles) == (off["cycles"], auto["cycles"])
    # The set, given as texts, is the same schedule.
    again = run_model("digits-cnn", replace(start, resident=",".join(found.resident)), functional=False)
    assert again.summary["cycles"] == auto["cycles"]


@pytest.mark.parametrize(("tiles", "depth"), [({}, 1), ({"fc.WG": {"co": 5}, "conv2.FW": {"ho": 2}}, 2)])
def test_the_network_pass_is_never_slower(tiles, depth: int) -> None:
    """Also where tiles are fixed, which some tensors then cannot be used in place by."""
    graph = build_training_graph(load_model("tutorial-cnn" if not tiles else "digits-cnn"))
    options = ScheduleOptions(depth, tile_sizes=tiles)
    found = choose_resident(graph, TIMING, TeamCostModel(TIMING), options, simulations=12)
    assert found.after_cycles <= found.before_cycles
    assert found.simulations <= 12
    with_set = replace(options, resident=found.resident)
    schedule = build_schedule(graph, TIMING, TeamCostModel(TIMING), with_set)
    cycles = Executor(schedule, TIMING, TeamCostModel(TIMING), functional=False).simulate().cycles
    assert cycles == found.after_cycles


def test_residents_come_from_the_copy_in_l2_of_a_tensor_that_lives_in_l3() -> None:
    """The weights of fc live in L3: the resident place is filled from their copy and stored back to it."""
    settings = {"l3": "8MiB", "homes": ("fc.weight=l3", "conv2.weight=l3", "relu1.out=l3")}
    resident = "fc.weight,conv2.weight@conv2.FW..conv2.IG,relu1.out@relu1.FW..conv2.FW"
    outcome = run_model("digits-cnn", Settings(**settings, resident=resident))
    assert outcome.summary["functional"]["passed"]
    assert outcome.summary["resident"] == resident.split(",")
    assert outcome.summary["staged_bytes"]["out"] > 0


def test_what_is_in_l1_all_the_time_is_not_copied_between_l2_and_l3() -> None:
    """Its copy in L2 is never stored to, so a copy back would send what is no result."""
    outcome = run_model("digits-cnn", Settings(l2="20KiB", icache="warm", resident="auto"))
    assert outcome.summary["functional"]["passed"]
    resident = set(outcome.summary["resident"])
    assert "conv1.out@conv1.FW..conv2.WG" in resident
    moved = {action.work.what for action in outcome.schedule.program.actions if isinstance(action, UdmaStart)}
    assert "relu1.out" not in moved
    assert "conv2.weight" in moved & resident


CHAIN = """
name: chain
input: {shape: [64]}
batch: 2
loss: mse
optimizer: {name: sgd, learning_rate: 0.01}
layers:
  - {name: fc, type: linear, out_features: 8}
  - {name: r, type: relu}
  - {name: fc2, type: linear, out_features: 8}
  - {name: r2, type: relu}
  - {name: fc3, type: linear, out_features: 8}
"""


def test_what_is_written_in_place_in_l1_alone_is_not_sent_to_l3_from_the_copy_before(tmp_path: Path) -> None:
    """relu overwrites what fc has left: in L1, so the copy in L2 is that of fc."""
    file = tmp_path / "chain.yaml"
    file.write_text(CHAIN)
    homes = ("fc.out=l3", "r.out=l3")
    outcome = run_model(str(file), Settings(l3="1MiB", homes=homes, resident="r.out@r.FW..r.IG"))
    assert outcome.summary["functional"]["passed"]


@pytest.mark.parametrize("l1", ["16KiB", "64KiB"])
def test_the_best_depth_is_chosen_per_op(l1: str) -> None:
    """Double buffers cost room: with little of it some ops do better with large tiles, one at a time."""
    cycles = {
        word: run_model("tutorial-cnn", Settings(l1=l1, buffering=word), functional=False).summary["cycles"]
        for word in ("single", "double", "best")
    }
    assert cycles["best"] <= min(cycles["single"], cycles["double"])
    if l1 == "16KiB":
        timing = with_options(TIMING, l1=l1)
        graph = build_training_graph(load_model("tutorial-cnn"))
        schedule = build_schedule(graph, timing, TeamCostModel(timing), ScheduleOptions(-1))
        depths = {
            max(buffer.depth for buffer in item.tiling.buffers if buffer.role != "scratch")
            for item in schedule.ops
        }
        assert depths == {1, 2}


@pytest.mark.parametrize("channels", [(0, 8), (4, 12)])
def test_a_weight_of_which_only_some_channels_are_trained_is_whole_in_l1(channels) -> None:
    """The update touches a window of it: the rest must have been loaded, and only the window goes back."""
    layers = tuple(
        replace(layer, update_channels=channels) if layer.name == "conv2" else layer
        for layer in DIGITS.layers
    )
    spec = replace(DIGITS, layers=layers)
    graph = build_training_graph(spec)
    for resident in ("conv2.weight", "conv2.weight@conv2.UPD", "conv2.weight@conv2.IG..conv2.UPD"):
        schedule = build_schedule(graph, TIMING, Fixed(40), ScheduleOptions(resident=(resident,)))
        assert schedule.resident == (resident,)
        check_numbers(schedule, spec, TIMING, Fixed(40), 5)
        window_bytes = graph.tensors["conv2.weight"].size_bytes // 2
        assert moved_bytes(schedule, to_l1=False, op="conv2.UPD") == window_bytes


@pytest.mark.parametrize("model", ["digits-cnn", "tiny-transformer", "gru-keywords"])
def test_ops_without_windows_write_all_of_their_results(model: str) -> None:
    """The last op that writes a resident tensor stores what it writes, and that must be all of it."""
    graph = build_training_graph(load_model(model))
    for op in graph.ops:
        tiles = tiler_of(op, graph, TIMING, ScheduleOptions()).build({}).tiles
        boxes = {(item.tensor, item.region) for task in tiles for item in task.written}
        for name in op.outputs:
            elements = sum(prod(stop - start for start, stop in box) for of, box in boxes if of == name)
            assert elements == prod(graph.tensors[name].shape), (op.name, name)


@pytest.mark.parametrize("l2_bytes", [8800, 9000])
def test_residents_are_found_where_tensors_leave_l2_for_tables(
    l2_bytes: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """The L2 of the search ends where the tables begin: they lie behind it and are fetched all the same."""
    options = ("--l2", f"{l2_bytes}B", "--l3", "1MiB", "--no-cache")
    off, auto = (
        printed(capsys, "run", "simple-mlp", *options, "--resident", resident) for resident in ("off", "auto")
    )
    assert off["peak_bytes"]["l3"] > 0
    assert auto["cycles"] < off["cycles"]
