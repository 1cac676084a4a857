# SPDX-License-Identifier: Apache-2.0
"""What the user may choose about the memory plan."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from configs.errors import InputError
from configs.values import Struct
from scheduler.addresses.allocation import Allocation

STREAMED = "streamed"
"""Home of a tensor that lives in L3 and of which no op copies more to L2 than the boxes of its tiles."""

ALL_OTHERS = "*"
"""In place of the name of a tensor: all that are not named."""

HOME_LEVELS = ("l2", "l3", STREAMED)


class PlanOptions(Struct, frozen=True):
    """Choices of one memory plan.

    `placement` is one of `placement.STRATEGIES`. `homes` fixes the home level of tensors by name
    (`HOME_LEVELS`); the others go to L2 as far as they fit. `streams` are tensors that an op streams, by its
    name, and `slot_bytes` the most bytes of L2 that it streams through. `in_place` lets elementwise steps
    write over an input that ends there and is treated alike. `shared` are storages another program leaves in
    memory, by tensor name: those of the graph are found there, and nothing touches the others.
    """

    placement: str = "first-fit"
    homes: Mapping[str, str] = {}
    streams: Mapping[str, Sequence[str]] = {}
    slot_bytes: Mapping[str, int] = {}
    in_place: bool = True
    shared: Mapping[str, Allocation] = {}

    def alike(self, op: str, result: str, source: str) -> bool:
        """Whether two tensors that an op could have in the same bytes are to live in the same memory."""
        others = self.homes.get(ALL_OTHERS)
        streamed = self.streams.get(op, ())
        same_home = self.homes.get(result, others) == self.homes.get(source, others)
        return same_home and (result in streamed) == (source in streamed)


def parse_homes(texts: Iterable[str]) -> dict[str, str]:
    """Homes from texts like ``fc.w=l3``. Raises `InputError` for anything else."""
    homes: dict[str, str] = {}
    for text in texts:
        name, separator, level = (part.strip() for part in text.rpartition("="))
        if not separator or not name or level.lower() not in HOME_LEVELS:
            raise InputError(
                f"{level!r} cannot be the home of a tensor"
                if name and level
                else f"no TENSOR=HOME: {text!r}",
                where="--home",
                cure=f"use {name or 'TENSOR'}=l2, {name or 'TENSOR'}=l3 or {name or 'TENSOR'}=streamed",
            )
        homes[name] = level.lower()
    return homes
