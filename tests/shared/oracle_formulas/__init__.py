# SPDX-License-Identifier: Apache-2.0
"""The mathematics of primitives in other words, with nothing of the product but names of types."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from inspect import signature
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trainlib.ir.graph import Op
    from trainlib.primitives.definition import Values

Formula = Callable[..., Any]
"""Arrays by role and options by name in, an array out."""

Oracles = Mapping[tuple[str, str], "Callable[[Op, Values], Values]"]
"""By primitive and step: results by role from arrays by role."""


def called(formula: Formula, op: Op, values: Mapping[str, Any]) -> Any:
    """The formula of what its parameters name, roles or options; the others have their defaults."""
    known = {**op.attributes, **values}
    return formula(**{name: known[name] for name in signature(formula).parameters if name in known})
