# SPDX-License-Identifier: Apache-2.0
"""Figures of one op of a run, and of several added up."""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from shutil import get_terminal_size
from typing import Any

from configs.errors import InputError, install_cure
from traces.files.json_text import json_text
from traces.report import totals_table
from traces.text_table import first_line_repr
from traces.totals import Total, layer_of, op_name, totals


class Summarised:
    """What a command came to; `summary` is what it prints with ``--json``."""

    def __init__(self, summary: Mapping[str, Any]) -> None:
        self.summary: Mapping[str, Any] = summary
        """All figures, with the keys of ``--json``."""

    def to_json(self) -> str:
        """The summary as ``--json`` prints it."""
        return json_text(self.summary)

    __repr__ = first_line_repr

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"


WIDTH = 100
"""Columns of what is printed where there is no terminal."""


def text_width() -> int:
    """Columns of the terminal."""
    return get_terminal_size((WIDTH, 50)).columns


@dataclass(frozen=True, slots=True)
class Stalls:
    """Core-cycles in which no instruction was issued, by reason (the words of `traces.events.STALLS`)."""

    load_use: int = 0
    multicycle: int = 0
    misaligned: int = 0
    fpu: int = 0
    divider: int = 0
    branch: int = 0
    icache: int = 0
    bank_conflict: int = 0
    l2_access: int = 0
    dma_wait: int = 0
    dma_program: int = 0
    barrier: int = 0
    fork: int = 0
    offload: int = 0
    idle: int = 0

    def __repr__(self) -> str:
        return f"Stalls({', '.join(f'{word}={count}' for word, count in self.as_dict().items() if count)})"

    @property
    def total(self) -> int:
        """Of all reasons."""
        return sum(self.as_dict().values())

    def as_dict(self) -> dict[str, int]:
        """By word, zeros too."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Peak:
    """Most bytes of each memory that are in use at a time."""

    l1: int = 0
    l2: int = 0
    l3: int = 0


@dataclass(frozen=True, slots=True)
class OpResult:
    """One op: a step of a layer. `stalls` and `busy_cycles` are core-cycles, `cycles` those of the cluster.

    `tile` is the size of a tile by dimension, those of `loop_order` outermost first; `runs_per_update` says
    how often it runs in an update.
    """

    name: str
    layer: str
    step: str
    primitive: str
    kernel: str
    tile: Mapping[str, int]
    loop_order: tuple[str, ...]
    tiles: int
    runs_per_update: int
    cycles: int
    macs: int
    bytes_in: int
    bytes_out: int
    instructions: int
    busy_cycles: int
    core_cycles: int
    stalls: Stalls

    def __repr__(self) -> str:
        return f"OpResult({self.name}: {self.cycles:,} cycles, {self.kernel or self.primitive})"

    @property
    def mac_per_cycle(self) -> float:
        """Multiply-accumulates per cycle; 0 for an op without any."""
        return self.macs / self.cycles if self.cycles else 0.0

    def row(self) -> dict[str, Any]:
        """One flat row of a table, stalls as ``stall_idle_cycles`` and the like."""
        row = {
            key: value for key, value in asdict(self).items() if key not in ("stalls", "tile", "loop_order")
        }
        row["tile"] = " ".join(f"{name}:{size}" for name, size in self.tile.items())
        row["mac_per_cycle"] = self.mac_per_cycle
        return row | {f"stall_{word}_cycles": count for word, count in self.stalls.as_dict().items()}


def op_of(entry: Mapping[str, Any]) -> OpResult:
    """The op of an entry of `ops` of a summary."""
    words = Stalls().as_dict()
    plain = {key: entry[key] for key in OpResult.__slots__ if key in entry}
    made = {
        "name": op_name(entry),
        "layer": layer_of(entry),
        "tile": dict(entry["tile"]),
        "loop_order": tuple(entry["loop_order"]),
        "runs_per_update": entry.get("runs_per_update", 1),
        "stalls": Stalls(**{word: count for word, count in entry["stalls"].items() if word in words}),
    }
    return OpResult(**{**plain, **made})


class Totals(Sequence[Total]):
    """Ops of a run added up by layer, step or kernel; `totals["conv1"]` is a row, printed it is a table."""

    def __init__(self, summary: Mapping[str, Any], by: str) -> None:
        self._summary, self._by = summary, by
        self._rows = totals(summary["ops"], by)

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[Total]:
        return iter(self._rows)

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, str):
            by_name = {row.name: row for row in self._rows}
            if key not in by_name:
                raise unknown(key, by_name, f"the {self._by}s")
            return by_name[key]
        return self._rows[key]

    def to_pandas(self) -> Any:
        """A pandas data frame, one row each. Raises `InputError` without pandas."""
        figures = ("ops", "cycles", "macs", "tiles", "bytes_in", "bytes_out")
        rows = []
        for row in self._rows:
            entry = {self._by: row.name, **{key: getattr(row, key) for key in figures}}
            stalls = Stalls(**row.stalls).as_dict()
            rows.append(entry | {f"stall_{word}_cycles": count for word, count in stalls.items()})
        return data_frame(rows)

    def __str__(self) -> str:
        return "\n".join(totals_table(self._summary, self._by).lines(text_width()))

    def __repr__(self) -> str:
        cycles = sum(row.cycles for row in self._rows)
        return f"Totals({self._summary['model']} by {self._by}: {len(self)} rows, {cycles:,} cycles)"

    def _repr_html_(self) -> str:
        return totals_table(self._summary, self._by).html()


def unknown(name: str, known: Mapping[str, object], where: str) -> InputError:
    """The error for a name that is none of these."""
    from configs.suggest import suggestion

    return InputError(f"the run has no {name!r}", where=where, cure=suggestion(name, known))


def data_frame(rows: Sequence[Mapping[str, Any]]) -> Any:
    """A pandas data frame of rows. Raises `InputError` where pandas is not installed."""
    try:
        import pandas  # optional, and slow to import
    except ImportError:
        raise InputError("pandas is not installed", cure=install_cure("pandas")) from None
    return pandas.DataFrame([dict(row) for row in rows])
