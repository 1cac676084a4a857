# SPDX-License-Identifier: Apache-2.0
"""Schedules, groups and averages of the optimizer section."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest

from configs.errors import ConfigError, InputError
from configs.model_file import load_model
from pulptrain.inputs.settings import Settings
from shared.kept_plans import run_model
from shared.training_form_models import written
from trainlib.ir.varying import begin_iteration, varying_of
from trainlib.training.options import check_options
from trainlib.training.phases import build_training_phases
from trainlib.training.schedules import SCHEDULES, schedule_of, scheduled

NET = (
    "{name: fc1, type: linear, out_features: 4, bias: true}",
    "{name: act, type: tanh}",
    "{name: fc2, type: linear, out_features: 3, bias: true}",
)

THEIRS = {
    "constant": ({"factor": 0.5, "steps": 3}, "ConstantLR", {"factor": 0.5, "total_iters": 3}),
    "step": ({"every": 2, "factor": 0.3}, "StepLR", {"step_size": 2, "gamma": 0.3}),
    "multistep": ({"milestones": [2, 2, 5]}, "MultiStepLR", {"milestones": [2, 2, 5]}),
    "exponential": ({"factor": 0.8}, "ExponentialLR", {"gamma": 0.8}),
    "linear": (
        {"start": 0.1, "end": 1.0, "steps": 4},
        "LinearLR",
        {"start_factor": 0.1, "end_factor": 1.0, "total_iters": 4},
    ),
    "polynomial": ({"steps": 6, "power": 1.5}, "PolynomialLR", {"total_iters": 6, "power": 1.5}),
    "cosine": ({"steps": 4, "lowest": 0.01}, "CosineAnnealingLR", {"T_max": 4, "eta_min": 0.01}),
    "cosine_restarts": (
        {"steps": 2, "growth": 3, "lowest": 0.01},
        "CosineAnnealingWarmRestarts",
        {"T_0": 2, "T_mult": 3, "eta_min": 0.01},
    ),
    "cyclic": (
        {"lowest": 0.01, "highest": 0.3, "up": 2, "down": 3, "mode": "triangular2", "momenta": [0.7, 0.9]},
        "CyclicLR",
        {
            "base_lr": 0.01,
            "max_lr": 0.3,
            "step_size_up": 2,
            "step_size_down": 3,
            "mode": "triangular2",
            "base_momentum": 0.7,
            "max_momentum": 0.9,
        },
    ),
    "one_cycle": (
        {"highest": 0.3, "steps": 12, "form": "linear", "up_share": 0.4, "momenta": [0.7, 0.9]},
        "OneCycleLR",
        {
            "max_lr": 0.3,
            "total_steps": 12,
            "anneal_strategy": "linear",
            "pct_start": 0.4,
            "base_momentum": 0.7,
            "max_momentum": 0.9,
        },
    ),
    "plateau": (
        {"factor": 0.5, "patience": 1, "cooldown": 1, "threshold": 0.1, "lowest": 0.01},
        "ReduceLROnPlateau",
        {"factor": 0.5, "patience": 1, "cooldown": 1, "threshold": 0.1, "min_lr": 0.01},
    ),
}
LOSSES = [3.0, 2.9, 2.9, 2.9, 2.0, 2.1, 2.1, 2.1, 2.1, 2.1, 1.0, 1.0]


@pytest.mark.needs_torch
@pytest.mark.parametrize("name", THEIRS)
def test_twelve_rates_are_those_of_pytorch(name: str) -> None:
    import torch

    ours, kind, theirs = THEIRS[name]
    options = {"learning_rate": 0.2, "momentum": 0.5}
    moved = scheduled(options, schedule_of({"name": name, **ours}, "here"), "here")
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], 0.2, momentum=0.5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        known = getattr(torch.optim.lr_scheduler, kind)(optimizer, **theirs)
        for number, loss in enumerate(LOSSES):
            (group,) = optimizer.param_groups
            rate = moved["learning_rate"].rule(number, LOSSES[:number])
            assert rate == pytest.approx(group["lr"], rel=1e-9, abs=1e-15)
            if ours.get("momenta"):
                assert moved["momentum"].rule(number, ()) == pytest.approx(group["momentum"])
            if number + 1 < len(LOSSES):
                known.step(loss) if name == "plateau" else known.step()


def test_every_schedule_is_compared_or_a_list() -> None:
    assert set(SCHEDULES) == {*THEIRS, "warmup", "listed"}


def test_a_warmup_is_a_line_and_then_another_from_its_beginning() -> None:
    schedule = schedule_of(
        {"name": "warmup", "steps": 4, "then": {"name": "step", "every": 1, "factor": 0.5}}, "here"
    )
    rate = scheduled({"learning_rate": 0.8}, schedule, "here")["learning_rate"].rule
    rates = [rate(number, ()) for number in range(7)]
    assert rates == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 0.4, 0.2])


def phases_of(folder: Path, optimizer: str):
    return build_training_phases(
        load_model(written(folder, NET, shape="[5]", optimizer=optimizer), check_options)
    )


def test_a_group_has_its_own_options_and_the_rest_those_of_the_section(tmp_path: Path) -> None:
    groups = "{layers: [fc1], weight_decay: 0.2}, {parameters: ['*2.bias'], learning_rate: 0.5}"
    optimizer = (
        f"name: adamw, learning_rate: 0.1, groups: [{groups}], schedule: {{name: exponential, factor: 0.5}}"
    )
    phases = phases_of(tmp_path, optimizer)
    updates = {op["w"]: op.attributes for op in phases.mini_batch.ops if op.step == "UPD"}
    begin_iteration(varying_of(phases.programs), 1, (1.0,))
    found = {name: (own["learning_rate"].now, own["weight_decay"]) for name, own in updates.items()}
    assert found == {
        "fc1.weight": (0.05, 0.2),
        "fc1.bias": (0.05, 0.2),
        "fc2.weight": (0.05, 0.0),
        "fc2.bias": (0.25, 0.0),
    }


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("groups: [{layers: [fc3], weight_decay: 0.1}]", "unknown layer 'fc3'"),
        (
            "groups: [{layers: [act], weight_decay: 0.1}]",
            "layer 'act' of the parameter group has no parameters",
        ),
        ("groups: [{parameters: [fc1.bia], weight_decay: 0.1}]", "unknown parameter 'fc1.bia'"),
        (
            "groups: [{layers: [fc1]}, {parameters: ['*.bias']}]",
            "'fc1.bias' is in this group of parameters and in that of",
        ),
        ("groups: [{weight_decay: 0.1}]", "names no layers and no parameters"),
        ("groups: [{layers: [fc1], clip_norm: 0.1}]", "'clip_norm' must be the same for all groups"),
        ("groups: [{layers: [fc1], decay: 0.1}]", "unknown key 'decay'"),
        ("schedule: {name: cosin}", "unknown learning-rate schedule 'cosin'"),
        ("schedule: {name: cosine}", "'steps'"),
        ("schedule: {steps: 3}", "'schedule' has no 'name'"),
        ("schedule: {name: warmup, steps: 3, then: {name: exponential}}", "'factor'"),
        (
            "schedule: {name: one_cycle, steps: 9, highest: 1.0, momenta: [0.8, 0.9]}",
            "changes the momentum, but the optimizer has no momentum",
        ),
    ],
)
def test_what_is_wrong_in_groups_and_schedules_is_told_with_its_line(
    tmp_path: Path, more: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        phases_of(tmp_path, f"name: sgd, learning_rate: 0.1, {more}")
    assert "form.yaml:7" in str(caught.value)


def run(folder: Path, optimizer: str, iterations: int = 3, **settings):
    path = written(folder, NET, shape="[5]", batch=2, optimizer=optimizer)
    outcome = run_model(path, Settings(**settings), iterations=iterations)
    assert outcome.summary["functional"]["passed"]
    return outcome


def test_a_schedule_changes_numbers_and_no_time(tmp_path: Path) -> None:
    plain, moved = (
        run(tmp_path, "name: sgd, learning_rate: 0.5", lr_schedule=schedule)
        for schedule in (None, "warmup steps=2 then multistep milestones=1,2 factor=0.1")
    )
    assert plain.summary["cycles"] == moved.summary["cycles"]
    assert plain.values["results/losses"][-1] != moved.values["results/losses"][-1]


def test_a_schedule_that_ends_before_the_run_says_how_many_steps_it_has(tmp_path: Path) -> None:
    optimizer = "name: sgd, learning_rate: 0.1, schedule: {name: listed, rates: [0.1, 0.2]}"
    with pytest.raises(
        InputError, match="the learning-rate schedule has 2 steps, but the run has 3 iterations"
    ):
        run(tmp_path, optimizer)


def test_an_average_is_a_state_and_an_op_for_every_trained_weight(tmp_path: Path) -> None:
    plain, averaged = (
        run(tmp_path, f"name: sgd, learning_rate: 0.5{more}") for more in ("", ", average: 0.5")
    )
    ops = {op["name"]: op for op in averaged.summary["ops"] if "UPD_AVERAGE" in op["name"]}
    assert len(ops) == 4
    assert averaged.summary["cycles"] > plain.summary["cycles"] + sum(op["cycles"] for op in ops.values()) / 2
    weight = averaged.values["fc1.weight"]
    assert not np.array_equal(averaged.values["fc1.weight.average"], weight)
    assert averaged.values["fc1.weight.average_count"] == 3
    first = run(tmp_path, "name: sgd, learning_rate: 0.5, average: 0.5", iterations=1)
    np.testing.assert_array_equal(first.values["fc1.weight.average"], first.values["fc1.weight"])


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_states_of_sixteen_bits_take_half_the_memory(tmp_path: Path, dtype: str) -> None:
    wide, narrow = (
        run(tmp_path, f"name: adam, learning_rate: 0.01, average: 0.9{more}").schedule.graph.tensors
        for more in ("", f", state_dtype: {dtype}")
    )
    for name in ("fc1.weight.m", "fc1.weight.v", "fc1.weight.average"):
        assert 2 * narrow[name].size_bytes == wide[name].size_bytes
    assert narrow["fc1.weight"].size_bytes == wide["fc1.weight"].size_bytes
