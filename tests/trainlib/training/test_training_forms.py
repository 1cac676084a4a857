# SPDX-License-Identifier: Apache-2.0
"""Frozen layers, sparse updates, adapters and recomputation: what is computed, and that it is right."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from configs.errors import InputError
from shared.kept_plans import run_model
from shared.training_form_models import CNN, changed, check_against_torch, graph_of, values_of, written
from trainlib.references.reference import evaluate
from trainlib.registry import lowering_of
from trainlib.training.phases import build_training_graph

DTYPES = ("fp32", "fp16", "bf16")


def steps(graph) -> list[str]:
    return [op.name for op in graph.ops]


def updated_weights(graph) -> set[str]:
    return {op["w"] for op in graph.ops if op.step == "UPD"}


# Which layers are trained


def test_last_layer_only_has_no_backward_pass_before_it(tmp_path: Path) -> None:
    graph = graph_of(written(tmp_path, model="train: last"))
    backward = [op.name for op in graph.ops if op.step in ("WG", "IG", "UPD")]
    assert backward == ["fc.WG", "fc.UPD", "fc.bias.UPD"]
    assert {op.layer for op in graph.ops if op.step == "FW"} >= {"conv1", "dw", "fc"}, (
        "all of the forward pass"
    )


def test_named_layers_are_trained_and_gradients_reach_back_to_the_first_of_them(tmp_path: Path) -> None:
    graph = graph_of(written(tmp_path, model="train: [pw, fc]"))
    assert updated_weights(graph) == {"pw.weight", "pw.bias", "fc.weight", "fc.bias"}
    assert "dw.IG" in steps(graph), "through the frozen layer"
    assert "dw.WG" not in steps(graph)
    assert "pw.IG" not in steps(graph), "nothing before it is trained"


def test_train_all_is_the_default(tmp_path: Path) -> None:
    assert graph_of(written(tmp_path, model="train: all")) == graph_of(written(tmp_path))


def test_a_list_of_parameters_trains_these_only(tmp_path: Path) -> None:
    graph = graph_of(written(tmp_path, changed(CNN, "fc", "trainable: [weight]"), model="train: [fc, pw]"))
    assert updated_weights(graph) == {"fc.weight", "pw.weight", "pw.bias"}
    (gradient,) = [op for op in graph.ops if op.name == "fc.WG"]
    assert "db" not in gradient, "and no bias gradient is computed"


@pytest.mark.needs_torch
@pytest.mark.parametrize("model", ["train: last", "train: [pw, fc]", "train: [norm1]"])
def test_a_partly_frozen_network_agrees_with_torch(tmp_path: Path, model: str) -> None:
    path = written(tmp_path, model=model, batch=3)
    graph = graph_of(path)
    check_against_torch(graph, values_of(graph, path))


# Some channels only

SPARSE = {"conv1": (1, 4), "pw": (0, 2), "dw": (3, 5), "fc": (2, 3)}


def sparse(layers=CNN, only=tuple(SPARSE)) -> tuple[str, ...]:
    for name in only:
        layers = changed(layers, name, "update_channels: [{}, {}]".format(*SPARSE[name]))
    return layers


@pytest.mark.needs_torch
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", ["CHW", "HWC"])
@pytest.mark.parametrize("batch", [1, 3])
def test_a_sparse_update_agrees_with_torch(tmp_path: Path, dtype: str, layout: str, batch: int) -> None:
    layers = tuple(layer for layer in sparse() if "norm1" not in layer)  # a norm knows CHW only
    for name in ("conv1", "pw", "dw"):
        layers = changed(layers, name, f"layout: {layout}")
    path = written(tmp_path, layers, batch=batch)
    graph = graph_of(path, dtype)
    values = values_of(graph, path)
    ours = check_against_torch(graph, values)
    for name, (first, last) in SPARSE.items():
        weight = f"{name}.weight"
        axis = graph.parts[weight].axis
        before, after = (np.moveaxis(array, axis, 0) for array in (values[weight], ours[f"{weight}_updated"]))
        assert np.array_equal(before[:first], after[:first]), "frozen channels keep their bits"
        assert np.array_equal(before[last:], after[last:])
        assert not np.array_equal(before[first:last], after[first:last])
        assert graph.tensors[f"{weight}.grad"].shape[axis] == last - first


@pytest.mark.needs_torch
@pytest.mark.parametrize("name", list(SPARSE))
def test_the_tiles_of_a_sparse_update_touch_its_channels_only(tmp_path: Path, name: str) -> None:
    """On the simulated SoC, with momentum whose velocity exists for the trained part alone."""
    path = written(
        tmp_path, sparse(only=(name,)), batch=2, optimizer="name: sgd_momentum, learning_rate: 0.5"
    )
    outcome = run_model(path)
    assert outcome.summary["functional"]["checked_against"] == "PyTorch"
    graph = outcome.schedule.graph
    first, last = SPARSE[name]
    assert graph.tensors[f"{name}.weight.velocity"].shape[0] == last - first


def test_weight_gradient_costs_and_bytes_fall_with_the_channels(tmp_path: Path) -> None:
    def figures(layers):
        graph = build_training_graph_of(layers)
        (op,) = [op for op in graph.ops if op.name == "conv1.WG"]
        return lowering_of(op).macs(op, graph.tensors), graph.tensors["conv1.weight.grad"].size_bytes

    def build_training_graph_of(layers):
        return graph_of(written(tmp_path, layers))

    macs, size_bytes = figures(CNN)
    sparse_macs, sparse_bytes = figures(sparse())
    assert (sparse_macs * 2, sparse_bytes * 2) == (macs, size_bytes), "3 of 6 channels"


@pytest.mark.needs_torch
def test_clipping_and_accumulation_take_the_part(tmp_path: Path) -> None:
    path = written(
        tmp_path, sparse(), optimizer="name: adam, learning_rate: 0.01, clip_value: 0.01, clip_norm: 0.02"
    )
    graph = graph_of(path)
    values = values_of(graph, path)
    check_against_torch(graph, values)


# Adapters

ADAPTED = changed(
    changed(changed(CNN, "conv1", "adapter: {rank: 2, alpha: 3}"), "pw", "adapter: {rank: 1}"),
    "fc",
    "adapter: {rank: 2, alpha: 8}",
)


@pytest.mark.needs_torch
@pytest.mark.parametrize("dtype", DTYPES)
def test_adapters_agree_with_torch_and_the_layer_itself_is_frozen(tmp_path: Path, dtype: str) -> None:
    path = written(tmp_path, ADAPTED, batch=2, model="train: [conv1, pw, fc]")
    graph = graph_of(path, dtype)
    check_against_torch(graph, values_of(graph, path))
    names = {f"{layer}.{part}.weight" for layer in ("conv1", "pw", "fc") for part in ("down", "up")}
    assert updated_weights(graph) == names
    assert "fc.WG" not in steps(graph)


def test_an_adapter_starts_as_the_frozen_layer(tmp_path: Path) -> None:
    from configs.model_file import load_model
    from shared.initial_values import initial_values

    path = written(tmp_path, ADAPTED)
    graph = graph_of(path)
    values = evaluate(graph, initial_values(graph, load_model(path), 0))
    np.testing.assert_array_equal(values["fc.sum.out"], values["fc.out"])
    assert np.any(values["fc.up.weight.grad"])
    assert not np.any(values["fc.down.weight.grad"]), "behind a B of zeros"


def test_an_adapter_is_alpha_over_rank_times_the_product(tmp_path: Path) -> None:
    path = written(tmp_path, ADAPTED)
    graph = graph_of(path)
    values = values_of(graph, path)
    known = evaluate(graph, values)
    x = known["flatten.out"][0].astype(np.float64)
    product = values["fc.up.weight"] @ (values["fc.down.weight"] @ x)
    expected = values["fc.weight"] @ x + values["fc.bias"] + 8 / 2 * product
    np.testing.assert_allclose(known["fc.sum.out"][0], expected, rtol=1e-5, atol=1e-6)


def test_an_adapter_needs_few_trained_numbers(tmp_path: Path) -> None:
    graph = graph_of(written(tmp_path, ADAPTED, model="train: [conv1]"))
    trained = sum(graph.tensors[name].size_bytes for name in updated_weights(graph))
    assert trained == 4 * (2 * 3 * 9 + 6 * 2)


# Recomputation


@pytest.mark.needs_torch
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_recomputed_activations_give_the_same_bits(tmp_path: Path, dtype: str) -> None:
    plain_path = written(tmp_path, batch=2)
    plain = graph_of(plain_path, dtype)
    values = values_of(plain, plain_path)
    expected = evaluate(plain, values)
    path = written(tmp_path, batch=2, model="recompute: [conv1, norm1, act1, pw]")
    graph = graph_of(path, dtype)
    ours = check_against_torch(graph, values)
    for name in (*plain.updates.values(), *plain.gradients.values()):
        assert np.array_equal(ours[name], expected[name]), name


def test_ops_come_again_just_before_the_backward_pass_needs_them(tmp_path: Path) -> None:
    graph = graph_of(written(tmp_path, model="recompute: [act1, pw, act2]"))
    names = steps(graph)
    again = [name for name in names if ".again" in name]
    assert again == ["act1.again.FW", "pw.again.FW", "act2.again.FW"]
    assert names[names.index("dw.WG") - 3 : names.index("dw.WG")] == again, "all of the chain for dw's input"
    reads = {name for op in graph.ops[names.index("dw.WG") :] for name in op.inputs}
    assert not reads & {"act1.out", "pw.out", "act2.out"}


def test_a_layer_whose_results_nobody_reads_again_is_computed_once(tmp_path: Path) -> None:
    graph = graph_of(written(tmp_path, changed(CNN, "fc", "recompute: true")))
    assert not [name for name in steps(graph) if ".again" in name]


def test_running_statistics_are_updated_once(tmp_path: Path) -> None:
    plain = graph_of(written(tmp_path))
    path = written(tmp_path, model="recompute: [norm1, act1]")
    graph = graph_of(path)
    assert graph.updates == plain.updates
    values = values_of(graph, path)
    once, twice = evaluate(plain, values), evaluate(graph, values)
    assert np.array_equal(once["norm1.running_mean_updated"], twice["norm1.running_mean_updated"])


BLOCKS = (
    "{name: conv1, type: conv2d, out_channels: 8, kernel: 3, padding: 1}",
    "{name: act1, type: tanh}",
    "{name: conv2, type: conv2d, out_channels: 8, kernel: 3, padding: 1}",
    "{name: act2, type: tanh}",
    "{name: conv3, type: conv2d, out_channels: 8, kernel: 3, padding: 1}",
    "{name: act3, type: tanh}",
    "{name: pool, type: global_avg_pool}",
    "{name: flatten, type: flatten}",
    "{name: fc, type: linear, out_features: 2}",
)


def test_recomputation_trades_cycles_for_bytes(tmp_path: Path) -> None:
    """One row per choice of layers: less to keep, more to compute, the same loss.

    With the second block, too, both recomputed outputs are there beside the gradient of conv3's weight.
    """
    rows = {}
    for layers in ("", "conv1, act1", "conv1, act1, conv2, act2"):
        path = written(tmp_path, BLOCKS, shape="[8, 16, 16]", model=f"recompute: [{layers}]")
        summary = run_model(path).summary
        tensors_bytes = summary["peak_bytes"]["l2"] - summary["code_bytes"]
        rows[layers] = (tensors_bytes, summary["cycles"], summary["loss"])
    sizes, cycles, losses = zip(*rows.values(), strict=True)
    assert len(set(losses)) == 1
    assert list(cycles) == sorted(set(cycles)), rows
    assert sizes[0] > sizes[2] > sizes[1], rows
    assert sizes[2] - sizes[1] == 8 * 8 * 3 * 3 * 4, rows


# All together

FORMS = {
    "conv1": ("", "trainable: false", "update_channels: [2, 5]", "adapter: {rank: 2, alpha: 1}"),
    "pw": ("", "trainable: [weight]", "update_channels: 3", "adapter: {rank: 3}"),
    "dw": ("", "trainable: false", "update_channels: [1, 2]", "dtype: fp32"),
    "fc": ("", "trainable: [weight]", "update_channels: [1, 4]", "adapter: {rank: 1, alpha: 2}"),
}


@pytest.mark.needs_torch
@settings(max_examples=30)
@given(
    forms=st.fixed_dictionaries({name: st.sampled_from(forms) for name, forms in FORMS.items()}),
    again=st.lists(st.sampled_from(("conv1", "norm1", "act1", "pw", "act2", "dw", "fc")), unique=True),
    dtype=st.sampled_from(DTYPES),
    batch=st.integers(1, 3),
    clip=st.sampled_from(("", ", clip_value: 0.05", ", clip_norm: 0.1")),
)
def test_any_mixture_of_forms_agrees_with_torch(
    tmp_path_factory: pytest.TempPathFactory, forms, again, dtype, batch, clip
) -> None:
    layers = CNN
    for name, more in forms.items():
        layers = changed(layers, name, more) if more else layers
    path = written(
        tmp_path_factory.mktemp("mixture"),
        layers,
        batch=batch,
        model=f"recompute: [{', '.join(again)}]",
        optimizer=f"name: sgd_momentum, learning_rate: 0.3{clip}",
    )
    graph = graph_of(path, dtype)
    check_against_torch(graph, values_of(graph, path))


# Bad input


@pytest.mark.parametrize(
    ("layers", "model", "message"),
    [
        (CNN, "train: first", r"form\.yaml:\d+: unknown word for 'train' 'first'"),
        (CNN, "train: [fcc]", r"form\.yaml:9: unknown layer 'fcc'\n  try: .*fc"),
        (CNN, "train: [flatten]", r"form\.yaml:1: 'train' names only layers without parameters: flatten"),
        (CNN, "recompute: [conv9]", r"form\.yaml:9: unknown layer 'conv9'"),
        (CNN, "recompute: conv1", r"form\.yaml:9: .*recompute"),
        (
            changed(CNN, "fc", "trainable: false"),
            "train: [fc]",
            r"form\.yaml:18: 'train' lists layer 'fc', but the layer has 'trainable: false'",
        ),
        (changed(CNN, "fc", "trainable: [wieght]"), "", r"form\.yaml:18: .*'trainable' names 'wieght'"),
        (
            changed(CNN, "fc", "trainable: [bias]"),
            "",
            r"form\.yaml:18: .*parameters, so 'weight' must be trained",
        ),
        (changed(CNN, "fc", "trainable: 3"), "", r"form\.yaml:18: .*trainable"),
        (
            changed(CNN, "fc", "update_channels: 5"),
            "",
            r"form\.yaml:18: .*\[0, 5\] needs 5 output channels, but the layer has 4",
        ),
        (changed(CNN, "fc", "update_channels: 0"), "", r"form\.yaml:18: .*update_channels"),
        (
            changed(CNN, "fc", "update_channels: [2, 2]"),
            "",
            r"form\.yaml:18: the range of channels \[2, 2\) is empty",
        ),
        (changed(CNN, "fc", "update_channels: [1, 2, 3]"), "", r"form\.yaml:18: .*update_channels"),
        (changed(CNN, "norm1", "update_channels: 1"), "", r"form\.yaml:12: .*cannot train only some"),
        (changed(CNN, "fc", "adapter: {rank: 0}"), "", r"form\.yaml:18: .*rank"),
        (changed(CNN, "fc", "adapter: {rnak: 1}"), "", r"form\.yaml:18: unknown key 'rnak'"),
        (changed(CNN, "fc", "adapter: 4"), "", r"form\.yaml:18: adapter of .* must be a mapping"),
        (
            changed(CNN, "dw", "adapter: {rank: 1}"),
            "",
            r"form\.yaml:16: .*a layer of type depthwise cannot have an adapter",
        ),
        (
            changed(CNN, "fc", "adapter: {rank: 1}, update_channels: 1"),
            "",
            r"'update_channels' cannot be used with",
        ),
        (changed(CNN, "fc", "adapter: {rank: 1}, trainable: false"), "", r"'trainable' cannot be used with"),
    ],
)
def test_wrong_forms_are_refused_with_their_place(tmp_path: Path, layers, model, message) -> None:
    from configs.model_file import load_model

    path = written(tmp_path, layers, model=model)
    with pytest.raises(InputError, match=message):
        build_training_graph(load_model(path))
