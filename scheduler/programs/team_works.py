# SPDX-License-Identifier: Apache-2.0
"""The loop nests of kernel calls, made once: tiles of the same shape at the same addresses share one object.

A `KernelCall.work` is a function made for one tile. What it returns depends on its code, on what it has
closed over, and on its arguments only, so these are the key. Sharing the result saves expanding the nests,
and reading them again when they are priced: `arch.pricing.team_cost_model` knows works it has seen by
identity.
"""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from collections.abc import Hashable, Mapping
from functools import partial
from types import FunctionType, MethodType
from typing import Any

import numpy as np

from arch.spec.isa import TeamWork
from trainlib.ir.steps import KernelCall, KernelChoice

ENTRIES = 2_000
"""Works kept; the one not used for longest is dropped first."""


class TeamWorks:
    """Remembers the works of kernel calls by content."""

    def __init__(self, entries: int = ENTRIES) -> None:
        self._entries = entries
        self._known: OrderedDict[Hashable, TeamWork] = OrderedDict()

    def of(self, call: KernelCall, cores: int, addresses: Mapping[str, int]) -> TeamWork:
        """``call.work(cores, addresses)``, possibly the object an equal call has returned before."""
        content = content_of(call)
        if content is None:
            return call.work(cores, addresses)
        key = content, cores, tuple(addresses.items())
        work = self._known.get(key)
        if work is None:
            work = self._known[key] = call.work(cores, addresses)
            if len(self._known) > self._entries:
                self._known.popitem(last=False)
        else:
            self._known.move_to_end(key)
        return work


def content_of(call: KernelCall) -> Hashable | None:
    """What the `work` of a call is, by value: its code and all it has closed over; None if that is unknown.

    A call that is not called after the chosen matmul kernel does not run it, so that choice is left out.
    """
    try:
        return _content(call.work, call.kernel)
    except _UnknownError:
        return None


class _UnknownError(Exception):
    """A value whose content is not known."""


def _content(value: Any, kernel: str) -> Hashable:  # noqa: PLR0911  one return per kind of value
    if value is None or isinstance(value, str | int | float | bool | bytes):
        return value
    if isinstance(value, tuple | list):
        return tuple([_content(item, kernel) for item in value])
    if isinstance(value, KernelChoice):
        return "choice", value.kernel if value.kernel == kernel else "", value.codegen, value.cores
    if isinstance(value, FunctionType):
        cells = value.__closure__ or ()
        kept = (*(cell.cell_contents for cell in cells), value.__defaults__, value.__kwdefaults__)
        return value.__code__, *[_content(item, kernel) for item in kept]
    if isinstance(value, MethodType):
        return _content(value.__func__, kernel), _content(value.__self__, kernel)
    if isinstance(value, partial):
        return tuple([_content(item, kernel) for item in (value.func, value.args, value.keywords)])
    if isinstance(value, Mapping):
        return "mapping", tuple([(key, _content(item, kernel)) for key, item in value.items()])
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        # The fields, not the hash: equal fields of another type would be equal to a tuple of them.
        fields = [_content(getattr(value, field.name), kernel) for field in dataclasses.fields(value)]
        return type(value), tuple(fields)
    if isinstance(value, np.ndarray):
        return "array", value.shape, value.dtype.str, value.tobytes()
    if isinstance(value, type | range | np.generic | np.dtype):
        return value
    raise _UnknownError(type(value).__name__)
