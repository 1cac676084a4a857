# SPDX-License-Identifier: Apache-2.0
"""Runs of one model side by side: cycles of every op and cause, what changed most, and by how much."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from configs.errors import InputError
from configs.values import Struct
from traces.causes import bound_by
from traces.compared.strips import Strip
from traces.text_table import Table, change, counted, first_line_repr, wrapped
from traces.totals import collapsed_names, op_name
from traces.why import check_causes


class ComparedOp(Struct, frozen=True):
    """Cluster cycles of an op in every run, 0 where it is not, and its core-cycles by cause."""

    name: str
    cycles: tuple[int, ...]
    causes: Mapping[str, tuple[int, ...]]


class Comparison(Struct, frozen=True):
    """Runs in the order they were given, the first being what the others are compared with.

    The cycles of all `ops` and `offload_cycles` add up to `cycles`, run by run. `causes` has core-cycles by
    what a run is bound by (`traces.causes.GROUPS`), `cores` how many cores they are of. `notes` say what else
    differs between the runs.
    """

    model: str
    names: tuple[str, ...]
    cores: tuple[int, ...]
    cycles: tuple[int, ...]
    offload_cycles: tuple[int, ...]
    causes: Mapping[str, tuple[int, ...]]
    ops: tuple[ComparedOp, ...]
    notes: tuple[str, ...] = ()

    @property
    def speedup(self) -> float:
        """Cycles of the first run over those of the last."""
        return self.cycles[0] / self.cycles[-1]

    def is_above(self, percent: float) -> bool:
        """Whether the last run takes so much more than the first."""
        return 100 * (self.cycles[-1] - self.cycles[0]) > percent * self.cycles[0]

    def strips(self) -> list[Strip]:
        """Every run as a strip of its ops."""
        return [
            Strip(
                name,
                [
                    *((op.name, op.name.rpartition(".")[2], op.cycles[at]) for op in self.ops),
                    ("offload", "", self.offload_cycles[at]),
                ],
                {cause: cycles[at] / self.cores[at] for cause, cycles in self.causes.items()},
            )
            for at, name in enumerate(self.names)
        ]

    def as_dict(self) -> dict[str, Any]:
        """What ``compare --json`` prints."""
        return {
            "model": self.model,
            "runs": list(self.names),
            "cycles": list(self.cycles),
            "speedup": self.speedup,
            "rows": [
                {
                    "op": op.name,
                    "cycles": list(op.cycles),
                    "causes": {name: list(cycles) for name, cycles in op.causes.items()},
                }
                for op in self.ops
            ],
            "offload": list(self.offload_cycles),
        }

    __repr__ = first_line_repr

    def __str__(self) -> str:
        return "\n".join(self.lines(100, 10))

    def lines(self, width: int, top: int) -> list[str]:
        """Totals, causes and the `top` ops that changed most, at most `width` wide."""
        share = change(self.cycles[-1] / self.cycles[0] - 1)
        text = f"{' -> '.join(f'{item:,}' for item in self.cycles)} cycles ({share} %"
        lines = wrapped(f"{self.model}: {text}, {self.speedup:.2f} times as fast)", width)
        lines += [line for note in self.notes for line in wrapped(note, width)]
        for table in (self._by_cause(), self._by_op(top)):
            lines += ["", *table.lines(width)]
        return lines

    def _by_cause(self) -> Table:
        per_core = {
            name: [round(item / count) for item, count in zip(cycles, self.cores, strict=True)]
            for name, cycles in self.causes.items()
        }
        rows = sorted(per_core.items(), key=lambda item: -abs(item[1][-1] - item[1][0]))
        return Table(
            ("cycles per core", *self.names, "change", ""), [_row(name, cycles) for name, cycles in rows]
        )

    def _by_op(self, top: int) -> Table:
        cycles_by_op = {op.name: op.cycles for op in self.ops}
        summed = [
            (shown, _sums([cycles_by_op[name] for name in names]))
            for shown, names in collapsed_names(cycles_by_op).items()
        ]
        summed.sort(key=lambda row: -abs(row[1][-1] - row[1][0]))
        rows = [_row(name, cycles) for name, cycles in summed[:top]]
        if summed[top:]:
            rows.append(
                _row(counted(len(summed) - top, "other"), _sums([cycles for _, cycles in summed[top:]]))
            )
        rows += [_row("offload", self.offload_cycles), _row("total", self.cycles)]
        return Table(("changed most", *self.names, "change", ""), rows)


def compared(summaries: Sequence[Mapping[str, Any]], names: Sequence[str]) -> Comparison:
    """Two or more runs, by the names they are to be shown with.

    Raises InputError for fewer, for runs of different models, and for one that does not say its causes.
    """
    if len(summaries) < 2:
        raise InputError(
            "a comparison needs two runs",
            where="compare",
            cure="use two run folders: `pulptrain compare RUN1 RUN2`",
        )
    for summary, name in zip(summaries, names, strict=True):
        check_causes(summary, name)
        if summary["model"] != summaries[0]["model"]:
            raise InputError(
                f"the model of this run is '{summary['model']}', but that of run '{names[0]}' is "
                f"'{summaries[0]['model']}'",
                where=name,
                cure="use runs of the same model",
            )
    by_run = [{op_name(op): op for op in summary["ops"]} for summary in summaries]
    ops = [
        ComparedOp(
            name,
            tuple(run[name]["cycles"] if name in run else 0 for run in by_run),
            _side_by_side([run[name]["causes"] if name in run else {} for run in by_run]),
        )
        for name in dict.fromkeys(name for run in by_run for name in run)
    ]
    cycles = tuple(summary["cycles"] for summary in summaries)
    named_cycles = _sums([op.cycles for op in ops])
    return Comparison(
        str(summaries[0]["model"]),
        tuple(names),
        tuple(summary["cores"] for summary in summaries),
        cycles,
        tuple(whole - named for whole, named in zip(cycles, named_cycles, strict=True)),
        _side_by_side([summary["causes"] for summary in summaries]),
        tuple(ops),
        _code_notes(summaries, names),
    )


def _code_notes(summaries: Sequence[Mapping[str, Any]], names: Sequence[str]) -> tuple[str, ...]:
    """Says it where not all runs began with the same code in the caches."""
    starts = [str(summary.get("icache", "warm")) for summary in summaries]
    said = ", ".join(f"{start} in {name}" for start, name in zip(starts, names, strict=True))
    return (f"instruction caches: {said}",) if len(set(starts)) > 1 else ()


def _side_by_side(causes: Sequence[Mapping[str, int]]) -> dict[str, tuple[int, ...]]:
    """By what a run is bound by, the core-cycles of every run; what is 0 in all is left out."""
    groups = [bound_by(item) if item else {} for item in causes]
    names = dict.fromkeys(name for group in groups for name in group)
    return {name: tuple(group.get(name, 0) for group in groups) for name in names}


def _sums(rows: Iterable[Sequence[int]]) -> list[int]:
    """Rows added up, run by run."""
    return [sum(column) for column in zip(*rows, strict=True)]


def _row(name: str, cycles: Sequence[int]) -> list[str]:
    more = cycles[-1] - cycles[0]
    share = f"{change(more / cycles[0])} %" if cycles[0] else "new"
    return [name, *(f"{item:,}" for item in cycles), f"{more:+,}", share if more else ""]
