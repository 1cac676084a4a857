# SPDX-License-Identifier: Apache-2.0
"""`pulptrain deploy`: what it writes, what it writes over, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pulptrain.__main__ import run
from pulptrain.deploying.deployed import EXPORTED, as_chosen
from pulptrain.inputs.settings import Settings
from pulptrain.running.session import prepare
from scheduler.schedule import build_schedule
from shared.exported import made

MODEL = """name: small
input: {shape: [6]}
loss: mse
optimizer: {name: sgd, learning_rate: 0.1}
layers: [{name: fc, type: linear, out_features: 3}, {name: act, type: relu}]
"""


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.yaml").write_text(MODEL)
    return "small.yaml"


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_same_again_is_the_same_byte_by_byte(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["deploy", model, "--out", "one", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert run(["deploy", model, "--out", "two", "-q"]) == 0
    one, two = contents(Path("one")), contents(Path("two"))
    assert one == two
    assert {item["name"]: item["size_bytes"] for item in said["project_files"]} == {
        name: len(content) for name, content in one.items() if name != "deploy.json"
    }
    assert said["peak_bytes"]["l1"] > 0
    assert "relu_fw" in said["c_kernels"]
    assert said["iterations"] == 2


def test_a_schedule_is_priced_with_the_kernels_of_the_project_too(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["deploy", model, "--out", "net", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["codegen"] == "clang-xpulp"
    assert said["exported_cycles"] > said["cycles"]  # a core without Xpulp
    assert run(["deploy", model, "--out", "net", "--json", "--codegen", EXPORTED]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["exported_cycles"] == said["cycles"]


def test_tensors_that_code_moves_to_l3_are_there_with_the_kernels_of_the_project_too(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """It was refused: planned for all of L2, without the code of L2."""
    assert run(["deploy", "tutorial-cnn", "--l2", "160KiB", "--l3", "8MiB", "--out", "net", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["peak_bytes"]["l3"] > 0
    assert said["exported_cycles"] > said["cycles"]


@pytest.mark.parametrize("codegen", ["clang-xpulp", EXPORTED])
@pytest.mark.parametrize("settings", [Settings(), Settings(buffering="best", l1="12KiB")])
def test_what_was_chosen_is_chosen_again_whatever_the_kernels(settings: Settings, codegen: str) -> None:
    made = prepare("simple-mlp", settings)
    chosen = made.schedule
    again = build_schedule(chosen.graph, made.timing, made.cost_model, as_chosen(chosen, codegen))
    assert again.resident == chosen.resident
    for one, other in zip(again.ops, chosen.ops, strict=True):
        assert (one.kernel, one.layout) == (other.kernel, other.layout)
        assert (one.tiling.sizes, one.tiling.order) == (other.tiling.sizes, other.tiling.order)
        assert one.tiling.buffers == other.tiling.buffers


def test_an_earlier_export_is_replaced_whole(model: str) -> None:
    assert run(["deploy", model, "--out", "net", "-q"]) == 0
    Path("net/notes.txt").write_text("mine")
    Path(model).write_text(MODEL.replace("relu", "sigmoid"))
    assert run(["deploy", model, "--out", "net", "-q"]) == 0
    assert not Path("net/kernels/relu_fw.c").exists()
    assert Path("net/kernels/sigmoid_fw.c").exists()
    assert Path("net/notes.txt").read_text() == "mine"


@pytest.mark.parametrize(
    ("options", "code", "wanted"),
    [
        ("--out foreign", 2, "'foreign' exists already and pulptrain did not export it"),
        ("--out small.yaml", 2, "--out"),
        ("--out net --dtype fp8_e4m3", 2, "has no C source for dtype"),
        ("--out net --arena 64B", 3, "or more, or --l1 64B"),
        ("--out net --arena much", 2, "--arena"),
        ("--out net --kernel-library trainlib=foreign", 2, "is not a PULP-TrainLib"),
        ("--out net --kernel-library mine", 2, "'ours' or trainlib=PATH"),
        ("--out net --iterations 0", 2, "the number of iterations is 0, but"),
        ("--out net --schedule other.yaml", 2, "other.yaml"),
        ("", 2, "--out"),
    ],
)
def test_what_it_refuses_loses_nothing(
    options: str, code: int, wanted: str, model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("foreign").mkdir()
    Path("foreign/main.c").write_text("int main(void) { return 0; }\n")
    Path("other.yaml").write_text("model: tutorial-cnn\nops: {}\n")
    before = contents(Path())
    assert run(["deploy", model, *options.split()]) == code
    said = capsys.readouterr().err
    assert wanted in said
    assert "Traceback" not in said
    assert contents(Path()) == before


@pytest.mark.needs_gcc
def test_without_a_compiler_make_says_so(model: str) -> None:
    assert run(["deploy", model, "--out", "net", "-q"]) == 0
    ended = made(Path("net"), ["CC=no-such-compiler"])
    assert ended.returncode != 0
    assert "no-such-compiler" in ended.stderr


AWKWARD = """name: switch
input: {shape: [1, 4, 4]}
loss: cross_entropy
optimizer: {name: adam, learning_rate: 0.1, schedule: {name: step, every: 1, factor: 0.5}}
layers:
- {name: exp, type: conv2d, out_channels: 2, kernel: 3}
- {name: norm, type: batch_norm}
- {name: t, type: relu}
- {name: auto, type: flatten}
- {name: pt_fork, type: linear, out_features: 4}
- {name: L1, type: layer_norm}
- {name: matmul, type: linear, out_features: 3}
"""


@pytest.mark.needs_gcc
def test_names_that_mean_something_in_c(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("awkward.yaml").write_text(AWKWARD)
    assert run(["deploy", "awkward.yaml", "--out", "net", "-q", "--batch", "2"]) == 0
    ended = made(Path("net"))
    assert ended.returncode == 0, ended.stderr
    assert "0 of" in ended.stdout
