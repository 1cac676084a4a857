# SPDX-License-Identifier: Apache-2.0
"""Convolutions: defects of PULP-TrainLib that must not come back, its arrangements, groups, im2row by DMA.

The numbers of every option are checked by tests/trainlib/primitives/test_primitives.py; here stands why they
matter.
"""

import numpy as np
import pytest

from pulptrain.running.primitive_run import run_primitive
from shared.convolution_tasks import task_of, work_of
from shared.primitive_harness import Case, build, check_reference, check_tiles, run_tile
from trainlib.kernels import catalogue
from trainlib.primitives.definition import DrawnInput, Example

# What the library gets wrong (found by reading or running it): primitive, options, shape of the input.
DEFECTS = {
    "im2col-wg-ignores-padding": ("conv2d", {"out_channels": 3, "kernel": 3, "padding": 1}, (2, 6, 5)),
    "im2col-ig-assumes-stride-1": ("conv2d", {"out_channels": 3, "kernel": 3, "stride": 2}, (2, 7, 9)),
    "im2col-ig-assumes-no-padding": ("conv2d", {"out_channels": 3, "kernel": 3, "padding": 1}, (2, 4, 7)),
    "im2row-right-and-bottom-border-of-pad-2": (
        "conv2d",
        {"out_channels": 2, "kernel": 5, "padding": 2},
        (3, 6, 8),
    ),
    "im2row-refuses-sizes-the-stride-does-not-divide": (
        "conv2d",
        {"out_channels": 2, "kernel": 3, "stride": 2},
        (2, 8, 6),
    ),
    "output-count-evaluated-left-to-right": (
        "conv2d",
        {"out_channels": 2, "kernel": 2, "stride": [3, 2]},
        (1, 9, 8),
    ),
    "hwc-wg-transposes-with-swapped-sizes": (
        "conv2d",
        {"layout": "HWC", "out_channels": 5, "kernel": 3},
        (6, 7, 2),
    ),
    "hwc-im2row-has-no-padding": (
        "conv2d",
        {"layout": "HWC", "out_channels": 3, "kernel": 3, "padding": [1, 0, 2, 1]},
        (5, 4, 2),
    ),
    "fw-bias-added-twice": ("conv2d", {"out_channels": 4, "kernel": 3, "bias": True}, (2, 5, 6)),
    "wg-bias-gradient-sums-the-wrong-array": (
        "conv2d",
        {"out_channels": 4, "kernel": 3, "bias": True, "stride": [2, 1]},
        (2, 5, 6),
    ),
    "wg-bias-gradient-added-to-the-weights": (
        "conv2d",
        {"out_channels": 2, "kernel": 1, "bias": True},
        (3, 4, 4),
    ),
    "naive-ig-of-a-5x5-kernel": ("conv2d", {"out_channels": 2, "kernel": 5, "im2col": "none"}, (2, 9, 8)),
    "naive-ig-swaps-left-and-upper-padding": (
        "conv2d",
        {"out_channels": 2, "kernel": 3, "padding": [2, 0, 1, 0], "im2col": "none"},
        (2, 6, 5),
    ),
    "naive-bias-gradient-skips-padded-positions": (
        "conv2d",
        {"out_channels": 3, "kernel": 3, "padding": 1, "bias": True, "im2col": "none"},
        (2, 5, 4),
    ),
    "pointwise-ig-wrong-unless-ci-is-co": ("pointwise", {"out_channels": 5}, (3, 4, 6)),
    "pointwise-has-no-bias": ("pointwise", {"out_channels": 5, "bias": True}, (3, 4, 6)),
    "pointwise-ig-hwc-wrong-unless-ci-is-co": ("pointwise", {"layout": "HWC", "out_channels": 5}, (4, 6, 3)),
    "depthwise-fw-ignores-stride-without-padding": ("depthwise", {"kernel": 3, "stride": 2}, (3, 9, 7)),
    "depthwise-backward-ignores-padding": ("depthwise", {"kernel": 3, "padding": 1}, (3, 5, 6)),
    "depthwise-backward-ignores-stride": (
        "depthwise",
        {"kernel": 3, "stride": 2, "padding": 1, "bias": True},
        (3, 8, 6),
    ),
    "depthwise-has-no-hwc": ("depthwise", {"layout": "HWC", "kernel": 3, "padding": 1}, (5, 6, 3)),
    "transposed-order-of-weights-differs-between-steps": (
        "conv_transpose2d",
        {"out_channels": 4, "kernel": 3, "stride": 2},
        (2, 3, 4),
    ),
    "transposed-fw-and-ig-add-to-what-is-there": (
        "conv_transpose2d",
        {"out_channels": 2, "kernel": 2, "stride": 2, "bias": True},
        (3, 4, 3),
    ),
    "transposed-taps-outside-touch-memory": (
        "conv_transpose2d",
        {"out_channels": 2, "kernel": 3, "stride": 2, "padding": 2, "output_padding": 1},
        (2, 4, 5),
    ),
}


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("defect", DEFECTS)
def test_known_defect_of_the_library_is_not_ours(defect, dtype):
    """PyTorch confirms all steps; tiles (in buffers full of NaN, cut at random) confirm the lowering."""
    primitive, options, shape = DEFECTS[defect]
    case = Case(primitive, 0, Example(options, (shape,)), dtype, 2)
    check_reference(case)
    check_tiles(case)


# Matmul sizes of the library's test cases (its layer, layout, ci, h, w, co, kernel -> n, k, m per step).
ARRANGEMENTS = [
    ("conv2d", "CHW", (8, 8, 8), 8, 3, {"FW": (8, 72, 36), "WG": (8, 36, 72), "IG": (8, 72, 64)}),
    ("conv2d", "HWC", (8, 8, 8), 8, 3, {"FW": (36, 72, 8), "WG": (8, 36, 72), "IG": (64, 72, 8)}),
    ("conv2d", "CHW", (8, 10, 10), 8, 3, {"FW": (8, 72, 64), "WG": (8, 64, 72), "IG": (8, 72, 100)}),
    ("conv2d", "CHW", (8, 8, 8), 16, 3, {"FW": (16, 72, 36), "WG": (16, 36, 72)}),
    ("pointwise", "CHW", (3, 26, 26), 8, 1, {"FW": (8, 3, 676), "WG": (8, 676, 3), "IG": (3, 8, 676)}),
    ("pointwise", "HWC", (6, 6, 8), 8, 1, {"FW": (36, 8, 8), "WG": (8, 36, 8), "IG": (36, 8, 8)}),
]


@pytest.mark.parametrize(("primitive", "layout", "shape", "co", "kernel", "sizes"), ARRANGEMENTS)
@pytest.mark.parametrize("dtype", ["fp32", "fp16"])
def test_matmuls_are_those_of_the_library(monkeypatch, primitive, layout, shape, co, kernel, sizes, dtype):
    told = []
    priced = catalogue.matmul_work
    monkeypatch.setattr(
        catalogue,
        "matmul_work",
        lambda *names, **given: told.append({key: given[key] for key in "nkm"}) or priced(*names, **given),
    )
    options = {"layout": layout, "out_channels": co} | ({"kernel": kernel} if primitive == "conv2d" else {})
    for step, (n, k, m) in sizes.items():
        graph, _, task = task_of(primitive, options, shape, step, dtype=dtype)
        (call,) = (call for call in task.calls if call.macs)
        team = work_of(graph, task, call, 8)
        assert told.pop() == {"n": n, "k": k, "m": m}
        assert team.macs == n * k * m


@pytest.mark.parametrize(
    ("layout", "step", "kernels"),
    [
        ("CHW", "FW", ["im2row", "mm", "conv_bias_fw"]),
        ("CHW", "WG", ["im2row", "mm", "conv_bias_wg"]),
        ("CHW", "IG", ["im2row", "blocktransp", "mm"]),
        ("HWC", "FW", ["im2row", "mm", "conv_bias_fw"]),
        ("HWC", "WG", ["im2col", "transpose_matrix", "mm", "conv_bias_wg"]),
        ("HWC", "IG", ["im2row", "blocktransp", "mm"]),
    ],
)
@pytest.mark.parametrize("groups", [1, 2])
def test_passes_of_conv2d_in_order_one_fork_each_whatever_the_groups(layout, step, kernels, groups):
    options = {"layout": layout, "out_channels": 4, "kernel": 3, "bias": True, "groups": groups}
    _, _, task = task_of("conv2d", options, (6, 4, 6) if layout == "CHW" else (4, 6, 6), step)
    assert [call.kernel for call in task.calls] == kernels
    assert all(call.fork for call in task.calls)
    assert len(task.inputs) <= 3, "one operand per tensor, whatever the groups: DMA transfer IDs are few"


@pytest.mark.parametrize(
    ("step", "kernels"),
    [("FW", ["mm"]), ("WG", ["transpose_matrix"] * 2 + ["mm"]), ("IG", ["transpose_matrix", "mm"])],
)
def test_pointwise_of_16_bit_hwc_transposes_both_in_wg_and_of_fp32_one(step, kernels):
    options = {"layout": "HWC", "out_channels": 3}
    _, _, task = task_of("pointwise", options, (4, 5, 2), step, dtype="bf16")
    assert [call.kernel for call in task.calls] == kernels
    _, _, task = task_of("pointwise", options, (4, 5, 2), step)
    assert [call.kernel for call in task.calls] == kernels[-2:]


def test_a_tile_may_begin_and_end_inside_a_group():
    options = {"out_channels": 9, "kernel": 3, "groups": 3, "bias": True}
    graph, _, task = task_of("conv2d", options, (6, 5, 4), "FW", ranges={"co": (2, 8)})
    image, weights, bias = task.inputs
    assert image.region[1] == (0, 6), "channels of all three groups"
    assert weights.region[0] == bias.region[0] == task.outputs[0].region[1] == (2, 8)
    (call,) = (call for call in task.calls if call.macs)
    assert call.macs == 6 * 2 * 9 * 6
    assert work_of(graph, task, call, 1).macs == call.macs


@pytest.mark.parametrize(
    ("cut", "channels"),
    [((0, 1), (0, 3)), ((1, 2), None), ((1, 4), (3, 6)), ((0, 4), (0, 6)), ((3, 4), None)],
)
def test_a_group_s_bias_gradient_belongs_to_the_tile_that_begins_the_group(cut, channels):
    """Transposed, 4 channels in 2 groups to 6: WG is cut over the 4, while the bias has 6, 3 per group."""
    options = {"out_channels": 6, "kernel": 2, "groups": 2, "bias": True}
    _, _, task = task_of("conv_transpose2d", options, (4, 3, 3), "WG", ranges={"co": cut})
    biases = [operand.region for operand in task.outputs if operand.name == "db"]
    assert biases == ([(channels,)] if channels else [])
    assert ("conv_bias_wg" in [call.kernel for call in task.calls]) == bool(channels)


def test_im2row_by_dma_is_one_box_per_patch_and_no_work_for_the_cores():
    """All patches lie one behind the other in one buffer, which is the matrix."""
    options = {"out_channels": 3, "kernel": 3, "im2col": "dma"}
    _, _, task = task_of("conv2d", options, (2, 5, 6), "FW")
    (patches,) = (operand for operand in task.inputs if operand.tensor == "x")
    assert patches.boxes == tuple(
        ((0, 1), (0, 2), (row, row + 3), (column, column + 3)) for row in range(3) for column in range(4)
    )
    assert [call.kernel for call in task.calls] == ["mm"]
    assert task.calls[0].reads == ("w", f"x.patches[0:{3 * 4 * 18}]")
    assert task.scratch == ()


def test_patches_at_a_border_are_completed_by_the_cores():
    options = {"out_channels": 3, "kernel": 3, "padding": 1, "im2col": "dma"}
    _, _, task = task_of("conv2d", options, (2, 4, 5), "FW")
    assert [call.kernel for call in task.calls] == ["im2row_border", "mm"]
    assert task.calls[0].writes == (
        *("im2row_border[0:6]", "im2row_border[9:11]", "im2row_border[14:20]"),
    ), "all patches but the inner ones: 3 in each of the 2 inner rows of 5"
    (patches,) = (operand for operand in task.inputs if operand.tensor == "x")
    assert patches.boxes[0] == ((0, 1), (0, 2), (0, 2), (0, 2)), "only what there is is fetched"
    # The first row of patches is 2 rows high, 2 or 3 wide; an inner patch has all 18 elements.
    first_inner = 2 * 2 * (2 + 3 + 3 + 3 + 2) + 2 * 3 * 2
    assert task.calls[1].reads == (
        *("w", "im2row_border[0:6]", f"x.patches[{first_inner}:{first_inner + 54}]"),
        *("im2row_border[9:11]", f"x.patches[{first_inner + 78}:{first_inner + 132}]"),
        "im2row_border[14:20]",
    )


DMA = {"out_channels": 4, "kernel": 3, "im2col": "dma", "padding": [1, 0, 0, 1], "stride": 2}
HWC = {"layout": "HWC", "padding": 1, "dilation": 2, "stride": 1}


def test_a_large_im2row_by_dma_is_planned_as_fast_as_any():
    """1024 patches of a tile are one operand: what the planner looks at does not grow with them."""
    options = {"out_channels": 16, "kernel": 3, "padding": 1, "im2col": "dma"}
    for step in ("FW", "WG", "IG"):
        _, _, task = task_of("conv2d", options, (16, 32, 32), step)
        assert len(task.inputs) <= 3
        assert sum(len(call.reads) for call in task.calls) < 3 * 32 + 8, "runs of patches, not patches"


def test_a_wrong_group_would_be_noticed():
    """The test of the tests: the channels of two groups exchanged, and the numbers change."""
    options = {"out_channels": 4, "kernel": 3, "groups": 2}
    case = Case("conv2d", 0, Example(options, ((4, 5, 5),)), "fp32", 1)
    graph, values = build(case)
    outcomes = []
    for order in ([0, 1, 2, 3], [2, 3, 0, 1]):
        given = values | {"x": np.ascontiguousarray(values["x"][:, order])}
        _, op, task = task_of("conv2d", options, (4, 5, 5), "FW")
        results = {"conv2d.out": np.zeros((1, 4, 3, 3), np.float32)}
        written = {"conv2d.out": np.zeros((1, 4, 3, 3), int)}
        run_tile(op, graph.tensors, task, given, results, written)
        outcomes.append(results["conv2d.out"])
    assert not np.allclose(outcomes[0], outcomes[1], atol=1e-2)


@pytest.mark.parametrize(
    ("primitive", "step", "options", "shape"),
    [
        ("conv2d", "ig", {"out_channels": 8, "kernel": 3, "groups": 4, "padding": 1}, (8, 6, 6)),
        *(("conv2d", step, DMA | more, (6, 7, 5)) for step in ("fw", "wg", "ig") for more in ({}, HWC)),
        ("depthwise", "wg", {"kernel": 3, "bias": True}, (8, 8, 8)),
        ("pointwise", "ig", {"out_channels": 8}, (3, 6, 6)),
        (
            "conv_transpose2d",
            "fw",
            {"out_channels": 8, "kernel": 3, "stride": 2, "padding": 1, "bias": True},
            (8, 3, 3),
        ),
    ],
)
def test_steps_run_on_the_simulated_soc(primitive, step, options, shape):
    outcome = run_primitive(primitive, step, [DrawnInput(shape)], options)
    assert outcome.summary["functional"]["passed"]
    assert outcome.summary["cycles"] > outcome.summary["macs"] / 8
