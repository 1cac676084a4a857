# SPDX-License-Identifier: Apache-2.0
"""Clipping and accumulation of gradients as options of a model file's optimizer section."""

from pathlib import Path

import numpy as np
import pytest

from arch.pricing.team_cost_model import TeamCostModel
from arch.spec.soc_config import load_soc
from configs.errors import ConfigError, InputError
from configs.model_file import load_model
from configs.values import replace
from scheduler.executor import Executor
from scheduler.options import ScheduleOptions
from scheduler.schedule import build_schedule
from shared.initial_values import initial_values
from shared.kept_plans import run_model
from shared.oracle_torch import evaluate_torch
from trainlib.ir.graph import KEPT_KINDS
from trainlib.references.reference import evaluate
from trainlib.training.phases import (
    build_training_graph,
    build_training_phases,
    build_update_graph,
    initial_weights,
)
from trainlib.training.training_data import sample_stream

MODEL = """\
name: options
description: two linear layers
source: tests/trainlib/primitives/test_gradient_options.py
input: {{shape: [6]}}
dataset: random
loss: mse
optimizer:
  name: sgd_momentum
  learning_rate: 0.5
  {options}
batch: 2
layers:
  - {{name: fc1, type: linear, out_features: 5, bias: true}}
  - {{name: act, type: relu}}
  - {{name: fc2, type: linear, out_features: 4}}
"""


def written(folder: Path, options: str = "momentum: 0.9") -> str:
    path = folder / "options.yaml"
    path.write_text(MODEL.format(options=options), encoding="utf-8")
    return str(path)


def graph_of(folder: Path, options: str):
    return build_training_graph(load_model(written(folder, options)))


CLIPPED = "clip_value: 0.05\n  clip_norm: 0.1"


def test_clipping_stands_between_backward_pass_and_updates(tmp_path: Path) -> None:
    steps = [op.step for op in graph_of(tmp_path, CLIPPED).ops]
    middle = ["CLIP_VALUE"] * 3 + ["SQUARES"] * 3 + ["SCALE"] + ["CLIP_NORM"] * 3 + ["UPD"] * 3
    assert steps[-len(middle) :] == middle
    assert [op.step for op in graph_of(tmp_path, "momentum: 0.9").ops] == steps[: -len(middle)] + ["UPD"] * 3


@pytest.mark.needs_torch
@pytest.mark.parametrize("options", ["clip_value: 0.05", "clip_norm: 0.1", CLIPPED, "clip_norm: 1000.0"])
def test_the_simulated_update_is_that_of_torch_with_clipped_gradients(tmp_path: Path, options: str) -> None:
    summary = run_model(written(tmp_path, options), iterations=3).summary
    assert summary["functional"]["passed"]
    assert summary["functional"]["checked_against"] == "PyTorch"
    for op in summary["ops"]:
        assert op["cycles"] > 0, op["name"]


@pytest.mark.needs_torch
def test_the_oracle_clips_by_torch_and_the_limits_bind(tmp_path: Path) -> None:
    spec = load_model(written(tmp_path, CLIPPED))
    graph = build_training_graph(spec)
    values = initial_values(graph, spec, 0)
    ours, truth = evaluate(graph, values), evaluate_torch(graph, values)
    final = [op["dw"] for op in graph.ops if op.step == "UPD"]
    for name in final:
        np.testing.assert_allclose(ours[name], truth[name], rtol=1e-5, atol=1e-8)
    norm = np.sqrt(sum(np.square(truth[name]).sum() for name in final))
    assert norm == pytest.approx(0.1, rel=1e-4)
    assert max(np.abs(truth[name]).max() for name in graph.gradients.values()) > 0.05


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("clip_norm: 0", r"options\.yaml:10.*clip_norm"),
        ("clip_value: -1.0", r"options\.yaml:10.*clip_value"),
        ("accumulate: 0", r"options\.yaml:10.*accumulate"),
        ("accumulate: two", r"options\.yaml:10.*accumulate"),
        ("clip_nrom: 1.0", r"options\.yaml:10.*unknown key 'clip_nrom'"),
    ],
)
def test_wrong_options_are_refused_with_their_line(tmp_path: Path, options: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        graph_of(tmp_path, options)


@pytest.mark.parametrize("key", ["accumulate", "clip_value", "clip_norm"])
def test_one_update_alone_has_no_such_options(key: str) -> None:
    with pytest.raises(InputError, match=f"'{key}' applies to all gradients"):
        build_update_graph("sgd", {"learning_rate": 0.1, key: 2}, (3,))


def test_one_graph_cannot_be_several_mini_batches(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not support accumulate: 3"):
        graph_of(tmp_path, "accumulate: 3")


def test_the_phases_of_an_update(tmp_path: Path) -> None:
    phases = build_training_phases(load_model(written(tmp_path, "accumulate: 3\n  clip_norm: 0.1")))
    assert phases.mini_batches == 3
    steps = [op.step for op in phases.mini_batch.ops if op.step in ("WG", "ACCUMULATE", "UPD")]
    assert steps == ["WG", "ACCUMULATE", "WG", "ACCUMULATE", "ACCUMULATE"]
    expected = ["SQUARES"] * 3 + ["SCALE"] + ["CLIP_NORM"] * 3 + ["UPD"] * 3
    assert [op.step for op in phases.update.ops] == expected
    plain = build_training_phases(load_model(written(tmp_path)))
    assert (plain.mini_batches, plain.update) == (1, None)


def machine(graph):
    timing = load_soc("pulp-open", "rtl")
    cost_model = TeamCostModel(timing)
    return Executor(build_schedule(graph, timing, cost_model, ScheduleOptions()), timing, cost_model)


def kept(graph, executor):
    return {name: executor.fetch(name) for name in graph.of_kind(*KEPT_KINDS)}


@pytest.mark.parametrize("clip", ["", "\n  clip_norm: 0.1"])
def test_simulated_mini_batches_and_their_update_train_as_one_large_batch(tmp_path: Path, clip: str) -> None:
    """Two updates, so that the second must overwrite the totals of the first (lazy reset)."""
    spec = load_model(written(tmp_path, "accumulate: 3" + clip))
    phases = build_training_phases(spec)
    graph, update = phases.mini_batch, phases.update
    small, last = machine(graph), machine(update)
    state = {**initial_weights(update, 0), **initial_weights(graph, 0)}
    stream = sample_stream(graph, spec, 0)
    plain = {"optimizer": replace(spec.optimizer, options={"learning_rate": 0.5}, node=None)}
    if clip:
        plain["optimizer"] = replace(plain["optimizer"], options={"learning_rate": 0.5, "clip_norm": 0.1})
    large = build_training_graph(replace(spec, batch=6, **plain))
    truth = initial_weights(large, 0)
    for _ in range(2):
        samples = [next(stream) for _ in range(3)]
        for sample in samples:
            small.load({**{name: state[name] for name in graph.of_kind(*KEPT_KINDS)}, **sample})
            small.replay()
            state |= kept(graph, small)
        last.load({name: state[name] for name in update.needed_values})
        last.replay()
        state |= kept(update, last)
        batch = {name: np.concatenate([sample[name] for sample in samples]) for name in samples[0]}
        known = evaluate(large, {**truth, **batch})
        truth = {name: known[large.updates.get(name, name)] for name in truth}
    for name in truth:
        np.testing.assert_allclose(state[name], truth[name], rtol=1e-5, atol=1e-6, err_msg=name)
