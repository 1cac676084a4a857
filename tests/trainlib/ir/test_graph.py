# SPDX-License-Identifier: Apache-2.0
"""From a model to a training graph: op order, derived backward, views, errors that name layer and line."""

import pytest

from configs.errors import ConfigError, InputError, ShapeError, UnsupportedLayerError
from configs.model_file import LayerSpec, LossSpec, ModelSpec, OptimizerSpec, load_model
from configs.values import replace
from shared.agreement import compare, graph_tolerance
from shared.initial_values import initial_values
from shared.oracle_torch import evaluate_torch
from trainlib.references.reference import evaluate
from trainlib.registry import lowering_of
from trainlib.training.phases import build_training_graph


def layer(name, kind, **attributes):
    return LayerSpec(name, kind, attributes, f"net.yaml:{len(name) + 3}")


def model(*layers, input_shape=(1, 8, 8), loss="mse"):
    sgd = OptimizerSpec("sgd", {"learning_rate": 0.01}, "net.yaml:2")
    return ModelSpec(
        "net", "test", "test", input_shape, "random", LossSpec(loss), sgd, 1, layers, "net.yaml:1"
    )


@pytest.mark.smoke
def test_ops_of_digits_cnn_in_execution_order():
    graph = build_training_graph(load_model("digits-cnn"))
    assert [op.name for op in graph.ops] == [
        "conv1.FW", "relu1.FW", "conv2.FW", "relu2.FW", "fc.FW",
        "loss.LOSS",
        "fc.WG", "fc.IG", "relu2.IG", "conv2.WG", "conv2.IG", "relu1.IG", "conv1.WG",
        "conv1.UPD", "conv2.UPD", "fc.UPD",
    ]  # fmt: skip
    assert graph.weights == ("conv1.weight", "conv2.weight", "fc.weight")
    assert graph.tensors["fc.weight"].shape == (10, 576)
    assert graph.tensors["conv2.out"].shape == (1, 16, 6, 6)


def test_macs_of_the_tutorial_step():
    graph = build_training_graph(load_model("tutorial-cnn"))
    macs = {op.name: lowering_of(op).macs(op, graph.tensors) for op in graph.ops}
    # Published extents: conv N=16 K=72 M=36, linear 576 -> 32. The first layer has no input gradient.
    assert macs["conv1.FW"] == macs["conv1.WG"] == 16 * 72 * 36
    assert macs["fc.FW"] == macs["fc.WG"] == macs["fc.IG"] == 576 * 32
    assert "conv1.IG" not in macs
    assert macs["relu1.FW"] == macs["fc.UPD"] == macs["loss.LOSS"] == 0


def test_matmul_kernel_by_default_is_the_library_s_and_column_parallel_for_the_row_vector():
    graph = build_training_graph(load_model("digits-cnn"))
    defaults = {op.name: lowering_of(op).default_kernel(op) for op in graph.ops}
    assert defaults["fc.IG"] == "mm_M"
    assert {defaults[name] for name in ("conv1.FW", "conv2.IG", "conv2.WG", "fc.FW", "fc.WG")} == {"mm"}
    assert defaults["relu1.FW"] == ""


def test_flatten_is_a_view_in_both_directions():
    graph = build_training_graph(load_model("digits-cnn"))
    assert graph.tensors["flatten.out"].alias_of == "relu2.out"
    assert graph.tensors["relu2.out.grad"].alias_of == "flatten.out.grad"
    assert graph.is_view("flatten.out")
    assert graph.is_view("relu2.out.grad")
    assert not graph.is_view("fc.weight_updated")
    assert graph.storage_of("fc.weight_updated") == "fc.weight"
    assert graph.storage_of("relu2.out.grad") == "flatten.out.grad"


def test_no_input_gradient_before_the_first_weight():
    graph = build_training_graph(
        model(layer("act", "relu"), layer("flat", "flatten"), layer("fc", "linear", out_features=3))
    )
    assert [op.name for op in graph.ops] == ["act.FW", "fc.FW", "loss.LOSS", "fc.WG", "fc.UPD"]


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        (
            (layer("conv", "conv2d", out_channels=2, kernel=9),),
            "kernel 9x9 is larger than the padded input 8x8",
        ),
        ((layer("conv", "conv2d", out_channels=2, kernel=3, padding=3),), "padding 3 must be smaller"),
        (
            (layer("conv", "conv2d", out_channels=0, kernel=3),),
            "'out_channels' of layer 'conv' .conv2d. is 0",
        ),
        ((layer("conv", "linear", out_features=4),), "linear needs a vector"),
        ((layer("flat", "flatten"), layer("conv", "conv2d", out_channels=2, kernel=3)), "needs an image"),
        (
            (layer("flat", "flatten"), layer("conv", "linear", out_features=-1)),
            "'out_features' of layer 'conv' .linear. is -1",
        ),
    ],
)
def test_shape_error_names_layer_and_line(layers, message):
    with pytest.raises(InputError, match=message) as caught:
        build_training_graph(model(*layers))
    assert caught.value.where in ("net.yaml:7: layer conv", "net.yaml:7")
    assert caught.value.exit_code == 2


def test_other_mistakes_in_a_model():
    conv = layer("conv", "conv2d", out_channels=2, kernel=3)
    with pytest.raises(ShapeError, match="the model has no weights to train"):
        build_training_graph(model(layer("act", "relu")))
    with pytest.raises(ShapeError, match="two layers have the name conv"):
        build_training_graph(model(conv, conv))
    with pytest.raises(ConfigError, match="unknown key 'kernal'"):
        build_training_graph(model(layer("conv", "conv2d", out_channels=2, kernel=3, kernal=3)))
    with pytest.raises(UnsupportedLayerError, match="unknown dtype 'fp8'"):
        build_training_graph(replace(model(conv), dtype="fp8"))
    with pytest.raises(ShapeError, match="a loss over classes needs scores"):
        build_training_graph(model(replace(conv, layout="HWC"), loss="cross_entropy"))


def test_unknown_words_are_answered_with_the_nearest_known_one():
    with pytest.raises(UnsupportedLayerError, match="unknown layer type 'conv2'") as caught:
        build_training_graph(model(layer("conv", "conv2")))
    assert "'conv2d'" in caught.value.cure
    assert "mse" not in caught.value.cure
    with pytest.raises(UnsupportedLayerError, match="unknown loss 'sgd'"):
        build_training_graph(model(layer("conv", "conv2d", out_channels=1, kernel=1), loss="sgd"))


def residual(batch=1, **more):
    """conv1 feeds conv2 and the sum; the sum feeds itself twice more: gradients of 2 and of 2 users meet."""
    layers = (
        layer("conv1", "conv2d", out_channels=2, kernel=3, padding=1),
        layer("act", "relu"),
        layer("conv2", "conv2d", out_channels=2, kernel=3, padding=1),
        replace(layer("sum", "add"), inputs=("act", "conv2")),
        replace(layer("twice", "add"), inputs=("sum", "sum")),
        layer("flat", "flatten"),
        layer("fc", "linear", out_features=3, bias=True),
    )
    return replace(model(*layers, input_shape=(1, 5, 4)), batch=batch, **more)


def agree(spec, seed=0):
    """Untiled NumPy against PyTorch in every tensor PyTorch knows, within the tolerance of the graph."""
    graph = build_training_graph(spec)
    values = initial_values(graph, spec, seed)
    differences = compare(evaluate(graph, values), evaluate_torch(graph, values), known(graph, values))
    worst = max(differences, key=lambda name: differences[name].max_rel_error)
    assert differences[worst].max_rel_error <= graph_tolerance(graph), worst
    return graph


def known(graph, values):
    return [name for name in evaluate_torch(graph, values) if name in graph.tensors]


@pytest.mark.needs_torch
@pytest.mark.parametrize("batch", [1, 3])
def test_gradients_of_a_tensor_with_several_users_are_summed_by_ops(batch):
    graph = agree(residual(batch))
    assert [op.name for op in graph.ops if op.step == "ACC"] == ["sum.ACC", "act.ACC"]
    # Both contributions to sum.out.grad are views of one tensor, so their sum gets storage of its own ...
    assert graph.tensors["sum.out.grad"].alias_of is None
    # ... while conv2's input gradient is nobody else's: the sum takes its place.
    assert graph.storage_of("act.out.grad") == "act.out.grad@conv2"
    assert {name for name, grad in graph.gradients.items() if grad} == {
        "conv1.weight", "conv2.weight", "fc.weight", "fc.bias",
    }  # fmt: skip
    assert [op.name for op in graph.ops if op.step == "UPD"][-2:] == ["fc.UPD", "fc.bias.UPD"]


@pytest.mark.needs_torch
def test_frozen_layers_are_not_trained_and_stop_the_backward_pass():
    spec = residual()
    frozen = [replace(item, trainable=item.name == "fc") for item in spec.layers]
    graph = agree(replace(spec, layers=tuple(frozen)))
    assert [op.name for op in graph.ops if op.step in ("WG", "IG", "ACC", "UPD")] == [
        "fc.WG", "fc.UPD", "fc.bias.UPD",
    ]  # fmt: skip
    # A frozen layer in the middle still passes gradients on.
    middle = [replace(item, trainable=item.name != "conv2") for item in spec.layers]
    names = [op.name for op in agree(replace(spec, layers=tuple(middle))).ops]
    assert "conv2.IG" in names
    assert not {"conv2.WG", "conv2.UPD"} & set(names)


@pytest.mark.needs_torch
@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_casts_stand_where_the_format_changes_forward_and_backward(dtype):
    graph = agree(residual(2, dtype=dtype))
    assert [op.name for op in graph.ops if op.primitive == "cast"] == [
        "conv1.cast.FW", "fc.loss.cast.FW", "fc.loss.cast.IG",
    ]  # fmt: skip
    spec = residual()
    mixed = [replace(item, dtype=dtype if item.name == "conv2" else None) for item in spec.layers]
    graph = agree(replace(spec, layers=tuple(mixed)))
    casts = [op.name for op in graph.ops if op.primitive == "cast"]
    assert casts == ["conv2.cast.FW", "sum.cast.FW", "sum.cast.IG", "conv2.cast.IG"]
    assert graph.tensors["conv2.weight.grad"].size_bytes == 2 * 2 * 2 * 9


def test_a_branch_that_leads_nowhere_and_an_unknown_input_are_refused():
    conv, act = layer("conv", "conv2d", out_channels=1, kernel=1), layer("act", "relu")
    with pytest.raises(ShapeError, match="no layer and no loss uses the output"):
        build_training_graph(model(conv, act, replace(layer("other", "relu"), inputs=("conv",))))
    with pytest.raises(ShapeError, match="input 'conf' is not an earlier layer") as caught:
        build_training_graph(model(conv, replace(act, inputs=("conf",))))
    assert "'conv'" in caught.value.cure
    with pytest.raises(ShapeError, match="takes 2 inputs, but has 1"):
        build_training_graph(model(conv, layer("sum", "add")))
