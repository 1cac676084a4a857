# SPDX-License-Identifier: Apache-2.0
"""Measured cycles beside those of a run: what is off, by layer and by op, and what has no counterpart."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from configs.errors import InputError
from configs.suggest import suggestion
from configs.values import Struct
from traces.compared.log import ITERATION, OPTIMIZER, TRAIN, Measured
from traces.compared.strips import Strip
from traces.text_table import Table, change, counted, first_line_repr, wrapped
from traces.totals import base_step, collapsed_names, layer_of, op_name
from traces.why import check_causes

Summary = Mapping[str, Any]

BACKWARD = ("IG", "WG", "BPTT")
"""Steps that a measurement of BW holds."""

TRANSFERS = ("dma_in", "dma_out", "l3", "dma_program")
"""Causes that a program whose data lie in L1 has not."""


class Residual(Struct, frozen=True):
    """Predicted and measured cycles of the ops a measurement holds.

    `layer` is that of all of them, "" if they are of several. What holds ops that finer measurements hold as
    well is not `counted` in sums and summary.
    """

    name: str
    layer: str
    ops: tuple[str, ...]
    predicted_cycles: int
    measured_cycles: int
    samples: int
    where: str
    counted: bool
    within_percent: float | None = None
    """Of the prediction, within which 95 % of what is measured lies; of several ops the mean of theirs, as if
    all were off alike. None where nothing measured compares."""

    @property
    def within_bar(self) -> bool | None:
        """Whether what was measured lies within the error bar of the prediction; None if there is none."""
        if self.within_percent is None:
            return None
        return 100 * abs(self.measured_cycles / self.predicted_cycles - 1) <= self.within_percent

    @property
    def error(self) -> float:
        """Of the prediction, as a share of what was measured."""
        return self.predicted_cycles / self.measured_cycles - 1


class Residuals(Struct, frozen=True):
    """A run beside a log, in the order of the run.

    `unmatched` are measurements that no op goes by the name of, `unmeasured` the ops that none holds, with
    their cycles.
    """

    model: str
    run: str
    log: str
    rows: tuple[Residual, ...]
    unmatched: tuple[Measured, ...]
    unmeasured: Mapping[str, int]

    @property
    def counted(self) -> tuple[Residual, ...]:
        """Rows that hold no op twice."""
        return tuple(row for row in self.rows if row.counted)

    @property
    def predicted_cycles(self) -> int:
        """Of all ops with a measurement."""
        return sum(row.predicted_cycles for row in self.counted)

    @property
    def measured_cycles(self) -> int:
        """Of the same."""
        return sum(row.measured_cycles for row in self.counted)

    @property
    def error(self) -> float:
        """Of the sum."""
        return self.predicted_cycles / self.measured_cycles - 1

    @property
    def median_error(self) -> float:
        """Median of the errors of the rows, without signs."""
        return median(abs(row.error) for row in self.counted)

    @property
    def worst(self) -> Residual:
        """The row that is furthest off."""
        return max(self.counted, key=lambda row: abs(row.error))

    def is_above(self, percent: float) -> bool:
        """Whether the sum is off by so much, either way."""
        return 100 * abs(self.error) > percent

    def strips(self) -> list[Strip]:
        """What is predicted and what was measured, each a strip."""
        steps = [(row.name, row.name.rpartition(".")[2]) for row in self.counted]
        cycles = {
            "predicted": [row.predicted_cycles for row in self.counted],
            "measured": [row.measured_cycles for row in self.counted],
        }
        return [
            Strip(label, [(*step, each) for step, each in zip(steps, samples, strict=True)], {})
            for label, samples in cycles.items()
        ]

    def as_dict(self) -> dict[str, Any]:
        """What ``compare RUN LOG --json`` prints."""
        return {
            "model": self.model,
            "runs": [self.run, self.log],
            "predicted": self.predicted_cycles,
            "measured": self.measured_cycles,
            "error_percent": 100 * self.error,
            "median_percent": 100 * self.median_error,
            "worst": self.worst.name,
            "rows": [
                {
                    "op": row.name,
                    "ops": list(row.ops),
                    "predicted": row.predicted_cycles,
                    "measured": row.measured_cycles,
                    "error_percent": 100 * row.error,
                    "samples": row.samples,
                    "where": row.where,
                    "counted": row.counted,
                    "within_percent": row.within_percent,
                    "within_bar": row.within_bar,
                }
                for row in self.rows
            ],
            "unmatched_rows": [
                {"name": item.name, "measured": item.cycles, "where": item.where} for item in self.unmatched
            ],
            "unmeasured_ops": [{"op": name, "predicted": cycles} for name, cycles in self.unmeasured.items()],
        }

    __repr__ = first_line_repr

    def __str__(self) -> str:
        return "\n".join(self.lines(100, 10))

    def lines(self, width: int, top: int) -> list[str]:
        """Summary, residuals by layer, the `top` that differ most, and what has no counterpart."""
        sums = f"{self.predicted_cycles:,} cycles predicted, {self.measured_cycles:,} measured"
        off = f"median error {self.median_error:.1%}, worst {change(self.worst.error)}% in {self.worst.name}"
        lines = wrapped(f"{self.model}: {sums} ({change(self.error)}%); {off}{self._in_bars()}", width)
        for table in (self._by_layer(), self._by_row(top)):
            lines += ["", *table.lines(width)]
        if self.unmatched:
            names = ", ".join(f"{item.name} ({item.where.rpartition(':')[2]})" for item in self.unmatched)
            lines += ["", *wrapped(f"measured, but not an op of the run (line): {names}", width)]
        if self.unmeasured:
            cycles = sum(self.unmeasured.values())
            names = ", ".join(collapsed_names(self.unmeasured))
            text = f"not measured ({cycles:,} cycles predicted): {names}"
            lines += ["", *wrapped(text, width)]
        return lines

    def _in_bars(self) -> str:
        """How many measurements lie within the error bars of what is predicted; "" where no bar is known."""
        found = [row for row in self.counted if row.within_bar is not None]
        if not found:
            return ""
        beyond = [row.name for row in found if not row.within_bar]
        without = len(self.counted) - len(found)
        rest = f", {len(beyond)} beyond it ({', '.join(collapsed_names(beyond))})" if beyond else ""
        rest += f", {without} without an error bar" if without else ""
        rows = counted(len(self.counted), "row")
        return f"; {rows}: {len(found) - len(beyond)} within the error bar{rest}"

    def _by_layer(self) -> Table:
        sums: dict[str, list[int]] = {}
        for row in self.counted:
            both = sums.setdefault(row.layer or "several layers", [0, 0])
            both[0] += row.predicted_cycles
            both[1] += row.measured_cycles
        rows = [_cells(name, *both) for name, both in sums.items()]
        return _table("layer", [*rows, _cells("total", self.predicted_cycles, self.measured_cycles)])

    def _by_row(self, top: int) -> Table:
        def difference(row: Residual) -> int:
            return -abs(row.predicted_cycles - row.measured_cycles)

        ordered = sorted(self.rows, key=difference)
        rows = [
            [
                *_cells(row.name, row.predicted_cycles, row.measured_cycles),
                _bar(row),
                f"median of {row.samples}" if row.samples > 1 else "",
                "" if row.counted else "not part of the total",
            ]
            for row in ordered[:top]
        ]
        if rest := ordered[top:]:
            predicted, measured = (
                sum(row.predicted_cycles for row in rest),
                sum(row.measured_cycles for row in rest),
            )
            rows.append([*_cells(counted(len(rest), "other"), predicted, measured), "", "", ""])
        return _table("differ most", rows, "error bar", "samples", "")


def _bar(row: Residual) -> str:
    """The error bar of a row, and whether it was left."""
    if row.within_percent is None:
        return ""
    return f"{row.within_percent:.1f}%" + ("" if row.within_bar else ", beyond")


_HEADS = ("predicted", "measured", "difference", "error")


def _table(name: str, rows: Sequence[Sequence[str]], *more: str) -> Table:
    return Table((name, *_HEADS, *more), rows)


def _cells(name: str, predicted: int, measured: int) -> list[str]:
    difference = predicted - measured
    return [
        name,
        f"{predicted:,}",
        f"{measured:,}",
        f"{difference:+,}",
        f"{change(predicted / measured - 1)}%",
    ]


def residuals(
    summary: Summary, measured: Iterable[Measured], run: str, log: str, *, in_l1: bool = False
) -> Residuals:
    """A run beside what was measured; `run` and `log` are what they are called.

    With `in_l1` the predictions are without the cycles in which cores wait for transfers or program them:
    what counters say of a program whose data lie in L1.

    Raises InputError for a run that does not say its ops, and if no name of the log is one of the run.
    """
    check_causes(summary, run)
    by_name = _names(summary, in_l1)
    rows: list[tuple[_Held, Measured]] = []
    unmatched = []
    icache = str(summary.get("icache", "warm"))
    for item in (each.like(icache) for each in measured):
        held = by_name.get(_plain(f"{item.name}.FW")) if item.node else None
        held = held or by_name.get(_plain(item.name))
        if held is None:
            unmatched.append(item)
        else:
            rows.append((held, item))
    if not rows:
        raise InputError(
            f"model '{summary['model']}' does not have the ops of the log: "
            f"{', '.join(item.name for item in unmatched[:3])}",
            where=log,
            cure=suggestion(unmatched[0].name, known_names(summary)),
        )
    taken: set[int] = set()
    counted = set()
    for place in sorted(range(len(rows)), key=lambda place: len(rows[place][0].ops)):
        if taken.isdisjoint(rows[place][0].ops):
            taken.update(rows[place][0].ops)
            counted.add(place)
    ops = summary["ops"]
    order = sorted(range(len(rows)), key=lambda place: (rows[place][0].ops, place))
    return Residuals(
        str(summary["model"]),
        run,
        log,
        tuple(_residual(ops, *rows[place], place in counted) for place in order),
        tuple(unmatched),
        {op_name(op): _cycles(op, summary, in_l1) for at, op in enumerate(ops) if at not in taken},
    )


def known_names(summary: Summary) -> list[str]:
    """What a measurement may be called: every op of a run, in order."""
    return [op_name(op) for op in summary["ops"]]


class _Held(Struct, frozen=True):
    """What a name stands for: ops by number; `cycles` of them, or of the whole iteration."""

    label: str
    ops: tuple[int, ...]
    cycles: int


def _residual(ops: Sequence[Summary], held: _Held, measured: Measured, counted: bool) -> Residual:
    layers = {layer_of(ops[number]) for number in held.ops}
    names = tuple(op_name(ops[number]) for number in held.ops)
    return Residual(
        names[0] if len(names) == 1 else held.label,
        layers.pop() if len(layers) == 1 else "",
        names,
        held.cycles,
        measured.cycles,
        len(measured.samples),
        measured.where,
        counted,
        _within([ops[number] for number in held.ops]),
    )


def _within(ops: Sequence[Summary]) -> float | None:
    """The bar of ops together; None if one of them has none."""
    bars = [op.get("within_percent") for op in ops]
    cycles = sum(int(op["cycles"]) for op in ops)
    if not cycles or not all(isinstance(bar, int | float) for bar in bars):
        return None
    return sum(float(bar or 0) * int(op["cycles"]) for bar, op in zip(bars, ops, strict=True)) / cycles


def _cycles(item: Summary, run: Summary, in_l1: bool) -> int:
    """Of an op, or of the run."""
    waits = sum(item["causes"][cause] for cause in TRANSFERS) if in_l1 else 0
    return int(item["cycles"] - round(waits / max(run["cores"], 1)))


def _names(summary: Summary, in_l1: bool) -> dict[str, _Held]:
    """What every name stands for, without case and signs."""
    ops = summary["ops"]
    layers = dict.fromkeys(layer_of(op) for op in ops if base_step(op) == "FW")
    numbers = {layer: number for number, layer in enumerate(layers)}
    whole = _Held(ITERATION, tuple(range(len(ops))), _cycles(summary, summary, in_l1))
    held = {_plain(ITERATION): whole}
    groups: dict[str, tuple[str, dict[int, int]]] = {}
    for number, op in enumerate(ops):
        of_op = _cycles(op, summary, in_l1)
        held[_plain(op_name(op))] = _Held(op_name(op), (number,), of_op)
        for name, label in _groups_of(op, numbers):
            groups.setdefault(_plain(name), (label, {}))[1][number] = of_op
    for name, (label, cycles) in groups.items():
        held.setdefault(name, _Held(label, tuple(cycles), sum(cycles.values())))
    return held


def _groups_of(op: Summary, numbers: Mapping[str, int]) -> Iterator[tuple[str, str]]:
    """Names that hold an op and maybe others, and what they are shown as.

    PULP-TrainLib numbers layers from 0 and has those only that compute something forward.
    """
    layer, step = layer_of(op), base_step(op)
    of_layer = {layer: layer} | ({f"layer {numbers[layer]}": layer} if layer in numbers else {})
    yield from of_layer.items()
    for each in (step, "BW") if step in BACKWARD else (step,):
        yield each, each
        for name in of_layer:
            yield f"{name}.{each}", f"{layer}.{each}"
    yield (OPTIMIZER, "UPD") if step == "UPD" else (TRAIN, "all but UPD")


def _plain(name: str) -> str:
    """A name as compilers mangle it: Deeploy makes ``node_0_conv_Conv`` of ``/node 0/conv/Conv``."""
    return re.sub(r"[\W_]+", "_", name.casefold()).strip("_")
