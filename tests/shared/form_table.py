# SPDX-License-Identifier: Apache-2.0
"""Every form of training with every way tensors lie in memory: the rows, and what one of them comes to."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from configs.errors import PulptrainError
from configs.values import replace
from pulptrain.inputs.settings import Settings
from pulptrain.running.session import model_of
from shared.kept_plans import run_model
from shared.training_form_models import changed, written
from trainlib.ir.graph import TrainingGraph
from trainlib.training.phases import build_training_phases

VECTOR = (
    "{name: fc1, type: linear, out_features: 5, bias: true}",
    "{name: act, type: relu}",
    "{name: fc2, type: linear, out_features: 4, bias: true}",
)
IMAGE = (
    "{name: conv1, type: conv2d, out_channels: 4, kernel: 3, padding: 1, bias: true}",
    "{name: norm1, type: batch_norm}",
    "{name: act1, type: relu}",
    "{name: flat, type: flatten}",
    "{name: fc, type: linear, out_features: 3}",
)
SEPARABLE = (
    "{name: pw, type: pointwise, out_channels: 6}",
    "{name: dw, type: depthwise, kernel: 3, bias: true}",
)
PARTS = {"fc1": "[2, 4]", "fc2": "2", "conv1": "[1, 3]", "fc": "[1, 3]", "pw": "[2, 5]", "dw": "4"}
ADAPTERS = {
    "fc1": "{rank: 2, alpha: 3}",
    "fc2": "{rank: 1}",
    "conv1": "{rank: 2, alpha: 3}",
    "pw": "{rank: 1}",
}


def _name(layer: str) -> str:
    return layer.split()[1].rstrip(",")


def _with(layers: tuple[str, ...], key: str, values: Mapping[str, str]) -> tuple[str, ...]:
    for name in map(_name, layers):
        layers = changed(layers, name, f"{key}: {values[name]}") if name in values else layers
    return layers


MOMENTUM = "name: sgd_momentum, learning_rate: 0.05"


@dataclass(frozen=True)
class Form:
    """A form of training: layers, lines of the model file, the optimizer, and options of the run."""

    layers: tuple[str, ...] = VECTOR
    model: str = ""
    optimizer: str = MOMENTUM
    options: Mapping[str, object] = field(default_factory=dict)


LAST = _with(SEPARABLE, "layout", {"pw": "HWC", "dw": "HWC"})
NETS = {"vector": VECTOR, "image": IMAGE, "separable": SEPARABLE, "channels last": LAST}


def _sparse(layers: tuple[str, ...]) -> tuple[str, ...]:
    return _with(layers, "update_channels", PARTS)


def _adapted(layers: tuple[str, ...]) -> tuple[str, ...]:
    return _with(layers, "adapter", ADAPTERS)


STORED = {
    "vector": _adapted(VECTOR),
    "image": _adapted(IMAGE),
    "attention": (
        "{name: rows, type: reshape, shape: [15, 4]}",
        "{name: att, type: mhsa, heads: 2, adapter: {rank: 2, alpha: 3}}",
    ),
}
"""Frozen weights beside adapters."""


def _mixed(layers: tuple[str, ...]) -> tuple[str, ...]:
    return _with(layers, "dtype", dict.fromkeys(("fc2", "dw", "norm1"), "fp16"))


RULES = {
    "sgd": "name: sgd, learning_rate: 0.05",
    "sgd with decay": "name: sgd, learning_rate: 0.05, weight_decay: 0.01",
    "nesterov": "name: sgd_momentum, learning_rate: 0.05, nesterov: true",
    "dampened": "name: sgd, learning_rate: 0.05, momentum: 0.9, dampening: 0.1",
    "adam": "name: adam, learning_rate: 0.001",
    "amsgrad": "name: adam, learning_rate: 0.001, amsgrad: true, maximize: true",
    "adamw": "name: adamw, learning_rate: 0.001, weight_decay: 0.01",
    "adamax": "name: adamax, learning_rate: 0.001",
    "nadam": "name: nadam, learning_rate: 0.001",
    "radam": "name: radam, learning_rate: 0.001",
    "lion": "name: lion, learning_rate: 0.001",
    "rmsprop": "name: rmsprop, learning_rate: 0.001, centered: true, momentum: 0.9",
    "adagrad": "name: adagrad, learning_rate: 0.01, lr_decay: 0.1",
    "adadelta": "name: adadelta, learning_rate: 0.5",
    "rprop": "name: rprop, learning_rate: 0.01",
    "asgd": "name: asgd, learning_rate: 0.01",
}
MORE = {
    "accumulated": "accumulate: 2",
    "separate": "separate: true",
    "immediate": "immediate: true",
    "clipped by norm": "clip_norm: 0.1",
    "clipped by value": "clip_value: 0.01",
    "averaged": "average: 0.9",
    "scheduled": "schedule: {name: cosine, steps: 5}",
    "states in fp16": "state_dtype: fp16",
    "in groups": 'groups: [{parameters: ["*.weight"], learning_rate: 0.002}]',
}
FEW = {"vector": "fc1, act", "image": "conv1, norm1, act1"}
"""Layers that are computed again."""

FORMS: dict[str, Form] = {
    **{f"full, {net}": Form(layers) for net, layers in NETS.items()},
    **{f"channels, {net}": Form(_sparse(layers)) for net, layers in NETS.items()},
    **{f"adapters, {net}": Form(_adapted(NETS[net])) for net in ("vector", "image")},
    **{f"8 bits, {net}": Form(layers, "frozen_weights: int8") for net, layers in STORED.items()},
    "channels and an adapter": Form(
        changed(changed(VECTOR, "fc1", "update_channels: 3"), "fc2", "adapter: {rank: 1}")
    ),
    "last layer": Form(model="train: last"),
    "named layer": Form(IMAGE, "train: [conv1]"),
    "frozen layer": Form(changed(IMAGE, "conv1", "trainable: false")),
    "weights alone": Form(_with(VECTOR, "trainable", dict.fromkeys(PARTS, "[weight]"))),
    "biases alone": Form(_with(VECTOR, "trainable", dict.fromkeys(PARTS, "[bias]"))),
    **{f"recomputed, {net}": Form(_sparse(NETS[net]), f"recompute: [{few}]") for net, few in FEW.items()},
    **{
        f"channels, {net}, batch of 3": Form(_sparse(layers), options={"batch": 3})
        for net, layers in NETS.items()
    },
    "channels, bf16": Form(_sparse(SEPARABLE), options={"dtype": "bf16"}),
    "channels, fp8": Form(_sparse(VECTOR), options={"dtype": "fp8_e4m3"}),
    "full, fp16": Form(options={"dtype": "fp16"}),
    **{f"mixed, {net}": Form(_mixed(_sparse(layers))) for net, layers in NETS.items()},
    "immediate and accumulated": Form(optimizer=f"{MOMENTUM}, immediate: true, accumulate: 2"),
    "immediate and clipped": Form(optimizer=f"{MOMENTUM}, immediate: true, clip_norm: 0.1"),
    "forward pass": Form(IMAGE, options={"steps": "fw"}),
    "no update": Form(_sparse(IMAGE), options={"steps": "fw,loss,ig,wg"}),
}
BY_RULE = {f"channels, vector, {name}": Form(_sparse(VECTOR), optimizer=rule) for name, rule in RULES.items()}
BY_MORE = {
    f"{what}, {name}": replace(FORMS[what], optimizer=f"{FORMS[what].optimizer}, {more}")
    for name, more in MORE.items()
    for what in ("full, image", "channels, vector", "channels, channels last", "adapters, vector")
}

Homes = Callable[[TrainingGraph], Iterator[str]]


def _kind(level: str, *kinds: str) -> Homes:
    """All tensors of these kinds in a memory; a gradient is one of activations unless it is of a weight."""

    def homes(graph: TrainingGraph) -> Iterator[str]:
        own = set(graph.gradients.values())
        for name, tensor in graph.tensors.items():
            kind = "weight gradient" if name in own else tensor.kind
            if kind in kinds and tensor.alias_of is None:
                yield f"{name}={level}"

    return homes


BETWEEN = ("activation", "saved", "gradient", "buffer")


@dataclass(frozen=True)
class Memory:
    """Where tensors lie: options of the run, and homes that follow from the graph."""

    options: Mapping[str, object] = field(default_factory=dict)
    homes: Homes = field(default_factory=lambda: _kind("l2"))


MEMORIES: dict[str, Memory] = {
    "as planned": Memory(),
    **{
        f"{what} {level}": Memory({}, _kind(level, *kinds))
        for what, kinds in {
            "weights": ("weight",),
            "gradients": ("weight gradient",),
            "states": ("optimizer_state",),
            "activations": BETWEEN,
        }.items()
        for level in ("l3", "streamed")
    },
    "weights l2, all others l3": Memory({"homes": ("*=l3",)}, _kind("l2", "weight")),
    "all l3": Memory({"homes": ("*=l3",)}),
    "all streamed": Memory({"homes": ("*=streamed",)}),
    "a small L2": Memory({"l2": "3KiB", "icache": "warm"}),
    "a very small L2": Memory({"l2": "1KiB", "icache": "warm"}),
    "a small L1": Memory({"l1": "13KiB", "homes": ("*=l3",)}),
    "residents": Memory({"resident": "auto"}),
    "residents, all l3": Memory({"resident": "auto", "homes": ("*=l3",)}),
    "single buffers": Memory({"buffering": "single", "homes": ("*=l3",)}),
    "three buffers": Memory({"buffering": "3", "prefetch": "off", "homes": ("*=streamed",)}),
    "no tiles": Memory({"buffering": "none", "homes": ("*=l3",)}),
    "placed optimally": Memory({"placement": "optimal", "l2": "3KiB", "icache": "warm"}),
    "placed by best fit": Memory({"placement": "best-fit", "l2": "3KiB", "icache": "warm"}),
    "no L3": Memory({"l3": "0"}),
}


REFUSED = {
    "biases alone": "refused 2: .*computes the gradients of all its parameters, so 'weight' must be trained",
    "immediate and clipped": "refused 2: .*'immediate' changes weights .* 'clip_norm' needs",
    "a very small L2": "refused 3: .*L2 .* for op loss.LOSS, even with all tensors in L3 .*: 1300 B required",
}
"""Forms that are refused wherever tensors lie, and a memory too small for a batch of some."""


@dataclass(frozen=True)
class Row:
    """A form and a memory."""

    form: str
    memory: str

    def __str__(self) -> str:
        return f"{self.form}: {self.memory}"

    @property
    def refusal(self) -> str:
        """How it is refused, a regular expression; "" of what has to run."""
        if "batch of 3" in self.form and "vector" not in self.form and "image" not in self.form:
            return REFUSED.get(self.memory, "")
        return REFUSED.get(self.form, "")


ROWS = [
    *(Row(form, memory) for form in FORMS for memory in MEMORIES),
    *(
        Row(form, memory)
        for form in BY_RULE
        for memory in ("weights l3", "states l3", "states streamed", "a small L2")
    ),
    *(
        Row(form, memory)
        for form in BY_MORE
        for memory in ("all l3", "all streamed", "a small L2", "residents, all l3")
    ),
]


def outcome_of(row: Row, folder: Path) -> str:
    """What two iterations of a row come to: "right", or "refused", "wrong" with exit code and message."""
    form = (FORMS | BY_RULE | BY_MORE)[row.form]
    memory = MEMORIES[row.memory]
    shape = "[6]" if _name(form.layers[0]) == "fc1" else "[3, 5, 4]"
    path = written(folder, form.layers, shape=shape, model=form.model, optimizer=form.optimizer)
    options = {**form.options, **memory.options}
    try:
        graph = build_training_phases(model_of(path, Settings(**form.options))).mini_batch
        options["homes"] = (*options.get("homes", ()), *memory.homes(graph))
        functional = run_model(path, Settings(**options), iterations=2).summary["functional"]
    except PulptrainError as error:
        word = "refused" if error.exit_code in (2, 3) else "wrong"
        return f"{word} {error.exit_code}: {str(error).splitlines()[0]}"
    return "right" if functional["passed"] else "not decidable"
