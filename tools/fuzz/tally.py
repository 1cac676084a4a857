# SPDX-License-Identifier: Apache-2.0
"""What became of the inputs of a run, by kind: kept in its folder, so that a run that goes on knows it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tools.fuzz.subject import Subject
from tools.fuzz.worker import Outcome

FILE = "progress.json"

KEPT_PER_DEFECT = 1
"""Inputs that are minimised and saved of each defect."""

FAILED = "failed"


@dataclass(slots=True)
class Kind:
    """Inputs of one kind: how many ended with which exit code, or failed; the slowest and the largest.

    Numbers of the slowest and of the largest input stand beside their seconds of processor time and bytes.
    """

    ends: dict[str, int] = field(default_factory=dict)
    cpu_seconds: float = 0.0
    slowest: int = -1
    slowest_cpu_seconds: float = 0.0
    largest: int = -1
    largest_memory_bytes: int = 0

    def add(self, number: int, outcome: Outcome) -> None:
        """Count one input."""
        end = FAILED if outcome.failure else str(outcome.exit_code)
        self.ends[end] = self.ends.get(end, 0) + 1
        self.cpu_seconds = round(self.cpu_seconds + outcome.cpu_seconds, 3)
        if outcome.cpu_seconds > self.slowest_cpu_seconds:
            self.slowest, self.slowest_cpu_seconds = number, round(outcome.cpu_seconds, 3)
        if outcome.memory_bytes > self.largest_memory_bytes:
            self.largest, self.largest_memory_bytes = number, outcome.memory_bytes

    def share(self, *ends: str) -> float:
        """The share of the inputs that ended in one of these ways."""
        return sum(self.ends.get(end, 0) for end in ends) / max(1, sum(self.ends.values()))


@dataclass(slots=True)
class Tally:
    """Where a run is, and what it has found: `failures` holds numbers of inputs by kind and defect.

    `drawn_from` are the kinds its inputs are drawn from: with others the same numbers are other inputs.
    """

    drawn_from: list[str]
    next: int = 0
    kinds: dict[str, Kind] = field(default_factory=dict)
    failures: dict[str, list[int]] = field(default_factory=dict)
    saved: dict[str, int] = field(default_factory=dict)

    def add(self, number: int, item: Subject, outcome: Outcome) -> bool:
        """Count one input; True if it is to be minimised and saved."""
        self.kinds.setdefault(item.kind, Kind()).add(number, outcome)
        if not outcome.failure:
            return False
        self.failures.setdefault(f"{item.kind}: {outcome.failure}", []).append(number)
        self.saved[outcome.failure] = self.saved.get(outcome.failure, 0) + 1
        return self.saved[outcome.failure] <= KEPT_PER_DEFECT

    def failed(self) -> int:
        """Inputs that failed."""
        return sum(len(numbers) for numbers in self.failures.values())

    def lines(self) -> list[str]:
        """Tables for people: by kind how many ended how, and every defect with its first input."""
        ends = sorted({end for kind in self.kinds.values() for end in kind.ends})
        head = "".join(f"{'exit ' + end if end.isdigit() else end:>8}" for end in ends)
        result = [f"{'kind':<10}{'inputs':>8}{head}{'to end':>8}{'CPU s':>8}{'slowest':>9}{'largest':>10}"]
        for name, kind in sorted(self.kinds.items()):
            counts = "".join(f"{kind.ends.get(end, 0):>8}" for end in ends)
            result.append(
                f"{name:<10}{sum(kind.ends.values()):>8}{counts}{kind.share('0'):>8.0%}{kind.cpu_seconds:>8.0f}"
                f"{kind.slowest_cpu_seconds:>7.1f} s{kind.largest_memory_bytes / 2**20:>6.0f} MiB"
            )
        for failure, numbers in sorted(self.failures.items()):
            result.append(f"{len(numbers):>6}  {failure}  (first: {min(numbers)})")
        return result


def write(tally: Tally, folder: Path) -> None:
    """Keep the tally in the folder of its run, whole or not at all."""
    beside = folder / f"{FILE}.new"
    beside.write_text(json.dumps(asdict(tally), indent=1) + "\n")
    beside.replace(folder / FILE)


def read(folder: Path, drawn_from: list[str]) -> Tally:
    """The tally of a run that goes on, or of one that begins. Raises ValueError if its inputs were others."""
    file = folder / FILE
    if not file.is_file():
        return Tally(drawn_from)
    found = json.loads(file.read_text())
    if found.get("drawn_from") != drawn_from:
        raise ValueError(f"{file} is of a run with other kinds of inputs; another --out, or remove it")
    kinds = {name: Kind(**kind) for name, kind in found.pop("kinds").items()}
    return Tally(kinds=kinds, **found)
