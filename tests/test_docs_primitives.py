"""docs/primitives.md is what the primitives say about themselves today."""

import importlib.util
import sys
from pathlib import Path

from trainlib.registry import PRIMITIVES

ROOT = Path(__file__).resolve().parents[1]


def page_writer():
    spec = importlib.util.spec_from_file_location(
        "update_primitives_page", ROOT / "tools" / "update_primitives_page.py"
    )
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_the_page_is_up_to_date() -> None:
    """If this fails after a change of a primitive or its tests: python tools/update_primitives_page.py."""
    writer = page_writer()
    assert writer.PAGE.read_text(encoding="utf-8") == writer.primitives_page()


def test_every_primitive_has_a_row_and_a_test() -> None:
    """What has no examples for the shared harness must be named in a test of its own."""
    rows = {
        cells[1].strip(" `"): cells
        for line in (ROOT / "docs" / "primitives.md").read_text(encoding="utf-8").splitlines()
        if (cells := line.split("|")) and line.startswith("| `")
    }
    assert set(rows) == set(PRIMITIVES)
    for name, cells in rows.items():
        assert cells[6].strip(), f"{name} is tested by nothing"
