# SPDX-License-Identifier: Apache-2.0
"""What a command prints: the object of ``--json``, or why it refuses."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pulptrain.__main__ import run


def printed(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> Any:
    """The object alone that a command prints with ``--json``, which ends with this exit code."""
    capsys.readouterr()
    assert run([*arguments, "--json"]) == code
    return json.loads(capsys.readouterr().out)


def refused(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 2) -> str:
    """What a command that ends with this exit code says on standard error, which is no traceback."""
    capsys.readouterr()
    assert run([*arguments]) == code
    said = capsys.readouterr().err
    assert "Traceback" not in said
    return said
