# SPDX-License-Identifier: Apache-2.0
"""The command line: the typer application, and what happens to errors."""

from __future__ import annotations

import functools
import shlex
import sys
from collections.abc import Callable
from errno import EACCES, ELOOP, ENAMETOOLONG
from importlib import import_module
from typing import Any

import typer

from configs.errors import DoesNotFitError, InputError, PulptrainError, cure_of, shortened
from configs.files import no_empty_folder
from configs.limits import DEFAULT_HOST_MEMORY_BYTES, HOST_MEMORY_VARIABLE, size_text
from configs.old_names import new_options
from configs.version import VERSION
from pulptrain.commands.help_text import WIDTH, GroupedCommand, WholeGroup
from pulptrain.process import interrupts
from pulptrain.process.defects import DEBUG_VARIABLE
from traces.files.json_text import json_text

COMMANDS = {
    "run": "run",
    "tune": "tune",
    "explore": "explore",
    "fit": "fit",
    "kernel": "kernel",
    "primitive": "primitive",
    "validate": "validate",
    "convert": "convert",
    "replay": "replay",
    "plot": "plot",
    "why": "why",
    "what-if": "what_if",
    "deploy": "deploy",
    "compare": "compare",
    "barvinn": "barvinn",
    "list": "listing",
    "show": "show",
    "new": "new",
    "example": "example",
}
"""Commands and their modules in `pulptrain.commands`, in the order of the help text."""


ENVIRONMENT = (
    "Environment: PULPTRAIN_CACHE, file of the result cache; PULPTRAIN_NO_CACHE=1, no cache; "
    f"{HOST_MEMORY_VARIABLE}, memory a command may use on this computer (default "
    f"{size_text(DEFAULT_HOST_MEMORY_BYTES)}); {DEBUG_VARIABLE}=1, show tracebacks of internal errors."
)
"""The end of the help text."""

EXIT_CODES = (
    "Exit codes: 0 done, 1 defect, 2 bad input, 3 does not fit in memory, 4 simulated deadlock or race, 5 "
    "difference found (replay, compare), 130 interrupted."
)
"""The same; README and docs/results-and-units.md say it too."""


def application(arguments: list[str]) -> typer.Typer:
    """The typer application for one command line; other commands than the one it names are not imported."""
    app = typer.Typer(
        name="pulptrain",
        help="Simulate one DNN training iteration on a multi-core RISC-V microcontroller: cycles, where "
        "they go, pictures, and what to change.",
        epilog=f"{EXIT_CODES}\n\n{ENVIRONMENT}",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        cls=WholeGroup,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": WIDTH},
    )
    app.callback()(_root)
    named = [argument for argument in arguments[:1] if argument in COMMANDS]
    for name in named or COMMANDS:
        app.command(name, cls=GroupedCommand)(
            _interruptible(import_module(f"pulptrain.commands.{COMMANDS[name]}").command)
        )
    return app


def _interruptible(command: Callable[..., None]) -> Callable[..., None]:
    """The command, saying so if Ctrl-C ends it; typer would say nothing."""

    @functools.wraps(command)
    def call(*arguments: Any, **options: Any) -> None:
        try:
            interrupts.command_begins()
            command(*arguments, **options)
        except KeyboardInterrupt:
            raise typer.Exit(interrupts.say_interrupted()) from None
        finally:
            interrupts.command_ends()

    return call


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"pulptrain {VERSION}")
        raise typer.Exit


def _root(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Print the version."
    ),
) -> None:
    """Event-driven simulator of DNN training on PULP SoCs."""


def _refuse_unknown_command(arguments: list[str]) -> None:
    """Raise `InputError` if the first word is no command."""
    name = next(iter(arguments), "-")
    if not name.startswith("-") and name not in COMMANDS:
        from configs.library import list_names
        from configs.suggest import suggestion

        model = name in list_names("models") or name.endswith((".yaml", ".yml", ".onnx")) or ".py:" in name
        cure = shlex.join(["pulptrain", "run", *arguments]) if model else suggestion(name, COMMANDS)
        raise InputError(f"unknown command {name!r}", cure=cure)


def _of_a_name(error: OSError) -> InputError:
    """What is wrong with a name that somebody typed and the system refuses; another error is raised again."""
    if error.errno not in (ENAMETOOLONG, EACCES, ELOOP):
        raise error
    cure = cure_of(error, "choose a file or folder that you may read or write")
    return InputError(f"{shortened(str(error.filename))!r}: {error.strerror}", cure=cure)


def dispatch(arguments: list[str]) -> int:
    """Run one command line and return its exit code; an error raised on purpose prints its message only.

    With ``--json`` a memory that is too small also prints its report as an object, to standard output.
    """
    try:
        _refuse_unknown_command(arguments)
        arguments = new_options(arguments)
        with no_empty_folder():
            application(arguments)(args=arguments, prog_name="pulptrain")
    except (PulptrainError, OSError) as caught:
        error = caught if isinstance(caught, PulptrainError) else _of_a_name(caught)
        if isinstance(error, DoesNotFitError) and "--json" in arguments:
            print(json_text(error.as_dict()))
        print(f"pulptrain: error: {error}", file=sys.stderr)
        return error.exit_code
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1
    return 0
