# SPDX-License-Identifier: Apache-2.0
"""ONNX files are read with care: what they say is checked before it is believed."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from configs.errors import InputError
from importers.graph.onnx_file import load_onnx
from shared.onnx_models import model, node, saved, value
from truth.onnx_graph import read_graph

pytestmark = pytest.mark.needs_onnx

X, Y = value("x", ["n", 4]), value("y", ["n", 3])
W = np.arange(12, dtype=np.float32).reshape(4, 3)


def small(**changes: Any) -> Any:
    made = {"nodes": [node("MatMul", ["x", "w"], ["y"])], "inputs": [X], "outputs": [Y], "weights": {"w": W}}
    return model(**{**made, **changes})


@pytest.mark.smoke
def test_a_graph_is_read_with_its_weights_and_shapes(tmp_path: Path) -> None:
    graph = load_onnx(saved(tmp_path, small()), batch=5)
    assert graph.inputs == ("x",)
    assert graph.tensor("x").sizes == (5, 4)
    assert graph.tensor("y").sizes == (5, 3)
    assert graph.trainable == ("w",)
    np.testing.assert_array_equal(graph.initializers["w"], W)


def test_nodes_come_in_a_topological_order_whatever_that_of_the_file(tmp_path: Path) -> None:
    nodes = [node("Relu", ["h"], ["y"], name="second"), node("MatMul", ["x", "w"], ["h"], name="first")]
    graph = load_onnx(saved(tmp_path, small(nodes=nodes)))
    assert [item.name for item in graph.nodes] == ["first", "second"]
    assert graph.tensor("h").sizes == (1, 3)


def test_calculations_with_shapes_are_folded_and_weights_are_not(tmp_path: Path) -> None:
    nodes = [
        node("Shape", ["x"], ["s"]),
        node("Gather", ["s", "zero"], ["n"], axis=0),
        node("Concat", ["n", "rest"], ["to"], axis=0),
        node("Reshape", ["x", "to"], ["r"]),
        node("Transpose", ["v"], ["w"], perm=[1, 0]),
        node("MatMul", ["r", "w"], ["y"]),
    ]
    weights = {"v": W.T.copy(), "zero": np.array([0]), "rest": np.array([4])}
    graph = load_onnx(saved(tmp_path, small(nodes=nodes, weights=weights)), batch=2)
    assert [item.op for item in graph.nodes] == ["Reshape", "Transpose", "MatMul"]
    np.testing.assert_array_equal(graph.constant("to"), [2, 4])


def test_a_result_too_large_to_be_a_shape_is_not_computed(tmp_path: Path) -> None:
    nodes = [
        node("ConstantOfShape", ["huge"], ["z"]),
        node("Expand", ["one", "huge"], ["e"]),
        node("Tile", ["one", "huge"], ["t"]),
        node("MatMul", ["x", "w"], ["y"]),
    ]
    weights = {"w": W, "huge": np.array([2**40]), "one": np.ones(1, np.int64)}
    graph = load_onnx(saved(tmp_path, small(nodes=nodes, weights=weights)))
    assert [item.op for item in graph.nodes] == ["ConstantOfShape", "Expand", "Tile", "MatMul"]


def test_domains_imported_twice_and_wrong_declarations_of_outputs_do_no_harm(tmp_path: Path) -> None:
    from onnx import helper

    made = small(outputs=[value("y", [1])])
    made.opset_import.extend([helper.make_opsetid("", 13), helper.make_opsetid("com.microsoft", 1)])
    graph = load_onnx(saved(tmp_path, made))
    assert graph.opset == 17
    assert graph.tensor("y").sizes == (1, 3)


def test_an_input_may_be_given_another_shape(tmp_path: Path) -> None:
    path = saved(tmp_path, small(inputs=[value("x", ["n", "k"])]))
    assert load_onnx(path, input_shapes={"x": (2, 4)}).tensor("y").sizes == (2, 3)
    with pytest.raises(InputError, match="dimension 1 of input 'x' has no size"):
        load_onnx(path)
    with pytest.raises(InputError, match="no input 'z'"):
        load_onnx(path, input_shapes={"z": (2, 4)})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"nodes": [node("Relu", ["a"], ["y"]), node("Relu", ["y"], ["a"])]}, "a cycle: "),
        (
            {"nodes": [node("Relu", ["x"], ["y"]), node("Relu", ["x"], ["y"])]},
            "'y' has the same name as that of node",
        ),
        ({"nodes": [node("Relu", ["x"], ["x"])]}, "'x' has the same name as an input"),
        ({"nodes": [node("Relu", ["nobody"], ["y"])]}, "reads 'nobody', which no node writes"),
        ({"nodes": [node("Relu", ["x"], ["z"])]}, "no node writes output 'y' of the graph"),
        ({"inputs": [X, X]}, "two inputs have the name 'x'"),
        ({"nodes": [node("Add", ["x", "x"], ["y"])], "opset": 6}, "opset 6"),
    ],
    ids=["cycle", "two_writers", "input_written", "unwritten", "no_output", "inputs", "old"],
)
def test_what_is_no_graph_is_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        load_onnx(saved(tmp_path, small(**changes)))


def test_two_initializers_of_one_name_are_refused(tmp_path: Path) -> None:
    made = small()
    made.graph.initializer.append(made.graph.initializer[0])
    with pytest.raises(InputError, match="two initializers have the name 'w'"):
        load_onnx(saved(tmp_path, made))


@pytest.mark.parametrize("dims", [[4, 4], [-1], [2**20, 2**20], [2**33, 2**33]])
def test_a_weight_that_is_not_as_large_as_it_says_is_refused(tmp_path: Path, dims: list[int]) -> None:
    made = small()
    made.graph.initializer[0].dims[:] = dims
    with pytest.raises(InputError, match="tensor 'w'"):
        load_onnx(saved(tmp_path, made))


@pytest.mark.parametrize("data", [b"", b"no protobuf at all", b"\x08\x08"])
def test_what_is_no_onnx_file_is_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "broken.onnx"
    path.write_bytes(data)
    with pytest.raises(InputError, match="ONNX file"):
        load_onnx(path)
    with pytest.raises(InputError, match="cannot be read"):
        load_onnx(tmp_path / "missing.onnx")
    with pytest.raises(InputError, match="is not a file"):
        load_onnx(tmp_path)


def external(tmp_path: Path, location: str, **entries: str) -> str:
    """The small model, its weight in another file."""
    made = small()
    weight = made.graph.initializer[0]
    weight.ClearField("raw_data")
    weight.data_location = 1
    for key, text in {"location": location, **entries}.items():
        weight.external_data.add(key=key, value=text)
    folder = tmp_path / "model"
    folder.mkdir(exist_ok=True)
    return saved(folder, made)


def test_external_data_is_read_from_the_folder_of_the_model(tmp_path: Path) -> None:
    path = external(tmp_path, "w.bin", offset="8")
    (tmp_path / "model" / "w.bin").write_bytes(b"12345678" + W.tobytes())
    np.testing.assert_array_equal(load_onnx(path).initializers["w"], W)


def test_external_data_with_several_links_is_read_by_both_readers(tmp_path: Path) -> None:
    """As caches of packages make them."""
    path, data = external(tmp_path, "w.bin", offset="8"), tmp_path / "model" / "w.bin"
    (tmp_path / "cache.bin").write_bytes(b"12345678" + W.tobytes())
    data.hardlink_to(tmp_path / "cache.bin")
    assert data.stat().st_nlink == 2
    (tmp_path / "link.onnx").symlink_to(path)
    for name in (path, str(tmp_path / "link.onnx")):
        np.testing.assert_array_equal(load_onnx(name).initializers["w"], W)
        (read,) = read_graph(name).graph.initializer
        assert read.raw_data == W.tobytes()


@pytest.mark.parametrize("location", ["../outside.bin", "link.bin", "/etc/hostname", "sub", "missing"])
def test_external_data_elsewhere_is_refused(tmp_path: Path, location: str) -> None:
    path = external(tmp_path, location)
    (tmp_path / "outside.bin").write_bytes(W.tobytes())
    (tmp_path / "model" / "link.bin").symlink_to(tmp_path / "outside.bin")
    (tmp_path / "model" / "sub").mkdir()
    with pytest.raises(InputError, match="not a file in the folder of the model"):
        load_onnx(path)


@pytest.mark.parametrize("entries", [{"offset": "40"}, {"length": "4"}, {"offset": "-1"}, {"offset": "x"}])
def test_external_data_of_another_size_is_refused(tmp_path: Path, entries: dict[str, str]) -> None:
    path = external(tmp_path, "w.bin", **entries)
    (tmp_path / "model" / "w.bin").write_bytes(W.tobytes())
    with pytest.raises(InputError, match="tensor 'w'"):
        load_onnx(path)


def test_without_the_package_the_extra_to_install_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = saved(tmp_path, small())
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(InputError, match=r"pip install 'pulptrain\[onnx\]'"):
        load_onnx(path)
