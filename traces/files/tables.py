# SPDX-License-Identifier: Apache-2.0
"""The trace as a table, one row per slice: CSV, or Parquet where that is asked for."""

from __future__ import annotations

import csv
import importlib.util
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from configs.errors import InputError, install_cure
from configs.files import check_folder, replacing
from configs.limits import require_host_memory
from traces.csv_file import AGAIN, rows_of, whole_number
from traces.events import COMPUTE, STALLS, Slice, Work
from traces.recorder import sorted_slices

_AGAIN = f"{AGAIN}, and use its folder"

PARQUET_NAME = "trace.parquet"
CSV_NAME = "trace.csv"

ROW_BYTES = 4096
"""What a row takes of this computer's memory once it is read."""

ROWS_TOGETHER = 20_000
"""Rows that are objects of Python at a time while a table is written."""

_TEXT = frozenset({"track", "kind", "op", "step", "what"})
COLUMNS = (
    "track",
    "start_cycles",
    "end_cycles",
    "duration_cycles",
    "kind",
    "op",
    "step",
    "tile",
    "what",
    "busy_cycles",
    *(f"{word}_cycles" for word in STALLS),
    "bytes",
    "instructions",
)
"""Columns of the table. A stall slice has its duration in the column of its word, so that on every core track
the sums of `busy_cycles` and of all stall columns are the makespan."""


def write_table(slices: Iterable[Slice], folder: Path, *, parquet: bool = False) -> Path:
    """Write ``trace.csv`` or ``trace.parquet`` into `folder` and return its path; equal slices, equal bytes.

    The file of the other format is removed, so that a folder never holds the traces of two runs. Raises
    InputError if the folder cannot be written to, or if Parquet is asked for without pyarrow.
    """
    if parquet and importlib.util.find_spec("pyarrow") is None:
        raise _needs_pyarrow(folder / PARQUET_NAME)
    path, stale = folder / CSV_NAME, folder / PARQUET_NAME
    if parquet:
        path, stale = stale, path
    ordered = sorted_slices(slices)
    check_folder(str(folder), "--out")
    with replacing(path) as temporary:
        if parquet:
            _write_parquet(ordered, temporary)
        else:
            _write_csv(ordered, temporary)
        if not stale.is_symlink():  # a link is the user's, and stays
            stale.unlink(missing_ok=True)
    return path


def read_table(path: Path) -> tuple[Slice, ...]:
    """Slices of a table written by `write_table`; `path` is the file or the folder that holds it.

    Raises InputError for a missing file, a missing column (file:line for CSV) or a value that is no number.
    """
    file = path
    if path.is_dir():
        file = next((path / name for name in (PARQUET_NAME, CSV_NAME) if (path / name).is_file()), path)
    if not file.is_file():
        raise InputError(
            f"the folder has no trace table ({PARQUET_NAME} or {CSV_NAME})",
            where=str(path),
            cure="use the --out folder of a run",
        )
    rows = _read_parquet(file) if file.suffix == ".parquet" else rows_of(file, COLUMNS, "the trace table")
    return tuple(_slice(row, where) for where, row in rows)


def _row(event: Slice) -> dict[str, str | int]:
    row: dict[str, str | int] = dict.fromkeys(COLUMNS, 0)
    row.update(
        track=event.track,
        start_cycles=event.start_cycles,
        end_cycles=event.end_cycles,
        duration_cycles=event.duration_cycles,
        kind=event.kind,
        op=event.work.op,
        step=event.work.step,
        tile=event.work.tile,
        what=event.work.what,
        busy_cycles=event.busy_cycles,
        bytes=event.bytes,
        instructions=event.instructions,
    )
    for word, cycles in event.stalls if event.kind == COMPUTE else ((event.kind, event.duration_cycles),):
        if f"{word}_cycles" in row:
            row[f"{word}_cycles"] = cycles
    return row


def _slice(row: Mapping[str, Any], where: str) -> Slice:
    number = {name: whole_number(row[name], name, where) for name in COLUMNS if name not in _TEXT}
    if number["start_cycles"] < 0:
        raise InputError("'start_cycles' is negative", where=where, cure=AGAIN)
    if number["end_cycles"] < number["start_cycles"]:
        raise InputError("'end_cycles' is before 'start_cycles'", where=where, cure=AGAIN)
    stalls = tuple((word, number[f"{word}_cycles"]) for word in STALLS if number[f"{word}_cycles"])
    return Slice(
        track=str(row["track"]),
        start_cycles=number["start_cycles"],
        end_cycles=number["end_cycles"],
        kind=str(row["kind"]),
        work=Work(str(row["op"]), str(row["step"]), number["tile"], str(row["what"])),
        stalls=stalls if row["kind"] == COMPUTE else (),
        bytes=number["bytes"],
        instructions=number["instructions"],
    )


def _write_csv(ordered: Iterable[Slice], path: Path) -> None:
    with path.open("w", newline="", encoding="utf-8", errors="backslashreplace") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(_row(event) for event in ordered)


def _write_parquet(ordered: Iterable[Slice], path: Path) -> None:
    import pyarrow as pa  # optional, and slow to import
    import pyarrow.parquet as pq

    fields = [pa.field(name, pa.string() if name in _TEXT else pa.int64()) for name in COLUMNS]
    events = iter(ordered)
    batches = []
    while rows := [_row(event) for event in islice(events, ROWS_TOGETHER)]:
        columns = [pa.array([row[f.name] for row in rows], f.type) for f in fields]
        batches.append(pa.record_batch(columns, schema=pa.schema(fields)))
    table = pa.Table.from_batches(batches, schema=pa.schema(fields)).combine_chunks()
    # An open file: pyarrow knows no path that is not Unicode.
    with path.open("wb") as file:
        pq.write_table(table, file, compression="zstd")


def _read_parquet(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    if importlib.util.find_spec("pyarrow") is None:
        raise _needs_pyarrow(path)
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with path.open("rb") as opened, pq.ParquetFile(opened) as file:
            rows = max(file.metadata.num_rows, 0)
            require_host_memory(rows * ROW_BYTES, f"{rows:,} rows need", where=str(path))
            table = file.read()
        _require_columns(table.column_names, str(path))
        cells = table.select(list(COLUMNS)).to_pylist()
    except InputError:
        raise
    except (pa.ArrowException, OSError, ValueError) as error:  # a text that is no UTF-8 is a ValueError
        raise InputError(f"the file is not a Parquet file: {error}", where=str(path), cure=AGAIN) from error
    for index, row in enumerate(cells):
        yield f"{path}: row {index}", row


def _require_columns(found: Iterable[str], where: str) -> None:
    missing = [name for name in COLUMNS if name not in set(found)]
    if missing:
        raise InputError(f"the trace table has no column {missing[0]!r}", where=where, cure=_AGAIN)


def _needs_pyarrow(path: Path) -> InputError:
    return InputError(
        "reading Parquet needs pyarrow, which is not installed",
        where=str(path),
        cure=f"{install_cure('tables')}, or use the CSV table",
    )
