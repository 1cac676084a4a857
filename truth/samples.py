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
from functools import cached_property
from itertools import count, islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import configs
from truth.network import Network
from truth.rates import options_of
from truth.source import Given
from truth.steps import CLASS_NUMBERS, STARTS, UNLABELLED

Array = NDArray[Any]

Sample = tuple[str, Mapping[str, Array]]
"""What it is, inputs and labels by name, as the data set has them."""

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
        self._outputs: tuple[tuple[int, ...], ...] = ()
        self._labels: dict[str, tuple[Mapping[str, Any], tuple[int, ...]]] = {}
        """The first loss that reads a label, and the shape of what it is of, by the name of the label."""
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
        started: dict[str, str] = {}
        for weight in Network(self._given).updated:
            starts = STARTS.get(str(said.get("name")), {})
            options = options_of(said, weight, ()) if starts else {}
            first = {
                f"{weight}.{end}": options.get(at, 0.0) if isinstance(at, str) else at
                for end, at in starts.items()
            }
            started |= {
                name: f"does not begin at {first.get(name, 0)}"
                for name, array in kept.items()
                if name.startswith(f"{weight}.")
                and name not in self._fixed
                and (np.asarray(array) != np.asarray(first.get(name, 0)).astype(array.dtype)).any()
            }
        return started

    def differences(
        self, number: int, fed: Mapping[str, Array], outputs: Sequence[tuple[int, ...]]
    ) -> dict[str, str]:
        """What of mini-batch `number` (from 0) is not what it should be: why, by tensor.

        `outputs` are the shapes of what the losses are of. Numbers must not go down.
        """
        if tuple(outputs) != self._outputs:
            self._outputs = tuple(outputs)
            pairs = list(zip(self._given.losses, outputs, strict=True))
            self._labels = {
                name: next(pair for pair in pairs if pair[0].get("label") == name)
                for name in self._label_names
            }
        reasons = {name: why for name, why in self._masks(number, fed) if name not in self._fixed}
        if self._samples is None:
            return reasons
        batch = self._given.batch
        skipped, self._drawn = number * batch - self._drawn, (number + 1) * batch
        for row, (what, sample) in enumerate(islice(self._samples, skipped, skipped + batch)):
            wanted = self._stored(sample)
            for name in wanted.keys() & fed.keys() - self._fixed:
                if not _same(fed[name][row], wanted[name]):
                    reasons.setdefault(name, f"row {row} of mini-batch {number} is not that of {what}")
        return reasons

    def _masks(self, number: int, fed: Mapping[str, Array]) -> Iterator[tuple[str, str]]:
        for name, share_dropped in self._dropping:
            draws = np.random.default_rng([self._seed, number, zlib.crc32(name.encode())])
            kept = draws.random(fed[name].shape) >= share_dropped
            if not _same(fed[name].astype(np.float32), kept.astype(np.float32)):
                share = f"{1 - float(kept.mean()):.0%}"
                yield name, f"is not the mask of mini-batch {number}, which drops {share}"

    @cached_property
    def _dropping(self) -> list[tuple[str, float]]:
        """(mask, share of its elements that is 0)."""
        return [
            (name, part.options.get("p", 0.5))
            for part in Network(self._given).parts
            for name in part.names(part.entry.masks)
        ]

    def _stored(self, sample: Mapping[str, Array]) -> dict[str, Array]:
        """A sample in the formats in which the machine is fed."""
        stored = {
            name: sample[name].astype(np.int32 if said.get("classes", 0) else np.float32)
            for name, said in self._given.fed.items()
        }
        for name, (loss, shape) in self._labels.items():
            stored[name] = self._label(sample[name], loss, shape)
        return stored

    def _label(self, target: Array, loss: Mapping[str, Any], shape: tuple[int, ...]) -> Array:
        """A number of a class as the loss takes it: as it is, or as a 1 among zeros."""
        if _by_number(loss):
            return target.astype(np.int32)
        if loss["name"] == "cross_entropy" and target.shape == shape[2:] and target.ndim:
            places = np.zeros(shape[1:], np.float32)
            np.put_along_axis(places, target[None], 1, axis=0)
            return places
        if target.ndim or target.dtype.kind not in "iu":
            return target.astype(np.float32)
        one_hot = np.zeros(shape[1:], np.float32)
        one_hot.reshape(-1)[int(target)] = 1
        return one_hot

    @property
    def _label_names(self) -> tuple[str, ...]:
        """Labels that a data set has, in the order of the losses that read them first."""
        read = (loss for loss in self._given.losses if loss["name"] not in UNLABELLED)
        return tuple(dict.fromkeys(loss["label"] for loss in read if loss.get("target") is None))

    def _stream(self, data: Any) -> Iterator[Sample] | None:
        dataset = str(self._given.tree.get("dataset", "random"))
        if data is None and dataset == "random":
            return self._random()
        if data is None and dataset in ("digits", "sequences"):
            shipped = _digits() if dataset == "digits" else self._generated()
            return self._epochs(self._arrays(shipped), f"the {dataset}")
        if data is None or isinstance(data, str):
            beside = self._given.folder / dataset
            path = Path(data) if data is not None else beside if beside.is_file() else Path(dataset)
            with np.load(path, allow_pickle=False) as archive:
                data = {name: archive[name] for name in archive.files}
        if isinstance(data, Mapping):
            for x, y in (("x", "y"), ("x_train", "y_train")):
                if {x, y} <= data.keys() and len(self._given.fed) == 1:
                    return self._epochs(self._arrays((data[x], data[y])), "the data")
            return self._epochs(data, "the data")
        if hasattr(data, "train_inputs"):
            return self._epochs(self._arrays((data.train_inputs, data.train_labels)), "the data")
        return self._pairs(data) if isinstance(data, Sequence) else None

    def _arrays(self, pair: tuple[Any, Any]) -> dict[str, Array]:
        """Inputs and labels of a pair, each part one array, several in order, or several by name."""
        told: dict[str, Array] = {}
        for part, names in zip(pair, (tuple(self._given.fed), self._label_names), strict=True):
            if isinstance(part, Mapping):
                told |= {name: np.asarray(part[name]) for name in names}
            elif len(names) == 1:
                told[names[0]] = np.asarray(part)
            else:
                told |= {name: np.asarray(item) for name, item in zip(names, part or (), strict=True)}
        return told

    def _epochs(self, arrays: Mapping[str, Any], name: str) -> Iterator[Sample]:
        columns = {key: np.asarray(arrays[key]) for key in (*self._given.fed, *self._label_names)}
        rows = len(columns[next(iter(self._given.fed))])
        for epoch in count():
            for index in np.random.default_rng([self._seed, epoch]).permutation(rows):
                sample = {key: np.asarray(column[index]) for key, column in columns.items()}
                yield f"number {index} of {name}", sample

    def _pairs(self, pairs: Sequence[Any]) -> Iterator[Sample]:
        while True:
            for index, pair in enumerate(pairs):
                yield f"pair {index} of the data", self._arrays(tuple(pair))

    def _random(self) -> Iterator[Sample]:
        draws = np.random.default_rng([self._seed, 1])
        for number in count():
            sample: dict[str, Array] = {}
            for name, said in self._given.fed.items():
                shape, words = tuple(said["shape"]), said.get("classes", 0)
                sample[name] = draws.integers(words, size=shape) if words else draws.uniform(-1, 1, shape)
            for name, (loss, output) in self._labels.items():
                if loss["name"] == "cross_entropy" or _by_number(loss):
                    sample[name] = np.asarray(draws.integers(output[1], size=output[2:] or None))
                else:
                    sample[name] = _target(loss, draws, output[1:])
            yield f"random sample number {number}", sample

    def _generated(self) -> tuple[Array, Array]:
        """Sequences of four classes: a wave of class k has k + 1 periods, a word is k + 1 behind the last."""
        ((_, said),) = self._given.fed.items()
        shape, words = tuple(said["shape"]), said.get("classes", 0)
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


def _by_number(loss: Mapping[str, Any]) -> bool:
    """Whether the labels of a loss are numbers of classes."""
    return loss["name"] in CLASS_NUMBERS or loss.get("labels") == "hard"


def _target(loss: Mapping[str, Any], draws: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """A made-up target: what its loss can be of."""
    name = loss["name"]
    if name in ("bce", "bce_with_logits"):
        return draws.random(shape)
    if name in ("hinge_embedding", "soft_margin"):
        return np.where(draws.integers(2, size=shape) == 1, 1.0, -1.0)
    if name == "poisson_nll":
        return draws.integers(4, size=shape).astype(np.float64)
    if name == "kl_div":
        parts = draws.uniform(0.1, 1, shape)
        shares: Array = parts / parts.sum(axis=0)
        return np.log(shares) if loss.get("log_target") else shares
    return draws.uniform(-1, 1, shape)
