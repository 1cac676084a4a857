# SPDX-License-Identifier: Apache-2.0
"""Defects put into the program of a schedule: the exported project, carried out on this computer, is wrong.

The DMA of the host copies at a random moment between a command and its wait, over poison, so what a wait is
for shows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from arch.spec.program import Action, Command, Compute, DmaStart, DmaWait, Program
from shared.exported import Exported, checked, exported

MODEL = """
name: defects
description: two layers that are cut into tiles
source: ours
input: {shape: [48]}
dataset: random
loss: mse
optimizer: {name: sgd, learning_rate: 0.05, momentum: 0.9}
batch: 2
layers:
  - {name: fc1, type: linear, out_features: 120, bias: false}
  - {name: act, type: relu}
  - {name: fc2, type: linear, out_features: 12, bias: false}
"""

SEEDS = (0, 1, 2)
"""Moments of the DMA that are tried: one in which the defect shows is enough."""

Defect = Callable[[Sequence[Action]], list[Action]]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Exported, Path]:
    """The run, and the folder in which its kernels are compiled."""
    folder = tmp_path_factory.mktemp("defects")
    model = folder / "model.yaml"
    model.write_text(MODEL)
    run = exported(str(model), l1=16 << 10, buffering="double")
    assert checked(run.project(), folder).returncode == 0
    return run, folder


def without(actions: Sequence[Action], wanted: Callable[[Action], bool], number: int = 0) -> list[Action]:
    """All but the `number`-th action of a kind."""
    places = [place for place, action in enumerate(actions) if wanted(action)]
    return [action for place, action in enumerate(actions) if place != places[number]]


def changed(
    actions: Sequence[Action],
    wanted: Callable[[Action], bool],
    change: Callable[[Command], Command],
    number: int = 0,
) -> list[Action]:
    """The first command of the `number`-th transfer of a kind changed."""
    places = [place for place, action in enumerate(actions) if wanted(action)]
    result = list(actions)
    start = result[places[number]]
    assert isinstance(start, DmaStart)
    result[places[number]] = replace(start, commands=(change(start.commands[0]), *start.commands[1:]))
    return result


def is_load(action: Action) -> bool:
    return isinstance(action, DmaStart) and action.commands[0].to_l1


def is_store(action: Action) -> bool:
    return isinstance(action, DmaStart) and not action.commands[0].to_l1


def is_2d(action: Action) -> bool:
    return isinstance(action, DmaStart) and action.commands[0].lines > 1


@cache
def is_in(op: str, step: str) -> Callable[[Action], bool]:
    """Whether a load belongs to a step."""
    return lambda action: is_load(action) and (action.work.op, action.work.step) == (op, step)


def missing_wait_of_a_load(actions: Sequence[Action]) -> list[Action]:
    start = next(action.id for action in actions if is_load(action))
    return _late(actions, start)


def missing_wait_of_a_store(actions: Sequence[Action]) -> list[Action]:
    start = next(action.id for action in actions if is_store(action))
    return _late(actions, start)


def _late(actions: Sequence[Action], start: int) -> list[Action]:
    """The wait for a transfer at the end of the program, where it is of no use."""
    (wait,) = (action for action in actions if isinstance(action, DmaWait) and action.transfer == start)
    rest = [action for action in actions if action is not wait]
    return [*rest[:-1], wait, rest[-1]]


def slot_reused_early(actions: Sequence[Action]) -> list[Action]:
    """The second tile is loaded to where the first one still is."""
    loads = [action for action in actions if is_in("fc1", "FW")(action) and action.work.what == "fc1.weight"]
    assert isinstance(loads[0], DmaStart)
    assert isinstance(loads[1], DmaStart)
    address = loads[0].commands[0].l1_address
    number = [action for action in actions if is_load(action)].index(loads[1])
    return changed(actions, is_load, lambda command: replace(command, l1_address=address), number)


def wrong_stride(actions: Sequence[Action]) -> list[Action]:
    return changed(actions, is_2d, lambda command: replace(command, stride_bytes=command.stride_bytes + 4))


def a_line_too_few(actions: Sequence[Action]) -> list[Action]:
    return changed(actions, is_2d, lambda command: replace(command, lines=command.lines - 1))


def a_word_too_few(actions: Sequence[Action]) -> list[Action]:
    return changed(actions, is_store, lambda command: replace(command, line_bytes=command.line_bytes - 4))


def a_transfer_the_wrong_way(actions: Sequence[Action]) -> list[Action]:
    return changed(actions, is_load, lambda command: replace(command, to_l1=False), 3)


def loaded_before_it_is_stored(actions: Sequence[Action]) -> list[Action]:
    """What fc2 reads is loaded before act has stored its last tile: what was there an iteration ago."""
    result = list(actions)
    load = next(
        i for i, action in enumerate(result) if is_in("fc2", "FW")(action) and action.work.what == "act.out"
    )
    compute = next(
        i for i, action in enumerate(result) if isinstance(action, Compute) and action.work.op == "act"
    )
    result.insert(compute, result.pop(load))
    return result


def a_kernel_left_out(actions: Sequence[Action]) -> list[Action]:
    return without(actions, lambda action: isinstance(action, Compute) and action.work.step == "WG", 1)


def two_kernels_exchanged(actions: Sequence[Action]) -> list[Action]:
    places = [
        i for i, action in enumerate(actions) if isinstance(action, Compute) and action.work.step == "WG"
    ]
    result = list(actions)
    result[places[0]], result[places[1]] = result[places[1]], result[places[0]]
    return result


def the_old_weight_stays(actions: Sequence[Action]) -> list[Action]:
    """The update is stored where it is never read: the next iteration has the weights of this one."""
    stores = [a for a in actions if is_store(a)]
    number = next(i for i, a in enumerate(stores) if a.work.step == "UPD" and "weight" in a.work.what)
    store = stores[number]
    assert isinstance(store, DmaStart)
    source = next(
        command.external_address
        for a in actions
        if is_store(a) and isinstance(a, DmaStart)
        for command in a.commands
        if a.work.step == "WG"
    )
    return changed(actions, is_store, lambda command: replace(command, external_address=source), number)


def a_chunk_off_by_one(actions: Sequence[Action]) -> list[Action]:
    return changed(
        actions, is_store, lambda command: replace(command, external_address=command.external_address + 4), 2
    )


DEFECTS: tuple[Defect, ...] = (
    missing_wait_of_a_load,
    missing_wait_of_a_store,
    slot_reused_early,
    wrong_stride,
    a_line_too_few,
    a_word_too_few,
    a_transfer_the_wrong_way,
    loaded_before_it_is_stored,
    a_kernel_left_out,
    two_kernels_exchanged,
    the_old_weight_stays,
    a_chunk_off_by_one,
)


@pytest.mark.needs_gcc
@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: defect.__name__)
def test_the_host_check_fails(defect: Defect, whole: tuple[Exported, Path]) -> None:
    run, folder = whole
    program = run.outcome.schedule.program
    damaged = Program(program.name, tuple(defect(program.actions)))
    ends = [checked(run.project(damaged), folder, seed=seed) for seed in SEEDS]
    assert {end.returncode for end in ends} != {0}, ends[0].stdout
    assert all("error:" not in end.stderr for end in ends), ends[0].stderr
