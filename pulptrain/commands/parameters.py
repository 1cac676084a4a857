# SPDX-License-Identifier: Apache-2.0
"""Parameters of commands, made of the options declared in `pulptrain.inputs.option`."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any, TypeVar

import typer

from configs.values import replace
from pulptrain.commands.completion import completes
from pulptrain.inputs.option import ALL, Option, options_of

_F = TypeVar("_F", bound=Callable[..., None])


def takes(kind: type, *, soc: bool = True, only_given: bool = False, **defaults: Any) -> Callable[[_F], _F]:
    """Decorator of a command with ``**options``: it gets the options of a class, and the `soc`.

    `defaults` replace those declared there. With `only_given` options that are not given are left out.
    """
    keys = [*(["soc"] if soc else []), *options_of(kind)]
    declared = {
        key: replace(ALL[key], default=None if only_given else defaults.get(key, ALL[key].default))
        for key in keys
    }

    def decorate(command: _F) -> _F:
        @functools.wraps(command)
        def call(**given: Any) -> None:
            others = {key: value for key, value in given.items() if key not in keys}
            options = {key: tuple(given[key] or ()) if declared[key].many else given[key] for key in keys}
            if only_given:
                options = {key: value for key, value in options.items() if value not in (None, (), False)}
            command(**others, **options)

        signature = inspect.signature(command, eval_str=True)
        declared_here = [item for item in signature.parameters.values() if item.kind is not item.VAR_KEYWORD]
        made = [_parameter(key, declared[key]) for key in keys]
        call.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [item.replace(kind=item.KEYWORD_ONLY) for item in (*declared_here, *made)]
        )
        call.__annotations__ = {}
        return call  # type: ignore[return-value]

    return decorate


def _parameter(key: str, option: Option) -> inspect.Parameter:
    kind: Any = list[str] if option.many else option.kind
    default = None if option.many else option.default
    if option.kind is bool:
        default = bool(default)
    made = typer.Option(
        option.flag,
        metavar=option.metavar or None,
        help=option.help,
        rich_help_panel=option.group,
        show_default=default not in ("", None, False),
        autocompletion=completes(option.completes),
    )
    return inspect.Parameter(
        key,
        inspect.Parameter.KEYWORD_ONLY,
        default=default,
        annotation=Annotated[kind | None if default is None else kind, made],
    )
