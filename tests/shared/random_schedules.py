# SPDX-License-Identifier: Apache-2.0
"""Schedules of random graphs, and what holds for each."""

from __future__ import annotations

import numpy as np
from hypothesis import event
from hypothesis import strategies as st

from arch.pricing.cost_model import CoreCost, CostModel, TeamCost, Traffic
from arch.spec.isa import TeamWork
from arch.spec.soc_config import READABLE, load_soc, with_values
from configs.errors import DoesNotFitError
from configs.model_file import LayerSpec, LossSpec, ModelSpec, OptimizerSpec
from configs.values import replace
from scheduler.executor import Executor
from scheduler.options import ScheduleOptions
from scheduler.planned import Schedule
from scheduler.schedule import build_schedule, tiler_of
from shared.agreement import compare
from shared.initial_values import initial_values
from trainlib.references.reference import evaluate
from trainlib.training.phases import build_training_graph

TIMING = with_values(load_soc("pulp-open", "rtl"), {"form": READABLE})


STACK_BYTES = TIMING.l1.size_bytes - TIMING.l1_usable_bytes


class Fixed(CostModel):
    """Every kernel takes equally long, so that transfers end before, during and after kernels."""

    def __init__(self, cycles: int) -> None:
        self._cycles = cycles

    def price(self, work: TeamWork, traffic: Traffic = Traffic.NONE) -> TeamCost:
        idle, busy = CoreCost(0, 0), CoreCost(self._cycles, self._cycles)
        return TeamCost(tuple(idle if core is None else busy for core in work.cores))


@st.composite
def models(draw):
    """A convolution, a ReLU and a linear layer, each of a few elements."""
    kernel = draw(st.integers(1, 3))
    image = (draw(st.integers(1, 4)), draw(st.integers(kernel, 6)), draw(st.integers(kernel, 6)))
    conv = {
        "out_channels": draw(st.integers(1, 5)),
        "kernel": kernel,
        "padding": draw(st.integers(0, kernel - 1)),
        "stride": draw(st.integers(1, 2)),
        "bias": draw(st.booleans()),
    }
    layers = [LayerSpec("conv", "conv2d", conv, "x:1")]
    if draw(st.booleans()):
        layers.append(LayerSpec("act", "relu", {}, "x:2"))
    layers.append(LayerSpec("flat", "flatten", {}, "x:3"))
    layers.append(LayerSpec("fc", "linear", {"out_features": draw(st.integers(1, 6))}, "x:4"))
    sgd = OptimizerSpec("sgd", {"learning_rate": 0.05}, "x:5")
    batch = draw(st.integers(1, 3))
    return ModelSpec(
        "net", "test", "test", image, "random", LossSpec("mse"), sgd, batch, tuple(layers), "x:1"
    )


@st.composite
def schedules(draw):
    """A model, an L1, and options of which some fix tiles, reductions among them, and loop orders."""
    graph_spec = draw(models())
    graph = build_training_graph(graph_spec)
    options = ScheduleOptions(
        buffer_depth=draw(st.sampled_from([0, 1, 2, 3, 5])), prefetch=draw(st.booleans())
    )
    timing = replace(TIMING, l1=replace(TIMING.l1, size_bytes=STACK_BYTES + draw(st.integers(64, 6000))))
    tiles, orders, buffers = {}, {}, {}
    for op in graph.ops:
        tiler = tiler_of(op, graph, timing, options)
        if tiler.dims and draw(st.booleans()):
            tiles[op.name] = {name: draw(st.integers(1, extent)) for name, extent in tiler.dims.items()}
            orders[op.name] = draw(st.permutations(list(tiler.dims)))
        if draw(st.integers(0, 3)) == 0:
            buffers[op.name] = {op.reads[0]: draw(st.integers(1, 3))}
    return graph_spec, timing, replace(options, tile_sizes=tiles, loop_orders=orders, buffers=buffers)


def check_report(error, timing) -> None:
    """The bytes of the report add up."""
    assert error.level == "l1"
    assert error.required_bytes > error.available_bytes == timing.l1_usable_bytes
    assert sum(item.size_bytes for item in error.contributors) == error.required_bytes


def planned(case, cost_model: CostModel) -> Schedule | None:
    """The schedule of a case of `schedules`; None, and the report adds up, where L1 is too small."""
    spec, timing, options = case
    try:
        return build_schedule(build_training_graph(spec), timing, cost_model, options)
    except DoesNotFitError as error:
        event("does not fit")
        check_report(error, timing)
        return None


def check_numbers(schedule, spec, timing, cost_model, seed: int) -> int:
    """Run an iteration, compare all that is left of it with the untiled evaluation; returns its cycles."""
    graph = schedule.graph
    values = initial_values(graph, spec, seed)
    truth = evaluate(graph, values)
    executor = Executor(schedule, timing, cost_model)
    executor.load(values)
    cycles = executor.simulate().cycles
    kept = [*graph.results, *graph.updates.values()]
    found = {name: executor.fetch(name) for name in kept}
    for name, difference in compare(found, truth, kept).items():
        scale = max(1.0, float(np.abs(truth[name]).max()))
        assert difference.max_abs_error <= 1e-5 * scale, (name, difference)
    return cycles
