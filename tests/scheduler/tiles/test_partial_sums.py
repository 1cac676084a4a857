# SPDX-License-Identifier: Apache-2.0
"""Cut sums: what is added where, what is moved in which order, and numbers like those of the whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from arch.pricing.team_cost_model import TeamCostModel
from arch.spec.isa import CoreWork, TeamWork
from arch.spec.program import Compute, DmaStart, DmaWait
from arch.spec.soc_config import load_soc
from scheduler.addresses.lifetimes import storage_lives
from scheduler.addresses.placement import fit
from scheduler.executor import Executor
from scheduler.options import ScheduleOptions
from scheduler.programs.program import ProgramBuilder
from scheduler.schedule import build_schedule
from scheduler.tiles.l1_layout import lay_out
from scheduler.tiles.tiling import Tiler
from shared.agreement import graph_tolerance
from shared.soc_fixture import DMA
from trainlib.ir.graph import Op, Tensor, TrainingGraph
from trainlib.ir.steps import Array, Extent, KernelCall, KernelChoice, Operand, StepLowering, TileTask, part
from trainlib.primitives.definition import DrawnInput
from trainlib.references.reference import evaluate
from trainlib.registry import lowering_of
from trainlib.training.phases import only
from trainlib.training.single import single

TENSORS = {
    "w": Tensor("w", (4, 6), "weight"),
    "x": Tensor("x", (6, 2), "input"),
    "y": Tensor("y", (4, 2), "activation"),
}
OP = Op("fc.FW", "fc", "matmul", "FW", ("w", "x"), ("y",))
GRAPH = TrainingGraph("tiny", TENSORS, (OP,), ("x",), ("x",), ("y",), ("y",), ("w",), {})


LINEAR = ("linear", {"out_features": 12, "bias": True}, (20,))
CONV = ("conv2d", {"out_channels": 6, "kernel": 3, "padding": 1, "bias": True}, (4, 6, 6))


class Matmul(StepLowering):
    """y[4,2] = w[4,6] · x[6,2], cut by rows ``n`` and by the sum ``k``; the kernel writes row after row."""

    def extents(self, op: Op, tensors: Mapping[str, Tensor]) -> Mapping[str, int]:
        return {"n": 4}

    def reductions(self, op: Op, tensors: Mapping[str, Tensor]) -> Mapping[str, int]:
        return {"k": 6}

    def tile(
        self, op: Op, tensors: Mapping[str, Tensor], ranges: Mapping[str, Extent], choice: KernelChoice
    ) -> TileTask:
        def row(number: int) -> KernelCall:
            def work(cores: int, addresses: Mapping[str, int]) -> TeamWork:
                assert part("y", number) in addresses, "loop nests know the buffer as y wherever it lies"
                return TeamWork("mm", (CoreWork(()),) * cores)

            def function(arrays: Sequence[Array]) -> tuple[Array, ...]:
                return (np.matmul(arrays[0], arrays[1]),)

            return KernelCall("mm", (part("w", number), "x"), (part("y", number),), work, function)

        rows, inner = ranges["n"], ranges.get("k", (0, 6))
        return TileTask(
            (Operand("w", (rows, inner)), Operand("x", (inner, (0, 2)))),
            (Operand("y", (rows, (0, 2))),),
            (),
            tuple(row(number) for number in range(rows[1] - rows[0])),
        )

    def default_kernel(self, op: Op) -> str:
        return "mm"

    def macs(self, op: Op, tensors: Mapping[str, Tensor]) -> int:
        return 48


def tiling_of(sizes, order, depth=1):
    return Tiler(OP, TENSORS, Matmul(), KernelChoice("mm", "clang-xpulp"), depth).build(sizes, order)


def actions(sizes, order, depth):
    """Actions of the tile loop in words, kernels of a tile once."""
    tiling = tiling_of(sizes, order, depth)
    home = fit(storage_lives(GRAPH).values(), "l2")
    builder = ProgramBuilder(GRAPH, home.__getitem__, cores=2, dma=DMA)
    builder.add_op(OP, tiling, lay_out(tiling, 0))
    words = []
    for action in builder.program().actions:
        work = action.work
        if isinstance(action, DmaStart):
            word = f"{'load' if action.commands[0].to_l1 else 'store'} {work.what}{work.tile}"
        elif isinstance(action, DmaWait):
            way = "" if builder.actions[action.transfer].commands[0].to_l1 else "stored "
            word = f"wait {way}{work.what}{work.tile}"
        else:
            assert isinstance(action, Compute)
            word = f"{work.what} {work.tile}"
        if not words or words[-1] != word:
            words.append(word)
    return words


def test_a_sum_whose_parts_follow_one_another_stays_in_l1() -> None:
    tiling = tiling_of({"n": 2, "k": 3}, ("n", "k"))
    assert [bool(task.held) for task in tiling.tiles] == [True, False, True, False]
    assert [len(task.outputs) for task in tiling.tiles] == [0, 1, 0, 1]
    assert [[call.kernel for call in task.calls] for task in tiling.tiles] == [
        ["mm", "mm"],
        ["mm", "mm", "vect_sum"],
    ] * 2
    later = tiling.tiles[1]
    assert later.calls[0].writes == (part("y.part", 0),)
    assert (later.calls[-1].reads, later.calls[-1].writes) == (("y", "y.part"), ("y",))
    assert {buffer.name: buffer.size_bytes for buffer in tiling.buffers} == {
        "w": 4 * 2 * 3,
        "x": 4 * 3 * 2,
        "y": 4 * 2 * 2,
        "y.part": 4 * 2 * 2,
    }
    assert actions({"n": 2, "k": 3}, ("n", "k"), 1) == [
        *("load w0", "load x0", "wait w0", "wait x0", "mm 0"),
        *("load w1", "load x1", "wait w1", "wait x1", "mm 1", "vect_sum 1", "store y1", "wait stored y1"),
        *("load w2", "load x2", "wait w2", "wait x2", "mm 2"),
        *("load w3", "load x3", "wait w3", "wait x3", "mm 3", "vect_sum 3", "store y3", "wait stored y3"),
    ]


def test_a_sum_whose_parts_do_not_follow_is_read_back_after_its_store() -> None:
    """x stays, y goes out and comes back: the load of y of tile 2 is behind the wait for its store."""
    assert actions({"n": 2, "k": 3}, ("k", "n"), 1) == [
        *("load w0", "load x0", "wait w0", "wait x0", "mm 0", "store y0", "wait stored y0"),
        *("load w1", "wait w1", "mm 1", "store y1", "wait stored y1"),
        *("load w2", "load x2", "load y2", "wait w2", "wait x2", "wait y2"),
        *("mm 2", "vect_sum 2", "store y2", "wait stored y2"),
        *("load w3", "load y3", "wait w3", "wait y3", "mm 3", "vect_sum 3", "store y3", "wait stored y3"),
    ]


def test_a_sum_is_never_prefetched_before_its_store_has_been_awaited() -> None:
    """Double buffered, y of tile 2 was stored by tile 0, whose wait comes behind the store of tile 1."""
    assert actions({"n": 2, "k": 3}, ("k", "n"), 2) == [
        *("load w0", "load x0", "wait w0", "wait x0", "load w1", "mm 0", "store y0"),
        *("wait w1", "load w2", "load x2", "mm 1", "store y1", "wait stored y0"),
        *("load y2", "wait w2", "wait x2", "wait y2", "load w3", "mm 2", "vect_sum 2", "store y2"),
        *("wait stored y1", "load y3", "wait w3", "wait y3", "mm 3", "vect_sum 3", "store y3"),
        *("wait stored y2", "wait stored y3"),
    ]


def test_both_ways_in_one_loop() -> None:
    """Samples outermost: dW comes back for the second one; its rows innermost: they stay."""
    graph = single(*CONV[:2], [DrawnInput(CONV[2])], batch=2).graph
    op = next(op for op in graph.ops if op.step == "WG")
    tiler = Tiler(op, graph.tensors, lowering_of(op), KernelChoice("mm", "clang-xpulp"), 1)
    tiling = tiler.build({"n": 1, "co": 3, "ho": 3}, ("n", "co", "ho"))
    kinds = [
        ("load" if any(item.name == "dw.sum" for item in task.inputs) else "")
        + ("store" if any(item.name == "dw" for item in task.outputs) else "")
        for task in tiling.tiles
    ]
    assert kinds == ["", "store", "", "store", "load", "store", "load", "store"]


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize(
    ("layer", "step", "sizes", "order"),
    [
        (LINEAR, "FW", {"co": 5, "ci": 7}, ("co", "ci")),
        (LINEAR, "FW", {"co": 5, "ci": 7}, ("ci", "co")),
        (LINEAR, "IG", {"ci": 7, "co": 5}, ("co", "ci", "n")),
        (LINEAR, "WG", {"co": 5, "ci": 20, "n": 1}, ("n", "co")),
        (CONV, "FW", {"co": 4, "ho": 4, "ci": 1}, ("ho", "ci", "co")),
        (CONV, "WG", {"co": 3, "ho": 2}, ("ho", "co")),
        (CONV, "WG", {"n": 1, "co": 3, "ho": 3}, ("n", "co", "ho")),
        (CONV, "IG", {"ci": 2, "co": 4}, ("co", "ci")),
    ],
)
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_numbers_of_cut_sums_are_those_of_the_whole(layer, step, sizes, order, depth, dtype) -> None:
    name, attributes, shape = layer
    made = single(name, attributes, [DrawnInput(shape)], batch=3, dtype=dtype)
    op = next(op for op in made.graph.ops if op.step == step)
    known = evaluate(made.graph, made.values)
    graph = only(made.graph, [op])
    timing = load_soc("pulp-open", "rtl")
    cost_model = TeamCostModel(timing)
    options = ScheduleOptions(depth, tile_sizes={op.name: sizes}, loop_orders={op.name: order})
    schedule = build_schedule(graph, timing, cost_model, options)
    assert any("vect_sum" in call.kernel for task in schedule.ops[0].tiling.tiles for call in task.calls)
    executor = Executor(schedule, timing, cost_model)
    executor.load({given: known[given] for given in graph.needed_values})
    executor.simulate()
    for output in op.outputs:
        truth = np.asarray(known[output], np.float64)
        worst = np.abs(np.asarray(executor.fetch(output), np.float64) - truth).max()
        assert worst <= graph_tolerance(made.graph) * np.abs(truth).max()
