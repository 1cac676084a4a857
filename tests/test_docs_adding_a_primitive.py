"""docs/adding-a-primitive.md is carried out: its file, its registration, its model and its command."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from types import MappingProxyType

import primitive_harness
import pytest

import trainlib.registry
import trainlib.single
from configs.dtypes import DTYPES
from pulptrain.__main__ import run
from pulptrain.session import run_model
from trainlib.primitives.definition import LayerPrimitive

PAGE = (Path(__file__).resolve().parents[1] / "docs" / "adding-a-primitive.md").read_text()
BLOCKS = dict(re.findall(r"^```(\w+)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL))


@pytest.fixture
def added(monkeypatch: pytest.MonkeyPatch) -> LayerPrimitive:
    """The page's primitive, registered for the length of a test as its one line would do."""
    namespace: dict[str, object] = {"__name__": "trainlib.primitives.hard_swish"}
    exec(compile(BLOCKS["python"], "hard_swish.py", "exec"), namespace)
    primitive = namespace["PRIMITIVE"]
    assert isinstance(primitive, LayerPrimitive)
    assert BLOCKS["text"].strip() == f"{primitive.name}.PRIMITIVE,"
    everything = MappingProxyType({**trainlib.registry.PRIMITIVES, primitive.name: primitive})
    for module in (trainlib.registry, trainlib.single, primitive_harness):
        monkeypatch.setattr(module, "PRIMITIVES", everything)
    return primitive


def test_the_new_primitive_passes_what_every_primitive_must(added: LayerPrimitive) -> None:
    cases = primitive_harness.cases_of(added)
    assert len(cases) == 2 * 2 * len(DTYPES), "two examples, two batches"
    for case in cases:
        primitive_harness.check_reference(case)
        primitive_harness.check_tiles(case)
        primitive_harness.check_work(case)


def test_its_model_trains(added: LayerPrimitive, tmp_path: Path) -> None:
    path = tmp_path / "swish.yaml"
    path.write_text(BLOCKS["yaml"])
    summary = run_model(str(path)).summary
    assert summary["functional"]["passed"]
    assert [op["name"] for op in summary["ops"] if op["primitive"] == added.name] == ["act.FW", "act.IG"]


def test_its_command_runs(added: LayerPrimitive, capsys: pytest.CaptureFixture[str]) -> None:
    program, *arguments = shlex.split(BLOCKS["console"])
    assert program == "pulptrain"
    assert run(arguments) == 0
    assert "hard_swish" in capsys.readouterr().out
