# SPDX-License-Identifier: Apache-2.0
"""What a unit does with its registers and memories: as its RTL does it, or as its documentation says.

The same rules serve both sides: jobs are made and registers written for a behaviour, and the simulated unit
obeys one. Which code acts on a rule is nobody's business but that code's; what the rule is stands here alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from configs.suggest import check_known

NEVER = MappingProxyType[str, int | None]({})


def _rule(about: str, source: str) -> Any:
    return field(metadata={"about": about, "source": source})


_WRAPPER = "obilaniu/MVU bfab134, mvutop_wrapper.sv"
_TOP = "obilaniu/MVU bfab134, mvutop.sv"
_JOBS = "measured/barvinn-jobs.csv.gz"


@dataclass(frozen=True, slots=True)
class Behaviour:
    """The rules; each field's `metadata` says what it is about and where it was read."""

    name: str
    zigzag_bit: int = _rule("lowest bit of the zig-zag select in mvuconfig1", f"{_WRAPPER}; {_JOBS} (cfg)")
    compare_bit: int | None = _rule(
        "lowest bit of the comparator's field in mvuconfig1; none: the comparator is tied off, and the host "
        "computes max-pool and ReLU",
        f"{_WRAPPER}; {_JOBS} (relu)",
    )
    entry_levels: tuple[int, int, int, int] = _rule(
        "number of the loop whose length each of the registers slength_1 to slength_4 sets, and each of "
        "blength_1 to blength_4",
        f"{_WRAPPER}; {_JOBS} (loops)",
    )
    output_jumps: bool = _rule(
        "outputs may jump; if not, a job writes consecutive words",
        f"{_TOP}, outagu.v; {_JOBS} (output_jumps)",
    )
    blind_cycles: int = _rule(
        "last cycles of a job in which the unit no longer reads scalers and biases from memory: a sum that "
        "ends then gets scaler 0 and bias 0",
        f"{_TOP}; {_JOBS} (extra)",
    )
    extra_cycles: int = _rule(
        "cycles by which a job with scalers or biases from memory is prolonged, so that its last sums get "
        "them",
        f"{_JOBS} (extra)",
    )
    live: Mapping[str, int | None] = _rule(
        "registers without a shadow, with the number of cycles after the first product during which they "
        "must not change (None: until the last result is in memory); they are written after the drain",
        f"{_TOP}, obaseaddr, oprecision, d_signed, w_signed",
    )
    bank_words: int | None = _rule(
        "words of a bank, if reads in all banks but the first are OR-ed with word 0; none: reads are correct "
        "in all banks",
        f"obilaniu/MVU bfab134, bank64k.v, cdru.v; {_JOBS} (word0)",
    )
    first_word: int = _rule("first word of activations that maps may use", f"{_JOBS} (word0)")
    sends_to_itself: bool = _rule(
        "a unit whose own bit is in its destination mask sends to the others too", f"{_TOP}, ic_send_en"
    )

    @property
    def entry_loop(self) -> int:
        """The loop in which scalers and biases are walked through: one that a register sets."""
        return self.entry_levels[-1]

    def register(self, name: str) -> str:
        """The register that a write to `name` lands in."""
        kind, _, level = name.partition("length_")
        if kind not in ("mvus", "mvub") or not level:
            return name
        return f"{kind}length_{self.entry_levels[int(level) - 1]}"


RTL = Behaviour(
    "rtl",
    zigzag_bit=5,
    compare_bit=None,
    entry_levels=(1, 1, 1, 1),
    output_jumps=False,
    blind_cycles=5,
    extra_cycles=6,
    live=MappingProxyType({"mvuobaseptr": 9, "mvuprecision": None}),
    bank_words=1024,
    first_word=1,
    sends_to_itself=False,
)
"""What the published RTL does."""

DOCUMENTED = Behaviour(
    "documented",
    zigzag_bit=8,
    compare_bit=16,
    entry_levels=(1, 2, 3, 4),
    output_jumps=True,
    blind_cycles=0,
    extra_cycles=0,
    live=NEVER,
    bank_words=None,
    first_word=0,
    sends_to_itself=True,
)
"""What the documentation says, hossein1387/BARVINN 76c77d7; bits 16 to 20 of mvuconfig1 are our own choice,
as no source gives a place to the comparator's select."""

BEHAVIOURS: Mapping[str, Behaviour] = MappingProxyType({each.name: each for each in (RTL, DOCUMENTED)})


def behaviour_of(name: str) -> Behaviour:
    """A behaviour by its name; raises `InputError`."""
    check_known(name, BEHAVIOURS, f"unknown behaviour '{name}'", "--behaviour")
    return BEHAVIOURS[name]
