# SPDX-License-Identifier: Apache-2.0
"""Ops as tables: right here and where addresses are words, brought into L1 in time, as large as planned."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pulptrain as pt
from arch.pricing.code_caches import COLD, WARM
from arch.pricing.team_cost_model import TeamCostModel
from arch.spec.program import Compute, DmaStart, DmaWait
from arch.spec.soc_config import load_soc
from arch.spec.timing import SocTiming
from configs.model_file import read_model
from configs.values import replace
from configs.yaml_file import parse_yaml
from deploy.project.network_files import programs_of
from pulptrain.deploying.deployed import cycles_as_exported
from pulptrain.inputs.settings import Settings, with_options
from pulptrain.running.session import prepare, run_model
from scheduler.options import ScheduleOptions
from scheduler.programs.program_code import ops_of
from scheduler.programs.rolling import runs_of
from scheduler.schedule import build_schedule, lost_code
from scheduler.table_form import alone_with_code, is_of_tables, table_of
from scheduler.tiles.code_cost import CodeCost, TileCode
from scheduler.tiles.code_sizes import shipped_sizes
from scheduler.tuner.task import task_of
from shared.exported import Exported, exported, made, written
from shared.printed import refused
from trainlib.training.phases import build_training_graph

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
    (program,) = programs_of([schedule], [])
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
        (["--form", "tables", "--soc", "stm32l4"], 2, "which the DMA of this chip cannot read"),
        (["--form", "tables", "--l1", "11KiB"], 3, "tables of two ops"),
        (["--form", "tables", "--set", "dma.transfer_ids=1"], 2, "one ID for tables"),
        (["--form", "tables", "--set", "l1.tables_bytes=0"], 2, "contradicts l1.tables_bytes=0"),
        (["--form", "readable", "--set", "l1.tables_bytes=4KiB"], 2, "contradicts l1.tables_bytes=4KiB"),
    ],
)
def test_a_form_that_a_machine_has_no_room_for_is_refused(
    options: list[str], status: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in refused(capsys, "run", "simple-mlp", *options, code=status)


SMALL = """
name: smaller
input: {shape: [48]}
loss: cross_entropy
optimizer: {name: adam, learning_rate: 0.01}
layers:
  - {name: act, type: relu}
  - {name: fc, type: linear, out_features: 40}
"""


def test_names_longer_than_a_line_stay_whole(tmp_path: Path) -> None:
    """Training graphs have such; broken at the end of a line they were no C."""
    model, name = tmp_path / "model.yaml", "long_" * 30 + "name"
    model.write_text(SMALL.replace("name: fc", f"name: {name}"))
    folder = written(exported(str(model), form="tables").project(), tmp_path / "net")
    assert re.search(rf"^ +{name}_FW_x_in,$", (folder / "network.c").read_text(), re.MULTILINE)


@pytest.mark.parametrize("icache", [pytest.param("steady", marks=pytest.mark.slow), "warm"])
def test_tune_run_and_deploy_predict_the_same_cycles(icache: str, tmp_path: Path) -> None:
    """A prediction without tables lacks what core 0 takes to walk them."""
    model, chosen = tmp_path / "model.yaml", tmp_path / "schedule.yaml"
    model.write_text(SMALL)
    machine = {"form": "tables", "l1": "16KiB", "codegen": "export-rv32", "icache": icache}
    tuned = pt.tune(str(model), **machine, tilings=2, workers=1, cache=False)
    tuned.save(chosen)
    settings = Settings(**machine, schedule=str(chosen))
    outcome = run_model(str(model), settings, functional=False)
    assert tuned.cycles == outcome.summary["cycles"] <= tuned.untuned_cycles
    assert cycles_as_exported(outcome.schedules, outcome.timing, 1) == tuned.cycles


def test_programs_whose_functions_stay_in_the_caches_keep_them() -> None:
    """Two ops of inference: the walk would cost 12 % there. So it is where all code is in the caches."""
    for settings in ({"steps": "fw"}, {"icache": "warm"}, {"timing": "gvsoc"}):
        program = prepare("simple-mlp", Settings(**settings)).schedule.program
        assert not any(is_of_tables(action) for action in program.actions)
    trained = prepare("simple-mlp", Settings()).schedule.program
    assert any(is_of_tables(action) for action in trained.actions)


@pytest.mark.parametrize("settings", [{"steps": "fw"}, {}, {"accumulate": 2}])
def test_tiles_are_chosen_for_the_form_that_the_programs_have(settings: dict[str, Any]) -> None:
    """Of an update alone most functions would stay in the caches; beside its mini-batch they do not."""
    prepared = prepare("simple-mlp", Settings(**settings))
    for schedule in prepared.schedules:
        lost = lost_code(schedule.graph, prepared.timing, schedule.options)
        assert lost is not None
        assert lost.is_walked == any(is_of_tables(action) for action in schedule.program.actions)


def test_an_op_alone_is_a_table_only_where_that_has_room() -> None:
    """The tuner and `fit` ask: with a table core 0 walks, without room the code of a function is fetched."""
    graph = build_training_graph(read_model(parse_yaml(SMALL, "smaller.yaml")))
    timing = load_soc("pulp-open")
    small, large = (replace(timing, l1=replace(timing.l1, tables_bytes=size)) for size in (64, 2048))
    alone = task_of(graph, graph.ops[1]).graph
    program = build_schedule(alone, timing, TeamCostModel(timing), ScheduleOptions()).program

    def added_cycles(timing: SocTiming) -> tuple[int, str]:
        found, start = alone_with_code(program, timing, COLD)
        return sum(each.code_cycles for each in found.actions if isinstance(each, DmaStart)) - sum(
            each.code_cycles for each in program.actions if isinstance(each, DmaStart)
        ), start

    assert added_cycles(small) == (0, COLD)
    walked_cycles, start = added_cycles(large)
    assert start == WARM
    assert walked_cycles > 0


def test_the_walk_of_an_op_without_transfers_is_paid_by_its_kernels() -> None:
    """All that it reads and writes is resident."""
    actions = prepare("simple-mlp", Settings(buffering="double", resident="auto")).schedule.program.actions
    (alone,) = [
        op
        for op in ops_of(actions)
        if op.is_table and not any(isinstance(each, DmaStart) for each in op.actions)
    ]
    paid = [each.code_cycles for each in alone.actions if isinstance(each, Compute)]
    assert sum(paid) == table_of(alone, shipped_sizes())[1] > 0
    others = [each for each in actions if isinstance(each, Compute) and each not in alone.actions]
    assert not any(each.code_cycles for each in others)


def test_an_estimate_waits_for_the_code_of_the_form() -> None:
    """Three tiles that are not alike: all statements of a function are new code, those of a table are not."""
    graph = build_training_graph(read_model(parse_yaml(SMALL, "smaller.yaml")))
    statements = ("transfer_1d", 2), ("wait", 2)
    tiles = [TileCode(form, statements, [("fork", 1)], ["mm"], 0.0) for form in "abc"]

    def waits(form: str) -> list[float]:
        timing = with_options(load_soc("pulp-open"), form=form)
        lost = lost_code(graph, timing, ScheduleOptions(code_start=COLD))
        assert lost is not None
        return [*CodeCost(timing, lost).waits(tiles)]

    functions, tables = waits("readable"), waits("tables")
    assert functions[1] == functions[2] > 0
    assert tables[1] == tables[2] < functions[1], "the walk was fetched for the first tile"
