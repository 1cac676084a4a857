# SPDX-License-Identifier: Apache-2.0
"""`pulptrain compare A B`: sums are exact, what changed most stands first, CI can guard cycles with it."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

import pulptrain as pt
from pulptrain.__main__ import run
from pulptrain.commands.compare import WORSE
from shared.paths import ROOT
from shared.printed import printed
from traces.causes import CAUSES
from traces.compared.residuals import Residuals


def summary(cycles: dict[str, int], *, model: str = "m", offload: int = 4, **causes: int) -> dict[str, Any]:
    """A run on two cores whose ops take these cycles, all of the first op for the causes."""
    ops = [
        {
            **dict.fromkeys(("macs", "tiles", "bytes_in", "bytes_out"), 0),
            **{"name": name, "step": name.rpartition(".")[2], "cycles": count, "stalls": {}},
            "causes": counted(2 * count, **causes),
        }
        for name, count in cycles.items()
    ]
    whole = sum(cycles.values())
    of_run = {cause: sum(op["causes"][cause] for op in ops) for cause in CAUSES} | {"offload": 2 * offload}
    return {
        **{"format": 1, "version": "0", "model": model, "soc": "s", "cluster_hz": 50, "cores": 2},
        **{"cycles": whole + offload, "causes": of_run, "stalls": {}, "ops": ops},
    }


def counted(core_cycles: int, **causes: int) -> dict[str, int]:
    return dict.fromkeys(CAUSES, 0) | causes | {"busy": core_cycles - sum(causes.values())}


def stored(folder: Path, content: dict[str, Any]) -> str:
    folder.mkdir()
    (folder / "summary.json").write_text(json.dumps(content))
    return str(folder)


@pytest.fixture
def three(tmp_path: Path) -> list[str]:
    return [
        stored(tmp_path / "a", summary({"fc.FW": 100, "old.FW": 10})),
        stored(tmp_path / "b", summary({"fc.FW": 90, "new.FW": 5}, dma_in=4)),
        stored(tmp_path / "c", summary({"fc.FW": 130, "old.FW": 10}, offload=6)),
    ]


def test_rows_and_offload_add_up_in_every_run(three: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    answer = printed(capsys, "compare", *three)
    assert (answer["cycles"], answer["offload"]) == ([114, 99, 146], [4, 4, 6])
    assert answer["speedup"] == 114 / 146
    assert {row["op"]: row["cycles"] for row in answer["rows"]} == {
        "fc.FW": [100, 90, 130],
        "old.FW": [10, 0, 10],
        "new.FW": [0, 5, 0],
    }
    for number, cycles in enumerate(answer["cycles"]):
        rows = answer["rows"]
        assert sum(row["cycles"][number] for row in rows) + answer["offload"][number] == cycles
        for row in rows:
            assert sum(item[number] for item in row["causes"].values()) == 2 * row["cycles"][number]
    assert answer["rows"][0]["causes"] == {"compute": [200, 176, 260], "DMA in": [0, 4, 0]}


def test_what_changed_most_stands_first(three: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["compare", *three[:2], "--top", "2"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "m: 114 -> 99 cycles (-13.2 %, 1.15 times as fast)",
        "",
        "cycles per core    a   b  change",
        "compute          110  91     -19  -17.3 %",
        "DMA in             0   4      +4      new",
        "offload            4   4      +0",
        "",
        "changed most    a   b  change",
        "fc.FW         100  90     -10   -10.0 %",
        "old.FW         10   0     -10  -100.0 %",
        "1 other         0   5      +5       new",
        "offload         4   4      +0",
        "total         114  99     -15   -13.2 %",
    ]


def test_repeated_steps_are_one_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = ({"gru.FW_STEP0": 9, "gru.FW_STEP1": 8, "fc.FW": 5}, {"gru.FW_STEP0": 7, "gru.FW_STEP1": 7})
    folders = [stored(tmp_path / str(number), summary(cycles)) for number, cycles in enumerate(runs)]
    assert run(["compare", *folders]) == 0
    rows = capsys.readouterr().out.splitlines()[-5:]
    assert [row.split() for row in rows[1:3]] == [
        ["fc.FW", "5", "0", "-5", "-100.0", "%"],
        ["gru.FW_STEP", "x2", "17", "14", "-3", "-17.6", "%"],
    ]


@pytest.mark.parametrize(("most", "code"), [("28%", 5), ("28.1", 0), ("0", 5)])
def test_more_cycles_than_allowed_exit_with_5(three: list[str], most: str, code: int) -> None:
    """146 after 114 are 28.07 % more."""
    assert run(["compare", three[0], three[2], "--fail-above", most, "--quiet"]) == code
    assert run(["compare", three[2], three[0], "--fail-above", most, "--quiet"]) == 0


def test_runs_that_cannot_be_compared(
    three: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = stored(tmp_path / "other", summary({"fc.FW": 1}, model="n"))
    old = stored(tmp_path / "old", {**summary({"fc.FW": 1}), "causes": None})
    empty = stored(tmp_path / "empty", {**summary({}), "ops": []})
    truncated = stored(tmp_path / "truncated", summary({"fc.FW": 1}))
    text = (tmp_path / "truncated" / "summary.json").read_text()
    (tmp_path / "truncated" / "summary.json").write_text(text[:-9])
    foreign = stored(tmp_path / "foreign", {"name": "mine"})
    log, notes = tmp_path / "log.txt", tmp_path / "notes.png"
    log.write_text("fc.FW 99\n")
    notes.write_text("notes")
    for arguments, told in (
        ([three[0]], "a comparison needs two runs"),
        ([three[0], str(tmp_path)], "cannot read"),
        ([three[0], other], "other: the model of this run is 'n', but that of run 'a' is 'm'"),
        ([three[0], old], "old: the summary of the run lacks the causes of lost cycles"),
        ([three[0], empty], "empty: the summary of the run lacks the causes of lost cycles"),
        ([three[0], truncated], "truncated/summary.json: the file is not valid JSON"),
        ([foreign, three[0]], "foreign/summary.json: keys are missing: 'model', 'soc'"),
        ([three[0], str(tmp_path / "none")], "compare: the file or folder "),
        ([str(log), three[0]], "log.txt: a measured log is compared with one run, whose folder comes first"),
        ([*three, str(log)], "log.txt: a measured log is compared with one run, whose folder comes first"),
        ([str(log)], "log.txt: a measured log is compared with one run, whose folder comes first"),
        ([empty, str(log)], "empty: the summary of the run lacks the causes of lost cycles"),
        ([three[0], "/dev/null"], "cannot read"),
        ([*three, "--in-l1"], "--in-l1: the option applies to the comparison with a measured log only"),
        ([*three, "--out", "picture.txt"], "--out: the picture format of 'picture.txt' is unknown"),
        ([*three, "--out", str(notes)], "nothing was overwritten"),
        ([*three, "--fail-above", "much"], "--fail-above: 'much' is not a percentage"),
        ([*three, "--fail-above", "-1%"], "--fail-above: '-1%' is not a percentage"),
        ([*three, "--top", "0"], "--top: the number of rows is 0"),
    ):
        assert run(["compare", *arguments]) == 2, arguments
        error = capsys.readouterr().err
        assert told in error
        assert "Traceback" not in error
    assert notes.read_text() == "notes"


def test_a_run_is_held_against_a_log(
    three: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    log = Path(three[0]).with_name("log.txt")
    log.write_text("boot\nop fc.FW 125\nconv.FW 7\n")
    assert run(["compare", three[0], str(log), "--fail-above", "20.1"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "m: 100 cycles predicted, 125 measured (-20.0%); median error 20.0%, worst -20.0% in fc.FW",
        "",
        "layer  predicted  measured  difference   error",
        "fc           100       125         -25  -20.0%",
        "total        100       125         -25  -20.0%",
        "",
        "differ most  predicted  measured  difference   error",
        "fc.FW              100       125         -25  -20.0%",
        "",
        "measured, but not an op of the run (line): conv.FW (3)",
        "",
        "not measured (10 cycles predicted): old.FW",
    ]
    assert run(["compare", three[0], str(log), "--fail-above", "19.9", "--json"]) == WORSE
    answer = json.loads(capsys.readouterr().out)
    assert (answer["predicted"], answer["measured"], answer["error_percent"]) == (
        100,
        125,
        pytest.approx(-20),
    )
    assert answer["unmatched_rows"] == [{"name": "conv.FW", "measured": 7, "where": f"{log}:3"}]
    assert answer["unmeasured_ops"] == [{"op": "old.FW", "predicted": 10}]
    found = pt.compare(three[0], log)
    assert isinstance(found, Residuals)
    assert found.as_dict()["rows"] == answer["rows"]


def test_runs_are_drawn_on_one_time_axis(
    three: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Equal input, equal bytes; a picture is drawn over, as it says whose it is."""
    drawn = []
    for name in ("a.png", "a.svg", "a.pdf", "a.pdf"):
        picture = tmp_path / name
        assert run(["compare", *three, "--out", str(picture)]) == 0
        assert capsys.readouterr().out.splitlines()[-1] == str(picture)
        drawn.append(picture.read_bytes())
    assert drawn[2] == drawn[3]


@pytest.mark.usefixtures("undrawn")
def test_the_workflow_of_the_examples_guards_cycles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its commands, on the same file before and after, and on one that takes more."""
    monkeypatch.chdir(tmp_path)
    workflow = (ROOT / "examples" / "guard-cycles.yml").read_text()
    new, old, guard = (shlex.split(line) for line in re.findall(r"pulptrain ((?:run|compare) .+)", workflow))
    net = Path("net.yaml")
    net.write_text((ROOT / "configs" / "models" / "simple-mlp.yaml").read_text())
    assert [run(old), run(new), run(guard)] == [0, 0, 0]
    net.write_text(net.read_text().replace("batch: 1", "batch: 2"))
    assert [run(new), run(guard)] == [0, WORSE]


@pytest.mark.usefixtures("undrawn")
def test_results_and_folders_are_compared_in_python(tmp_path: Path) -> None:
    single, double = (
        pt.run("simple-mlp", functional=False, buffering=buffering) for buffering in ("single", "double")
    )
    single.save(tmp_path / "single")
    found = pt.compare(tmp_path / "single", double, single)
    assert found.cycles == (single.cycles, double.cycles, single.cycles)
    assert found.speedup == 1
    assert str(found).startswith(f"simple-mlp: {single.cycles:,} -> ")
    with pytest.raises(pt.InputError, match="a comparison needs two runs"):
        pt.compare(single)
