# SPDX-License-Identifier: Apache-2.0
"""Networks with several inputs, labels and losses on the simulated machine, fed from arrays by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pulptrain as pt
from configs.errors import DoesNotFitError, InputError
from shared.printed import printed

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
        ({**ARRAYS, "turned": ARRAYS["turned"][:3]}, "the arrays have different lengths: .*turned 3"),
        (
            {name: ARRAYS[name] for name in ("left", "words", "label")},
            "the model needs the arrays label, turned",
        ),
        ({**ARRAYS, "lable": ARRAYS["label"]}, "unknown array 'lable'"),
        ([((ARRAYS["left"][0],), (1, ARRAYS["turned"][0]))], "the model needs the arrays left, words"),
    ],
)
def test_data_that_do_not_fit_are_refused(model: str, data: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        pt.run(model, "pulp-open", data=data)


SEARCHED = """name: searched
inputs: {left: {shape: [4]}, right: {shape: [4]}}
batch: 2
losses: [{name: mse, weight: 0.5}, {name: cross_entropy, labels: hard, of: one, label: words}]
optimizer: {name: sgd, learning_rate: 0.1, momentum: 0.9, schedule: SCHEDULE}
layers:
  - {name: one, type: linear, out_features: 3, bias: true, inputs: [left]}
  - {name: other, type: linear, out_features: 3, bias: true, inputs: [right], weights_of: one}
  - {name: apart, type: subtract, inputs: [one, other]}
"""


@pytest.mark.sweep
def test_searches_take_what_shares_weights_and_follows_a_schedule(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In two processes as in one: what an update's schedule is goes from one to the other."""
    monkeypatch.chdir(tmp_path)
    rates = "{name: one_cycle, highest: 0.2, steps: 9, momenta: [0.8, 0.9]}"
    Path("m.yaml").write_text(SEARCHED.replace("SCHEDULE", rates))
    Path("e.yaml").write_text("name: e\nmodel: m.yaml\nsweep: {cores: [1, 4]}\n")
    found = []
    for workers in ("1", "2"):
        found.append(printed(capsys, "explore", "e.yaml", "--no-cache", "--workers", workers)["points"])
    assert found[0] == found[1]
    assert all(point["cycles"] > 0 for point in found[0])
    few = ["--tilings", "1", "--step-variants", "keep"]
    tuned = printed(capsys, "tune", "m.yaml", "--no-cache", "--workers", "2", *few)
    assert tuned["cycles"] <= tuned["untuned_cycles"]


PIXELS = """name: pixels
input: {shape: [3, 12, 16]}
batch: 2
loss: LOSS
optimizer: {name: sgd, learning_rate: 0.1}
layers:
  - {name: scores, type: pointwise, out_channels: 4}
  - {name: logs, type: relu}
"""


@pytest.mark.needs_torch
@pytest.mark.parametrize(
    ("loss", "buffering"),
    [
        ("cross_entropy", "single"),
        ("{name: cross_entropy, labels: hard, reduction: batchmean}", "double"),
        ("{name: cross_entropy, labels: hard, reduction: sum, ignore_index: 1}", "double"),
        ("{name: nll, weight: 0.5}", "single"),
    ],
)
def test_a_loss_of_pixels_is_cut_where_l1_is_small(loss: str, buffering: str, tmp_path: Path) -> None:
    path = tmp_path / "pixels.yaml"
    path.write_text(PIXELS.replace("LOSS", loss))
    whole, cut = (pt.run(str(path), "pulp-open", l1=l1, buffering=buffering) for l1 in ("64KiB", "14KiB"))
    assert whole.summary["functional"]["passed"]
    assert cut.summary["functional"]["passed"]
    assert cut.summary["loss"] == pytest.approx(whole.summary["loss"], rel=1e-6)
    (op,) = (op for op in cut.summary["ops"] if op["step"] == "LOSS")
    assert op["tiles"] > 1


def test_a_mean_of_labels_that_count_sees_all_of_them(tmp_path: Path) -> None:
    path = tmp_path / "pixels.yaml"
    path.write_text(PIXELS.replace("LOSS", "{name: cross_entropy, labels: hard, ignore_index: 1}"))
    with pytest.raises(DoesNotFitError, match=r"loss.LOSS: L1 is too small for the op without tiles"):
        pt.run(str(path), "pulp-open", l1="14KiB")
