# SPDX-License-Identifier: Apache-2.0
"""Runs of one model on different numbers of cores: cycles of every step and op, and the speed-up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from configs.errors import InputError
from configs.values import Struct
from traces.text_table import Table, counted, first_line_repr, wrapped
from traces.totals import base_step, op_name, summed
from traces.why import check_causes


class SpeedUp(Struct, frozen=True):
    """Cluster cycles by name, an entry per number of `cores`, the fewest first; 0: a run has no such op."""

    model: str
    soc: str
    cores: tuple[int, ...]
    cycles: tuple[int, ...]
    steps: Mapping[str, tuple[int, ...]]
    ops: Mapping[str, tuple[int, ...]]

    def as_dict(self) -> dict[str, Any]:
        """What ``plot --what speed-up --json`` prints of it."""
        rows = [
            {"op": name, "cycles": list(cycles), "speedup": speed_up(cycles)}
            for name, cycles in self.ops.items()
        ]
        return {
            "model": self.model,
            "cores": list(self.cores),
            "cycles": list(self.cycles),
            "speedup": speed_up(self.cycles),
            "rows": rows,
        }

    __repr__ = first_line_repr

    def __str__(self) -> str:
        return "\n".join(self.lines(100, 10))

    def lines(self, width: int, top: int) -> list[str]:
        """Tables of the steps and of the `top` ops with most cycles, at most `width` wide.

        Efficiency is the speed-up over that of an op whose cycles fall as the cores grow.
        """
        cores = " to ".join(f"{count}" for count in (self.cores[0], self.cores[-1]))
        gain = self.cycles[0] / self.cycles[-1]
        lines = wrapped(f"{self.model} on {self.soc}: {gain:.2f} times as fast from {cores} cores", width)
        ordered = sorted(self.ops.items(), key=lambda item: -item[1][-1])
        rest = [cycles for _, cycles in ordered[top:]]
        shown = dict(ordered[:top])
        if rest:
            shown[counted(len(rest), "other")] = tuple(sum(column) for column in zip(*rest, strict=True))
        for head, rows in (("step", {**self.steps, "total": self.cycles}), ("largest ops", shown)):
            columns = [f"{count} core{'s' if count > 1 else ''}" for count in self.cores]
            cells = [self._row(name, cycles) for name, cycles in rows.items()]
            lines += ["", *Table((head, *columns, "speed-up", "efficiency"), cells).lines(width)]
        return lines

    def _row(self, name: str, cycles: Sequence[int]) -> list[str]:
        gain = speed_up(cycles)[-1]
        ideal = self.cores[-1] / self.cores[0]
        shares = ["-", "-"] if gain is None else [f"{gain:.2f}x", f"{gain / ideal:.0%}"]
        return [name, *(f"{count:,}" if count else "-" for count in cycles), *shares]


def speed_up(cycles: Sequence[int]) -> list[float | None]:
    """How many times as fast as the first each is; None where one has no cycles."""
    return [cycles[0] / count if count and cycles[0] else None for count in cycles]


def speed_up_of(summaries: Sequence[Mapping[str, Any]], names: Sequence[str]) -> SpeedUp:
    """Of summaries of runs, by the names they have in errors.

    Raises InputError for fewer than two, different models or SoCs, and two runs of as many cores.
    """
    if len(summaries) < 2:
        raise InputError(
            "a speed-up needs two runs",
            where="--what speed-up",
            cure="run `pulptrain plot RUN1 RUN2 --what speed-up`, with runs of different --cores",
        )
    first = summaries[0]
    seen: dict[int, str] = {}
    for summary, name in zip(summaries, names, strict=True):
        check_causes(summary, name)
        for key in ("model", "soc"):
            if summary[key] != first[key]:
                raise InputError(
                    f"the {key} of this run is '{summary[key]}', but that of run '{names[0]}' is "
                    f"'{first[key]}'",
                    where=name,
                    cure=f"use runs with the same {key}",
                )
        if summary["cores"] in seen:
            raise InputError(
                f"the runs '{seen[summary['cores']]}' and '{name}' have the same number of cores, "
                f"{summary['cores']}",
                where="--what speed-up",
                cure="use runs with different --cores",
            )
        seen[summary["cores"]] = name
    ordered = sorted(summaries, key=lambda summary: summary["cores"])
    return SpeedUp(
        str(first["model"]),
        str(first["soc"]),
        tuple(summary["cores"] for summary in ordered),
        tuple(summary["cycles"] for summary in ordered),
        _side_by_side([[(base_step(op), op["cycles"]) for op in summary["ops"]] for summary in ordered]),
        _side_by_side([[(op_name(op), op["cycles"]) for op in summary["ops"]] for summary in ordered]),
    )


def _side_by_side(runs: Sequence[Sequence[tuple[str, int]]]) -> dict[str, tuple[int, ...]]:
    """Sums by name, one of each run."""
    names = dict.fromkeys(name for run in runs for name, _ in run)
    sums = [summed(run) for run in runs]
    return {name: tuple(each.get(name, 0) for each in sums) for name in names}
