# SPDX-License-Identifier: Apache-2.0
"""The error bar of a run: every cycle is compared with measured rows of its class, or named as not."""

from __future__ import annotations

from typing import Any

import pytest

from pulptrain.__main__ import run
from pulptrain.inputs.settings import Settings, soc_timing
from pulptrain.python.result import Result
from pulptrain.running.error_bar import error_of
from scheduler.time_line import DMA, L3, OFFLOAD, TEAM, TimeLine
from scheduler.validation.error_bars import combined, shipped_table
from shared.kept_plans import run_model
from traces.report import error_line, evidence_line

LINE = ((False, DMA, 100), (False, TEAM, 60), (False, OFFLOAD, 40), (True, "mm", 700), (True, "relu_fw", 100))
CALLS = {"mm": 1, "relu_fw": 2, DMA: 3}


OPS = (300, 100, 600)


def error(line: TimeLine = LINE, **given: Any) -> dict[str, Any]:
    settings = Settings(**given)
    return error_of(line, CALLS, settings, soc_timing(settings), OPS)


def shares(found: dict[str, Any], cause: str) -> dict[str, float]:
    return {item["class"]: round(item["share"], 6) for item in found["by_class"] if item["cause"] == cause}


def test_a_run_on_gvsoc_by_hand() -> None:
    """A fork of 20 cycles goes with every call, so a call of mm takes 720 and one of relu_fw 70."""
    found = error(timing="gvsoc", buffering="single")
    by_class = shares(found, "machine")
    assert by_class == {
        "gvsoc / matmul / clang-xpulp / shared / below 2000": 0.72,
        "gvsoc / computes / clang-xpulp / shared / below 500": 0.14,
        "gvsoc / DMA / any / any / any": 0.1,
        "gvsoc / offload / any / any / any": 0.04,
    }
    assert found["no_measurement_share"] == 0
    classes = shipped_table().classes
    bar = combined([(share, name, classes[name]) for name, share in by_class.items()])
    assert (found["typical_percent"], found["within_percent"]) == (
        pytest.approx(100 * bar.typical),
        pytest.approx(100 * bar.within),
    )
    assert error_line(found) == f"typical {100 * bar.typical:.1f}%, 95% within {100 * bar.within:.1f}%"


def test_on_rtl_an_op_is_held_against_ops_of_exported_programs_by_hand() -> None:
    """All but the offload compares: 960 of 1,000 cycles, of which ops of 400 and of 600 have their shares."""
    found = error(buffering="double")
    by_class = {
        "rtl / ops of a program / any / shared / any": 0.384,  # too few are below 500
        "rtl / ops of a program / any / shared / below 2000": 0.576,
    }
    assert shares(found, "machine") == by_class
    assert found["no_measurement"] == [{"kernel": OFFLOAD, "share": 0.04}]
    classes = shipped_table().classes
    bar = combined([(share / 0.96, name, classes[name]) for name, share in by_class.items()])
    assert found["within_percent"] == pytest.approx(100 * bar.within)
    assert error_line(found).endswith("%; 4.0% of the cycles have no comparable measurement (offload 4.0%)")


def test_on_rtl_the_code_around_hand_written_kernels_is_compiled_too() -> None:
    found = error(((True, "asm_2x2", 5000),), codegen="asm-xpulp")
    assert all(name.startswith("rtl / ops of a program / ") for name in shares(found, "machine"))
    assert found["no_measurement_share"] == 0


@pytest.mark.parametrize("icache", ["warm", "steady"])
@pytest.mark.parametrize(
    ("buffering", "cores", "measured_cycles"),
    [("double", 8, 277_782), ("single", 8, 306_628), ("double", 1, 1_803_034)],
)
def test_what_an_exported_iteration_took_lies_within_what_its_run_states(
    buffering: str, cores: int, measured_cycles: int, icache: str
) -> None:
    settings = Settings(
        soc="pulp-cluster-rtl",
        codegen="clang-rv32",
        l1="52KiB",
        buffering=buffering,
        cores=cores,
        icache=icache,
    )
    summary = run_model("tutorial-cnn", settings, functional=False).summary
    cycles = summary["cycles"] - summary["offload_cycles"]
    off_percent = 100 * (measured_cycles - cycles) / cycles
    assert off_percent <= summary["error"]["within_percent"]


@pytest.mark.parametrize(
    ("given", "note"),
    [
        ({"soc": "vega"}, "no cycles were measured on vega under rtl"),
        (
            {"soc": "pulp-cluster-rtl", "timing": "gvsoc"},
            "no cycles were measured on pulp-cluster-rtl under gvsoc",
        ),
        ({"overrides": ("core.load_cycles=2",)}, "no cycles were measured with the parameters of --set"),
    ],
)
def test_nothing_is_said_of_a_machine_that_was_not_measured(given: dict[str, Any], note: str) -> None:
    found = error(**given)
    assert (found["typical_percent"], found["within_percent"], found["by_class"]) == (None, None, [])
    assert found["no_measurement_share"] == 1
    assert error_line(found) == f"not known: {note}"


def test_what_has_no_rows_is_named_the_largest_first() -> None:
    line = (
        (False, L3, 30),
        (True, "adam", 20),
        (True, "gelu_fw", 10),
        (True, "mm_fp16", 5),
        (True, "mm", 35),
    )
    found = error(line)
    assert [item["kernel"] for item in found["no_measurement"]] == [L3, "adam", "gelu_fw", "mm_fp16"]
    left = "the others have no comparable measurement (DMA and L3 30.0%, adam 20.0%, gelu_fw 10.0%, 1 other)"
    text = error_line(found)
    assert text.startswith("for 35.0% of the cycles typical ")
    assert text.endswith(f"%; {left}")
    whole = error(((True, "mm", 35),))
    assert found["within_percent"] == whole["within_percent"], "the bar is that of the cycles that compare"
    none = error(line[:4])
    assert error_line(none) == "not known: no kernel of codegen clang-xpulp was measured"


def test_a_team_of_one_has_the_rows_of_one_core() -> None:
    (name,) = shares(error(((True, "mm", 50_000),), cores=1, timing="gvsoc"), "machine")
    assert name == "gvsoc / matmul / clang-xpulp / 1 core / 10000 and more"


def test_a_run_of_two_programs_prints_its_bar_and_the_evidence_if_asked(
    capsys: pytest.CaptureFixture[str],
) -> None:
    result = Result(run_model("simple-mlp", Settings(accumulate=2), functional=False).summary)
    found = result.error
    compared = sum(item["share"] for item in found["by_class"] if item["cause"] == "machine")
    assert compared + found["no_measurement_share"] == pytest.approx(1)
    assert f"error {error_line(found)} utilisation" in " ".join(result.report().split())
    assert run(["run", "simple-mlp", "--accumulate", "2", "--no-functional", "--evidence"]) == 0
    lines = f"error {error_line(found)} evidence {evidence_line(result.summary['evidence'])}"
    assert lines in " ".join(capsys.readouterr().out.split())
