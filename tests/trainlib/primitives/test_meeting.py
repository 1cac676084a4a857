# SPDX-License-Identifier: Apache-2.0
"""What lowerings say of dimensions that decide together on a box holds for every box of their tiles."""

import random
from itertools import combinations, product
from math import prod

import numpy as np
import pytest

from shared.primitive_harness import CODEGEN, Case, build, cases_of
from trainlib.ir.steps import KernelChoice
from trainlib.registry import PRIMITIVES, lowering_of

TRIALS = 10

CASES = [
    next(case for case in cases_of(primitive) if case.number == number and case.dtype == dtype)
    for primitive in PRIMITIVES.values()
    for number, dtype in sorted({(case.number, case.dtype) for case in cases_of(primitive)})
    if dtype == "fp32"
]

ONE_ROW = {"dy_transposed"}
"""A row of numbers is its own transpose: this scratch is missing in tiles of one row, and counts there."""


def buffer_bytes(op, tensors, dims, ranges):
    """Bytes of every buffer of a tile that is whole but for some ranges."""
    lowering = lowering_of(op)
    full = {name: ranges.get(name, (0, size)) for name, size in dims.items()}
    choice = KernelChoice(lowering.default_kernel(op), CODEGEN, cores=8)
    task = lowering.tile(op, tensors, full, choice)
    operands = {
        item.name: prod(item.shape) * np.dtype(tensors[item.tensor].dtype).itemsize
        for item in (*task.inputs, *task.outputs)
    }
    scratch = {item.name: prod(item.shape) * np.dtype(item.dtype).itemsize for item in task.scratch}
    return operands | {name: size for name, size in scratch.items() if name not in ONE_ROW}


def dependent(op, tensors, one, other, dims, chooser):
    """Whether some tile cut along two dimensions is not what each of them says alone."""
    whole = buffer_bytes(op, tensors, dims, {})
    for _ in range(TRIALS):
        ranges = {}
        for name in (one, other):
            start = chooser.randrange(dims[name])
            ranges[name] = (start, chooser.randint(start + 1, dims[name]))
        both = buffer_bytes(op, tensors, dims, ranges)
        first, second = (buffer_bytes(op, tensors, dims, {name: ranges[name]}) for name in (one, other))
        for name in {*whole, *both, *first, *second}:
            product = first.get(name, 0) * second.get(name, 0)
            if both.get(name, 0) * whole.get(name, 0) != product:
                return name
    return None


@pytest.mark.parametrize("case", CASES, ids=str)
def test_dimensions_that_are_not_said_to_meet_are_independent(case: Case):
    graph, _ = build(case)
    chooser = random.Random(case.seed)
    for op in graph.ops:
        lowering = lowering_of(op)
        dims = {**lowering.extents(op, graph.tensors), **lowering.reductions(op, graph.tensors)}
        sets = lowering.meeting(op, graph.tensors)
        for one, other in combinations([name for name, size in dims.items() if size > 1], 2):
            if not any({one, other} <= set(met) for met in sets):
                found = dependent(op, graph.tensors, one, other, dims, chooser)
                assert found is None, f"{op.name}: {one} and {other} decide together on {found}"


def test_dimensions_that_are_said_to_meet_do():
    example = next(item for item in PRIMITIVES["conv2d"].examples if item.attributes.get("groups") == 2)
    number = PRIMITIVES["conv2d"].examples.index(example)
    graph, _ = build(Case("conv2d", number, example, "fp32", 1))
    op = next(op for op in graph.ops if op.step == "FW")
    lowering = lowering_of(op)
    dims = {**lowering.extents(op, graph.tensors), **lowering.reductions(op, graph.tensors)}
    assert lowering.meeting(op, graph.tensors) == [("co", "ci")]
    assert dependent(op, graph.tensors, "co", "ci", dims, random.Random(0)) == "x"


def boxes_of_one_shape(op, tensors, whole, name, size, starts):
    """Boxes by buffer of pieces of so much of a dimension, after all have been seen to have one shape."""
    lowering = lowering_of(op)
    ranges = {each: (0, extent) for each, extent in whole.items()}
    choice = KernelChoice(lowering.default_kernel(op), CODEGEN, cores=8)
    tasks = [lowering.tile(op, tensors, ranges | {name: (start, start + size)}, choice) for start in starts]
    boxes = [{item.name: item for item in (*task.inputs, *task.outputs)} for task in tasks]
    assert len({tuple((key, item.shape) for key, item in tile.items()) for tile in boxes}) <= 1
    assert len({task.scratch for task in tasks}) <= 1
    return boxes


@pytest.mark.parametrize("case", CASES, ids=str)
def test_pieces_of_dimensions_that_are_said_to_be_cut_evenly_have_one_shape(case: Case):
    """Wherever they lie: same buffers of the same size; and of two of them all boxes differ, or none does."""
    graph, _ = build(case)
    for op in graph.ops:
        lowering = lowering_of(op)
        whole = {**lowering.extents(op, graph.tensors), **lowering.reductions(op, graph.tensors)}
        moved = set()
        for name, size in product(whole.keys() & lowering.even(op, graph.tensors), (1, 2, 3)):
            starts = range(min(12, whole[name] - size + 1))
            boxes = boxes_of_one_shape(op, graph.tensors, whole, name, size, starts)
            pairs = combinations(boxes, 2)
            moved |= {(name, *[key for key in one if one[key] != two[key]]) for one, two in pairs}
        assert len(moved) == len({name for name, *_ in moved}), f"{op.name}: pieces differ in what moves"
