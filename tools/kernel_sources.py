# SPDX-License-Identifier: Apache-2.0
"""Which kernels have C sources: asked of every kernel that an example of some primitive calls in fp32."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from math import prod

from arch.spec.program import Compute, Effect, Place
from configs.dtypes import DType
from configs.errors import InputError
from configs.model_file import load_model
from configs.values import replace
from deploy.calls.call import NOTHING, c_calls, kernel_sources
from tools.pages.page import ROOT
from trainlib.ir.graph import Op, TrainingGraph
from trainlib.ir.steps import KernelChoice, Operand, Scratch, TileTask, find_part
from trainlib.kernels.catalogue import kernel_names
from trainlib.primitives.optimizers import gradient_steps
from trainlib.registry import PRIMITIVES, lowering_of
from trainlib.training.backward_reads import in_other_forms
from trainlib.training.phases import build_training_graph, build_update_graph
from trainlib.training.single import single

CODEGEN = "clang-xpulp"
"""Other codegens have the same names, but for the hand-scheduled matmuls."""

HAND_SCHEDULED = "asm-xpulp"


GENERATED = "generated"
NONE_NEEDED = "none needed"


@dataclass(frozen=True, slots=True)
class Coverage:
    """Kernels by name: the C file of each, or `GENERATED` or `NONE_NEEDED`; and why some calls have none.

    A kernel may be in both: one of its callers has an option there is no C for.
    """

    sources: dict[str, str]
    refused: dict[str, str]


@cache
def covered() -> Coverage:
    """What the C files have, what the examples of all primitives call, and matmuls a user may choose."""
    found = {kernel: source.file for kernel, source in kernel_sources().items()}
    found |= dict.fromkeys(NOTHING, NONE_NEEDED)
    chosen = [*kernel_names(CODEGEN), *kernel_names(HAND_SCHEDULED)]
    refused = {kernel: f"no C source for kernel {kernel}" for kernel in chosen if kernel not in found}
    for op, action in actions():
        kernel = action.team.kernel
        try:
            for call in c_calls(action, op):
                found.setdefault(
                    kernel, GENERATED if call.kernel not in kernel_sources() else found[call.kernel]
                )
        except InputError as error:
            refused[kernel] = error.message
    return Coverage(dict(sorted(found.items())), dict(sorted(refused.items())))


def actions() -> Iterator[tuple[Op, Compute]]:
    """One tile of every step of every example, as large as the step; clipping, adding, averaging too."""
    for graph in _graphs():
        for op in graph.ops:
            lowering = lowering_of(op)
            choice = KernelChoice(lowering.default_kernel(op), CODEGEN)
            ranges = {axis: (0, size) for axis, size in lowering.extents(op, graph.tensors).items()}
            task = lowering.tile(op, graph.tensors, ranges, choice)
            dtypes = {
                operand.name: graph.tensors[operand.tensor].dtype for operand in (*task.inputs, *task.outputs)
            }
            dtypes |= {scratch.name: scratch.dtype for scratch in task.scratch}
            for action in _of_tile(task, dtypes):
                yield op, action


def _graphs() -> Iterator[TrainingGraph]:
    for name, primitive in PRIMITIVES.items():
        for example in getattr(primitive, "examples", ()):
            if "fp32" in example.dtypes:
                graph = single(name, example.attributes, example.cases, batch=max(example.batches)).graph
                yield from (graph, *in_other_forms(graph))
    frozen = replace(load_model(ROOT / "examples" / "lora-block.yaml"), frozen_weights="int8")
    yield build_training_graph(frozen)
    update = build_update_graph("sgd", {"learning_rate": 0.1}, (8,))
    yield from gradient_steps.accumulate_gradients(update, 2)
    yield gradient_steps.clip_gradients_by_value(update, 1.0)
    yield gradient_steps.clip_gradients_by_norm(update, 1.0)
    yield gradient_steps.average_weights(update, 0.5)


def _of_tile(task: TileTask, dtypes: Mapping[str, DType]) -> Iterator[Compute]:
    places: dict[str, Place] = {}
    address = 64
    buffers: tuple[Operand | Scratch, ...] = (*task.inputs, *task.outputs, *task.scratch)
    for buffer in buffers:
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
