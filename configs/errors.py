"""The error tree: every failure a user can cause, with its exit code, its place and its cure."""

from __future__ import annotations

from dataclasses import dataclass


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


class ConfigError(InputError):
    """A configuration file or option is wrong; `where` is ``file:line`` when it comes from a file."""


class ShapeError(InputError):
    """Tensor shapes or layer attributes do not fit together; `where` names the op."""


class UnsupportedLayerError(InputError):
    """A model asks for a layer, dtype or option that has no primitive."""


@dataclass(frozen=True, slots=True)
class Contributor:
    """One buffer or tensor in a report about a memory that is too small."""

    name: str
    size_bytes: int


class DoesNotFitError(PulptrainError):
    """A memory level is too small: `required_bytes` of `available_bytes`, largest contributors, levers."""

    exit_code = 3

    def __init__(
        self,
        level: str,
        required_bytes: int,
        available_bytes: int,
        *,
        where: str | None = None,
        contributors: tuple[Contributor, ...] = (),
        cure: str | None = None,
    ) -> None:
        self.level = level
        self.required_bytes = required_bytes
        self.available_bytes = available_bytes
        self.contributors = contributors
        largest = sorted(contributors, key=lambda item: -item.size_bytes)[:10]
        listing = "".join(f"\n    {item.size_bytes:>10} B  {item.name}" for item in largest)
        gap_bytes = required_bytes - available_bytes
        super().__init__(
            f"{level.upper()} is too small: {required_bytes} B required, {available_bytes} B available, "
            f"{gap_bytes} B missing" + (f"\n  largest contributors:{listing}" if listing else ""),
            where=where,
            cure=cure,
        )


class DeadlockError(PulptrainError):
    """The simulation has no event left but the program has not ended.

    `waiting` holds pairs (hierarchical name of the process, what it waits for).
    """

    exit_code = 4

    def __init__(self, time_cycles: int, waiting: tuple[tuple[str, str], ...]) -> None:
        self.time_cycles = time_cycles
        self.waiting = waiting
        listing = "".join(f"\n    {who} waits for {what}" for who, what in waiting)
        super().__init__(f"deadlock at cycle {time_cycles}: nothing can happen any more{listing}")


class RaceError(PulptrainError):
    """Two accesses to the same bytes overlap in time and at least one writes."""

    exit_code = 4
