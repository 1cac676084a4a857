"""The memory map of a run as data: which bytes of which memory hold what, and from when to when."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path

from configs.errors import InputError
from configs.files import replacing
from traces.tables import LARGEST_CYCLE, csv_rows

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
    with replacing(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for block in blocks:
            writer.writerow(
                [int(block.staged) if name == "staged" else getattr(block, name) for name in COLUMNS]
            )
    return path


def read_blocks(folder: Path) -> list[MemoryBlock]:
    """The blocks of a ``memory.csv``. Raises InputError (file:line) for a missing file or a wrong row."""
    path = folder / CSV_NAME
    return [_block(row, where) for where, row in csv_rows(path, COLUMNS)]


def _block(row: Mapping[str, str], where: str) -> MemoryBlock:
    try:
        block = MemoryBlock(
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
    spans = (block.address, block.size_bytes), (block.start_cycle, block.end_cycle)
    if not all(0 <= number <= LARGEST_CYCLE for span in spans for number in span):
        raise InputError("a number is out of range", where=where)
    return block
