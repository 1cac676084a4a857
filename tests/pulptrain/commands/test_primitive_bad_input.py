# SPDX-License-Identifier: Apache-2.0
"""Bad input of a primitive, as a user meets it: exit code 2 and a text that says what is wrong."""

from __future__ import annotations

import re

import numpy as np
import pytest

from shared.printed import printed, refused

CONV = ["conv2d", "--shape", "4x8x8", "--option", "out_channels=8"]

REFUSED = {
    "shapes of a matmul": ("matmul --shape 4x5 --shape 6x7", r"the first has 5 columns, the second 6 rows"),
    "shapes of a sum": ("add --shape 4x5 --shape 6x7", r"the inputs of add must have the same shape"),
    "shapes of a broadcast": ("broadcast_add --shape 4x5 --shape 4x6", r"\(4, 5\)|shape"),
    "shapes of a concat": ("concat --shape 4x5 --shape 6x7", r"cannot join \(6, 7\) to \(4, 5\)"),
    "no image": ("conv2d --shape 8 --option out_channels=8 --option kernel=3", r"needs an image"),
    "split that does not add up": (
        "split --shape 4x8 --option sizes=[1,2]",
        r"add up to 3, but axis 0 has 4",
    ),
    "reshape": ("reshape --shape 4x8 --option shape=[5,5]", r"cannot reshape"),
    "axes of a transposition": (
        "transpose --shape 2x4 --option axes=[0,0]",
        r"must be a permutation of the dimensions",
    ),
    "stride 0": ([*CONV, "--option", "kernel=3", "--option", "stride=0"], r"stride is 0, but"),
    "dilation 0": ([*CONV, "--option", "kernel=3", "--option", "dilation=0"], r"dilation is 0, but"),
    "stride 0 of a pooling": (
        "avg_pool2d --shape 6x4x4 --option kernel=2 --option stride=0",
        r"stride.* is 0",
    ),
    "stride 0, transposed": (
        "conv_transpose2d --shape 6x4x4 --option kernel=2 --option out_channels=4 --option stride=0",
        r"stride is 0, but",
    ),
    "kernel larger than the padded input": (
        [*CONV, "--option", "kernel=11", "--option", "padding=1"],
        r"kernel 11x11 is larger than the padded input 10x10",
    ),
    "kernel of a depthwise": ("depthwise --shape 6x4x4 --option kernel=7", r"7x7 is larger than .* 4x4"),
    "kernel of a pooling": ("max_pool2d --shape 6x4x4 --option kernel=5", r"window 5 is larger than"),
    "groups that do not divide": (
        [*CONV, "--option", "kernel=3", "--option", "groups=3"],
        r"groups: 3 does not divide the 4 input channels",
    ),
    "groups of a norm": ("group_norm --shape 6x4x4 --option groups=4", r"4 does not divide the 6 channels"),
    "heads": ("mhsa --shape 6x8 --option heads=3", r"8 features cannot be divided among 3 heads"),
    "number out of the vocabulary": (
        "embedding --shape 4:int32:20 --option vocabulary=10 --option features=4",
        r"embedding\.FW: the input holds the number 1\d, but the vocabulary has 10 entries",
    ),
}


@pytest.mark.parametrize(("arguments", "message"), REFUSED.values(), ids=REFUSED)
def test_options_and_shapes(arguments, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = arguments.split() if isinstance(arguments, str) else arguments
    error = refused(capsys, "primitive", *words)
    assert re.search(message, error)


@pytest.fixture
def values(tmp_path):
    """Writes an .npz file and gives its path."""

    def write(**arrays: np.ndarray) -> str:
        path = tmp_path / "values.npz"
        np.savez(path, **arrays)
        return str(path)

    return write


def test_nan_in_the_input_is_reported_with_the_op_that_reads_it(values, capsys) -> None:
    image = np.ones((1, 4, 8, 8), np.float32)
    image[0, 2, 3, 4] = np.nan
    for step in ("fw", "wg"):
        given = ["--values", values(x=image), "--step", step]
        assert re.search(
            r"op conv2d\.FW reads tensor 'x', which holds NaN",
            refused(capsys, "primitive", *CONV, "--option", "kernel=3", *given),
        )


@pytest.mark.parametrize("label", [-1, 10])
def test_a_label_out_of_range_is_reported_by_the_loss(label: int, values, capsys) -> None:
    given = values(label=np.array([3, label], np.int32))
    words = "cross_entropy --step loss --shape 10 --batch 2 --option labels=hard --values"
    assert re.search(
        rf"LOSS: label {label} is not a class", refused(capsys, "primitive", *words.split(), given)
    )


def test_values_of_the_user_s_own_are_what_is_computed(values, capsys) -> None:
    """The largest error is 0: relu of small integers is exact."""
    given = values(x=np.arange(-4, 4, dtype=np.float32).reshape(1, 8))
    summary = printed(capsys, "primitive", "relu", "--shape", "8", "--values", given)
    assert summary["functional"]["max_abs_error"] == 0


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"y": np.ones(8)}, "unknown tensor 'y'"),
        ({"x": np.ones(8)}, r"'x' has shape \(8,\), but must have shape \(1, 8\)"),
        ({"x": np.array([["a"] * 8])}, "'x' must hold real numbers, but has dtype <U1"),
    ],
)
def test_values_that_do_not_fit_are_refused(arrays, message: str, values, capsys) -> None:
    assert re.search(
        message, refused(capsys, "primitive", "relu", "--shape", "8", "--values", values(**arrays))
    )


def test_a_mask_that_is_neither_0_nor_1_is_refused(values, capsys) -> None:
    given = values(**{"dropout.mask": np.full((1, 8), 2**63 + 1, np.uint64)})
    assert "use only 0 and 1" in refused(
        capsys, "primitive", "dropout", "--step", "ig", "--shape", "8", "--values", given
    )


def test_a_file_that_holds_no_arrays_is_refused(tmp_path, capsys) -> None:
    path = tmp_path / "values.npz"
    path.write_text("x = 1", encoding="utf-8")
    missing = tmp_path / "none.npz"
    for name, told in ((path, "cannot read"), (missing, f"the file '{missing}' does not exist")):
        assert told in refused(capsys, "primitive", "relu", "--shape", "8", "--values", str(name))


def test_a_command_that_is_advised_has_the_step_and_the_options_that_were_typed(capsys):
    machine = "--soc gap9 --set dma.burst_bytes=64"
    told = refused(capsys, "primitive", "linear", "--step", "wg", "--dtype", "fp16", *machine.split())
    assert (
        f"pulptrain primitive linear --dtype fp16 {machine} --step wg --shape 9 --option out_features=5"
        in told
    )
    assert "primitive linear --shape" in refused(capsys, "primitive", "linear")
    assert "linear --step fw" in refused(capsys, "primitive", "linear", "--step", "fw")
    assert "mse --step loss" in refused(capsys, "primitive", "mse")
