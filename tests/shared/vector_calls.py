# SPDX-License-Identifier: Apache-2.0
"""Calls of kernels over vectors, by their name."""

from __future__ import annotations

from collections.abc import Sequence

from arch.spec.isa import TeamWork
from configs.errors import InputError
from trainlib.kernels.catalogue import positive
from trainlib.kernels.library import LIBRARY
from trainlib.kernels.team import Array, team_work


def vector_work(codegen: str, name: str, elements: int, cores: int, addresses: Sequence[int]) -> TeamWork:
    """A nest over fp32 vectors, such as an activation, an update or a loss (those run on one core).

    One address per array of the kernel file, in its order. Raises InputError for another number of them.
    """
    positive(name, elements=elements, cores=cores)
    names = tuple(LIBRARY.header(codegen, name).arrays)
    if len(addresses) != len(names):
        raise InputError(f"{name} needs {len(names)} addresses, not {len(addresses)}", where=name)
    arrays = {array: Array(address) for array, address in zip(names, addresses, strict=True)}
    return team_work(codegen, name, {"elements": elements}, arrays, cores)
