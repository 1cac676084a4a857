# SPDX-License-Identifier: Apache-2.0
"""The sizes of compiled functions: what the statements of an op take, the platform, and kernels."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from arch.spec.isa import TeamWork
from arch.spec.timing import SocTiming
from scheduler.addresses.allocation import ALIGNMENT_BYTES

INSTRUCTION_BYTES = 2.9
"""Mean instruction of compiled RV32 code with compressed ones: of the functions in the sizes."""

TODAY, EXECUTED = "code-sizes.json", "code-sizes-0bac56ab.json"
"""Sizes of the C of today, and of that which was executed on the RTL."""

LEAST_LOOP = 4
"""Equal statements, one after the other, that become a loop: fewer are easier to read as they are."""

WRITTEN_OUT_BYTES = 552
"""A loop of at most so many bytes, all turns together, is written out by clang -O3: its turns share no code.

The largest that was, of the exports executed on the RTL (clang 22, ``-Rpass=loop-unroll``): all loops up to
here but one of 477 bytes, none of three above. 94 % of 743 loops of six exports of today are as it says."""

TABLE_PLACES = 2
"""Places of tables in L1: those that are walked, and those that come."""

MOST_TRANSFERS = 15
"""Identifiers of transfers that the four bits of a wait in a table can say: 0 stands for none."""

Sizes = Mapping[str, Mapping[str, Any]]


@cache
def shipped_sizes(file: str = TODAY) -> Sizes:
    """Bytes by function: of an op for each statement, of the platform, of kernels; what kernels share."""
    sizes: Sizes = json.loads(files("configs").joinpath("kernels", file).read_text(encoding="utf-8"))
    return sizes


def kernel_sizes(team: TeamWork, sizes: Sizes) -> dict[str, int]:
    """Bytes of the kernel of a team, as large as its nest if the sizes have none, and of what it calls."""
    kernel, known = team.kernel, sizes["kernels"]
    own_bytes = known.get(kernel) or max((team.core(one).code_bytes for one in team.members[:1]), default=0)
    return {kernel: own_bytes or 4, **{name: known[name] for name in sizes.get("called", {}).get(kernel, ())}}


def table_place_bytes(timing: SocTiming) -> int:
    """Bytes of one of the places of tables in L1; 0 where ops are functions."""
    return timing.l1.tables_bytes // TABLE_PLACES // ALIGNMENT_BYTES * ALIGNMENT_BYTES
