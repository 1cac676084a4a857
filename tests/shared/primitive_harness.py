# SPDX-License-Identifier: Apache-2.0
"""What every registered primitive is tested with: cases made from its examples, tiles run by hand.

The executor's part is played here without a machine: boxes are gathered, kernel calls work on poisoned
buffers, boxes are scattered; of a tile whose sum is cut, the parts are added in the dtype of the result, as
the scheduler adds them. Nothing here knows any primitive by name.
"""

from __future__ import annotations

import random
import zlib
from dataclasses import dataclass
from itertools import product
from math import prod

import numpy as np

from arch.spec.isa import TeamWork
from configs.dtypes import DType, is_float
from shared.oracle_torch import evaluate_torch
from shared.tolerances import tolerance
from trainlib.ir.graph import Op, TrainingGraph
from trainlib.ir.numerics import dtype_named, rounded, widened
from trainlib.ir.steps import KernelChoice, find_part
from trainlib.kernels.library import LIBRARY
from trainlib.primitives.definition import Example, OptimizerPrimitive
from trainlib.references.reference import evaluate
from trainlib.registry import PRIMITIVES, lowering_of, step_of
from trainlib.training.single import single
from truth.source import torch_available

CODEGEN = LIBRARY.codegen_names()[0]


@dataclass(frozen=True)
class Case:
    """One example of a primitive in one dtype and batch."""

    primitive: str
    number: int
    example: Example
    dtype: str
    batch: int

    def __str__(self) -> str:
        return f"{self.primitive}-{self.number}-{self.dtype}-batch{self.batch}"

    @property
    def seed(self) -> int:
        return zlib.crc32(str(self).encode())


def cases_of(primitive) -> list[Case]:
    """All cases of the examples of a primitive; optimizers know no batch."""
    cases = []
    for number, example in enumerate(getattr(primitive, "examples", ())):
        batches = (1,) if isinstance(primitive, OptimizerPrimitive) else example.batches
        cases += [
            Case(primitive.name, number, example, dtype, batch)
            for dtype in example.dtypes
            for batch in batches
        ]
    return cases


def all_cases() -> list[Case]:
    return [case for primitive in PRIMITIVES.values() for case in cases_of(primitive)]


def build(case: Case) -> tuple[TrainingGraph, dict[str, np.ndarray]]:
    """The graph of the primitive alone and values of all its given tensors."""
    example = case.example
    made = single(
        case.primitive, example.attributes, example.cases, batch=case.batch, dtype=case.dtype, seed=case.seed
    )
    return made.graph, dict(made.values)


def box(operand):
    return tuple(slice(start, stop) for start, stop in operand.region)


def poisoned(shape, dtype):
    """Storage nobody has written: NaN, or the largest number."""
    kind = np.dtype(dtype)
    return np.full(shape, np.nan, np.float32).astype(kind) if is_float(dtype) else (~np.zeros(shape, kind))


def view(buffers, name):
    """A buffer, or the part of one a kernel call names."""
    buffer, first, shape = find_part(name, lambda known: buffers[known].shape)
    if buffer == name:
        return buffers[name]
    flat = buffers[buffer].reshape(-1)
    assert 0 <= first <= first + prod(shape) <= flat.size, f"{name} reaches beyond its buffer"
    return flat[first : first + prod(shape)].reshape(shape)


def run_tile(op, tensors, task, values, results, written):
    """What the executor does to one tile: every buffer poisoned, every input read-only."""
    for operand, array in computed_boxes(op, tensors, task, values):
        results[operand.tensor][box(operand)] = array
        written[operand.tensor][box(operand)] += 1


def computed_boxes(op, tensors, task, values):
    """The outputs of one tile, each with its array."""
    buffers = {}
    names = [item.name for item in (*task.inputs, *task.outputs, *task.scratch)]
    assert len(names) == len(set(names)), f"{op.name}: two buffers of one name in {names}"
    for operand in task.inputs:
        data = operand.taken(values[operand.tensor])
        assert data.shape == operand.shape, f"{op.name}: {operand} is not inside its tensor"
        assert data.size > 0
        data.flags.writeable = False
        buffers[operand.name] = data
    for operand in task.outputs:
        buffers[operand.name] = poisoned(operand.shape, tensors[operand.tensor].dtype)
    for scratch in task.scratch:
        buffers[scratch.name] = poisoned(scratch.shape, scratch.dtype)
    for call in task.calls:
        produced = call.compute([view(buffers, name).copy() for name in call.reads])
        assert len(produced) == len(call.writes), f"{op.name}: {call.kernel}"
        for name, array in zip(call.writes, produced, strict=True):
            target = view(buffers, name)
            assert array.shape == target.shape, f"{op.name}: {call.kernel} gives {array.shape} for {name}"
            target[...] = array
    return [(operand, buffers[operand.name]) for operand in task.outputs]


def cuts(sizes_of_dimensions, tile_sizes):
    """All boxes of a grid, as ranges by dimension; a dimension `tile_sizes` does not name stays whole."""
    intervals = [
        [(start, min(start + step, size)) for start in range(0, size, step)]
        for name, size in sizes_of_dimensions.items()
        for step in (tile_sizes.get(name, max(size, 1)),)
    ]
    return [dict(zip(sizes_of_dimensions, ranges, strict=True)) for ranges in product(*intervals)]


def run_op(op: Op, tensors, values, tile_sizes, choice: KernelChoice):
    """All tiles of one op, `tile_sizes` per extent and reduction; returns its outputs and how many tiles.

    Tiles over the parts of a sum are added one after the other, each sum rounded to the dtype of the result;
    boxes of two parts are the same one, or have no element in common.
    """
    lowering = lowering_of(op)
    results = {name: poisoned(tensors[name].shape, tensors[name].dtype) for name in op.outputs}
    written = {name: np.zeros(tensors[name].shape, int) for name in op.outputs}
    extents, reductions = dict(lowering.extents(op, tensors)), lowering.reductions(op, tensors)
    assert not extents.keys() & reductions.keys(), f"{op.name}: a dimension is an extent and a reduction"
    assert set(tile_sizes) <= {*extents, *reductions}, (op.name, tile_sizes)
    tiles, parts = cuts(extents, tile_sizes), cuts(reductions, tile_sizes)
    macs = 0
    for ranges in tiles:
        sums = {}
        for over in parts:
            task = lowering.tile(op, tensors, ranges | over, choice)
            boxes = computed_boxes(op, tensors, task, values)
            macs += sum(call.macs for call in task.calls)
            for operand, array in boxes:
                sums[operand] = added(sums[operand], array) if operand in sums else array
        for operand, array in sums.items():
            results[operand.tensor][box(operand)] = array
            written[operand.tensor][box(operand)] += 1
    for name, count in written.items():
        assert (count == 1).all(), f"{op.name}: each element of {name} belongs to one tile"
    assert macs == lowering.macs(op, tensors), op.name
    return results, len(tiles) * len(parts)


def added(total, term):
    """total + term, rounded once to their dtype."""
    return rounded(widened(total) + widened(term), total.dtype)


def random_sizes(op, tensors, chooser, *, cut_sums=True):
    """A size from 1 to the whole for every dimension of the step; sums stay whole unless `cut_sums`."""
    lowering = lowering_of(op)
    sizes = dict(lowering.extents(op, tensors)) | (lowering.reductions(op, tensors) if cut_sums else {})
    return {name: chooser.randint(1, size) for name, size in sizes.items()}


def parts_of_sums(op, tensors, tile_sizes) -> int:
    """Tiles that are added up to one."""
    return len(cuts(lowering_of(op).reductions(op, tensors), tile_sizes))


CANCELLATION = 10.0
"""Terms that are this many times larger than their sum have cancelled."""

NUDGE = 2.0**-24
"""Relative change of every number an op reads by which `terms` finds out what its results are made of."""

NUDGES = 8
"""How often."""


def terms(ops, graph, values) -> dict[str, float]:
    """Largest magnitude of what the elements of each result of `ops` are summed up from.

    Measured: the ops' references run in float64, once as they are and `NUDGES` times with every float an op
    reads moved by `NUDGE` of itself, up or down at random. A result made of terms t then moves by about the
    root of the sum of their squares, whichever op of the chain the terms cancel in.
    """
    wide = {
        name: array.astype(np.float64) if is_float(str(array.dtype)) else array
        for name, array in values.items()
    }
    generator = np.random.default_rng(1)
    plain = nudged(ops, graph, wide, lambda shape: 1.0)
    found = dict.fromkeys((name for op in ops for name in op.outputs), 0.0)
    for _ in range(NUDGES):
        moved = nudged(ops, graph, wide, lambda shape: 1 + NUDGE * generator.choice((-1.0, 1.0), shape))
        for name in found:
            if is_float(graph.tensors[name].dtype):
                change = np.abs(moved[name].astype(np.float64) - plain[name].astype(np.float64))
                found[name] = max(found[name], float(change.max(initial=0.0)) / NUDGE)
    return found


def nudged(ops, graph, values, factors):
    """Values of all tensors by the references in float64, what an op reads multiplied by `factors(shape)`."""
    known = dict(values)
    for op in ops:
        inputs = {}
        for role, name in zip(op.reads, op.inputs, strict=True):
            source = name if name in known else graph.storage_of(name)
            array = known[source].reshape(graph.tensors[name].shape)
            inputs[role] = array * factors(array.shape) if array.dtype == np.float64 else array
        with np.errstate(all="ignore"):
            results = step_of(op).reference(op, inputs)
        known.update({op[role]: np.asarray(results[role]) for role in op.writes})
    return known


def assert_close(ours, truth, allowed, what, terms_of=lambda: 0.0):
    """max|a - b| <= allowed * max|b|, tensor by tensor; NaN never passes.

    Only where `terms_of` says that the terms of the tensor are `CANCELLATION` times larger than what is left
    of them, the error is one of the terms' size: no arithmetic of this precision can do better.
    """
    assert ours.shape == truth.shape, what
    if ours.size == 0:
        return
    truth = truth.astype(np.float64)
    size, worst = float(np.abs(truth).max()), float(np.max(np.abs(ours.astype(np.float64) - truth)))
    if worst <= allowed * size:
        return
    scale = terms_of()
    assert scale > CANCELLATION * size, (
        f"{what}: off by {worst:.3g}, {worst / (size or 1):.3g} of the largest"
    )
    assert worst <= allowed * scale, f"{what}: off by {worst:.3g}, the terms are {scale:.3g}"


def check_reference(case: Case) -> None:
    """Untiled reference of every step against PyTorch (float64), given the same inputs."""
    graph, values = build(case)
    ours = evaluate(graph, values)
    assert set(ours) == set(graph.tensors)
    for name, tensor in graph.tensors.items():
        assert str(ours[name].dtype) == tensor.dtype, name
        assert ours[name].shape == tensor.shape, name
    if not torch_available():
        return
    truth = evaluate_torch(graph, values)
    computed = {name for op in graph.ops for name in op.outputs}
    for name in computed & set(truth):
        op = next(op for op in graph.ops if name in op.outputs)
        allowed = tolerance(graph.tensors[name].dtype, roundings=case.example.roundings)
        if any(tensor.dtype != "float32" and is_float(tensor.dtype) for tensor in graph.tensors.values()):
            allowed = max(allowed, tolerance(dtype_of(graph, case), roundings=case.example.roundings))
        assert_close(
            ours[name],
            truth[name],
            allowed,
            f"{case} {op.name} {name}",
            lambda name=name: terms(graph.ops, graph, values)[name],
        )
    gradients = {*graph.backward.values(), *graph.gradients.values()} & computed
    assert gradients <= set(truth), "PyTorch must confirm every gradient"


def dtype_of(graph, case) -> DType:
    """The coarsest float format of the graph."""
    found = {tensor.dtype for tensor in graph.tensors.values()} | {dtype_named(case.dtype)}
    return max((dtype for dtype in found if dtype.is_float), key=lambda dtype: dtype.unit_roundoff)


def check_tiles(case: Case, accumulation: str = "reference") -> int:
    """Tiles of random sizes of every step against its reference; returns the largest number of tiles.

    A step whose sums can be cut is run with whole sums and with cut ones.
    """
    graph, values = build(case)
    known = evaluate(graph, values)
    chooser = random.Random(case.seed)
    most = 1
    for op in graph.ops:
        lowering = lowering_of(op)
        default = lowering.default_kernel(op)
        kernels = (default, *case.example.kernels) if default else ("",)
        ways = (False, True) if lowering.reductions(op, graph.tensors) else (False,)
        for kernel, cut_sums in product(kernels, ways):
            sizes = random_sizes(op, graph.tensors, chooser, cut_sums=cut_sums)
            choice = KernelChoice(kernel, CODEGEN, accumulation)
            inputs = {name: known[name] for name in op.inputs}
            results, tiles = run_op(op, graph.tensors, inputs, sizes, choice)
            most = max(most, tiles)
            for name, array in results.items():
                macs = lowering.macs(op, graph.tensors)
                length = -(-macs // max(array.size, 1)) if accumulation == "kernel" else 0
                # Every part of a cut sum is rounded when stored, and so is every sum of two.
                parts = 2 * (parts_of_sums(op, graph.tensors, sizes) - 1)
                dtype = graph.tensors[name].dtype
                allowed = tolerance(dtype, roundings=case.example.roundings, length=length, parts=parts)
                if is_float(dtype):
                    what = f"{case} {op.name} {name} {sizes}"
                    own = lambda op=op, name=name: terms([op], graph, known)[name]  # noqa: E731
                    assert_close(array, known[name], allowed, what, own)
                else:
                    assert np.array_equal(array, known[name]), f"{case} {op.name} {name} {sizes}"
    return most


def check_work(case: Case, codegen: str = CODEGEN) -> None:
    """Every kernel call has loop nests for any number of cores, at the addresses of its buffers."""
    graph, _ = build(case)
    for op in graph.ops:
        lowering = lowering_of(op)
        dimensions = {**lowering.extents(op, graph.tensors), **lowering.reductions(op, graph.tensors)}
        ranges = {name: (0, (size + 1) // 2) for name, size in dimensions.items()}
        choice = KernelChoice(lowering.default_kernel(op), codegen)
        task = lowering.tile(op, graph.tensors, ranges, choice)
        shapes, widths = {}, {}
        for operand in (*task.inputs, *task.outputs):
            shapes[operand.name] = operand.shape
            widths[operand.name] = np.dtype(graph.tensors[operand.tensor].dtype).itemsize
        for scratch in task.scratch:
            shapes[scratch.name] = scratch.shape
            widths[scratch.name] = np.dtype(scratch.dtype).itemsize
        base = {name: 0x1000_0000 + 0x10_0000 * index for index, name in enumerate(shapes)}
        for call, cores in product(task.calls, (1, 3, 8)):
            addresses = dict(base)
            for name in (*call.reads, *call.writes):
                buffer, first, _ = find_part(name, shapes.__getitem__)
                addresses[name] = base[buffer] + first * widths[buffer]
            team = call.work(cores if call.fork else 1, addresses)
            assert isinstance(team, TeamWork)
            assert team.macs == call.macs, (op.name, call.kernel)
            assert len(team.cores) == (cores if call.fork else 1)
            bases = {stream.base_bytes & ~0xF_FFFF for core in team.cores if core for stream in core.streams}
            named = {addresses[name] & ~0xF_FFFF for name in (*call.reads, *call.writes)}
            assert bases & named, f"{op.name}: {call.kernel} touches none of its buffers"
            assert bases - {0} <= named, f"{op.name}: {call.kernel} touches a buffer it does not name"
