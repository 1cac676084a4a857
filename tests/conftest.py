# SPDX-License-Identifier: Apache-2.0
"""Shared test settings: hypothesis draws the same examples in every run; nothing is kept from run to run.

A test whose `needs_...` marker names a tool this machine lacks is skipped, and pytest prints why.
"""

import os
import tempfile
from collections.abc import Iterator

import pytest
from hypothesis import settings

from pulptrain.process import progress
from shared.tiers import SMOKING, skip_what_lacks_a_tool

CACHE_FOLDER = tempfile.TemporaryDirectory(prefix="pulptrain-cache-")
"""In place of the user's: what commands keep there must not outlive this process of pytest."""

os.environ["XDG_CACHE_HOME"] = CACHE_FOLDER.name

# How soon a command says what it is doing depends on the machine: here it never does, but on a terminal.
progress.FIRST_SECONDS = progress.LINE_SECONDS = progress.AGAIN_SECONDS = float("inf")

settings.register_profile("pulptrain", derandomize=True, deadline=None)
settings.load_profile("pulptrain")


def pytest_configure(config: pytest.Config) -> None:
    """Before files are collected."""
    if config.option.markexpr == "smoke":
        os.environ[SMOKING] = "1"


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """After `-m` has chosen: a tool that only deselected tests need is not looked for."""
    skip_what_lacks_a_tool(items)


@pytest.fixture(autouse=True)
def _environment_put_back() -> Iterator[None]:
    """What code under test sets in the environment (the fuzzer turns caches off) is gone with its test."""
    before = dict(os.environ)
    yield
    if os.environ != before:
        os.environ.clear()
        os.environ.update(before)
