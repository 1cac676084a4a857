# SPDX-License-Identifier: Apache-2.0
"""Whether the tiles of an op can use resident tensors where they lie."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from configs.values import Struct
from scheduler.tiles.partial_sums import SUM
from scheduler.tiles.resident_tensors import Bytes, InPlace
from scheduler.tiles.tiling import Tiling
from scheduler.tiles.tiling_candidates import TilingCandidates
from trainlib.ir.steps import Operand, TileTask


class NotInPlace(Struct, frozen=True):
    """A resident storage that an op cannot use where it lies, and why."""

    storage: str
    why: str


def allowed(candidates: TilingCandidates) -> NDArray[np.bool_] | NotInPlace:
    """Which candidates use every resident tensor in boxes that are one run of bytes, never a box twice.

    If none does: the first storage of which no candidate does, or else the first.
    """
    tiler, footprint = candidates.tiler, candidates.footprint
    by_storage: dict[str, NDArray[np.bool_]] = {}
    for column in footprint.moved:
        in_place = tiler.resident.get(footprint.tensors[footprint.keys[column]])
        if in_place is not None:
            fine = by_storage.setdefault(in_place.storage, np.ones(len(candidates), np.bool_))
            box = footprint.box(column)
            fine &= ((box.lines == 1) & (box.pieces == 1))[candidates.rows]
            fine &= candidates.of_sum(column)[0] == 0
    together = np.ones(len(candidates), np.bool_)
    for fine in by_storage.values():
        together &= fine
    if together.any():
        return together
    alone = [storage for storage, fine in by_storage.items() if not fine.any()]
    return NotInPlace([*alone, *by_storage][0], _no_run(tiler.op.name))


def refusal(tiling: Tiling, resident: Mapping[str, InPlace]) -> NotInPlace | None:
    """What forbids to run these tiles on resident tensors where they lie; None if nothing does.

    Boxes must be one run of bytes. A sum that comes back to a box would be added to itself. An op that reads
    and writes the same bytes must do so in the same tile and box, read them no more once they are written,
    and no other tile may read them.
    """
    if not resident:
        return None
    for task in tiling.tiles:
        for operand in (*task.inputs, *task.written):
            in_place = resident.get(operand.tensor)
            if in_place is None:
                continue
            if in_place.bytes_of(operand) is None:
                return NotInPlace(in_place.storage, _no_run(tiling.op))
            if operand.name.endswith(SUM):
                return NotInPlace(in_place.storage, f"{tiling.op} adds to one part of it several times")
    return _overwritten(tiling, resident)


def no_room(op: str) -> str:
    """Why, where tiles that use it in place are too large."""
    return f"tiles of {op} that use it in place are larger than the free L1"


def _no_run(op: str) -> str:
    return f"tiles of {op} use parts of it that are not contiguous words"


def _overwritten(tiling: Tiling, resident: Mapping[str, InPlace]) -> NotInPlace | None:
    reads: dict[str, list[tuple[int, Bytes]]] = {}
    writes: dict[str, list[tuple[int, Bytes]]] = {}
    for tile, task in enumerate(tiling.tiles):
        for operands, runs in ((task.inputs, reads), (task.written, writes)):
            for operand in operands:
                in_place = resident.get(operand.tensor)
                if in_place is not None:
                    runs.setdefault(in_place.storage, []).append((tile, in_place.run_of(operand)))
        storage = _read_after_write(task, resident)
        if storage is not None:
            return NotInPlace(storage, f"{tiling.op} reads it again after overwriting it")
    for storage in reads.keys() & writes.keys():
        if not _same_boxes(reads[storage], writes[storage]):
            return NotInPlace(storage, f"tiles of {tiling.op} overwrite parts of it that other tiles use")
    return None


def _same_boxes(reads: Sequence[tuple[int, Bytes]], writes: Sequence[tuple[int, Bytes]]) -> bool:
    """Whether every tile reads the run it writes, and no two tiles share a byte."""
    if set(reads) != set(writes):
        return False
    runs = sorted(run for _, run in set(writes))
    return all(one[1] <= other[0] for one, other in pairwise(runs))


def _read_after_write(task: TileTask, resident: Mapping[str, InPlace]) -> str | None:
    """The storage an input of which a kernel reads after an earlier kernel wrote the output in its place."""
    read_as = _names(task.inputs, resident)
    write_as = _names(task.written, resident)
    dirty: set[str] = set()
    for call in task.calls:
        for name in _buffers(call.reads):
            if read_as.get(name) in dirty:
                return read_as[name]
        dirty |= {write_as[name] for name in _buffers(call.writes) if name in write_as}
    return None


def _names(operands: Sequence[Operand], resident: Mapping[str, InPlace]) -> dict[str, str]:
    """Buffer name -> storage, of resident operands."""
    return {item.name: resident[item.tensor].storage for item in operands if item.tensor in resident}


def _buffers(names: Sequence[str]) -> list[str]:
    """The buffers that names of buffers or of parts of them mean."""
    return [name.partition("[")[0] for name in names]
