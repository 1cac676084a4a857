"""The README shows what the simulator prints today, and its commands exist."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

from pulptrain.__main__ import run
from pulptrain.session import run_model

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()


def update_readme() -> ModuleType:
    spec = importlib.util.spec_from_file_location("update_readme", ROOT / "tools" / "update_readme.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_output_shown_is_the_output_of_today() -> None:
    """If this fails after a change of the model: python tools/update_readme.py, see the difference."""
    today = update_readme().updated_readme(README, run_model("tutorial-cnn"))
    assert without_rounding(today) == without_rounding(README)


def without_rounding(text: str) -> list[str]:
    """All lines but those whose last digits depend on the order in which this machine's BLAS adds."""
    return [line for line in text.splitlines() if not line.startswith(("numbers  ", "loss  "))]


def test_every_command_shown_exists() -> None:
    code = "\n".join(re.findall(r"^```\n(.*?)^```", README, re.MULTILINE | re.DOTALL))
    commands = set(re.findall(r"^pulptrain (\w+)", code, re.MULTILINE))
    assert commands >= {"run", "kernel", "plot", "list"}
    for name in sorted(commands):
        assert run([name, "--help"]) == 0


def test_every_local_file_shown_exists() -> None:
    for name in re.findall(r"\]\(((?!http)[^)]+)\)", README):
        assert (ROOT / name).exists(), name
