# SPDX-License-Identifier: Apache-2.0
"""Every copy of a result is compared and made the expected one: an op begins with what the simulator had."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from shared.exported import Exported, checked, exported, made, written

MODEL = """
name: noise
description: The gradient of the scale of bn1 is 0 but for rounding, since bn2 takes a scale out again
source: made for tests
input: {shape: [3, 12, 12]}
dataset: random
loss: cross_entropy
batch: 4
optimizer: {name: adam, learning_rate: 0.001}
layers:
  - {name: conv1, type: conv2d, out_channels: 8, kernel: 3, padding: 1}
  - {name: bn1, type: batch_norm}
  - {name: relu1, type: relu}
  - {name: dw, type: depthwise, kernel: 3, padding: 1, stride: 2}
  - {name: bn2, type: batch_norm}
  - {name: relu2, type: relu}
  - {name: flat, type: flatten}
  - {name: fc, type: linear, out_features: 4}
"""

RESULT = re.compile(r'\{"([\w.]+)", \{IN_(L\d), (\d+), (\d+)\}, (\d+), AS_')


@pytest.fixture(scope="module")
def staged(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """Of which L2 holds about half: results go to L3, some while L2 still has them."""
    file = tmp_path_factory.mktemp("copies") / "noise.yaml"
    file.write_text(MODEL)
    return exported(str(file), l2=64 << 10, l3=1 << 20, buffering="single", form="tables")


def results_of(run: Exported) -> dict[str, list[tuple[str, str, int, int, int]]]:
    """Op -> name, level, address, bytes of what is compared when it ends, and its first expected byte."""
    text = run.project().files["network.c"].decode()
    return {
        function: [(name, level, *map(int, numbers)) for name, level, *numbers in RESULT.findall(row)]
        for function, row in re.findall(r"struct tensor (\w+)_results\[\] = \{(.*)\};", text)
    }


def test_what_went_to_l3_is_compared_there_when_its_stay_in_l2_ends(staged: Exported) -> None:
    schedule, results = staged.schedules[0], results_of(staged)
    functions = [op.name.replace(".", "_") for op in schedule.graph.ops]
    stored = [stay for stay in schedule.plan.stays if stay.written_op >= 0]
    assert any(stay.written_op < stay.last_op for stay in stored)
    for stay in stored:
        home = schedule.plan.home(stay.tensor)
        [(name, expected)] = [
            (name, expected)
            for name, level, address, _, expected in results[functions[stay.last_op]]
            if (level, address) == ("L3", home.address)
        ]
        assert schedule.plan.owners[name] == stay.tensor
        first = next(row for row in results[functions[stay.written_op]] if row[0] == name)
        assert (first[1], first[-1]) == ("L2", expected)


def test_results_are_expected_in_the_order_of_ops_each_once(staged: Exported) -> None:
    end = 0
    for rows in results_of(staged).values():
        for _, _, _, size_bytes, expected in rows:
            assert expected <= end
            end = max(end, expected + size_bytes)
    assert (
        f"_ops, {len(staged.schedules[0].graph.ops)}, {end}}}" in staged.project().files["network.c"].decode()
    )


def test_a_gradient_in_l1_is_compared_in_l2_too(tmp_path: Path) -> None:
    file = tmp_path / "noise.yaml"
    file.write_text(MODEL)
    run = exported(str(file), l2=1 << 20, buffering="single", resident="bn1.weight.grad")
    rows = [row for row in results_of(run)["bn1_WG"] if row[0] == "bn1.weight.grad"]
    assert [row[1] for row in rows] == ["L1", "L2"]
    assert len({row[-1] for row in rows}) == 1


@pytest.mark.needs_gcc
def test_a_weight_of_which_l2_has_some_channels_is_compared_part_by_part(tmp_path: Path) -> None:
    file = tmp_path / "part.yaml"
    file.write_text(MODEL.replace("padding: 1}", "padding: 1, update_channels: [2, 5]}", 1))
    run = exported(str(file), l3=1 << 20, resident="conv1.weight", homes=["conv1.weight=l3"])
    levels = {row[1] for row in results_of(run)["conv1_UPD"] if row[0] == "conv1.weight_updated"}
    assert levels == {"L1", "L2", "L3"}
    ended = checked(run.project(), tmp_path / "net")
    assert ended.returncode == 0, ended.stdout


@pytest.mark.needs_gcc
def test_comparing_in_l3_waits_for_no_transfer_of_the_program(tmp_path: Path) -> None:
    """Else a wait that the program lacks would go unnoticed behind the comparison."""
    file = tmp_path / "noise.yaml"
    file.write_text(MODEL)
    run = exported(str(file), l3=1 << 20, homes=["*=l3"], buffering="single")
    folder = written(run.project(), tmp_path / "net")
    before, wait, after = (folder / "network.c").read_text().rpartition("pt_l3_wait(0);")
    assert wait
    (folder / "network.c").write_text(before + after)
    assert made(folder).returncode != 0


@pytest.mark.needs_gcc
def test_adam_begins_with_the_expected_gradient(staged: Exported, tmp_path: Path) -> None:
    """It divides noise by its own size: with that of the C an update would differ by the learning rate."""
    ended = checked(staged.project(), tmp_path)
    assert ended.returncode == 0, ended.stdout
