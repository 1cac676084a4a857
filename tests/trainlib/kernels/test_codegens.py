# SPDX-License-Identifier: Apache-2.0
"""Every codegen profile prices every layer: the one rule for a kernel a profile has no file of its own for.

Such a kernel is that of the profile's base, changed by its transform, and counts as an estimate.
"""

import json

import pytest

from arch.spec.isa import Loop
from configs.grades import MEASURED
from pulptrain.__main__ import run
from shared.primitive_harness import all_cases, check_work
from shared.printed import printed
from shared.vector_calls import vector_work
from trainlib.kernels import nest, transform
from trainlib.kernels.catalogue import kind_of
from trainlib.kernels.evidence import nest_evidence
from trainlib.kernels.library import LIBRARY

COMPILED = "clang-xpulp"
CASES = [case for case in all_cases() if (case.number, case.batch, case.dtype) == (0, 1, "fp32")]


@pytest.mark.parametrize("codegen", LIBRARY.codegen_names())
def test_every_primitive_has_a_cost_with_every_codegen(codegen: str) -> None:
    for case in CASES:
        check_work(case, codegen)


@pytest.mark.parametrize("codegen", LIBRARY.codegen_names())
def test_every_codegen_has_every_loop_and_fp32_kernel_and_all_of_them_can_be_read(codegen: str) -> None:
    """What may be missing are 16-bit kernels: a core without packed arithmetic runs the fp32 code instead."""
    missing = set(LIBRARY.kernel_names(COMPILED)) - set(LIBRARY.kernel_names(codegen))
    assert all(LIBRARY.header(COMPILED, name).element_bytes == 2 for name in missing)
    for name in LIBRARY.kernel_names(codegen):
        kernel = LIBRARY.kernel(codegen, name)
        assert kernel.header.codegen == codegen


def test_a_kernel_of_the_base_was_not_measured_where_the_profile_says_so() -> None:
    estimated = {
        codegen: {
            name for name in LIBRARY.kernel_names(codegen) if nest_evidence(codegen, name).label != MEASURED
        }
        for codegen in LIBRARY.codegen_names()
    }
    # Its own files were measured, the others stand in.
    for own in ("relu_fw", "sgd", "im2row_fw"):
        assert own not in estimated["clang-postinc"]
    assert {"im2row_ig", "mm", "conv_direct_fw"} <= estimated["clang-postinc"]
    assert "mm" not in estimated["clang-rv32"]
    assert {"conv_direct_fw", "gelu_fw"} <= estimated["clang-rv32"]
    # asm-xpulp is the compiled library but for its matmuls, so what is measured there is measured here.
    assert estimated["asm-xpulp"] & set(LIBRARY.kernel_names(COMPILED)) == estimated[COMPILED]
    assert "im2row_fw" not in estimated[COMPILED]
    assert "conv_direct_fw" in estimated[COMPILED]
    for name in estimated[COMPILED]:
        assert not LIBRARY.rows(COMPILED, name)


def loops(nodes):
    """Instruction classes of the innermost loops, in order."""
    found = []
    for node in nodes:
        if isinstance(node, Loop):
            inner = loops(node.body)
            found += inner or [[item.op.name for item in node.body]]
    return found


@pytest.mark.parametrize("name", ["sgd", "relu_fw"])
def test_the_rule_of_clang_postinc_gives_the_loops_measured_for_it(name: str) -> None:
    """clang-xpulp's loop, closed by a branch, against the counts of the profile's own rows."""
    section = LIBRARY.header(COMPILED, name).section
    text = nest.parse_nest(str(section.values["nest"]), section.file, section.text_line("nest"))
    ours = transform.TRANSFORMS["branch_loops"](text)
    (derived,) = innermost(ours.body)
    addresses = (0x1000_0000, 0x1000_1000)
    team = vector_work("clang-postinc", name, 16, 1, addresses)
    assert team.cores[0] is not None
    (measured,) = loops(team.cores[0].body)
    assert derived == measured
    assert len(measured) == {"sgd": 6, "relu_fw": 5}[name], "instructions an element, ground truth"


def innermost(nodes):
    """The same of the nodes of a nest."""
    found = []
    for node in nodes:
        if hasattr(node, "trips"):
            found += innermost(node.body) or [[item.instruction.op.name for item in node.body]]
        elif hasattr(node, "then"):
            found += innermost(node.then) + innermost(node.otherwise)
    return found


def test_post_increment_stays_free_with_branch_loops_and_costs_on_a_plain_core() -> None:
    text = nest.parse_nest("A H for i in 0..elements hw { L+:X(i) f' S+:Y(i) }", "x.yaml", 1)
    (free,) = innermost(transform.TRANSFORMS["branch_loops"](text).body)
    (plain,) = innermost(transform.TRANSFORMS["plain_core"](text).body)
    assert free == ["LOAD", "ALU", "FP", "STORE", "BRANCH"]
    assert sorted(plain) == sorted([*free, "ALU", "ALU"])


def test_the_listing_has_the_evidence_and_the_kind_of_a_kernel(capsys: pytest.CaptureFixture[str]) -> None:
    rows = {(row["codegen"], row["kernel"]): row for row in printed(capsys, "list", "kernels")["kernels"]}
    assert rows[COMPILED, "mm"]["kind"] == "matmul"
    assert rows[COMPILED, "mm"]["evidence"] == "measured"
    assert rows["clang-rv32", "gelu_fw"]["evidence"] == "estimated"
    assert rows["clang-rv32", "gelu_fw"]["kind"] == kind_of("clang-rv32", "gelu_fw") == "loop"
    assert {codegen for codegen, _ in rows} == set(LIBRARY.codegen_names())


def test_a_run_names_the_unmeasured_kernels_it_used(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--shape", "4x6x6", "--codegen", COMPILED, "--json"]
    assert run(["primitive", "depthwise", "--step", "wg", "--option", "kernel=3", *options]) == 0
    assert json.loads(capsys.readouterr().out)["unmeasured_kernels"] == ["conv_direct_wg"]
