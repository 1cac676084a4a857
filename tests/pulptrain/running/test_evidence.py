# SPDX-License-Identifier: Apache-2.0
"""The evidence of a run: every cycle has one label, and the shares follow from rules a reader can check."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from arch.spec.program import Program
from arch.spec.soc_config import load_soc
from configs.grades import DESCRIBED, ESTIMATED, LABELS, MEASURED, assumed_count
from configs.parameters import load_parameters
from pulptrain.__main__ import run
from pulptrain.inputs.settings import Settings
from pulptrain.running.evidence import evidence_of, machine_label
from scheduler.time_line import DMA, L3, OFFLOAD, TEAM, time_line, whole_line
from shared.kept_plans import run_model
from shared.printed import printed
from traces.metrics import MasterTime
from traces.report import evidence_line

GVSOC = Settings(timing="gvsoc")


def shares(evidence: dict[str, Any]) -> list[float]:
    assert sum(evidence[label] for label in LABELS) == pytest.approx(1, abs=1e-12)
    return [round(evidence[label], 4) for label in LABELS]


def test_the_shares_of_a_time_line_by_hand() -> None:
    line = (
        (True, "mm", 60),
        (True, "relu_fw_fp16", 20),
        (True, "adam", 10),
        (False, DMA, 8),
        (False, OFFLOAD, 2),
    )
    found = evidence_of(line, GVSOC)
    assert shares(found) == [0.68, 0.2, 0.12]  # the DMA is measured, the offload has assumed parameters
    assert [(item["kernel"], item["share"]) for item in found["largest_unmeasured"]] == [
        ("relu_fw_fp16", 0.2),
        ("adam", 0.1),
        (OFFLOAD, 0.02),
    ]
    # The same code on the hardware: no row was taken there.
    assert shares(evidence_of(line, Settings())) == [0, 0.8, 0.2]
    # Nor on another chip, or with another value than that of the machine the rows were taken on.
    for settings in (Settings("vega", "gvsoc"), Settings(timing="gvsoc", overrides=("core.load_cycles=2",))):
        assert shares(evidence_of(line, settings))[0] == 0
    # Rows have teams of several sizes, and FPUs both shared and private.
    for settings in (Settings(timing="gvsoc", cores=4), Settings("pulp-open-private", "gvsoc")):
        assert shares(evidence_of(line, settings)) == [0.68, 0.2, 0.12]


def test_the_line_for_people() -> None:
    found = evidence_of(((True, "mm", 60), (True, "adam", 40)), GVSOC)
    count = assumed_count(load_parameters("pulp-open", "gvsoc"))
    assert evidence_line(found) == (
        "60.0% measured, 0.0% described, 40.0% estimated; largest not measured: adam 40.0%; "
        f"{count} parameters of the SoC assumed"
    )


def test_a_part_of_the_machine_is_as_good_as_its_parameters() -> None:
    rtl, gvsoc = (load_parameters("pulp-open", profile) for profile in ("rtl", "gvsoc"))
    assert [machine_label(part, gvsoc) for part in (DMA, TEAM)] == [MEASURED, MEASURED]
    assert [machine_label(part, gvsoc) for part in (L3, OFFLOAD)] == [ESTIMATED, ESTIMATED]
    assert {machine_label(part, rtl) for part in (DMA, L3, OFFLOAD)} == {ESTIMATED}
    assert machine_label(TEAM, rtl) == MEASURED
    assert machine_label(TEAM, load_parameters("stm32l4")) in (DESCRIBED, ESTIMATED)


def test_the_wait_for_slower_cores_is_the_kernels_and_its_wake_up_the_machines() -> None:
    timing = load_soc("pulp-open", "rtl")
    wake_cycles = timing.event_unit.barrier_wake_cycles
    program = run_model("simple-mlp", functional=False).schedule.program
    master = [
        MasterTime("compute", "mm", 100, 2),
        MasterTime("barrier", "mm", 30, 2),
        MasterTime("barrier", "im2col: dma", 7, 1),  # a team that moves data is no kernel
        MasterTime("dma_wait", "input", 20, 1),
    ]
    assert time_line(master, 160, program, timing) == (
        (False, DMA, 20),
        (False, TEAM, 2 * wake_cycles + 7),
        (False, OFFLOAD, 3),
        (True, "mm", 130 - 2 * wake_cycles),
    )
    assert time_line([], 5, Program("nothing", ()), timing) == ((False, OFFLOAD, 5),)


def test_programs_count_as_often_as_they_run() -> None:
    line = ((False, DMA, 1), (True, "mm", 2))
    assert whole_line([(line, 3), (((True, "sgd", 4), (True, "mm", 1)), 1)]) == (
        (False, DMA, 3),
        (True, "mm", 7),
        (True, "sgd", 4),
    )


def test_a_run_of_measured_kernels_on_their_machine_is_measured_but_for_the_offload() -> None:
    summary = run_model("tutorial-cnn", GVSOC, functional=False).summary
    found = summary["evidence"]
    assert shares(found)[:2] == [round(1 - summary["offload_cycles"] / summary["cycles"], 4), 0]
    assert [item["kernel"] for item in found["largest_unmeasured"]] == [OFFLOAD]


def test_formats_of_one_size_have_the_same_evidence() -> None:
    fp16, bf16 = (
        run_model("simple-mlp", Settings(dtype=dtype), functional=False).summary["evidence"]
        for dtype in ("fp16", "bf16")
    )
    assert fp16 == bf16


@pytest.mark.parametrize("separate", [False, True])
def test_the_shares_sum_to_one_for_an_update_of_several_programs(separate: bool) -> None:
    settings = Settings(accumulate=2, separate_update=separate)
    assert len(shares(run_model("simple-mlp", settings, functional=False).summary["evidence"])) == len(LABELS)


def test_primitive_says_it(capsys: pytest.CaptureFixture[str]) -> None:
    found = printed(capsys, "primitive", "relu", "--shape", "64")["evidence"]
    assert {*LABELS, "assumed_parameters", "largest_unmeasured"} == found.keys()
    assert shares(found)[0] == 0


def test_tune_says_it_of_the_tuned_iteration(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cache, schedule = (str(tmp_path / name) for name in ("cache", "schedule.yaml"))
    command = ["tune", "simple-mlp", "--tilings", "1", "--workers", "1", "--resident", "off"]
    command += ["--cache", cache, "--save-schedule", schedule]
    found = printed(capsys, *command)["evidence"]
    shares(found)
    assert run([*command, "--evidence"]) == 0  # from the cache
    assert f"evidence {evidence_line(found)}" in " ".join(capsys.readouterr().out.split())
