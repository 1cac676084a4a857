# SPDX-License-Identifier: Apache-2.0
"""How much of this computer a request may take, and the checks that are made before any work is done.

One limit governs all: the memory a request may need on this computer, `DEFAULT_HOST_MEMORY_BYTES` unless the
environment variable `HOST_MEMORY_VARIABLE` says otherwise. What a request will need is estimated from shapes
and sizes alone. The limit is a fixed number and not what this computer happens to have, so that a request
that is refused here is refused everywhere.
"""

from __future__ import annotations

import os
from pathlib import Path

from configs.errors import ConfigError, InputError
from configs.units import LARGEST_INTEGER, parse_bytes

HOST_MEMORY_VARIABLE = "PULPTRAIN_HOST_MEMORY"
"""Environment variable that replaces the default, e.g. ``4GiB``."""

DEFAULT_HOST_MEMORY_BYTES = 1 << 30

PROCESS_BYTES = 240 << 20
"""What every run takes that plans a network: Python, NumPy, Numba, the tile search, prices of kernels.

Measured as all others here (`tools/measure_host_memory.py`), as peak resident bytes.
"""

PYTORCH_BYTES = 288 << 20
"""What PyTorch takes once it is imported and has computed an iteration."""

TENSOR_COPIES = 4
"""Bytes that numbers and their check take per byte of a tensor, beside the simulated memories.

They are what the ops have left, what the check remembers, PyTorch's own and, part by part, double precision.
"""

YAML_BYTES_PER_BYTE = 2048
"""Allowance per byte of YAML: the parser is slow (50 kB/s), so that time counts here and not memory."""

CSV_BYTES_PER_BYTE = 32
"""What a byte of CSV takes once it is read: cells are Python objects."""

JSON_BYTES_PER_BYTE = 32
"""What a byte of JSON takes at most once it is read."""

MOST_ELEMENTS = 2**48
"""Of one tensor: far more than any memory holds, and few enough that products of a few do not overflow."""


def host_memory_bytes() -> int:
    """The memory a request may need. Raises `ConfigError` for a variable that cannot be read."""
    text = os.environ.get(HOST_MEMORY_VARIABLE, "").strip()
    return parse_bytes(text, where=HOST_MEMORY_VARIABLE) if text else DEFAULT_HOST_MEMORY_BYTES


def require_host_memory(
    required_bytes: int,
    what: str,
    *,
    where: str | None = None,
    parts: str = "",
    cure: str = "use smaller sizes",
) -> None:
    """Raise `InputError` if `what` ("the tensors need", for the message) is more than is allowed.

    The message names the `parts` it consists of, and what to do (`cure`) unless the limit is raised.
    """
    allowed_bytes = host_memory_bytes()
    if required_bytes > allowed_bytes:
        raise InputError(
            f"{what} about {size_text(required_bytes)} of the computer's memory"
            f"{f' ({parts})' if parts else ''}, but {_limit_text(allowed_bytes, required_bytes)}",
            where=where,
            cure=cure + _raised(required_bytes),
        )


def check_file_size(path: Path, bytes_per_byte: int) -> None:
    """Refuse a file that would take more memory than allowed, before it is read.

    A file that cannot be looked at is left to whoever reads it.
    """
    try:
        size_bytes = path.stat().st_size
    except (OSError, ValueError):
        return
    check_text_size(size_bytes, bytes_per_byte, str(path))


def check_text_size(size_bytes: int, bytes_per_byte: int, where: str) -> None:
    """As `check_file_size`, for a text of a size that is known otherwise."""
    limit_bytes = host_memory_bytes() // bytes_per_byte
    if size_bytes > limit_bytes:
        raise ConfigError(
            f"the file has a size of {size_text(size_bytes)}, but {_limit_text(limit_bytes, size_bytes)}",
            where=where,
            cure="use a smaller file" + _raised(size_bytes * bytes_per_byte),
        )


def size_text(size_bytes: int) -> str:
    """A number of bytes for people."""
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size_bytes >= 1 << 70:
            return f"more than 2^{size_bytes.bit_length() - 1} B"
        if size_bytes >= factor:
            return f"{size_bytes / factor:,.1f} {unit}"
    return f"{size_bytes} B"


def _limit_text(limit_bytes: int, required_bytes: int) -> str:
    """The limit; and by how much less it is where both are the same once they are rounded."""
    text = size_text(limit_bytes)
    less = f", {size_text(required_bytes - limit_bytes)} less" if text == size_text(required_bytes) else ""
    return f"the limit is {text}{less}"


def _raised(required_bytes: int) -> str:
    """How to raise the limit, in whole GiB; nothing for what few computers have."""
    gibibytes = -(-required_bytes // (1 << 30))
    setting = f"{HOST_MEMORY_VARIABLE}={gibibytes}GiB"
    return f", or set {setting} in the environment if the computer has as much" if gibibytes < 4096 else ""


def check_at_least_one(number: int, what: str, option: str) -> None:
    """Raise `InputError` for a `number` below 1; `what` it counts is for the message."""
    if number < 1:
        raise InputError(f"the {what} is {number}, but must be 1 or more", where=option, cure="use 1 or more")


def check_seed(seed: int) -> None:
    """Raise `InputError` for a seed that random numbers cannot be drawn from."""
    if not 0 <= seed <= LARGEST_INTEGER:
        raise InputError(
            f"the seed is {seed}, but must be a whole number from 0 to {LARGEST_INTEGER}",
            where="--seed",
            cure=f"use a whole number from 0 to {LARGEST_INTEGER}",
        )
