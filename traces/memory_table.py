# SPDX-License-Identifier: Apache-2.0
"""The memory map of a run as data: which bytes of which memory hold what, and from when to when."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from configs.errors import InputError
from traces.csv_file import AGAIN, rows_of, whole_number, write_rows

CSV_NAME = "memory.csv"


@dataclass(frozen=True, slots=True)
class MemoryBlock:
    """`size_bytes` at `address` of `level` (`LEVELS`) hold `name` from `start_cycle` to `end_cycle`.

    `kind` is what the bytes are for (`traces.pictures.memory_map.KIND_STYLES`), `staged` says that they are
    the copy in L2 of a tensor whose home is L3. `kept_for` are the backward ops that read it, if it is kept
    for them. `first_op` and `last_op` name the ops of its life. Cycles are
    cluster cycles of the run.
    """

    name: str
    level: str
    address: int
    size_bytes: int
    first_op: str
    last_op: str
    start_cycle: int
    end_cycle: int
    kind: str
    staged: bool = False
    kept_for: str = ""

    @property
    def end_address(self) -> int:
        """First byte after the block."""
        return self.address + self.size_bytes


_NUMBERS = ("address", "size_bytes", "start_cycle", "end_cycle", "staged")
LEVELS = ("l1", "l2", "l3")
COLUMNS = tuple(field.name for field in fields(MemoryBlock))


def write_blocks(blocks: Iterable[MemoryBlock], folder: Path) -> Path:
    """Write ``memory.csv`` into `folder` and return its path. Raises InputError if that is not possible."""
    rows = (
        [int(block.staged) if name == "staged" else getattr(block, name) for name in COLUMNS]
        for block in blocks
    )
    return write_rows(folder / CSV_NAME, COLUMNS, rows)


def read_blocks(folder: Path) -> list[MemoryBlock]:
    """The blocks of a ``memory.csv``. Raises InputError (file:line) for a missing file or a wrong row."""
    path = folder / CSV_NAME
    return [_block(row, where) for where, row in rows_of(path, COLUMNS, "the memory map")]


def _block(row: Mapping[str, str], where: str) -> MemoryBlock:
    if row["level"] not in LEVELS:
        raise InputError(
            f"unknown memory {row['level']!r}; known: {', '.join(LEVELS)}", where=where, cure=AGAIN
        )
    number = {name: whole_number(row[name], name, where) for name in _NUMBERS}
    if number["address"] < 0 or number["size_bytes"] < 0 or number["end_cycle"] < number["start_cycle"]:
        raise InputError(
            "'address' or 'size_bytes' is negative, or 'end_cycle' is before 'start_cycle'",
            where=where,
            cure=AGAIN,
        )
    cells: dict[str, Any] = {**{name: row[name] for name in COLUMNS}, **number}
    return MemoryBlock(**{**cells, "staged": bool(number["staged"])})
