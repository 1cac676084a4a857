# SPDX-License-Identifier: Apache-2.0
"""Modules and functions of PyTorch that are several layers of ours: gradients as autograd."""

from __future__ import annotations

from itertools import cycle

import numpy as np
import pytest

from configs.values import replace
from importers.torch.check import check_module
from importers.torch.module import from_torch
from pulptrain.foreign.foreign_check import loss_of
from shared.tiers import sweep_two_of_three
from trainlib.references.reference import evaluate
from trainlib.training.phases import build_training_graph, initial_weights
from trainlib.training.training_data import sample_stream

pytestmark = pytest.mark.needs_torch

try:
    import torch
    from torch import nn
    from torch.nn import functional as F  # noqa: N812 - as everybody calls it

    from shared import torch_index

    DRAWN = [case for case in torch_index.CASES if case.section == torch_index.MODULES]
except ImportError:  # the marker skips what needs it
    DRAWN = []

REFUSED = {"FractionalMaxPool2d": "try: use max_pool2d", "MaxUnpool2d": "try: use return_indices=False"}


def agrees(module, model):
    """One iteration of the model, its loss and gradients held against autograd of the module."""
    graph = build_training_graph(model.spec)
    sample = next(sample_stream(graph, model.spec, 0))
    tensors = evaluate(graph, {**sample, **initial_weights(graph, 0), **model.values})
    given = {"input": sample["input"], "label": sample["label"]}
    return check_module(module, loss_of(model.spec.loss), model.sources, given, tensors)


@pytest.mark.parametrize("name", sweep_two_of_three([one.name for one in DRAWN if one.name not in REFUSED]))
def test_a_drawn_module_is_trained_as_by_pytorch(name):
    training = next(case for case in DRAWN if case.name == name).training()
    model = from_torch(training.module, training.batches[0][0], training.loss, training.optimizer)
    trained = {name for name, _ in training.module.named_parameters()}
    assert {given.source for given in model.sources.values() if given.trained} == trained
    check = agrees(training.module, model)
    assert check.passed, (check.tensor, check.worst)


@pytest.mark.parametrize("name", REFUSED)
def test_pooling_by_places_is_refused_with_a_cure(name):
    training = next(case for case in DRAWN if case.name == name).training()
    with pytest.raises(Exception, match=REFUSED[name]):
        from_torch(training.module, training.batches[0][0], training.loss, training.optimizer)


class Of(nn.Module if DRAWN else object):
    """A linear layer over the last dimension, a function of its output and of modules, a second one."""

    def __init__(self, function, shape, *modules):
        super().__init__()
        self.function, self.first = function, nn.Linear(shape[-1], shape[-1])
        self.parts = nn.ModuleList(modules)
        size = function(torch.rand(2, *shape), *modules).flatten(1).shape[1]
        self.head = nn.Linear(size, 3)

    def forward(self, x):
        return self.head(self.function(self.first(x), *self.parts).flatten(1))


def _both_ends(x, cell):
    """All outputs and the last states of all directions."""
    y, state = cell(x)
    last = state[0] if isinstance(state, tuple) else state
    return torch.cat([y.flatten(1), last.transpose(0, 1).flatten(1)], 1)


def _heads_before_samples(x):
    """Attention of two heads, one after the other in front of the samples (Lee et al. 2019, ATCNet)."""
    heads = torch.cat(x.split(3, -1), 0)
    seen = torch.softmax(heads @ heads.mT, -1) @ heads
    return torch.cat(seen.split(len(x), 0), -1)


def _set_in_place(x):
    """One row and every second column of what is left, as a forward writes them."""
    y = x * 2
    y[:, 1] = x[:, 0]
    y[:, 2:, ::2] = x[:, 2:, 1::2]
    return y


FUNCTIONS = {
    "normalize": ((4, 6), lambda x: F.normalize(x, dim=-1)),
    "normalize by absolute values": ((6,), lambda x: F.normalize(x, p=1)),
    "normalize of zeros": ((4, 6), lambda x: F.normalize(torch.relu(x - 9), dim=1) + x),
    "norm": ((4, 6), lambda x: x.norm(dim=2)),
    "norm of order 3": ((4, 6), lambda x: torch.linalg.vector_norm(x, 3, (1, 2), keepdim=True)),
    "largest": ((4, 6), lambda x: torch.linalg.vector_norm(x, float("inf"), 2)),
    "sine and cosine": ((4, 6), lambda x: torch.sin(x) + torch.cos(x)),
    "cosine": ((4, 6), lambda x: F.cosine_similarity(x, x.flip(1) * x, dim=2)),
    "logsumexp": ((4, 6), lambda x: 30 * torch.logsumexp(30 * x, (1, 2))[:, None]),
    "flip": ((4, 6), lambda x: x.flip(1, 2) * x),
    "repeat": ((4, 6), lambda x: x.repeat(1, 3, 2) * torch.arange(12.0)),
    "repeat to more dimensions": ((6,), lambda x: x.view(2, 1, 6).repeat(1, 3, 1)),
    "tile": ((4, 6), lambda x: x.tile(2) * torch.arange(12.0)),
    "windows counted with samples": (
        (4, 6),
        lambda x: (x.reshape(-1, 2, 6) * torch.arange(12.0).view(2, 6)).reshape(-1, 4, 6),
    ),
    "indices of two dimensions": ((4, 6), lambda x: x[:, [[0, 1], [3, 2]], [5, 1]]),
    "a mask of elements": ((4, 6), lambda x: x[:, :, torch.arange(6) % 3 > 0]),
    "gather of one index for all": (
        (4, 6),
        lambda x: x.gather(1, torch.tensor([[[3], [0]]]).expand(2, 2, 6)),
    ),
    "variance and mean": ((4, 6), lambda x: torch.cat(torch.var_mean(x, 1), 1)),
    "deviation and mean": (
        (4, 6),
        lambda x: torch.cat(torch.std_mean(x, (1, 2), keepdim=True), 1) * x[:, :2],
    ),
    "one of variance and mean": ((4, 6), lambda x: torch.var_mean(x, 2)[0]),
    "gather": ((4, 6), lambda x: x.gather(2, torch.tensor([[[5, 0], [1, 1], [2, 4]]]).expand(2, 3, 2))),
    "index_fill by a number in a buffer": (
        (4, 6),
        lambda x: x.index_fill(2, torch.tensor([1, 3]), torch.tensor(2.0)),
    ),
    "addcmul": ((4, 6), lambda x: torch.addcmul(x, x.tanh(), x.sigmoid(), value=0.5)),
    "take_along_dim": ((4, 6), lambda x: x.take_along_dim(torch.tensor([[[1], [0], [3], [5]]]), 2)),
    "scatter": (
        (4, 6),
        lambda x: (3 * x).scatter(2, torch.tensor([[[5, 0], [1, 2]]]).expand(2, 2, 2), x[:, :2, :2]),
    ),
    "scatter of a number": (
        (6,),
        lambda x: x.scatter(1, torch.tensor([[5, 0]]).expand(2, 2), 0.5),
    ),
    "scatter into zeros": (
        (6,),
        lambda x: x.new_zeros(2, 9).scatter_add(1, torch.tensor([[8, 0, 3, 2, 1, 5]]).expand(2, 6), x),
    ),
    "index_add": ((4, 6), lambda x: x.index_add(1, torch.tensor([2, 0]), x[:, 1:3] * x[:, :2])),
    "set in place": ((4, 6), _set_in_place),
    "windows of a dimension": ((5, 6), lambda x: x.unfold(1, 2, 1) * torch.arange(12.0).view(6, 2)),
    "windows side by side": ((4, 6), lambda x: x.unfold(-1, 3, 3).square()),
    "cdist": ((4, 6), lambda x: torch.cdist(x, x[:, :3] * 2 + 1)),
    "cdist of sizes": ((4, 6), lambda x: torch.cdist(x, x[:, :3] * 2 + 1, p=1)),
    "aligned corners": ((2, 4, 6), lambda x: F.interpolate(x, (7, 3), mode="bilinear", align_corners=True)),
    "to the same size": ((2, 4, 6), lambda x: F.interpolate(x, (4, 6), mode="bicubic", antialias=True)),
    "cubic": ((2, 4, 6), lambda x: F.interpolate(x, (7, 3), mode="bicubic")),
    "linear of a sequence": ((4, 6), lambda x: F.interpolate(x, 9, mode="linear")),
    "nearest to the middle": ((2, 4, 6), lambda x: F.interpolate(x, (7, 4), mode="nearest-exact")),
    "heads before samples": ((4, 6), _heads_before_samples),
    "six dimensions turned": ((64,), lambda x: x.view(-1, *(2,) * 6).permute(0, 6, 4, 2, 5, 3, 1).tanh()),
    "index_select": ((4, 6), lambda x: x.index_select(2, torch.tensor([5, 4, 1, 1, 0]))),
    "sign": ((6,), lambda x: torch.sign(x) * x),
    "softshrink": ((6,), lambda x: F.softshrink(x, 0.2)),
    "threshold at 0": ((6,), lambda x: F.threshold(x, 0.0, 0.0)),
    "reflected": ((2, 4, 6), lambda x: F.pad(x, (1, 5, 3, 0), mode="reflect")),
    "replicated": ((2, 4, 6), lambda x: F.pad(x, (1, 2, 3, 0), mode="replicate")),
    "circular": ((2, 4, 6), lambda x: F.pad(x, (1, 2, 3, 0), mode="circular")),
    "mean of what is there": (
        (2, 5, 6),
        lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True, count_include_pad=False),
    ),
    "last windows": ((2, 6, 6), lambda x: F.avg_pool2d(x, 4, 3, ceil_mode=True)),
    "third powers": ((2, 6, 6), lambda x: F.lp_pool2d(x.abs(), 3, 2)),
    "unfold dilated": ((2, 6, 6), lambda x: F.unfold(x, 2, dilation=2, padding=1)),
    "fold": ((8, 16), lambda x: F.fold(x, (4, 7), 2, padding=(0, 1), stride=(2, 1))),
}

CELLS = {
    "LSTM": lambda: nn.LSTM(6, 4, bidirectional=True, batch_first=True),
    "GRU of two layers": lambda: nn.GRU(6, 4, num_layers=2, bidirectional=True, batch_first=True),
    "RNN without bias": lambda: nn.RNN(6, 4, bias=False, bidirectional=True, batch_first=True),
}


@pytest.mark.parametrize("name", sweep_two_of_three(list(FUNCTIONS)))
def test_a_function_of_several_layers_is_trained_as_by_pytorch(name):
    torch.manual_seed(3)
    shape, function = FUNCTIONS[name]
    module = Of(function, shape)
    check = agrees(module, from_torch(module, torch.randn(2, *shape)))
    assert check.passed, (check.tensor, check.worst)


CORNERS = {
    "ReLU": lambda a, b: F.relu(a) + b,
    "ReLU6": lambda a, b: F.relu6(a) + b,
    "Hardtanh": lambda a, b: F.hardtanh(a, -1, 3) + b,
    "Hardswish": lambda a, b: F.hardswish(a) + b,
    "ELU": lambda a, b: F.elu(a, 0.5) + b,
    "abs": lambda a, b: a.abs() + b,
    "clamp": lambda a, b: a.clamp(-1, 3) + b,
    "clamp from 0": lambda a, b: a.clamp(min=0) + b,
    "maximum": lambda a, b: torch.maximum(a, 1.0 * b),
    "minimum": lambda a, b: torch.minimum(a, 1.0 * b),
    "maximum with 0": lambda a, b: torch.maximum(a, torch.zeros(())) + b,
}


@pytest.mark.parametrize("name", CORNERS)
def test_the_gradient_at_a_corner_is_that_of_pytorch(name):
    """A dead channel behind a batch norm is exactly 0: ReLU6 passes no gradient there, clamp does."""

    class Corner(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Parameter(torch.tensor([-3.0, -1, 0, 0, 3, 6]))
            self.b = nn.Parameter(torch.tensor([-3.0, 1, 0, -2, 3, 6]))

        def forward(self, x):
            return CORNERS[name](self.a + 0 * x, self.b + 0 * x)

    module = Corner()
    check = agrees(module, from_torch(module, torch.randn(2, 6), loss="mse"))
    assert check.passed, (check.tensor, check.worst)


@pytest.mark.parametrize("batch", [1, 2])
def test_a_batch_norm_of_rows_counted_with_samples_is_trained_as_by_pytorch(batch):
    """LeViT's linear layer: one statistic of each feature, of all rows of all samples."""
    torch.manual_seed(3)
    module = Of(lambda x, norm: norm(x.flatten(0, 1)).reshape_as(x), (4, 6), nn.BatchNorm1d(6))
    check = agrees(module, from_torch(module, torch.randn(batch, 4, 6)))
    assert check.passed, (check.tensor, check.worst)


@pytest.mark.parametrize("name", CELLS)
def test_both_directions_of_a_recurrence_are_trained_as_by_pytorch(name):
    torch.manual_seed(3)
    module = Of(_both_ends, (5, 6), CELLS[name]())
    model = from_torch(module, torch.randn(2, 5, 6))
    assert [layer.type for layer in model.spec.layers].count("flip") == 2 * (2 if "two" in name else 1)
    check = agrees(module, model)
    assert check.passed, (check.tensor, check.worst)


def _turned_twice(m, x):
    """Parts of a weight, and all of it in another order."""
    first, second = m.own.chunk(2)
    return F.linear(x, first) @ second + x @ m.own.T[:, 1:7]


def _standardised(m, x):
    away = m.own - m.own.mean(1, keepdim=True)
    return F.linear(x, away / (away.std(1, keepdim=True) + 1e-5))


def _standardised_by_both(m, x):
    """As in Big Transfer (Kolesnikov et al. 2020)."""
    variance, mean = torch.var_mean(m.own, dim=1, keepdim=True, unbiased=False)
    return F.linear(x, (m.own - mean) * torch.rsqrt(variance + 1e-6))


def _position_bias(m, x):
    """Of attention, from a table by the distance of two places; and from an MLP of constant numbers."""
    places = torch.arange(6)
    return (
        x[:, None]
        + m.own.T[:, places[:, None] - places + 5].sum(0)
        + m.parts[0]((places[:, None] / 6).to(x.dtype)).T[:1, None]
    )


def _band_passes(m, x):
    """Sinc filters of trained frequencies (Ravanelli and Bengio 2018), half of each computed."""
    low = m.own[:, :1].abs()
    high = (low + m.own[:, 1:].abs()).clamp(max=1.5)
    times = torch.arange(1.0, 3)
    half = (torch.sin(times * high) - torch.sin(times * low)) / times
    return F.conv1d(x[:, None], torch.cat([half.flip(1), high - low, half], 1)[:, None], padding=2)


class MaxNorm(nn.Linear if DRAWN else object):
    """As the EEGNet family has it: the weight is stored anew past autograd."""

    def forward(self, x):
        self.weight.data = torch.renorm(self.weight.data, p=2, dim=0, maxnorm=0.5)
        return super().forward(x)


class Clamped(nn.Conv1d if DRAWN else object):
    """Only a part of the numbers changes; the weight is read twice."""

    def forward(self, x):
        self.weight.data = self.weight.data.clamp(-0.1, 0.2)
        return super().forward(x) + self.weight.sum()


def _before_and_after(m, x):
    before = m.parts[0](x)
    m.parts[0].weight.data = m.parts[0].weight.data.T.tanh()
    m.parts[0].bias.data = m.parts[0].bias.clamp(min=0.0)
    return before + m.parts[0](x) + F.linear(x, m.parts[0].weight.data)


ARITHMETIC = {
    "used before it is stored": ((6, 6), _before_and_after, lambda: nn.Linear(6, 6)),
    "max-norm before use": ((6, 6), lambda m, x: m.parts[0](x), lambda: MaxNorm(6, 6)),
    "clamped before use": ((6, 6), lambda m, x: m.parts[0](x[:, None]), lambda: Clamped(1, 3, 2)),
    "weight norm": ((6, 6), lambda m, x: m.parts[0](x), lambda: nn.utils.weight_norm(nn.Linear(6, 6))),
    "weight norm of all": (
        (6, 6),
        lambda m, x: m.parts[0](x),
        lambda: nn.utils.parametrizations.weight_norm(nn.Linear(6, 6), dim=None),
    ),
    "spectral norm": (
        (6, 6),
        lambda m, x: m.parts[0](x),
        lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(6, 6)).eval(),
    ),
    "standardised": ((6, 6), _standardised, nn.Identity),
    "standardised by variance and mean": ((6, 6), _standardised_by_both, nn.Identity),
    "standardised by a batch norm": (
        (6, 6),
        lambda m, x: F.linear(x, F.batch_norm(m.own[None], None, None, training=True, momentum=0.0)[0]),
        nn.Identity,
    ),
    "renorm": ((6, 6), lambda m, x: F.linear(x, m.own.renorm(2, 0, 2.0)), nn.Identity),
    "sinc filters": ((3, 2), _band_passes, nn.Identity),
    "a product of factors": ((2, 6), lambda m, x: x @ (m.own.T @ m.own).tanh(), nn.Identity),
    "in parts and turned": ((12, 6), _turned_twice, nn.Identity),
    "a table by constant numbers": ((11, 2), _position_bias, lambda: nn.Linear(1, 2)),
    "learned positions": (
        (6, 6),
        lambda m, x: x[:, None] + m.parts[0](torch.tensor([3, 0, 2, 1, 4, 3])),
        lambda: nn.Embedding(5, 6),
    ),
    "expanded for every sample": ((1, 6), lambda m, x: x * m.own.exp().expand(2, -1), nn.Identity),
    "expanded for every sample and turned": (
        (6, 4),
        lambda m, x: x[:, None] + m.own.exp().expand(2, -1, -1).transpose(1, 2),
        nn.Identity,
    ),
    "repeated for every sample": ((1, 6), lambda m, x: x * m.own.exp().repeat(2, 1), nn.Identity),
}


@pytest.mark.parametrize("name", ARITHMETIC)
def test_arithmetic_on_a_weight_is_trained_as_by_pytorch(name):
    """Loss and gradients, and the weights after two steps: the computed weight is made anew in each."""
    torch.manual_seed(3)
    shape, function, part = ARITHMETIC[name]

    class Computes(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc, self.head, self.parts = nn.Linear(6, 6), nn.LazyLinear(3), nn.ModuleList([part()])
            self.own = nn.Parameter(torch.randn(shape))

        def forward(self, x):
            return self.head(function(self, self.fc(x)).flatten(1))

    module = Computes()
    module(torch.zeros(2, 6))
    model = from_torch(module, torch.randn(2, 6), optimizer="sgd lr=0.05")
    assert any(layer.computed or layer.type == "embedding" for layer in model.spec.layers)
    values = model.values
    for _ in range(2):
        check = agrees(module, replace(model, values=values))
        assert check.passed, (check.tensor, check.worst)
        values = stepped(module, replace(model, values=values))


def stepped(module, model):
    """Both take a step; the weights of ours after it, which must be the module's."""
    graph = build_training_graph(model.spec)
    sample = next(sample_stream(graph, model.spec, 0))
    tensors = evaluate(graph, {**sample, **initial_weights(graph, 0), **model.values})
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
    optimizer.zero_grad()
    loss_of(model.spec.loss)(module(torch.tensor(sample["input"])), torch.tensor(sample["label"])).backward()
    optimizer.step()
    parameters = dict(module.named_parameters())
    after = {name: tensors[new] for name, new in graph.updates.items()}
    for name, given in model.sources.items():
        if given.source in parameters and name in after:
            theirs = parameters[given.source].detach().numpy().ravel()[given.places]
            np.testing.assert_allclose(after[name], theirs, rtol=1e-4, atol=1e-6)
    return {**model.values, **after}


class DropPath(nn.Module if DRAWN else object):
    """Stochastic depth of whole samples, as timm and others have it."""

    def __init__(self, draw):
        super().__init__()
        self.draw = draw

    def forward(self, x):
        return x + x.tanh() * self.draw(x)


def _floored(x):
    return (0.7 + torch.rand(x.shape[0], 1, 1, dtype=x.dtype)).floor() / 0.7


DROPS = {
    "Dropout in place": lambda: nn.Dropout(0.3, inplace=True),
    "Dropout1d": lambda: nn.Dropout1d(0.3),
    "AlphaDropout": lambda: nn.AlphaDropout(0.3),
    "FeatureAlphaDropout": lambda: nn.FeatureAlphaDropout(0.3),
    "drop path": lambda: DropPath(lambda x: x.new_empty(x.shape[0], 1, 1).bernoulli_(0.7).div_(0.7)),
    "two drop paths": lambda: nn.Sequential(
        *(
            DropPath(lambda x, keep=p: x.new_empty(x.shape[0], 1, 1).bernoulli_(keep).div_(keep))
            for p in (0.7, 0.4)
        )
    ),
    "drop path by a floor": lambda: DropPath(_floored),
    "by a comparison": lambda: DropPath(lambda x: (torch.rand_like(x[:, :1]) > 0.3).to(x.dtype)),
    "of attention": lambda: nn.TransformerEncoderLayer(6, 2, 8, 0.3, batch_first=True),
}


@pytest.mark.parametrize("name", DROPS)
def test_dropout_of_every_kind_is_trained_as_by_pytorch(name):
    """The module draws the masks that ours has drawn, in the same order."""
    from torch.utils._python_dispatch import TorchDispatchMode

    torch.manual_seed(3)
    module = Of(lambda x, *parts: parts[0](x) if parts else x, (4, 6), DROPS[name]())
    model = from_torch(module, torch.randn(2, 4, 6))
    graph = build_training_graph(model.spec)
    sample = next(sample_stream(graph, model.spec, 0))
    masks = [torch.tensor(sample[name] > 0) for name in graph.draws]
    assert all(0 < mask.sum() < mask.numel() or mask.numel() < 3 for mask in masks)
    drawn = cycle(masks)

    class Drawn(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            made = func(*args, **(kwargs or {}))
            word = func.overloadpacket.__name__
            if word in ("bernoulli", "bernoulli_"):
                made.copy_(next(drawn).reshape(made.shape))
            elif word in ("rand", "rand_like"):
                made.copy_(next(drawn).reshape(made.shape) * 0.999)  # above every bound, or below
            return made

    tensors = evaluate(graph, {**sample, **initial_weights(graph, 0), **model.values})
    given = {"input": sample["input"], "label": sample["label"]}
    with Drawn():
        check = check_module(module, loss_of(model.spec.loss), model.sources, given, tensors)
    assert masks
    assert check.passed, (check.tensor, check.worst)
