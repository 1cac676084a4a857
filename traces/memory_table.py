"""The memory map of a run as data: which bytes of which memory hold what, and from when to when."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path

from configs.errors import InputError

CSV_NAME = "memory.csv"


@dataclass(frozen=True, slots=True)
class MemoryBlock:
    """`size_bytes` at `address` of `level` (l1, l2, l3) hold `name` from `start_cycle` to `end_cycle`.

    `kind` is what the bytes are for (`traces.memory_map.KIND_STYLES`), `staged` says that they are the copy
    in L2 of a tensor whose home is L3. `first_op` and `last_op` name the ops of its life. Cycles are cluster
    cycles of the run.
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

    @property
    def end_address(self) -> int:
        """First byte after the block."""
        return self.address + self.size_bytes


COLUMNS = tuple(field.name for field in fields(MemoryBlock))


def write_blocks(blocks: Iterable[MemoryBlock], folder: Path) -> Path:
    """Write ``memory.csv`` into `folder` and return its path. Raises InputError if that is not possible."""
    path = folder / CSV_NAME
    try:
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(COLUMNS)
            for block in blocks:
                writer.writerow(
                    [int(block.staged) if name == "staged" else getattr(block, name) for name in COLUMNS]
                )
    except OSError as error:
        raise InputError(
            f"the memory map cannot be written: {error.strerror or error}",
            where=str(path),
            cure="name a folder you may write to with --out",
        ) from error
    return path


def read_blocks(folder: Path) -> list[MemoryBlock]:
    """The blocks of a ``memory.csv``. Raises InputError (file:line) for a missing file or a wrong row."""
    path = folder / CSV_NAME
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            missing = sorted(set(COLUMNS) - set(reader.fieldnames or ()))
            if missing:
                raise InputError(
                    f"no column {missing[0]!r}", where=f"{path}:1", cure="run the simulation again"
                )
            return [_block(row, f"{path}:{reader.line_num}") for row in reader]
    except OSError as error:
        raise InputError(
            f"cannot read the memory map: {error.strerror or error}",
            where=str(path),
            cure="a folder written by `pulptrain run MODEL --out DIR`",
        ) from error


def _block(row: dict[str, str], where: str) -> MemoryBlock:
    try:
        return MemoryBlock(
            name=row["name"],
            level=row["level"],
            address=int(row["address"]),
            size_bytes=int(row["size_bytes"]),
            first_op=row["first_op"],
            last_op=row["last_op"],
            start_cycle=int(row["start_cycle"]),
            end_cycle=int(row["end_cycle"]),
            kind=row["kind"],
            staged=bool(int(row["staged"])),
        )
    except (TypeError, ValueError) as error:
        raise InputError(f"not a whole number: {error}", where=where) from error
