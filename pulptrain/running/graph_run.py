# SPDX-License-Identifier: Apache-2.0
"""Runs of training graphs that come from no model of ours: those of ONNX training graphs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from configs.errors import InputError
from configs.model_file import LossSpec, ModelSpec, OptimizerSpec
from importers.graph.onnx_file import load_onnx
from importers.training.graph import ImportedTraining, import_training, is_training_graph, optimizer_beside
from pulptrain.inputs.settings import Settings, code_map, code_start, schedule_options, soc_timing
from pulptrain.running.machine import Prepared
from pulptrain.running.planning import planned
from pulptrain.running.session import RunOutcome, run_prepared
from scheduler.memory.host_memory import HostUse
from scheduler.options import of_programs
from scheduler.search.cache import ResultCache
from trainlib.ir.graph import TrainingGraph
from trainlib.ir.steps import Array
from trainlib.training.phases import TrainingPhases


def prepare_phases(
    phases: TrainingPhases,
    settings: Settings,
    use: HostUse,
    cache: ResultCache | None = None,
    *,
    traced: bool = True,
) -> Prepared:
    """What `pulptrain.running.session.prepare` does, from the graphs on. Raises the errors of
    `configs.errors`."""
    by_program = of_programs(schedule_options(settings), phases.graphs)
    spec, timing, start = spec_of(phases.mini_batch), soc_timing(settings), code_start(settings)
    return planned(spec, phases, timing, by_program, cache, use, start, code_map(settings), traced=traced)


def spec_of(graph: TrainingGraph) -> ModelSpec:
    """What a summary says of a graph that no model file describes: its name, input and loss, no layers."""
    loss = next((op for op in graph.ops if op.step == "LOSS"), None)
    shape = graph.tensors[graph.input].shape
    return ModelSpec(
        name=graph.name,
        description="a training graph, imported unchanged",
        source="",
        input_shape=shape[1:],
        dataset="random",
        loss=LossSpec(loss.primitive, dict(loss.attributes)) if loss is not None else LossSpec(""),
        optimizer=OptimizerSpec("sgd", {}, graph.name),
        batch=shape[0],
        layers=(),
        where=graph.name,
    )


def drawn_samples(graph: TrainingGraph, seed: int) -> Iterator[Mapping[str, Array]]:
    """Endless inputs, uniform in -1..1 or rows of a table, and labels, classes or as inputs; by tensor."""
    fed = [graph.tensors[name] for name in graph.of_kind("input", "label")]
    classes = graph.tensors[graph.output].shape[-1]
    tables = [op for op in graph.ops if op.primitive == "embedding" and op.step == "FW"]
    words = {graph.storage_of(op["x"]): op.attributes["vocabulary"] for op in tables}
    for iteration in count():
        generator = np.random.default_rng([seed, 1, iteration])
        values: dict[str, Array] = {}
        for tensor in fed:
            if tensor.dtype.is_float:
                values[tensor.name] = generator.uniform(-1, 1, tensor.shape).astype(tensor.dtype)
            else:
                values[tensor.name] = generator.integers(
                    words.get(tensor.name, classes), size=tensor.shape
                ).astype(tensor.dtype)
        yield values


def open_training_graph(
    model: str, settings: Settings, learning_rate: float | None, *, with_sizes: bool
) -> ImportedTraining | None:
    """The training graph of an .onnx file, with the optimizer graph beside it; None for a forward graph.

    `with_sizes` says that the user gives sizes of inputs, as only a network takes them: None, too, for a file
    that cannot be read without. Raises the errors of `importers.graph.onnx_file.load_onnx` and
    `importers.training.graph.import_training`.
    """
    try:
        graph = load_onnx(model)
    except InputError:
        if not with_sizes:
            raise
        return None
    if not is_training_graph(graph):
        return None
    beside = optimizer_beside(Path(model).resolve().parent)
    optimizer = load_onnx(beside) if beside is not None else None
    imported = import_training(graph, optimizer, learning_rate)
    return imported.over(settings.accumulate or 1)


def run_training_graph(
    imported: ImportedTraining,
    settings: Settings,
    *,
    functional: bool = True,
    traced: bool = True,
    cache: ResultCache | None = None,
    values: Mapping[str, Array] | None = None,
    **how: Any,
) -> RunOutcome:
    """`pulptrain.running.session.run_model` for a training graph: its own backward pass, random samples.

    Every tensor is checked op by op; autograd, which is the truth of a
    backward pass that we derive, is none of one that somebody else has written. `how` goes on to
    `pulptrain.running.session.run_prepared`.
    """
    for option, given in (("--dtype", settings.dtype), ("--batch", settings.batch)):
        if given is not None:
            raise InputError(
                "the training graph already sets the option", where=option, cure="remove the option"
            )
    prepared = prepare_phases(imported.phases, settings, HostUse(functional), cache, traced=traced)
    graph = imported.phases.mini_batch
    outcome = run_prepared(
        prepared,
        settings,
        functional=functional,
        values={**imported.values, **(values or {})} if functional else None,
        samples=drawn_samples(graph, settings.seed),
        **how,
    )
    outcome.summary["notes"] += imported.notes
    outcome.refuse_wrong_numbers()
    return outcome
