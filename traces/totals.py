# SPDX-License-Identifier: Apache-2.0
"""Ops of a run added up: by layer, by step, by kernel, and repeated steps in one."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from msgspec.structs import asdict

from configs.values import Struct
from traces.text_table import counted

_Key = TypeVar("_Key")

BY = ("layer", "step", "kernel")
"""What ops may be added up by."""

_REPEATED = re.compile(r"(.*\D)\d+\Z", re.DOTALL)
"""A step that a layer takes again and again: ``FW_STEP12``."""


class Total(Struct, frozen=True):
    """Figures of some ops together; `members` are the names of the ops.

    `stalls` and `causes` are core-cycles by word; a summary of a former version says no causes.
    """

    name: str
    members: tuple[str, ...]
    cycles: int
    macs: int
    tiles: int
    bytes_in: int
    bytes_out: int
    stalls: Mapping[str, int]
    causes: Mapping[str, int]
    joules: float = 0.0
    """0 where no energy is known."""
    tile: str = ""
    kernel: str = ""

    @property
    def ops(self) -> int:
        """How many they are."""
        return len(self.members)


def totals(ops: Iterable[Mapping[str, Any]], by: str) -> list[Total]:
    """The ops of a summary added up by one of `BY`, in order of their first op."""
    key = {"layer": layer_of, "step": base_step, "kernel": kernel_of}[by]
    return _grouped(ops, key)


def collapsed(ops: Sequence[Mapping[str, Any]]) -> list[Total]:
    """Every op, those that repeat a step of their layer in one (``gru.FW_STEP x49``)."""
    return _grouped(ops, _repeated, count=True)


def collapsed_names(names: Iterable[str]) -> dict[str, list[str]]:
    """Names of ops by what is shown of them: ``gru.FW_STEP x49`` of those that repeat a step of a layer."""
    groups: dict[str, list[str]] = {}
    for name in names:
        layer, _, step = name.rpartition(".")
        repeated = _REPEATED.match(step)
        groups.setdefault(f"{layer}.{repeated[1]}" if layer and repeated else name, []).append(name)
    return {
        f"{whole} x{len(members)}" if len(members) > 1 else members[0]: members
        for whole, members in groups.items()
    }


def largest(rows: Iterable[Total], most: int) -> list[Total]:
    """The `most` rows with most cycles, and behind them the others added up, if there are any."""
    ordered = sorted(rows, key=lambda row: -row.cycles)
    first, rest = ordered[:most], [asdict(row) | {"tile": {}, "kernel": ""} for row in ordered[most:]]
    others = counted(len(rest), "other")
    return [*first, *([added(others, rest)] if rest else [])]


def layer_of(op: Mapping[str, Any]) -> str:
    """Name of the layer of an op; parameters and what the builder inserted belong to it."""
    return str(op["name"]).removesuffix(f".{op['step']}").partition(".")[0]


def base_step(op: Mapping[str, Any]) -> str:
    """The step an op is a part of: FW of ``FW_Q`` and ``FW_STEP12``."""
    return str(op["step"]).partition("_")[0]


def kernel_of(op: Mapping[str, Any]) -> str:
    """Its matmul, or its primitive if it has none."""
    return str(op["kernel"] or op["primitive"])


def tile_text(op: Mapping[str, Any]) -> str:
    """Tile of an op in the order of its loops."""
    tile = op.get("tile") or {}
    order = [name for name in op.get("loop_order") or () if name in tile]
    return " ".join(
        f"{name}:{tile[name]}" for name in (*order, *(name for name in tile if name not in order))
    )


def _repeated(op: Mapping[str, Any]) -> str:
    repeated = _REPEATED.match(str(op["step"]))
    return f"{_without_step(op)}.{repeated[1]}" if repeated else op_name(op)


def op_name(op: Mapping[str, Any]) -> str:
    """``layer.step``, whether or not the name carries the step."""
    return f"{_without_step(op)}.{op['step']}" if op["step"] else str(op["name"])


def _without_step(op: Mapping[str, Any]) -> str:
    return str(op["name"]).removesuffix(f".{op['step']}")


def _grouped(
    ops: Iterable[Mapping[str, Any]], key: Callable[[Mapping[str, Any]], str], *, count: bool = False
) -> list[Total]:
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for op in ops:
        groups.setdefault(key(op), []).append(op)
    rows = []
    for name, members in groups.items():
        shown = name
        if count:
            shown = f"{name} x{len(members)}" if len(members) > 1 else op_name(members[0])
        rows.append(added(shown, members))
    return rows


def added(name: str, members: Sequence[Mapping[str, Any]]) -> Total:
    """Ops of a summary in one row."""
    tiles = {tile_text(op) for op in members}
    kernels = {str(op.get("kernel") or "") for op in members}
    return Total(
        name=name,
        members=tuple(str(op["name"]) for op in members),
        cycles=sum(op["cycles"] for op in members),
        macs=sum(op["macs"] for op in members),
        tiles=sum(op["tiles"] for op in members),
        bytes_in=sum(op["bytes_in"] for op in members),
        bytes_out=sum(op["bytes_out"] for op in members),
        stalls=summed(item for op in members for item in op["stalls"].items()),
        causes=summed(item for op in members for item in op.get("causes", {}).items()),
        joules=sum(op.get("joules") or 0.0 for op in members),
        tile=tiles.pop() if len(tiles) == 1 else "",
        kernel=kernels.pop() if len(kernels) == 1 else "",
    )


def summed(amounts: Iterable[tuple[_Key, int]]) -> dict[_Key, int]:
    """The sum of the amounts of each key, in the order in which keys come first."""
    sums: dict[_Key, int] = {}
    for key, amount in amounts:
        sums[key] = sums.get(key, 0) + amount
    return sums
