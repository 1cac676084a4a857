# SPDX-License-Identifier: Apache-2.0
"""Tables of handlers: a function per op, entered by a decorator."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

Handler = TypeVar("Handler", bound=Callable[..., object])


def registrar(table: dict[str, Handler], *domains: str) -> Callable[..., Callable[[Handler], Handler]]:
    """A decorator that enters a function into `table` by its names, each in these domains as well."""

    def register(*names: str) -> Callable[[Handler], Handler]:
        def add(handler: Handler) -> Handler:
            for name in names:
                table[name] = handler
                table.update({f"{domain}:{name}": handler for domain in domains})
            return handler

        return add

    return register
