# SPDX-License-Identifier: Apache-2.0
"""Models of ours as ONNX files: what onnx computes from them, and what comes back when they are read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from configs.errors import InputError
from configs.library import list_names
from configs.model_file import LayerSpec, LossSpec, ModelSpec, OptimizerSpec
from configs.values import replace
from importers.export.writer import WRITERS, onnx_bytes, read_own
from importers.graph.onnx_file import load_onnx
from importers.onnx.forward import import_forward
from pulptrain.__main__ import run
from shared.printed import printed
from trainlib.primitives.definition import LayerPrimitive
from trainlib.references.reference import evaluate
from trainlib.registry import PRIMITIVES
from trainlib.training.options import check_options
from trainlib.training.phases import build_training_graph, initial_weights
from trainlib.training.training_data import sample_stream

pytestmark = pytest.mark.needs_onnx


def spec_of(
    layers: Sequence[LayerSpec], shape: Sequence[int], *, classes: int = 0, batch: int = 2
) -> ModelSpec:
    """A model around these layers."""
    return ModelSpec(
        name="net",
        description="",
        source="",
        input_shape=tuple(shape),
        dataset="random",
        loss=LossSpec("mse"),
        optimizer=OptimizerSpec("sgd", {"learning_rate": 0.05}, "here"),
        batch=batch,
        layers=tuple(layers),
        where="here",
        input_classes=classes,
    )


def layer(kind: str, name: str = "", inputs: Sequence[str] | None = None, **options: Any) -> LayerSpec:
    """A layer, called as its type if it has no name."""
    return LayerSpec(
        name or f"{kind}_a", kind, options, "here", tuple(inputs) if inputs is not None else None
    )


@dataclass(frozen=True)
class Case:
    """Layers on an input; `other` are the types a reader draws that knows nothing of us, and why.

    These are empty where they do not matter, None where it refuses the graph.
    """

    layers: Sequence[LayerSpec]
    shape: Sequence[int] = (6,)
    classes: int = 0
    other: tuple[Sequence[str], str] | None = None
    computed: bool = True
    """False where onnx's reference implementation fails: groups of several channels in ConvTranspose."""

    @property
    def spec(self) -> ModelSpec:
        """The layers behind a trained one, so that gradients flow through all of them."""
        if self.classes:
            return spec_of(self.layers, self.shape, classes=self.classes)
        named = [
            replace(item, inputs=tuple("first" if word == "input" else word for word in item.inputs))
            if item.inputs and item.type != "parameter"
            else item
            for item in self.layers
        ]
        return spec_of([layer("position", "first"), *named], self.shape)

    def __str__(self) -> str:
        return "-".join([*(item.type for item in self.layers), "x".join(str(size) for size in self.shape)])


def one(kind: str, shape: Sequence[int] = (6,), **options: Any) -> Case:
    """One layer on the network's input."""
    return Case([layer(kind, **options)], shape)


def two(kind: str, shape: Sequence[int] = (6,)) -> Case:
    """A layer of two tensors, behind layers that make them different."""
    parts = [layer("exponential", inputs=["input"]), layer("shift", inputs=["input"], offset=3.0)]
    return Case([*parts, layer(kind, inputs=["exponential_a", "shift_a"])], shape)


IMAGE, ROWS = (4, 7, 6), (5, 6)
CASES = [
    *(one(kind) for kind in ("relu", "sigmoid", "tanh", "silu", "gelu", "hard_swish", "exponential")),
    *(one(kind) for kind in ("floor", "ceil", "round", "sine")),
    *(one(kind) for kind in ("error_function", "absolute", "square", "softmax", "hard_sigmoid", "elu")),
    *(one(kind) for kind in ("softplus", "mish", "log_softmax", "prelu")),
    one("prelu", (4, 5), per_channel=True),
    one("reduce_max", (4, 5), axes=[1], keep_dims=True),
    one("reduce_min", IMAGE, axes=[1, 2], keep_dims=True),
    one("leaky_relu", slope=0.2),
    one("gelu", form="tanh"),
    one("elu", alpha=0.5),
    one("hard_sigmoid", alpha=0.3, beta=0.4),
    one("scale", factor=0.3),
    one("shift", offset=-0.2),
    one("clip", low=-0.3, high=0.5),
    one("clip", high=0.5),
    one("compare", form="gt", value=0.1),
    Case([layer("shift", offset=2.0), layer("logarithm"), layer("square_root", inputs=["shift_a"])][:2]),
    Case([layer("shift", offset=2.0), layer("square_root")]),
    Case([layer("shift", offset=2.0), layer("reciprocal")]),
    Case([layer("shift", offset=2.0), layer("power", exponent=1.5)]),
    *(two(kind) for kind in ("add", "multiply", "subtract", "divide", "maximum", "minimum")),
    replace(
        two("swiglu"),
        other=(["exponential", "shift", "silu", "multiply"], "no ONNX op: SiLU and a product"),
    ),
    Case(
        [
            layer("relu"),
            layer("exponential", inputs=["input"]),
            layer("shift", inputs=["input"], offset=1.0),
            layer("where", inputs=["relu_a", "exponential_a", "shift_a"]),
        ],
        other=(
            ["relu", "exponential", "shift", "compare", "where"],
            "ONNX's Where wants booleans, which a comparison makes",
        ),
    ),
    Case([layer("relu"), layer("transpose", axes=[1, 0]), layer("softmax")], ROWS),
    Case(
        [layer("relu"), layer("transpose", axes=[2, 0, 1]), layer("softmax")],
        (3, 4, 5),
        other=(
            ["relu", "reshape", "transpose", "reshape", "softmax"],
            "dimensions that stay together are one",
        ),
    ),
    Case([layer("relu"), layer("reshape", shape=[3, 10]), layer("softmax")], ROWS),
    Case([layer("flatten"), layer("linear", out_features=3)], IMAGE),
    Case([layer("pad", pads=[[1, 2], [0, 1]], value=0.5)], ROWS),
    Case([layer("slice", axis=1, start=2, stop=5)], ROWS),
    Case([layer("flip", axes=[0, 1])], ROWS, other=(["flip", "flip"], "a Slice of each dimension")),
    Case(
        [layer("split", axis=1, sizes=[2, 4]), layer("concat", axis=1, inputs=["split_a.1", "split_a"])], ROWS
    ),
    replace(
        one("reduce_mean", ROWS, axes=[1]),
        other=(["reduce_mean", "flatten"], "the dimension is kept, then left out by a view"),
    ),
    one("reduce_mean", ROWS, axes=[0], keep_dims=True),
    one("reduce_sum", ROWS, axes=[0], keep_dims=True),
    Case([layer("reduce_sum", axes=[1], keep_dims=True), layer("expand", shape=[5, 6])], ROWS),
    Case(
        [
            layer("reduce_sum", axes=[1], keep_dims=True),
            layer("broadcast_add", inputs=["reduce_sum_a", "input"]),
        ],
        ROWS,
    ),
    one("position", ROWS),
    one("class_token", ROWS),
    Case(
        [
            layer("parameter", inputs=["input"], shape=[5, 1]),
            layer("broadcast_add", inputs=["input", "parameter_a"]),
        ],
        ROWS,
    ),
    one("linear", out_features=4, bias=True),
    one("linear", ROWS, out_features=4, bias=True),
    one("linear", ROWS, out_features=4),
    one("conv2d", IMAGE, out_channels=3, kernel=3, padding=1, bias=True),
    one("conv2d", IMAGE, out_channels=3, kernel=[3, 2], stride=2, padding=[0, 1, 1, 0]),
    one("conv2d", IMAGE, out_channels=6, kernel=2, groups=2, dilation=2),
    one("pointwise", IMAGE, out_channels=3, bias=True),
    one("depthwise", IMAGE, kernel=3, padding=1, stride=2),
    one("conv1d", (4, 9), out_channels=3, kernel=3, padding=[2, 0], bias=True),
    one("conv1d", (4, 9), out_channels=6, kernel=2, groups=2, stride=2),
    one(
        "conv_transpose2d", IMAGE, out_channels=3, kernel=3, stride=2, padding=1, output_padding=1, bias=True
    ),
    one("conv_transpose2d", IMAGE, out_channels=4, kernel=2, groups=4),
    replace(one("conv_transpose2d", IMAGE, out_channels=6, kernel=2, groups=2), computed=False),
    one("max_pool2d", IMAGE, kernel=2),
    one("max_pool2d", IMAGE, kernel=3, stride=2, padding=1),
    one("avg_pool2d", IMAGE, kernel=[3, 2]),
    one("avg_pool2d", IMAGE, kernel=3, padding=1, stride=1),
    one("avg_pool2d", IMAGE, kernel=3, padding=1, stride=1, count_include_pad=False),
    one("global_avg_pool", IMAGE),
    one("interpolation", IMAGE, size=[9, 4]),
    one("interpolation", IMAGE, size=[9, 4], mode="bilinear"),
    one("batch_norm", IMAGE),
    one("batch_norm", IMAGE, fixed_statistics=True),
    one("batch_norm", IMAGE, momentum=0.2, eps=0.001),
    one("batch_norm", IMAGE, affine=False),
    one("layer_norm", ROWS, affine=False),
    one("instance_norm", IMAGE),
    one("group_norm", IMAGE, groups=2),
    one("layer_norm", ROWS, eps=1e-6),
    one("layer_norm", ROWS, axes=2, bias=False),
    replace(
        one("rms_norm", ROWS),
        other=(
            [],
            "RMSNormalization is younger than the opset written",
        ),
    ),
    one("gru", ROWS, hidden=3),
    one("lstm", ROWS, hidden=3),
    one("rnn", ROWS, hidden=3, bias=False),
    Case(
        [
            layer("slice", axis=0, start=0, stop=1),
            layer("flatten"),
            layer("tanh"),
            layer("lstm", inputs=["input", "flatten_a", "tanh_a"], hidden=6),
        ],
        ROWS,
        other=([], "a view is made where somebody needs it"),
    ),
    Case(
        [
            layer("slice", axis=0, start=0, stop=1),
            layer("flatten"),
            layer("linear", out_features=3),
            layer("gru", inputs=["input", "linear_a"], hidden=3),
        ],
        ROWS,
    ),
    Case([layer("embedding", vocabulary=9, features=4), layer("relu")], (5,), 9),
    Case([layer("relu"), layer("matmul", inputs=["input", "relu_a"], transpose_b=True)], ROWS),
    Case(
        [layer("transpose", axes=[1, 0]), layer("relu"), layer("matmul", inputs=["input", "relu_a"])],
        ROWS,
        other=(["relu", "matmul"], "a product reads a matrix that is stored transposed"),
    ),
    Case([layer("mhsa", heads=2, bias=True)], ROWS, other=([], "ONNX's Attention has no projections")),
    Case([layer("mhsa", heads=3)], ROWS, other=([], "ONNX's Attention has no projections")),
]


@pytest.mark.smoke
def test_every_layer_type_is_written_and_tried() -> None:
    types = {
        name for name, item in PRIMITIVES.items() if isinstance(item, LayerPrimitive) and not item.internal
    }
    # A graph of ONNX cannot change its own weights.
    assert types - {"projected"} == set(WRITERS)
    # Dropout draws masks of its own in onnx; the zoo below has it.
    assert types - {"dropout", "projected"} == {item.type for case in CASES for item in case.layers}


def started(spec: ModelSpec) -> dict[str, Any]:
    """Weights and buffers, those that start as constants drawn as well."""
    graph = build_training_graph(spec)
    random = np.random.default_rng(3)
    return {
        name: value
        if name.endswith("running_var") or np.ptp(value) > 0
        else random.uniform(-0.5, 0.5, value.shape).astype(np.float32)
        for name, value in initial_weights(graph, 1).items()
        if name in graph.of_kind("weight", "buffer")
    }


def forward_of_onnx(data: bytes, image: Any) -> Any:
    """What onnx's reference implementation makes of an input."""
    import onnx
    from onnx.reference import ReferenceEvaluator

    found = ReferenceEvaluator(onnx.load_from_string(data)).run(None, {"input": image})
    return found[0]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_layer_as_onnx_computes_the_same_and_comes_back(case: Case, tmp_path: Path) -> None:
    import onnx

    spec = case.spec
    values = started(spec)
    data = onnx_bytes(spec, values)
    onnx.checker.check_model(onnx.shape_inference.infer_shapes(onnx.load_from_string(data), strict_mode=True))
    graph = build_training_graph(spec)
    given = {**next(sample_stream(graph, spec, 2)), **values}
    image = given[graph.input].astype(np.int64) if case.classes else given[graph.input]
    ours = evaluate(graph, {**initial_weights(graph, 1), **given})
    if case.computed:
        np.testing.assert_allclose(forward_of_onnx(data, image), ours[graph.output], rtol=2e-5, atol=2e-6)

    path = tmp_path / "net.onnx"
    path.write_bytes(data)
    own = read_own(str(path))
    assert own is not None
    assert own.values is not None
    assert [(item.type, dict(item.attributes)) for item in own.spec.layers] == [
        (item.type, dict(item.attributes)) for item in spec.layers
    ]
    assert own.values.keys() == values.keys()
    for name, value in values.items():
        np.testing.assert_array_equal(own.values[name], value)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_reader_that_is_told_nothing_draws_the_same_layers(case: Case, tmp_path: Path) -> None:
    """The same types in the same order, and the same gradients; else another but equivalent network."""
    spec = case.spec
    values = started(spec)
    path = tmp_path / "net.onnx"
    path.write_bytes(onnx_bytes(spec, values))
    read = import_forward(load_onnx(path), loss=spec.loss, optimizer=spec.optimizer, classes=case.classes)
    types = [item.type for item in read.spec.layers]
    wanted = [item.type for item in spec.layers]
    if case.other is None:
        assert types == wanted
    elif case.other[0]:
        assert types == ["position", *case.other[0]]
    found, given = [], next(sample_stream(build_training_graph(spec), spec, 2))
    for model, start in ((spec, values), (read.spec, read.values)):
        graph = build_training_graph(model)
        results = evaluate(graph, {**initial_weights(graph, 1), **start, **given})
        gradient = graph.gradients[model.layers[0].name + ".weight"]
        found.append((results[graph.loss], results[gradient]))
    for first, second in zip(*found, strict=True):
        np.testing.assert_allclose(first, second, rtol=1e-4, atol=1e-6)


def summary_of(words: Sequence[str], capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """The JSON of a run that goes well."""
    found: dict[str, Any] = printed(capsys, "run", *words, "--quiet")
    return found


@pytest.mark.parametrize(
    "name",
    [
        name if name in ("simple-mlp", "tutorial-cnn") else pytest.param(name, marks=pytest.mark.slow)
        for name in list_names("models")
    ],
)
def test_a_model_of_the_zoo_as_onnx_gives_the_same_cycles_and_numbers(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["convert", name, "net.onnx", "--seed", "5"]) == 0
    assert "run it with: pulptrain run net.onnx" in capsys.readouterr().out
    first = summary_of([name, "--seed", "5", "--save-values", "0.npz"], capsys)
    second = summary_of(["net.onnx", "--seed", "5", "--save-values", "1.npz"], capsys)
    assert first["functional"]["passed"]
    assert second["functional"]["passed"]
    for key in ("model", "cycles", "loss", "peak_bytes"):
        assert first[key] == second[key]
    with np.load("0.npz") as ours, np.load("1.npz") as theirs:
        assert set(ours.files) == set(theirs.files)
        assert all(np.array_equal(ours[tensor], theirs[tensor]) for tensor in ours.files)


def rewritten(path: Path, change: Any) -> None:
    """The file with something changed by `change(model)`."""
    import onnx

    model = onnx.load(path)
    change(model)
    path.write_bytes(model.SerializeToString())


SEVERAL = {
    "two inputs, one weight, two losses": """
inputs: {left: {shape: [4]}, right: {shape: [4]}}
losses: [{name: mse, weight: 0.5}, {name: cross_entropy, labels: hard, of: one, label: words}]
layers:
  - {name: one, type: linear, out_features: 3, bias: true, inputs: [left]}
  - {name: other, type: linear, out_features: 3, bias: true, inputs: [right], weights_of: one}
  - {name: apart, type: subtract, inputs: [one, other]}
""",
    "a tied embedding, its weight turned": """
input: {shape: [5], classes: 11}
loss: mse
layers:
  - {name: table, type: embedding, vocabulary: 11, features: 6}
  - {name: middle, type: linear, out_features: 6}
  - {name: head, type: linear, out_features: 11, weights_of: {weight: table}}
""",
    "recurrences and images, and a target of a layer": """
input: {shape: [6, 3]}
losses: [{name: mse}, {name: mse, of: small, target: a}]
layers:
  - {name: a, type: lstm, hidden: 3}
  - {name: b, type: lstm, hidden: 3, inputs: [a], weights_of: a}
  - {name: small, type: linear, out_features: 3, inputs: [b]}
  - {name: again, type: linear, out_features: 3, weights_of: small}
  - {name: image, type: reshape, shape: [3, 3, 2]}
  - {name: one, type: conv2d, out_channels: 3, kernel: 3, padding: 1, bias: true}
  - {name: two, type: conv2d, out_channels: 3, kernel: 3, padding: 1, bias: true, weights_of: {weight: one}}
""",
}


@pytest.mark.parametrize("name", SEVERAL)
def test_shared_weights_inputs_and_losses_come_back(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import onnx

    monkeypatch.chdir(tmp_path)
    head = "name: several\nbatch: 2\noptimizer: {name: sgd, learning_rate: 0.1}\n"
    Path("m.yaml").write_text(head + SEVERAL[name])
    assert run(["convert", "m.yaml", "m.onnx"]) == 0
    capsys.readouterr()
    made = onnx.load("m.onnx")
    onnx.checker.check_model(made, full_check=True)
    first, second = (
        summary_of([file, "--save-values", f"{file}.npz"], capsys) for file in ("m.yaml", "m.onnx")
    )
    assert second["functional"]["passed"]
    for key in ("model", "cycles", "loss", "losses", "peak_bytes"):
        assert first.get(key) == second.get(key), key
    with np.load("m.yaml.npz") as ours, np.load("m.onnx.npz") as theirs:
        assert all(np.array_equal(ours[tensor], theirs[tensor]) for tensor in ours.files)
        weights = sum(ours[key].size for key in ours.files if "/" not in key and ".grad" not in key)
    floats = [onnx.numpy_helper.to_array(item) for item in made.graph.initializer if item.data_type == 1]
    assert sum(array.size for array in floats) == weights, "a weight used twice lies there once"
    rewritten(tmp_path / "m.onnx", lambda model: model.metadata_props.clear())
    assert summary_of(["m.onnx"], capsys)["functional"]["file"]["passed"]


def test_without_its_metadata_the_options_say_what_it_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["convert", "tutorial-cnn", "net.onnx"]) == 0
    text = capsys.readouterr().out
    assert "--loss 'mse' --optimizer 'sgd learning_rate=0.01'" in text
    whole = summary_of(["net.onnx"], capsys)
    rewritten(tmp_path / "net.onnx", lambda model: model.metadata_props.clear())
    words = ["net.onnx", "--loss", "mse", "--optimizer", "sgd learning_rate=0.01"]
    bare = summary_of(words, capsys)
    assert (whole["cycles"], whole["loss"]) == (bare["cycles"], bare["loss"])


def test_weights_of_the_file_are_taken_and_a_changed_graph_is_read_as_any(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["convert", "simple-mlp", "net.onnx"]) == 0
    capsys.readouterr()
    before = summary_of(["net.onnx"], capsys)

    def zeros(model: Any) -> None:
        for tensor in model.graph.initializer:
            tensor.raw_data = bytes(len(tensor.raw_data))

    rewritten(tmp_path / "net.onnx", zeros)
    own = read_own("net.onnx")
    assert own is not None
    assert own.values is not None
    assert all(not value.any() for value in own.values.values())
    assert summary_of(["net.onnx"], capsys)["loss"] == pytest.approx(np.log(10), abs=1e-6)

    def tanh(model: Any) -> None:
        from onnx import helper

        last = model.graph.node[-1]
        kept = last.output[0]
        last.output[0] = "inner"
        model.graph.node.append(helper.make_node("Tanh", ["inner"], [kept], name="squash"))

    rewritten(tmp_path / "net.onnx", tanh)
    changed = summary_of(["net.onnx"], capsys)
    assert changed["cycles"] > before["cycles"]
    assert any("changed after pulptrain wrote it" in note for note in changed["notes"])


NO_FORM = """\
name: net
input: {shape: [4, 6]}
loss: mse
optimizer: {name: sgd, learning_rate: 0.1}
layers:
  - {name: fc, type: linear, out_features: 4, adapter: {rank: 2}}
  - {name: squash, type: tanh, form: pulp_fastexp}
  - {name: shares, type: softmax, exponential: taylor}
  - {name: last, type: linear, out_features: 2}
"""


def test_layers_without_a_form_are_listed_and_nothing_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("net.yaml").write_text(NO_FORM)
    assert run(["convert", "net.yaml", "net.onnx"]) == 2
    said = capsys.readouterr().err
    assert "3 of 4 layers have no equivalent in ONNX" in said
    assert "fc (linear of shape [1, 4, 4], net.yaml:6): ONNX has no op for adapters; try:" in said
    assert "squash (tanh of shape [1, 4, 4], net.yaml:7): form: pulp_fastexp has no ONNX op; try:" in said
    assert "exponential: taylor has no ONNX op; try: set exponential: exact" in said
    assert not Path("net.onnx").exists()
    assert run(["convert", "simple-mlp", "net.txt"]) == 2
    Path("other.onnx").write_bytes(b"somebody's")
    assert run(["convert", "simple-mlp", "other.onnx"]) == 2
    assert Path("other.onnx").read_bytes() == b"somebody's"


def test_samples_outside_of_the_folder_of_a_file_are_not_read(tmp_path: Path) -> None:
    spec = replace(spec_of([layer("linear", out_features=2)], (6,)), dataset="../samples.npz")
    path = tmp_path / "net.onnx"
    path.write_bytes(onnx_bytes(spec, started(spec)))
    with pytest.raises(InputError, match="outside the folder"):
        read_own(str(path))


def test_metadata_of_a_larger_model_are_not_believed(tmp_path: Path) -> None:
    spec = spec_of([layer("linear", out_features=2)], (6,))
    path = tmp_path / "net.onnx"
    path.write_bytes(onnx_bytes(spec, started(spec)))

    def claim(model: Any) -> None:
        (entry,) = model.metadata_props
        entry.value = entry.value.replace("out_features: 2", "out_features: 200000000")

    rewritten(path, claim)
    own = read_own(str(path))
    assert own is not None
    assert own.values is None


def test_what_only_a_model_file_says_comes_back(tmp_path: Path) -> None:
    frozen = replace(layer("gru", hidden=3, stepwise=True), trainable=False)
    last = replace(layer("linear", out_features=2), recompute=True, update_channels=(0, 1))
    spec = replace(spec_of([frozen, last], ROWS, batch=3), dtype="fp16", train=("linear_a",))
    path = tmp_path / "net.onnx"
    path.write_bytes(onnx_bytes(spec, started(spec)))
    own = read_own(str(path))
    assert own is not None
    check_options(own.spec)
    same = [(item.name, item.trainable, item.recompute, item.update_channels) for item in spec.layers]
    assert [
        (item.name, item.trainable, item.recompute, item.update_channels) for item in own.spec.layers
    ] == same
    assert (own.spec.dtype, own.spec.train, own.spec.batch) == ("fp16", ("linear_a",), 3)
    assert own.spec.layers[0].attributes["stepwise"] is True


NET = """\
from torch import nn

def Net():
    return nn.Sequential(nn.Linear(6, 5), nn.SiLU(), nn.Linear(5, 3))
"""


@pytest.mark.needs_torch
def test_a_module_and_a_graph_of_others_convert_to_onnx(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("net.py").write_text(NET)
    options = ["--input", "2,6", "--optimizer", "adam lr=0.01"]
    assert run(["convert", "net.py:Net", "first.onnx", *options]) == 0
    assert run(["convert", "first.onnx", "second.onnx"]) == 0
    capsys.readouterr()
    found = [
        summary_of(words, capsys) for words in (["net.py:Net", *options], ["first.onnx"], ["second.onnx"])
    ]
    assert len({(item["cycles"], item["loss"]) for item in found}) == 1
