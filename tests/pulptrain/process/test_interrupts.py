# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C and SIGKILL at random moments: exit code 130 in one line, and files that are whole."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from pulptrain.process import interrupts
from scheduler.tuner.schedule_file import load_schedule
from shared.tuner_case import SMALL_MODEL

SIMPLE = ["--cores", "2", "--l1", "16KiB"]
TUNE = ["tune", "small.yaml", *SIMPLE, "--tilings", "1", "--workers", "2", "--quiet"]
RUN = ["run", "digits-cnn", "--iterations", "1000000", "--no-cache", "--quiet"]

WHOLE_TUNING_SECONDS = 3.0
"""A little more than tuning takes on a busy machine: some signals come too late."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "small.yaml").write_text(SMALL_MODEL)
    return tmp_path


def start(arguments: list[str], folder: Path) -> subprocess.Popen[str]:
    """Start the command as the leader of a group of its own, as a shell does."""
    return subprocess.Popen(
        [sys.executable, "-m", "pulptrain", *arguments],
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def begun(process: subprocess.Popen[str]) -> bool:
    """Whether our first line has run: whoever is interrupted before it is Python, not pulptrain.

    From then on the process has a handler for SIGINT that is not Python's own, which one cannot see; but by
    the time it has NumPy it is certainly past its first lines.
    """
    try:
        return "numpy" in Path(f"/proc/{process.pid}/maps").read_text()
    except OSError:
        return False


def wait_until_begun(process: subprocess.Popen[str]) -> None:
    while process.poll() is None and not begun(process):
        time.sleep(0.005)


def group_is_gone(group: int) -> bool:
    """Whether all processes of a group end, a busy machine taking its time; nobody may wait for zombies."""
    for _ in range(3000):
        found = subprocess.run(["ps", "-A", "-o", "pgid=,stat="], capture_output=True, text=True, check=True)
        rows = [line.split() for line in found.stdout.splitlines()]
        if not any(int(pgid) == group and not state.startswith("Z") for pgid, state in rows):
            return True
        time.sleep(0.02)
    return False


@pytest.mark.needs_proc
@pytest.mark.parametrize(
    "seeds", [range(2), pytest.param(range(40), marks=pytest.mark.slow)], ids=["two", "40"]
)
def test_ctrl_c_at_any_moment_is_one_line_and_leaves_no_process(seeds: Sequence[int], folder: Path) -> None:
    for seed in seeds:
        draw = random.Random(seed)
        arguments = draw.choice((RUN, [*TUNE, "--no-cache", "--strategy", "exhaustive"]))
        process = start(arguments, folder)
        wait_until_begun(process)
        time.sleep(draw.choice((0, draw.uniform(0, 0.5), draw.uniform(0, 3))) if len(seeds) > 3 else seed / 3)
        sent = process.poll() is None
        # A terminal interrupts the workers too; `kill` does not.
        if sent:
            (os.killpg if draw.random() < 0.7 else os.kill)(process.pid, signal.SIGINT)
        error = process.communicate(timeout=600)[1]
        assert process.returncode in ((130,) if arguments is RUN else (130, 0)), (seed, error)
        assert "Traceback" not in error, seed
        assert error.count("\n") == (process.returncode == 130), (seed, error)
        assert group_is_gone(process.pid), seed
        schedule = folder / "schedule.yaml"
        if schedule.exists():
            load_schedule(schedule)
            schedule.unlink()
        assert not list(folder.glob("*.part")), seed


@pytest.mark.parametrize(
    "seeds",
    [pytest.param(range(1), marks=pytest.mark.sweep), pytest.param(range(100), marks=pytest.mark.slow)],
    ids=["one", "100"],
)
def test_killed_at_any_moment_and_begun_again_it_writes_the_same_file(
    seeds: Sequence[int], folder: Path
) -> None:
    def whole(cache: str, schedule: str) -> bytes:
        process = start([*TUNE, "--cache", cache, "--save-schedule", schedule], folder)
        error = process.communicate()[1]
        assert (process.returncode, error) == (0, "")
        return (folder / schedule).read_bytes()

    expected = whole("sound", "expected.yaml")
    for seed in seeds:
        process = start([*TUNE, "--cache", f"c{seed}", "--save-schedule", f"s{seed}.yaml"], folder)
        time.sleep(random.Random(seed).uniform(0, WHOLE_TUNING_SECONDS))
        process.kill()
        process.communicate()
        assert group_is_gone(process.pid), seed
        assert whole(f"c{seed}", f"s{seed}.yaml") == expected, seed
        assert not list(folder.glob("*.corrupt-*")), seed


def test_a_ctrl_c_in_the_middle_of_an_import_waits_for_its_end(tmp_path: Path) -> None:
    """The module swallows every exception; a `KeyboardInterrupt` raised in it would be lost."""
    (tmp_path / "slow.py").write_text(
        "import os, signal, time\n"
        "try:\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    time.sleep(0.1)\n"
        "    print('imported', flush=True)\n"
        "except BaseException:\n"
        "    print('lost', flush=True)\n"
    )
    assert interrupted_while("import slow", tmp_path) == "imported\ninterrupted True\n"


def test_a_ctrl_c_that_a_library_swallows_comes_again(tmp_path: Path) -> None:
    (tmp_path / "library.py").write_text(
        "import os, signal, time\n"
        "def call():\n"
        "    try:\n"
        "        os.kill(os.getpid(), signal.SIGINT)\n"
        "        time.sleep(600)\n"
        "    except BaseException:\n"
        "        print('swallowed', flush=True)\n"
    )
    assert interrupted_while("library.call()", tmp_path) == "swallowed\ninterrupted True\n"


def interrupted_while(statement: str, folder: Path) -> str:
    """What a command prints that executes a statement, with the modules in a folder, and then waits."""
    setting = "import library\n" if "library" in statement else ""
    program = (
        "import time\n"
        f"{setting}"
        "from pulptrain import interrupts\n"
        "interrupts.begin()\n"
        "interrupts.command_begins()\n"
        "try:\n"
        f"    {statement}\n"
        # Not one long sleep: a signal that comes just before one is looked at after it.
        "    for _ in range(6000):\n"
        "        time.sleep(0.1)\n"
        "except KeyboardInterrupt:\n"
        "    interrupts.command_ends()\n"
        "    print('interrupted', interrupts.was_interrupted())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{Path.cwd()}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    return done.stdout


def test_who_only_imports_pulptrain_keeps_their_own_ctrl_c(monkeypatch: pytest.MonkeyPatch) -> None:
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    for started, command in (
        (["/usr/bin/pulptrain", "run"], True),
        (["C:/x/pulptrain.exe"], True),
        (["notebook.py"], False),
        (["-c"], False),
        ([""], False),
    ):
        monkeypatch.setattr(sys, "argv", started)
        assert interrupts.is_command() is command
    for module, command in (("pulptrain", True), ("pytest", False)):
        monkeypatch.setattr(sys, "argv", ["-m", "run"])
        monkeypatch.setattr(sys, "orig_argv", ["python", "-I", "-m", module, "run"])
        assert interrupts.is_command() is command
