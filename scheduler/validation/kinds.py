"""The KINDs of measured cases: what columns each has, who predicts it, how its table is grouped."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from configs.errors import InputError
from configs.suggest import suggestion
from scheduler.validation import contention, dma, icache, layer, loop, mm, overlap, tiled, tiled_layers
from scheduler.validation.cases import Case, Column
from scheduler.validation.prediction import Prediction


@dataclass(frozen=True, slots=True)
class Kind:
    """One KIND; `groups` are the columns its table is grouped by unless the user says otherwise.

    `measured` is the column predictions are compared with, `named_by` the columns that name a row.
    """

    name: str
    columns: tuple[Column, ...]
    predict: Callable[[Case], Prediction]
    groups: tuple[str, ...]
    measured: str = "cycles"
    named_by: tuple[str, ...] = ("id",)


_MACHINE = ("fpus", "bank_conflicts")

KINDS = {
    kind.name: kind
    for kind in (
        Kind("mm", mm.COLUMNS, mm.predict, ("codegen", "cores", *_MACHINE)),
        Kind("loop", loop.COLUMNS, loop.predict, ("kernel", "cores", "bank_conflicts")),
        Kind("layer", layer.COLUMNS, layer.predict, ("primitive", "step", "cores")),
        Kind("tiled", tiled.COLUMNS, tiled.predict, ("kernel", "buffering", *_MACHINE)),
        Kind("tiled-layers", tiled_layers.COLUMNS, tiled_layers.predict, ("workload", "buffering")),
        Kind("dma", dma.COLUMNS, dma.predict, ("test", "direction", "bank_conflicts")),
    )
}
"""The KINDs of `pulptrain validate`."""

TESTED = {
    kind.name: kind
    for kind in (
        Kind(
            "overlap, kernel",
            overlap.COLUMNS,
            overlap.predict_kernel,
            ("kernel", "direction", "cores", "bank_conflicts"),
        ),
        Kind(
            "overlap, transfers",
            overlap.COLUMNS,
            overlap.predict_transfers,
            ("kernel", "direction", "cores", "bank_conflicts"),
            "cycles_dma_with_compute",
        ),
        Kind(
            "dma-contention",
            contention.COLUMNS,
            contention.predict,
            ("dir", "traffic", "bank_conflicts"),
            "dma_total_cycles",
            ("dir", "bytes", "traffic", "n_traffic_cores", "bank_conflicts"),
        ),
        Kind(
            "icache, cold", icache.COLUMNS, icache.predict_cold, ("cores",), "cold_iter0_max", icache.NAMED_BY
        ),
        Kind("icache, warm", icache.COLUMNS, icache.predict_warm, ("cores",), "iter3_max", icache.NAMED_BY),
    )
}
"""Measured sets that are on the page and in the tests, but no KIND of the command line."""


def kind_named(name: str) -> Kind:
    """The KIND of that name, also one of `TESTED`. Raises InputError."""
    kind = KINDS.get(name) or TESTED.get(name)
    if kind is None:
        raise unknown_kind(name)
    return kind


def unknown_kind(name: str) -> InputError:
    """The error of a KIND the command line does not have."""
    return InputError(
        f"unknown kind of cases '{name}'", where="validate", cure=suggestion(name, tuple(KINDS))
    )
