# SPDX-License-Identifier: Apache-2.0
"""`immediate: true`: weights change as soon as their gradients are there, with the same numbers."""

import numpy as np
import pytest

from configs.errors import ConfigError
from configs.model_file import ModelSpec, load_model
from configs.values import replace
from pulptrain.inputs.settings import Settings
from pulptrain.running.session import run_model
from trainlib.training.phases import build_training_phases


def immediate(spec: ModelSpec, **options: object) -> ModelSpec:
    """The model with an immediate update."""
    changed = {**spec.optimizer.options, "immediate": True, **options}
    return replace(spec, optimizer=replace(spec.optimizer, options=changed, node=None))


def test_every_update_comes_before_the_backward_pass_goes_on() -> None:
    graph = build_training_phases(immediate(load_model("simple-mlp"))).mini_batch
    steps = [op.step for op in graph.ops if op.step in ("WG", "UPD")]
    assert steps[:2] == ["WG", "UPD"]
    assert not set(graph.gradients.values()) & set(graph.results)


def test_weights_are_those_of_an_update_at_the_end_and_the_peak_is_lower() -> None:
    spec = load_model("simple-mlp")
    late = run_model(spec, Settings(), iterations=2)
    early = run_model(immediate(spec), Settings(), iterations=2)
    assert early.summary["functional"]["passed"]
    assert early.summary["peak_bytes"]["l2"] < late.summary["peak_bytes"]["l2"]
    weights = [name for name in late.values if name.endswith(".weight") and "/" not in name]
    assert weights
    for name in weights:
        np.testing.assert_array_equal(late.values[name], early.values[name])


@pytest.mark.parametrize("other", [{"clip_norm": 1.0}, {"separate": True}])
def test_what_needs_all_gradients_together_is_refused(other: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="'immediate' changes weights"):
        build_training_phases(immediate(load_model("simple-mlp"), **other))


def test_with_several_mini_batches_a_gradient_is_added_and_given_up_at_once() -> None:
    spec = immediate(load_model("simple-mlp"), accumulate=2)
    phases = build_training_phases(spec)
    graph = phases.mini_batch
    steps = [op.step for op in graph.ops if op.step in ("WG", "ACCUMULATE")]
    assert steps[:2] == ["WG", "ACCUMULATE"]
    assert not set(graph.gradients.values()) & set(graph.results)
    assert [op.step for op in phases.update.ops] == ["UPD"] * len(graph.gradients)
    assert run_model(spec, Settings(), iterations=2).summary["functional"]["passed"]
