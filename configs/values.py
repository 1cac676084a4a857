# SPDX-License-Identifier: Apache-2.0
"""What values are made of: `msgspec.Struct`; a dataclass where a field takes no part in comparison.

Why there are two: docs/decisions/0020-structs.md. `replace` copies a value of either with other fields.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from msgspec import Struct, structs

__all__ = ["Struct", "replace"]

if TYPE_CHECKING:
    # Under this name mypy checks the names and types of the fields.
    from dataclasses import replace  # noqa: TID251
else:

    def replace(value: Any, /, **changes: Any) -> Any:
        """A copy of `value` with the fields that `changes` names."""
        return (structs if isinstance(value, Struct) else dataclasses).replace(value, **changes)
