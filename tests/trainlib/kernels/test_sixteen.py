# SPDX-License-Identifier: Apache-2.0
"""16-bit data is priced by kernels for 16-bit data, files or described ones, and never by fp32 nests."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from arch.spec.isa import Instruction, Loop, Node
from arch.spec.soc_config import load_soc
from configs.dtypes import element_bytes, is_float
from configs.errors import InputError
from configs.model_file import load_model
from configs.values import replace
from pulptrain.inputs.settings import Settings
from scheduler.tuner.search_space import Question
from scheduler.tuner.task import task_of
from shared.kept_plans import run_model
from shared.primitive_harness import CODEGEN, Case, build, cases_of
from shared.tiers import sweep_nine_of_ten
from trainlib.ir.steps import KernelChoice, find_part
from trainlib.kernels.catalogue import default_matmul, kernel_names, matmul_work
from trainlib.kernels.evidence import nest_evidence
from trainlib.kernels.library import LIBRARY, sibling
from trainlib.kernels.team import Array, team_work
from trainlib.registry import PRIMITIVES, lowering_of, matmul_of, matmuls_of
from trainlib.training.phases import build_training_graph

NARROW = [case for primitive in PRIMITIVES.values() for case in cases_of(primitive) if case.dtype == "fp16"]


def accesses(nodes: tuple[Node, ...]) -> Iterator[Instruction]:
    for node in nodes:
        if isinstance(node, Loop):
            yield from accesses(node.body)
        elif node.stream >= 0:
            yield node


@pytest.mark.parametrize("case", sweep_nine_of_ten(NARROW, lambda case: case.primitive))
def test_every_call_on_16_bit_data_runs_a_kernel_for_16_bit_data(case: Case) -> None:
    graph, _ = build(case)
    for op in graph.ops:
        lowering = lowering_of(op)
        kernel = matmul_of(op, graph.tensors, CODEGEN)
        whole = {name: (0, size) for name, size in lowering.extents(op, graph.tensors).items()}
        task = lowering.tile(op, graph.tensors, whole, KernelChoice(kernel, CODEGEN))
        formats = {box.name: graph.tensors[box.tensor].dtype for box in (*task.inputs, *task.outputs)}
        formats |= {scratch.name: scratch.dtype for scratch in task.scratch}
        shapes = {box.name: box.shape for box in (*task.inputs, *task.outputs)}
        shapes |= {scratch.name: scratch.shape for scratch in task.scratch}
        for call in task.calls:
            used = dict.fromkeys((*call.reads, *call.writes), 0)
            team = call.work(2, {**dict.fromkeys(shapes, 0), **used})
            dtypes = {formats[find_part(name, shapes.__getitem__)[0]] for name in used}
            narrowest = min((element_bytes(dtype) for dtype in dtypes if is_float(dtype)), default=4)
            header = LIBRARY.header(CODEGEN, team.kernel)
            assert header.element_bytes == narrowest, (op.name, team.kernel)
            assert narrowest == 4 or nest_evidence(CODEGEN, team.kernel).label != "measured", (
                "no compiled 16-bit kernel was ever measured"
            )


def test_an_fp32_nest_refuses_16_bit_data() -> None:
    arrays = {"X": Array(0, element_bytes=2), "Y": Array(4096)}
    with pytest.raises(InputError, match="X has elements of 2 bytes"):
        team_work("clang-xpulp", "relu_fw", {"elements": 8}, arrays, 1)
    with pytest.raises(InputError, match="'mm_fp16' needs elements of 2 bytes, not 4") as error:
        matmul_work("mm_fp16", "clang-xpulp", 4, 4, 4, False, 1, 0, 64, 128, element_bytes=4)
    assert "mm_unroll_2x2" in str(error.value)


def test_a_described_kernel_is_its_fp32_one_with_narrower_accesses() -> None:
    arrays = {name: Array(address, element_bytes=2) for name, address in (("X", 0), ("Y", 4096))}
    wide = team_work("clang-xpulp", "relu_fw", {"elements": 9}, {"X": Array(0), "Y": Array(4096)}, 2)
    team = team_work("clang-xpulp", "relu_fw", {"elements": 9}, arrays, 2, element_bytes=2)
    assert (wide.kernel, team.kernel) == ("relu_fw", "relu_fw_fp16")
    for before, after in zip(wide.cores, team.cores, strict=True):
        assert before is not None
        assert after is not None
        found = [item.width_bytes for item in accesses(after.body)]
        assert found == [2] * len(list(accesses(before.body)))
        assert [stream.strides_bytes for stream in after.streams] == [(2,)] * len(after.streams)
    header = LIBRARY.header("clang-xpulp", "relu_fw_fp16")
    assert (nest_evidence("clang-xpulp", "relu_fw_fp16").label, header.element_bytes) == ("described", 2)
    assert header.about.startswith("described, relu_fw")


def test_its_statistics_may_stay_in_fp32() -> None:
    arrays = {"X": Array(0, (8, 1), 2), "R": Array(4096)}
    sizes = {"rows": 4, "segments": 1, "elements": 8, "affine": 0, "biased": 0, "per_element": 0}
    team = team_work("clang-xpulp", "rmsnorm_sum", sizes, arrays, 1, element_bytes=2)
    (core,) = team.cores
    assert core is not None
    assert {item.width_bytes for item in accesses(core.body)} == {2, 4}


def test_a_fallback_of_a_16_bit_kernel_is_for_16_bit_data_too() -> None:
    team = matmul_work("mm_unroll_4x4", "clang-rv32", 3, 3, 3, False, 2, 0, 64, 128, element_bytes=2)
    assert team.kernel == "mm_fp16_unroll_4x4"
    assert all(
        item.width_bytes == 2 for core in team.cores if core is not None for item in accesses(core.body)
    )


@pytest.mark.parametrize("codegen", LIBRARY.codegen_names())
def test_the_default_is_packed_where_the_codegen_has_a_packed_kernel(codegen: str) -> None:
    for name in ("mm", "mm_M", "mm_unroll_4x1"):
        found = default_matmul(codegen, name, 2)
        own = LIBRARY.kernel_names(codegen)
        assert LIBRARY.header(codegen, found).element_bytes == 2
        assert ("SIMD" in found) == (name != "mm_unroll_4x1" and f"{sibling(name, 2)}_SIMD_2x4" in own)
        assert default_matmul(codegen, name, 4) == name


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
def test_tune_searches_the_kernels_of_the_dtype_and_no_other(dtype: str) -> None:
    graph = build_training_graph(replace(load_model("digits-cnn"), dtype=dtype))
    op = next(op for op in graph.ops if op.name == "conv1.FW")
    question = Question(task_of(graph, op), load_soc("pulp-open"), "clang-xpulp")
    assert question.kernels() == kernel_names("clang-xpulp", dtype)
    sizes = {LIBRARY.header("clang-xpulp", name).element_bytes for name in question.kernels()}
    assert sizes == {4 if dtype == "fp32" else 2}
    assert question.default_kernel in question.kernels()


def test_a_kernel_chosen_by_its_fp32_name_runs_in_its_16_bit_form() -> None:
    settings = Settings(dtype="fp16", kernels=("FW=mm_unroll_2x2", "WG=mm_fp16_SIMD_4x8"))
    outcome = run_model("tutorial-cnn", settings)
    assert outcome.summary["functional"]["passed"]
    used = {op["name"]: op["kernel"] for op in outcome.summary["ops"] if op["kernel"]}
    assert used["conv1.FW"] == "mm_fp16_unroll_2x2"
    assert used["conv1.WG"] == "mm_fp16_SIMD_4x8"
    assert used["fc.IG"] == "mm_M_fp16_SIMD_2x4"
    labels = {item.work.what for item in outcome.slices}
    assert {"mm_fp16_unroll_2x2", "im2row_fw_fp16", "relu_fw_fp16"} <= labels
    assert {"mm_fp16_unroll_2x2", "im2row_fw_fp16"} <= set(outcome.summary["unmeasured_kernels"])


def test_a_16_bit_kernel_for_an_fp32_layer_is_refused_by_name() -> None:
    settings = Settings(dtype="fp32", kernels=("FW=mm_fp16",))
    with pytest.raises(InputError, match=re.escape("'mm_fp16' needs elements of 2 bytes")):
        run_model("tutorial-cnn", settings, functional=False)


def test_a_listing_has_no_16_bit_form() -> None:
    with pytest.raises(InputError, match="'asm_2x4' needs elements of 4 bytes") as error:
        LIBRARY.named("asm-xpulp", "asm_2x4", 2)
    assert "asm16_2x4" in str(error.value)
    graph = build_training_graph(replace(load_model("digits-cnn"), dtype="fp16"))
    op = next(op for op in graph.ops if op.name == "conv1.FW")
    found = matmuls_of(op, graph.tensors, "asm-xpulp")
    assert {"asm16_2x4", "mm_fp16"} <= set(found)
    assert not any(name.startswith("asm_") for name in found)
