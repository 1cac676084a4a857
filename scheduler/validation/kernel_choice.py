"""What picking the kernel with the fewest predicted cycles costs, choice by choice, on measured matmuls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scheduler.validation.statistics import Result, both_samples, grouped

SAME_CHOICE = ("codegen", "dtype", "n", "k", "m", "trans_b", "cores", "bank_conflicts", "fpus")
"""Rows equal in these differ by kernel only."""


@dataclass(frozen=True, slots=True)
class KernelChoice:
    """The kernels of one shape, team and configuration: the predicted fastest against the measured fastest.

    `regret_percent` is what the chosen one takes more than the best, both by the mean of the two samples.
    `quiet` is whether two runs can hardly differ: one core, or private FPUs without bank conflicts.
    """

    chosen: str
    best: str
    kernels: int
    regret_percent: float
    quiet: bool


def kernel_choices(results: Sequence[Result]) -> list[KernelChoice]:
    """All choices among two kernels or more, in order of the rows. Equal predictions: the first row."""
    choices = []
    for rows in grouped(results, SAME_CHOICE).values():
        if len({row.case.text("kernel") for row in rows}) < 2:
            continue
        chosen = min(rows, key=lambda row: row.prediction.cycles)
        best = min(rows, key=both_samples)
        case = chosen.case
        alone = case.number("cores") == 1
        undisturbed = case.text("fpus") == "private" and case.number("bank_conflicts") == 0
        choices.append(
            KernelChoice(
                chosen.case.text("kernel"),
                best.case.text("kernel"),
                len(rows),
                100.0 * (both_samples(chosen) / both_samples(best) - 1.0),
                alone or undisturbed,
            )
        )
    return choices


def share_within(choices: Sequence[KernelChoice], percent: float) -> float:
    """Share of the choices, from 0 to 1, whose regret is at most `percent`. There must be a choice."""
    return sum(choice.regret_percent <= percent for choice in choices) / len(choices)
