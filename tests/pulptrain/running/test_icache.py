# SPDX-License-Identifier: Apache-2.0
"""`--icache`: what a run says about kernels that wait for their code."""

from __future__ import annotations

import pytest

from pulptrain.__main__ import run
from pulptrain.inputs.settings import Settings
from pulptrain.running.session import run_model
from shared.printed import printed, refused
from traces.compared.comparison import compared

RUN = ["primitive", "relu", "--shape", "8x8x8", "--buffering", "none"]
"""Whole, as with code other tiles may be the best."""


def summary(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, object]:
    found: dict[str, object] = printed(capsys, *RUN, *arguments)
    return found


def test_a_cold_run_takes_longer_by_what_it_waits_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    warm, steady, cold = (summary(capsys, "--icache", state) for state in ("warm", "steady", "cold"))
    assert summary(capsys)["cycles"] == warm["cycles"], "warm is the default of what is measured alone"
    assert (warm["icache"], steady["icache"], cold["icache"]) == ("warm", "steady", "cold")
    more = steady["cycles"] - warm["cycles"]  # type: ignore[operator]
    assert 0 < more < 0.2 * (cold["cycles"] - warm["cycles"]), (  # type: ignore[operator]
        "the code of one op fits the shared cache, and not quite the private one"
    )
    assert cold["cycles"] - steady["cycles"] > 20 * 19, (  # type: ignore[operator]
        "op, platform and kernel have more than 20 lines, each of which comes from L2"
    )
    for core in cold["per_core"]:  # type: ignore[attr-defined]
        assert core["instructions"] + sum(core["stalls"].values()) == core["cycles"]


def test_people_read_it_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*RUN, "--icache", "cold"]) == 0
    assert "instruction caches cold" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["--icache", "lukewarm"], "lukewarm"),
        (["--icache", "cold", "--codegen", "pulp-gcc7"], "already include"),
    ],
)
def test_states_that_make_no_sense_are_refused(
    arguments: list[str], hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert hint in refused(capsys, *RUN, *arguments)


@pytest.mark.parametrize(
    ("arguments", "start"),
    [
        ([], "steady"),
        (["--icache", "warm"], "warm"),
        (["--timing", "gvsoc"], "warm"),
        (["--codegen", "pulp-gcc7"], "warm"),
        (["--soc", "stm32l4"], "steady"),
    ],
)
def test_whole_iterations_fetch_their_code_where_such_were_measured(
    arguments: list[str], start: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found = printed(capsys, "run", "simple-mlp", "--no-functional", *arguments)
    assert found["icache"] == start
    assert found["busy_cycles"] + sum(found["stalls"].values()) == found["cycles"] * found["cores"]


@pytest.mark.parametrize("more", [["l1.banks=32"], ["l2.link_bytes_per_cycle=16"], ["l1.size_bytes=131072"]])
def test_with_code_a_larger_machine_is_not_slower(more: list[str]) -> None:
    base = run_model("simple-mlp", Settings(), functional=False).summary
    larger = run_model("simple-mlp", Settings(overrides=more), functional=False).summary
    assert base["icache"] == "steady"
    assert larger["cycles"] <= base["cycles"]


def test_runs_that_began_with_other_caches_say_so() -> None:
    runs = [
        run_model("simple-mlp", Settings(icache=start), functional=False).summary for start in ("warm", "")
    ]
    assert compared(runs, ["a", "b"]).notes == ("instruction caches: warm in a, steady in b",)
    del runs[0]["icache"]
    assert compared(runs, ["a", "b"]).notes == ("instruction caches: warm in a, steady in b",), (
        "older results"
    )
