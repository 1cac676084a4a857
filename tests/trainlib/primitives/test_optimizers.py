# SPDX-License-Identifier: Apache-2.0
"""Optimizers over several steps against torch.optim; accumulation and clipping as explicit ops."""

from __future__ import annotations

import random
from importlib import import_module

import numpy as np
import pytest

from configs.errors import ConfigError, InputError
from configs.model_file import LayerSpec, LossSpec, ModelSpec, OptimizerSpec
from configs.values import replace
from shared.oracle_torch import optimizer_of
from shared.primitive_harness import CODEGEN, random_sizes, run_op
from trainlib.ir.graph import TrainingGraph
from trainlib.ir.steps import KernelChoice
from trainlib.primitives.optimizers.gradient_steps import (
    accumulate_gradients,
    clip_gradients_by_norm,
    clip_gradients_by_value,
)
from trainlib.references.reference import evaluate
from trainlib.registry import lowering_of
from trainlib.training.options import gradient_options
from trainlib.training.phases import build_training_graph, build_update_graph, initial_value, initial_weights

OPTIONS = [
    ("sgd", {}),
    ("sgd", {"weight_decay": 0.1}),
    ("sgd", {"momentum": 0.9}),
    ("sgd", {"momentum": 0.5, "nesterov": True, "weight_decay": 0.1}),
    ("sgd_momentum", {}),
    ("sgd_momentum", {"momentum": 0.5, "weight_decay": 0.1}),
    ("sgd_momentum", {"nesterov": True}),
    ("sgd_momentum", {"nesterov": True, "weight_decay": 0.05}),
    ("adam", {}),
    ("adam", {"weight_decay": 0.1, "beta1": 0.7}),
    ("adamw", {}),
    ("adamw", {"weight_decay": 0.2, "beta2": 0.9, "eps": 1e-3}),
    ("adamw", {"amsgrad": True, "beta2": 0.5, "maximize": True}),
    ("sgd", {"momentum": 0.9, "dampening": 0.3, "maximize": True, "weight_decay": 0.1}),
    ("adamax", {"beta2": 0.9, "weight_decay": 0.1}),
    ("nadam", {"momentum_decay": 0.1, "weight_decay": 0.1}),
    ("nadam", {"decoupled_weight_decay": True, "weight_decay": 0.1}),
    ("radam", {"beta2": 0.8, "weight_decay": 0.1}),
    ("radam", {"beta2": 0.8, "weight_decay": 0.1, "decoupled_weight_decay": True}),
    ("lion", {"weight_decay": 0.1}),
    ("rmsprop", {}),
    ("rmsprop", {"alpha": 0.8, "momentum": 0.5, "centered": True, "weight_decay": 0.1}),
    ("adagrad", {"lr_decay": 0.1, "initial_accumulator_value": 0.5, "weight_decay": 0.1}),
    ("adadelta", {"rho": 0.8, "weight_decay": 0.1}),
    ("rprop", {"size_max": 0.06}),
    ("asgd", {"lambd": 0.1, "t0": 3.0, "weight_decay": 0.1}),
]

CHOICE = KernelChoice("", CODEGEN)


def iterate(graph: TrainingGraph, kept: dict, fed: dict, *, tiles: random.Random | None = None) -> tuple:
    """(kept values afterwards, all values): one iteration by the references, or by tiles of random sizes."""
    known = {**kept, **fed}
    known = evaluate(graph, {name: known[name] for name in graph.needed_values})
    if tiles is not None:
        for op in graph.ops:
            sizes = random_sizes(op, graph.tensors, tiles)
            choice = KernelChoice(lowering_of(op).default_kernel(op), CODEGEN)
            results, _ = run_op(op, graph.tensors, known, sizes, choice)
            for name, array in results.items():
                np.testing.assert_allclose(array, known[name], rtol=2e-5, atol=1e-6, err_msg=name)
            known.update(results)
    return {name: known[graph.updates.get(name, name)] for name in kept}, known


@pytest.mark.needs_torch
@pytest.mark.parametrize(("name", "options"), OPTIONS, ids=str)
@pytest.mark.parametrize("tiled", [False, True])
def test_ten_steps_are_those_of_torch_optim(name: str, options: dict, tiled: bool) -> None:
    import torch

    attributes = {"learning_rate": 0.05, **options}
    graph = build_update_graph(name, attributes, (4, 3))
    generator = np.random.default_rng(2)
    kept = {key: initial_value(graph.tensors[key], 0) for key in graph.of_kind("weight", "optimizer_state")}
    weight = torch.tensor(kept["w"].astype(np.float64), requires_grad=True)
    optimizer = optimizer_of(graph.ops[0], weight)
    chooser = random.Random(7) if tiled else None
    for _ in range(10):
        gradient = generator.normal(size=(4, 3)).astype(np.float32)
        kept, _ = iterate(graph, kept, {"w.grad": gradient}, tiles=chooser)
        weight.grad = torch.tensor(gradient.astype(np.float64))
        optimizer.step()
    np.testing.assert_allclose(kept["w"], weight.detach().numpy(), rtol=1e-5, atol=1e-6)
    theirs = optimizer.state[weight]
    for end, word in import_module("truth.steps").STATES[name].items():
        if f"w.{end}" in kept:
            found = np.asarray(theirs[word], np.float64)
            np.testing.assert_allclose(kept[f"w.{end}"].reshape(found.shape), found, rtol=1e-5, atol=1e-6)


def test_defect_weight_decay_leaves_the_gradient_as_it_is() -> None:
    """The published update adds the decay to the stored gradient before it uses it."""
    graph = build_update_graph("sgd", {"learning_rate": 0.1, "weight_decay": 0.5}, (3,))
    assert graph.ops[0].outputs == ("w_updated",)
    gradient = np.ones(3, np.float32)
    known = evaluate(graph, {"w": np.full(3, 2, np.float32), "w.grad": gradient})
    assert known["w_updated"].tolist() == pytest.approx([2 - 0.1 * 2] * 3)
    assert gradient.tolist() == [1, 1, 1]


def test_only_momentum_has_a_velocity_and_only_then_is_it_moved() -> None:
    plain = build_update_graph("sgd", {"learning_rate": 0.1}, (3,))
    assert (plain.ops[0].reads, plain.ops[0].writes) == (("w", "dw"), ("w_updated",))
    moving = build_update_graph("sgd", {"learning_rate": 0.1, "momentum": 0.9}, (3,))
    assert moving.updates == {"w": "w_updated", "w.velocity": "w.velocity_updated"}


def test_moments_are_fp32_and_the_step_count_an_integer_for_a_16_bit_weight() -> None:
    graph = build_update_graph("adam", {"learning_rate": 0.1}, (2, 2), dtype="bf16")
    assert [graph.tensors[f"w.{role}"].dtype for role in "mvt"] == ["float32", "float32", "int32"]
    assert graph.updates == {"w": "w_updated", **{f"w.{role}": f"w.{role}_updated" for role in "mvt"}}


def test_only_the_last_tile_counts_the_step_so_that_no_tile_reads_the_new_count() -> None:
    graph = build_update_graph("adam", {"learning_rate": 0.1}, (4, 2))
    op = graph.ops[0]
    tiles = [
        lowering_of(op).tile(op, graph.tensors, {"d0": rows, "d1": (0, 2)}, CHOICE)
        for rows in ((0, 2), (2, 4))
    ]
    written = [{operand.name for operand in tile.outputs} for tile in tiles]
    assert written[1] - written[0] == {"t_updated"}


def test_bias_correction_makes_the_first_step_as_long_as_the_learning_rate() -> None:
    graph = build_update_graph("adam", {"learning_rate": 0.01}, (2,))
    kept = {
        key: np.zeros_like(initial_value(graph.tensors[key], 0))
        for key in graph.needed_values
        if key != "w.grad"
    }
    kept, _ = iterate(graph, kept, {"w.grad": np.array([1e-3, -50], np.float32)})
    np.testing.assert_allclose(kept["w"], [-0.01, 0.01], rtol=1e-4)
    assert kept["w.t"].tolist() == [1]


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("sgd", {"learning_rate": 0.0}, "learning_rate"),
        ("sgd", {"learning_rate": 0.1, "weight_decay": -1.0}, "weight_decay"),
        ("sgd", {"learning_rate": 0.1, "momentum": 1.0}, "momentum"),
        ("sgd", {"learning_rate": 0.1, "nesterov": True}, "'nesterov' needs a momentum"),
        ("sgd_momentum", {"learning_rate": 0.1, "momentum": 0.0}, "momentum"),
        ("adam", {"learning_rate": 0.1, "beta2": 1.0}, "beta2"),
        ("adamw", {"learning_rate": 0.1, "eps": 0.0}, "eps"),
        ("adam", {"learning_rate": 0.1, "beta3": 0.5}, "unknown key 'beta3'"),
    ],
)
def test_options_out_of_range_are_refused(name: str, options: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        build_update_graph(name, options, (2,))


def network(batch: int, optimizer: OptimizerSpec | None = None) -> TrainingGraph:
    spec = ModelSpec(
        name="two-layers",
        description="two linear layers",
        source="test",
        input_shape=(5,),
        dataset="random",
        loss=LossSpec("mse"),
        optimizer=optimizer or OptimizerSpec("sgd", {"learning_rate": 0.1}, "here"),
        batch=batch,
        layers=(
            LayerSpec("a", "linear", {"out_features": 4, "bias": True}, "here"),
            LayerSpec("act", "relu", {}, "here"),
            LayerSpec("b", "linear", {"out_features": 3}, "here"),
        ),
        where="here",
    )
    return build_training_graph(spec)


def samples(count: int, scale: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(9)
    inputs, labels = generator.normal(size=(count, 5)), generator.normal(size=(count, 3))
    return inputs.astype(np.float32), (scale * labels).astype(np.float32)


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("tiled", [False, True])
def test_accumulated_mini_batches_train_as_one_batch(steps: int, tiled: bool) -> None:
    """Twice: the second time the totals are overwritten, not added to (lazy reset)."""
    optimizer = OptimizerSpec("sgd_momentum", {"learning_rate": 0.1}, "here")
    whole = network(2 * steps, optimizer)
    gradients, update = accumulate_gradients(network(2, optimizer), steps)
    inputs, labels = samples(4 * steps)
    one = initial_weights(whole, 0)
    parts = {**initial_weights(gradients, 0), **initial_weights(update, 0)}
    assert all(np.array_equal(one[name], parts[name]) for name in one)
    chooser = random.Random(3) if tiled else None
    for half in range(2):
        chunk = slice(half * 2 * steps, (half + 1) * 2 * steps)
        one, _ = iterate(whole, one, {"input": inputs[chunk], "label": labels[chunk]})
        for number in range(steps):
            few = slice(chunk.start + 2 * number, chunk.start + 2 * number + 2)
            kept = {name: parts[name] for name in gradients.needed_values if name in parts}
            kept, _ = iterate(gradients, kept, {"input": inputs[few], "label": labels[few]}, tiles=chooser)
            parts.update(kept)
        kept, _ = iterate(update, {name: parts[name] for name in update.needed_values}, {}, tiles=chooser)
        parts.update(kept)
    for name in one:
        np.testing.assert_allclose(parts[name], one[name], rtol=1e-5, atol=1e-6, err_msg=name)
    assert parts["a.weight.grad.count"].tolist() == [2 * steps]


def test_what_an_old_total_holds_does_not_matter_after_an_update() -> None:
    gradients, _ = accumulate_gradients(network(1), 2)
    op = next(op for op in gradients.ops if op.step == "ACCUMULATE")
    shape = gradients.tensors[op["dw"]].shape
    values = {
        op["total"]: np.full(shape, np.nan, np.float32),
        op["dw"]: np.ones(shape, np.float32),
        op["count"]: np.array([4], np.int32),
    }
    results, tiles = run_op(op, gradients.tensors, values, {"d0": 1, "d1": 2}, CHOICE)
    assert tiles > 1
    assert (results[op["total_updated"]] == 0.5).all()
    assert results[op["count_updated"]].tolist() == [5]


@pytest.mark.needs_torch
@pytest.mark.parametrize("limit", [0.05, 100.0])
def test_clipping_by_norm_is_that_of_torch(limit: float) -> None:
    import torch

    graph = clip_gradients_by_norm(network(3), limit)
    inputs, labels = samples(3, scale=20.0)
    start = initial_weights(graph, 0)
    _, known = iterate(graph, start, {"input": inputs, "label": labels}, tiles=random.Random(1))
    parameters = [torch.zeros(known[name].shape, requires_grad=True) for name in graph.gradients.values()]
    for parameter, name in zip(parameters, graph.gradients.values(), strict=True):
        parameter.grad = torch.tensor(known[name])
    torch.nn.utils.clip_grad_norm_(parameters, limit)
    for parameter, (weight, name) in zip(parameters, graph.gradients.items(), strict=True):
        np.testing.assert_allclose(known[f"{name}.clipped"], parameter.grad.numpy(), rtol=1e-5, atol=1e-8)
        expected = start[weight] - 0.1 * parameter.grad.numpy()
        np.testing.assert_allclose(known[f"{weight}_updated"], expected, rtol=1e-5, atol=1e-6)


def test_clipping_by_value_bounds_every_element() -> None:
    graph = clip_gradients_by_value(network(3), 0.25)
    inputs, labels = samples(3, scale=20.0)
    _, known = iterate(
        graph, initial_weights(graph, 0), {"input": inputs, "label": labels}, tiles=random.Random(1)
    )
    for name in graph.gradients.values():
        np.testing.assert_array_equal(known[f"{name}.clipped"], known[name].clip(-0.25, 0.25))
    assert any(np.abs(known[name]).max() > 0.25 for name in graph.gradients.values())


def test_clipping_after_accumulation_sees_the_totals() -> None:
    _, update = accumulate_gradients(network(2), 2)
    clipped = clip_gradients_by_norm(update, 1.0)
    assert [op.step for op in clipped.ops] == ["SQUARES"] * 3 + ["SCALE"] + ["CLIP_NORM"] * 3 + ["UPD"] * 3
    values = {name: np.full(clipped.tensors[name].shape, 2.0, np.float32) for name in clipped.needed_values}
    known = evaluate(clipped, values)
    steps = [(values[w] - known[after]) / 0.1 for w, after in clipped.updates.items()]
    assert np.sqrt(sum(np.square(step).sum() for step in steps)) == pytest.approx(1.0, rel=1e-4)


def test_a_zero_gradient_stays_zero_when_clipped_by_norm() -> None:
    graph = clip_gradients_by_norm(network(1), 1.0)
    scale = next(op for op in graph.ops if op.step == "SCALE")
    values = {name: np.zeros(graph.tensors[name].shape, np.float32) for name in scale.inputs}
    results, _ = run_op(scale, graph.tensors, values, {}, CHOICE)
    assert results["clip.scale"].tolist() == [1]


@pytest.mark.parametrize("limit", [0.0, -1.0, float("nan")])
def test_a_limit_that_is_not_positive_is_refused(limit: float) -> None:
    for wrong in ({"clip_norm": limit}, {"clip_value": limit}, {"accumulate": 0}):
        with pytest.raises(ConfigError, match=f"'{next(iter(wrong))}'"):
            gradient_options(OptimizerSpec("sgd", {"learning_rate": 0.1, **wrong}, "here"))


def test_every_inserted_op_has_loop_nests_and_the_graph_taken_is_unchanged() -> None:
    plain = network(2)
    before = replace(plain)
    graph = clip_gradients_by_value(clip_gradients_by_norm(plain, 1.0), 0.5)
    assert len({op.name for op in graph.ops}) == len(graph.ops)
    graphs = [graph, *accumulate_gradients(plain, 4)]
    assert plain == before
    for one in graphs:
        for op in one.ops:
            extents = lowering_of(op).extents(op, one.tensors)
            ranges = {name: (0, size) for name, size in extents.items()}
            choice = KernelChoice(lowering_of(op).default_kernel(op), CODEGEN)
            for call in lowering_of(op).tile(op, one.tensors, ranges, choice).calls:
                addresses = dict.fromkeys((*call.reads, *call.writes), 268435456)
                assert len(call.work(4 if call.fork else 1, addresses).cores) == (4 if call.fork else 1)
