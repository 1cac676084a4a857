"""docs/paper.md says what the model says today: the cheap tables are computed again."""

import importlib.util
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def writer():
    spec = importlib.util.spec_from_file_location(
        "update_paper_page", ROOT / "tools" / "update_paper_page.py"
    )
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("claim", ["peak", "gain", "stm32", "cores"])
def test_the_page_is_up_to_date(writer, claim: str) -> None:
    """If this fails after a change of the model: python tools/update_paper_page.py."""
    assert "\n".join(writer.CLAIMS[claim][1]()) in writer.PAGE.read_text(encoding="utf-8")


def test_the_kernel_that_shares_the_long_side_wins(writer) -> None:
    assert not any("_M" in writer.fastest(shape) for shape in writer.TALL)
    assert all("_M" in writer.fastest(shape) for shape in writer.WIDE)
