# SPDX-License-Identifier: Apache-2.0
"""Loops of convolutions: what they execute, between the cores, inside the image, over groups."""

import numpy as np
import pytest

from arch.spec.isa import Loop, Op
from shared.convolution_tasks import CHOICE, FAMILY, executed, task_of, work_of
from shared.primitive_harness import build, cases_of
from shared.tiers import sweep_nine_of_ten
from trainlib.registry import PRIMITIVES, lowering_of

CASES = [case for name in FAMILY for case in cases_of(PRIMITIVES[name])]


def by_example(case):
    return case.primitive, case.number


@pytest.mark.parametrize("case", sweep_nine_of_ten(CASES, by_example, lambda case: (case.dtype, case.batch)))
def test_every_call_of_every_option_has_nests_at_its_buffers(case):
    graph, _ = build(case)
    for op in graph.ops:
        lowering = lowering_of(op)
        extents = lowering.extents(op, graph.tensors)
        # Not from the start: of groups, the first and the last may be cut.
        ranges = {name: (size // 3, size) for name, size in extents.items()}
        task = lowering.tile(op, graph.tensors, ranges, CHOICE)
        for call in task.calls:
            for cores in (1, 8):
                team = work_of(graph, task, call, cores)
                assert team.macs == call.macs
                assert len(team.cores) == cores
                assert executed(team.cores[0].body, Op.STORE) > 0


@pytest.mark.parametrize("primitive", ["depthwise", "conv_transpose2d", "conv2d"])
@pytest.mark.parametrize("step", ["FW", "WG", "IG"])
def test_direct_loops_share_their_channels_between_the_cores_in_every_step(primitive, step):
    """In the library every core does every channel of a depthwise WG and IG."""
    options = {"kernel": 3, "padding": 1}
    options |= {} if primitive == "depthwise" else {"out_channels": 8}
    options |= {"im2col": "none"} if primitive == "conv2d" else {}
    graph, _, task = task_of(primitive, options, (8, 6, 6), step)
    alone = executed(work_of(graph, task, task.calls[0], 1).cores[0].body, Op.FMA)
    shared = [executed(core.body, Op.FMA) for core in work_of(graph, task, task.calls[0], 8).cores]
    assert shared == [alone // 8] * 8


def taps_inside(outputs, kernel, size, stride, pad):
    return sum(0 <= o * stride + tap - pad < size for o in range(outputs) for tap in range(kernel))


@pytest.mark.parametrize("layout", ["CHW", "HWC"])
@pytest.mark.parametrize("step", ["FW", "WG", "IG"])
@pytest.mark.parametrize(("padding", "stride"), [(0, 1), (1, 1), (1, 2), (2, 3)])
def test_direct_loops_multiply_only_inside_the_image(layout, step, padding, stride):
    """Multiply-adds of the nests are the pairs of elements that meet; a step's `macs` count zeros, too."""
    options = {"layout": layout, "kernel": 3, "padding": padding, "stride": stride}
    shape = (4, 7, 8) if layout == "CHW" else (7, 8, 4)
    graph, op, task = task_of("depthwise", options, shape, step)
    rows = taps_inside(op.attributes["ho"], 3, 7, stride, padding)
    columns = taps_inside(op.attributes["wo"], 3, 8, stride, padding)
    team = work_of(graph, task, task.calls[0], 1)
    assert executed(team.cores[0].body, Op.FMA) == 4 * rows * columns
    assert task.calls[0].macs >= 4 * rows * columns


@pytest.mark.parametrize("layout", ["CHW", "HWC"])
@pytest.mark.parametrize("options", [{"padding": 1}, {"stride": [2, 1]}, {"dilation": 2, "padding": [1, 2]}])
def test_general_im2row_stores_each_element_of_the_matrix_once(layout, options):
    options = {"layout": layout, "out_channels": 2, "kernel": [2, 3], **options}
    graph, op, task = task_of("conv2d", options, (3, 7, 8) if layout == "CHW" else (7, 8, 3), "FW")
    unroll = task.calls[0]
    (matrix,) = (scratch for scratch in task.scratch if scratch.name == "im2row")
    team = work_of(graph, task, unroll, 4)
    addressed = 0
    for core in team.cores:
        used = {index for index, stream in enumerate(core.streams) if stream.base_bytes}
        addressed += stores_to(core.body, used)
    assert addressed == np.prod(matrix.shape)
    assert op.attributes["ho"] * op.attributes["wo"] == matrix.shape[0]


def stores_to(nodes, streams):
    total = 0
    for node in nodes:
        if isinstance(node, Loop):
            total += node.trips * stores_to(node.body, streams)
        else:
            total += node.op == Op.STORE and node.stream in streams
    return total


def test_all_groups_share_a_fork_and_cost_what_their_matmuls_cost():
    """Depthwise as groups = channels: one loop over the groups, addresses moving on by a group."""
    shape = (6, 5, 4)
    grouped = {"out_channels": 12, "kernel": 3, "groups": 6}
    graph, _, task = task_of("conv2d", grouped, shape, "FW")
    (call,) = (call for call in task.calls if call.macs)
    team = work_of(graph, task, call, 2)
    single, _, one = task_of("conv2d", {"out_channels": 2, "kernel": 3}, (1, 5, 4), "FW")
    (of_one,) = (call for call in one.calls if call.macs)
    alone = work_of(single, one, of_one, 2)
    assert team.macs == 6 * alone.macs
    for core, reference in zip(team.cores, alone.cores, strict=True):
        for kind in (Op.FMA, Op.LOAD, Op.STORE, Op.FMUL):
            assert executed(core.body, kind) == 6 * executed(reference.body, kind)
        (loop,) = core.body
        assert loop.trips == 6
    matrix_bytes = 4 * 6 * 9
    assert {stream.strides_bytes[0] for stream in team.cores[0].streams if stream.base_bytes} == {
        4 * 2 * 9,  # filters of a group
        matrix_bytes,
        4 * 2 * 6,  # outputs of a group
    }
