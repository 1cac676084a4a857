"""Entry point of the `pulptrain` command: runs the CLI and turns errors into messages and exit codes."""

from __future__ import annotations

import gc
import sys

GARBAGE_THRESHOLD = 200_000
"""Objects made before Python looks for cycles among them (usually 700).

A command builds a large graph of objects that lives to its end; searching it again and again costs a tenth of
the time of a run.
"""


def main() -> None:
    """Run the command line: exit code 0 done, 1 defect, 2 input, 3 does not fit, 4 deadlock, 130 Ctrl-C."""
    gc.set_threshold(GARBAGE_THRESHOLD, 20, 20)
    exit_code = run(sys.argv[1:])
    gc.freeze()  # nor is there anything to find in what the process leaves behind
    sys.exit(exit_code)


def run(arguments: list[str]) -> int:
    """Run one command and return its exit code; messages of errors go to standard error."""
    try:
        from pulptrain.cli import dispatch
    except ImportError as error:
        print(f"pulptrain: {error}", file=sys.stderr)
        return 1
    return dispatch(arguments)


if __name__ == "__main__":
    main()
