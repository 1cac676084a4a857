"""docs/paper.md says what the model says today: the cheap tables are computed again, all of them if slow."""

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


CHEAP = ("peak", "gain", "stm32", "cores", "layers")
FROM_ALL_MATMULS = ("choice", "cells", "sharing")


def test_every_claim_is_tested(writer) -> None:
    assert {*CHEAP, *FROM_ALL_MATMULS} == {*writer.CLAIMS}


@pytest.mark.parametrize("claim", CHEAP)
def test_the_page_is_up_to_date(writer, claim: str) -> None:
    """If this fails after a change of the model: python tools/update_paper_page.py."""
    assert "\n".join(writer.CLAIMS[claim][1]()) in writer.PAGE.read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize("claim", FROM_ALL_MATMULS)
def test_the_tables_of_all_measured_matmuls_are_up_to_date(writer, claim: str) -> None:
    assert "\n".join(writer.CLAIMS[claim][1]()) in writer.PAGE.read_text(encoding="utf-8")


def test_a_claim_is_a_command_that_prints_its_table(writer, capsys) -> None:
    assert writer.main(["peak"]) == 0
    assert capsys.readouterr().out.splitlines() == writer.peak()


def test_starts_are_two_and_the_same_random_ones_each_time(writer) -> None:
    found = writer.starts()
    assert len({*found}) == 2 + writer.RANDOM_STARTS
    assert found == writer.starts()
    assert all(len(start) == 16 and min(start) >= 0 and max(start) < 8 for start in found)


def test_the_kernel_that_shares_the_long_side_wins(writer) -> None:
    assert not any("_M" in writer.fastest(shape) for shape in writer.TALL)
    assert all("_M" in writer.fastest(shape) for shape in writer.WIDE)
