# SPDX-License-Identifier: Apache-2.0
"""docs/primitives.md names every primitive and its tests; its tables are tested by docs/test_pages.py."""

from shared.paths import ROOT
from trainlib.registry import PRIMITIVES


def test_every_primitive_has_a_row_and_a_test() -> None:
    """What has no examples for the shared harness must be named in a test of its own."""
    rows = {
        cells[1].strip(" `"): cells
        for line in (ROOT / "docs" / "primitives.md").read_text(encoding="utf-8").splitlines()
        if (cells := line.split("|")) and line.startswith("| `")
    }
    assert set(rows) == set(PRIMITIVES)
    for name, cells in rows.items():
        assert cells[7].strip(), f"{name} is tested by nothing"
