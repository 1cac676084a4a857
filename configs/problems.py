# SPDX-License-Identifier: Apache-2.0
"""Mistakes of a file are collected, so that a user learns of all of them at once."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from configs.errors import InputError, MistakesError

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


class Problems:
    """The mistakes found so far; `refuse` raises them, in the order of their lines."""

    def __init__(self) -> None:
        self.found: list[InputError] = []

    def of(
        self,
        call: Callable[_Arguments, _Result],
        /,
        *arguments: _Arguments.args,
        **options: _Arguments.kwargs,
    ) -> _Result | None:
        """What the call returns; None if the user's input is wrong, which is noted."""
        try:
            return call(*arguments, **options)
        except InputError as error:
            self.note(error)
            return None

    def note(self, error: InputError) -> None:
        """Add a mistake, or those of an error that has several, unless the same is there already."""
        for each in error.errors if isinstance(error, MistakesError) else (error,):
            if str(each) not in map(str, self.found):
                self.found.append(each)

    def refuse(self) -> None:
        """Raise the one mistake as it is, several as `MistakesError`; return if there is none."""
        if len(self.found) == 1:
            raise self.found[0]
        if self.found:
            raise MistakesError(tuple(sorted(self.found, key=_line)))


def _line(error: InputError) -> int:
    line = re.search(r":(\d+)(?=:|$)", error.where or "")
    return int(line[1]) if line else 0
