# SPDX-License-Identifier: Apache-2.0
"""pulp-gcc7: kernels from rules and a few constants, against the published tutorial (docs/codegen.md)."""

from __future__ import annotations

import csv
import gzip
from pathlib import Path

import pytest

from arch.pricing.team_cost_model import TeamCostModel
from arch.spec.isa import Instruction, Loop, TeamWork
from arch.spec.soc_config import load_soc
from arch.spec.timing import SocTiming
from configs.dtypes import FP32
from pulptrain.inputs.settings import with_options
from scheduler.validation.runner import validate
from shared.closed_forms import fork_to_join_cycles
from shared.paths import ROOT
from shared.vector_calls import vector_work
from tools import fit_gcc7
from trainlib.kernels.catalogue import kernel_names, matmul_work
from trainlib.primitives.contractions import conv_nests
from trainlib.primitives.contractions.conv_nests import Reach, Site

FOLDER = ROOT / "configs" / "kernels" / "pulp-gcc7"
ANCHORS = ROOT / "measured" / "tutorial-anchors.csv.gz"
FIRST_CALL_CYCLES = 160
"""Wait for code in every pass, fitted on ReLU."""
MATMULS = tuple(sorted(file.stem for file in FOLDER.glob("mm*.yaml") if not file.stem.startswith("mse")))


def machine(*, fpus: str = "private", bank_conflicts: bool = True) -> SocTiming:
    timing = load_soc("pulp-open-private", "gvsoc")
    return with_options(with_options(timing, bank_conflicts=bank_conflicts), fpus=fpus)


def cycles(
    kernel: str, n: int, k: int, m: int, *, trans_b: bool = False, cores: int = 1, timing: SocTiming
) -> int:
    """From fork to join."""
    size = 2 if kernel.startswith("vm_") else 4
    b_address, c_address = size * n * k, size * (n * k + k * m)
    work = matmul_work(
        kernel, "pulp-gcc7", n, k, m, trans_b, cores, 0, b_address, c_address, element_bytes=size
    )
    return fork_to_join_cycles(work, TeamCostModel(timing).price(work), timing.event_unit)


def anchor_errors(tmp_path: Path) -> dict[str, tuple[dict[str, str], float]]:
    """id -> (row, signed error in percent) of the fp32 anchors."""
    with gzip.open(ANCHORS, "rt", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["dtype"] == "fp32"]
    path = tmp_path / "anchors.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, rows[0].keys())
        writer.writeheader()
        writer.writerows(rows)
    results = validate("layer", path, workers=1).results
    return {
        row["id"]: (row, 100 * (result.prediction.cycles / int(row["cycles"]) - 1))
        for row, result in zip(rows, results, strict=True)
    }


def test_published_layers_and_step(tmp_path: Path) -> None:
    """1-core layers gave the constants; the 8-core rows and both whole steps are a test of them.

    Where the published program kept its operands is not known, and with bank conflicts single 8-core layers
    hang on it (docs/codegen.md), so they are asked for their mean.
    """
    tested = []
    for row, error in anchor_errors(tmp_path).values():
        step = row["primitive"] == "tutorial_step"
        if step:
            assert abs(error) < 8, (row["id"], error)
        if step or row["cores"] != "1":
            tested.append(abs(error))
        else:
            assert abs(error) < 1, (row["id"], error)
    assert len(tested) == 8
    assert sum(tested) / len(tested) < 8


def test_published_counters_of_the_whole_step() -> None:
    """578854 instructions, 164627 load stalls and 1947 instruction-cache cycles on one core; none is fitted.

    The model waits for code in loops of 160 moves, one per forked pass; as instructions they are taken out.
    """
    passes = [
        im2row(),
        matmul("mm", 16, 72, 36, trans_b=True),
        vector_work("pulp-gcc7", "relu_fw", 576, 1, (0, 4096)),
        matmul("mm", 32, 576, 1),
        matmul("mm", 32, 1, 576),
        matmul("mm_M", 1, 32, 576),
        vector_work("pulp-gcc7", "relu_bw", 576, 1, (0, 4096, 8192)),
        im2row(),
        matmul("mm", 16, 36, 72),
        vector_work("pulp-gcc7", "sgd", 16 * 72, 1, (0, 8192)),
        vector_work("pulp-gcc7", "sgd", 32 * 576, 1, (0, 131072)),
    ]
    cost_model = TeamCostModel(machine())
    costs = [cost_model.price(work).cores[0] for work in passes]
    waits = FIRST_CALL_CYCLES * len(passes)
    assert sum(cost.instructions for cost in costs) - waits == pytest.approx(578854, rel=0.015)
    assert sum(dict(cost.stalls)["load_use"] for cost in costs) == pytest.approx(164627, rel=0.005)
    assert waits == pytest.approx(1947, rel=0.15)


def matmul(kernel: str, n: int, k: int, m: int, *, trans_b: bool = False) -> TeamWork:
    """On one core, A, B and C one after another."""
    return matmul_work(kernel, "pulp-gcc7", n, k, m, trans_b, 1, 0, 4 * n * k, 4 * (n * k + k * m))


def im2row() -> TeamWork:
    """Patches of the tutorial's convolution: 8 channels of 8 x 8, kernel 3 x 3."""
    site = Site("pulp-gcc7", 1, FP32, {"X": 0, "R": 4096})
    return conv_nests.im2row(site, "FW", Reach.of((8, 8), (3, 3), (6, 6)), 8, padded=False)


@pytest.mark.parametrize(
    ("kernel", "trans_b", "published"),
    [("vm_naive", False, 67386), ("vm_SIMD_pack", False, 43611), ("vm_SIMD_transposed", True, 35268)],
)
def test_published_16_bit_products(kernel: str, trans_b: bool, published: int) -> None:
    found = cycles(kernel, 1, 128, 128, trans_b=trans_b, timing=machine())
    assert found == pytest.approx(published, rel=0.01)


def test_published_16_bit_product_on_8_cores() -> None:
    """Nothing is fitted on 8 cores. Where the operands lay is not known; here they do not begin in one bank.

    All cores read the vector in step, and every row of the transposed matrix begins in the same bank.
    """
    b_address = 2 * 128 + 4
    c_address = b_address + 2 * 128 * 128
    work = matmul_work("vm_SIMD_transposed", "pulp-gcc7", 1, 128, 128, True, 8, 0, b_address, c_address)
    timing = machine()
    found = fork_to_join_cycles(work, TeamCostModel(timing).price(work), timing.event_unit)
    assert found == pytest.approx(4620, rel=0.08)


@pytest.mark.parametrize(
    ("kernel", "trans_b", "blocks", "cycles_per_step"),
    [
        # N = 8, M = 8: blocks of C, and cycles of a step in K: loads + multiply-adds + what GCC leaves.
        ("mm", False, 64, 2 + 1 + 1),  # the multiply-add waits for its load
        ("mm_unroll_2x1", False, 32, 3 + 2),
        ("mm_unroll_1x4", True, 16, 5 + 4),
        ("mm_unroll_2x2", False, 16, 4 + 4 + 1),
        ("mm_unroll_2x4", False, 8, 6 + 8 + 1),
        ("mm_M_unroll_2x4", False, 8, 6 + 8),
        ("mm_unroll_4x4", False, 4, 8 + 16 + 1 + 2 * 2),  # two values without a register
        ("mm_unroll_4x4", True, 4, 8 + 16 + 1 + 2 * 5),  # five, with a pointer per column of B
        ("mm_M_unroll_1x4", True, 32, 3 + 2),  # transposed B: the published kernel is 1x2
    ],
)
def test_inner_loops(kernel: str, trans_b: bool, blocks: int, cycles_per_step: int) -> None:
    timing = machine(bank_conflicts=False)
    more, less = (cycles(kernel, 8, k, 8, trans_b=trans_b, timing=timing) for k in (12, 11))
    assert more - less == blocks * cycles_per_step


def test_only_4x4_runs_out_of_registers() -> None:
    def stack_accesses(body: tuple[Instruction | Loop, ...]) -> int:
        """Accesses without an address in innermost loops: spilled values."""
        found = 0
        for node in body:
            if isinstance(node, Loop):
                if any(isinstance(inner, Loop) for inner in node.body):
                    found += stack_accesses(node.body)
                else:
                    memory = [inner for inner in node.body if isinstance(inner, Instruction)]
                    found += sum(inner.op.name in ("LOAD", "STORE") and inner.stream < 0 for inner in memory)
        return found

    spilling = set()
    for kernel in MATMULS:
        for trans_b in (False, True):
            work = matmul_work(kernel, "pulp-gcc7", 32, 8, 32, trans_b, 1, 0, 4096, 8192).cores[0]
            assert work is not None
            if stack_accesses(work.body):
                spilling.add(kernel)
    assert spilling == {"mm_unroll_4x4", "mm_M_unroll_4x4"}


def test_all_24_kernels_compute_every_product() -> None:
    """Multiply-adds executed over all cores: N K M where no block is rounded up (extents of 64)."""
    assert len(MATMULS) == 24
    for kernel in MATMULS:
        for trans_b in (False, True):
            work = matmul_work(kernel, "pulp-gcc7", 64, 6, 64, trans_b, 8, 0, 4096, 16384)
            done = sum(_multiply_adds(core.body) for core in work.cores if core is not None)
            assert done == 64 * 6 * 64, kernel


def test_leftovers_are_computed_too() -> None:
    """On one core no row is computed twice, whatever the extents: leftovers complete the product."""
    for kernel in MATMULS:
        for trans_b in (False, True):
            work = matmul_work(kernel, "pulp-gcc7", 21, 5, 19, trans_b, 1, 0, 4096, 16384)
            assert work.cores[0] is not None
            done = _multiply_adds(work.cores[0].body)
            assert done == 21 * 5 * 19, kernel


def _multiply_adds(body: tuple[Instruction | Loop, ...]) -> int:
    return sum(
        node.trips * _multiply_adds(node.body) if isinstance(node, Loop) else node.op.name == "FMA"
        for node in body
    )


def test_peak_is_below_the_published_one_and_needs_private_fpus() -> None:
    """24 x 96 x 96 is the best shape of tools/gcc7_peak.py; SAMOS 2022 published 4.39 MAC per cycle.

    The bound of the kernel is 16 multiply-adds in 28 instructions on 8 cores. No parameter is set from it.
    """
    n, k, m = 24, 96, 96
    private = n * k * m / cycles("mm_M_unroll_4x4", n, k, m, cores=8, timing=machine())
    shared = n * k * m / cycles("mm_M_unroll_4x4", n, k, m, cores=8, timing=machine(fpus="4-static"))
    assert 4.39 * 0.9 < private < 8 * 16 / 28
    assert shared < 4.0


@pytest.mark.parametrize("kernel", MATMULS)
def test_four_shared_fpus_stay_below_four(kernel: str) -> None:
    timing = machine(fpus="4-static", bank_conflicts=False)
    assert 32 * 64 * 64 / cycles(kernel, 32, 64, 64, cores=8, timing=timing) < 4.0


def test_the_files_are_what_the_tool_writes(tmp_path: Path) -> None:
    fit_gcc7.main([str(ANCHORS), str(tmp_path)])
    written = {file.name: file.read_text(encoding="utf-8") for file in tmp_path.iterdir()}
    assert written == {file.name: file.read_text(encoding="utf-8") for file in FOLDER.iterdir()}


def test_fitted_constants_are_marked() -> None:
    """Every file of the profile that has the cost of a first call says that it is fitted."""
    for file in FOLDER.glob("*.yaml"):
        text = file.read_text(encoding="utf-8")
        if "for e in 0..1" in text:
            assert "# fitted: " in text, file.name


def test_kernels_of_a_whole_training_step_exist() -> None:
    assert set(MATMULS) <= set(kernel_names("pulp-gcc7"))
