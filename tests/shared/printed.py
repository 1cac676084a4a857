# SPDX-License-Identifier: Apache-2.0
"""What a command prints with ``--json``."""

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
