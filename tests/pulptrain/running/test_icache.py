# SPDX-License-Identifier: Apache-2.0
"""`--icache`: what a run says about kernels that wait for their code."""

from __future__ import annotations

import pytest

from pulptrain.__main__ import run
from shared.printed import printed, refused

RUN = ["primitive", "relu", "--shape", "8x8x8"]


def summary(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, object]:
    found: dict[str, object] = printed(capsys, *RUN, *arguments)
    return found


def test_a_cold_run_takes_longer_by_what_it_waits_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    warm, steady, cold = (summary(capsys, "--icache", state) for state in ("warm", "steady", "cold"))
    assert summary(capsys)["cycles"] == warm["cycles"], "warm is the default"
    assert (warm["icache"], steady["icache"], cold["icache"]) == ("warm", "steady", "cold")
    assert warm["cycles"] == steady["cycles"], (
        "one kernel fits the caches, an earlier iteration left it there"
    )
    more = cold["cycles"] - warm["cycles"]  # type: ignore[operator]
    for core in cold["per_core"]:  # type: ignore[attr-defined]
        waited = core["stalls"]["icache"]
        assert waited >= 18, "a line from L2; a tile with other code costs lines at 2 cycles more"
        assert waited % 2 == 0
        assert 0 < more <= waited, "a transfer beside the kernel may hide some of it"
        assert core["instructions"] + sum(core["stalls"].values()) == core["cycles"]


def test_people_read_it_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*RUN, "--icache", "cold"]) == 0
    assert "instruction caches cold" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["--icache", "lukewarm"], "lukewarm"),
        (["--icache", "cold", "--codegen", "pulp-gcc7"], "already contain"),
    ],
)
def test_states_that_make_no_sense_are_refused(
    arguments: list[str], hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert hint in refused(capsys, *RUN, *arguments)
