# SPDX-License-Identifier: Apache-2.0
"""Runs inputs one after another in a process of its own, and tells what became of each."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import resource
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from pulptrain.__main__ import run
from pulptrain.process import standard_output
from tools.fuzz.folder import Asked, place
from tools.fuzz.subject import FINE, FOLDER, Subject

MEMORY_BYTES = 1 << 30
"""What an input may take beyond what the process has when it begins."""

WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND

HARMLESS = ("/dev/null/", "/dev/full/", "/dev/shm/", "/proc/")

CHANGING_NAMES = frozenset(
    {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.symlink", "os.link"}
    | {"os.chmod", "os.chown", "os.utime"}
)
"""What Python says before it changes what a name stands for, or what the system says of it."""

DEVICES = "/dev/"

OUT_OF_MEMORY = "not enough memory"
"""Of the message for an allocation that failed: the limit of this process was reached."""

_CAPABILITIES_VERSION, _DAC_CAPABILITIES = 0x20080522, 0b110
"""Of Linux: the layout of `capset`, and the bits of what lets root pass over permissions."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of an input: its exit code, and what is wrong with that, if anything.

    `failure` names the defect, equal for inputs that show the same one. `memory_bytes` is the largest
    resident memory beyond what the process had before.
    """

    exit_code: int
    failure: str = ""
    details: str = ""
    cpu_seconds: float = 0.0
    memory_bytes: int = 0


class Watch:
    """Notes files that are written outside a folder, from when it is given one."""

    def __init__(self) -> None:
        self.folder: str | None = None
        self.outside: list[str] = []
        sys.addaudithook(self._hear)

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.folder is None:
            return
        paths = [path for path in arguments[:2] if isinstance(path, str | bytes | os.PathLike)]
        if event == "open":
            if arguments[2] & WRITING:
                self._note(paths)
        elif event == "sqlite3.connect":
            self._note(paths[:1])
        elif event in CHANGING_NAMES:
            self._note(paths)
            devices = [path for path in paths if os.path.abspath(os.fsdecode(path)).startswith(DEVICES)]
            if devices and event not in ("os.mkdir", "os.symlink"):
                # Who fuzzes as root would lose a device of the computer.
                raise PermissionError(f"{event} of {devices[0]!r}")

    def _note(self, paths: Iterable[str | bytes | os.PathLike[Any]]) -> None:
        for path in (os.path.abspath(os.fsdecode(given)) for given in paths):
            inside = f"{path}/".startswith((f"{self.folder}/", *HARMLESS))
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
    # As Python opens them: what is no Unicode is written escaped to standard error.
    sys.stdout = os.fdopen(1, "w", closefd=False)
    sys.stderr = os.fdopen(2, "w", errors="backslashreplace", closefd=False)
    standard_output.install()
    obey_permissions()
    watch = Watch()
    home = folder.parent / f"{folder.name}-home"
    for name in ("HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "TMPDIR"):
        os.environ[name] = str(home)
    home.mkdir(parents=True, exist_ok=True)
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


def obey_permissions() -> None:
    """Give up what lets root write where nobody may, so that a locked folder is one for root as well."""
    library = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(_CAPABILITIES_VERSION, 0)
    sets = (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable, twice 32 of each
    if library.capget(header, sets) == 0:
        sets[0] &= ~_DAC_CAPABILITIES
        library.capset(header, sets)


def attempt(item: Subject, folder: Path, log_file: int, watch: Watch | None = None) -> Outcome:
    """Run one input in a folder made for it."""
    arguments = [text.replace(FOLDER, str(folder)) if FOLDER in text else text for text in item.arguments]
    with no_limit():
        place(item, folder)
        os.chdir(folder)
        asked = Asked(item, arguments, folder)
        os.ftruncate(log_file, 0)
        os.lseek(log_file, 0, os.SEEK_SET)
        _print_to(item.stdout)
    if watch is not None:
        watch.outside.clear()
        watch.folder = str(folder)
    before_bytes = _begin_memory()
    started = time.process_time()
    outcome = _watched(lambda: run(arguments))
    seconds = time.process_time() - started
    memory_bytes = _peak_bytes() - before_bytes
    if watch is not None:
        watch.folder = None
    with no_limit():
        if item.stdout:
            _print_to(os.devnull)  # what is left of what could not be printed
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os.dup2(log_file, 1)
        os.lseek(log_file, 0, os.SEEK_SET)
        said = os.read(log_file, 1 << 20).decode(errors="replace")
        outside = list(watch.outside) if watch is not None else []
        if not outcome.failure:
            outcome = _judged(item, outcome.exit_code, said, outside, str(folder))
        if not outcome.failure:
            outcome = _judged_by_files(item, outcome.exit_code, asked, folder)
        os.chdir("/")
    return Outcome(outcome.exit_code, outcome.failure, outcome.details or said[-2000:], seconds, memory_bytes)


def _print_to(name: str) -> None:
    """Put something else in the place of standard output; nothing, if there is no name."""
    if name:
        opened = os.open(name, os.O_WRONLY)
        os.dup2(opened, 1)
        os.close(opened)


def _begin_memory() -> int:
    """The resident memory of this process now, from where its peak is looked for."""
    with contextlib.suppress(OSError), open("/proc/self/clear_refs", "w") as stream:
        stream.write("5")  # the peak begins anew
    return _resident("VmRSS")


def _peak_bytes() -> int:
    return _resident("VmHWM")


def _resident(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) << 10
    return 0


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


def _judged(item: Subject, exit_code: int, said: str, outside: list[str], folder: str) -> Outcome:
    failure = ""
    if "Traceback (most recent call last)" in said:
        failure = f"traceback, {said.strip().splitlines()[-1][:80]}"
    elif exit_code not in FINE or "internal defect" in said:
        lines = [line for line in said.splitlines() if "error" in line or "defect" in line]
        what = lines[0] if lines else "nothing said"
        failure = f"exit code {exit_code}, {_without_numbers(what.replace(folder, ''))[:80]}"
    elif OUT_OF_MEMORY in said:
        failure = f"more than {MEMORY_BYTES >> 20} MiB"
    elif outside:
        return Outcome(exit_code, f"written outside: {Path(outside[0]).parent}", "\n".join(outside))
    elif exit_code and not said.strip():
        failure = f"exit code {exit_code} and nothing said"
    elif exit_code not in item.exit_codes:
        wanted = " or ".join(map(str, sorted(item.exit_codes)))
        failure = f"exit code {exit_code}, not {wanted}, {item.arguments[0]}"
    return Outcome(exit_code, failure)


def _judged_by_files(item: Subject, exit_code: int, asked: Asked, folder: Path) -> Outcome:
    if unasked := asked.unasked(folder):
        return Outcome(exit_code, f"changed unasked, {item.arguments[0]}", "\n".join(unasked))
    if item.exit_codes == {0} and (missing := asked.missing()):
        return Outcome(exit_code, f"not written, {item.arguments[0]}", "\n".join(missing))
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
