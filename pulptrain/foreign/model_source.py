# SPDX-License-Identifier: Apache-2.0
"""The one reader of a model: a name, a model file, a network from elsewhere, or a training graph as it is.

Every command and every call of Python that takes a model opens it here.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from configs.errors import InputError
from configs.library import is_path
from configs.model_file import ModelSpec
from configs.values import Struct
from pulptrain.foreign.foreign_model import (
    ONNX,
    TRAINING_GRAPHS,
    ForeignModel,
    compare_with_origin,
    is_foreign,
    open_foreign,
    refuse_options,
    refuse_other_gradients,
)
from pulptrain.inputs.npz_file import read_values
from pulptrain.inputs.option import ALL, SourceOptions, options_of
from pulptrain.inputs.own_values import check_values, replaced
from pulptrain.inputs.settings import Settings
from pulptrain.inputs.source_kind import MODEL, refuse_others
from pulptrain.running.machine import Prepared
from pulptrain.running.session import RunOutcome, model_of, prepare, run_model
from scheduler.memory.host_memory import TIMING_ONLY
from trainlib.ir.graph import TrainingGraph
from trainlib.ir.steps import Array
from trainlib.training.phases import build_training_phases, initial_weights

if TYPE_CHECKING:
    from importers.training.graph import ImportedTraining

# A model of ours needs no importer: `pulptrain.running.graph_run` loads them, so it waits for a training
# graph.


class ModelSource(Struct, frozen=True):
    """A model as it was given; at most one of `training` (a training graph) and `foreign` is there."""

    model: str | ModelSpec
    """What is simulated: a name or path of a model file, which `truth` reads by itself, or a model read."""
    words: str = ""
    """How a command line names it, with the options it was opened with; "" of one that was made in Python."""
    training: ImportedTraining | None = None
    foreign: ForeignModel | None = None
    values: Mapping[str, Array] = {}
    """Arrays by tensor in place of drawn ones, of the user's own."""

    def network(self, settings: Settings | None = None) -> str | ModelSpec:
        """`model`, for what derives its training itself; with `settings` the user's values are checked.

        Raises `InputError` for a training graph, and for values that are none of the model's.
        """
        if self.training is not None:
            raise InputError(
                "the model is a training graph, but the command takes only networks without a backward pass",
                where=self.words,
                cure=TRAINING_GRAPHS,
            )
        if self.values and settings is not None:
            check_values(build_training_phases(model_of(self.model, settings)).mini_batch, self.values)
        return self.model

    @property
    def brought(self) -> dict[str, Array]:
        """What is not drawn of what training begins with: the model's own, the user's before it."""
        return {**(self.foreign.values if self.foreign is not None else {}), **self.values}

    def weights(self, graph: TrainingGraph, seed: int) -> dict[str, Array]:
        """Weights and buffers a training begins with: drawn, the model's own, or the user's."""
        start, brought = initial_weights(graph, seed), self.brought
        start = replaced(graph, start, {name: brought[name] for name in start if name in brought})
        return {name: array for name, array in start.items() if name in graph.of_kind("weight", "buffer")}

    def prepared(self, settings: Settings) -> Prepared:
        """Everything before time starts. Raises the errors of `pulptrain.running.session.prepare`."""
        if self.training is not None:
            from pulptrain.running.graph_run import prepare_phases

            return prepare_phases(self.training.phases, settings, TIMING_ONLY)
        return prepare(self.network(settings), settings)

    def run(self, settings: Settings, *, functional: bool, iterations: int = 1, **how: Any) -> RunOutcome:
        """`pulptrain.running.session.run_model` of it; the user's values go before those a model brings.

        The gradients of a PyTorch module are compared with those of the module itself.
        """
        how |= {"functional": functional, "iterations": iterations}
        if self.training is not None:
            if how.pop("data", None) is not None:
                raise InputError(
                    "a training graph needs numbers for its inputs, not a data set",
                    where="data",
                    cure="use values={...}",
                )
            from pulptrain.running.graph_run import run_training_graph

            return run_training_graph(self.training, settings, values=self.values or None, **how)
        if self.foreign is None:
            return run_model(self.model, settings, values=self.values or None, **how)
        values = self.brought if functional else self.values
        assert isinstance(self.model, ModelSpec)
        model = self.foreign.for_iterations(self.model, iterations)
        outcome = run_model(model, settings, values=values, **how)
        outcome.summary["notes"] = [*self.foreign.notes, *outcome.summary["notes"]]
        given = bool(self.values) or how.get("data") is not None
        compare_with_origin(self.foreign, outcome, settings, iterations, given=given)
        return outcome

    def refuse_other_gradients(self, outcome: RunOutcome) -> None:
        """Raise `WrongNumbersError` if the module has other gradients than the outcome."""
        if self.foreign is not None:
            refuse_other_gradients(self.foreign, outcome)


def open_source(model: str, settings: Settings, folder: Path | None = None) -> ModelSource:
    """What `model` is: ``net.py:Net``, whose file is run, ``model.onnx``, or a model of ours.

    `settings` say its input's shape, loss, optimizer and values; a relative path is taken from `folder`.
    Raises `InputError` for options that a model of this kind answers itself, and for what is no model.
    """
    words = _words(model, settings)
    values = read_values(settings.values) if settings.values is not None else {}
    rate = settings.learning_rate
    if rate is not None and not 0 <= rate < float("inf"):
        raise InputError(
            f"the learning rate is {rate}, but must be a finite number of 0 or more",
            where="--learning-rate",
            cure="use a number of 0 or more",
        )
    path = model
    if folder is not None and not Path(model).is_absolute() and (is_foreign(model) or is_path(model)):
        path = str(folder / model)
    if model.endswith(ONNX):
        from pulptrain.running.graph_run import open_training_graph

        training = open_training_graph(path, settings, rate, with_sizes=settings.inputs is not None)
        if training is not None:
            refuse_options(model, settings)
            from pulptrain.running.graph_run import spec_of

            return ModelSource(spec_of(training.phases.mini_batch), words, training, values=values)
    if rate is not None:
        raise InputError(
            f"{model} is not an ONNX training graph, so --learning-rate cannot be used",
            where="--learning-rate",
            cure="set 'learning_rate:' in the model file, or use --optimizer",
        )
    if is_foreign(model):
        foreign = open_foreign(path, settings)
        return ModelSource(foreign.spec, words, foreign=foreign, values=values)
    refuse_options(model, settings)
    refuse_others(path, MODEL)
    return ModelSource(path, words, values=values)


def _words(model: str, settings: Settings) -> str:
    """The model as it is typed, with the options that say what it is."""
    words = [model]
    for key in (*options_of(SourceOptions), "train"):
        if (said := getattr(settings, key)) is not None:
            words += [ALL[key].flag, str(said)]
    return shlex.join(words)
