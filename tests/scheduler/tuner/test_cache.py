# SPDX-License-Identifier: Apache-2.0
"""The cache of results: content is the key, processes share it, and no death of one of them spoils it."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from configs.errors import InputError
from scheduler.search.cache import ResultCache


def as_it_is(_: str, value: str) -> str:
    return value


WRITER = """
import sys
from pathlib import Path
from scheduler.search.cache import ResultCache

cache = ResultCache(Path(sys.argv[1]))
print("ready", flush=True)
number = 0
while True:
    # Two rows that only make sense together: half a transaction would show.
    cache.write("pairs", {f"a{number}": str(number), f"b{number}": str(-number)})
    print(number, flush=True)
    number += 1
"""


def test_what_is_written_is_read_by_context(tmp_path: Path) -> None:
    cache = ResultCache(tmp_path / "new folder" / "c.sqlite")
    cache.write("one", {"x": "1", "y": "2"})
    cache.write("two", {"x": "3"})
    cache.write("one", {"x": "4"})
    assert cache.read("one", as_it_is) == {"x": "4", "y": "2"}
    assert cache.read("two", as_it_is) == {"x": "3"}
    assert cache.read("three", as_it_is) == {}
    cache.close()
    assert ResultCache(cache.path).read("one", as_it_is) == {"x": "4", "y": "2"}


def test_two_users_of_one_file_see_each_other(tmp_path: Path) -> None:
    one, other = ResultCache(tmp_path / "c"), ResultCache(tmp_path / "c")
    for number in range(20):
        (one if number % 2 else other).write("shared", {str(number): "x"})
    assert (
        set(one.read("shared", as_it_is))
        == set(other.read("shared", as_it_is))
        == {str(number) for number in range(20)}
    )


def test_a_writer_killed_at_any_moment_leaves_whole_transactions(tmp_path: Path) -> None:
    path = tmp_path / "c.sqlite"
    warnings: list[str] = []
    for written, delay_seconds in ((0, 0.0), (1, 0.003), (3, 0.011)):  # after so many, in the middle of one
        process = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True, cwd=Path.cwd()
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        assert [process.stdout.readline() for _ in range(written)] == [f"{n}\n" for n in range(written)]
        time.sleep(delay_seconds)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()
        rows = ResultCache(path, warnings.append).read("pairs", as_it_is)
        firsts = {name[1:] for name in rows if name[0] == "a"}
        assert firsts == {name[1:] for name in rows if name[0] == "b"}
        assert all(rows[f"a{number}"] == str(-int(rows[f"b{number}"])) for number in firsts)
        assert len(firsts) >= written
    assert not warnings


def test_a_file_that_was_never_a_cache_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    notes, database = tmp_path / "notes.txt", tmp_path / "letters.sqlite"
    notes.write_text("buy milk " * 100)
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("CREATE TABLE letters (body TEXT)")
        connection.commit()
    for path in (notes, database):
        before = path.read_bytes()
        with pytest.raises(InputError, match="not a cache of pulptrain"):
            ResultCache(path)
        assert path.read_bytes() == before
    assert sorted(item.name for item in tmp_path.iterdir()) == ["letters.sqlite", "notes.txt"]


def test_in_a_place_of_our_own_whatever_cannot_be_read_is_set_aside(tmp_path: Path) -> None:
    path = tmp_path / "c.sqlite"
    for number in (1, 2):
        path.write_bytes(b"no database at all " * 100)
        warnings: list[str] = []
        cache = ResultCache(path, warnings.append, own_place=True)
        assert cache.read("x", as_it_is) == {}
        cache.write("x", {"k": "v"})
        assert cache.read("x", as_it_is) == {"k": "v"}
        cache.close()
        aside = tmp_path / f"c.sqlite.corrupt-{number}"
        assert aside.read_bytes().startswith(b"no database")
        assert len(warnings) == 1
        assert aside.name in warnings[0]


def test_a_damaged_page_is_found_when_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "c.sqlite"
    cache = ResultCache(path)
    cache.write("x", {f"key {number}": "value" * 20 for number in range(2000)})
    cache.close()
    with path.open("r+b") as stream:
        stream.seek(8192)
        stream.write(b"\xff" * 16384)
    warnings: list[str] = []
    cache = ResultCache(path, warnings.append)
    assert cache.read("x", as_it_is) == {}
    assert warnings
    assert (tmp_path / "c.sqlite.corrupt-1").exists()


def test_a_changed_value_does_not_pass_its_checksum(tmp_path: Path) -> None:
    path = tmp_path / "c.sqlite"
    cache = ResultCache(path)
    cache.write("x", {"k": "1000"})
    cache.close()
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE results_1 SET value = '999'")
    connection.close()
    warnings: list[str] = []
    assert ResultCache(path, warnings.append).read("x", as_it_is) == {}
    assert "checksum" in warnings[0]


def test_the_process_that_finds_the_damage_second_keeps_the_new_file(tmp_path: Path) -> None:
    path = tmp_path / "c.sqlite"
    first = ResultCache(path)
    first.write("x", {"k": "1"})
    first.close()
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE results_1 SET value = '2'")
    connection.close()
    one, other = (ResultCache(path, lambda message: None) for _ in range(2))
    assert one.read("x", as_it_is) == {}
    one.write("x", {"k": "3"})
    assert other.read("x", as_it_is) == {"k": "3"}
    assert (
        sorted(item.name for item in tmp_path.iterdir() if "corrupt" in item.name)[0] == "c.sqlite.corrupt-1"
    )
    assert not (tmp_path / "c.sqlite.corrupt-2").exists()


def test_a_place_that_cannot_hold_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="--no-cache"):
        ResultCache(tmp_path / "file" / "c.sqlite")
    with pytest.raises(InputError, match="--no-cache"):
        ResultCache(tmp_path)


@pytest.mark.parametrize("suffix", ["-wal", "-journal", "-shm"])
def test_what_others_have_where_sqlite_keeps_a_part_of_a_cache_is_left_as_it_is(
    suffix: str, tmp_path: Path
) -> None:
    path, beside, notes = tmp_path / "c", tmp_path / f"c{suffix}", tmp_path / "notes.txt"
    notes.write_text("notes")
    for make in (lambda: beside.write_text("notes"), lambda: beside.symlink_to(notes), beside.mkdir):
        make()
        with pytest.raises(InputError, match="is not part of a cache"):
            ResultCache(path)
        assert not path.exists()
        assert beside.is_dir() or beside.read_text() == "notes"
        beside.rmdir() if beside.is_dir() else beside.unlink()
    beside.write_bytes(bytes(100))  # as SQLite leaves it when it is killed while it begins
    ResultCache(path).close()


def test_a_cache_that_was_killed_before_it_was_written_is_begun_again(tmp_path: Path) -> None:
    path = tmp_path / "c"
    writing = ResultCache(path)
    writing.write("a", {"b": "c"})
    names = {item.name: item.read_bytes() for item in tmp_path.iterdir()}
    writing.close()
    assert set(names) == {"c", "c-wal", "c-shm"}
    for name, content in names.items():
        (tmp_path / name).write_bytes(content if name != "c" else b"")
    ResultCache(path).close()
    assert sqlite3.connect(path).execute("PRAGMA integrity_check").fetchone() == ("ok",)
