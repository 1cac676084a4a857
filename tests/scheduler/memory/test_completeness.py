# SPDX-License-Identifier: Apache-2.0
"""A program is counted against its graph: what it leaves out, does twice or elsewhere is refused."""

from __future__ import annotations

import random
from functools import cache

import pytest

from arch.spec.program import Action, Compute, DmaStart, Program, Release, UdmaStart
from configs.model_file import LayerSpec, LossSpec, ModelSpec, OptimizerSpec
from configs.values import replace
from pulptrain.inputs.settings import Settings
from pulptrain.running.machine import Prepared
from scheduler.executor import Executor
from scheduler.memory.completeness import IncompleteError, check_complete
from scheduler.planned import Schedule
from shared.kept_plans import prepare

NET = ModelSpec(
    name="net",
    description="a convolution and a linear layer, larger than the smallest memories",
    source="test",
    input_shape=(2, 8, 8),
    dataset="random",
    loss=LossSpec("mse"),
    optimizer=OptimizerSpec("sgd_momentum", {"learning_rate": 0.1}, "here"),
    batch=2,
    layers=(
        LayerSpec("conv", "conv2d", {"out_channels": 4, "kernel": 3}, "here"),
        LayerSpec("relu", "relu", {}, "here"),
        LayerSpec("flat", "flatten", {}, "here"),
        LayerSpec("fc", "linear", {"out_features": 8, "bias": True}, "here"),
    ),
    where="here",
)

CASES = {
    "double": Settings(l1="12KiB"),
    "single": Settings(l1="13KiB", buffering="single", dtype="bf16"),
    "resident": Settings(l1="24KiB", resident="conv.out,fc.weight"),
    "streamed": Settings(l2="3KiB", icache="warm"),
    "two programs": Settings(accumulate=2, l1="12KiB"),
}


@cache
def planned(case: str) -> Prepared:
    return prepare(NET, CASES[case])


def schedules(case: str) -> list[Schedule]:
    prepared = planned(case)
    return [item for item in (prepared.schedule, prepared.update) if item is not None]


def refuses(schedule: Schedule, change: dict[int, Action]) -> bool:
    """Whether the program with some actions changed is refused."""
    actions = tuple(change.get(action.id, action) for action in schedule.program.actions)
    program = Program(schedule.program.name, actions)
    try:
        check_complete(program, schedule.graph, schedule.plan)
    except IncompleteError:
        return True
    return False


def is_store(action: Action) -> bool:
    """Whether it moves results out of L1 or L2."""
    if isinstance(action, UdmaStart):
        return not action.commands[0].to_l2
    return isinstance(action, DmaStart) and not action.commands[0].to_l1


@pytest.mark.parametrize("case", CASES)
def test_a_program_as_it_is_is_complete(case: str) -> None:
    for schedule in schedules(case):
        check_complete(schedule.program, schedule.graph, schedule.plan)
        assert any(map(is_store, schedule.program.actions))


@pytest.mark.parametrize("case", CASES)
def test_a_store_left_out_done_twice_or_moved_is_refused(case: str) -> None:
    for schedule in schedules(case):
        stores = [action for action in schedule.program.actions if is_store(action)]
        for action in random.Random(case).sample(stores, min(12, len(stores))):
            command = action.commands[0]
            address = "l3_address" if isinstance(action, UdmaStart) else "external_address"
            moved = replace(command, **{address: getattr(command, address) + 4})
            for commands in ((), action.commands * 2, (moved, *action.commands[1:])):
                assert refuses(schedule, {action.id: replace(action, commands=commands)}), action


@pytest.mark.parametrize("case", CASES)
def test_a_kernel_left_out_of_an_update_is_refused_and_so_is_an_op_without_an_end(case: str) -> None:
    for schedule in schedules(case):
        updates = [action for action in schedule.program.actions if action.work.step == "UPD"]
        for action in updates:
            if isinstance(action, Compute):
                assert refuses(schedule, {action.id: replace(action, effect=None)}), action
        ends = [action for action in schedule.program.actions if isinstance(action, Release)]
        for action in ends:
            assert refuses(schedule, {action.id: replace(action, results=())})
            elsewhere = tuple(replace(place, address=place.address + 4) for place in action.results)
            assert refuses(schedule, {action.id: replace(action, results=elsewhere)})
        fewer = replace(schedule.program, actions=schedule.program.actions[: ends[-1].id])
        with pytest.raises(IncompleteError, match="the program has no end of"):
            check_complete(fewer, schedule.graph, schedule.plan)


def test_it_is_refused_before_time_starts_with_op_tensor_and_count() -> None:
    prepared = planned("double")
    schedule = prepared.schedule
    stores = [action for action in schedule.program.actions if is_store(action) and action.work.op == "fc"]
    last = stores[-1]
    elements = sum(command.size_bytes for command in last.commands) // 4
    actions = list(schedule.program.actions)
    actions[last.id] = replace(last, commands=())
    broken = replace(schedule, program=replace(schedule.program, actions=tuple(actions)))
    expected = rf"fc\.UPD: of the .* 'fc\.weight.*, {elements:,} were never stored in L2, and 0"
    with pytest.raises(IncompleteError, match=expected) as caught:
        Executor(broken, prepared.timing, prepared.cost_model)
    assert caught.value.exit_code == 1
