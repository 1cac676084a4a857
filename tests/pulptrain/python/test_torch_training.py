# SPDX-License-Identifier: Apache-2.0
"""What trains a module: its optimizer, groups, schedule and average are taken over, or refused."""

from __future__ import annotations

import re

import pytest

import pulptrain as pt
from configs.errors import InputError, UnsupportedLayerError

pytestmark = pytest.mark.needs_torch

try:
    import torch
    from torch.optim import lr_scheduler, swa_utils

    from shared.torch_index import CASES, OPTIMIZERS

    ROWS = {case.name: case for case in CASES if case.section == OPTIMIZERS}
except ImportError:  # the marker skips what needs it
    ROWS = {}

REFUSED = {
    "Adafactor": "a row and a column",
    "LBFGS": "several times per step",
    "Muon": "whole matrices",
    "SparseAdam": "sparse gradients",
}


@pytest.mark.parametrize("name", REFUSED)
def test_an_optimizer_that_is_no_update_of_elements_is_refused_with_the_reason(name: str) -> None:
    case = ROWS[name].training()
    with pytest.raises(UnsupportedLayerError, match=REFUSED[name]):
        pt.from_torch(case.module, case.batches[0][0], case.loss, case.optimizer)


def test_a_module_is_run_as_it_is_with_what_trains_it() -> None:
    module = torch.nn.Linear(6, 3)
    optimizer = torch.optim.SGD(module.parameters(), torch.tensor(0.1), momentum=0.9)
    schedule = lr_scheduler.OneCycleLR(optimizer, 0.3, total_steps=5)
    average = swa_utils.AveragedModel(module, multi_avg_fn=swa_utils.get_ema_multi_avg_fn(0.9))
    training = {"inputs": torch.zeros(2, 6), "optimizer": optimizer, "average": average, "clip_norm": 0.5}
    result = pt.run(module, lr_schedule=schedule, iterations=5, **training)
    assert result.numbers_right
    assert {"linear.weight.average", "linear.weight.velocity"} <= set(result.values)
    with pytest.raises(
        InputError, match="the learning-rate schedule has 5 steps, but the run has 6 iterations"
    ):
        pt.run(module, lr_schedule=schedule, iterations=6, **training)
    assert schedule.last_epoch == 0
    assert pt.run(module, lr_schedule="cosine steps=3", iterations=2, **training).numbers_right
    with pytest.raises(InputError, match="the shapes of the inputs of"):
        pt.run(module)
    with pytest.raises(InputError, match="'optimizer' applies to a"):
        pt.run("autoencoder", optimizer=optimizer)


def test_groups_are_those_of_the_optimizer() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.Linear(4, 3))
    first, second = module
    groups = [{"params": first.parameters()}, {"params": [second.weight], "lr": 0.5, "betas": (0.8, 0.9)}]
    model = pt.from_torch(module, torch.zeros(2, 6), optimizer=torch.optim.Adam(groups, 0.1, fused=False))
    options = model.spec.optimizer.options
    assert (options["learning_rate"], options["beta1"]) == (0.1, 0.9)
    own = {"learning_rate": 0.5, "beta1": 0.8, "beta2": 0.9}
    assert options["groups"] == [{"parameters": ["linear_1.weight"], **own}]
    assert {op["w"] for op in model.graph.ops if op.step == "UPD"} == {
        "linear_0.weight",
        "linear_0.bias",
        "linear_1.weight",
    }


def _of_another_optimizer(module):
    others = torch.optim.SGD(module.parameters(), 0.1)
    return {"lr_schedule": lr_scheduler.StepLR(others, 1)}


def _plateau_under_way(module):
    optimizer = torch.optim.SGD(module.parameters(), 0.1)
    schedule = lr_scheduler.ReduceLROnPlateau(optimizer)
    schedule.step(1.0)
    return {"optimizer": optimizer, "lr_schedule": schedule}


REFUSALS = {
    "2 parameters of the optimizer do not belong to the module": lambda module: {
        "optimizer": torch.optim.SGD(torch.nn.Linear(6, 3).parameters(), 0.1)
    },
    "the schedule belongs to another optimizer": _of_another_optimizer,
    "has stepped 1 times": _plateau_under_way,
    "the averaging function of the AveragedModel": lambda module: {
        "average": swa_utils.AveragedModel(module)
    },
    "unknown learning-rate schedule 'cosin'": lambda module: {"lr_schedule": "cosin steps=3"},
}


@pytest.mark.parametrize("message", REFUSALS)
def test_what_cannot_be_taken_over_is_told(message: str) -> None:
    module = torch.nn.Linear(6, 3)
    with pytest.raises(InputError, match=re.escape(message)):
        pt.from_torch(module, torch.zeros(2, 6), **REFUSALS[message](module))
