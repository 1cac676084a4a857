# SPDX-License-Identifier: Apache-2.0
"""What the machine must be fed: samples and labels by their number in the data set, masks by their share.

Data sets are read here once more: the digits that ship, the arrays of a user. What is made up follows rules
that are written here again: an epoch visits its samples in the permutation of ``default_rng([seed, epoch])``;
`random` draws input and label in turn from ``default_rng([seed, 1])``; a mask keeps an element where
``default_rng([seed, number of the mini-batch, crc32 of its name])`` draws at least its share. Pairs from an
iterator that ends cannot be read a second time, so they are not compared (`Fed.skipped`).
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count, islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import configs
from truth.given import Given
from truth.network import Network
from truth.rates import options_of
from truth.steps import STARTS

Array = NDArray[Any]

Sample = tuple[str, Array, Array]
"""What it is, input and label as the data set has them."""

DIGITS = Path(configs.__file__).parent / "data" / "digits.npz"
DIGITS_TRAINING, DIGITS_WHITE = 1500, 16
"""Samples that train, and the largest value of a pixel."""

SEQUENCES, SEQUENCES_TRAINING, SEQUENCE_CLASSES, SEQUENCE_NOISE = 1280, 1024, 4, 0.3
"""Made-up sequences, those that train, their classes, and the noise on them."""


class Fed:
    """The values of input, label and masks of every mini-batch of a run, in their order.

    `data` is what the user gave in place of the model's data set; `fixed` are tensors whose values he gave.
    """

    def __init__(self, given: Given, seed: int, data: Any = None, fixed: Iterable[str] = ()) -> None:
        self._given, self._seed, self._fixed = given, seed, frozenset(fixed)
        self._output: tuple[int, ...] = ()
        self._drawn = 0
        self._samples = self._stream(data)
        self.skipped = "" if self._samples is not None else "samples come from an iterator: not compared"
        """Why samples are not compared, if they are not."""

    def started(self, kept: Mapping[str, Array]) -> dict[str, str]:
        """What of the `kept` tensors a run does not begin as it should: why, by tensor.

        States of an optimizer, sums of gradients and their counts begin at 0, or where `torch.optim` lets
        them; it goes on from them, so nothing else would tell.
        """
        said = self._given.optimizer
        found: dict[str, str] = {}
        for weight in Network(self._given).updated:
            starts = STARTS.get(str(said.get("name")), {})
            options = options_of(said, weight, ()) if starts else {}
            first = {
                f"{weight}.{end}": options.get(at, 0.0) if isinstance(at, str) else at
                for end, at in starts.items()
            }
            found |= {
                name: f"does not begin at {first.get(name, 0)}"
                for name, array in kept.items()
                if name.startswith(f"{weight}.")
                and name not in self._fixed
                and (np.asarray(array) != np.asarray(first.get(name, 0)).astype(array.dtype)).any()
            }
        return found

    def differences(self, number: int, fed: Mapping[str, Array], output: tuple[int, ...]) -> dict[str, str]:
        """What of mini-batch `number` (from 0) is not what it should be: why, by tensor.

        `output` is the shape of the network's output. Numbers must not go down.
        """
        self._output = output
        found = {name: why for name, why in self._masks(number, fed) if name not in self._fixed}
        if self._samples is None:
            return found
        batch = self._given.batch
        skipped, self._drawn = number * batch - self._drawn, (number + 1) * batch
        for row, (what, image, target) in enumerate(islice(self._samples, skipped, skipped + batch)):
            label = self._label(target)
            wanted = {"input": image.astype("int32" if self._given.classes else "float32"), "label": label}
            for name in wanted.keys() & fed.keys() - self._fixed:
                if not _same(fed[name][row], wanted[name]):
                    found.setdefault(name, f"row {row} of mini-batch {number} is not that of {what}")
        return found

    def _masks(self, number: int, fed: Mapping[str, Array]) -> Iterator[tuple[str, str]]:
        for part in Network(self._given).parts:
            for name in part.names(part.entry.masks):
                draws = np.random.default_rng([self._seed, number, zlib.crc32(name.encode())])
                kept = draws.random(fed[name].shape) >= part.options.get("p", 0.5)
                if not _same(fed[name].astype(np.float32), kept.astype(np.float32)):
                    share = f"{1 - float(kept.mean()):.0%}"
                    yield name, f"is not the mask of mini-batch {number}, which drops {share}"

    def _label(self, target: Array) -> Array:
        """A number of a class as the loss takes it: as it is, or as a 1 among zeros."""
        if target.ndim or not np.issubdtype(target.dtype, np.integer):
            return target.astype(np.float32)
        if self._loss.get("labels") == "hard":
            return target.astype(np.int32)
        one_hot = np.zeros(self._output[1:], np.float32)
        one_hot.reshape(-1)[int(target)] = 1
        return one_hot

    @property
    def _loss(self) -> Mapping[str, Any]:
        said = self._given.tree["loss"]
        return {"name": said} if isinstance(said, str) else said

    def _stream(self, data: Any) -> Iterator[Sample] | None:
        dataset = str(self._given.tree.get("dataset", "random"))
        if data is None and dataset == "random":
            return self._random()
        if data is None and dataset == "digits":
            return self._epochs(*_digits(), "the digits")
        if data is None and dataset == "sequences":
            return self._epochs(*self._made_up(), "the sequences")
        if data is None or isinstance(data, str):
            beside = self._given.folder / dataset
            path = Path(data) if data is not None else beside if beside.is_file() else Path(dataset)
            with np.load(path, allow_pickle=False) as archive:
                data = {name: archive[name] for name in archive.files}
        if isinstance(data, Mapping):
            names = ("x", "y") if "x" in data else ("x_train", "y_train")
            images, labels = (np.asarray(data[name]) for name in names)
            return self._epochs(images, labels, "the data")
        if hasattr(data, "train_inputs"):
            return self._epochs(data.train_inputs, data.train_labels, "the data")
        return self._pairs(data) if isinstance(data, Sequence) else None

    def _epochs(self, inputs: Array, labels: Array, name: str) -> Iterator[Sample]:
        for epoch in count():
            for index in np.random.default_rng([self._seed, epoch]).permutation(len(inputs)):
                yield f"number {index} of {name}", inputs[index], np.asarray(labels[index])

    def _pairs(self, pairs: Sequence[Any]) -> Iterator[Sample]:
        while True:
            for index, (image, label) in enumerate(pairs):
                yield f"pair {index} of the data", np.asarray(image), np.asarray(label)

    def _random(self) -> Iterator[Sample]:
        draws = np.random.default_rng([self._seed, 1])
        shape, words = tuple(self._given.tree["input"]["shape"]), self._given.classes
        image: Array
        label: Array
        for number in count():
            image = draws.integers(words, size=shape) if words else draws.uniform(-1, 1, shape)
            if self._loss["name"] == "cross_entropy":
                label = np.asarray(draws.integers(self._output[1]))
            else:
                label = draws.uniform(-1, 1, self._output[1:])
            yield f"number {number} of those made up", image, label

    def _made_up(self) -> tuple[Array, Array]:
        """Sequences of four classes: a wave of class k has k + 1 periods, a word is k + 1 behind the last."""
        shape, words = tuple(self._given.tree["input"]["shape"]), self._given.classes
        draws = np.random.default_rng([0, *shape, SEQUENCE_CLASSES, words])
        labels = draws.integers(SEQUENCE_CLASSES, size=SEQUENCES)
        speed = labels + 1
        inputs: Array
        if words:
            first = draws.integers(words, size=(SEQUENCES, 1))
            inputs = (first + speed[:, None] * np.arange(shape[0])) % words
            noisy = draws.random(inputs.shape) < SEQUENCE_NOISE
            inputs = np.where(noisy, draws.integers(words, size=inputs.shape), inputs)
        else:
            length, channels = shape
            phase = draws.random((SEQUENCES, 1, 1)) + np.arange(channels) / (2 * channels)
            turns = speed[:, None, None] * (np.arange(length)[:, None] / length) + phase
            inputs = np.sin(2 * np.pi * turns)
            inputs = (inputs + SEQUENCE_NOISE * draws.standard_normal(inputs.shape)).astype(np.float32)
        return inputs[:SEQUENCES_TRAINING], labels[:SEQUENCES_TRAINING]


def _digits() -> tuple[Array, Array]:
    """The 1,500 images that train, in 0..1: a fixed draw from all."""
    with np.load(DIGITS, allow_pickle=False) as archive:
        images, classes = archive["images"], archive["labels"]
    chosen = np.random.default_rng(0).permutation(len(images))[:DIGITS_TRAINING]
    scaled = images[chosen].reshape(-1, 1, 8, 8).astype(np.float32) / np.float32(DIGITS_WHITE)
    return scaled, classes[chosen].astype(np.int64)


def _same(ours: Array, wanted: Array) -> bool:
    return np.asarray(ours).dtype == wanted.dtype and np.array_equal(ours, wanted)
