"""From a model to a training graph: op order, derived backward, views, errors that name layer and line."""

import dataclasses

import networkx as nx
import pytest

from configs.errors import ShapeError, UnsupportedLayerError
from configs.model_file import LayerSpec, ModelSpec, OptimizerSpec, load_model
from trainlib.registry import PRIMITIVES, lowering_of
from trainlib.training import build_training_graph


def layer(name, kind, **attributes):
    return LayerSpec(name, kind, attributes, f"net.yaml:{len(name) + 3}")


def model(*layers, input_shape=(1, 8, 8), loss="mse"):
    sgd = OptimizerSpec("sgd", 0.01, "net.yaml:2")
    return ModelSpec("net", "test", "test", input_shape, "random", loss, sgd, 1, layers, "net.yaml:1")


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
    assert graph.tensors["conv2.out"].shape == (16, 6, 6)


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


def test_dependences_go_through_views_and_follow_the_op_order():
    graph = build_training_graph(load_model("digits-cnn"))
    digraph = graph.digraph()
    assert digraph.has_edge("relu2.FW", "fc.FW")
    assert digraph.has_edge("fc.IG", "relu2.IG")
    assert nx.is_directed_acyclic_graph(digraph)
    position = {op.name: index for index, op in enumerate(graph.ops)}
    assert all(position[source] < position[target] for source, target in digraph.edges)


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
        ((layer("conv", "conv2d", out_channels=2, kernel=3, padding=3),), "padding 3 is not smaller"),
        ((layer("conv", "conv2d", out_channels=0, kernel=3),), "out_channels 0"),
        ((layer("conv", "linear", out_features=4),), "linear needs a vector"),
        ((layer("flat", "flatten"), layer("conv", "conv2d", out_channels=2, kernel=3)), "needs an image"),
        ((layer("flat", "flatten"), layer("conv", "linear", out_features=-1)), "at least 1, it is -1"),
    ],
)
def test_shape_error_names_layer_and_line(layers, message):
    with pytest.raises(ShapeError, match=message) as caught:
        build_training_graph(model(*layers))
    assert caught.value.where == "net.yaml:7: layer conv"
    assert caught.value.exit_code == 2


def test_other_mistakes_in_a_model():
    conv = layer("conv", "conv2d", out_channels=2, kernel=3)
    with pytest.raises(ShapeError, match="vector of logits"):
        build_training_graph(model(conv, loss="cross_entropy"))
    with pytest.raises(ShapeError, match="nothing to train"):
        build_training_graph(model(layer("act", "relu")))
    with pytest.raises(ShapeError, match="two layers are called conv"):
        build_training_graph(model(conv, conv))
    with pytest.raises(UnsupportedLayerError, match="batch 4"):
        build_training_graph(dataclasses.replace(model(conv), batch=4))


def test_unknown_words_are_answered_with_the_nearest_known_one():
    with pytest.raises(UnsupportedLayerError, match="layer type called 'conv2'") as caught:
        build_training_graph(model(layer("conv", "conv2")))
    assert "'conv2d'" in caught.value.cure
    assert "mse" not in caught.value.cure
    with pytest.raises(UnsupportedLayerError, match="loss called 'sgd'"):
        build_training_graph(model(layer("conv", "conv2d", out_channels=1, kernel=1), loss="sgd"))


def test_every_primitive_is_registered_under_its_own_name():
    assert {name: primitive.name for name, primitive in PRIMITIVES.items()} == {
        name: name for name in ("conv2d", "linear", "relu", "flatten", "cross_entropy", "mse", "sgd")
    }
