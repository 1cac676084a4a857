"""The order of actions in tile loops: what is pushed before what is computed, and what stays in L1."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from arch.isa import CoreWork, TeamWork
from arch.program import Compute, DmaStart, DmaWait, Release
from configs.errors import DoesNotFitError, InputError
from scheduler.l1_layout import lay_out
from scheduler.memory_plan import plan_home
from scheduler.program import ProgramBuilder
from scheduler.tiling import Tiler, balanced_sizes, candidate_sizes, tile_ranges
from trainlib.graph import Op, Tensor, TrainingGraph
from trainlib.steps import Array, Extent, KernelCall, KernelChoice, Operand, TileTask

TENSORS = {
    "w": Tensor("w", (8, 4), "weight"),
    "x": Tensor("x", (4, 6), "input"),
    "y": Tensor("y", (8, 6), "activation"),
}
OP = Op("fc.FW", "fc", "matmul", "FW", ("w", "x"), ("y",))
GRAPH = TrainingGraph("tiny", TENSORS, (OP,), "x", "x", "y", "y", ("w",), {})


class Matmul:
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
    assert tiling is not None
    builder = ProgramBuilder(
        GRAPH,
        plan_home(GRAPH, "l2", 10_000),
        home_level="l2",
        cores=2,
        buffer_depth=depth,
        max_command_bytes=1 << 17,
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
        *("wait w1", "load w2", "mm 1", "wait y0", "store y1"),
        *("wait w2", "load w3", "mm 2", "wait y1", "store y2"),
        *("wait w3", "mm 3", "wait y2", "store y3", "wait y3"),
    ]


def test_three_buffers_prefetch_two_tiles_ahead() -> None:
    assert actions(3, {"n": 8, "m": 2}) == [
        *("load w0", "load x0", "load x1", "wait w0", "wait x0", "load x2", "mm 0", "store y0"),
        *("wait x1", "mm 1", "store y1", "wait x2", "mm 2", "wait y0", "store y2", "wait y1", "wait y2"),
    ]


def test_one_tile_needs_no_second_buffer() -> None:
    whole = tiler(2).build({"n": 8, "m": 6})
    assert whole is not None
    assert {buffer.name: buffer.slots for buffer in whole.buffers} == {"w": 1, "x": 1, "y": 1}
    assert actions(2, {"n": 8, "m": 6}) == actions(1, {"n": 8, "m": 6})


def test_neighbouring_tiles_use_different_slots() -> None:
    tiling = tiler(2).build({"n": 4, "m": 3})
    assert tiling is not None
    layout = lay_out(tiling, 0)
    assert layout.address("in", "x", 0) != layout.address("in", "x", 1)
    assert layout.address("in", "x", 0) == layout.address("in", "x", 2)


def test_balanced_sizes_and_border_tiles() -> None:
    assert balanced_sizes(10) == [10, 5, 4, 3, 2, 1]
    ranges = list(tile_ranges({"n": 5}, {"n": 2}))
    assert ranges == [{"n": (0, 2)}, {"n": (2, 4)}, {"n": (4, 5)}]


def test_candidates_come_with_fewest_tiles_first() -> None:
    counts = [-(-8 // sizes["n"]) * -(-6 // sizes["m"]) for sizes in candidate_sizes({"n": 8, "m": 6})]
    assert counts == sorted(counts)
    assert counts[0] == 1
    assert counts[-1] == 48


def test_what_does_not_fit_says_what_is_needed_and_what_to_do() -> None:
    smallest = tiler(2).build({"n": 1, "m": 1})
    assert smallest is not None
    assert tiler(2).fitting(smallest.l1_bytes)[0].l1_bytes <= smallest.l1_bytes
    with pytest.raises(DoesNotFitError) as raised:
        tiler(2).fitting(smallest.l1_bytes - 1)
    assert raised.value.required_bytes == smallest.l1_bytes
    assert raised.value.exit_code == 3
    assert "--buffering single" in str(raised.value)


def test_a_fixed_tile_must_name_dimensions_of_the_step() -> None:
    assert tiler(1).fixed({"n": 4}, 10_000).sizes == (("n", 4), ("m", 6))
    with pytest.raises(InputError, match="one of n, m"):
        tiler(1).fixed({"rows": 4}, 10_000)
    with pytest.raises(InputError, match=r"outside 1\.\.8"):
        tiler(1).fixed({"n": 9}, 10_000)


def test_a_release_ends_the_life_of_buffers() -> None:
    builder = ProgramBuilder(GRAPH, {}, home_level="l2", cores=1, buffer_depth=1, max_command_bytes=64)
    builder.add_release(OP, ())
    assert isinstance(builder.program().actions[0], Release)
