# SPDX-License-Identifier: Apache-2.0
"""Training on samples of one's own, on made-up sequences, and the curve of loss and accuracy."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pulptrain as pt
from pulptrain.__main__ import run
from trainlib.training.samples import sequences

MODEL = """name: own
input: {shape: [4]}
dataset: my.npz
loss: cross_entropy
optimizer: {name: sgd, learning_rate: 0.5}
layers: [{name: fc, type: linear, out_features: 2, bias: true}]
"""


def arrays(count: int = 64) -> dict[str, Any]:
    """Class 1 where the first value is above 0: a line separates them."""
    generator = np.random.default_rng(1)
    x = generator.uniform(-1, 1, (count, 4)).astype(np.float32)
    y = (x[:, 0] > 0).astype(np.int64)
    return {"x": x[: count // 2], "y": y[: count // 2], "x_test": x[count // 2 :], "y_test": y[count // 2 :]}


def model(**more: Any) -> pt.Model:
    options = {"input": (4,), "loss": pt.CrossEntropy(), "optimizer": pt.SGD(0.5), **more}
    return pt.Sequential(pt.Linear(2, bias=True), **options)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "m.yaml").write_text(MODEL)
    np.savez(tmp_path / "sub" / "my.npz", **arrays())
    return tmp_path


def test_a_file_beside_the_model_is_trained_on_and_tested_with(folder: Path) -> None:
    result = pt.run("sub/m.yaml", iterations=100)
    assert len(result.losses) == 100
    assert result.losses[-1] < 0.5 * result.losses[0] or np.mean(result.losses[-10:]) < 0.4
    assert result.test_accuracy is not None
    assert result.test_accuracy > 0.85
    asked = [point for point in result.training if point.accuracy is not None]
    assert [point.iteration for point in asked] == list(range(5, 101, 5))
    assert asked[-1].accuracy == result.test_accuracy
    assert result.training[-1].seconds == pytest.approx(100 * result.seconds)


def test_arrays_pairs_and_files_are_the_same_samples(folder: Path) -> None:
    by_file = pt.run(model(dataset="sub/my.npz"), iterations=10)
    by_array = pt.run(model(), data=arrays(), iterations=10)
    by_name = pt.run(model(), data="sub/my.npz", iterations=10)
    assert by_file.losses == by_array.losses == by_name.losses
    order = list(zip(arrays()["x"], arrays()["y"], strict=True))
    pairs = pt.run(model(), data=order, iterations=40)
    assert pairs.numbers_right is True
    assert pairs.test_accuracy is None
    assert len(pairs.losses) == 40  # from the beginning again after 32


@pytest.mark.usefixtures("undrawn")
def test_curve_and_picture_are_written_and_read_again(folder: Path) -> None:
    assert run(["run", "sub/m.yaml", "--iterations", "20", "--out", "out", "--quiet"]) == 0
    rows = list(csv.DictReader((folder / "out" / "training.csv").open()))
    assert [row["iteration"] for row in rows] == [str(number) for number in range(1, 21)]
    assert (folder / "out" / "training.png").read_bytes().startswith(b"\x89PNG")
    loaded = pt.load("out")
    assert isinstance(loaded, pt.Result)
    assert [point.loss for point in loaded.training] == [float(row["loss"]) for row in rows]
    assert run(["run", "sub/m.yaml", "--out", "one", "--quiet"]) == 0
    assert not (folder / "one" / "training.png").exists()


def test_targets_may_be_numbers_of_the_shape_the_loss_wants(folder: Path) -> None:
    x = arrays()["x"]
    data = {"x": x, "y": np.stack([x[:, 0] + x[:, 1], x[:, 2]], axis=1)}
    result = pt.run(model(loss=pt.MSE(), optimizer=pt.SGD(0.1)), data=data, iterations=200)
    assert np.mean(result.losses[-20:]) < 0.1 * np.mean(result.losses[:20])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda a: a.pop("y"), "y is missing; the file has"),
        (lambda a: a.pop("y_test"), "x_test or y_test is missing"),
        (lambda a: a.update(z=a["x"]), "unknown array 'z'"),
        (lambda a: a.update(x=a["x"][:, :3]), r"the network needs 4"),
        (lambda a: a.update(y=a["y"][:5]), "as many labels as samples"),
        (lambda a: (a.clear(), a.update(x=np.array(1.0), y=np.array(1))), "as many labels as samples"),
        (lambda a: a.update(y=a["y"] + 2), "the labels of data go from"),
        (lambda a: a.update(y=a["y"] - 1), "the labels of data go from"),
        (lambda a: a.update(x=a["x"] * np.nan), "infinities or NaN"),
        (lambda a: a.update(x=a["x"].astype(str)), "use real numbers"),
        (lambda a: a.update(x=a["x"][:0], y=a["y"][:0]), "no samples"),
    ],
)
def test_samples_that_do_not_fit_are_refused_with_a_cure(change: Any, message: str) -> None:
    data = arrays()
    change(data)
    with pytest.raises(pt.PulptrainError, match=f"(?s){message}"):
        pt.run(model(), data=data, functional=True)


def test_a_generator_that_ends_and_what_is_no_pair_are_refused() -> None:
    pairs = list(zip(arrays()["x"], arrays()["y"], strict=True))
    with pytest.raises(pt.InputError, match="the iterator ends after 3 samples"):
        pt.run(model(), data=iter(pairs[:3]), iterations=5)
    with pytest.raises(pt.InputError, match="is not a pair"):
        pt.run(model(), data=[1, 2, 3])
    with pytest.raises(pt.InputError, match=r"must be pairs \(x, y\), not 7"):
        pt.run(model(), data=7)


def test_a_file_that_is_not_there_is_named(folder: Path) -> None:
    (folder / "sub" / "my.npz").unlink()
    with pytest.raises(pt.InputError, match=r"my\.npz") as caught:
        pt.run("sub/m.yaml")
    assert caught.value.where is not None
    assert "m.yaml" in caught.value.where


def test_made_up_sequences_can_be_learned() -> None:
    gru = pt.Sequential(
        pt.GRU(8),
        pt.Flatten(),
        pt.Linear(4, bias=True),
        input=(12, 2),
        loss=pt.CrossEntropy(),
        optimizer=pt.Adam(0.01),
        dataset="sequences",
    )
    result = pt.run(gru, iterations=300)
    assert result.test_accuracy is not None
    assert result.test_accuracy > 0.6  # a guess is right in a quarter


def test_sequences_are_the_same_every_time_and_of_every_class() -> None:
    waves, again = sequences((12, 2), 4, 0), sequences((12, 2), 4, 0)
    assert (waves.train_inputs == again.train_inputs).all()
    assert set(waves.train_labels) == {0, 1, 2, 3}
    tokens = sequences((10,), 4, 20)
    assert tokens.train_inputs.dtype == np.int32
    assert 0 <= tokens.train_inputs.min() <= tokens.train_inputs.max() < 20


def test_sequences_of_images_are_refused() -> None:
    with pytest.raises(pt.PulptrainError, match="the dataset 'sequences' needs inputs"):
        pt.run(
            pt.Sequential(
                pt.Flatten(),
                pt.Linear(4),
                input=(1, 4, 4),
                loss=pt.MSE(),
                optimizer=pt.SGD(0.1),
                dataset="sequences",
            )
        )
