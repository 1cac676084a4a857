# SPDX-License-Identifier: Apache-2.0
"""Architectures of torchvision, which nobody prepared for pulptrain: one iteration with L3, numbers right."""

from __future__ import annotations

import sys

import pytest

from importers.torch.module import from_torch
from pulptrain.foreign.foreign_model import ForeignModel, compare_with_origin
from pulptrain.inputs.settings import Settings
from pulptrain.running.session import run_model

pytestmark = [pytest.mark.needs_torchvision, pytest.mark.needs_torch, pytest.mark.slow]

L3 = "32MiB"
"""Weights and gradients of 1,000 classes are larger than the 8 MiB of pulp-open."""


@pytest.fixture(scope="module")
def models():
    """torchvision.models; builds for another PyTorch lack two operators of detection, not used here."""
    import torch

    try:
        import torchvision
    except RuntimeError:
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
        library = torch.library.Library("torchvision", "DEF")
        for operator in ("nms", "qnms"):
            library.define(f"{operator}(Tensor boxes, Tensor scores, float iou_threshold) -> Tensor")
        import torchvision
    torch.manual_seed(0)
    return torchvision.models


def without_dropout(module):
    """A mask drawn by the module is not the one drawn here."""
    import torch

    for part in module.modules():
        if isinstance(part, torch.nn.Dropout):
            part.p = 0.0
    return module


@pytest.mark.parametrize(("name", "parameters"), [("mobilenet_v3_small", 142), ("squeezenet1_1", 52)])
def test_an_iteration_has_the_loss_and_gradients_of_the_module(models, name, parameters):
    import torch

    module = without_dropout(getattr(models, name)(weights=None))
    model = from_torch(module, torch.zeros(1, 3, 96, 96))
    settings = Settings(l3=L3)
    outcome = run_model(model.spec, settings, values=model.values)
    compare_with_origin(
        ForeignModel(model.spec, model.values, (), module, model.sources), outcome, settings, 1
    )
    assert outcome.summary["functional"]["passed"]
    assert outcome.summary["functional"]["module"]["passed"]
    assert outcome.summary["functional"]["module"]["tensors"] == parameters + 1
    assert outcome.summary["peak_bytes"]["l3"] > 0


@pytest.mark.parametrize(
    "name", ["efficientnet_b0", "resnet18", "mobilenet_v2", "shufflenet_v2_x0_5", "vit_b_16"]
)
def test_further_architectures_are_read_whole(models, name):
    import torch

    options = {"stochastic_depth_prob": 0.0} if name.startswith("efficientnet") else {}
    module = without_dropout(getattr(models, name)(weights=None, **options))
    size = 224 if name.startswith("vit") else 64
    model = from_torch(module, torch.zeros(1, 3, size, size))
    taken = {given.source for given in model.sources.values() if given.trained}
    assert taken == {name for name, _ in module.named_parameters()}


def test_stochastic_depth_is_refused_as_random(models):
    import torch

    from configs.errors import UnsupportedLayerError

    with pytest.raises(UnsupportedLayerError, match="draws random numbers"):
        from_torch(models.efficientnet_b0(weights=None), torch.zeros(1, 3, 64, 64))
