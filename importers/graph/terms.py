# SPDX-License-Identifier: Apache-2.0
"""A loss that a script computes: a sum of losses of ours, each of something that the network makes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from configs.values import replace
from importers.graph.views import View


@dataclass(frozen=True, slots=True)
class Term:
    """`weight` times the loss `name` of `view`; `target`, none or data, is what it is compared with."""

    name: str
    options: Mapping[str, Any]
    view: View
    target: View | None = None
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class Terms:
    """The number that is trained on: the sum of its items and of a `constant`."""

    items: tuple[Term, ...]
    constant: float = 0.0

    def plus(self, other: Terms) -> Terms:
        """The sum of both."""
        return Terms((*self.items, *other.items), self.constant + other.constant)

    def times(self, factor: float) -> Terms:
        """So many times this."""
        items = tuple(replace(item, weight=item.weight * factor) for item in self.items)
        return Terms(items, self.constant * factor)
