# SPDX-License-Identifier: Apache-2.0
"""8-bit formats from end to end: storage of a byte, arithmetic in fp32 or fp16, right numbers, a price."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from arch.spec.isa import FPU_OPS, CoreWork, Instruction, Loop, Op
from configs.dtypes import BY_WORD, element_bytes
from configs.errors import InputError, NotFiniteError
from configs.model_file import load_model
from configs.values import replace
from pulptrain.inputs.settings import Settings
from pulptrain.running.primitive_run import run_primitive
from pulptrain.running.session import run_prepared
from shared.kept_plans import prepare, run_model
from shared.tampering import tampered
from trainlib.ir.numerics import matmul
from trainlib.kernels.catalogue import matmul_work
from trainlib.kernels.team import Array, team_work
from trainlib.primitives.definition import DrawnInput
from trainlib.training.phases import build_training_graph

FORMATS = ("fp8_e4m3", "fp8_e5m2")
CODEGEN = "clang-xpulp"
BOTH = pytest.mark.parametrize("dtype", FORMATS)


@BOTH
@pytest.mark.parametrize(
    ("primitive", "step", "shape", "options"),
    [
        *(("linear", step, (12,), {"out_features": 7}) for step in ("fw", "wg", "ig")),
        *(("conv2d", step, (3, 6, 5), {"out_channels": 4, "kernel": 3}) for step in ("fw", "wg", "ig")),
        *(("relu", step, (3, 6, 5), {}) for step in ("fw", "ig")),
    ],
)
def test_a_step_alone_is_right_in_8_bits(dtype, primitive, step, shape, options) -> None:
    summary = run_primitive(primitive, step, [DrawnInput(shape)], options, batch=2, dtype=dtype).summary
    assert summary["functional"]["passed"] is True
    wide = run_primitive(primitive, step, [DrawnInput(shape)], options, batch=2, dtype="fp32").summary
    (ours,), (theirs,) = summary["ops"], wide["ops"]
    assert (4 * ours["bytes_in"], 4 * ours["bytes_out"]) == (theirs["bytes_in"], theirs["bytes_out"])


@BOTH
@pytest.mark.parametrize("model", ["simple-mlp", pytest.param("digits-cnn", marks=pytest.mark.slow)])
def test_a_network_trains_in_8_bits(dtype: str, model: str) -> None:
    outcome = run_model(model, Settings(dtype=dtype), iterations=1)
    functional = outcome.summary["functional"]
    assert functional["passed"] is True
    assert outcome.summary["not_finite"] is None
    stored = {tensor.dtype for name, tensor in outcome.schedule.graph.tensors.items() if "weight" in name}
    assert stored == {BY_WORD[dtype].name}


@BOTH
def test_numbers_are_right_whether_sums_are_in_fp32_or_in_fp16(dtype: str) -> None:
    for accumulation in ("reference", "kernel"):
        outcome = run_primitive(
            "linear", "fw", [DrawnInput((300,))], {"out_features": 16}, dtype=dtype, accumulation=accumulation
        )
        assert outcome.summary["functional"]["passed"] is True


def test_a_broken_run_is_refused_and_overflow_is_told() -> None:
    settings = Settings(dtype="fp8_e4m3")
    prepared = tampered(prepare("simple-mlp", settings), "fc1.WG", lambda array: array * np.float32(0.9))
    functional = run_prepared(prepared, settings).summary["functional"]
    assert [item["name"] for item in functional["tensors"] if item["verdict"] == "failed"] == [
        "fc1.weight.grad"
    ]
    graph = build_training_graph(replace(load_model("simple-mlp"), dtype="fp8_e4m3"))
    large = {"fc1.weight": np.full(graph.tensors["fc1.weight"].shape, 448, np.float32)}
    with pytest.raises(NotFiniteError, match="too large for float8_e4m3fn"):
        run_model("simple-mlp", settings, values=large)


def test_a_layer_of_a_model_may_have_8_bits_alone(tmp_path: Path) -> None:
    path = tmp_path / "model.yaml"
    path.write_text(
        "{name: some, description: d, source: s, input: {shape: [6]}, dataset: random, loss: mse, optimizer: "
        "{name: sgd, learning_rate: 0.1}, batch: 1, dtype: fp16, layers: [{name: a, type: linear, "
        "out_features: 5}, {name: b, type: linear, out_features: 3, dtype: fp8_e5m2}]}"
    )
    outcome = run_model(str(path))
    tensors = outcome.schedule.graph.tensors
    assert (tensors["a.weight"].dtype, tensors["b.weight"].dtype) == ("float16", "float8_e5m2")
    assert outcome.summary["functional"]["passed"] is True


@BOTH
def test_a_kernel_sums_8_bit_products_in_fp16(dtype: str) -> None:
    kind = BY_WORD[dtype]
    ones = np.ones((1, 4096), kind)
    assert matmul(ones, ones.T, dtype=kind) == 4096
    assert matmul(ones, ones.T, dtype=kind, accumulation="kernel") == 2048, "2048 + 1 is 2048 in fp16"


def instructions(work: CoreWork) -> list[Instruction]:
    found: list[Instruction] = []
    waiting = list(work.body)
    while waiting:
        node = waiting.pop(0)
        if isinstance(node, Loop):
            waiting = [*node.body, *waiting]
        else:
            found.append(node)
    return found


def test_every_byte_is_converted_when_it_is_loaded_and_before_it_is_stored() -> None:
    def listing(dtype: str) -> list[Instruction]:
        team = matmul_work(
            "mm", CODEGEN, 4, 8, 6, False, 1, 0, 1000, 2000, element_bytes=element_bytes(dtype)
        )
        assert team.cores[0] is not None
        return instructions(team.cores[0])

    plain, ours = listing("bfloat16"), listing("float8_e4m3fn")
    streams = [item for item in ours if item.stream >= 0]
    assert {item.width_bytes for item in streams} == {1}
    assert len(ours) == len(plain) + len(streams)
    for at, item in enumerate(ours):
        if item.op == Op.STORE and item.stream >= 0:
            assert (ours[at - 1].op, ours[at - 1].dst) == (Op.FP, item.srcs[0])
        if item.op == Op.LOAD and item.stream >= 0:
            users = [other for other in ours[at + 1 :] if item.dst in other.srcs]
            assert users[0] == Instruction(Op.FP, item.dst, (item.dst,)), "before anything else uses it"


def test_what_only_moves_numbers_converts_none() -> None:
    works = [
        team_work(
            CODEGEN,
            "copy",
            {"elements": 64},
            {"X": Array(0, (1,), size), "Y": Array(512, (1,), size)},
            1,
            element_bytes=size,
        ).cores[0]
        for size in (2, 1)
    ]
    assert all(work is not None for work in works)
    plain, ours = (instructions(work) for work in works if work is not None)
    assert [item.op for item in ours] == [item.op for item in plain]
    assert not any(item.op in FPU_OPS for item in ours)


def test_a_16_bit_kernel_is_not_given_8_bit_data() -> None:
    with pytest.raises(InputError, match="'mm_fp16' needs elements of 2 bytes, not 1"):
        matmul_work("mm_fp16", CODEGEN, 4, 8, 6, True, 1, 0, 1000, 2000, element_bytes=1)
