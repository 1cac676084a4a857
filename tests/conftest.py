# SPDX-License-Identifier: Apache-2.0
"""Shared test settings: hypothesis draws the same examples in every run; nothing is kept from run to run.

A test whose `needs_...` marker names a tool this machine lacks is skipped, and pytest prints why.
"""

import functools
import importlib
import os
import signal
import sys
import tempfile
from collections.abc import Iterator

import pytest
from hypothesis import settings

from configs import collector
from pulptrain.process import progress
from shared.tiers import ASKED, skip_what_lacks_a_tool

if "PYTEST_XDIST_WORKER" not in os.environ:
    CACHE_FOLDER = tempfile.TemporaryDirectory(prefix="pulptrain-cache-")
    """In place of the user's: what commands keep must not outlive this pytest, whose workers share it."""
    os.environ["XDG_CACHE_HOME"] = CACHE_FOLDER.name

# How soon a command says what it is doing depends on the machine: here it never does, but on a terminal.
progress.FIRST_SECONDS = progress.LINE_SECONDS = progress.AGAIN_SECONDS = float("inf")

settings.register_profile("pulptrain", derandomize=True, deadline=None)
settings.load_profile("pulptrain")


def pytest_configure(config: pytest.Config) -> None:
    """Before files are collected."""
    os.environ[ASKED] = config.option.markexpr
    # A job that a shell has put into the background ignores SIGINT, and its children inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """After `-m` has chosen: a tool that only deselected tests need is not looked for."""
    skip_what_lacks_a_tool(items)
    collector.rarely()  # thousands of tests live as long as the process
    if "torch" in sys.modules:
        _list_composite_ops_once()


def _list_composite_ops_once() -> None:
    """Of every module that is captured torch 2.13 asks its dispatcher for all its ops, once a namespace."""
    utils = importlib.import_module("torch._export.utils")
    found = getattr(utils, "_materialize_cpp_cia_ops", None)
    if found is not None:
        utils._materialize_cpp_cia_ops = functools.cache(found)


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Folders of runs get no pictures, which take two seconds: for tests that look at the other files."""
    from pulptrain.running.pictures import RunPictures

    monkeypatch.setattr(RunPictures, "draw_files", lambda *_: [])


@pytest.fixture(autouse=True)
def _environment_put_back() -> Iterator[None]:
    """What code under test sets in the environment (the fuzzer turns caches off) is gone with its test."""
    before = dict(os.environ)
    yield
    if os.environ != before:
        os.environ.clear()
        os.environ.update(before)
