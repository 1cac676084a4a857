# SPDX-License-Identifier: Apache-2.0
"""Help that is complete at 80 columns, options by group."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand, TyperGroup

WIDTH = 80
"""Columns of help texts where the terminal has more, or there is none."""

GROUPS = ("Arguments", "Run", "Output", "Model", "Machine", "Schedule", "Search", "Options")
"""Groups in their order."""


class GroupedCommand(TyperCommand):
    """A command whose options are listed by group."""

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


def _group(param: Any) -> str:
    if param.param_type_name == "argument":
        return "Arguments"
    return str(getattr(param, "rich_help_panel", None) or "Options")
