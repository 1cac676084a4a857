# SPDX-License-Identifier: Apache-2.0
"""Samples a network is trained on and tested with: of a data set that ships, made up, or the user's own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from configs.datasets import DIGITS_PIXEL_MAX, load_digits_arrays
from configs.errors import InputError
from configs.suggest import check_known
from configs.values import Struct
from trainlib.ir.steps import Array

DIGITS_TRAINING_SAMPLES = 1500
"""Samples that train; the remaining 297 test."""

DIGITS_SPLIT_SEED = 0
"""Seed of the one permutation that splits the digits; fixed, so that every run tests the same 297 samples.

Without it the test set would be the tail of the file, which is harder: digits-cnn then ends between 86 and
90 % after two epochs instead of between 94 and 98 % (six seeds each, learning rate 0.01).
"""

SEQUENCE_TRAINING_SAMPLES, SEQUENCE_TEST_SAMPLES = 1024, 256
"""How many sequences are made up."""

SEQUENCE_SEED = 0
"""Of the sequences: independent of the seed of a run."""

SEQUENCE_NOISE = 0.3
"""Standard deviation of the noise on values of about 1, and the share of tokens that are any."""

NAMES = (("x", "y"), ("x_train", "y_train"))
"""What arrays of samples and labels may be called; x_test and y_test may stand beside them."""


Arrays = Array | Mapping[str, Array]
"""The array of the only input or label of a model, or one of each by its name."""


class Samples(Struct, frozen=True):
    """Inputs [n, *input shape] and labels [n, ...] to train on, and those to test with (none: empty).

    A label is the number of a class, or a target of the shape the loss wants.
    """

    train_inputs: Arrays
    train_labels: Arrays
    test_inputs: Arrays
    test_labels: Arrays
    name: str = ""


def are_classes(labels: Array) -> bool:
    """Whether labels are numbers of classes."""
    return labels.ndim == 1 and np.issubdtype(labels.dtype, np.integer)


def by_name(given: Any, names: Sequence[str], where: str) -> dict[str, Array]:
    """Arrays by these names, given so, in their order, or the only one by itself. Raises InputError."""
    if isinstance(given, Mapping):
        named = dict(given)
    elif len(names) == 1:
        named = {names[0]: given}
    elif isinstance(given, tuple | list) and len(given) == len(names):
        named = dict(zip(names, given, strict=True))
    else:
        named = {} if given is None else {"one": given}
    if named.keys() != set(names):
        raise InputError(
            f"the model needs the arrays {_listed(names)}; the data has {_listed(sorted(map(str, named)))}",
            where=where,
            cure="pass one array for each name, in this order in a tuple, or in a dictionary",
        )
    return {name: np.asarray(named[name]) for name in names}


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names) or "none"


@cache
def digits_split() -> Samples:
    """UCI handwritten digits as 1x8x8 fp32 images in 0..1: 1500 to train and 297 to test, drawn at random.

    The draw is fixed (`DIGITS_SPLIT_SEED`) and independent of the seed of a run.
    """
    images, classes = load_digits_arrays()
    order = np.random.default_rng(DIGITS_SPLIT_SEED).permutation(len(images))
    train, test = order[:DIGITS_TRAINING_SAMPLES], order[DIGITS_TRAINING_SAMPLES:]
    scaled = images.reshape(-1, 1, 8, 8).astype(np.float32) / np.float32(DIGITS_PIXEL_MAX)
    labels = classes.astype(np.int64)
    return Samples(scaled[train], labels[train], scaled[test], labels[test], "digits")


def sequences(shape: tuple[int, ...], classes: int, tokens: int) -> Samples:
    """Made-up sequences of a class each: (L, C) noisy waves, or (L,) tokens below `tokens`.

    A wave of class k runs through k + 1 periods in L steps, begins at any phase and is shifted from channel
    to channel. From token to token of class k it goes k + 1 further, round and round. Drawn once for all
    seeds.
    """
    generator = np.random.default_rng([SEQUENCE_SEED, *shape, classes, tokens])
    count = SEQUENCE_TRAINING_SAMPLES + SEQUENCE_TEST_SAMPLES
    labels = generator.integers(classes, size=count)
    if tokens:
        length = shape[0]
        starts = generator.integers(tokens, size=(count, 1))
        inputs = (starts + (labels[:, None] + 1) * np.arange(length)) % tokens
        noisy = generator.random((count, length)) < SEQUENCE_NOISE
        inputs = np.where(noisy, generator.integers(tokens, size=(count, length)), inputs).astype(np.int32)
    else:
        length, channels = shape
        steps = np.arange(length)[None, :, None] / length
        phases = generator.random((count, 1, 1)) + np.arange(channels)[None, None, :] / (2 * channels)
        waves = np.sin(2 * np.pi * ((labels[:, None, None] + 1) * steps + phases))
        inputs = (waves + SEQUENCE_NOISE * generator.standard_normal(waves.shape)).astype(np.float32)
    train = slice(SEQUENCE_TRAINING_SAMPLES)
    test = slice(SEQUENCE_TRAINING_SAMPLES, None)
    return Samples(inputs[train], labels[train], inputs[test], labels[test], "sequences")


TEST = "_test"
"""What the names of arrays to test with end in."""


def own_samples(
    arrays: Mapping[str, Array], where: str, fed: Sequence[str] = (), targets: Sequence[str] = ()
) -> Samples:
    """The user's arrays ``x, y`` (or ``x_train, y_train``) and, if they are there, ``x_test, y_test``.

    Or those of a model that is `fed` so and has such `targets`: ``left, right, label``, ``left_test`` ...
    Raises `InputError` for a missing array and for samples and labels of different number.
    """
    train = next((names for names in NAMES if arrays.keys() >= {*names}), None)
    if (train is None or len(fed) > 1) and arrays.keys() & {*fed}:
        return _named_samples(arrays, where, fed, targets)
    if train is None:
        raise InputError(
            f"{' and '.join(sorted({'x', 'y'} - arrays.keys())) or 'x'} is missing; the file has "
            f"{', '.join(sorted(arrays)) or 'no arrays'}",
            where=where,
            cure="store training data in x and y, and optionally test data in x_test and y_test",
        )
    test = ("x_test", "y_test")
    for name in arrays:
        check_known(name, (*train, *test), f"unknown array {name!r}", where)
    if (test[0] in arrays) != (test[1] in arrays):
        raise InputError("x_test or y_test is missing", where=where, cure="store both arrays, or neither")
    inputs, labels = arrays[train[0]], arrays[train[1]]
    # One number has no axis to take none of: of that the shape is wrong.
    no_inputs, no_labels = np.atleast_1d(inputs)[:0], np.atleast_1d(labels)[:0]
    test_inputs, test_labels = arrays.get(test[0], no_inputs), arrays.get(test[1], no_labels)
    for one, other, names in ((inputs, labels, train), (test_inputs, test_labels, test)):
        if one.ndim < 1 or other.ndim < 1 or len(one) != len(other):
            raise InputError(
                f"{names[0]} has shape {one.shape}, but {names[1]} has {other.shape}",
                where=where,
                cure="use as many labels as samples",
            )
    if not len(inputs):
        raise InputError("the data has no samples", where=where, cure="use one sample or more")
    return Samples(inputs, labels, test_inputs, test_labels, where)


def _named_samples(
    arrays: Mapping[str, Array], where: str, fed: Sequence[str], targets: Sequence[str]
) -> Samples:
    expected = (*fed, *targets)
    names = (*expected, *(f"{name}{TEST}" for name in expected))
    for name in arrays:
        check_known(name, names, f"unknown array {name!r}", where)
    for end in ("", TEST):
        lengths = {
            f"{name}{end}": arrays[f"{name}{end}"].shape[:1] for name in expected if f"{name}{end}" in arrays
        }
        if len(set(lengths.values())) > 1 or () in lengths.values() or (not end and (0,) in lengths.values()):
            text = ", ".join(f"{name} {'x'.join(map(str, shape))}" for name, shape in lengths.items())
            raise InputError(
                f"the arrays have different lengths: {text}",
                where=where,
                cure="use arrays with one row per sample",
            )

    def part(names: Sequence[str], end: str) -> dict[str, Array]:
        return {name: arrays[f"{name}{end}"] for name in names if f"{name}{end}" in arrays}

    return Samples(part(fed, ""), part(targets, ""), part(fed, TEST), part(targets, TEST), where)


def endless(pairs: Iterable[tuple[Any, Any]], where: str) -> Iterator[tuple[Any, Any]]:
    """(input, label) one after the other, from the beginning again where they end.

    Raises `InputError` for what is no pair, and where nothing is left: a generator ends once and for all.
    """
    count = 0
    while True:
        before = count
        for item in pairs:
            try:
                one, label = item
            except (TypeError, ValueError):
                cure = "pass pairs (x, y)"
                raise InputError(f"sample {count} is not a pair", where=where, cure=cure) from None
            count += 1
            yield one, label
        if count == before:
            raise InputError(
                f"the iterator ends after {count} samples, but the run needs more",
                where=where,
                cure="pass a list (it can be read again), or an iterator with more samples",
            )
