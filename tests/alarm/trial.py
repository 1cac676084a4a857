# SPDX-License-Identifier: Apache-2.0
"""One trial: a planned run with a defect in it, and whether `run` alone refuses it."""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from unittest.mock import patch

import numpy as np

import configs
from alarm import defects, omissions  # noqa: F401 - each adds its own to the list
from alarm.registry import DEFECTS, Wrong
from arch.pricing.code_caches import WARM
from configs.errors import PulptrainError
from pulptrain.inputs.settings import Settings
from pulptrain.running.machine import Machine, Prepared
from pulptrain.running.session import run_prepared
from pulptrain.running.training import Training
from shared.kept_plans import prepare
from trainlib.training.phases import initial_weights
from trainlib.training.training_data import sample_stream

MODELS = Path(configs.__file__).parent / "models"

DTYPES = ("fp32", "fp16", "bf16")

REFUSED, SURVIVED, NO_EFFECT, NOT_HERE = "refused", "survived", "no effect", "not here"
"""No effect: all tensors of all iterations are what they are without the defect. Not here: no such op."""


@dataclass(frozen=True)
class Case:
    """A model, the optimizer it is trained with (its own if empty) and the machine."""

    model: str
    optimizer: str = ""
    batch: int = 1
    l1: str = "64KiB"

    def settings(self, dtype: str) -> Settings:
        return Settings(dtype=dtype, batch=self.batch, l1=self.l1)


CASES = (
    Case("simple-mlp", "{name: sgd_momentum, learning_rate: 0.05}", batch=2),
    Case("digits-cnn", "{name: sgd_momentum, learning_rate: 0.01, accumulate: 2}", batch=2, l1="16KiB"),
    Case("ds-cnn"),
    Case("tiny-transformer", "{name: adam, learning_rate: 0.001, accumulate: 2}", l1="16KiB"),
    Case("deep-autoencoder", "{name: adamw, learning_rate: 0.001}"),
    Case("resnet8"),
    Case("pools"),
    Case("twins", l1="16KiB"),
)
"""Six models of the zoo, and two of our own with the layers and the forms of training those lack."""

POOLS = """\
name: pools
description: pools with padding on values of both signs, biases, a residual sum
source: tests
input: {shape: [2, 9, 9]}
dataset: random
loss: mse
optimizer: {name: sgd_momentum, learning_rate: 0.01}
batch: 2
layers:
  - {name: conv1, type: conv2d, out_channels: 4, kernel: 3, padding: 1, bias: true}
  - {name: max1, type: max_pool2d, kernel: 3, stride: 1, padding: 1}
  - {name: norm1, type: batch_norm}
  - {name: add1, type: add, inputs: [norm1, conv1]}
  - {name: avg1, type: avg_pool2d, kernel: 3, stride: 2}
  - {name: dw1, type: depthwise, kernel: 3, padding: 1, bias: true}
  - {name: drop1, type: dropout, p: 0.3}
  - {name: flat, type: flatten}
  - {name: fc1, type: linear, out_features: 6, bias: true}
"""

TWINS = """\
name: twins
description: two inputs through the same weights, two losses, groups of an optimizer with averages
source: tests
inputs: {left: {shape: [2, 8, 8]}, right: {shape: [2, 8, 8]}}
dataset: random
losses:
  - {name: huber, of: apart, weight: 0.5}
  - {name: cross_entropy, labels: hard, label_smoothing: 0.1}
optimizer:
  name: rmsprop
  learning_rate: 0.01
  centered: true
  momentum: 0.9
  average: 0.9
  schedule: {name: exponential, factor: 0.5}
  groups: [{parameters: ["*.bias"], weight_decay: 0.01}]
batch: 2
layers:
  - {name: conv1, type: conv2d, out_channels: 4, kernel: 3, padding: 1, bias: true, inputs: [left]}
  - {name: act1, type: prelu}
  - {name: flat1, type: flatten}
  - {name: fc1, type: linear, out_features: 6, bias: true}
  - {name: conv2, type: conv2d, out_channels: 4, kernel: 3, padding: 1, bias: true, inputs: [right],
     weights_of: conv1}
  - {name: act2, type: prelu, weights_of: act1}
  - {name: flat2, type: flatten}
  - {name: fc2, type: linear, out_features: 6, bias: true, weights_of: fc1}
  - {name: apart, type: subtract, inputs: [fc1, fc2]}
  - {name: turned, type: flip, axes: [0], inputs: [fc1]}
  - {name: head, type: linear, out_features: 5, bias: true}
"""
OUR_OWN = {"pools": POOLS, "twins": TWINS}


@cache
def planned(case: Case, dtype: str) -> Prepared:
    """The case without a defect, before time starts."""
    folder = Path(mkdtemp(prefix="pulptrain-alarm-"))
    path = folder / f"{case.model}.yaml"
    text = OUR_OWN.get(case.model) or (MODELS / f"{case.model}.yaml").read_text()
    if case.optimizer:
        text = re.sub(r"^optimizer:.*$", f"optimizer: {case.optimizer}", text, flags=re.MULTILINE)
    path.write_text(text)
    return prepare(str(path), case.settings(dtype))


@cache
def right(case: Case, dtype: str, iterations: int) -> int:
    """A sum over all numbers of the run without a defect. Raises `PulptrainError` for a false alarm."""
    outcome = run_prepared(planned(case, dtype), case.settings(dtype), iterations=iterations)
    outcome.refuse_wrong_numbers()
    return _sum(outcome.values)


def tried(case: Case, dtype: str, name: str, iterations: int = 3) -> tuple[str, str]:
    """(verdict, why) of the case with one of `DEFECTS` in it."""
    expected = right(case, dtype, iterations)
    found = DEFECTS[name](planned(case, dtype))
    if found is None:
        return NOT_HERE, ""
    wrong = found if isinstance(found, Wrong) else Wrong(found)
    try:
        # Most are seen at once: later iterations cost as much again and are run for those that are not.
        for until in sorted({1, iterations}):
            with np.errstate(all="ignore"), wrong.machine(), _counting(name):
                outcome = run_prepared(wrong.prepared, case.settings(dtype), iterations=until)
            outcome.refuse_wrong_numbers()
    except PulptrainError as error:
        return REFUSED, str(error).splitlines()[0]
    functional = outcome.summary["functional"]
    if functional["passed"] is None:
        open_tensors = functional["not_decidable"] + functional["without_truth"]
        return SURVIVED, f"{open_tensors} tensors not decidable"
    if _sum(outcome.values) == expected:
        return NO_EFFECT, ""
    return SURVIVED, f"worst error {functional['worst_ratio']:.2g} of its tolerance"


def _counting(name: str) -> AbstractContextManager[object]:
    """Programs are counted against their graphs only where that alone can tell; else the numbers have to."""
    counted = DEFECTS[name].__module__ == omissions.__name__
    return nullcontext() if counted else patch("scheduler.executor.check_complete")


def all_defects(case: Case, dtype: str, names: Sequence[str] = ()) -> list[tuple[str, str, str]]:
    """(defect, verdict, why) of all defects in one case, or of those of these names."""
    return [(name, *tried(case, dtype, name)) for name in names or DEFECTS]


def zoo_verdicts(model: str, dtype: str, seeds: range) -> list[tuple[str, str, str]]:
    """(seed, verdict, why) of a zoo model as it is: "right", "not decidable" or "ALARM".

    The first seed is simulated in time, the others are replayed on the same machine.
    """
    found = []
    prepared = prepare(model, Settings(dtype=dtype))
    graph = prepared.schedule.graph
    machine = Machine(prepared, functional=True, code_start=WARM)
    for seed in seeds:
        samples = sample_stream(graph, prepared.spec, seed)
        training = Training(machine, prepared.phases.mini_batches, samples, initial_weights(graph, seed))
        training.first(1, check=True)
        functional = training.check.summary()
        others = [item for item in functional["tensors"] if item["verdict"] != "passed"]
        why = "; ".join(f"{item['name']}: {item['reason']}" for item in others[:5])
        word = {True: "right", None: "not decidable", False: "ALARM"}[functional["passed"]]
        found.append((f"seed {seed}", word, f"{len(others)} of {len(functional['tensors'])} tensors: {why}"))
    return found


def _sum(values: dict[str, np.ndarray]) -> int:
    return zlib.crc32(b"".join(np.ascontiguousarray(array).tobytes() for array in values.values()))
