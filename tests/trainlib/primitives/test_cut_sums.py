# SPDX-License-Identifier: Apache-2.0
"""Convolutions and pooling cut along everything: sums, rows, columns, samples; halos; what counts only once.

That any cut gives the right numbers is checked for all primitives by
tests/trainlib/primitives/test_primitives.py, whose harness adds the parts of a sum as
`trainlib.ir.steps.StepLowering` says. Here stands what is cut, how small a tile can become, and that the
harness would notice a wrong part.
"""

import itertools
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from configs.dtypes import is_float
from shared import primitive_harness
from shared.oracle_torch import evaluate_torch
from shared.primitive_harness import Case, assert_close, build, run_op
from trainlib.ir.access import Index, Term
from trainlib.ir.steps import KernelChoice
from trainlib.primitives.definition import Example
from trainlib.references.reference import evaluate
from trainlib.registry import lowering_of
from truth.source import torch_available

CHOICE = KernelChoice("mm", "clang-xpulp")


def steps_of(primitive, options, shape, *, batch=1, dtype="fp32"):
    """(graph, ops by step, values of the given tensors)."""
    graph, values = build(Case(primitive, 0, Example(options, (shape,)), dtype, batch))
    return graph, {op.step: op for op in graph.ops}, values


def task_of(graph, op, **ranges):
    return lowering_of(op).tile(op, graph.tensors, dimensions(graph, op)[0] | ranges, CHOICE)


def dimensions(graph, op):
    """Extents and reductions of an op, as whole intervals."""
    lowering = lowering_of(op)
    extents, sums = lowering.extents(op, graph.tensors), lowering.reductions(op, graph.tensors)
    return tuple({name: (0, size) for name, size in sizes.items()} for sizes in (extents, sums))


# Per primitive and step: what may be cut of the result, and of the sum behind it. Batch 2, 4 -> 6 channels.
CUTS = {
    ("conv2d", "FW"): ("n co ho wo", "ci"),
    ("conv2d", "IG"): ("n ci hi wi", "co"),
    ("conv2d", "WG"): ("co ci", "n ho wo"),
    ("pointwise", "FW"): ("n co ho wo", "ci"),
    ("pointwise", "IG"): ("n ci hi wi", "co"),
    ("pointwise", "WG"): ("co ci", "n ho wo"),
    ("depthwise", "FW"): ("n co ho wo", ""),
    ("depthwise", "IG"): ("n ci hi wi", ""),
    ("depthwise", "WG"): ("co", "n ho wo"),
    # A transposed convolution has the names of the convolution it is the adjoint of.
    ("conv_transpose2d", "FW"): ("n ci hi wi", "co"),
    ("conv_transpose2d", "IG"): ("n co ho wo", "ci"),
    ("conv_transpose2d", "WG"): ("co ci", "n ho wo"),
    ("avg_pool2d", "FW"): ("n c ho wo", ""),
    ("avg_pool2d", "IG"): ("n c hi wi", ""),
    ("max_pool2d", "FW"): ("n c ho wo", ""),
    ("max_pool2d", "IG"): ("n c hi wi", ""),
    ("global_avg_pool", "FW"): ("n c", "hi wi"),
    ("global_avg_pool", "IG"): ("n c hi wi", ""),
    ("interpolation", "FW"): ("n c h w", ""),
    ("interpolation", "IG"): ("n c h w", ""),
}
OPTIONS = {
    "conv2d": {"out_channels": 6, "kernel": 3, "padding": 1, "bias": True},
    "pointwise": {"out_channels": 6, "bias": True},
    "depthwise": {"kernel": 3, "padding": 1, "bias": True},
    "conv_transpose2d": {"out_channels": 6, "kernel": 3, "stride": 2, "bias": True},
    "avg_pool2d": {"kernel": 2},
    "max_pool2d": {"kernel": 2},
    "global_avg_pool": {},
    "interpolation": {"mode": "bilinear", "scale": 2},
}


@pytest.mark.parametrize(("primitive", "step"), CUTS)
def test_what_may_be_cut(primitive, step):
    graph, ops, _ = steps_of(primitive, OPTIONS[primitive], (4, 6, 8), batch=2)
    extents, sums = dimensions(graph, ops[step])
    assert (" ".join(extents), " ".join(sums)) == CUTS[primitive, step]


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize(("primitive", "step"), CUTS)
def test_single_elements_and_single_terms_still_add_up(primitive, step, dtype):
    """The extreme cut: tiles of one element, sums of one term (16 bit: of the whole sum, see the harness)."""
    graph, ops, values = steps_of(primitive, OPTIONS[primitive], (4, 4, 4), batch=2, dtype=dtype)
    op = ops[step]
    known = evaluate(graph, values)
    extents, sums = dimensions(graph, op)
    ones = dict.fromkeys(extents, 1) | (dict.fromkeys(sums, 1) if dtype == "fp32" else {})
    results, tiles = run_op(op, graph.tensors, {name: known[name] for name in op.inputs}, ones, CHOICE)
    assert tiles > (16 if dtype == "fp32" else 3)
    for name, array in results.items():
        if is_float(graph.tensors[name].dtype):
            assert_close(array, known[name], 1e-5 if dtype == "fp32" else 2**-7, name)
        else:
            assert np.array_equal(array, known[name])


@pytest.mark.parametrize(
    ("options", "channels"),
    [
        ({"im2col": "cores"}, 4),
        ({"im2col": "none"}, 4),
        ({"im2col": "dma"}, 4),
        ({"groups": 2}, 2),
        ({"groups": 2, "im2col": "none"}, 2),
        ({"layout": "HWC"}, 4),
        ({"layout": "HWC", "im2col": "dma"}, 4),
    ],
)
def test_every_way_of_conv2d_cuts_the_channels_of_a_group(options, channels):
    shape = (6, 8, 4) if options.get("layout") == "HWC" else (4, 6, 8)
    graph, ops, _ = steps_of("conv2d", OPTIONS["conv2d"] | options, shape)
    _, sums = dimensions(graph, ops["FW"])
    assert sums == {"ci": (0, channels)}
    part = task_of(graph, ops["FW"], co=(0, 1), ho=(2, 4), wo=(3, 5), ci=(1, 2))
    weights = next(operand for operand in part.inputs if operand.name == "w")
    assert np.prod(weights.shape) == 9, "one output channel, one input channel"
    assert sum(call.macs for call in part.calls) == 2 * 2 * 9
    assert np.prod(part.outputs[0].shape) == 4


def test_the_bias_is_in_the_part_that_begins_at_0():
    for primitive in ("conv2d", "pointwise", "conv_transpose2d"):
        graph, ops, _ = steps_of(primitive, OPTIONS[primitive], (4, 6, 8))
        over = "co" if primitive == "conv_transpose2d" else "ci"
        first, second = (task_of(graph, ops["FW"], **{over: part}) for part in ((0, 1), (1, 4)))
        assert "b" in [operand.name for operand in first.inputs]
        assert "b" not in [operand.name for operand in second.inputs]
        assert "conv_bias_fw" not in [call.kernel for call in second.calls]


@pytest.mark.parametrize("primitive", ["conv2d", "pointwise", "depthwise", "conv_transpose2d"])
def test_every_part_of_a_weight_gradient_sums_its_own_positions_into_the_bias_gradient(primitive):
    graph, ops, values = steps_of(primitive, OPTIONS[primitive], (4, 6, 8), batch=2)
    op = ops["WG"]
    known = evaluate(graph, values)
    whole = known[op["db"]]
    total = np.zeros_like(whole)
    _, sums = dimensions(graph, op)
    for n in range(2):
        for ho in ((0, 1), (1, 4), (4, sums["ho"][1])):
            for wo in ((0, 5), (5, sums["wo"][1])):
                task = task_of(graph, op, n=(n, n + 1), ho=ho, wo=wo)
                assert "dw_of_sample" not in [scratch.name for scratch in task.scratch], "one sample"
                boxes = primitive_harness.computed_boxes(op, graph.tensors, task, known)
                (share,) = (array for operand, array in boxes if operand.name == "db")
                total += share
    np.testing.assert_allclose(total, whole, rtol=1e-5, atol=1e-5)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(data=st.data())
def test_every_input_position_is_owned_by_one_part_of_the_outputs(data):
    kernel, stride, dilation = (data.draw(st.integers(1, 4)) for _ in range(3))
    reach = dilation * (kernel - 1) + 1
    before, after = (data.draw(st.integers(0, reach - 1)) for _ in range(2))
    size = data.draw(st.integers(max(1, reach - before - after), 16))
    outputs = (size + before + after - reach) // stride + 1
    terms = (Term("o", stride), Term("k", dilation))
    index = Index("i", size, terms, -before)
    inner = data.draw(st.sets(st.integers(1, outputs - 1))) if outputs > 1 else set()
    borders = [0, *sorted(inner), outputs]
    parts = [index.owned("o", part, outputs) for part in itertools.pairwise(borders)]
    assert [position for part in parts for position in range(*part)] == list(range(size))


def test_halos_on_all_four_sides_are_clipped_at_the_borders():
    graph, ops, _ = steps_of("conv2d", {"out_channels": 2, "kernel": 3, "padding": 1}, (3, 6, 8))
    found = {}
    for ho, wo in (((0, 2), (0, 4)), ((2, 4), (3, 5)), ((4, 6), (4, 8))):
        image = task_of(graph, ops["FW"], ho=ho, wo=wo).inputs[0]
        found[ho, wo] = image.region[2:]
    assert found == {
        ((0, 2), (0, 4)): ((0, 3), (0, 5)),
        ((2, 4), (3, 5)): ((1, 5), (2, 6)),
        ((4, 6), (4, 8)): ((3, 6), (3, 8)),
    }
    # Stride 2 without padding: input columns 3..4 are read by outputs 1 (columns 2..4) and 2 (4..6).
    graph, ops, _ = steps_of("conv2d", {"out_channels": 2, "kernel": 3, "stride": 2}, (3, 7, 9))
    assert task_of(graph, ops["IG"], hi=(0, 1), wi=(3, 5)).inputs[0].region[2:] == ((0, 1), (1, 3))
    assert task_of(graph, ops["FW"], ho=(1, 2), wo=(1, 3)).inputs[0].region[2:] == ((2, 5), (2, 7))


@pytest.mark.parametrize(("layout", "shape"), [("CHW", (8, 8, 8)), ("HWC", (8, 8, 8))])
def test_scratch_shrinks_with_the_tile(layout, shape):
    options = {"out_channels": 8, "kernel": 3, "padding": 1, "layout": layout}
    graph, ops, _ = steps_of("conv2d", options, shape, batch=2)

    def scratch_elements(step, **ranges):
        return {item.name: int(np.prod(item.shape)) for item in task_of(graph, ops[step], **ranges).scratch}

    patches = 64 * 8 * 9
    assert scratch_elements("FW") == {"im2row": patches}
    assert scratch_elements("FW", ci=(4, 6), wo=(0, 4)) == {"im2row": patches // 4 // 2}
    halved = scratch_elements("IG", co=(0, 2), hi=(0, 4))
    assert halved == {"im2row": patches // 4 // 2, "weights_transposed": 8 * 2 * 9}
    whole, parted = scratch_elements("WG"), scratch_elements("WG", n=(0, 1), ho=(0, 2))
    matrix = "im2col" if layout == "HWC" else "im2row"
    assert parted[matrix] == whole[matrix] // 4 == patches // 4
    assert "dw_of_sample" in whole
    assert "dw_of_sample" not in parted


@dataclass(frozen=True)
class Layer:
    """A layer of MLPerf Tiny (https://github.com/mlcommons/tiny): its primitive, options and input."""

    primitive: str
    options: dict
    shape: tuple

    def __str__(self):
        return f"{self.primitive}-{'x'.join(map(str, self.shape))}"


LAYERS = [
    Layer("conv2d", {"out_channels": 16, "kernel": 3, "padding": 1}, (3, 32, 32)),  # ResNet8, first
    Layer("conv2d", {"out_channels": 64, "kernel": 3, "stride": 2, "padding": [0, 1, 0, 1]}, (32, 16, 16)),
    Layer("conv2d", {"out_channels": 64, "kernel": 3, "padding": 1}, (64, 8, 8)),  # ResNet8, last
    Layer("conv2d", {"out_channels": 8, "kernel": 3, "stride": 2, "padding": [0, 1, 0, 1]}, (3, 96, 96)),
    Layer("depthwise", {"kernel": 3, "padding": 1}, (8, 48, 48)),  # MobileNetV1 0.25
    Layer("pointwise", {"out_channels": 256}, (256, 3, 3)),
    Layer(
        "conv2d", {"out_channels": 64, "kernel": [10, 4], "stride": 2, "padding": [4, 5, 1, 1]}, (1, 49, 10)
    ),
    Layer("depthwise", {"kernel": 3, "padding": 1}, (64, 25, 5)),  # DS-CNN
    Layer("pointwise", {"out_channels": 64}, (64, 25, 5)),
    Layer("global_avg_pool", {}, (64, 25, 5)),
]


def l1_bytes(graph, task):
    """L1 bytes of a double-buffered tile: two slots per operand, scratch once."""
    operands = (*task.inputs, *task.outputs)
    sizes = [(2, operand.shape, graph.tensors[operand.tensor].dtype) for operand in operands]
    sizes += [(1, scratch.shape, scratch.dtype) for scratch in task.scratch]
    return sum(slots * int(np.prod(shape)) * np.dtype(dtype).itemsize for slots, shape, dtype in sizes)


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("layer", LAYERS, ids=str)
def test_the_smallest_tile_of_every_step_is_far_below_any_l1(layer, dtype):
    """At batch 8, and without cutting the kernel window: it is the largest thing left (10x4 in DS-CNN)."""
    graph, ops, _ = steps_of(layer.primitive, layer.options, layer.shape, batch=8, dtype=dtype)
    for op in ops.values():
        extents, sums = dimensions(graph, op)
        smallest = dict.fromkeys({**extents, **sums}, (0, 1))
        assert l1_bytes(graph, task_of(graph, op, **smallest)) <= 1024, op.name
        of_a_sample = task_of(graph, op, n=(0, 1))
        for operand in (*of_a_sample.inputs, *of_a_sample.outputs):
            if operand.name not in ("w", "dw"):
                assert operand.region[0] == (0, 1), "no step wants the whole batch"


@pytest.mark.parametrize(
    ("layer", "sizes"),
    [
        (
            LAYERS[2],
            {
                "FW": {"n": 1, "co": 16, "ho": 4, "wo": 8, "ci": 12},
                "IG": {"n": 1, "ci": 24, "hi": 4, "wi": 5, "co": 10},
                "WG": {"co": 24, "ci": 16, "n": 1, "ho": 3, "wo": 8},
            },
        ),
        (
            LAYERS[6],
            {
                "FW": {"n": 2, "co": 48, "ho": 7, "wo": 3},
                "IG": {"n": 2, "ci": 1, "hi": 5, "wi": 4, "co": 10},
                "WG": {"co": 33, "ci": 1, "n": 1, "ho": 9, "wo": 2},
            },
        ),
        (
            LAYERS[4],
            {
                "FW": {"n": 1, "co": 3, "ho": 17, "wo": 29},
                "IG": {"n": 1, "ci": 5, "hi": 13, "wi": 48},
                "WG": {"co": 5, "n": 1, "ho": 11, "wo": 20},
            },
        ),
    ],
    ids=["resnet8", "ds-cnn", "mobilenet"],
)
def test_layers_of_networks_cut_for_l1_agree_with_pytorch(layer, sizes):
    """max|a - b| / max|b| <= 1e-5 in fp32, and the double-buffered tiles fit 56 KiB."""
    graph, ops, values = steps_of(layer.primitive, layer.options, layer.shape, batch=2)
    known = evaluate(graph, values)
    truth = evaluate_torch(graph, values) if torch_available() else known
    for step, op in ops.items():
        tile = {name: (0, size) for name, size in sizes[step].items()}
        assert l1_bytes(graph, task_of(graph, op, **tile)) <= 56 * 1024, step
        results, tiles = run_op(op, graph.tensors, known, sizes[step], CHOICE)
        assert tiles > 8
        for name, array in results.items():
            assert_close(array, truth[name], 1e-5, f"{layer} {step} {name}")


class Repeating:
    """A wrong lowering: every part of a sum is the whole sum."""

    def __init__(self, right):
        self.right = right

    def __getattr__(self, name):
        return getattr(self.right, name)

    def reductions(self, op, tensors):
        return self.right.reductions(op, tensors)

    def macs(self, op, tensors):
        return 2 * self.right.macs(op, tensors)

    def extents(self, op, tensors):
        return self.right.extents(op, tensors)

    def default_kernel(self, op):
        return self.right.default_kernel(op)

    def tile(self, op, tensors, ranges, choice):
        return self.right.tile(op, tensors, {**ranges, "ci": (0, 4)}, choice)


def test_a_part_that_gives_the_whole_sum_would_be_noticed(monkeypatch):
    """The test of the harness: two parts of a sum, each the whole of it, are twice the sum."""
    graph, ops, values = steps_of("conv2d", OPTIONS["conv2d"], (4, 6, 8))
    op, known = ops["FW"], evaluate(graph, values)
    sizes = {name: stop for name, (_, stop) in dimensions(graph, op)[0].items()} | {"ci": 2}
    (right,) = run_op(op, graph.tensors, known, sizes, CHOICE)[0].values()
    monkeypatch.setattr(primitive_harness, "lowering_of", lambda op: Repeating(lowering_of(op)))
    (wrong,) = run_op(op, graph.tensors, known, sizes, CHOICE)[0].values()
    truth = known[op["y"]]
    assert_close(right, truth, 1e-5, "parts")
    np.testing.assert_allclose(wrong, 2 * truth, rtol=1e-4, atol=1e-4)
    with pytest.raises(AssertionError, match="off by"):
        assert_close(wrong, truth, 1e-5, "wrong parts")


@pytest.mark.parametrize(
    ("loss", "options", "cut"),
    [
        ("mse", {}, {"n": 2, "d0": 18_250}),
        ("bce", {"element_weights": 0.5}, {"n": 2, "d0": 18_250}),
        ("bce", {"element_weights": [0.5] * 18_250}, {}),
        ("berhu", {}, {}),
    ],
)
def test_a_loss_with_a_term_for_each_element_is_cut_and_one_of_the_largest_error_is_not(loss, options, cut):
    graph, ops, _ = steps_of(loss, options, (18_250,), batch=2)
    assert dict(lowering_of(ops["LOSS"]).reductions(ops["LOSS"], graph.tensors)) == cut
