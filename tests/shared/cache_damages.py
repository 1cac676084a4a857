# SPDX-License-Identifier: Apache-2.0
"""Random damages to a cache file: bytes, length, and rows changed through SQLite itself."""

from __future__ import annotations

import random
import sqlite3
import zlib
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

FOREIGN_VALUES: tuple[object, ...] = (
    *("no such thing", "1 2 3", "-1", "9" * 5000, "[" * 3000, "{}", "null", "[[], [0], null]", "\0"),
    *('["no.such.tensor"]', "d9=4 d9 1 1 1", b"\xff\xfe", 2.5),
)
"""Values no row of ours has. A figure that is only wrong is believed: docs/security.md says so."""


def damage(path: Path, seed: int) -> str:
    """Damage the file in one way that the seed decides; returns what was done."""
    draw = random.Random(seed)
    kind = draw.choice(list(DAMAGES))
    DAMAGES[kind](path, draw)
    return f"{kind} (seed {seed})"


def _flip(path: Path, draw: random.Random) -> None:
    content = bytearray(path.read_bytes())
    for _ in range(draw.choice((1, 1, 4, 64))):
        content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
    path.write_bytes(content)


def _flip_in_first_page(path: Path, draw: random.Random) -> None:
    content = bytearray(path.read_bytes())
    content[draw.randrange(200)] = draw.randrange(256)
    path.write_bytes(content)


def _overwrite(path: Path, draw: random.Random) -> None:
    content = bytearray(path.read_bytes())
    start = draw.randrange(100, len(content))
    block = draw.randbytes(min(draw.choice((16, 600, 5000)), len(content) - start))
    content[start : start + len(block)] = block
    path.write_bytes(content)


def _truncate(path: Path, draw: random.Random) -> None:
    size = path.stat().st_size
    with path.open("r+b") as stream:
        stream.truncate(draw.choice((0, 10, 99, 100, draw.randrange(size), size // 4096 * 2048)))


def _edit(path: Path, draw: random.Random) -> None:
    """Another value, with the checksum of the old one or with its own."""
    value = draw.choice(FOREIGN_VALUES)
    with closing(sqlite3.connect(path)) as connection:
        context, item = draw.choice(connection.execute("SELECT context, item FROM results_1").fetchall())
        checksum = zlib.crc32("\0".join((context, item, str(value))).encode())
        new = ", checksum = ?" if draw.random() < 0.7 else ""
        connection.execute(
            f"UPDATE results_1 SET value = ?{new} WHERE context = ? AND item = ?",
            (value, *([checksum] if new else []), context, item),
        )
        connection.commit()


def _not_utf8(path: Path, draw: random.Random) -> None:
    column = draw.choice(("value", "item"))
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"UPDATE results_1 SET {column} = CAST(x'ff' || item AS TEXT)")
        connection.commit()


def _other_schema(path: Path, draw: random.Random) -> None:
    change = draw.choice(
        (
            "ALTER TABLE results_1 DROP COLUMN checksum",
            "ALTER TABLE results_1 RENAME COLUMN value TO text",
            "ALTER TABLE results_1 RENAME TO others",
            "CREATE TABLE others (a)",
            "CREATE TRIGGER t AFTER INSERT ON results_1 BEGIN DELETE FROM results_1; END",
            "DROP TABLE results_1",
            "PRAGMA user_version = 7",
        )
    )
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(change)
        connection.commit()


DAMAGES: dict[str, Callable[[Path, random.Random], None]] = {
    "bits": _flip,
    "bytes of the header": _flip_in_first_page,
    "a block": _overwrite,
    "cut off": _truncate,
    "a row": _edit,
    "rows that are no text": _not_utf8,
    "the schema": _other_schema,
}
