# SPDX-License-Identifier: Apache-2.0
"""Prints the derived figures of the benchmarks (rates and ratios) after pytest-benchmark's own table."""

from __future__ import annotations

from collections.abc import Callable

import pytest

_FIGURES = pytest.StashKey[list[str]]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_FIGURES] = []


@pytest.fixture
def report(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Add one line to the closing table of figures."""
    return request.config.stash[_FIGURES].append


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    terminalreporter.section("figures (medians of this run)")
    for line in config.stash[_FIGURES]:
        terminalreporter.line(line)
