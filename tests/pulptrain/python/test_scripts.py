# SPDX-License-Identifier: Apache-2.0
"""Scripts of users that search with workers, without a main guard and with one: nothing is run twice."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from shared.paths import TESTS

THREADED = """import threading, time
import pulptrain as pt
threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
print("script begins", flush=True)
"""
SEARCH = 'pt.tune("simple-mlp", tilings=1, steps="fw", workers=2, cache=False)'
GUARDED = f"{THREADED}def main():\n    print({SEARCH}.model)\nif __name__ == '__main__':\n    main()\n"


def carried_out(script: Path) -> tuple[int, str, str]:
    """Exit code, standard output and standard error."""
    done = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, cwd=script.parent, timeout=300, check=False
    )
    return done.returncode, done.stdout, done.stderr


def test_a_script_that_workers_would_run_again_has_one_worker_and_a_warning(tmp_path: Path) -> None:
    """A thread that somebody has started forbids copies of the process."""
    script = tmp_path / "mine.py"
    script.write_text(f"{THREADED}print({SEARCH}.model)\n")
    code, out, said = carried_out(script)
    assert (code, out.split("\n")) == (0, ["script begins", "simple-mlp", ""])
    assert said.startswith(f"{script}:5: UserWarning: one worker: more workers would run this script again")


@pytest.mark.slow
def test_a_guarded_script_has_all_its_workers(tmp_path: Path) -> None:
    """The line before its search is run in every worker, the search in none."""
    script = tmp_path / "mine.py"
    script.write_text(GUARDED)
    code, out, said = carried_out(script)
    assert (code, out.count("simple-mlp"), said) == (0, 1, "")
    assert out.count("script begins") > 1


@pytest.mark.slow
@pytest.mark.needs_torch
def test_a_module_that_was_captured_is_tuned_without_a_guard_by_all_workers(tmp_path: Path) -> None:
    script = tmp_path / "no_main_guard.py"
    script.write_text((TESTS / "data" / "no_main_guard.py").read_text())
    code, out, said = carried_out(script)
    assert (code, out.count("script begins"), out.count("Sequential on gap9"), said) == (0, 1, 1, "")
