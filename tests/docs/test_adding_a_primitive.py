# SPDX-License-Identifier: Apache-2.0
"""docs/adding-a-primitive.md is carried out: its entries, its nests, its model and its command."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

import trainlib.registry
import trainlib.training.single
from pulptrain.__main__ import run
from pulptrain.running.session import run_model
from shared import primitive_harness
from shared.paths import ROOT
from trainlib.ir.access import Contraction
from trainlib.kernels.library import LIBRARY, KernelLibrary
from trainlib.primitives.contractions import convolution
from trainlib.primitives.definition import Primitive
from trainlib.primitives.elementwise import table as elementwise
from trainlib.primitives.optimizers import table as optimizers
from truth import layers, steps

PAGE = (ROOT / "docs" / "adding-a-primitive.md").read_text()
BLOCKS = {
    (kind, name): text
    for kind, name, text in re.findall(
        r"^<!-- (\w+): (\S+) -->\n```\w+\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL
    )
}
KERNELS = [name for kind, name in BLOCKS if kind == "kernel"]


def entry(table: Any, kind: str, name: str) -> Primitive:
    """The page's entry, made as it would be in its table."""
    namespace = dict(vars(table))
    exec(BLOCKS.get(("options", name), ""), namespace)
    primitive: Primitive = eval(BLOCKS[kind, name], namespace)
    assert primitive.name == name
    return primitive


@pytest.fixture
def added(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Primitive]:
    """The page's entries and kernel files, in their places for the length of a test."""
    root = tmp_path / "kernels"
    shutil.copytree(str(files("configs").joinpath("kernels")), root)
    for name in KERNELS:
        (root / "clang-xpulp" / f"{name}.yaml").write_text(BLOCKS["kernel", name])
    for name, value in vars(KernelLibrary(root)).items():
        monkeypatch.setattr(LIBRARY, name, value)
    primitives = {
        "softsign": entry(elementwise, "elementwise", "softsign"),
        "signum": entry(optimizers, "optimizers", "signum"),
        "sine": entry(elementwise, "elementwise", "sine"),
    }
    for room, tables, name in (
        (layers, (layers.LAYERS,), "softsign"),
        (layers, (layers.LAYERS,), "sine"),
        (steps, (steps.OPTIMIZERS, steps.STATES), "signum"),
    ):
        for table in tables:
            monkeypatch.setitem(table, name, None)  # so that it is gone again afterwards
        exec(BLOCKS[f"truth_{room.__name__.removeprefix('truth.')}", name], vars(room).copy())
    everything = MappingProxyType({**trainlib.registry.PRIMITIVES, **primitives})
    for module in (trainlib.registry, trainlib.training.single, primitive_harness):
        monkeypatch.setattr(module, "PRIMITIVES", everything)
    return primitives


@pytest.mark.parametrize(("name", "cases"), [("softsign", 20), ("signum", 10), ("sine", 10)])
def test_a_new_entry_passes_what_every_primitive_must(
    added: dict[str, Primitive], name: str, cases: int
) -> None:
    found = primitive_harness.cases_of(added[name])
    assert len(found) == cases
    for case in found:
        primitive_harness.check_reference(case)
        primitive_harness.check_tiles(case)
        primitive_harness.check_work(case)


def test_its_model_trains_and_runs_the_nests_of_the_page(added: dict[str, Primitive], tmp_path: Path) -> None:
    path = tmp_path / "softsign.yaml"
    path.write_text(BLOCKS["model", "softsign-net"])
    outcome = run_model(str(path))
    assert outcome.summary["functional"]["passed"]
    assert outcome.summary["functional"]["checked_against"] == "PyTorch"
    ops = {op["name"]: op["primitive"] for op in outcome.summary["ops"]}
    assert [name for name, primitive in ops.items() if primitive == "softsign"] == ["act.FW", "act.IG"]
    assert {primitive for name, primitive in ops.items() if ".UPD" in name} == {"signum"}
    assert set(KERNELS) <= set(outcome.summary["unmeasured_kernels"])
    assert set(KERNELS) <= {item.work.what for item in outcome.slices}


def test_its_command_runs(added: dict[str, Primitive], capsys: pytest.CaptureFixture[str]) -> None:
    program, *arguments = shlex.split(BLOCKS["run", "softsign"])
    assert program == "pulptrain"
    assert run(arguments) == 0
    assert "softsign" in capsys.readouterr().out


PLACES = {
    "trainlib/primitives/elementwise/table.py": (
        "elementwise",
        "PRIMITIVES: tuple[LayerPrimitive, ...] = (\n",
    ),
    "importers/ops.py": ("ops", "ALONE = (\n"),
}
"""File of the page's layer that others have -> its block, behind what it stands; `truth/` has another."""

READ_AND_WRITTEN = """
import numpy as np, torch
from configs.model_file import LayerSpec
from importers.export.writer import onnx_bytes
from importers.graph.onnx_file import load_onnx
from importers.onnx.forward import import_forward
from importers.torch.module import from_torch
from trainlib.training.phases import build_training_graph, initial_weights

class Net(torch.nn.Module):
    def forward(self, x):
        return torch.sin(x)

spec = from_torch(Net(), torch.zeros(2, 6)).spec
print(*(layer.type for layer in spec.layers))
data = onnx_bytes(spec, {})
open("sine.onnx", "wb").write(data)
graph = load_onnx("sine.onnx")
print(*(node.op for node in graph.nodes))
print(*(layer.type for layer in import_forward(graph).spec.layers))
"""


@pytest.mark.needs_onnx
@pytest.mark.needs_torch
def test_a_layer_of_the_page_is_read_from_both_and_written_by_two_files(tmp_path: Path) -> None:
    for room in ("arch", "configs", "importers", "trainlib"):
        shutil.copytree(ROOT / room, tmp_path / room, ignore=shutil.ignore_patterns("__pycache__"))
    for name, (kind, place) in PLACES.items():
        text, block = (tmp_path / name).read_text(), BLOCKS[kind, "sine"].rstrip().rstrip(",")
        assert text.count(place) == 1
        (tmp_path / name).write_text(text.replace(place, f"{place}{block},\n"))
    made = subprocess.run(
        [sys.executable, "-c", READ_AND_WRITTEN], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert made.stdout.split("\n") == ["sine", "Sin", "sine", ""], made.stderr


def test_its_figures_are_those_of_its_blocks() -> None:
    def lines(*kinds: str, names: tuple[str, ...]) -> int:
        return sum(
            text.count("\n") for (kind, name), text in BLOCKS.items() if kind in kinds and name in names
        )

    activation = lines("elementwise", "truth_layers", names=("softsign",))
    update = lines("optimizers", "options", "truth_steps", names=("signum",))
    table = [line.split("|")[2:4] for line in PAGE.splitlines() if re.match(r"\| (an|the same)", line)]
    read = lines("elementwise", "ops", "truth_layers", names=("sine",))
    assert f"read from both and written | {len(PLACES) + 1} | {read} |" in PAGE
    assert [[int(cell) for cell in cells] for cells in table] == [
        [2, activation],
        [4, activation + lines("kernel", names=("softsign_fw", "softsign_bw"))],
        [2, update],
        [3, update + lines("kernel", names=("signum",))],
    ]


def test_the_contraction_of_the_page_is_that_of_the_layer() -> None:
    text = BLOCKS["contraction", "CONVOLUTION_1D"]
    assert eval(text, {"Contraction": Contraction}) == convolution.CONVOLUTION_1D
    room = Path(convolution.__file__).parent
    module = (room / "conv1d.py").read_text().splitlines()
    lines = sum(not line.startswith("# SPDX-License-Identifier:") for line in module)
    in_table = len(text.splitlines()) + 4  # its docstring, and the line that chooses it
    registered = 2
    assert f"by kernels that exist | 3 | {lines + in_table + registered} |" in PAGE
    steps = (room / "conv_transpose2d.py").read_text().count("transposed_step(")
    assert f"its three steps | 1 | {steps} |" in PAGE
