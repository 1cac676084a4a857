# SPDX-License-Identifier: Apache-2.0
"""What `pulptrain run MODEL` may be: a model of ours, a network from elsewhere, a training graph as it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from configs.errors import InputError
from pulptrain.foreign.foreign_model import (
    ONNX,
    ForeignModel,
    ModelOptions,
    compare_with_origin,
    open_foreign,
    refuse_other_gradients,
)
from pulptrain.given.settings import Settings
from pulptrain.running.machine import Prepared
from pulptrain.running.session import RunOutcome, prepare, run_model
from scheduler.memory.host_memory import TIMING_ONLY
from trainlib.ir.steps import Array

if TYPE_CHECKING:
    from importers.training.graph import ImportedTraining

# A model of ours needs no importer: `pulptrain.running.graph_run` loads them, so it waits for a training
# graph.


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A model as it was given; at most one of `training` (a training graph) and `foreign` is there."""

    name: str
    training: ImportedTraining | None = None
    foreign: ForeignModel | None = None

    def prepared(self, settings: Settings) -> Prepared:
        """Everything before time starts. Raises the errors of `pulptrain.running.session.prepare`."""
        if self.training is not None:
            from pulptrain.running.graph_run import prepare_phases

            return prepare_phases(self.training.phases, settings, TIMING_ONLY)
        return prepare(self.name if self.foreign is None else self.foreign.spec, settings)

    def run(
        self, settings: Settings, *, functional: bool, values: Mapping[str, Array] | None, **how: Any
    ) -> RunOutcome:
        """`pulptrain.running.session.run_model` of it; `values` go before the weights a foreign model brings.

        The gradients of a PyTorch module are compared with those of the module itself.
        """
        if self.training is not None:
            from pulptrain.running.graph_run import run_training_graph

            return run_training_graph(self.training, settings, functional=functional, values=values, **how)
        if self.foreign is None:
            return run_model(self.name, settings, functional=functional, values=values, **how)
        given = {**self.foreign.values, **(values or {})} if functional else values
        outcome = run_model(self.foreign.spec, settings, functional=functional, values=given, **how)
        outcome.summary["notes"] += self.foreign.notes
        compare_with_origin(self.foreign, outcome, settings, how["iterations"], given=values is not None)
        return outcome

    def refuse_other_gradients(self, outcome: RunOutcome) -> None:
        """Raise `WrongNumbersError` if the module has other gradients than the outcome."""
        if self.foreign is not None:
            refuse_other_gradients(self.foreign, outcome)


def open_source(
    model: str,
    settings: Settings,
    model_input: str | None = None,
    loss: str | None = None,
    optimizer: str | None = None,
    learning_rate: float | None = None,
) -> ModelSource:
    """What `model` is: ``net.py:Net``, whose file is run, ``model.onnx``, or a model of ours.

    Raises `InputError` for options that a model of this kind answers itself.
    """
    asked = ModelOptions(model_input, loss, optimizer)
    if model.endswith(ONNX):
        from pulptrain.running.graph_run import open_training_graph

        training = open_training_graph(model, settings, learning_rate, with_sizes=model_input is not None)
        if training is not None:
            asked.refuse(model)
            return ModelSource(model, training=training)
    if learning_rate is not None:
        raise InputError(
            f"{model} is no training graph",
            where="--learning-rate",
            cure="'learning_rate:' in the model file, or --optimizer",
        )
    return ModelSource(model, foreign=open_foreign(model, settings, asked))
