# SPDX-License-Identifier: Apache-2.0
"""How far the measured cycles of a program may lie from the predicted ones, from rows of the same class.

An error is (measured - predicted) / predicted, so that the error of a sum of parts is the sum of theirs,
each times its share of the predicted cycles. Of every class of rows a table has the mean of the errors (bias)
and their standard deviation (spread). What is combined here:

- biases add, each times its share;
- spreads add too, each times its share: what moves one kernel (phase of the cores, code in the caches) moves
  its neighbours alike, and of rows held out more lie within than if spreads added in squares;
- two causes of the same cycles, instructions and machine, are independent: their biases add, their spreads
  add in squares;
- a class of few rows is less sure: `n` rows make the spread of the next one larger by sqrt(1 + 1/n), and the
  factor from spread to 95 % is Student's t with the effective degrees of freedom of Welch and Satterthwaite
  (JCGM 100:2008, the Guide to the Expression of Uncertainty in Measurement, annex G).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib.resources import files
from math import erf, exp, inf, pi, sqrt

import msgspec

from arch.spec.timing import SocTiming
from configs.errors import ConfigError
from configs.values import Struct

FEWEST_ROWS = 10
"""Rows of a class; one with fewer is joined with wider ones, see `candidates`."""

SIZES = (500, 2_000, 10_000)
"""Cycles of a call, fork and join included, at which the next class begins."""

_SIZES = (f"{SIZES[-1]} and more", *(f"below {limit}" for limit in reversed(SIZES)))

ANY = "any"
"""Of a class that holds all of one sort together."""

ONE, UNDISTURBED, DISTURBED = "1 core", "apart", "shared"
"""Teams: of one core; of several with private FPUs and no bank conflicts; of several that can meet at one."""

MATMUL, MOVES, COMPUTES = "matmul", "moves", "computes"
"""Families of kernels: products of matrices; loops without floating-point arithmetic; all other loops."""

OPS, OPS_WARM = "ops of a program", "ops of a program, warm"
"""An op of a whole iteration: its kernels, its transfers, and the code of the program; or all but that."""

BESIDE = "DMA beside kernels"
"""The part of a double buffered program in which the master serves transfers: what kernels do not hide."""

FILE = "errors.json"

_Z = 1.959964
"""97.5 % of a normal distribution lie below."""


class Key(Struct, frozen=True, order=True):
    """The class of a part of a program; a part of the machine has its name as `family` and `ANY` else."""

    profile: str
    family: str
    codegen: str = ANY
    team: str = ANY
    size: str = ANY

    @property
    def text(self) -> str:
        """As the table spells it."""
        return " / ".join((self.profile, self.family, self.codegen, self.team, self.size))


class ErrorClass(Struct, frozen=True, array_like=True):
    """`count` rows whose errors, as shares of the predicted cycles, have this mean and standard deviation."""

    count: int
    bias: float
    spread: float


class Bar(Struct, frozen=True):
    """What is known of the error of a sum: a t distribution of this mean, spread and degrees of freedom."""

    bias: float
    spread: float
    freedom: float

    @property
    def typical(self) -> float:
        """Mean of the absolute error, as a share (that of a normal distribution)."""
        if not self.spread:
            return abs(self.bias)
        ratio = self.bias / self.spread / sqrt(2)
        return self.spread * sqrt(2 / pi) * exp(-(ratio**2)) + self.bias * erf(ratio)

    @property
    def within(self) -> float:
        """At least 95 % of the errors lie within plus and minus this, a share of the predicted cycles."""
        return abs(self.bias) + student(self.freedom) * self.spread


class ErrorTable(Struct, frozen=True):
    """Classes of rows by `Key.text`, and the family of every nest that has rows, by profile and codegen.

    `digest` is that of the figures of validation when it was made.
    """

    classes: Mapping[str, ErrorClass]
    families: Mapping[str, Mapping[str, Mapping[str, str]]] = {}
    digest: str = ""

    def family(self, profile: str, codegen: str, nest: str) -> str | None:
        """The family of a nest that rows of a profile have, None for any other."""
        return self.families.get(profile, {}).get(codegen, {}).get(nest)

    def in_ops(self, nest: str) -> bool:
        """Whether ops of whole programs call a nest."""
        return nest in self.families.get(OPS, {}).get(ANY, {})

    def nearest(self, key: Key) -> tuple[str, ErrorClass] | None:
        """The nearest class of enough rows, and its name; None if there is none."""
        texts = (wider.text for wider in candidates(key))
        return next(((text, self.classes[text]) for text in texts if text in self.classes), None)


def candidates(key: Key) -> Iterator[Key]:
    """The classes a key may be held against, nearest first.

    Cores that cannot meet are no worse than cores that can, longer calls no worse than shorter ones. All
    sizes come before all codegens.
    """
    teams = (key.team, DISTURBED) if key.team == UNDISTURBED else (key.team,)
    shorter = _SIZES[_SIZES.index(key.size) :] if key.size in _SIZES else ()
    for codegen in dict.fromkeys((key.codegen, ANY)):
        for team in teams:
            for size in (*shorter, ANY):
                yield Key(key.profile, key.family, codegen, team, size)


def combined(*causes: Iterable[tuple[float, str, ErrorClass]]) -> Bar:
    """The bar of a sum of parts (share of the predicted cycles, name of the class, the class), by cause."""
    bias, square, doubt = 0.0, 0.0, 0.0
    for parts in causes:
        shares: dict[str, float] = defaultdict(float)
        classes = {}
        for share, name, error_class in parts:
            shares[name] += share
            classes[name] = error_class
        bias += sum(shares[name] * error_class.bias for name, error_class in classes.items())
        spreads = {
            name: shares[name] * error_class.spread * sqrt(1 + 1 / error_class.count)
            for name, error_class in classes.items()
        }
        spread = sum(spreads.values())
        square += spread**2
        # A spread of n - 1 degrees of freedom is itself known to one part in 2 (n - 1), squared.
        doubt += spread**2 * sum(part**2 / (classes[name].count - 1) for name, part in spreads.items())
    return Bar(bias, sqrt(square), square**2 / doubt if doubt else inf)


def student(freedom: float) -> float:
    """The value below which 97.5 % of Student's t distribution lie, for 3 degrees of freedom or more.

    Cornish and Fisher's expansion about the normal one (Abramowitz and Stegun 26.7.5), 1 % off at 3.
    """
    z, n = _Z, freedom
    return (
        z
        + (z**3 + z) / (4 * n)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * n**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * n**3)
    )


def kernel_key(profile: str, family: str, codegen: str, team: str, cycles: float, calls: int) -> Key:
    """The class of a kernel that takes so many cycles in its calls."""
    return Key(profile, family, codegen, team, _size(cycles, calls))


def op_key(profile: str, team: str, cycles: float, *, warm: bool) -> Key:
    """The class of an op of a program, whatever compiled it, that takes so many cycles."""
    return Key(profile, OPS_WARM if warm else OPS, team=team, size=_size(cycles, 1))


def machine_key(profile: str, part: str, cycles: float, calls: int) -> Key:
    """The class of a part of the machine; waits beside kernels count by their length.

    Of the time of other transfers most of what the model may miss is code around them, whatever they move.
    """
    return Key(profile, part, size=_size(cycles, calls) if part == BESIDE else ANY)


def _size(cycles: float, calls: int) -> str:
    if not calls:
        return ANY
    return _SIZES[-1 - sum(cycles >= limit * calls for limit in SIZES)]


def team_of(cores: int, *, private_fpus: bool, bank_conflicts: bool) -> str:
    """The class of a team."""
    if cores == 1:
        return ONE
    return UNDISTURBED if private_fpus and not bank_conflicts else DISTURBED


def team_on(timing: SocTiming) -> str:
    """The class of the team of a machine."""
    private = timing.fpu.mapping == "private"
    return team_of(timing.cores, private_fpus=private, bank_conflicts=timing.l1.bank_conflicts)


@cache
def shipped_table() -> ErrorTable:
    """The table of this version, made by ``python -m tools.validation.error_classes``."""
    try:
        return msgspec.json.decode(files("configs").joinpath("data", FILE).read_bytes(), type=ErrorTable)
    except ValueError as error:
        raise ConfigError(
            "the table of prediction errors that comes with pulptrain is damaged",
            where=FILE,
            cure="install pulptrain again",
        ) from error
