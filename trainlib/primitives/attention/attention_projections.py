# SPDX-License-Identifier: Apache-2.0
"""Projections of attention as kernel calls: q, k, v and y from their weights, and the gradients of these.

Sequences inside are [batch, F, L], x and y are [batch, L, E]: matmul extents are those of PULP-TrainLib, with
its transposes where a layout needs them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from trainlib.ir.graph import Op
from trainlib.ir.steps import Tensors
from trainlib.primitives.attention.attention import AttentionLowering
from trainlib.primitives.lowering.axes import Area, Axes
from trainlib.primitives.lowering.calls import BATCH
from trainlib.primitives.lowering.pieces import Piece, TileBuilder

_AXES = {
    **dict.fromkeys("xy", (BATCH, "tokens", "width")),
    **dict.fromkeys(("q", "k", "v", "map"), (BATCH, "features", "tokens")),
    **dict.fromkeys(("wq", "wk", "wv"), ("features", "width")),
    **dict.fromkeys(("bq", "bk", "bv"), ("features",)),
    "wo": ("width", "features"),
    "bo": ("width",),
}
"""Dimensions of every tensor, and of its gradient."""


class _Projection(AttentionLowering):
    """What the steps share."""

    once = ""
    """A bias and its gradient belong to the tile that begins this dimension."""

    def even(self, op: Op, tensors: Tensors) -> Collection[str]:
        """All but that one."""
        return self.dimensions(op, tensors).keys() - {self.once}

    def axes(self, role: str) -> Axes:
        """Batch, tokens (L), width (E) and features (F)."""
        return _AXES[role.removeprefix("d")]

    def loaded(self, area: Area) -> Sequence[str]:
        return [role for role in area.op.reads if role[0] != "b" or area.begins(self.once)]

    def stored(self, area: Area) -> Sequence[str]:
        return [role for role in area.op.writes if role[:2] != "db" or area.begins(self.once)]

    def add_bias(self, area: Area, build: TileBuilder, total: Piece, bias: str) -> None:
        """total[n, m] += bias[n], if there is one."""
        if bias in self.loaded(area):
            rows, columns = total.shape
            term = area.piece(bias)
            arrays = {"Y": total, "G": term}
            build.run(
                "row_bias", arrays, (total, term), (total,), lambda y, b: y + b[:, None], N=rows, M=columns
            )

    def add_products(self, area: Area, build: TileBuilder, left: str, right: str, result: str) -> None:
        """result = sum over the samples of left · right; d and map are transposed first."""
        turned = {
            role: build.temporary(f"{role}_transposed", *reversed(area.piece(role, 0).shape))
            for role in (left, right)
            if role in ("dy", "map")
        }
        target = area.piece(result)
        several = len(area.samples) > 1
        term = build.temporary("dw_of_sample", *target.shape) if several else None
        for sample in area.samples:
            for role, matrix in turned.items():
                build.transpose(area.piece(role, sample), matrix)
            a, b = (turned.get(role) or area.piece(role, sample) for role in (left, right))
            build.added_matmul(a, b, target, term if sample else None)


class Projection(_Projection):
    """One of q, k, v [F, L] = W[F, E] · xᵀ + b; (F, E, L)."""

    kept, summed, once = (BATCH, "features", "tokens"), ("width",), "width"

    def compute(self, area: Area, build: TileBuilder) -> None:
        """Some features of some tokens; the bias with the first elements of the tokens."""
        (name,) = area.op.writes
        for sample in area.samples:
            target = area.piece(name, sample)
            build.matmul(area.piece(f"w{name}"), area.piece("x", sample), target, trans_b=True)
            self.add_bias(area, build, target, f"b{name}")


class OutputProjection(_Projection):
    """y[L, E] = (Wo[E, F] · map[F, L] + bo)ᵀ; (E, F, L)."""

    kept, summed, once = (BATCH, "tokens", "width"), ("features",), "features"

    def compute(self, area: Area, build: TileBuilder) -> None:
        """Some elements of some tokens; the bias with the first features."""
        turned = build.temporary("y_transposed", *area.shape("width", "tokens"))
        for sample in area.samples:
            build.matmul(area.piece("wo"), area.piece("map", sample), turned)
            self.add_bias(area, build, turned, "bo")
            build.transpose(turned, area.piece("y", sample))


class OutputGradient(_Projection):
    """dmap[F, L] = Woᵀ · dyᵀ; (F, E, L)."""

    kept, summed = (BATCH, "features", "tokens"), ("width",)

    def compute(self, area: Area, build: TileBuilder) -> None:
        """Some columns of Wo, transposed once."""
        turned = build.temporary("wo_transposed", *area.shape("features", "width"))
        build.transpose(area.piece("wo"), turned)
        for sample in area.samples:
            dy, dmap = (area.piece(role, sample) for role in ("dy", "dmap"))
            build.matmul(turned, dy, dmap, trans_b=True)


class ProjectionWeightGradient(_Projection):
    """dW[F, E] = sum over the batch of d[F, L] · x[L, E] of one of q, k, v, and its bias; (F, L, E)."""

    kept, summed, once = ("features", "width"), (BATCH, "tokens"), "width"

    def compute(self, area: Area, build: TileBuilder) -> None:
        """A box of dW; the bias with the first of its columns."""
        (source, _), (result, *bias) = area.op.reads, self.stored(area)
        self.add_products(area, build, source, "x", result)
        if bias:
            whole, target = area.piece(source), area.piece(bias[0])
            sizes = dict(zip("PNM", whole.shape, strict=True))
            arrays = {"X": whole, "Y": target}
            build.run("row_sum", arrays, (whole,), (target,), lambda x: x.sum(axis=(0, 2)), **sizes)


class OutputWeightGradient(_Projection):
    """dWo[E, F] = sum over the batch of dyᵀ · mapᵀ, and its bias; (E, L, F), both transposed first."""

    kept, summed, once = ("width", "features"), (BATCH, "tokens"), "features"

    def compute(self, area: Area, build: TileBuilder) -> None:
        """A box of dWo; the bias with the first of its columns."""
        self.add_products(area, build, "dy", "map", "dwo")
        if "dbo" in self.stored(area):
            build.column_sum(area.piece("dy"), area.piece("dbo"))


class InputGradient(_Projection):
    """dx[L, E] = sum over q, k, v of (Wᵀ · d)ᵀ; three times (E, F, L)."""

    kept, summed = (BATCH, "tokens", "width"), ("features",)

    def macs(self, op: Op, tensors: Tensors) -> int:
        """Three products."""
        return 3 * super().macs(op, tensors)

    def compute(self, area: Area, build: TileBuilder) -> None:
        """A box of the weights; per sample three products, added up and transposed."""
        turned = build.temporary("w_transposed", *area.shape("width", "features"))
        total, term = (
            build.temporary(name, *area.shape("width", "tokens")) for name in ("dx_transposed", "dx_of_one")
        )
        for sample in area.samples:
            for name in "qkv":
                build.transpose(area.piece(f"w{name}"), turned)
                further = term if name != "q" else None
                build.added_matmul(turned, area.piece(f"d{name}", sample), total, further)
            build.transpose(total, area.piece("dx", sample))
