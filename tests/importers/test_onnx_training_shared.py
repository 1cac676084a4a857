# SPDX-License-Identifier: Apache-2.0
"""Training graphs in which a weight is used more than once: its gradients are summed in one place."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from configs.errors import UnsupportedLayerError
from importers.graph.onnx_file import load_onnx
from importers.training.graph import import_training
from pulptrain.__main__ import run
from shared.onnx_models import NodeText, ValueText, model, node, saved, value
from shared.onnx_training_models import MICROSOFT, accumulated, one_update, softmax_loss, updated
from shared.printed import printed

pytestmark = [pytest.mark.needs_onnx, pytest.mark.needs_torch]

RATE = 0.05
WHERE = {"kernel_shape": [3, 3], "strides": [1, 1], "dilations": [1, 1], "pads": [1, 1, 1, 1]}
GRAD = f"{MICROSOFT}ConvGrad"
FLAT = {"flat": np.array([2, 18])}
CONV = {"as_image": np.array([2, 2, 3, 3]), **FLAT}
TABLE = {"shape": np.array([7, 4]), "rows": np.array([-1, 4]), "tokens": np.array([2, 3, 4])}


@dataclass(frozen=True)
class Shared:
    """Nodes that make ``w_1`` ..., the gradients of the uses of ``w``, and the loss in PyTorch in float64.

    `data` are the inputs, the labels last; an integer says how many classes or words there are.
    """

    data: Mapping[str, tuple[Sequence[int], int]]
    weights: Mapping[str, Sequence[int]]
    uses: int
    nodes: Sequence[NodeText]
    loss: Callable[[Any, Mapping[str, Any]], Any]
    constants: Mapping[str, Any] | None = None


def mse(prediction: str, gradient: str) -> list[NodeText]:
    return [
        node(f"{MICROSOFT}MSELoss", [prediction, "labels"], ["the_loss"]),
        node(f"{MICROSOFT}MSELossGrad", [prediction, "labels"], [gradient]),
    ]


def gradient_of(name: str, x: str, dy: str) -> NodeText:
    return node("Gemm", [dy, x], [name], transA=1)


def two_layers(fn: Any, v: Mapping[str, Any]) -> Any:
    return fn.cross_entropy((v["x"] @ v["w"].T).relu() @ v["w"].T, v["labels"])


def siamese(fn: Any, v: Mapping[str, Any]) -> Any:
    return fn.mse_loss(v["left"] @ v["w"].T - v["right"] @ v["w"].T, v["labels"])


def images(fn: Any, v: Mapping[str, Any]) -> Any:
    made = v["x"]
    for _ in range(3):
        made = fn.conv2d(made, v["w"], padding=1)
    return fn.cross_entropy(made.flatten(1), v["labels"])


def tied(fn: Any, v: Mapping[str, Any]) -> Any:
    rows = fn.embedding(v["x"], v["w"]) @ v["m"]
    return fn.cross_entropy(rows.flatten(0, 1) @ v["w"].T, v["labels"])


CASES = {
    "two layers": Shared(
        {"x": ((2, 4), 0), "labels": ((2,), 4)},
        {"w": (4, 4)},
        2,
        [
            node("Gemm", ["x", "w"], ["z"], transB=1),
            node("Relu", ["z"], ["h"]),
            node("Gemm", ["h", "w"], ["y"], transB=1),
            *softmax_loss("y", "dy"),
            gradient_of("w_1", "h", "dy"),
            node("Gemm", ["dy", "w"], ["dh"]),
            node(f"{MICROSOFT}ReluGrad", ["dh", "h"], ["dz"]),
            gradient_of("w_2", "x", "dz"),
        ],
        two_layers,
    ),
    "two inputs": Shared(
        {"left": ((2, 4), 0), "right": ((2, 4), 0), "labels": ((2, 3), 0)},
        {"w": (3, 4)},
        2,
        [
            node("Gemm", ["left", "w"], ["a"], transB=1),
            node("Gemm", ["right", "w"], ["b"], transB=1),
            node("Sub", ["a", "b"], ["y"]),
            *mse("y", "dy"),
            gradient_of("w_1", "left", "dy"),
            node("Neg", ["dy"], ["db"]),
            gradient_of("w_2", "right", "db"),
        ],
        siamese,
    ),
    "three convolutions": Shared(
        {"x": ((2, 2, 3, 3), 0), "labels": ((2,), 18)},
        {"w": (2, 2, 3, 3)},
        3,
        [
            node("Conv", ["x", "w"], ["a"], **WHERE),
            node("Conv", ["a", "w"], ["b"], **WHERE),
            node("Conv", ["b", "w"], ["c"], **WHERE),
            node("Reshape", ["c", "flat"], ["y"]),
            *softmax_loss("y", "dy"),
            node("Reshape", ["dy", "as_image"], ["dc"]),
            node(GRAD, ["dc", "b", "w"], ["db", "w_1"], **WHERE),
            node(GRAD, ["db", "a", "w"], ["da", "w_2"], **WHERE),
            node(GRAD, ["da", "x", "w"], ["", "w_3"], **WHERE),
        ],
        images,
        CONV,
    ),
    "a tied embedding": Shared(
        {"x": ((2, 3), 7), "labels": ((6,), 7)},
        {"w": (7, 4), "m": (4, 4)},
        2,
        [
            node("Gather", ["w", "x"], ["table"]),
            node("Reshape", ["table", "rows"], ["r"]),
            node("MatMul", ["r", "m"], ["h"]),
            node("Gemm", ["h", "w"], ["y"], transB=1),
            *softmax_loss("y", "dy"),
            gradient_of("w_1", "h", "dy"),
            node("Gemm", ["dy", "w"], ["dh"]),
            gradient_of("m_grad", "dh", "r"),
            node("Gemm", ["dh", "m"], ["dr"], transB=1),
            node("Reshape", ["dr", "tokens"], ["dt"]),
            node(f"{MICROSOFT}GatherGrad", ["shape", "x", "dt"], ["w_2"], axis=0),
        ],
        tied,
        TABLE,
    ),
}


def names(case: Shared) -> list[str]:
    return [f"w_{number}" for number in range(1, case.uses + 1)]


def summed_two_by_two(case: Shared) -> list[NodeText]:
    parts, nodes = names(case), []
    while len(parts) > 1:
        total = "w_grad" if len(parts) == 2 else f"{parts[0]}+"
        nodes.append(node("Add", parts[:2], [total]))
        parts = [total, *parts[2:]]
    return nodes


def one_after_another(case: Shared, *, chained: bool) -> list[NodeText]:
    """An accumulator for every use: of what the one before has made, or of the buffer itself."""
    total, nodes = "w_grad.accumulation.buffer", []
    for number, part in enumerate(names(case)):
        last = number == case.uses - 1
        made = "w_grad.accumulation.out" if last else f"{part}.accumulated"
        flag = [] if number else ["lazy_reset_grad"]
        nodes.append(node(f"{MICROSOFT}InPlaceAccumulatorV2", [total, part, *flag], [made]))
        total = made if chained else total
    return nodes


SUMS = {
    "Sum": lambda case: [node("Sum", names(case), ["w_grad"])],
    "Add": summed_two_by_two,
    "a chain of accumulators": lambda case: one_after_another(case, chained=True),
    "accumulators of one buffer": lambda case: one_after_another(case, chained=False),
}


def drawn(case: Shared) -> tuple[dict[str, Any], dict[str, Any]]:
    """Weights and a sample."""
    generator = np.random.default_rng(17)
    sample = {
        name: generator.integers(classes, size=shape)
        if classes
        else generator.uniform(-1, 1, shape).astype(np.float32)
        for name, (shape, classes) in case.data.items()
    }
    shapes = case.weights.items()
    return {name: generator.uniform(-1, 1, shape).astype(np.float32) for name, shape in shapes}, sample


def inputs_of(case: Shared) -> list[ValueText]:
    return [
        value(name, shape, "int64" if classes else "float32") for name, (shape, classes) in case.data.items()
    ]


def written(case: Shared, how: str, folder: Path) -> str:
    """The file, its weights initializers or, where gradients are accumulated, inputs."""
    start, _ = drawn(case)
    nodes = [*case.nodes, *SUMS[how](case)]
    if "accumulator" not in how:
        outputs = [value(f"{name}_updated", array.shape) for name, array in start.items()]
        constants = {**start, **(case.constants or {})}
        return saved(
            folder, model([*nodes, *updated(list(start), RATE)], inputs_of(case), outputs, constants)
        )
    nodes += accumulated([name for name in start if name != "w"])
    given = [value(name, array.shape) for name, array in start.items()]
    given += [value(f"{name}_grad.accumulation.buffer", array.shape) for name, array in start.items()]
    outputs = [value(f"{name}_grad.accumulation.out", array.shape) for name, array in start.items()]
    flag = value("lazy_reset_grad", [1], "bool")
    return saved(folder, model(nodes, [*inputs_of(case), *given, flag], outputs, case.constants))


@pytest.mark.parametrize("how", SUMS)
@pytest.mark.parametrize("name", CASES)
def test_all_uses_are_in_one_gradient_and_one_update(name: str, how: str, tmp_path: Path) -> None:
    import torch

    case = CASES[name]
    start, sample = drawn(case)
    imported = import_training(load_onnx(written(case, how, tmp_path)), learning_rate=RATE)
    found = one_update(imported, start, sample)
    exact = {
        key: torch.tensor(array, dtype=torch.float64 if array.dtype.kind == "f" else None)
        for key, array in (start | sample).items()
    }
    weights = {key: exact[key].requires_grad_() for key in start}
    loss = case.loss(torch.nn.functional, exact)
    loss.backward()
    assert found["loss"] == pytest.approx(loss.item(), rel=1e-6)
    for key, weight in weights.items():
        wanted = (weight - RATE * weight.grad).detach().numpy()
        np.testing.assert_allclose(found[key], wanted, rtol=1e-6, atol=1e-7, err_msg=key)
    graph, update = imported.phases.mini_batch, imported.phases.update or imported.phases.mini_batch
    sums = [op for op in graph.ops if op.step == "ACC"]
    assert len(sums) == case.uses - 1
    assert {graph.storage_of(op["sum"]) for op in sums} == {graph.storage_of(sums[0]["a"])}
    assert graph.storage_of(graph.gradients["w"]) == graph.storage_of(sums[0]["a"])
    assert sorted(op["w"] for op in update.ops if op.step == "UPD") == sorted(start)


@pytest.mark.parametrize("how", ["Sum", "a chain of accumulators"])
@pytest.mark.parametrize("name", CASES)
def test_the_machine_runs_it(name: str, how: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(CASES[name], how, tmp_path)
    assert run(["run", path, "--json", "--iterations", "2"]) == 0, capsys.readouterr().err
    assert json.loads(capsys.readouterr().out)["functional"]["passed"]


@pytest.mark.parametrize("how", ["Sum", "accumulators of one buffer"])
@pytest.mark.parametrize("name", CASES)
def test_goldens_of_shared_weights_replay(
    name: str, how: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import torch

    case = CASES[name]
    start, sample = drawn(case)
    written(case, how, tmp_path)
    values = {key: torch.tensor(array) for key, array in (start | sample).items()}
    weights = {key: values[key].requires_grad_() for key in start}
    loss = case.loss(torch.nn.functional, values)
    loss.backward()
    after = {key: (weight - RATE * weight.grad).detach().numpy() for key, weight in weights.items()}
    arrays = {f"arr_{index:04d}": array for index, array in enumerate((sample | start).values())}
    np.savez(tmp_path / "inputs.npz", **arrays)
    np.savez(tmp_path / "outputs.npz", **after, loss=[loss.item()])
    (tmp_path / "model.onnx").rename(tmp_path / "network.onnx")
    (row,) = printed(capsys, "replay", str(tmp_path), "--learning-rate", str(RATE))
    assert (row["status"], row["tensors"]) == ("right", len(start))


def with_nodes(*more: NodeText, folder: Path) -> str:
    case = CASES["two layers"]
    start, _ = drawn(case)
    nodes = [*case.nodes, *more]
    return saved(folder, model(nodes, inputs_of(case), [value("w_updated", [4, 4])], start))


def test_a_gradient_that_others_read_is_not_overwritten(tmp_path: Path) -> None:
    """Nor one that lies in the place of another tensor, nor one that is added to itself."""
    twice = node("Sum", ["w_1", "w_2"], ["w_grad"])
    for more, ways in (
        ([twice, node("Neg", ["w_1"], ["other"])], ["add"]),
        ([node("Identity", ["w_1"], ["v"]), node("Sum", ["v", "w_2"], ["w_grad"])], ["add"]),
        ([node("Sum", ["w_1", "w_1"], ["w_grad"])], ["add"]),
        ([twice, node("Neg", ["w_2"], ["other"])], ["accumulate"]),
    ):
        graph = import_training(load_onnx(with_nodes(*more, *updated(["w"], 1.0), folder=tmp_path)))
        ops = graph.phases.mini_batch.ops
        assert [op.primitive for op in ops if op.primitive in ("add", "accumulate")] == ways


@pytest.mark.parametrize(
    ("nodes", "reason"),
    [
        ([node("SGD", ["w", f"w_{n}"], [f"w_updated_{n}"]) for n in (1, 2)], "updates the weight twice: 'w'"),
        (
            [node("SGD", ["w", "w_1"], ["w_updated"]), node("SGD", ["w_updated", "w_2"], ["again"])],
            "updates the weight twice: 'w_updated'",
        ),
        (
            [node("InPlaceAccumulatorV2", ["total", f"w_{n}", "reset"], [f"o{n}"]) for n in (1, 2)],
            "overwrites gradients from other uses of the weight",
        ),
        (
            [
                *[node("InPlaceAccumulatorV2", ["total", f"w_{n}"], [f"o{n}"]) for n in (1, 2)],
                node("SGD", ["w", "o1"], ["w_updated"]),
            ],
            "a node reads a weight's gradient before it is complete",
        ),
        (
            [
                *[node("InPlaceAccumulatorV2", ["total", f"w_{n}"], [f"o{n}"]) for n in (1, 2)],
                node("Neg", ["w_1"], ["other"]),
            ],
            "a node reads a weight's gradient before it is complete",
        ),
    ],
)
def test_a_weight_that_is_updated_use_by_use_is_refused(
    nodes: Sequence[NodeText], reason: str, tmp_path: Path
) -> None:
    case = CASES["two layers"]
    start, _ = drawn(case)
    total = [value("total", [4, 4]), value("reset", [1], "bool")]
    made = model([*case.nodes, *nodes], [*inputs_of(case), *total], [value("the_loss", [])], start)
    with pytest.raises(UnsupportedLayerError, match=f"{reason}.*try: add the gradients of all uses with Sum"):
        import_training(load_onnx(saved(tmp_path, made)))
