# SPDX-License-Identifier: Apache-2.0
"""Tiles of single steps of convolutions, and the loops of their calls."""

import numpy as np

from arch.spec.isa import Loop
from shared.primitive_harness import Case, build
from trainlib.ir.steps import KernelChoice, find_part
from trainlib.primitives.definition import Example
from trainlib.registry import lowering_of

FAMILY = ("conv2d", "pointwise", "depthwise", "conv_transpose2d")
CHOICE = KernelChoice("mm", "clang-xpulp")


def task_of(primitive, options, shape, step, *, ranges=None, batch=1, dtype="fp32"):
    """(op, one tile of it), the whole step unless `ranges` says otherwise."""
    case = Case(primitive, 0, Example(options, (shape,)), dtype, batch)
    graph, _ = build(case)
    op = next(op for op in graph.ops if op.step == step)
    lowering = lowering_of(op)
    whole = {name: (0, size) for name, size in lowering.extents(op, graph.tensors).items()}
    return graph, op, lowering.tile(op, graph.tensors, whole | (ranges or {}), CHOICE)


def work_of(graph, task, call, cores):
    """The nests of a call with its buffers one after the other in L1."""
    shapes, addresses, end = {}, {}, 0x1000_0000
    buffers = [
        (item.name, item.shape, graph.tensors[item.tensor].dtype) for item in (*task.inputs, *task.outputs)
    ]
    buffers += [(item.name, item.shape, item.dtype) for item in task.scratch]
    for name, shape, dtype in buffers:
        shapes[name], addresses[name] = (shape, np.dtype(dtype).itemsize), end
        end += int(np.prod(shape)) * np.dtype(dtype).itemsize
    for used in (*call.reads, *call.writes):
        buffer, first, _ = find_part(used, lambda name: shapes[name][0])
        addresses[used] = addresses[buffer] + first * shapes[buffer][1]
    return call.work(cores, addresses)


def executed(nodes, kind):
    """How often instructions of a kind are executed."""
    total = 0
    for node in nodes:
        if isinstance(node, Loop):
            total += node.trips * executed(node.body, kind)
        else:
            total += node.op == kind
    return total
