# SPDX-License-Identifier: Apache-2.0
"""PyTorch modules as networks of ours: gradients as autograd, parameters, modes, and what is refused."""

from __future__ import annotations

import copy
from functools import partial
from itertools import chain, pairwise

import numpy as np
import pytest

from configs.errors import InputError, UnsupportedLayerError
from configs.model_file import InputSpec, read_model
from configs.model_text import model_text, model_tree
from configs.yaml_file import parse_yaml
from importers.export.writer import onnx_bytes
from importers.torch.check import check_module
from importers.torch.module import from_torch
from pulptrain.foreign.foreign_check import loss_of
from trainlib.references.conditioning import conditioning
from trainlib.references.reference import evaluate
from trainlib.training.options import check_options
from trainlib.training.phases import build_training_graph, initial_weights
from trainlib.training.training_data import sample_stream

pytestmark = pytest.mark.needs_torch

try:
    import torch
    from torch import nn
    from torch.nn import functional as F  # noqa: N812 - as everybody calls it

    from shared.torch_modules import MODULES, made

except ImportError:  # the marker skips what needs it
    MODULES = {}


def iteration(model, seed=0):
    """(graph, all tensors of one iteration, what went in)."""
    graph = build_training_graph(model.spec)
    sample = next(sample_stream(graph, model.spec, seed))
    values = {**sample, **initial_weights(graph, seed), **model.values}
    return graph, evaluate(graph, values), {name: sample[name] for name in (*graph.inputs, "label")}


def agrees(module, model):
    """The check of loss and gradients by autograd of the module itself."""
    _, tensors, sample = iteration(model)
    return check_module(module, loss_of(model.spec.loss), model.sources, sample, tensors)


IN_MAKE_TEST = ("separable_cnn", "vision_transformer", "lstm_state")
"""Convolutions, attention, recurrence; the others take a second each."""


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in IN_MAKE_TEST else pytest.mark.slow, id=name) for name in MODULES],
)
def test_loss_and_gradients_are_those_of_the_module(name):
    module, example = made(name)
    model = from_torch(module, example)
    check = agrees(module, model)
    trained = [name for name, parameter in module.named_parameters() if parameter.requires_grad]
    assert {given.source for given in model.sources.values() if given.trained} == set(trained)
    assert check.compared >= len(trained) + 1
    assert check.passed, (check.tensor, check.worst)


@pytest.mark.parametrize("name", ["frozen_backbone", "embedded"])
def test_the_model_file_of_a_module_reads_as_the_same_network(name):
    module, example = made(name)
    spec = from_torch(module, example).spec
    again = read_model(parse_yaml(model_text(spec, "from a module"), "net.yaml"), check_options)
    assert model_tree(again) == model_tree(spec)
    graphs = [build_training_graph(one) for one in (spec, again)]
    assert graphs[0].ops == graphs[1].ops
    assert graphs[0].tensors == graphs[1].tensors


def few_values(seed, eps=1e-5):
    """Batch norms over two values: exact gradients in front of them are 0 but for eps."""
    torch.manual_seed(seed)
    sizes = (16, 12, 12, 4, 12)
    layers = [(nn.Linear(*pair), nn.BatchNorm1d(pair[1], eps), nn.ReLU()) for pair in pairwise(sizes)]
    return nn.Sequential(*chain(*layers), nn.Linear(12, 16))


def test_gradients_that_rounding_alone_makes_are_decided_in_float64():
    """PyTorch sums a batch norm in fp64: how far its fp32 is off says little about ours."""
    for seed in (3, 7):
        module = few_values(seed)
        model = from_torch(module, torch.zeros(2, 16))
        graph, tensors, sample = iteration(model)
        values = {**initial_weights(graph, 0), **model.values, **sample}
        rest = (loss_of(model.spec.loss), model.sources, sample)
        assert not check_module(module, *rest, tensors).passed
        own = partial(conditioning, graph, {name: values[name] for name in graph.needed_values})
        check = check_module(module, *rest, tensors, own)
        assert check.passed, check
        assert check.not_in_fp32
        last = next(name for name in reversed(tensors) if name.endswith("12.weight.grad"))
        spoilt = {**tensors, last: tensors[last] * np.float32(1.001)}
        assert not check_module(module, *rest, spoilt, own).passed
        other = few_values(seed, eps=1.1e-5)
        other.load_state_dict(module.state_dict())
        assert not check_module(other, *rest, tensors, own).passed


def test_a_wrong_gradient_shows_in_the_check_against_the_module():
    module, example = made("plain_cnn")
    model = from_torch(module, example)
    _, tensors, sample = iteration(model)
    name = next(name for name in model.sources if f"{name}.grad" in tensors)
    spoilt = {**tensors, f"{name}.grad": tensors[f"{name}.grad"] * 1.001}
    assert not check_module(module, loss_of(model.spec.loss), model.sources, sample, spoilt).passed


OPTIMIZERS = {
    "SGD": {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01},
    "Adam": {"lr": 0.01, "betas": (0.8, 0.99), "eps": 1e-6},
    "AdamW": {"lr": 0.01, "weight_decay": 0.1},
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_update_is_that_of_the_optimizer_with_its_options(name):
    torch.manual_seed(1)
    module = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
    optimizer = getattr(torch.optim, name)(module.parameters(), **OPTIMIZERS[name])
    model = from_torch(module, torch.randn(4, 6), nn.MSELoss(), optimizer)
    graph, tensors, sample = iteration(model)
    nn.MSELoss()(module(torch.tensor(sample["input"])), torch.tensor(sample["label"])).backward()
    optimizer.step()
    after = dict(module.named_parameters())
    for weight in graph.weights:
        given = model.sources[weight]
        truth = after[given.source].detach().numpy().ravel()[given.places]
        np.testing.assert_allclose(tensors[f"{weight}_updated"], truth, rtol=1e-5, atol=1e-6, err_msg=weight)


def test_parameters_that_the_optimizer_does_not_have_are_frozen():
    module = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    model = from_torch(module, torch.zeros(1, 4), optimizer=torch.optim.SGD(module[2].parameters(), lr=0.1))
    assert {layer.name: layer.trainable for layer in model.spec.layers if layer.type == "linear"} == {
        "linear_0": False,
        "linear_2": True,
    }


def test_training_and_evaluation_mode_are_taken_as_the_module_has_them():
    module = nn.Sequential(
        nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Dropout(0.25), nn.Flatten(), nn.Linear(72, 2)
    )
    training = from_torch(module, torch.zeros(2, 1, 8, 8)).spec
    evaluation = from_torch(copy.deepcopy(module).eval(), torch.zeros(2, 1, 8, 8)).spec
    assert "dropout" in [layer.type for layer in training.layers]
    assert "dropout" not in [layer.type for layer in evaluation.layers]
    norms = [
        next(layer for layer in spec.layers if layer.type == "batch_norm") for spec in (training, evaluation)
    ]
    assert [layer.attributes.get("fixed_statistics", False) for layer in norms] == [False, True]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (None, "cross_entropy"),
        ("mse", "mse"),
        ("l1", "l1"),
    ],
)
def test_the_loss_follows_from_the_output_unless_it_is_said(given, expected):
    assert from_torch(nn.Linear(4, 3), torch.zeros(2, 4), given).spec.loss.name == expected


def test_an_output_of_more_dimensions_is_compared_by_mse():
    assert from_torch(nn.Conv2d(1, 1, 3), torch.zeros(1, 1, 8, 8)).spec.loss.name == "mse"


@pytest.mark.parametrize("loss", [None, "NLLLoss", "MSELoss"])
def test_a_log_softmax_at_the_end_trains_as_the_module_does(loss):
    """As PyTorch's MNIST example trains: F.log_softmax, then F.nll_loss."""
    module, example = made("embedded")
    model = from_torch(module, example, getattr(nn, loss)() if loss else None)
    assert model.spec.loss.name == ("mse" if loss == "MSELoss" else "cross_entropy")
    assert model.spec.layers[-1].type == "log_softmax"
    assert agrees(module, model).passed


class Of(nn.Module):
    """A linear layer, then a function of its output and of modules."""

    def __init__(self, function, features, *modules):
        super().__init__()
        self.function, self.fc, self.parts = function, nn.Linear(features, features), nn.ModuleList(modules)

    def forward(self, x):
        return self.function(self.fc(x), *self.parts)


def test_nll_of_several_distributions_in_a_row_is_no_cross_entropy():
    """The sum of all exponentials is their number: cross-entropy would be too large by its logarithm."""
    module = Of(lambda x: F.log_softmax(x.view(-1, 2, 3), -1).flatten(1), 6)
    model = from_torch(module, torch.zeros(2, 6), nn.NLLLoss())
    assert model.spec.loss.name == "nll"
    assert agrees(module, model).passed
    assert from_torch(module, torch.zeros(2, 6)).notes == (
        "the loss is cross_entropy: choose one with --loss",
    )


def test_nll_of_one_distribution_may_be_squeezed():
    module = Of(lambda x: F.log_softmax(x.view(-1, 6, 1, 1), 1).flatten(1), 6)
    assert agrees(module, from_torch(module, torch.zeros(2, 6), nn.NLLLoss())).passed


@pytest.mark.parametrize(
    ("batch", "size", "function"),
    [
        (1, 12, lambda x, slopes: slopes(x.view(3, 4)).view(1, 12)),
        (1, 16, lambda x, slopes: slopes(x.view(4, 4)).view(1, 16)),
        (1, 4, lambda x, slopes: slopes(x.view(4).view(1, 4))),
        (2, 12, lambda x, slopes: slopes(x.view(2, 4, 3).permute(2, 1, 0)).permute(2, 1, 0)),
        (2, 12, lambda x, slopes: slopes(x.view(2, 3, 4).transpose(1, 2))),
    ],
)
def test_slopes_are_those_of_the_dimension_that_pytorch_takes(batch, size, function):
    torch.manual_seed(0)
    slopes = nn.PReLU(4)
    with torch.no_grad():
        slopes.weight.copy_(torch.tensor([0.1, 0.4, -0.3, 0.9]))
    module = Of(function, size, slopes)
    assert agrees(module, from_torch(module, torch.zeros(batch, size), nn.MSELoss())).passed


def test_a_number_per_sample_is_compared_with_its_own_label():
    module = Of(lambda x: x.sum(1), 6)
    assert agrees(module, from_torch(module, torch.zeros(3, 6))).passed


@pytest.mark.parametrize(
    "function",
    [
        lambda x: F.celu(x, alpha=-0.5),
        lambda x: F.softplus(x, beta=0),
        lambda x: F.softplus(x, threshold=5),
    ],
)
def test_activations_that_ours_are_not_are_refused(function):
    with pytest.raises(UnsupportedLayerError, match=r"alpha above 0|beta=0|threshold=5"):
        from_torch(Of(function, 6), torch.zeros(2, 6))


class Extremes(nn.Module):
    """Extremes with ties (a ReLU makes zeros), activations, slopes that are trained."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(2, 4, 3, padding=1)
        self.one = nn.PReLU()
        self.each = nn.PReLU(4)
        self.fc = nn.Linear(16, 3)

    def forward(self, x):
        x = self.each(self.one(self.conv(x)))
        zeros = torch.relu(x - 0.5)
        parts = [
            torch.amax(zeros, dim=2),
            zeros.max(dim=2).values,
            nn.functional.softplus(x, beta=2.0).amin(dim=-1),
            nn.functional.mish(nn.functional.celu(nn.functional.selu(x), 0.5)).min(dim=2).values,
        ]
        return nn.functional.logsigmoid(self.fc(nn.functional.softsign(torch.cat(parts, dim=1))))


def test_extremes_share_or_give_to_the_first_and_slopes_are_trained():
    torch.manual_seed(0)
    module = Extremes()
    model = from_torch(module, torch.zeros(2, 2, 6))
    kinds = {layer.type for layer in model.spec.layers}
    assert {"prelu", "reduce_max", "reduce_min", "softplus", "mish", "elu"} <= kinds
    assert agrees(module, model).passed


def test_everything_that_has_no_form_here_is_listed_at_once():
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm = nn.LSTM(4, 4, proj_size=2, batch_first=True)

        def forward(self, x):
            y, _ = self.lstm(x.index_add(1, torch.zeros(2, dtype=torch.long), x[:, :2]))
            return torch.cumprod(y, dim=-1).sort()[0]

    with pytest.raises(UnsupportedLayerError) as error:
        from_torch(Odd(), torch.zeros(2, 5, 4))
    text = str(error.value)
    assert "4 of" in text
    for part in ("index_add of shape [2, 5, 4]", "proj_size=0", "cumprod of shape [2, 5, 2]", "sort"):
        assert part in text
    assert "test_torch.py:" in text
    assert error.value.exit_code == 2


class TwoInputs(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 3)

    def forward(self, x, y):
        return self.fc(x) - self.fc(y)


class TwoOutputs(nn.Module):
    def forward(self, x):
        return x, x


class Random(nn.Module):
    def forward(self, x):
        return x * torch.rand(4)


class OverBatch(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        return self.fc(x).mean(0)


class MoreSamples(OverBatch):
    def forward(self, x):
        return torch.cat([self.fc(x), x], 0)


class Antialiased(nn.Module):
    def forward(self, x):
        return nn.functional.interpolate(x, (2, 3), mode="bilinear", antialias=True)


class Spikes(OverBatch):
    def forward(self, x):
        return (self.fc(x) > 0).to(x.dtype)


class AddedTwice(OverBatch):
    def forward(self, x):
        return self.fc(x).index_add(1, torch.tensor([0]), x[:, :1], alpha=2.0)


class DataDependent(nn.Module):
    def forward(self, x):
        return x if x.sum() > 0 else -x


class Stores(nn.Linear):
    """`forward` stores something through .data of a tensor."""

    def __init__(self, store):
        super().__init__(4, 4)
        self.register_buffer("factor", torch.ones(4))
        self.head, self.store = nn.Linear(4, 2), store

    def forward(self, x):
        self.store(self, x)
        return self.head(super().forward(x) * self.factor)


def _twice(m, x):
    for _ in range(2):
        m.weight.data = m.weight.data * 0.9


STORED = {
    "a buffer": (lambda m, x: setattr(m.factor, "data", m.factor * 2), "of a tensor that is not a trained"),
    "an activation": (lambda m, x: setattr(x, "data", x * 2), "of a tensor that is not a trained parameter"),
    "of another parameter": (
        lambda m, x: setattr(m.weight, "data", m.head.weight.data.T @ m.head.weight.data),
    ),
    "constant numbers": (lambda m, x: setattr(m.weight, "data", torch.ones(4, 4)),),
    "of the input": (lambda m, x: setattr(m.weight, "data", m.weight.data * x.sum()), "projected of shape"),
    "twice": (_twice,),
    "in place": (lambda m, x: m.weight.data.clamp_(-0.1, 0.1), "in place .* assign the whole: weight.data ="),
}


@pytest.mark.parametrize("case", STORED)
def test_what_is_stored_past_autograd_into_anything_else_than_a_weight_is_refused(case):
    store, message = (*STORED[case], "this assignment to .data is not supported")[:2]
    with pytest.raises(InputError, match=f"(?s){message}"):
        from_torch(Stores(store), torch.zeros(2, 4))


REFUSED = {
    "two batches": (
        TwoInputs,
        (torch.zeros(2, 4), torch.zeros(1, 4)) if MODULES else (),
        "different batch sizes: 2, 1",
    ),
    "two outputs": (TwoOutputs, (torch.zeros(1, 4),) if MODULES else (), "returns 2 tensors"),
    "random numbers": (Random, (torch.zeros(1, 4),) if MODULES else (), "other than a dropout mask"),
    "a mean over the batch": (OverBatch, (torch.zeros(2, 4),) if MODULES else (), "over the batch"),
    "samples joined": (
        MoreSamples,
        (torch.zeros(2, 4),) if MODULES else (),
        "first dimension is not the batch",
    ),
    "antialiased": (Antialiased, (torch.zeros(2, 1, 4, 6),) if MODULES else (), "try: use antialias=False"),
    "a step": (Spikes, (torch.zeros(2, 4),) if MODULES else (), "a comparison has no gradient"),
    "a factor of a scatter": (
        AddedTwice,
        (torch.zeros(2, 4),) if MODULES else (),
        "multiply the source in a separate op before",
    ),
    "a decision on data": (DataDependent, (torch.zeros(1, 4),) if MODULES else (), "cannot capture"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_a_network_here_is_refused_with_a_reason(case):
    module, inputs, message = REFUSED[case]
    with pytest.raises(InputError, match=message):
        from_torch(module(), inputs)


def test_a_batch_that_moves_through_the_dimensions_is_followed():
    class Moves(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(6, 6)

        def forward(self, x):
            x = self.fc(x.permute(1, 2, 0, 3))  # [3, 4, batch, 6]
            x = torch.relu(x).permute(2, 1, 0, 3).reshape(x.shape[2] * 4, 18)
            return x.view(-1, 4, 18).transpose(1, 2).sum(2)

    module = Moves()
    model = from_torch(module, torch.zeros(2, 3, 4, 6))
    assert agrees(module, model).passed


def test_sixteen_bit_modules_give_sixteen_bit_networks():
    module = nn.Linear(4, 3).half()
    model = from_torch(module, torch.zeros(2, 4, dtype=torch.float16))
    assert model.spec.dtype == "fp16"
    assert model.values["linear.weight"].dtype == np.float16


def test_attention_with_weights_wanted_and_functional_attention_agree():
    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

        def forward(self, x):
            y, weights = self.attention(x, x, x)
            return y + F.scaled_dot_product_attention(x, x, x, scale=0.5) * weights.mean()

    module = Both()
    assert agrees(module, from_torch(module, torch.zeros(1, 5, 8))).passed


def attention_with_a_mask(module, x):
    heads = x.view(x.shape[0], 1, 3, 2)
    return F.scaled_dot_product_attention(heads, heads, heads, attn_mask=module.own).flatten(1)


def without_gradient(module, x, other):
    with torch.no_grad():
        away = other(x)
    return x + away


class With(nn.Module):
    """A function of itself, of the output of a linear layer, and of modules; `own` is a parameter."""

    def __init__(self, function, *modules, own=None):
        super().__init__()
        torch.manual_seed(0)
        self.function, self.fc, self.parts = function, nn.Linear(6, 6), nn.ModuleList(modules)
        self.own = nn.Parameter(torch.randn(own)) if own is not None else None

    def forward(self, x):
        return self.function(self, self.fc(x), *self.parts)


EVERY_SECOND = [True, False] * 3
TRAINED_AS_IT_IS = {
    "a mask of attention": (lambda: With(attention_with_a_mask, own=(3, 3)), True),
    "detached and not": (lambda: With(lambda m, x: x * m.own.detach() + m.own, own=6), True),
    "in two orders": (lambda: With(lambda m, x: x @ m.own + F.linear(x, m.own), own=(6, 6)), True),
    "a parameter that is detached": (lambda: With(lambda m, x: x * m.own.detach(), own=6), False),
    "a fill": (lambda: With(lambda m, x: torch.tanh(x.masked_fill(torch.tensor(EVERY_SECOND), -2e4))), None),
    "a choice": (lambda: With(lambda m, x: torch.where(torch.tensor(EVERY_SECOND), x, -2e4) * 1e-4), None),
    "a row that is repeated": (lambda: With(lambda m, x: x.mean(1, keepdim=True).expand(-1, 6) + x), None),
    "a choice by what is computed": (
        lambda: With(lambda m, x: torch.where(x > 0.1, torch.tanh(x), torch.where(x < -0.2, x, 0.5))),
        None,
    ),
    "a row that is masked": (
        lambda: With(
            lambda m, x: (
                x.view(-1, 2, 3).masked_fill(torch.tensor([[True], [False]]), -1e9).softmax(-1).flatten(1)
            )
        ),
        None,
    ),
    "a mask with infinities": (
        lambda: With(lambda m, x: x.masked_fill(torch.tensor(EVERY_SECOND), -torch.inf).softmax(-1)),
        None,
    ),
}


@pytest.mark.parametrize("case", TRAINED_AS_IT_IS)
def test_masks_and_detached_parameters_are_trained_as_the_module_does(case):
    make, trained = TRAINED_AS_IT_IS[case]
    module = make()
    model = from_torch(module, torch.zeros(2, 6), nn.MSELoss())
    assert agrees(module, model).passed
    if trained is not None:
        assert any(given.source == "own" and given.trained for given in model.sources.values()) == trained


ANOTHER_NETWORK = {
    "statistics after a call": (
        lambda: With(lambda m, x, norm: norm(x) * norm.running_mean, nn.BatchNorm1d(6)),
        "use only the first output",
    ),
    "detach_": (lambda: With(lambda m, x: x + x.clone().detach_()), "requires_grad=False"),
    "no_grad": (lambda: With(without_gradient, nn.Linear(6, 6)), "requires_grad=False"),
    "momentum=None": (
        lambda: With(lambda m, x, norm: norm(x), nn.BatchNorm1d(6, momentum=None)),
        "momentum=0.1",
    ),
    "minus infinity": (
        lambda: With(lambda m, x: x.masked_fill(torch.tensor(EVERY_SECOND), -torch.inf).relu()),
        "a finite number",
    ),
    "infinities added": (
        lambda: With(lambda m, x: (x + torch.where(torch.tensor(EVERY_SECOND), -torch.inf, 0.0)).relu()),
        "before a softmax",
    ),
    "max_norm": (
        lambda: With(lambda m, x, e: x + e(torch.tensor([1, 0, 2, 1])), nn.Embedding(4, 6, max_norm=1.0)),
        "remove max_norm",
    ),
    "a number of elements by the numbers": (lambda: With(lambda m, x: x[x > 0].sum() + x), "use torch.where"),
    "an index outside": (
        lambda: With(lambda m, x: x + m.own[torch.tensor([0, 9, 1, 2])], own=(4, 6)),
        "index 9 is out of bounds .* try: correct the call",
    ),
    "a row outside": (
        lambda: With(lambda m, x, e: x + e(torch.tensor([0, 1, 2, 7])), nn.Embedding(4, 6)),
        "index out of range .* try: correct the call",
    ),
    "an index that is a fraction": (
        lambda: With(lambda m, x: x.index_add(1, torch.tensor([0.5]), x[:, :1])),
        "index .* try: correct the call",
    ),
    "complex numbers": (
        lambda: With(lambda m, x: torch.where(x > 0, x + 1j, x).real),
        "as two tensors",
    ),
    "the variance of one": (lambda: With(lambda m, x: x / m.own[:1, :1].var(), own=(4, 6)), "below 1"),
    "a query with all keys masked": (
        lambda: With(
            lambda m, x: F.scaled_dot_product_attention(
                *[x.view(-1, 1, 3, 2)] * 3, attn_mask=torch.tensor([[True] * 3, [False] * 3, [True] * 3])
            ).flatten(1)
        ),
        "a key for each query",
    ),
}


@pytest.mark.parametrize("case", ANOTHER_NETWORK)
def test_what_would_be_trained_otherwise_is_refused_with_a_cure(case):
    make, cure = ANOTHER_NETWORK[case]
    with pytest.raises(UnsupportedLayerError, match=cure):
        from_torch(make(), torch.zeros(4, 6), nn.MSELoss())


def test_a_forward_that_only_its_capture_can_compute_is_refused():
    module = With(lambda m, x: x + torch.ceil(x > 0))
    with pytest.raises(InputError, match=r"forward fails in PyTorch with torch\.float64 numbers"):
        agrees(module, from_torch(module, torch.zeros(4, 6), nn.MSELoss()))


def test_running_statistics_of_a_norm_called_twice_go_from_call_to_call():
    module = With(lambda m, x, norm: norm(norm(x).tanh() + x), nn.BatchNorm1d(6, momentum=0.3))
    with torch.no_grad():
        module.parts[0].weight.copy_(torch.linspace(0.5, 2, 6))
    model = from_torch(module, torch.zeros(4, 6), nn.MSELoss())
    assert agrees(module, model).passed
    graph, tensors, sample = iteration(model)
    module(torch.from_numpy(sample["input"]))
    for role in ("running_mean", "running_var"):
        (ours,) = (made for name, made in graph.updates.items() if name.endswith(role))
        np.testing.assert_allclose(tensors[ours], getattr(module.parts[0], role), rtol=1e-5)
    with pytest.raises(UnsupportedLayerError, match="running statistics that several layers share"):
        onnx_bytes(model.spec, model.values)


def test_gradients_divided_by_how_often_a_word_is_read_are_refused():
    module = nn.Sequential(nn.Embedding(5, 6, scale_grad_by_freq=True), nn.Flatten(), nn.Linear(24, 3))
    with pytest.raises(UnsupportedLayerError, match="scale_grad_by_freq=False"):
        from_torch(module, torch.zeros(2, 4, dtype=torch.int64))


class Siamese(nn.Module):
    """One branch for both halves."""

    def __init__(self):
        super().__init__()
        self.conv, self.fc = nn.Conv2d(1, 4, 3, padding=1), nn.Linear(64, 5)

    def one(self, x):
        return self.fc(self.conv(x).relu().flatten(1))

    def forward(self, x):
        return self.one(x[:, :1]) - self.one(x[:, 1:])


class Tied(nn.Module):
    """The table of words is the weight of the head as well: one Parameter by two names."""

    def __init__(self):
        super().__init__()
        self.table, self.middle, self.head = (
            nn.Embedding(11, 6),
            nn.Linear(6, 6),
            nn.Linear(6, 11, bias=False),
        )
        self.head.weight = self.table.weight

    def forward(self, x):
        return self.head(self.middle(self.table(x)).tanh())


class Unrolled(nn.Module):
    """A cell of two linear layers, three times."""

    def __init__(self):
        super().__init__()
        self.fed, self.kept = nn.Linear(3, 4), nn.Linear(4, 4)

    def forward(self, x):
        state = self.fed(x[:, 0]).tanh()
        for step in (1, 2):
            state = (self.fed(x[:, step]) + self.kept(state)).tanh()
        return state


SHARING = {
    "siamese": (Siamese, lambda: torch.randn(2, 2, 4, 4), {"conv": 1, "fc": 1}),
    "tied": (Tied, lambda: torch.randint(11, (2, 5)), {"table": 1}),
    "unrolled": (Unrolled, lambda: torch.randn(2, 3, 3), {"fed": 2, "kept": 1}),
}


@pytest.mark.parametrize("name", SHARING)
def test_a_parameter_used_in_several_places_is_one_weight_with_the_sum_of_their_gradients(name):
    make, example, lent = SHARING[name]
    module = make()
    model = from_torch(module, example(), nn.MSELoss())
    lenders = [layer.weights_of["weight"] for layer in model.spec.layers if layer.weights_of]
    assert {word: lenders.count(word) for word in lenders} == lent
    assert {given.source for given in model.sources.values()} == {key for key, _ in module.named_parameters()}
    check = agrees(module, model)
    assert check.passed, (check.tensor, check.worst)
    assert check.compared == 1 + len(list(module.parameters()))


def test_several_inputs_are_called_as_forward_calls_them():
    class Worded(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.pair = nn.Embedding(11, 4), TwoInputs()

        def forward(self, image, words):
            return self.pair(image, self.table(words).mean(1))

    module = Worded()
    model = from_torch(module, (torch.randn(2, 4), torch.randint(11, (2, 5))), nn.MSELoss())
    assert model.spec.inputs == (InputSpec("image", (4,)), InputSpec("words", (5,), 11))
    check = agrees(module, model)
    assert check.passed, (check.tensor, check.worst)
    assert check.compared == 1 + len(list(module.parameters()))
