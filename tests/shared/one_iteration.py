# SPDX-License-Identifier: Apache-2.0
"""One iteration of a model written as text: what goes in, what is made of it, the same numbers in PyTorch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from configs.model_file import ModelSpec, load_model
from trainlib.ir.graph import TrainingGraph
from trainlib.references.reference import evaluate
from trainlib.training.options import check_options
from trainlib.training.phases import build_training_graph, initial_weights
from trainlib.training.training_data import sample_stream


def read(folder: Path, text: str) -> ModelSpec:
    """The model of this text, which is in ``m.yaml`` then."""
    path = folder / "m.yaml"
    path.write_text(text)
    return load_model(str(path), check_options)


def iteration(spec: ModelSpec) -> tuple[TrainingGraph, dict, dict]:
    """The graph, its values before an iteration, and all tensors after it."""
    graph = build_training_graph(spec)
    start = {**initial_weights(graph, 0), **next(sample_stream(graph, spec, 0))}
    return graph, start, evaluate(graph, start)


def in_torch(values: Mapping[str, Any]) -> dict[str, Any]:
    """The arrays as tensors, in float64 or as class numbers."""
    import torch

    return {
        name: torch.tensor(np.asarray(array, np.int64 if array.dtype.kind == "i" else np.float64))
        for name, array in values.items()
    }
