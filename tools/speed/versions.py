# SPDX-License-Identifier: Apache-2.0
"""A former version of the project beside this one, both with the interpreter and the libraries at hand."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from configs.errors import InputError

ROOT = Path(__file__).resolve().parents[2]

HAS_COMMAND = """
import sys, pulptrain.__main__ as command
sys.exit(None if command.__file__.startswith(sys.argv[1]) else "it has no command pulptrain")
"""
"""What a revision has no module for is found where this version is installed: that must not be measured."""


@dataclass(frozen=True)
class Version:
    """Sources in `tree`, and `home` for what they keep: compiled code, and prices of runs."""

    name: str
    tree: Path
    home: Path

    def command(self, *arguments: str) -> list[str]:
        """The command line of `pulptrain` with these arguments."""
        return [sys.executable, "-m", "pulptrain", *arguments]

    def environment(self, kept: Path | None = None) -> Mapping[str, str]:
        """Of a command of this version; `kept` is the file of its plans and prices."""
        mine = {"PYTHONPATH": str(self.tree), "XDG_CACHE_HOME": str(self.home)}
        # Compiled code is kept, of Python and of Numba, and Numba's where every version looks for it.
        mine["PYTHONPYCACHEPREFIX"] = str(self.home / "python")
        inherited = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        return {**inherited, **mine, **({} if kept is None else {"PULPTRAIN_CACHE": str(kept)})}


def present(folder: Path) -> Version:
    """The sources this module is of."""
    return Version("this", ROOT, folder / "home-this")


def former(revision: str, folder: Path) -> Version:
    """The sources of a revision, unpacked below `folder`.

    Raises InputError for one that does not exist, or that does not start with the libraries at hand.
    """
    git = ["git", "-C", str(ROOT)]
    known = subprocess.run(
        [*git, "rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}"], capture_output=True, check=False
    )
    if known.returncode:
        raise InputError(f"there is no revision {revision!r}", cure="one of `git log --oneline`")
    commit = known.stdout.decode().strip()
    tree = folder / commit[:10]
    packed = subprocess.run([*git, "archive", commit], capture_output=True, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        archive.extractall(tree, filter="data")
    version = Version(commit[:10], tree, folder / "home-former")
    for command in ([sys.executable, "-c", HAS_COMMAND, str(tree)], version.command("--version")):
        tried = subprocess.run(
            command, env=version.environment(), cwd=folder, capture_output=True, text=True, check=False
        )
        if tried.returncode:
            last = (tried.stderr.strip().splitlines() or ["no word of why"])[-1]
            raise InputError(
                f"{version.name} does not start with the libraries of this environment: {last}",
                cure="a later revision, or an environment with what it needs",
            )
    return version
