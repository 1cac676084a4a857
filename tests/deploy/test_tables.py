# SPDX-License-Identifier: Apache-2.0
"""Ops as tables: right here and where addresses are words, brought into L1 in time, as large as planned."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pulptrain as pt
from arch.spec.program import Compute, DmaStart, DmaWait
from deploy.calls.call import c_calls
from deploy.project.network_files import programs_of
from scheduler.programs.rolling import runs_of
from shared.exported import Exported, exported, made, written
from shared.printed import refused

HERE = Path(__file__).parent

RV32 = "-target riscv32-linux-musl -mcpu=generic_rv32+m+a+f+d+c -mabi=ilp32d -static"

MODEL = """
name: small
input: {shape: [2, 8, 8]}
loss: cross_entropy
optimizer: {name: adam, learning_rate: 0.01}
layers:
  - {name: conv, type: conv2d, out_channels: 6, kernel: 3, padding: 1}
  - {name: norm, type: batch_norm}
  - {name: act, type: hard_swish}
  - {name: flat, type: flatten}
  - {name: fc, type: linear, out_features: 10}
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """With so little L1 that ops have loops of tiles."""
    model = tmp_path_factory.mktemp("tables") / "model.yaml"
    model.write_text(MODEL)
    return exported(str(model), l1=13 << 10, form="tables", lr_schedule="cosine steps=10")


@pytest.mark.needs_gcc
def test_tables_are_right_and_one_that_is_not_waited_for_is_noticed(run: Exported, tmp_path: Path) -> None:
    folder = written(run.project(), tmp_path / "net")
    text = (folder / "network.c").read_text()
    assert all(word in text for word in ("LOADS", "STORES", "WAITS", "CALLS", "TURNS", "VARIES", "FETCH"))
    ended = made(folder, seed=1)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    walk = folder / "tables.c"
    walk.write_text(walk.read_text().replace("if (at & NETWORK_FETCHED) pt_dma_wait(NETWORK_TABLES);", ""))
    assert made(folder, seed=1).returncode != 0


@pytest.mark.needs_rv32
def test_addresses_are_put_into_tables_where_they_are_words(run: Exported, tmp_path: Path) -> None:
    folder = written(run.project(), tmp_path / "net")
    compiler = f"CC={sys.executable} -m ziglang cc {RV32}"
    platform = f"PLATFORM={HERE / 'one_core.c'}"
    assert made(folder, ["TARGET=bare", platform, compiler], goal="all").returncode == 0
    network = folder / "build/bare/network"
    assert subprocess.run(["qemu-riscv32", network], check=False, timeout=120).returncode == 0


def test_tables_come_while_the_ops_before_them_compute(run: Exported) -> None:
    actions = run.outcome.schedule.program.actions
    orders = {each.id for each in actions if isinstance(each, DmaStart) and each.work.what == "table"}
    waits = {each.transfer: each.id for each in actions if isinstance(each, DmaWait)}
    for order in orders:
        assert any(isinstance(each, Compute) for each in actions[order : waits[order]])


def test_most_tables_are_as_large_as_the_rule_says(run: Exported) -> None:
    """Of what changes in arguments from tile to tile the rule knows addresses and sizes."""
    schedule = run.outcome.schedule
    (program,) = programs_of([schedule], c_calls, [])
    ruled = [
        each.commands[0].size_bytes
        for each in schedule.program.actions
        if isinstance(each, DmaStart) and each.work.what == "table"
    ]
    written_bytes = [4 * group.words for group in program.groups]
    assert len(written_bytes) == len(ruled)
    near = [abs(found - rule) <= 0.05 * rule for found, rule in zip(written_bytes, ruled, strict=True)]
    assert np.mean(near) >= 0.75


@given(st.lists(st.integers(-3, 3), min_size=2, max_size=12), st.integers(1, 4), st.integers(0, 5))
def test_what_is_added_turn_by_turn_gives_the_values(steps: list[int], times: int, rest: int) -> None:
    values = np.cumsum([7, *steps * times, *steps[:rest]])
    runs = runs_of(values)
    added = [step for turns, step in runs for _ in range(turns)] or [0]
    again = np.resize(added, len(values) - 1)
    np.testing.assert_array_equal(np.cumsum([7, *again]), values)


@pytest.mark.parametrize(
    ("options", "status", "message"),
    [
        (["--form", "tabels"], 2, "unknown form 'tabels'"),
        (["--form", "tables", "--soc", "stm32l4"], 2, "which its DMA cannot read"),
        (["--form", "tables", "--l1", "11KiB"], 3, "tables of two ops"),
        (["--form", "tables", "--set", "dma.transfer_ids=1"], 2, "tables need one"),
    ],
)
def test_a_form_that_a_machine_has_no_room_for_is_refused(
    options: list[str], status: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in refused(capsys, "run", "simple-mlp", *options, code=status)


def test_tiles_for_tables_are_not_chosen_by_the_code_of_functions() -> None:
    """Otherwise `tune` found what was 4 % slower than without it."""
    tuned = pt.tune("tutorial-cnn", form="tables", tilings=2, workers=1, cache=False)
    assert tuned.cycles < tuned.untuned_cycles
