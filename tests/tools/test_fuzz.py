# SPDX-License-Identifier: Apache-2.0
"""A short part of `make fuzz`, and its own promises: seeded, minimised, and it finds defects."""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import click
import numpy as np
import pytest
from typer.main import get_command

from pulptrain.cli import application
from tools.fuzz import __main__ as command
from tools.fuzz import pool as pools
from tools.fuzz.archives import padded
from tools.fuzz.folder import OUTPUT_OPTIONS, Asked, place
from tools.fuzz.mutate import mutated_text
from tools.fuzz.pool import Pool, minimised
from tools.fuzz.subject import Subject, Thing
from tools.fuzz.subjects import KINDS, base_files, subject
from tools.fuzz.tally import Tally
from tools.fuzz.targets import COMMANDS, TARGETS
from tools.fuzz.worker import Outcome, failure_of

SHORT = 40
"""Inputs of the part in the normal tests: under half a minute."""

INPUT_OPTIONS = {"--code-map", "--schedule", "--energy", "--soc", "--start", "--values"}
"""Options with the name of a file that is only read."""


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[Pool]:
    made = Pool(2, tmp_path / "work")
    yield made
    made.end()


def test_an_input_is_the_same_for_the_same_seed_and_number() -> None:
    base_files()
    drawn = [subject(7, number) for number in range(100)]
    assert [subject(7, number) for number in range(20)] == drawn[:20]
    assert len({item.arguments for item in drawn[:20]}) > 5
    assert {item.kind for item in drawn} == set(KINDS)


@pytest.mark.parametrize("bytes_beside", [slice(10, None), slice(6)], ids=["<", ">"])
def test_bytes_beside_an_80_bit_float_are_zero(bytes_beside: slice) -> None:
    order = ">" if bytes_beside.start is None else "<"
    numbers = np.arange(6.0).reshape(2, 3).astype(np.dtype(np.longdouble).newbyteorder(order))
    dirty = np.frombuffer(numbers.tobytes(), np.uint8).reshape(6, 16).copy()
    dirty[:, bytes_beside] = 0xAB
    padded_numbers = padded(np.ndarray((2, 3), numbers.dtype, dirty.tobytes()))
    assert np.array_equal(padded_numbers, numbers)
    assert not np.frombuffer(padded_numbers.tobytes(), np.uint8).reshape(6, 16)[:, bytes_beside].any()


@pytest.mark.fuzz
def test_a_short_part_of_the_fuzzing_finds_nothing(pool: Pool) -> None:
    base_files()
    tally = Tally(list(KINDS))
    for number, item, outcome in pool.outcomes((number, subject(0, number)) for number in range(SHORT)):
        tally.add(number, item, outcome)
    assert sum(sum(kind.ends.values()) for kind in tally.kinds.values()) == SHORT
    assert not tally.failures
    # Inputs that are all refused at the door try nothing but the door.
    assert sum(kind.ends.get("0", 0) for kind in tally.kinds.values()) > SHORT / 5


def test_every_option_that_names_an_output_is_aimed_at_every_target() -> None:
    found = set()
    root = get_command(application([]))
    for name in root.list_commands(click.Context(root)):  # type: ignore[attr-defined]
        for parameter in root.get_command(click.Context(root), name).params:  # type: ignore[attr-defined]
            if {"FILE", "DIR"} & set(str(parameter.metavar).replace(".", "|").split("|")):
                found |= set(parameter.opts) & {
                    option for option in parameter.opts if option.startswith("--")
                }
    assert found == OUTPUT_OPTIONS | INPUT_OPTIONS
    assert set(COMMANDS) == OUTPUT_OPTIONS
    assert {"/dev/null", "/dev/full", "."} < {target.typed for target in TARGETS}


def write(path: str, text: str = "x") -> Callable[[], None]:
    return lambda: Path(path).write_text(text)  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("arguments", "act", "unasked"),
    [
        ((), write("new"), True),
        ((), write("foreign"), True),
        ((), lambda: os.remove("foreign"), True),
        ((), lambda: os.chmod("foreign", 0o600), True),
        (("run", "--save-values", "new"), write("new"), False),
        (("run", "--save-values=foreign"), write("foreign"), True),
        (("run", "--save-values", "ours"), write("ours"), False),
        (("run", "--save-values", "link"), write("far"), False),
        (("run", "--save-values", "link"), lambda: os.replace("ours", "link"), True),
        (("run", "--schedule", "new"), write("new"), True),
        (("tune",), write("schedule.yaml"), False),
        (("run", "--cache", "c"), write("c-wal"), False),
        (("run", "--out", "out"), lambda: (os.mkdir("out"), write("out/summary.json")()), False),
        (("run", "--out", "out"), lambda: (os.mkdir("out"), write("out/.pulptrain-1.part")()), True),
    ],
)
def test_what_nobody_asked_for_is_seen(
    arguments: tuple[str, ...],
    act: Callable[[], object],
    unasked: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = tmp_path / "folder"
    things = (Thing("link", "link", "far"), Thing("fifo", "fifo"), Thing("locked/x", "folder"))
    item = Subject(
        "x", arguments, {"foreign": b"mine", "ours": b"old"}, (*things, Thing("locked", "mode", mode=0o555)),
        ours=frozenset({"ours"}),
    )  # fmt: skip
    for _ in range(2):  # a locked folder does not stand in the way of the next input
        place(item, folder)
    monkeypatch.chdir(folder)
    asked = Asked(item, arguments, folder)
    assert not asked.unasked(folder)
    act()
    assert bool(asked.unasked(folder)) is unasked


@pytest.mark.needs_proc
def test_time_is_counted_in_that_of_the_processor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However busy the machine is: the first takes for ever, the second hardly anything, the third waits."""
    monkeypatch.setattr(pools, "CPU_SECONDS", 0.3)
    monkeypatch.setattr(pools, "CLOCK_SECONDS", 600.0)
    monkeypatch.setattr("tools.fuzz.worker.run", lambda arguments: eval(arguments[0]))
    one = Pool(1, tmp_path / "work")
    assert one.outcome(Subject("x", ("any(n < 0 for n in range(10**10))",))).failure == "more than 0 s"
    assert one.outcome(Subject("x", ("__import__('time').sleep(1) or 0",))).failure == ""
    monkeypatch.setattr(pools, "CLOCK_SECONDS", 0.5)
    assert one.outcome(Subject("x", ("__import__('time').sleep(3600) or 0",))).failure == "waits for ever"
    one.end()


def test_a_run_that_goes_on_counts_what_one_run_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def counted(name: str, *counts: str) -> dict[str, object]:
        for count in counts:
            told = [
                "fuzz",
                "--out",
                str(tmp_path / name),
                "--count",
                count,
                "--workers",
                "2",
                "--kinds",
                "kernel,npz",
            ]
            monkeypatch.setattr(sys, "argv", told)
            assert command.main() == 0
        found = json.loads((tmp_path / name / "0" / "progress.json").read_text())
        return {kind: counts["ends"] for kind, counts in found["kinds"].items()}

    whole = counted("whole", "16")
    assert counted("parts", "5", "16") == whole
    assert "npz" in capsys.readouterr().out.splitlines()[-1]
    monkeypatch.setattr(sys, "argv", ["fuzz", "--out", str(tmp_path / "whole"), "--kinds", "soc"])
    with pytest.raises(ValueError, match="other kinds"):
        command.main()


def test_an_input_is_minimised_to_what_fails() -> None:
    item = Subject("x", ("run", "a", "b", "c"), {"f": b"\n".join(str(n).encode() for n in range(100))})
    found = minimised(
        item, lambda tried: b"42" in tried.files["f"].split(b"\n") and "b" in tried.arguments, most=500
    )
    assert found == Subject("x", ("run", "b"), {"f": b"42"})


def test_of_an_archive_the_members_are_left_out_that_do_not_matter() -> None:
    buffer = io.BytesIO()
    np.savez(buffer, a=np.arange(3), b=np.arange(4), c=np.arange(5))

    def fails(tried: Subject) -> bool:
        with np.load(io.BytesIO(tried.files["v.npz"])) as found:
            return "b" in found.files

    found = minimised(Subject("npz", ("run",), {"v.npz": buffer.getvalue()}), fails)
    assert np.load(io.BytesIO(found.files["v.npz"])).files == ["b"]


def test_a_defect_is_named_by_its_place() -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        mutated_text("x", 1 / 0)  # type: ignore[arg-type]
    assert failure_of(caught.value).startswith("ZeroDivisionError in tests/tools/test_fuzz.py")
    assert mutated_text("a: 1", Random(0)) == mutated_text("a: 1", Random(0))
    assert Outcome(0).failure == ""
