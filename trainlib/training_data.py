"""Samples of a training run: the digits split, its order per epoch, and random stand-ins."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from configs.datasets import DIGITS_PIXEL_MAX, load_digits_arrays
from configs.errors import ShapeError
from configs.model_file import ModelSpec
from trainlib.graph import TrainingGraph
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


def sample_stream(graph: TrainingGraph, spec: ModelSpec, seed: int) -> Iterator[tuple[Array, Array]]:
    """Endless (input, label) pairs, shapes as the graph's tensors, fp32, the same for the same seed.

    Dataset ``digits``: the training samples, each epoch in a new order. Dataset ``random``: inputs uniform in
    -1..1; a random class for a classifying loss, else a target uniform in -1..1. Raises ShapeError if the
    network does not take the dataset's images or has too few outputs for its classes.
    """
    input_shape, label_shape = graph.tensors[graph.input].shape, graph.tensors[graph.label].shape
    if spec.dataset == "digits":
        return _digits_stream(input_shape, label_shape, spec.where, seed)
    return _random_stream(input_shape, label_shape, loss_primitive(spec.loss).label_is_class, seed)


def _digits_stream(
    input_shape: tuple[int, ...], label_shape: tuple[int, ...], where: str, seed: int
) -> Iterator[tuple[Array, Array]]:
    split = digits_split()
    if input_shape != split.train_images.shape[1:]:
        raise ShapeError(
            f"the digits are 1x8x8 images, the network takes {input_shape}",
            where=where,
            cure="input: [1, 8, 8], or dataset: random",
        )
    classes = int(split.train_classes.max()) + 1
    if int(np.prod(label_shape)) < classes:
        raise ShapeError(
            f"the digits have {classes} classes, the network has output shape {label_shape}",
            where=where,
            cure=f"{classes} outputs in the last layer, or dataset: random",
        )
    return _digits_samples(split, label_shape, seed)


def _digits_samples(split: Split, label_shape: tuple[int, ...], seed: int) -> Iterator[tuple[Array, Array]]:
    epoch = 0
    while True:
        for index in sample_order(len(split.train_images), seed, epoch):
            yield split.train_images[index], one_hot(int(split.train_classes[index]), label_shape)
        epoch += 1


def _random_stream(
    input_shape: tuple[int, ...], label_shape: tuple[int, ...], label_is_class: bool, seed: int
) -> Iterator[tuple[Array, Array]]:
    generator = np.random.default_rng([seed, 1])
    while True:
        image = generator.uniform(-1, 1, input_shape).astype(np.float32)
        if label_is_class:
            yield image, one_hot(int(generator.integers(np.prod(label_shape))), label_shape)
        else:
            yield image, generator.uniform(-1, 1, label_shape).astype(np.float32)


def initial_values(graph: TrainingGraph, spec: ModelSpec, seed: int) -> dict[str, Array]:
    """Values of the first iteration: initial weights, and the first input and label of the stream."""
    image, label = next(sample_stream(graph, spec, seed))
    return {graph.input: image, graph.label: label, **initial_weights(graph, seed)}
