# SPDX-License-Identifier: Apache-2.0
"""Cycles by name, from what a measured program has printed, or from a table.

Lines that are read, and who prints them; `docs/measured-logs.md` has an example of each:

- ``[0] cycles = N`` and ``[0] elapsed clock cycles = N``: counters of core 0, by ``STOP_STATS`` of
  PULP-TrainLib (``tests/*/stats.h`` and ``tools/TrainLib_Deployer/deployer_utils/srcfiles/stats.h``, main at
  7bfc760). They belong to the headings above them: ``Forward stats``, ``Backward stats`` of its tests
  (``tests/*/net.c``), ``FORWARD PROFILING:``, ``BACKWARD PROFILING:`` and ``Layer N`` of deployed networks
  (``net.c`` in Ex01 of the PULP-TrainLib tutorial), whose backward counters hold all gradients of a layer.
  Without a heading they are of the iteration, as in the README there. Other cores are left out.
- ``[NODE_L2][SB][n ops][Tile i] Kernel : N cycles`` with ``Pre-Kernel``, ``Post-Kernel``, and as it was until
  2025 ``Input DMA took N cycles``, ``Kernel took``, ``Output DMA took``: of every tile, by Deeploy with
  ``--profileTiling`` (``Deeploy/TilingExtension/CodeTransformationPasses/TilingPrototypes.py``).
- ``BENCH train_cycles=N opt_cycles=N``, with ``_hi`` and ``_lo`` where they are 64 bits: over all optimizer
  steps, as many as ``N_TRAIN_STEPS=`` above says, by the training harness of Deeploy
  (``DeeployTest/Platforms/*/src/deeploytraintest.c``; pull request 174 and its successors).
- ``op NAME N`` and ``NAME.STEP N``, with or without ``cycles`` behind: projects of ``pulptrain deploy``, in
  every iteration, and programs of one's own. With a unit of time or ``host ticks`` behind they are refused.

A table is CSV with columns ``op`` (or ``name``, or ``layer`` and ``step``) and ``cycles``; a row without
cycles was not measured.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

from configs.errors import InputError
from configs.limits import CSV_BYTES_PER_BYTE, check_file_size
from configs.values import Struct, replace
from traces.csv_file import LARGEST

ITERATION, TRAIN, OPTIMIZER = "iteration", "train_cycles", "opt_cycles"
"""Names for what has no layer: all of it, all but the update, the update."""

COMMENT = "#"

TEMPLATE = """\
# Cycles measured on a board, in RTL or in GVSoC. To compare them with a run: {command}
# A row is an op (conv1.FW), a layer (conv1), a step (FW, BW, UPD) or iteration. For rows with the same name
# the median counts; leave cycles empty if not measured.
op,cycles
"""
"""How a table begins."""

_NOISE = re.compile(r"\x1b\[[0-9;]*[A-Za-z]|[^\S\n\t ]|[\x00-\x08\x0e-\x1f\x7f-\x9f]")
_HEADING = re.compile(r"(forward|backward) (?:profiling|stats)\b", re.IGNORECASE)
_LAYER = re.compile(r"layer (\w+)\Z", re.IGNORECASE)
_COUNTER = re.compile(r"\[(?:core )?([0-9]+)\] (?:elapsed clock )?cycles = *(\S+)")
_TILE = re.compile(
    r"\[([^][]+?)(?:[ _]L([23]))?\]\[[SD]B\]\[\d+ ops\]\[Tile (\d+)\] "
    r"(Pre-Kernel|Kernel|Post-Kernel|Input DMA|Output DMA)(?: took| *:) *(\S+) cycles"
)
_STEPS = re.compile(r"N_TRAIN_STEPS=([1-9]\d{0,9})\b")
_BENCH = re.compile(r"\b(train_cycles|opt_cycles)(_hi|_lo)?=(\S+)")
_NAMED = re.compile(
    r"(?:op (\S+)|(\S+\.(?:FW|LOSS|IG|WG|BW|UPD)\w*))[ \t:=]+(\S+?)"
    r"(?: cycles|(?<=[\d.,]) ?([mnuµ]?s|host ticks))?\Z"
)

_CURE = "use a format of docs/measured-logs.md, or fill in the table that `pulptrain new measured.csv` writes"


class Measured(Struct, frozen=True):
    """What was measured under a name; `where` is the ``file:line`` of the first time.

    A `node` is one of a graph that has nodes of their own for its gradients. Samples of `iterations` are in
    the order of a program.
    """

    name: str
    where: str
    samples: tuple[float, ...]
    node: bool = False
    iterations: bool = False

    def like(self, icache: str) -> Measured:
        """With the samples whose code caches were those of a run: cold in the first, else the later ones."""
        if not self.iterations or len(self.samples) == 1:
            return self
        return replace(self, samples=self.samples[:1] if icache == "cold" else self.samples[1:])

    @property
    def cycles(self) -> int:
        """The median of the samples."""
        return max(round(median(self.samples)), 1)


def read_log(path: Path) -> tuple[Measured, ...]:
    """What a log or table holds, in order.

    Raises InputError for a file that cannot be read, is too large, no text, or has no cycles in it, and for
    cycles that are no number above 0.
    """
    check_file_size(path, CSV_BYTES_PER_BYTE)
    try:
        content = path.read_bytes()
    except (OSError, ValueError) as error:
        what = error.strerror if isinstance(error, OSError) else error
        raise InputError(f"cannot read '{path}': {what}", cure="use a file of measured cycles") from None
    if b"\0" in content:
        raise InputError("the file is not a text file", where=str(path), cure=_CURE)
    # Noise of a serial line is no error, nor are colours.
    lines = _NOISE.sub("", content.decode("utf-8-sig", errors="replace")).split("\n")
    columns = _columns(path, lines)
    nodes: dict[str, _Tiles] = {}
    named: dict[str, tuple[str, list[float]]] = {}
    for name, where, cycles in _of_table(path, lines, columns) if columns else _of_text(path, lines, nodes):
        named.setdefault(name, (where, []))[1].append(cycles)
    measured = [
        Measured(name, where, tuple(samples), iterations=not columns)
        for name, (where, samples) in named.items()
    ]
    measured += [Measured(name, tiles.where, (tiles.cycles(),), node=True) for name, tiles in nodes.items()]
    if not measured:
        raise InputError("the file has no measured cycles", where=str(path), cure=_CURE)
    return tuple(measured)


_Row = tuple[str, str, float]
"""A name, ``file:line``, cycles."""


def _number(text: str, where: str, *, zero: bool = False) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value <= LARGEST and not (zero and value == 0):
        what = f"cycles must be a number above 0, not {text[:40]!r}"
        raise InputError(what, where=where, cure="write the measured cycles, e.g. 1250")
    return value


def _columns(path: Path, lines: Sequence[str]) -> list[str]:
    """The heads of a table of cycles, none if the first line that is no comment has none.

    Raises InputError for heads that something else than commas separates.
    """
    first = next((line for line in lines if line.strip() and not line.startswith(COMMENT)), "")
    heads = [cell.strip().casefold() for cell in first.split(",")]
    if "cycles" not in heads and (other := next((mark for mark in ";\t|" if mark in first), "")):
        cells = [cell.strip() for cell in first.split(other)]
        if "cycles" in map(str.casefold, cells):
            number = next(number for number, line in enumerate(lines, 1) if line == first)
            raise InputError(
                f"the columns are separated by {other!r}, not by commas",
                where=f"{path}:{number}",
                cure=f"separate columns by commas: {','.join(cells)}",
            )
    return heads if "cycles" in heads else []


def _of_table(path: Path, lines: Sequence[str], columns: Sequence[str]) -> Iterator[_Row]:
    named = [name for name in ("op", "name", "layer") if name in columns][:1]
    if not named:
        raise InputError(
            f"the column 'op' is missing; the columns are {', '.join(map(repr, columns))}",
            where=str(path),
            cure="name the column of ops 'op' (docs/measured-logs.md), or start from the table that "
            "`pulptrain new measured.csv` writes",
        )
    if named == ["layer"] and "step" in columns:
        named.append("step")
    heads_read = False
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith(COMMENT):
            continue
        if not heads_read:
            heads_read = True
            continue
        where = f"{path}:{number}"
        try:
            cells = [cell.strip() for cell in next(csv.reader([line], strict=True))]
        except csv.Error as error:
            raise InputError(f"the file is not valid CSV: {error}", where=where, cure=_CURE) from None
        if len(cells) != len(columns):
            raise InputError(
                f"the row has {len(cells)} fields, but the header has {len(columns)}",
                where=where,
                cure=f"give the row {len(columns)} fields: {','.join(columns)}",
            )
        row = dict(zip(columns, cells, strict=True))
        if row["cycles"]:
            yield ".".join(row[name] for name in named if row[name]), where, _number(row["cycles"], where)


def _of_text(path: Path, lines: Sequence[str], nodes: dict[str, _Tiles]) -> Iterator[_Row]:
    """What lines say by name; those of tiles are gathered in `nodes`."""
    step, layer, train_steps = "", "", 1
    for number, line in enumerate(map(str.strip, lines), 1):
        where = f"{path}:{number}"
        if heading := _HEADING.match(line):
            step, layer = {"f": "FW", "b": "BW"}[heading[1][0].lower()], ""
        elif heading := _LAYER.match(line):
            layer = f"layer {heading[1]}"
        elif heading := _COUNTER.search(line):
            if not heading[1].strip("0"):
                yield ".".join(filter(None, (layer, step))) or ITERATION, where, _number(heading[2], where)
        elif heading := _TILE.search(line):
            cycles = _number(heading[5], where, zero=True)
            nodes.setdefault(heading[1], _Tiles(where)).add(
                heading[2] or "2", (heading[3], heading[4]), cycles
            )
        elif heading := _STEPS.search(line):
            train_steps = int(heading[1])
        elif line.startswith("BENCH "):
            yield from _of_bench(line, where, train_steps)
        elif heading := _NAMED.match(line):
            if heading[4]:
                raise InputError(
                    f"{heading[1] or heading[2]} was measured in {heading[4]}, not in cycles",
                    where=where,
                    cure="measure cycles of the cluster's clock: on the board, in RTL or in GVSoC",
                )
            yield heading[1] or heading[2], where, _number(heading[3], where)


def _of_bench(line: str, where: str, train_steps: int) -> Iterator[_Row]:
    whole: dict[str, float] = {}
    for name, half, text in _BENCH.findall(line):
        whole[name] = whole.get(name, 0) + _number(text, where, zero=True) * (2**32 if half == "_hi" else 1)
    for name, cycles in whole.items():
        yield name, where, _number(str(cycles), where) / train_steps


class _Tiles:
    """What was measured of the tiles of a node, by the memory they are cut from (L2 or L3)."""

    def __init__(self, where: str) -> None:
        self.where = where
        self._cycles: dict[str, dict[tuple[str, str], list[float]]] = {}

    def add(self, level: str, part: tuple[str, str], cycles: float) -> None:
        """`part` is a tile and what was measured of it."""
        self._cycles.setdefault(level, {}).setdefault(part, []).append(cycles)

    def cycles(self) -> float:
        """Of the node once, on average: tiles cut from L3 hold those cut from L2 as their kernel."""
        executed = max(map(len, self._cycles[max(self._cycles)].values()))
        if len(self._cycles) > 1:
            outer = self._cycles["3"]
            self._cycles["3"] = {part: outer[part] for part in outer if part[1] != "Kernel"}
        whole = sum(sum(samples) for parts in self._cycles.values() for samples in parts.values())
        return _number(str(whole / executed), self.where)
