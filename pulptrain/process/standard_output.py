# SPDX-License-Identifier: Apache-2.0
"""Standard output and standard error of the command: what cannot be printed is told once, in one line.

A reader that has seen enough (``pulptrain list kernels | head -1``) is no failure: the command ends silently
with exit code 0. Standard output that is closed or full is one: what was asked for is not there, so it is
told on standard error and the exit code is 2. Files asked for with ``--out`` are written before anything is
printed. Messages that standard error cannot take are dropped. This module imports nothing slow.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from typing import Any, NoReturn

from configs.errors import InputError


class OutputLostError(InputError):
    """Standard output cannot be written."""


class ReaderGoneError(Exception):
    """Whoever read standard output has closed it."""


class _Output(io.TextIOWrapper):
    """Standard output; not an `OSError` of its own, which libraries would act on."""

    def write(self, text: str, /) -> int:
        try:
            return super().write(text)
        except OSError as error:
            self._lost(error)

    def flush(self) -> None:
        try:
            super().flush()
        except OSError as error:
            self._lost(error)

    def _lost(self, error: OSError) -> NoReturn:
        # What is still buffered goes nowhere, so that nothing complains of it at exit.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self.fileno())
        os.close(nowhere)
        if isinstance(error, BrokenPipeError):
            raise ReaderGoneError from None
        raise OutputLostError(
            f"the output cannot be written: {error.strerror}",
            where="standard output",
            cure="write to a file or terminal that is open and has space",
        ) from None


class _Messages(io.TextIOWrapper):
    """Standard error; what it cannot take is dropped."""

    def write(self, text: str, /) -> int:
        with contextlib.suppress(OSError):
            return super().write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            super().flush()


def install() -> None:
    """Take over standard output and standard error of this process.

    A stream that is closed is opened on nothing, so that no file of ours ever gets its number and with it the
    messages of a library.
    """
    for number, flags in ((0, os.O_RDONLY), (1, os.O_RDONLY), (2, os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:
            # The lowest free number is this one. Nothing can be written to 1: what is printed is missed.
            os.open(os.devnull, flags)
    sys.stdout = _taken_over(sys.stdout, _Output, 1)
    sys.stderr = _taken_over(sys.stderr, _Messages, 2)


def _taken_over(stream: Any, kind: type[io.TextIOWrapper], number: int) -> io.TextIOWrapper:
    if stream is None:
        return kind(open(number, "wb", closefd=False), encoding="utf-8", line_buffering=number == 2)
    encoding, errors, line_buffering = stream.encoding, stream.errors, stream.line_buffering
    return kind(stream.detach(), encoding=encoding, errors=errors, line_buffering=line_buffering)
