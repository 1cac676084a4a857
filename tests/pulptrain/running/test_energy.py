# SPDX-License-Identifier: Apache-2.0
"""Energy of a run as users see it: summary, files, a model scaled to a measurement, and what is refused."""

from __future__ import annotations

import csv
import json
from math import isclose
from pathlib import Path
from typing import Any

import pytest

import pulptrain as pt
from pulptrain.__main__ import run
from pulptrain.inputs.settings import Settings
from shared.kept_plans import run_model
from shared.printed import printed, refused


def summary_of(**options: Any) -> dict[str, Any]:
    return dict(run_model("tutorial-cnn", Settings(**options), functional=False, traced=False).summary)


@pytest.mark.smoke
def test_ops_and_blocks_of_a_summary_add_up() -> None:
    summary = summary_of(soc="gap9", resident="auto")
    energy = summary["energy"]
    nominal = energy["nominal_joules"]
    assert energy["low_joules"] < nominal < energy["high_joules"]
    assert isclose(sum(energy["by_block"].values()), nominal)
    assert isclose(sum(item["joules"] for item in energy["by_op"]), nominal)
    assert isclose(sum(item["joules"] for item in energy["by_coefficient"]), nominal)
    for item in energy["by_op"]:
        assert isclose(sum(item["by_block"].values()), item["joules"])
    assert isclose(energy["average_watts"] * summary["seconds"], nominal)
    assert energy["energy_model"] == "gap9"
    joules = {item["name"]: item["joules"] for item in energy["by_op"]}
    assert {op["name"]: op["joules"] for op in summary["ops"]} | {"offload": joules["offload"]} == joules


def test_mini_batches_count_as_often_as_they_run() -> None:
    one = summary_of(soc="gap9", separate_update=True, icache="warm")
    three = summary_of(soc="gap9", separate_update=True, icache="warm", accumulate=3)
    counts = [
        {
            op["name"]: op["joules"] / op["runs_per_update"]
            for op in summary["ops"]
            if ".UPD" not in op["name"]
        }
        for summary in (one, three)
    ]
    same = [name for name in counts[0] if isclose(counts[0][name], counts[1].get(name, 0), rel_tol=1e-9)]
    assert "conv1.FW" in same
    assert three["energy"]["nominal_joules"] > 2 * one["energy"]["nominal_joules"]


def test_a_chip_without_coefficients_has_a_note_and_what_others_have_on_request() -> None:
    plain, asked = summary_of(), summary_of(energy="generic-22fdx")
    assert plain["energy"] is None
    assert "pulp-open has no energy coefficients" in plain["energy_note"]
    assert asked["energy_note"] is None
    assert asked["energy"]["energy_model"] == "generic-22fdx"
    assert plain["activity"] == asked["activity"]
    assert plain["cycles"] == asked["cycles"]
    assert all(op["joules"] is None for op in plain["ops"])


def test_cycles_do_not_depend_on_the_supply_nor_on_clocks_that_keep_their_ratio() -> None:
    fast, slow = summary_of(soc="gap9"), summary_of(soc="gap9", freq="240MHz", vdd="0.65V")
    assert fast["cycles"] == slow["cycles"]
    assert fast["activity"] == slow["activity"]
    assert slow["seconds"] == pytest.approx(fast["seconds"] * 370 / 240)
    assert slow["energy"]["nominal_joules"] < fast["energy"]["nominal_joules"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--vdd 0.65V", "pulp-open has no energy coefficients"),
        ("--energy generic-22fdx --vdd 0.9V", "outside the operating points"),
        ("--energy generic-22fdx --vdd 0.65", "has no unit"),
        ("--energy generic-22fdx --vdd -0.65V", "is negative"),
        ("--soc gap9 --freq 400MHz --energy gap9", "gap9 reaches 370 MHz at 0.8 V, not 400 MHz"),
        ("--soc gap9 --vdd 0.65V", "gap9 reaches 240 MHz at 0.65 V, not 370 MHz"),
        ("--soc gap9 --freq -3MHz", "negative"),
        ("--energy tutorial-cnn", "is a model, not a"),
        ("--energy mine.yaml", "the file does not exist"),
    ],
)
def test_what_cannot_be_counted_is_refused_before_anything_runs(
    options: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    error = refused(capsys, "run", "tutorial-cnn", "--no-functional", *options.split())
    assert message in error


@pytest.mark.usefixtures("undrawn")
def test_a_folder_has_a_table_of_activity_and_gives_a_model_scaled_to_a_measurement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    options = ["--energy", "generic-22fdx", "--no-functional", "--out", "run", "--quiet"]
    assert run(["run", "simple-mlp", *options]) == 0
    summary = json.loads(Path("run/summary.json").read_text())
    with Path("run/activity.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    for name, count in summary["activity"]["counters"].items():
        assert sum(int(row[name]) for row in rows if row["of"] == "op") == count
    assert [row["name"] for row in rows if row["of"] == "core"] == [f"core{core}" for core in range(8)]
    part = refused(capsys, "plot", "run", "--what", "energy", "--window", "0:100")
    assert "energy is known for whole runs only" in part
    assert "remove --window" in part
    for measured, joules in (("57.6mW", 0.0576 * summary["seconds"]), ("30 uJ", 30e-6)):
        new = ["new", "mine.yaml", "--kind", "energy", "--run", "run", "--measured", measured]
        assert run(new) == 0
        again = printed(capsys, "run", "simple-mlp", "--no-functional", "--energy", "mine.yaml")
        assert again["energy"]["nominal_joules"] == pytest.approx(joules, rel=1e-3)
        assert all(item["fitted"] for item in again["energy"]["by_coefficient"] if item["name"] != "l3_byte")
        assert run(new) == 2  # never written over
        Path("mine.yaml").unlink()
        capsys.readouterr()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--kind energy --run run", "--run RUN --measured 57.6mW"),
        ("--kind soc --run run --measured 1mW", "--run RUN --measured 57.6mW"),
        ("--kind energy --run run --measured 57.6", "must be a power or an energy"),
        ("--kind energy --run run --measured 1V", "must be a power or an energy"),
        ("--kind energy --run none --measured 1mW", "cannot read"),
        ("--kind energy --run run --measured 1mW", "pulp-open has no energy coefficients"),
    ],
)
def test_a_model_that_cannot_be_scaled_is_refused(
    arguments: str,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("run").mkdir()
    energy = None if message.startswith("pulp-open") else {}
    content = {"model": "m", "soc": "s", "cycles": 1, "cluster_hz": 1, "energy": energy, "format": 1}
    note = "pulp-open has no energy coefficients"
    Path("run/summary.json").write_text(json.dumps({**content, "energy_note": note}))
    assert message in refused(capsys, "new", "mine.yaml", *arguments.split())
    assert not Path("mine.yaml").exists()


def test_energy_in_python() -> None:
    result = pt.run("simple-mlp", soc="gap9", functional=False)
    assert result.energy is not None
    assert result.energy["nominal_joules"] > 0
    assert result.activity["counters"]["instructions"] > 0
    assert "energy" in str(result)
