# SPDX-License-Identifier: Apache-2.0
"""The wheel and the source archive, built and installed into an environment, run in any folder."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

from pulptrain.process.environment import check_own_packages
from pulptrain.show.shipped import FOLDERS, SOURCES, shipped_files
from shared.paths import ROOT
from shared.user_script import SCRIPT

SITES = [path for path in sys.path if path.endswith("site-packages")]

needs_setuptools = pytest.mark.needs_setuptools


def done(command: list[str], folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "PULPTRAIN"))}
    return subprocess.run(
        command, cwd=folder, env={**kept, **environment}, capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """(wheel made from the source archive, source archive): no network, the build tools are those here."""
    folder = tmp_path_factory.mktemp("built")
    source = folder / "source"
    copied = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    for name in filter(None, copied.stdout.decode().split("\0")):
        if (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((ROOT / name).read_bytes())
    make = "from setuptools import build_meta as b; import sys; print(b.build_{}(sys.argv[1]))"
    made = done([sys.executable, "-c", make.format("sdist"), str(folder)], source)
    assert made.returncode == 0, made.stderr
    archive = next(folder.glob("*.tar.gz"))
    with tarfile.open(archive) as opened:
        opened.extractall(folder / "unpacked", filter="data")
    (unpacked,) = (folder / "unpacked").iterdir()
    made = done([sys.executable, "-c", make.format("wheel"), str(folder)], unpacked)
    assert made.returncode == 0, made.stderr
    return next(folder.glob("*.whl")), archive


@pytest.fixture(scope="module")
def command(built: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`pulptrain` of a fresh environment, with the dependencies of this one."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=True, symlinks=True)
    python = folder / "bin" / "python"
    installed = done(
        [str(python), "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", str(built[0])], folder
    )
    assert installed.returncode == 0, installed.stderr
    (site,) = folder.glob("lib/python3*/site-packages")
    (site / "dependencies.pth").write_text("\n".join(SITES) + "\n")
    return folder / "bin" / "pulptrain"


@pytest.mark.slow
@needs_setuptools
def test_the_archives_hold_what_a_user_needs(built: tuple[Path, Path]) -> None:
    wheel, archive = built
    names = set(zipfile.ZipFile(wheel).namelist())
    for folder in FOLDERS:
        for place in shipped_files(folder):
            assert f"pulptrain/shipped_files/{place}" in names, place
    assert {"configs/schemas/model.json", "configs/templates/model.yaml", "pulptrain/py.typed"} <= names
    tops = {name.split("/")[0] for name in names if ".dist-info" not in name}
    assert not tops & {"tests", "tools", "docs", "benchmarks", "examples", "measured", "setup.py"}, tops
    with tarfile.open(archive) as opened:
        inside = {name.partition("/")[2] for name in opened.getnames()}
    assert {
        "tests/test_wheel.py",
        "docs/index.md",
        "tools/schemas.py",
        "Makefile",
        "constraints.txt",
    } <= inside


@pytest.mark.slow
@needs_setuptools
def test_the_wheel_runs_in_any_folder(command: Path, tmp_path: Path) -> None:
    assert not (tmp_path / "pulptrain").exists()
    for arguments in (
        ["--version"],
        ["example", "examples"],
        ["example", "dma"],
        ["new", "net.yaml"],
        ["run", "net.yaml", "--no-functional", "--out", "out/net"],
        ["run", "tutorial-cnn"],
        ["explore", "examples/explore-tutorial-cnn.yaml", "--no-cache"],
        ["validate", "dma", "measured/dma.csv.gz"],
        ["show", "vega"],
    ):
        ran = done([str(command), *arguments], tmp_path, PULPTRAIN_CACHE=str(tmp_path / "cache"))
        assert ran.returncode == 0, (arguments, ran.stderr)
    where = "import pulptrain, arch; print(pulptrain.__file__, arch.__file__)"
    ran = done([str(command.parent / "python"), "-c", where], tmp_path)
    assert ran.stdout.count(str(command.parents[1])) == 2, ran.stdout + ran.stderr


@pytest.mark.slow
@needs_setuptools
def test_a_script_of_the_user_passes_mypy_strict_against_the_wheel(command: Path, tmp_path: Path) -> None:
    """Outside the repository: what is typed is what was installed."""
    (tmp_path / "right.py").write_text(SCRIPT)
    (tmp_path / "wrong.py").write_text('import pulptrain as pt\npt.Conv2d("a", 3)\n')
    check = [sys.executable, "-m", "mypy", "--strict", "--python-executable", str(command.parent / "python")]
    right = done([*check, "right.py"], tmp_path)
    assert right.returncode == 0, right.stdout
    wrong = done([*check, "wrong.py"], tmp_path)
    assert "wrong.py:2: error" in wrong.stdout, wrong.stdout


@pytest.mark.slow
@needs_setuptools
@pytest.mark.parametrize("name", ["arch", "configs", "traces"])
@pytest.mark.parametrize("as_module", [True, False], ids=["folder", "file"])
def test_a_folder_of_the_user_in_the_way_is_named_in_one_line(
    command: Path, tmp_path: Path, name: str, as_module: bool
) -> None:
    if as_module:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("")
    else:
        (tmp_path / f"{name}.py").write_text("")
    python = str(command.parent / "python")
    ran = done([str(command), "list", "socs"], tmp_path)
    assert ran.returncode == 0, ran.stderr  # the command does not look here
    for hidden in (
        done([python, "-m", "pulptrain", "list", "socs"], tmp_path),
        done([str(command), "list", "socs"], tmp_path, PYTHONPATH=str(tmp_path)),
    ):
        assert hidden.returncode == 1
        assert len(hidden.stderr.splitlines()) == 1, hidden.stderr
        assert f"{name!r}" in hidden.stderr
        assert str(tmp_path) in hidden.stderr
        assert "rename" in hidden.stderr
    script = done([python, "-c", "import pulptrain"], tmp_path)
    assert "Error: " in script.stderr.splitlines()[-1]
    assert str(tmp_path) in script.stderr.splitlines()[-1]


@pytest.mark.slow
@needs_setuptools
def test_a_folder_without_modules_is_not_in_the_way(command: Path, tmp_path: Path) -> None:
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "mine.yaml").write_text("")
    ran = done([str(command.parent / "python"), "-m", "pulptrain", "list", "models"], tmp_path)
    assert ran.returncode == 0, ran.stderr


def test_the_rooms_that_are_checked_are_those_that_are_there() -> None:
    check_own_packages()
    with pytest.raises(ImportError, match="rename"):
        check_own_packages(("json",))
    with pytest.raises(ImportError, match=r"'no_such_room' .*is not installed: install again"):
        check_own_packages(("no_such_room",))


def test_the_build_ships_what_the_command_looks_for() -> None:
    tree = ast.parse((ROOT / "setup.py").read_text())
    (shipped,) = [node.value for node in tree.body if isinstance(node, ast.Assign)]
    assert ast.literal_eval(shipped) == dict(SOURCES)
