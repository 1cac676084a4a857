# SPDX-License-Identifier: Apache-2.0
"""Entry point of the `pulptrain` command: runs the CLI and turns errors into messages and exit codes."""

from __future__ import annotations

import errno
import os
import sys

from configs import collector
from pulptrain.process import interrupts, standard_output

ENVIRONMENT = {"OMP_NUM_THREADS": "1", "PYDANTIC_DISABLE_PLUGINS": "__all__"}
"""For libraries, unless the user says otherwise, before any is imported.

NumPy and PyTorch compute small arrays here: threads that wait for the next one take as much time as the
whole run, and sums would depend on their number. Pydantic looks for plugins in all that is installed.
"""

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EMFILE, errno.ENFILE)
"""Errors of the system that say nothing about pulptrain: disk full, read-only, too many open files."""


def main() -> None:
    """Run the command line and end with its exit code (`pulptrain.cli.EXIT_CODES`)."""
    collector.rarely()
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    standard_output.install()
    exit_code = run(sys.argv[1:])
    if exit_code != interrupts.EXIT_CODE:
        interrupts.all_is_done()
    collector.rarely()  # nor is there anything to find in what the process leaves behind
    sys.exit(exit_code)


def run(arguments: list[str]) -> int:
    """Run one command and return its exit code; messages of errors go to standard error."""
    try:
        return _run(arguments)
    except standard_output.ReaderGoneError:
        return 0
    except KeyboardInterrupt:
        return interrupts.say_interrupted()
    except Exception as error:
        return _tell(error)


def _tell(error: Exception) -> int:
    """Print one line about an error that no command has dealt with; returns the exit code."""
    if interrupts.was_interrupted():
        # In the middle of native code a KeyboardInterrupt may come out as something else.
        return interrupts.say_interrupted()
    if isinstance(error, MemoryError):
        print("pulptrain: error: not enough memory on this computer", file=sys.stderr)
        return 2
    if isinstance(error, standard_output.OutputLostError):
        print(f"pulptrain: error: {error}", file=sys.stderr)
        return 2
    if isinstance(error, OSError) and error.errno in NO_ROOM:
        print(f"pulptrain: error: {error.strerror}", file=sys.stderr)
        return 2
    from pulptrain.process.defects import tell_defect

    return tell_defect(error)


def _run(arguments: list[str]) -> int:
    try:
        from pulptrain.cli import dispatch
    except ImportError as error:
        print(f"pulptrain: {error}", file=sys.stderr)
        return 1
    exit_code = dispatch(arguments)
    sys.stdout.flush()
    if exit_code == 0 and interrupts.was_interrupted():
        # It was lost on its way: some library has taken it for a failure of its own.
        return interrupts.say_interrupted()
    return exit_code


if __name__ == "__main__":
    main()
