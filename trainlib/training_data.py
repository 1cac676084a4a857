# SPDX-License-Identifier: Apache-2.0
"""Samples of a training run: the digits split, its order per epoch, and random stand-ins."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

import numpy as np

from configs.datasets import DIGITS_PIXEL_MAX, load_digits_arrays
from configs.errors import ShapeError
from configs.model_file import ModelSpec
from trainlib.graph import TrainingGraph
from trainlib.numerics import rounded
from trainlib.options import loss_options
from trainlib.primitives.definition import LabelPlan
from trainlib.registry import loss_primitive
from trainlib.steps import Array
from trainlib.training import initial_weights

DIGITS_TRAINING_SAMPLES = 1500
"""Samples that train; the remaining 297 test."""

DIGITS_SPLIT_SEED = 0
"""Seed of the one permutation that splits the digits; fixed, so that every run tests the same 297 samples.

Without it the test set would be the tail of the file, which is harder: digits-cnn then ends between 86 and
90 % after two epochs instead of between 94 and 98 % (six seeds each, learning rate 0.01).
"""


@dataclass(frozen=True, slots=True)
class Split:
    """Images [n, *input shape] fp32 and integer classes [n], for training and for testing."""

    train_images: Array
    train_classes: Array
    test_images: Array
    test_classes: Array


def digits_split() -> Split:
    """UCI handwritten digits as 1x8x8 fp32 images in 0..1: 1500 to train and 297 to test, drawn at random.

    The draw is fixed (`DIGITS_SPLIT_SEED`) and independent of the seed of a run.
    """
    images, classes = load_digits_arrays()
    order = np.random.default_rng(DIGITS_SPLIT_SEED).permutation(len(images))
    train, test = order[:DIGITS_TRAINING_SAMPLES], order[DIGITS_TRAINING_SAMPLES:]
    scaled = images.reshape(-1, 1, 8, 8).astype(np.float32) / np.float32(DIGITS_PIXEL_MAX)
    labels = classes.astype(np.int64)
    return Split(scaled[train], labels[train], scaled[test], labels[test])


def one_hot(label: int, shape: tuple[int, ...]) -> Array:
    """Target of class `label`: fp32 zeros of `shape` with a one at that (flat) place."""
    target = np.zeros(shape, dtype=np.float32)
    target.reshape(-1)[label] = 1
    return target


def sample_order(samples: int, seed: int, epoch: int) -> Array:
    """Permutation of 0..samples-1 in which an epoch visits the samples."""
    return np.random.default_rng([seed, epoch]).permutation(samples)


def sample_stream(graph: TrainingGraph, spec: ModelSpec, seed: int) -> Iterator[dict[str, Array]]:
    """Endless values of the fed tensors (input, label, random masks), the same for the same seed.

    Dataset ``digits``: the training samples, each epoch in a new order, the next batch of them at a time.
    Dataset ``random``: inputs uniform in -1..1 (or random words); a random class for a classifying loss, else
    a target uniform in -1..1. Raises ShapeError if the network does not take the dataset's images or has too
    few outputs for its classes.
    """
    loss = loss_primitive(spec.loss.name)
    labels = loss.plan(loss_options(spec.loss, loss), graph.tensors[graph.output], spec.where)
    if spec.dataset == "digits":
        _check_digits(graph, spec, labels)
        samples = _digits_samples(labels, seed)
    else:
        samples = _random_samples(graph, spec, labels, seed)
    return _batches(graph, samples, seed)


def _batches(
    graph: TrainingGraph, samples: Iterator[tuple[Array, Array]], seed: int
) -> Iterator[dict[str, Array]]:
    batch = graph.tensors[graph.input].shape[0]
    for iteration in count():
        drawn = [next(samples) for _ in range(batch)]
        values = {graph.input: np.stack([image for image, _ in drawn])}
        if graph.label:
            values[graph.label] = np.stack([label for _, label in drawn])
        yield {**values, **random_tensors(graph, seed, iteration)}


def random_tensors(graph: TrainingGraph, seed: int, iteration: int) -> dict[str, Array]:
    """Values of the random tensors (dropout masks) in an iteration; each has a generator of its own."""
    values: dict[str, Array] = {}
    for name, draw in graph.draws.items():
        generator = np.random.default_rng([seed, iteration, zlib.crc32(name.encode())])
        tensor = graph.tensors[name]
        values[name] = rounded(np.asarray(draw.draw(generator, tensor.shape)), tensor.dtype)
    return values


def label_array(label: int, plan: LabelPlan) -> Array:
    """One sample's class label as the loss wants it: its number (int32, no dimension), or one-hot fp32."""
    if plan.hard:
        return np.array(label, dtype=np.int32)
    return one_hot(label, plan.shape[1:])


def _check_digits(graph: TrainingGraph, spec: ModelSpec, labels: LabelPlan) -> None:
    input_shape, label_shape = graph.tensors[graph.input].shape[1:], labels.shape[1:]
    split = digits_split()
    if input_shape != split.train_images.shape[1:]:
        raise ShapeError(
            f"the digits are 1x8x8 images, the network takes {input_shape}",
            where=spec.where,
            cure="input: [1, 8, 8], or dataset: random",
        )
    classes = int(split.train_classes.max()) + 1
    outputs = labels.classes if labels.hard else int(np.prod(label_shape))
    if outputs < classes:
        raise ShapeError(
            f"the digits have {classes} classes, the network has output shape {label_shape}",
            where=spec.where,
            cure=f"{classes} outputs in the last layer, or dataset: random",
        )


def _digits_samples(labels: LabelPlan, seed: int) -> Iterator[tuple[Array, Array]]:
    split = digits_split()
    for epoch in count():
        for index in sample_order(len(split.train_images), seed, epoch):
            yield split.train_images[index], label_array(int(split.train_classes[index]), labels)


def _random_samples(
    graph: TrainingGraph, spec: ModelSpec, labels: LabelPlan, seed: int
) -> Iterator[tuple[Array, Array]]:
    shape = graph.tensors[graph.input].shape[1:]
    generator = np.random.default_rng([seed, 1])
    while True:
        if spec.input_classes:
            image = generator.integers(spec.input_classes, size=shape).astype(np.int32)
        else:
            image = generator.uniform(-1, 1, shape).astype(np.float32)
        if labels.classes:
            yield image, label_array(int(generator.integers(labels.classes)), labels)
        else:
            yield image, generator.uniform(-1, 1, labels.shape[1:]).astype(np.float32)


def initial_values(graph: TrainingGraph, spec: ModelSpec, seed: int) -> dict[str, Array]:
    """Values of the first iteration: start of all kept tensors, and the first values of the stream."""
    return {**next(sample_stream(graph, spec, seed)), **initial_weights(graph, seed)}
