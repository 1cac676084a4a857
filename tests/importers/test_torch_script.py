# SPDX-License-Identifier: Apache-2.0
"""A loss written in PyTorch: which losses of ours it becomes a sum of, what is a label, what is refused."""

from __future__ import annotations

import runpy

import pytest

import pulptrain as pt
from configs.errors import InputError, UnsupportedLayerError
from shared.paths import ROOT

pytestmark = pytest.mark.needs_torch

try:
    import torch
    from torch import nn
    from torch.nn import functional as F  # noqa: N812 - as everybody calls it
except ImportError:  # the marker skips what needs it
    pass


def heads():
    """Two numbers and three scores of four numbers."""

    class Heads(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.scores, self.numbers = nn.Linear(4, 5), nn.Linear(5, 3), nn.Linear(5, 2)

        def forward(self, x):
            y = torch.tanh(self.body(x))
            return self.scores(y), self.numbers(y)

    return Heads()


def taken(loss, *labels):
    return pt.from_torch(heads(), torch.randn(2, 4), loss, labels=labels)


CLASSES, NUMBERS = (lambda: torch.tensor([0, 2])), (lambda: torch.randn(2, 2))


def test_a_sum_of_losses_with_weights_is_one_of_ours_each_with_its_label():
    def loss(scores, numbers, classes, wanted):
        return F.cross_entropy(scores, classes, label_smoothing=0.1) + 0.5 * F.mse_loss(numbers, wanted) / 2

    found = taken(loss, CLASSES(), NUMBERS()).spec
    assert [item.name for item in found.inputs] == ["input"]
    assert [(item.name, item.of, item.label) for item in found.losses] == [
        ("cross_entropy", "scores", "label"),
        ("mse", None, "wanted"),
    ]
    assert dict(found.losses[0].options) == {"labels": "hard", "label_smoothing": 0.1}
    assert dict(found.losses[1].options) == {"weight": 0.25}


def test_what_a_script_computes_of_a_label_makes_it_an_input():
    def loss(scores, numbers, wanted):
        return ((numbers - wanted) ** 2 * wanted).sum() + (scores**2).mean() - 1

    found = taken(loss, NUMBERS()).spec
    assert [(item.name, item.shape) for item in found.inputs] == [("input", (4,)), ("wanted", (2,))]
    assert [(item.name, dict(item.options)) for item in found.losses] == [
        ("output", {"reduction": "sum"}),
        ("output", {"reduction": "mean"}),
    ]


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (lambda s, n, c: F.cross_entropy(s, c) - F.cross_entropy(s * 2, c), "is subtracted"),
        (
            lambda s, n, c: F.cross_entropy(s, c) * F.cross_entropy(s * 2, c),
            "computing with losses or sums over samples",
        ),
        (lambda s, n, c: F.cross_entropy(s, c) + 3, "adds the constant 3"),
        (lambda s, n, c: F.cross_entropy(s, c, reduction="none").mean(), "reduction='none' returns a loss"),
        (
            lambda s, n, c: F.kl_div(s, n.sum(1, keepdim=True) * s),
            "the target of the loss depends on trained weights",
        ),
        (lambda s, n, c: (s / s.sum()).mean(), "computing with losses or sums over samples"),
        (lambda s, n, c: s.mean(0).max(), "only if its result is a single number"),
    ],
)
def test_what_is_no_sum_of_losses_is_refused(loss, message):
    with pytest.raises(UnsupportedLayerError, match=message):
        taken(loss, CLASSES())


def test_a_loss_that_cannot_be_called_says_why():
    with pytest.raises(InputError, match="is called without the arguments 'classes'"):
        taken(lambda scores, numbers, classes: F.cross_entropy(scores, classes))


def test_a_decision_that_depends_on_the_numbers_is_refused_in_one_line(capfd):
    with pytest.raises(InputError, match="data-dependent"):
        taken(lambda scores, numbers: nn.GaussianNLLLoss()(numbers, numbers * 2, numbers**2))
    assert capfd.readouterr().err == ""


@pytest.mark.slow
@pytest.mark.parametrize("name", [path.stem for path in sorted((ROOT / "examples" / "torch").glob("*.py"))])
def test_a_story_has_the_gradients_of_its_module(name):
    made = runpy.run_path(str(ROOT / "examples" / "torch" / f"{name}.py"))["story"]()
    functional = pt.run(made, cache=False).summary["functional"]
    assert functional["passed"]
    assert functional["module"]["passed"]
