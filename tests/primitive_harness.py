"""What every registered primitive is tested with: cases made from its examples, tiles run by hand.

The executor's part is played here without a machine: boxes are gathered, kernel calls work on poisoned
buffers, boxes are scattered. Nothing here knows any primitive by name.
"""

from __future__ import annotations

import random
import zlib
from dataclasses import dataclass
from itertools import product
from math import prod

import numpy as np

from arch.isa import TeamWork
from trainlib.graph import Op, TrainingGraph
from trainlib.kernels import catalogue
from trainlib.numerics import dtype_named, is_float, tolerance
from trainlib.oracle_torch import evaluate_torch, torch_available
from trainlib.primitives.definition import Example, LossPrimitive, OptimizerPrimitive
from trainlib.reference import evaluate
from trainlib.registry import PRIMITIVES, lowering_of, step_of
from trainlib.single import single
from trainlib.steps import KernelChoice, find_part

CODEGEN = catalogue.codegen_names()[0]


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
    """All cases of the examples of a primitive; losses work in fp32, optimizers know no batch."""
    cases = []
    for number, example in enumerate(getattr(primitive, "examples", ())):
        dtypes = ("fp32",) if isinstance(primitive, LossPrimitive) else example.dtypes
        batches = (1,) if isinstance(primitive, OptimizerPrimitive) else example.batches
        cases += [
            Case(primitive.name, number, example, dtype, batch) for dtype in dtypes for batch in batches
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
    buffers = {}
    names = [item.name for item in (*task.inputs, *task.outputs, *task.scratch)]
    assert len(names) == len(set(names)), f"{op.name}: two buffers of one name in {names}"
    for operand in task.inputs:
        data = np.ascontiguousarray(values[operand.tensor][box(operand)])
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
    for operand in task.outputs:
        results[operand.tensor][box(operand)] = buffers[operand.name]
        written[operand.tensor][box(operand)] += 1


def run_op(op: Op, tensors, values, tile_sizes, choice: KernelChoice):
    """All tiles of one op, `tile_sizes` per extent; returns its outputs and the number of tiles."""
    lowering = lowering_of(op)
    results = {name: poisoned(tensors[name].shape, tensors[name].dtype) for name in op.outputs}
    written = {name: np.zeros(tensors[name].shape, int) for name in op.outputs}
    extents = lowering.extents(op, tensors)
    cuts = [
        [(start, min(start + tile_sizes[name], size)) for start in range(0, size, tile_sizes[name])]
        for name, size in extents.items()
    ]
    macs = 0
    for ranges in product(*cuts):
        task = lowering.tile(op, tensors, dict(zip(extents, ranges, strict=True)), choice)
        run_tile(op, tensors, task, values, results, written)
        macs += sum(call.macs for call in task.calls)
    for name, count in written.items():
        assert (count == 1).all(), f"{op.name}: each element of {name} belongs to one tile"
    assert macs == lowering.macs(op, tensors), op.name
    return results, prod(len(cut) for cut in cuts)


def random_sizes(op, tensors, chooser):
    return {name: chooser.randint(1, size) for name, size in lowering_of(op).extents(op, tensors).items()}


def magnitude(op, tensors, values) -> float:
    """Largest sum of magnitudes behind a result of a matmul step: what rounding of a sum scales with."""
    if not lowering_of(op).default_kernel(op):
        return 0.0
    inputs = {
        role: np.abs(values[name].astype(np.float32)) if is_float(tensors[name].dtype) else values[name]
        for role, name in zip(op.reads, op.inputs, strict=True)
    }
    with np.errstate(all="ignore"):
        results = step_of(op).reference(op, inputs)
    sizes = [float(np.abs(results[role]).max()) for role in op.writes]
    return max((size for size in sizes if np.isfinite(size)), default=0.0)


def assert_close(ours, truth, scale, allowed, what):
    """max|a - b| <= allowed * max(max|b|, scale); NaN never passes."""
    assert ours.shape == truth.shape, what
    if ours.size == 0:
        return
    truth = truth.astype(np.float64)
    worst = float(np.max(np.abs(ours.astype(np.float64) - truth)))
    assert worst <= allowed * max(float(np.abs(truth).max()), scale), f"{what}: off by {worst:.3g}"


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
        scale = magnitude(op, graph.tensors, ours)
        assert_close(ours[name], truth[name], scale, allowed, f"{case} {op.name} {name}")
    gradients = {*graph.backward.values(), *graph.gradients.values()} & computed
    assert gradients <= set(truth), "PyTorch must confirm every gradient"


def dtype_of(graph, case) -> str:
    """The coarsest float format of the graph."""
    found = {tensor.dtype for tensor in graph.tensors.values()}
    return next((name for name in ("bfloat16", "float16") if name in found), dtype_named(case.dtype))


def check_tiles(case: Case, accumulation: str = "reference") -> int:
    """Tiles of random sizes of every step against its reference; returns the largest number of tiles."""
    graph, values = build(case)
    known = evaluate(graph, values)
    chooser = random.Random(case.seed)
    most = 1
    for op in graph.ops:
        default = lowering_of(op).default_kernel(op)
        kernels = (default, *case.example.kernels) if default else ("",)
        for kernel in kernels:
            sizes = random_sizes(op, graph.tensors, chooser)
            choice = KernelChoice(kernel, CODEGEN, accumulation)
            inputs = {name: known[name] for name in op.inputs}
            results, tiles = run_op(op, graph.tensors, inputs, sizes, choice)
            most = max(most, tiles)
            scale = magnitude(op, graph.tensors, known)
            for name, array in results.items():
                macs = lowering_of(op).macs(op, graph.tensors)
                length = -(-macs // max(array.size, 1)) if accumulation == "kernel" else 0
                dtype = graph.tensors[name].dtype
                allowed = tolerance(dtype, roundings=case.example.roundings, length=length)
                if is_float(dtype):
                    assert_close(array, known[name], scale, allowed, f"{case} {op.name} {name} {sizes}")
                else:
                    assert np.array_equal(array, known[name]), f"{case} {op.name} {name} {sizes}"
    return most


def check_work(case: Case, codegen: str = CODEGEN) -> None:
    """Every kernel call has loop nests for any number of cores, at the addresses of its buffers."""
    graph, _ = build(case)
    for op in graph.ops:
        lowering = lowering_of(op)
        extents = lowering.extents(op, graph.tensors)
        ranges = {name: (0, (size + 1) // 2) for name, size in extents.items()}
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
