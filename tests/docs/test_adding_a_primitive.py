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
from importers import ops
from pulptrain.__main__ import run
from pulptrain.running.session import run_model
from shared import primitive_harness
from shared.paths import ROOT
from trainlib.about import about
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
        "sinh": entry(elementwise, "elementwise", "sinh"),
    }
    for room, tables, name in (
        (layers, (layers.LAYERS,), "softsign"),
        (layers, (layers.LAYERS,), "sinh"),
        (steps, (steps.OPTIMIZERS, steps.STATES), "signum"),
    ):
        for table in tables:
            monkeypatch.setitem(table, name, None)  # so that it is gone again afterwards
        exec(BLOCKS[f"truth_{room.__name__.removeprefix('truth.')}", name], vars(room).copy())
    everything = MappingProxyType({**trainlib.registry.PRIMITIVES, **primitives})
    for module in (trainlib.registry, trainlib.training.single, primitive_harness):
        monkeypatch.setattr(module, "PRIMITIVES", everything)
    return primitives


@pytest.mark.parametrize(("name", "cases"), [("softsign", 20), ("signum", 10), ("sinh", 10)])
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
    "elementwise": (
        "trainlib/primitives/elementwise/table.py",
        "PRIMITIVES: tuple[LayerPrimitive, ...] = (\n",
    ),
    "optimizers": (
        "trainlib/primitives/optimizers/table.py",
        "PRIMITIVES: tuple[OptimizerPrimitive, ...] = (\n",
    ),
    "about": ("trainlib/about.py", "ABOUT: Mapping[str, str] = {\n"),
    "ops": ("importers/ops.py", "ALONE = (\n"),
}
"""Kind of block -> the file it is of, and behind what it stands there."""

HANDLER = '    "Softsign": lambda node: softsign(node, node.x),\n'
"""What the page says is to go where softsign is a layer of its own."""

CARRIED_OUT = """
import torch
from configs.model_file import LayerSpec
from importers.export.writer import onnx_bytes
from importers.graph.onnx_file import load_onnx
from importers.onnx.forward import import_forward
from importers.torch.module import from_torch
from importers import ops
from pulptrain.__main__ import run
from tools.schemas import model
import json, sys

class Net(torch.nn.Module):
    def forward(self, x):
        return torch.sinh(x)

spec = from_torch(Net(), torch.zeros(2, 6)).spec
print(*(layer.type for layer in spec.layers))
soft = [LayerSpec("soft", "softsign", {}, "here")]
import dataclasses
from configs.values import replace
spec = replace(spec, layers=(*spec.layers, *soft))
with open("net.onnx", "wb") as file:
    file.write(onnx_bytes(spec, {}))
graph = load_onnx("net.onnx")
print(*(node.op for node in graph.nodes))
print(*(layer.type for layer in import_forward(graph).spec.layers))
assert run(["list", "primitives", "--json"]) == 0
for name in ("softsign", "signum", "sinh"):
    assert run(["show", name]) == 0
    print(name in json.dumps(model()))
"""

WRITTEN_DOWN = """
from pulptrain.__main__ import run
from tools.pages import primitives

assert run(["deploy", "net.yaml", "--out", "project"]) == 0
for name, block in primitives.PAGE.blocks.items():
    if name in ("layers", "optimizers"):
        print(block())
"""


def with_blocks(folder: Path, *blocks: tuple[str, str]) -> Path:
    """A copy of the rooms with blocks of the page in their places; as bytecode too, which is still right."""
    for room in ROOMS:
        shutil.copytree(ROOT / room, folder / room)
    for kind, name in blocks:
        file, place = PLACES[kind]
        text, block = (folder / file).read_text(), BLOCKS[kind, name].rstrip().rstrip(",")
        assert text.count(place) == 1
        options = BLOCKS.get(("options", name), "") if kind == "optimizers" else ""
        (folder / file).write_text(text.replace(place, f"{options}\n\n{place}{block},\n"))
    return folder


ROOMS = (
    *("arch", "configs", "importers", "trainlib", "traces", "truth", "scheduler", "barvinn", "deploy"),
    *("pulptrain", "tools"),
)


def page_applied(folder: Path) -> Path:
    """A copy with all blocks of the page."""
    with_blocks(folder, *((kind, name) for kind, name in BLOCKS if kind in PLACES))
    reader = folder / "importers/onnx/elements.py"
    assert reader.read_text().count(HANDLER.strip()) == 1
    reader.write_text(reader.read_text().replace(HANDLER.strip(), ""))
    for name in KERNELS:
        (folder / "configs/kernels/clang-xpulp" / f"{name}.yaml").write_text(BLOCKS["kernel", name])
    for name, text in ((name, text) for (kind, name), text in BLOCKS.items() if kind.startswith("truth_")):
        room = "steps" if ("truth_steps", name) in BLOCKS else "layers"
        with (folder / "truth" / f"{room}.py").open("a") as file:
            file.write(f"\n\n{text}")
    return folder


def carried_out(folder: Path, what: str = CARRIED_OUT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", what], cwd=folder, capture_output=True, text=True, check=False
    )


@pytest.mark.slow
def test_the_page_carried_out_is_listed_and_exported_and_its_c_computes_the_same(tmp_path: Path) -> None:
    """Formulas of the page as C, compiled for the host with sanitizers, and the same numbers there."""
    folder = page_applied(tmp_path)
    for room in ("tests", "docs"):
        (folder / room).symlink_to(ROOT / room)
    act = "  - {name: act, type: softsign}\n"
    model = BLOCKS["model", "softsign-net"]
    assert act in model
    (folder / "net.yaml").write_text(model.replace(act, f"{act}  - {{name: other, type: sinh}}\n"))
    made = carried_out(folder, WRITTEN_DOWN)
    assert made.returncode == 0, made.stderr
    assert all(f"| `{name}` |" in made.stdout for name in ("softsign", "sinh", "signum"))
    if shutil.which("gcc") is None:
        pytest.skip("needs gcc")
    check = subprocess.run(
        ["make", "check"], cwd=folder / "project", capture_output=True, text=True, check=False
    )
    assert check.returncode == 0, check.stdout + check.stderr


@pytest.mark.needs_onnx
@pytest.mark.needs_torch
def test_the_page_carried_out_is_shown_listed_read_and_written(tmp_path: Path) -> None:
    made = carried_out(page_applied(tmp_path))
    assert made.returncode == 0, made.stderr
    lines = made.stdout.split("\n")
    assert lines[:3] == ["sinh", "Sinh Softsign", "sinh softsign"]
    assert {"softsign: layer", "signum: optimizer", "sinh: layer"} <= {line for line in lines if ": " in line}
    assert '"description": "x / (1 + |x|).",' in made.stdout
    assert lines.count("True") == 3


def test_a_row_that_a_handler_hides_is_an_error_that_names_both() -> None:
    def own(node: object) -> None:
        """A handler."""

    where = rf"Softsign has a row in importers/ops\.py and a handler at {__name__}:\d+: remove one of them"
    with pytest.raises(ValueError, match=where):
        ops.with_own({"Softsign": own}, {"Softsign": own})
    with pytest.raises(ValueError, match="`instead` names Elu, which does not have both"):
        ops.with_own({"Softsign": own}, {}, instead=("Elu",))
    with pytest.raises(ValueError, match=r"two rows of importers/ops\.py have Elu: elu and relu"):
        ops.by_onnx([ops.Op("elu", "Elu"), ops.Op("relu", "Relu Elu")])


def test_a_primitive_without_a_sentence_is_told_with_the_place_of_it() -> None:
    with pytest.raises(LookupError, match=r"softsign has no description: .*ABOUT in trainlib/about\.py"):
        about("softsign")


def test_its_figures_are_those_of_its_blocks() -> None:
    def lines(*kinds: str, names: tuple[str, ...]) -> int:
        return sum(
            text.count("\n") for (kind, name), text in BLOCKS.items() if kind in kinds and name in names
        )

    activation = lines("elementwise", "truth_layers", "about", names=("softsign",))
    update = lines("optimizers", "options", "truth_steps", "about", names=("signum",))
    table = [line.split("|")[2:4] for line in PAGE.splitlines() if re.match(r"\| (an|the same)", line)]
    read = lines("elementwise", "ops", "truth_layers", "about", names=("sinh",))
    assert f"read from both and written | 4 | {read} |" in PAGE
    assert [[int(cell) for cell in cells] for cells in table] == [
        [3, activation],
        [5, activation + lines("kernel", names=("softsign_fw", "softsign_bw"))],
        [3, update],
        [4, update + lines("kernel", names=("signum",))],
    ]


def test_the_contraction_of_the_page_is_that_of_the_layer() -> None:
    text = BLOCKS["contraction", "CONVOLUTION_1D"]
    assert eval(text, {"Contraction": Contraction}) == convolution.CONVOLUTION_1D
    room = Path(convolution.__file__).parent
    module = (room / "conv1d.py").read_text().splitlines()
    lines = sum(not line.startswith("# SPDX-License-Identifier:") for line in module)
    in_table = len(text.splitlines()) + 4  # its docstring, and the line that chooses it
    registered = 2
    assert f"with existing kernels | 3 | {lines + in_table + registered} |" in PAGE
    steps = (room / "conv_transpose2d.py").read_text().count("transposed_step(")
    assert f"only its steps FW, IG and WG | 1 | {steps} |" in PAGE
