"""The KINDs of measured cases: what columns each has, who predicts it, how its table is grouped."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from configs.errors import InputError
from configs.suggest import suggestion
from scheduler.validation import dma, layer, loop, mm, tiled, tiled_layers
from scheduler.validation.cases import Case, Column
from scheduler.validation.prediction import Prediction


@dataclass(frozen=True, slots=True)
class Kind:
    """One KIND; `groups` are the columns its table is grouped by unless the user says otherwise."""

    name: str
    columns: tuple[Column, ...]
    predict: Callable[[Case], Prediction]
    groups: tuple[str, ...]


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


def kind_named(name: str) -> Kind:
    """The KIND of that name. Raises InputError."""
    kind = KINDS.get(name)
    if kind is None:
        raise InputError(
            f"unknown kind of cases '{name}'", where="validate", cure=suggestion(name, tuple(KINDS))
        )
    return kind
