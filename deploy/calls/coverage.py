# SPDX-License-Identifier: Apache-2.0
"""Which kernels have C sources: asked of every kernel that a step of an example of some primitive calls in fp32."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from arch.spec.program import Compute, Effect, Place
from configs.errors import InputError
from deploy.calls.call import NOTHING, c_calls, kernel_sources
from trainlib.ir.graph import Op
from trainlib.ir.steps import KernelChoice, TileTask, find_part
from trainlib.kernels.catalogue import depthwise_names, kernel_names
from trainlib.registry import PRIMITIVES, lowering_of
from trainlib.training.single import single

CODEGEN = "clang-xpulp"
"""Other codegens have the same names, but for the hand-scheduled matmuls."""

HAND_SCHEDULED = "asm-xpulp"


@dataclass(frozen=True, slots=True)
class Coverage:
    """Kernels by name: the C file of each, and why others have none."""

    sources: dict[str, str]
    refused: dict[str, str]


def covered() -> Coverage:
    """All matmuls, and what the examples of the primitives call."""
    found: dict[str, str] = {}
    refused: dict[str, str] = {}
    for codegen, names in ((CODEGEN, depthwise_names(CODEGEN)), *_matmuls()):
        for kernel in names:
            if kernel in kernel_sources():
                found[kernel] = kernel_sources()[kernel].file
            else:
                refused[kernel] = f"no C source for kernel {kernel} of {codegen}"
    for op, action in _actions():
        kernel = action.team.kernel
        try:
            for call in c_calls(action, op):
                source = kernel_sources().get(call.kernel)
                found[kernel] = source.file if source else "generated"
        except InputError as error:
            refused[kernel] = error.message
    found.update(dict.fromkeys(NOTHING, "none needed"))
    return Coverage(dict(sorted(found.items())), dict(sorted(refused.items())))


def _matmuls() -> Iterator[tuple[str, tuple[str, ...]]]:
    yield CODEGEN, kernel_names(CODEGEN)
    own = tuple(name for name in kernel_names(HAND_SCHEDULED) if name.startswith("asm_"))
    yield HAND_SCHEDULED, own


def _actions() -> Iterator[tuple[Op, Compute]]:
    """One tile of every step of every example, as large as the step."""
    for name, primitive in PRIMITIVES.items():
        for example in getattr(primitive, "examples", ()):
            if "fp32" not in example.dtypes:
                continue
            graph = single(name, example.attributes, example.cases, batch=max(example.batches)).graph
            for op in graph.ops:
                lowering = lowering_of(op)
                choice = KernelChoice(lowering.default_kernel(op), CODEGEN)
                ranges = {axis: (0, size) for axis, size in lowering.extents(op, graph.tensors).items()}
                task = lowering.tile(op, graph.tensors, ranges, choice)
                dtypes = {
                    operand.name: graph.tensors[operand.tensor].dtype
                    for operand in (*task.inputs, *task.outputs)
                }
                dtypes |= {scratch.name: scratch.dtype for scratch in task.scratch}
                for action in _of_tile(task, dtypes):
                    yield op, action


def _of_tile(task: TileTask, dtypes: dict[str, str]) -> Iterator[Compute]:
    places: dict[str, Place] = {}
    address = 64
    for buffer in (*task.inputs, *task.outputs, *task.scratch):
        places[buffer.name] = Place("l1", address, buffer.shape, str(dtypes[buffer.name]), buffer.name)
        address += places[buffer.name].size_bytes
    for call in task.calls:
        used = {name: _part(places, name) for name in (*call.reads, *call.writes)}
        addresses = {name: place.address for name, place in (places | used).items()}
        reads, writes = (tuple(used[name] for name in names) for names in (call.reads, call.writes))
        effect = Effect(reads, writes, call.compute, call.details)
        yield Compute(0, team=call.work(1, addresses), fork=call.fork, effect=effect)


def _part(places: dict[str, Place], name: str) -> Place:
    buffer, first, shape = find_part(name, lambda known: places[known].shape)
    whole = places[buffer]
    size_bytes = whole.size_bytes // max(prod(whole.shape), 1)
    return (
        whole if buffer == name else Place("l1", whole.address + first * size_bytes, shape, whole.dtype, name)
    )
