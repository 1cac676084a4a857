# SPDX-License-Identifier: Apache-2.0
"""`pulptrain barvinn`: from an ONNX file to tables, images and checked numbers; what it refuses, and how."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from barvinn.mapping.images import map_words, weight_words
from barvinn.mapping.layers import LayerShape
from barvinn.mapping.network import RealLayer
from barvinn.mapping.table import COLUMNS
from barvinn.outputs import prepare_barvinn_folder, write_barvinn_outputs
from barvinn.run import barvinn
from configs.errors import InputError
from pulptrain.__main__ import run
from pulptrain.commands.barvinn import warn_of_overflow
from shared.barvinn_rtl import Unit
from shared.onnx_models import NodeText, model, node, saved, value
from shared.printed import printed
from tools.plain_resnet18 import layers, onnx_model

BITS_2 = ("--aprec", "2", "--wprec", "2", "--oprec", "2")
BITS_8 = ("--aprec", "8", "--wprec", "8", "--oprec", "8")

needs_onnx = pytest.mark.needs_onnx


def whole(shape: Sequence[int], bits: int = 2, seed: int = 0) -> np.ndarray:
    """Weights of so many bits, as floats."""
    half = 1 << (bits - 1)
    return np.random.default_rng(seed).integers(-half, half, shape).astype(np.float32)


CONV = {"kernel_shape": (3, 3), "pads": (1, 1, 1, 1), "strides": (1, 1), "group": 1, "dilations": (1, 1)}


def simple_conv(folder: Path) -> str:
    """One convolution of 64 to 64 channels with integer weights, as the public tool's example."""
    weights = np.random.default_rng(1).integers(0, 4, (64, 64, 3, 3)).astype(np.float32)
    nodes = [node("Conv", ["input", "conv1.weight"], ["output"], name="Conv_0", **CONV)]
    made = model(
        nodes,
        [value("input", [1, 64, 32, 32])],
        [value("output", [1, 64, 32, 32])],
        {"conv1.weight": weights},
    )
    return saved(folder, made)


def small_cnn(folder: Path) -> str:
    """Convolution, batch norm, ReLU, pool, convolution with a step, ReLU, Flatten, Gemm with a bias."""
    rng = np.random.default_rng(2)
    nodes = [
        node("Conv", ["x", "c1.weight", "c1.bias"], ["a"], name="c1", **CONV),
        node("BatchNormalization", ["a", "gamma", "beta", "mean", "variance"], ["b"], name="norm"),
        node("Relu", ["b"], ["c"], name="relu1"),
        node("MaxPool", ["c"], ["d"], name="pool", kernel_shape=(2, 2), strides=(2, 2)),
        node("Conv", ["d", "w2"], ["e"], name="c2", **{**CONV, "strides": (2, 2)}),
        node("Relu", ["e"], ["f"], name="relu2"),
        node("Flatten", ["f"], ["g"], name="flat"),
        node("Gemm", ["g", "w3", "b3"], ["y"], name="fc", transB=1),
    ]
    weights = {
        "c1.weight": whole((20, 3, 3, 3)),
        "c1.bias": rng.normal(size=20).astype(np.float32),
        "gamma": rng.uniform(0.5, 1.5, 20).astype(np.float32),
        "beta": rng.normal(size=20).astype(np.float32),
        "mean": rng.normal(size=20).astype(np.float32),
        "variance": rng.uniform(1, 2, 20).astype(np.float32),
        "w2": whole((70, 20, 3, 3)) * np.float32(0.037),
        "w3": whole((10, 70 * 16)) * rng.uniform(0.01, 0.1, (10, 1)).astype(np.float32),
        "b3": rng.normal(size=10).astype(np.float32),
    }
    made = model(nodes, [value("x", ["batch", 3, 16, 16])], [value("y", ["batch", 10])], weights)
    return saved(folder, made)


@needs_onnx
@pytest.mark.smoke
def test_the_second_published_row_from_an_onnx_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = simple_conv(tmp_path)
    old = printed(capsys, "barvinn", path, *BITS_8, "--input", "1,64,32,32", "--as-published")
    assert (old["rows"][0]["layer"], old["rows"][0]["countdown"]) == ("conv1", 17280)
    assert old["total_countdown"] == old["rows"][0]["total"] == 587520
    assert old["cycles"] is old["frames_per_second"] is None
    new = printed(capsys, "barvinn", path, *BITS_8, "--input", "64,32,32")
    assert new["total_countdown"] == 94 * 94 * 64  # valid taps of a row are 3 * 32 - 2
    assert new["cycles"] > new["total_countdown"]
    assert new["frames_per_second"] == 250e6 / new["cycles"]
    assert new["functional"] == {"checked_against": "integer reference", "passed": True}
    for summary in (old, new):
        assert {"rows", "total_countdown", "cycles", "frames_per_second", "simulator", "version"} <= set(
            summary
        )
        assert set(COLUMNS) <= set(summary["rows"][0])
        assert all(isinstance(summary["rows"][0][key], list) for key in COLUMNS[1:7])


@pytest.mark.slow
@needs_onnx
def test_the_plain_resnet_from_an_onnx_file_is_the_golden_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = saved(tmp_path, onnx_model())
    old = printed(capsys, "barvinn", path, *BITS_2, "--as-published")
    assert old["total_countdown"] == 532872
    assert [row["layer"] for row in old["rows"]] == [layer.shape.name for layer in layers()]
    new = printed(capsys, "barvinn", path, *BITS_2)
    assert new["total_countdown"] == 498104
    assert (new["jobs"], len(new["host_ops"])) == (920, 17)
    ideal = new["frame_rates"][1]
    assert ideal["handler_instructions"] == 0
    assert 498104 < ideal["cycles"] < 1.15 * 498104 < new["cycles"]
    direct = barvinn(layers(), aprec=2, wprec=2, oprec=2).summary
    assert (direct["rows"], direct["cycles"]) == (new["rows"], new["cycles"])


@needs_onnx
@pytest.mark.parametrize("units", [1, 3, 8])
def test_a_network_with_all_that_can_be_folded(units: int, tmp_path: Path) -> None:
    outcome = barvinn(small_cnn(tmp_path), aprec=4, wprec=2, oprec=8, units=units)
    assert [layer["layer"] for layer in outcome.summary["layers"]] == ["c1", "pool", "c2", "fc"]
    assert outcome.output.shape == (10, 1, 1)
    assert outcome.numbers is not None
    made = outcome.numbers.layers
    assert made[0].scaler.std() > 0  # batch norm
    assert (made[2].scaler == 1).all()  # one step for all weights
    assert made[3].output_signed
    assert outcome.summary["utilisation"].keys() == {f"mvu{unit}" for unit in range(units)}


@needs_onnx
def test_integers_are_near_what_onnx_computes(tmp_path: Path) -> None:
    """With many bits of activations little is lost: onnx's own evaluator, in floats, says the same."""
    from onnx.reference import ReferenceEvaluator

    path = small_cnn(tmp_path)
    outcome = barvinn(path, aprec=12, wprec=2, oprec=12, seed=5)
    assert outcome.numbers is not None
    x = outcome.numbers.x[None].astype(np.float32)
    expected = ReferenceEvaluator(path).run(None, {"x": x})[0].ravel()
    found = outcome.output.ravel() * outcome.numbers.steps[-1]
    assert np.abs(found - expected).max() < 0.01 * np.abs(expected).max()


@needs_onnx
def test_matrix_multiplies_of_several_rows(tmp_path: Path) -> None:
    weights = whole((70, 30), 4)
    nodes = [node("MatMul", ["x", "w"], ["a"], name="mm"), node("Add", ["a", "b"], ["y"], name="add")]
    made = model(
        nodes, [value("x", [1, 5, 70])], [value("y", [1, 5, 30])], {"w": weights, "b": whole((30,), 6)}
    )
    outcome = barvinn(saved(tmp_path, made), aprec=3, wprec=4, oprec=16, input_shape=(5, 70))
    assert outcome.numbers is not None
    x = outcome.numbers.x[:, :, 0].T
    assert (x @ weights + whole((30,), 6) == outcome.output[:, :, 0].T).all()
    assert outcome.summary["total_countdown"] == 2 * 1 * 3 * 4 * 5


@needs_onnx
def test_weights_stored_as_integers_and_a_scale(tmp_path: Path) -> None:
    """QDQ form of weights: DequantizeLinear with a scale per output channel."""
    stored = whole((8, 4, 1, 1), 3).astype(np.int8)
    scale = np.linspace(0.01, 0.2, 8).astype(np.float32)
    nodes = [
        node("DequantizeLinear", ["w", "s", "z"], ["wf"], name="dq", axis=0),
        node("Conv", ["x", "wf"], ["y"], name="c"),
    ]
    made = model(
        nodes,
        [value("x", [1, 4, 5, 5])],
        [value("y", [1, 8, 5, 5])],
        {"w": stored, "s": scale, "z": np.zeros(8, np.int8)},
    )
    outcome = barvinn(saved(tmp_path, made), aprec=2, wprec=3, oprec=8)
    assert outcome.numbers is not None
    found = outcome.numbers.layers[0].weights
    assert found.min() < 0
    assert np.allclose(outcome.real_layers[0].weights, stored * scale.astype(float).reshape(8, 1, 1, 1))
    assert (np.sign(found) == np.sign(stored)).all()


@needs_onnx
def test_the_files_of_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, folder = small_cnn(tmp_path), tmp_path / "out"
    arguments = ["barvinn", path, *BITS_2, "--units", "2", "--out", str(folder)]
    assert run(arguments) == 0
    text = capsys.readouterr().out
    assert "bit for bit" in text
    assert "max-pool: the public tool omits it" in text
    first = {file.name: file.read_bytes() for file in folder.iterdir()}
    outcome = barvinn(path, aprec=2, wprec=2, oprec=2, units=2)
    assert outcome.numbers is not None
    made = outcome.numbers.layers
    lines = first["00-c1-weights.txt"].decode().splitlines()
    words = weight_words(made[0])
    assert len(lines) == len(words) == 9 * 2
    assert {len(line) for line in lines} == {4096}
    assert [int(lines[3][::-1][64 * j : 64 * j + 64][::-1], 2) for j in range(64)] == words[3].tolist()
    entries = first["00-c1-scalers.txt"].decode().splitlines()
    assert int(entries[0][-4:], 16) == int(made[0].scaler[0]) & 0xFFFF
    assert int(first["03-fc-biases.txt"].decode()[-9:-1], 16) == int(made[3].bias[0]) & 0xFFFFFFFF
    vector = first["input.txt"].decode().splitlines()
    assert [int(line, 2) for line in vector] == map_words(outcome.numbers.x, 2).tolist()
    result = first["output.txt"].decode().splitlines()
    assert [int(line, 16) for line in result] == map_words(outcome.numbers.outputs[-1], 2).tolist()
    writes = [line for line in first["csr.txt"].decode().splitlines() if line.startswith("csrw")]
    assert len([line for line in writes if line.endswith("mvucommand")]) == outcome.summary["jobs"]
    assert first["gantt.png"].startswith(b"\x89PNG")
    assert run(arguments) == 0  # our own files may be written again, and equal runs are equal files
    second = {file.name: file.read_bytes() for file in folder.iterdir()}
    assert {name for name in first if first[name] != second[name]} <= {"run-info.json"}


@needs_onnx
def test_files_of_others_are_not_written_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "jobs.csv").write_text("mine\n")
    assert run(["barvinn", simple_conv(tmp_path), "--out", str(folder), "--as-published"]) == 2
    assert "pulptrain did not write that file" in capsys.readouterr().err
    (folder / "jobs.csv").unlink()
    (folder / "00-conv1-weights.txt").write_text("mine\n")
    assert run(["barvinn", simple_conv(tmp_path), "--out", str(folder), "--as-published"]) == 2


@needs_onnx
def test_the_published_weight_image_keeps_its_defect(tmp_path: Path) -> None:
    """64 to 64 channels: the values are those of the corrected image, in words of another order."""
    path, folder = simple_conv(tmp_path), tmp_path / "out"
    assert run(["barvinn", path, *BITS_8, "--as-published", "--out", str(folder)]) == 0
    lines = (folder / "00-conv1-weights.txt").read_text().splitlines()
    assert len(lines) == 9 * 8
    weights = np.random.default_rng(1).integers(0, 4, (64, 64, 3, 3))
    # The first run is tap (0, 0), input channel by input channel; the last plane is the least significant.
    assert [int(bit) for bit in lines[7][::-1]] == (weights[:, :, 0, 0].T.ravel() & 1).tolist()
    assert set("".join(lines[:6])) == {"0"}


X, Y = value("x", [1, 4, 6, 6]), value("y", [1, 4, 6, 6])
SQUARE = {"w": whole((4, 4, 3, 3)), "w2": whole((4, 4, 3, 3), seed=1)}


def conv(name: str, source: str, result: str, weights: str = "w", **changes: Any) -> NodeText:
    return node("Conv", [source, weights], [result], name=name, **{**CONV, **changes})


RELU = node("Relu", ["a"], ["b"], name="relu")

BAD: Mapping[str, tuple[Sequence[NodeText], Mapping[str, Any], Sequence[Any], str, str]] = {
    "residual": (
        [conv("c1", "x", "a"), conv("c2", "a", "b", "w2"), node("Add", ["a", "b"], ["y"], name="join")],
        *(SQUARE, [], "c2", "residual"),
    ),
    "sum of two results": (
        [conv("c1", "x", "a"), RELU, node("Add", ["b", "b"], ["y"], name="twice")],
        *(SQUARE, [], "twice", "residual"),
    ),
    "unsupported op": (
        [conv("c1", "x", "a"), node("Sigmoid", ["a"], ["y"], name="sig")],
        *(SQUARE, [], "sig", "does not support"),
    ),
    "op of another domain": (
        [conv("c1", "x", "a"), node("com.microsoft:Gelu", ["a"], ["y"], name="gelu")],
        *(SQUARE, [], "gelu", "does not support"),
    ),
    "float weights": (
        [conv("c1", "x", "y")],
        {"w": np.random.default_rng(0).normal(size=(4, 4, 3, 3)).astype(np.float32)},
        *([], "c1", "not quantised to 2 bits with one scale per output channel"),
    ),
    "weights of more bits": (
        [conv("c1", "x", "y")],
        {"w": 3 * whole((4, 4, 3, 3)) + 1},
        *([], "c1", "bits, but 2 are set"),
    ),
    "group": ([conv("c1", "x", "y", group=4)], {"w": whole((4, 1, 3, 3))}, [], "c1", "4 groups"),
    "dynamic size": (
        [conv("c1", "x", "y")],
        *(SQUARE, [value("x", [1, 4, "height", "width"])], "'x'", "its shape must be fixed"),
    ),
    "batch": ([conv("c1", "x", "y")], SQUARE, [value("x", [2, 4, 6, 6])], "x", "the batch size is 2"),
    "two inputs": (
        [conv("c1", "x", "a"), node("Add", ["a", "z"], ["y"], name="add")],
        *(SQUARE, [X, value("z", [1, 4, 6, 6])], "model.onnx", "has 2 inputs (x, z)"),
    ),
    "product behind a ReLU": (
        [conv("c1", "x", "a"), RELU, node("Mul", ["b", "k"], ["y"], name="mul")],
        {**SQUARE, "k": np.float32(2)},
        *([], "mul", "must follow a Conv, Gemm or MatMul directly"),
    ),
    "weights that are a result": (
        [conv("c1", "x", "a"), node("Conv", ["a", "a"], ["y"], name="square")],
        *(SQUARE, [], "square", "products of activations"),
    ),
    "matrix of a map": (
        [node("MatMul", ["x", "m"], ["y"], name="mm")],
        *({"m": whole((6, 6))}, [], "mm", "Flatten"),
    ),
    "pooling of negative values": (
        [conv("c1", "x", "a"), node("MaxPool", ["a"], ["y"], name="p", kernel_shape=(2, 2), strides=(2, 2))],
        *(SQUARE, [], "p", "compares with 0"),
    ),
    "no layer": ([node("Relu", ["x"], ["y"], name="r")], {}, [], "r", "before the first layer"),
    "strides of 0": (
        [conv("c1", "x", "y", strides=(0, 1))],
        SQUARE,
        [],
        "c1",
        "strides are (0, 1), but must be",
    ),
    "one pad": ([conv("c1", "x", "y", pads=(1,))], SQUARE, [], "c1", "pads"),
    "another kernel_shape": ([conv("c1", "x", "y", kernel_shape=(2, 2))], SQUARE, [], "c1", "kernel_shape"),
    "huge pads": ([conv("c1", "x", "y", pads=(10**6,) * 4)], SQUARE, [], "c1", "padding 1000000"),
    "pool with strides of 0": (
        [
            conv("c1", "x", "a"),
            RELU,
            node("MaxPool", ["b"], ["y"], name="p", kernel_shape=(2, 2), strides=(0, 0)),
        ],
        *(SQUARE, [], "p", "the strides are (0, 0), but must be 1 or more"),
    ),
    "pool without size": (
        [conv("c1", "x", "a"), RELU, node("MaxPool", ["b"], ["y"], name="p")],
        *(SQUARE, [], "p", "a window of 0 dimensions"),
    ),
    "negative variance": (
        [conv("c1", "x", "a"), node("BatchNormalization", ["a", "v", "v", "v", "v"], ["y"], name="bn")],
        {**SQUARE, "v": np.full(4, -1, np.float32)},
        *([], "bn", "variance of the node is negative"),
    ),
    "padding alone": (
        [conv("c1", "x", "y", pads=(5, 5, 5, 5))],
        SQUARE,
        [],
        "c1",
        "depend on padding only",
    ),
}


@needs_onnx
@pytest.mark.parametrize("name", BAD)
def test_bad_models_are_refused_with_node_and_reason(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes, weights, inputs, place, reason = BAD[name]
    path = saved(tmp_path, model(nodes, inputs or [X], [value("y", None)], weights))
    assert run(["barvinn", path, *BITS_2]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "Traceback" not in captured.err
    assert place in captured.err
    assert reason in captured.err
    assert "\n  try: " in captured.err


@needs_onnx
@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--aprec", "0"], "--aprec: the precision is 0 bits, not 1 to"),
        (["--wprec", "17"], "--wprec: the precision is 17 bits, not 1 to"),
        (["--oprec", "-1"], "--oprec: the precision is -1 bits, not 1 to"),
        (["--input", "3,32,32"], "the file has input sizes [64, 32, 32]"),
        (["--input", "64x32x32"], "'64x32x32' is not a shape"),
        (["--input", "2,64,32,32"], "the file has input sizes [64, 32, 32]"),
        (["--units", "9"], "the machine has 8"),
        (["--units", "0"], "the machine has 8"),
        (["--soc", "pulp-open"], "kind 'pulp', but the command needs 'barvinn'"),
        (["--set", "hart.poll_instructions"], "is not NAME=VALUE"),
        (["--set", "hart.pol_instructions=3"], "hart.poll_instructions"),
        (["--seed", "-1"], "the seed is -1, but must be"),
        (["--behaviour", "rlt"], "unknown behaviour 'rlt'"),
        (["--set", "hart.handler_instructions=-1"], "between 0 and"),
    ],
)
def test_bad_options_are_refused(
    arguments: Sequence[str], text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["barvinn", simple_conv(tmp_path), *arguments]) == 2
    assert text in capsys.readouterr().err


@needs_onnx
def test_what_is_too_large_does_not_fit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    weights = {"w": whole((64, 64, 1, 1))}
    made = model(
        [node("Conv", ["x", "w"], ["y"], name="c")],
        [value("x", [1, 64, 128, 128])],
        [value("y", None)],
        weights,
    )
    assert run(["barvinn", saved(tmp_path, made), *BITS_2]) == 3
    assert "the activation RAM of a matrix-vector unit is too small" in capsys.readouterr().err


def test_a_file_that_is_none_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["barvinn", str(tmp_path / "none.onnx")]) == 2
    assert "none.onnx" in capsys.readouterr().err


def test_inputs_of_ones_own() -> None:
    few = layers()[:1]
    x = np.full((3, 32, 32), 3)
    assert barvinn(few, aprec=2, wprec=2, oprec=2, x=x[None]).numbers.x.min() == 3  # type: ignore[union-attr]
    for wrong in (x + 1, -x, x / 2, x[:2]):
        with pytest.raises(InputError, match=r"must have (integers from 0 to 3|shape .3, 32, 32.)"):
            barvinn(few, aprec=2, wprec=2, oprec=2, x=wrong)
    with pytest.raises(InputError, match="no layers"):
        barvinn([])
    table = barvinn(few, aprec=2, wprec=2, oprec=2, as_published=True)
    with pytest.raises(InputError, match="as_published=True computes no output"):
        table.output  # noqa: B018


def test_sums_that_overflow_are_said_and_computed_as_registers_do(capsys: pytest.CaptureFixture[str]) -> None:
    """16 x 16 bits, 64 channels: sums of up to 38 bits in registers of 27; ReLU makes the difference show."""
    shape = LayerShape("wide", "matmul", 64, 1, 1, 64)
    weights = whole((64, 64, 1, 1), 16).astype(float)
    layer = RealLayer(shape, weights, np.ones(64), np.zeros(64), relu=True)
    outcome = barvinn([layer], aprec=16, wprec=16, oprec=16)
    assert outcome.summary["functional"]["passed"]
    assert outcome.summary["overflows"]["accumulator"] > 0
    assert outcome.summary["overflows"]["layers"] == ["wide"]
    warn_of_overflow(outcome.summary)
    assert "layers with overflow (wide)" in capsys.readouterr().err


def test_the_files_run_as_a_testbench_of_the_rtl_reads_them(tmp_path: Path) -> None:
    """Edges, two blocks, scalers and biases from memory, by a reader of its own; output.txt, bit for bit."""
    rng = np.random.default_rng(8)
    shape = LayerShape("conv", "conv", 64, 4, 4, 128, (3, 3), (1, 1), (1, 1, 1, 1))
    layer = RealLayer(
        shape,
        whole((128, 64, 3, 3)).astype(float),
        rng.uniform(0.5, 2, 128),
        rng.normal(size=128) * 20,
        relu=False,
    )
    for behaviour, jobs, is_right in (("rtl", 4 * 3, True), ("documented", 10, False)):
        outcome = barvinn([layer], aprec=2, wprec=2, oprec=3, behaviour=behaviour)
        assert outcome.summary["jobs"] == jobs
        folder = prepare_barvinn_folder(str(tmp_path / behaviour))
        write_barvinn_outputs(outcome, folder)
        words = Unit(folder).written
        expected = [int(line, 16) for line in (folder / "output.txt").read_text().split()]
        found = [
            sum(int(lane) << at for at, lane in enumerate(words[word])) if word in words else 0
            for word in range((1 << 15) - len(expected), 1 << 15)
        ]
        assert (found == expected) == is_right


@needs_onnx
def test_what_the_units_cannot_do_is_counted_or_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = small_cnn(tmp_path)
    assert run(["barvinn", path, *BITS_2]) == 0
    text = capsys.readouterr().out
    assert "Relu of 2 layers, MaxPool of 1 layers, 7,520 values" in text
    for line in ("304 cycles from interrupt to command", "polling every 32 cycles", "in zero cycles"):
        assert line in text
    assert run(["barvinn", path, *BITS_2, "--no-host-ops"]) == 2
    error = capsys.readouterr().err
    assert "node 'c1' (Conv): Relu cannot run on the units: the published RTL" in error
    assert "--behaviour documented" in error
    summary = printed(capsys, "barvinn", path, *BITS_2, "--behaviour", "documented", "--no-host-ops")
    assert summary["host_ops"] == []
    assert summary["behaviour"] == "documented"
    assert [(rate["units"], rate["handler_instructions"]) for rate in summary["frame_rates"]] == [
        *((1, 38), (1, 0), (8, 38), (8, 0)),
    ]
    assert summary["frame_rates"][0]["cycles"] == summary["cycles"]
