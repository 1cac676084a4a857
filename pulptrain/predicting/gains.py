# SPDX-License-Identifier: Apache-2.0
"""The gains of all what-ifs, predicted and on request simulated, as text and as JSON."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from configs.errors import InputError
from configs.units import parse_size
from configs.values import replace
from pulptrain.inputs.settings import Settings, code_start
from pulptrain.predicting.changes import what_ifs
from pulptrain.predicting.evidence import Evidence
from pulptrain.process.progress import NOBODY, Teller
from pulptrain.running.machine import Prepared
from traces.text_table import Table, first_line_repr


@dataclass(frozen=True, slots=True)
class Gain:
    """A what-if and the cycles an update would take, predicted and simulated (None: not asked)."""

    name: str
    about: str
    predicted_cycles: int
    simulated_cycles: int | None


@dataclass(frozen=True, slots=True)
class Gains:
    """What was asked of one run of `cycles`; printed it is a table, the largest predicted gain first."""

    model: str
    soc: str
    cycles: int
    gains: tuple[Gain, ...]

    def lines(self, width: int) -> list[str]:
        """The table, at most `width` wide."""
        head = f"{self.model} on {self.soc}: {self.cycles:,} cycles"
        heads = ("what if", "cycles gained", "share", "simulated", "share ", "error", "that is")
        rows = [self._row(gain) for gain in sorted(self.gains, key=lambda gain: gain.predicted_cycles)]
        return [head, "", *Table(heads, rows, ("that is",)).lines(width)]

    def _row(self, gain: Gain) -> list[str]:
        predicted = self.cycles - gain.predicted_cycles
        cells = [gain.name, f"{predicted:,}", f"{predicted / self.cycles:.1%}"]
        if gain.simulated_cycles is None:
            return [*cells, "", "", "", gain.about]
        simulated = self.cycles - gain.simulated_cycles
        error = f"{abs(predicted - simulated) / abs(simulated):.0%}" if simulated else ""
        return [*cells, f"{simulated:,}", f"{simulated / self.cycles:.1%}", error, gain.about]

    __repr__ = first_line_repr

    def __str__(self) -> str:
        return "\n".join(self.lines(120))

    def as_dict(self) -> dict[str, Any]:
        """The same for machines; `simulated_cycles` is null where nothing was simulated."""
        return {
            "model": self.model,
            "soc": self.soc,
            "cycles": self.cycles,
            "what_if": [asdict(gain) for gain in self.gains],
        }


def gains_of(
    prepare: Callable[[Settings], Prepared],
    settings: Settings,
    *,
    more_l1: int | str | None = None,
    verify: bool = False,
    teller: Teller = NOBODY,
) -> Gains:
    """Simulate an update and predict what every change would gain; with `verify` simulate each as well.

    `more_l1` is by how much L1 is to grow, by as much as there is if it is not given. With a schedule, whose
    tiles are chosen for its L1, that is not asked. Raises the errors of
    `prepare`, and `InputError` for an L1 that does not grow.
    """
    more = parse_size(more_l1, where="--more-l1") if more_l1 is not None else None
    if more == 0:
        raise InputError("the size is 0, but must be above 0", where="--more-l1", cure="write e.g. 64KiB")
    if more is not None and settings.schedule is not None:
        raise InputError(
            "--schedule sets the tiles, so more L1 cannot change them",
            where="--more-l1 with --schedule",
            cure="remove one of the two options",
        )
    teller.stage("planning and simulating")
    prepared = prepare(settings)
    more = more or prepared.timing.l1.size_bytes
    larger = replace(settings, l1=prepared.timing.l1.size_bytes + more)  # type: ignore[call-arg]  # of a table
    evidence = Evidence(prepared, code_start(settings), lambda: prepare(larger), more)
    gains = []
    for what_if in what_ifs(evidence, more_l1=settings.schedule is None):
        teller.stage(f"what if: {what_if.about}")
        simulated = what_if.simulated() if verify else None
        gains.append(Gain(what_if.name, what_if.about, what_if.predicted(), simulated))
    return Gains(prepared.schedule.graph.name, prepared.timing.name, evidence.cycles, tuple(gains))
