# SPDX-License-Identifier: Apache-2.0
"""How Sphinx makes the site of the pages in this folder: ``make docs``, into out/site."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import pulptrain  # noqa: E402  of this repository, whatever is installed

project = "pulptrain"
author = copyright = "The pulptrain authors"  # the footer of every page
release = version = pulptrain.__version__

extensions = ["myst_nb", "sphinx.ext.autodoc"]
exclude_patterns = ["**/.ipynb_checkpoints"]
myst_heading_anchors = 4
nb_execution_mode = "off"  # they are executed by `python -m tools.notebooks`, and by a test
autodoc_typehints = "none"
autodoc_default_options = {"show-inheritance": False}
default_role = "code"  # docstrings say `name` for a name

highlight_language = "text"  # output of tools; what is code says its language
html_theme = "furo"
html_title = f"pulptrain {version}"
html_static_path = ["_static"]
html_css_files = ["pulptrain.css"]
html_show_sphinx = False
html_copy_source = False

SHOWN = {"contributing": "CONTRIBUTING.md", "changelog": "CHANGELOG.md"}
"""Pages that are files at the root of the repository: their links are changed on the way."""

_TO_THESE = {f"../{file}": f"{page}.md" for page, file in SHOWN.items()}


def page_of(name: str, text: str) -> str:
    """The source of a page, with links as they are on the site."""
    if name in SHOWN:
        text = (ROOT / SHOWN[name]).read_text(encoding="utf-8")
        text = re.sub(r"\]\((?![a-z]+:|#)([^)]+)\)", r"](../\1)", text)
        text = text.replace("](../docs/", "](")
    if name == "decisions/README":
        text += "\n```{toctree}\n:hidden:\n:glob:\n\n0*\n```\n"
    up = "../" if name.startswith("decisions/") else ""
    for file, page in _TO_THESE.items():
        text = text.replace(f"]({up}{file}", f"]({up}{page}")
    return text


def _change(app: Any, name: str, source: list[str]) -> None:
    if not name.startswith("notebooks/"):
        source[0] = page_of(name, source[0])


def setup(app: Any) -> None:
    """Called by Sphinx."""
    app.connect("source-read", _change)
