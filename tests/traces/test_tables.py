# SPDX-License-Identifier: Apache-2.0
import csv
import importlib.util
import os
from pathlib import Path

import numpy as np
import pytest

from configs.errors import InputError
from shared.synthetic_trace import training_run
from traces.events import STALLS
from traces.files.tables import COLUMNS, read_table, write_table

SMALL = (("fc", "FW", 2, 300, 800, 160), ("fc", "UPD", 1, 200, 640, 640))


@pytest.mark.parametrize("parquet", [True, False])
def test_a_table_read_back_is_the_trace(tmp_path: Path, parquet: bool) -> None:
    slices = training_run(cores=3, ops=SMALL).slices
    path = write_table(reversed(slices), tmp_path, parquet=parquet)
    assert path.name == ("trace.parquet" if parquet else "trace.csv")
    assert read_table(path) == read_table(tmp_path) == slices


def test_a_folder_whose_name_is_no_unicode_takes_a_table(tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(b"\xff")
    slices = training_run(2, SMALL).slices
    assert read_table(write_table(slices, folder)) == slices


@pytest.mark.parametrize("parquet", [True, False])
def test_equal_traces_are_equal_bytes_and_replace_the_older_format(tmp_path: Path, parquet: bool) -> None:
    first = write_table(training_run(2, SMALL), tmp_path / "a", parquet=parquet).read_bytes()
    write_table(training_run(3, SMALL), tmp_path / "b", parquet=not parquet)
    second = write_table(training_run(2, SMALL), tmp_path / "b", parquet=parquet)
    assert second.read_bytes() == first
    assert list((tmp_path / "b").iterdir()) == [second]


def test_a_link_under_the_name_of_the_older_format_stays(tmp_path: Path) -> None:
    link = tmp_path / "trace.parquet"
    link.symlink_to(tmp_path / "elsewhere")
    write_table(training_run(2, SMALL).slices, tmp_path, parquet=False)
    assert link.is_symlink()


def test_columns_carry_units_and_account_for_every_cycle_of_a_core(tmp_path: Path) -> None:
    recorder = training_run(cores=2, ops=SMALL)
    makespan = max(event.end_cycles for event in recorder)
    with write_table(recorder, tmp_path, parquet=False).open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert tuple(rows[0]) == COLUMNS
    for core in ("soc.cluster.core0", "soc.cluster.core1"):
        mine = [row for row in rows if row["track"] == core]
        words = ("busy", *STALLS)
        assert sum(int(row[f"{word}_cycles"]) for row in mine for word in words) == makespan


def test_without_pyarrow_the_table_is_csv_and_parquet_names_the_cure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parquet = write_table(training_run(1, SMALL), tmp_path / "old", parquet=True)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert write_table(training_run(1, SMALL), tmp_path / "new").name == "trace.csv"
    for ask in (lambda: read_table(parquet), lambda: write_table([], tmp_path, parquet=True)):
        with pytest.raises(InputError, match=r"pip install 'pulptrain\[tables\]'"):
            ask()


def test_bad_tables_are_refused_with_their_place(tmp_path: Path) -> None:
    path = write_table(training_run(1, SMALL), tmp_path, parquet=False)
    good = path.read_text()
    path.write_text(good.replace("start_cycles", "begin", 1))
    with pytest.raises(InputError, match=r"trace\.csv:1: the trace table has no column 'start_cycles'"):
        read_table(path)
    lines = good.splitlines()
    lines[2] = lines[2].replace(",", ",soon,", 1)
    path.write_text("\n".join(lines))
    with pytest.raises(InputError, match=r"trace\.csv:3: the row has \d+ fields, but the header has \d+"):
        read_table(path)
    lines[2] = good.splitlines()[2].replace(",", ",soon", 1)
    path.write_text("\n".join(lines))
    with pytest.raises(InputError, match=r"trace\.csv:3: '\w+' is 'soon1000', but must be a whole number"):
        read_table(path)
    fake = tmp_path / "x.parquet"
    fake.write_bytes(b"no")
    with pytest.raises(InputError, match="not a Parquet file"):
        read_table(fake)
    with pytest.raises(InputError, match="the folder has no trace table"):
        read_table(tmp_path / "nowhere")


def test_a_parquet_file_with_text_that_is_no_unicode_is_refused(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = write_table(training_run(1, SMALL), tmp_path, parquet=True)
    table = pq.read_table(path)
    lengths = pa.py_buffer(np.arange(len(table) + 1, dtype=np.int32))
    text = pa.StringArray.from_buffers(len(table), lengths, pa.py_buffer(b"\xbc" * len(table)))
    pq.write_table(table.set_column(table.column_names.index("op"), "op", text), path)
    with pytest.raises(InputError, match="not a Parquet file"):
        read_table(path)


def test_a_folder_that_cannot_be_written_is_an_input_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="cannot write to") as error:
        write_table([], tmp_path / "file" / "out")
    assert error.value.exit_code == 2
