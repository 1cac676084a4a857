"""Runs inputs one after another in a process of its own, and tells what became of each."""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import shutil
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from pulptrain.__main__ import run
from tools.fuzz.subjects import FOLDER, Subject

MEMORY_BYTES = 1 << 30
"""What an input may take beyond what the process has when it begins."""

FINE = frozenset({0, 2, 3, 4})
"""Exit codes an input may end with: done, bad input, does not fit, deadlock or race."""

WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND

HARMLESS = ("/dev/null", "/proc/", "/dev/shm/")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of an input: its exit code, and what is wrong with that, if anything.

    `failure` names the defect, equal for inputs that show the same one.
    """

    exit_code: int
    failure: str = ""
    details: str = ""
    cpu_seconds: float = 0.0


class Watch:
    """Notes files that are written outside a folder, from when it is given one."""

    def __init__(self) -> None:
        self.folder: str | None = None
        self.outside: list[str] = []
        sys.addaudithook(self._hear)

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.folder is None:
            return
        if event == "open":
            path, _, flags = arguments
            if isinstance(path, str | bytes | os.PathLike) and flags & WRITING:
                self._note(path)
        elif event in (
            "os.rename",
            "os.remove",
            "os.mkdir",
            "os.rmdir",
            "os.truncate",
            "os.symlink",
            "os.link",
        ):
            for path in arguments[:2]:
                if isinstance(path, str | bytes | os.PathLike):
                    self._note(path)

    def _note(self, given: str | bytes | os.PathLike[Any]) -> None:
        path = os.path.abspath(os.fsdecode(given))
        inside = path == self.folder or path.startswith((f"{self.folder}/", *HARMLESS))
        if not inside and "__pycache__" not in path:
            self.outside.append(path)


def serve(connection: Connection, folder: Path, log: Path) -> None:
    """Run every input that comes until None does, in `folder`, which is emptied before each."""
    log_file = os.open(log, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(log_file, stream)
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    # Not those of the parent: a test runner may have put others in their place.
    sys.stdout, sys.stderr = (os.fdopen(os.dup(stream), "w") for stream in (1, 2))
    watch = Watch()
    home = folder.parent / f"{folder.name}-home"
    for name in ("HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "TMPDIR"):
        os.environ[name] = str(home)
    gc.freeze()
    limit_memory(MEMORY_BYTES)
    while (item := connection.recv()) is not None:
        connection.send(attempt(item, folder, log_file, watch))
        gc.collect()


def limit_memory(more_bytes: int) -> None:
    """Let this process take so much more than it has now."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + more_bytes
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))


def attempt(item: Subject, folder: Path, log_file: int, watch: Watch | None = None) -> Outcome:
    """Run one input in a folder made for it."""
    with no_limit():
        place(item, folder)
        os.chdir(folder)
        os.ftruncate(log_file, 0)
        os.lseek(log_file, 0, os.SEEK_SET)
    arguments = [text.replace(FOLDER, str(folder)) if FOLDER in text else text for text in item.arguments]
    if watch is not None:
        watch.outside.clear()
        watch.folder = str(folder)
    started = time.process_time()
    outcome = _watched(lambda: run(arguments))
    seconds = time.process_time() - started
    if watch is not None:
        watch.folder = None
    with no_limit():
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os.lseek(log_file, 0, os.SEEK_SET)
        said = os.read(log_file, 1 << 20).decode(errors="replace")
        if not outcome.failure:
            outcome = _judged(
                outcome.exit_code, said, list(watch.outside) if watch is not None else [], str(folder)
            )
        os.chdir("/")
    return Outcome(outcome.exit_code, outcome.failure, outcome.details or said[-2000:], seconds)


def place(item: Subject, folder: Path) -> None:
    """Empty the folder and write the files of an input."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name, data in item.files.items():
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)


def _watched(call: Callable[[], int]) -> Outcome:
    try:
        return Outcome(call())
    except SystemExit as end:
        return Outcome(end.code if isinstance(end.code, int) else 1)
    except BaseException as error:
        return Outcome(1, failure_of(error), "".join(traceback.format_exception(error))[-3000:])


def failure_of(error: BaseException) -> str:
    """Type of an exception and the place of ours that raised it."""
    root = str(Path(__file__).resolve().parents[2])
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if frame.filename.startswith(root) and "/.venv/" not in frame.filename]
    if isinstance(error, MemoryError | RecursionError):
        own = own[:12]  # where it ends differs from run to run
    where = f"{Path(own[-1].filename).relative_to(root)}:{own[-1].name}" if own else "?"
    return f"{type(error).__name__} in {where}"


def _judged(exit_code: int, said: str, outside: list[str], folder: str) -> Outcome:
    if "Traceback (most recent call last)" in said:
        return Outcome(exit_code, f"traceback, {said.strip().splitlines()[-1][:80]}")
    if exit_code not in FINE or "internal defect" in said:
        line = next(
            (line for line in said.splitlines() if "error" in line or "defect" in line), "nothing said"
        )
        return Outcome(exit_code, f"exit code {exit_code}, {_without_numbers(line.replace(folder, ''))[:80]}")
    if outside:
        return Outcome(exit_code, f"written outside: {Path(outside[0]).parent}", "\n".join(outside))
    if exit_code and not said.strip():
        return Outcome(exit_code, f"exit code {exit_code} and nothing said")
    return Outcome(exit_code)


def _without_numbers(text: str) -> str:
    return "".join("#" if character.isdigit() else character for character in text)


@contextlib.contextmanager
def no_limit() -> Iterator[None]:
    """Lift the limit of memory for what the harness itself does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
