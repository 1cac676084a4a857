# SPDX-License-Identifier: Apache-2.0
"""`pulptrain what-if MODEL` and `pulptrain why RUN --critical-path`."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import pulptrain as pt
from pulptrain.__main__ import run
from pulptrain.inputs.settings import Settings
from pulptrain.predicting.evidence import Evidence
from pulptrain.predicting.transfers import Engine, transfer_cycles
from shared.kept_plans import prepare
from shared.printed import printed, refused
from traces.critical.activities import durations
from traces.files.result_folder import SUMMARY_NAME, write_json
from traces.files.tables import write_table

MODEL = "simple-mlp"
NAMES = [
    *("dma-width", "no-bank-conflicts", "private-fpu", "shared-code", "warm-code"),
    *("balanced-rows", "faster-kernel", "more-l1", "perfect-overlap"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Summary and trace of a finished run, without its pictures."""
    path = tmp_path_factory.mktemp("critical")
    result = pt.run(MODEL, functional=False)
    write_json(path / SUMMARY_NAME, dict(result.summary))
    write_table(result.slices, path)
    return path


def test_a_folder_has_the_path_of_its_run(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answer = printed(capsys, "why", str(folder), "--critical-path")
    assert answer["cycles"] == pt.load(folder).cycles
    assert sum(item["cycles"] for item in answer["critical_path"]) == answer["cycles"]
    assert sum(op["cycles"] for op in answer["ops"]) == answer["cycles"]
    assert run(["why", str(folder), "--critical-path", "--top", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"critical path  {answer['cycles']:,} cycles, ")
    assert f"{len(answer['ops']) - 2} others" in "\n".join(lines)


def test_a_folder_without_its_trace_and_one_whose_trace_was_cut_are_refused(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = shutil.copytree(folder, tmp_path / "out")
    for table in copy.glob("trace.*"):
        if table.name == "trace.csv":
            lines = table.read_text().splitlines(keepends=True)
            table.write_text("".join(lines[: len(lines) // 2]))
        else:
            table.unlink()
    assert "try: " in refused(capsys, "why", str(copy), "--critical-path")
    (copy / "trace.csv").unlink(missing_ok=True)
    assert "the folder has no trace table" in refused(capsys, "why", str(copy), "--critical-path")


def test_predictions_are_near_what_is_simulated(capsys: pytest.CaptureFixture[str]) -> None:
    answer = printed(capsys, "what-if", MODEL, "--verify")
    assert [item["name"] for item in answer["what_if"]] == NAMES
    assert answer["cycles"] == pt.run(MODEL, functional=False).cycles
    for item in answer["what_if"]:
        predicted, simulated = (
            answer["cycles"] - item[f"{kind}_cycles"] for kind in ("predicted", "simulated")
        )
        if item["name"] == "perfect-overlap":
            assert 0.5 * simulated <= predicted <= simulated, item
        else:
            # Code waits for loads as well, of which the bursts that are ordered before are not in the trace.
            off = 0.25 if item["name"] == "dma-width" else 0.1
            assert abs(predicted - simulated) <= max(off * simulated, 0.01 * answer["cycles"]), item


def test_code_that_is_fetched_gains_what_is_simulated_and_a_larger_cache_is_a_question() -> None:
    found = pt.what_if(MODEL, verify=True)
    gains = {gain.name: gain for gain in found.gains}
    for name, off in (("warm-code", 0.05), ("shared-code", 0.1)):
        predicted, simulated = gains[name].predicted_cycles, gains[name].simulated_cycles
        assert simulated is not None
        gained = found.cycles - simulated
        assert gained > 0.05 * found.cycles, "the program is larger than the cache"
        assert found.cycles - predicted == pytest.approx(gained, rel=off)


def test_where_flash_stands_for_the_shared_cache_a_larger_one_is_no_question() -> None:
    gains = pt.what_if(MODEL, soc="stm32l4", icache="steady").gains
    assert "shared-code" not in {gain.name for gain in gains}


def test_nothing_is_simulated_that_is_not_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    answer = printed(capsys, "what-if", MODEL)
    assert {item["simulated_cycles"] for item in answer["what_if"]} == {None}
    assert run(["what-if", MODEL]) == 0
    assert capsys.readouterr().out.splitlines()[2].split()[:5] == ["what", "if", "cycles", "gained", "share"]


def test_a_machine_is_not_asked_for_what_it_has() -> None:
    gains = pt.what_if(MODEL, fpus="private", bank_conflicts=False).gains
    assert [gain.name for gain in gains] == [
        name for name in NAMES if name not in ("no-bank-conflicts", "private-fpu")
    ]


def test_an_update_of_several_mini_batches_counts_all_of_them() -> None:
    found = pt.what_if(MODEL, accumulate=2, icache="warm", verify=True)
    assert found.cycles == pt.run(MODEL, functional=False, accumulate=2, icache="warm").cycles
    wide = found.gains[0]
    assert wide.simulated_cycles is not None
    assert wide.predicted_cycles == pytest.approx(wide.simulated_cycles, rel=0.01)


def test_more_l1_is_the_run_with_so_much_more() -> None:
    found = {gain.name: gain for gain in pt.what_if(MODEL, l1="16KiB", more_l1="8KiB", verify=True).gains}
    assert found["more-l1"].about.startswith("8 KiB more of L1")
    assert found["more-l1"].simulated_cycles == pt.run(MODEL, functional=False, l1="24KiB").cycles


@pytest.mark.parametrize("size", ["0", "-4KiB", "much"])
def test_l1_grows_by_a_size(size: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "--more-l1" in refused(capsys, "what-if", MODEL, "--more-l1", size)


def test_transfers_on_the_same_engine_take_what_they_took() -> None:
    settings = Settings(buffering="single")
    evidence = Evidence(prepare("tutorial-cnn", settings), "warm", lambda: prepare(MODEL, settings), 1)
    engine = Engine(evidence.timing)
    for item in evidence.programs:
        cycles = durations(item.graph)
        assert transfer_cycles(item.graph, item.schedule.program, cycles, engine, engine) == cycles
