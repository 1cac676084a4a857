# SPDX-License-Identifier: Apache-2.0
"""Whether our dependencies can be installed on other Pythons: ``python -m tools.resolve 3.12 3.13 3.14``.

Asks pip for the versions of constraints.txt, of all extras, without installing anything: wheels only, so that
nothing of another Python is run. That they resolve is all it says.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[1]


def requirements() -> list[str]:
    """Those of the project and of all its extras, once each."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = (each for extra in project["optional-dependencies"].values() for each in extra)
    return list(dict.fromkeys((*project["dependencies"], *extras)))


def _for(lines: list[str], version: str) -> list[str]:
    """The lines that hold for a Python, without their markers: pip asks these of the Python it runs on."""
    found = []
    for line in lines:
        given = Requirement(line)
        if given.marker is None or given.marker.evaluate({"python_version": version}):
            given.marker = None
            found.append(str(given))
    return found


def resolves(version: str) -> str:
    """What pip says against a Python ``3.N``; empty if nothing."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet"]
        command += ["--python-version", version, "--only-binary=:all:", "--target", folder]
        held = Path(folder) / "constraints.txt"
        lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
        held.write_text("\n".join(_for(lines, version)), encoding="utf-8")
        command += ["-c", str(held), *_for(requirements(), version)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else done.stderr


def main() -> int:
    """Ask for the versions named."""
    failed = False
    for version in sys.argv[1:]:
        answer = resolves(version)
        failed = failed or bool(answer)
        print(f"Python {version}: {answer or 'resolves'}", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
