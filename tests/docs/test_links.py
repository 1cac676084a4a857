# SPDX-License-Identifier: Apache-2.0
"""Links, pictures and module paths in README, CONTRIBUTING and docs/ lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from shared.paths import ROOT

PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
PAGES += sorted((ROOT / "docs").rglob("*.md"))
ROOMS = ("arch", "barvinn", "benchmarks", "configs", "docs", "examples", "importers", "measured", "pulptrain")
ROOMS += ("scheduler", "tests", "tools", "traces", "trainlib", "truth")
NAMING_MODULES = ("docs/architecture.md", "docs/how-time-is-modelled.md", "CONTRIBUTING.md")
"""Pages in which every path is one of this repository."""

_CODE = re.compile(r"^```.*?^```|`[^`\n]*`", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_PATH = re.compile(rf"`((?:{'|'.join(ROOMS)})/[\w./*<>-]*)`")
_MODULE = re.compile(rf"\b(?:{'|'.join(ROOMS)})/[\w/]+\.py\b")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def relative_links(text: str) -> list[str]:
    """Targets of links and pictures, code left out, other hosts left out."""
    found = _LINK.findall(_CODE.sub("", text))
    return [target for target in found if not re.match(r"[a-z]+:", target)]


def anchors(text: str) -> set[str]:
    """Anchors GitHub gives the headings of a page."""
    without_code = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    names = _HEADING.findall(without_code)
    return {re.sub(r"[^\w\- ]", "", name.lower()).replace(" ", "-") for name in names}


def broken(page: Path) -> list[str]:
    """Links of a page that lead nowhere."""
    wrong = []
    for target in relative_links(page.read_text(encoding="utf-8")):
        file, _, anchor = target.partition("#")
        path = (page.parent / file).resolve() if file else page
        if not path.exists() or (anchor and anchor not in anchors(path.read_text(encoding="utf-8"))):
            wrong.append(target)
    return wrong


def missing_paths(text: str) -> list[str]:
    """Paths a page names, in backticks or as a module, that are not there; ``*`` and ``<...>`` are any."""
    named = [re.sub(r"<\w+>", "*", path.rstrip("/")) for path in _PATH.findall(text)]
    named += sorted(set(_MODULE.findall(text)) - set(named))
    return [path for path in named if not any(ROOT.glob(path))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_relative_link_and_picture_resolves(page: Path) -> None:
    assert broken(page) == []


@pytest.mark.parametrize("name", NAMING_MODULES)
def test_every_path_a_page_names_exists(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    assert _PATH.search(text)
    assert missing_paths(text) == []


def test_every_page_and_decision_is_linked_from_somewhere() -> None:
    linked = {
        (page.parent / target.partition("#")[0]).resolve()
        for page in PAGES
        for target in relative_links(page.read_text(encoding="utf-8"))
    }
    docs = {path for path in (ROOT / "docs").rglob("*") if path.suffix in (".md", ".png", ".svg", ".ipynb")}
    assert docs - linked == set()


def test_the_check_sees_what_is_broken(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# One two\n[a](page.md#one-two) [b](page.md#three) [c](no.md) `[d](no.md)` [e](http://x.y)\n"
    )
    assert broken(page) == ["page.md#three", "no.md"]
    assert missing_paths(
        "`arch/blocks/soc.py` `arch/nothing.py` `configs/kernels/<codegen>/codegen.yaml`"
    ) == ["arch/nothing.py"]
