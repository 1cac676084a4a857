# SPDX-License-Identifier: Apache-2.0
"""Commands that go on from the one that was typed, with its model and options; printed they end a line."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Mapping, Sequence
from importlib import import_module
from typing import Any

import typer

from pulptrain.commands.options import OUTPUT
from pulptrain.inputs.option import MACHINE, MODEL, SCHEDULE

CARRIED = ("--variant", "--seed", "--accumulator")
"""Options that change what is simulated, beside those of the groups machine, model and schedule."""

AFTER_RUN = ("run", "tune", "what-if")
"""What the report of a run may advise."""


def next_command(
    context: typer.Context,
    name: str,
    model: object = None,
    *,
    add: Mapping[str, object] | None = None,
    drop: Collection[str] = (),
    carry: Collection[str] = CARRIED,
) -> str:
    """Command `name` with the model that was typed, and the options typed that it takes, too.

    `model` is one in the place of that. Options to `add` (flag: value) replace those that were typed, `drop`
    are flags or groups of help texts that are left out, `carry` flags of other groups that are not. A command
    that chooses a schedule is told none.
    """
    add = add or {}
    words = ["pulptrain", name, str(model if model is not None else context.params["model"])]
    taken = {option.opts[0]: option for option in _command(name).params}
    for option in context.command.params:
        flag, group = option.opts[0], _group(option)
        is_carried = flag in carry or group in (MACHINE, MODEL, SCHEDULE)
        if not is_carried or flag not in taken or flag in add or flag in drop or group in drop:
            continue
        if option.name is None or _group(taken[flag]) == OUTPUT:
            continue
        value = context.params[option.name]
        if isinstance(value, list | tuple) and not taken[flag].multiple:
            value = [one for one in value if "=" not in one]  # what is about single ops is chosen there
        words += _words(flag, value, taken[flag].default)
    for flag, value in add.items():
        words += _words(flag, value)
    return shlex.join(words)


def commands_after_run(context: typer.Context, but: Collection[str] = (), **more: Any) -> dict[str, str]:
    """What may be advised after a run, by name: `AFTER_RUN` `but` some; `more` is that of `next_command`.

    A command that does not know an option of the machine that was typed would be of another machine.
    """
    typed = {
        option.opts[0]
        for option in context.command.params
        if _group(option) == MACHINE
        and _words(option.opts[0], context.params.get(str(option.name)), option.default)
    }
    names = [
        name
        for name in AFTER_RUN
        if name not in but and typed <= {option.opts[0] for option in _command(name).params}
    ]
    return {name: next_command(context, name, **more) for name in names}


def _group(option: Any) -> str | None:
    return getattr(option, "rich_help_panel", None)


def _words(flag: str, value: Any, default: Any = None) -> Sequence[str]:
    """An option as it is typed; nothing of one that is not given or that is the default."""
    if value is None or value is False or value == default:
        return ()
    if value is True:
        return (flag,)
    values = value if isinstance(value, list | tuple) else [value]
    return [word for one in values if one != "" for word in (flag, str(one))]


def _command(name: str) -> Any:
    """A command as typer has made it."""
    app = typer.Typer()
    app.command(name)(import_module(f"pulptrain.commands.{name.replace('-', '_')}").command)
    return typer.main.get_command(app)
