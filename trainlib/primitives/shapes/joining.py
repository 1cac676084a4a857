# SPDX-License-Identifier: Apache-2.0
"""Lowerings of concat and split: many tensors side by side along an axis of one, copied either way.

Tiles cut the batch and up to two dimensions other than that axis, so a tile has all pieces of its rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate

import numpy as np

from trainlib.ir.access import Index, Term
from trainlib.ir.graph import Op
from trainlib.ir.steps import Tensors
from trainlib.primitives.definition import Step, Values
from trainlib.primitives.lowering.axes import Axes, Form, LeadingBoxes
from trainlib.primitives.lowering.boxes import leading_extents
from trainlib.primitives.shapes.box_copies import Copy


def piece_number(role: str) -> int:
    """Number of a piece by its role: x is 0, x1 is 1, dy2 is 2."""
    return int(role.lstrip("dxy") or 0)


def piece_offsets(sizes: Sequence[int]) -> list[int]:
    """Where each piece begins along the axis."""
    return [0, *accumulate(sizes)][:-1]


class _Joining(LeadingBoxes):
    """Both directions; ops carry ``axis`` (of a sample) and ``sizes`` of the pieces."""

    def axes_of(self, op: Op, tensors: Tensors, role: str) -> Axes:
        """Of a piece that axis is its own."""
        axes, joined = super().axes_of(op, tensors, role), 1 + op.attributes["axis"]
        return (*axes[:joined], f"of {role}", *axes[joined + 1 :])

    def extents(self, op: Op, tensors: Tensors) -> Mapping[str, int]:
        """``n`` and dimensions other than the axis."""
        shape = tensors[op.outputs[0]].shape
        return leading_extents(
            shape, [axis for axis in range(len(shape) - 1) if axis != op.attributes["axis"]]
        )

    def kernels(self, form: Form) -> Sequence[Copy]:
        """Rows of the whole, the same rows of every piece: a copy for each."""
        op, offsets = form.op, piece_offsets(form.op.attributes["sizes"])

        def copy(target: str) -> Copy:
            begin = offsets[piece_number(target)]
            shifts = {role: begin - offsets[piece_number(role)] for role in op.reads}  # the whole begins at 0
            loop = (Term(f"of {target}"),)
            maps = {f"of {role}": Index("", 0, loop, shift) for role, shift in shifts.items()}
            return Copy(target, op.reads, maps=maps)

        return [copy(target) for target in op.writes]


def join(name: str, moves: str) -> Step:
    """Pieces into one; pieces that do not exist (a gradient nobody has) are zeros."""

    def reference(op: Op, values: Values) -> Values:
        sizes, axis = op.attributes["sizes"], 1 + op.attributes["axis"]
        parts = {piece_number(role): values[role] for role in op.reads}
        like = next(iter(parts.values()))
        pieces = []
        for number, size in enumerate(sizes):
            shape = (*like.shape[:axis], size, *like.shape[axis + 1 :])
            pieces.append(parts.get(number, np.zeros(shape, np.float32)))
        return {op.writes[0]: np.concatenate(pieces, axis=axis)}

    return Step.of(name, moves, reference, _Joining())


def split(name: str, moves: str) -> Step:
    """One into pieces, those that are needed."""

    def reference(op: Op, values: Values) -> Values:
        cuts = piece_offsets(op.attributes["sizes"])[1:]
        pieces = np.split(values[op.reads[0]], cuts, axis=1 + op.attributes["axis"])
        return {role: pieces[piece_number(role)] for role in op.writes}

    return Step.of(name, moves, reference, _Joining())
