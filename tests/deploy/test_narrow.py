# SPDX-License-Identifier: Apache-2.0
"""16-bit elements in portable C: conversions are those of NumPy and ml_dtypes, bit for bit."""

from __future__ import annotations

import ctypes
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest

from configs.dtypes import BF16, FP16, DType
from configs.model_file import load_model
from deploy.calls.call import c_calls
from shared.c_kernels import action_of, check_action, laid_out
from shared.exported import exported, made, written
from shared.paths import ROOT
from trainlib.ir.graph import Op
from trainlib.ir.steps import KernelChoice
from trainlib.primitives.lowering.calls import factors, matmul_call
from trainlib.primitives.lowering.kernel_call import Piece
from trainlib.references.reference import accuracy
from trainlib.training.training_data import samples_of

BOTH = """
#include "kernel.h"
void widen_fp16(const uint16_t *x, float *y, int n) { while (n--) y[n] = pt_from_fp16((pt_fp16){x[n]}); }
void widen_bf16(const uint16_t *x, float *y, int n) { while (n--) y[n] = pt_from_bf16((pt_bf16){x[n]}); }
void narrow_fp16(const float *x, uint16_t *y, int n) { while (n--) y[n] = pt_to_fp16(x[n]).bits; }
void narrow_bf16(const float *x, uint16_t *y, int n) { while (n--) y[n] = pt_to_bf16(x[n]).bits; }
"""
NO_OP = Op("", "", "", "", (), ())
ALL = np.arange(1 << 16, dtype=np.uint16)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    folder = tmp_path_factory.mktemp("narrow")
    (folder / "both.c").write_text(BOTH)
    command = ["gcc", "-std=c99", "-O2", "-Wall", "-Wextra", "-Werror", f"-I{ROOT / 'deploy/kernels'}"]
    subprocess.run([*command, "-fPIC", "-shared", "both.c", "-o", "both.so"], cwd=folder, check=True)
    return ctypes.CDLL(str(Path(folder) / "both.so"))


def converted(library: ctypes.CDLL, function: str, array: np.ndarray, kind: type) -> np.ndarray:
    result = np.empty(array.shape, kind)
    pointers = (ctypes.c_void_p(each.ctypes.data) for each in (array, result))
    getattr(library, function)(*pointers, ctypes.c_int(array.size))
    return result


def between(wide: np.ndarray) -> np.ndarray:
    """Every number, the middle to its neighbour, and the fp32 numbers on both sides of that."""
    finite = np.sort(wide[np.isfinite(wide)])
    middles = ((finite[:-1].astype(np.float64) + finite[1:]) / 2).astype(np.float32)
    sides = [np.nextafter(middles, np.float32(way)) for way in (-np.inf, np.inf)]
    edges = [np.float32([np.inf, -np.inf, 3.4e38, -3.4e38, 65519.99, 65520, 1e-45, -1e-45, 2.0**-25])]
    return np.concatenate([finite, middles, *sides, *edges])


@pytest.mark.needs_gcc
@pytest.mark.parametrize("dtype", [FP16, BF16], ids=["fp16", "bf16"])
def test_all_numbers_and_all_ties_are_converted_as_the_simulator_does(
    dtype: DType, library: ctypes.CDLL
) -> None:
    kind = np.dtype(dtype)
    wide = converted(library, f"widen_{dtype.word}", ALL, np.float32)
    truth = ALL.view(kind).astype(np.float32)
    nan = np.isnan(truth)
    assert np.array_equal(wide[~nan].view(np.uint32), truth[~nan].view(np.uint32))
    assert np.isnan(wide[nan]).all()
    with np.errstate(over="ignore"):
        drawn = np.random.default_rng(1).integers(0, 1 << 32, 100_000, np.uint32).view(np.float32)
        for numbers in (between(wide), drawn[~np.isnan(drawn)]):
            rounded = converted(library, f"narrow_{dtype.word}", numbers, np.uint16)
            assert np.array_equal(rounded, numbers.astype(kind).view(np.uint16))
    assert np.isnan(converted(library, f"narrow_{dtype.word}", wide[nan], np.uint16).view(kind)).all()


@pytest.mark.needs_gcc
@pytest.mark.parametrize("kernel", ["mm_M_fp16_SIMD_4x8", "mm_fp16_SIMD_2x4", "asm16_T_2x2"])
@pytest.mark.parametrize("dtype", [FP16, BF16], ids=["fp16", "bf16"])
def test_two_lanes_of_a_packed_product_are_rounded_term_by_term(dtype: DType, kernel: str) -> None:
    """Leftovers and an odd k; ties decided by a term too small for fp32, in bf16 for double too."""
    n, k, m, drawn = 35, 7, 67, np.random.default_rng(1).normal(0, 30, (102, 7)).astype(dtype.name)
    drawn[[0, 1, n]] = 0
    tiny, tie = (2.0**-24, 293) if dtype is FP16 else (2.0**-80, 37)
    drawn[[0, 1], 0], drawn[[0, 1], 2], drawn[n, [0, 2]] = (tiny, -tiny), 7, (1, tie)
    codegen = "asm-xpulp" if kernel.startswith("asm") else "clang-xpulp"
    tile = laid_out({"a": drawn[:n], "b": drawn[n:], "c": np.zeros((n, m), dtype.name)})
    pieces = (*factors("a", "b", n, k, m, trans_b=True), Piece("c", (n, m)))
    call = matmul_call(KernelChoice(kernel, codegen, "kernel", 8), *pieces, dtype, trans_b=True)
    action = action_of(call, tile, 8)
    assert [one.kernel for one in c_calls(action, NO_OP)] == [f"mm_lanes_{dtype.word}_sums"]
    assert check_action(action, NO_OP, tile, kernel)


@pytest.mark.needs_gcc
def test_an_export_that_sums_in_16_bit_has_the_products_of_the_simulator(tmp_path: Path) -> None:
    run = exported("simple-mlp", dtype="fp16", accumulation="kernel")
    ended = made(written(run.project(), tmp_path / "net"), ["SEEDS=1", "VERBOSE=1"])
    assert ended.returncode == 0
    assert re.findall(r"^fc\d\.(?:FW|WG|IG) \S+: (\w+)", ended.stdout, re.MULTILINE) == ["equal"] * 10


@pytest.mark.needs_gcc
def test_an_export_in_16_bit_passes_its_check_and_a_lost_update_fails_it(tmp_path: Path) -> None:
    folder = written(exported("simple-mlp", dtype="bf16").project(), tmp_path / "net")
    assert made(folder, ["SEEDS=1 5 7"]).returncode == 0
    source = next((folder / "kernels").glob("sgd_*.c"))
    source.write_text(source.read_text().replace("= arg->learning_rate", "= 0.0f"))
    ended = made(folder, ["SEEDS=1"])
    assert ended.returncode == 2
    assert "fc2.UPD fc2.weight_updated: WRONG" in ended.stdout


@pytest.mark.slow
@pytest.mark.needs_gcc
def test_a_network_in_bf16_learns_in_c_what_it_learns_in_the_simulator(tmp_path: Path) -> None:
    run = exported("digits-cnn", iterations=1000, dtype="bf16")
    folder = written(run.project(), tmp_path / "net")
    assert made(folder, ["SEEDS=7", "DEFINES=-DKEEP='\"trained.bin\"'"]).returncode == 0
    graph, trained = run.outcome.schedule.graph, (folder / "trained.bin").read_bytes()
    digits, weights = samples_of(load_model("digits-cnn")), {}
    assert digits is not None
    for name in run.recorded.kept:
        size_bytes = graph.tensors[name].size_bytes
        weights[name] = np.frombuffer(trained[:size_bytes], graph.tensors[name].dtype)
        weights[name] = weights[name].reshape(graph.tensors[name].shape)
        trained = trained[size_bytes:]
    images, classes = np.asarray(digits.test_inputs), np.asarray(digits.test_labels)
    ours = accuracy(graph, weights, images.astype(BF16), classes)
    theirs = run.outcome.summary["training"]["test_accuracy"]
    assert theirs > 0.9
    assert abs(ours - theirs) <= 1 / len(classes)
