# SPDX-License-Identifier: Apache-2.0
"""The order of actions in tile loops: what is pushed before what is computed, and what stays in L1."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from arch.spec.isa import CoreWork, TeamWork
from arch.spec.program import Compute, DmaStart, DmaWait, Release
from scheduler.addresses.lifetimes import storage_lives
from scheduler.addresses.placement import fit
from scheduler.programs.program import ProgramBuilder
from scheduler.tiles.l1_layout import lay_out
from scheduler.tiles.tiling import Tiler
from shared.soc_fixture import DMA
from trainlib.ir.graph import Op, Tensor, TrainingGraph
from trainlib.ir.steps import Array, Extent, KernelCall, KernelChoice, Operand, StepLowering, TileTask

TENSORS = {
    "w": Tensor("w", (8, 4), "weight"),
    "x": Tensor("x", (4, 6), "input"),
    "y": Tensor("y", (8, 6), "activation"),
}
OP = Op("fc.FW", "fc", "matmul", "FW", ("w", "x"), ("y",))
GRAPH = TrainingGraph("tiny", TENSORS, (OP,), ("x",), ("x",), ("y",), ("y",), ("w",), {})


class Matmul(StepLowering):
    """y[8,6] = w[8,4] · x[4,6], cut by rows ``n`` (outer) and columns ``m``."""

    def extents(self, op: Op, tensors: Mapping[str, Tensor]) -> Mapping[str, int]:
        return {"n": 8, "m": 6}

    def tile(
        self, op: Op, tensors: Mapping[str, Tensor], ranges: Mapping[str, Extent], choice: KernelChoice
    ) -> TileTask:
        def work(cores: int, addresses: Mapping[str, int]) -> TeamWork:
            return TeamWork("mm", (CoreWork(()),) * cores)

        def function(arrays: Sequence[Array]) -> tuple[Array, ...]:
            return (np.matmul(arrays[0], arrays[1]),)

        return TileTask(
            (Operand("w", (ranges["n"], (0, 4))), Operand("x", ((0, 4), ranges["m"]))),
            (Operand("y", (ranges["n"], ranges["m"])),),
            (),
            (KernelCall("mm", ("w", "x"), ("y",), work, function),),
        )

    def default_kernel(self, op: Op) -> str:
        return "mm"

    def macs(self, op: Op, tensors: Mapping[str, Tensor]) -> int:
        return 192


def tiler(depth: int) -> Tiler:
    return Tiler(OP, TENSORS, Matmul(), KernelChoice("mm", "any"), depth)


def actions(depth: int, sizes: Mapping[str, int]) -> list[str]:
    """Actions of the tile loop in words: load w0, wait w0, mm 0, store y0 ..."""
    tiling = tiler(depth).build(sizes)
    builder = ProgramBuilder(
        GRAPH,
        fit(storage_lives(GRAPH).values(), "l2").__getitem__,
        cores=2,
        dma=DMA,
    )
    builder.add_op(OP, tiling, lay_out(tiling, 0))
    words = []
    for action in builder.program().actions:
        work = action.work
        assert all(dep < action.id for dep in action.deps)
        if isinstance(action, DmaStart):
            words.append(f"{'load' if action.commands[0].to_l1 else 'store'} {work.what}{work.tile}")
        elif isinstance(action, DmaWait):
            words.append(f"wait {work.what}{work.tile}")
        elif isinstance(action, Compute):
            words.append(f"{work.what} {work.tile}")
    return words


def test_single_buffering_moves_then_computes_then_moves() -> None:
    assert actions(1, {"n": 4, "m": 6}) == [
        *("load w0", "load x0", "wait w0", "wait x0", "mm 0", "store y0", "wait y0"),
        # x covers the same box as before: it is still in L1 and is not loaded again
        *("load w1", "wait w1", "mm 1", "store y1", "wait y1"),
    ]


def test_double_buffering_pushes_the_next_inputs_before_the_fork() -> None:
    assert actions(2, {"n": 2, "m": 6}) == [
        *("load w0", "load x0", "wait w0", "wait x0", "load w1", "mm 0", "store y0"),
        *("wait w1", "load w2", "mm 1", "store y1", "wait y0"),
        *("wait w2", "load w3", "mm 2", "store y2", "wait y1"),
        *("wait w3", "mm 3", "store y3", "wait y2", "wait y3"),
    ]


def test_three_buffers_prefetch_two_tiles_ahead() -> None:
    assert actions(3, {"n": 8, "m": 2}) == [
        *("load w0", "load x0", "load x1", "wait w0", "wait x0", "load x2", "mm 0", "store y0"),
        *("wait x1", "mm 1", "store y1", "wait x2", "mm 2", "store y2", "wait y0", "wait y1", "wait y2"),
    ]


def test_one_tile_needs_no_second_buffer() -> None:
    whole = tiler(2).build({"n": 8, "m": 6})
    assert {buffer.name: buffer.slots for buffer in whole.buffers} == {"w": 1, "x": 1, "y": 1}
    assert actions(2, {"n": 8, "m": 6}) == actions(1, {"n": 8, "m": 6})


def test_neighbouring_tiles_use_different_slots() -> None:
    tiling = tiler(2).build({"n": 4, "m": 3})
    layout = lay_out(tiling, 0)
    assert layout.address("in", "x", 0) != layout.address("in", "x", 1)
    assert layout.address("in", "x", 0) == layout.address("in", "x", 2)


def test_a_release_ends_the_life_of_buffers() -> None:
    builder = ProgramBuilder(GRAPH, {}.__getitem__, cores=1, dma=DMA)
    builder.add_release(OP, (), ())
    assert isinstance(builder.program().actions[0], Release)
