# SPDX-License-Identifier: Apache-2.0
"""Frozen dataclasses of which hundreds of thousands are made.

`dataclass(frozen=True)` sets each field by way of `object.__setattr__`: an object of four fields costs four
times one that is not frozen. A `record` is frozen to mypy only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

__all__ = ["record"]

if TYPE_CHECKING:
    from dataclasses import dataclass as record
else:

    def record(*, frozen: bool, slots: bool) -> Any:
        """`dataclass` with these words, equal and hashed by its fields, but nothing stops who sets one."""
        return dataclass(slots=slots, unsafe_hash=frozen)
