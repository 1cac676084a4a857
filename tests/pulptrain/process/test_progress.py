# SPDX-License-Identifier: Apache-2.0
"""What is told while a command works."""

from __future__ import annotations

import pytest

from pulptrain.process import progress
from pulptrain.process.progress import Teller


@pytest.mark.parametrize(
    ("done", "said"),
    [(4, "pulptrain: tuning: 4 of 100"), (5, "5 of 100, 10 min left"), (50, "50 of 100, 32 s left")],
)
def test_no_time_left_is_told_before_a_twentieth_is_done(
    done: int, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = 0.0
    monkeypatch.setattr(progress, "AGAIN_SECONDS", 10.0)
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    teller = Teller(show=True)
    teller.stage("tuning")
    teller.alone()
    capsys.readouterr()
    now = 32.0
    teller.count(done, 100)
    assert capsys.readouterr().err.rstrip("\n").endswith(said)
