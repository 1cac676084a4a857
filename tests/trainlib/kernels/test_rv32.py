# SPDX-License-Identifier: Apache-2.0
"""clang-rv32: the compiled library without Xpulp, derived from counters of 1-core rows (docs/codegen.md)."""

from __future__ import annotations

import csv
import gzip
import importlib
import math
import statistics
from collections.abc import Iterator
from pathlib import Path

import pytest

from arch.pricing.team_cost_model import TeamCostModel
from arch.spec.isa import CoreWork, Instruction, Loop, Op
from arch.spec.soc_config import load_soc
from pulptrain.inputs.settings import with_options
from shared.closed_forms import fork_to_join_cycles
from shared.paths import ROOT
from trainlib.kernels.catalogue import kernel_names, matmul_work
from trainlib.kernels.library import LIBRARY

FOLDER = ROOT / "configs" / "kernels" / "clang-rv32"
ROWS = ROOT / "measured" / "mm.csv.gz"
FORK_INSTRUCTIONS = 7
"""Instructions of the fork that the counters of the master core include."""


def executed(work: CoreWork) -> Iterator[tuple[Op, int]]:
    """(class, executions) of every instruction of the nest."""

    def walk(body: tuple[Instruction | Loop, ...], times: int) -> Iterator[tuple[Op, int]]:
        for node in body:
            if isinstance(node, Loop):
                yield from walk(node.body, times * node.trips)
            else:
                yield node.op, times

    return walk(work.body, 1)


def counted(
    kernel: str, n: int, k: int, m: int, codegen: str = "clang-rv32", *, trans_b: bool = False
) -> dict[Op, int]:
    """Executions per class on one core."""
    work = matmul_work(kernel, codegen, n, k, m, trans_b, 1, 0, 4 * n * k, 4 * (n * k + k * m)).cores[0]
    assert work is not None
    totals: dict[Op, int] = {}
    for op, times in executed(work):
        totals[op] = totals.get(op, 0) + times
    return totals


def rows(cores: int) -> list[dict[str, str]]:
    """Measured rows of the profile; four shared FPUs, no bank conflicts."""
    with gzip.open(ROWS, "rt", encoding="utf-8") as file:
        return [
            row
            for row in csv.DictReader(file)
            if row["codegen"] == "clang-rv32" and row["cores"] == str(cores) and row["dtype"] == "fp32"
        ]


def errors(cores: int) -> tuple[list[float], list[float]]:
    """Relative errors of cycles and of instructions, one per measured row."""
    timing = with_options(load_soc("pulp-open", "gvsoc"), bank_conflicts=False)
    cost_model = TeamCostModel(timing)
    cycles, instructions = [], []
    for row in rows(cores):
        n, k, m = int(row["n"]), int(row["k"]), int(row["m"])
        work = matmul_work(
            row["kernel"],
            "clang-rv32",
            n,
            k,
            m,
            row["trans_b"] == "1",
            cores,
            0,
            4 * n * k,
            4 * (n * k + k * m),
        )
        cost = cost_model.price(work)
        cycles.append(fork_to_join_cycles(work, cost, timing.event_unit) / int(row["cycles"]) - 1)
        executed_here = sum(core.instructions for core in cost.cores)
        instructions.append(executed_here / int(row["instructions"]) - 1)
    return cycles, instructions


def mean(values: list[float]) -> float:
    return statistics.mean(abs(value) for value in values)


def percentile_95(values: list[float]) -> float:
    return sorted(abs(value) for value in values)[math.ceil(0.95 * len(values)) - 1]


@pytest.mark.parametrize("file", sorted(FOLDER.glob("*.yaml")), ids=lambda file: file.stem)
def test_no_kernel_uses_xpulp(file: Path) -> None:
    text = file.read_text(encoding="utf-8").partition("nest: |")[2]
    assert " hw {" not in text
    assert "+:" not in text
    assert not {"H", "H'"} & set(text.split())


@pytest.mark.parametrize(
    ("kernel", "per_step"),
    # Loads, multiply-adds, one address step per pointer, the counter and the branch of one step in K.
    [("mm", 2 + 1 + 2 + 2), ("mm_unroll_2x1", 3 + 2 + 3 + 2), ("mm_unroll_1x2", 3 + 2 + 2 + 2)],
)
def test_inner_loops_step_their_pointers(kernel: str, per_step: int) -> None:
    more, less = (sum(counted(kernel, 8, k, 8).values()) for k in (11, 10))
    blocks = 64 if kernel == "mm" else 32
    assert more - less == blocks * per_step


@pytest.mark.parametrize("kernel", kernel_names("clang-rv32"))
@pytest.mark.parametrize("trans_b", [False, True])
def test_memory_and_arithmetic_are_those_of_clang_xpulp(kernel: str, trans_b: bool) -> None:
    """Same sources, same compiler: only address arithmetic and loop control differ."""
    for n, k, m in ((8, 7, 8), (13, 17, 19)):
        rv32 = counted(kernel, n, k, m, trans_b=trans_b)
        xpulp = counted(kernel, n, k, m, "clang-xpulp", trans_b=trans_b)
        for op in (Op.LOAD, Op.STORE, Op.FMA, Op.FMUL, Op.MUL):
            assert rv32.get(op, 0) == xpulp.get(op, 0), op
        assert sum(rv32.values()) > sum(xpulp.values())


def test_only_estimates_are_priced_by_the_c_of_deploy() -> None:
    """A nest of its own, or one that a row has, is PULP-TrainLib's."""
    compiled = FOLDER.parent / "export-rv32"
    for name in LIBRARY.kernel_names("clang-rv32"):
        file = Path(LIBRARY.header("clang-rv32", name).section.file)
        library = (FOLDER / f"{name}.yaml").is_file() or LIBRARY.rows("clang-xpulp", name)
        there = (compiled / f"{name}.yaml").is_file()
        assert (file.parent == compiled) == (there and not library), name


def test_a_form_is_priced_by_its_own_nest_unless_its_kernel_is_the_library_s() -> None:
    for kernel, form, priced in (
        ("adam", "adamw", "adamw"),
        ("norm_fw", "norm_fw_row_w_b", "norm_fw_row_w_b"),
        ("instnorm_fw", "instnorm_fw_instance_w_b", "instnorm_fw"),
        ("relu_fw", "floor_fw_as_relu_fw", "floor_fw_as_relu_fw"),
    ):
        assert LIBRARY.form("clang-rv32", kernel, form) == priced
        assert LIBRARY.form("clang-xpulp", kernel, form) == kernel


def test_loads_and_stores_are_the_measured_ones() -> None:
    """The columns of 1-core rows, to the 14 loads and 3 stores of fork and call."""
    for row in rows(1):
        n, k, m = (int(row[name]) for name in ("n", "k", "m"))
        found = counted(row["kernel"], n, k, m, trans_b=row["trans_b"] == "1")
        assert abs(found[Op.LOAD] - int(row["loads"])) <= 20, row["id"]
        assert abs(found[Op.STORE] - int(row["stores"])) <= 20, row["id"]


def test_one_core_rows_are_met() -> None:
    """The rows the counts come from: 1 % and 3 % of instructions, 1.5 % and 4 % of cycles."""
    cycles, instructions = errors(1)
    assert mean(instructions) < 0.01
    assert percentile_95(instructions) < 0.03
    assert mean(cycles) < 0.015
    assert percentile_95(cycles) < 0.04


def test_eight_core_rows_are_predicted() -> None:
    """Rows no count comes from, four shared FPUs: 5 % mean, 2 % bias, 14 % for the 95th percentile."""
    cycles, instructions = errors(8)
    assert mean(instructions) < 0.01
    assert mean(cycles) < 0.05
    assert abs(statistics.mean(cycles)) < 0.02
    assert percentile_95(cycles) < 0.14


@pytest.mark.needs_scipy
def test_the_files_are_what_the_tool_derives(tmp_path: Path) -> None:
    tool = importlib.import_module("tools.derive_rv32_kernels")  # here, as it asks for SciPy
    tool.main([str(ROWS), str(FOLDER.parent / "clang-xpulp"), str(tmp_path)])
    stale = [
        file.name
        for file in sorted(tmp_path.glob("mm*.yaml"))
        if file.read_text(encoding="utf-8") != (FOLDER / file.name).read_text(encoding="utf-8")
    ]
    assert not stale, "run tools/derive_rv32_kernels.py again: clang-xpulp or the rows have changed"
