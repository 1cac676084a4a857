# SPDX-License-Identifier: Apache-2.0
"""Weights used more than once: gradients of all uses are summed in one buffer, and updated once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pulptrain as pt
from arch.spec.soc_config import load_soc
from configs.errors import PulptrainError
from configs.model_text import model_text
from importers.torch.optimizers import TAKEN
from scheduler.memory.memory_plan import plan_memory
from shared.exported import checked, exported
from shared.one_iteration import in_torch, iteration, read
from trainlib.references.reference import evaluate
from trainlib.training.phases import build_training_graph

END = """batch: 2
loss: mse
optimizer: {name: sgd, learning_rate: 0.1}
layers:
"""
SIAMESE = (
    """name: siamese
inputs: {left: {shape: [4]}, right: {shape: [4]}}
"""
    + END
    + """
  - {name: one, type: linear, out_features: 3, bias: true, inputs: [left]}
  - {name: other, type: linear, out_features: 3, bias: true, inputs: [right], weights_of: one}
  - {name: apart, type: subtract, inputs: [one, other]}
"""
)
CONVOLUTION = (
    """name: convolution
input: {shape: [2, 6, 6]}
"""
    + END
    + """
  - {name: first, type: conv2d, out_channels: 2, kernel: 3, padding: 1}
  - {name: relu, type: relu}
  - {name: again, type: conv2d, out_channels: 2, kernel: 3, padding: 1, weights_of: first}
"""
)
TIED = (
    """name: tied
input: {shape: [5], classes: 11}
"""
    + END
    + """
  - {name: table, type: embedding, vocabulary: 11, features: 6}
  - {name: middle, type: linear, out_features: 6}
  - {name: head, type: linear, out_features: 11, weights_of: {weight: table}}
"""
)
COMPUTED = (
    """name: computed
input: {shape: [2, 6, 6]}
"""
    + END
    + """
  - {name: direction, type: parameter, shape: [3, 2, 3, 3], once: true}
  - {name: size, type: parameter, shape: [3, 1, 1, 1], once: true, inputs: [input]}
  - {name: sizes, type: expand, shape: [3, 2, 3, 3]}
  - {name: product, type: multiply, inputs: [direction, sizes]}
  - {name: conv, type: conv2d, out_channels: 3, kernel: 3, inputs: [input], weights_of: {weight: product.out}}
"""
)
CLAMPED = (
    """name: clamped
input: {shape: [6]}
"""
    + END
    + """
  - {name: whole, type: parameter, shape: [5, 6], once: true}
  - {name: near, type: clip, low: -0.01, high: 0.02}
  - {name: clamp, type: projected, weights_of: whole}
  - {name: fc, type: linear, out_features: 5, inputs: [input], bias: true, weights_of: {weight: clamp.out}}
"""
)
NORMS = (
    """name: norms
inputs: {left: {shape: [3, 4]}, right: {shape: [3, 4]}}
"""
    + END
    + """
  - {name: one, type: batch_norm, inputs: [left]}
  - {name: two, type: batch_norm, inputs: [right], weights_of: one, momentum: 0.3}
  - {name: apart, type: subtract, inputs: [one, two]}
  - {name: three, type: batch_norm, weights_of: {running_mean: one, running_var: two}, recompute: true}
  - {name: act, type: tanh}
"""
)
UNROLLED = (
    """name: unrolled
inputs: {a: {shape: [3]}, b: {shape: [3]}, c: {shape: [3]}}
"""
    + END
    + """
  - {name: in1, type: linear, out_features: 4, bias: true, inputs: [a]}
  - {name: h1, type: tanh}
  - {name: in2, type: linear, out_features: 4, bias: true, inputs: [b], weights_of: in1}
  - {name: rec2, type: linear, out_features: 4, inputs: [h1]}
  - {name: s2, type: add, inputs: [in2, rec2]}
  - {name: h2, type: tanh}
  - {name: in3, type: linear, out_features: 4, bias: true, inputs: [c], weights_of: in2}
  - {name: rec3, type: linear, out_features: 4, inputs: [h2], weights_of: {weight: rec2.weight}}
  - {name: s3, type: add, inputs: [in3, rec3]}
  - {name: h3, type: tanh}
"""
)


def siamese(fn: Any, w: Any, x: Any) -> Any:
    return fn.linear(x["left"], w["one.weight"], w["one.bias"]) - fn.linear(
        x["right"], w["one.weight"], w["one.bias"]
    )


def convolution(fn: Any, w: Any, x: Any) -> Any:
    return fn.conv2d(fn.conv2d(x["input"], w["first.weight"], padding=1).relu(), w["first.weight"], padding=1)


def tied(fn: Any, w: Any, x: Any) -> Any:
    rows = fn.embedding(x["input"], w["table.weight"])
    return fn.linear(fn.linear(rows, w["middle.weight"]), w["table.weight"])


def unrolled(fn: Any, w: Any, x: Any) -> Any:
    state = fn.linear(x["a"], w["in1.weight"], w["in1.bias"]).tanh()
    for name in "bc":
        fed = fn.linear(x[name], w["in1.weight"], w["in1.bias"])
        state = (fed + fn.linear(state, w["rec2.weight"])).tanh()
    return state


def computed(fn: Any, w: Any, x: Any) -> Any:
    return fn.conv2d(x["input"], w["direction.weight"] * w["size.weight"])


NETWORKS = {
    "siamese": (SIAMESE, siamese, 2),
    "convolution": (CONVOLUTION, convolution, 2),
    "tied": (TIED, tied, 2),
    "unrolled": (UNROLLED, unrolled, 3),
    "computed": (COMPUTED, computed, 1),
}


@pytest.mark.needs_torch
@pytest.mark.parametrize("name", NETWORKS)
def test_gradients_of_all_uses_are_those_of_autograd_and_there_is_one_update(
    name: str, tmp_path: Path
) -> None:
    import torch

    text, network, uses = NETWORKS[name]
    graph, start, made = iteration(read(tmp_path, text))
    given = in_torch(start)
    weights = {key: given[key].requires_grad_() for key in graph.weights}
    torch.nn.functional.mse_loss(network(torch.nn.functional, weights, given), given["label"]).backward()
    for key, gradient in graph.gradients.items():
        np.testing.assert_allclose(made[gradient], weights[key].grad, rtol=1e-5, atol=1e-6, err_msg=key)
    assert sum(op.step == "UPD" for op in graph.ops) == len(graph.weights) == len(graph.gradients)
    assert max(sum(key in op.inputs and op.step == "FW" for op in graph.ops) for key in graph.weights) == uses


@pytest.mark.needs_torch
def test_what_a_parameter_reads_has_no_gradient_of_it(tmp_path: Path) -> None:
    """Of as many elements as the parameter, whose gradient it once got; and a layer read for nothing."""
    text = (
        "name: counts\ninput: {shape: [4, 6]}\n"
        + END
        + """
  - {name: first, type: linear, out_features: 6}
  - {name: own, type: parameter, shape: [4, 6]}
  - {name: product, type: multiply, inputs: [first, own]}
"""
    )
    read(tmp_path, text)
    assert pt.run(str(tmp_path / "m.yaml"), "pulp-open").summary["functional"]["passed"]
    alone = text.replace("multiply, inputs: [first, own]", "tanh")
    with pytest.raises(PulptrainError, match="layer first: no layer and no loss uses the output"):
        build_training_graph(read(tmp_path, alone))


@pytest.mark.needs_torch
@pytest.mark.parametrize("buffering", ["single", "double"])
@pytest.mark.parametrize("name", NETWORKS)
def test_the_machine_sums_them_in_one_buffer(name: str, buffering: str, tmp_path: Path) -> None:
    read(tmp_path, NETWORKS[name][0])
    result = pt.run(str(tmp_path / "m.yaml"), "pulp-open", iterations=2, buffering=buffering)
    assert result.summary["functional"]["passed"]
    assert result.summary["functional"]["without_truth"] == 0


STEPS: dict[str, dict[str, Any]] = {
    "sgd": {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
    **{"adam": {}, "adamw": {"weight_decay": 0.1}, "rmsprop": {}, "adagrad": {}},
}


@pytest.mark.needs_torch
@pytest.mark.parametrize("name", STEPS)
def test_a_weight_replaced_before_use_is_trained_as_by_pytorch(name: str, tmp_path: Path) -> None:
    """``weight.data = weight.data.clamp(...)`` in forward, in float64: losses and weights of three steps."""
    import torch

    listed = "".join(f", {key}: {str(word).lower()}" for key, word in STEPS[name].items())
    text = CLAMPED.replace("name: sgd, learning_rate: 0.1", f"name: {name}, learning_rate: 0.1{listed}")
    graph, start, made = iteration(read(tmp_path, text))
    fc = torch.nn.Linear(6, 5).double()
    given = in_torch(start)
    fc.load_state_dict({"weight": given["whole.weight"], "bias": given["fc.bias"]})
    kind = {kind.__name__.lower(): kind for kind in vars(torch.optim).values() if isinstance(kind, type)}[
        name
    ]
    optimizer = kind(fc.parameters(), lr=0.1, **STEPS[name])
    for _ in range(3):
        fc.weight.data = fc.weight.data.clamp(-0.01, 0.02)
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(fc(given["input"]), given["label"])
        loss.backward()
        optimizer.step()
        np.testing.assert_allclose(made[graph.loss][0], loss.item(), rtol=1e-5)
        weight = made[graph.updates["whole.weight"]]
        np.testing.assert_allclose(weight, fc.weight.detach(), rtol=1e-4, atol=1e-6)
        start = {**start, **{kept: made[new] for kept, new in graph.updates.items()}}
        made = evaluate(graph, start)


@pytest.mark.needs_torch
@pytest.mark.parametrize(
    ("said", "options"),
    [
        *((name.lower(), {}) for name in TAKEN),
        *(
            ("sgd", {"accumulate": 2}),
            ("adam, average: 0.9", {"accumulate": 2}),
            ("adam, clip_norm: 0.01", {}),
        ),
        *(("adam, immediate: true", {}), ("sgd", {"dtype": "bf16"}), ("sgd", {"buffering": "single"})),
    ],
    ids=str,
)
def test_the_machine_replaces_it_whatever_the_update(
    said: str, options: dict[str, Any], tmp_path: Path
) -> None:
    read(tmp_path, CLAMPED.replace("name: sgd", f"name: {said}"))
    result = pt.run(str(tmp_path / "m.yaml"), "pulp-open", iterations=3, **options)
    assert result.summary["functional"]["passed"]
    assert result.summary["functional"]["without_truth"] == 0


@pytest.mark.needs_gcc
@pytest.mark.parametrize("options", [{}, {"dtype": "bf16"}], ids=str)
def test_an_export_replaces_it(options: dict[str, Any], tmp_path: Path) -> None:
    read(tmp_path, CLAMPED)
    ended = checked(exported(str(tmp_path / "m.yaml"), 2, **options).project(), tmp_path / "net", "SEEDS=1")
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_the_sum_lies_where_the_first_gradient_lies(tmp_path: Path) -> None:
    graph, _, _ = iteration(read(tmp_path, UNROLLED))
    total = graph.tensors[graph.gradients["in1.weight"]]
    assert graph.storage_of(total.name) == "in1.weight.grad@in3"
    sums = [op for op in graph.ops if op.step == "ACC" and op.inputs[0].startswith("in1.weight")]
    assert [op.inputs[1] for op in sums] == ["in1.weight.grad@in2", "in1.weight.grad@in1"]


@pytest.mark.needs_torch
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_norms_that_share_running_statistics_move_them_in_their_order(dtype: str, tmp_path: Path) -> None:
    """Each call has the statistics of its own batch; the running ones go from call to call, as in PyTorch."""
    import torch

    graph, start, made = iteration(read(tmp_path, NORMS))
    given = in_torch(start)
    y, mean, var = dict[str, Any](), torch.zeros(3, dtype=torch.double), torch.ones(3, dtype=torch.double)
    for name, of, momentum in (("one", "left", 0.1), ("two", "right", 0.3), ("three", "", 0.1)):
        x = given[of] if of else y["one"] - y["two"]
        y[name] = torch.nn.functional.batch_norm(x, mean, var, training=True, momentum=momentum)
    assert graph.updates["one.running_mean"] == "three.running_mean_updated"
    assert {key for key in graph.updates if "running" in key} == {"one.running_mean", "one.running_var"}
    for role, expected in (("mean", mean), ("var", var)):
        np.testing.assert_allclose(made[f"three.running_{role}_updated"], expected, rtol=1e-6)
    functional = pt.run(str(tmp_path / "m.yaml"), "pulp-open", iterations=3, dtype=dtype, accumulate=2)
    assert functional.summary["functional"]["passed"]
    assert functional.summary["functional"]["without_truth"] == 0


@pytest.mark.parametrize("name", NETWORKS)
def test_a_shared_weight_has_one_gradient_in_the_memory_plan(name: str, tmp_path: Path) -> None:
    """Bytes and lifetimes: that of the first use lives to the end, those of others until they are added."""
    graph = build_training_graph(read(tmp_path, NETWORKS[name][0]))
    plan = plan_memory(graph, load_soc("pulp-open"))
    places = {item.name: item for item in plan.allocations}
    writer = {tensor: number for number, op in enumerate(graph.ops) for tensor in op.outputs}
    for weight, gradient in graph.gradients.items():
        uses = [tensor for tensor in graph.tensors if tensor.startswith(f"{weight}.grad@")]
        if not uses:
            continue
        total, *added = sorted((places[tensor] for tensor in uses), key=lambda item: item.first_op)
        update = next(
            number for number, op in enumerate(graph.ops) if op.step == "UPD" and weight in op.inputs
        )
        assert plan.owners[gradient] == total.name
        assert total.size_bytes == graph.tensors[weight].size_bytes
        assert (total.first_op, total.last_op >= update) == (writer[total.name], True)
        for item in added:
            (number,) = (n for n, op in enumerate(graph.ops) if op.step == "ACC" and item.name in op.inputs)
            assert (item.first_op, item.last_op) == (writer[item.name], number)
        own = {item.name for item in plan.allocations if item.name.startswith(f"{weight}.grad")}
        assert own == set(uses), "a sum has no bytes of its own"


def test_who_trains_a_shared_weight(tmp_path: Path) -> None:
    """The layer that has it; a use that is not trainable follows its updates and gives no gradient."""
    frozen = UNROLLED.replace("inputs: [a]", "inputs: [a], trainable: false")
    assert set(build_training_graph(read(tmp_path, frozen)).gradients) == {"rec2.weight"}
    stopped = SIAMESE.replace("weights_of: one", "weights_of: one, trainable: false")
    graph = build_training_graph(read(tmp_path, stopped))
    assert graph.gradients == {"one.weight": "one.weight.grad", "one.bias": "one.bias.grad"}
    assert not [op for op in graph.ops if op.layer == "other" and op.step == "WG"]
    named = build_training_graph(read(tmp_path, TIED.replace("batch: 2", "batch: 2\ntrain: [table]")))
    assert set(named.gradients) == {"table.weight"}
    assert "table.weight.grad@head" in named.tensors
    last = build_training_graph(read(tmp_path, TIED.replace("batch: 2", "batch: 2\ntrain: last")))
    assert set(last.gradients) == {"middle.weight"}


def test_a_model_that_shares_is_written_as_it_is_read(tmp_path: Path) -> None:
    for text in (UNROLLED, TIED, COMPUTED):
        spec = read(tmp_path, text)
        again = read(tmp_path, model_text(spec))
        assert [layer.weights_of for layer in again.layers] == [layer.weights_of for layer in spec.layers]


def test_layers_of_a_script_share_by_object() -> None:
    table = pt.Embedding(11, 6)
    head = pt.Linear(11, weights_of={"weight": table})
    model = pt.Sequential(table, head, input=(5,), classes=11, loss=pt.MSE(), optimizer=pt.SGD(0.1))
    assert model.spec.layers[1].weights_of == {"weight": "embedding1"}
    twice = pt.Linear(5)
    pt.Sequential(twice, pt.Linear(5, weights_of=twice), input=(5,), loss=pt.MSE(), optimizer=pt.SGD(0.1))


@pytest.mark.parametrize(
    ("text", "change", "message"),
    [
        (SIAMESE, ("weights_of: one", "weights_of: on"), "'on', which is not an earlier layer"),
        (SIAMESE, ("weights_of: one", "weights_of: {weigth: one}"), "linear has no parameter 'weigth'"),
        (
            SIAMESE,
            ("weights_of: one", "weights_of: {weight: one.b}"),
            "layer one, which has no parameter 'b'",
        ),
        (
            SIAMESE,
            ("other, type: linear, out_features: 3", "other, type: linear, out_features: 2"),
            "needs a weight of shape .*, but the shared",
        ),
        (
            SIAMESE,
            ("weights_of: one", "weights_of: one, dtype: fp16"),
            "needs a weight .* float16, but",
        ),
        (
            SIAMESE,
            ("weights_of: one", "weights_of: one, update_channels: 2"),
            "'update_channels' does not apply",
        ),
        (SIAMESE, ("weights_of: one", "weights_of: one, adapter: {rank: 1}"), "cannot use the weights"),
        (
            TIED,
            ("weights_of: {weight: table}", "weights_of: table"),
            "table, whose type is embedding, not linear",
        ),
        (CONVOLUTION, ("weights_of: first", "weights_of: relu"), "'relu', which is not an earlier layer"),
        (NORMS, ("running_mean: one", "weight: one.running_mean"), "no parameter 'running_mean'"),
        (NORMS, ("running_var: two", "running_var: apart"), "'apart', which is not an earlier layer"),
        (COMPUTED, ("weight: product.out", "weight: conv.out"), "'conv.out' is not the output of an earlier"),
        (COMPUTED, ("weight: product.out", "weight: size.out"), "needs a weight .*, but size.out has"),
        (COMPUTED, ("product.out}", "product.out}, update_channels: 2"), "'update_channels' does not apply"),
        (
            COMPUTED,
            (
                "conv, type: conv2d, out_channels: 3, kernel: 3, inputs: [input]",
                "conv, type: matmul, inputs: [input, product]",
            ),
            "same number of samples, but product.out has 1 and input has 2",
        ),
        (
            CLAMPED,
            ("{weight: clamp.out}", "{weight: whole}"),
            "a layer before this one replaces whole.weight",
        ),
        (
            CLAMPED,
            ("once: true", "once: true, recompute: true"),
            "'recompute' does not apply to whole.weight",
        ),
        (CLAMPED, ("weights_of: whole", "weights_of: whole, recompute: true"), "'recompute' does not apply"),
        (
            CLAMPED.replace("clip, low: -0.01, high: 0.02", "position, weights_of: {weight: whole}"),
            ("projected, weights_of: whole", "projected, weights_of: {weight: whole}"),
            "layer near uses whole.weight, which this layer replaces",
        ),
        (
            CLAMPED,
            (
                "clamp, type: projected, weights_of: whole",
                "clamp, type: projected, inputs: [input]",
            ),
            "a weight has no samples, but the input has 2",
        ),
        (
            COMPUTED,
            ("loss: mse", "losses: [mse, {name: mse, of: product, label: size}]"),
            r"labels of 2 samples with one sample \(product.out\)",
        ),
    ],
)
def test_what_cannot_be_shared_is_refused_at_its_line(
    text: str, change: tuple[str, str], message: str, tmp_path: Path
) -> None:
    assert change[0] in text
    wrong = text.replace(*change)
    with pytest.raises(PulptrainError, match=message) as caught:
        build_training_graph(read(tmp_path, wrong))
    line = next(n for n, row in enumerate(wrong.splitlines(), start=1) if change[1] in row)
    assert f"m.yaml:{line}" in str(caught.value), str(caught.value)
