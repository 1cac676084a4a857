# SPDX-License-Identifier: Apache-2.0
"""Projections of attention as kernel calls: q, k, v and y from their weights, and the gradients of these.

Sequences inside are [batch, F, L], x and y are [batch, L, E]: matmul extents are those of PULP-TrainLib, with
its transposes where a layout needs them. What an adapter adds is one more product of rank R in the steps of
the frozen weight, and h [batch, R, L] = alpha / R · down · x before it: the low-rank part never lies in a
tensor as large as a sequence.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from math import prod

from trainlib.ir.graph import Op
from trainlib.ir.steps import Tensors
from trainlib.primitives.attention.attention import AttentionLowering, alpha_over_rank, scale
from trainlib.primitives.lowering.axes import Area, Axes
from trainlib.primitives.lowering.calls import BATCH
from trainlib.primitives.lowering.pieces import ROW_SUM, Piece, TileBuilder
from trainlib.primitives.lowering.row_loop import RowLoop

PROJECTIONS = {**dict.fromkeys("qkv", ("features", "width")), "o": ("width", "features")}
"""Queries, keys, values and output: rows and columns of their weights. Each may have an adapter."""

ENDS = ("_down", "_up")
"""Of the names of the two matrices of an adapter, behind that of the weight."""

_AXES: dict[str, Axes] = {
    **dict.fromkeys("xy", (BATCH, "tokens", "width")),
    **dict.fromkeys(("q", "k", "v", "map"), (BATCH, "features", "tokens")),
}
"""Dimensions of every tensor, and of its gradient."""
for _name, (_rows, _columns) in PROJECTIONS.items():
    _AXES |= {f"h{_name}": (BATCH, "rank", "tokens"), f"w{_name}": (_rows, _columns), f"b{_name}": (_rows,)}
    _AXES |= zip((f"w{_name}{end}" for end in ENDS), (("rank", _columns), (_rows, "rank")), strict=True)

_BIASED = RowLoop(
    lambda y, b: y + b[:, None], "YG", "Y", {"Y": "r*M + i", "G": "r"}, rows=("N",), elements=("M",)
)
"""Row program of a bias."""

_BY_COLUMNS = ("x", "dy")
"""Sequences stored [L, E], where the others are [F, L] or [R, L]."""


def low_rank(op: Op) -> list[tuple[str, str]]:
    """What the terms that adapters add to a step are made of: a matrix and an inner sequence each."""
    hidden = [role for role in op.reads if role.removeprefix("d")[0] == "h"]
    return list(zip([role for role in op.reads if role.endswith(ENDS)], hidden, strict=False))


class _Projection(AttentionLowering):
    """What the steps share."""

    once = ""
    """A bias, its gradient and the terms of adapters belong to the tile that begins this dimension."""
    always = True
    """Whether there may be such a thing without an adapter."""

    def even(self, op: Op, tensors: Tensors) -> Collection[str]:
        """All but that one."""
        return self.dimensions(op, tensors).keys() - ({self.once} if self.always or low_rank(op) else set())

    def axes(self, role: str) -> Axes:
        """Batch, tokens (L), width (E), features (F) and rank (R)."""
        return _AXES[role.removeprefix("d")]

    def loaded(self, area: Area) -> Sequence[str]:
        if area.begins(self.once):
            return area.op.reads
        late = {role for pair in low_rank(area.op) for role in pair}
        return [role for role in area.op.reads if role not in late and role[0] != "b"]

    def stored(self, area: Area) -> Sequence[str]:
        return [role for role in area.op.writes if role[:2] != "db" or area.begins(self.once)]

    def macs(self, op: Op, tensors: Tensors) -> int:
        """With the products of the adapters."""
        sizes = self.dimensions(op, tensors)
        inner = len(low_rank(op)) * sizes.get("rank", 0)
        return super().macs(op, tensors) + inner * prod(sizes[name] for name in self.kept)

    def add_bias(self, area: Area, build: TileBuilder, total: Piece, bias: str) -> None:
        """total[n, m] += bias[n], if there is one."""
        if bias in self.loaded(area):
            rows, columns = total.shape
            term = area.piece(bias)
            arrays = {"Y": total, "G": term}
            build.loop("row_bias", arrays, _BIASED, N=rows, M=columns)

    def low_rank(
        self, area: Area, build: TileBuilder, *rows_and_columns: str
    ) -> Callable[[Piece, int], None]:
        """Adds the products of the adapters that the tile loads to what it has made of a sample."""
        pairs = low_rank(area.op) if area.begins(self.once) else []
        term = build.temporary("low_rank", *area.shape(*rows_and_columns)) if pairs else None
        left = {weight: area.piece(weight) for weight, _ in pairs}
        for weight, matrix in left.items():
            if weight.endswith("_down"):
                left[weight] = build.temporary(f"{weight}_transposed", *reversed(matrix.shape))
                build.transpose(matrix, left[weight])

        def add(total: Piece, sample: int) -> None:
            for weight, hidden in pairs:
                build.added_matmul(left[weight], area.piece(hidden, sample), total, term)

        return add

    def scaled(self, area: Area, build: TileBuilder, target: Piece) -> None:
        """Times alpha / R, if it is the inner sequence of an adapter."""
        if "rank" in self.kept and (factor := alpha_over_rank(area.op)) != 1:
            scale(build, target, factor)

    def add_products(self, area: Area, build: TileBuilder, left: str, right: str, result: str) -> None:
        """result[n, m] = sum over the samples and tokens of left · right, transposed first where needed."""
        turned = {
            role: build.temporary(f"{role}_transposed", *reversed(area.piece(role, 0).shape))
            for role, by_columns in ((left, False), (right, True))
            if (role in _BY_COLUMNS) != by_columns
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
    """One of q, k, v [F, L] = W[F, E] · xᵀ + b; (F, E, L). Of an adapter, one of h [R, L]: `rows` rank."""

    def __init__(self, rows: str = "features", source: str = "x") -> None:
        self.kept = (BATCH, rows, "tokens")
        self.once = "width" if source == "x" else "features"
        self.summed = (self.once,)

    def compute(self, area: Area, build: TileBuilder) -> None:
        """Some features of some tokens; the bias with the first elements of the tokens."""
        (source, weight, *_), (name,) = area.op.reads, area.op.writes
        add_low_rank = self.low_rank(area, build, *self.kept[1:])
        for sample in area.samples:
            target = area.piece(name, sample)
            trans_b = source in _BY_COLUMNS
            build.matmul(area.piece(weight), area.piece(source, sample), target, trans_b=trans_b)
            self.add_bias(area, build, target, f"b{name}")
            add_low_rank(target, sample)
            self.scaled(area, build, target)


class OutputProjection(_Projection):
    """y[L, E] = (Wo[E, F] · map[F, L] + bo)ᵀ; (E, F, L)."""

    kept, summed, once = (BATCH, "tokens", "width"), ("features",), "features"

    def compute(self, area: Area, build: TileBuilder) -> None:
        """Some elements of some tokens; the bias with the first features."""
        turned = build.temporary("y_transposed", *area.shape("width", "tokens"))
        add_low_rank = self.low_rank(area, build, "width", "tokens")
        for sample in area.samples:
            build.matmul(area.piece("wo"), area.piece("map", sample), turned)
            self.add_bias(area, build, turned, "bo")
            add_low_rank(turned, sample)
            build.transpose(turned, area.piece("y", sample))


class OutputGradient(_Projection):
    """dmap[F, L] = Woᵀ · dyᵀ; (F, E, L). Of an adapter, one of dh [R, L] = upᵀ · gradient: `rows` rank."""

    always = False

    def __init__(self, rows: str = "features", source: str = "dy") -> None:
        self.kept = (BATCH, rows, "tokens")
        self.once = "width" if source == "dy" else "features"
        self.summed = (self.once,)

    def compute(self, area: Area, build: TileBuilder) -> None:
        """Some columns of the weight, transposed once."""
        (source, weight, *_), (name,) = area.op.reads, area.op.writes
        turned = build.temporary(f"{weight}_transposed", *area.shape(self.kept[1], self.once))
        build.transpose(area.piece(weight), turned)
        add_low_rank = self.low_rank(area, build, *self.kept[1:])
        for sample in area.samples:
            target = area.piece(name, sample)
            build.matmul(turned, area.piece(source, sample), target, trans_b=source in _BY_COLUMNS)
            add_low_rank(target, sample)
            self.scaled(area, build, target)


class ProjectionWeightGradient(_Projection):
    """dW[F, E] = sum over the batch of d[F, L] · x[L, E] of one of q, k, v, and its bias; (F, L, E).

    The gradients of an adapter have R rows or columns.
    """

    summed = (BATCH, "tokens")

    def __init__(self, rows: str = "features", columns: str = "width") -> None:
        self.kept, self.once = (rows, columns), columns

    def compute(self, area: Area, build: TileBuilder) -> None:
        """A box of dW; the bias with the first of its columns."""
        (source, right), (result, *bias) = area.op.reads, self.stored(area)
        self.add_products(area, build, source, right, result)
        if bias:
            whole, target = area.piece(source), area.piece(bias[0])
            sizes = dict(zip("PNM", whole.shape, strict=True))
            arrays = {"X": whole, "Y": target}
            build.loop("row_sum", arrays, ROW_SUM, **sizes)


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

    kept, summed, once = (BATCH, "tokens", "width"), ("features",), "features"
    always = False

    def macs(self, op: Op, tensors: Tensors) -> int:
        """Three products, and those of the adapters."""
        sizes = self.dimensions(op, tensors)
        return super().macs(op, tensors) + 2 * prod(sizes[name] for name in (*self.kept, *self.summed))

    def compute(self, area: Area, build: TileBuilder) -> None:
        """A box of the weights; per sample three products, added up and transposed."""
        turned = build.temporary("w_transposed", *area.shape("width", "features"))
        total, term = (
            build.temporary(name, *area.shape("width", "tokens")) for name in ("dx_transposed", "dx_of_one")
        )
        add_low_rank = self.low_rank(area, build, "width", "tokens")
        for sample in area.samples:
            for name in "qkv":
                build.transpose(area.piece(f"w{name}"), turned)
                further = term if name != "q" else None
                build.added_matmul(turned, area.piece(f"d{name}", sample), total, further)
            add_low_rank(total, sample)
            build.transpose(total, area.piece("dx", sample))
