# SPDX-License-Identifier: Apache-2.0
"""Exports broken by hand: `make check` fails for each edit that changes a number, with its own seeds."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

import numpy as np
import pytest

from shared.exported import exported, made, written
from shared.tiers import sweep_nine_of_ten
from tools.deployed.breaks import (
    BREAKS,
    EXPORTS,
    Break,
    broken,
    check,
    export,
    first_finding,
    functions,
    instead,
    moved_statements,
)

SEEDS = 8
"""Those of `make check`."""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of an export, which passes as it is."""
    folder = tmp_path_factory.mktemp("breaks")

    @cache
    def of(name: str) -> Path:
        export(name, folder / name)
        return folder / name

    return of


def by_kind(item: Break) -> str:
    return item.kind


@pytest.mark.needs_gcc
@pytest.mark.parametrize("item", sweep_nine_of_ten(BREAKS, by_kind))
def test_an_edit_that_changes_a_number_fails_the_check(
    item: Break, built: Callable[[str], Path], tmp_path: Path
) -> None:
    broken(built(item.export), tmp_path / "net", item.file, item.applied)
    ended = check(tmp_path / "net")
    assert (ended.returncode == 0) == bool(item.harmless), ended.stdout + ended.stderr
    assert ": error:" not in ended.stderr
    passed = re.findall(r"^0 of \d+ numbers and tensors wrong$", ended.stdout, re.MULTILINE)
    assert len(passed) == SEEDS if item.harmless else len(passed) < SEEDS


@pytest.mark.slow
@pytest.mark.needs_gcc
@pytest.mark.parametrize("name", [name for name in EXPORTS if name != "cnn-fp16"])
def test_an_order_that_passes_with_all_seeds_passes_the_thread_sanitizer(
    name: str, built: Callable[[str], Path], tmp_path: Path
) -> None:
    # All ops of cnn-fp16 are tables, so it has no statements to move.
    text = (built(name) / "network.c").read_text()
    orders = [
        (what, text[:first] + moved + text[last:])
        for _, first, last in functions(text)
        for what, moved in moved_statements(text[first:last])
    ]
    failed = 0
    for what, order in orders[::23]:
        broken(built(name), tmp_path / "net", "network.c", partial(instead, order))
        ended = check(tmp_path / "net")
        failed += ended.returncode != 0
        assert ended.returncode or not check(tmp_path / "net", "SANITIZE=thread").returncode, what
    assert 0 < failed < len(orders[::23])


@pytest.mark.needs_gcc
def test_a_seed_that_failed_does_the_same_again(built: Callable[[str], Path], tmp_path: Path) -> None:
    item = next(item for item in BREAKS if item.what == "a weight in the loop")
    broken(built(item.export), tmp_path / "net", item.file, item.applied)
    first = first_finding(check(tmp_path / "net"))
    (seed,) = re.findall(r"seed (\d+)", first)
    again = [check(tmp_path / "net", f"SEEDS={seed}", "VERBOSE=1").stdout for _ in range(2)]
    assert again[0] == again[1]
    assert first_finding(check(tmp_path / "net", f"SEEDS={seed}")) == first


DIVERGES = """
name: diverges
input: {shape: [8]}
loss: mse
optimizer: {name: sgd, learning_rate: 1.0e+30}
layers:
  - {name: fc, type: linear, out_features: 6}
  - {name: act, type: relu}
  - {name: fc2, type: linear, out_features: 3}
"""


@pytest.mark.needs_gcc
@pytest.mark.filterwarnings("error::RuntimeWarning:deploy")
def test_what_the_simulator_has_infinite_or_nan_is_right_as_that_only(tmp_path: Path) -> None:
    model = tmp_path / "model.yaml"
    model.write_text(DIVERGES)
    folder = written(exported(str(model)).project(), tmp_path / "net")
    losses, values = folder / "data.c", folder / "expected.bin"
    text, expected = losses.read_text(), np.frombuffer(values.read_bytes(), np.float32)
    assert "INFINITY" in text
    assert np.isnan(expected).any()
    values.write_bytes(np.where(np.isnan(expected), -expected, expected).tobytes())  # NaN in other bits
    ended = made(folder)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    for loss in ("NAN", "1.0f", "-INFINITY"):
        losses.write_text(text.replace("    INFINITY,", f"    {loss},"))
        assert "1 of 28 numbers and tensors wrong" in made(folder).stdout
    losses.write_text(text)
    number = next(place for place, value in enumerate(expected) if np.isinf(value))
    for instead_of in (-expected[number], np.float32(1), np.float32(np.nan)):
        other = expected.copy()
        other[number] = instead_of
        values.write_bytes(other.tobytes())
        assert "fc2.FW fc2.out: WRONG, 1 of 3 elements wrong" in made(folder).stdout
