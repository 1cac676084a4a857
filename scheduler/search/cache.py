# SPDX-License-Identifier: Apache-2.0
"""Results that outlive the process: one SQLite file, keyed by content, shared by any number of processes."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import stat
import sys
import zlib
from collections.abc import Callable, Iterable, Mapping
from enum import Enum, auto
from itertools import count
from pathlib import Path
from typing import TypeVar

import platformdirs

from configs.errors import InputError
from configs.files import regular_target, start_of

_T = TypeVar("_T")

FORMAT = 1
"""Number of the layout of the file: SQLite's ``user_version``, and in the name of the table."""

_APPLICATION_ID = 0x00505401
"""SQLite's ``application_id`` of a cache of ours; its bytes are no text."""

_ANOTHER_FILE = "use another --cache FILE, or --no-cache"

_BUSY_SECONDS = 60
"""How long a transaction waits for that of another process."""

_SCHEMA = """CREATE TABLE results_1 (
    context TEXT NOT NULL, item TEXT NOT NULL, value TEXT NOT NULL, checksum INTEGER NOT NULL,
    PRIMARY KEY (context, item)
) WITHOUT ROWID"""

_NOT_DAMAGE = frozenset(
    {
        *(sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL),
        *(sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_PERM),
        *(sqlite3.SQLITE_AUTH, sqlite3.SQLITE_INTERRUPT, sqlite3.SQLITE_NOLFS, sqlite3.SQLITE_PROTOCOL),
    }
)
"""Primary result codes of SQLite that speak of the machine; all others mean that the file is damaged."""

_MAGIC = b"SQLite format 3\0"
_BESIDE = {
    "-wal": (b"\x37\x7f\x06\x82", b"\x37\x7f\x06\x83"),
    "-journal": (b"\xd9\xd5\x05\xf9",),
    "-shm": (b"\x18\xe2\x2d\x00", b"\x00\x2d\xe2\x18"),
}
"""Files that SQLite keeps beside a database, and what they begin with, unless with zeros."""

_HEADER_BYTES = 100
_PAGE_BYTES = 4096
_VERSIONS_AT, _APPLICATION_ID_AT = slice(18, 20), slice(68, 72)
"""Bytes of the header: how the file may be written and read (1 or 2 each), and the application id."""


def default_cache_file() -> Path:
    """Where results are kept when the user names no file: the cache folder of the platform."""
    return Path(platformdirs.user_cache_dir("pulptrain", appauthor=False)) / "results.sqlite"


def warn_on_stderr(message: str) -> None:
    """One line of warning on standard error."""
    print(f"pulptrain: warning: {message}", file=sys.stderr)


class ResultCache:
    """A table (context, item) -> value, all texts; a context is a hash of everything items share.

    Written in WAL mode, one transaction per `write`: another process may read and write at the same time, and
    a process killed at any moment leaves every finished transaction and no part of an unfinished one. Every
    row carries a checksum, and whoever reads says what a row must look like. A file of ours with a damaged
    page or row, or with another schema, is set aside as ``.corrupt-N`` with a warning and a new one is begun.
    A file that was never a cache of ours is refused and left as it is; so is one of a newer format.
    `own_place` says that nobody else has files there: what is there was ours, whatever it looks like by now.
    A cache that fails for another reason (disk full, no permission) is left alone for the rest of the
    process, with a warning: results are then only computed. Raises `InputError` if the file cannot be opened
    at all.
    """

    def __init__(
        self, path: Path, warn: Callable[[str], None] = warn_on_stderr, *, own_place: bool = False
    ) -> None:
        try:
            # What a link points to is used, and set aside if it is damaged; the link stays.
            self.path = regular_target(path, "--cache")
        except InputError as error:
            raise InputError(error.message, where=error.where, cure=_ANOTHER_FILE) from None
        self._warn = warn
        self._own_place = own_place
        self._connection: sqlite3.Connection | None = None
        self._identity: tuple[int, int] | None = None
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._open_or_set_aside()
        except sqlite3.Error as error:
            raise InputError(f"cannot open the cache: {error}", where=str(path), cure=_ANOTHER_FILE) from None
        except OSError as error:
            raise InputError(
                f"cannot open the cache: {error.strerror}", where=str(path), cure=_ANOTHER_FILE
            ) from None

    def read(self, context: str, parse: Callable[[str, str], _T]) -> dict[str, _T]:
        """All items of a context, each as `parse` makes it of (item, value).

        An exception of `parse` (`ValueError`, `TypeError` ...) means that the value is none of ours: the file
        is set aside like one with a damaged page.
        """

        def select(connection: sqlite3.Connection) -> dict[str, _T]:
            asked = "SELECT item, value, checksum FROM results_1 WHERE context = ?"
            with contextlib.closing(connection.execute(asked, (context,))) as rows:
                return {
                    item: _parsed(parse, context, item, value, checksum) for item, value, checksum in rows
                }

        return self._guarded(select) or {}

    def read_item(self, context: str, item: str, parse: Callable[[str, str], _T]) -> _T | None:
        """One item of a context as `read` gives it; None if it is not there."""

        def select(connection: sqlite3.Connection) -> _T | None:
            asked = "SELECT value, checksum FROM results_1 WHERE context = ? AND item = ?"
            row = connection.execute(asked, (context, item)).fetchone()
            return _parsed(parse, context, item, *row) if row is not None else None

        return self._guarded(select)

    def write(self, context: str, values: Mapping[str, str]) -> None:
        """Keep the items of a context, in one transaction; a value that is there already is replaced."""
        if values:
            self._guarded(lambda connection: _insert(connection, _rows(context, values)))

    def close(self) -> None:
        """End the connection; the cache may not be used afterwards."""
        if self._connection is not None:
            # Closing writes what the WAL holds into the file, which a damaged one may refuse.
            with contextlib.suppress(sqlite3.Error):
                self._connection.close()
            self._connection = None

    def _open_or_set_aside(self) -> None:
        self._identity = _identity(self.path)
        try:
            self._open()
        except sqlite3.Error as error:
            if not _is_damage(error):
                raise
            self._set_aside(str(error))

    def _open(self) -> None:
        """Open the file, or begin one. Raises `sqlite3.Error`; `InputError` for a file that is not ours."""
        looks = _look_at(self.path)
        if looks is _Looks.FOREIGN and self._own_place:
            looks = _Looks.DAMAGED
        if looks is _Looks.NEW and not self._own_place:
            _refuse_foreign_beside(self.path)
        if looks is _Looks.FOREIGN:
            raise InputError(
                "the file exists already and is not a cache of pulptrain: nothing was overwritten",
                where=str(self.path),
                cure=_ANOTHER_FILE,
            )
        if looks is _Looks.DAMAGED:
            raise _DamagedError("the header is not that of a cache")
        connection = sqlite3.connect(self.path, timeout=_BUSY_SECONDS, isolation_level=None)
        try:
            connection.execute("PRAGMA trusted_schema = OFF")
            connection.execute("PRAGMA cell_size_check = ON")
            _begin_or_check(connection, self.path)
            connection.execute("PRAGMA journal_mode = WAL")
            # In WAL mode NORMAL loses at most the last transactions in a power failure, never consistency.
            connection.execute("PRAGMA synchronous = NORMAL")
            connection.execute("SELECT context, item, value, checksum FROM results_1 LIMIT 1").fetchone()
        except BaseException:
            connection.close()
            raise
        self._connection = connection
        self._identity = _identity(self.path)

    def _guarded(self, action: Callable[[sqlite3.Connection], _T]) -> _T | None:
        """The action on the open file, once more on a new file if this one is broken; None without a file."""
        for _ in range(2):
            if self._connection is None:
                return None
            try:
                return action(self._connection)
            except sqlite3.Error as error:
                if _is_damage(error):
                    self._set_aside(str(error))
                    continue
                self._give_up(str(error))
        return None

    def _set_aside(self, reason: str) -> None:
        mine = self._identity
        self.close()
        try:
            # Another process may have found the damage first: then a good file stands there by now.
            if mine is not None and _identity(self.path) == mine:
                aside = _moved_aside(self.path)
                self._warn(
                    f"the cache {self.path} is damaged ({reason}); it was renamed to {aside.name}, and a "
                    "new cache was created"
                )
            self._open()
        except (sqlite3.Error, OSError, InputError) as error:
            self._give_up(str(error))

    def _give_up(self, reason: str) -> None:
        self.close()
        self._warn(f"the cache {self.path} cannot be used ({reason}); results are not cached")


class _DamagedError(sqlite3.DatabaseError):
    """A file or row that is not as we write it, although SQLite can read it."""


class _Looks(Enum):
    NEW = auto()
    OURS = auto()
    DAMAGED = auto()
    FOREIGN = auto()


def _look_at(path: Path) -> _Looks:
    """What a file is by its first page, before SQLite touches it.

    A damaged header still shows that the file was ours: by the application id, by the text of our table in a
    file that begins as a database does, or by being the beginning of a database cut off within its header.
    """
    try:
        page = start_of(path, _PAGE_BYTES)
    except FileNotFoundError:
        return _Looks.NEW
    if not page:
        return _Looks.NEW
    magic = sum(one == other for one, other in zip(page, _MAGIC, strict=False))
    if len(page) < _HEADER_BYTES:
        return _Looks.DAMAGED if page[: len(_MAGIC)] == _MAGIC[: len(page)] else _Looks.FOREIGN
    has_id = page[_APPLICATION_ID_AT] == _APPLICATION_ID.to_bytes(4, "big")
    has_table = _SCHEMA.encode() in page
    if not has_id and not (has_table and magic >= len(_MAGIC) // 2):
        return _Looks.FOREIGN
    sound = magic == len(_MAGIC) and set(page[_VERSIONS_AT]) <= {1, 2}
    return _Looks.OURS if sound else _Looks.DAMAGED


def _refuse_foreign_beside(path: Path) -> None:
    """Raise `InputError` if a file stands where SQLite would put its own and SQLite has not written it.

    A process that was killed while it began a cache leaves such files beside an empty one.
    """
    for suffix, starts in _BESIDE.items():
        beside = path.with_name(path.name + suffix)
        try:
            regular = stat.S_ISREG(beside.lstat().st_mode)
            start = start_of(beside, len(starts[0])) if regular else b""
        except FileNotFoundError:
            continue  # not there, or no longer: another process has begun the same cache
        if not regular or (start.strip(b"\0") and start not in starts):
            raise InputError(
                f"cannot create a cache: the file {beside.name!r}, which SQLite would write next to it, "
                "exists already and is not part of a cache",
                where=str(path),
                cure=f"rename {beside.name!r}, or {_ANOTHER_FILE}",
            )


def _begin_or_check(connection: sqlite3.Connection, path: Path) -> None:
    """Make our table in an empty file, or see that there is nothing else in the file."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        tables = connection.execute("SELECT name, sql FROM sqlite_master").fetchall()
        number = connection.execute("PRAGMA user_version").fetchone()[0]
        if number > FORMAT and any(name == f"results_{number}" for name, _ in tables):
            raise InputError(
                f"the cache has format {number}, but the installed pulptrain reads formats up to {FORMAT}",
                where=str(path),
                cure=_ANOTHER_FILE,
            )
        if not tables:
            connection.execute(_SCHEMA)
        elif [sql for _, sql in tables] != [_SCHEMA]:
            raise _DamagedError("the tables are not those of a cache")
        # A cache from before there were numbers gets them; one whose numbers are damaged gets them back.
        if number != FORMAT:
            connection.execute(f"PRAGMA user_version = {FORMAT}")
        if connection.execute("PRAGMA application_id").fetchone()[0] != _APPLICATION_ID:
            connection.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _is_damage(error: sqlite3.Error) -> bool:
    # The low byte of an extended result code is the primary one. An error without a code is one of Python's
    # own: text that is not UTF-8, a number out of range.
    return getattr(error, "sqlite_errorcode", -1) & 0xFF not in _NOT_DAMAGE


def _parsed(
    parse: Callable[[str, str], _T], context: str, item: object, value: object, checksum: object
) -> _T:
    if not isinstance(item, str) or not isinstance(value, str):
        raise _DamagedError("a row does not hold text")
    if _checksum(context, item, value) != checksum:
        raise _DamagedError(f"row {item[:80]!r} does not match its checksum")
    try:
        return parse(item, value)
    except Exception as error:
        raise _DamagedError(f"row {item[:80]!r} holds invalid data: {error}") from None


def _checksum(context: str, item: str, value: str) -> int:
    return zlib.crc32("\0".join((context, item, value)).encode())


def _rows(context: str, values: Mapping[str, str]) -> list[tuple[str, str, str, int]]:
    return [(context, item, value, _checksum(context, item, value)) for item, value in values.items()]


def _insert(connection: sqlite3.Connection, rows: Iterable[tuple[str, str, str, int]]) -> None:
    connection.execute("BEGIN IMMEDIATE")
    try:
        connection.executemany("INSERT OR REPLACE INTO results_1 VALUES (?, ?, ?, ?)", rows)
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _moved_aside(path: Path) -> Path:
    """Rename a damaged file and what SQLite keeps beside it; the name is new, whoever else looks for one."""
    for number in count(1):
        aside = path.with_name(f"{path.name}.corrupt-{number}")
        try:
            os.close(os.open(aside, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
            break
        except FileExistsError:
            continue
    # First what stands beside it: a new file must never find the WAL of an old one.
    for suffix in ("-wal", "-shm", "-journal", ""):
        with contextlib.suppress(FileNotFoundError):
            path.with_name(path.name + suffix).replace(aside.with_name(aside.name + suffix))
    return aside
