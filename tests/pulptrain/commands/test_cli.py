# SPDX-License-Identifier: Apache-2.0
"""The command line: what it prints, what it writes, and how it refuses bad input."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from configs.errors import DeadlockError, DoesNotFitError, InputError, PulptrainError
from pulptrain.__main__ import run
from pulptrain.cli import EXIT_CODES
from pulptrain.foreign.replay import FAILED, REFUSED, RIGHT, TOO_LARGE, WRONG, ReplayRow, exit_code
from pulptrain.process import interrupts
from shared.paths import ROOT
from shared.printed import printed, refused

BAD_INPUT = [
    (["run", "digit-cnn"], 2, "digits-cnn"),
    (["run", "digits-cnn", "--soc", "pulp-opn"], 2, "pulp-open"),
    (["run", "digits-cnn", "--timing", "rlt"], 2, "rtl"),
    (["run", "digits-cnn", "--codegen", "xpulp"], 2, "clang-xpulp"),
    (["run", "digits-cnn", "--cores", "0"], 2, "between 1 and 16"),
    (["run", "digits-cnn", "--cores", "17"], 2, "between 1 and 16"),
    (["run", "digits-cnn", "--l1", "-4KiB"], 2, "negative"),
    (["run", "digits-cnn", "--l1", "many"], 2, "64 KiB"),
    (["run", "digits-cnn", "--buffering", "doubel"], 2, "double"),
    (["run", "digits-cnn", "--iterations", "0"], 2, "1 or more"),
    (["run", "digits-cnn", "--set", "l1.size=4"], 2, "l1.size_bytes"),
    (["run", "digits-cnn", "--set", "nonsense"], 2, "write e.g. dma.burst_bytes=64"),
    (["run", "digits-cnn", "--kernel", "FW=mm_3x3"], 2, "mm"),
    (["run", "digits-cnn", "--kernel", "conv9.FW=mm"], 2, "conv1.FW"),
    (["run", "digits-cnn", "--tile", "conv2.FW=rows:2"], 2, "one of"),
    (["run", "digits-cnn", "--fpus", "3-way"], 2, "private"),
    (["run", "digits-cnn", "--l1", "12KiB", "--buffering", "none"], 3, "required"),
    (["run", "digits-cnn", "--l1", "1KiB"], 3, "stack"),
    (["run", "digits-cnn", "--l2", "100B"], 3, "--l2"),
    (["kernel", "mm_4x4"], 2, "mm"),
    (["kernel", "mm", "--n", "-1"], 2, "1 or more"),
    (["kernel", "mm", "--dtype", "fp8"], 2, "fp32"),
    (["list", "soc"], 2, "socs"),
    (["plot", "/nonexistent-folder"], 2, "--out"),
    (["frobnicate"], 2, ""),
    (["run"], 2, ""),
    (["run", "digits-cnn", "--cores", "many"], 2, ""),
]


@pytest.mark.parametrize(
    ("arguments", "code", "hint"), BAD_INPUT, ids=[" ".join(case[0]) for case in BAD_INPUT]
)
def test_bad_input_is_refused_with_a_cure(
    arguments: list[str], code: int, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == code
    captured = capsys.readouterr()
    assert hint in captured.err
    assert "Traceback" not in captured.err
    assert captured.out == ""


def write(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


MODEL = """name: mine
description: a test
source: nowhere
input: {shape: [1, 8, 8]}
dataset: random
loss: mse
optimizer: {name: sgd, learning_rate: 0.1}
layers:
  - {name: conv1, type: conv2d, out_channels: 2, kernel: 3}
  - {name: fc, type: linear, out_features: 3}
"""


def test_a_model_file_of_the_user_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = MODEL.replace("  - {name: fc", "  - {name: flat, type: flatten}\n  - {name: fc")
    assert printed(capsys, "run", write(tmp_path / "mine.yaml", text))["functional"]["passed"]


@pytest.mark.parametrize(
    ("change", "hint"),
    [
        (("kernel: 3", "kernal: 3"), "mine.yaml:9"),
        (("kernel: 3", "kernel: 9"), "mine.yaml:9"),
        (("name: mine", "name: mine\nname: yours"), "mine.yaml:2"),
        (("type: linear", "type: lineer"), "mine.yaml:10"),
    ],
)
def test_faults_in_a_model_file_name_file_and_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], change: tuple[str, str], hint: str
) -> None:
    assert hint in refused(capsys, "run", write(tmp_path / "mine.yaml", MODEL.replace(*change)))


@pytest.mark.needs_proc  # a place where not even root can write
def test_an_output_folder_that_cannot_be_written_is_refused_before_any_work(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert "cannot write" in refused(capsys, "run", "digits-cnn", "--out", "/proc/pulptrain")


def test_run_json_keeps_the_contract(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["run", "tutorial-cnn", "--json"]) == 0
    captured = capsys.readouterr()
    result = json.loads(captured.out)
    assert captured.err == ""
    for key in (
        *("cycles", "seconds", "macs", "mac_per_cycle", "loss", "peak_bytes", "ops", "utilisation"),
        *("functional", "simulator", "soc", "timing", "version"),
    ):
        assert key in result
    assert set(result["peak_bytes"]) == {"l1", "l2", "l3"}
    assert set(result["functional"]) >= {"checked_against", "max_abs_error", "max_rel_error"}
    assert set(result["simulator"]) >= {"events", "wall_seconds", "cycles_per_second"}
    for op in result["ops"]:
        assert set(op) >= {
            *("name", "primitive", "step", "kernel", "tile", "tiles", "cycles", "macs", "bytes_in"),
            *("bytes_out", "stalls"),
        }
    assert set(result["utilisation"]) == {*(f"core{i}" for i in range(8)), "dma"}


def test_files_of_a_run_are_complete_and_equal_for_equal_runs(tmp_path: Path) -> None:
    command = ["run", "simple-mlp", "--quiet", "--out", str(tmp_path)]
    assert run(command) == 0
    files = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert {"summary.json", "run-info.json", "trace.pftrace", "gantt.png", "gantt.svg"} <= files.keys()
    assert "trace.csv" in files
    assert "trace.parquet" not in files  # one format, whatever is installed
    # What the former run left and the next does not make is gone; what only has such a name is not ours.
    assert run(["plot", str(tmp_path), "--what", "causes", "--window", "0:5000", "--quiet"]) == 0
    (tmp_path / "training.csv").write_text("iteration\n")
    (tmp_path / "causes-of-mine.png").write_bytes(b"mine")
    assert run(command) == 0
    again = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert again.pop("causes-of-mine.png") == b"mine"
    assert again.pop("run-info.json") != files.pop("run-info.json")
    assert again == files


def test_plot_draws_a_finished_run_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "run"
    assert run(["run", "simple-mlp", "--quiet", "--out", str(folder)]) == 0
    before = (folder / "gantt.png").read_bytes()
    (folder / "gantt.png").unlink()
    assert str(folder / "gantt.png") in printed(capsys, "plot", str(folder), "--what", "gantt")["pictures"]
    assert (folder / "gantt.png").read_bytes() == before
    zoom = tmp_path / "zoom"
    window = ["--what", "gantt", "--window", "0:5000", "--out", str(zoom), "--quiet"]
    assert run(["plot", str(folder), *window]) == 0
    assert (zoom / "gantt-0-5000.png").read_bytes() != before
    assert run(["plot", str(folder), "--window", "9:5"]) == 2


def test_kernel_prints_cycles_that_add_up(capsys: pytest.CaptureFixture[str]) -> None:
    result = printed(capsys, "kernel", "mm", "--n", "8", "--k", "16", "--m", "4")
    assert result["macs"] == 8 * 16 * 4
    assert result["mac_per_cycle"] == result["macs"] / result["cycles"]
    assert len(result["per_core"]) == 8
    for core in result["per_core"]:
        assert core["cycles"] == core["instructions"] + sum(core["stalls"].values())
    assert result["cycles"] == max(core["cycles"] for core in result["per_core"])


def test_dump_program_prints_the_actions_in_order(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["run", "digits-cnn", "--dump-program"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [int(line.split()[0]) for line in lines] == list(range(len(lines)))
    assert "DmaStart" in lines[0]
    assert any("Compute" in line and "matmul" not in line for line in lines)


@pytest.mark.parametrize("kind", ["socs", "models", "kernels", "primitives"])
def test_list_names_what_there_is(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["list", kind]) == 0
    table = capsys.readouterr().out
    rows = printed(capsys, "list", kind)
    assert rows
    expected = {"socs": "pulp-open", "models": "digits-cnn", "kernels": "mm", "primitives": "conv2d"}
    assert expected[kind] in table


SOC = """name: mine
base: pulp-open
description: pulp-open with a smaller L1
parameters:
  l1:
    size_bytes: {value: 32 KiB, source: a test}
"""


@pytest.mark.parametrize(
    ("change", "hint"),
    [
        (("", ""), ""),
        (("size_bytes", "size_byts"), "mine.yaml:6"),
        (("32 KiB", "32 KB"), "mine.yaml:6"),
        (("  l1:", "  l1:\n    banks: {value: 8, source: a}\n  l1:"), "mine.yaml:7"),
        (("base: pulp-open", "base: pulp-closed"), "mine.yaml:2"),
    ],
)
def test_a_soc_file_of_the_user_runs_and_its_faults_name_file_and_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], change: tuple[str, str], hint: str
) -> None:
    soc = write(tmp_path / "mine.yaml", SOC.replace(*change) if change[0] else SOC)
    code = run(["run", "digits-cnn", "--soc", soc, "--json"])
    captured = capsys.readouterr()
    assert code == (2 if hint else 0)
    assert hint in captured.err
    if not hint:
        assert json.loads(captured.out)["capacity_bytes"]["l1"] == 32 * 1024 - 9 * 1024


def test_exit_codes_are_listed_alike_everywhere() -> None:
    def codes(text: str) -> list[str]:
        return re.findall(r"(?:^|, )(\d+) (?=[a-z])", text)

    text = (ROOT / "docs/results-and-units.md").read_text()
    listed = text.partition("Exit codes: ")[2].partition(".")[0]
    assert codes(listed.replace("\n", " ")) == codes(EXIT_CODES.removeprefix("Exit codes: "))
    raised = {kind.exit_code for kind in (PulptrainError, InputError, DoesNotFitError, DeadlockError)}
    replayed = {
        exit_code([ReplayRow("case", 1, status)]) for status in (RIGHT, WRONG, REFUSED, TOO_LARGE, FAILED)
    }
    assert {int(code) for code in codes(listed.replace("\n", " "))} == raised | replayed | {
        interrupts.EXIT_CODE
    }
