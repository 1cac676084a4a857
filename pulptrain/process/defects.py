# SPDX-License-Identifier: Apache-2.0
"""The last resort: an exception nobody expected becomes one line and a report file."""

from __future__ import annotations

import os
import platform
import shlex
import sys
import tempfile
import traceback

DEBUG_VARIABLE = "PULPTRAIN_DEBUG"
"""Set to 1 it shows the traceback instead."""

_PACKAGES = ("pulptrain", "numpy", "numba", "simpy", "typer", "matplotlib", "torch", "pyarrow")


def tell_defect(error: BaseException) -> int:
    """Print one line about an exception that is a defect of pulptrain; returns the exit code.

    Traceback, command line and versions go to a file in the folder for temporary files.
    """
    if os.environ.get(DEBUG_VARIABLE) == "1":
        traceback.print_exception(error)
        return 1
    what = " ".join(f"{type(error).__name__}: {error}".split())[:300]
    print(f"pulptrain: internal defect: {what}; report: {_report(error)}", file=sys.stderr)
    return 1


def _report(error: BaseException) -> str:
    """The path of the report, or why there is none."""
    versions = [f"Python {platform.python_version()}", platform.platform(), *map(_version, _PACKAGES)]
    lines = [shlex.join(sys.argv), "", *versions, "", *traceback.format_exception(error)]
    try:
        number, path = tempfile.mkstemp(prefix="pulptrain-defect-", suffix=".txt")
        with open(number, "w", encoding="utf-8", errors="backslashreplace") as stream:
            stream.write("\n".join(line.rstrip("\n") for line in lines) + "\n")
    except OSError as problem:
        return f"none, cannot write it ({problem.strerror}); {DEBUG_VARIABLE}=1 shows the traceback"
    return path


def _version(package: str) -> str:
    from importlib.metadata import PackageNotFoundError, version  # takes 10 ms

    try:
        return f"{package} {version(package)}"
    except PackageNotFoundError:
        return f"{package} is not installed"
