# SPDX-License-Identifier: Apache-2.0
"""Schedules of training graphs that come from no model of ours: those of ONNX training graphs."""

from __future__ import annotations

from dataclasses import replace

from arch.team_cost_model import TeamCostModel
from configs.model_file import LossSpec, ModelSpec, OptimizerSpec
from pulptrain.machine import Prepared
from pulptrain.settings import Settings, schedule_options, soc_timing
from scheduler.memory.host_memory import HostUse
from scheduler.memory.memory_plan import check_sizes
from scheduler.options import of_programs
from scheduler.resident_search import schedule_for
from scheduler.schedule import Schedule, in_one_memory
from trainlib.graph import TrainingGraph
from trainlib.training import TrainingPhases


def prepare_phases(phases: TrainingPhases, settings: Settings, use: HostUse) -> Prepared:
    """What `pulptrain.session.prepare` does, from the graphs on. Raises the errors of `configs.errors`."""
    timing = soc_timing(settings)
    cost_model = TeamCostModel(timing)
    graphs = [graph for graph in (phases.mini_batch, phases.update) if graph is not None]
    by_program = of_programs(schedule_options(settings), graphs)
    for graph, own in zip(graphs, by_program, strict=True):
        check_sizes(graph, timing, own.memory, use)
    schedules: list[Schedule] = []
    for graph, own in zip(graphs, in_one_memory(graphs, timing, by_program), strict=True):
        schedules.append(schedule_for(graph, timing, cost_model, own, None, use))
        use = replace(use, beside=use.beside + schedules[-1].size)
    update = schedules[1] if len(schedules) > 1 else None
    return Prepared(spec_of(phases.mini_batch), timing, schedules[0], cost_model, update, phases)


def spec_of(graph: TrainingGraph) -> ModelSpec:
    """What a summary says of a graph that no model file describes: its name, input and loss, no layers."""
    loss = next(op for op in graph.ops if op.step == "LOSS")
    shape = graph.tensors[graph.input].shape
    return ModelSpec(
        name=graph.name,
        description="a training graph, imported as it is",
        source="",
        input_shape=shape[1:],
        dataset="random",
        loss=LossSpec(loss.primitive, dict(loss.attributes)),
        optimizer=OptimizerSpec("sgd", {}, graph.name),
        batch=shape[0],
        layers=(),
        where=graph.name,
    )
