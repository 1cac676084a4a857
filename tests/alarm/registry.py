# SPDX-License-Identifier: Apache-2.0
"""What a defect is, and the list of all: the files beside this one add theirs when they are imported."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from pulptrain.running.machine import Prepared


@dataclass(frozen=True)
class Wrong:
    """A planned run with a defect in it, and the machine it runs on while `machine` is entered."""

    prepared: Prepared
    machine: Callable[[], AbstractContextManager[None]] = nullcontext


Defect = Callable[[Prepared], Prepared | Wrong | None]
"""A planned run with the defect in it; None if it cannot be."""

DEFECTS: dict[str, Defect] = {}
"""By what is wrong."""


def defect(name: str) -> Callable[[Defect], Defect]:
    """Add a function to the list."""

    def register(function: Defect) -> Defect:
        assert name not in DEFECTS, name
        DEFECTS[name] = function
        return function

    return register
