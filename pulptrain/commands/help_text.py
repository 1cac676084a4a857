# SPDX-License-Identifier: Apache-2.0
"""Help that is complete at 80 columns, options by group."""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Sequence
from typing import Any

from typer import BadParameter
from typer.core import TyperCommand, TyperGroup

from configs.errors import InputError
from pulptrain.inputs.option import Option

WIDTH = 80
"""Columns of help texts where the terminal has more, or there is none."""

GROUPS = ("Arguments", "Run", "Output", "Model", "Machine", "Schedule", "Search", "Options")
"""Groups in their order."""


class GroupedCommand(TyperCommand):
    """A command whose options are listed by group, and that says what to write in place of a wrong word."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """As typer, but `InputError` for a word too many, a text in place of a number, and an empty one."""
        given = list(args)
        ctx.allow_extra_args = True
        try:
            left: list[str] = super().parse_args(ctx, args)
        except BadParameter as error:
            _refuse_no_number(error, given)
            raise
        if left and not ctx.resilient_parsing:
            _refuse_extra_words(ctx, left, given)
        for param in () if ctx.resilient_parsing else self.params:
            value = ctx.params.get(str(param.name))
            flag = param.opts[0] if param.param_type_name == "option" else ""
            typed = Option(param.metavar or "", getattr(param, "help", None) or "", "", flag)
            for one in value if isinstance(value, list | tuple) else [value]:
                typed.check(one)
        return left

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write one section per group."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None:
                if param.param_type_name == "argument":
                    record = (param.metavar or record[0], record[1])
                sections.setdefault(_group(param), []).append(record)
        for group in (*GROUPS, *(name for name in sections if name not in GROUPS)):
            if group in sections:
                with formatter.section(group):
                    formatter.write_dl(sections[group], col_max=26)


class WholeGroup(TyperGroup):
    """A group of commands whose one-line helps are never cut."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write every command with the whole first sentence of its help."""
        rows = []
        for name in self.list_commands(ctx):
            command = self.get_command(ctx, name)
            if command is not None and not command.hidden:
                rows.append(
                    (name, " ".join((command.short_help or command.help or "").split("\n\n")[0].split()))
                )
        with formatter.section("Commands"):
            formatter.write_dl(rows)


def _refuse_extra_words(ctx: Any, words: Sequence[str], typed: Sequence[str]) -> None:
    """Raise `InputError`: more words than the command takes, a model and a SoC perhaps, of all `typed`."""
    from configs.library import list_names

    name = ctx.command.name
    given = [str(ctx.params[key]) for key in ("model", "name", "file", "folder") if ctx.params.get(key)]
    socs = [word for word in (*given, *words) if word in list_names("soc")]
    models = [word for word in (*given, *words) if word not in socs]
    cure = f"remove it, or put a value with spaces in quotes; see `pulptrain {name} -h`"
    if "soc" in ctx.params and len(socs) == len(models) == 1:
        others = [word for word in typed if word != socs[0]]
        cure = shlex.join(["pulptrain", str(name), *others, "--soc", socs[0]])
        raise InputError(
            f"{socs[0]!r} is a SoC, not a model, and needs --soc",
            where=f"pulptrain {name}",
            cure=cure,
        )
    plural = "unexpected argument" if len(words) == 1 else "unexpected arguments"
    raise InputError(f"{plural} {' '.join(words)!r}", where=f"pulptrain {name}", cure=cure)


def _refuse_no_number(error: Any, args: Sequence[str]) -> None:
    """Raise `InputError` if an option that takes a number has been given a text; return otherwise."""
    wanted = re.search("valid (integer|number|float)", error.message)
    flags: Sequence[str] = getattr(error.param, "opts", None) or ()
    texts = []
    for word, after in itertools.pairwise([*args, ""]):
        flag, _, text = word.partition("=")
        texts += [text or after] * (flag in flags)
    if wanted is not None and texts:
        kind, example = ("a whole number", "4") if wanted[1] == "integer" else ("a number", "0.01")
        raise InputError(
            f"{texts[-1]!r} is not {kind}", where=flags[0], cure=f"use digits, e.g. {flags[0]} {example}"
        ) from None


def _group(param: Any) -> str:
    if param.param_type_name == "argument":
        return "Arguments"
    return str(getattr(param, "rich_help_panel", None) or "Options")
