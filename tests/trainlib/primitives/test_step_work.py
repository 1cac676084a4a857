# SPDX-License-Identifier: Apache-2.0
"""Every kernel call of every step finds its loop nest, on any number of cores, at its buffers' addresses."""

import numpy as np
import pytest

from configs.model_file import LayerSpec, LossSpec, ModelSpec, OptimizerSpec, load_model
from trainlib.ir.steps import KernelChoice, find_part, part
from trainlib.kernels import catalogue
from trainlib.kernels.library import LIBRARY
from trainlib.primitives.contractions.conv_nests import Site
from trainlib.registry import lowering_of
from trainlib.training.phases import build_training_graph


def calls(name, codegen):
    graph = build_training_graph(load_model(name))
    for op in graph.ops:
        lowering = lowering_of(op)
        # An odd first tile: half of every extent, so that halos and leftovers occur.
        ranges = {key: (0, (size + 1) // 2) for key, size in lowering.extents(op, graph.tensors).items()}
        choice = KernelChoice(lowering.default_kernel(op), codegen)
        task = lowering.tile(op, graph.tensors, ranges, choice)
        buffers = {operand.name: operand.shape for operand in (*task.inputs, *task.outputs)}
        buffers |= {scratch.name: scratch.shape for scratch in task.scratch}
        base = {buffer: 0x1000_0000 + 0x1000 * index for index, buffer in enumerate(buffers)}
        for call in task.calls:
            addresses = dict(base)
            for used in (*call.reads, *call.writes):
                buffer, first, _ = find_part(used, buffers.__getitem__)
                addresses[used] = base[buffer] + 4 * first
            yield op, call, addresses


@pytest.mark.parametrize("name", ["digits-cnn", "tutorial-cnn"])
@pytest.mark.parametrize(
    "codegen", [name for name in LIBRARY.codegen_names() if catalogue.kernel_names(name)]
)
@pytest.mark.parametrize("cores", [1, 8])
def test_loop_nests_of_all_calls(name, codegen, cores):
    seen = set()
    for _, call, addresses in calls(name, codegen):
        team = call.work(cores, addresses)
        assert team.macs == call.macs
        assert len(team.cores) == (cores if call.fork else 1)
        assert team.cores[0] is not None
        bases = {stream.base_bytes & ~0xFFF for core in team.cores if core for stream in core.streams}
        named = {addresses[buffer] for buffer in (*call.reads, *call.writes)}
        assert bases & named, call.kernel
        seen.add(call.kernel)
    assert {"im2row", "mm", "mm_M", "relu_fw", "relu_bw", "sgd"} <= seen


@pytest.mark.parametrize(
    ("kernel", "padding", "stride"), [(3, 0, 1), (3, 1, 1), (3, 1, 2), (4, 2, 3), (1, 0, 2)]
)
def test_im2row_is_timed_over_the_elements_it_really_copies(monkeypatch, kernel, padding, stride):
    """What a tile tells the loop nest (sizes, padding) counts the same copies as its numbers."""
    conv = {"out_channels": 2, "kernel": kernel, "padding": padding, "stride": stride}
    layers = (
        LayerSpec("first", "conv2d", {"out_channels": 3, "kernel": 1}, "x:1"),
        LayerSpec("conv", "conv2d", conv, "x:2"),
    )
    sgd = OptimizerSpec("sgd", {"learning_rate": 0.01}, "x:1")
    spec = ModelSpec("net", "", "", (1, 7, 6), "random", LossSpec("mse"), sgd, 1, layers, "x:1")
    graph = build_training_graph(spec)
    told = {}
    monkeypatch.setattr(Site, "team", lambda self, nest, sizes, strides: told.update(sizes, nest=nest))
    for op in graph.ops:
        if op.layer != "conv" or op.step not in ("FW", "WG", "IG"):
            continue
        lowering = lowering_of(op)
        extents = lowering.extents(op, graph.tensors)
        # Every extent but the first is cut to single positions: rows and columns, or input channels.
        _first, *others = extents
        for cut, start in [(name, start) for name in others for start in range(extents[name])]:
            ranges = {name: (0, size) for name, size in extents.items()} | {cut: (start, start + 1)}
            task = lowering.tile(op, graph.tensors, ranges, KernelChoice("mm", "clang-xpulp"))
            call = task.calls[0]
            call.work(1, dict.fromkeys((*call.reads, *call.writes), 0))
            source = next(operand for operand in task.inputs if part(operand.name, 0) == call.reads[0])
            (matrix,) = call.function([np.ones(source.shape[1:], np.float32)])
            elements = told["ci"] * told["rows_in"] * told["cols_in"]
            assert np.count_nonzero(matrix) == elements, (op.name, cut, start)
            image = ("hi", "wi") if told["nest"] == "im2row_fw" else ("ho", "wo")
            assert source.shape == (1, told["ci"], *(told[name] for name in image))
