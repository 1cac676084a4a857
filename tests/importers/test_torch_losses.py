# SPDX-License-Identifier: Apache-2.0
"""Losses of PyTorch with their options: value and gradient as PyTorch's own, and what is refused."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from configs.errors import InputError
from importers.torch.losses import loss_of
from importers.torch.module import from_torch
from importers.training_text import option_text, parse_loss
from trainlib.primitives.definition import DrawnInput
from trainlib.references.reference import evaluate
from trainlib.training.phases import build_training_graph, initial_weights
from trainlib.training.single import single
from trainlib.training.training_data import sample_stream

pytestmark = pytest.mark.needs_torch

try:
    import torch
    from torch import nn
    from torch.nn import functional as F  # noqa: N812 - as everybody calls it

    WEIGHTS = torch.tensor([0.5, 2.0, 0.0, 1.5])
    VECTOR, RATES, SHARES = nn.Identity(), nn.Softplus(), nn.Sigmoid()
    LOGS, IMAGE = nn.LogSoftmax(1), nn.Unflatten(1, (4, 2, 3))
    LOSSES = {
        "bce": (nn.BCELoss(), SHARES),
        "bce of weights": (nn.BCELoss(WEIGHTS, reduction="sum"), SHARES),
        "bce of logits": (nn.BCEWithLogitsLoss(), VECTOR),
        "weights of channels": (nn.BCEWithLogitsLoss(WEIGHTS, pos_weight=WEIGHTS + 1), VECTOR),
        "weights of an image": (nn.BCEWithLogitsLoss(pos_weight=WEIGHTS[:, None, None] + 1), IMAGE),
        "a positive weight": (nn.BCEWithLogitsLoss(pos_weight=torch.tensor(3.0), reduction="sum"), IMAGE),
        "cross entropy": (nn.CrossEntropyLoss(), VECTOR),
        "class of nn": (nn.CrossEntropyLoss, VECTOR),
        "smoothing": (partial(F.cross_entropy, label_smoothing=0.2), VECTOR),
        "all of cross entropy": (nn.CrossEntropyLoss(WEIGHTS, ignore_index=1, label_smoothing=0.1), IMAGE),
        "sum of cross entropy": (nn.CrossEntropyLoss(WEIGHTS, reduction="sum"), VECTOR),
        "hinge": (nn.HingeEmbeddingLoss(0.3, reduction="sum"), RATES),
        "huber": (nn.HuberLoss(delta=0.4), VECTOR),
        "kl": (nn.KLDivLoss(), LOGS),
        "kl of logarithms": (nn.KLDivLoss(reduction="batchmean", log_target=True), LOGS),
        "l1": (F.l1_loss, IMAGE),
        "mse": (nn.MSELoss(reduction="sum"), IMAGE),
        "soft margin of labels": (nn.MultiLabelSoftMarginLoss(WEIGHTS), VECTOR),
        "its sum": (nn.MultiLabelSoftMarginLoss(WEIGHTS, reduction="sum"), VECTOR),
        "multi margin": (nn.MultiMarginLoss(), VECTOR),
        "all of multi margin": (nn.MultiMarginLoss(2, 0.6, WEIGHTS, reduction="sum"), VECTOR),
        "nll": (nn.NLLLoss(), VECTOR),
        "all of nll": (nn.NLLLoss(WEIGHTS, ignore_index=3), LOGS),
        "nll of an image": (nn.NLLLoss(WEIGHTS, ignore_index=0), nn.Sequential(IMAGE, nn.LogSoftmax(1))),
        "poisson": (nn.PoissonNLLLoss(full=True), VECTOR),
        "poisson of rates": (nn.PoissonNLLLoss(log_input=False, eps=1e-3, reduction="sum"), RATES),
        "smooth l1": (nn.SmoothL1Loss(beta=0.7), VECTOR),
        "smooth l1 without a limit": (nn.SmoothL1Loss(beta=0), VECTOR),
        "soft margin": (partial(F.soft_margin_loss, reduction="sum"), IMAGE),
    }
except ImportError:  # the marker skips what needs it
    LOSSES = {}


@pytest.mark.parametrize("name", LOSSES)
def test_loss_and_gradient_are_those_of_pytorch(name):
    loss, last = LOSSES[name]
    torch.manual_seed(3)
    y = last(torch.randn(5, 24 if IMAGE in (last, *last.children()) else 4))
    spec = loss_of(torch, loss, y.shape)
    alone = single(spec.name, spec.options, (DrawnInput(tuple(y.shape[1:])),), batch=len(y))
    found = evaluate(alone.graph, {**alone.values, "y": y.numpy()})
    y, label = y.double().requires_grad_(), torch.tensor(alone.values["label"])
    theirs = loss() if isinstance(loss, type) else loss
    theirs = theirs.double() if isinstance(theirs, nn.Module) else theirs
    value = theirs(y, label.double() if label.is_floating_point() else label.long())
    value.backward()
    assert found["loss"] == pytest.approx(value.item(), rel=1e-6)
    np.testing.assert_allclose(found["y.grad"], y.grad.numpy(), rtol=1e-6, atol=1e-6 * abs(y.grad).max())


def test_a_network_is_trained_on_the_loss_that_is_given():
    module = nn.Sequential(nn.Linear(6, 4), LOGS)
    model = from_torch(module, torch.zeros(5, 6), nn.NLLLoss(WEIGHTS, ignore_index=3))
    graph = build_training_graph(model.spec)
    sample = next(sample_stream(graph, model.spec, 1))
    found = evaluate(graph, {**sample, **initial_weights(graph, 0), **model.values})
    value = nn.NLLLoss(WEIGHTS, ignore_index=3)(
        module(torch.tensor(sample["input"])), torch.tensor(sample["label"]).long()
    )
    value.backward()
    (weight,) = (tensor for tensor, given in model.sources.items() if given.source == "0.weight")
    truth = module[0].weight.grad.numpy().ravel()[model.sources[weight].places]
    np.testing.assert_allclose(found[f"{weight}.grad"], truth, rtol=1e-5, atol=1e-7)


def test_a_loss_that_says_nothing_of_its_own_has_no_options():
    assert loss_of(torch, nn.MSELoss(), (2, 3)).options == {}
    assert loss_of(torch, nn.CrossEntropyLoss(), (2, 3)).options == {"labels": "hard"}


@pytest.mark.parametrize(
    ("loss", "what"),
    [
        (lambda: nn.MSELoss(reduction="none"), "returns a loss per sample"),
        (nn.CTCLoss, "all alignments"),
        (lambda: F.ctc_loss, "all alignments"),
        (nn.TripletMarginLoss, "called without the arguments 'positive' and 'negative'"),
        (
            lambda: nn.BCEWithLogitsLoss(torch.ones(2, 1)),
            r"weight of shape \[2, 1\], but the network's output has shape \[2, 4\]",
        ),
        (lambda: nn.BCELoss(torch.ones(3)), r"weight of shape \[3\]"),
        (lambda: "cross_entropy class_weights=[1,2", "class_weights"),
        (lambda: "cross_entropy class_weights=[1,x]", "class_weights"),
    ],
)
def test_what_has_no_form_here_is_refused(loss, what):
    with pytest.raises(InputError, match=what):
        from_torch(nn.Linear(6, 4), torch.zeros(2, 6), loss())


def test_weights_that_are_not_one_for_each_class_are_refused():
    model = from_torch(nn.Linear(6, 4), torch.zeros(2, 6), nn.CrossEntropyLoss(torch.ones(3)))
    with pytest.raises(InputError, match="3 class_weights, but 4 classes"):
        build_training_graph(model.spec)


def test_a_list_is_said_on_the_command_line():
    text = "cross_entropy label_smoothing=0.1, class_weights=[1, 2.5,3]"
    loss = parse_loss(text)
    assert loss.options == {"label_smoothing": 0.1, "class_weights": [1, 2.5, 3]}
    assert parse_loss(option_text(loss.name, loss.options)) == loss
