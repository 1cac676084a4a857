# SPDX-License-Identifier: Apache-2.0
"""More cores give the same numbers at equal tiles, to the last bit: only the time differs."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from pulptrain.inputs.settings import Settings
from scheduler.executor import Executor
from shared.kept_plans import prepare
from trainlib.training.phases import initial_weights
from trainlib.training.training_data import sample_stream


@cache
def tiles() -> tuple[str, ...]:
    """The tiles that 8 cores get: the search cuts by the number of cores, and NumPy rounds by the cut."""
    ready = prepare("digits-cnn", Settings(cores=8, l1="512KiB"))
    cut = ((op.op.name, tuple(dict(op.tiling.sizes).items())) for op in ready.schedule.ops if op.tiling.sizes)
    return tuple(
        f"{name}={','.join(f'{dimension}:{size}' for dimension, size in sizes)}" for name, sizes in cut
    )


@cache
def numbers(cores: int) -> tuple[dict[str, bytes], int]:
    """Every gradient and updated weight of one iteration of digits-cnn, and its cycles."""
    ready = prepare("digits-cnn", Settings(cores=cores, l1="512KiB", tiles=tiles()))
    graph = ready.schedule.graph
    executor = Executor(ready.schedule, ready.timing, ready.cost_model)
    executor.load({**initial_weights(graph, 0), **next(sample_stream(graph, ready.spec, 0))})
    cycles = executor.simulate().cycles
    names = [graph.output, graph.loss, *graph.gradients.values(), *graph.updates.values()]
    return {name: np.ascontiguousarray(executor.fetch(name)).tobytes() for name in names}, cycles


@pytest.mark.parametrize("cores", [2, 3, 8])
def test_adding_cores_changes_no_value(cores: int) -> None:
    alone, alone_cycles = numbers(1)
    together, together_cycles = numbers(cores)
    assert together == alone
    assert together_cycles < alone_cycles
