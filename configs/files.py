# SPDX-License-Identifier: Apache-2.0
"""Files that are written: whole under their name or not there, and never in place of what is not ours.

Every file a command writes goes through `replacing`; files that belong together take their names `together`.
What is asked for is checked before any work by `check_file` and `check_folder`. A hard link is not kept: the
new file takes this name only.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from zlib import crc32

from configs.errors import InputError

TEMPORARY_PREFIX, TEMPORARY_SUFFIX = ".pulptrain-", ".part"
"""A file being written is called so, with who writes it between; who was killed leaves one of these."""

_PENDING: ContextVar[list[tuple[Path, Path]] | None] = ContextVar("pending", default=None)
"""Temporary files and their targets, while `together`."""

_MADE: list[Path] = []
"""Folders that were made, and may be removed again as long as nothing is in them."""

_KINDS: tuple[tuple[Callable[[int], bool], str], ...] = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
)

FILE_ENDINGS = frozenset(
    (
        *(".bmp", ".c", ".csv", ".eps", ".gif", ".gz", ".html", ".ipynb", ".jpeg", ".jpg", ".json", ".log"),
        *(".md", ".npz", ".onnx", ".parquet", ".pdf", ".pftrace", ".png", ".ps", ".py", ".svg", ".tif"),
        *(".tiff", ".txt", ".webp", ".yaml", ".yml", ".zip"),
    )
)
"""A name that ends so is that of a file."""

_ANOTHER_PLACE = "use a folder that you may write to, with free disk space"


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A file to write in place of `path`: it takes that name when the ``with`` ends well, else it is removed.

    It lies in the folder of the target, under a name of its own. What a symbolic link points to is written,
    the link stays. A file that was there gives its permissions to the new one. Raises `InputError` for a
    target that is a folder or a special file, and for whatever the system refuses (no room, no permission).
    Parts that killed runs have left in the folder are removed.
    """
    target = _resolved(path, str(path))
    _refuse_special(target, str(path), str(path))
    _sweep(target.parent)
    pending = _PENDING.get()
    try:
        with _part(target.parent) as temporary:
            if target.exists():
                temporary.chmod(stat.S_IMODE(target.stat().st_mode))
            yield temporary
            if pending is None:
                temporary.replace(target)
            else:
                pending.append((temporary, target))
    except OSError as error:
        raise _cannot_be_written(error, str(path)) from error


@contextmanager
def _part(folder: Path) -> Iterator[Path]:
    """A new file in a folder; whatever ends the ``with`` early, Ctrl-C too, removes it."""
    part = folder / f"{TEMPORARY_PREFIX}{_machine()}-{os.getpid()}-{secrets.token_hex(8)}{TEMPORARY_SUFFIX}"
    try:
        # Created for writing by all: the umask takes away what the user does not want.
        os.close(os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
        yield part
    except BaseException:
        with contextlib.suppress(OSError):
            part.unlink()
        raise


@contextmanager
def together() -> Iterator[None]:
    """Files written meanwhile take their names when all are whole; none does if one cannot be written.

    Within another one it is a part of that. Raises `InputError` if the system refuses a name: those before
    it have theirs then.
    """
    if _PENDING.get() is not None:
        yield
        return
    pending: list[tuple[Path, Path]] = []
    token = _PENDING.set(pending)
    try:
        yield
        for temporary, target in pending:
            try:
                temporary.replace(target)
            except OSError as error:
                raise _cannot_be_written(error, str(target)) from error
    finally:
        _PENDING.reset(token)
        for temporary, _ in pending:
            with contextlib.suppress(OSError):
                temporary.unlink()


@contextmanager
def no_empty_folder() -> Iterator[None]:
    """Folders that are made meanwhile are removed in the end if nothing has been written to them."""
    before = len(_MADE)
    try:
        yield
    finally:
        for folder in reversed(_MADE[before:]):
            with contextlib.suppress(OSError):
                folder.rmdir()
        del _MADE[before:]


def make_folder(folder: Path) -> None:
    """Make a folder and those it lies in. Raises what the system does."""
    missing = [path for path in (folder, *folder.parents) if not os.path.exists(path)]
    _MADE.extend(path.absolute() for path in reversed(missing))
    folder.mkdir(parents=True, exist_ok=True)


def write_text(path: Path, text: str) -> Path:
    """Write a UTF-8 file, whole or not at all; returns `path`. Raises `InputError` if it cannot be written.

    A byte of a file name that is no text is written as an escape, which JSON reads back.
    """
    with (
        replacing(path) as temporary,
        temporary.open("w", encoding="utf-8", errors="backslashreplace", newline="\n") as stream,
    ):
        stream.write(text)
    return path


def check_file(name: str, option: str, is_ours: Callable[[Path], bool]) -> Path:
    """The place of a file that will be written, refused before any work if it cannot or may not be.

    A file that is there may be overwritten if it is empty, or one of ours as `is_ours` sees it. Raises
    `InputError` naming `option`.
    """
    if not name.strip():
        raise InputError("the name of the output file is empty", where=option, cure="add the name of a file")
    _refuse_dash(name, option)
    target = _resolved(Path(name), option)
    _refuse_special(target, name, option)
    refuse_foreign(target, name, option, is_ours)
    if not target.parent.is_dir():
        raise InputError(
            f"cannot write {name!r}: the folder {str(target.parent)!r} does not exist",
            where=option,
            cure="create the folder first",
        )
    _probe(target.parent, name, option)
    return Path(name)


def check_folder(name: str, option: str) -> Path:
    """The folder that will be written to, made if it is not there. Raises `InputError` naming `option`."""
    if not name.strip():
        raise InputError(
            "the name of the output folder is empty", where=option, cure="add the name of a folder"
        )
    folder = Path(name)
    _refuse_dash(name, option)
    if folder.suffix.lower() in FILE_ENDINGS and not folder.is_dir():
        raise InputError(
            f"{name!r} is a file name, not a folder name",
            where=option,
            cure=f"use the name of a folder, e.g. {folder.stem}",
        )
    try:
        make_folder(folder)
    except (OSError, ValueError) as error:
        raise _cannot_be_written(error, option, name) from error
    _probe(folder, name, option)
    return folder


def _refuse_dash(name: str, option: str) -> None:
    """Raise `InputError` for the ``-`` that means standard output elsewhere."""
    if name.strip() == "-":
        raise InputError(
            "only --json can write to standard output (-)",
            where=option,
            cure="use the name of a file (./- for a file with the name -)",
        )


def refuse_foreign(path: Path, name: str, option: str, is_ours: Callable[[Path], bool]) -> None:
    """Raise `InputError` if there is something at `path` that is no file, or a file that is not ours."""
    target = _resolved(path, option)
    _refuse_special(target, name, option)
    try:
        foreign = target.is_file() and target.stat().st_size > 0 and not is_ours(target)
    except OSError as error:
        raise _cannot_be_written(error, option, name) from error
    if foreign:
        raise InputError(
            f"{name!r} exists already, and pulptrain did not write that file: nothing was overwritten",
            where=option,
            cure="use another name, or move the file first",
        )
    if target.is_file() and not os.access(target, os.W_OK):
        raise InputError(
            f"the file or folder {name!r} is read-only",
            where=option,
            cure="make the file or folder writable, or use another",
        )


def start_of(path: Path, size_bytes: int = 1 << 16) -> bytes:
    """The first bytes of a file, to see what it is."""
    with path.open("rb") as stream:
        return stream.read(size_bytes)


def regular_target(path: Path, option: str) -> Path:
    """What `path` points to, links followed. Raises `InputError` if that is a folder or a special file."""
    target = _resolved(path, option)
    _refuse_special(target, str(path), option)
    return target


def _resolved(path: Path, where: str) -> Path:
    try:
        return Path(os.path.realpath(path))
    except (OSError, ValueError) as error:
        raise _cannot_be_written(error, where, str(path)) from error


def _refuse_special(target: Path, name: str, where: str) -> None:
    try:
        mode = target.stat().st_mode
    except FileNotFoundError:
        return
    except (OSError, ValueError) as error:
        raise _cannot_be_written(error, where, name) from error
    for is_kind, kind in _KINDS:
        if is_kind(mode):
            raise InputError(f"{name!r} is {kind}, not a file", where=where, cure="use the name of a file")


def _probe(folder: Path, name: str, option: str) -> None:
    """Make and remove a file: whoever may write to a folder is best asked so."""
    try:
        with _part(folder) as probe:
            probe.unlink()
    except OSError as error:
        raise _cannot_be_written(error, option, name) from error


@cache
def _machine() -> str:
    """Where a number of a process means the same: this computer, of a container its own numbers."""
    name, namespace = os.uname().nodename if hasattr(os, "uname") else "", Path("/proc/self/ns/pid")
    numbers = os.readlink(namespace) if namespace.is_symlink() else ""
    return f"{crc32(f'{name} {numbers}'.encode()):08x}"


@cache
def _sweep(folder: Path) -> None:
    """Remove, once, the parts in a folder whose process is no more; those of other computers stay."""
    if os.name != "posix":
        return
    for part in folder.glob(f"{TEMPORARY_PREFIX}{_machine()}-*{TEMPORARY_SUFFIX}"):
        number = part.name.split("-")[2]
        if number.isdigit() and number.isascii() and not _lives(int(number)):
            with contextlib.suppress(OSError):
                part.unlink()


def _lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:  # it is another user's
        return True
    return True


def _cannot_be_written(error: Exception, where: str, name: str = "") -> InputError:
    reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
    what = f"cannot write to {name!r}" if name and name != where else "cannot be written"
    cure = _ANOTHER_PLACE
    if isinstance(error, FileNotFoundError):
        cure = "create the folder first, or use one that exists"
    elif isinstance(error, FileExistsError | NotADirectoryError):
        cure = "use the name of a folder, not of a file"
    return InputError(f"{what}: {reason}", where=where, cure=cure)
