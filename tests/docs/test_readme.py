# SPDX-License-Identifier: Apache-2.0
"""The commands and files the README shows exist; its output is tested by docs/test_pages.py."""

from __future__ import annotations

import re

from pulptrain.__main__ import run
from shared.paths import ROOT

README = (ROOT / "README.md").read_text()


def test_every_command_shown_exists() -> None:
    code = "\n".join(re.findall(r"^```\n(.*?)^```", README, re.MULTILINE | re.DOTALL))
    commands = set(re.findall(r"^pulptrain ([\w-]+)", code, re.MULTILINE))
    assert commands >= {"run", "why", "tune", "fit", "explore", "validate"}
    for name in sorted(commands):
        assert run([name, "--help"]) == 0


def test_every_local_file_shown_exists() -> None:
    for name in re.findall(r"\]\(((?!http)[^)]+)\)", README):
        assert (ROOT / name.partition("#")[0]).exists(), name
