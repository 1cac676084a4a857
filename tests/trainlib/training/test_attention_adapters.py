# SPDX-License-Identifier: Apache-2.0
"""Low-rank adapters inside attention: how many numbers train, that they are right, and what is refused."""

from math import prod
from pathlib import Path

import numpy as np
import pytest

from configs.errors import InputError
from configs.model_file import AdapterSpec, load_model
from configs.values import replace
from pulptrain.inputs.settings import Settings
from shared.kept_plans import run_model
from shared.training_form_models import changed, graph_of, written
from trainlib.training.phases import build_training_graph

LENGTH, WIDTH, HEADS, RANK, ALPHA, RATE = 5, 8, 2, 3, 6, 0.1
ATTENTION = (f"{{name: att, type: mhsa, heads: {HEADS}, bias: true}}",)
ADAPTED = changed(ATTENTION, "att", f"adapter: {{rank: {RANK}, alpha: {ALPHA}}}")


def trained(graph) -> int:
    return sum(prod(graph.tensors[name].shape) for name in graph.gradients.values())


def test_cct_with_adapters_trains_15_times_fewer_numbers() -> None:
    """As TrainDeeploy counts: rank 4 on the projections and both linear layers of each block, and the head.

    Onnx4Deeploy, CCT_LoRA: 13,578 of the 208,010 values that are trained with a frozen tokenizer.
    """
    cct = load_model("cct")
    tokenizer = replace(
        cct, layers=tuple(replace(one, trainable=not one.name.startswith("conv")) for one in cct.layers)
    )
    adapted = tuple(
        replace(layer, adapter=AdapterSpec(4, 16.0))
        if layer.name.endswith(("_attention", "_fc1", "_fc2"))
        else replace(layer, trainable=layer.name == "fc")
        for layer in cct.layers
    )
    full, low_rank = (
        trained(build_training_graph(spec)) for spec in (tokenizer, replace(cct, layers=adapted))
    )
    assert (full, low_rank) == (208_010, 13_578)
    assert full / low_rank == pytest.approx(15.3, abs=0.05)


@pytest.mark.needs_torch
def test_two_steps_agree_with_torch_written_by_hand(tmp_path: Path) -> None:
    """Loss, gradients and updated weights, tiled in a small L1, against float64 and products written out."""
    import torch

    path = written(
        tmp_path,
        ADAPTED,
        shape=f"[{LENGTH}, {WIDTH}]",
        batch=2,
        optimizer=f"name: sgd, learning_rate: {RATE}",
    )
    graph = graph_of(path)
    generator = np.random.default_rng(3)
    begun = {
        name: generator.uniform(-0.5, 0.5, graph.tensors[name].shape).astype(np.float32)
        for name in (*graph.weights, graph.input, graph.label)
    }
    outcome = run_model(path, Settings(l1="12KiB"), iterations=2, values=begun)
    outcome.refuse_wrong_numbers()

    held = {name.removeprefix("att."): torch.from_numpy(item).double() for name, item in begun.items()}
    low_rank = [name for name in held if name.endswith(("_down", "_up"))]
    assert len(low_rank) == 2 * 4
    for name in low_rank:
        held[name].requires_grad_()

    def projected(x, part):
        frozen = x @ held[f"w{part}"].T + held[f"b{part}"]
        return frozen + ALPHA / RANK * (x @ held[f"w{part}_down"].T) @ held[f"w{part}_up"].T

    losses = []
    for _ in range(2):
        q, k, v = (
            projected(held["input"], part).reshape(2, LENGTH, HEADS, -1).transpose(1, 2) for part in "qkv"
        )
        shares = torch.softmax(q @ k.transpose(2, 3) / (WIDTH / HEADS) ** 0.5, dim=-1)
        y = projected((shares @ v).transpose(1, 2).reshape(2, LENGTH, WIDTH), "o")
        loss = ((y - held["label"]) ** 2).mean()
        gradients = dict(
            zip(low_rank, torch.autograd.grad(loss, [held[name] for name in low_rank]), strict=True)
        )
        losses.append(loss.item())
        with torch.no_grad():
            for name, gradient in gradients.items():
                held[name] -= RATE * gradient
    assert [point.loss for point in outcome.curve] == pytest.approx(losses, rel=1e-5)
    for name, gradient in gradients.items():
        for ours, truth in (
            (outcome.values[f"results/att.{name}.grad"], gradient),
            (outcome.values[f"att.{name}"], held[name].detach()),
        ):
            np.testing.assert_allclose(ours, truth.numpy(), rtol=2e-4, atol=1e-6, err_msg=name)
    for name in ("wq", "wk", "wv", "wo", "bq", "bk", "bv", "bo"):
        np.testing.assert_array_equal(outcome.values[f"att.{name}"], begun[f"att.{name}"], err_msg=name)


def test_only_the_projections_named_have_one(tmp_path: Path) -> None:
    adapted = changed(ATTENTION, "att", "adapter: {rank: 2, projections: [q, v]}")
    graph = graph_of(written(tmp_path, adapted, shape=f"[{LENGTH}, {WIDTH}]"))
    names = {f"att.w{part}_{end}" for part in "qv" for end in ("down", "up")}
    assert set(graph.gradients) == names
    ops = {op.step for op in graph.ops}
    assert {"FW_DOWN_Q", "WG_UP_V", "IG_DOWN_Q"} <= ops
    assert not ops & {"FW_DOWN_K", "FW_DOWN_O", "WG_Q", "IG"}, "and no gradient of the frozen input"


@pytest.mark.parametrize(
    ("adapter", "message"),
    [
        ("{rank: 2, projections: [q, w]}", r"form\.yaml:11: .*projections.*'q', 'k', 'v' or 'o'"),
        ("{rank: 2, projections: []}", r"form\.yaml:11: .*projections.*without entries"),
        ("{rank: 2, projections: [q, q]}", r"form\.yaml:11: .*projections.*twice"),
        ("{rank: 0}", r"form\.yaml:11: .*rank"),
        ("{rank: 2}, trainable: [wq]", r"'trainable' cannot be used with 'adapter'"),
    ],
)
def test_wrong_adapters_are_refused_with_their_place(tmp_path: Path, adapter: str, message: str) -> None:
    path = written(tmp_path, changed(ATTENTION, "att", f"adapter: {adapter}"), shape=f"[{LENGTH}, {WIDTH}]")
    with pytest.raises(InputError, match=message):
        build_training_graph(load_model(path))


def test_a_linear_layer_has_no_projections(tmp_path: Path) -> None:
    layer = "{name: fc, type: linear, out_features: 4, adapter: {rank: 2, projections: [q]}}"
    with pytest.raises(InputError, match=r"form\.yaml:11: layer fc: linear has no projections"):
        build_training_graph(load_model(written(tmp_path, (layer,), shape="[8]")))
