# SPDX-License-Identifier: Apache-2.0
"""Model files: what is read, which line each layer came from, and every way to get them wrong."""

import pytest

from configs.datasets import DIGITS_PIXEL_MAX, load_digits_arrays
from configs.errors import ConfigError, InputError, MistakesError
from configs.library import list_names
from configs.model_file import LayerSpec, load_model
from trainlib.training.options import check_options
from trainlib.training.phases import build_training_graph


def test_digits_cnn():
    model = load_model("digits-cnn")
    assert (model.input_shape, model.dataset, model.loss.name, model.batch) == (
        (1, 8, 8),
        "digits",
        "cross_entropy",
        1,
    )
    assert model.optimizer.name == "sgd"
    assert [(layer.name, layer.type, dict(layer.attributes)) for layer in model.layers] == [
        ("conv1", "conv2d", {"out_channels": 8, "kernel": 3, "padding": 1}),
        ("relu1", "relu", {}),
        ("conv2", "conv2d", {"out_channels": 16, "kernel": 3}),
        ("relu2", "relu", {}),
        ("flatten", "flatten", {}),
        ("fc", "linear", {"out_features": 10}),
    ]


@pytest.mark.smoke
def test_tutorial_cnn():
    model = load_model("tutorial-cnn")
    assert (model.input_shape, model.dataset, model.loss.name) == ((8, 8, 8), "random", "mse")
    assert model.layers[-1].attributes == {"out_features": 32}
    # Parameters of the published step: 16*8*3*3 + 576*32 weights, no biases.
    assert 16 * 8 * 3 * 3 + 576 * 32 == 19584


@pytest.mark.smoke
@pytest.mark.parametrize("name", list_names("models"))
def test_installed_models_load(name):
    assert load_model(name).name == name


MODEL = """\
name: m
description: d
source: s
input: {shape: [3]}
dataset: random
loss: mse
optimizer: {name: sgd, learning_rate: 1.0}
layers:
  - {name: fc, type: linear, out_features: 2}
  - {name: act, type: relu}
"""


def test_description_source_and_dataset_may_be_left_out(tmp_path):
    path = tmp_path / "m.yaml"
    text = MODEL.replace("description: d\n", "").replace("source: s\n", "").replace("dataset: random\n", "")
    path.write_text(text)
    assert (spec := load_model(path)).description == spec.source == ""
    assert spec.dataset == "random"


def test_every_model_that_ships_says_what_it_is_and_where_it_comes_from():
    for name in list_names("models"):
        spec = load_model(name)
        assert len(spec.description) > 10, name
        assert len(spec.source) > 5, name


def test_all_mistakes_of_a_model_are_told_at_once(tmp_path):
    """Those of the header, of every layer, of loss and optimizer; a misspelt key is not missed as well."""
    path = tmp_path / "m.yaml"
    text = MODEL.replace("loss: mse", "loss: mze").replace("out_features: 2", "out_feature: 2")
    path.write_text(text.replace("description: d", "batch: two").replace("type: relu", "type: relo"))
    with pytest.raises(MistakesError) as caught:
        load_model(path, check_options)
    found = [(error.where.split(":")[1], error.message) for error in caught.value.errors]
    assert [line for line, _ in found] == ["2", "6", "9", "10"]
    for (_, message), part in zip(found, ("batch", "mze", "out_feature", "relo"), strict=True):
        assert part in message


def test_layers_know_their_lines(tmp_path):
    path = tmp_path / "m.yaml"
    path.write_text(MODEL)
    assert load_model(str(path)).layers == (
        LayerSpec("fc", "linear", {"out_features": 2}, f"{path}:9"),
        LayerSpec("act", "relu", {}, f"{path}:10"),
    )


@pytest.mark.parametrize(
    ("old", "new", "line", "message"),
    [
        ("type: linear", "type: liner", 9, "unknown layer type 'liner'\n  try: use 'linear'"),
        ("type: relu", "type: ReLU6", 10, "'clip, low: 0, high: 6'"),
        ("out_features: 2", "out_feature: 2", 9, "unknown key 'out_feature' in layer 'fc' (linear)"),
        (", out_features: 2", "", 9, "layer 'fc' (linear) has no 'out_features'"),
        ("out_features: 2", "out_features: 0", 9, "must be 1 or more"),
        ("out_features: 2", "out_features: two", 9, "must be a whole number"),
        ("out_features: 2", "out_features: 2.5", 9, "must be a whole number"),
        ("type: relu", "type: relu, kernel: 3", 10, "unknown key 'kernel' in layer 'act' (relu)"),
        ("name: act, ", "", 10, "layer 2 has no 'name'"),
        (", type: relu", "", 10, "layer 2 has no 'type'"),
        ("name: act", "name: fc", 10, "two layers have the name 'fc', the first in line 9"),
        ("name: act", "name: a b", 10, "'name' of layer 'a b' (relu)"),
        ("{name: act, type: relu}", "relu", 10, "layer 2 must be a mapping, not the text 'relu'"),
        ("type: relu", "type: [relu]", 10, "'type' of layer 2 must be a word, not a list"),
        ("dataset: random", "dataset: digit", 5, "unknown dataset 'digit'\n  try: use 'digits'"),
        ("dataset: random", "dataset: digits", 4, "inputs of shape [1, 8, 8], but the model has [3]"),
        ("loss: mse", "loss: msa", 6, "unknown loss 'msa'\n  try: use 'mse'"),
        ("name: sgd", "name: adams", 7, "unknown optimizer 'adams'"),
        ("1.0", "-1.0", 7, "must be a number above 0"),
        ("1.0", ".inf", 7, "finite"),
        ("1.0", "fast", 7, "must be a number"),
        ("[3]", "[-3]", 4, "item 1 of 'shape'"),
        ("[3]", "3", 4, "must be a list"),
        ("{shape: [3]}", "[3]", 4, "'input' must be a mapping, not a list"),
        ("loss: mse", "loss: mse\nbatch: 0", 7, "'batch' of the model is 0"),
        ("type: relu", "type: relu, trainable: 3", 10, "'trainable' of layer 'act' (relu) is 3"),
        ("loss: mse\n", "", 1, "the model has no 'loss'"),
        (
            "description: d",
            "descripton: d",
            2,
            "unknown key 'descripton' in the model\n  try: use 'description'",
        ),
        ("loss: mse", "loss: mse\nloss: mse", 7, "duplicate key 'loss'"),
        (
            "  - {name: fc, type: linear, out_features: 2}\n  - {name: act, type: relu}\n",
            "  []\n",
            8,
            "is a list without entries, but needs one",
        ),
    ],
)
def test_refused_models(tmp_path, old, new, line, message):
    assert old in MODEL
    path = tmp_path / "m.yaml"
    path.write_text(MODEL.replace(old, new))
    with pytest.raises(InputError) as caught:
        build_training_graph(load_model(path))
    assert str(caught.value.where).split(": layer")[0] == f"{path}:{line}"
    assert message in str(caught.value)


def test_options_are_checked_when_the_file_is_read(tmp_path):
    """The last layer's, though no shape of the first fits: nothing is built for it."""
    path = tmp_path / "m.yaml"
    text = MODEL.replace("out_features: 2", "out_features: 2, bias: true, inputs: [input, input]")
    path.write_text(text.replace("type: relu", "type: relu, slope: 0.1"))
    with pytest.raises(ConfigError, match="unknown key 'slope' in layer 'act'") as caught:
        load_model(path, check_options)
    assert caught.value.where == f"{path}:10"
    assert load_model(path).layers[1].attributes == {"slope": 0.1}


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("type: relu", "type: rellu", "unknown layer type 'rellu'"),
        ("loss: mse", "loss: {name: mse, alpha: 1}", "unknown key 'alpha'"),
        ("learning_rate", "rate", "unknown key 'rate'"),
        ("{name: sgd, learning_rate: 1.0}", "adam", "{name: adam, learning_rate: 0.01}"),
        ("learning_rate: ", "accumulate: 0, learning_rate: ", "'accumulate'"),
    ],
)
def test_so_are_types_losses_and_optimizers(tmp_path, old, new, message):
    assert old in MODEL
    path = tmp_path / "m.yaml"
    path.write_text(MODEL.replace(old, new))
    with pytest.raises(InputError, match=message):
        load_model(path, check_options)


def test_unknown_model():
    with pytest.raises(ConfigError, match=r"unknown model 'digit-cnn'\n  try: use 'digits-cnn' \(known: "):
        load_model("digit-cnn")


def test_digits_arrays():
    images, labels = load_digits_arrays()
    assert (images.shape, images.dtype, labels.shape, labels.dtype) == (
        (1797, 8, 8),
        "uint8",
        (1797,),
        "uint8",
    )
    assert (int(images.min()), int(images.max())) == (0, DIGITS_PIXEL_MAX)
    # Digits per class as the UCI repository states them for its test part.
    counts = [int((labels == digit).sum()) for digit in range(10)]
    assert counts == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    # First image, a zero: dark ring around a blank centre.
    assert images[0].tolist()[3] == [0, 4, 12, 0, 0, 8, 8, 0]
    assert labels[:10].tolist() == list(range(10))
