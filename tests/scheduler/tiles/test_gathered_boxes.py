# SPDX-License-Identifier: Apache-2.0
"""Buffers that hold many boxes, and buffers whose boxes come from several tensors."""

from math import prod

import numpy as np
import pytest

from arch.spec.program import DmaStart
from scheduler.addresses.allocation import Allocation, Interval
from scheduler.programs.program import ProgramBuilder
from scheduler.tiles.footprint import Footprint
from scheduler.tiles.l1_layout import lay_out
from scheduler.tiles.tiling import Buffer, Tiler, Tiling
from scheduler.tiles.transfers import commands_for
from shared.soc_fixture import DMA
from trainlib.ir.graph import Op, Tensor, TrainingGraph
from trainlib.ir.steps import KernelChoice, Operand, TileTask, gathered
from trainlib.primitives.definition import DrawnInput
from trainlib.registry import lowering_of
from trainlib.training.single import single

SHAPE = (4, 6)


def program_of(*inputs: Operand) -> list[DmaStart]:
    """The loads of one op with a tile for each of these inputs."""
    tensors = {name: Tensor(name, SHAPE, "input") for name in "ab"} | {"c": Tensor("c", SHAPE, "activation")}
    op = Op("join.FW", "join", "join", "FW", ("a", "b"), ("c",), {}, ("x0", "x1"), ("y",))
    graph = TrainingGraph("join", tensors, (op,), ("a",), (), ("c",), (), (), {})
    tiles = tuple(TileTask((operand,), (), (), ()) for operand in inputs)
    size_bytes = max(prod(operand.shape) for operand in inputs) * 4
    tiling = Tiling(op.name, (), tiles, (Buffer("x", "in", size_bytes, 1),))
    home = {name: home_at(name, address) for name, address in {"a": 0, "b": 1000, "c": 2000}.items()}
    builder = ProgramBuilder(graph, home.__getitem__, cores=8, dma=DMA)
    builder.add_op(op, tiling, lay_out(tiling, 0))
    return [action for action in builder.actions if isinstance(action, DmaStart)]


def home_at(name: str, address: int) -> Allocation:
    return Interval(name, prod(SHAPE) * 4, 0, 0, "input", name).at("l2", address)


def test_equal_boxes_of_two_tensors_in_one_buffer_are_both_loaded() -> None:
    """That the box is the same says nothing: it is another tensor's."""
    region = ((0, 4), (0, 6))
    starts = program_of(Operand("a", region, "x"), Operand("a", region, "x"), Operand("b", region, "x"))
    assert [start.commands[0].external_address for start in starts] == [0, 1000]


def test_boxes_that_a_buffer_gathers_lie_one_behind_the_other() -> None:
    """Rows 0..1 and 1..3 of columns 0..2 and 3..6, the columns running fastest; one transfer, 2D commands."""
    operand = gathered("a", [[(0, 2), (1, 3)], [(0, 2), (3, 6)]], "x")
    assert operand.shape == (20,)
    assert operand.region == ((0, 3), (0, 6))
    array = np.arange(24).reshape(SHAPE)
    assert operand.taken(array).tolist() == [
        *[0, 1, 6, 7],
        *[3, 4, 5, 9, 10, 11],
        *[6, 7, 12, 13],
        *[9, 10, 11, 15, 16, 17],
    ]
    (start,) = program_of(operand)
    first = start.commands[0].l1_address
    found = [
        (command.l1_address - first, command.external_address, command.line_bytes, command.lines)
        for command in start.commands
    ]
    assert found == [(0, 0, 8, 2), (16, 12, 12, 2), (40, 24, 8, 2), (56, 36, 12, 2)]
    assert {command.stride_bytes for command in start.commands} == {24}


def test_gathers_of_one_enclosing_box_are_told_apart() -> None:
    few = gathered("a", [[(0, 4)], [(0, 6)]], "x")
    many = gathered("a", [[(0, 4)], [(0, 3), (3, 6)]], "x")
    assert few.region == many.region
    assert len(program_of(few, many)) == 2
    assert len(program_of(many, many)) == 1


@pytest.mark.parametrize("layout", ["CHW", "HWC"])
@pytest.mark.parametrize("step", ["FW", "WG"])
@pytest.mark.parametrize("rows", [4, 2, 1])
def test_the_quick_count_of_commands_and_lines_is_that_of_the_boxes(
    layout: str, step: str, rows: int
) -> None:
    """What ranks candidates, against the commands themselves: im2row by DMA, without padding."""
    shape = (6, 8, 5) if layout == "HWC" else (5, 6, 8)
    options = {"out_channels": 4, "kernel": 3, "im2col": "dma", "layout": layout}
    graph = single("conv2d", options, [DrawnInput(shape)]).graph
    op = next(op for op in graph.ops if op.step == step)
    tiler = Tiler(op, graph.tensors, lowering_of(op), KernelChoice("mm", "clang-xpulp"), 1)
    sizes = {**tiler.dims, "ho": rows}
    footprint = Footprint(tiler, [[size] for size in sizes.values()])
    column = footprint.keys.index(("in", "x.patches"))
    (changes,) = footprint.changes(np.array([0]), [tuple(sizes)])
    box = footprint.box(column)
    tiles = tiler.build(sizes).tiles
    operand = next(operand for operand in tiles[0].inputs if operand.name == "x.patches")
    x = graph.tensors[operand.tensor]
    commands = [
        command
        for region in operand.boxes
        for command in commands_for(
            x.shape,
            4,
            region,
            external_level="l2",
            external_address=0,
            l1_address=0,
            to_l1=True,
            dma=DMA,
        )
    ]
    assert changes[column, 0] == len(tiles) == 4 // rows
    assert box.pieces[0] == len(operand.boxes) == rows * 6
    assert box.size_bytes[0] == 4 * prod(operand.shape)
    assert box.commands[0] == len(commands)
    assert box.lines[0] == sum(command.lines for command in commands)
