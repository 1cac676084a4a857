# SPDX-License-Identifier: Apache-2.0
"""The licence: one line per source file, and one word for it everywhere."""

from __future__ import annotations

import importlib.util
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

import pulptrain
from configs.yaml_file import load_yaml
from shared.paths import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def load_tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("licence_lines", ROOT / "tools" / "licence_lines.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


TOOL = load_tool()


def test_all_source_files_have_the_line_once_one_of_them_has_it() -> None:
    """Until `python tools/licence_lines.py` has been run for the first time no file has it."""
    sources = TOOL.sources()
    assert len(sources) > 400
    missing = TOOL.lacking(sources)
    assert missing in ([], sources), "python tools/licence_lines.py"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('"""Text."""\n', '# SPDX-License-Identifier: Apache-2.0\n"""Text."""\n'),
        ("#!/bin/x\nimport os\n", "#!/bin/x\n# SPDX-License-Identifier: Apache-2.0\nimport os\n"),
        ("a = 1\r\n", "# SPDX-License-Identifier: Apache-2.0\r\na = 1\r\n"),
        ("", "# SPDX-License-Identifier: Apache-2.0\n"),
    ],
)
def test_the_line_is_added_once(before: str, after: str, tmp_path: Path) -> None:
    assert TOOL.with_line(before) == after
    assert TOOL.with_line(after) == after
    path = tmp_path / "module.py"
    path.write_bytes(before.encode())
    assert TOOL.lacking([path]) == TOOL.add([path]) == [path]
    assert TOOL.lacking([path]) == TOOL.add([path]) == []
    assert path.read_bytes() == after.encode()


def test_another_licence_is_not_written_over() -> None:
    with pytest.raises(ValueError, match="MIT"):
        TOOL.with_line("# SPDX-License-Identifier: MIT\n")


def test_the_check_names_files_and_changes_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "arch").mkdir()
    path = tmp_path / "arch" / "module.py"
    path.write_text("a = 1\n")
    monkeypatch.setattr(TOOL, "ROOT", tmp_path)
    monkeypatch.setattr(TOOL.sources, "__defaults__", (tmp_path,))
    assert TOOL.main(["--check"]) == 1
    assert capsys.readouterr().out.startswith("arch/module.py: no licence line")
    assert path.read_text() == "a = 1\n"
    assert TOOL.main([]) == 0
    assert TOOL.main(["--check"]) == 0


def test_licence_version_and_authors_are_the_same_everywhere() -> None:
    citation = load_yaml(ROOT / "CITATION.cff").plain()
    assert citation["cff-version"] == "1.2.0"
    assert {"message", "title", "authors"} <= set(citation)
    assert citation["license"] == PROJECT["license"] == TOOL.IDENTIFIER
    assert "Apache License\n                           Version 2.0" in (ROOT / "LICENSE").read_text()
    assert citation["version"] == PROJECT["version"] == pulptrain.__version__
    assert [author["name"] for author in citation["authors"]] == [item["name"] for item in PROJECT["authors"]]
    assert set(citation["keywords"]) == set(PROJECT["keywords"])
