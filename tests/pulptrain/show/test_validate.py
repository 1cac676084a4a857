# SPDX-License-Identifier: Apache-2.0
"""`pulptrain validate` as a user meets it: tables, JSON, groups, errors with file:line, Ctrl-C, the page."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest
from click import Context
from typer.core import TyperGroup
from typer.main import get_command

from pulptrain.__main__ import run
from pulptrain.cli import application
from pulptrain.show import validation_report as command
from pulptrain.show.validation_report import validation_summary
from scheduler.validation import runner
from scheduler.validation.rows.kinds import KINDS
from shared.paths import MEASURED
from shared.printed import printed

DMA = str(MEASURED / "dma.csv.gz")
T = TypeVar("T")
SHORT = ["validate", "dma", DMA, "--where", "test=1d", "--workers", "1"]


def output(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert run([*SHORT, *arguments]) == 0
    return capsys.readouterr().out


@pytest.mark.smoke
def test_json_holds_the_figures_and_every_row(capsys: pytest.CaptureFixture[str]) -> None:
    report = json.loads(output(capsys, "--json", "--group-by", "direction,bank_conflicts"))
    assert report["cases"] == len(report["rows"]) == 56
    assert {
        "mape_percent",
        "median_percent",
        "p95_percent",
        "max_percent",
        "bias_percent",
        "rank_correlation",
        "noise_percent",
    } <= set(report)
    row = report["rows"][0]
    assert row["id"] == "1d-8-1-0-1-L2toL1-0-0-A"
    assert row["measured"] == 34
    assert row["error_percent"] == pytest.approx(100 * (row["predicted"] - 34) / 34)
    assert row["cycles_program"] == "16", "a column the KIND does not use is carried through"
    assert [group["group"] for group in report["groups"]] == [
        {"direction": direction, "bank_conflicts": conflicts}
        for conflicts in "01"
        for direction in ("l2_to_l1", "l1_to_l2")
    ]
    assert sum(group["cases"] for group in report["groups"]) == 56


def test_json_is_the_same_from_run_to_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert output(capsys, "--json") == output(capsys, "--json")


def test_the_table_names_groups_and_the_rows_farthest_off(capsys: pytest.CaptureFixture[str]) -> None:
    text = output(capsys)
    assert "l2_to_l1" in text
    assert "mean" in text.splitlines()[0]
    assert "median error" in text
    assert "farthest off of 56 rows" in text
    worst = text[text.index("farthest off") :].splitlines()
    assert len(worst) == 2 + command.WORST_ROWS
    assert all(line.startswith("1d-") for line in worst[2:])
    assert output(capsys, "--quiet") == ""


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["validate", "dmaa", DMA], "dma"),
        (["validate", "dma", "absent.csv"], "absent.csv"),
        (["validate", "mm", DMA], "dma.csv.gz:1: column 'codegen' is missing"),
        ([*SHORT, "--group-by", "directoin"], "direction"),
        ([*SHORT, "--where", "cores=99"], "no row"),
        ([*SHORT, "--where", "cores"], "write COLUMN=VALUE"),
        ([*SHORT[:-1], "0"], "1 to"),
    ],
)
def test_bad_input_exits_2_and_says_where(
    arguments: list[str], hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == 2
    captured = capsys.readouterr()
    assert hint in captured.err
    assert "Traceback" not in captured.err
    assert captured.out == ""


CELLS = {
    **{"id": "r1", "soc": "pulp-open", "timing": "gvsoc", "bank_conflicts": "0", "fpus": "4-static"},
    **{"codegen": "clang-xpulp", "kernel": "mm", "dtype": "fp32", "n": "8", "k": "8", "m": "8"},
    **{"trans_b": "0", "cores": "1", "cycles": "2500", "cycles_kernel": "2480", "instructions": "1700"},
    **{"load_stalls": "0", "taken_branches": "0"},
}


@pytest.mark.parametrize(
    ("column", "text", "line", "hint"),
    [
        ("soc", "pulp-opn", 3, "pulp-open"),
        ("codegen", "clang-xpul", 3, "clang-xpulp"),
        ("kernel", "mm_9x9", 3, "mm_9x9"),
        ("n", "eight", 3, "'eight' is not a whole number"),
        ("cycles", "nan", 3, "'nan'"),
        ("cycles", None, 1, "column 'cycles' is missing"),
        ("soc", None, 1, "column 'soc' is missing"),
    ],
)
def test_a_wrong_file_exits_2_with_file_and_line(
    column: str, text: str | None, line: int, hint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = [name for name in CELLS if text is not None or name != column]
    good = ",".join(CELLS[name] for name in names)
    bad = ",".join("r2" if name == "id" else text if name == column else CELLS[name] for name in names)
    path = tmp_path / "cases.csv"
    path.write_text("\n".join((",".join(names), good, bad)) + "\n", encoding="utf-8")
    assert run(["validate", "mm", str(path), "--workers", "1", "--json"]) == 2
    captured = capsys.readouterr()
    assert f"{path}:{line}" in captured.err
    assert hint in captured.err
    assert captured.out == ""


def test_a_killed_run_takes_its_workers_along() -> None:
    """SIGTERM ends the parent at once; workers that wait for work must notice."""
    command = [sys.executable, "-m", "pulptrain", "validate", "mm", str(MEASURED / "mm.csv.gz")]
    parent = subprocess.Popen([*command, "--workers", "2"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        workers = _wait_for(lambda: _children(parent.pid) if len(_children(parent.pid)) == 2 else None)
        parent.terminate()
        assert parent.wait(timeout=600) == -signal.SIGTERM
        assert _wait_for(lambda: True if not any(map(_alive, workers)) else None)
    finally:
        parent.kill()
        parent.communicate()


def _children(pid: int) -> list[int]:
    try:
        return [int(text) for text in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except FileNotFoundError:
        return []


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def _wait_for(ask: Callable[[], T | None], seconds: float = 600.0) -> T:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        answer = ask()
        if answer:
            return answer
        time.sleep(0.05)
    raise AssertionError(f"nothing after {seconds} s")


def test_ctrl_c_prints_what_is_done_and_exits_130(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    true_rows, calls = runner.predict_rows, []

    def once(kind: str, cases: object) -> object:
        if calls:
            raise KeyboardInterrupt
        calls.append(kind)
        return true_rows(kind, cases)  # type: ignore[arg-type]

    monkeypatch.setattr(runner, "predict_rows", once)
    assert run([*SHORT, "--json"]) == 130
    captured = capsys.readouterr()
    assert json.loads(captured.out)["cases"] == runner.ROWS_PER_TASK
    assert f"{runner.ROWS_PER_TASK} of 56 rows" in captured.err


def test_the_widest_table_fits_100_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four group columns and all figures: that of mm."""
    monkeypatch.setenv("COLUMNS", "100")
    arguments = ["validate", "mm", str(MEASURED / "mm.csv.gz"), "--where", "n=16", "--where", "k=16"]
    assert run([*arguments, "--where", "codegen=clang-xpulp-sched", "--workers", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "regret" in lines[0]
    assert max(len(line.rstrip()) for line in lines) <= 100


@pytest.mark.parametrize(
    ("kind", "where", "first"),
    [
        ("icache", ["cores=8", "n_nops=64"], "8-64:cold"),
        ("overlap", ["kernel=asm_1x1", "cores=2"], "asm_1x1-16x16x16-c2-L2toL1-A:kernel"),
        (
            "dma-contention",
            ["bytes=1024", "traffic=seq_1of2", "n_traffic_cores=0,1"],
            "L2toL1-1024-seq_1of2-0-0",
        ),
        ("micro", ["name=nop,mutex_lock_unlock_min", "cores=1,2"], "cluster_pe0-nop-1-64-4-static-0"),
    ],
)
def test_every_measured_file_has_a_kind(
    kind: str, where: list[str], first: str, capsys: pytest.CaptureFixture[str]
) -> None:
    chosen = [word for text in where for word in ("--where", text)]
    arguments = ["validate", kind, str(MEASURED / f"{kind}.csv.gz"), *chosen, "--workers", "1"]
    run([*arguments, "--json", "--keep-going"])
    report = json.loads(capsys.readouterr().out)
    assert report["rows"][0]["id"] == first
    assert report["cases"] == len(report["rows"])
    assert report["mape_percent"] <= 5
    run([*arguments, "--keep-going"])
    table = capsys.readouterr().out.splitlines()
    assert max(len(line.rstrip()) for line in table) <= 100


def test_help_and_completion_name_every_kind(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["validate", "--help"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert ", ".join(KINDS) in text.replace("- ", "-"), "lines may end in a hyphen"
    assert "--keep-going" in text
    group = get_command(application(["validate"]))
    assert isinstance(group, TyperGroup)
    validate = group.commands["validate"]
    (kind, *_) = validate.params
    offered = kind.shell_complete(Context(validate), "dma")
    assert [item.value for item in offered] == ["dma", "dma-contention", "dma-contention-rtl"]


MICRO_ROWS = ["validate", "micro", str(MEASURED / "micro.csv.gz"), "--where", "cores=1,2", "--workers", "1"]


def test_rows_that_cannot_be_predicted_are_listed_and_the_others_counted(
    capsys: pytest.CaptureFixture[str],
) -> None:
    only = ["--where", "group=sync", "--where", "fpus=private", "--where", "bank_conflicts=0"]
    assert run([*MICRO_ROWS, *only, "--json"]) == 2
    stopped = capsys.readouterr()
    assert stopped.out == ""
    assert stopped.err.count("cold instruction caches") == 1, "without the option the first row ends it"
    assert run([*MICRO_ROWS, *only, "--json", "--keep-going"]) == 2
    captured = capsys.readouterr()
    report = json.loads(captured.out)
    assert (report["cases"], report["not_predicted"], len(report["not_predicted_rows"])) == (11, 9, 9)
    assert report["mape_percent"] is not None
    for row in report["not_predicted_rows"]:
        assert f"{row['where']}: {row['reason']}" in captured.err
    assert "9 of 20 rows cannot be predicted" in captured.err


def test_a_file_of_which_every_row_is_predicted_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    report = json.loads(output(capsys, "--json", "--keep-going"))
    assert (report["not_predicted"], report["not_predicted_rows"], report["not_measured"]) == (0, [], 0)


def test_a_row_without_a_measured_time_has_a_prediction_and_no_error(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The base that other rows are counted from takes no time by definition."""
    report = printed(capsys, *MICRO_ROWS, "--where", "name=empty,nop")
    bases = [row for row in report["rows"] if "-empty-" in row["id"]]
    assert len(bases) == report["not_measured"] == 12
    assert all(row["predicted"] == 0 and row["error_percent"] is None for row in bases)
    assert report["max_percent"] == 0


def test_the_report_is_built_without_groups_unless_asked() -> None:
    done = runner.validate("dma", DMA, workers=1, selections=[runner.Selection("test", ("1d",))])
    assert "groups" not in validation_summary(done)
