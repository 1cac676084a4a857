# SPDX-License-Identifier: Apache-2.0
"""Defects between the model file and the graph: what is read, built or fed is not what the user gave.

Machine and references agree about them, since both have the graph: only PyTorch's side can tell, which reads
the model by itself (`truth`). Each is a patch of the reading or the building, and a model that shows it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any
from unittest.mock import patch

from alarm.trial import REFUSED, SURVIVED
from configs.errors import PulptrainError, WrongNumbersError
from configs.values import replace
from pulptrain.inputs.settings import Settings
from pulptrain.running import session
from trainlib.primitives.lowering import dequantised
from trainlib.primitives.optimizers import gradient_steps
from trainlib.training import builder, loss_terms, training_data
from trainlib.training import phases as training

Patch = Callable[[], AbstractContextManager[Any]]

IMAGE, SEQUENCE, VECTOR = "[4, 6, 6]", "[5, 6]", "[8]"
SGD = "name: sgd, learning_rate: 0.05"
CONV = "type: conv2d, out_channels: 4, kernel: 3"
BRANCHES = (
    "name: a, type: linear, out_features: 4",
    "name: b, type: linear, out_features: 4, inputs: [input]",
)
PAIR = ("name: a, type: linear, out_features: 6", "name: b, type: linear, out_features: 4")


@dataclass(frozen=True)
class GraphDefect:
    """A patch, and the layers, input and optimizer of a small model that it changes."""

    patch: Patch
    layers: tuple[str, ...]
    shape: str = VECTOR
    optimizer: str = SGD
    more: str = "loss: mse\nbatch: 2\n"
    dataset: str = "random"

    @property
    def text(self) -> str:
        lines = "".join(f"  - {{{layer}}}\n" for layer in self.layers)
        return (
            f"name: given\ninput: {{shape: {self.shape}}}\ndataset: {self.dataset}\n"
            f"optimizer: {{{self.optimizer}}}\n{self.more}layers:\n{lines}"
        )


def _around(module: Any, name: str, change: Callable[..., Any]) -> Patch:
    """The function `name` of a module, in whose place `change(original, *arguments)` is called."""
    original = getattr(module, name)
    return lambda: patch.object(module, name, lambda *given, **more: change(original, *given, **more))


def _option(kind: str, key: str, change: Callable[[Any], Any]) -> Patch:
    """Another value of an option of a type of layer."""

    def changed(original: Callable[..., Any], spec: Any, primitive: Any) -> dict[str, Any]:
        found: dict[str, Any] = original(spec, primitive)
        return found | {key: change(found[key])} if spec.type == kind else found

    return _around(builder, "layer_options", changed)


def _loss(text: str, last: str = "", **wrong: Any) -> GraphDefect:
    """Other options of a loss, of a model that may end with a layer of its own."""
    changed = _around(loss_terms, "loss_options", lambda original, *given: original(*given) | wrong)
    layers = (*PAIR, f"name: end, type: {last}") if last else PAIR
    return GraphDefect(changed, layers, more=f"loss: {{name: {text}}}\nbatch: 8\n")


def _optimizer(change: Callable[[dict[str, Any]], Mapping[str, Any]]) -> Patch:
    return _around(
        training, "optimizer_options", lambda original, *given: (found := original(*given)) | change(found)
    )


def _gradients(**new: Any) -> Patch:
    return _around(training, "gradient_options", lambda original, spec: original(spec).model_copy(update=new))


def _read(change: Callable[[Any], Any]) -> Patch:
    """Another reading of the model file."""
    return _around(session, "load_model", lambda original, *given: change(original(*given)))


def _layers(change: Callable[[Any], Any]) -> Patch:
    return _read(lambda spec: replace(spec, layers=tuple(change(layer) for layer in spec.layers)))


def _wired(change: Callable[[Any, list[str]], list[str]]) -> Patch:
    """Other inputs of layers."""
    return _around(
        builder.GraphBuilder,
        "add_layer",
        lambda original, self, spec, inputs: original(self, spec, change(spec, list(inputs))),
    )


def _ops(name: str, step: str, change: Callable[[Any], Any]) -> Patch:
    """Other ops of a step between gradients and update."""

    def changed(original: Callable[..., Any], *given: Any) -> Any:
        made = original(*given)
        graphs = made if isinstance(made, tuple) else (made,)
        found = tuple(
            replace(graph, ops=tuple(change(op) if op.step == step else op for op in graph.ops))
            for graph in graphs
        )
        return found if isinstance(made, tuple) else found[0]

    return _around(gradient_steps, name, changed)


def _without_last_update(original: Any, self: Any, optimizer: Any, options: Any, gradients: Any, *more: Any):
    return original(self, optimizer, options, dict(list(gradients.items())[:-1]), *more)


def _begun(graph: Any, kept: dict[str, Any]) -> dict[str, Any]:
    moved = [name for name in graph.of_kind("optimizer_state") if kept[name].dtype.kind == "f"]
    return kept | {name: kept[name] + kept[name].dtype.type(0.05) for name in moved}


def _other_masks(original: Any, *given: Any) -> dict[str, Any]:
    return {name: 1 - mask for name, mask in original(*given).items()}


def _reversed(padding: list[int]) -> list[int]:
    up, down, left, right = padding
    return [down, up, right, left]


FLAT = ("name: flat, type: flatten", "name: fc, type: linear, out_features: 3")
NORMED = (f"name: conv, {CONV}", "name: norm, type: batch_norm", *FLAT)
DROPPED = (PAIR[0], "name: drop, type: dropout, p: 0.2", PAIR[1])
JOINED = (*BRANCHES, "name: both, type: concat, inputs: [a, b]", "name: c, type: linear, out_features: 2")
CLASSES = "loss: cross_entropy\nbatch: 2\n"
STORED = (PAIR[0], f"{PAIR[1]}, trainable: false, frozen_weights: int8")
DIGITS = ("name: flat, type: flatten", "name: fc, type: linear, out_features: 10")


def _convolution(options: str, shape: str = IMAGE) -> dict[str, Any]:
    return {"layers": (f"name: conv, {CONV}, {options}", *FLAT), "shape": shape}


def _between(layer: str) -> dict[str, Any]:
    """Two linear layers with another between them."""
    return {"layers": (PAIR[0], f"name: x, {layer}", PAIR[1])}


GRAPH_DEFECTS: dict[str, GraphDefect] = {
    # Those of the first review.
    "learning rate x 3": GraphDefect(_optimizer(lambda o: {"learning_rate": 3 * o["learning_rate"]}), PAIR),
    "Adam's second decay is its first": GraphDefect(
        _optimizer(lambda o: {"beta2": o["beta1"]}), PAIR, optimizer="name: adam, learning_rate: 0.01"
    ),
    "sides of an asymmetric padding swapped": GraphDefect(
        _option("conv2d", "padding", _reversed), **_convolution("padding: [0, 1, 0, 1]")
    ),
    "last weight without an update": GraphDefect(
        _around(builder.GraphBuilder, "update", _without_last_update), PAIR
    ),
    "dropout keeps with p": GraphDefect(_around(training_data, "random_tensors", _other_masks), DROPPED),
    "dropout scales by 1 / p": GraphDefect(_option("dropout", "p", lambda p: 1 - p), DROPPED),
    "accumulation sums instead of averaging": GraphDefect(
        _ops(
            "accumulate_gradients",
            "ACCUMULATE",
            lambda op: replace(op, attributes={**op.attributes, "share": 1.0}),
        ),
        PAIR,
        optimizer=f"{SGD}, accumulate: 2",
    ),
    "common norm of the first gradient only": GraphDefect(
        _ops(
            "clip_gradients_by_norm",
            "SCALE",
            lambda op: replace(op, inputs=op.inputs[:1], reads=op.reads[:1]),
        ),
        PAIR,
        optimizer=f"{SGD}, clip_norm: 0.01",
    ),
    "alpha of an adapter ignored": GraphDefect(
        _layers(lambda layer: replace(layer, adapter=layer.adapter and replace(layer.adapter, alpha=2.0))),
        (f"{PAIR[0]}, adapter: {{rank: 2, alpha: 8}}", PAIR[1]),
    ),
    "alpha of an adapter inside attention ignored": GraphDefect(
        _layers(lambda layer: replace(layer, adapter=layer.adapter and replace(layer.adapter, alpha=2.0))),
        ("name: a, type: mhsa, heads: 2, adapter: {rank: 2, alpha: 8}",),
        SEQUENCE,
    ),
    "another projection has the adapter": GraphDefect(
        _layers(lambda layer: replace(layer, adapter=replace(layer.adapter, projections=("k", "v")))),
        ("name: a, type: mhsa, heads: 2, adapter: {rank: 2, projections: [q, v]}",),
        SEQUENCE,
    ),
    "a weight in 8 bits is stored as floats": GraphDefect(
        _layers(lambda layer: replace(layer, frozen_weights=None)), STORED
    ),
    "scales of the channels beside": GraphDefect(
        _around(dequantised, "in_floats", lambda original, codes, scales: original(codes, scales[::-1])),
        STORED,
    ),
    "one scale for all channels": GraphDefect(
        _around(dequantised, "in_floats", lambda original, codes, scales: original(codes, scales.max())),
        STORED,
    ),
    "a frozen weight is trained": GraphDefect(
        _layers(lambda layer: replace(layer, trainable=True)), (f"{PAIR[0]}, trainable: false", PAIR[1])
    ),
    "weight decay dropped": GraphDefect(
        _optimizer(lambda o: {"weight_decay": 0.0}), PAIR, optimizer=f"{SGD}, weight_decay: 0.1"
    ),
    "another mean of a batch norm is kept": GraphDefect(
        _option("batch_norm", "momentum", lambda m: 1 - m), NORMED, IMAGE
    ),
    # Convolutions and pools.
    "stride ignored": GraphDefect(_option("conv2d", "stride", lambda s: 1), **_convolution("stride: 2")),
    "rows and columns of a stride swapped": GraphDefect(
        _option("conv2d", "stride", lambda s: s[::-1]), **_convolution("stride: [1, 2]")
    ),
    "dilation ignored": GraphDefect(
        _option("conv2d", "dilation", lambda d: 1), **_convolution("dilation: 2, padding: 2")
    ),
    "groups ignored": GraphDefect(_option("conv2d", "groups", lambda g: 1), **_convolution("groups: 2")),
    "a bias left out": GraphDefect(_option("conv2d", "bias", lambda b: False), **_convolution("bias: true")),
    "padding of a pool ignored": GraphDefect(
        _option("max_pool2d", "padding", lambda p: 0),
        ("name: pool, type: max_pool2d, kernel: 3, stride: 3, padding: 1", *FLAT),
        "[2, 9, 9]",
    ),
    "padding counts in a mean": GraphDefect(
        _option("avg_pool2d", "count_include_pad", lambda c: not c),
        (
            f"name: conv, {CONV}",
            "name: pool, type: avg_pool2d, kernel: 2, padding: 1, count_include_pad: false",
            *FLAT,
        ),
        IMAGE,
    ),
    "stride of a pool is 1 where none is said": GraphDefect(
        _option("avg_pool2d", "stride", lambda s: 1),
        ("name: pool, type: avg_pool2d, kernel: 2", *FLAT),
        IMAGE,
    ),
    "nearest in place of bilinear": GraphDefect(
        _option("interpolation", "mode", lambda m: "nearest"),
        (f"name: conv, {CONV}", "name: up, type: interpolation, scale: 2, mode: bilinear", *FLAT),
        IMAGE,
    ),
    # Options of other layers.
    "eps of a norm": GraphDefect(
        _option("layer_norm", "eps", lambda e: 1e3 * e), **_between("type: layer_norm")
    ),
    "axes of a norm": GraphDefect(
        _option("layer_norm", "axes", lambda a: 1),
        ("name: norm, type: layer_norm, axes: 2, affine: false", "name: a, type: linear, out_features: 3"),
        SEQUENCE,
    ),
    "fixed statistics ignored": GraphDefect(
        _option("batch_norm", "fixed_statistics", lambda f: False),
        (NORMED[0], f"{NORMED[1]}, fixed_statistics: true", *FLAT),
        IMAGE,
    ),
    "slope of a leaky ReLU": GraphDefect(
        _option("leaky_relu", "slope", lambda s: 0.01), **_between("type: leaky_relu, slope: 0.2")
    ),
    "tanh form of a GELU": GraphDefect(_option("gelu", "form", lambda f: "tanh"), **_between("type: gelu")),
    "factor of a scale": GraphDefect(
        _option("scale", "factor", lambda f: 1 / f), **_between("type: scale, factor: 0.5")
    ),
    "a product not transposed": GraphDefect(
        _option("matmul", "transpose_b", lambda t: False),
        (
            "name: q, type: linear, out_features: 5",
            "name: k, type: linear, out_features: 5, inputs: [input]",
            "name: s, type: matmul, inputs: [q, k], transpose_b: true",
        ),
        SEQUENCE,
    ),
    "start of a slice": GraphDefect(
        _option("slice", "start", lambda s: s - 1), **_between("type: slice, start: 2, stop: 6")
    ),
    "same length of a slice from elsewhere": GraphDefect(
        _around(
            builder,
            "layer_options",
            lambda original, spec, primitive: (
                original(spec, primitive) | ({"start": 0, "stop": 4} if spec.type == "slice" else {})
            ),
        ),
        **_between("type: slice, start: 2, stop: 6"),
    ),
    "axes of a transposition": GraphDefect(
        _option("transpose", "axes", lambda a: [0, 2, 1]),
        ("name: turn, type: transpose, axes: [0, 1, 2]", *FLAT),
        "[4, 5, 5]",
    ),
    "gradient of the padding word": GraphDefect(
        _option("embedding", "padding_id", lambda p: None),
        ("name: table, type: embedding, vocabulary: 3, features: 4, padding_id: 1", *FLAT),
        "[6], classes: 3",
    ),
    "heads of an attention": GraphDefect(
        _option("mhsa", "heads", lambda h: 1), ("name: a, type: mhsa, heads: 2", *FLAT), SEQUENCE
    ),
    # What is connected with what.
    "order of a concatenation": GraphDefect(
        _wired(lambda spec, inputs: inputs[::-1] if spec.type == "concat" else inputs), JOINED
    ),
    "order of a subtraction": GraphDefect(
        _wired(lambda spec, inputs: inputs[::-1] if spec.type == "subtract" else inputs),
        (*BRANCHES, "name: c, type: subtract, inputs: [a, b]"),
    ),
    "a residual from another layer": GraphDefect(
        _layers(lambda layer: replace(layer, inputs=("c", "b")) if layer.type == "add" else layer),
        (
            *(f"name: {name}, type: linear, out_features: 4" for name in "abc"),
            "name: sum, type: add, inputs: [c, a]",
        ),
    ),
    "a layer left out": GraphDefect(
        _read(lambda spec: replace(spec, layers=spec.layers[:1] + spec.layers[2:])), **_between("type: relu")
    ),
    "the other output of a split": GraphDefect(
        _layers(lambda layer: replace(layer, inputs=("s.1", "s.0")) if layer.type == "subtract" else layer),
        (PAIR[0], "name: s, type: split, sizes: [3, 3]", "name: d, type: subtract, inputs: [s.0, s.1]"),
    ),
    # What is trained, how, and on what.
    "trains all where the last was said": GraphDefect(
        _read(lambda spec: replace(spec, train=None)), PAIR, more="loss: mse\ntrain: last\n"
    ),
    "trains other channels": GraphDefect(
        _layers(lambda layer: replace(layer, update_channels=layer.update_channels and (1, 3))),
        (f"{PAIR[0]}, update_channels: 2", PAIR[1]),
    ),
    "trains a bias that was not named": GraphDefect(
        _layers(lambda layer: replace(layer, trainable=True)),
        (f"{PAIR[0]}, bias: true, trainable: [weight]", PAIR[1]),
    ),
    "Nesterov's step ignored": GraphDefect(
        _optimizer(lambda o: {"nesterov": False}),
        PAIR,
        optimizer="name: sgd, learning_rate: 0.05, momentum: 0.9, nesterov: true",
    ),
    "momentum ignored": GraphDefect(
        _optimizer(lambda o: {"momentum": 0.0}), PAIR, optimizer=f"{SGD}, momentum: 0.9"
    ),
    "AdamW is Adam": GraphDefect(
        _read(lambda spec: replace(spec, optimizer=replace(spec.optimizer, name="adam", node=None))),
        PAIR,
        optimizer="name: adamw, learning_rate: 0.01, weight_decay: 0.5",
    ),
    "clipping left out": GraphDefect(
        _gradients(clip_value=None), PAIR, optimizer=f"{SGD}, clip_value: 0.001"
    ),
    "one mini-batch in place of two": GraphDefect(
        _gradients(accumulate=1), PAIR, optimizer=f"{SGD}, accumulate: 2"
    ),
    "another loss": GraphDefect(_read(lambda spec: replace(spec, loss=replace(spec.loss, name="l1"))), PAIR),
    "limit of a loss": _loss("berhu", alpha=0.5),
    "weight of a loss": _loss("mse, weight: 0.7", weight=1.0),
    "a sum in place of a mean": _loss("l1", reduction="sum"),
    "a mean over all in place of one over the samples": _loss(
        "kl_div, reduction: batchmean", "log_softmax", reduction="mean"
    ),
    "targets taken for their logarithms": _loss("kl_div", "log_softmax", log_target=True),
    "smoothing of labels": _loss("cross_entropy, labels: hard, label_smoothing: 0.2", label_smoothing=0.0),
    "weights of classes": _loss(
        "cross_entropy, labels: hard, class_weights: [1, 2, 3, 4]", class_weights=[1.0, 2.0, 4.0, 3.0]
    ),
    "a label that does not count": _loss("nll, ignore_index: 1", "log_softmax", ignore_index=None),
    "limit of huber": _loss("huber, delta: 0.3", delta=0.5),
    "limit of smooth l1": _loss("smooth_l1, beta: 0.3", beta=0.5),
    "weight of the positive": _loss("bce_with_logits, pos_weight: 3", pos_weight=1.0),
    "weights of elements": _loss("bce, element_weights: [1, 2, 3, 4]", "sigmoid", element_weights=1.0),
    "margin": _loss("hinge_embedding, margin: 0.3", margin=0.5),
    "margin of classes": _loss("multi_margin, margin: 0.3", margin=0.5),
    "power of a margin": _loss("multi_margin, p: 2", p=1),
    "a rate in place of its logarithm": _loss("poisson_nll", "sigmoid", log_input=False),
    "the constant of a likelihood": _loss("poisson_nll, full: true", full=False),
    "reduction of an angle": _loss("cosine, reduction: sum", reduction="mean"),
    "reduction of a soft margin": _loss("soft_margin, reduction: sum", reduction="mean"),
    "weight of an output": _loss("output, weight: 0.5", weight=1.0),
    "labels one class further on": GraphDefect(
        _around(
            training_data,
            "label_array",
            lambda original, label, plan, **more: original((label + 1) % 10, plan, **more),
        ),
        DIGITS,
        "[1, 8, 8]",
        more=CLASSES,
        dataset="digits",
    ),
    "states of an optimizer begin at another number": GraphDefect(
        _around(
            session, "initial_weights", lambda original, graph, seed: _begun(graph, original(graph, seed))
        ),
        PAIR,
        optimizer="name: adam, learning_rate: 0.01",
    ),
    "samples in another order": GraphDefect(
        _around(training_data, "sample_order", lambda original, *given: original(*given)[::-1]),
        DIGITS,
        "[1, 8, 8]",
        more=CLASSES,
        dataset="digits",
    ),
    "samples of another seed": GraphDefect(
        _around(
            session, "sample_stream", lambda original, graph, spec, seed, own: original(graph, spec, 1, own)
        ),
        PAIR,
    ),
    "half of the batch": GraphDefect(_read(lambda spec: replace(spec, batch=1)), PAIR),
    "format of a layer ignored": GraphDefect(
        _layers(lambda layer: replace(layer, dtype=None)), (f"{PAIR[0]}, dtype: fp16", PAIR[1])
    ),
}
"""By what is wrong."""


@cache
def _path(text: str) -> str:
    path = Path(mkdtemp(prefix="pulptrain-alarm-")) / "given.yaml"
    path.write_text(text)
    return str(path)


@cache
def _is_right(text: str) -> None:
    """Raise `PulptrainError` for a false alarm."""
    outcome = session.run_model(_path(text))
    assert outcome.summary["functional"]["passed"] is True, outcome.summary["functional"]


def tried(defect: GraphDefect) -> tuple[str, str]:
    """(verdict, why) of a run with a defect; refused is what the number check refuses.

    One iteration shows all but a wrong state of an optimizer: that is seen in the weights of the next.
    """
    _is_right(defect.text)
    checked = ""
    with defect.patch():
        for iterations in (1, 3):
            try:
                outcome = session.run_model(_path(defect.text), Settings(), iterations=iterations)
                checked = outcome.summary["functional"]["checked_against"]
            except WrongNumbersError as error:
                return REFUSED, str(error).splitlines()[0]
            except PulptrainError as error:
                return SURVIVED, f"no run: {str(error).splitlines()[0]}"
    return SURVIVED, checked
