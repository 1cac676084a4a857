# SPDX-License-Identifier: Apache-2.0
"""Reads the measured cases of a CSV file, strictly: every complaint names ``file:line``."""

from __future__ import annotations

import csv
import gzip
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TextIO, cast

from arch.spec.soc_config import MAX_CORES
from configs.dtypes import DTYPES
from configs.errors import ConfigError, InputError, cure_of
from configs.limits import CSV_BYTES_PER_BYTE, check_file_size, check_text_size
from configs.suggest import check_known
from configs.values import Struct

OF_CYCLES = "use a CSV file of measured cycles"

LONGEST_LINE = 1 << 20
"""Characters of a row."""

LINE_BYTES = 32
"""What a row takes beyond its characters, counted as if it were characters (`CSV_BYTES_PER_BYTE` each)."""

MAX_NUMBER = 2**40
"""Larger numbers in a case are taken for damage: no cycle count or size of a microcontroller reaches it."""


class Column(Struct, frozen=True):
    """A column a KIND needs.

    `least` is the smallest whole number it may hold, None for a column of text, and `most` the largest.
    `choices` are the texts or numbers allowed, () for any. `optional` columns must exist but their cells may
    be empty; `extra` ones may be missing.
    """

    name: str
    least: int | None = None
    choices: tuple[str | int, ...] = ()
    optional: bool = False
    extra: bool = False
    most: int = MAX_NUMBER


MACHINE_COLUMNS = (
    Column("soc"),
    Column("timing"),
    Column("bank_conflicts", 0, (0, 1)),
    Column("fpus"),
)
"""Columns that say which machine a case was measured on."""

KERNEL_COLUMNS = (
    *MACHINE_COLUMNS,
    Column("codegen"),
    Column("kernel"),
    Column("dtype", choices=tuple(dtype.word for dtype in DTYPES)),
)
"""Those and the columns that say which matmul was measured."""

CORES = Column("cores", 1, most=MAX_CORES)

MOST_REPEATED = 1 << 12
"""Tiles of a loop and transfers of a queue: more are not simulated in seconds, and none were measured."""

BUILD = "build"
"""The column of files measured on RTL that says which RTL; part of the name of a row that has no id."""

CYCLES = Column("cycles", 1)
"""The measured cycles a prediction is compared with."""


class Case(Struct, frozen=True):
    """One measured row: typed values of the columns its KIND needs, and all cells as text.

    `where` is ``file:line``.
    """

    id: str
    where: str
    values: Mapping[str, str | int | None]
    cells: Mapping[str, str]

    def text(self, column: str) -> str:
        """The text of a column of the KIND."""
        return str(self.values[column])

    def number(self, column: str) -> int:
        """The whole number of a column of the KIND. Raises InputError where an optional cell is empty."""
        value = self.values[column]
        if not isinstance(value, int):
            raise self.error(f"column '{column}' is empty", "write a whole number")
        return value

    def optional(self, column: str) -> int | None:
        """The whole number of a column that may be missing or empty, None where it is."""
        value = self.values[column]
        return value if isinstance(value, int) else None

    def error(self, message: str, cure: str | None = None) -> InputError:
        """An error that names this row."""
        return InputError(f"row '{self.id}': {message}", where=self.where, cure=cure)

    def not_modelled(self, why: str) -> InputError:
        """The error of a row that nothing predicts; published files have many."""
        return self.error(f"cannot be predicted: {why}", "use --keep-going to predict the other rows")


class Selection(Struct, frozen=True):
    """Keep the rows whose `column` holds one of `values`."""

    column: str
    values: tuple[str, ...]


def parse_selection(text: str) -> Selection:
    """Read ``COLUMN=VALUE[,VALUE]``. Raises InputError."""
    column, separator, values = text.partition("=")
    if not separator or not column.strip():
        raise InputError(
            f"{text!r} is not COLUMN=VALUE",
            where="--where",
            cure="write COLUMN=VALUE, e.g. codegen=asm-xpulp",
        )
    return Selection(column.strip(), tuple(value.strip() for value in values.split(",")))


def read_cases(
    path: str | Path,
    columns: Sequence[Column],
    selections: Sequence[Selection] = (),
    named_by: Sequence[str] = ("id",),
    unreadable: list[ConfigError] | None = None,
) -> tuple[Case, ...]:
    """All rows of a ``.csv`` or ``.csv.gz`` file that pass every selection, in file order.

    The id of a row is what its `named_by` columns hold, and `BUILD` beside them if the file has it. Where a
    list `unreadable` is given, it takes the errors of the rows that are not as their columns want, and the
    others are read.

    Raises InputError for a file that cannot be read or holds no row, ConfigError with ``file:line`` for a
    missing or repeated column, a row of another length, and a cell that is not what its column wants. Every
    row is checked, selected or not.
    """
    path = Path(path)
    rows = _rows(path)
    header_line, header = next(rows, (1, []))
    _check_header(
        header,
        (*named_by, *(column.name for column in columns if not column.extra)),
        selections,
        f"{path}:{header_line}",
    )
    if named_by != ("id",) and BUILD in header:
        named_by = (*named_by, BUILD)
    cases = []
    there: dict[str, dict[str, None]] = {item.column: {} for item in selections}
    for line, cells in rows:
        try:
            case = _case(header, cells, columns, named_by, f"{path}:{line}")
        except ConfigError as error:
            if unreadable is None:
                raise
            unreadable.append(error)
            continue
        for column, values in there.items():
            values[case.cells[column]] = None
        if all(case.cells[item.column] in item.values for item in selections):
            cases.append(case)
    if not cases and not unreadable:
        cure = "; ".join(f"{column} is one of {_some(values)}" for column, values in there.items())
        cure = f"use another --where: {cure}" if selections else "add a row per measurement"
        what = "no row of the file matches" if selections else "the file has no rows of measurements"
        raise InputError(what, where=str(path), cure=cure)
    return tuple(cases)


def _some(values: Iterable[str], most: int = 20) -> str:
    """Different cells of a column, for people."""
    ordered = sorted(values)
    return ", ".join([*(repr(value) for value in ordered[:most]), *(["..."] if ordered[most:] else [])])


def _case(
    header: Sequence[str],
    cells: Sequence[str],
    columns: Sequence[Column],
    named_by: Sequence[str],
    where: str,
) -> Case:
    if len(cells) != len(header):
        raise ConfigError(
            f"the row has {len(cells)} cells, but the header has {len(header)} columns",
            where=where,
            cure="give every row one cell per column",
        )
    named = dict(zip(header, cells, strict=True))
    row = "-".join(named[name] for name in named_by)
    return Case(row, where, {column.name: _value(named, column, where, row) for column in columns}, named)


def _rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """(line number, cells) of every line that is not empty."""
    opener = gzip.open if path.suffix == ".gz" else open
    check_file_size(path, CSV_BYTES_PER_BYTE)
    try:
        with opener(path, "rt", encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(_bounded(cast(TextIO, file), path), strict=True)
            line = 1
            try:
                for cells in reader:
                    if cells:
                        yield line, cells
                    line = reader.line_num + 1
            except csv.Error as error:
                message = f"the file is not valid CSV: {error}"
                raise ConfigError(message, where=f"{path}:{line}", cure=OF_CYCLES) from error
    except FileNotFoundError as error:
        raise InputError("the file does not exist", where=str(path), cure=OF_CYCLES) from error
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        raise InputError(
            f"the file cannot be read: {error}", where=str(path), cure=cure_of(error, OF_CYCLES)
        ) from error


def _bounded(file: TextIO, path: Path) -> Iterator[str]:
    """The lines, as long as there are not too many: a small archive may hold a large file or line."""
    size_bytes = 0
    for number, line in enumerate(iter(lambda: file.readline(LONGEST_LINE + 1), ""), start=1):
        if len(line) > LONGEST_LINE:
            message = f"the line has more than {LONGEST_LINE} characters"
            raise ConfigError(message, where=f"{path}:{number}", cure=OF_CYCLES)
        size_bytes += len(line) + LINE_BYTES
        check_text_size(size_bytes, CSV_BYTES_PER_BYTE, str(path))
        yield line


def _check_header(
    header: Sequence[str], needed: Sequence[str], selections: Sequence[Selection], where: str
) -> None:
    for name in header:
        if header.count(name) > 1:
            raise ConfigError(f"column '{name}' appears twice", where=where, cure="remove one of the two")
    for name in needed:
        if name not in header:
            raise ConfigError(
                f"column '{name}' is missing",
                where=where,
                cure=f"add the column '{name}'; the file has {', '.join(header) or 'none'}",
            )
    for item in selections:
        check_known(
            item.column, header, f"{where.rpartition(':')[0]} has no column '{item.column}'", "--where"
        )


def _value(cells: Mapping[str, str], column: Column, where: str, name: str) -> str | int | None:
    text = cells.get(column.name, "").strip()
    row = f"row '{name}', column '{column.name}'"
    if not text and (column.optional or column.extra):
        return None
    value: str | int = text
    if column.least is not None:
        if not (text.removeprefix("-").isdigit() and text.isascii()):
            message = f"{row}: '{text}' is not a whole number"
            raise ConfigError(message, where=where, cure="write a whole number")
        value = int(text) if len(text) < 20 else MAX_NUMBER + 1
        if not column.least <= value <= column.most:
            message = f"{row}: {text} is not between {column.least} and {column.most}"
            raise ConfigError(message, where=where, cure=f"write {column.least} to {column.most}")
    if column.choices and value not in column.choices:
        choices = ", ".join(str(choice) or "(empty)" for choice in column.choices)
        raise ConfigError(f"{row}: unknown value '{text}'", where=where, cure=f"use one of {choices}")
    return value
