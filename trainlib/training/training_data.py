# SPDX-License-Identifier: Apache-2.0
"""The values of every iteration: samples in the order of their epoch, or random ones, and random masks."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping
from itertools import count
from typing import Any

import numpy as np

from configs.errors import ShapeError
from configs.model_file import InputSpec, ModelSpec
from trainlib.ir.graph import TrainingGraph
from trainlib.ir.numerics import rounded
from trainlib.ir.steps import Array
from trainlib.primitives.definition import LabelPlan
from trainlib.registry import loss_primitive
from trainlib.training.options import loss_options
from trainlib.training.samples import Samples, are_classes, by_name, digits_split, endless, sequences


def one_hot(label: int, shape: tuple[int, ...]) -> Array:
    """Target of class `label`: fp32 zeros of `shape` with a one at that (flat) place."""
    target = np.zeros(shape, dtype=np.float32)
    target.reshape(-1)[label] = 1
    return target


def sample_order(samples: int, seed: int, epoch: int) -> Array:
    """Permutation of 0..samples-1 in which an epoch visits the samples."""
    return np.random.default_rng([seed, epoch]).permutation(samples)


def samples_of(spec: ModelSpec, given: Samples | None = None) -> Samples | None:
    """The samples of a model's data set: `given` by the user, None where they are made up one by one.

    Raises `ShapeError` for sequences that are none.
    """
    if given is not None or spec.dataset not in ("digits", "sequences"):
        return given
    if spec.dataset == "digits":
        return digits_split()
    wanted = 1 if spec.input_classes else 2
    if len(spec.input_shape) != wanted:
        raise ShapeError(
            f"the dataset 'sequences' needs inputs [length{', channels' * (wanted - 1)}], "
            f"not {list(spec.input_shape)}",
            where=spec.where,
            cure="change the input shape, or set dataset: random",
        )
    return sequences(spec.input_shape, SEQUENCE_CLASSES, spec.input_classes)


SEQUENCE_CLASSES = 4
"""Classes of the made-up sequences."""


def sample_stream(
    graph: TrainingGraph,
    spec: ModelSpec,
    seed: int,
    given: Samples | Iterable[tuple[Any, Any]] | None = None,
) -> Iterator[dict[str, Array]]:
    """Endless values of the fed tensors (input, label, random masks), the same for the same seed.

    With samples (`samples_of`, or `given`): those to train on, each epoch in a new order, the next batch of
    them at a time; pairs of the user are taken as they come. Dataset ``random``: inputs uniform in -1..1 (or
    random words); a random class for a classifying loss, else a target that its loss takes. Raises
    ShapeError if the network does not take the samples or has too few outputs for their classes.
    """
    plans = label_plans(graph, spec)
    if given is not None and not isinstance(given, Samples):
        return _batches(graph, (_checked_pair(spec, plans, pair) for pair in endless(given, "data")), seed)
    samples = samples_of(spec, given)
    if samples is not None:
        check_samples(graph, spec, samples)
        return _batches(graph, _in_epochs(spec, samples, plans, seed), seed)
    return _batches(graph, _random_samples(spec, plans, seed), seed)


def label_plans(graph: TrainingGraph, spec: ModelSpec) -> dict[str, LabelPlan]:
    """What the losses of a model want of every label, by its name."""
    plans: dict[str, LabelPlan] = {}
    for loss, output in zip(spec.losses, graph.outputs, strict=True):
        primitive = loss_primitive(loss.name)
        plan = primitive.plan(loss_options(loss, primitive), graph.tensors[output], loss.where or spec.where)
        if loss.label is not None and plan is not None:
            plans[loss.label] = plan
    return plans


def _batches(
    graph: TrainingGraph, samples: Iterator[Mapping[str, Array]], seed: int
) -> Iterator[dict[str, Array]]:
    batch = graph.tensors[graph.input].shape[0]
    for iteration in count():
        drawn = [next(samples) for _ in range(batch)]
        fed = (*graph.inputs, *graph.labels)
        values = {name: np.stack([sample[name] for sample in drawn]) for name in fed}
        yield {**values, **random_tensors(graph, seed, iteration)}


def random_tensors(graph: TrainingGraph, seed: int, iteration: int) -> dict[str, Array]:
    """Values of the random tensors (dropout masks) in an iteration; each has a generator of its own."""
    values: dict[str, Array] = {}
    for name, draw in graph.draws.items():
        generator = np.random.default_rng([seed, iteration, zlib.crc32(name.encode())])
        tensor = graph.tensors[name]
        values[name] = rounded(np.asarray(draw.draw(generator, tensor.shape)), tensor.dtype)
    return values


def label_array(label: Any, plan: LabelPlan, *, is_class: bool = True) -> Array:
    """One sample's label as the loss wants it: of a class its number (int32) or one-hot fp32, per place."""
    if not is_class and not plan.hard:
        return np.asarray(label).astype(np.float32)
    if plan.hard:
        return np.array(label, dtype=np.int32)
    if np.ndim(label):
        return np.moveaxis(np.eye(plan.classes, dtype=np.float32)[label], -1, 0)
    return one_hot(int(label), plan.shape[1:])


def check_samples(graph: TrainingGraph, spec: ModelSpec, samples: Samples) -> None:
    """Raise unless the network takes these samples and has an output for all their classes."""
    plans = label_plans(graph, spec)
    for inputs, targets in (
        (samples.train_inputs, samples.train_labels),
        (samples.test_inputs, samples.test_labels),
    ):
        if len(inputs):
            fed = by_name(inputs, _names(spec), samples.name)
            for item in spec.inputs:
                _check_inputs(spec, item, fed[item.name].shape[1:], fed[item.name], samples.name)
            for name, labels in by_name(targets, [*plans], samples.name).items():
                _check_labels(spec, plans[name], labels, samples.name, classes=are_classes(labels))


def _names(spec: ModelSpec) -> list[str]:
    return [item.name for item in spec.inputs]


def _check_inputs(spec: ModelSpec, item: InputSpec, shape: tuple[int, ...], values: Array, name: str) -> None:
    if tuple(shape) != item.shape:
        raise ShapeError(
            f"the samples of {name} have the shape {_text(shape)}, but the network needs {_text(item.shape)}",
            where=spec.where,
            cure=f"set the shape of input '{item.name}' to {list(shape)}, or use other samples",
        )
    if not np.issubdtype(values.dtype, np.number) or np.iscomplexobj(values):
        raise ShapeError(
            f"the samples of {name} have dtype {values.dtype}", where=spec.where, cure="use real numbers"
        )
    if item.classes and (
        not np.issubdtype(values.dtype, np.integer) or values.min() < 0 or values.max() >= item.classes
    ):
        raise ShapeError(
            f"the samples of {name} must be integers from 0 to {item.classes - 1}",
            where=spec.where,
            cure=f"use more classes for input '{item.name}', or other samples",
        )
    _check_finite(spec, values, f"the samples of {name}")


def _check_finite(spec: ModelSpec, values: Array, what: str) -> None:
    if not np.isfinite(values.astype(np.float32)).all():
        raise ShapeError(f"{what} have infinities or NaN", where=spec.where, cure="use finite numbers")


def _text(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape)) or "one number"


def _check_labels(spec: ModelSpec, labels: LabelPlan, targets: Array, name: str, *, classes: bool) -> None:
    shape = labels.shape[1:]
    numbers = np.issubdtype(targets.dtype, np.integer) and tuple(targets.shape[1:]) == shape
    if classes or (labels.hard and numbers):
        targets = targets[targets != labels.ignored] if labels.ignored is not None else targets
        needed = int(targets.max(initial=-1)) + 1
        outputs = labels.classes if labels.hard else int(np.prod(shape))
        if targets.min(initial=0) < 0 or outputs < needed:
            raise ShapeError(
                f"the labels of {name} go from {targets.min()} to {targets.max()}: {needed} classes are "
                f"needed, but the network has output shape {list(shape) or [outputs]}",
                where=spec.where,
                cure=f"use {needed} outputs in the last layer, or use other samples",
            )
    elif labels.hard or tuple(targets.shape[1:]) != shape:
        class_numbers = f"numbers of classes{f' of shape {list(shape)}' if shape else ''}"
        raise ShapeError(
            f"the labels of {name} have the shape {list(targets.shape[1:])} and dtype {targets.dtype}, but "
            f"the loss needs {class_numbers if labels.hard else list(shape)}",
            where=spec.where,
            cure="use integers for classes, or targets of that shape",
        )
    else:
        _check_finite(spec, targets, f"the labels of {name}")


def _checked_pair(spec: ModelSpec, plans: Mapping[str, LabelPlan], pair: tuple[Any, Any]) -> dict[str, Array]:
    """A pair of the user as the network wants it, by tensor."""
    fed, labels = by_name(pair[0], _names(spec), "data"), by_name(pair[1], [*plans], "data")
    for item in spec.inputs:
        _check_inputs(spec, item, fed[item.name].shape, fed[item.name], "data")
    for name, label in labels.items():
        _check_labels(spec, plans[name], label[None], "data", classes=are_classes(label[None]))
    return _as_fed(spec, plans, {**fed, **labels})


def _as_fed(spec: ModelSpec, plans: Mapping[str, LabelPlan], sample: Mapping[str, Array]) -> dict[str, Array]:
    """Inputs and labels of one sample in the formats of their tensors."""
    fed = {
        item.name: sample[item.name].astype(np.int32 if item.classes else np.float32) for item in spec.inputs
    }
    for name, plan in plans.items():
        fed[name] = label_array(sample[name], plan, is_class=are_classes(sample[name][None]))
    return fed


def _in_epochs(
    spec: ModelSpec, samples: Samples, plans: Mapping[str, LabelPlan], seed: int
) -> Iterator[dict[str, Array]]:
    fed = by_name(samples.train_inputs, _names(spec), samples.name)
    fed |= by_name(samples.train_labels, [*plans], samples.name)
    for epoch in count():
        for index in sample_order(len(fed[spec.input_name]), seed, epoch):
            yield _as_fed(spec, plans, {name: np.asarray(array[index]) for name, array in fed.items()})


def _random_samples(spec: ModelSpec, plans: Mapping[str, LabelPlan], seed: int) -> Iterator[dict[str, Array]]:
    generator = np.random.default_rng([seed, 1])
    while True:
        sample: dict[str, Array] = {}
        for item in spec.inputs:
            if item.classes:
                sample[item.name] = generator.integers(item.classes, size=item.shape).astype(np.int32)
            else:
                sample[item.name] = generator.uniform(-1, 1, item.shape).astype(np.float32)
        for name, plan in plans.items():
            if plan.classes:
                drawn = generator.integers(plan.classes, size=plan.places or None)
                sample[name] = label_array(drawn, plan)
            else:
                sample[name] = plan.values.draw(generator, plan.shape[1:]).astype(np.float32)
        yield sample
