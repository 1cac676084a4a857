# SPDX-License-Identifier: Apache-2.0
"""Which rows of a long parametrisation wait for `make sweep`, and which tools a test may ask for."""

from __future__ import annotations

import os
import shutil
import subprocess
import zlib
from collections.abc import Callable, Hashable, Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import settings

from shared.paths import ROOT

SHARE = 10
"""One row of so many stays in `make test`."""

DRAWN_SHARE = 20
"""Of the examples a property draws in `make sweep`, `make test` draws one of so many."""

SWEEPING = "PULPTRAIN_SWEEP"
"""Environment variable that is set while `make sweep` runs."""

ASKED = "PULPTRAIN_ASKED"
"""Environment variable with the `-m` of this run of pytest."""

T = TypeVar("T")


def a_tenth(rows: Sequence[T], *kinds: Callable[[T], Hashable]) -> list[T]:
    """A tenth of the rows, more if it takes more to meet every value of every kind; in their order.

    Drawn by a checksum of their names: the same ones in every run and process, not the neighbours of a list
    whose dtype or batch changes fastest, and a new row does not move the others to another tier.
    """
    return [rows[number] for number in _places_of_a_tenth(rows, *kinds)]


def _places_of_a_tenth(rows: Sequence[T], *kinds: Callable[[T], Hashable], share: int = SHARE) -> list[int]:
    """Where these rows are among all; to compare rows of thousands takes the seconds that are to be saved."""
    names = [str(row) for row in rows]
    drawn = sorted(range(len(rows)), key=lambda place: (zlib.crc32(names[place].encode()), names[place]))
    kept: dict[int, None] = {}
    seen: set[tuple[int, Hashable]] = set()
    for place in drawn:
        values = {(number, kind(rows[place])) for number, kind in enumerate(kinds)}
        if not values <= seen:
            kept[place] = None
            seen |= values
    rest = [place for place in drawn if place not in kept]
    return sorted([*kept, *rest[: max(0, -(-len(rows) // share) - len(kept))]])


def sweep_nine_of_ten(
    rows: Sequence[T],
    *kinds: Callable[[T], Hashable],
    smoke: Callable[[T], Hashable] | None = None,
    share: int = SHARE,
) -> list[object]:
    """Parameters for all rows: a tenth as they are, the others marked `sweep`.

    With `smoke`, the first row that stays, of every value, is marked `smoke`. The thousands of rows that `-m`
    leaves out anyway are not even made. Of dear rows one of more than ten, `share`, may stay.
    """
    kept = dict.fromkeys(_places_of_a_tenth(rows, *kinds, share=share))
    first = {} if smoke is None else {smoke(rows[place]): place for place in reversed(kept)}
    marks = dict.fromkeys(kept, ()) | dict.fromkeys(first.values(), pytest.mark.smoke)
    asked = os.environ.get(ASKED, "")
    chosen = (
        sorted(first.values()) if asked == "smoke" else kept if "not sweep" in asked else range(len(rows))
    )
    return [
        pytest.param(rows[place], id=str(rows[place]), marks=marks.get(place, pytest.mark.sweep))
        for place in chosen
    ]


def sweep_two_of_three(rows: Sequence[T]) -> list[object]:
    """Parameters for all rows: every third as it is, the others marked `sweep`."""
    return [
        pytest.param(row, id=str(row), marks=() if place % 3 == 0 else pytest.mark.sweep)
        for place, row in enumerate(rows)
    ]


def examples(count: int, **others: Any) -> Callable[[T], T]:
    """Settings of a property test that draws `count` examples in `make sweep`, few in `make test`."""

    def decorated(test: T) -> T:
        if SWEEPING not in os.environ:
            return settings(max_examples=count // DRAWN_SHARE, **others)(test)
        return pytest.mark.sweep(settings(max_examples=count, **others)(test))

    return decorated


def _package(name: str) -> str | None:
    return None if find_spec(name) else f"the Python package {name} is not installed"


def _program(*names: str) -> str | None:
    return None if any(map(shutil.which, names)) else f"no {' or '.join(names)} on the PATH"


def _git_history() -> str | None:
    """A source archive has none, a shallow clone the last commit only."""
    if shutil.which("git") is None:
        return "no git on the PATH"
    asked = ["git", "-C", str(ROOT), "rev-parse", "--is-shallow-repository"]
    answer = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()
    if answer == "false":
        return None
    return "a shallow git clone has no history" if answer == "true" else "not a git checkout: no history"


def _rv32() -> str | None:
    reason = _program("qemu-riscv32") or _package("ziglang")
    return f"nothing for rv32: {reason}" if reason else None


def _proc() -> str | None:
    return None if Path("/proc/self/stat").exists() else "no /proc, which is Linux's"


NEEDS: dict[str, Callable[[], str | None]] = {
    "needs_torch": lambda: _package("torch"),
    "needs_onnx": lambda: _package("onnx"),
    "needs_onnxscript": lambda: _package("onnxscript"),
    "needs_torchvision": lambda: _package("torchvision"),
    "needs_scipy": lambda: _package("scipy"),
    "needs_pandas": lambda: _package("pandas"),
    "needs_optuna": lambda: _package("optuna"),
    "needs_ortools": lambda: _package("ortools"),
    "needs_distributed": lambda: _package("distributed"),
    "needs_jsonschema": lambda: _package("jsonschema"),
    "needs_sphinx": lambda: _package("sphinx") or _package("myst_nb") or _package("furo"),
    "needs_nbclient": lambda: _package("nbclient") or _package("ipykernel") or _package("pandas"),
    "needs_playwright": lambda: _package("playwright"),
    "needs_setuptools": lambda: _package("setuptools"),
    "needs_gcc": lambda: _program("gcc"),
    "needs_ziglang": lambda: _package("ziglang"),
    "needs_rv32": _rv32,
    "needs_chromium": lambda: _program("chromium", "chromium-browser", "google-chrome", "chrome"),
    "needs_git_history": _git_history,
    "needs_proc": _proc,
}
"""By marker: why its tests cannot run here, None if they can."""


def skip_what_lacks_a_tool(items: Iterable[pytest.Item]) -> None:
    """Each tool is looked for once, and only if a test asks for it."""
    missing: dict[str, str | None] = {}
    for item in items:
        for mark in item.iter_markers():
            if mark.name in NEEDS:
                if mark.name not in missing:
                    missing[mark.name] = NEEDS[mark.name]()
                if reason := missing[mark.name]:
                    item.add_marker(pytest.mark.skip(reason=f"{mark.name}: {reason}"))
