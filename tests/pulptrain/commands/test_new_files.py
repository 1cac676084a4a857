# SPDX-License-Identifier: Apache-2.0
"""`new`, `show` and `example`: what a user begins with; and the schemas editors read."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import pulptrain as pt
from configs.library import list_names
from configs.meanings import keys_of
from configs.model_file import LayerSchema, ModelSchema
from configs.yaml_file import load_yaml
from pulptrain.__main__ import run
from pulptrain.commands.new import KINDS, schema_path
from pulptrain.show.descriptions import KINDS as SHOWN
from pulptrain.show.descriptions import describe, names_of
from pulptrain.show.shipped import FOLDERS, shipped_files
from shared.paths import ROOT
from shared.printed import printed, refused
from tools import schemas
from traces.compared.residuals import Residuals
from trainlib.about import ABOUT
from trainlib.registry import PRIMITIVES, is_internal

HEADER = "# yaml-language-server: $schema="


@pytest.mark.parametrize(
    ("kind", "use"),
    [
        ("model", ["run", "mine.yaml", "--no-functional", "--quiet"]),
        pytest.param(
            *("soc", ["run", "tutorial-cnn", "--soc", "mine.yaml", "--no-functional", "--quiet"]),
            marks=pytest.mark.smoke,
        ),
        ("energy", ["run", "tutorial-cnn", "--energy", "mine.yaml", "--no-functional", "--quiet"]),
        pytest.param("explore", ["explore", "mine.yaml", "--quiet", "--no-cache"], marks=pytest.mark.slow),
    ],
)
def test_a_new_file_runs_as_it_is_and_is_never_overwritten(
    kind: str,
    use: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["new", "mine.yaml", "--kind", kind]) == 0
    text = Path("mine.yaml").read_text()
    place = text.splitlines()[0].removeprefix(HEADER)
    assert place == schema_path(kind)
    assert json.loads(Path(place).read_text())["title"].startswith("pulptrain")
    assert "\nname: mine\n" in text
    assert run(use) == 0
    assert "'mine.yaml' already exists" in refused(capsys, "new", "mine.yaml")
    assert Path("mine.yaml").read_text() == text


def test_a_new_table_has_the_ops_of_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Filled in with what is predicted, it is off by nothing."""
    monkeypatch.chdir(tmp_path)
    result = pt.run("simple-mlp", functional=False)
    Path("out").mkdir()
    Path("out", "summary.json").write_text(json.dumps(result.summary))
    assert run(["new", "measured.csv", "--run", "out"]) == 0
    assert "the file has no measured cycles" in refused(capsys, "compare", "out", "measured.csv")
    table = Path("measured.csv")
    cycles = {f"{op.name},": str(op.cycles) for op in result.ops}
    table.write_text("\n".join(line + cycles.get(line, "") for line in table.read_text().splitlines()))
    found = pt.compare("out", "measured.csv")
    assert isinstance(found, Residuals)
    assert (found.error, len(found.rows), found.unmeasured) == (0, len(result.ops), {})
    assert run(["new", "other.csv"]) == 0
    for arguments, told in (
        (
            ["mine.yaml", "--run", "out"],
            "--run: the option applies only if FILE is a .csv file, or with --kind energy",
        ),
        (["third.csv", "--run", "."], "cannot read"),
    ):
        assert told in refused(capsys, "new", *arguments)


def test_a_template_names_every_key_of_a_model_file() -> None:
    text = (ROOT / "configs" / "templates" / "model.yaml").read_text()
    for key in keys_of(ModelSchema):
        assert f"{key.name}:" in text, key.name


def test_every_word_that_can_be_asked_for_is_explained() -> None:
    named = {name for name, primitive in PRIMITIVES.items() if not is_internal(primitive)}
    assert set(ABOUT) == named
    keys = [key for name in sorted(named) for key in keys_of(PRIMITIVES[name].schema)]  # type: ignore[union-attr]
    assert [
        key.name for key in (*keys, *keys_of(LayerSchema), *keys_of(ModelSchema)) if not key.meaning
    ] == []


@pytest.mark.parametrize("kind", SHOWN)
def test_every_name_can_be_shown_and_its_example_is_right(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in names_of(kind) if kind != "kernel" else ("mm", "relu_fw", "mm_dw_u2"):
        (found,) = describe(name, kind)
        assert found["about"]
        if kind == "primitive":
            assert found["example"].count(name) >= 1
    some = {"model": "cct", "soc": "vega", "primitive": "gru", "kernel": "mm", "stall": "idle"}[kind]
    assert run(["show", some]) == 0
    shown = capsys.readouterr().out
    assert describe(some, kind)[0]["about"].split()[0] in shown
    assert max(map(len, shown.splitlines())) <= 200


def test_primitives_can_be_read_at_80_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for name in ("mhsa", "conv2d", "gru", "softmax", "adamw"):
        assert run(["show", name]) == 0
        assert max(map(len, capsys.readouterr().out.splitlines())) <= 80, name
    assert run(["list", "primitives"]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"^mhsa +Multi-head self-attention", shown, re.MULTILINE)


def test_a_shown_file_can_be_copied_and_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["show", "tutorial-cnn", "--file"]) == 0
    Path("mine.yaml").write_text(capsys.readouterr().out)
    assert run(["show", "mine.yaml"]) == 0
    assert "19,584" in capsys.readouterr().out
    for arguments, hint in (
        (["show", "conv2", "--kind", "primitive"], "'conv2d'"),
        (["show", "pulp-open", "dmma"], "dma"),
        (["show", "mm", "--file"], "has no YAML file that --file can print"),
        (["show", "mm", "--kind", "kernl"], "'kernel'"),
        (["show", "mm", "--codegen", "clang"], "clang-xpulp"),
    ):
        assert run(arguments) == 2, arguments
        assert hint in capsys.readouterr().err


def test_examples_are_written_below_a_folder_and_never_over_other_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in FOLDERS:
        assert shipped_files(folder), folder
    for _ in range(2):  # the same file may be there already
        assert run(["example", "explore-tutorial-cnn"]) == 0
    assert Path("examples/explore-tutorial-cnn.yaml").is_file()
    assert run(["example", "micro", "--out", "elsewhere"]) == 0
    assert Path("elsewhere/measured/micro.csv.gz").is_file()
    Path("examples/explore-tutorial-cnn.yaml").write_text("mine")
    assert "already exists with other content" in refused(capsys, "example", "examples")
    assert Path("examples/explore-tutorial-cnn.yaml").read_text() == "mine"
    assert "'explore-tutorial-cnn'" in refused(capsys, "example", "explore-tutorial-cn")


@pytest.mark.parametrize("name", schemas.SCHEMAS)
def test_the_schemas_that_ship_are_those_that_read_the_files(name: str) -> None:
    assert (schemas.FOLDER / f"{name}.json").read_text() == schemas.text_of(name), "python -m tools.schemas"


def test_every_file_that_ships_names_its_schema() -> None:
    for kind, folder in (("model", "models"), ("soc", "soc")):
        for name in list_names(folder):
            path = ROOT / "configs" / folder / f"{name}.yaml"
            place = path.read_text().splitlines()[0].removeprefix(HEADER)
            assert (path.parent / place).resolve() == schemas.FOLDER / f"{kind}.json", path
    assert set(KINDS) <= set(schemas.SCHEMAS)


EXAMPLES = ("autoenc", "cct-lora", "ds-cnn-cifar", "gru-two", "lora-block")


@pytest.mark.slow
@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_network_runs_with_right_numbers(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(capsys, "run", str(ROOT / "examples" / f"{name}.yaml"))["functional"]["passed"] is True


def test_the_examples_are_those_that_are_run() -> None:
    files = {Path(place).stem for place in shipped_files("examples")}
    assert files == {*EXAMPLES, "explore-tutorial-cnn", "guard-cycles"}


@pytest.mark.needs_jsonschema
@pytest.mark.parametrize("kind", ["model", "soc"])
def test_files_that_are_read_fit_their_schema_and_wrong_ones_do_not(kind: str, tmp_path: Path) -> None:
    from jsonschema import Draft7Validator

    schema = json.loads(schemas.text_of(kind))
    Draft7Validator.check_schema(schema)
    validator = Draft7Validator(schema)
    folder = {"model": "models", "soc": "soc"}[kind]
    files = [ROOT / "configs" / folder / f"{name}.yaml" for name in list_names(folder)]
    examples = [ROOT / "examples" / f"{name}.yaml" for name in EXAMPLES] if kind == "model" else []
    for path in (*files, *examples, ROOT / "configs" / "templates" / f"{kind}.yaml"):
        assert [error.message for error in validator.iter_errors(load_yaml(path).plain())] == [], path
    template = (ROOT / "configs" / "templates" / f"{kind}.yaml").read_text()
    wrong = {
        "model": ("out_channels: 8", "out_chanels: 8"),
        "soc": ("size_bytes: {value", "size_byte: {value"),
    }[kind]
    (tmp_path / "wrong.yaml").write_text(template.replace(*wrong))
    assert list(validator.iter_errors(load_yaml(tmp_path / "wrong.yaml").plain()))
