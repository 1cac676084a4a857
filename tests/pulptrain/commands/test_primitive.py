# SPDX-License-Identifier: Apache-2.0
"""`pulptrain primitive`: one step alone, its numbers checked, its cycles accounted for."""

from __future__ import annotations

import pytest

from pulptrain.inputs.settings import Settings
from pulptrain.running.primitive_run import run_primitive
from shared.kept_plans import run_model
from shared.printed import printed, refused
from trainlib.primitives.definition import DrawnInput

CONV = {"out_channels": 16, "kernel": 3}


def test_a_step_alone_costs_what_it_costs_in_its_network() -> None:
    """Without code to fetch and without loads that the op before pushes: alone it has neither."""
    summary = run_model("tutorial-cnn", Settings(prefetch="off", icache="warm")).summary
    network = {op["name"]: op["cycles"] for op in summary["ops"]}
    alone = run_primitive("conv2d", "wg", [DrawnInput((8, 8, 8))], CONV).summary
    assert alone["ops"][0]["cycles"] == network["conv1.WG"]
    assert alone["macs"] == 41472
    assert alone["functional"]["checked_against"] == "PyTorch"


@pytest.mark.parametrize("step", ["fw", "wg", "ig"])
@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("accumulation", ["reference", "kernel"])
def test_numbers_cycles_and_stalls_of_every_step(step: str, dtype: str, accumulation: str) -> None:
    summary = run_primitive(
        "linear",
        step,
        [DrawnInput((20,))],
        {"out_features": 12, "bias": True},
        batch=3,
        dtype=dtype,
        accumulation=accumulation,
        settings=Settings(cores=4, l1="10KiB"),
    ).summary
    assert summary["functional"]["passed"]
    for core in summary["per_core"]:
        busy = core["cycles"] - sum(core["stalls"].values())
        assert 0 < busy <= core["cycles"]
    assert len(summary["per_core"]) == 4


def test_16_bit_data_moves_half_the_bytes() -> None:
    for dtype, element_bytes in (("fp32", 4), ("fp16", 2), ("bf16", 2)):
        roomy = Settings(l1="256KiB", buffering="single")
        result = run_primitive("conv2d", "fw", [DrawnInput((8, 8, 8))], CONV, dtype=dtype, settings=roomy)
        # One tile: the image and 16 filters of 8x3x3 in, 16 images of 6x6 out.
        assert result.summary["bytes_in"] == element_bytes * (8 * 8 * 8 + 16 * 8 * 3 * 3)
        assert result.summary["bytes_out"] == element_bytes * 16 * 6 * 6


@pytest.mark.smoke
def test_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    conv = ["primitive", "conv2d", "--shape", "4x8x8", "--option", "out_channels=8"]
    summary = printed(capsys, *conv, "--option", "kernel=3", "--step", "ig", "--kernel", "mm_unroll_2x2")
    assert (summary["step"], summary["kernel"]) == ("IG", "mm_unroll_2x2")
    assert summary["instructions"] == sum(core["instructions"] for core in summary["per_core"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["conv2d", "--shape", "4x8x8", "--option", "kernel=3"], "conv2d needs --option out_channels="),
        (["relu", "--shape", "4x8x8", "--step", "wg"], "relu has no step 'wg'"),
        (["relux", "--shape", "4"], "try: use 'relu'"),
        (["relu", "--shape", "4x0"], "a size in '4x0' is 0 or too large"),
        (["relu", "--shape", "4", "--dtype", "fp8"], "unknown dtype 'fp8'"),
        (["relu", "--shape", "4", "--option", "slope"], "'slope' is not NAME=VALUE"),
        (["flatten", "--shape", "4"], "flatten only changes the shape and runs no code"),
        (["relu", "--shape", "4", "--batch", "0"], "must be 1 or more"),
    ],
)
def test_bad_requests_say_what_to_change(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in refused(capsys, "primitive", *arguments)


def test_a_step_made_of_several_is_run_as_a_whole_or_one_of_them_alone() -> None:
    options, inputs = {"heads": 2}, [DrawnInput((6, 8))]
    forward = run_primitive("mhsa", "fw", inputs, options).summary
    steps = [op["step"] for op in forward["ops"]]
    assert steps == ["FW_Q", "FW_K", "FW_V", "FW_SCORES", "FW_SOFTMAX", "FW_CONTEXT", "FW"]
    assert forward["step"] == "FW"
    assert len(forward["functional"]["tensors"]) == 7
    (scores,) = run_primitive("mhsa", "fw_scores", inputs, options).summary["ops"]
    assert scores["name"] == "mhsa.FW_SCORES"
    assert scores["macs"] == 6 * 8 * 6
