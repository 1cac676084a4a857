# SPDX-License-Identifier: Apache-2.0
"""Networks with several inputs, labels and losses on the simulated machine, fed from arrays by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pulptrain as pt
from configs.errors import InputError

MODEL = """name: several
inputs: {left: {shape: [4]}, words: {shape: [5], classes: 11}}
batch: 2
losses:
  - {name: cross_entropy, labels: hard}
  - {name: mse, of: early, label: turned}
  - {name: mse, of: early, target: teacher}
optimizer: {name: sgd, learning_rate: 0.1}
layers:
  - {name: table, type: embedding, vocabulary: 11, features: 2, inputs: [words]}
  - {name: flat, type: flatten}
  - {name: join, type: concat, inputs: [left, flat]}
  - {name: early, type: linear, out_features: 3}
  - {name: relu, type: relu}
  - {name: head, type: linear, out_features: 3}
  - {name: teacher, type: linear, out_features: 3, inputs: [left], trainable: false}
  - {name: out, type: relu, inputs: [head]}
"""
DRAW = np.random.default_rng(0)
ARRAYS: dict[str, Any] = {
    "left": DRAW.normal(size=(4, 4)),
    "words": DRAW.integers(11, size=(4, 5)),
    "label": DRAW.integers(3, size=4),
    "turned": DRAW.normal(size=(4, 3)),
}


@pytest.fixture
def model(tmp_path: Path) -> str:
    path = tmp_path / "several.yaml"
    path.write_text(MODEL)
    return str(path)


@pytest.mark.needs_torch
@pytest.mark.parametrize("buffering", ["single", "double"])
def test_every_loss_is_reported_and_their_sum_is_the_loss(model: str, buffering: str) -> None:
    summary = pt.run(model, "pulp-open", iterations=2, buffering=buffering).summary
    assert summary["functional"]["passed"]
    assert set(summary["loss_terms"]) == {"loss", "loss_2", "loss_3"}
    total = sum(values[1] for values in summary["loss_terms"].values())
    assert summary["training"]["last_loss"] == pytest.approx(total)


@pytest.mark.needs_torch
def test_samples_in_tuples_or_by_name_are_the_same_samples(model: str) -> None:
    names = (("left", "words"), ("label", "turned"))
    rows = [tuple({name: ARRAYS[name][row] for name in part} for part in names) for row in range(4)]
    in_tuples = [tuple(tuple(part.values()) for part in pair) for pair in rows]
    losses = [pt.run(model, "pulp-open", data=data, iterations=2).summary for data in (rows, in_tuples)]
    assert losses[0]["loss_terms"] == losses[1]["loss_terms"]
    tested = {"left_test": ARRAYS["left"], "words_test": ARRAYS["words"], "label_test": ARRAYS["label"]}
    summary = pt.run(model, "pulp-open", data={**ARRAYS, **tested, "turned_test": ARRAYS["turned"]}).summary
    assert summary["functional"]["passed"]
    assert summary["training"]["test_samples"] == 4


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({**ARRAYS, "turned": ARRAYS["turned"][:3]}, "arrays of different length: .*turned 3"),
        ({name: ARRAYS[name] for name in ("left", "words", "label")}, "the model has label, turned"),
        ({**ARRAYS, "lable": ARRAYS["label"]}, "what is the array 'lable'"),
        ([((ARRAYS["left"][0],), (1, ARRAYS["turned"][0]))], "the model has left, words"),
    ],
)
def test_data_that_do_not_fit_are_refused(model: str, data: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        pt.run(model, "pulp-open", data=data)
