# SPDX-License-Identifier: Apache-2.0
"""A hundred modules, losses, optimizers, schedules, steps of PyTorch, and two steps of training with each.

Drawn from the indices of torch.nn and torch.optim before any of them was tried: all losses, all optimizers,
all schedules, and forty of the modules by a seeded draw (`drawn_modules`); seven steps are what a training
script does besides. Left out of the draw are containers, base classes, lazy and 3-dimensional modules, and
SyncBatchNorm, which needs several processes. A case is plain PyTorch; what it trains is small, so that a
wrong gradient is seen at once.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn, optim
from torch.nn import functional as F  # noqa: N812 - as everybody calls it
from torch.optim import lr_scheduler, swa_utils

MODULES, LOSSES, OPTIMIZERS, SCHEDULES, STEPS = "module", "loss", "optimizer", "schedule", "step"

LEFT_OUT = {
    "Container",
    "CrossMapLRN2d",
    "LinearCrossEntropyOptions",
    "Module",
    "ModuleDict",
    "ModuleList",
    "NLLLoss2d",
    "ParameterDict",
    "ParameterList",
    "RNNBase",
    "RNNCellBase",
    "Sequential",
    "SyncBatchNorm",
}


def drawn_modules() -> list[str]:
    """Forty names of torch.nn that are neither losses nor left out."""
    names = [
        name
        for name in nn.modules.__all__
        if name not in LEFT_OUT and not name.endswith("Loss") and "3d" not in name and name[:4] != "Lazy"
    ]
    return sorted(random.Random(27).sample(names, 40))


def all_losses() -> list[str]:
    """All losses of torch.nn."""
    return [name for name in nn.modules.__all__ if name.endswith("Loss")]


def all_optimizers() -> list[str]:
    """All optimizers of torch.optim."""
    return [name for name in dir(optim) if _is_made_of(getattr(optim, name), optim.Optimizer)]


def all_schedules() -> list[str]:
    """All schedules of torch.optim.lr_scheduler."""
    names = [*dir(lr_scheduler)]
    return [name for name in names if _is_made_of(getattr(lr_scheduler, name), lr_scheduler.LRScheduler)]


def _is_made_of(item: Any, base: type) -> bool:
    return isinstance(item, type) and issubclass(item, base) and item is not base and item.__name__[0] != "_"


@dataclass
class Training:
    """Two steps of training: what goes in, and what a script calls in each step.

    `loss` is called with what the module returns and with the `labels`. `batches` has (inputs, labels) of
    each mini-batch, two of them, or four where gradients of two are accumulated.
    """

    module: nn.Module
    batches: Sequence[tuple[tuple[torch.Tensor, ...], tuple[torch.Tensor, ...]]]
    loss: Callable[..., torch.Tensor]
    optimizer: optim.Optimizer
    schedule: Any = None
    clip_norm: float | None = None
    clip_value: float | None = None
    accumulate: int = 1
    averaged: float | None = None
    """Share of the old average that is kept (EMA)."""


@dataclass(frozen=True)
class Step:
    """What one step left: the mean loss, gradients before clipping, weights, averaged weights."""

    loss: float
    gradients: dict[str, torch.Tensor]
    weights: dict[str, torch.Tensor]
    averages: dict[str, torch.Tensor]


def trained(training: Training) -> Iterator[Step]:
    """Two steps in PyTorch itself, of the module as it is and in its type of numbers."""
    module, optimizer = training.module, training.optimizer
    average = None
    if training.averaged is not None:
        kept = swa_utils.get_ema_multi_avg_fn(training.averaged)
        average = swa_utils.AveragedModel(module, multi_avg_fn=kept)
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for first in range(0, len(training.batches), training.accumulate):
        optimizer.zero_grad()
        losses = []
        for inputs, labels in training.batches[first : first + training.accumulate]:
            result = module(*inputs)
            results = result if isinstance(result, tuple) else (result,)
            loss = training.loss(*results, *labels)
            (loss / training.accumulate).backward()
            losses.append(float(loss.detach()))
        named = dict(module.named_parameters())
        gradients = {name: item.grad.clone() for name, item in named.items() if item.grad is not None}
        if training.clip_norm is not None:
            nn.utils.clip_grad_norm_(parameters, training.clip_norm)
        if training.clip_value is not None:
            nn.utils.clip_grad_value_(parameters, training.clip_value)
        if isinstance(optimizer, optim.LBFGS):
            optimizer.step(lambda: loss)  # noqa: B023 - called within the step
        else:
            optimizer.step()
        if isinstance(training.schedule, lr_scheduler.ReduceLROnPlateau):
            training.schedule.step(losses[-1])
        elif training.schedule is not None:
            training.schedule.step()
        averages = {}
        if average is not None:
            average.update_parameters(module)
            averages = {name: item.detach().clone() for name, item in average.module.named_parameters()}
        weights = {name: item.detach().clone() for name, item in named.items()}
        yield Step(sum(losses) / len(losses), gradients, weights, averages)


@dataclass(frozen=True)
class Case:
    """One entry of the index; `make` gives a new training, the same each time."""

    name: str
    section: str
    make: Callable[[], Training]

    def training(self) -> Training:
        """A new training of this case."""
        torch.manual_seed(27)
        return self.make()

    def in_double(self) -> Training:
        """The same in float64: module and data; the optimizer is of the module's parameters."""
        torch.manual_seed(27)
        kind = torch.get_default_dtype()
        training = self.make()
        numbers = copy.deepcopy(training.module.state_dict())
        batches = [
            tuple(
                tuple(item.double() if item.is_floating_point() else item for item in part) for part in batch
            )
            for batch in training.batches
        ]
        torch.set_default_dtype(torch.float64)
        try:
            torch.manual_seed(27)
            again = self.make()
        finally:
            torch.set_default_dtype(kind)
        again.module.double().load_state_dict(numbers)
        again.batches = batches
        return again


class Around(nn.Module):
    """Layers around a module, so that it has an input gradient: `first`, the module, a linear head."""

    def __init__(self, first: nn.Module, inner: nn.Module, shape: Sequence[int], classes: int = 3) -> None:
        super().__init__()
        self.first, self.inner = first, inner
        with torch.no_grad():
            state = copy.deepcopy(self.state_dict())
            size = inner(first(torch.zeros(2, *shape))).flatten(1).shape[1]
            self.load_state_dict(state)
        self.head = nn.Linear(size, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.inner(self.first(x)).flatten(1))


IMAGE, SEQUENCE, VECTOR = (2, 8, 8), (4, 12), (6,)


def _image(inner: nn.Module, channels: int = 4) -> Training:
    return _classified(Around(nn.Conv2d(2, channels, 3, padding=1), inner, IMAGE), IMAGE)


def _sequence(inner: nn.Module) -> Training:
    return _classified(Around(nn.Conv1d(4, 6, 3, padding=1), inner, SEQUENCE), SEQUENCE)


def _vector(inner: nn.Module, width: int = 8) -> Training:
    return _classified(Around(nn.Linear(6, width), inner, VECTOR), VECTOR)


def _tokens(inner: nn.Module) -> Training:
    return _classified(Around(nn.Linear(8, 8), inner, (5, 8)), (5, 8))


def _classified(module: nn.Module, shape: Sequence[int]) -> Training:
    batches = [((torch.randn(2, *shape),), (torch.randint(3, (2,)),)) for _ in range(2)]
    return Training(module, batches, nn.CrossEntropyLoss(), optim.SGD(module.parameters(), 0.1))


class Twice(nn.Module):
    """A module of two inputs, both made from one."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.other = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x, self.other(x))


class Attended(nn.Module):
    """Self-attention of one input."""

    def __init__(self, inner: nn.MultiheadAttention) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x, x, x, need_weights=False)[0]


class Unpooled(nn.Module):
    """Pooled and put back where it came from."""

    def __init__(self) -> None:
        super().__init__()
        self.pool, self.unpool = nn.MaxPool2d(2, return_indices=True), nn.MaxUnpool2d(2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.unpool(*self.pool(x))


def _words() -> Training:
    module = nn.Sequential(nn.Embedding(11, 6), nn.Flatten(), nn.Linear(30, 3))
    batches = [((torch.randint(11, (2, 5)),), (torch.randint(3, (2,)),)) for _ in range(2)]
    return Training(module, batches, nn.CrossEntropyLoss(), optim.SGD(module.parameters(), 0.1))


def _fractional() -> nn.Module:
    pool = nn.FractionalMaxPool2d(2, output_size=4)
    pool.register_buffer("_random_samples", torch.full((2, 4, 2), 0.5))
    return pool


_TRANSFORMER: dict[str, Any] = {"nhead": 2, "dim_feedforward": 16, "dropout": 0.0, "batch_first": True}


def _encoder_layer() -> nn.Module:
    return nn.TransformerEncoderLayer(8, **_TRANSFORMER)


_MODULES: dict[str, Callable[[], Training]] = {
    "AdaptiveAvgPool2d": lambda: _image(nn.AdaptiveAvgPool2d((4, 2))),
    "AvgPool2d": lambda: _image(nn.AvgPool2d(3, stride=2, padding=1)),
    "BatchNorm2d": lambda: _image(nn.BatchNorm2d(4)),
    "Bilinear": lambda: _classified(Around(nn.Linear(8, 8), Twice(nn.Bilinear(8, 8, 5)), (8,)), (8,)),
    "CELU": lambda: _vector(nn.CELU(1.3)),
    "CircularPad1d": lambda: _sequence(nn.CircularPad1d((2, 1))),
    "Conv2d": lambda: _image(nn.Conv2d(4, 6, 3, stride=2, padding=1, groups=2)),
    "ConvTranspose1d": lambda: _sequence(nn.ConvTranspose1d(6, 3, 4, stride=2, padding=1)),
    "ConvTranspose2d": lambda: _image(nn.ConvTranspose2d(4, 3, 3, stride=2, padding=1, output_padding=1)),
    # Random numbers of another generator cannot be compared: in the mode that draws none.
    "Dropout2d": lambda: _image(nn.Dropout2d(0.4).eval()),
    "Embedding": _words,
    "Fold": lambda: _classified(Around(nn.Conv1d(12, 12, 1), nn.Fold((5, 5), 2), (12, 16)), (12, 16)),
    "FractionalMaxPool2d": lambda: _image(_fractional()),
    "GELU": lambda: _vector(nn.GELU()),
    "GLU": lambda: _image(nn.GLU(dim=1)),
    "GroupNorm": lambda: _image(nn.GroupNorm(2, 4)),
    "Hardshrink": lambda: _vector(nn.Hardshrink(0.3)),
    "InstanceNorm2d": lambda: _image(nn.InstanceNorm2d(4, affine=True)),
    "LPPool1d": lambda: _sequence(nn.Sequential(nn.Softplus(), nn.LPPool1d(2, 3, stride=2))),
    "LPPool2d": lambda: _image(nn.Sequential(nn.Softplus(), nn.LPPool2d(2, 2))),
    "LayerNorm": lambda: _tokens(nn.LayerNorm((5, 8))),
    "LeakyReLU": lambda: _vector(nn.LeakyReLU(0.2)),
    "LogSigmoid": lambda: _vector(nn.LogSigmoid()),
    "MaxPool1d": lambda: _sequence(nn.MaxPool1d(3, stride=2, padding=1)),
    "MaxPool2d": lambda: _image(nn.MaxPool2d(3, stride=2, ceil_mode=True)),
    "MaxUnpool2d": lambda: _image(Unpooled()),
    "MultiheadAttention": lambda: _tokens(Attended(nn.MultiheadAttention(8, 2, batch_first=True))),
    "PixelShuffle": lambda: _image(nn.PixelShuffle(2)),
    "PixelUnshuffle": lambda: _image(nn.PixelUnshuffle(2)),
    "ReflectionPad1d": lambda: _sequence(nn.ReflectionPad1d((2, 3))),
    "SELU": lambda: _vector(nn.SELU()),
    "Softplus": lambda: _vector(nn.Softplus(beta=2.0)),
    "Tanhshrink": lambda: _vector(nn.Tanhshrink()),
    "Threshold": lambda: _vector(nn.Threshold(0.1, 0.5)),
    "Transformer": lambda: _classified(
        Around(
            nn.Linear(8, 8),
            Twice(nn.Transformer(8, num_encoder_layers=1, num_decoder_layers=1, **_TRANSFORMER)),
            (5, 8),
        ),
        (5, 8),
    ),
    "TransformerEncoder": lambda: _tokens(
        nn.TransformerEncoder(_encoder_layer(), 2, enable_nested_tensor=False)
    ),
    "TransformerEncoderLayer": lambda: _tokens(_encoder_layer()),
    "Unflatten": lambda: _vector(nn.Sequential(nn.Unflatten(1, (2, 4)), nn.Conv1d(2, 3, 2))),
    "Unfold": lambda: _image(nn.Unfold(3, padding=1, stride=2)),
    "ZeroPad1d": lambda: _sequence(nn.ZeroPad1d((1, 3))),
}

_Label = Callable[[], torch.Tensor]


def _ends(
    loss: Callable[..., torch.Tensor], *labels: _Label, width: int = 5, last: nn.Module | None = None
) -> Training:
    """Two linear layers and `last`, then the loss of what they give and the labels."""
    layers = [nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, width), *([last] if last is not None else [])]
    module = nn.Sequential(*layers)
    batches = [((torch.randn(4, 6),), tuple(label() for label in labels)) for _ in range(2)]
    return Training(module, batches, loss, optim.SGD(module.parameters(), 0.1))


class Branches(nn.Module):
    """One network, called on each of its inputs."""

    def __init__(self, last: nn.Module | None = None, width: int = 5) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, width))

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(self.net(x) for x in inputs)


def _branched(
    loss: Callable[..., torch.Tensor], *labels: _Label, inputs: int = 2, width: int = 5
) -> Training:
    module = Branches(width=width)
    batches = [
        (tuple(torch.randn(4, 6) for _ in range(inputs)), tuple(label() for label in labels))
        for _ in range(2)
    ]
    return Training(module, batches, loss, optim.SGD(module.parameters(), 0.1))


def _classes() -> torch.Tensor:
    return torch.randint(5, (4,))


def _numbers() -> torch.Tensor:
    return torch.randn(4, 5)


def _bits() -> torch.Tensor:
    return torch.randint(2, (4, 5)).to(torch.get_default_dtype())


def _signs() -> torch.Tensor:
    return 2 * _bits() - 1


def _shares() -> torch.Tensor:
    return torch.randn(4, 5).softmax(1)


def _sign_each() -> torch.Tensor:
    return 2 * torch.randint(2, (4,)).to(torch.get_default_dtype()) - 1


class OwnHead(nn.Module):
    """A loss with weights of its own, as the end of the module: it returns the loss."""

    def __init__(self, loss: nn.Module) -> None:
        super().__init__()
        self.body, self.end = nn.Sequential(nn.Linear(6, 8), nn.Tanh()), loss

    def forward(self, x: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        found = self.end(self.body(x), label)
        return found if isinstance(found, torch.Tensor) else found.loss


def _own_head(loss: nn.Module) -> Training:
    module = OwnHead(loss)
    batches = [((torch.randn(4, 6), _classes()), ()) for _ in range(2)]
    return Training(module, batches, lambda found: found, optim.SGD(module.parameters(), 0.1))


def _ctc() -> Training:
    def loss(y: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        steps = y.reshape(4, 6, 5).transpose(0, 1).log_softmax(2)
        return F.ctc_loss(steps, label, torch.full((4,), 6), torch.full((4,), 2))

    return _ends(loss, lambda: torch.randint(1, 5, (4, 2)), width=30)


def _multi_label() -> torch.Tensor:
    return torch.tensor([[3, 0, -1, -1, -1], [1, -1, -1, -1, -1], [4, 2, 0, -1, -1], [2, 1, -1, -1, -1]])


_LOSSES: dict[str, Callable[[], Training]] = {
    "AdaptiveLogSoftmaxWithLoss": lambda: _own_head(nn.AdaptiveLogSoftmaxWithLoss(8, 5, [2])),
    "BCELoss": lambda: _ends(nn.BCELoss(), _bits, last=nn.Sigmoid()),
    "BCEWithLogitsLoss": lambda: _ends(nn.BCEWithLogitsLoss(pos_weight=torch.linspace(0.5, 2, 5)), _bits),
    "CTCLoss": _ctc,
    "CosineEmbeddingLoss": lambda: _branched(nn.CosineEmbeddingLoss(0.2), _sign_each),
    "CrossEntropyLoss": lambda: _ends(
        nn.CrossEntropyLoss(weight=torch.linspace(0.5, 2, 5), label_smoothing=0.1), _classes
    ),
    "GaussianNLLLoss": lambda: _ends(
        lambda y, label: nn.GaussianNLLLoss()(y[:, :5], label, F.softplus(y[:, 5:])), _numbers, width=10
    ),
    "HingeEmbeddingLoss": lambda: _ends(nn.HingeEmbeddingLoss(0.7), _signs),
    "HuberLoss": lambda: _ends(nn.HuberLoss(delta=0.6), _numbers),
    "KLDivLoss": lambda: _ends(nn.KLDivLoss(reduction="batchmean"), _shares, last=nn.LogSoftmax(1)),
    "L1Loss": lambda: _ends(nn.L1Loss(reduction="sum"), _numbers),
    "LinearCrossEntropyLoss": lambda: _own_head(nn.LinearCrossEntropyLoss(8, 5)),
    "MSELoss": lambda: _ends(nn.MSELoss(), _numbers),
    "MarginRankingLoss": lambda: _branched(
        lambda a, b, label: nn.MarginRankingLoss(0.3)(a[:, 0], b[:, 0], label), _sign_each, width=1
    ),
    "MultiLabelMarginLoss": lambda: _ends(nn.MultiLabelMarginLoss(), _multi_label),
    "MultiLabelSoftMarginLoss": lambda: _ends(nn.MultiLabelSoftMarginLoss(), _bits),
    "MultiMarginLoss": lambda: _ends(nn.MultiMarginLoss(), _classes),
    "NLLLoss": lambda: _ends(nn.NLLLoss(ignore_index=2), _classes, last=nn.LogSoftmax(1)),
    "PoissonNLLLoss": lambda: _ends(
        nn.PoissonNLLLoss(), lambda: torch.randint(4, (4, 5)).to(torch.get_default_dtype())
    ),
    "SmoothL1Loss": lambda: _ends(nn.SmoothL1Loss(beta=0.5), _numbers),
    "SoftMarginLoss": lambda: _ends(nn.SoftMarginLoss(), _signs),
    "TripletMarginLoss": lambda: _branched(nn.TripletMarginLoss(0.8), inputs=3),
    "TripletMarginWithDistanceLoss": lambda: _branched(
        nn.TripletMarginWithDistanceLoss(distance_function=lambda a, b: 1 - F.cosine_similarity(a, b)),
        inputs=3,
    ),
}

_Optimizer = Callable[[Iterable[nn.Parameter]], optim.Optimizer]


def _optimized(make: _Optimizer, schedule: Callable[[optim.Optimizer], Any] | None = None) -> Training:
    """Three layers without a bias of their own shape, classified."""
    module = nn.Sequential(nn.Linear(6, 8, bias=False), nn.Tanh(), nn.Linear(8, 3, bias=False))
    training = _classified(module, VECTOR)
    training.optimizer = make(module.parameters())
    training.schedule = schedule(training.optimizer) if schedule is not None else None
    return training


def _sparse() -> Training:
    module = nn.Sequential(nn.Embedding(11, 6, sparse=True), nn.Flatten(), nn.ReLU())
    batches = [((torch.randint(11, (2, 5)),), (torch.randint(30, (2,)),)) for _ in range(2)]
    return Training(module, batches, nn.CrossEntropyLoss(), optim.SparseAdam(list(module.parameters()), 0.01))


_OPTIMIZERS: dict[str, Callable[[], Training]] = {
    "ASGD": lambda: _optimized(lambda p: optim.ASGD(p, 0.05)),
    "Adadelta": lambda: _optimized(lambda p: optim.Adadelta(p, 0.5)),
    "Adafactor": lambda: _optimized(lambda p: optim.Adafactor(p, 0.05)),
    "Adagrad": lambda: _optimized(
        lambda p: optim.Adagrad(p, 0.05, lr_decay=0.1, initial_accumulator_value=0.1)
    ),
    "Adam": lambda: _optimized(lambda p: optim.Adam(p, 0.01, amsgrad=True, weight_decay=0.05)),
    "AdamW": lambda: _optimized(lambda p: optim.AdamW(p, 0.01)),
    "Adamax": lambda: _optimized(lambda p: optim.Adamax(p, 0.01)),
    "LBFGS": lambda: _optimized(lambda p: optim.LBFGS(p, 0.1, max_iter=1)),
    "Muon": lambda: _optimized(lambda p: optim.Muon(p, 0.01)),
    "NAdam": lambda: _optimized(lambda p: optim.NAdam(p, 0.01)),
    "RAdam": lambda: _optimized(lambda p: optim.RAdam(p, 0.01)),
    "RMSprop": lambda: _optimized(lambda p: optim.RMSprop(p, 0.01, momentum=0.5, centered=True)),
    "Rprop": lambda: _optimized(lambda p: optim.Rprop(p, 0.01)),
    "SGD": lambda: _optimized(lambda p: optim.SGD(p, 0.05, momentum=0.9, dampening=0.2, weight_decay=0.01)),
    "SparseAdam": _sparse,
}


def _scheduled(make: Callable[[optim.Optimizer], Any]) -> Callable[[], Training]:
    return lambda: _optimized(lambda p: optim.SGD(p, 0.1, momentum=0.5), make)


_SCHEDULES: dict[str, Callable[[], Training]] = {
    "ChainedScheduler": _scheduled(
        lambda o: lr_scheduler.ChainedScheduler(
            [lr_scheduler.ConstantLR(o, 0.5, 2), lr_scheduler.ExponentialLR(o, 0.9)], optimizer=o
        )
    ),
    "ConstantLR": _scheduled(lambda o: lr_scheduler.ConstantLR(o, 0.3, 1)),
    "CosineAnnealingLR": _scheduled(lambda o: lr_scheduler.CosineAnnealingLR(o, 3)),
    "CosineAnnealingWarmRestarts": _scheduled(lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 3)),
    "CyclicLR": _scheduled(lambda o: lr_scheduler.CyclicLR(o, 0.01, 0.1, 2)),
    "ExponentialLR": _scheduled(lambda o: lr_scheduler.ExponentialLR(o, 0.5)),
    "LambdaLR": _scheduled(lambda o: lr_scheduler.LambdaLR(o, lambda epoch: 0.7**epoch)),
    "LinearLR": _scheduled(lambda o: lr_scheduler.LinearLR(o, 0.2, 1.0, 3)),
    "MultiStepLR": _scheduled(lambda o: lr_scheduler.MultiStepLR(o, [1, 3], 0.2)),
    "MultiplicativeLR": _scheduled(lambda o: lr_scheduler.MultiplicativeLR(o, lambda epoch: 0.6)),
    "OneCycleLR": _scheduled(lambda o: lr_scheduler.OneCycleLR(o, 0.3, total_steps=5)),
    "PolynomialLR": _scheduled(lambda o: lr_scheduler.PolynomialLR(o, 3, 2.0)),
    "ReduceLROnPlateau": _scheduled(
        lambda o: lr_scheduler.ReduceLROnPlateau(o, factor=0.5, patience=0, threshold=1.0)
    ),
    "SequentialLR": _scheduled(
        lambda o: lr_scheduler.SequentialLR(
            o, [lr_scheduler.ConstantLR(o, 0.5, 1), lr_scheduler.ExponentialLR(o, 0.5)], [1]
        )
    ),
    "StepLR": _scheduled(lambda o: lr_scheduler.StepLR(o, 1, 0.4)),
}


def _plain() -> Training:
    return _ends(nn.CrossEntropyLoss(), _classes)


def _clipped(**how: float) -> Training:
    training = _plain()
    for name, limit in how.items():
        setattr(training, name, limit)
    return training


def _accumulated() -> Training:
    training = _plain()
    training.batches = [*training.batches, *_plain().batches]
    training.accumulate = 2
    return training


def _grouped() -> Training:
    training = _plain()
    module: Any = training.module
    training.optimizer = optim.AdamW(
        [
            {"params": [module[0].weight, module[2].weight], "weight_decay": 0.1},
            {"params": [module[0].bias, module[2].bias], "weight_decay": 0.0, "lr": 0.002},
        ],
        0.01,
    )
    return training


class TwoHeads(nn.Module):
    """Classes and numbers of one body."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 8), nn.Tanh())
        self.classes, self.numbers = nn.Linear(8, 5), nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = self.body(x)
        return self.classes(y), self.numbers(y)


def _two_losses() -> Training:
    module = TwoHeads()
    batches = [((torch.randn(4, 6),), (_classes(), torch.randn(4, 2))) for _ in range(2)]

    def loss(
        classes: torch.Tensor, numbers: torch.Tensor, label: torch.Tensor, target: torch.Tensor
    ) -> torch.Tensor:
        return F.cross_entropy(classes, label) + 0.3 * F.mse_loss(numbers, target)

    return Training(module, batches, loss, optim.SGD(module.parameters(), 0.1))


class Tied(nn.Module):
    """A language model whose table of words is also its last layer."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.mix = nn.Embedding(11, 6), nn.Linear(6, 6)
        self.head = nn.Linear(6, 11, bias=False)
        self.head.weight = self.table.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.mix(self.table(x)))).mean(1)


def _shared() -> Training:
    module = Tied()
    batches = [((torch.randint(11, (2, 5)),), (torch.randint(11, (2,)),)) for _ in range(2)]
    return Training(module, batches, nn.CrossEntropyLoss(), optim.SGD(module.parameters(), 0.1))


_STEPS: dict[str, Callable[[], Training]] = {
    "clip_grad_norm_": lambda: _clipped(clip_norm=0.05),
    "clip_grad_value_": lambda: _clipped(clip_value=0.01),
    "accumulated gradients": _accumulated,
    "groups of parameters": _grouped,
    "averaged weights (EMA)": lambda: _clipped(averaged=0.9),
    "shared weights": _shared,
    "two losses": _two_losses,
}

SECTIONS = {
    MODULES: _MODULES,
    LOSSES: _LOSSES,
    OPTIMIZERS: _OPTIMIZERS,
    SCHEDULES: _SCHEDULES,
    STEPS: _STEPS,
}

CASES = tuple(Case(name, section, make) for section, made in SECTIONS.items() for name, make in made.items())
"""All hundred."""
