# SPDX-License-Identifier: Apache-2.0
"""The KINDs of measured cases: what columns each has, who predicts it, how its table is grouped."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from configs.errors import ConfigError
from configs.suggest import check_known
from configs.values import Struct, replace
from scheduler.validation.rows import (
    contention,
    dma,
    icache,
    layer,
    loop,
    micro,
    mm,
    overlap,
    refill,
    sequence,
    steps,
    tiled,
    tiled_layers,
)
from scheduler.validation.rows.cases import CYCLES, Case, Column, Selection, read_cases
from scheduler.validation.rows.prediction import Prediction

MEASURE = "measure"
"""The column by which the measures of a row are told apart; no file has it, `Kind.read` adds it."""


class Measure(Struct, frozen=True):
    """One measured time of a row: the column it is in, and who predicts it.

    `name` follows the id of the row; it is empty where a row has one time only.
    """

    predict: Callable[[Case], Prediction]
    column: str = CYCLES.name
    name: str = ""


class Kind(Struct, frozen=True):
    """One KIND; `groups` are the columns its table is grouped by unless the user says otherwise.

    A row with several `measures` is a case for each of them that it has, ``id:measure``. `named_by` are the
    columns that name a row.
    """

    name: str
    columns: tuple[Column, ...]
    measures: tuple[Measure, ...]
    groups: tuple[str, ...]
    named_by: tuple[str, ...] = ("id",)

    def measure_of(self, case: Case) -> Measure:
        """The measure a case is about."""
        wanted = case.cells[MEASURE] if len(self.measures) > 1 else ""
        return next(measure for measure in self.measures if measure.name == wanted)

    def read(
        self,
        path: str | Path,
        selections: Sequence[Selection] = (),
        unreadable: list[ConfigError] | None = None,
    ) -> tuple[Case, ...]:
        """The cases of a file, selected by its columns and, where rows have several, by `MEASURE`.

        Arguments and errors are those of `read_cases`.
        """
        if len(self.measures) == 1:
            return read_cases(path, self.columns, selections, self.named_by, unreadable)
        measures = [item for item in selections if item.column == MEASURE]
        others = [item for item in selections if item.column != MEASURE]
        rows = read_cases(path, self.columns, others, self.named_by, unreadable)
        if rows and MEASURE in rows[0].cells:
            raise ConfigError(
                f"kind {self.name!r} of cases adds a column '{MEASURE}', but the file already has one",
                where=str(path),
                cure="rename the column",
            )
        columns = {measure.name: measure.column for measure in self.measures}
        names = tuple(columns)
        for value in (value for item in measures for value in item.values):
            check_known(value, names, f"kind {self.name!r} of cases has no measure '{value}'", "--where")
        chosen = [name for name in names if all(name in item.values for item in measures)]
        return tuple(
            replace(row, id=f"{row.id}:{name}", cells={**row.cells, MEASURE: name})
            for row in rows
            for name in chosen
            if row.cells[columns[name]]
        )


_MACHINE = ("fpus", "bank_conflicts")

KINDS = {
    kind.name: kind
    for kind in (
        Kind("mm", mm.COLUMNS, (Measure(mm.predict),), ("codegen", "cores", *_MACHINE)),
        Kind("loop", loop.COLUMNS, (Measure(loop.predict),), ("kernel", "cores", "bank_conflicts")),
        Kind("layer", layer.COLUMNS, (Measure(layer.predict),), ("primitive", "step", "cores")),
        Kind("tiled", tiled.COLUMNS, (Measure(tiled.predict),), ("kernel", "buffering", *_MACHINE)),
        Kind(
            "tiled-layers", tiled_layers.COLUMNS, (Measure(tiled_layers.predict),), ("workload", "buffering")
        ),
        Kind("dma", dma.COLUMNS, (Measure(dma.predict),), ("test", "direction", "bank_conflicts")),
        Kind(
            "overlap",
            overlap.COLUMNS,
            (
                Measure(overlap.predict_kernel, name="kernel"),
                Measure(overlap.predict_transfers, "cycles_dma_with_compute", "transfers"),
            ),
            (MEASURE, "cores", *_MACHINE),
        ),
        Kind(
            "dma-contention",
            contention.COLUMNS,
            (Measure(contention.predict, "dma_total_cycles"),),
            ("dir", "traffic", "bank_conflicts"),
            ("dir", "bytes", "traffic", "n_traffic_cores", "bank_conflicts"),
        ),
        Kind(
            "dma-contention-rtl",
            contention.CORE_COLUMNS,
            (
                Measure(contention.predict, "dma_total_cycles", "transfer"),
                Measure(contention.predict_core, "core1_cycles_in_traffic_loop", "core"),
            ),
            (MEASURE, "dir", "traffic"),
            ("dir", "bytes", "traffic", "n_traffic_cores", "bank_conflicts"),
        ),
        *(
            Kind(
                name,
                icache.RTL_COLUMNS if rtl else icache.COLUMNS,
                (
                    Measure(partial(icache.predict_cold, rtl=rtl), "cold_iter0_max", "cold"),
                    Measure(partial(icache.predict_warm, rtl=rtl), "iter3_max", "warm"),
                ),
                (MEASURE, "cores"),
                ("cores", "n_nops"),
            )
            for name, rtl in (("icache", False), ("icache-rtl", True))
        ),
        Kind(
            "refill",
            refill.COLUMNS,
            (Measure(refill.predict),),
            ("group", "code", "state"),
            ("group", "prefetch", "cores", "code", "lines", "offset", "state", "dma", "distance"),
        ),
        Kind(
            "sequence",
            sequence.COLUMNS,
            (
                Measure(sequence.predict, "total_cycles", "whole"),
                Measure(sequence.predict_warm, "warm_total_cycles", "warm"),
            ),
            (MEASURE, "buffering", "kernel_loop_cycles"),
        ),
        Kind(
            "steps",
            steps.COLUMNS,
            (
                Measure(steps.predict_later, steps.LATER, "later"),
                Measure(steps.predict_first, steps.FIRST, "first"),
                Measure(steps.predict_counted, steps.LATER, "counted"),
                Measure(steps.predict_warm, steps.LATER, "warm"),
            ),
            (MEASURE, "model", "buffering", "cores"),
            ("model", "buffering", "cores", "op"),
        ),
        Kind(
            "micro",
            micro.COLUMNS,
            (Measure(micro.predict, micro.MEASURED),),
            ("group", "cores"),
            ("group", "name", "cores", "n", *_MACHINE),
        ),
    )
}
"""The KINDs of `pulptrain validate`."""


def kind_named(name: str) -> Kind:
    """The KIND of that name. Raises InputError."""
    check_known(name, KINDS, f"unknown kind of cases '{name}'", "validate")
    return KINDS[name]
