# SPDX-License-Identifier: Apache-2.0
"""Values of all given tensors of the first iteration of a model."""

from __future__ import annotations

from configs.model_file import ModelSpec
from trainlib.ir.graph import TrainingGraph
from trainlib.ir.steps import Array
from trainlib.training.phases import initial_weights
from trainlib.training.training_data import sample_stream


def initial_values(graph: TrainingGraph, spec: ModelSpec, seed: int) -> dict[str, Array]:
    """Values of the first iteration: start of all kept tensors, and the first values of the stream."""
    return {**next(sample_stream(graph, spec, seed)), **initial_weights(graph, seed)}
