# SPDX-License-Identifier: Apache-2.0
"""Tables of a run as CSV: written, and read strictly: every complaint names ``file:line``."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from configs.errors import InputError
from configs.files import replacing
from configs.limits import CSV_BYTES_PER_BYTE, check_file_size

AGAIN = "run `pulptrain run MODEL --out DIR` again"

LARGEST = 2**53
"""Of every number in a table: cycles and bytes that can be drawn exactly."""


def write_rows(path: Path, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> Path:
    """Write a table, whole or not at all, and return its path. Raises InputError if that is not possible."""
    with (
        replacing(path) as temporary,
        temporary.open("w", newline="", encoding="utf-8", errors="backslashreplace") as stream,
    ):
        csv.writer(stream, lineterminator="\n").writerows([columns, *rows])
    return path


def rows_of(path: Path, columns: Sequence[str], what: str) -> Iterator[tuple[str, Mapping[str, str]]]:
    """(``file:line``, cells by column) of every row of the file, which holds `what`.

    Raises InputError for a file that cannot be read, is too large or no UTF-8 text, for a column that is
    missing, a row of another length, and a cell no table of ours has (over 131,072 characters).
    """
    check_file_size(path, CSV_BYTES_PER_BYTE)
    line = 1
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file, strict=True)
            missing = [name for name in columns if name not in (reader.fieldnames or ())]
            if missing:
                raise InputError(f"{what} has no column {missing[0]!r}", where=f"{path}:1", cure=AGAIN)
            for row in reader:
                line = reader.line_num
                if None in row or None in row.values():
                    fields = [cell for cell in row.values() if cell is not None]
                    extra = len(row.get(None, ())) - 1 if None in row else 0
                    raise InputError(
                        f"the row has {len(fields) + extra} fields, but the header has "
                        f"{len(reader.fieldnames or ())}",
                        where=f"{path}:{line}",
                        cure=AGAIN,
                    )
                yield f"{path}:{line}", row
                line += 1
    except UnicodeDecodeError as error:
        raise InputError(f"{what} is not UTF-8 text: {error.reason}", where=str(path), cure=AGAIN) from None
    except csv.Error as error:
        raise InputError(f"{what} is not valid CSV: {error}", where=f"{path}:{line}", cure=AGAIN) from None
    except OSError as error:
        raise InputError(
            f"cannot read {what}: {error.strerror or error}",
            where=str(path),
            cure="use a run folder (`pulptrain run MODEL --out DIR`)",
        ) from error


def whole_number(given: object, column: str, where: str) -> int:
    """The number a cell means. Raises InputError for anything but a whole number that can be drawn."""
    try:
        number = int(str(given)) if len(str(given)) < 20 else LARGEST + 1
    except ValueError:
        raise InputError(
            f"'{column}' is {str(given)[:60]!r}, but must be a whole number", where=where, cure=AGAIN
        ) from None
    if abs(number) > LARGEST:
        raise InputError(f"'{column}' is {str(given)[:60]}, above {LARGEST}", where=where, cure=AGAIN)
    return number
