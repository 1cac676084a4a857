# SPDX-License-Identifier: Apache-2.0
"""Programs as text, one action a line, for `run --dump-program`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from arch.spec.program import Action, Compute, DmaStart, DmaWait, Program, Release, UdmaStart, UdmaWait

if TYPE_CHECKING:
    from pulptrain.running.machine import Prepared


def print_program(prepared: Prepared, *, as_json: bool) -> None:
    """Print the programs of an update of a model."""
    from traces.files.json_text import json_text

    programs = [each.program for each in (prepared.schedule, prepared.update) if each is not None]
    if as_json:
        print(json_text({"programs": [program_objects(program) for program in programs]}))
    else:
        print("\n".join(line for program in programs for line in program_lines(program)))


def program_lines(program: Program) -> list[str]:
    """The actions in program order: number, kind, op and step, tile, what is moved or computed."""
    return [_line(action) for action in program.actions]


def program_objects(program: Program) -> list[dict[str, Any]]:
    """The same as objects, for ``--json``; `tile` is null for an action of a whole op."""
    return [
        {
            "action": action.id,
            "kind": type(action).__name__,
            "op": f"{action.work.op}.{action.work.step}",
            "tile": action.work.tile if action.work.tile >= 0 else None,
            "detail": _detail(action),
        }
        for action in program.actions
    ]


def _line(action: Action) -> str:
    work = action.work
    tile = f"tile {work.tile}" if work.tile >= 0 else ""
    kind = type(action).__name__
    return f"{action.id:5d}  {kind:8s}  {work.op + '.' + work.step:16s} {tile:9s} {_detail(action)}".rstrip()


def _detail(action: Action) -> str:
    if isinstance(action, DmaStart):
        first = action.commands[0]
        size_bytes = sum(command.size_bytes for command in action.commands)
        lines = sum(command.lines for command in action.commands)
        external = f"{first.external_level} 0x{first.external_address:06x}"
        inner = f"l1 0x{first.l1_address:05x}"
        way = f"{external} -> {inner}" if first.to_l1 else f"{inner} -> {external}"
        return f"{action.work.what}: {way}, {size_bytes} B, lines {lines}, commands {len(action.commands)}"
    if isinstance(action, UdmaStart):
        command = action.commands[0]
        near, far = f"l2 0x{command.l2_address:06x}", f"l3 0x{command.l3_address:06x}"
        way = f"{far} -> {near}" if command.to_l2 else f"{near} -> {far}"
        return f"{action.work.what}: {way}, {sum(one.size_bytes for one in action.commands)} B"
    if isinstance(action, DmaWait | UdmaWait):
        return f"{action.work.what}: until action {action.transfer} has ended"
    if isinstance(action, Compute):
        team = f"{len(action.team.cores)} cores" if action.fork else "master alone"
        effect = action.effect
        reads = " ".join(f"{place.name}@0x{place.address:05x}" for place in effect.reads) if effect else ""
        writes = " ".join(f"{place.name}@0x{place.address:05x}" for place in effect.writes) if effect else ""
        return f"{action.work.what} on {team}: {reads} -> {writes}"
    if isinstance(action, Release):
        return ", ".join(place.name for place in action.places)
    return ""
