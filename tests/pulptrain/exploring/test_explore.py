# SPDX-License-Identifier: Apache-2.0
"""`pulptrain explore`: every combination is simulated or says why not, and the front is the right one."""

from __future__ import annotations

import csv
import json
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from configs.edit import with_value
from configs.errors import ConfigError
from configs.yaml_file import Node, parse_yaml
from pulptrain.__main__ import run
from scheduler.explore.pareto import pareto_front
from shared.printed import printed, refused
from shared.tuner_case import SMALL_MODEL
from traces.pictures.labels import Box, free_corners, label_box, meet

SPEC = """
name: two knobs
model: small.yaml
settings: {fpus: private, bank_conflicts: off, energy: generic-22fdx}
sweep:
  cores: [1, 2]
  l1: [16KiB, 9000, 2000]
points:
  - {cores: 2, dma.burst_bytes: 64, batch: 2}
  - {cores: 2, model.layers.conv.out_channels: 2, buffering: single}
objectives: [cycles, l1_bytes, energy_joules]
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("small.yaml").write_text(SMALL_MODEL)
    Path("spec.yaml").write_text(SPEC)
    return tmp_path


def explored(capsys: pytest.CaptureFixture[str], *options: str) -> dict[str, Any]:
    result: dict[str, Any] = printed(capsys, "explore", "spec.yaml", "--workers", "1", *options)
    return result


@pytest.mark.smoke
def test_points_are_what_run_says(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = explored(capsys, "--no-cache", "--out", "out")
    rows = result["points"]
    assert [tuple(row["values"].values()) for row in rows[:6]] == [
        (cores, size) for cores in (1, 2) for size in ("16KiB", 9000, 2000)
    ]
    simple = ["--fpus", "private", "--bank-conflicts", "off", "--no-functional", "--json"]
    simple += ["--energy", "generic-22fdx"]
    assert run(["run", "small.yaml", "--cores", "2", "--l1", "16KiB", *simple]) == 0
    ran = json.loads(capsys.readouterr().out)
    row = rows[3]
    assert (row["cycles"], row["peak_l1_bytes"]) == (ran["cycles"], ran["peak_bytes"]["l1"])
    assert row["energy_joules"] == pytest.approx(ran["energy"]["nominal_joules"])
    assert row["edp_joule_seconds"] == pytest.approx(ran["energy"]["edp_joule_seconds"])
    too_small = [row for row in rows if row["reason"] is not None]
    assert [row["values"]["l1"] for row in too_small] == [2000, 2000]
    assert all(row["missing_bytes"] > 0 and "L1 is too small" in row["reason"] for row in too_small)
    assert all(rows[number]["on_front"] for number in result["front"])
    with Path("out/points.csv").open() as stream:
        assert len(list(csv.DictReader(stream))) == len(rows) == 8
    assert Path("out/front.png").stat().st_size > 1000


def test_what_holds_for_one_op_is_varied_like_the_rest(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("spec.yaml").write_text(
        "name: per op\nmodel: small.yaml\nsweep:\n  kernel.conv.FW: [mm, mm_unroll_2x4]\n"
        "  tile.conv.FW: ['co:2', 'co:4']\npoints:\n  - {im2col.WG: dma, loop_order.conv.FW: 'ho,co'}\n"
    )
    rows = explored(capsys, "--no-cache")["points"]
    for row in rows:
        arguments = []
        for key, value in row["values"].items():
            option, _, name = key.partition(".")
            arguments += [f"--{option.replace('_', '-')}", f"{name}={value}"]
        assert printed(capsys, "run", "small.yaml", *arguments, "--no-functional")["cycles"] == row["cycles"]
    assert len({row["cycles"] for row in rows[:4]}) == 4


@pytest.mark.parametrize("icache", ["warm", "steady"])
def test_an_update_of_several_mini_batches_counts_as_a_whole(
    icache: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the code of both programs beside each other, where code is fetched."""
    settings = f"settings: {{icache: {icache}}}"
    Path("spec.yaml").write_text(
        f"name: micro\nmodel: small.yaml\n{settings}\nsweep: {{accumulate: [1, 3]}}\n"
    )
    one, three = explored(capsys, "--no-cache")["points"]
    ran = printed(capsys, "run", "small.yaml", "--accumulate", "3", "--icache", icache, "--no-functional")
    assert three["cycles"] == ran["cycles"]
    programs = [ran["update"]["mini_batch"], ran["update"]["update"]]
    for level in ("l1", "l2"):
        assert three[f"peak_{level}_bytes"] == max(program["peak_bytes"][level] for program in programs)
    assert three["macs"] == 3 * one["macs"]


def test_an_exploration_goes_on_where_it_ended(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = explored(capsys, "--cache", "c.sqlite")
    assert first["simulator"]["cached"] == 0
    Path("spec.yaml").write_text(SPEC.replace("cores: [1, 2]", "cores: [1, 2, 3]"))
    again = explored(capsys, "--cache", "c.sqlite")
    assert again["simulator"]["cached"] == sum(
        row["cycles"] is not None for row in first["points"] if "cycles" in row
    )
    cycles = {str(row["values"]): row.get("cycles") for row in again["points"]}
    assert all(cycles[str(row["values"])] == row.get("cycles") for row in first["points"])


@pytest.mark.parametrize(
    ("old", "new", "line", "message"),
    [
        ("cores: [1, 2]", "cors: [1, 2]", 6, "'cores'"),
        ("dma.burst_bytes: 64", "dma.burst_byte: 64", 9, "'dma.burst_bytes'"),
        ("cores: [1, 2]", "cores: [1, 99]", 6, "between 1 and 16"),
        ("cores: [1, 2]", "cores: [1, two]", 6, "a whole number"),
        ("[16KiB, 9000", "[16 apples, 9000", 7, "apples"),
        ("layers.conv.", "layers.cnv.", 10, "has no 'cnv'"),
        ("conv.out_channels: 2", "conv.out_channels: -2", 10, ""),
        ("buffering: single", "buffering: triple", 10, "double"),
        ("l1_bytes, energy_joules", "l1_byte", 11, "'peak_l1_bytes'"),
        ("l1_bytes, energy_joules", "energy_nj", 11, "'energy_joules'"),
        (
            "objectives:",
            "energy: {source: s, instruction_pj: 2}\nobjectives:",
            11,
            "settings: {energy: gap9}",
        ),
        (", energy: generic-22fdx", "", 11, "pulp-open has no energy coefficients"),
        ("cores: [1, 2]", "energy: [gap9, gap10]", 6, "'gap9'"),
        ("cores: [1, 2]", "vdd: [0.65V, 0.8]", 6, "has no unit"),
        ("energy: generic-22fdx", "energy: generic", 4, "'generic-22fdx'"),
        ("model: small.yaml", "model: smal.yaml", 3, "the file does not exist"),
        ("model: small.yaml", "model: {}", 3, "the model has no 'name'"),
        ("model: small.yaml", "model: [small]", 3, "'model' is a list"),
        ("settings: {fpus", "settings: {fpu", 4, "unknown key"),
        ("dma.burst_bytes: 64", "kernel.cnv.FW: mm", 9, "cnv.FW=mm: no op or step"),
        ("dma.burst_bytes: 64", "tile.conv.FW: big", 9, "'big' in 'conv.FW=big' is not"),
    ],
)
def test_mistakes_are_told_at_their_line(
    folder: Path, old: str, new: str, line: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert old in SPEC
    Path("spec.yaml").write_text(SPEC.replace(old, new, 1))
    error = refused(capsys, "explore", "spec.yaml", "--no-cache")
    assert f"spec.yaml:{line}" in error
    assert message in error


@given(st.lists(st.tuples(*[st.integers(0, 6)] * 3), min_size=1, max_size=12))
def test_the_front_is_what_nothing_dominates(rows: list[tuple[int, ...]]) -> None:
    def dominated(row: tuple[int, ...]) -> bool:
        return any(other != row and all(a <= b for a, b in zip(other, row, strict=True)) for other in rows)

    front = pareto_front(rows)
    assert front == [number for number, row in enumerate(rows) if not dominated(row)]
    assert not any(
        all(a < b for a, b in zip(rows[one], rows[two], strict=True)) for one, two in combinations(front, 2)
    )


FONT_POINTS = 7.0


@given(
    st.lists(
        st.tuples(st.floats(20, 400), st.floats(20, 250), st.text("abc 0123", min_size=1, max_size=40)),
        max_size=20,
    )
)
def test_labels_of_the_front_lie_within_the_picture_and_off_each_other(
    labelled: list[tuple[float, float, str]],
) -> None:
    area = (10.0, 10.0, 420.0, 270.0)
    points = [(x, y) for x, y, _ in labelled]
    boxes: list[Box] = []
    for (x, y, label), corner in zip(
        labelled, free_corners(points, labelled, area, FONT_POINTS), strict=True
    ):
        if corner is not None:
            box = label_box(x, y, label, corner, FONT_POINTS)
            assert box[0] >= 10
            assert box[1] >= 10
            assert box[2] <= 420
            assert box[3] <= 270
            assert not any(meet(box, other) for other in boxes)
            assert not any(box[0] < px < box[2] and box[1] < py < box[3] for px, py in points)
            boxes.append(box)
    if len(labelled) == 1:
        assert len(boxes) == 1  # at least one corner of a point alone is free


def test_operating_points_are_an_axis_and_one_that_cannot_be_says_why(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep = "sweep: {freq: [120MHz, 240MHz, 370MHz], vdd: [0.65V, 0.8V]}\n"
    Path("spec.yaml").write_text(
        f"name: points\nmodel: small.yaml\nsettings: {{soc: gap9}}\n{sweep}"
        "objectives: [seconds, energy_joules]\n"
    )
    result = explored(capsys, "--no-cache")
    rows = {(row["values"]["freq"], row["values"]["vdd"]): row for row in result["points"]}
    assert "reaches 240 MHz at 0.65 V" in rows["370MHz", "0.65V"]["reason"]
    joules = {key: row["energy_joules"] for key, row in rows.items() if row["reason"] is None}
    assert joules["240MHz", "0.65V"] < joules["120MHz", "0.65V"] < joules["120MHz", "0.8V"]
    front = [tuple(result["points"][number]["values"].values()) for number in result["front"]]
    assert front == [("240MHz", "0.65V"), ("370MHz", "0.8V")]
    assert result["energy_model"] == "gap9"


def test_a_value_is_replaced_where_the_path_leads() -> None:
    tree = parse_yaml("a: {b: [1, 2]}\nlayers:\n  - {name: x, k: 1}\n  - {name: y}\n", "f")
    value = Node(7, "spec", 3)
    assert with_value(tree, "layers.x.k", value).plain()["layers"][0] == {"name": "x", "k": 7}
    assert with_value(tree, "layers.y.k", value).plain()["layers"][1] == {"name": "y", "k": 7}
    assert with_value(tree, "a.b.1", value).plain()["a"] == {"b": [1, 7]}
    for path in ("layers.z.k", "a.b.5", "a.b.1.c", "q.r"):
        with pytest.raises(ConfigError, match="spec:3"):
            with_value(tree, path, value)
