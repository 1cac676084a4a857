# SPDX-License-Identifier: Apache-2.0
"""`pulptrain why RUN`, `run --why`, and what is tried first: the figures hold when it is tried."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pulptrain.__main__ import run
from shared.printed import printed, refused
from traces.causes import CAUSES, GROUPS
from traces.why import advice, why_table

RUN = ["run", "tutorial-cnn", "--no-functional"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run with single buffers."""
    path = tmp_path_factory.mktemp("why") / "out"
    assert run([*RUN, "--buffering", "single", "--out", str(path), "--quiet"]) == 0
    return path


def test_a_folder_says_what_the_run_itself_said(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["why", str(folder), "--top", "2"]) == 0
    of_folder = capsys.readouterr().out.splitlines()
    assert run([*RUN, "--buffering", "single", "--why", "--top", "2"]) == 0
    of_run = capsys.readouterr().out.splitlines()
    assert of_folder[0].startswith("bound by    compute 42%, DMA in 22%, DMA out 13%")
    table = of_folder[of_folder.index("") + 1 :]
    assert of_run[-len(table) :] == table
    assert [line.split()[0] for line in table] == ["largest", "fc.UPD", "conv1.WG", "8", "total"]


def test_shares_in_json_add_up(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answer = printed(capsys, "why", str(folder))
    assert sum(answer["bound_by"].values()) == 8 * answer["cycles"]
    assert set(answer["bound_by"]) <= set(GROUPS)
    for op in answer["ops"]:
        assert sum(op["bound_by"].values()) == 8 * op["cycles"]


def test_double_buffers_gain_what_was_lost_without(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answer = printed(capsys, "why", str(folder))
    assert answer["advice"]["remedy"].startswith("--buffering double")
    tried = printed(capsys, *RUN, "--buffering", "double")
    gained = answer["cycles"] - tried["cycles"]
    assert 0.5 * answer["advice"]["max_saving_cycles"] < gained <= answer["advice"]["max_saving_cycles"]


def test_an_update_of_several_mini_batches_counts_all_of_them(capsys: pytest.CaptureFixture[str]) -> None:
    summary = printed(capsys, "run", "simple-mlp", "--no-functional", "--accumulate", "3")
    assert sum(summary["causes"].values()) == 8 * summary["cycles"]


@pytest.mark.parametrize("group", GROUPS)
def test_there_is_an_advice_against_every_cause(group: str) -> None:
    causes = dict.fromkeys(CAUSES, 0) | {GROUPS[group][0]: 800}
    summary = {"model": "m", "cores": 8, "cycles": 100, "causes": causes, "buffering": 2, "resident": []}
    given = advice({**summary, "ops": [{"name": "fc.FW", "causes": causes}]})
    assert (given.loss_cycles, given.most) == (100, "fc.FW")


def test_against_code_that_is_fetched_fewer_transfers_are_advised_and_then_a_larger_cache() -> None:
    causes = dict.fromkeys(CAUSES, 0) | {"icache": 800}
    summary = {"model": "m", "cores": 8, "cycles": 100, "causes": causes, "buffering": 2, "resident": []}
    summary["ops"] = [{"name": "fc.FW", "causes": causes}]
    assert "icache" not in advice(summary).what
    fetched = {**summary, "icache": "steady"}
    assert advice(fetched).what.startswith(
        "--resident auto: tensors that stay in L1 need no transfers, nor code"
    )
    assert "--set icache.shared_bytes=" in advice({**fetched, "resident": ["fc.out"]}).what


@pytest.mark.parametrize("group", ["load-use", "DMA in", "imbalance"])
def test_advice_for_a_step_alone_names_options_of_primitive(group: str) -> None:
    causes = dict.fromkeys(CAUSES, 0) | {GROUPS[group][0]: 800}
    summary = {
        "model": "gru",
        "primitive": "gru",
        "cores": 8,
        "cycles": 100,
        "causes": causes,
        "buffering": 2,
    }
    given = advice({**summary, "ops": [{"name": "gru.WG", "causes": causes}]})
    assert "--tile" in given.what
    assert "pulptrain tune" not in given.what


FOLLOWED = {
    "DMA in": ({"--resident": "auto"}, "--resident"),
    "divider": ({"--set": ["fpu.divsqrt_count=8"]}, "divsqrt_count"),
    "bank conflicts": ({"--set": ["l1.banks=32"]}, "l1.banks"),
    "serial code": ({"--variant": ["as-published"]}, "--variant"),
}
"""By cause: options that follow its advice, and what of the advice is then not given again."""


@pytest.mark.parametrize("group", FOLLOWED)
def test_what_was_followed_is_not_advised_again(group: str) -> None:
    causes = dict.fromkeys(CAUSES, 0) | {GROUPS[group][0]: 800}
    summary = {"model": "m", "cores": 8, "cycles": 100, "causes": causes, "buffering": 2, "resident": []}
    summary["ops"] = [{"name": "fc.FW", "causes": causes}]
    options, word = FOLLOWED[group]
    assert word in advice(summary).what
    assert word not in advice({**summary, "requested": options}).what


@pytest.mark.parametrize("group", GROUPS)
def test_of_a_run_with_a_tuned_schedule_the_next_is_what_if(group: str) -> None:
    causes = dict.fromkeys(CAUSES, 0) | {GROUPS[group][0]: 800}
    commands = {"tune": "pulptrain tune m", "what-if": "pulptrain what-if m --schedule s.yaml"}
    summary = {"model": "m", "cores": 8, "cycles": 100, "causes": causes, "commands": commands}
    summary |= {"ops": [{"name": "fc.FW", "causes": causes}], "requested": {"--schedule": "s.yaml"}}
    given = advice(summary)
    assert (given.command, given.what[:12]) == (commands["what-if"], "tuned; next:")


def test_steps_that_repeat_are_one_row_and_are_among_the_others() -> None:
    """As a GRU's: FW_STEP0, FW_STEP1 ... of which one row is made before the rest is added up."""
    ops = [
        {
            **{"name": f"gru.{step}", "step": step, "cycles": cycles, "tile": {}, "kernel": "", "stalls": {}},
            **dict.fromkeys(("macs", "tiles", "bytes_in", "bytes_out"), 1),
            "causes": dict.fromkeys(CAUSES, 0) | {"busy": cycles, "dma_in": 3 * cycles},
        }
        for step, cycles in (("FW_STEP0", 10), ("FW_STEP1", 10), ("WG", 60), ("IG", 20))
    ]
    causes = dict.fromkeys(CAUSES, 0) | {"busy": 100, "dma_in": 300}
    whole = {"model": "m", "cores": 4, "cycles": 100, "causes": causes, "stalls": {}, "ops": ops}
    table = why_table(whole, 1)
    assert [row[:4] for row in table.rows] == [
        ["gru.WG", "60", "60%", "DMA in"],
        ["2 others", "40", "40%", "DMA in"],
        ["total", "100", "100%", "DMA in"],
    ]
    assert {tuple(row[4:]) for row in table.rows} == {("75%", "25%")}


def test_runs_that_cannot_be_explained(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    summary = json.loads((folder / "summary.json").read_text())
    without = {key: value for key, value in summary.items() if key != "causes"}
    wrong = {**summary, "ops": [{**summary["ops"][0], "causes": {"busy": "many"}}]}
    for content, told in (
        (None, "cannot read"),
        ("{", "is not valid JSON"),
        (json.dumps({"cycles": 3}), "keys are missing: 'model', 'soc', 'cluster_hz'"),
        (json.dumps(without), "lacks the causes of lost cycles"),
        (json.dumps(wrong), "lacks the causes of lost cycles"),
        (json.dumps({**summary, "cores": 0}), "lacks the causes of lost cycles"),
        (
            json.dumps({**summary, "causes": dict.fromkeys(summary["causes"], 0)}),
            "lacks the causes of lost cycles",
        ),
        (json.dumps({**summary, "ops": [{**summary["ops"][0], "loop_order": 3}]}), "lacks the causes"),
    ):
        if content is not None:
            (tmp_path / "summary.json").write_text(content)
        error = refused(capsys, "why", str(tmp_path))
        assert told in error
        assert (
            "run `pulptrain run MODEL --out DIR`" in error
            or "use a folder written by `pulptrain run" in error
        )
    assert "1 or more" in refused(capsys, "why", str(folder), "--top", "0")
