# SPDX-License-Identifier: Apache-2.0
"""The error tree: every failure a user can cause, with its exit code, its place and its cure."""

from __future__ import annotations

from errno import ENAMETOOLONG
from typing import Any

from msgspec.structs import asdict

from configs.values import Struct

REPORT = "report this as a defect, with your command"
"""The cure of what no input may cause."""


def install_cure(extra: str) -> str:
    """The cure where a package is missing that an extra of pulptrain brings."""
    return f"run `pip install 'pulptrain[{extra}]'`"


class PulptrainError(Exception):
    """Base of all errors pulptrain raises on purpose.

    `message` says what is wrong, `where` names the place (``file:line``, op or option), `cure` says what to
    change. `exit_code` is what the command line returns.
    """

    exit_code = 1

    def __init__(self, message: str, *, where: str | None = None, cure: str | None = None) -> None:
        self.message = message
        self.where = where
        self.cure = cure
        place = f"{where}: " if where else ""
        remedy = f"\n  try: {cure}" if cure else ""
        super().__init__(f"{place}{message}{remedy}")


class InputError(PulptrainError):
    """The user's request cannot be understood or is contradictory."""

    exit_code = 2


class WrongNumbersError(PulptrainError):
    """A tensor of a run is not what it should be: a defect of the simulator. `outcome` is the run."""

    def __init__(self, message: str, *, where: str, outcome: Any = None) -> None:
        self.outcome = outcome
        super().__init__(message, where=where, cure=REPORT)


class NotFiniteError(InputError):
    """An op made an infinity or a NaN of finite numbers: training diverged, or its format overflowed."""

    def __init__(self, op: str, tensor: str, value: str, dtype: str) -> None:
        self.op, self.tensor, self.value, self.dtype = op, tensor, value, dtype
        from configs.dtypes import DTYPES, float_of  # imports NumPy, which the command line starts without

        form = float_of(dtype)
        made = (
            f"overflows {dtype} to infinity"
            if value == "infinity"
            else "computes a NaN although its inputs are finite,"
        )
        if form is not None and not form.has_infinity:
            made = f"computes a NaN, or a value too large for {dtype},"
        wider = ", ".join(other.word for other in DTYPES if form and other.largest > form.largest)
        cure = "use a smaller learning rate or smaller inputs"
        cure += f", or a dtype with a larger range ({wider})" if wider else ""
        super().__init__(f"the op {made} in '{tensor}'", where=op, cure=cure)


class ConfigError(InputError):
    """A configuration file or option is wrong; `where` is ``file:line`` when it comes from a file."""


MAX_MISTAKES = 30
"""Mistakes of a file that are listed; a file with more is of another kind altogether."""


class MistakesError(ConfigError):
    """Several mistakes of one file; `errors` are all of them, `where` is the place of the first."""

    def __init__(self, errors: tuple[InputError, ...]) -> None:
        self.errors = errors
        listed = [str(error) for error in errors[:MAX_MISTAKES]]
        if len(errors) > MAX_MISTAKES:
            listed.append(f"and {len(errors) - MAX_MISTAKES} more")
        super().__init__("\n".join([f"{len(errors)} mistakes", *listed]))
        self.where = errors[0].where


class ShapeError(InputError):
    """Tensor shapes or layer attributes do not fit together; `where` names the op."""


class UnsupportedLayerError(InputError):
    """A model asks for a layer, dtype or option that has no primitive."""


class Contributor(Struct, frozen=True):
    """One buffer or tensor in a report about a memory that is too small.

    `first_op` and `last_op` name the ops of its life, if known.
    """

    name: str
    size_bytes: int
    first_op: str = ""
    last_op: str = ""

    @property
    def lifetime(self) -> str:
        """Its life for people: ``conv1.FW to conv1.WG``."""
        if self.first_op == self.last_op:
            return self.first_op
        return f"{self.first_op} to {self.last_op}"


class Lever(Struct, frozen=True):
    """A change that was tried by planning again: the level then requires `required_bytes`.

    `saved_bytes` is how much less that is, `fits` whether the whole model then fits (None: its tensors do,
    its code was not planned), `how` what to write.
    """

    name: str
    how: str
    required_bytes: int
    saved_bytes: int
    fits: bool | None


MAX_CONTRIBUTORS = 10
"""Contributors a report about a memory lists."""


def shortened(text: str, most: int = 60) -> str:
    """The text for a message: no more of it than a line takes."""
    return text if len(text) <= most else f"{text[:most]}..."


def cure_of(error: Exception, otherwise: str) -> str:
    """What to change where the system refuses a file: a shorter name where that is the reason."""
    return "use a shorter name" if getattr(error, "errno", None) == ENAMETOOLONG else otherwise


class DoesNotFitError(PulptrainError):
    """A memory level is too small: `required_bytes` of `available_bytes`, largest contributors, levers.

    `what` is the end of "L1 is too small for ...".
    """

    exit_code = 3

    def __init__(
        self,
        level: str,
        required_bytes: int,
        available_bytes: int,
        *,
        where: str | None = None,
        what: str = "",
        contributors: tuple[Contributor, ...] = (),
        levers: tuple[Lever, ...] = (),
        cure: str | None = None,
    ) -> None:
        self.level = level
        self.what = what
        self.required_bytes = required_bytes
        self.available_bytes = available_bytes
        self.contributors = contributors
        self.levers = levers
        listing = "".join(
            f"\n    {item.size_bytes:>10} B  {item.name}" + (f"  [{item.lifetime}]" if item.lifetime else "")
            for item in self.largest
        )
        tried = "".join(
            f"\n    {item.saved_bytes:>10} B  {item.name}: {item.how}"
            + {None: "  (then its tensors fit)", True: "  (then it fits)", False: "  (not enough alone)"}[
                item.fits
            ]
            for item in levers
        )
        of_what = " of the tensors" if any(item.fits is None for item in levers) else ""
        super().__init__(
            f"{level if ' ' in level else level.upper()} is too small{f' for {what}' if what else ''}: "
            f"{required_bytes} B required, "
            f"{available_bytes} B available, {self.missing_bytes} B missing"
            + (f"\n  largest contributors:{listing}" if listing else "")
            + (
                f"\n  what each of these changes alone would save{of_what}, with a new memory plan:{tried}"
                if tried
                else ""
            ),
            where=where,
            cure=cure,
        )

    @property
    def missing_bytes(self) -> int:
        """Bytes that are missing."""
        return self.required_bytes - self.available_bytes

    @property
    def largest(self) -> tuple[Contributor, ...]:
        """The largest contributors, largest first."""
        return tuple(sorted(self.contributors, key=lambda item: -item.size_bytes)[:MAX_CONTRIBUTORS])

    def but(self, **other: Any) -> DoesNotFitError:
        """The same report with another `where` or `cure`, or with the `levers` that were tried."""
        said = {key: getattr(self, key) for key in ("where", "what", "contributors", "levers", "cure")}
        return DoesNotFitError(self.level, self.required_bytes, self.available_bytes, **said | other)

    def as_dict(self) -> dict[str, object]:
        """The report as a plain object, for ``--json``; sizes in bytes."""
        return {
            "error": "does not fit",
            "exit_code": self.exit_code,
            "level": self.level,
            "where": self.where,
            "required_bytes": self.required_bytes,
            "available_bytes": self.available_bytes,
            "missing_bytes": self.missing_bytes,
            "contributors": [asdict(item) for item in self.largest],
            "tried_changes": [asdict(item) for item in self.levers],
            "remedy": self.cure,
        }


class DeadlockError(PulptrainError):
    """The simulation has no event left but the program has not ended.

    `waiting` holds pairs (hierarchical name of the process, what it waits for).
    """

    exit_code = 4

    def __init__(self, time_cycles: int, waiting: tuple[tuple[str, str], ...]) -> None:
        self.time_cycles = time_cycles
        self.waiting = waiting
        listing = "".join(f"\n    {who} waits for {what}" for who, what in waiting)
        super().__init__(f"deadlock at cycle {time_cycles}: no module can continue{listing}")


class RaceError(PulptrainError):
    """Two accesses to the same bytes overlap in time and at least one writes."""

    exit_code = 4
