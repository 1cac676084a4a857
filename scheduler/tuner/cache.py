"""Results that outlive the process: one SQLite file, keyed by content, shared by any number of processes."""

from __future__ import annotations

import contextlib
import sqlite3
import sys
import zlib
from collections.abc import Callable, Iterable, Mapping
from itertools import count
from pathlib import Path
from typing import TypeVar

import platformdirs

from configs.errors import InputError

_T = TypeVar("_T")

_BUSY_SECONDS = 60
"""How long a transaction waits for that of another process."""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS results_1 (
    context TEXT NOT NULL, item TEXT NOT NULL, value TEXT NOT NULL, checksum INTEGER NOT NULL,
    PRIMARY KEY (context, item)
) WITHOUT ROWID
"""

_BROKEN = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_FORMAT})
"""Primary result codes of SQLite that mean: these bytes are not, or no longer, a database."""


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
    row carries a checksum. A file that is no database, or has a damaged page or row, is set aside as
    ``.corrupt-N`` with a warning and a new one is begun. A cache that fails for another reason (disk full,
    no permission) is left alone for the rest of the process, with a warning: results are then only computed.
    Raises `InputError` if the file cannot be opened at all.
    """

    def __init__(self, path: Path, warn: Callable[[str], None] = warn_on_stderr) -> None:
        self.path = path
        self._warn = warn
        self._connection: sqlite3.Connection | None = None
        self._identity: tuple[int, int] | None = None
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._open()
        except sqlite3.DatabaseError as error:
            if not _is_broken(error):
                raise InputError(
                    f"cannot open the cache: {error}",
                    where=str(path),
                    cure="another --cache FILE or --no-cache",
                ) from None
            self._set_aside(str(error))
        except OSError as error:
            raise InputError(
                f"cannot make the folder of the cache: {error.strerror}",
                where=str(path.parent),
                cure="another --cache FILE, or --no-cache",
            ) from None

    def read(self, context: str) -> dict[str, str]:
        """All items of a context."""

        def select(connection: sqlite3.Connection) -> dict[str, str]:
            rows = connection.execute(
                "SELECT item, value, checksum FROM results_1 WHERE context = ?", (context,)
            )
            found: dict[str, str] = {}
            for item, value, checksum in rows:
                if _checksum(context, item, value) != checksum:
                    raise _DamagedRowError(f"row {item!r} does not match its checksum")
                found[item] = value
            return found

        return self._guarded(select) or {}

    def write(self, context: str, values: Mapping[str, str]) -> None:
        """Keep the items of a context, in one transaction; a value that is there already is replaced."""
        if values:
            self._guarded(lambda connection: _insert(connection, _rows(context, values)))

    def close(self) -> None:
        """End the connection; the cache may not be used afterwards."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _open(self) -> None:
        connection = sqlite3.connect(self.path, timeout=_BUSY_SECONDS, isolation_level=None)
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            # In WAL mode NORMAL loses at most the last transactions in a power failure, never consistency.
            connection.execute("PRAGMA synchronous = NORMAL")
            connection.execute(_SCHEMA)
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
            except sqlite3.DatabaseError as error:
                if _is_broken(error):
                    self._set_aside(str(error))
                    continue
                self._give_up(str(error))
        return None

    def _set_aside(self, reason: str) -> None:
        mine = self._identity
        self.close()
        # Another process may have found the damage first: then a good file stands there by now.
        if mine is None or _identity(self.path) == mine:
            aside = next(name for name in _aside_names(self.path) if not name.exists())
            with contextlib.suppress(FileNotFoundError):
                self.path.rename(aside)
            for suffix in ("-wal", "-shm"):
                with contextlib.suppress(FileNotFoundError):
                    self.path.with_name(self.path.name + suffix).rename(aside.with_name(aside.name + suffix))
            self._warn(
                f"the cache {self.path} is damaged ({reason}); it is now {aside.name}, a new one begins"
            )
        try:
            self._open()
        except sqlite3.DatabaseError as error:
            self._give_up(str(error))

    def _give_up(self, reason: str) -> None:
        self.close()
        self._warn(f"the cache {self.path} cannot be used ({reason}); results are not kept")


class _DamagedRowError(sqlite3.DatabaseError):
    """A row whose checksum does not match."""


def _is_broken(error: sqlite3.DatabaseError) -> bool:
    if isinstance(error, _DamagedRowError):
        return True
    # The low byte of an extended result code is the primary one.
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in _BROKEN


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


def _aside_names(path: Path) -> Iterable[Path]:
    return (path.with_name(f"{path.name}.corrupt-{number}") for number in count(1))
