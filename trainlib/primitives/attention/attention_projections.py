# SPDX-License-Identifier: Apache-2.0
"""Projections of attention as kernel calls: q, k, v and y from their weights, and the gradients of these.

Sequences inside are [batch, F, L], x and y are [batch, L, E]: matmul extents are those of PULP-TrainLib, with
its transposes where a layout needs them.
"""

from __future__ import annotations

from trainlib.graph import Op
from trainlib.primitives.attention.attention import Area, AttentionLowering
from trainlib.primitives.lowering.calls import BATCH
from trainlib.primitives.lowering.pieces import Piece, TileBuilder
from trainlib.steps import Tensors, part

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

    multiplied = ("batch", "length", "width", "features")
    once = ""
    """A bias and its gradient belong to the tile that begins this dimension."""

    def axes(self, role: str) -> tuple[str, ...]:
        """Batch, tokens (L), width (E) and features (F)."""
        return _AXES[role.removeprefix("d")]

    def moved(self, area: Area, role: str) -> bool:
        """A bias only once."""
        return not role.removeprefix("d").startswith("b") or area.extents[self.once][0] == 0

    def piece(self, area: Area, role: str, sample: int | None = None) -> Piece:
        """The box of a tensor, or that of a sample."""
        shape = area.shape(*self.axes(role))
        return Piece(role, shape) if sample is None else Piece(part(role, sample), shape[1:])

    def add_bias(self, area: Area, build: TileBuilder, total: Piece, bias: str) -> None:
        """total[n, m] += bias[n], if there is one."""
        if bias in area.op and self.moved(area, bias):
            rows, columns = total.shape
            term = self.piece(area, bias)
            arrays = {"Y": total, "G": term}
            build.run(
                "row_bias", arrays, (total, term), (total,), lambda y, b: y + b[:, None], N=rows, M=columns
            )

    def add_products(self, area: Area, build: TileBuilder, left: str, right: str, result: str) -> None:
        """result = sum over the samples of left · right; d and map are transposed first."""
        turned = {
            role: build.temporary(f"{role}_transposed", *reversed(self.piece(area, role, 0).shape))
            for role in (left, right)
            if role in ("dy", "map")
        }
        target = self.piece(area, result)
        several = len(area.samples) > 1
        term = build.temporary("dw_of_sample", *target.shape) if several else None
        for sample in area.samples:
            for role, matrix in turned.items():
                build.transpose(self.piece(area, role, sample), matrix)
            a, b = (turned.get(role) or self.piece(area, role, sample) for role in (left, right))
            build.added_matmul(a, b, target, term if sample else None)


class Projection(_Projection):
    """One of q, k, v [F, L] = W[F, E] · xᵀ + b; (F, E, L)."""

    kept, summed, once = (BATCH, "features", "tokens"), ("width",), "width"

    def compute(self, area: Area, build: TileBuilder) -> None:
        """Some features of some tokens; the bias with the first elements of the tokens."""
        (name,) = area.op.writes
        for sample in area.samples:
            target = self.piece(area, name, sample)
            build.matmul(self.piece(area, f"w{name}"), self.piece(area, "x", sample), target, trans_b=True)
            self.add_bias(area, build, target, f"b{name}")


class OutputProjection(_Projection):
    """y[L, E] = (Wo[E, F] · map[F, L] + bo)ᵀ; (E, F, L)."""

    kept, summed, once = (BATCH, "tokens", "width"), ("features",), "features"

    def compute(self, area: Area, build: TileBuilder) -> None:
        """Some elements of some tokens; the bias with the first features."""
        turned = build.temporary("y_transposed", *area.shape("width", "tokens"))
        for sample in area.samples:
            build.matmul(self.piece(area, "wo"), self.piece(area, "map", sample), turned)
            self.add_bias(area, build, turned, "bo")
            build.transpose(turned, self.piece(area, "y", sample))


class OutputGradient(_Projection):
    """dmap[F, L] = Woᵀ · dyᵀ; (F, E, L)."""

    kept, summed = (BATCH, "features", "tokens"), ("width",)

    def compute(self, area: Area, build: TileBuilder) -> None:
        """Some columns of Wo, transposed once."""
        turned = build.temporary("wo_transposed", *area.shape("features", "width"))
        build.transpose(self.piece(area, "wo"), turned)
        for sample in area.samples:
            dy, dmap = (self.piece(area, role, sample) for role in ("dy", "dmap"))
            build.matmul(turned, dy, dmap, trans_b=True)


class ProjectionWeightGradient(_Projection):
    """dW[F, E] = sum over the batch of d[F, L] · x[L, E] of one of q, k, v, and its bias; (F, L, E)."""

    kept, summed, once = ("features", "width"), (BATCH, "tokens"), "width"

    def compute(self, area: Area, build: TileBuilder) -> None:
        """A box of dW; the bias with the first of its columns."""
        (source, _), (result, *bias) = area.op.reads, area.op.writes
        self.add_products(area, build, source, "x", result)
        if bias and self.moved(area, bias[0]):
            whole, target = self.piece(area, source), self.piece(area, bias[0])
            sizes = dict(zip("PNM", whole.shape, strict=True))
            arrays = {"X": whole, "Y": target}
            build.run("row_sum", arrays, (whole,), (target,), lambda x: x.sum(axis=(0, 2)), **sizes)


class OutputWeightGradient(_Projection):
    """dWo[E, F] = sum over the batch of dyᵀ · mapᵀ, and its bias; (E, L, F), both transposed first."""

    kept, summed, once = ("width", "features"), (BATCH, "tokens"), "features"

    def compute(self, area: Area, build: TileBuilder) -> None:
        """A box of dWo; the bias with the first of its columns."""
        self.add_products(area, build, "dy", "map", "dwo")
        if "dbo" in area.op and self.moved(area, "dbo"):
            build.column_sum(self.piece(area, "dy"), self.piece(area, "dbo"))


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
                build.transpose(self.piece(area, f"w{name}"), turned)
                further = term if name != "q" else None
                build.added_matmul(turned, self.piece(area, f"d{name}", sample), total, further)
            build.transpose(total, self.piece(area, "dx", sample))
