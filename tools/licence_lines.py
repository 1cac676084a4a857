# SPDX-License-Identifier: Apache-2.0
"""One licence line per source file: adds what is missing, or says where it is missing.

    python tools/licence_lines.py            add the line to every Python file of ours that lacks it
    python tools/licence_lines.py --check    name the files that lack it; exit code 1 if there are any

The line is the first of the file, or the second behind ``#!``. A file that has it is left as it is.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = (
    *(
        "arch",
        "barvinn",
        "benchmarks",
        "configs",
        "deploy",
        "examples",
        "importers",
        "pulptrain",
        "scheduler",
    ),
    *("tests", "tools", "traces", "trainlib", "truth"),
)
"""Where our sources are; what is built or installed lies elsewhere."""

IDENTIFIER = "Apache-2.0"
"""SPDX identifier of LICENSE, as in pyproject.toml."""

LINE = f"# SPDX-License-Identifier: {IDENTIFIER}"


def sources(root: Path = ROOT) -> list[Path]:
    """Every Python file of ours, in a fixed order."""
    return sorted(path for folder in FOLDERS for path in (root / folder).rglob("*.py"))


def with_line(text: str) -> str:
    """The text of a file with the line, as it is if it has it. Raises `ValueError` for another licence."""
    lines = text.splitlines(keepends=True)
    place = 1 if lines and lines[0].startswith("#!") else 0
    head = lines[place].strip() if len(lines) > place else ""
    if head == LINE:
        return text
    if head.startswith("# SPDX-License-Identifier:"):
        raise ValueError(f"says {head[2:]!r}, not {IDENTIFIER}")
    newline = "\r\n" if lines and lines[0].endswith("\r\n") else "\n"
    return "".join([*lines[:place], LINE + newline, *lines[place:]])


def lacking(paths: Iterable[Path]) -> list[Path]:
    """Those of the files that lack the line."""
    return [path for path in paths if _read(path) != with_line(_read(path))]


def add(paths: Iterable[Path]) -> list[Path]:
    """Add the line where it is missing; returns the files that were changed."""
    changed = lacking(paths)
    for path in changed:
        path.write_bytes(with_line(_read(path)).encode("utf-8"))
    return changed


def _read(path: Path) -> str:
    return path.read_bytes().decode("utf-8")  # newlines as they are


def main(arguments: Sequence[str] | None = None) -> int:
    """Add or check."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="change nothing, name what lacks the line")
    if parser.parse_args(arguments).check:
        missing = lacking(sources())
        for path in missing:
            print(f"{path.relative_to(ROOT)}: no licence line; run python tools/licence_lines.py")
        return 1 if missing else 0
    changed = add(sources())
    print(f"{len(changed)} of {len(sources())} files changed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
